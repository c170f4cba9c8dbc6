-- The worker's calls of the outbox's functions, one statement each.

-- name: begin_work
-- One worker gets `go`; everybody else learns why not.
SELECT verdict, token, aggregate_id, payload, headers, tenant, attempt, max_attempts, deliveries, recoveries, effect,
       effect_ref, deadline_at
FROM @schema@.begin_work(
    %(id)s::bigint, %(actor)s::text, %(worker)s::text, make_interval(secs => %(lease_s)s),
    jsonb_strip_nulls(jsonb_build_object('source', %(source)s::text, 'sink_ref', %(sink_ref)s::text)))

-- name: beat_all
-- Prolong every row that is held, and say which are no longer ours.
SELECT held.id, held.token, b.verdict
FROM unnest(%(ids)s::bigint[], %(tokens)s::uuid[]) AS held (id, token),
     LATERAL @schema@.beat(held.id, held.token, make_interval(secs => %(lease_s)s)) AS b

-- name: effect
-- Persist one step of an outside effect.
SELECT verdict, effect_ref
FROM @schema@.effect(%(id)s::bigint, %(token)s::uuid, %(state)s::text, %(name)s::text, %(ref)s::text)

-- name: settle
-- End the run.
SELECT verdict, status, next_at
FROM @schema@.settle(
    %(id)s::bigint, %(token)s::uuid, %(outcome)s::text, %(error)s::text,
    jsonb_strip_nulls(jsonb_build_object('retry_in', %(retry_in_s)s::float8)))

-- name: report_late
-- Leave a late worker's claim for the person who decides.
SELECT written
FROM @schema@.report_late(%(id)s::bigint, %(token)s::uuid, %(worker)s::text, %(claim)s::text, %(error)s::text)
