-- The product's statements. `@productflow@` is the schema of its tables, `@schema@` pfsup's.
--
-- Order of locks, in every transaction: the row the envelope stands for (job, task, run, turn), then what belongs to it
-- (node; task of a turn), then journal and results, then the envelope: `fence` and settle() come last. Every write names
-- the run's own right to the row, an attempt or a token, and changes nothing once the row is another's.
--
-- A claim takes queued rows, and a running one whose worker failed and may try again: that nobody else works on it the
-- fence proves, in the same transaction. No claim takes a row over after an outside call may have begun.

-- name: fence
-- Prolongs the run's envelope and says whether it is still this run's.
SELECT verdict FROM @schema@.beat(%(dispatch_id)s::bigint, %(token)s::uuid, make_interval(secs => %(lease_s)s));

-- Delivery.

-- name: insert_delivery
-- A job, queued.
INSERT INTO @productflow@.delivery_jobs (request) VALUES (%(request)s) RETURNING id;

-- name: claim_delivery
-- Takes the job. Rendering may be begun again at any time.
UPDATE @productflow@.delivery_jobs AS j
SET status = 'running', attempt_id = %(attempt)s, phase = 'claimed', started_at = clock_timestamp(),
    progress_at = clock_timestamp()
WHERE j.id = %(id)s AND j.status IN ('queued', 'running') AND j.is_retryable
RETURNING j.request;

-- name: progress_delivery
-- A sign of life: it renders.
UPDATE @productflow@.delivery_jobs AS j
SET phase = 'rendering', progress_at = clock_timestamp()
WHERE j.id = %(id)s AND j.status = 'running' AND j.attempt_id = %(attempt)s;

-- name: finish_delivery
-- Stores where the rendered file is.
UPDATE @productflow@.delivery_jobs AS j
SET status = 'succeeded', result = %(made)s, phase = 'rendered', finished_at = clock_timestamp()
WHERE j.id = %(id)s AND j.status = 'running' AND j.attempt_id = %(attempt)s;

-- The journal of outside calls.

-- name: insert_effect
-- Says that a call will be made.
INSERT INTO @productflow@.provider_effects (domain, owner_id, attempt_id, first_index)
VALUES (%(domain)s, %(owner)s, %(attempt)s, %(index)s)
RETURNING id;

-- name: apply_effect
-- Says that the call's result is stored.
UPDATE @productflow@.provider_effects AS e
SET state = 'applied', settled_at = clock_timestamp()
WHERE e.id = %(effect)s AND e.state = 'pending';

-- Local edit.

-- name: insert_edit
-- An edit, queued.
INSERT INTO @productflow@.local_edit_tasks (request, request_hash) VALUES (%(request)s, %(hash)s) RETURNING id;

-- name: claim_edit
-- Takes the edit, unless a call may have been made for it.
UPDATE @productflow@.local_edit_tasks AS t
SET status = 'running', attempt_id = %(attempt)s, phase = 'claimed', started_at = clock_timestamp(),
    progress_at = clock_timestamp()
WHERE t.id = %(id)s
  AND t.is_retryable
  AND (t.status = 'queued' OR (
    t.status = 'running' AND t.phase = 'claimed' AND NOT EXISTS (
      SELECT FROM @productflow@.provider_effects AS e
      WHERE e.domain = 'local_edit' AND e.owner_id = t.id AND e.state <> 'void')))
RETURNING t.request_hash AS hash;

-- name: edit_runs
-- Whether the edit is running: a claim that was refused then may not say that it is over.
SELECT t.status = 'running' AS running FROM @productflow@.local_edit_tasks AS t WHERE t.id = %(id)s;

-- name: progress_edit
-- A sign of life, and how far it is.
UPDATE @productflow@.local_edit_tasks AS t
SET phase = %(phase)s, progress_at = clock_timestamp(), provider_ref = coalesce(%(ref)s, t.provider_ref)
WHERE t.id = %(id)s AND t.status = 'running' AND t.attempt_id = %(attempt)s;

-- name: finish_edit
-- Stores the result.
UPDATE @productflow@.local_edit_tasks AS t
SET status = 'succeeded', result = %(made)s, finished_at = clock_timestamp()
WHERE t.id = %(id)s AND t.status = 'running' AND t.attempt_id = %(attempt)s;

