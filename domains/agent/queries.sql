-- Agent: turns, their journal, their tasks. `@productflow@` is the schema of the tables, `@schema@` pfsup's.
-- Order of locks, everywhere, in workers too: the turn, then its task, then its events and effects, then the envelope.
-- Recovery follows it and waits for none of them while it holds another, so it blocks no writer, not even one in another
-- order: a turn is passed over when it or its task is locked, a locked effect is an error of the turn, and pfsup's
-- functions take the envelope without waiting (hence before events and effects are written).
-- A task without a first turn has no turn to lock: there the task is the first lock, and whoever makes the turn holds
-- it (or makes both in one transaction, when nobody else can see the task). So two never wait for each other's turn. To
-- somebody who inserts the turn first and locks the task then, recovery gives way after 200 ms, well before the
-- server's deadlock_timeout.
-- In the ledger turns stand under their id, tasks under 'task:<id>': the two are numbered apart.

-- name: find_expired
-- Hands out the turns whose owner's lease ended, oldest first; the last row (id null) tells what was looked at.
WITH page AS MATERIALIZED (
    SELECT t.id, coalesce(t.lease_expires_at, t.created_at) AS since
    FROM @productflow@.agent_turns AS t
    WHERE t.owner IS NOT NULL
      AND coalesce(t.lease_expires_at, t.created_at) <= statement_timestamp()
      AND (coalesce(t.lease_expires_at, t.created_at), t.id) > (%(after_at)s::timestamptz, %(after_id)s::text)
    ORDER BY coalesce(t.lease_expires_at, t.created_at), t.id
    LIMIT %(page)s
), stuck AS MATERIALIZED (
    SELECT p.id, p.since, coalesce(l.next_check_at > statement_timestamp(), false) AS asleep
    FROM page AS p
    LEFT JOIN LATERAL (
        SELECT e.status, e.alive_until
        FROM @schema@.live_envelopes AS e
        WHERE e.delivery_key = %(domain)s::text || ':' || p.id
        LIMIT 1) AS e ON true
    LEFT JOIN LATERAL (
        SELECT l.next_check_at
        FROM @schema@.recovery AS l
        WHERE l.domain = %(domain)s::text AND l.candidate_id = p.id
        LIMIT 1) AS l ON true
    WHERE e.status IS DISTINCT FROM 'running' OR e.alive_until <= statement_timestamp()
), free AS MATERIALIZED (
    SELECT s.id, s.since
    FROM stuck AS s
    JOIN @productflow@.agent_turns AS t ON t.id = s.id
    WHERE NOT s.asleep
    ORDER BY s.since, s.id
    LIMIT %(most)s
    FOR NO KEY UPDATE OF t SKIP LOCKED
)
@handed_out@;

-- name: find_unstarted
-- Hands out the oldest queued tasks without a first turn that are free, as 'task:<id>'; the last row as above.
WITH page AS MATERIALIZED (
    SELECT k.id, k.conversation_id, k.created_at AS since
    FROM @productflow@.agent_tasks AS k
    WHERE k.status = 'queued'
      AND (k.created_at, k.id) > (%(after_at)s::timestamptz, %(after_id)s::text)
    ORDER BY k.created_at, k.id
    LIMIT %(page)s
), stuck AS MATERIALIZED (
    SELECT p.id, p.since, coalesce(l.next_check_at > statement_timestamp(), false) AS asleep
    FROM page AS p
    LEFT JOIN LATERAL (
        SELECT t.id
        FROM @productflow@.agent_turns AS t
        WHERE t.key = 'initial:' || p.conversation_id || ':' || p.id
        LIMIT 1) AS t ON true
    LEFT JOIN LATERAL (
        SELECT l.next_check_at
        FROM @schema@.recovery AS l
        WHERE l.domain = %(domain)s::text AND l.candidate_id = 'task:' || p.id
        LIMIT 1) AS l ON true
    WHERE t.id IS NULL
), free AS MATERIALIZED (
    SELECT s.id, s.since
    FROM stuck AS s
    JOIN @productflow@.agent_tasks AS k ON k.id = s.id
    WHERE NOT s.asleep
    ORDER BY s.since, s.id
    LIMIT %(most)s
    FOR NO KEY UPDATE OF k SKIP LOCKED
)
SELECT 'task:' || f.id AS id, f.since AS last_at, f.id AS last_id, NULL::integer AS looked, NULL::integer AS waiting,
       NULL::float8 AS oldest_s
