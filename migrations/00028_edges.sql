-- +goose Up

-- Servers that answer the public. No tenant is placed on them, so neither placement nor
-- the shards and pools of servers know the role.
ALTER TABLE servers DROP CONSTRAINT servers_role_check, ADD CONSTRAINT servers_role_check
    CHECK (role IN ('app', 'db-shard', 'redis-pool', 'node', 'edge'));
ALTER TABLE fleets DROP CONSTRAINT fleets_role_check, ADD CONSTRAINT fleets_role_check
    CHECK (role IN ('app', 'db-shard', 'redis-pool', 'node', 'edge'));
