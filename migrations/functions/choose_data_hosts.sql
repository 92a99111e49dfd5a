-- choose_data_hosts decides where the database and the cache of a new site are: on the shard
-- and in the pool, if the app server reaches them, which takes addresses in one private
-- network, and else on the app server. It stays so for the site's life. A tenant that gets a
-- pool site has its database where the site has it.
CREATE OR REPLACE FUNCTION choose_data_hosts() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    network text;
BEGIN
    SELECT s.network_id INTO network FROM servers s WHERE s.server_id = NEW.app_server_id AND s.role = 'app' AND s.private_address IS NOT NULL;
    IF TG_TABLE_NAME = 'tenant_allocations' AND NEW.pool_site_id IS NOT NULL THEN
        NEW.on_shard := COALESCE((SELECT p.on_shard FROM site_pool p WHERE p.pool_site_id = NEW.pool_site_id), false);
    ELSIF network IS NOT NULL THEN
        NEW.on_shard := EXISTS (SELECT FROM db_shards d JOIN servers h ON h.server_id = d.server_id
            WHERE d.shard_id = NEW.db_shard_id AND h.network_id = network AND h.private_address IS NOT NULL);
    END IF;
    IF TG_TABLE_NAME = 'tenant_allocations' AND network IS NOT NULL THEN
        NEW.on_pool := EXISTS (SELECT FROM redis_pools r JOIN servers h ON h.server_id = r.server_id
            WHERE r.pool_id = NEW.redis_pool_id AND h.network_id = network AND h.private_address IS NOT NULL);
    END IF;
    RETURN NEW;
END $$;
