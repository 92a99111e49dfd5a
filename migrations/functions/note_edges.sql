-- Notes in the feed what edges serve otherwise from now on: a tenant's site, or a process
-- group's instances and routes.
CREATE OR REPLACE FUNCTION note_edges() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'tenants', 'tenant_allocations', 'restore_jobs', 'tenant_moves' THEN INSERT INTO changes (kind, id) VALUES ('tenants', NEW.tenant_id);
    WHEN 'instances', 'routes' THEN INSERT INTO changes (kind, id) VALUES ('groups', NEW.group_id);
    END CASE;
    RETURN NULL;
END $$;
