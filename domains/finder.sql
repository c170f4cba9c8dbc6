-- What the finders of the business domains end with; `@handed_out@` stands for it in their queries.sql. Before it a finder
-- names what it looked at (`page`), what of it is stuck, asleep and locked rows included (`stuck`), and what it locked
-- and hands out (`free`), each with id and since.

-- name: handed_out
-- Hands out the free candidates, the oldest first; the last row (id null) tells what was looked at.
SELECT f.id, f.since AS last_at, f.id AS last_id, NULL::integer AS looked, NULL::integer AS waiting,
       NULL::float8 AS oldest_s
FROM free AS f
UNION ALL
SELECT NULL, last.since, last.id, (SELECT count(*)::integer FROM page), (SELECT count(*)::integer FROM stuck),
       (SELECT extract(epoch FROM statement_timestamp() - min(s.since) FILTER (WHERE isfinite(s.since)))::float8
        FROM stuck AS s)
FROM (SELECT) AS one
LEFT JOIN LATERAL (SELECT p.since, p.id FROM page AS p ORDER BY p.since DESC, p.id DESC LIMIT 1) AS last ON true
ORDER BY 4 NULLS FIRST, 2, 3;
