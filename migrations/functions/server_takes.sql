-- Whether an app server or a node takes a tenant, by their rows, the rows of the server's fleet and provider, and the
-- limits (placement-policy §2.1 to §2.4, §6); in Go the filters of placement/filters.go, and CheckInvariants for an
-- override, which only skips capacity and fleets. Its tags and its shard and pool are checked elsewhere.
CREATE OR REPLACE FUNCTION server_takes(s servers, f fleets, p infra_providers, t tenants, p_mode text, p_dedicates boolean, p_override boolean, p_limits placement_limits) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT s.role IN ('app', 'node') AND s.status = 'active' AND s.cordoned_at IS NULL AND s.region = t.region
        AND p.enabled AND s.region = ANY (p.regions) AND (s.accepts_trial OR t.plan <> 'trial')
        AND (t.data_residency IS NULL OR residency_allows(t.data_residency, s.region, s.infra_provider))
        AND (s.dedicated_for_tenant_id IS NULL OR s.dedicated_for_tenant_id = t.tenant_id)
        -- a warm server whose agent is silent could not be used immediately
        AND (s.warm_plan IS NULL OR s.tenant_count > 0 OR s.agent_status = 'connected')
        AND (NOT (p_dedicates OR must_be_alone(t.plan, p_mode, p_override)) OR s.tenant_count = 0 AND NOT runs_instances(s.server_id))
        AND (p_override OR s.tenant_count < p_limits.max_tenants AND COALESCE(s.memory_pct, 0) < p_limits.memory_pct
            -- what an empty server is busy with is its own start
            AND (must_be_alone(t.plan, p_mode, p_override) OR NOT (has_reached(s.cpu_pct, p_limits.cpu_pct) OR has_reached(s.worker_slots_pct, p_limits.worker_slots_pct)))
            AND (s.dedicated_for_tenant_id IS NOT NULL OR f.serves_tenants IS NOT FALSE
                -- a warm server is for tenants of its plan with a dedicated server
                AND (s.warm_plan IS NULL OR p_mode = 'one_tenant_one_server' AND s.warm_plan = t.plan)))
$$;
