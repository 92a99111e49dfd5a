package pgtest

import "github.com/prego/prego/ops/attention"

// WellInstallation has one of most objects, and none needs attention.
const WellInstallation = `
INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id,
		created_by, agent_status, agent_last_heartbeat_at, docker_state, active_at)
SELECT 'app-' || i, '', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'test', 'connected', now(), 'running',
		now() FROM generate_series(1, 12) i;
INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy,
		request_hash, state, converged_state, created_by, active_at)
SELECT 't-' || i, 'shop-' || i, 'acme', 'eu', 'starter', 1, 1, 'shared', '', 'active', 'active', 'test', now()
		FROM generate_series(1, 8) i;
INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'acme', 'a', 'test');
INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-a', 'app-a', 'acme', 'prod',
		'eu', 'test');
INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request,
		replicas, status, converged, created_by)
VALUES ('grp-a', 'env-a', 'acme', 'eu', 'web', '{}', 1, 0.1, 1, 'running', true, 'test');
INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status,
		created_by)
VALUES ('vol-a', 'acme', 'eu', 'fsn1', 'data', 10000000000, 'hetzner', 'v', 'ready', 'test');
INSERT INTO volume_attachments (attachment_id, org_id, volume_id, group_id, mount_path, server_id, created_by)
		VALUES ('att-a', 'acme', 'vol-a', 'grp-a', '/data', 'app-1', 'test');
INSERT INTO ipv4_allocations (allocation_id, org_id, env_id, provider, name, location, status, created_by)
		VALUES ('ip-a', 'acme', 'env-a', 'hetzner', 'n', 'fsn1', 'ready', 'test');
INSERT INTO certificates (certificate_id, names, challenge, created_by, status, renews, sealed_key, chain_pem,
		not_after)
VALUES ('crt-a', '{shop.example.com}', 'http-01', 'test', 'active', true, '', 'x', now() + interval '60 days');
INSERT INTO domains (domain_id, org_id, tenant_id, name, token, sought_until, created_by, status) VALUES
		('dom-a', 'acme', 't-1', 'shop.example.com', 'x', now(), 'test', 'verified');
INSERT INTO backup_schedules (tenant_id, policy_at, due_at, drilled_at) VALUES ('t-1', now(), now(), now());
INSERT INTO volume_backup_schedules (volume_id, policy_at, due_at, drilled_at) VALUES ('vol-a', now(), now(), now());
INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, created_by, state, taken_at,
		sealed_identity, bytes, sha256, plain_sha256, manifest_sha256, created_at)
VALUES ('bak-a', 'acme', 't-1', 'app-1', 's', 'scheduled', 'test', 'stored', now(), '', 1, 'x', 'x', 'x', now()
		- interval '1 day');
INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by) VALUES
		('web', '', 'app', 'hetzner', 0, 9, '{}', 'test');
INSERT INTO server_peers (server_id, version, applied_version, offered) VALUES ('app-1', 1, 1, 1);
INSERT INTO edges (server_id, network, version, offered, watch, watched_from, watched_until) VALUES ('app-1', 'n',
		3, 3, 'w', now() - interval '1 hour', now());
INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name,
		infra_provider, algorithm)
SELECT 't-' || i, 'app-1', 'd', 'r', '', '', 'hetzner', 'test' FROM generate_series(2, 4) i;
INSERT INTO site_health (tenant_id, server_id, up, since, seen_from) SELECT 't-' || i, 'app-1', true, now() -
		interval '1 hour', now() - interval '1 hour' FROM generate_series(2, 4) i;
INSERT INTO dns_records (zone, name, type, ttl, content, owner, state) VALUES ('example.com', 'shop', 'A', 60,
		'{}', 'site', 'created');
INSERT INTO site_usage (tenant_id, quota_gb, level) VALUES ('t-1', 1, 'ok');
INSERT INTO looks (look, holder, leased_until, began_at, every_seconds, looked_at) VALUES ('fleet', 'w', now(),
		now(), 15, now());
INSERT INTO provider_budgets (project, capacity, refill_per_s, tokens) VALUES ('main', 1, 1, 1);
INSERT INTO provider_catalogs (provider, document, refreshed_at) VALUES ('hetzner', '{}', now());
INSERT INTO reconcile_runs (started_at, finished_at, findings) VALUES (now() - interval '2 hours', now(),
		'{"breaker_hit": false}');
INSERT INTO dns_comparisons (zone, compared_at, owned, orphans) VALUES ('example.com', now(), 12, 1);
INSERT INTO orphan_sightings (provider, kind, provider_id, name) VALUES ('hetzner', 'server', '7', 'app-77');
INSERT INTO org_quotas (org_id, dimension, limit_value, reason, updated_by) VALUES ('acme', 'max_apps', 100,
		'x', 'test');
DELETE FROM org_counters;
INSERT INTO org_counters (org_id, dimension, used) VALUES ('acme', 'max_apps', 10)`

