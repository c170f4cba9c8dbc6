-- How wishes become runs; 30_stage.sql says why.

-- Take the wishes of a key that a beginning run fulfils: delete those that this statement sees and return the newest
-- one's payload and headers, which the run must work with if that wish was staged after what the run has (`any_taken`
-- false: there were none). Call it after the UPDATE that made the envelope running, as a statement of its own: its
-- snapshot must be newer than that lock. Not for a run whose effect is begun or done: it will not do the work again, so
-- the wish needs a later run.
CREATE FUNCTION @schema@.take_wishes(
    delivery_key text, OUT any_taken boolean, OUT payload jsonb, OUT headers jsonb, OUT staged_at timestamptz
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    WITH taken AS (
        DELETE FROM @schema@.restaged AS r
        WHERE r.delivery_key = take_wishes.delivery_key
          -- This run cannot stand for a wish for later, or for another actor or business row under the same key.
          AND ((r.options ->> 'available_at')::timestamptz <= clock_timestamp()) IS NOT FALSE
          AND EXISTS (SELECT FROM @schema@.async_dispatches AS d
                      WHERE d.delivery_key = r.delivery_key
                        AND d.status = 'running'
                        AND d.actor = r.actor
                        AND d.aggregate_id = r.aggregate_id)
        RETURNING r.id, r.payload, r.options, r.staged_at
    )
    SELECT t.payload, t.options -> 'headers', t.staged_at
    INTO take_wishes.payload, take_wishes.headers, take_wishes.staged_at
    FROM taken AS t
    ORDER BY t.id DESC
    LIMIT 1;
    any_taken := FOUND;  -- not called `found`: that would hide FOUND
END $$;
REVOKE ALL ON FUNCTION @schema@.take_wishes(text) FROM PUBLIC;

-- Turn the wishes of a key into one new envelope when no live one exists: the newest wish is inserted, older ones of the
-- same actor and business row are fulfilled by it. Others under the same key wait for the next end; the oldest wish says
-- whose turn it is. Returns its id, or null: no wish, or a live envelope whose end will look again. Call it after the
-- statement that ended an envelope, and for every key that is found in `restaged`. The insert comes first and alone
-- waits for others; the wishes are locked after it, in the order that everybody keeps.
CREATE FUNCTION @schema@.stage_wishes(delivery_key text) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    wish @schema@.restaged;
    new_id bigint;
BEGIN
    LOOP
        SELECT r.* INTO wish
        FROM @schema@.restaged AS r
        WHERE r.delivery_key = stage_wishes.delivery_key
          AND (r.actor, r.aggregate_id) = (
              SELECT o.actor, o.aggregate_id FROM @schema@.restaged AS o
              WHERE o.delivery_key = stage_wishes.delivery_key
              ORDER BY o.id
              LIMIT 1)
        ORDER BY r.id DESC
        LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        SELECT s.id INTO new_id
        FROM @schema@.stage(
            wish.actor, wish.aggregate_id, wish.payload, (wish.options ->> 'available_at')::timestamptz, wish.delivery_key,
            (wish.options - 'available_at') || '{"on_conflict": "keep"}') AS s
        WHERE s.outcome = 'created';
        IF new_id IS NULL THEN
            RETURN NULL;
        END IF;
        DELETE FROM @schema@.restaged AS r
        WHERE r.delivery_key = stage_wishes.delivery_key
          AND r.actor = wish.actor
          AND r.aggregate_id = wish.aggregate_id
          AND r.id < wish.id;
        DELETE FROM @schema@.restaged AS r
        WHERE r.id = wish.id;
        IF FOUND THEN
            -- A wish that was staged after this one may commit later, and is not older for it.
            UPDATE @schema@.async_dispatches AS d
            SET payload_at = wish.staged_at
            WHERE d.id = new_id;
            RETURN new_id;
        END IF;
        -- While the insert waited, somebody's run fulfilled the wish: undo, look again.
        DELETE FROM @schema@.async_dispatches AS d
        WHERE d.id = new_id;
    END LOOP;
END $$;
REVOKE ALL ON FUNCTION @schema@.stage_wishes(text) FROM PUBLIC;
