-- name: prune_ended
-- Deletes ended rows past their retention among the next rows by id; tells where to go on.
SELECT deleted, last_id FROM @schema@.prune_ended(%(after)s, %(batch)s, make_interval(secs => %(keep_s)s));

-- name: prune_audit
-- Deletes the oldest audit lines past their retention.
SELECT @schema@.prune_audit(%(batch)s, make_interval(secs => %(keep_s)s));

-- name: prune_rest
-- Deletes old ledger lines, boots and pauses that nobody asks for any more.
SELECT @schema@.prune_rest(%(batch)s, make_interval(secs => %(keep_s)s));

-- name: ended_of
-- Tells which of these dispatches need no entry any more.
SELECT ended_of FROM @schema@.ended_of(%(ids)s);

-- name: known_queues
-- Names the queues that are known.
SELECT DISTINCT known_queues FROM @schema@.known_queues();

-- name: table_health
-- Tells how the outbox's table is doing.
SELECT table_bytes, index_bytes, live_rows, dead_rows, extract(epoch FROM vacuumed_at)::double precision, notification_queue
FROM @schema@.table_health();

-- name: version
-- Tells the schema's version.
SELECT max(version) FROM @schema@.schema_migrations;
