-- redispatch: what recovery calls, never stage(), in the transaction in which it judged the row. It puts a row that is
-- proved to be nobody's back in line, or says why not; the caller acts on the answer in the same transaction.
--   outcome    meaning                                                                              changed
--   staged     in line again: a lost run's row is pending, or an ended row got a new envelope `id`  yes
--   queued     its envelope, or another live one of its key, is pending or sent: it waits           no
--   alive      a worker holds it under a live lease, before its deadline                            no
--   taken      somebody locks the row this moment: look again later                                 no
--   uncertain  a lost run began an outside effect that nobody can prove: make it unknown            no
--   blocked    held, dead or unknown: a person first                                                no
-- An effect that is done stays: begin_work() hands it to the next run, which skips the call. on_lost = 'redispatch' of
-- the actor lets a begun one be begun again; the journal then says unknown about the lost one.
-- Whoever calls this has looked twice (a database that was away made healthy workers look lost) and owns the cap on
-- recoveries. options: lost_ref = the sink_ref of a sent row whose entry is proved to be gone (changed since: queued);
-- charge = row (default: recoveries + 1 when a run is taken back or staged anew) | none (counted elsewhere).
CREATE FUNCTION @schema@.redispatch(INOUT id bigint, options jsonb DEFAULT '{}', OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r       @schema@.async_dispatches%ROWTYPE;
    charged integer;
    on_lost text;
BEGIN
    IF redispatch.options IS DISTINCT FROM '{}' THEN
        PERFORM @schema@.check_options('redispatch', redispatch.options, 'lost_ref', 'charge');
        IF redispatch.options->>'charge' NOT IN ('row', 'none') THEN
            PERFORM @schema@.refuse('PF400', format('cannot redispatch %s: charge %s is not allowed', redispatch.id,
                                                    @schema@.shown(redispatch.options->>'charge')), 'wanted: row or none');
        END IF;
    END IF;
    charged := (coalesce(redispatch.options->>'charge', 'row') = 'row')::integer;

    SELECT d.* INTO r FROM @schema@.async_dispatches d WHERE d.id = redispatch.id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        IF NOT EXISTS (SELECT FROM @schema@.async_dispatches d WHERE d.id = redispatch.id) THEN
            PERFORM @schema@.refuse('PF404', format('cannot redispatch: there is no dispatch %s', redispatch.id));
        END IF;
        outcome := 'taken';
        RETURN;
    END IF;

    CASE r.status
    WHEN 'pending' THEN
        outcome := 'queued';
        PERFORM @schema@.wake();
    WHEN 'sent' THEN
        outcome := 'queued';
        IF redispatch.options->>'lost_ref' = r.sink_ref THEN
            outcome := 'staged';
        END IF;
    WHEN 'running' THEN
        on_lost := (SELECT a.on_lost FROM @schema@.actors a WHERE a.name = r.actor);
        outcome := CASE
            WHEN least(r.lease_expires_at, r.deadline_at) > clock_timestamp() THEN 'alive'
            WHEN r.effect = 'begun' AND on_lost IS DISTINCT FROM 'redispatch' THEN 'uncertain'
            ELSE 'staged'
        END;
    WHEN 'held', 'dead', 'unknown' THEN
        outcome := 'blocked';
    ELSE
        SELECT f.id, f.outcome INTO redispatch.id, redispatch.outcome
        FROM @schema@.stage_after(redispatch.id, charged) AS f;
        RETURN;
    END CASE;
    IF outcome = 'staged' THEN
        PERFORM @schema@.back_in_line(r.id, CASE WHEN r.status = 'running' THEN charged ELSE 0 END);
    END IF;
END $$;

-- Put a lost run or a lost message back in line; the caller holds the row's lock and has judged it. due order is kept.
CREATE FUNCTION @schema@.back_in_line(id bigint, charged integer) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    UPDATE @schema@.dispatch_effects e
    SET state = 'unknown', settled_at = clock_timestamp()
    WHERE e.dispatch_id = back_in_line.id AND e.state = 'begun';
    UPDATE @schema@.async_dispatches d
    SET status = 'pending',
        lease_token = NULL, lease_expires_at = NULL, claimed_by = NULL, sent_at = NULL, started_at = NULL,
        deadline_at = NULL, worker = NULL, check_at = NULL,
        recoveries = d.recoveries + charged,
        effect = CASE WHEN d.effect = 'begun' THEN @schema@.overall_effect(d.id) ELSE d.effect END
    WHERE d.id = back_in_line.id;
    PERFORM @schema@.wake();
END $$;

-- A new envelope like an ended one, for a business row that still wants its work; or what became of the live one of the
-- same key. The new one keeps the count of recoveries, so that a cap holds over a chain of envelopes.
CREATE FUNCTION @schema@.stage_after(INOUT id bigint, charged integer, OUT outcome text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    ended bigint := id;
    live  record;
BEGIN
    FOR turn IN 1 .. 100 LOOP
        INSERT INTO @schema@.async_dispatches AS n
            (actor, queue, aggregate_id, delivery_key, tenant, payload, headers, completion, max_attempts, recoveries,
             payload_at)
        SELECT d.actor, d.queue, d.aggregate_id, d.delivery_key, d.tenant, d.payload, d.headers, d.completion,
               d.max_attempts, d.recoveries + charged, coalesce(d.payload_at, d.staged_at)
        FROM @schema@.async_dispatches d
        WHERE d.id = ended
        ON CONFLICT (delivery_key)
            WHERE delivery_key IS NOT NULL AND status IN ('pending', 'held', 'sent', 'running', 'dead', 'unknown')
            DO NOTHING
        RETURNING n.id INTO stage_after.id;
        IF FOUND THEN
            outcome := 'staged';
            RETURN;
        END IF;
        SELECT d.id, d.status, d.lease_expires_at INTO live
        FROM @schema@.async_dispatches d
        JOIN @schema@.async_dispatches e ON e.id = ended AND e.delivery_key = d.delivery_key
        WHERE d.status IN ('pending', 'held', 'sent', 'running', 'dead', 'unknown');
        IF FOUND THEN
            id := live.id;
            outcome := CASE WHEN live.status IN ('pending', 'sent') THEN 'queued'
                            WHEN live.status = 'running' THEN 'alive'
                            ELSE 'blocked' END;
            RETURN;
        END IF;
    END LOOP;
    id := ended;
    outcome := 'taken';
END $$;

REVOKE ALL ON FUNCTION
    @schema@.redispatch(bigint, jsonb),
    @schema@.back_in_line(bigint, integer),
    @schema@.stage_after(bigint, integer)
FROM PUBLIC;
