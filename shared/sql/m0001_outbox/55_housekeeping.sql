-- Housekeeping: retention in bounded deletes, and how the table is doing. For the role @schema@_run.
-- Every function looks at a bounded number of rows and says where to go on; none of them waits for a row lock.

-- Delete ended rows (consumed, rejected, cancelled) that finished longer ago than `keep`, among the `batch` rows after the
-- id `after`, along the primary key: an index on ended rows would cost every settle. `last_id` is where to go on; null
-- when the walk came to rows too young to have ended that long ago, or to the end: begin again at 0. What a person must
-- decide about (held, dead, unknown) stays.
CREATE FUNCTION @schema@.prune_ended(after bigint, batch integer, keep interval)
RETURNS TABLE (deleted integer, last_id bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    before CONSTANT timestamptz := statement_timestamp() - prune_ended.keep;
    young  boolean;
    seen   integer;
    old    bigint[];
BEGIN
    SELECT max(w.id), count(*), coalesce(bool_or(w.staged_at >= before), false),
           array_agg(w.id) FILTER (WHERE w.finished_at < before AND w.status IN ('consumed', 'rejected', 'cancelled'))
    INTO prune_ended.last_id, seen, young, old
    FROM (SELECT d.id, d.status, d.staged_at, d.finished_at
          FROM @schema@.async_dispatches d
          WHERE d.id > prune_ended.after
          ORDER BY d.id
          LIMIT prune_ended.batch) AS w;
    WITH gone AS MATERIALIZED (
        SELECT d.id
        FROM unnest(old) AS o (id)
        JOIN @schema@.async_dispatches d ON d.id = o.id
        WHERE d.finished_at < before AND d.status IN ('consumed', 'rejected', 'cancelled')
        FOR UPDATE OF d SKIP LOCKED
    )
    DELETE FROM @schema@.async_dispatches d USING gone WHERE d.id = gone.id;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    IF young OR seen < prune_ended.batch THEN
        last_id := NULL;
    END IF;
    RETURN NEXT;
END $$;

-- Delete the oldest audit lines, up to `batch`, while they are older than `keep`. Returns how many.
CREATE FUNCTION @schema@.prune_audit(batch integer, keep interval) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    deleted integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT w.id
        FROM (SELECT a.id, a.at FROM @schema@.audit_log a ORDER BY a.id LIMIT prune_audit.batch) AS w
        WHERE w.at < statement_timestamp() - prune_audit.keep
    )
    DELETE FROM @schema@.audit_log a USING old WHERE a.id = old.id;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END $$;

-- Delete what nobody asks for any more: ledger lines untouched for `keep` that do not sleep, boots without a sign of life
-- for 7 days, pauses that ended. Up to `batch` ledger lines a call. Returns how many lines went.
CREATE FUNCTION @schema@.prune_rest(batch integer, keep interval) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
DECLARE
    deleted integer;
    total   integer := 0;
BEGIN
    DELETE FROM @schema@.recovery_ledger l
    WHERE l.ctid = ANY (ARRAY(
        SELECT o.ctid FROM @schema@.recovery_ledger o
        WHERE o.updated_at < statement_timestamp() - prune_rest.keep AND o.next_check_at < statement_timestamp()
        LIMIT prune_rest.batch
        FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    total := total + deleted;
    DELETE FROM @schema@.instances i WHERE i.beat_at < statement_timestamp() - interval '7 days';
    GET DIAGNOSTICS deleted = ROW_COUNT;
    total := total + deleted;
    DELETE FROM @schema@.controls c WHERE c.until < statement_timestamp();
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN total + deleted;
END $$;

-- Which of these dispatches need no entry any more: ended, or no longer there at all.
CREATE FUNCTION @schema@.ended_of(ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT w.id
    FROM unnest(ended_of.ids) AS w (id)
    LEFT JOIN @schema@.async_dispatches d ON d.id = w.id
    WHERE d.id IS NULL OR d.status IN ('consumed', 'rejected', 'cancelled', 'dead', 'unknown');
END $$;

-- The queues that are known: of policies, and of rows that wait.
CREATE FUNCTION @schema@.known_queues() RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    name text;
BEGIN
    RETURN QUERY SELECT coalesce(a.queue, a.name) FROM @schema@.actors a;
    SELECT d.queue INTO name FROM @schema@.async_dispatches d WHERE d.status = 'pending' ORDER BY d.queue LIMIT 1;
    WHILE name IS NOT NULL LOOP
        RETURN NEXT name;
        SELECT d.queue INTO name FROM @schema@.async_dispatches d
        WHERE d.status = 'pending' AND d.queue > name
        ORDER BY d.queue LIMIT 1;
        EXIT WHEN NOT FOUND;
    END LOOP;
    -- Of rows in the workers' hands the newest 1,000 are looked at: their index does not know the queue.
    RETURN QUERY SELECT DISTINCT w.queue FROM (
        SELECT d.queue FROM @schema@.async_dispatches d WHERE d.status IN ('sent', 'running')
        ORDER BY d.check_at DESC, d.id DESC LIMIT 1000) AS w;
    RETURN QUERY SELECT DISTINCT w.queue FROM (
        SELECT d.queue FROM @schema@.async_dispatches d ORDER BY d.id DESC LIMIT 1000) AS w;
END $$;

-- How the outbox's table is doing, for `status`: sizes in bytes, dead rows, when it was vacuumed, and how full the server's
-- notification queue is (a share: at 1 every producer's commit fails).
CREATE FUNCTION @schema@.table_health() RETURNS TABLE (
    table_bytes bigint, index_bytes bigint, live_rows bigint, dead_rows bigint, vacuumed_at timestamptz,
    notification_queue double precision
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT pg_table_size(s.relid), pg_indexes_size(s.relid), s.n_live_tup, s.n_dead_tup,
           greatest(s.last_vacuum, s.last_autovacuum), pg_notification_queue_usage()
    FROM pg_stat_user_tables s
    WHERE s.relid = '@schema@.async_dispatches'::regclass;
END $$;

REVOKE ALL ON FUNCTION
    @schema@.prune_ended(bigint, integer, interval),
    @schema@.prune_audit(integer, interval),
    @schema@.prune_rest(integer, interval),
    @schema@.ended_of(bigint[]),
    @schema@.known_queues(),
    @schema@.table_health()
FROM PUBLIC;
