-- +goose Up

-- Tenants that some run is to see to. Their column never changes: with updated_at in an
-- index every update of a tenant was one of all its indexes.
DROP INDEX tenants_unsettled;
CREATE INDEX tenants_provisioning ON tenants (tenant_id) WHERE state IN ('trial', 'provisioning');
CREATE INDEX tenants_moving ON tenants (tenant_id) WHERE (converged_state <> state) IS TRUE;
CREATE INDEX tenants_failed ON tenants (tenant_id) WHERE state = 'failed';
-- Two columns that differ are expected to differ nearly always. Statistics of an expression
-- are looked at for IS TRUE, and not for <>.
CREATE STATISTICS tenants_moving ON (converged_state <> state) FROM tenants;

-- Lists are read from ranges of these: store/list.go, spread. One that is unique
-- in the order of the list follows the columns of the filters.
CREATE INDEX tenants_listing_live ON tenants (created_at DESC, tenant_id DESC) WHERE state NOT IN ('terminated', 'data_purged');
DROP INDEX tenants_listing;
CREATE INDEX tenants_filtered ON tenants (region, plan, state, created_at DESC, tenant_id DESC);
CREATE INDEX tenants_filtered_by_slug ON tenants (region, plan, state, slug, tenant_id);
DROP INDEX tenants_by_org;
CREATE INDEX tenants_by_org ON tenants (org_id, region, plan, state, created_at DESC, tenant_id DESC);
CREATE INDEX tenants_by_org_and_slug ON tenants (org_id, region, plan, state, slug, tenant_id);
CREATE INDEX tenants_by_parent ON tenants (parent_org_id, region, plan, state, created_at DESC, tenant_id DESC) WHERE parent_org_id IS NOT NULL;
CREATE INDEX tenants_by_parent_and_slug ON tenants (parent_org_id, region, plan, state, slug, tenant_id) WHERE parent_org_id IS NOT NULL;

CREATE INDEX servers_listing_live ON servers (created_at DESC, server_id DESC) WHERE status <> 'terminated';
DROP INDEX servers_listing;
CREATE INDEX servers_live ON servers (server_id) WHERE status <> 'terminated';
CREATE INDEX servers_filtered ON servers (infra_provider, region, role, status, agent_status, created_at DESC, server_id DESC);
CREATE INDEX servers_filtered_by_id ON servers (infra_provider, region, role, status, agent_status, server_id);
CREATE INDEX servers_of_fleet ON servers (fleet_id, infra_provider, region, role, status, agent_status, created_at DESC, server_id DESC) WHERE fleet_id IS NOT NULL;
CREATE INDEX servers_of_fleet_by_id ON servers (fleet_id, infra_provider, region, role, status, agent_status, server_id) WHERE fleet_id IS NOT NULL;

DROP INDEX scaling_events_by_region;
CREATE INDEX scaling_events_by_region ON scaling_events (region, role, trigger, event_id DESC);

CREATE INDEX servers_warm ON servers (region, warm_plan) WHERE warm_plan IS NOT NULL;

-- Each site has its turn to be measured, from its activation on.
INSERT INTO site_usage (tenant_id, quota_gb, tried_at)
SELECT tenant_id, storage_quota_gb, 'epoch' FROM tenants WHERE state IN ('active', 'suspended', 'grace_period') ON CONFLICT (tenant_id) DO NOTHING;
DROP INDEX site_usage_turn;
CREATE INDEX site_usage_turn ON site_usage (tried_at, tenant_id);
CREATE INDEX site_usage_ok ON site_usage (level) WHERE level = 'ok' AND measured_at IS NOT NULL;

CREATE INDEX org_events_by_subject ON org_events (org_id, subject, event_id DESC);
CREATE INDEX org_events_by_actor ON org_events (org_id, actor, event_id DESC);
CREATE INDEX org_events_by_type ON org_events (org_id, type text_pattern_ops, event_id DESC);

DROP INDEX instances_by_server;
CREATE INDEX instances_by_server ON instances (server_id) INCLUDE (memory_limit_bytes, cpu_request, group_id) WHERE state <> 'stopped';

-- What stands ready on each server, for the sweep of all pools.
CREATE INDEX site_pool_ready ON site_pool (app_server_id, db_shard_id) WHERE state = 'available' OR (state = 'reserved' AND tenant_id IS NULL);

-- Who looks whether a sweep has something to do, and when somebody did. A look that is
-- under way is leased: when its worker dies, another one looks as soon as the lease ends.
CREATE TABLE looks (
    look          text PRIMARY KEY,
    holder        text NOT NULL,
    leased_until  timestamptz NOT NULL,
    began_at      timestamptz NOT NULL,
    every_seconds double precision NOT NULL,
    pause_seconds double precision NOT NULL DEFAULT 0, -- at least, until the next one
    looked_at     timestamptz, -- when one last succeeded
    found_at      timestamptz, -- when one last found something to do
    took_seconds  double precision NOT NULL DEFAULT 0,
    error         text NOT NULL DEFAULT '' -- of the last one, '' if it succeeded
);

-- Groups whose instances fit nowhere are tried again later and later, until something became
-- free in their region, or another release of theirs is wanted. Of those that are due, who was
-- tried longest ago is first.
ALTER TABLE process_groups
    ADD COLUMN tried_at      timestamptz, -- NULL: never
    ADD COLUMN tried_release integer NOT NULL DEFAULT 0,
    ADD COLUMN tries         integer NOT NULL DEFAULT 0, -- in vain, since one found a place
    ADD COLUMN retry_at      timestamptz;
CREATE TABLE region_room (
    region   text PRIMARY KEY,
    freed_at timestamptz NOT NULL -- when room for instances last became free
);

ANALYZE tenants;
