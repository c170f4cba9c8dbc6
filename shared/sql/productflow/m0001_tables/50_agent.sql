-- The life of a conversation with an agent. A person asks: a task, `queued`, in a conversation. Its first turn is made
-- under a fixed key, 'initial:<conversation>:<task>', by the application or by recovery, whoever comes first; the key
-- is unique, so there is one. 'agent:<turn id>' is staged with it. A worker that begins a turn writes itself as
-- `owner`, raises fencing_token and renews lease_expires_at; every write of its own names that token. It may stop and
-- ask (`requires_input`, `awaiting_confirmation`: owner cleared, no worker needed); a person's `answer` makes the turn
-- need a worker again. `cancel_requested` is a wish, for the worker to end.
--
-- What happened in a turn is its journal, agent_turn_events: begun, effect_begun, effect_done, question, answer,
-- interrupted, and exactly one end, turn_<status>. Journal and turn change in one transaction; where they differ the
-- journal is right. An effect's events name the row of provider_effects (owner_id = the turn's id): {"effect": id}.
-- When an owner's lease has run out, recovery (agent) raises fencing_token, clears the owner, and either projects the
-- end that the journal has, or ends the turn `unknown` with one end event: never failed, never succeeded.
--
-- Locks are taken turn first, then task, then events and effects, then the envelope; everywhere. A task without a turn
-- has none to lock: whoever makes its first turn holds the task, or makes both in one transaction. The parent of a task,
-- turn or event may be gone: no foreign keys.

CREATE TABLE @productflow@.agent_conversations (
    id         text PRIMARY KEY DEFAULT gen_random_uuid()::text
               CHECK (length(id) BETWEEN 1 AND 200 AND id !~ '[[:cntrl:]]'),
    title      text CHECK (length(title) <= 400),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at  timestamptz
);

CREATE TABLE @productflow@.agent_tasks (
    id              text PRIMARY KEY DEFAULT gen_random_uuid()::text
                    CHECK (length(id) BETWEEN 1 AND 200 AND id !~ '[[:cntrl:]]'),
    conversation_id text NOT NULL
                    CHECK (length(conversation_id) BETWEEN 1 AND 200 AND conversation_id !~ '[[:cntrl:]]'),
    status          text NOT NULL DEFAULT 'queued'
                    CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'unknown')),
    request         jsonb,
    first_turn_id   text CHECK (length(first_turn_id) BETWEEN 1 AND 200),  -- for reading; the turn's key is what counts
    error           text CHECK (length(error) <= 2000),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at     timestamptz,
    CHECK (finished_at IS NULL OR status NOT IN ('queued', 'running'))
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

CREATE INDEX agent_tasks_queued ON @productflow@.agent_tasks (created_at, id) WHERE status = 'queued';

