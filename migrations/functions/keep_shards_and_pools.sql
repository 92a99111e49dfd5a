-- A server that became active is ready for placement: a db-shard or node has its
-- shard, a redis-pool or node its pool, from the same statement on. What leaves the
-- fleet takes them along. A changed lock or capacity holds for what comes; tenants that are there stay.
CREATE OR REPLACE FUNCTION keep_shards_and_pools() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    capacity integer;
BEGIN
    IF NEW.status IN ('draining', 'terminated') THEN
        UPDATE site_pool SET state = 'draining', updated_at = now()
        WHERE state = 'available' AND (app_server_id = NEW.server_id OR db_shard_id IN (SELECT shard_id FROM db_shards WHERE server_id = NEW.server_id));
    END IF;
    SELECT COALESCE(NEW.tenant_capacity, c.tenant_capacity) INTO capacity
    FROM capacity_defaults c WHERE c.role = NEW.role;
    IF NEW.role NOT IN ('db-shard', 'redis-pool', 'node') OR NEW.status = 'provisioning' THEN
        RETURN NULL;
    END IF;
    IF NEW.status = OLD.status THEN
        UPDATE db_shards SET plan_tier_lock = NEW.plan_tier_lock, tenant_capacity = capacity
        WHERE server_id = NEW.server_id;
        UPDATE redis_pools SET tenant_capacity = capacity WHERE server_id = NEW.server_id;
    ELSIF NEW.status = 'active' THEN
        IF NEW.role IN ('db-shard', 'node') THEN
            INSERT INTO db_shards (shard_id, server_id, region, on_node, plan_tier_lock, tenant_capacity)
            VALUES (NEW.server_id, NEW.server_id, NEW.region, NEW.role = 'node', NEW.plan_tier_lock, capacity)
            ON CONFLICT (shard_id) DO UPDATE SET status = 'active';
        END IF;
        IF NEW.role IN ('redis-pool', 'node') THEN
            INSERT INTO redis_pools (pool_id, server_id, region, on_node, tenant_capacity)
            VALUES (NEW.server_id, NEW.server_id, NEW.region, NEW.role = 'node', capacity)
            ON CONFLICT (pool_id) DO UPDATE SET status = 'active';
        END IF;
    ELSE
        UPDATE db_shards SET status = NEW.status WHERE server_id = NEW.server_id AND status IS DISTINCT FROM NEW.status;
        UPDATE redis_pools SET status = NEW.status WHERE server_id = NEW.server_id AND status IS DISTINCT FROM NEW.status;
    END IF;
    RETURN NULL;
END $$;
