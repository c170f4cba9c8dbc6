"""Recovery of image_session."""
