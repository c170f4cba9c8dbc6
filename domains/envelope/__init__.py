"""Recovery of envelope."""