CREATE TABLE @productflow@.agent_turns (
    id               text PRIMARY KEY DEFAULT gen_random_uuid()::text
                     CHECK (length(id) BETWEEN 1 AND 200 AND id !~ '[[:cntrl:]]'),
    conversation_id  text NOT NULL
                     CHECK (length(conversation_id) BETWEEN 1 AND 200 AND conversation_id !~ '[[:cntrl:]]'),
    task_id          text CHECK (length(task_id) BETWEEN 1 AND 200 AND task_id !~ '[[:cntrl:]]'),
    key              text NOT NULL DEFAULT gen_random_uuid()::text
                     CONSTRAINT agent_turns_key UNIQUE
                     CHECK (length(key) BETWEEN 1 AND 420 AND key !~ '[[:cntrl:]]'),
    status           text NOT NULL DEFAULT 'queued'
                     CHECK (status IN ('queued', 'running', 'requires_input', 'awaiting_confirmation',
                                       'cancel_requested', 'succeeded', 'failed', 'cancelled', 'unknown')),
    request          jsonb,
    answer           jsonb,                        -- a person's, to what requires_input asked; the worker takes it away
    owner            text CHECK (length(owner) BETWEEN 1 AND 400),
    lease_expires_at timestamptz,
    fencing_token    bigint NOT NULL DEFAULT 0 CHECK (fencing_token >= 0),
    phase            text CHECK (length(phase) <= 100),
    error            text CHECK (length(error) <= 2000),
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at       timestamptz,
    progress_at      timestamptz,
    finished_at      timestamptz,
    CHECK (finished_at IS NULL OR status IN ('succeeded', 'failed', 'cancelled', 'unknown'))
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- An owner without a lease is a fault that no comparison with its lease would ever show: it counts as ended at once.
CREATE INDEX agent_turns_owned ON @productflow@.agent_turns (coalesce(lease_expires_at, created_at), id)
    WHERE owner IS NOT NULL;
-- The second half of the predicate keeps out turns that wait for a person: they may be many and old, and would stand at
-- the head of every cycle. A finder must say it in the same words.
CREATE INDEX agent_turns_open ON @productflow@.agent_turns (created_at, id)
    WHERE status IN ('queued', 'running', 'cancel_requested') OR (status = 'requires_input' AND answer IS NOT NULL);
CREATE INDEX agent_turns_conversation ON @productflow@.agent_turns (conversation_id, created_at);

CREATE TABLE @productflow@.agent_turn_events (
    turn_id       text NOT NULL CHECK (length(turn_id) BETWEEN 1 AND 200 AND turn_id !~ '[[:cntrl:]]'),
    seq           bigint NOT NULL CHECK (seq > 0),
    kind          text NOT NULL CHECK (kind ~ '^[a-z][a-z0-9_]*$' AND length(kind) <= 100),
    body          jsonb NOT NULL DEFAULT '{}',
    fencing_token bigint,                          -- of whoever wrote it
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (turn_id, seq),
    -- turn_… is kept for ends, so that none can slip past the index below
    CHECK (kind !~ '^turn_' OR kind IN ('turn_succeeded', 'turn_failed', 'turn_cancelled', 'turn_unknown'))
);

CREATE UNIQUE INDEX agent_turn_events_one_end ON @productflow@.agent_turn_events (turn_id)
    WHERE kind IN ('turn_succeeded', 'turn_failed', 'turn_cancelled', 'turn_unknown');

-- Outside calls of a turn of which nobody can prove that they never began, or that their result is stored. What the
-- journal began it must have done, later; only an effect that is `void` never began. An event that names no effect is
-- one of its own.
CREATE VIEW @productflow@.agent_effects_unproved AS
SELECT e.owner_id AS turn_id, e.id AS effect
FROM @productflow@.provider_effects AS e
WHERE e.domain = 'agent'
  AND e.state IN ('pending', 'unknown')
UNION
SELECT b.turn_id, coalesce(b.body ->> 'effect', 'event ' || b.seq)
FROM @productflow@.agent_turn_events AS b
WHERE b.kind = 'effect_begun'
  AND NOT EXISTS (
    SELECT FROM @productflow@.agent_turn_events AS d
    WHERE d.turn_id = b.turn_id
      AND d.seq > b.seq
      AND d.kind = 'effect_done'
      AND d.body ->> 'effect' = b.body ->> 'effect')
  AND NOT EXISTS (
    SELECT FROM @productflow@.provider_effects AS e
    WHERE e.id = b.body ->> 'effect'
      AND e.domain = 'agent'
      AND e.owner_id = b.turn_id
      AND e.state = 'void');

-- The one predicate of recovery and worker: the turns that a worker may take. Recovery sends an envelope for no other
-- turn; a worker whose turn is not here settles its envelope and does nothing. A worker takes a turn with
--   SELECT FROM agent_turns WHERE id = … FOR NO KEY UPDATE, then SELECT FROM agent_turns_needing_worker WHERE id = …
-- in that order: the second statement sees what was committed before it had the lock.
CREATE VIEW @productflow@.agent_turns_needing_worker AS
SELECT t.id, t.conversation_id, t.task_id, t.status, t.phase, t.fencing_token, t.created_at
FROM @productflow@.agent_turns AS t
WHERE t.owner IS NULL
  AND (t.status IN ('queued', 'running', 'cancel_requested') OR (t.status = 'requires_input' AND t.answer IS NOT NULL))
  AND NOT EXISTS (
    SELECT FROM @productflow@.agent_turn_events AS e
    WHERE e.turn_id = t.id
      AND e.kind IN ('turn_succeeded', 'turn_failed', 'turn_cancelled', 'turn_unknown'))
  AND NOT EXISTS (SELECT FROM @productflow@.agent_effects_unproved AS u WHERE u.turn_id = t.id);
