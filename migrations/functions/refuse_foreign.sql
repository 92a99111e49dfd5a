-- Refuses a change of a row by a customer's request that does not reach the row's org (prego_orgs), before and after the
-- change. The arguments are the columns of what the row belongs to, of which the first that is set counts.
CREATE OR REPLACE FUNCTION refuse_foreign() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    r   jsonb;
    c   text;
    org text;
BEGIN
    FOREACH r IN ARRAY CASE TG_OP WHEN 'INSERT' THEN ARRAY[to_jsonb(NEW)] WHEN 'DELETE' THEN ARRAY[to_jsonb(OLD)] ELSE ARRAY[to_jsonb(OLD), to_jsonb(NEW)] END LOOP
        org := NULL;
        FOREACH c IN ARRAY TG_ARGV LOOP
            CASE c
            WHEN 'org_id' THEN org := r ->> c;
            WHEN 'tenant_id' THEN SELECT t.org_id INTO org FROM tenants t WHERE t.tenant_id = r ->> c;
            WHEN 'volume_id' THEN SELECT v.org_id INTO org FROM volumes v WHERE v.volume_id = r ->> c;
            WHEN 'group_id' THEN SELECT g.org_id INTO org FROM process_groups g WHERE g.group_id = r ->> c;
            WHEN 'principal_id' THEN SELECT p.org_id INTO org FROM principals p WHERE p.principal_id = r ->> c;
            END CASE;
            EXIT WHEN org IS NOT NULL;
        END LOOP;
        IF (org = ANY (prego_orgs())) IS NOT TRUE THEN
            RAISE EXCEPTION 'a row of % belongs to an org that the request does not reach', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
        END IF;
    END LOOP;
    RETURN COALESCE(NEW, OLD);
END $$;
