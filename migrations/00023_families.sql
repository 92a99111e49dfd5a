-- +goose Up
-- Placement reads which parent orgs have tenants on a server or shard that changed. Both
-- are found by what changed; without these each look reads every tenant.
CREATE INDEX tenant_allocations_by_shard ON tenant_allocations (db_shard_id) WHERE released_at IS NULL;
CREATE INDEX tenants_with_parent ON tenants (tenant_id) INCLUDE (parent_org_id) WHERE parent_org_id IS NOT NULL;
