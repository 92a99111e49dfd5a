-- Whether a dimension has counters; open work is counted on demand (org_open).
CREATE OR REPLACE FUNCTION is_counted(p_dimension text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT p_dimension IN ('max_instances', 'max_total_memory_bytes', 'max_total_cpu_request', 'max_envs', 'max_apps', 'max_routes', 'max_public_ports',
        'max_ipv4_allocations', 'max_hostnames', 'max_volumes', 'max_total_volume_bytes', 'max_volume_attachments', 'max_restore_jobs')
$$;
