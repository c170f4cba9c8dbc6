-- mark_sent as before, and when recovery looks at the row for the first time: [domains.envelope] sent_grace, which a
-- supervisor of an earlier version does not pass (60 seconds then).
DROP FUNCTION @schema@.mark_sent(uuid[], bigint[], text[]);

-- Mark rows as handed over: entry n of `refs` is where row n of `ids`, claimed with token n, stands in its stream. Returns
-- only what could not be marked: `skipped` (locked elsewhere: repeat with the next mark) or `lost` (no longer ours: its
-- claim ended, or a worker began it already). A row whose actor ends with the hand-over is consumed.
CREATE FUNCTION @schema@.mark_sent(
    tokens uuid[], ids bigint[], refs text[], grace interval DEFAULT '60 seconds'
) RETURNS TABLE (id bigint, outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, @schema@, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    stamp  CONSTANT timestamptz := clock_timestamp();
    marked bigint[];
    keys   text[];
    freed  text;
BEGIN
    WITH free AS MATERIALIZED (
        SELECT d.id, s.ref
        FROM unnest(mark_sent.tokens, mark_sent.ids, mark_sent.refs) AS s (token, id, ref)
        JOIN @schema@.async_dispatches d ON d.id = s.id
        WHERE d.status = 'pending'
          AND d.lease_token = s.token
          AND d.lease_expires_at > stamp
        FOR NO KEY UPDATE OF d SKIP LOCKED
    ), done AS (
        UPDATE @schema@.async_dispatches d
        SET status = CASE d.completion WHEN 'handover' THEN 'consumed' ELSE 'sent' END,
            finished_at = CASE d.completion WHEN 'handover' THEN stamp END,
            check_at = CASE d.completion WHEN 'handover' THEN NULL ELSE stamp + mark_sent.grace END,
            sent_at = stamp,
            sink_ref = free.ref,
            deliveries = d.deliveries + 1,
            lease_token = NULL,
            lease_expires_at = NULL,
            claimed_by = NULL
        FROM free
        WHERE d.id = free.id
        RETURNING d.id, CASE d.completion WHEN 'handover' THEN d.delivery_key END AS freed
    )
    SELECT array_agg(done.id), array_agg(done.freed) FILTER (WHERE done.freed IS NOT NULL) INTO marked, keys FROM done;

    IF keys IS NOT NULL THEN
        FOREACH freed IN ARRAY (SELECT array_agg(k ORDER BY k) FROM unnest(keys) AS k) LOOP
            PERFORM @schema@.stage_wishes(freed);
        END LOOP;
    END IF;
    IF cardinality(marked) IS DISTINCT FROM cardinality(mark_sent.ids) THEN
        RETURN QUERY
        SELECT s.id,
               CASE WHEN d.status = 'pending' AND d.lease_token = s.token AND d.lease_expires_at > clock_timestamp()
                    THEN 'skipped' ELSE 'lost' END
        FROM unnest(mark_sent.tokens, mark_sent.ids) AS s (token, id)
        LEFT JOIN @schema@.async_dispatches d ON d.id = s.id
        WHERE s.id <> ALL (coalesce(marked, '{}'));
    END IF;
END $$;

REVOKE ALL ON FUNCTION @schema@.mark_sent(uuid[], bigint[], text[], interval) FROM PUBLIC;
