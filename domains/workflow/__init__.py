"""Recovery of workflow."""
