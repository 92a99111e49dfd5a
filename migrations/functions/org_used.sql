-- org_used is an org's usage and promises for each requested dimension: its counters, and the changes that are not in
-- them yet. Limits are compared with it, and it is displayed. org_usage and org_reserved_view count the same from the
-- rows; the sweep compares.
CREATE OR REPLACE FUNCTION org_used(p_org text, p_dimensions text[]) RETURNS TABLE (dimension text, used float8, promised float8) LANGUAGE sql STABLE AS $$
    SELECT d.dimension,
        CASE WHEN is_counted(d.dimension) THEN (COALESCE(c.used, 0) + COALESCE(p.used, 0))::float8 ELSE org_open(p_org, d.dimension) END,
        (COALESCE(c.promised, 0) + COALESCE(p.promised, 0))::float8
    FROM unnest(p_dimensions) d (dimension)
    LEFT JOIN org_counters c ON c.org_id = p_org AND c.dimension = d.dimension
    LEFT JOIN (
        SELECT u.dimension, sum(u.used) AS used, sum(u.promised) AS promised
        FROM org_usage_pending(p_org) x CROSS JOIN LATERAL unnest(x.dimensions, x.used, x.promised[:cardinality(x.used)]) u (dimension, used, promised)
        GROUP BY u.dimension
    ) p ON p.dimension = d.dimension
$$;
