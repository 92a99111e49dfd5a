-- Whether a DB shard takes a tenant, as server_takes of an app server; h is the shard's server, and f the fleet of that.
CREATE OR REPLACE FUNCTION shard_takes(d db_shards, h servers, f fleets, t tenants, p_mode text, p_override boolean, p_limits placement_limits) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT d.status = 'active' AND h.cordoned_at IS NULL AND d.region = t.region AND tier_lock_allows(t.plan, d.plan_tier_lock)
        AND (d.dedicated_for_tenant_id IS NULL OR d.dedicated_for_tenant_id = t.tenant_id)
        AND (NOT must_be_alone(t.plan, p_mode, p_override) OR d.current_tenant_count = 0 AND NOT runs_instances(h.server_id))
        AND (p_override OR d.current_tenant_count < d.tenant_capacity AND NOT has_reached(h.db_disk_pct, p_limits.db_disk_pct)
            AND (d.on_node OR d.dedicated_for_tenant_id IS NOT NULL OR f.serves_tenants IS NOT FALSE))
$$;
