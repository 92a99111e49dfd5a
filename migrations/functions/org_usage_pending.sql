-- org_usage_pending is the sum of an org's changes that are not in its counters yet, by kind and key: the new state
-- of the part, and its effect on which dimensions. Only changed parts are read. A tenant that does not live and a
-- group that waits for instances count by their present rows, less the previous count: a change that is read twice,
-- or with another's, adds nothing twice.
CREATE OR REPLACE FUNCTION org_usage_pending(p_org text)
RETURNS TABLE (kind text, key text, n numeric, memory numeric, cpu numeric, bytes numeric, promised_n numeric, promised_memory numeric, promised_cpu numeric,
    dimensions text[], used numeric[], promised numeric[]) LANGUAGE sql STABLE AS $$
    SELECT c.kind, c.key, v.n, v.memory, v.cpu, v.bytes, v.promised_n, v.promised_memory, v.promised_cpu,
        CASE WHEN c.kind IN ('tenants', 'tenant', 'instances', 'group') THEN '{max_instances,max_total_memory_bytes,max_total_cpu_request,max_total_volume_bytes}'::text[]
             WHEN c.kind = 'hostname' THEN '{max_hostnames}' WHEN c.kind = 'port' THEN '{max_public_ports}' WHEN c.kind = 'volumes' THEN '{max_volumes,max_total_volume_bytes}'
             ELSE ARRAY['max_' || c.kind] END,
        CASE c.kind
             WHEN 'tenant' THEN ARRAY[v.n - p.n, v.memory - p.memory + (v.n - p.n) * o.overhead, v.cpu - p.cpu, v.bytes - p.bytes]
             WHEN 'tenants' THEN ARRAY[c.n, c.memory + c.n * o.overhead, c.cpu, c.bytes]
             WHEN 'instances' THEN ARRAY[c.n, c.memory + c.n * o.overhead, c.cpu, 0]
             WHEN 'group' THEN '{0,0,0,0}'
             WHEN 'volumes' THEN ARRAY[c.n, c.bytes]
             WHEN 'hostname' THEN ARRAY[(v.n > 0)::int - (p.n > 0)::int]
             WHEN 'port' THEN ARRAY[(v.n > 0)::int - (p.n > 0)::int]
             ELSE ARRAY[c.n] END,
        CASE c.kind WHEN 'group' THEN ARRAY[v.promised_n - p.promised_n, v.promised_memory - p.promised_memory, v.promised_cpu - p.promised_cpu, 0] ELSE '{0,0,0,0}' END
    FROM (
        SELECT kind, key, sum(n) AS n, sum(memory) AS memory, sum(cpu) AS cpu, sum(bytes) AS bytes FROM org_usage_changes WHERE org_id = p_org GROUP BY kind, key
    ) c
    CROSS JOIN (SELECT overhead_bytes_per_instance::numeric AS overhead FROM workload_settings) o
    LEFT JOIN org_usage_parts k ON k.org_id = p_org AND k.kind = c.kind AND k.key = c.key
    CROSS JOIN LATERAL (SELECT COALESCE(k.n, 0) AS n, COALESCE(k.memory, 0) AS memory, COALESCE(k.cpu, 0) AS cpu, COALESCE(k.bytes, 0) AS bytes,
        COALESCE(k.promised_n, 0) AS promised_n, COALESCE(k.promised_memory, 0) AS promised_memory, COALESCE(k.promised_cpu, 0) AS promised_cpu) p
    LEFT JOIN LATERAL (SELECT t.* FROM lingering_tenants t WHERE c.kind = 'tenant' AND t.tenant_id = c.key) l ON true
    LEFT JOIN LATERAL (SELECT g.replicas, g.memory_limit_bytes, g.cpu_request FROM process_groups g WHERE c.kind = 'group' AND g.group_id = c.key AND g.deleted_at IS NULL) g ON true
    CROSS JOIN LATERAL (SELECT
        CASE c.kind WHEN 'tenant' THEN (l.tenant_id IS NOT NULL)::int ELSE p.n + c.n END AS n,
        CASE c.kind WHEN 'tenant' THEN COALESCE(l.memory_bytes, 0) ELSE p.memory + c.memory END AS memory,
        CASE c.kind WHEN 'tenant' THEN COALESCE(l.cpu_request::numeric, 0) ELSE p.cpu + c.cpu END AS cpu,
        CASE c.kind WHEN 'tenant' THEN COALESCE(l.storage_bytes, 0) ELSE 0 END AS bytes) h
    CROSS JOIN LATERAL (SELECT h.*,
        GREATEST(COALESCE(g.replicas, 0) - h.n, 0) AS promised_n,
        GREATEST(COALESCE(g.replicas * (g.memory_limit_bytes + o.overhead), 0) - (h.memory + h.n * o.overhead), 0) AS promised_memory,
        GREATEST(COALESCE(g.replicas * g.cpu_request::numeric, 0) - h.cpu, 0) AS promised_cpu) v
$$;
