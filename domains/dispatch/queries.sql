-- name: claim
-- Leases due rows and returns them, then one row that sums up (see claim_due).
SELECT * FROM @schema@.claim_due(
    %(token)s, %(claimed_by)s, make_interval(secs => %(lease_s)s), %(batch)s, %(closed)s, %(room)s, %(inline)s, %(oldest)s,
    %(only_queues)s);

-- name: mark
-- Writes what was sent; returns what could not be marked.
SELECT id, outcome FROM @schema@.mark_sent(
    %(tokens)s, %(ids)s, %(refs)s, make_interval(secs => %(grace_s)s));

-- name: release
-- Gives claims back, uncharged; ids null: all of the token.
SELECT @schema@.release_claims(%(token)s, %(ids)s);

-- name: fail
-- Charges rows that were refused alone.
SELECT id, status FROM @schema@.fail_send(%(token)s, %(ids)s, %(errors)s, %(most)s);

-- name: take_back
-- Frees the claims of the provably dead.
SELECT @schema@.take_back(%(boot_id)s, %(generation)s);

-- name: register
-- Shows this boot in `instances`.
SELECT @schema@.register_instance(%(boot_id)s, %(name)s, %(host)s, %(pid)s, %(version)s);

-- name: beat
-- Renews this boot's sign of life; false when it is not registered.
SELECT @schema@.beat_instance(%(boot_id)s);

-- name: sync_actors
-- Writes the configured policies where they differ.
SELECT @schema@.sync_actors(%(actors)s);

-- name: stage_restaged
-- Turns wishes without a live envelope into envelopes.
SELECT staged, last_key FROM @schema@.stage_restaged(%(after)s);

-- name: sent_queues
-- Names the queues with sent rows, and each one's newest known entry.
SELECT queue, newest FROM @schema@.sent_queues();

-- name: requeue_lost
-- Makes up to 1,000 rows of a lost stream due again.
SELECT @schema@.requeue_lost(%(queue)s, %(sent_before)s, %(keep_from)s, %(keep_to)s);

-- name: clock
-- Tells the database's time.
SELECT clock_timestamp();

-- name: notify
-- Announces on the channel from this connection, with the constant empty payload.
SELECT pg_notify(%(channel)s, '');

-- name: version
-- Tells the schema's version.
SELECT max(version) FROM @schema@.schema_migrations;