-- Image session.

-- name: insert_session
-- A session, queued.
INSERT INTO @productflow@.image_tasks (request, requested_candidates) VALUES (%(request)s, %(count)s) RETURNING id;

-- name: claim_session
-- Takes the session, unless a call may have been made whose image is not stored.
UPDATE @productflow@.image_tasks AS t
SET status = 'running', active_attempt_id = %(attempt)s, phase = 'running', started_at = clock_timestamp(),
    progress_at = clock_timestamp()
WHERE t.id = %(id)s
  AND t.is_retryable
  AND (t.status = 'queued' OR (
    t.status = 'running' AND t.active_candidate_index IS NULL AND t.phase IN ('running', 'candidate_saved')
    AND NOT EXISTS (
      SELECT FROM @productflow@.provider_effects AS e
      WHERE e.domain = 'image_session' AND e.owner_id = t.id AND e.state IN ('pending', 'unknown'))))
RETURNING t.requested_candidates AS wanted;

-- name: session_runs
-- Whether the session is running: a claim that was refused then may not say that it is over.
SELECT t.status = 'running' AS running FROM @productflow@.image_tasks AS t WHERE t.id = %(id)s;

-- name: missing_images
-- The indexes of the images that are not stored yet, in order.
SELECT coalesce(array_agg(i ORDER BY i), '{}') AS missing
FROM generate_series(0, %(wanted)s - 1) AS i
WHERE NOT EXISTS (
    SELECT FROM @productflow@.image_candidates AS c WHERE c.task_id = %(id)s AND c.candidate_index = i);

-- name: begin_image
-- Says which image is being made.
UPDATE @productflow@.image_tasks AS t
SET active_candidate_index = %(index)s, phase = 'provider_call', progress_at = clock_timestamp()
WHERE t.id = %(id)s AND t.status = 'running' AND t.active_attempt_id = %(attempt)s;

-- name: end_image
-- No image is being made any more.
UPDATE @productflow@.image_tasks AS t
SET active_candidate_index = NULL, phase = 'candidate_saved', progress_at = clock_timestamp(),
    completed_candidates = t.completed_candidates + 1
WHERE t.id = %(id)s AND t.status = 'running' AND t.active_attempt_id = %(attempt)s;

-- name: store_image
-- Stores where an image is.
INSERT INTO @productflow@.image_candidates (task_id, candidate_index, ref) VALUES (%(id)s, %(index)s, %(ref)s);

-- name: finish_session
-- Ends the session: all of its images are stored.
UPDATE @productflow@.image_tasks AS t
SET status = 'succeeded', finished_at = clock_timestamp()
WHERE t.id = %(id)s AND t.status = 'running' AND t.active_attempt_id = %(attempt)s;

-- Workflow.

-- name: insert_run
-- A run, queued.
INSERT INTO @productflow@.workflow_runs (graph_id) VALUES (%(graph)s) RETURNING id;

-- name: insert_node
-- A node of a run, queued.
INSERT INTO @productflow@.workflow_node_runs (run_id, node, position, request)
VALUES (%(run)s, %(node)s, %(position)s, %(request)s)
RETURNING id;

-- name: lock_graph
-- Waits for whoever adds a run to the graph this moment: what the next statement reads was committed before.
SELECT pg_advisory_xact_lock(hashtextextended('productflow graph ' || %(graph)s, 0));

-- name: graph_is_busy
-- Whether the graph has another run that is not over.
SELECT EXISTS (
    SELECT FROM @productflow@.workflow_runs AS r
    WHERE r.graph_id = %(graph)s AND r.id <> %(run)s AND r.status IN ('queued', 'running')) AS busy;

-- name: take_run
-- Takes the run, unless another one of its graph is running.
UPDATE @productflow@.workflow_runs AS r
SET status = 'running', lease_token = %(lease)s, lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_s)s),
    started_at = coalesce(r.started_at, clock_timestamp()), progress_at = clock_timestamp()
WHERE r.id = %(id)s
  AND (r.status = 'running' OR r.status = 'queued' AND NOT EXISTS (
    SELECT FROM @productflow@.workflow_runs AS b WHERE b.graph_id = r.graph_id AND b.status = 'running'))
RETURNING r.id;

