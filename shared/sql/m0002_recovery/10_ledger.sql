-- What recovery remembers of a candidate, so that it comes back later and not first: a cycle writes the ledger already
-- when it hands a candidate out, before it judges. A candidate that kills or hangs its judge sleeps after the restart.
-- Finders pass over what sleeps (next_check_at). The waits double from the domain's interval to a cap, so a full head of
-- rows that cannot move never hides the ones behind it.

ALTER TABLE @schema@.recovery_ledger
    ADD COLUMN locked integer NOT NULL DEFAULT 0;  -- how often in a row it was locked when it was to be judged
-- Rows are rewritten in place: at 70 most of these updates would be HOT but for next_check_at, which no index holds.
ALTER TABLE @schema@.recovery_ledger
    SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Hand candidates out: checks + 1, and asleep for base × 2^checks, at most `cap`. Returns nothing; what is judged sets a
-- better time with note_recovery.
CREATE FUNCTION @schema@.hand_out(domain text, candidates text[], base interval, cap interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO @schema@.recovery_ledger AS l (domain, candidate_id, checks, next_check_at)
    SELECT hand_out.domain, c.id, 1, clock_timestamp() + least(hand_out.cap, hand_out.base)
    FROM unnest(hand_out.candidates) AS c (id)
    ORDER BY c.id  -- two supervisors take the rows in one order
    ON CONFLICT (domain, candidate_id) DO UPDATE
    SET checks = least(l.checks, 2147483646) + 1,  -- an absurd line must not end every hand-out
        next_check_at = clock_timestamp() + make_interval(secs => least(
            extract(epoch FROM hand_out.cap), extract(epoch FROM hand_out.base) * power(2, least(l.checks, 20)))::float8),
        updated_at = clock_timestamp();
END $$;

-- Write down what was decided. `wait`: when to look next (null: as hand_out said); `charged`: recoveries that this cost.
-- `locked` is no decision: the candidate stays where it is the first two times in a row, then it sleeps like the others.
-- With `after` the decision changed something, and leaves a line in the audit: who = the domain.
CREATE FUNCTION @schema@.note_recovery(
    domain text, candidate text, decision text, reason text, evidence jsonb DEFAULT NULL, wait interval DEFAULT NULL,
    charged integer DEFAULT 0, dispatch_id bigint DEFAULT NULL, before text DEFAULT NULL, after text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
DECLARE
    said text := @schema@.one_line(note_recovery.reason, 2000);
BEGIN
    INSERT INTO @schema@.recovery_ledger AS l
        (domain, candidate_id, checks, recoveries, next_check_at, last_decision, last_reason, evidence, locked)
    VALUES (note_recovery.domain, note_recovery.candidate, 1, note_recovery.charged,
            clock_timestamp() + coalesce(note_recovery.wait, interval '1 minute'), note_recovery.decision, said,
            note_recovery.evidence, (note_recovery.decision = 'locked')::integer)
    ON CONFLICT (domain, candidate_id) DO UPDATE
    SET recoveries = l.recoveries + note_recovery.charged,
        next_check_at = CASE
            WHEN note_recovery.decision = 'locked' AND l.locked < 2 THEN clock_timestamp()
            ELSE coalesce(clock_timestamp() + note_recovery.wait, l.next_check_at) END,
        last_decision = excluded.last_decision,
        last_reason = excluded.last_reason,
        evidence = coalesce(excluded.evidence, l.evidence),
        locked = CASE WHEN note_recovery.decision = 'locked' THEN l.locked + 1 ELSE 0 END,
        updated_at = clock_timestamp();
    IF note_recovery.after IS NOT NULL THEN
        INSERT INTO @schema@.audit_log (kind, who, domain, subject, dispatch_id, action, before, after, reason, evidence)
        VALUES ('recovery', 'domain ' || note_recovery.domain, note_recovery.domain,
                note_recovery.domain || ':' || note_recovery.candidate, note_recovery.dispatch_id, note_recovery.decision,
                note_recovery.before, note_recovery.after, said, note_recovery.evidence);
    END IF;
END $$;

-- The candidate came to a good end without recovery: its past no longer counts.
CREATE FUNCTION @schema@.forget_recovery(domain text, candidate text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM @schema@.recovery_ledger l
    WHERE l.domain = forget_recovery.domain AND l.candidate_id = forget_recovery.candidate;
END $$;

-- Why a domain does not run now: who paused it and what for; null when nobody did.
CREATE FUNCTION @schema@.domain_pause(domain text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, @schema@, pg_temp AS $$
BEGIN
    RETURN (SELECT c.who || ': ' || c.why FROM @schema@.controls c
            WHERE c.kind = 'domain' AND c.name = domain_pause.domain
              AND (c.until IS NULL OR c.until > statement_timestamp()));
END $$;

-- What recovery thought of each candidate last, and when it looks again: an hour after that at the latest, and at once
-- where the line is of the future. A clock that was a year ahead for a moment must hide nothing for a year.
CREATE VIEW @schema@.recovery AS
SELECT l.domain, l.candidate_id, l.checks, l.recoveries,
       CASE WHEN l.updated_at <= statement_timestamp() + interval '1 minute'
            THEN least(l.next_check_at, l.updated_at + interval '1 hour')
            ELSE '-infinity' END AS next_check_at,
       l.last_decision, l.last_reason, l.evidence, l.locked, l.updated_at
FROM @schema@.recovery_ledger AS l;

REVOKE ALL ON FUNCTION
    @schema@.hand_out(text, text[], interval, interval),
    @schema@.note_recovery(text, text, text, text, jsonb, interval, integer, bigint, text, text),
    @schema@.forget_recovery(text, text),
    @schema@.domain_pause(text)
FROM PUBLIC;
