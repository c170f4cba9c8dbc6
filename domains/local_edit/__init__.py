"""Recovery of local_edit."""
