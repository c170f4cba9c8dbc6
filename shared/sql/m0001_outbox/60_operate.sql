-- What a person may do. Each call says who and why (`note`), is refused with PF410 when the envelope's status does not
-- allow it, and leaves one line in audit_log in the same transaction. Times are clock_timestamp() at the act.
-- From → to:   retry           dead → pending, counters at zero;  pending → due now
--              discard         pending, held, sent, dead, unknown → cancelled
--              settle_unknown  unknown (or dead, held with an unproved effect) → consumed | rejected | pending
--              resend          sent → pending, nothing charged
--              release         held → pending
-- `outcome`: done · already (it is so: nothing written).

-- Check the two things that every act needs; PF400.
CREATE FUNCTION @schema@.check_person(deed text, who text, note text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (length(btrim(who)) BETWEEN 1 AND 200 AND who !~ '[[:cntrl:]]') IS NOT TRUE THEN
        PERFORM @schema@.refuse('PF400', format('cannot %s: who %s is not allowed', deed, @schema@.shown(who)),
            'say who does this: 1 to 200 characters, no control characters');
    ELSIF (length(btrim(note)) BETWEEN 1 AND 2000) IS NOT TRUE THEN
        PERFORM @schema@.refuse('PF400', format('cannot %s: the note is missing or longer than 2000 characters', deed),
            'say why: the next person reads it in the audit');
    END IF;
END $$;
REVOKE ALL ON FUNCTION @schema@.check_person(text, text, text) FROM PUBLIC;

-- Lock and return the envelope a person means, after checking who and note; PF404 when there is none.
CREATE FUNCTION @schema@.meant_by_person(deed text, wanted bigint, who text, note text)
RETURNS @schema@.async_dispatches LANGUAGE plpgsql AS $$
DECLARE
    found_row @schema@.async_dispatches;
BEGIN
    PERFORM @schema@.check_person(deed, who, note);
    SELECT d.* INTO found_row
    FROM @schema@.async_dispatches AS d
    WHERE d.id = wanted
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM @schema@.refuse('PF404', format('cannot %s %s: there is no such envelope', deed, coalesce(wanted::text, 'null')),
            'ended envelopes are removed after [housekeeping] keep_consumed');
    END IF;
    RETURN found_row;
END $$;
REVOKE ALL ON FUNCTION @schema@.meant_by_person(text, bigint, text, text) FROM PUBLIC;

CREATE FUNCTION @schema@.refuse_person(deed text, it @schema@.async_dispatches, hint text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @schema@.refuse('PF410', format('cannot %s %s: it is %s%s', deed, it.id, it.status,
        CASE WHEN it.effect = 'begun' THEN ' with an effect begun and not proved' ELSE '' END), hint);
END $$;
REVOKE ALL ON FUNCTION @schema@.refuse_person(text, @schema@.async_dispatches, text) FROM PUBLIC;

-- One line of audit. The counters are evidence, since a retry sets them to zero; who logged in stands beside who is said.
CREATE FUNCTION @schema@.note_person(deed text, it @schema@.async_dispatches, after text, who text, note text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO @schema@.audit_log (kind, who, subject, dispatch_id, action, before, after, reason, evidence)
    VALUES ('operator', who, it.id::text, it.id, deed, it.status, after, note,
            jsonb_build_object('login', session_user, 'effect', it.effect, 'attempts', it.attempts,
                               'send_attempts', it.send_attempts, 'recoveries', it.recoveries));
END $$;
REVOKE ALL ON FUNCTION @schema@.note_person(text, @schema@.async_dispatches, text, text, text) FROM PUBLIC;

-- Make a locked envelope due now. `fresh`: as if new, with all its chances and without a past in the recovery ledger.
CREATE FUNCTION @schema@.due_again(it @schema@.async_dispatches, fresh boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE @schema@.async_dispatches AS d
    SET status = 'pending',
        available_at = clock_timestamp(),
        lease_token = NULL,
        lease_expires_at = NULL,
        claimed_by = NULL,
        sent_at = NULL,
        started_at = NULL,
        deadline_at = NULL,
        worker = NULL,
        check_at = NULL,
        finished_at = NULL,
        effect = CASE WHEN d.effect = 'begun' THEN 'none' ELSE d.effect END,
        attempts = CASE WHEN fresh THEN 0 ELSE d.attempts END,
        send_attempts = CASE WHEN fresh THEN 0 ELSE d.send_attempts END,
        recoveries = CASE WHEN fresh THEN 0 ELSE d.recoveries END
    WHERE d.id = it.id;
    IF fresh THEN
        DELETE FROM @schema@.recovery_ledger AS l
        WHERE (l.domain = 'envelope' AND l.candidate_id = it.id::text)
           OR (l.domain <> 'envelope' AND l.candidate_id = it.aggregate_id);
    END IF;
    PERFORM @schema@.wake();
END $$;
REVOKE ALL ON FUNCTION @schema@.due_again(@schema@.async_dispatches, boolean) FROM PUBLIC;

-- End a locked envelope; its key is free, so what was wished for meanwhile becomes one new envelope.
CREATE FUNCTION @schema@.end_by_person(it @schema@.async_dispatches, becomes text, effect text) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    UPDATE @schema@.async_dispatches AS d
    SET status = becomes,
        effect = end_by_person.effect,
        finished_at = clock_timestamp(),
        sent_at = CASE WHEN becomes = 'consumed' THEN coalesce(d.sent_at, clock_timestamp()) ELSE d.sent_at END,
        lease_token = NULL,
        lease_expires_at = NULL,
        claimed_by = NULL,
        check_at = NULL
    WHERE d.id = it.id;
    IF it.delivery_key IS NOT NULL THEN
        PERFORM @schema@.stage_wishes(it.delivery_key);
    END IF;
END $$;
REVOKE ALL ON FUNCTION @schema@.end_by_person(@schema@.async_dispatches, text, text) FROM PUBLIC;

-- Give a dead envelope all its chances again; make one that waits for its retry due now.
CREATE FUNCTION @schema@.retry(INOUT id bigint, who text, note text, OUT outcome text, OUT status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
DECLARE
    it @schema@.async_dispatches := @schema@.meant_by_person('retry', id, who, note);
BEGIN
    status := 'pending';
    outcome := 'done';
    IF it.status = 'dead' AND it.effect <> 'begun' THEN
        PERFORM @schema@.due_again(it, true);
    ELSIF it.status = 'pending' AND (it.available_at <= clock_timestamp() OR it.lease_expires_at > clock_timestamp()) THEN
        outcome := 'already';
        RETURN;
    ELSIF it.status = 'pending' THEN
        PERFORM @schema@.due_again(it, false);
    ELSE
        PERFORM @schema@.refuse_person('retry', it, CASE it.status
            WHEN 'held' THEN 'release it'
            WHEN 'sent' THEN 'resend it if its entry is lost'
            WHEN 'running' THEN 'a worker has it: wait for its end'
            WHEN 'unknown' THEN 'find out what happened outside, then settle_unknown(id, succeeded | failed | retry, …)'
            WHEN 'dead' THEN 'find out what happened outside, then settle_unknown(id, succeeded | failed | retry, …)'
            ELSE 'it has ended: stage it again' END);
    END IF;
    PERFORM @schema@.note_person('retry', it, 'pending', who, note);
END $$;
REVOKE ALL ON FUNCTION @schema@.retry(bigint, text, text) FROM PUBLIC;

-- Give an envelope up: cancelled, for good. A running one belongs to its worker.
CREATE FUNCTION @schema@.discard(INOUT id bigint, who text, note text, OUT outcome text, OUT status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
DECLARE
    it @schema@.async_dispatches := @schema@.meant_by_person('discard', id, who, note);
BEGIN
    status := 'cancelled';
    outcome := 'done';
    IF it.status = 'cancelled' THEN
        outcome := 'already';
        RETURN;
    ELSIF it.status NOT IN ('pending', 'held', 'sent', 'dead', 'unknown') THEN
        PERFORM @schema@.refuse_person('discard', it, CASE it.status
            WHEN 'running' THEN 'a worker has it: wait for its end'
            ELSE 'it has ended' END);
    END IF;
    PERFORM @schema@.end_by_person(it, 'cancelled', it.effect);
    PERFORM @schema@.note_person('discard', it, 'cancelled', who, note);
END $$;
REVOKE ALL ON FUNCTION @schema@.discard(bigint, text, text) FROM PUBLIC;

-- Say what became of an outside effect that nobody could prove: succeeded (→ consumed) · failed (it did not happen and is
-- given up: → rejected) · retry (it did not happen: → pending, as new).
CREATE FUNCTION @schema@.settle_unknown(INOUT id bigint, verdict text, who text, note text, OUT outcome text, OUT status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
DECLARE
    it @schema@.async_dispatches := @schema@.meant_by_person('settle', id, who, note);
BEGIN
    IF verdict NOT IN ('succeeded', 'failed', 'retry') OR verdict IS NULL THEN
        PERFORM @schema@.refuse('PF400', format('cannot settle %s: the verdict %s is not allowed', id, @schema@.shown(verdict)),
            'wanted: succeeded, failed or retry');
    END IF;
    IF NOT (it.status = 'unknown' OR (it.status IN ('dead', 'held') AND it.effect = 'begun')) THEN
        PERFORM @schema@.refuse_person('settle', it, CASE it.status
            WHEN 'dead' THEN 'retry or discard it'
            WHEN 'held' THEN 'release or discard it'
            ELSE 'only an unknown envelope is settled by a person' END);
    END IF;
    UPDATE @schema@.dispatch_effects AS e
    SET state = CASE verdict WHEN 'succeeded' THEN 'done' ELSE 'void' END,
        settled_at = clock_timestamp()
    WHERE e.dispatch_id = it.id
      AND e.state IN ('begun', 'unknown');
    outcome := 'done';
    status := CASE verdict WHEN 'succeeded' THEN 'consumed' WHEN 'failed' THEN 'rejected' ELSE 'pending' END;
    IF verdict = 'retry' THEN
        PERFORM @schema@.due_again(it, true);
    ELSE
        PERFORM @schema@.end_by_person(it, status, CASE
            WHEN it.effect <> 'begun' THEN it.effect
            WHEN verdict = 'succeeded' THEN 'done'
            ELSE 'none' END);
    END IF;
    PERFORM @schema@.note_person('settle_unknown ' || verdict, it, status, who, note);
END $$;
REVOKE ALL ON FUNCTION @schema@.settle_unknown(bigint, text, text, text) FROM PUBLIC;

-- Send an envelope again whose entry is lost. Should the entry be there after all, only one of the two gets a `go`.
CREATE FUNCTION @schema@.resend(INOUT id bigint, who text, note text, OUT outcome text, OUT status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
DECLARE
    it @schema@.async_dispatches := @schema@.meant_by_person('resend', id, who, note);
BEGIN
    status := 'pending';
    outcome := 'done';
    IF it.status = 'pending' THEN
        outcome := 'already';
        RETURN;
    ELSIF it.status <> 'sent' THEN
        PERFORM @schema@.refuse_person('resend', it, CASE it.status
            WHEN 'running' THEN 'a worker has it: wait for its end'
            WHEN 'held' THEN 'release it'
            WHEN 'dead' THEN 'retry it'
            WHEN 'unknown' THEN 'find out what happened outside, then settle_unknown(id, succeeded | failed | retry, …)'
            ELSE 'it has ended: stage it again' END);
    END IF;
    PERFORM @schema@.due_again(it, false);
    PERFORM @schema@.note_person('resend', it, 'pending', who, note);
END $$;
REVOKE ALL ON FUNCTION @schema@.resend(bigint, text, text) FROM PUBLIC;

-- Let a held envelope go.
CREATE FUNCTION @schema@.release(INOUT id bigint, who text, note text, OUT outcome text, OUT status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
DECLARE
    it @schema@.async_dispatches := @schema@.meant_by_person('release', id, who, note);
BEGIN
    status := 'pending';
    outcome := 'done';
    IF it.status = 'pending' THEN
        outcome := 'already';
        RETURN;
    ELSIF it.status <> 'held' OR it.effect = 'begun' THEN
        PERFORM @schema@.refuse_person('release', it, CASE it.status
            WHEN 'held' THEN 'find out what happened outside, then settle_unknown(id, succeeded | failed | retry, …)'
            ELSE 'only a held envelope is released' END);
    END IF;
    PERFORM @schema@.due_again(it, false);
    PERFORM @schema@.note_person('release', it, 'pending', who, note);
END $$;
REVOKE ALL ON FUNCTION @schema@.release(bigint, text, text) FROM PUBLIC;

-- Check what a pause is put on; PF400.
CREATE FUNCTION @schema@.check_control(deed text, kind text, name text, who text, note text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @schema@.check_person(deed, who, note);
    IF kind NOT IN ('actor', 'queue', 'tenant', 'domain') OR kind IS NULL THEN
        PERFORM @schema@.refuse('PF400', format('cannot %s: the kind %s is not allowed', deed, @schema@.shown(kind)),
            'wanted: actor, queue, tenant or domain');
    ELSIF (length(name) BETWEEN 1 AND 200 AND name !~ '[[:cntrl:]]') IS NOT TRUE THEN
        PERFORM @schema@.refuse('PF400', format('cannot %s: the name %s is not allowed', deed, @schema@.shown(name)),
            'wanted: 1 to 200 characters, no control characters');
    END IF;
END $$;
REVOKE ALL ON FUNCTION @schema@.check_control(text, text, text, text, text) FROM PUBLIC;

-- Pause an actor, queue, tenant or domain in the whole cluster, until a time or (null) until resume(). Nothing new of it
-- leaves; what runs is not touched. `outcome`: paused · changed (it was paused: who, why and until are the new ones).
CREATE FUNCTION @schema@.pause(
    INOUT kind text, INOUT name text, who text, note text, INOUT until timestamptz DEFAULT NULL, OUT outcome text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM @schema@.check_control('pause', kind, name, who, note);
    IF until <= clock_timestamp() OR NOT isfinite(until) THEN
        PERFORM @schema@.refuse('PF400', format('cannot pause until %s: that is not in the future', until),
            'leave it out to pause until resume');
    END IF;
    INSERT INTO @schema@.controls AS c (kind, name, who, why, until)
    VALUES (pause.kind, pause.name, pause.who, pause.note, pause.until)
    ON CONFLICT (kind, name) DO UPDATE
        SET who = excluded.who, why = excluded.why, until = excluded.until, created_at = clock_timestamp()
    RETURNING CASE WHEN c.xmax = 0 THEN 'paused' ELSE 'changed' END INTO pause.outcome;
    INSERT INTO @schema@.audit_log (kind, who, subject, action, before, after, reason, evidence)
    VALUES ('operator', pause.who, pause.kind || ':' || pause.name, 'pause',
            CASE outcome WHEN 'paused' THEN 'open' ELSE 'paused' END, 'paused', pause.note,
            jsonb_build_object('login', session_user, 'until', pause.until));
END $$;
REVOKE ALL ON FUNCTION @schema@.pause(text, text, text, text, timestamptz) FROM PUBLIC;

-- End a pause. `outcome`: resumed · already (it was not paused: nothing written).
CREATE FUNCTION @schema@.resume(INOUT kind text, INOUT name text, who text, note text, OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM @schema@.check_control('resume', kind, name, who, note);
    DELETE FROM @schema@.controls AS c
    WHERE c.kind = resume.kind
      AND c.name = resume.name;
    IF NOT FOUND THEN
        outcome := 'already';
        RETURN;
    END IF;
    outcome := 'resumed';
    INSERT INTO @schema@.audit_log (kind, who, subject, action, before, after, reason, evidence)
    VALUES ('operator', resume.who, resume.kind || ':' || resume.name, 'resume', 'paused', 'open', resume.note,
            jsonb_build_object('login', session_user));
    PERFORM @schema@.wake();
END $$;
REVOKE ALL ON FUNCTION @schema@.resume(text, text, text, text) FROM PUBLIC;
