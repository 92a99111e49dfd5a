-- org_usage_drift compares an org's counters with its rows, as of one moment, and returns the dimensions that differ.
-- Sums of fractions may differ by a hair.
CREATE OR REPLACE FUNCTION org_usage_drift(p_org text, p_dimensions text[])
RETURNS TABLE (dimension text, used float8, counted float8, promised float8, reserved float8) LANGUAGE sql STABLE AS $$
    SELECT d.dimension, d.used, u.usage, d.promised, COALESCE(r.reserved, 0)
    FROM org_used(p_org, p_dimensions) d
    JOIN org_usage(p_org, p_dimensions) u ON u.dimension = d.dimension
    LEFT JOIN org_reserved_view r ON r.org_id = p_org AND r.dimension = d.dimension
    WHERE abs(d.used - u.usage) > 1e-5 + 1e-12 * abs(u.usage) OR abs(d.promised - COALESCE(r.reserved, 0)) > 1e-5 + 1e-12 * abs(d.promised)
$$;
