-- Runs whose worker is gone. A business domain judges its row and the envelope together, in one transaction: the row is
-- locked first, the envelope by one of these functions, which look again under the lock and answer what they found.

-- The live envelopes of business rows: at most one for a key, by the index of live keys. For finders and re-reads.
CREATE VIEW @schema@.live_envelopes AS
SELECT d.id, d.actor, d.aggregate_id, d.delivery_key, d.status, d.lease_token, d.lease_expires_at, d.deadline_at,
       least(d.lease_expires_at, d.deadline_at) AS alive_until, d.effect, d.recoveries, d.worker, d.last_error,
       coalesce((SELECT a.on_lost FROM @schema@.actors a WHERE a.name = d.actor), 'unknown') AS on_lost
FROM @schema@.async_dispatches AS d
WHERE d.delivery_key IS NOT NULL AND d.status IN ('pending', 'held', 'sent', 'running', 'dead', 'unknown');

-- What is sent or running, by the time at which somebody is to look at it: for runs whose business row is over.
CREATE VIEW @schema@.outstanding AS
SELECT d.id, d.status, d.actor, d.aggregate_id, d.check_at, d.lease_token, d.lease_expires_at,
       least(d.lease_expires_at, d.deadline_at) AS alive_until
FROM @schema@.async_dispatches AS d
WHERE d.status IN ('sent', 'running');

-- End a lost run as `becomes`: dead or unknown; consumed or cancelled where its business row ended so, which frees its
-- key. Guarded by the run's token, and by a lease that has ended: a worker that beat meanwhile keeps its row.
--   ended   it is `becomes` now; an effect that was begun is unknown
--   alive   its worker holds it under a live lease; nothing was changed
--   moved   it is another run, or none: settled, taken back, ended by a person; nothing was changed
--   taken   somebody locks the row this moment: look again later
CREATE FUNCTION @schema@.end_lost(id bigint, token uuid, becomes text, reason text, OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    r record;
BEGIN
    IF end_lost.becomes IS NULL OR end_lost.becomes NOT IN ('dead', 'unknown', 'consumed', 'cancelled') THEN
        PERFORM @schema@.refuse('PF400', format('cannot end the run of dispatch %s as %s', end_lost.id,
                                                @schema@.shown(end_lost.becomes)), 'wanted: dead, unknown, consumed or cancelled');
    END IF;
    SELECT d.status, d.lease_token, d.delivery_key, least(d.lease_expires_at, d.deadline_at) AS alive_until INTO r
    FROM @schema@.async_dispatches d
    WHERE d.id = end_lost.id
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        outcome := CASE WHEN EXISTS (SELECT FROM @schema@.async_dispatches d WHERE d.id = end_lost.id)
                        THEN 'taken' ELSE 'moved' END;
        RETURN;
    END IF;
    outcome := CASE WHEN r.status <> 'running' OR r.lease_token IS DISTINCT FROM end_lost.token THEN 'moved'
                    WHEN r.alive_until > clock_timestamp() THEN 'alive'
                    ELSE 'ended' END;
    IF outcome <> 'ended' THEN
        RETURN;
    END IF;
    PERFORM @schema@.commit_durably();
    UPDATE @schema@.dispatch_effects e
    SET state = 'unknown', settled_at = clock_timestamp()
    WHERE e.dispatch_id = end_lost.id AND e.state = 'begun';
    UPDATE @schema@.async_dispatches d
    SET status = end_lost.becomes, finished_at = clock_timestamp(), lease_expires_at = NULL, check_at = NULL,
        effect = CASE WHEN end_lost.becomes = 'consumed' AND d.effect = 'begun' THEN @schema@.overall_effect(d.id)
                      ELSE d.effect END,
        last_error = @schema@.one_line(end_lost.reason, 2000)
    WHERE d.id = end_lost.id;
    IF end_lost.becomes IN ('consumed', 'cancelled') AND r.delivery_key IS NOT NULL THEN
        PERFORM @schema@.stage_wishes(r.delivery_key);
    END IF;
END $$;

-- redispatch for a business row that is known by its key: its live envelope as redispatch() says (never charged there,
-- the ledger counts), or a new one where the key has none. `id` is the envelope's.
CREATE FUNCTION @schema@.redispatch_key(
    actor text, aggregate_id text, delivery_key text, payload jsonb DEFAULT NULL, options jsonb DEFAULT '{}',
    OUT id bigint, OUT outcome text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    live bigint;
BEGIN
    IF redispatch_key.delivery_key IS NULL THEN
        PERFORM @schema@.refuse('PF400', 'cannot redispatch: there is no delivery key', 'pass the key of the business row');
    END IF;
    FOR turn IN 1 .. 100 LOOP  -- between the two looks the live one may end
        SELECT d.id INTO live
        FROM @schema@.async_dispatches d
        WHERE d.delivery_key = redispatch_key.delivery_key
          AND d.status IN ('pending', 'held', 'sent', 'running', 'dead', 'unknown');
        IF FOUND THEN
            SELECT r.id, r.outcome INTO redispatch_key.id, redispatch_key.outcome
            FROM @schema@.redispatch(live, '{"charge": "none"}') AS r;
            RETURN;
        END IF;
        SELECT s.id INTO redispatch_key.id
        FROM @schema@.stage(redispatch_key.actor, redispatch_key.aggregate_id, redispatch_key.payload, NULL,
                            redispatch_key.delivery_key, redispatch_key.options || '{"on_conflict": "keep"}') AS s
        WHERE s.outcome = 'created';
        IF FOUND THEN
            outcome := 'staged';
            RETURN;
        END IF;
    END LOOP;
    outcome := 'taken';
END $$;

REVOKE ALL ON FUNCTION
    @schema@.end_lost(bigint, uuid, text, text),
    @schema@.redispatch_key(text, text, text, jsonb, jsonb)
FROM PUBLIC;
