-- Dispatch: claim due rows, mark what was sent, give back what was not. For the role @schema@_run.
--
-- A claim is a lease on a pending row and nothing else: lease_token, lease_expires_at, claimed_by. One token a batch,
-- made by the dispatcher, so that a claim whose answer got lost can still be given back. Every later write names the
-- token and needs the claim alive: a dispatcher that was frozen longer than its lease changes nothing.
-- Nothing here waits for a row lock: what is locked elsewhere is skipped and named.
--
-- The planner is pinned for each function: with stale statistics it chose sorts (22 ms), hash joins (6 ms), jit (100 ms)
-- for what takes 0.04 ms along the index. Generic plans save planning at every call; nothing in them depends on values.

-- The due-ness of one queue's rows is compared with statement_timestamp() (clock_timestamp() is volatile, the index
-- cannot stop at it: 12 ms) and stamped with clock_timestamp().
--
-- Return up to `batch` rows, each queue with due rows its equal share, what some leave goes to the others; within a queue
-- in the order (available_at, id). Then one last row with id null: its `queue` is null, `claimed_at` the stamp of the batch,
-- `source` the installation and epoch, `wait_s` the seconds until the next row is due after this claim's moment (null: no
-- such row; not looked for when the batch is full), `lag_s` the age of the oldest claimed row past its due time,
-- `limited` true when the `room` of a queue is used up.
--   closed  queues that are not looked at (their stream's breaker is open)
--   room    {"queue": n}: at most n rows sent or running of that queue, counting those claimed now
--   inline  also return payloads
--   oldest  ignore shares: the oldest due rows of all (how a broker that comes back is tried)
--   only_queues  look at these queues alone (how one stream that comes back is tried)
CREATE FUNCTION @schema@.claim_due(
    token uuid, claimed_by text, lease interval, batch integer, closed text[] DEFAULT '{}', room jsonb DEFAULT '{}',
    inline boolean DEFAULT false, oldest boolean DEFAULT false, only_queues text[] DEFAULT NULL
) RETURNS TABLE (
    id bigint, queue text, actor text, aggregate_id text, tenant text, delivery integer, headers text, staged_at text,
    payload text, claimed_at text, source text, wait_s double precision, lag_s double precision, limited boolean
) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    looked_at CONSTANT timestamptz := statement_timestamp();
    stamp     CONSTANT timestamptz := clock_timestamp();
    queues    text[] := '{}';
    asked     text[];
    shares    integer[];
    taken     integer[];
    name      text;
    free      integer;
    spot      integer;
    left_over integer := claim_due.batch;
    share     integer;
    got       integer;
    due_at    timestamptz;
    first_due timestamptz;
    full_up   boolean := false;
    no_actors text[] := '{}';
    no_tenants text[] := '{}';
    no_queues text[] := claim_due.closed;
BEGIN
    IF claim_due.batch NOT BETWEEN 1 AND 10000 OR claim_due.lease NOT BETWEEN interval '0.1 second' AND interval '1 hour' THEN
        PERFORM @schema@.refuse('PF400', 'cannot claim: batch is 1 to 10000 rows, lease 0.1 second to 1 hour');
    END IF;
    IF EXISTS (SELECT FROM @schema@.controls) THEN
        SELECT coalesce(array_agg(c.name) FILTER (WHERE c.kind = 'actor'), '{}'),
               coalesce(array_agg(c.name) FILTER (WHERE c.kind = 'tenant'), '{}'),
               no_queues || coalesce(array_agg(c.name) FILTER (WHERE c.kind = 'queue'), '{}')
        INTO no_actors, no_tenants, no_queues
        FROM @schema@.controls c
        WHERE c.until IS NULL OR c.until > looked_at;
    END IF;

    -- The queues that have pending rows, one index probe each (a loose scan; DISTINCT would read every row).
    SELECT d.queue INTO name FROM @schema@.async_dispatches d WHERE d.status = 'pending' ORDER BY d.queue LIMIT 1;
    WHILE name IS NOT NULL LOOP
        IF name <> ALL (no_queues) AND (claim_due.only_queues IS NULL OR name = ANY (claim_due.only_queues)) THEN
            queues := queues || name;
        END IF;
        SELECT d.queue INTO name FROM @schema@.async_dispatches d
        WHERE d.status = 'pending' AND d.queue > name
        ORDER BY d.queue LIMIT 1;
        EXIT WHEN NOT FOUND;
    END LOOP;

    asked := queues;
    shares := array_fill(claim_due.batch, ARRAY[cardinality(asked)]);
    IF claim_due.room <> '{}' THEN
        FOR i IN 1 .. cardinality(asked) LOOP
            IF claim_due.room ? asked[i] THEN
                free := @schema@.room_left(asked[i], (claim_due.room ->> asked[i])::integer);
                full_up := full_up OR free = 0;
                shares[i] := least(shares[i], free);
            END IF;
        END LOOP;
    END IF;
    IF claim_due.oldest OR cardinality(asked) > left_over THEN
        -- Fewer places than queues: a trial takes the queues whose first row waits longest, a batch takes turns.
        SELECT array_agg(h.queue ORDER BY h.place), array_agg(h.free ORDER BY h.place) INTO asked, shares
        FROM (SELECT q.queue, q.free,
                     row_number() OVER (ORDER BY CASE WHEN claim_due.oldest THEN head.at END, random()) AS place
              FROM unnest(asked, shares) AS q (queue, free)
              CROSS JOIN LATERAL (
                  SELECT d.available_at AS at FROM @schema@.async_dispatches d
                  WHERE d.status = 'pending' AND d.queue = q.queue AND d.available_at <= looked_at
                    AND (d.lease_expires_at IS NULL OR d.lease_expires_at <= looked_at)
                  ORDER BY d.available_at LIMIT 1) AS head) AS h
        WHERE h.place <= left_over;
    END IF;

    -- Rounds: an equal share each, then what was left among those that took all of theirs. A round claims before the
    -- next one looks, so no row is taken twice. One queue is one round.
    WHILE left_over > 0 AND cardinality(asked) > 0 LOOP
        share := CASE WHEN claim_due.oldest THEN left_over ELSE greatest(1, left_over / cardinality(asked)) END;
        taken := array_fill(0, ARRAY[cardinality(asked)]);
        got := 0;
        FOR id, queue, actor, aggregate_id, tenant, delivery, headers, staged_at, payload, due_at, spot IN
            WITH picked AS MATERIALIZED (
                SELECT p.id, q.place
                FROM unnest(asked, shares) WITH ORDINALITY AS q (queue, free, place)
                CROSS JOIN LATERAL (
                    SELECT d.id
                    FROM @schema@.async_dispatches d
                    WHERE d.status = 'pending'
                      AND d.queue = q.queue
                      AND d.available_at <= looked_at
                      AND (d.lease_expires_at IS NULL OR d.lease_expires_at <= looked_at)
                      AND d.actor <> ALL (no_actors)
                      AND (d.tenant IS NULL OR d.tenant <> ALL (no_tenants))
                    ORDER BY d.available_at, d.id
                    LIMIT least(share, q.free)
                    FOR NO KEY UPDATE SKIP LOCKED
                ) AS p
                LIMIT left_over
            ), claimed AS (
                UPDATE @schema@.async_dispatches d
                SET lease_token = claim_due.token,
                    lease_expires_at = stamp + claim_due.lease,
                    claimed_by = claim_due.claimed_by
                FROM picked
                WHERE d.id = picked.id
                RETURNING d.*, picked.place
            )
            SELECT c.id, c.queue, c.actor, c.aggregate_id, c.tenant, c.deliveries + 1, c.headers::text,
                   extract(epoch FROM c.staged_at)::text,
                   CASE WHEN claim_due.inline THEN c.payload::text END,
                   c.available_at, c.place
            FROM claimed c
            ORDER BY c.place, c.available_at, c.id
        LOOP
            got := got + 1;
            taken[spot] := taken[spot] + 1;
            first_due := least(first_due, due_at);
            RETURN NEXT;
        END LOOP;
        IF claim_due.room <> '{}' THEN
            full_up := full_up OR EXISTS (SELECT FROM unnest(asked, shares, taken) AS q (queue, free, took)
                                          WHERE claim_due.room ? q.queue AND q.took >= q.free);
        END IF;
        left_over := left_over - got;
        EXIT WHEN got = 0 OR claim_due.oldest OR left_over = 0;
        SELECT coalesce(array_agg(q.queue), '{}'), array_agg(q.free - q.took) INTO asked, shares
        FROM unnest(asked, shares, taken) AS q (queue, free, took)
        WHERE q.took >= share AND q.free > q.took;
    END LOOP;

    id := NULL; queue := NULL; actor := NULL; aggregate_id := NULL; tenant := NULL; delivery := NULL; headers := NULL;
    staged_at := NULL; payload := NULL;
    claimed_at := extract(epoch FROM stamp)::text;
    lag_s := extract(epoch FROM looked_at - first_due);
    limited := full_up;
    SELECT m.installation::text || '/' || m.epoch INTO source FROM @schema@.meta m;
    IF left_over > 0 THEN
        wait_s := @schema@.next_due(queues, looked_at);
    END IF;
    RETURN NEXT;
END $$;

-- Seconds until the next row of these queues that is due strictly after `since`; null when there is none. A due row is
-- not looked at: one that is locked elsewhere made dispatch spin at 6,333 claims a second.
CREATE FUNCTION @schema@.next_due(queues text[], since timestamptz) RETURNS double precision
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (
        SELECT CASE WHEN min(n.at) IS NOT NULL THEN greatest(0, extract(epoch FROM min(n.at) - clock_timestamp())) END
        FROM unnest(next_due.queues) AS q (queue)
        CROSS JOIN LATERAL (
            SELECT d.available_at AS at
            FROM @schema@.async_dispatches d
            WHERE d.status = 'pending' AND d.queue = q.queue AND d.available_at > next_due.since
            ORDER BY d.available_at
            LIMIT 1
        ) AS n);
END $$;

-- How many more rows of the queue may go out when `most` may be sent or running at a time. Reads at most `most` rows
-- of the queue along the index of outstanding rows.
CREATE FUNCTION @schema@.room_left(queue text, most integer) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN greatest(0, room_left.most - (
        SELECT count(*)::integer
        FROM (SELECT FROM @schema@.async_dispatches d
              WHERE d.status IN ('sent', 'running') AND d.queue = room_left.queue
              LIMIT room_left.most) AS outstanding));
END $$;

-- Mark rows as handed over: entry n of `refs` is where row n of `ids`, claimed with token n, stands in its stream. Returns
-- only what could not be marked: `skipped` (locked elsewhere: repeat with the next mark) or `lost` (no longer ours: its
-- claim ended, or a worker began it already). A row whose actor ends with the hand-over is consumed.
CREATE FUNCTION @schema@.mark_sent(tokens uuid[], ids bigint[], refs text[]) RETURNS TABLE (id bigint, outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    stamp  CONSTANT timestamptz := clock_timestamp();
    marked bigint[];
    keys   text[];
    freed  text;
BEGIN
    WITH free AS MATERIALIZED (
        SELECT d.id, s.ref
        FROM unnest(mark_sent.tokens, mark_sent.ids, mark_sent.refs) AS s (token, id, ref)
        JOIN @schema@.async_dispatches d ON d.id = s.id
        WHERE d.status = 'pending'
          AND d.lease_token = s.token
          AND d.lease_expires_at > stamp
        FOR NO KEY UPDATE OF d SKIP LOCKED
    ), done AS (
        UPDATE @schema@.async_dispatches d
        SET status = CASE d.completion WHEN 'handover' THEN 'consumed' ELSE 'sent' END,
            finished_at = CASE d.completion WHEN 'handover' THEN stamp END,
            check_at = CASE d.completion WHEN 'handover' THEN NULL ELSE stamp + interval '60 seconds' END,
            sent_at = stamp,
            sink_ref = free.ref,
            deliveries = d.deliveries + 1,
            lease_token = NULL,
            lease_expires_at = NULL,
            claimed_by = NULL
        FROM free
        WHERE d.id = free.id
        RETURNING d.id, CASE d.completion WHEN 'handover' THEN d.delivery_key END AS freed
    )
    SELECT array_agg(done.id), array_agg(done.freed) FILTER (WHERE done.freed IS NOT NULL) INTO marked, keys FROM done;

    IF keys IS NOT NULL THEN
        FOREACH freed IN ARRAY (SELECT array_agg(k ORDER BY k) FROM unnest(keys) AS k) LOOP
            PERFORM @schema@.stage_wishes(freed);
        END LOOP;
    END IF;
    IF cardinality(marked) IS DISTINCT FROM cardinality(mark_sent.ids) THEN
        RETURN QUERY
        SELECT s.id,
               CASE WHEN d.status = 'pending' AND d.lease_token = s.token AND d.lease_expires_at > clock_timestamp()
                    THEN 'skipped' ELSE 'lost' END
        FROM unnest(mark_sent.tokens, mark_sent.ids) AS s (token, id)
        LEFT JOIN @schema@.async_dispatches d ON d.id = s.id
        WHERE s.id <> ALL (coalesce(marked, '{}'));
    END IF;
END $$;

-- Give claims back, uncharged and due as before. Returns how many; what is locked elsewhere is left to its lease.
-- `ids` null: whatever this token holds (the answer to the claim got lost); that looks at every due row.
CREATE FUNCTION @schema@.release_claims(token uuid, ids bigint[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    held     bigint[] := release_claims.ids;
    released integer;
BEGIN
    IF held IS NULL THEN
        SELECT array_agg(d.id) INTO held
        FROM @schema@.async_dispatches d
        WHERE d.status = 'pending' AND d.lease_token = release_claims.token;
    END IF;
    WITH ours AS MATERIALIZED (
        SELECT d.id
        FROM unnest(held) AS s (id)
        JOIN @schema@.async_dispatches d ON d.id = s.id
        WHERE d.status = 'pending' AND d.lease_token = release_claims.token
        FOR NO KEY UPDATE OF d SKIP LOCKED
    )
    UPDATE @schema@.async_dispatches d
    SET lease_token = NULL, lease_expires_at = NULL, claimed_by = NULL
    FROM ours
    WHERE d.id = ours.id;
    GET DIAGNOSTICS released = ROW_COUNT;
    RETURN released;
END $$;

-- Charge rows that the broker refused alone: due again after base × 2^n up to `cap`, spread by a fifth; dead at `most`
-- failed sends, and then audited. errors[n] says why for ids[n]; it is cleaned and cut.
CREATE FUNCTION @schema@.fail_send(
    token uuid, ids bigint[], errors text[], most integer DEFAULT 10,
    base interval DEFAULT '1 second', cap interval DEFAULT '5 minutes'
) RETURNS TABLE (id bigint, status text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH ours AS MATERIALIZED (
        SELECT d.id, d.send_attempts + 1 AS failed,
               left(regexp_replace(left(s.error, 4000), '[[:cntrl:]]+', ' ', 'g'), 2000) AS error
        FROM unnest(fail_send.ids, fail_send.errors) AS s (id, error)
        JOIN @schema@.async_dispatches d ON d.id = s.id
        WHERE d.status = 'pending' AND d.lease_token = fail_send.token
        FOR NO KEY UPDATE OF d SKIP LOCKED
    ), failed AS (
        UPDATE @schema@.async_dispatches d
        SET send_attempts = ours.failed,
            last_error = ours.error,
            status = CASE WHEN ours.failed >= fail_send.most THEN 'dead' ELSE 'pending' END,
            finished_at = CASE WHEN ours.failed >= fail_send.most THEN clock_timestamp() END,
            available_at = CASE WHEN ours.failed >= fail_send.most THEN d.available_at ELSE clock_timestamp()
                + least(fail_send.cap, fail_send.base * power(2, least(ours.failed - 1, 30))) * (0.8 + 0.4 * random()) END,
            lease_token = NULL,
            lease_expires_at = NULL,
            claimed_by = NULL
        FROM ours
        WHERE d.id = ours.id
        RETURNING d.id, d.status, d.last_error
    ), told AS (
        INSERT INTO @schema@.audit_log (kind, who, subject, dispatch_id, action, before, after, reason)
        SELECT 'system', 'dispatch', f.id::text, f.id, 'send failed', 'pending', 'dead', f.last_error
        FROM failed f
        WHERE f.status = 'dead'
    )
    SELECT f.id, f.status FROM failed f;
END $$;

REVOKE ALL ON FUNCTION
    @schema@.claim_due(uuid, text, interval, integer, text[], jsonb, boolean, boolean, text[]),
    @schema@.next_due(text[], timestamptz),
    @schema@.room_left(text, integer),
    @schema@.mark_sent(uuid[], bigint[], text[]),
    @schema@.release_claims(uuid, bigint[]),
    @schema@.fail_send(uuid, bigint[], text[], integer, interval, interval)
FROM PUBLIC;
