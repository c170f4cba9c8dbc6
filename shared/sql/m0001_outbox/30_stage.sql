-- Staging. One promise: a run begins after the caller's commit.
--
-- Without a delivery key every stage() is a run of its own. With one there is at most one live envelope; a stage() that
-- meets it writes a wish (`restaged`) and takes no lock on the envelope, so that it never waits for a worker. Wishes:
--   * begin_work() takes the wishes it sees (take_wishes): the run that begins then is the run they wanted;
--   * what is left when the envelope ends becomes one new envelope (stage_wishes), by settle(), cancel or an operator;
--   * a wish that committed while its envelope ended is found by dispatch within a scan interval (stage_wishes).
-- Order of locks: the envelope first, its wishes after, everywhere.

-- Say which argument is wrong. Called only when the quick look in stage() failed, so it may be slow.
CREATE FUNCTION @schema@.refuse_envelope(
    actor text, aggregate_id text, payload jsonb, available_at timestamptz, delivery_key text,
    queue text, tenant text, headers jsonb
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    name_rule CONSTANT text := 'a letter or _ first, then letters, digits, _ . - ; at most 128 characters';
    name_form CONSTANT text := '^[A-Za-z_][A-Za-z0-9_.-]{0,127}$';
    wrong text;
    rule text;
BEGIN
    IF pg_column_size(payload #> '{}') > 262144 THEN
        PERFORM @schema@.refuse('PF413',
            format('cannot stage: the payload has %s bytes as jsonb, the limit is 262144 (256 KiB)',
                   pg_column_size(payload #> '{}')),
            'keep it in a table of your own and stage its id');
    ELSIF pg_column_size(headers) > 8192 THEN
        PERFORM @schema@.refuse('PF413',
            format('cannot stage: the headers have %s bytes as jsonb, the limit is 8192 (8 KiB)', pg_column_size(headers)),
            'headers are for trace context; put the rest into the payload');
    END IF;
    SELECT w, r INTO wrong, rule
    FROM (VALUES
        (1, actor ~ name_form, 'actor ' || @schema@.shown(actor), name_rule),
        (2, queue IS NULL OR queue ~ name_form, 'queue ' || @schema@.shown(queue), name_rule),
        (3, length(aggregate_id) BETWEEN 1 AND 200 AND aggregate_id !~ '[[:cntrl:]]',
            'aggregate_id ' || @schema@.shown(aggregate_id), '1 to 200 characters, no control characters'),
        (4, delivery_key IS NULL OR (length(delivery_key) BETWEEN 1 AND 400 AND delivery_key !~ '[[:cntrl:]]'),
            'delivery_key ' || @schema@.shown(delivery_key), '1 to 400 characters, no control characters'),
        (5, tenant IS NULL OR (length(tenant) BETWEEN 1 AND 200 AND tenant !~ '[[:cntrl:]]'),
            'tenant ' || @schema@.shown(tenant), '1 to 200 characters, no control characters'),
        (6, headers IS NULL OR jsonb_typeof(headers) = 'object',
            'a headers value of type ' || coalesce(jsonb_typeof(headers), 'null'), 'a JSON object'),
        (7, available_at IS NULL OR isfinite(available_at), 'available_at ' || available_at, 'a time, or null for now')
    ) AS checked (place, ok, w, r)
    WHERE ok IS NOT TRUE
    ORDER BY place
    LIMIT 1;
    PERFORM @schema@.refuse('PF400', format('cannot stage: %s is not allowed', wrong), 'wanted: ' || rule);
END $$;
REVOKE ALL ON FUNCTION @schema@.refuse_envelope(text, text, jsonb, timestamptz, text, text, text, jsonb) FROM PUBLIC;

-- Check stage()'s options one by one; PF400 with the rule.
CREATE FUNCTION @schema@.check_stage_options(options jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @schema@.check_options('stage', options, 'queue', 'tenant', 'headers', 'max_attempts', 'on_conflict');
    PERFORM @schema@.text_option('stage', options, 'queue');
    PERFORM @schema@.text_option('stage', options, 'tenant');
    IF options ->> 'on_conflict' NOT IN ('rerun', 'keep', 'error') THEN
        PERFORM @schema@.refuse('PF400',
            format('cannot stage: on_conflict %s is not allowed', @schema@.shown(options ->> 'on_conflict')),
            'wanted: rerun, keep or error');
    END IF;
    IF NOT (options ->> 'max_attempts' ~ '^[0-9]{1,7}$' AND (options ->> 'max_attempts')::integer BETWEEN 1 AND 1000000) THEN
        PERFORM @schema@.refuse('PF400',
            format('cannot stage: max_attempts %s is not allowed', @schema@.shown(options ->> 'max_attempts')),
            'wanted: a whole number from 1 to 1000000');
    END IF;
END $$;
REVOKE ALL ON FUNCTION @schema@.check_stage_options(jsonb) FROM PUBLIC;

-- Stage one run in the caller's transaction. `outcome`: created (a new envelope) · rerun (a live one exists; another run
-- follows the present one) · existing (on_conflict = keep: no second run) · blocked (the live one is dead or unknown: a
-- person decides first, nothing was written). `id` and `status` are the live envelope's. PF409 with on_conflict = error.
-- Above READ COMMITTED a concurrent stage of the same key raises 40001: try the transaction again.
CREATE FUNCTION @schema@.stage(
    actor text,
    aggregate_id text,
    payload jsonb DEFAULT NULL,
    available_at timestamptz DEFAULT NULL,
    delivery_key text DEFAULT NULL,
    options jsonb DEFAULT '{}',
    OUT id bigint, OUT outcome text, OUT status text
) LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    own_queue text COLLATE "default";
    own_tenant text COLLATE "default";
    own_headers jsonb;
    own_max_attempts integer;
    turns integer := 0;
BEGIN
    IF options IS DISTINCT FROM '{}' THEN
        PERFORM @schema@.check_stage_options(options);
        own_queue := options ->> 'queue';
        own_tenant := options ->> 'tenant';
        own_headers := nullif(options -> 'headers', 'null');
        own_max_attempts := options ->> 'max_attempts';
    END IF;
    -- The same rules as the CHECK's, looked at first: a violated CHECK prints the whole row, payload included. #> '{}' is
    -- the payload itself, whole: one that a table keeps compressed shows its compressed size, and passed as a wish.
    IF (actor COLLATE "default" ~ '^[A-Za-z_][A-Za-z0-9_.-]*$' AND length(actor) <= 128
        AND length(aggregate_id) BETWEEN 1 AND 200 AND aggregate_id COLLATE "default" !~ '[[:cntrl:]]'
        AND (payload IS NULL OR pg_column_size(payload #> '{}') <= 262144)
        AND (available_at IS NULL OR isfinite(available_at))
        AND (delivery_key IS NULL
             OR (length(delivery_key) BETWEEN 1 AND 400 AND delivery_key COLLATE "default" !~ '[[:cntrl:]]'))
        AND (own_queue IS NULL OR (own_queue ~ '^[A-Za-z_][A-Za-z0-9_.-]*$' AND length(own_queue) <= 128))
        AND (own_tenant IS NULL OR (length(own_tenant) BETWEEN 1 AND 200 AND own_tenant !~ '[[:cntrl:]]'))
        AND (own_headers IS NULL OR (jsonb_typeof(own_headers) = 'object' AND pg_column_size(own_headers) <= 8192))
       ) IS NOT TRUE
    THEN
        PERFORM @schema@.refuse_envelope(
            actor COLLATE "default", aggregate_id, payload, available_at, delivery_key, own_queue, own_tenant, own_headers);
    END IF;
    -- COLLATE "default": an argument from a column brings that column's collation along, which no index of ours has (the
    -- whole table would be read), and a nondeterministic one knows no patterns.
    -- Insert or look, again while the one we met has ended in between; each turn needs one more envelope to end.
    -- DO NOTHING waits for an uncommitted insert or update of the live row, not for a mere lock on it.
    -- Everything in one statement and nothing in a helper: each statement and call is prepared anew in a transaction.
    LOOP
        INSERT INTO @schema@.async_dispatches AS d
            (actor, aggregate_id, payload, available_at, delivery_key, queue, tenant, headers, completion, max_attempts)
        SELECT
            stage.actor,
            stage.aggregate_id,
            stage.payload,
            coalesce(stage.available_at, clock_timestamp()),
            stage.delivery_key,
            coalesce(own_queue, a.queue, stage.actor),
            own_tenant,
            coalesce(own_headers, '{}'),
            coalesce(a.completion, 'worker'),
            coalesce(own_max_attempts, a.max_attempts, 20)
        FROM (VALUES (1)) AS one
        LEFT JOIN @schema@.actors AS a ON a.name = stage.actor COLLATE "default"
        ON CONFLICT (delivery_key)
            WHERE delivery_key IS NOT NULL AND status IN ('pending', 'held', 'sent', 'running', 'dead', 'unknown')
            DO NOTHING
        RETURNING d.id, 'created', d.status INTO stage.id, stage.outcome, stage.status;
        IF FOUND THEN
            RETURN;
        END IF;
        SELECT d.id, d.status INTO stage.id, stage.status
        FROM @schema@.async_dispatches AS d
        WHERE d.delivery_key = stage.delivery_key COLLATE "default"
          AND d.status IN ('pending', 'held', 'sent', 'running', 'dead', 'unknown');
        EXIT WHEN FOUND;
        turns := turns + 1;
        IF turns = 1000 THEN
            PERFORM @schema@.refuse('40001', 'cannot stage: the envelope of this key ended 1000 times meanwhile', 'try again');
        END IF;
    END LOOP;
    outcome := CASE
        WHEN options ->> 'on_conflict' = 'error' THEN 'error'
        WHEN status IN ('dead', 'unknown') THEN 'blocked'
        WHEN options ->> 'on_conflict' = 'keep' THEN 'existing'
        ELSE 'rerun'
    END;
    IF outcome = 'error' THEN
        PERFORM @schema@.refuse('PF409',
            format('cannot stage: the delivery key %s has a live envelope, %s (%s)', @schema@.shown(delivery_key COLLATE "default"), id, status),
            'stage with on_conflict rerun or keep, or wait until it ends');
    ELSIF outcome = 'rerun' THEN
        INSERT INTO @schema@.restaged (delivery_key, actor, aggregate_id, payload, options)
        VALUES (stage.delivery_key, stage.actor, stage.aggregate_id, stage.payload,
                jsonb_strip_nulls(jsonb_build_object('queue', own_queue, 'tenant', own_tenant,
                                                     'max_attempts', own_max_attempts,
                                                     'available_at', stage.available_at))
                || jsonb_build_object('headers', coalesce(own_headers, '{}')));
    END IF;
END $$;
REVOKE ALL ON FUNCTION @schema@.stage(text, text, jsonb, timestamptz, text, jsonb) FROM PUBLIC;
