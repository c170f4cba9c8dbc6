-- Image session: several outside calls. `@productflow@` is the schema of the tables, `@schema@` pfsup's.
-- Order of locks: the task, its pending effects by id, the envelope. The re-read takes the first two and waits for none:
-- where one is locked elsewhere it answers nothing, and lets go. So a writer of another order meets no deadlock here.

-- name: find
-- Hands out the oldest stuck tasks that are free; the last row (id null) tells what was looked at.
WITH page AS MATERIALIZED (
    SELECT t.id, t.status, coalesce(t.progress_at, t.started_at, t.created_at) AS since,
           coalesce(t.progress_at, t.started_at) AS seen_at
    FROM @productflow@.image_tasks AS t
    WHERE t.status IN ('queued', 'running')
      AND t.is_retryable
      AND (coalesce(t.progress_at, t.started_at, t.created_at), t.id) > (%(after_at)s::timestamptz, %(after_id)s::text)
    ORDER BY coalesce(t.progress_at, t.started_at, t.created_at), t.id
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
        SELECT l.next_check_at
        FROM @schema@.recovery AS l
        WHERE l.domain = %(domain)s::text AND l.candidate_id = p.id
        LIMIT 1) AS l ON true
    WHERE CASE
        WHEN e.id IS NULL THEN p.status = 'queued' OR coalesce(
            p.seen_at < statement_timestamp() - make_interval(secs => %(stale_s)s), true)
        WHEN e.status = 'running' THEN e.alive_until <= statement_timestamp()
        ELSE e.status IN ('dead', 'unknown') AND p.status = 'running' END
), free AS MATERIALIZED (
    SELECT s.id, s.since
    FROM stuck AS s
    JOIN @productflow@.image_tasks AS t ON t.id = s.id
    WHERE NOT s.asleep
    ORDER BY s.since, s.id
    LIMIT %(most)s
    FOR NO KEY UPDATE OF t SKIP LOCKED
)
@handed_out@;

-- name: recheck
-- Locks the task and its pending effects and reads them with what is stored; nothing when one is locked or it is gone.
WITH task AS MATERIALIZED (
    SELECT t.*
    FROM @productflow@.image_tasks AS t
    WHERE t.id = %(id)s::text
    FOR NO KEY UPDATE OF t SKIP LOCKED
), intents AS MATERIALIZED (
    SELECT e.id
    FROM @productflow@.provider_effects AS e
    WHERE e.domain = 'image_session' AND e.owner_id = %(id)s::text AND e.state = 'pending' AND EXISTS (SELECT FROM task)
    ORDER BY e.id
    FOR NO KEY UPDATE OF e SKIP LOCKED
), images AS MATERIALIZED (
    SELECT count(*)::integer AS stored, (count(*) FILTER (WHERE c.candidate_index = c.place))::integer AS missing
    FROM (SELECT c.candidate_index, row_number() OVER (ORDER BY c.candidate_index) - 1 AS place
          FROM @productflow@.image_candidates AS c
          WHERE c.task_id = %(id)s::text) AS c
)
SELECT t.id, t.status, t.is_retryable, t.phase, t.active_attempt_id AS attempt_id,
       t.active_candidate_index AS active_index, i.missing, i.stored, x.effects,
       coalesce(coalesce(t.progress_at, t.started_at) < statement_timestamp() - make_interval(secs => %(stale_s)s), true)
           AS silent,
       coalesce(l.checks, 0) AS checks, coalesce(l.recoveries, 0) AS recoveries,
       e.id AS run_id, e.status AS run_status, e.lease_token AS run_token, e.lease_expires_at AS run_expires_at,
       coalesce(e.alive_until > clock_timestamp(), false) AS run_alive, e.effect AS run_effect, e.on_lost AS run_on_lost,
       e.last_error AS run_error
FROM task AS t
CROSS JOIN images AS i
CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_agg(jsonb_build_object(
               'state', e.state, 'first_index', e.first_index, 'count', e.count,
               'own', coalesce(e.attempt_id = t.active_attempt_id, false),
               'stored', c.stored = e.count) ORDER BY e.first_index, e.id), '[]') AS effects,
           count(*) FILTER (WHERE e.state = 'pending') AS pending
    FROM @productflow@.provider_effects AS e
    CROSS JOIN LATERAL (
        SELECT count(*) AS stored
        FROM @productflow@.image_candidates AS c
        WHERE c.task_id = e.owner_id
          AND c.candidate_index >= e.first_index
          AND c.candidate_index < e.first_index::bigint + e.count) AS c
    WHERE e.domain = 'image_session' AND e.owner_id = t.id) AS x
LEFT JOIN LATERAL (
    SELECT e.* FROM @schema@.live_envelopes AS e WHERE e.delivery_key = %(domain)s::text || ':' || t.id LIMIT 1) AS e ON true
LEFT JOIN LATERAL (
    SELECT l.checks, l.recoveries FROM @schema@.recovery AS l
    WHERE l.domain = %(domain)s::text AND l.candidate_id = t.id LIMIT 1) AS l ON true
WHERE x.pending = (SELECT count(*) FROM intents);

-- name: repair
-- Makes a pending effect of the active attempt applied where all of it is stored; not while a worker may be at it.
UPDATE @productflow@.provider_effects AS e
SET state = 'applied', detail = 'repaired: all of its images are stored', settled_at = clock_timestamp()
WHERE e.domain = 'image_session'
  AND e.owner_id = %(id)s::text
  AND e.state = 'pending'
  AND e.attempt_id = %(attempt_id)s::text
  AND %(status)s::text = 'running'
  AND CASE
    WHEN %(run_id)s::bigint IS NULL THEN %(silent)s::boolean
    WHEN %(run_status)s::text = 'running' THEN NOT %(run_alive)s::boolean
    ELSE %(run_status)s::text IN ('dead', 'unknown') END
  AND e.count = (
    SELECT count(*)
    FROM @productflow@.image_candidates AS c
    WHERE c.task_id = e.owner_id
      AND c.candidate_index >= e.first_index
      AND c.candidate_index < e.first_index::bigint + e.count);

-- name: requeue
-- Makes the task queued as if no worker had had it; what is stored stays, and the counter, which a page shows.
UPDATE @productflow@.image_tasks AS t
SET status = 'queued', active_attempt_id = NULL, phase = NULL, provider_ref = NULL, started_at = NULL, progress_at = NULL
WHERE t.id = %(id)s::text AND t.status = 'running';

-- name: lose
-- Ends the task as unknown, for a person, and its open effects with it. Phase, index and reference stay: where to ask.
WITH lost AS (
    UPDATE @productflow@.image_tasks AS t
    SET status = 'unknown', is_retryable = false, active_attempt_id = NULL, error = %(reason)s::text,
        finished_at = clock_timestamp()
    WHERE t.id = %(id)s::text AND t.status IN ('queued', 'running')
    RETURNING t.id
)
UPDATE @productflow@.provider_effects AS e
SET state = 'unknown', detail = %(reason)s::text, settled_at = clock_timestamp()
WHERE e.domain = 'image_session' AND e.owner_id IN (SELECT l.id FROM lost AS l) AND e.state = 'pending';
