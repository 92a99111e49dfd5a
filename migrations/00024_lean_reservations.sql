-- +goose Up

-- A reservation writes ten references to rows that it has just read and holds: reserve_placement
-- and reserve_placements are the only ones that do. Checking each again was half of a
-- reservation. What remains of these foreign keys is that nobody deletes what is referred to.
ALTER TABLE tenant_allocations
    DROP CONSTRAINT tenant_allocations_tenant_id_fkey, DROP CONSTRAINT tenant_allocations_app_server_id_fkey, DROP CONSTRAINT tenant_allocations_db_shard_id_fkey,
    DROP CONSTRAINT tenant_allocations_redis_pool_id_fkey, DROP CONSTRAINT tenant_allocations_pool_site_id_fkey, DROP CONSTRAINT tenant_allocations_infra_provider_fkey;
ALTER TABLE allocation_snapshots DROP CONSTRAINT allocation_snapshots_tenant_id_fkey, DROP CONSTRAINT allocation_snapshots_allocation_id_fkey;
ALTER TABLE tenant_lifecycle_events DROP CONSTRAINT tenant_lifecycle_events_tenant_id_fkey;
ALTER TABLE site_pool DROP CONSTRAINT site_pool_tenant_id_fkey;

-- +goose StatementBegin
CREATE FUNCTION refuse_referenced() RETURNS trigger LANGUAGE plpgsql AS $$
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
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION forget_site() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tenant_allocations SET pool_site_id = NULL WHERE pool_site_id = OLD.pool_site_id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tenants_referenced AFTER DELETE ON tenants FOR EACH ROW EXECUTE FUNCTION refuse_referenced();
CREATE TRIGGER servers_referenced AFTER DELETE ON servers FOR EACH ROW EXECUTE FUNCTION refuse_referenced();
CREATE TRIGGER db_shards_referenced AFTER DELETE ON db_shards FOR EACH ROW EXECUTE FUNCTION refuse_referenced();
CREATE TRIGGER redis_pools_referenced AFTER DELETE ON redis_pools FOR EACH ROW EXECUTE FUNCTION refuse_referenced();
CREATE TRIGGER tenant_allocations_referenced AFTER DELETE ON tenant_allocations FOR EACH ROW EXECUTE FUNCTION refuse_referenced();
CREATE TRIGGER infra_providers_referenced AFTER DELETE ON infra_providers FOR EACH ROW EXECUTE FUNCTION refuse_referenced();
CREATE TRIGGER site_pool_forgotten AFTER DELETE ON site_pool FOR EACH ROW EXECUTE FUNCTION forget_site();

-- The condition of a trigger is prepared by every statement that might fire it, which for
-- servers was a third of a reservation. With a list of columns it is looked at by statements
-- that set one of them. The names stay: triggers fire in their order.
DROP TRIGGER servers_keep_shards_and_pools ON servers;
CREATE TRIGGER servers_keep_shards_and_pools AFTER UPDATE OF status ON servers FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION keep_shards_and_pools();
DROP TRIGGER servers_cordon ON servers;
CREATE TRIGGER servers_cordon AFTER UPDATE OF cordoned_at ON servers FOR EACH ROW
    WHEN (OLD.cordoned_at IS DISTINCT FROM NEW.cordoned_at AND NEW.status = 'active') EXECUTE FUNCTION cordon_shards_and_pools();
DROP TRIGGER servers_stay_cordoned ON servers;
CREATE TRIGGER servers_stay_cordoned AFTER UPDATE OF status ON servers FOR EACH ROW
    WHEN (NEW.cordoned_at IS NOT NULL AND NEW.status = 'active' AND OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION cordon_shards_and_pools();
DROP TRIGGER servers_cordon_noted ON servers;
CREATE TRIGGER servers_cordon_noted BEFORE UPDATE OF cordoned_at ON servers FOR EACH ROW
    WHEN (OLD.cordoned_at IS DISTINCT FROM NEW.cordoned_at AND OLD.changed_xid = NEW.changed_xid) EXECUTE FUNCTION note_change();
DROP TRIGGER servers_refuse_cordoned ON servers;
CREATE TRIGGER servers_refuse_cordoned BEFORE UPDATE OF tenant_count ON servers FOR EACH ROW
    WHEN (NEW.cordoned_at IS NOT NULL AND NEW.tenant_count > OLD.tenant_count) EXECUTE FUNCTION refuse_cordoned();
DROP TRIGGER servers_note_change ON servers;
CREATE TRIGGER servers_note_tenants BEFORE UPDATE OF tenant_count, dedicated_for_tenant_id ON servers FOR EACH ROW
    WHEN (OLD.changed_xid = NEW.changed_xid AND (OLD.tenant_count <> NEW.tenant_count OR OLD.dedicated_for_tenant_id IS DISTINCT FROM NEW.dedicated_for_tenant_id))
    EXECUTE FUNCTION note_change();
CREATE TRIGGER servers_note_change BEFORE UPDATE OF status, accepts_trial, warm_plan, image, fleet_id, agent_status, memory_pct, cpu_pct, worker_slots_pct, db_disk_pct, redis_memory_pct
    ON servers FOR EACH ROW
    WHEN (OLD.changed_xid = NEW.changed_xid AND (OLD.status IS DISTINCT FROM NEW.status OR OLD.accepts_trial IS DISTINCT FROM NEW.accepts_trial
       OR OLD.warm_plan IS DISTINCT FROM NEW.warm_plan OR OLD.image IS DISTINCT FROM NEW.image OR OLD.fleet_id IS DISTINCT FROM NEW.fleet_id
       OR (OLD.agent_status = 'connected') IS DISTINCT FROM (NEW.agent_status = 'connected')
       OR floor(OLD.memory_pct / 5) IS DISTINCT FROM floor(NEW.memory_pct / 5)
       OR floor(OLD.cpu_pct / 5) IS DISTINCT FROM floor(NEW.cpu_pct / 5)
       OR floor(OLD.worker_slots_pct / 5) IS DISTINCT FROM floor(NEW.worker_slots_pct / 5)
       OR floor(OLD.db_disk_pct / 5) IS DISTINCT FROM floor(NEW.db_disk_pct / 5)
       OR floor(OLD.redis_memory_pct / 5) IS DISTINCT FROM floor(NEW.redis_memory_pct / 5)))
    EXECUTE FUNCTION note_change();
DROP TRIGGER tenants_counted ON tenants;
CREATE TRIGGER tenants_counted AFTER UPDATE OF state, converged_state, plan, storage_quota_gb ON tenants FOR EACH ROW
    WHEN (OLD.state <> NEW.state OR OLD.converged_state <> NEW.converged_state OR OLD.plan <> NEW.plan OR OLD.storage_quota_gb <> NEW.storage_quota_gb)
    EXECUTE FUNCTION count_change();
