-- Whether a server takes no instances, because the server, its shard or its pool is dedicated to a tenant. A warm
-- server soon will be.
CREATE OR REPLACE FUNCTION kept_for_tenants(p_server text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM servers s WHERE s.server_id = p_server AND (s.dedicated_for_tenant_id IS NOT NULL OR (s.warm_plan IS NOT NULL AND s.tenant_count = 0)))
        OR EXISTS (SELECT FROM db_shards d WHERE d.server_id = p_server AND d.dedicated_for_tenant_id IS NOT NULL)
        OR EXISTS (SELECT FROM redis_pools r WHERE r.server_id = p_server AND r.dedicated_for_tenant_id IS NOT NULL)
$$;
