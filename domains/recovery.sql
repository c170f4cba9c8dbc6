-- The statements that every recovery domain shares: functions of pfsup's own schema. `@schema@` is that schema.

-- name: version
-- Tells the schema's version.
SELECT max(version) AS version FROM @schema@.schema_migrations;

-- name: alive
-- Answers, while the connection is unbroken.
SELECT 1 AS alive;

-- name: pause
-- Tells who paused the domain and why; null when nobody did.
SELECT @schema@.domain_pause(%(domain)s) AS why;

-- name: hand_out
-- Writes the ledger of what is handed out, before anything of it is judged.
SELECT FROM @schema@.hand_out(%(domain)s, %(ids)s, make_interval(secs => %(base_s)s), make_interval(secs => %(cap_s)s));

-- name: note
-- Writes down what was decided, and the audit where something was changed.
SELECT FROM @schema@.note_recovery(
    %(domain)s, %(id)s, %(decision)s, %(reason)s, %(evidence)s, make_interval(secs => %(wait_s)s), %(charged)s,
    %(dispatch_id)s, %(before)s, %(after)s);

-- name: forget
-- Lets a candidate's past no longer count.
SELECT FROM @schema@.forget_recovery(%(domain)s, %(id)s);

-- name: redispatch_key
-- Puts the business row of a key back in line, with its live envelope or a new one.
SELECT id, outcome FROM @schema@.redispatch_key(
    %(actor)s, %(aggregate_id)s, %(delivery_key)s, %(payload)s);

-- name: redispatch
-- Puts a lost run back in line, counted on the row, or says why not.
SELECT id, outcome FROM @schema@.redispatch(%(dispatch_id)s, %(options)s);

-- name: end_lost
-- Ends a lost run as dead or unknown, if it is still lost.
SELECT outcome FROM @schema@.end_lost(%(dispatch_id)s, %(token)s, %(becomes)s, %(reason)s);
