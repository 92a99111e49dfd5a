-- take_quota checks what a transaction is about to take, in one round trip. It locks the org's row, so that any other
-- transaction that takes from this org waits, and then sees what this one took; only then it reads the org's
-- counters: the usage and the promises, or for an allocation of an earlier promise only the usage. Changes that are
-- not in the counters yet are added (org_used), and counted when there are many. It returns the first dimension, in
-- the given order, that would be above its limit, or no row. Giving back is never refused (above_limit).
CREATE OR REPLACE FUNCTION take_quota(p_org text, p_dimensions text[], p_deltas float8[], p_tier_limits jsonb, p_allocating boolean DEFAULT false)
RETURNS TABLE (dimension text, limit_value float8, current_usage float8, requested_delta float8) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM orgs WHERE org_id = p_org FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM org_usage_changes c WHERE c.org_id = p_org) THEN
        IF EXISTS (SELECT FROM org_usage_changes c WHERE c.org_id = p_org OFFSET 15) THEN PERFORM fold_org_usage(p_org); END IF;
        RETURN QUERY
        SELECT w.d, l.limit_value, c.value, w.delta
        FROM (SELECT d, sum(delta) AS delta, min(n) AS n FROM unnest(p_dimensions, p_deltas) WITH ORDINALITY AS u (d, delta, n) GROUP BY d) w
        JOIN org_limits(p_org, p_dimensions, p_tier_limits) l ON l.dimension = w.d
        JOIN org_used(p_org, p_dimensions) u ON u.dimension = w.d
        CROSS JOIN LATERAL (SELECT u.used + CASE WHEN p_allocating THEN 0 ELSE u.promised END AS value) c
        WHERE above_limit(c.value, w.delta, l.limit_value)
        ORDER BY w.n LIMIT 1;
    ELSE
        RETURN QUERY
        SELECT w.d, l.limit_value, c.value, w.delta
        FROM (SELECT d, sum(delta) AS delta, min(n) AS n FROM unnest(p_dimensions, p_deltas) WITH ORDINALITY AS u (d, delta, n) GROUP BY d) w
        JOIN org_limits(p_org, p_dimensions, p_tier_limits) l ON l.dimension = w.d
        LEFT JOIN org_counters k ON k.org_id = p_org AND k.dimension = w.d
        CROSS JOIN LATERAL (SELECT CASE WHEN is_counted(w.d) THEN COALESCE(k.used, 0)::float8 + CASE WHEN p_allocating THEN 0 ELSE COALESCE(k.promised, 0)::float8 END
            ELSE org_open(p_org, w.d) END AS value) c
        WHERE above_limit(c.value, w.delta, l.limit_value)
        ORDER BY w.n LIMIT 1;
    END IF;
END $$;
