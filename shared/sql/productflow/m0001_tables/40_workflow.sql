-- The life of one run of a graph. The application inserts the run, `queued`, with one row a node, `queued`, and stages
-- 'workflow:<run id>' if the graph has no other: one run of a graph at a time, the rest wait their turn. A worker makes
-- it `running` under lease_token until lease_expires_at, and renews that. It takes one node after another: `running`
-- under an attempt, phases claimed, prepared, then (intent in provider_effects, owner_id = the node row's id)
-- provider_call, result_received; then `succeeded`, `failed`, or `skipped`. With the last node the run ends. When the
-- lease is dead, recovery (workflow) judges each silent node by its phase: none or claimed goes back to `queued`, any
-- other ends `unknown`. It closes a run whose nodes have all ended, `unknown` if one of them is, sends out what has
-- work left, and makes the next queued run of a free graph `running`.
--
-- A node's run may be gone: no foreign key.

CREATE TABLE @productflow@.workflow_runs (
    id               text PRIMARY KEY DEFAULT gen_random_uuid()::text
                     CHECK (length(id) BETWEEN 1 AND 200 AND id !~ '[[:cntrl:]]'),
    graph_id         text NOT NULL CHECK (length(graph_id) BETWEEN 1 AND 200 AND graph_id !~ '[[:cntrl:]]'),
    status           text NOT NULL DEFAULT 'queued'
                     CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'unknown')),
    request          jsonb,
    lease_token      uuid,
    lease_expires_at timestamptz,
    error            text CHECK (length(error) <= 2000),
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at       timestamptz,
    progress_at      timestamptz,
    finished_at      timestamptz,
    CHECK (finished_at IS NULL OR status NOT IN ('queued', 'running'))
) WITH (
    fillfactor = 70,  -- the lease is in no index: renewing it is a HOT update while the page has room
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- Two, because a backlog of queued runs would else be walked on the way to the running ones.
CREATE INDEX workflow_runs_running ON @productflow@.workflow_runs (coalesce(progress_at, started_at, created_at), id)
    WHERE status = 'running';
CREATE INDEX workflow_runs_queued ON @productflow@.workflow_runs (coalesce(progress_at, started_at, created_at), id)
    WHERE status = 'queued';
CREATE UNIQUE INDEX workflow_runs_one_running ON @productflow@.workflow_runs (graph_id) WHERE status = 'running';
CREATE INDEX workflow_runs_waiting ON @productflow@.workflow_runs (graph_id, created_at, id) WHERE status = 'queued';

CREATE TABLE @productflow@.workflow_node_runs (
    id          text PRIMARY KEY DEFAULT gen_random_uuid()::text
                CHECK (length(id) BETWEEN 1 AND 200 AND id !~ '[[:cntrl:]]'),
    run_id      text NOT NULL CHECK (length(run_id) BETWEEN 1 AND 200 AND run_id !~ '[[:cntrl:]]'),
    node        text NOT NULL CHECK (length(node) BETWEEN 1 AND 200 AND node !~ '[[:cntrl:]]'),
    position    integer NOT NULL DEFAULT 0,        -- nodes are taken by (position, node)
    status      text NOT NULL DEFAULT 'queued'
                CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'unknown', 'skipped')),
    request     jsonb,
    result      jsonb,
    attempt_id  text CHECK (length(attempt_id) BETWEEN 1 AND 200),
    phase       text CHECK (length(phase) <= 100),
    error       text CHECK (length(error) <= 2000),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at  timestamptz,
    progress_at timestamptz,
    finished_at timestamptz,
    CONSTRAINT workflow_node_runs_run UNIQUE (run_id, node),  -- by run_id too: every question names the run
    CHECK (finished_at IS NULL OR status NOT IN ('queued', 'running'))
) WITH (
    fillfactor = 70,  -- neither status nor progress is in an index: a node's whole life is HOT updates
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
