-- The states in which a tenant has a site with its data; TenantState.HasSite in Go.
CREATE OR REPLACE FUNCTION has_site(p_state text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_state IN ('active', 'suspended', 'grace_period')
$$;
