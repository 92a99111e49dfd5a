-- fold_org_usage brings an org's counters up to its changes, with the org held; false when another transaction holds
-- it. One statement reads the changes, deletes them and adds them: later commits stay for the next time.
CREATE OR REPLACE FUNCTION fold_org_usage(p_org text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM orgs WHERE org_id = p_org FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN false; END IF;
    WITH pending AS MATERIALIZED (
        SELECT p.*, p.kind IN ('tenant', 'group', 'hostname', 'port') AS part,
            p.n = 0 AND p.memory = 0 AND p.cpu = 0 AND p.bytes = 0 AND p.promised_n = 0 AND p.promised_memory = 0 AND p.promised_cpu = 0 AS empty
        FROM org_usage_pending(p_org) p
    ), counted AS (
        DELETE FROM org_usage_changes WHERE org_id = p_org
    ), kept AS (
        INSERT INTO org_usage_parts AS k (org_id, kind, key, n, memory, cpu, bytes, promised_n, promised_memory, promised_cpu)
        SELECT p_org, kind, key, n, memory, cpu, bytes, promised_n, promised_memory, promised_cpu FROM pending WHERE part AND NOT empty
        ON CONFLICT (org_id, kind, key) DO UPDATE SET n = EXCLUDED.n, memory = EXCLUDED.memory, cpu = EXCLUDED.cpu, bytes = EXCLUDED.bytes,
            promised_n = EXCLUDED.promised_n, promised_memory = EXCLUDED.promised_memory, promised_cpu = EXCLUDED.promised_cpu
    ), ended AS (
        DELETE FROM org_usage_parts k USING pending p WHERE p.part AND p.empty AND k.org_id = p_org AND k.kind = p.kind AND k.key = p.key
    )
    INSERT INTO org_counters AS c (org_id, dimension, used, promised)
    SELECT p_org, u.dimension, sum(u.used), sum(u.promised)
    FROM pending p CROSS JOIN LATERAL unnest(p.dimensions, p.used, p.promised[:cardinality(p.used)]) u (dimension, used, promised)
    GROUP BY u.dimension HAVING sum(u.used) <> 0 OR sum(u.promised) <> 0
    ON CONFLICT (org_id, dimension) DO UPDATE SET used = c.used + EXCLUDED.used, promised = c.promised + EXCLUDED.promised;
    RETURN true;
END $$;