// aWorker is the look of workers at themselves, which began now.
const aWorker = `INSERT INTO looks (look, holder, leased_until, every_seconds, began_at, looked_at, error)
	VALUES ('worker', 'cp-1/X', now(), 10, now()`

// MaintenanceOf begins a statement that inserts a maintenance.
const MaintenanceOf = `INSERT INTO server_maintenances (server_id, number, kind, requested_by, was_open, `

// Ailment is a state of rows that needs attention.
type Ailment struct {
	SQL string
	Is  string // the id and the reason of its only finding
}

// Ailments are the rows behind each kind of finding: statements, and the id and the reason of the only finding that
// they cause.
var Ailments = map[attention.Kind][]Ailment{
	attention.Recovering: {{`UPDATE redo SET recovering_since = now(), recovering = 'entry 7 of 9'`, "prego restored"}},
	attention.BreakGlass: {{`INSERT INTO principals (principal_id, kind, issuer, subject, name, created_by)
		VALUES ('user-9', 'user', 'host', 'break-glass', 'break-glass', 'root');
		INSERT INTO login_links (link_id, hash, principal_id, created_by, expires_at)
		VALUES ('link-9', sha256('9'), 'user-9', 'root', now() + interval '15 minutes')`, "prego break_glass"}},
	attention.DeletionsFrozen: {
		{`INSERT INTO freezes (frozen_by, reason) VALUES ('prego', 'too much')`, "prego breaker"},
		{`INSERT INTO freezes (frozen_by, reason) VALUES ('ann', 'a wrong policy')`, "prego operator"},
	},
	attention.DeletionRefused: {{`INSERT INTO destructions (kind, id, refused_since, refused_at, message)
		SELECT kind, id, now() - interval '1 day', at, 'it holds data'
		FROM (VALUES ('server', 'app-2', now()), ('volume', 'vol-9', now() - interval '61 minutes')) d (kind,
		id, at)`, "app-2 holds_data"}},
	attention.ReconcileBreaker: {{`INSERT INTO reconcile_runs (started_at, finished_at, findings) VALUES (now(),
		now(), '{"breaker_hit": true, "orphans": 9, "owned": 20}')`, "prego breaker_hit"}},
	attention.DNSBreaker: {{`UPDATE dns_comparisons SET breaker_since = now(), orphans =
		9`, "example.com breaker_hit"}},
	attention.SweepFrozen: {{`UPDATE servers SET agent_last_heartbeat_at = now() - interval '2 minutes'
		WHERE server_id IN ('app-1', 'app-2', 'app-3')`, "prego mass_silence"}},
	attention.ProcessDown: {
		{aWorker + ` - interval '61 seconds', now() - interval '71 seconds', '')`, "worker no_worker"},
		{aWorker + `, now() - interval '9 seconds', 'temporal does not answer')`, "worker not_ready"},
		{
			aWorker + ` - interval '2 minutes', NULL, ''); UPDATE looks SET looked_at = now() - interval '1 hour'`,
			"worker no_worker",
		},
	},
	attention.LookLate: {{`UPDATE looks SET looked_at = now() - interval '106 seconds'`, "fleet look_late"}},
	attention.LookFailing: {
		{`UPDATE looks SET error = 'oh no'`, "fleet look_failing"},
		{
			`INSERT INTO rejected_rows (batch, name, reason) VALUES ('heartbeats', 'app-1', 'oh no')`,
			"heartbeats rows_rejected",
		},
	},
	attention.ProviderBlocked: {
		{`UPDATE provider_budgets SET blocked_until = now() + interval '1 minute'`, "main rate_limited"},
		{`INSERT INTO acme_budgets (bucket, capacity, refill_per_s, tokens, blocked_until) VALUES ('orders', 1,
		1, 1, now() + interval '1 minute')`, "orders rate_limited"},
	},
	attention.CatalogStale: {{`UPDATE provider_catalogs SET refreshed_at = now() - interval
		'4 hours'`, "hetzner catalog_stale"}},
	attention.ServerFailed: {{`UPDATE servers SET status = 'failed', status_reason = 'failed_boot' WHERE
		server_id = 'app-2'`, "app-2 failed_boot"}},
	attention.ServerStuck: {
		{`UPDATE servers SET status = 'provisioning', updated_at = now() - interval '61 minutes' WHERE server_id
		= 'app-2'`, "app-2 provisioning"},
		{`UPDATE servers SET status = 'draining', decommission_requested_at = now() - interval '61 minutes'
		WHERE server_id = 'app-2'`, "app-2 decommission_requested"},
		{`UPDATE servers SET status = 'draining', status_reason = 'decommission_requested', status_message =
		'protected', decommission_requested_at = now() WHERE server_id = 'app-2'`, "app-2 provider_refused"},
	},
	attention.ServerAwaitingStock: {{`UPDATE servers SET status = 'provisioning', status_reason =
		'awaiting_capacity' WHERE server_id = 'app-2'`, "app-2 awaiting_capacity"}},
	attention.AgentSilent: {{`UPDATE servers SET agent_status = 'degraded' WHERE server_id =
		'app-2'`, "app-2 agent_degraded"}},
	attention.ClockSkewed: {{`UPDATE servers SET clock_skewed = true, clock_ahead_seconds = -9 WHERE
		server_id = 'app-2'`, "app-2 clock_skew"}},
	attention.DockerStopped: {{`UPDATE servers SET docker_state = 'stopped' WHERE server_id =
		'app-2'`, "app-2 docker_stopped"}},
	attention.TenantLost: {{`UPDATE tenants SET state = 'failed', status_reason = 'server_lost',
		lost_at = now() WHERE tenant_id = 't-2'`, "t-2 server_lost"}},
	attention.TenantFailed: {{`UPDATE tenants SET state = 'failed', status_reason = 'failed_site' WHERE
		tenant_id = 't-2'`, "t-2 failed_site"}},
	attention.TenantStuck: {
		{`UPDATE tenants SET state = 'suspended', updated_at = now() - interval '61 minutes' WHERE tenant_id =
		't-2'`, "t-2 not_suspended"},
		{`UPDATE tenants SET state = 'provisioning', updated_at = now() - interval '61 minutes' WHERE tenant_id
		= 't-2'`, "t-2 provisioning"},
		{`UPDATE tenants SET deadline_at = now() - interval '61 minutes' WHERE tenant_id = 't-2'`, "t-2 timer_held"},
	},
	attention.TenantsWaiting: {{`UPDATE tenants SET state = 'provisioning', waiting_since = now() - interval
		'3 minutes', status_reason = 'awaiting_capacity' WHERE tenant_id = 't-2'`, "t-2 awaiting_capacity"}},
	attention.GroupUnschedulable: {{`UPDATE process_groups SET status = 'unschedulable', status_reason =
		'no_capacity_memory'`, "grp-a no_capacity_memory"}},
	attention.GroupOverQuota: {{`UPDATE process_groups SET status = 'unschedulable', status_reason =
		'org_quota_exceeded:max_apps', waiting_since = now() + interval
		'30 seconds'`, "grp-a org_quota_exceeded:max_apps"}},
	attention.RolloutFailed: {{`UPDATE process_groups SET deploy_status = 'failed', deploy_reason =
		'instance_failed'`, "grp-a instance_failed"}},
	attention.WarmPoolLow: {{`INSERT INTO warm_pools (region, plan, target, updated_by) VALUES ('eu',
		'trial', 1, 'test')`, "eu/trial below_target"}},
	attention.SitePoolLow: {{`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name,
		database_name, state, created_at)
		VALUES ('p', 'app-2', 'd', 's', 'd', 'failed', now() - interval '1 day')`, "app-2 site_failed"}},
	attention.FleetActionFailed: {{`INSERT INTO fleet_actions (fleet_id, seq, action, inputs, status, reason,
		cause, driven_by, requested_by, finished_at)
		VALUES ('web', 1, 'CLUSTER_RESIZE', '{}', 'failed', 'step_failed', 'x', 'fleet', 'test',
		now())`, "web step_failed"}},
	attention.MaintenanceFailed: {{MaintenanceOf + `status, reason, finished_at) VALUES ('app-2', 1, 'drain',
		'test', true, 'failed', 'maintenance_timeout', now())`, "app-2 maintenance_timeout"}},
	attention.MaintenanceStuck: {{MaintenanceOf + `status, reason) VALUES ('app-2', 1, 'drain', 'test', true,
		'moving', 'no_capacity_memory')`, "app-2 no_capacity_memory"}},
	attention.MoveFailed: {{`INSERT INTO tenant_moves (move_id, org_id, tenant_id, allocation_id,
		requested_by, site, database_name, from_server_id, state, reason, finished_at) VALUES ('m', 'acme',
		't-2', 1, 'test', 's', 'd', 'app-1', 'failed', 'copy_failed', now())`, "t-2 copy_failed"}},
	attention.RebalanceStopped: {{`INSERT INTO rebalances (rebalance_id, requested_by, at_once, max_failures,
		remove_servers, monthly, frees, closed, state, reason, finished_at) VALUES ('reb', 'test', 1, 1, false,
		1, '{}', '{}', 'stopped', 'too_many_failures', now())`, "reb too_many_failures"}},
	attention.ReleaseStopped: {{`INSERT INTO stack_releases (name, image, rings, created_by, status,
		reason) VALUES ('15.80', 'i', '[]', 'test', 'stopped', 'broken')`, "15.80 broken"}},
	attention.AgentReleaseStopped: {{`INSERT INTO agent_releases (version, serial, sha256, document, signature,
		rings, created_by, status, reason) VALUES ('v2', 1, 'x', '', '', '[]', 'test', 'stopped',
		'went_back')`, "v2 went_back"}},
	attention.ImageFailed: {{`INSERT INTO golden_images (image_id, provider, region, base_image,
		architecture, created_by, status, reason) VALUES ('img', 'hetzner', 'eu', 'debian-13', 'x86', 'test',
		'failed', 'build_timeout')`, "img build_timeout"}},
	attention.BackupLate: {
		{`UPDATE backup_schedules SET due_at = now() - interval '3 hours', next_at = now() + interval '3 hours';
		UPDATE backups SET taken_at = now() - interval '1 day'`, "t-1 backup_late"},
		{`UPDATE volume_backup_schedules SET due_at = now() - interval '3 hours', next_at = now() + interval
		'3 hours'`, "vol-a backup_late"},
	},
	attention.BackupFailed: {{`INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind,
		created_by, state, reason, finished_at) VALUES ('bak-b', 'acme', 't-1', 'app-1', 's', 'manual', 'test',
		'failed', 'site_dump_failed', now())`, "t-1 site_dump_failed"}},
	attention.BackupLimit: {{`UPDATE orgs SET backup_limit_bytes = 1`, "acme backup_limit"}},
	attention.RestoreFailed: {
		{`INSERT INTO restore_jobs (job_id, org_id, tenant_id, snapshot_id, status, created_by, finished_at)
		VALUES ('r', 'acme', 't-2', 'snp', 'failed', 'test', now())`, "t-2 restore_failed"},
		{`INSERT INTO volume_restores (restore_id, org_id, volume_id, backup_id, created_by, status, reason,
		finished_at) VALUES ('r', 'acme', 'vol-a', 'b', 'test', 'failed', 'damaged', now())`, "vol-a damaged"},
	},
	attention.BackupMissing: {
		{`UPDATE backups SET missing_at = now()`, "t-1 backup_missing"},
		{`UPDATE backups SET missing_at = now(), volume_id = 'vol-a', tenant_id = NULL; UPDATE backup_schedules
		SET due_at = NULL`, "vol-a backup_missing"},
	},
	attention.DrillFailed: {
		{`UPDATE backup_schedules SET drill_failed = true`, "t-1 drill_failed"},
		{`UPDATE volume_backup_schedules SET drill_failed = true; INSERT INTO drills (drill_id, org_id,
		volume_id, backup_id, server_id, created_by, state, reason, finished_at, cleared_at) VALUES ('d',
		'acme', 'vol-a', 'b', 'app-1', 'test', 'failed', 'damaged', now(), now())`, "vol-a damaged"},
	},
	attention.BackupUnverified: {
		{`UPDATE backup_schedules SET drilled_at = now() - interval '2 days'`, "t-1 drill_late"},
		{`UPDATE volume_backup_schedules SET drilled_at = now() - interval '2 days'; UPDATE backups SET
		volume_id = 'vol-a', tenant_id = NULL; UPDATE backup_schedules SET due_at = NULL`, "vol-a drill_late"},
	},
	attention.CertificateEnding: {
		{`UPDATE certificates SET not_after = now() + interval '13 days', failures = 2, reason = 'dns'`, "crt-a dns"},
		{`UPDATE certificates SET not_after = now() + interval '2 days', failures = 9, reason =
		'dns'`, "crt-a ends_in_days"},
	},
	attention.CertificateFailing: {
		{`UPDATE certificates SET failures = 2, reason = 'caa'`, "crt-a caa"},
		{`UPDATE certificates SET status = 'failed', reason = 'caa'`, "crt-a caa"},
	},
	attention.DomainFailing: {
		{`UPDATE domains SET status = 'lost', reason = 'txt_missing'`, "dom-a txt_missing"},
		{`UPDATE domains SET missing_since = now(), reason = 'txt_missing'`, "dom-a txt_missing"},
		{
			`UPDATE domains SET elsewhere_since = now() - interval '2 hours', reason = 'points_elsewhere'`,
			"dom-a points_elsewhere",
		},
	},
	attention.VolumeFailed: {
		{`UPDATE volumes SET status = 'failed', reason = 'no_capacity_volume'; UPDATE
		volume_backup_schedules SET due_at = NULL`, "vol-a no_capacity_volume"},
		{`UPDATE volumes SET reason = 'not_attached'; UPDATE
		volume_backup_schedules SET due_at = NULL`, "vol-a not_attached"},
		{`UPDATE volumes SET reason = 'change_refused'; UPDATE
		volume_backup_schedules SET due_at = NULL`, "vol-a change_refused"},
	},
	attention.AddressFailed: {
		{`UPDATE ipv4_allocations SET status = 'failed', reason = 'ipam_exhausted'`, "env-a ipam_exhausted"},
		{`UPDATE ipv4_allocations SET status = 'releasing', reason = 'change_refused'`, "env-a change_refused"},
	},
	attention.SiteReadOnly: {{`UPDATE site_usage SET level = 'read_only', over_since =
		now()`, "t-1 storage_read_only"}},
	attention.SiteOverQuota: {{`UPDATE site_usage SET level = 'over', over_since = now()`, "t-1 storage_over"}},
	attention.OrgAtQuota:    {{`UPDATE org_counters SET used = 96 WHERE dimension = 'max_apps'`, "acme max_apps"}},
	attention.LimitRequested: {{`INSERT INTO limit_requests (limit_request_id, org_id, dimension, old_limit, requested_limit, reason,
		created_by) VALUES ('lreq-9', 'acme', 'max_apps', 25, 40, 'more shops', 'bo')`, "acme max_apps"}},
	attention.OrgNearQuota: {{`UPDATE org_counters SET used = 95 WHERE dimension = 'max_apps'`, "acme max_apps"}},
	attention.PatchesMissing: {{`UPDATE servers SET patch_state = 'reboot', patches_since = now() - interval
		'15 days' WHERE server_id = 'app-2'`, "app-2 reboot"}},
	attention.OperationStuck: {
		{`INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, created_by, state,
		created_at) VALUES ('bak-b', 'acme', 't-2', 'app-1', 's', 'manual', 'test', 'queued', now() - interval
		'7 hours')`, "bak-b queued"},
		{`INSERT INTO snapshots (snapshot_id, org_id, tenant_id, status, server_id, site, created_by,
		created_at) VALUES ('snp', 'acme', 't-2', 'running', 'app-1', 's', 'test', now() - interval
		'7 hours')`, "snp running"},
		{`INSERT INTO restore_jobs (job_id, org_id, tenant_id, snapshot_id, status, created_by, created_at)
		VALUES ('r', 'acme', 't-2', 'snp', 'queued', 'test', now() - interval '7 hours')`, "r queued"},
		{`INSERT INTO volume_restores (restore_id, org_id, volume_id, backup_id, created_by, status, created_at)
		VALUES ('r', 'acme', 'vol-a', 'b', 'test', 'running', now() - interval '7 hours')`, "r running"},
		{`INSERT INTO tenant_moves (move_id, org_id, tenant_id, allocation_id, requested_by, site,
		database_name, from_server_id, state, created_at) VALUES ('m', 'acme', 't-2', 1, 'test', 's', 'd',
		'app-1', 'queued', now() - interval '7 hours')`, "m queued"},
		{`INSERT INTO drills (drill_id, org_id, tenant_id, backup_id, server_id, created_by, state, created_at)
		VALUES ('d', 'acme', 't-2', 'b', 'app-1', 'test', 'running', now() - interval '7 hours')`, "d running"},
		{`INSERT INTO fleet_actions (fleet_id, seq, action, inputs, status, cause, driven_by, requested_by,
		created_at) VALUES ('web', 1, 'CLUSTER_RESIZE', '{}', 'running', 'x', 'fleet', 'test', now() - interval
		'7 hours')`, "web running"},
		{`UPDATE volumes SET status = 'pending', updated_at = now() - interval '2 hours'; UPDATE
		volume_backup_schedules SET due_at = NULL`, "vol-a pending"},
		{`UPDATE ipv4_allocations SET status = 'releasing', updated_at = now() - interval
		'2 hours'`, "ip-a releasing"},
		{`INSERT INTO golden_images (image_id, provider, region, base_image, architecture, created_by, status,
		updated_at) VALUES ('img', 'hetzner', 'eu', 'debian-13', 'x86', 'test', 'building', now() - interval
		'2 hours')`, "img building"},
		{`UPDATE certificates SET status = 'pending', due_at = now() - interval '2 hours'`, "crt-a pending"},
		{`INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request,
		spec, number, state, message, created_at) VALUES ('ins-late', 'grp-a', 'acme', 'app-1', 1, 1, 0, '{}', 99,
		'booting', 'not started yet: no such host', now() - interval '4 minutes')`, "grp-a instance_not_started"},
		{`INSERT INTO stack_releases (name, image, rings, created_by, status) VALUES ('15.80', 'i',
		'[{"name": "rest"}]', 'test', 'rolling'); INSERT INTO stack_release_servers (release, server_id, ring, status, phase, message, started_at)
		VALUES ('15.80', 'app-1', 0, 'updating', 'fetching the image', 'no such host', now() - interval
		'4 minutes')`, "15.80 step_repeated"},
	},
	attention.QuotaDrifted: {{`INSERT INTO org_usage_drifts (org_id, drift) VALUES ('acme',
		'{}')`, "acme usage_drifted"}},
	attention.PeersBehind: {{`UPDATE server_peers SET version = 2, changed_at = now() - interval
		'6 minutes'`, "app-1 not_applied"}, {`UPDATE server_peers SET version = 2, refused =
		'bad rule'`, "app-1 refused"}, {`UPDATE server_peers SET applied_version = version, refused =
		'left out: port 0'`, "app-1 left_out"}},
	attention.SiteDown: {
		{`UPDATE site_health SET up = false, cause = 'refused' WHERE tenant_id = 't-2'`, "t-2 refused"},
		{`UPDATE site_health SET up = false, cause = 'refused'`, "eu region_down"},
	},
	attention.EdgeBehind: {
		{`UPDATE edges SET refused_version = 4, refused_reason = 'no'`, "app-1 no_edge_opens"},
		{
			`UPDATE edges SET refused_version = 4, refused_reason = 'no';
			INSERT INTO edges (server_id, network, version) VALUES ('app-2', 'n', 4)`,
			"app-1 document_refused",
		},
		{
			`UPDATE edges SET refused_version = 4, refused_reason = 'no';
			INSERT INTO edges (server_id, network, version, asked_at) VALUES ('app-2', 'n', 4, now() - interval
		'1 hour')`,
			"app-1 no_edge_opens",
		},
		{`UPDATE edges SET closed = '{t-2, gone}'; INSERT INTO edge_documents (network, version, digest, seen, released)
			VALUES ('n', 3, '', pg_current_snapshot(), 2)`, "app-1 document_held"},
	},
	attention.EdgeRejectedName: {
		{`INSERT INTO edge_left_out (server_id, kind, name, tenant_id, reason) VALUES ('app-1', 'host',
		'x.eu.example.com', 't-2', 'no')`, "t-2 host_refused"},
		{`INSERT INTO edge_left_out (server_id, kind, name, tenant_id, reason) VALUES ('app-1', 'host',
		'shop.example.com', 't-1', 'no'), ('app-1', 'challenge', 'shop.example.com', '',
		'no')`, "dom-a host_refused"},
		{`INSERT INTO edge_left_out (server_id, kind, name, reason) VALUES ('app-1', 'certificate', 'crt-a',
		'no')`, "crt-a certificate_refused"},
		{`UPDATE domains SET deleted_at = now(); INSERT INTO edge_left_out (server_id, kind, name, reason)
		VALUES ('app-1', 'challenge', 'shop.example.com', 'no')`, "crt-a challenge_refused"},
		{`INSERT INTO routes (route_id, org_id, env_id, group_id, hostname, listener_scope, listen_port,
		protocol, target_port, created_by) VALUES ('rte-a', 'acme', 'env-a', 'grp-a', '', 'shared_v6', 9443,
		'tcp', 80, 'test');
			INSERT INTO edge_left_out (server_id, kind, name, route_id, reason) VALUES ('app-1', 'tcp', ':9443',
		'rte-a', 'no')`, "grp-a tcp_refused"},
		{`INSERT INTO edge_left_out (server_id, kind, name, reason) VALUES ('app-1', 'passing', 'x',
		'no')`, "app-1 passing_refused"},
	},
	attention.DNSRecordFailing: {{`UPDATE dns_records SET state = 'intended', tries = 3, error =
		'no'`, "shop.example.com/A record_failing"}},
	attention.ProviderUntracked: {{`UPDATE orphan_sightings SET sightings = 2`, "hetzner/server/7 untracked"}},
}
