-- Workflow: runs of a graph, node by node. `@productflow@` is the schema of the tables, `@schema@` pfsup's.
--
-- Order of locks: the run, then its open nodes by id, then their pending effects by id, then the envelope. A re-read
-- takes the first three and waits for none: where one of them is locked elsewhere it answers nothing, and lets go. So a
-- writer that takes them in another order cannot meet recovery in a deadlock. pfsup's functions take the envelope
-- without waiting too. One statement can wait, `promote`, for another run of its graph that is being made running.

-- name: find_runs
-- Hands out the oldest stuck running runs that are free; the last row (id null) tells what was looked at.
WITH page AS MATERIALIZED (
    SELECT r.id, coalesce(r.progress_at, r.started_at, r.created_at) AS since,
           r.status = 'running' AND coalesce(r.lease_expires_at <= statement_timestamp(), true) AS dead
    FROM @productflow@.workflow_runs AS r
    WHERE r.status = 'running'
      AND (coalesce(r.progress_at, r.started_at, r.created_at), r.id) > (%(after_at)s::timestamptz, %(after_id)s::text)
    ORDER BY coalesce(r.progress_at, r.started_at, r.created_at), r.id
    LIMIT %(page)s
), stuck AS MATERIALIZED (
    SELECT p.id, p.since, coalesce(l.next_check_at > statement_timestamp(), false) AS asleep
    FROM page AS p
    LEFT JOIN LATERAL (
        SELECT e.id, e.status, e.alive_until
        FROM @schema@.live_envelopes AS e
        WHERE e.delivery_key = %(domain)s::text || ':' || p.id
        LIMIT 1) AS e ON true
    LEFT JOIN LATERAL (
        SELECT count(*) AS running,
               count(*) FILTER (WHERE coalesce(coalesce(n.progress_at, n.started_at)
                   < statement_timestamp() - make_interval(secs => %(stale_s)s), true)) AS silent
        FROM @productflow@.workflow_node_runs AS n
        WHERE n.run_id = p.id AND n.status = 'running' AND e.id IS NULL) AS n ON true
    LEFT JOIN LATERAL (
        SELECT l.next_check_at
        FROM @schema@.recovery AS l
        WHERE l.domain = %(domain)s::text AND l.candidate_id = p.id
        LIMIT 1) AS l ON true
    WHERE p.dead
      AND CASE
        WHEN e.id IS NULL THEN n.running = 0 OR n.silent > 0
        WHEN e.status = 'running' THEN e.alive_until <= statement_timestamp()
        ELSE e.status IN ('dead', 'unknown') END
), free AS MATERIALIZED (
    SELECT s.id, s.since
    FROM stuck AS s
    JOIN @productflow@.workflow_runs AS r ON r.id = s.id
    WHERE NOT s.asleep
    ORDER BY s.since, s.id
    LIMIT %(most)s
    FOR NO KEY UPDATE OF r SKIP LOCKED
)
@handed_out@;

