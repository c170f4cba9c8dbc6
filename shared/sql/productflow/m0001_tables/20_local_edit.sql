-- The life of one local edit: a provider changes a part of an image. The application inserts the row, `queued`, and
-- stages 'local_edit:<id>' with {task_id, request_hash}; a worker refuses a hash that is not the row's. It makes the
-- row `running`, phase `claimed`, writes the intent (provider_effects, `pending`) and only then calls: phases
-- provider_pending, provider_call, provider_result_received. Result, effect and `succeeded` are one transaction, and
-- only while the row runs under the same attempt. A silent run is started again from `claimed` alone (recovery:
-- local_edit); from every other phase it ends `unknown`, not retryable: the provider may have been paid.

CREATE TABLE @productflow@.local_edit_tasks (
    id           text PRIMARY KEY DEFAULT gen_random_uuid()::text
                 CHECK (length(id) BETWEEN 1 AND 200 AND id !~ '[[:cntrl:]]'),
    status       text NOT NULL DEFAULT 'queued'
                 CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'unknown')),
    is_retryable boolean NOT NULL DEFAULT true,
    request      jsonb,
    request_hash text NOT NULL CHECK (length(request_hash) BETWEEN 1 AND 200 AND request_hash !~ '[[:cntrl:]]'),
    result       jsonb,
    attempt_id   text CHECK (length(attempt_id) BETWEEN 1 AND 200),
    phase        text CHECK (length(phase) <= 100),
    provider_ref text CHECK (length(provider_ref) <= 400),
    error        text CHECK (length(error) <= 2000),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at   timestamptz,
    progress_at  timestamptz,
    finished_at  timestamptz,
    CHECK (finished_at IS NULL OR status NOT IN ('queued', 'running'))
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

CREATE INDEX local_edit_tasks_open ON @productflow@.local_edit_tasks (coalesce(progress_at, started_at, created_at), id)
    WHERE status IN ('queued', 'running') AND is_retryable;
