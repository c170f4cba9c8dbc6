-- The life of one delivery: an image rendered again in the size or format that a shop asked for. The application
-- inserts the row, `queued`, and stages 'delivery:<id>' in the same transaction. A worker makes it `running` under an
-- attempt of its own and says `progress_at` as it goes; it ends it only while the row is still running under that
-- attempt: `succeeded`, `failed`, or `cancelled` when a person wished so. Rendering asks nobody outside and gives the
-- same bytes every time, so a run that went silent is simply started again (recovery: delivery); there is no `unknown`
-- here. is_retryable = false: no machine touches the row again.
--
-- In every table of this schema. `@productflow@` and `@schema@` (pfsup's own) are replaced by the loader with checked
-- names. What must not be is a CHECK; what goes wrong in life must be storable: null times, attempts and phases, phases
-- that nobody knows, children whose parent is gone. Hence no foreign keys, and phases are free text: recovery judges
-- what it finds, and what it cannot place it does not run again. All times are the database's clock. Autovacuum: dead
-- rows lie at the head of the index that recovery walks, so tables that churn are vacuumed early.

CREATE TABLE @productflow@.delivery_jobs (
    id           text PRIMARY KEY DEFAULT gen_random_uuid()::text
                 CHECK (length(id) BETWEEN 1 AND 200 AND id !~ '[[:cntrl:]]'),
    status       text NOT NULL DEFAULT 'queued'
                 CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    is_retryable boolean NOT NULL DEFAULT true,
    request      jsonb,
    result       jsonb,                            -- where the rendered file is
    attempt_id   text CHECK (length(attempt_id) BETWEEN 1 AND 200),
    phase        text CHECK (length(phase) <= 100),
    error        text CHECK (length(error) <= 2000),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at   timestamptz,
    progress_at  timestamptz,                      -- the last sign of life of a run
    finished_at  timestamptz,
    CHECK (finished_at IS NULL OR status NOT IN ('queued', 'running'))
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- Recovery walks this, oldest first. progress_at is in it, so a sign of life is no HOT update: workers give one a
-- phase.
CREATE INDEX delivery_jobs_open ON @productflow@.delivery_jobs (coalesce(progress_at, started_at, created_at), id)
    WHERE status IN ('queued', 'running') AND is_retryable;