FROM free AS f
UNION ALL
SELECT NULL, last.since, last.id, (SELECT count(*)::integer FROM page), (SELECT count(*)::integer FROM stuck),
       (SELECT extract(epoch FROM statement_timestamp() - min(s.since) FILTER (WHERE isfinite(s.since)))::float8
        FROM stuck AS s)
FROM (SELECT) AS one
LEFT JOIN LATERAL (SELECT p.since, p.id FROM page AS p ORDER BY p.since DESC, p.id DESC LIMIT 1) AS last ON true
ORDER BY 4 NULLS FIRST, 2, 3;

-- name: find_unbound
-- Hands out the oldest open turns that nobody owns and no envelope brings to a worker; the last row as above.
WITH page AS MATERIALIZED (
    SELECT t.id, t.status, t.created_at AS since
    FROM @productflow@.agent_turns AS t
    WHERE (t.status IN ('queued', 'running', 'cancel_requested')
           OR (t.status = 'requires_input' AND t.answer IS NOT NULL))
      AND t.owner IS NULL
      AND (t.created_at, t.id) > (%(after_at)s::timestamptz, %(after_id)s::text)
    ORDER BY t.created_at, t.id
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
        WHEN e.id IS NULL THEN true
        WHEN e.status = 'running' THEN e.alive_until <= statement_timestamp()
        WHEN e.status IN ('pending', 'held', 'sent') THEN false
        ELSE p.status <> 'queued' OR (
            SELECT v.seq
            FROM @productflow@.agent_turn_events AS v
            WHERE v.turn_id = p.id
              AND v.kind IN ('turn_succeeded', 'turn_failed', 'turn_cancelled', 'turn_unknown')
            LIMIT 1) IS NOT NULL END
), free AS MATERIALIZED (
    SELECT s.id, s.since
    FROM stuck AS s
    JOIN @productflow@.agent_turns AS t ON t.id = s.id
    WHERE NOT s.asleep
    ORDER BY s.since, s.id
    LIMIT %(most)s
    FOR NO KEY UPDATE OF t SKIP LOCKED
)
@handed_out@;

-- name: recheck_turn
-- Locks the turn, then its task, and reads the turn with all that is known; nothing when one is locked or it is gone.
WITH turn AS MATERIALIZED (
    SELECT t.* FROM @productflow@.agent_turns AS t WHERE t.id = %(id)s::text FOR NO KEY UPDATE OF t SKIP LOCKED
), task AS MATERIALIZED (
    SELECT k.id
    FROM turn AS t
    JOIN @productflow@.agent_tasks AS k ON k.id = t.task_id
    FOR NO KEY UPDATE OF k SKIP LOCKED
)
SELECT t.id, t.status, t.phase, t.owner IS NOT NULL AS owned,
       coalesce(t.lease_expires_at <= clock_timestamp(), true) AS expired,
       t.answer IS NOT NULL AS answered,
       EXISTS (SELECT FROM @productflow@.agent_turns_needing_worker AS n WHERE n.id = %(id)s::text) AS needs_worker,
       (SELECT substr(v.kind, 6) FROM @productflow@.agent_turn_events AS v
        WHERE v.turn_id = %(id)s::text
          AND v.kind IN ('turn_succeeded', 'turn_failed', 'turn_cancelled', 'turn_unknown')) AS ended,
       (SELECT coalesce(jsonb_agg(u.effect ORDER BY u.effect), '[]')
        FROM @productflow@.agent_effects_unproved AS u WHERE u.turn_id = %(id)s::text) AS unproved,
       coalesce(l.checks, 0) AS checks, coalesce(l.recoveries, 0) AS recoveries,
       e.id AS run_id, e.status AS run_status, e.lease_token AS run_token, e.lease_expires_at AS run_expires_at,
       coalesce(e.alive_until > clock_timestamp(), false) AS run_alive, e.effect AS run_effect,
       e.on_lost AS run_on_lost, e.last_error AS run_error
