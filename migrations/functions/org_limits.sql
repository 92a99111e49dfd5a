-- org_limits are the effective limits: the org's, else its tier's, which the caller passes. Enforcement and display
-- read them here. A missing limit is 0.
CREATE OR REPLACE FUNCTION org_limits(p_org text, p_dimensions text[], p_tier_limits jsonb)
RETURNS TABLE (dimension text, limit_value float8, own boolean) LANGUAGE sql STABLE AS $$
    SELECT d.dimension, COALESCE(q.limit_value, (p_tier_limits -> o.tier ->> d.dimension)::float8, 0), q.limit_value IS NOT NULL
    FROM orgs o CROSS JOIN unnest(p_dimensions) AS d (dimension)
    LEFT JOIN org_quotas q ON q.org_id = o.org_id AND q.dimension = d.dimension
    WHERE o.org_id = p_org
$$;
