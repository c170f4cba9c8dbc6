-- The life of one image session: a provider makes requested_candidates images, one call or several after another. The
-- application inserts the task, `queued`, and stages 'image_session:<id>'. A worker makes it `running` under
-- active_attempt_id, phase `running`. For each call: intent first (provider_effects, `pending`, its range of indexes)
-- and active_candidate_index in one transaction; then the call; then, in one transaction, the images
-- (image_candidates), the effect `applied`, completed_candidates, active_candidate_index null, phase `candidate_saved`.
-- The last one ends it. A silent run goes on with the next image only where all of that is proved, else it ends
-- `unknown`, not retryable (recovery: image_session).
--
-- completed_candidates is what a page shows. It proves nothing: an image exists if its row in image_candidates does.
-- Candidates are numbered from 0. A candidate's task may be gone: no foreign key.

CREATE TABLE @productflow@.image_tasks (
    id                     text PRIMARY KEY DEFAULT gen_random_uuid()::text
                           CHECK (length(id) BETWEEN 1 AND 200 AND id !~ '[[:cntrl:]]'),
    status                 text NOT NULL DEFAULT 'queued'
                           CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'unknown')),
    is_retryable           boolean NOT NULL DEFAULT true,
    request                jsonb,
    requested_candidates   integer NOT NULL DEFAULT 1 CHECK (requested_candidates > 0),
    completed_candidates   integer NOT NULL DEFAULT 0 CHECK (completed_candidates >= 0),
    active_attempt_id      text CHECK (length(active_attempt_id) BETWEEN 1 AND 200),
    active_candidate_index integer CHECK (active_candidate_index >= 0),
    phase                  text CHECK (length(phase) <= 100),
    provider_ref           text CHECK (length(provider_ref) <= 400),
    error                  text CHECK (length(error) <= 2000),
    created_at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at             timestamptz,
    progress_at            timestamptz,
    finished_at            timestamptz,
    CHECK (finished_at IS NULL OR status NOT IN ('queued', 'running'))
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

CREATE INDEX image_tasks_open ON @productflow@.image_tasks (coalesce(progress_at, started_at, created_at), id)
    WHERE status IN ('queued', 'running') AND is_retryable;

CREATE TABLE @productflow@.image_candidates (
    task_id         text NOT NULL CHECK (length(task_id) BETWEEN 1 AND 200 AND task_id !~ '[[:cntrl:]]'),
    candidate_index integer NOT NULL CHECK (candidate_index >= 0),
    ref             text NOT NULL CHECK (length(ref) BETWEEN 1 AND 2000),  -- where the image is
    stored_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (task_id, candidate_index)
);
