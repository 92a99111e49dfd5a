-- The states in which a tenant has a site that its data is in; TenantState.HasSite in Go.
CREATE OR REPLACE FUNCTION has_site(p_state text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_state IN ('active', 'suspended', 'grace_period')
$$;
