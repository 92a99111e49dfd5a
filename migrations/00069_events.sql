-- +goose NO TRANSACTION
-- +goose Up

-- Not in one transaction: each trigger locks its table for an instant, and indexes are built beside writers. What an
-- interrupted run has made is made again.

-- What happens, in one order: the feed that callers follow (docs/adr/0069). The order is that of transactions, and within one
-- that of its rows. A reader is given what transactions wrote that are older than any that is still running, so that
-- nothing can come before what it was given already: not in whatever order they commit.
--
-- Rows come from triggers, so that no statement can forget one; and are pruned from the beginning.
CREATE TABLE IF NOT EXISTS events (
    xid     xid8 NOT NULL DEFAULT pg_current_xact_id(),
    seq     bigint GENERATED ALWAYS AS IDENTITY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind    text NOT NULL, -- of the object
    id      text NOT NULL,
    org_id  text,          -- that owns it
    about   text[] NOT NULL DEFAULT '{}', -- ids of other objects that it concerns
    step    text NOT NULL,
    status  text NOT NULL DEFAULT '',
    reason  text NOT NULL DEFAULT '',
    message text NOT NULL DEFAULT '',
    actor   text NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS events_order ON events (xid, seq);

-- How far the feed is pruned: the newest that is gone is (through_xid, through).
ALTER TABLE pruned ADD COLUMN IF NOT EXISTS through_xid xid8 NOT NULL DEFAULT '0';

-- Lines of timelines, and things that are new: all of a statement at once. What an org's events say as well as a state does
-- is told once.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION note_events() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION note_event() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
-- +goose StatementEnd

CREATE OR REPLACE TRIGGER server_events_told AFTER INSERT ON server_events REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER tenant_lifecycle_events_told AFTER INSERT ON tenant_lifecycle_events REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER org_events_told AFTER INSERT ON org_events REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER scaling_events_told AFTER INSERT ON scaling_events REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER fleet_actions_told AFTER INSERT ON fleet_actions REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER instances_told AFTER INSERT ON instances REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER tenant_moves_told AFTER INSERT ON tenant_moves REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER backups_told AFTER INSERT ON backups REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER snapshots_told AFTER INSERT ON snapshots REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER restore_jobs_told AFTER INSERT ON restore_jobs REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER volume_restores_told AFTER INSERT ON volume_restores REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER drills_told AFTER INSERT ON drills REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER certificates_told AFTER INSERT ON certificates REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER rebalances_told AFTER INSERT ON rebalances REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER patch_waves_told AFTER INSERT ON patch_waves REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER stack_releases_told AFTER INSERT ON stack_releases REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER agent_releases_told AFTER INSERT ON agent_releases REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();
CREATE OR REPLACE TRIGGER golden_images_told AFTER INSERT ON golden_images REFERENCING NEW TABLE AS made FOR EACH STATEMENT EXECUTE FUNCTION note_events();

-- Changes of states.
CREATE OR REPLACE TRIGGER scaling_events_changed_told AFTER UPDATE OF finished_at ON scaling_events FOR EACH ROW
    WHEN (OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER fleet_actions_changed_told AFTER UPDATE OF status ON fleet_actions FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER fleet_action_steps_changed_told AFTER UPDATE OF state ON fleet_action_steps FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER process_groups_changed_told AFTER UPDATE OF status, status_reason, deploy_status ON process_groups FOR EACH ROW
    WHEN ((OLD.status, OLD.status_reason, OLD.deploy_status) IS DISTINCT FROM (NEW.status, NEW.status_reason, NEW.deploy_status)) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER instances_changed_told AFTER UPDATE OF state, healthy ON instances FOR EACH ROW
    WHEN ((OLD.state, OLD.healthy) IS DISTINCT FROM (NEW.state, NEW.healthy)) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER volumes_changed_told AFTER UPDATE OF status, reason, deleted_at ON volumes FOR EACH ROW
    WHEN ((OLD.status, OLD.reason, OLD.deleted_at) IS DISTINCT FROM (NEW.status, NEW.reason, NEW.deleted_at)) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER volume_attachments_changed_told AFTER UPDATE OF server_id ON volume_attachments FOR EACH ROW
    WHEN (OLD.server_id IS DISTINCT FROM NEW.server_id) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER ipv4_allocations_changed_told AFTER UPDATE OF status, reason, deleted_at ON ipv4_allocations FOR EACH ROW
    WHEN ((OLD.status, OLD.reason, OLD.deleted_at) IS DISTINCT FROM (NEW.status, NEW.reason, NEW.deleted_at)) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER tenant_moves_changed_told AFTER UPDATE OF state, reason ON tenant_moves FOR EACH ROW
    WHEN ((OLD.state, OLD.reason) IS DISTINCT FROM (NEW.state, NEW.reason)) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER backups_changed_told AFTER UPDATE OF state, verified_at, held_at ON backups FOR EACH ROW
    WHEN ((OLD.state, OLD.verified_at, OLD.held_at) IS DISTINCT FROM (NEW.state, NEW.verified_at, NEW.held_at)) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER snapshots_changed_told AFTER UPDATE OF status ON snapshots FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER restore_jobs_changed_told AFTER UPDATE OF status ON restore_jobs FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER volume_restores_changed_told AFTER UPDATE OF status ON volume_restores FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER drills_changed_told AFTER UPDATE OF state ON drills FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER certificates_changed_told AFTER UPDATE OF status, version, failures ON certificates FOR EACH ROW
    WHEN ((OLD.status, OLD.version) IS DISTINCT FROM (NEW.status, NEW.version) OR NEW.failures > OLD.failures) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER rebalances_changed_told AFTER UPDATE OF state ON rebalances FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER stack_releases_changed_told AFTER UPDATE OF status ON stack_releases FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER agent_releases_changed_told AFTER UPDATE OF status ON agent_releases FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION note_event();
CREATE OR REPLACE TRIGGER golden_images_changed_told AFTER UPDATE OF status ON golden_images FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION note_event();

-- Search: beginnings of ids, names and addresses, in any locale; and the newest of each kind, for parts of them, which is
-- also the order of lists over all orgs. Updates that change none of these columns stay as cheap as they are.
DROP INDEX CONCURRENTLY IF EXISTS tenants_begin;
CREATE INDEX CONCURRENTLY tenants_begin ON tenants (tenant_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS tenants_slug_begins;
CREATE INDEX CONCURRENTLY tenants_slug_begins ON tenants (slug text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS tenants_site_begins;
CREATE INDEX CONCURRENTLY tenants_site_begins ON tenants (site text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS servers_begin;
CREATE INDEX CONCURRENTLY servers_begin ON servers (server_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS servers_host_begins;
CREATE INDEX CONCURRENTLY servers_host_begins ON servers (host text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS servers_ipv6_begins;
CREATE INDEX CONCURRENTLY servers_ipv6_begins ON servers (ipv6 text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS servers_private_begins;
CREATE INDEX CONCURRENTLY servers_private_begins ON servers (host(private_address) text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS servers_provider_begins;
CREATE INDEX CONCURRENTLY servers_provider_begins ON servers (provider_server_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS orgs_begin;
CREATE INDEX CONCURRENTLY orgs_begin ON orgs (org_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS orgs_newest;
CREATE INDEX CONCURRENTLY orgs_newest ON orgs (created_at DESC, org_id DESC);
DROP INDEX CONCURRENTLY IF EXISTS apps_begin;
CREATE INDEX CONCURRENTLY apps_begin ON apps (app_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS apps_name_begins;
CREATE INDEX CONCURRENTLY apps_name_begins ON apps (name text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS envs_begin;
CREATE INDEX CONCURRENTLY envs_begin ON envs (env_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS envs_name_begins;
CREATE INDEX CONCURRENTLY envs_name_begins ON envs (name text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS process_groups_begin;
CREATE INDEX CONCURRENTLY process_groups_begin ON process_groups (group_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS process_groups_name_begins;
CREATE INDEX CONCURRENTLY process_groups_name_begins ON process_groups (name text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS instances_begin;
CREATE INDEX CONCURRENTLY instances_begin ON instances (instance_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS routes_begin;
CREATE INDEX CONCURRENTLY routes_begin ON routes (route_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS routes_hostname_begins;
CREATE INDEX CONCURRENTLY routes_hostname_begins ON routes (hostname text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS ipv4_allocations_begin;
CREATE INDEX CONCURRENTLY ipv4_allocations_begin ON ipv4_allocations (allocation_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS ipv4_allocations_name_begins;
CREATE INDEX CONCURRENTLY ipv4_allocations_name_begins ON ipv4_allocations (name text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS ipv4_allocations_address_begins;
CREATE INDEX CONCURRENTLY ipv4_allocations_address_begins ON ipv4_allocations (address text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS ipv4_allocations_provider_begins;
CREATE INDEX CONCURRENTLY ipv4_allocations_provider_begins ON ipv4_allocations (provider_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS volumes_begin;
CREATE INDEX CONCURRENTLY volumes_begin ON volumes (volume_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS volumes_name_begins;
CREATE INDEX CONCURRENTLY volumes_name_begins ON volumes (name text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS volumes_provider_begins;
CREATE INDEX CONCURRENTLY volumes_provider_begins ON volumes (provider_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS domains_begin;
CREATE INDEX CONCURRENTLY domains_begin ON domains (domain_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS domains_name_begins;
CREATE INDEX CONCURRENTLY domains_name_begins ON domains (name text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS certificates_begin;
CREATE INDEX CONCURRENTLY certificates_begin ON certificates (certificate_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS certificates_serial_begins;
CREATE INDEX CONCURRENTLY certificates_serial_begins ON certificates (serial text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS certificates_all_names;
CREATE INDEX CONCURRENTLY certificates_all_names ON certificates USING gin (names);
DROP INDEX CONCURRENTLY IF EXISTS resources_provider_begins;
CREATE INDEX CONCURRENTLY resources_provider_begins ON resources (provider_id text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS resources_name_begins;
CREATE INDEX CONCURRENTLY resources_name_begins ON resources (name text_pattern_ops);
DROP INDEX CONCURRENTLY IF EXISTS apps_newest;
CREATE INDEX CONCURRENTLY apps_newest ON apps (created_at DESC, app_id DESC);
DROP INDEX CONCURRENTLY IF EXISTS envs_newest;
CREATE INDEX CONCURRENTLY envs_newest ON envs (created_at DESC, env_id DESC);
DROP INDEX CONCURRENTLY IF EXISTS process_groups_newest;
CREATE INDEX CONCURRENTLY process_groups_newest ON process_groups (created_at DESC, group_id DESC);
DROP INDEX CONCURRENTLY IF EXISTS instances_newest;
CREATE INDEX CONCURRENTLY instances_newest ON instances (created_at DESC, instance_id DESC);
DROP INDEX CONCURRENTLY IF EXISTS routes_newest;
CREATE INDEX CONCURRENTLY routes_newest ON routes (created_at DESC, route_id DESC);
DROP INDEX CONCURRENTLY IF EXISTS volumes_newest;
CREATE INDEX CONCURRENTLY volumes_newest ON volumes (created_at DESC, volume_id DESC);
DROP INDEX CONCURRENTLY IF EXISTS domains_newest;
CREATE INDEX CONCURRENTLY domains_newest ON domains (created_at DESC, domain_id DESC);
DROP INDEX CONCURRENTLY IF EXISTS certificates_newest;
CREATE INDEX CONCURRENTLY certificates_newest ON certificates (created_at DESC, certificate_id DESC);
