-- The shop that the demo plays. `@schema@` is pfsup's schema; the shop's own is `shop`. Two witnesses that pfsup never
-- writes: `commits`, written in the transaction that stages; `executions`, append-only and without a unique key, written
-- by the work functions in the transaction that settles.

-- name: create
-- Make the shop's tables, and one login for each of the three programs, with pfsup's roles. Run once, as the owner.
CREATE SCHEMA shop;
CREATE TABLE shop.commits (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    actor        text NOT NULL,
    aggregate    text NOT NULL,
    version      integer NOT NULL,
    keyed        boolean NOT NULL,
    plan         text NOT NULL,
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE shop.delivery_jobs (
    id          text PRIMARY KEY,
    version     integer NOT NULL DEFAULT 1,     -- counts the wishes for a delivery
    delivered   integer NOT NULL DEFAULT 0,     -- the version that was delivered last
    progress_at timestamptz
);
CREATE TABLE shop.executions (
    aggregate   text NOT NULL,
    version     integer NOT NULL,
    dispatch_id bigint NOT NULL,
    worker      text NOT NULL,
    outcome     text NOT NULL,
    executed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE shop.asked (
    domain text NOT NULL,
    id     text PRIMARY KEY
);
CREATE ROLE shop_app LOGIN IN ROLE @schema@_stage;
CREATE ROLE shop_worker LOGIN IN ROLE @schema@_work;
CREATE ROLE shop_supervisor LOGIN IN ROLE @schema@_run;
GRANT USAGE ON SCHEMA shop TO shop_app, shop_worker;
GRANT INSERT ON shop.commits, shop.asked TO shop_app;
GRANT SELECT, INSERT, UPDATE ON shop.delivery_jobs TO shop_app;
GRANT SELECT, UPDATE ON shop.delivery_jobs TO shop_worker;
GRANT INSERT ON shop.executions TO shop_worker;

-- name: note_commit
-- The shop's own witness of an order; the caller stages in the same transaction.
INSERT INTO shop.commits (actor, aggregate, version, keyed, plan)
VALUES (%(actor)s, %(aggregate)s, %(version)s, %(keyed)s, %(plan)s);

-- name: want_delivery
-- Ask for a delivery, or for another one; returns which wish this is.
INSERT INTO shop.delivery_jobs AS j (id) VALUES (%(aggregate)s)
ON CONFLICT (id) DO UPDATE SET version = j.version + 1
RETURNING version;

-- name: deliver
-- Deliver the newest wish; returns its version.
UPDATE shop.delivery_jobs SET delivered = version, progress_at = clock_timestamp()
WHERE id = %(aggregate)s
RETURNING version;

-- name: note_execution
-- The witness of the work; the caller settles in the same transaction.
INSERT INTO shop.executions (aggregate, version, dispatch_id, worker, outcome)
VALUES (%(aggregate)s, %(version)s, %(dispatch_id)s, %(worker)s, %(outcome)s);

-- name: note_asked
-- The shop's own witness of what it asked of the product; the caller stages in the same transaction.
INSERT INTO shop.asked (domain, id) VALUES (%(domain)s, %(id)s);

-- name: asked
-- Everything that was asked of the product, and how it stands; null where the row is gone.
SELECT a.domain, a.id, coalesce(d.status, l.status, i.status, w.status, t.status) AS status
FROM shop.asked AS a
LEFT JOIN productflow.delivery_jobs AS d ON a.domain = 'delivery' AND d.id = a.id
LEFT JOIN productflow.local_edit_tasks AS l ON a.domain = 'local_edit' AND l.id = a.id
LEFT JOIN productflow.image_tasks AS i ON a.domain = 'image_session' AND i.id = a.id
LEFT JOIN productflow.workflow_runs AS w ON a.domain = 'workflow' AND w.id = a.id
LEFT JOIN productflow.agent_turns AS t ON a.domain = 'agent' AND t.id = a.id;

-- name: hollow
-- What is said to have succeeded and has no result.
SELECT 'delivery', j.id FROM productflow.delivery_jobs AS j WHERE j.status = 'succeeded' AND j.result IS NULL
UNION ALL
SELECT 'local_edit', j.id FROM productflow.local_edit_tasks AS j WHERE j.status = 'succeeded' AND j.result IS NULL
UNION ALL
SELECT 'image_session', j.id FROM productflow.image_tasks AS j
WHERE j.status = 'succeeded'
  AND j.requested_candidates > (SELECT count(*) FROM productflow.image_candidates AS c WHERE c.task_id = j.id)
UNION ALL
SELECT 'workflow', r.id FROM productflow.workflow_runs AS r
WHERE r.status = 'succeeded'
  AND EXISTS (SELECT FROM productflow.workflow_node_runs AS n WHERE n.run_id = r.id AND n.status <> 'succeeded')
UNION ALL
SELECT 'agent', t.id FROM productflow.agent_turns AS t
WHERE t.status = 'succeeded'
  AND NOT EXISTS (SELECT FROM productflow.agent_turn_events AS e
                  WHERE e.turn_id = t.id AND e.kind = 'turn_succeeded');

-- name: recovered
-- How often each domain put something in line again.
SELECT a.domain, count(*)::integer FROM @schema@.audit AS a
WHERE a.kind = 'recovery' AND a.action = 'redispatch'
GROUP BY a.domain;

-- name: unknown_orders
-- Orders whose outcome nobody can prove: a person decides.
SELECT d.aggregate_id FROM @schema@.async_dispatches AS d WHERE d.actor = 'render_image' AND d.status = 'unknown';

-- name: refuse
-- End a run with a final no, in the caller's transaction.
SELECT FROM @schema@.settle(%(id)s, %(token)s, 'rejected', 'as planned');

-- name: commits
-- Everything that the shop committed.
SELECT id, aggregate, version, keyed FROM shop.commits ORDER BY id;

-- name: executions
-- Everything that was executed.
SELECT aggregate, version, dispatch_id FROM shop.executions;

-- name: standing
-- For the display only: where the envelopes are.
SELECT
    (SELECT count(*) FROM shop.commits) AS committed,
    (SELECT count(*) FROM shop.executions) AS executed,
    count(*) AS envelopes,
    count(*) FILTER (WHERE d.status = 'pending') AS pending,
    count(*) FILTER (WHERE d.deliveries > 0) AS sent,
    count(*) FILTER (WHERE d.status = 'sent') AS waiting,
    count(*) FILTER (WHERE d.status = 'running') AS running,
    count(*) FILTER (WHERE d.status = 'consumed') AS consumed,
    count(*) FILTER (WHERE d.status = 'rejected') AS rejected,
    count(*) FILTER (WHERE d.status = 'unknown') AS unknown,
    count(*) FILTER (WHERE d.status = 'dead') AS dead,
    coalesce(sum(d.attempts), 0)::integer AS retried,
    coalesce(sum(d.recoveries), 0)::integer AS recovered,
    (SELECT count(*) FROM @schema@.restaged) AS wishes,
    (SELECT count(*) FROM productflow.delivery_jobs WHERE status IN ('queued', 'running'))
        + (SELECT count(*) FROM productflow.local_edit_tasks WHERE status IN ('queued', 'running'))
        + (SELECT count(*) FROM productflow.image_tasks WHERE status IN ('queued', 'running'))
        + (SELECT count(*) FROM productflow.workflow_runs WHERE status IN ('queued', 'running'))
        + (SELECT count(*) FROM productflow.agent_turns WHERE status IN ('queued', 'running')) AS open_rows
FROM @schema@.async_dispatches AS d;

-- name: waits
-- For the display only: what each envelope that was sent once waited, in ms. What is due later waits from then on.
SELECT
    extract(epoch FROM d.sent_at - greatest(d.staged_at, d.available_at))::float8 * 1000 AS staged_to_sent,
    extract(epoch FROM d.started_at - d.sent_at)::float8 * 1000 AS sent_to_started
FROM @schema@.async_dispatches AS d
WHERE d.sent_at IS NOT NULL AND d.started_at IS NOT NULL AND d.deliveries = 1
  AND d.staged_at > clock_timestamp() - make_interval(secs => %(last_s)s);
