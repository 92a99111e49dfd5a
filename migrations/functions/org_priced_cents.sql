-- org_priced_cents is what an org's volumes and addresses cost a month by current list prices, each in whole cents as a
-- request for it is checked. What has no known price counts as nothing.
CREATE OR REPLACE FUNCTION org_priced_cents(p_org text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT COALESCE(sum(round(CASE WHEN p.per_gb THEN p.monthly * x.gb ELSE p.monthly END / 10000)), 0)::bigint
    FROM (
        SELECT provider, 'volume' AS kind, '' AS type, location, size_bytes / 1e9 AS gb FROM volumes WHERE org_id = p_org AND deleted_at IS NULL
        UNION ALL SELECT provider, 'floating_ip', 'ipv4', location, 0 FROM ipv4_allocations WHERE org_id = p_org AND deleted_at IS NULL
    ) x CROSS JOIN LATERAL (
        SELECT c.monthly, c.per_gb FROM provider_prices c WHERE c.provider = x.provider AND c.kind = x.kind AND c.type = x.type
            AND c.location IN ('', x.location) AND c.valid_to IS NULL ORDER BY c.monthly LIMIT 1
    ) p
$$;
