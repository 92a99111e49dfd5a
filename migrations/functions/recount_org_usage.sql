-- recount_org_usage counts an org again from its rows, with the org held until the transaction ends. Like folding it
-- is one statement: it drops the changes of exactly the rows that it counts.
CREATE OR REPLACE FUNCTION recount_org_usage(p_org text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM orgs WHERE org_id = p_org FOR NO KEY UPDATE;
    WITH changes AS (
        DELETE FROM org_usage_changes WHERE org_id = p_org
    ), parts AS (
        DELETE FROM org_usage_parts WHERE org_id = p_org
    ), counters AS (
        DELETE FROM org_counters WHERE org_id = p_org
    )
    INSERT INTO org_usage_changes (org_id, kind, key, n, memory, cpu, bytes)
    SELECT org_id, kind, key, n, memory, cpu, bytes FROM org_usage_rows WHERE org_id = p_org;
    PERFORM fold_org_usage(p_org);
END $$;
