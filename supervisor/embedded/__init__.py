"""Real PostgreSQL and Valkey for one's own machine: found, started on Unix sockets, and gone when their owner is."""
