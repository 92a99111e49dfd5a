-- +goose Up

-- Where the data of a tenant is. Of sites made before this, it is on their app server; a node
-- has everything itself.
ALTER TABLE site_pool ADD COLUMN on_shard boolean NOT NULL DEFAULT false; -- the database is on the shard's server
ALTER TABLE tenant_allocations
    ADD COLUMN on_shard boolean NOT NULL DEFAULT false,
    ADD COLUMN on_pool boolean NOT NULL DEFAULT false, -- the cache is in the Redis pool
    ADD COLUMN password_version integer NOT NULL DEFAULT 0; -- of its passwords, which are derived from it

-- Databases on shards whose site's server is gone.
CREATE INDEX site_pool_left ON site_pool (app_server_id) WHERE on_shard AND dropped_at IS NULL AND state IN ('draining', 'failed');

-- +goose StatementBegin
CREATE FUNCTION choose_data_hosts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER site_pool_data BEFORE INSERT ON site_pool FOR EACH ROW EXECUTE FUNCTION choose_data_hosts();
CREATE TRIGGER tenant_allocations_data BEFORE INSERT ON tenant_allocations FOR EACH ROW EXECUTE FUNCTION choose_data_hosts();