-- name: renew_run
-- Prolongs the run's lease.
UPDATE @productflow@.workflow_runs AS r
SET lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE r.id = %(id)s AND r.status = 'running' AND r.lease_token = %(lease)s;

-- name: hold_run
-- Locks the run that is still this worker's, and prolongs its lease: first in every transaction about a node.
UPDATE @productflow@.workflow_runs AS r
SET lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE r.id = %(id)s AND r.status = 'running' AND r.lease_token = %(lease)s;

-- name: claim_node
-- Takes the next node of the run.
UPDATE @productflow@.workflow_node_runs AS n
SET status = 'running', attempt_id = %(attempt)s, phase = 'claimed', started_at = clock_timestamp(),
    progress_at = clock_timestamp()
WHERE n.id = (
    SELECT q.id FROM @productflow@.workflow_node_runs AS q
    WHERE q.run_id = %(id)s AND q.status = 'queued'
    ORDER BY q.position, q.node
    LIMIT 1)
RETURNING n.id, n.position AS place, coalesce(n.request ->> 'call' = 'true', false) AS calls;

-- name: progress_node
-- A sign of life, and how far the node is.
UPDATE @productflow@.workflow_node_runs AS n
SET phase = %(phase)s, progress_at = clock_timestamp(), result = coalesce(%(made)s, n.result)
WHERE n.id = %(node)s AND n.status = 'running' AND n.attempt_id = %(attempt)s;

-- name: finish_node
-- Ends the node; its result is stored.
UPDATE @productflow@.workflow_node_runs AS n
SET status = 'succeeded', finished_at = clock_timestamp()
WHERE n.id = %(node)s AND n.status = 'running' AND n.attempt_id = %(attempt)s;

-- name: run_is_closable
-- Whether all of the run's nodes have ended.
SELECT NOT EXISTS (
    SELECT FROM @productflow@.workflow_node_runs AS n
    WHERE n.run_id = %(id)s AND n.status IN ('queued', 'running')) AS closable;

-- name: close_run
-- Ends the run as its nodes ended.
UPDATE @productflow@.workflow_runs AS r
SET status = CASE
        WHEN EXISTS (SELECT FROM @productflow@.workflow_node_runs AS n WHERE n.run_id = r.id AND n.status = 'unknown')
            THEN 'unknown'
        WHEN EXISTS (SELECT FROM @productflow@.workflow_node_runs AS n WHERE n.run_id = r.id AND n.status = 'failed')
            THEN 'failed'
        ELSE 'succeeded' END,
    lease_token = NULL, lease_expires_at = NULL, finished_at = clock_timestamp()
WHERE r.id = %(id)s AND r.status = 'running' AND r.lease_token = %(lease)s;

-- name: leave_run
-- Lets go of the run: a node of an earlier worker is still running, and only its silence tells.
UPDATE @productflow@.workflow_runs AS r
SET lease_token = NULL, lease_expires_at = NULL, progress_at = clock_timestamp()
WHERE r.id = %(id)s AND r.status = 'running' AND r.lease_token = %(lease)s;

-- Agent.

-- name: insert_conversation
-- A conversation, if it is a new one.
INSERT INTO @productflow@.agent_conversations (id) VALUES (%(conversation)s) ON CONFLICT (id) DO NOTHING;

-- name: insert_agent_task
-- What a person asks for, queued.
INSERT INTO @productflow@.agent_tasks (conversation_id, request) VALUES (%(conversation)s, %(request)s) RETURNING id;

-- name: insert_first_turn
-- The first turn of a task that nobody else can see yet, under its fixed key.
INSERT INTO @productflow@.agent_turns (conversation_id, task_id, key, request)
SELECT k.conversation_id, k.id, 'initial:' || k.conversation_id || ':' || k.id, k.request
FROM @productflow@.agent_tasks AS k
WHERE k.id = %(task)s
ON CONFLICT (key) DO NOTHING
RETURNING id;

-- name: name_turn
-- Writes the first turn's id on its task, for readers.
UPDATE @productflow@.agent_tasks AS k SET first_turn_id = %(turn)s WHERE k.id = %(task)s AND k.status = 'queued';

-- name: answer_turn
-- A person's answer to what the turn asked.
UPDATE @productflow@.agent_turns AS t
SET answer = %(answer)s
WHERE t.id = %(turn)s AND t.status = 'requires_input' AND t.answer IS NULL
RETURNING t.id;

