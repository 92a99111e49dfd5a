-- Whether a Redis pool takes a tenant, as shard_takes of a DB shard. A tenant may have a dedicated pool by contract.
CREATE OR REPLACE FUNCTION pool_takes(r redis_pools, h servers, f fleets, t tenants, p_mode text, p_override boolean, p_limits placement_limits) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT r.status = 'active' AND h.cordoned_at IS NULL AND r.region = t.region
        AND (r.dedicated_for_tenant_id IS NULL OR r.dedicated_for_tenant_id = t.tenant_id)
        AND (NOT (t.dedicated_redis OR must_be_alone(t.plan, p_mode, p_override)) OR r.current_tenants = 0 AND NOT runs_instances(h.server_id))
        AND (p_override OR r.current_tenants < r.tenant_capacity AND NOT has_reached(h.redis_memory_pct, p_limits.redis_memory_pct)
            AND (r.on_node OR r.dedicated_for_tenant_id IS NOT NULL OR f.serves_tenants IS NOT FALSE))
$$;
