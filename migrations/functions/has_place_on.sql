-- Whether a tenant's place is on a server. What a server's rows state about a tenant (its site is offline for a release,
-- a backup or a snapshot of it is being made there) ends with the tenant's place on it: every reading of such a row by
-- tenant asks this, so that a server that is lost has no hold over tenants that were restored elsewhere.
CREATE OR REPLACE FUNCTION has_place_on(p_tenant_id text, p_server_id text) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT EXISTS (SELECT FROM tenant_allocations a WHERE a.tenant_id = p_tenant_id AND a.app_server_id = p_server_id AND a.released_at IS NULL)
$$;
