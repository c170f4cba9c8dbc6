-- The read contract. No payload, and no token: who holds a token may write.
-- The views run with the rights of the schema's owner, so reading them needs nothing on the tables.

CREATE VIEW @schema@.dispatches AS
SELECT
    d.id, d.actor, d.queue, d.aggregate_id, d.delivery_key, d.tenant, d.headers, d.status, d.available_at, d.staged_at,
    d.completion, d.lease_expires_at, d.claimed_by, d.send_attempts, d.deliveries, d.attempts, d.max_attempts, d.recoveries,
    d.sent_at, d.sink_ref, d.started_at, d.deadline_at, d.worker, d.effect, d.check_at, d.finished_at, d.last_error
FROM @schema@.async_dispatches AS d;

-- What has not ended, by queue, tenant and status. `oldest` is the earliest staged_at: a retry moves available_at.
CREATE VIEW @schema@.backlog AS
SELECT d.queue, d.tenant, d.status, count(*) AS count, min(d.staged_at) AS oldest
FROM @schema@.async_dispatches AS d
WHERE d.status IN ('pending', 'held', 'sent', 'running', 'dead', 'unknown')
GROUP BY d.queue, d.tenant, d.status;

CREATE VIEW @schema@.audit AS
SELECT
    a.id, a.at, a.kind, a.who, a.domain, a.subject, a.dispatch_id, a.action, a.before, a.after, a.reason, a.evidence
FROM @schema@.audit_log AS a;