-- name: recheck_run
-- Locks the run, its open nodes and their pending effects and reads them; nothing when one is locked, or the run gone.
WITH run AS MATERIALIZED (
    SELECT r.id, r.status, coalesce(r.lease_expires_at > clock_timestamp(), false) AS lease_alive
    FROM @productflow@.workflow_runs AS r
    WHERE r.id = %(id)s::text
    FOR NO KEY UPDATE OF r SKIP LOCKED
), open AS MATERIALIZED (
    SELECT n.id, n.node, n.status, n.phase, n.attempt_id,
           coalesce(coalesce(n.progress_at, n.started_at)
               < statement_timestamp() - make_interval(secs => %(stale_s)s), true) AS silent
    FROM @productflow@.workflow_node_runs AS n
    WHERE n.run_id = %(id)s::text AND n.status IN ('queued', 'running') AND EXISTS (SELECT FROM run)
    ORDER BY n.id
    FOR NO KEY UPDATE OF n SKIP LOCKED
), intents AS MATERIALIZED (
    SELECT e.id
    FROM @productflow@.provider_effects AS e
    WHERE e.domain = 'workflow' AND e.state = 'pending'
      AND e.owner_id = ANY (ARRAY(SELECT o.id FROM open AS o WHERE o.status = 'running'))
    ORDER BY e.id
    FOR NO KEY UPDATE OF e SKIP LOCKED
), nodes AS MATERIALIZED (
    SELECT count(*)::integer AS nodes,
           count(*) FILTER (WHERE n.status IN ('queued', 'running')) AS open,
           count(*) FILTER (WHERE n.status = 'unknown')::integer AS unknown
    FROM @productflow@.workflow_node_runs AS n
    WHERE n.run_id = %(id)s::text
), running AS MATERIALIZED (
    SELECT coalesce(jsonb_agg(jsonb_build_object(
               'id', o.id, 'node', o.node, 'phase', o.phase, 'silent', o.silent, 'called', x.called) ORDER BY o.id), '[]')
               AS nodes,
           coalesce(sum(x.pending), 0) AS pending
    FROM open AS o
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE e.state = 'pending') AS pending,
               count(*) FILTER (WHERE e.state IN ('applied', 'unknown')
                                  AND e.attempt_id IS NOT DISTINCT FROM o.attempt_id) > 0 AS called
        FROM @productflow@.provider_effects AS e
        WHERE e.domain = 'workflow' AND e.owner_id = o.id) AS x
    WHERE o.status = 'running'
)
SELECT r.id, r.status, r.lease_alive, n.nodes, n.unknown, u.nodes AS running,
       (SELECT count(*)::integer FROM open AS o WHERE o.status = 'queued') AS queued,
       coalesce(l.checks, 0) AS checks, coalesce(l.recoveries, 0) AS recoveries,
       e.id AS run_id, e.status AS run_status, e.lease_token AS run_token, e.lease_expires_at AS run_expires_at,
       coalesce(e.alive_until > clock_timestamp(), false) AS run_alive, e.effect AS run_effect, e.on_lost AS run_on_lost,
       e.last_error AS run_error
FROM run AS r
CROSS JOIN nodes AS n
CROSS JOIN running AS u
LEFT JOIN LATERAL (
    SELECT e.* FROM @schema@.live_envelopes AS e WHERE e.delivery_key = %(domain)s::text || ':' || r.id LIMIT 1) AS e ON true
LEFT JOIN LATERAL (
    SELECT l.checks, l.recoveries FROM @schema@.recovery AS l
    WHERE l.domain = %(domain)s::text AND l.candidate_id = r.id LIMIT 1) AS l ON true
WHERE n.open = (SELECT count(*) FROM open) AND u.pending = (SELECT count(*) FROM intents);

-- name: find_waiting
-- Hands out queued runs whose turn has come: the oldest of a graph that has no running run and no envelope at work.
WITH page AS MATERIALIZED (
    SELECT r.id, r.graph_id, coalesce(r.progress_at, r.started_at, r.created_at) AS since
    FROM @productflow@.workflow_runs AS r
    WHERE r.status = 'queued'
      AND (coalesce(r.progress_at, r.started_at, r.created_at), r.id) > (%(after_at)s::timestamptz, %(after_id)s::text)
    ORDER BY coalesce(r.progress_at, r.started_at, r.created_at), r.id
    LIMIT %(page)s
), stuck AS MATERIALIZED (
    SELECT p.id, p.since, coalesce(l.next_check_at > statement_timestamp(), false) AS asleep
    FROM page AS p
    LEFT JOIN LATERAL (
        SELECT b.id FROM @productflow@.workflow_runs AS b
        WHERE b.graph_id = p.graph_id AND b.status = 'running'
        LIMIT 1) AS busy ON true
    LEFT JOIN LATERAL (
        SELECT q.id FROM @productflow@.workflow_runs AS q
        WHERE q.graph_id = p.graph_id AND q.status = 'queued' AND busy.id IS NULL
        ORDER BY q.created_at, q.id
        LIMIT 1) AS head ON true
    LEFT JOIN LATERAL (
        SELECT e.id, e.status, e.alive_until
        FROM @schema@.live_envelopes AS e
        WHERE e.delivery_key = %(domain)s::text || ':' || p.id
        LIMIT 1) AS e ON true
    LEFT JOIN LATERAL (
        SELECT l.next_check_at
        FROM @schema@.recovery AS l
        WHERE l.domain = %(domain)s::text AND l.candidate_id = p.id
        LIMIT 1) AS l ON true
    WHERE busy.id IS NULL AND head.id = p.id
      AND (e.id IS NULL OR e.status = 'running' AND e.alive_until <= statement_timestamp())
), free AS MATERIALIZED (
    SELECT s.id, s.since
    FROM stuck AS s
    JOIN @productflow@.workflow_runs AS r ON r.id = s.id
    WHERE NOT s.asleep
    ORDER BY s.since, s.id
    LIMIT %(most)s
    FOR NO KEY UPDATE OF r SKIP LOCKED
)
@handed_out@;

