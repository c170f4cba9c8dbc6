-- What every other file leans on: how to refuse, how to wake dispatch, how to check options.
-- Functions that only others of ours call carry no SET search_path: they run inside a caller that pinned it, and a
-- second SET costs as much as their work. Their bodies are fully qualified, and nobody else may execute them.

-- Refuse: raises `code` (PF400 bad argument, PF404 unknown, PF409 key taken, PF410 not allowed now, PF412 late, PF413 too
-- large) with the text `what` ("cannot …") and the next step as a hint. Never give it a payload.
CREATE FUNCTION @schema@.refuse(code text, what text, hint text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF hint IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what;
    END IF;
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = what, HINT = hint;
END $$;
REVOKE ALL ON FUNCTION @schema@.refuse(text, text, text) FROM PUBLIC;

-- A caller's text as it may stand in an error: quoted, without control characters, at most 80 characters.
CREATE FUNCTION @schema@.shown(said text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF said IS NULL THEN
        RETURN 'null';
    END IF;
    RETURN '"' || regexp_replace(left(said, 80), '[[:cntrl:]]', '?', 'g')
        || CASE WHEN length(said) > 80 THEN '…" (' || length(said) || ' characters)' ELSE '"' END;
END $$;
REVOKE ALL ON FUNCTION @schema@.shown(text) FROM PUBLIC;

-- Wake dispatch after the caller's commit. The payload is constant and empty: PostgreSQL then sends one notification a
-- transaction, and nothing that a listener could mistake for work. The channel carries the schema's name, so that two
-- installations in one database do not wake each other.
CREATE FUNCTION @schema@.wake() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.pg_notify('@schema@_wake', '');
END $$;
REVOKE ALL ON FUNCTION @schema@.wake() FROM PUBLIC;

-- Rows that are due later wake dispatch too: it must learn a due time that is nearer than the one it sleeps for.
-- There is no such trigger for UPDATE: claims and marks would pay for it. What makes a row due again calls wake().
CREATE FUNCTION @schema@.wake_after_insert() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.pg_notify('@schema@_wake', '');
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION @schema@.wake_after_insert() FROM PUBLIC;

CREATE TRIGGER wake AFTER INSERT ON @schema@.async_dispatches
    FOR EACH STATEMENT EXECUTE FUNCTION @schema@.wake_after_insert();

-- Check that `options` is an object with known keys only, else PF400 with what was probably meant. A value of JSON null
-- counts as not given, so that a thin client may pass every option it knows.
CREATE FUNCTION @schema@.check_options(deed text, options jsonb, VARIADIC known text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    strange text;
    meant text;
BEGIN
    IF jsonb_typeof(options) IS DISTINCT FROM 'object' THEN
        PERFORM @schema@.refuse('PF400',
            format('cannot %s: options must be a JSON object, got %s', deed, coalesce(jsonb_typeof(options), 'null')),
            'leave options out, or pass {}');
    END IF;
    SELECT k INTO strange FROM jsonb_object_keys(options) AS k WHERE k <> ALL (known) ORDER BY k LIMIT 1;
    IF strange IS NULL THEN
        RETURN;
    END IF;
    -- Near is: the same letters without case and separators, or one is the beginning of the other.
    SELECT k INTO meant
    FROM unnest(known) AS k,
         LATERAL (SELECT regexp_replace(lower(k), '[^a-z]', '', 'g') AS a,
                         regexp_replace(lower(strange), '[^a-z]', '', 'g') AS b) AS bare
    WHERE b <> '' AND (starts_with(a, b) OR starts_with(b, a)
                       OR starts_with(a, left(b, 4)) OR right(a, 4) = right(b, 4))
    ORDER BY a <> b, abs(length(a) - length(b)), k
    LIMIT 1;
    PERFORM @schema@.refuse('PF400',
        format('cannot %s: unknown option %s', deed, @schema@.shown(strange)),
        coalesce('did you mean "' || meant || '"? ', '') || 'known options: ' || array_to_string(known, ', '));
END $$;
REVOKE ALL ON FUNCTION @schema@.check_options(text, jsonb, text[]) FROM PUBLIC;

-- Return a text option, or null; PF400 when it is neither text nor a number.
CREATE FUNCTION @schema@.text_option(deed text, options jsonb, name text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(options -> name) NOT IN ('string', 'number', 'null') THEN
        PERFORM @schema@.refuse('PF400',
            format('cannot %s: option %s must be text, got %s', deed, name, jsonb_typeof(options -> name)));
    END IF;
    RETURN options ->> name;
END $$;
REVOKE ALL ON FUNCTION @schema@.text_option(text, jsonb, text) FROM PUBLIC;