FROM turn AS t
LEFT JOIN LATERAL (
    SELECT e.* FROM @schema@.live_envelopes AS e
    WHERE e.delivery_key = %(domain)s::text || ':' || t.id LIMIT 1) AS e ON true
LEFT JOIN LATERAL (
    SELECT l.checks, l.recoveries FROM @schema@.recovery AS l
    WHERE l.domain = %(domain)s::text AND l.candidate_id = t.id LIMIT 1) AS l ON true
WHERE t.task_id IS NULL
   OR (SELECT count(*) FROM task) = 1
   OR (SELECT k.id FROM @productflow@.agent_tasks AS k WHERE k.id = t.task_id) IS NULL;

-- name: lock_effects
-- Locks the turn's open effects, or fails. What is read after this was committed before the turn was ours.
SELECT e.id
FROM @productflow@.provider_effects AS e
WHERE e.domain = 'agent' AND e.owner_id = %(id)s::text AND e.state = 'pending'
ORDER BY e.id
FOR NO KEY UPDATE NOWAIT;

-- name: collect
-- Takes the lease away from an owner who is gone, or who left it on a turn that needs none.
UPDATE @productflow@.agent_turns AS t
SET fencing_token = t.fencing_token + 1, owner = NULL, lease_expires_at = NULL
WHERE t.id = %(id)s::text AND t.owner IS NOT NULL;

-- name: release
-- Takes the lease away and leaves the turn for another worker. A wish to cancel, and an answer not yet taken, stay.
UPDATE @productflow@.agent_turns AS t
SET fencing_token = t.fencing_token + 1, owner = NULL, lease_expires_at = NULL,
    status = CASE t.status WHEN 'running' THEN 'queued' ELSE t.status END,
    phase = NULL, started_at = NULL, progress_at = NULL
WHERE t.id = %(id)s::text AND t.owner IS NOT NULL
  AND t.status IN ('queued', 'running', 'cancel_requested', 'requires_input');

-- name: end_turn
-- Ends the turn as %(end)s and refuses whatever its last worker may still write.
UPDATE @productflow@.agent_turns AS t
SET status = %(end)s::text, fencing_token = t.fencing_token + 1, owner = NULL, lease_expires_at = NULL,
    error = CASE %(end)s::text WHEN 'unknown' THEN coalesce(t.error, %(reason)s::text) ELSE t.error END,
    finished_at = clock_timestamp()
WHERE t.id = %(id)s::text
  AND t.status IN ('queued', 'running', 'requires_input', 'awaiting_confirmation', 'cancel_requested');

-- name: end_task_of_turn
-- The task ends as its turn did, if it has not ended.
UPDATE @productflow@.agent_tasks AS k
SET status = t.status, error = coalesce(k.error, t.error), finished_at = clock_timestamp()
FROM @productflow@.agent_turns AS t
WHERE t.id = %(id)s::text
  AND k.id = t.task_id
  AND k.status IN ('queued', 'running')
  AND t.status IN ('succeeded', 'failed', 'cancelled', 'unknown');

-- name: interrupt
-- Says in the journal which effects nobody can prove, one event each.
INSERT INTO @productflow@.agent_turn_events (turn_id, seq, kind, body, fencing_token)
SELECT t.id,
       coalesce((SELECT max(v.seq) FROM @productflow@.agent_turn_events AS v WHERE v.turn_id = t.id), 0)
           + row_number() OVER (ORDER BY u.effect),
       'interrupted', jsonb_build_object('effect', u.effect, 'by', 'recovery'), t.fencing_token
FROM @productflow@.agent_turns AS t
JOIN @productflow@.agent_effects_unproved AS u ON u.turn_id = t.id
WHERE t.id = %(id)s::text;

