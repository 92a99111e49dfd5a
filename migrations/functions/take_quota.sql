-- take_quota checks what a transaction is about to take, in one round trip. It locks
-- the org's row, so that whoever else takes something of this org waits, and sees what
-- this one took; only then it counts, the dimensions asked for and no others: what is
-- used and what is promised, or, for who allocates what was promised before, what is used
-- alone. It answers with the first dimension, in the order asked, that would be above its
-- limit, or with no row. What gives back is never refused (above_limit).
CREATE OR REPLACE FUNCTION take_quota(p_org text, p_dimensions text[], p_deltas float8[], p_tier_limits jsonb, p_allocating boolean DEFAULT false)
RETURNS TABLE (dimension text, limit_value float8, current_usage float8, requested_delta float8) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    asked    text[];
    deltas   float8[];
    promised jsonb := '{}';
BEGIN
    PERFORM FROM orgs WHERE org_id = p_org FOR NO KEY UPDATE;
    SELECT array_agg(w.d ORDER BY w.n), array_agg(w.delta ORDER BY w.n) INTO asked, deltas
    FROM (SELECT d, sum(delta) AS delta, min(n) AS n FROM unnest(p_dimensions, p_deltas) WITH ORDINALITY AS u (d, delta, n) GROUP BY d) w
    WHERE w.delta > 0;
    IF asked IS NULL THEN RETURN; END IF;
    IF NOT p_allocating AND asked && '{max_instances,max_total_memory_bytes,max_total_cpu_request}'::text[] THEN
        SELECT COALESCE(jsonb_object_agg(r.dimension, r.reserved), '{}') INTO promised FROM org_reserved_view r WHERE r.org_id = p_org;
    END IF;
    RETURN QUERY
    SELECT l.dimension, l.limit_value, c.value, w.delta
    FROM unnest(asked, deltas) WITH ORDINALITY AS w (d, delta, n)
    JOIN org_limits(p_org, asked, p_tier_limits) l ON l.dimension = w.d
    JOIN org_usage(p_org, asked) u ON u.dimension = w.d
    CROSS JOIN LATERAL (SELECT u.usage + COALESCE((promised ->> w.d)::float8, 0) AS value) c
    WHERE above_limit(c.value, w.delta, l.limit_value)
    ORDER BY w.n LIMIT 1;
END $$;
