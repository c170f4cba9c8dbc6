"""The worker's side of the outbox: read an entry, begin, work, settle, end the entry."""
