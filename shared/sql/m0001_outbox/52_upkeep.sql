-- What dispatch does beside its loop: claims of the dead, lost streams, left-over wishes, policies, its sign of life.
-- For the role @schema@_run. Nothing here waits for a row lock but stage_restaged, 20 ms for an insert of a key.

-- Take back the claims of the provably dead: earlier generations of this boot, and earlier boots of the same instance on
-- the same host (its lock is ours now). Uncharged; returns how many. Others' claims wait for their lease.
CREATE FUNCTION @schema@.take_back(boot_id uuid, generation integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    gone  text[];
    taken integer;
BEGIN
    SELECT coalesce(array_agg(o.boot_id::text), '{}') INTO gone
    FROM @schema@.instances me
    JOIN @schema@.instances o ON o.name = me.name AND o.host = me.host AND o.started_at <= me.started_at
    WHERE me.boot_id = take_back.boot_id AND o.boot_id <> me.boot_id;
    WITH theirs AS MATERIALIZED (
        SELECT d.id
        FROM @schema@.async_dispatches d
        WHERE d.status = 'pending'
          AND d.claimed_by IS NOT NULL
          AND (split_part(d.claimed_by, '/', 1) = ANY (gone)
               OR CASE WHEN split_part(d.claimed_by, '/', 1) = take_back.boot_id::text
                       THEN split_part(d.claimed_by, '/', 2)::integer < take_back.generation END)
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE @schema@.async_dispatches d
    SET lease_token = NULL, lease_expires_at = NULL, claimed_by = NULL
    FROM theirs
    WHERE d.id = theirs.id;
    GET DIAGNOSTICS taken = ROW_COUNT;
    RETURN taken;
END $$;

-- A stream was lost: send its rows again. Takes `batch` rows of the queue that are sent, never begun, marked before
-- `sent_before` and whose entry's id is not within keep_from … keep_to (null: no entry is kept). Uncharged; due as
-- before. Returns how many: call it, each time in a transaction of its own, until it returns 0.
CREATE FUNCTION @schema@.requeue_lost(
    queue text, sent_before timestamptz, keep_from text DEFAULT NULL, keep_to text DEFAULT NULL, batch integer DEFAULT 1000
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    requeued integer;
BEGIN
    -- Once requeued the stream is made anew, and nothing would tell a second time that it was lost.
    PERFORM @schema@.commit_durably();
    WITH lost AS MATERIALIZED (
        SELECT d.id
        FROM @schema@.async_dispatches d
        WHERE d.status = 'sent'
          AND d.queue = requeue_lost.queue
          AND d.sent_at < requeue_lost.sent_before
          AND (requeue_lost.keep_from IS NULL
               OR @schema@.entry_order(d.sink_ref) < @schema@.entry_order(requeue_lost.keep_from)
               OR @schema@.entry_order(d.sink_ref) > @schema@.entry_order(requeue_lost.keep_to))
        LIMIT requeue_lost.batch
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE @schema@.async_dispatches d
    SET status = 'pending', sent_at = NULL, check_at = NULL
    FROM lost
    WHERE d.id = lost.id;
    GET DIAGNOSTICS requeued = ROW_COUNT;
    IF requeued > 0 THEN
        INSERT INTO @schema@.audit_log (kind, who, subject, action, before, after, reason)
        VALUES ('system', 'dispatch', requeue_lost.queue, 'requeue', 'sent', 'pending',
                format('%s rows: their entries are no longer in the stream', requeued));
        PERFORM @schema@.wake();
    END IF;
    RETURN requeued;
END $$;

-- An entry's id, or a sink_ref that ends in one, as an array that compares in the stream's order.
CREATE FUNCTION @schema@.entry_order(ref text) RETURNS numeric[]
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN string_to_array(substring(ref FROM '([0-9]+-[0-9]+)$'), '-')::numeric[];
END $$;

-- What dispatch must know of the streams it looks after: each queue with sent rows, and the newest entry among the
-- 1,000 that were marked last. Walks the index of outstanding rows: called at start, not in a recurring path.
CREATE FUNCTION @schema@.sent_queues() RETURNS TABLE (queue text, newest text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH latest AS MATERIALIZED (
        SELECT d.queue, substring(d.sink_ref FROM '([0-9]+-[0-9]+)$') AS entry
        FROM @schema@.async_dispatches d
        WHERE d.status IN ('sent', 'running')
        ORDER BY d.check_at DESC, d.id DESC
        LIMIT 1000
    )
    SELECT q.queue, (SELECT l.entry FROM latest l
                     WHERE l.queue = q.queue AND l.entry IS NOT NULL
                     ORDER BY @schema@.entry_order(l.entry) DESC LIMIT 1)
    FROM (SELECT DISTINCT d.queue FROM @schema@.async_dispatches d WHERE d.status = 'sent') AS q;
END $$;

-- Wishes whose envelope ended without seeing them become one new envelope each. Looks at up to `batch` keys after
-- `after`; returns how many were staged and the last key looked at (null: the end was reached, begin again). A key that
-- an open transaction stages is passed over after 20 ms: whoever leaves that transaction open would else hold up the
-- wishes of every key, and two who stage several keys in different orders would wait for each other.
CREATE FUNCTION @schema@.stage_restaged(after text DEFAULT '', batch integer DEFAULT 200)
RETURNS TABLE (staged integer, last_key text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET lock_timeout = '20ms' AS $$
DECLARE
    key    text := stage_restaged.after;
    passed integer := 0;
BEGIN
    staged := 0;
    FOR i IN 1 .. stage_restaged.batch LOOP
        SELECT w.delivery_key INTO key
        FROM @schema@.restaged w
        WHERE w.delivery_key > key
        ORDER BY w.delivery_key
        LIMIT 1;
        IF NOT FOUND THEN
            RETURN NEXT;
            RETURN;
        END IF;
        IF NOT EXISTS (SELECT FROM @schema@.async_dispatches d
                       WHERE d.delivery_key = key
                         AND d.status IN ('pending', 'held', 'sent', 'running', 'dead', 'unknown')) THEN
            BEGIN
                staged := staged + (@schema@.stage_wishes(key) IS NOT NULL)::integer;
            EXCEPTION WHEN lock_not_available THEN
                passed := passed + 1;
            END;
            EXIT WHEN passed = 20;
        END IF;
    END LOOP;
    last_key := key;
    RETURN NEXT;
END $$;

-- Write the configured policies of actors: {"name": {"queue", "completion", "max_attempts", "retry_base", … in seconds}}.
-- Only what differs is written. An actor that left the configuration keeps its row: other instances may know it.
CREATE FUNCTION @schema@.sync_actors(actors jsonb) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    written integer;
BEGIN
    INSERT INTO @schema@.actors AS a
        (name, queue, completion, max_attempts, retry_base, retry_cap, lease, max_run, on_lost)
    SELECT e.key, nullif(p.queue, ''), p.completion, p.max_attempts, make_interval(secs => p.retry_base),
           make_interval(secs => p.retry_cap), make_interval(secs => p.lease), make_interval(secs => p.max_run), p.on_lost
    FROM jsonb_each(sync_actors.actors) AS e
    CROSS JOIN LATERAL jsonb_to_record(e.value) AS p (
        queue text, completion text, max_attempts integer, retry_base double precision, retry_cap double precision,
        lease double precision, max_run double precision, on_lost text)
    ORDER BY e.key
    ON CONFLICT (name) DO UPDATE
    SET queue = excluded.queue, completion = excluded.completion, max_attempts = excluded.max_attempts,
        retry_base = excluded.retry_base, retry_cap = excluded.retry_cap, lease = excluded.lease,
        max_run = excluded.max_run, on_lost = excluded.on_lost, updated_at = clock_timestamp()
    WHERE (a.queue, a.completion, a.max_attempts, a.retry_base, a.retry_cap, a.lease, a.max_run, a.on_lost)
        IS DISTINCT FROM (excluded.queue, excluded.completion, excluded.max_attempts, excluded.retry_base,
                          excluded.retry_cap, excluded.lease, excluded.max_run, excluded.on_lost);
    GET DIAGNOSTICS written = ROW_COUNT;
    RETURN written;
END $$;

-- Say that this boot of the supervisor runs. Again from a later generation it is only a beat.
CREATE FUNCTION @schema@.register_instance(boot_id uuid, name text, host text, pid integer, version text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO @schema@.instances AS i (boot_id, name, host, pid, version)
    VALUES (register_instance.boot_id, register_instance.name, register_instance.host, register_instance.pid,
            register_instance.version)
    ON CONFLICT (boot_id) DO UPDATE SET beat_at = clock_timestamp();
END $$;

-- The boot still runs; false when it is not registered (then register again).
CREATE FUNCTION @schema@.beat_instance(boot_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
BEGIN
    UPDATE @schema@.instances i SET beat_at = clock_timestamp() WHERE i.boot_id = beat_instance.boot_id;
    RETURN FOUND;
END $$;

REVOKE ALL ON FUNCTION
    @schema@.take_back(uuid, integer),
    @schema@.requeue_lost(text, timestamptz, text, text, integer),
    @schema@.entry_order(text),
    @schema@.sent_queues(),
    @schema@.stage_restaged(text, integer),
    @schema@.sync_actors(jsonb),
    @schema@.register_instance(uuid, text, text, integer, text),
    @schema@.beat_instance(uuid)
FROM PUBLIC;
