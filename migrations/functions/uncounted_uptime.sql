-- How long the sites of tenants were up and down until a moment each (no more moments than tenants), as far as it is
-- not in site_uptime yet, by month in UTC. A site is up while an edge reaches it, and down while all edges that probe
-- it don't. Time without a probing edge is neither. An edge that did not report for less than 30 s counts as probing.
CREATE OR REPLACE FUNCTION uncounted_uptime(p_tenants text[], p_until timestamptz[])
RETURNS TABLE (tenant_id text, month date, up_seconds double precision, down_seconds double precision,
    counted_until timestamptz) LANGUAGE sql STABLE AS $$
    WITH asked AS (
        SELECT a.tenant_id, max(a.until) AS until FROM unnest(p_tenants, p_until) a (tenant_id, until)
        GROUP BY a.tenant_id
    ), watched AS (
        SELECT a.tenant_id, h.up, GREATEST(h.seen_from, e.watched_from,
                (SELECT max(u.counted_until) FROM site_uptime u WHERE u.tenant_id = a.tenant_id)) AS since,
            LEAST(a.until, e.watched_until + interval '30 seconds') AS until
        FROM asked a JOIN site_health h ON h.tenant_id = a.tenant_id JOIN edges e ON e.server_id = h.server_id
        WHERE h.seen_from >= e.watched_from
    ), merged AS (
        SELECT w.tenant_id, COALESCE(range_agg(tstzrange(w.since, w.until)) FILTER (WHERE w.up), '{}') AS up,
            COALESCE(range_agg(tstzrange(w.since, w.until)) FILTER (WHERE NOT w.up), '{}') AS down
        FROM watched w WHERE w.since < w.until GROUP BY w.tenant_id
    ), parts AS (
        SELECT m.tenant_id, true AS is_up, unnest(m.up) AS during FROM merged m
        UNION ALL SELECT m.tenant_id, false, unnest(m.down - m.up) FROM merged m
    )
    SELECT p.tenant_id, s.month, COALESCE(sum(s.seconds) FILTER (WHERE p.is_up), 0),
        COALESCE(sum(s.seconds) FILTER (WHERE NOT p.is_up), 0), max(s.until)
    FROM parts p CROSS JOIN LATERAL (
        SELECT g.month::date, LEAST(upper(p.during), m.until) AS until,
            extract(epoch FROM LEAST(upper(p.during), m.until) - GREATEST(lower(p.during), m.since))::float8 AS seconds
        FROM generate_series(date_trunc('month', lower(p.during) AT TIME ZONE 'UTC'),
            upper(p.during) AT TIME ZONE 'UTC', interval '1 month') g (month)
        CROSS JOIN LATERAL (SELECT g.month AT TIME ZONE 'UTC' AS since,
            (g.month + interval '1 month') AT TIME ZONE 'UTC' AS until) m
    ) s
    WHERE s.seconds > 0
    GROUP BY p.tenant_id, s.month
$$;
