-- Whether a server takes no instances, because what is on it is one tenant's alone: the
-- server, its shard or its pool. A warm one is about to be.
CREATE OR REPLACE FUNCTION kept_for_tenants(p_server text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM servers s WHERE s.server_id = p_server AND (s.dedicated_for_tenant_id IS NOT NULL OR (s.warm_plan IS NOT NULL AND s.tenant_count = 0)))
        OR EXISTS (SELECT FROM db_shards d WHERE d.server_id = p_server AND d.dedicated_for_tenant_id IS NOT NULL)
        OR EXISTS (SELECT FROM redis_pools r WHERE r.server_id = p_server AND r.dedicated_for_tenant_id IS NOT NULL)
$$;
