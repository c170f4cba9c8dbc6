-- The life of one envelope. An application calls stage() in its own transaction: a row appears, `pending`.
-- dispatch claims it (a lease on the pending row, nothing else changes), writes an entry to the queue's stream
-- and marks it `sent`. A worker that reads the entry calls begin_work(): `running`, under a lease of the worker's
-- own. settle() ends it (`consumed`, `rejected`, `dead`, `unknown`) or gives it back (`pending`, later). A person
-- ends `dead`, `unknown` and `held`. Every write after the first is guarded by the token of whoever holds the row.
--
-- `@schema@` is replaced by the loader with the configured schema name, checked against ^[a-z_][a-z0-9_]*$.

CREATE TABLE @schema@.meta (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    installation uuid NOT NULL DEFAULT gen_random_uuid(),
    epoch        integer NOT NULL DEFAULT 1 CHECK (epoch > 0),
    limits       jsonb NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO @schema@.meta DEFAULT VALUES;

-- Policy that SQL must know, written from [actors.NAME] by the supervisor; an actor without a row has the defaults.
CREATE TABLE @schema@.actors (
    name         text PRIMARY KEY CHECK (name ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,127}$'),
    queue        text CHECK (queue ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,127}$'),
    completion   text NOT NULL DEFAULT 'worker' CHECK (completion IN ('worker', 'handover')),
    max_attempts integer NOT NULL DEFAULT 20 CHECK (max_attempts > 0),
    retry_base   interval NOT NULL DEFAULT '2 seconds' CHECK (retry_base > interval '0'),
    retry_cap    interval NOT NULL DEFAULT '1 hour' CHECK (retry_cap >= retry_base),
    lease        interval NOT NULL DEFAULT '60 seconds' CHECK (lease BETWEEN interval '1 second' AND interval '1 day'),
    max_run      interval NOT NULL DEFAULT '1 hour' CHECK (max_run > interval '0'),
    on_lost      text NOT NULL DEFAULT 'unknown' CHECK (on_lost IN ('unknown', 'redispatch')),
    updated_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE @schema@.async_dispatches (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    actor            text NOT NULL,
    queue            text NOT NULL,
    aggregate_id     text NOT NULL,
    delivery_key     text,
    tenant           text,
    payload          jsonb,
    headers          jsonb NOT NULL DEFAULT '{}',
    status           text NOT NULL DEFAULT 'pending',
    available_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    staged_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    completion       text NOT NULL DEFAULT 'worker',
    lease_token      uuid,
    lease_expires_at timestamptz,
    claimed_by       text,                         -- <boot_id>/<generation> of the dispatcher that holds the claim
    send_attempts    integer NOT NULL DEFAULT 0,   -- sends that failed for this row alone
    deliveries       integer NOT NULL DEFAULT 0,   -- entries written
    attempts         integer NOT NULL DEFAULT 0,   -- worker runs that failed
    max_attempts     integer NOT NULL DEFAULT 20,
    recoveries       integer NOT NULL DEFAULT 0,   -- takings back from a worker that was lost
    sent_at          timestamptz,
    sink_ref         text,                         -- stream and entry id; a past delivery's until the next mark
    started_at       timestamptz,
    deadline_at      timestamptz,
    worker           text,
    settled_token    uuid,                         -- the run that settled last: its same settle() again is `already`
    effect           text NOT NULL DEFAULT 'none',
    check_at         timestamptz,                  -- when envelope recovery looks next (sent and running rows)
    finished_at      timestamptz,
    last_error       text,
    payload_at       timestamptz                   -- when the payload was staged, where a wish brought it; else staged_at
) WITH (
    -- Claim, beat and effect are HOT updates when the page has room: with 70 half of all updates are, and an envelope's
    -- life writes 2.6 kB of WAL; at 100 it writes 4.2 kB and the heap grows 2.6-fold.
    fillfactor = 70,
    -- A queue's dead rows lie at the head, where every claim reads: vacuum at 1 % dead, without pausing.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05,
    -- Cutting off the file's empty end takes an exclusive lock; dispatch would stand behind it.
    vacuum_truncate = off
);

-- What each status may look like. One function behind one CHECK: twelve single CHECKs cost 34 us a write. It takes the
-- whole row: a CHECK's expression is read and prepared anew for every statement, which costs 12 us with 21 arguments and
-- 2 with one. (Its price: an update of a row whose payload lies outside the page reads the payload once.)
-- PL/pgSQL, because a SQL-language body is planned at every call before PostgreSQL 18. No SET search_path: it would be
-- set up anew for every statement (2 us); whoever writes rows runs inside a function of ours that pinned it, or is the
-- owner. A length beside a plain * costs 0.8 us, {0,127} in the pattern 2.6. IF and not one CASE: an expression is
-- prepared once a transaction, so only the branch that is taken is paid for (one CASE for all: 14 us more).
CREATE FUNCTION @schema@.row_is_legal(d @schema@.async_dispatches) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF (d.actor ~ '^[A-Za-z_][A-Za-z0-9_.-]*$' AND length(d.actor) <= 128
            AND (d.queue = d.actor OR (d.queue ~ '^[A-Za-z_][A-Za-z0-9_.-]*$' AND length(d.queue) <= 128))
            AND length(d.aggregate_id) BETWEEN 1 AND 200 AND d.aggregate_id !~ '[[:cntrl:]]'
            AND (d.delivery_key IS NULL OR (length(d.delivery_key) BETWEEN 1 AND 400 AND d.delivery_key !~ '[[:cntrl:]]'))
            AND (d.tenant IS NULL OR (length(d.tenant) BETWEEN 1 AND 200 AND d.tenant !~ '[[:cntrl:]]'))
            AND (d.payload IS NULL OR pg_column_size(d.payload) <= 262144)
            AND jsonb_typeof(d.headers) = 'object' AND pg_column_size(d.headers) <= 8192
            AND (d.last_error IS NULL OR length(d.last_error) <= 2000)
            AND least(d.send_attempts, d.deliveries, d.attempts, d.max_attempts - 1, d.recoveries) >= 0
            AND d.completion IN ('worker', 'handover') AND d.effect IN ('none', 'begun', 'done')) IS NOT TRUE THEN
        RETURN false;
    END IF;
    -- Intent. Either free, or wholly claimed by a dispatcher. What a past run left is cleared, but for an effect that is done.
    IF d.status = 'pending' THEN
        RETURN d.effect <> 'begun'
            AND num_nulls(d.lease_token, d.lease_expires_at, d.claimed_by) IN (0, 3)
            AND num_nonnulls(d.sent_at, d.started_at, d.deadline_at, d.worker, d.check_at, d.finished_at) = 0;
    ELSIF d.status = 'sent' THEN
        RETURN d.completion = 'worker' AND d.effect <> 'begun' AND d.sent_at IS NOT NULL
            AND num_nonnulls(d.lease_token, d.lease_expires_at, d.claimed_by, d.started_at, d.deadline_at, d.worker,
                             d.finished_at) = 0;
    ELSIF d.status = 'running' THEN
        RETURN d.completion = 'worker'
            AND num_nulls(d.lease_token, d.lease_expires_at, d.sent_at, d.started_at, d.deadline_at, d.worker) = 0
            AND num_nonnulls(d.claimed_by, d.finished_at) = 0;
    ELSIF d.status = 'held' THEN
        RETURN num_nonnulls(d.lease_token, d.lease_expires_at, d.claimed_by, d.started_at, d.deadline_at, d.worker,
                            d.check_at, d.finished_at) = 0;
    ELSIF d.status = 'consumed' AND (d.effect = 'begun' OR d.sent_at IS NULL) THEN
        RETURN false;
    END IF;
    -- Ends. A run's token stays, so that the same settle() again is answered `already`.
    RETURN d.status IN ('consumed', 'rejected', 'cancelled', 'dead', 'unknown')
        AND d.finished_at IS NOT NULL
        AND num_nonnulls(d.lease_expires_at, d.claimed_by, d.check_at) = 0;
END $$;
REVOKE ALL ON FUNCTION @schema@.row_is_legal(@schema@.async_dispatches) FROM PUBLIC;
ALTER TABLE @schema@.async_dispatches
    ADD CONSTRAINT row_is_legal CHECK (@schema@.row_is_legal(async_dispatches));

-- The article's order (available_at, id) within a queue, one partial index for each state that is scanned. Neither the
-- lease nor effect nor worker may enter an index: claim, beat and effect would no longer be HOT (HOT 50 % -> 23 %).
CREATE INDEX async_dispatches_due ON @schema@.async_dispatches (queue, available_at, id) WHERE status = 'pending';
CREATE INDEX async_dispatches_check ON @schema@.async_dispatches (check_at, id) WHERE status IN ('sent', 'running');
CREATE INDEX async_dispatches_person ON @schema@.async_dispatches (status, id) WHERE status IN ('held', 'dead', 'unknown');
CREATE UNIQUE INDEX async_dispatches_live_key ON @schema@.async_dispatches (delivery_key)
    WHERE delivery_key IS NOT NULL AND status IN ('pending', 'held', 'sent', 'running', 'dead', 'unknown');

-- Wishes for a run after the present one: stage() on a live key writes here and takes no lock on the envelope.
CREATE TABLE @schema@.restaged (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    delivery_key text NOT NULL,
    actor        text NOT NULL,
    aggregate_id text NOT NULL,
    payload      jsonb,
    options      jsonb NOT NULL DEFAULT '{}',
    staged_at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE INDEX restaged_key ON @schema@.restaged (delivery_key, id);

-- Outside effects (a provider call): begun is persisted before the call, done with its result.
CREATE TABLE @schema@.dispatch_effects (
    dispatch_id bigint NOT NULL REFERENCES @schema@.async_dispatches ON DELETE CASCADE,
    name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 100 AND name !~ '[[:cntrl:]]'),
    state       text NOT NULL CHECK (state IN ('begun', 'done', 'void', 'unknown')),
    ref         text CHECK (length(ref) <= 400 AND ref !~ '[[:cntrl:]]'),
    attempt     integer NOT NULL CHECK (attempt > 0),
    begun_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at  timestamptz,
    PRIMARY KEY (dispatch_id, name)
);

CREATE TABLE @schema@.recovery_ledger (
    domain        text NOT NULL CHECK (length(domain) BETWEEN 1 AND 128),
    candidate_id  text NOT NULL CHECK (length(candidate_id) BETWEEN 1 AND 400),
    checks        integer NOT NULL DEFAULT 0,
    recoveries    integer NOT NULL DEFAULT 0,
    next_check_at timestamptz NOT NULL,
    last_decision text,
    last_reason   text,
    evidence      jsonb,
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (domain, candidate_id)
);

-- The straight path writes nothing here.
CREATE TABLE @schema@.audit_log (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind        text NOT NULL CHECK (kind IN ('attempt', 'recovery', 'operator', 'system')),
    who         text NOT NULL,
    domain      text,
    subject     text NOT NULL,             -- an envelope's id, or domain:candidate
    dispatch_id bigint,
    action      text NOT NULL,
    before      text,
    after       text,
    reason      text,
    evidence    jsonb
);
CREATE INDEX audit_log_dispatch ON @schema@.audit_log (dispatch_id, id) WHERE dispatch_id IS NOT NULL;

-- Pauses, cluster-wide. `until` null: until a person resumes.
CREATE TABLE @schema@.controls (
    kind       text NOT NULL CHECK (kind IN ('actor', 'queue', 'tenant', 'domain')),
    name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 200 AND name !~ '[[:cntrl:]]'),
    who        text NOT NULL,
    why        text NOT NULL,
    until      timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, name)
);

CREATE TABLE @schema@.instances (
    boot_id    uuid PRIMARY KEY,
    name       text NOT NULL,
    host       text NOT NULL,
    pid        integer NOT NULL,
    version    text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
