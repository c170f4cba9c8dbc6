-- Delivery: deterministic rendering, no outside effect. `@productflow@` is the schema of the tables, `@schema@` pfsup's.
-- Order of locks: the job, then its envelope (pfsup's functions take it without waiting).

-- name: find
-- Hands out the oldest stuck jobs that are free; the last row (id null) tells what was looked at.
WITH page AS MATERIALIZED (
    SELECT j.id, coalesce(j.progress_at, j.started_at, j.created_at) AS since
    FROM @productflow@.delivery_jobs AS j
    WHERE j.status IN ('queued', 'running')
      AND j.is_retryable
      AND (coalesce(j.progress_at, j.started_at, j.created_at), j.id) > (%(after_at)s::timestamptz, %(after_id)s::text)
    ORDER BY coalesce(j.progress_at, j.started_at, j.created_at), j.id
    LIMIT %(page)s
), stuck AS MATERIALIZED (
    SELECT p.id, p.since, coalesce(l.next_check_at > statement_timestamp(), false) AS asleep
    FROM page AS p
    CROSS JOIN LATERAL (SELECT j.* FROM @productflow@.delivery_jobs AS j WHERE j.id = p.id LIMIT 1) AS j
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
        WHEN e.id IS NULL THEN j.status = 'queued' OR coalesce(
            coalesce(j.progress_at, j.started_at) < statement_timestamp() - make_interval(secs => %(stale_s)s), true)
        WHEN e.status = 'running' THEN e.alive_until <= statement_timestamp()
        ELSE e.status IN ('dead', 'unknown') AND j.status = 'running' END
), free AS MATERIALIZED (
    SELECT s.id, s.since
    FROM stuck AS s
    JOIN @productflow@.delivery_jobs AS j ON j.id = s.id
    WHERE NOT s.asleep
    ORDER BY s.since, s.id
    LIMIT %(most)s
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
@handed_out@;

-- name: recheck
-- Locks the job and reads it with its live envelope and what the ledger knows; nothing when it is locked or gone.
SELECT j.id, j.status, j.is_retryable,
       coalesce(coalesce(j.progress_at, j.started_at) < statement_timestamp() - make_interval(secs => %(stale_s)s), true)
           AS silent,
       coalesce(l.checks, 0) AS checks, coalesce(l.recoveries, 0) AS recoveries,
       e.id AS run_id, e.status AS run_status, e.lease_token AS run_token, e.lease_expires_at AS run_expires_at,
       coalesce(e.alive_until > clock_timestamp(), false) AS run_alive, e.effect AS run_effect, e.on_lost AS run_on_lost,
       e.last_error AS run_error
FROM @productflow@.delivery_jobs AS j
LEFT JOIN LATERAL (
    SELECT e.* FROM @schema@.live_envelopes AS e WHERE e.delivery_key = %(domain)s::text || ':' || j.id LIMIT 1) AS e ON true
LEFT JOIN LATERAL (
    SELECT l.checks, l.recoveries FROM @schema@.recovery AS l
    WHERE l.domain = %(domain)s::text AND l.candidate_id = j.id LIMIT 1) AS l ON true
WHERE j.id = %(id)s::text
FOR NO KEY UPDATE OF j SKIP LOCKED;

-- name: requeue
-- Makes the job queued as if no worker had had it.
UPDATE @productflow@.delivery_jobs AS j
SET status = 'queued', attempt_id = NULL, phase = NULL, started_at = NULL, progress_at = NULL
WHERE j.id = %(id)s::text AND j.status IN ('queued', 'running');

-- name: fail
-- Ends the job as failed, with the reason.
UPDATE @productflow@.delivery_jobs AS j
SET status = 'failed', is_retryable = false, attempt_id = NULL, error = %(reason)s::text, finished_at = clock_timestamp()
WHERE j.id = %(id)s::text AND j.status IN ('queued', 'running');
