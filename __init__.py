"""pfsup."""
