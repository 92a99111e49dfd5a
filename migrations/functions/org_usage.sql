-- org_usage counts what an org uses of each dimension asked for, and nothing else
-- (quotas-and-fairness, "What counts as usage"). It is the one place that knows what
-- counts. Its statements are planned once per session: to plan them for each org takes
-- longer than to count.
CREATE OR REPLACE FUNCTION org_usage(p_org text, p_dimensions text[]) RETURNS TABLE (dimension text, usage float8) LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    instances float8 := 0; memory float8 := 0; cpu float8 := 0; storage float8 := 0;
    i_n float8; i_memory float8; i_cpu float8; overhead float8;
BEGIN
    IF p_dimensions && '{max_instances,max_total_memory_bytes,max_total_cpu_request,max_total_volume_bytes}'::text[] THEN
        SELECT overhead_bytes_per_instance INTO STRICT overhead FROM workload_settings;
        SELECT count(*), COALESCE(sum(memory_bytes), 0) + count(*) * overhead, COALESCE(sum(cpu_request), 0), COALESCE(sum(storage_bytes), 0)
        INTO instances, memory, cpu, storage FROM counted_tenants t WHERE t.org_id = p_org;
    END IF;
    IF p_dimensions && '{max_instances,max_total_memory_bytes,max_total_cpu_request}'::text[] THEN
        SELECT count(*), COALESCE(sum(memory_limit_bytes), 0) + count(*) * overhead, COALESCE(sum(cpu_request), 0)
        INTO i_n, i_memory, i_cpu FROM instances i WHERE i.org_id = p_org AND i.state <> 'stopped';
        instances := instances + i_n; memory := memory + i_memory; cpu := cpu + i_cpu;
    END IF;
    FOREACH dimension IN ARRAY p_dimensions LOOP
        CASE dimension
        WHEN 'max_instances' THEN usage := instances;
        WHEN 'max_total_memory_bytes' THEN usage := memory;
        WHEN 'max_total_cpu_request' THEN usage := cpu;
        WHEN 'max_apps' THEN SELECT count(*) INTO usage FROM apps a WHERE a.org_id = p_org AND a.deleted_at IS NULL;
        WHEN 'max_envs' THEN SELECT count(*) INTO usage FROM envs e WHERE e.org_id = p_org AND e.deleted_at IS NULL;
        WHEN 'max_routes' THEN SELECT count(*) INTO usage FROM routes r WHERE r.org_id = p_org AND r.deleted_at IS NULL;
        WHEN 'max_hostnames' THEN SELECT count(*) INTO usage FROM domains d WHERE d.org_id = p_org AND d.deleted_at IS NULL AND d.status = 'verified';
        WHEN 'max_public_ports' THEN
            -- a binding is an address and a port: the address is shared, or the env's
            SELECT count(*) INTO usage FROM (SELECT DISTINCT listener_scope, CASE listener_scope WHEN 'env_v4' THEN env_id END, listen_port
                FROM routes r WHERE r.org_id = p_org AND r.deleted_at IS NULL) p;
        WHEN 'max_ipv4_allocations' THEN SELECT count(*) INTO usage FROM ipv4_allocations a WHERE a.org_id = p_org AND a.deleted_at IS NULL;
        WHEN 'max_volumes' THEN SELECT count(*) INTO usage FROM volumes v WHERE v.org_id = p_org AND v.deleted_at IS NULL;
        WHEN 'max_total_volume_bytes' THEN SELECT storage + COALESCE(sum(size_bytes), 0) INTO usage FROM volumes v WHERE v.org_id = p_org AND v.deleted_at IS NULL;
        WHEN 'max_volume_attachments' THEN SELECT count(*) INTO usage FROM volume_attachments a WHERE a.org_id = p_org AND a.deleted_at IS NULL;
        WHEN 'max_restore_jobs' THEN SELECT count(*) INTO usage FROM restores_under_way j WHERE j.org_id = p_org;
        ELSE usage := org_open(p_org, dimension);
        END CASE;
        RETURN NEXT;
    END LOOP;
END $$;
