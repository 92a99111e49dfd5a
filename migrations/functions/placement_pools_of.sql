-- The pools that apply to an org's tenants: the associated ones, or else the default one.
CREATE OR REPLACE FUNCTION placement_pools_of(p_org text) RETURNS SETOF placement_pools LANGUAGE sql STABLE AS $$
    SELECT p.* FROM placement_pools p JOIN org_placement_pools o ON o.pool_id = p.pool_id WHERE o.org_id = p_org
    UNION ALL
    SELECT p.* FROM placement_pools p WHERE p.is_default AND NOT EXISTS (SELECT FROM org_placement_pools o WHERE o.org_id = p_org)
$$;
