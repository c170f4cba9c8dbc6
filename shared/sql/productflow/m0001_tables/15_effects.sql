-- The life of one outside call, the same in every domain that has any. Before the call, in the transaction that checks
-- the worker's fence, a row says that it will be made: `pending`. With the stored result, in one transaction, it
-- becomes `applied`. A call that is proved never to have begun is `void`. Whatever cannot be proved is `unknown` and
-- stays so, even if the late worker comes back with a result. A row proves an intent; that a result exists only the
-- result proves: for images the rows of image_candidates, whatever this row or a counter says.
--
-- owner_id is the id of the row the call was made for: image_tasks, local_edit_tasks, workflow_node_runs, agent_turns.
-- attempt_id is that row's attempt at the time; an agent's turn, which has none, writes its fencing_token here. The
-- call is to yield `count` results, numbered from first_index (the first of all is 0).

CREATE TABLE @productflow@.provider_effects (
    id          text PRIMARY KEY DEFAULT gen_random_uuid()::text
                CHECK (length(id) BETWEEN 1 AND 200 AND id !~ '[[:cntrl:]]'),
    domain      text NOT NULL CHECK (domain IN ('image_session', 'local_edit', 'workflow', 'agent')),
    owner_id    text NOT NULL CHECK (length(owner_id) BETWEEN 1 AND 200 AND owner_id !~ '[[:cntrl:]]'),
    attempt_id  text CHECK (length(attempt_id) BETWEEN 1 AND 200),
    first_index integer NOT NULL DEFAULT 0 CHECK (first_index >= 0),
    count       integer NOT NULL DEFAULT 1 CHECK (count > 0),
    state       text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'applied', 'unknown', 'void')),
    detail      text CHECK (length(detail) <= 2000),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at  timestamptz,
    CHECK (state <> 'pending' OR settled_at IS NULL)
) WITH (
    fillfactor = 70,  -- state is in no index: settling is a HOT update while the page has room
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- Not partial: an owner has few effects, every question names the owner, and a predicate could be missed by one of
-- them.
CREATE INDEX provider_effects_owner ON @productflow@.provider_effects (domain, owner_id, first_index);