-- name: wish_cancel
-- A person's wish that the turn ends. Who waits for a person is cancelled by its next worker too.
UPDATE @productflow@.agent_turns AS t
SET status = 'cancel_requested'
WHERE t.id = %(turn)s AND t.status IN ('queued', 'running', 'requires_input', 'awaiting_confirmation')
RETURNING t.id;

-- name: lock_turn
-- Locks the turn; what the next statement reads was committed before.
SELECT t.id FROM @productflow@.agent_turns AS t WHERE t.id = %(id)s FOR NO KEY UPDATE;

-- name: needs_worker
-- Whether a worker may take the turn: the same view as recovery's.
SELECT n.task_id FROM @productflow@.agent_turns_needing_worker AS n WHERE n.id = %(id)s;

-- name: take_turn
-- Makes the worker the turn's owner under a new fencing token. A wish to cancel, and an answer, stay as they are.
UPDATE @productflow@.agent_turns AS t
SET owner = %(owner)s, fencing_token = t.fencing_token + 1, phase = 'claimed',
    lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_s)s),
    status = CASE t.status WHEN 'queued' THEN 'running' ELSE t.status END,
    started_at = coalesce(t.started_at, clock_timestamp()), progress_at = clock_timestamp()
WHERE t.id = %(id)s
RETURNING t.fencing_token AS fence, t.task_id, t.status, t.answer,
    coalesce(t.request ->> 'ask' = 'true', false) AS asks,
    (SELECT count(*)::integer FROM @productflow@.provider_effects AS e
     WHERE e.domain = 'agent' AND e.owner_id = t.id AND e.state <> 'void') AS calls;

-- name: start_task
-- The turn's task is being worked on.
UPDATE @productflow@.agent_tasks AS k
SET status = 'running'
WHERE k.id = %(task_id)s AND k.status = 'queued';

-- name: renew_turn
-- Prolongs the owner's lease.
UPDATE @productflow@.agent_turns AS t
SET lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_s)s)
WHERE t.id = %(id)s AND t.owner = %(owner)s AND t.fencing_token = %(fence)s;

-- name: progress_turn
-- A sign of life, and how far the turn is; what a person answered is taken away once it is at work.
UPDATE @productflow@.agent_turns AS t
SET phase = %(phase)s, progress_at = clock_timestamp(), answer = NULL,
    lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_s)s),
    status = CASE t.status WHEN 'requires_input' THEN 'running' ELSE t.status END
WHERE t.id = %(id)s AND t.owner = %(owner)s AND t.fencing_token = %(fence)s
  AND t.status IN ('running', 'requires_input', 'cancel_requested');

-- name: append_event
-- The next event in the turn's journal.
INSERT INTO @productflow@.agent_turn_events (turn_id, seq, kind, body, fencing_token)
SELECT %(id)s, coalesce(max(v.seq), 0) + 1, %(kind)s, %(body)s, %(fence)s
FROM @productflow@.agent_turn_events AS v
WHERE v.turn_id = %(id)s;

-- name: ask_person
-- The turn waits for a person: nobody owns it. One that was to be cancelled meanwhile waits for its next worker.
UPDATE @productflow@.agent_turns AS t
SET status = CASE t.status WHEN 'running' THEN 'requires_input' ELSE t.status END,
    owner = NULL, lease_expires_at = NULL, phase = NULL, progress_at = clock_timestamp()
WHERE t.id = %(id)s AND t.owner = %(owner)s AND t.fencing_token = %(fence)s
  AND t.status IN ('running', 'cancel_requested');

-- name: finish_turn
-- Ends the turn.
UPDATE @productflow@.agent_turns AS t
SET status = %(end)s, owner = NULL, lease_expires_at = NULL, finished_at = clock_timestamp()
WHERE t.id = %(id)s AND t.owner = %(owner)s AND t.fencing_token = %(fence)s
  AND t.status IN ('running', 'cancel_requested');

-- name: finish_task
-- The turn's task ends with it; one that is gone or over stays so.
UPDATE @productflow@.agent_tasks AS k
SET status = %(end)s, finished_at = clock_timestamp()
WHERE k.id = %(task_id)s AND k.status IN ('queued', 'running');
