-- A site that is dropped is no longer an allocation's.
CREATE OR REPLACE FUNCTION forget_site() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tenant_allocations SET pool_site_id = NULL WHERE pool_site_id = OLD.pool_site_id;
    RETURN NULL;
END $$;