-- name: recheck_waiting
-- Locks the run and reads whether it is its turn; nothing when it is locked or gone.
SELECT r.id, r.status, busy.id AS behind, coalesce(h.id = r.id, false) AS first,
       coalesce(l.checks, 0) AS checks, coalesce(l.recoveries, 0) AS recoveries,
       e.id AS run_id, e.status AS run_status, e.lease_token AS run_token, e.lease_expires_at AS run_expires_at,
       coalesce(e.alive_until > clock_timestamp(), false) AS run_alive, e.effect AS run_effect, e.on_lost AS run_on_lost,
       e.last_error AS run_error
FROM @productflow@.workflow_runs AS r
LEFT JOIN LATERAL (
    SELECT b.id FROM @productflow@.workflow_runs AS b
    WHERE b.graph_id = r.graph_id AND b.status = 'running' AND b.id <> r.id
    LIMIT 1) AS busy ON true
LEFT JOIN LATERAL (
    SELECT q.id FROM @productflow@.workflow_runs AS q
    WHERE q.graph_id = r.graph_id AND q.status = 'queued'
    ORDER BY q.created_at, q.id
    LIMIT 1) AS h ON true
LEFT JOIN LATERAL (
    SELECT e.* FROM @schema@.live_envelopes AS e WHERE e.delivery_key = %(domain)s::text || ':' || r.id LIMIT 1) AS e ON true
LEFT JOIN LATERAL (
    SELECT l.checks, l.recoveries FROM @schema@.recovery AS l
    WHERE l.domain = %(domain)s::text AND l.candidate_id = r.id LIMIT 1) AS l ON true
WHERE r.id = %(id)s::text
FOR NO KEY UPDATE OF r SKIP LOCKED;

-- name: requeue_nodes
-- Makes nodes queued as if no worker had had them; the calls they were to make never began.
WITH again AS (
    UPDATE @productflow@.workflow_node_runs AS n
    SET status = 'queued', attempt_id = NULL, phase = NULL, started_at = NULL, progress_at = NULL
    WHERE n.run_id = %(id)s::text AND n.id = ANY (%(nodes)s::text[]) AND n.status = 'running'
    RETURNING n.id
)
UPDATE @productflow@.provider_effects AS e
SET state = 'void', detail = %(reason)s::text, settled_at = clock_timestamp()
WHERE e.domain = 'workflow' AND e.owner_id IN (SELECT a.id FROM again AS a) AND e.state = 'pending';

-- name: lose_nodes
-- Ends nodes as unknown, with the reason; nobody can say whether the calls they were about to make were made.
WITH lost AS (
    UPDATE @productflow@.workflow_node_runs AS n
    SET status = 'unknown', error = %(reason)s::text, finished_at = clock_timestamp()
    WHERE n.run_id = %(id)s::text AND n.id = ANY (%(nodes)s::text[]) AND n.status = 'running'
    RETURNING n.id
)
UPDATE @productflow@.provider_effects AS e
SET state = 'unknown', detail = %(reason)s::text, settled_at = clock_timestamp()
WHERE e.domain = 'workflow' AND e.owner_id IN (SELECT l.id FROM lost AS l) AND e.state = 'pending';

-- name: release
-- Takes the run out of its worker's hands: it stays running, and a late worker's token opens nothing any more.
UPDATE @productflow@.workflow_runs AS r
SET lease_token = NULL, lease_expires_at = NULL
WHERE r.id = %(id)s::text AND r.status = 'running';

-- name: promote
-- Makes the queued run the running one of its graph, where there is none.
UPDATE @productflow@.workflow_runs AS r
SET status = 'running', started_at = clock_timestamp(), lease_token = NULL, lease_expires_at = NULL
WHERE r.id = %(id)s::text AND r.status = 'queued'
  AND NOT EXISTS (
    SELECT FROM @productflow@.workflow_runs AS b WHERE b.graph_id = r.graph_id AND b.status = 'running');

-- name: close
-- Ends the run, with the reason.
UPDATE @productflow@.workflow_runs AS r
SET status = %(becomes)s::text, error = %(reason)s::text, lease_token = NULL, lease_expires_at = NULL,
    finished_at = clock_timestamp()
WHERE r.id = %(id)s::text AND r.status IN ('queued', 'running');
