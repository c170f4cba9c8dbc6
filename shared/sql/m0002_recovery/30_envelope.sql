-- What the envelope domain looks at: rows that are sent or running, by `check_at`, which paces them (no ledger row for
-- what merely waits). mark_sent sets it a minute ahead, begin_work to the end of the lease.

-- Take up to `batch` rows whose time to be looked at has come, oldest first, passing over locked ones, and set their next
-- time. Returns only those that need a judge:
--   sent     for `grace` or longer, and not re-dispatched so lately that the ledger lets it sleep
--   running  its lease ended or its deadline passed, and its actor belongs to no business domain (`owned`)
-- and after them one row with id null: how many were looked at, and in age_s the age in seconds of the oldest row that
-- was due and not taken (locked elsewhere, or behind the batch). A row under a live lease is looked at again when that
-- ends; one that waits in its stream after half of its age, at least `grace` and at most five minutes.
CREATE FUNCTION @schema@.find_outstanding(batch integer, grace interval, owned text[])
RETURNS TABLE (
    id bigint, status text, queue text, actor text, sink_ref text, deliveries integer, token uuid,
    expires_at timestamptz, past_deadline boolean, effect text, recoveries integer, on_lost text, age_s double precision,
    looked integer
) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    at     CONSTANT timestamptz := clock_timestamp();
    oldest double precision;
    seen   integer := 0;
BEGIN
    FOR id, status, queue, actor, sink_ref, deliveries, token, expires_at, past_deadline, effect, recoveries, on_lost,
        age_s, looked IN
        WITH due AS MATERIALIZED (
            SELECT d.id
            FROM @schema@.async_dispatches d
            WHERE d.status IN ('sent', 'running')
              AND d.check_at <= at
              AND (d.status = 'sent' OR d.actor <> ALL (find_outstanding.owned))
            ORDER BY d.check_at, d.id
            LIMIT find_outstanding.batch
            FOR NO KEY UPDATE SKIP LOCKED
        ), paced AS (
            UPDATE @schema@.async_dispatches d
            SET check_at = CASE
                WHEN d.status = 'running' AND least(d.lease_expires_at, d.deadline_at) > at
                    THEN least(d.lease_expires_at, d.deadline_at)
                WHEN d.status = 'running' THEN at + find_outstanding.grace
                WHEN d.sent_at + find_outstanding.grace > at THEN d.sent_at + find_outstanding.grace
                ELSE at + least(interval '5 minutes', greatest(find_outstanding.grace, (at - d.sent_at) / 2)) END
            FROM due
            WHERE d.id = due.id
            RETURNING d.*
        )
        SELECT p.id, p.status, p.queue, p.actor, p.sink_ref, p.deliveries, p.lease_token, p.lease_expires_at,
               p.deadline_at <= at, p.effect, p.recoveries,
               coalesce((SELECT a.on_lost FROM @schema@.actors a WHERE a.name = p.actor), 'unknown'),
               extract(epoch FROM at - CASE WHEN p.status = 'sent' THEN p.sent_at ELSE p.started_at END)::float8,
               CASE WHEN p.status = 'running' THEN least(p.lease_expires_at, p.deadline_at) <= at
                    ELSE p.sent_at + find_outstanding.grace <= at AND NOT EXISTS (
                        SELECT FROM @schema@.recovery l
                        WHERE l.domain = 'envelope' AND l.candidate_id = p.id::text AND l.next_check_at > at)
               END::integer
        FROM paced p
        ORDER BY p.check_at, p.id
    LOOP
        seen := seen + 1;
        IF looked = 1 THEN
            RETURN NEXT;
        END IF;
    END LOOP;
    -- What is due and still was not taken: locked ones, and those behind the batch.
    SELECT extract(epoch FROM at - min(h.since))::float8 INTO oldest
    FROM (SELECT CASE WHEN d.status = 'sent' THEN d.sent_at ELSE d.lease_expires_at END AS since
          FROM @schema@.async_dispatches d
          WHERE d.status IN ('sent', 'running') AND d.check_at <= at
            AND (d.status = 'sent' OR d.actor <> ALL (find_outstanding.owned))
          ORDER BY d.check_at, d.id
          LIMIT find_outstanding.batch) AS h
    WHERE h.since <= at;
    id := NULL; status := NULL; queue := NULL; actor := NULL; sink_ref := NULL; deliveries := NULL; token := NULL;
    expires_at := NULL; past_deadline := NULL; effect := NULL; recoveries := NULL; on_lost := NULL;
    age_s := greatest(0, oldest);
    looked := seen;
    RETURN NEXT;
END $$;

-- The row as it stands, locked, for the judge; nothing where it is gone or locked elsewhere (`here` tells which).
CREATE FUNCTION @schema@.recheck_envelope(id bigint)
RETURNS TABLE (
    here boolean, status text, sink_ref text, deliveries integer, token uuid, expires_at timestamptz,
    alive boolean, effect text, recoveries integer, on_lost text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT true, d.status, d.sink_ref, d.deliveries, d.lease_token, d.lease_expires_at,
           coalesce(least(d.lease_expires_at, d.deadline_at) > clock_timestamp(), false), d.effect, d.recoveries,
           coalesce((SELECT a.on_lost FROM @schema@.actors a WHERE a.name = d.actor), 'unknown')
    FROM @schema@.async_dispatches d
    WHERE d.id = recheck_envelope.id
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND AND EXISTS (SELECT FROM @schema@.async_dispatches d WHERE d.id = recheck_envelope.id) THEN
        here := false;
        RETURN NEXT;
    END IF;
END $$;

-- Look at these rows again after `waits[n]` seconds. Rows that are locked or over are passed by.
CREATE FUNCTION @schema@.look_again(ids bigint[], waits double precision[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
BEGIN
    WITH here AS MATERIALIZED (
        SELECT d.id, w.wait_s
        FROM unnest(look_again.ids, look_again.waits) AS w (id, wait_s)
        JOIN @schema@.async_dispatches d ON d.id = w.id
        WHERE d.status IN ('sent', 'running')
        FOR NO KEY UPDATE OF d SKIP LOCKED
    )
    UPDATE @schema@.async_dispatches d
    SET check_at = clock_timestamp() + make_interval(secs => here.wait_s)
    FROM here
    WHERE d.id = here.id;
END $$;

REVOKE ALL ON FUNCTION
    @schema@.find_outstanding(integer, interval, text[]),
    @schema@.recheck_envelope(bigint),
    @schema@.look_again(bigint[], double precision[])
FROM PUBLIC;
