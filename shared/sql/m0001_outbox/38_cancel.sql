-- Taking back what no worker has begun.

-- What both forms of cancel do to the one envelope they mean.
CREATE FUNCTION @schema@.cancel_one(wanted bigint, OUT outcome text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    its_key text;
BEGIN
    UPDATE @schema@.async_dispatches AS d
    SET status = 'cancelled',
        finished_at = clock_timestamp(),
        lease_token = NULL,
        lease_expires_at = NULL,
        claimed_by = NULL,
        check_at = NULL
    WHERE d.id = wanted
      AND d.status IN ('pending', 'held', 'sent')
    RETURNING d.delivery_key INTO its_key;
    IF FOUND THEN
        DELETE FROM @schema@.restaged AS r WHERE r.delivery_key = its_key;
        outcome := 'cancelled';
        RETURN;
    END IF;
    SELECT CASE
            WHEN d.status = 'running' THEN 'running'
            WHEN d.status = 'cancelled' THEN 'already'
            WHEN d.status IN ('dead', 'unknown') THEN 'blocked'
            ELSE 'ended'
        END
    INTO cancel_one.outcome
    FROM @schema@.async_dispatches AS d
    WHERE d.id = wanted;
    outcome := coalesce(outcome, 'not_found');
END $$;
REVOKE ALL ON FUNCTION @schema@.cancel_one(bigint) FROM PUBLIC;

-- Cancel an envelope that no worker has begun, and the wishes behind it, in the caller's transaction. `outcome`:
-- cancelled · already (it was cancelled before) · running (too late: a worker has it) · ended (consumed or rejected) ·
-- blocked (dead or unknown: a person decides) · not_found. A message that is on its way gets no `go` from begin_work().
CREATE FUNCTION @schema@.cancel(INOUT id bigint, OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp AS $$
BEGIN
    SELECT c.outcome INTO outcome FROM @schema@.cancel_one(id) AS c;
END $$;
REVOKE ALL ON FUNCTION @schema@.cancel(bigint) FROM PUBLIC;

-- The same by key: cancels the key's live envelope. `id` is null when there was none. Wishes alone are cancelled too: they
-- become their envelope first, so that this waits for dispatch where it does the same, and keeps the order of locks.
CREATE FUNCTION @schema@.cancel(delivery_key text, OUT id bigint, OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    wished boolean;
BEGIN
    LOOP
        -- One statement: between two, a wish can become an envelope that neither sees.
        SELECT (SELECT d.id
                FROM @schema@.async_dispatches AS d
                WHERE d.delivery_key = cancel.delivery_key COLLATE "default"
                  AND d.status IN ('pending', 'held', 'sent', 'running', 'dead', 'unknown')),
               EXISTS (SELECT FROM @schema@.restaged AS r WHERE r.delivery_key = cancel.delivery_key COLLATE "default")
        INTO cancel.id, wished;
        IF id IS NULL AND NOT wished THEN
            outcome := 'not_found';
            RETURN;
        ELSIF id IS NULL THEN
            PERFORM @schema@.stage_wishes(delivery_key COLLATE "default");
            CONTINUE;
        END IF;
        SELECT c.outcome INTO cancel.outcome FROM @schema@.cancel_one(id) AS c;
        EXIT WHEN outcome NOT IN ('already', 'ended', 'not_found');  -- those ended after we looked: look again
    END LOOP;
END $$;
REVOKE ALL ON FUNCTION @schema@.cancel(text) FROM PUBLIC;
