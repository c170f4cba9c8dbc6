-- The envelope domain: functions of pfsup's own schema alone. `@schema@` is that schema.

-- name: find
-- Hands out what is due to be looked at and needs a judge; the last row (id null) tells what was looked at.
SELECT * FROM @schema@.find_outstanding(%(batch)s, make_interval(secs => %(grace_s)s), %(owned)s);

-- name: recheck
-- Locks the row and reads it, with how often it was sent anew; `here` false: it is locked elsewhere.
SELECT e.*, coalesce(l.recoveries, 0) AS sent_again
FROM @schema@.recheck_envelope(%(dispatch_id)s) AS e
LEFT JOIN @schema@.recovery AS l ON l.domain = %(domain)s::text AND l.candidate_id = %(id)s::text;

-- name: look_again
-- Sets when these rows are looked at next.
SELECT FROM @schema@.look_again(%(ids)s, %(waits)s);
