-- The states in which a tenant counts against its org's quota even without a place.
CREATE OR REPLACE FUNCTION tenant_lives(p_state text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_state IN ('trial', 'provisioning') OR has_site(p_state)
$$;
