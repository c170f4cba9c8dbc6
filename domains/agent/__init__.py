"""Recovery of agent."""
