-- The half of a foreign key for rows that reservations refer to: a referenced row is not deleted. The other half is
-- the reservation itself, which reads and holds each row before it refers to it; checking that again was half of its
-- time.
CREATE OR REPLACE FUNCTION refuse_referenced() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    referenced boolean;
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'tenants' THEN
        referenced := EXISTS (SELECT FROM tenant_allocations WHERE tenant_id = OLD.tenant_id) OR EXISTS (SELECT FROM allocation_snapshots WHERE tenant_id = OLD.tenant_id)
            OR EXISTS (SELECT FROM tenant_lifecycle_events WHERE tenant_id = OLD.tenant_id) OR EXISTS (SELECT FROM site_pool WHERE tenant_id = OLD.tenant_id);
    WHEN 'servers' THEN referenced := EXISTS (SELECT FROM tenant_allocations WHERE app_server_id = OLD.server_id);
    WHEN 'db_shards' THEN referenced := EXISTS (SELECT FROM tenant_allocations WHERE db_shard_id = OLD.shard_id);
    WHEN 'redis_pools' THEN referenced := EXISTS (SELECT FROM tenant_allocations WHERE redis_pool_id = OLD.pool_id);
    WHEN 'tenant_allocations' THEN referenced := EXISTS (SELECT FROM allocation_snapshots WHERE allocation_id = OLD.allocation_id);
    WHEN 'infra_providers' THEN referenced := EXISTS (SELECT FROM tenant_allocations WHERE infra_provider = OLD.id);
    END CASE;
    IF referenced THEN
        RAISE EXCEPTION 'a row of % is referred to', TG_TABLE_NAME USING ERRCODE = 'foreign_key_violation', CONSTRAINT = TG_NAME;
    END IF;
    RETURN NULL;
END $$;
