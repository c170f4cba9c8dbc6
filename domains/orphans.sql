-- Runs whose business row is over, gone, waits for a person or is not to be retried by a machine, while their worker is
-- gone too: the domain's own finder passes over such rows, and the envelope domain leaves the runs of an owned actor alone. `@table@` is the domain's table in `@productflow@`.
-- A candidate's id is 'run:<envelope id>'.

-- name: find_orphans
-- Hands out lost runs whose business row needs no worker; the last row (id null) tells what was looked at.
WITH page AS MATERIALIZED (
    SELECT o.id, o.check_at AS since, o.status, o.actor, o.aggregate_id, o.alive_until
    FROM @schema@.outstanding AS o
    WHERE o.check_at <= statement_timestamp()
      AND (o.check_at, o.id) > (%(after_at)s::timestamptz, coalesce(nullif(%(after_id)s::text, '')::bigint, 0))
    ORDER BY o.check_at, o.id
    LIMIT %(page)s
), stuck AS MATERIALIZED (
    SELECT p.id, p.since, coalesce(l.next_check_at > statement_timestamp(), false) AS asleep
    FROM page AS p
    LEFT JOIN LATERAL (
        SELECT CASE WHEN t.status = 'requires_input' AND to_jsonb(t) ->> 'answer' IS NOT NULL THEN 'answered'
                    ELSE t.status END AS status,
               (to_jsonb(t) ->> 'is_retryable')::boolean AS is_retryable  -- not every table has it, nor answer
        FROM @productflow@.@table@ AS t
        WHERE t.id = p.aggregate_id
        LIMIT 1) AS t ON true
    LEFT JOIN LATERAL (
        SELECT l.next_check_at
        FROM @schema@.recovery AS l
        WHERE l.domain = %(domain)s::text AND l.candidate_id = 'run:' || p.id
        LIMIT 1) AS l ON true
    WHERE p.status = 'running'
      AND p.actor = %(actor)s::text
      AND p.alive_until <= statement_timestamp()
      AND (t.status IS NULL OR t.is_retryable IS false OR t.status IN (
          'succeeded', 'failed', 'cancelled', 'unknown', 'requires_input', 'awaiting_confirmation'))
), free AS MATERIALIZED (
    SELECT s.id, s.since FROM stuck AS s WHERE NOT s.asleep ORDER BY s.since, s.id LIMIT %(most)s
)
SELECT 'run:' || f.id AS id, f.since AS last_at, f.id::text AS last_id, NULL::integer AS looked, NULL::integer AS waiting,
       NULL::float8 AS oldest_s
FROM free AS f
UNION ALL
SELECT NULL, last.since, last.id::text, (SELECT count(*)::integer FROM page), (SELECT count(*)::integer FROM stuck),
       (SELECT extract(epoch FROM statement_timestamp() - min(s.since))::float8 FROM stuck AS s)
FROM (SELECT) AS one
LEFT JOIN LATERAL (SELECT p.since, p.id FROM page AS p ORDER BY p.since DESC, p.id DESC LIMIT 1) AS last ON true
ORDER BY 4 NULLS FIRST, 2, 3;

-- name: recheck_orphan
-- Locks the envelope and reads it with its business row; nothing when it is locked or gone.
SELECT CASE WHEN t.status = 'requires_input' AND to_jsonb(t) ->> 'answer' IS NOT NULL THEN 'answered'
            ELSE t.status END AS status,
       coalesce((to_jsonb(t) ->> 'is_retryable')::boolean, true) AS is_retryable,
       coalesce(l.checks, 0) AS checks, coalesce(l.recoveries, 0) AS recoveries,
       o.id AS run_id, o.status AS run_status, o.lease_token AS run_token, o.lease_expires_at AS run_expires_at,
       e.alive AS run_alive, e.effect AS run_effect, e.on_lost AS run_on_lost, NULL AS run_error
FROM @schema@.recheck_envelope(split_part(%(id)s::text, ':', 2)::bigint) AS e
JOIN @schema@.outstanding AS o ON o.id = split_part(%(id)s::text, ':', 2)::bigint
LEFT JOIN @productflow@.@table@ AS t ON t.id = o.aggregate_id
LEFT JOIN @schema@.recovery AS l ON l.domain = %(domain)s::text AND l.candidate_id = %(id)s::text
WHERE e.here;

-- name: end_run
-- Ends the lost run as its business row ended.
SELECT (outcome = 'ended')::integer AS changed
FROM @schema@.end_lost(%(dispatch_id)s, %(token)s, %(becomes)s, %(reason)s);
