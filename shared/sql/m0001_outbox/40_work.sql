-- The life of a run. A worker reads an entry and calls begin_work(): `go` and a token, or the reason why not. While it
-- works it calls beat(), so that nobody takes the row for lost. Around an outside call it calls effect(): `begun` is
-- stored before the call, `done` with its result. settle() ends the run, best in the transaction that stores the result.
-- Every write after begin_work() needs the token: a worker that lost the row changes nothing and is told (PF412), and
-- the transaction that carried its result is lost with it. report_late() then leaves its claim for a person.
--
-- Order of locks: business rows first, settle() last. begin_work() and beat() never wait for a row; effect() and
-- settle() wait for one row, at most lock_timeout.

-- begin_work: let one worker in, or say why not and what becomes of its message. Always one row.
--   verdict    meaning                                                    the message
--   go         the row is running under `token`                           keep it until settle(), then end it
--   stale      pending without a claim, or held: it will be sent anew     end it (XACK + XDEL)
--   taken      another run has the row                                    end it; if that run dies, recovery sends anew
--   ended      the row is finished                                        end it
--   paused     actor, queue or tenant is paused; the row is pending again end it; resume sends it anew
--   busy       somebody locks the row this moment; nothing was changed    try again soon
--   foreign    another installation, epoch or actor's entry               leave it to its owner
--   not_found  there is no such row                                       end it
-- A row is taken up when it is sent, or pending under a claim: the message can be faster than the mark. The delivery is
-- then counted here, once: the mark looks for its claim and does not find it any more.
-- lease: 1 s to 1 day; null = the actor's. options: source (the entry's; '<installation>/<epoch>'), sink_ref.
CREATE FUNCTION @schema@.begin_work(
    id bigint, actor text, worker text, lease interval DEFAULT NULL, options jsonb DEFAULT '{}'
) RETURNS TABLE (
    verdict text, token uuid, aggregate_id text, payload jsonb, headers jsonb, tenant text, attempt integer,
    max_attempts integer, deliveries integer, recoveries integer, effect text, effect_ref text, deadline_at timestamptz
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r          @schema@.async_dispatches%ROWTYPE;
    lasts      interval;
    may_run    interval;
    wish       record;
    at         timestamptz;
    overtook   boolean;
    came_as    text;
BEGIN
    IF begin_work.id IS NULL OR begin_work.actor IS NULL OR begin_work.worker IS NULL
       OR length(begin_work.worker) NOT BETWEEN 1 AND 200 OR begin_work.worker ~ '[[:cntrl:]]' THEN
        PERFORM @schema@.refuse('PF400', 'cannot begin: id, actor and worker are needed, worker with 1 to 200 characters',
                                'pass the entry''s dispatch_id and actor, and a name of this worker');
    END IF;
    IF begin_work.lease NOT BETWEEN interval '1 second' AND interval '1 day' THEN
        PERFORM @schema@.refuse('PF400', format('cannot begin dispatch %s: a lease of %s is not 1 second to 1 day',
                                                begin_work.id, begin_work.lease));
    END IF;
    IF begin_work.options IS NULL OR jsonb_typeof(begin_work.options) <> 'object'
       OR begin_work.options - ARRAY['source', 'sink_ref'] <> '{}' THEN
        PERFORM @schema@.check_options('begin', begin_work.options, 'source', 'sink_ref');
    END IF;
    IF length(begin_work.options->>'sink_ref') > 400 OR begin_work.options->>'sink_ref' ~ '[[:cntrl:]]' THEN
        PERFORM @schema@.refuse('PF400', format('cannot begin dispatch %s: sink_ref is not allowed', begin_work.id),
                                'wanted: the stream and the entry''s id, at most 400 characters');
    END IF;

    IF begin_work.options->>'source' IS NOT NULL AND NOT EXISTS (
        SELECT FROM @schema@.meta m
        WHERE m.installation::text || '/' || m.epoch = begin_work.options->>'source') THEN
        verdict := 'foreign';
        RETURN NEXT;
        RETURN;
    END IF;

    SELECT d.* INTO r
    FROM @schema@.async_dispatches d
    WHERE d.id = begin_work.id
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        verdict := CASE WHEN EXISTS (SELECT FROM @schema@.async_dispatches d WHERE d.id = begin_work.id)
                        THEN 'busy' ELSE 'not_found' END;
        RETURN NEXT;
        RETURN;
    END IF;

    verdict := CASE
        WHEN r.actor <> begin_work.actor THEN 'foreign'
        WHEN r.status = 'running' THEN 'taken'
        WHEN r.status = 'held' OR (r.status = 'pending' AND r.lease_token IS NULL) THEN 'stale'
        WHEN r.status IN ('pending', 'sent') THEN 'go'
        ELSE 'ended'
    END;
    IF verdict <> 'go' THEN
        RETURN NEXT;
        RETURN;
    END IF;
    IF r.completion = 'handover' THEN
        PERFORM @schema@.refuse('PF410', format('cannot begin dispatch %s: actor %s ends with the hand-over, its consumer'
                                                || ' never begins', r.id, r.actor),
                                format('set completion = "worker" in [actors.%s]', r.actor));
    END IF;

    at := clock_timestamp();
    overtook := r.status = 'pending';
    -- A pending row still shows a past delivery's entry, a sent row its own.
    came_as := CASE WHEN overtook THEN coalesce(begin_work.options->>'sink_ref', r.sink_ref)
                    ELSE coalesce(r.sink_ref, begin_work.options->>'sink_ref') END;

    IF EXISTS (SELECT FROM @schema@.controls c
               WHERE ((c.kind = 'actor' AND c.name = r.actor) OR (c.kind = 'queue' AND c.name = r.queue)
                      OR (c.kind = 'tenant' AND c.name = r.tenant))
                 AND (c.until IS NULL OR c.until > at)) THEN
        -- Back in line, uncharged: a message that waited in the worker's hand would spin, a dropped one be lost.
        UPDATE @schema@.async_dispatches d
        SET status = 'pending', lease_token = NULL, lease_expires_at = NULL, claimed_by = NULL, sent_at = NULL,
            check_at = NULL, sink_ref = came_as, deliveries = d.deliveries + overtook::integer
        WHERE d.id = r.id;
        verdict := 'paused';
        RETURN NEXT;
        RETURN;
    END IF;

    SELECT a.lease, a.max_run INTO lasts, may_run FROM @schema@.actors a WHERE a.name = r.actor;
    lasts := coalesce(begin_work.lease, lasts, interval '60 seconds');
    may_run := coalesce(may_run, interval '1 hour');

    UPDATE @schema@.async_dispatches d
    SET status = 'running',
        lease_token = gen_random_uuid(),
        lease_expires_at = at + lasts,
        claimed_by = NULL,
        deliveries = d.deliveries + overtook::integer,
        sent_at = coalesce(d.sent_at, at),
        sink_ref = came_as,
        started_at = at,
        deadline_at = at + may_run,
        worker = begin_work.worker,
        check_at = at + lasts
    WHERE d.id = r.id
    RETURNING d.* INTO r;

    -- The wishes for a later run that this run fulfils: it begins after their commit. A statement of its own after the
    -- UPDATE, because its snapshot must be younger. Not when an effect is done already: this run skips the call, so a
    -- wish staged since then needs a run of its own.
    IF r.delivery_key IS NOT NULL AND r.effect = 'none' THEN
        SELECT w.* INTO wish FROM @schema@.take_wishes(r.delivery_key) w;
        -- The run that stands for the newest wish works with what that wish brought, unless what it has is newer: a wish
        -- can commit long after it was staged, when the next envelope of its key, staged later, waits already.
        IF wish.any_taken AND wish.staged_at > coalesce(r.payload_at, r.staged_at) THEN
            UPDATE @schema@.async_dispatches d
            SET payload = wish.payload, headers = coalesce(wish.headers, d.headers), payload_at = wish.staged_at
            WHERE d.id = r.id
            RETURNING d.payload, d.headers INTO r.payload, r.headers;
        END IF;
    END IF;

    IF r.effect <> 'none' THEN
        SELECT e.ref INTO begin_work.effect_ref
        FROM @schema@.dispatch_effects e
        WHERE e.dispatch_id = r.id AND e.state = 'done'
        ORDER BY e.name = 'main' DESC, e.settled_at DESC
        LIMIT 1;
    END IF;
    token := r.lease_token;
    aggregate_id := r.aggregate_id;
    payload := r.payload;
    headers := r.headers;
    tenant := r.tenant;
    attempt := r.attempts + 1;
    max_attempts := r.max_attempts;
    deliveries := r.deliveries;
    recoveries := r.recoveries;
    effect := r.effect;
    deadline_at := r.deadline_at;
    RETURN NEXT;
END $$;

-- beat: keep the row for `lease` more, from now. Also revives a lease that ended while nobody took the row.
--   ok        held until lease_expires_at (not moved while somebody locks the row, so look again soon)
--   late      the row is no longer this run's: stop
--   cancel    a person ended the row: stop
--   deadline  the actor's max_run is over: stop; the lease is not prolonged
CREATE FUNCTION @schema@.beat(id bigint, token uuid, lease interval DEFAULT NULL)
RETURNS TABLE (verdict text, lease_expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r record;
BEGIN
    IF beat.lease NOT BETWEEN interval '1 second' AND interval '1 day' THEN
        PERFORM @schema@.refuse('PF400', format('cannot beat for dispatch %s: a lease of %s is not 1 second to 1 day',
                                                beat.id, beat.lease));
    END IF;
    UPDATE @schema@.async_dispatches d
    SET lease_expires_at = clock_timestamp() + coalesce(
            beat.lease, (SELECT a.lease FROM @schema@.actors a WHERE a.name = d.actor), interval '60 seconds')
    WHERE d.id = (SELECT x.id FROM @schema@.async_dispatches x
                  WHERE x.id = beat.id
                    AND x.lease_token = beat.token
                    AND x.status = 'running'
                    AND x.deadline_at > clock_timestamp()
                  FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING d.lease_expires_at INTO beat.lease_expires_at;
    IF FOUND THEN
        verdict := 'ok';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT d.status, d.lease_expires_at, d.deadline_at INTO r
    FROM @schema@.async_dispatches d
    WHERE d.id = beat.id AND d.lease_token = beat.token;
    verdict := CASE
        WHEN r.status = 'running' AND r.deadline_at > clock_timestamp() THEN 'ok'
        WHEN r.status = 'running' THEN 'deadline'
        WHEN r.status = 'cancelled' THEN 'cancel'
        ELSE 'late'
    END;
    beat.lease_expires_at := r.lease_expires_at;
    RETURN NEXT;
END $$;

-- Raise PF412 for a worker that came too late. Its transaction, and the result in it, are lost: that is the point.
CREATE FUNCTION @schema@.refuse_late(id bigint, what text, status text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @schema@.refuse(
        'PF412',
        format('cannot %s of dispatch %s: this run no longer holds it, it is %s', what, id, status),
        'roll back; report_late() in a transaction of its own leaves the claim for the person who looks into it');
END $$;

-- What a crash of the server must not undo: a commit with synchronous_commit = off may be lost for up to 0.6 s. By
-- set_config(…, true), because a function's SET clause ends before the commit.
CREATE FUNCTION @schema@.commit_durably() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- effect: persist the boundary of an outside call. `begun` before it (needs a live lease), `done` when its result is
-- stored, best in the same transaction, `void` when it is proved that it did not happen.
--   ok    written
--   done  asked to begin what is done already: skip the call, effect_ref is what `done` left
-- Raises PF412 when late, PF410 for done or void without begun, or begun's opposite after done.
CREATE FUNCTION @schema@.effect(
    id bigint, token uuid, state text, name text DEFAULT 'main', ref text DEFAULT NULL
) RETURNS TABLE (verdict text, effect_ref text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r       record;
    known   record;
    overall text;
BEGIN
    IF effect.state IS NULL OR effect.state NOT IN ('begun', 'done', 'void') THEN
        PERFORM @schema@.refuse('PF400', format('cannot write an effect of dispatch %s: its state is not begun, done or void',
                                                effect.id));
    END IF;
    IF effect.name IS NULL OR length(effect.name) NOT BETWEEN 1 AND 100 OR effect.name ~ '[[:cntrl:]]'
       OR length(effect.ref) > 400 OR effect.ref ~ '[[:cntrl:]]' THEN
        PERFORM @schema@.refuse('PF400', format('cannot write an effect of dispatch %s: bad name or ref', effect.id),
                                'name has 1 to 100 characters, ref at most 400, neither has control characters');
    END IF;
    PERFORM @schema@.commit_durably();

    SELECT d.status, d.lease_token, d.lease_expires_at, d.attempts INTO r
    FROM @schema@.async_dispatches d
    WHERE d.id = effect.id
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM @schema@.refuse('PF404', format('cannot write an effect: there is no dispatch %s', effect.id));
    END IF;
    IF r.status <> 'running' OR r.lease_token IS DISTINCT FROM effect.token THEN
        PERFORM @schema@.refuse_late(effect.id, 'write an effect', r.status);
    END IF;
    IF effect.state = 'begun' AND r.lease_expires_at <= clock_timestamp() THEN
        PERFORM @schema@.refuse('PF412', format('cannot begin effect %s of dispatch %s: the lease ended at %s',
                                                effect.name, effect.id, r.lease_expires_at),
                                'call beat() first; when that says ok, begin again');
    END IF;

    SELECT e.state, e.ref INTO known
    FROM @schema@.dispatch_effects e
    WHERE e.dispatch_id = effect.id AND e.name = effect.name;
    IF effect.state = 'begun' AND known.state = 'done' THEN
        verdict := 'done';
        effect_ref := known.ref;
        RETURN NEXT;
        RETURN;
    END IF;
    IF (effect.state = 'done' AND (known.state IS NULL OR known.state NOT IN ('begun', 'done')))
       OR (effect.state = 'void' AND (known.state IS NULL OR known.state NOT IN ('begun', 'void'))) THEN
        PERFORM @schema@.refuse('PF410', format('cannot make effect %s of dispatch %s %s: it is %s', effect.name, effect.id,
                                                effect.state, coalesce(known.state, 'not begun')),
                                'write begun before the outside call');
    END IF;

    INSERT INTO @schema@.dispatch_effects AS e (dispatch_id, name, state, ref, attempt)
    VALUES (effect.id, effect.name, effect.state, effect.ref, r.attempts + 1)
    ON CONFLICT (dispatch_id, name) DO UPDATE
    SET state = excluded.state,
        ref = coalesce(excluded.ref, e.ref),
        attempt = excluded.attempt,
        begun_at = CASE WHEN excluded.state = 'begun' THEN clock_timestamp() ELSE e.begun_at END,
        settled_at = CASE WHEN excluded.state = 'begun' THEN NULL ELSE clock_timestamp() END
    RETURNING e.ref INTO effect.effect_ref;

    overall := 'begun';
    IF effect.state <> 'begun' THEN
        overall := @schema@.overall_effect(effect.id);
    END IF;
    UPDATE @schema@.async_dispatches d SET effect = overall WHERE d.id = effect.id AND d.effect <> overall;
    verdict := 'ok';
    RETURN NEXT;
END $$;

-- What a row's effects say together: begun if any is, else done if any is, else none (void and unknown do not count).
CREATE FUNCTION @schema@.overall_effect(id bigint) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((SELECT e.state FROM @schema@.dispatch_effects e
                     WHERE e.dispatch_id = overall_effect.id AND e.state IN ('begun', 'done')
                     ORDER BY e.state LIMIT 1), 'none');
END $$;

-- Seconds (a number) or an interval's text, 0 to 366 days; null where there is none.
CREATE FUNCTION @schema@.wait_of(value jsonb) RETURNS interval
LANGUAGE plpgsql STABLE AS $$
DECLARE
    wait interval;
BEGIN
    IF value IS NULL OR jsonb_typeof(value) = 'null' THEN
        RETURN NULL;
    END IF;
    BEGIN
        -- Anything else than a number or text is no interval: '[1]' alone would be read as 1 second.
        wait := CASE WHEN jsonb_typeof(value) = 'number' THEN make_interval(secs => (value #>> '{}')::double precision)
                     WHEN jsonb_typeof(value) = 'string' THEN (value #>> '{}')::interval END;
    EXCEPTION WHEN data_exception THEN
        wait := NULL;
    END;
    IF wait IS NULL OR wait NOT BETWEEN interval '0' AND interval '366 days' THEN
        PERFORM @schema@.refuse('PF400', 'cannot settle: retry_in is not a time of 0 to 366 days',
                                'seconds as a number, or an interval as text: "5 minutes"');
    END IF;
    RETURN wait;
END $$;

-- The actor's back-off after the n-th failed run: base × 2^(n - 1), at most the cap, and up to a fifth less, so that tasks
-- that failed together do not come back together.
CREATE FUNCTION @schema@.retry_wait(actor text, failed integer) RETURNS interval
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    base interval := interval '2 seconds';
    cap  interval := interval '1 hour';
    p    record;
BEGIN
    SELECT a.retry_base, a.retry_cap INTO p FROM @schema@.actors a WHERE a.name = retry_wait.actor;
    IF FOUND THEN
        base := p.retry_base;
        cap := p.retry_cap;
    END IF;
    -- In seconds: 2^30 times a long base is outside of what an interval holds.
    RETURN make_interval(secs => (1 - 0.2 * random())
        * least(extract(epoch FROM cap), extract(epoch FROM base) * power(2, least(greatest(failed - 1, 0), 30)))::float8);
END $$;

-- settle: end the run, best as the last call of the transaction that stores its result.
--   outcome    the row becomes                                                                     charged
--   consumed   consumed; an effect still begun counts as done: the worker says its result is stored
--   retry      pending at retry_in, else after the actor's back-off; at max_attempts dead;         attempts + 1
--              unknown while an effect is begun and unproved
--   snooze     pending at retry_in, else after the actor's retry_base (capacity, drain, deploy);   nothing
--              unknown while an effect is begun and unproved
--   rejected   rejected: a final no; frees the key
--   dead, unknown   as named: a person decides
-- verdict: ok | already (this run was settled so before). Raises PF412 when the row is no longer this run's, also when
-- this run ended it otherwise. error is cut to 2,000 characters and cleaned; it never makes settle fail.
-- options: retry_in (seconds, or an interval's text).
CREATE FUNCTION @schema@.settle(
    id bigint, token uuid, outcome text, error text DEFAULT NULL, options jsonb DEFAULT '{}'
) RETURNS TABLE (verdict text, status text, next_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r       @schema@.async_dispatches%ROWTYPE;
    said    text := nullif(btrim(left(regexp_replace(left(settle.error, 8000), '[[:cntrl:]]+', ' ', 'g'), 2000)), '');
    becomes text;
    wait    interval;
    failed  integer;
BEGIN
    IF settle.outcome IS NULL OR settle.outcome NOT IN ('consumed', 'retry', 'snooze', 'rejected', 'dead', 'unknown') THEN
        PERFORM @schema@.refuse('PF400', format('cannot settle dispatch %s: outcome %s is not allowed', settle.id,
                                                @schema@.shown(settle.outcome)),
                                'wanted: consumed, retry, snooze, rejected, dead or unknown');
    END IF;
    IF settle.options IS DISTINCT FROM '{}' THEN
        PERFORM @schema@.check_options('settle', settle.options, 'retry_in');
        wait := @schema@.wait_of(settle.options->'retry_in');
    END IF;
    PERFORM @schema@.commit_durably();

    SELECT d.* INTO r FROM @schema@.async_dispatches d WHERE d.id = settle.id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM @schema@.refuse('PF404', format('cannot settle: there is no dispatch %s', settle.id));
    END IF;
    IF r.status <> 'running' OR r.lease_token IS DISTINCT FROM settle.token THEN
        IF r.settled_token IS NOT DISTINCT FROM settle.token AND settle.token IS NOT NULL AND (CASE
            WHEN r.status IN ('pending', 'held', 'sent', 'running') THEN settle.outcome IN ('retry', 'snooze')
            WHEN settle.outcome IN ('retry', 'snooze') THEN r.status IN ('dead', 'unknown')
            ELSE r.status = settle.outcome END) THEN
            verdict := 'already';
            status := r.status;
            next_at := CASE WHEN r.status = 'pending' THEN r.available_at END;
            RETURN NEXT;
            RETURN;
        END IF;
        PERFORM @schema@.refuse_late(settle.id, 'settle (' || settle.outcome || ') a run', r.status);
    END IF;

    failed := r.attempts + (settle.outcome = 'retry')::integer;
    becomes := CASE
        WHEN settle.outcome NOT IN ('retry', 'snooze') THEN settle.outcome
        WHEN r.effect = 'begun' THEN 'unknown'
        WHEN settle.outcome = 'retry' AND failed >= r.max_attempts THEN 'dead'
        ELSE 'pending'
    END;
    IF becomes = 'pending' THEN
        next_at := clock_timestamp() + coalesce(wait, @schema@.retry_wait(r.actor, failed));
    END IF;
    IF r.effect = 'begun' THEN
        UPDATE @schema@.dispatch_effects e
        SET state = CASE WHEN becomes = 'consumed' THEN 'done' ELSE 'unknown' END,
            settled_at = clock_timestamp()
        WHERE e.dispatch_id = r.id AND e.state = 'begun';
    END IF;

    IF becomes = 'pending' THEN
        UPDATE @schema@.async_dispatches d
        SET status = 'pending', available_at = settle.next_at, attempts = failed, last_error = coalesce(said, d.last_error),
            settled_token = settle.token, lease_token = NULL, lease_expires_at = NULL, sent_at = NULL, started_at = NULL,
            deadline_at = NULL, worker = NULL, check_at = NULL
        WHERE d.id = r.id;
        PERFORM @schema@.wake();
    ELSE
        UPDATE @schema@.async_dispatches d
        SET status = becomes, attempts = failed, last_error = coalesce(said, d.last_error), settled_token = settle.token,
            lease_expires_at = NULL, check_at = NULL, finished_at = clock_timestamp(),
            effect = CASE WHEN becomes = 'consumed' AND d.effect = 'begun' THEN 'done' ELSE d.effect END
        WHERE d.id = r.id;
    END IF;

    -- The key is free again: what was wished for meanwhile becomes one new envelope.
    IF becomes IN ('consumed', 'rejected') AND r.delivery_key IS NOT NULL
       AND EXISTS (SELECT FROM @schema@.restaged w WHERE w.delivery_key = r.delivery_key) THEN
        PERFORM @schema@.stage_wishes(r.delivery_key);
    END IF;
    -- The straight path writes no audit, nor does a snooze: nothing happened.
    IF settle.outcome NOT IN ('consumed', 'snooze') OR becomes = 'unknown' THEN
        INSERT INTO @schema@.audit_log (kind, who, subject, dispatch_id, action, before, after, reason)
        VALUES ('attempt', r.worker, r.id::text, r.id, settle.outcome, 'running', becomes, said);
    END IF;
    verdict := 'ok';
    status := becomes;
    RETURN NEXT;
END $$;

-- report_late: after PF412 and in a transaction of its own, leave what the late worker claims for the person who decides:
-- "worker w reported consumed at t". It changes no row, so it needs no proof; at most 20 such lines a dispatch.
CREATE FUNCTION @schema@.report_late(id bigint, token uuid, worker text, claim text, error text DEFAULT NULL)
RETURNS TABLE (written boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    stands text;
BEGIN
    SELECT d.status INTO stands
    FROM @schema@.async_dispatches d
    WHERE d.id = report_late.id
      AND NOT (d.status = 'running' AND d.lease_token IS NOT DISTINCT FROM report_late.token);
    written := FOUND AND (SELECT count(*) FROM @schema@.audit_log a
                          WHERE a.dispatch_id = report_late.id AND a.action = 'late') < 20;
    IF written THEN
        INSERT INTO @schema@.audit_log (kind, who, subject, dispatch_id, action, before, after, reason, evidence)
        VALUES ('attempt', coalesce(nullif(@schema@.one_line(report_late.worker, 200), ''), 'a worker'),
                report_late.id::text, report_late.id, 'late', stands, stands,
                format('worker %s reported %s at %s', @schema@.one_line(report_late.worker, 200),
                       @schema@.one_line(report_late.claim, 40), clock_timestamp()),
                jsonb_build_object('token', report_late.token, 'error', @schema@.one_line(report_late.error, 2000)));
    END IF;
    RETURN NEXT;
END $$;

-- Text of others as one line: control characters become a space, cut to `limit` characters; null stays null.
CREATE FUNCTION @schema@.one_line(words text, size integer) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN btrim(left(regexp_replace(left(words, size * 4), '[[:cntrl:]]+', ' ', 'g'), size));
END $$;

REVOKE ALL ON FUNCTION
    @schema@.begin_work(bigint, text, text, interval, jsonb),
    @schema@.beat(bigint, uuid, interval),
    @schema@.effect(bigint, uuid, text, text, text),
    @schema@.settle(bigint, uuid, text, text, jsonb),
    @schema@.report_late(bigint, uuid, text, text, text),
    @schema@.refuse_late(bigint, text, text),
    @schema@.commit_durably(),
    @schema@.overall_effect(bigint),
    @schema@.wait_of(jsonb),
    @schema@.retry_wait(text, integer),
    @schema@.one_line(text, integer)
FROM PUBLIC;