-- name: append_unknown
-- Writes the turn's one end into the journal: turn_unknown, with the reason. A second end is refused by its index.
INSERT INTO @productflow@.agent_turn_events (turn_id, seq, kind, body, fencing_token)
SELECT t.id,
       coalesce((SELECT max(v.seq) FROM @productflow@.agent_turn_events AS v WHERE v.turn_id = t.id), 0) + 1,
       'turn_unknown', jsonb_build_object('reason', %(reason)s::text, 'by', 'recovery'), t.fencing_token
FROM @productflow@.agent_turns AS t
WHERE t.id = %(id)s::text;

-- name: reconcile
-- Closes the turn's pending effects as unknown: they stay so, even if the late worker comes back with a result.
UPDATE @productflow@.provider_effects AS e
SET state = 'unknown', detail = coalesce(e.detail, %(reason)s::text), settled_at = clock_timestamp()
WHERE e.domain = 'agent' AND e.owner_id = %(id)s::text AND e.state = 'pending';

-- name: recheck_task
-- Locks the task and reads it with its first turn and that turn's envelope; nothing when it is locked or gone.
SELECT k.id AS task_id, k.status,
       EXISTS (SELECT FROM @productflow@.agent_conversations AS c WHERE c.id = k.conversation_id) AS has_conversation,
       t.id AS turn_id, t.status AS turn_status,
       EXISTS (SELECT FROM @productflow@.agent_turns_needing_worker AS n WHERE n.id = t.id) AS needs_worker,
       coalesce(l.checks, 0) AS checks, coalesce(l.recoveries, 0) AS recoveries,
       e.id AS run_id, e.status AS run_status, e.lease_token AS run_token, e.lease_expires_at AS run_expires_at,
       coalesce(e.alive_until > clock_timestamp(), false) AS run_alive, e.effect AS run_effect,
       e.on_lost AS run_on_lost, e.last_error AS run_error
FROM @productflow@.agent_tasks AS k
LEFT JOIN LATERAL (
    SELECT t.id, t.status
    FROM @productflow@.agent_turns AS t
    WHERE t.key = 'initial:' || k.conversation_id || ':' || k.id
    LIMIT 1) AS t ON true
LEFT JOIN LATERAL (
    SELECT e.* FROM @schema@.live_envelopes AS e
    WHERE e.delivery_key = %(domain)s::text || ':' || t.id LIMIT 1) AS e ON true
LEFT JOIN LATERAL (
    SELECT l.checks, l.recoveries FROM @schema@.recovery AS l
    WHERE l.domain = %(domain)s::text AND l.candidate_id = %(id)s::text LIMIT 1) AS l ON true
WHERE k.id = substr(%(id)s::text, 6)
FOR NO KEY UPDATE OF k SKIP LOCKED;

-- name: wait_little
-- Lets the rest of the transaction wait for a lock a fifth of a second at most: see the head.
SELECT set_config('lock_timeout', '200ms', true);

-- name: make_first_turn
-- Makes the first turn of a queued task, under its fixed key: once, whoever comes first.
INSERT INTO @productflow@.agent_turns (conversation_id, task_id, key, request)
SELECT k.conversation_id, k.id, 'initial:' || k.conversation_id || ':' || k.id, k.request
FROM @productflow@.agent_tasks AS k
JOIN @productflow@.agent_conversations AS c ON c.id = k.conversation_id
WHERE k.id = %(task_id)s::text AND k.status = 'queued'
ON CONFLICT (key) DO NOTHING;

-- name: name_first_turn
-- Writes the first turn's id on the task, for readers.
UPDATE @productflow@.agent_tasks AS k
SET first_turn_id = %(turn_id)s::text
WHERE k.id = %(task_id)s::text AND k.status = 'queued';

-- name: end_task
-- Ends a task that has no turn as unknown, with the reason.
UPDATE @productflow@.agent_tasks AS k
SET status = 'unknown', error = coalesce(k.error, %(reason)s::text), finished_at = clock_timestamp()
WHERE k.id = %(task_id)s::text AND k.status = 'queued';
