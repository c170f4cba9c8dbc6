-- The bulk form of stage().

-- One item of stage_many: an object with stage()'s parameter names as keys, else PF400.
CREATE FUNCTION @schema@.check_item(item jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(item) <> 'object' THEN
        PERFORM @schema@.refuse('PF400', format('wanted a JSON object, got %s', jsonb_typeof(item)));
    END IF;
    PERFORM @schema@.check_options(
        'stage', item, 'actor', 'aggregate_id', 'payload', 'available_at', 'delivery_key', 'options');
END $$;
REVOKE ALL ON FUNCTION @schema@.check_item(jsonb) FROM PUBLIC;

-- Stage many in one call: `items` is an array of objects whose keys are stage()'s parameter names. Answers one row an
-- item, in the order given, `position` from 1. Keys are taken in key order, whatever the order given, so that two such
-- calls never wait for each other in a circle. All or nothing: the first refused item is named and refuses all.
CREATE FUNCTION @schema@.stage_many(items jsonb)
RETURNS TABLE (id bigint, outcome text, status text, "position" integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    item record;
    answer record;
    reached integer := 0;
    ids bigint[];
    outcomes text[];
    statuses text[];
    state text;
    said text;
    hint text;
BEGIN
    IF jsonb_typeof(items) IS DISTINCT FROM 'array' THEN
        PERFORM @schema@.refuse('PF400',
            format('cannot stage many: items must be a JSON array, got %s', coalesce(jsonb_typeof(items), 'null')));
    END IF;
    FOR item IN
        SELECT i.value AS told, i.ordinality::integer AS place
        FROM jsonb_array_elements(items) WITH ORDINALITY AS i
        ORDER BY i.value ->> 'delivery_key' COLLATE "C" NULLS FIRST, i.ordinality
    LOOP
        reached := item.place;
        PERFORM @schema@.check_item(item.told);
        SELECT s.id, s.outcome, s.status INTO answer
        FROM @schema@.stage(
            item.told ->> 'actor', item.told ->> 'aggregate_id', nullif(item.told -> 'payload', 'null'),
            (item.told ->> 'available_at')::timestamptz, item.told ->> 'delivery_key',
            coalesce(nullif(item.told -> 'options', 'null'), '{}')) AS s;
        ids[item.place] := answer.id;
        outcomes[item.place] := answer.outcome;
        statuses[item.place] := answer.status;
    END LOOP;
    RETURN QUERY
        SELECT r.id, r.outcome, r.status, r.place::integer
        FROM unnest(ids, outcomes, statuses) WITH ORDINALITY AS r (id, outcome, status, place)
        ORDER BY r.place;
EXCEPTION
    WHEN SQLSTATE 'PF400' OR SQLSTATE 'PF409' OR SQLSTATE 'PF413' OR data_exception THEN  -- the last: a time that is none
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, said = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
        IF reached = 0 THEN
            RAISE;
        END IF;
        PERFORM @schema@.refuse(
            CASE WHEN state LIKE 'PF%' THEN state ELSE 'PF400' END,
            format('cannot stage many: item %s: %s', reached, left(said, 300)), nullif(hint, ''));
END $$;
REVOKE ALL ON FUNCTION @schema@.stage_many(jsonb) FROM PUBLIC;
