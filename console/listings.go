package console

import "strings"

// listing is a page with a list of the API's. Filters and sorts are the contract's.
type listing struct {
	Page    string // below /console, with the parameters that API needs
	Title   string
	Section string
	About   string
	API     string // the path in the contract
	Items   string // the field of the answer with the rows
	Columns string // fields as "a, b.c: header"; the first one links to Row
	Row     string // the page of a row below /console, filled from its fields
	Kinds   string // of events that concern it
	CLI     string
	Flags   string // the command's flags for filters, as "agent_status: agent", "env_id: []" for its argument, or "server_id:" for none; others are called like their filters
	Do      string // operations that make rows
	CSV     bool   // the API answers with text/csv, too
}

// flags are the command's flags by filter.
func (l listing) flags() map[string]string {
	out := map[string]string{}
	for part := range strings.SplitSeq(l.Flags, ",") {
		if filter, flag, ok := strings.Cut(strings.TrimSpace(part), ":"); ok {
			out[filter] = strings.TrimSpace(flag)
		}
	}
	return out
}

// listings are all lists. A list below one thing has that thing's parameters in its page.
var listings = []listing{
	{
		Page: "servers", Title: "Servers", Section: "servers", API: "/v1/servers", Items: "servers", Row: "servers/{server_id}", Kinds: "server", CLI: "server list", Flags: "server_id:, agent_status: agent, infra_provider: provider, patch_state: patches", Do: "createServer, importServer",
		Columns: "server_id, role, region, status, status_reason: reason, agent_status: agent, host, fleet_id, cordoned_at: cordoned, patch_state: patches, tags, created_at: age",
	},
	{
		Page: "tenants", Title: "Tenants", Section: "tenants", API: "/v1/tenants", Items: "tenants", Row: "tenants/{tenant_id}", Kinds: "tenant, move, backup", CLI: "tenant list", Flags: "tenant_id:", Do: "createTenant",
		Columns: "slug: tenant, tenant_id: id, org_id, region, plan, state, converged_state: effective state, status_reason: reason, waiting_since: waiting, site_url: site, created_at: age",
	},
	{
		Page: "queue", Title: "Queue", Section: "queue", API: "/v1/queue", Items: "entries", Row: "{kind}s/{id}", Kinds: "tenant, server, group, org", CLI: "queue list",
		About:   "Who waits for a place, in the order in which they will be served, for what, and until when, as far as can be told.",
		Columns: "name, position, kind, org_id, region, plan, code: waits for, reason, missing_roles: missing, coming, waiting_since: waiting, expected_at: expected, expected_because: because",
	},
	{
		Page: "decisions", Title: "Decisions", Section: "decisions", API: "/v1/decisions", Items: "decisions", Row: "decisions/{id}", Kinds: "tenant", CLI: "decision list",
		About:   "Every placement that was decided, and why.",
		Columns: "id, at, tenant_id, org_id, region, outcome, code, algorithm, decision_log.selection_reason: because, actor",
	},
	{
		Page: "fleets", Title: "Fleets", Section: "fleets", API: "/v1/fleets", Items: "fleets", Row: "fleets/{fleet_id}", Kinds: "fleet, server", CLI: "fleet list", Flags: "fleet_id:", Do: "createFleet",
		Columns: "fleet_id, role, size, desired_capacity: desired, min_size: min, max_size: max, region, serves_tenants: tenants, serves_workloads: instances, created_at: age",
	},
	{
		Page: "fleets/{fleet_id}/actions", Title: "Actions", Section: "fleets", API: "/v1/fleets/{fleet_id}/actions", Items: "actions", Row: "fleets/{fleet_id}/actions/{seq}", Kinds: "fleet, server", CLI: "fleet actions {fleet_id}", Do: "createFleetAction",
		Columns: "seq, action, status, reason, message, requested_by: by, created_at: requested, finished_at: ended",
	},
	{
		Page: "policies", Title: "Policies", Section: "policies", API: "/v1/policies", Items: "policies", Row: "policies/{policy_id}", Kinds: "fleet", CLI: "policy list", Flags: "policy_id:", Do: "createPolicy",
		Columns: "policy_id, type, spec, created_by: by, updated_at: changed",
	},
	{
		Page: "warm-pools", Title: "Warm pools", Section: "pools", API: "/v1/warm-pools", Items: "warm_pools", Row: "warm-pools/{region}/{plan}", Kinds: "server, tenant", CLI: "pool warm list",
		About:   "Servers that stand ready for tenants who get one of their own.",
		Columns: "region, plan, target, claimable, building, updated_by: by, updated_at: changed",
	},
	{
		Page: "site-pools", Title: "Site pools", Section: "pools", API: "/v1/site-pools", Items: "site_pools", Kinds: "server, tenant", Do: "refillSitePool", CLI: "pool list",
		About:   "Sites that stand ready on shared servers.",
		Columns: "server_id, role, region, status, available, reserved, assigned, failed, draining, oldest_build_at: oldest build",
	},
	{
		Page: "site-pool-policies", Title: "Policies of site pools", Section: "pools", API: "/v1/site-pool-policies", Items: "site_pool_policies", Row: "site-pool-policies/{plan}", Kinds: "tenant", CLI: "pool policies",
		Columns: "plan, target, low_watermark: refilled below, slo_seconds: promise",
	},
	{
		Page: "placement-pools", Title: "Placement pools", Section: "pools", API: "/v1/placement-pools", Items: "placement_pools", Row: "placement-pools/{name}", Kinds: "org", CLI: "placement-pool list", Flags: "name:", Do: "createPlacementPool",
		Columns: "name, require, disallow, is_default: default, org_count: orgs, updated_at: changed",
	},
	{
		Page: "scaling", Title: "Scale-outs", Section: "fleets", API: "/v1/scaling-events", Items: "scaling_events", Kinds: "server, fleet", CLI: "scaling list",
		Columns: "id, region, role, trigger, waiting, requested, made, server_ids: servers, message, created_at: began, finished_at: ended, run_url: run",
	},
	{
		Page: "orgs", Title: "Orgs", Section: "orgs", API: "/v1/orgs", Items: "orgs", Row: "orgs/{org_id}", Kinds: "org", CLI: "org list", Flags: "org_id:",
		Columns: "org_id, parent_org_id: parent, tier, created_by: by, created_at: age",
	},
	{
		Page: "orgs/{org_id}/events", Title: "Events", Section: "orgs", API: "/v1/orgs/{org_id}/events", Items: "events", Kinds: "org", CLI: "org events {org_id}",
		Columns: "event_id: number, at, type, subject, reason, payload, actor",
	},
	{Page: "apps", Title: "Apps", Section: "apps", API: "/v1/apps", Items: "apps", Row: "apps/{app_id}", Kinds: "org", CLI: "app list", Flags: "app_id:", Do: "createApp", Columns: "name, app_id: id, org_id, created_by: by, created_at: age, deleted_at: deleted"},
	{Page: "envs", Title: "Environments", Section: "apps", API: "/v1/envs", Items: "envs", Row: "envs/{env_id}", Kinds: "org", CLI: "env list", Columns: "name, env_id: id, app_id, org_id, region, created_at: age, deleted_at: deleted"},
	{
		Page: "groups", Title: "Process groups", Section: "groups", API: "/v1/groups", Items: "groups", Row: "groups/{group_id}", Kinds: "group, instance", CLI: "group list",
		Columns: "name, group_id: id, org_id, env_id, region, status, status_reason: reason, deploy_status: deploy, replicas, waiting_since: waiting, created_at: age",
	},
	{
		Page: "groups/{group_id}/instances", Title: "Instances", Section: "groups", API: "/v1/groups/{group_id}/instances", Items: "instances", Row: "instances/{instance_id}", Kinds: "instance, group", CLI: "instance list {group_id}",
		Columns: "instance_id, server_id, state, healthy, restarts, release, memory_limit_bytes: memory, message, created_at: age",
	},
	{
		Page: "groups/{group_id}/rollouts", Title: "Rollouts", Section: "groups", API: "/v1/groups/{group_id}/rollouts", Items: "rollouts", Kinds: "group", CLI: "group rollouts {group_id}",
		Columns: "rollout, release, kind, outcome, reason, message, created_by: by, created_at: began, ended_at: ended",
	},
	{
		Page: "instances", Title: "Instances", Section: "instances", API: "/v1/instances", Items: "instances", Row: "instances/{instance_id}", Kinds: "instance", CLI: "instance list", Flags: "instance_id:, group_id: []",
		Columns: "instance_id, group_id, org_id, server_id, state, healthy, restarts, memory_limit_bytes: memory, message, created_at: age",
	},
	{
		Page: "routes", Title: "Routes", Section: "routes", API: "/v1/routes", Items: "routes", Row: "envs/{env_id}/routes/{route_id}", Kinds: "route, org", CLI: "route list", Flags: "route_id:, env_id: [], hostname: host",
		Columns: "hostname, route_id: id, hostname_status: name, org_id, env_id, group_id, listener, listen_port: port, protocol, target_port: to port, created_at: age",
	},
	{
		Page: "volumes", Title: "Volumes", Section: "volumes", API: "/v1/volumes", Items: "volumes", Row: "volumes/{volume_id}", Kinds: "volume, backup", CLI: "volume list", Flags: "volume_id:", Do: "createVolume",
		Columns: "name, volume_id: id, org_id, region, location, size_bytes: size, status, reason, attachment.group_id: group, last_restorable.at: restorable, created_at: age",
	},
	{
		Page: "volumes/{volume_id}/backups", Title: "Backups", Section: "volumes", API: "/v1/volumes/{volume_id}/backups", Items: "backups", Row: "volumes/{volume_id}/backups/{backup_id}", Kinds: "volume, backup", CLI: "volume backup list {volume_id}", Do: "createVolumeBackup",
		Columns: "backup_id, kind, state, reason, taken_at: taken, bytes: size, verified, expires_at: expires, held_by: held by",
	},
	{
		Page: "volumes/{volume_id}/drills", Title: "Drills", Section: "volumes", API: "/v1/volumes/{volume_id}/drills", Items: "drills", Kinds: "volume, backup", CLI: "volume drill list {volume_id}", Do: "createVolumeDrill",
		Columns: "drill_id, backup_id: backup, server_id, state, reason, message, entries, bytes: size, created_at: began, finished_at: ended",
	},
	{
		Page: "volumes/{volume_id}/restores", Title: "Restores", Section: "volumes", API: "/v1/volumes/{volume_id}/restores", Items: "restores", Kinds: "volume, backup", CLI: "volume restore list {volume_id}", Do: "createVolumeRestore",
		Columns: "restore_id, backup_id: backup, status, message, created_by: by, created_at: began, finished_at: ended",
	},
	{
		Page: "addresses", Title: "IPv4 addresses", Section: "addresses", API: "/v1/ipv4-addresses", Items: "ipv4_addresses", Row: "envs/{env_id}", Kinds: "org, server", CLI: "ipv4 list", Flags: "env_id: []",
		Columns: "address, env_id, org_id, location, status, reason, served, server_id: edge, created_at: age",
	},
	{
		Page: "domains", Title: "Custom domains", Section: "domains", API: "/v1/domains", Items: "domains", Row: "domains/{domain_id}", Kinds: "org, tenant, certificate", CLI: "domain list", Flags: "domain_id:", Do: "createDomain",
		Columns: "name, domain_id: id, org_id, tenant_id, status, reason, points_here, checked_at: checked, created_at: age",
	},
	{
		Page: "certificates", Title: "Certificates", Section: "certificates", API: "/v1/certificates", Items: "certificates", Row: "certificates/{certificate_id}", Kinds: "certificate", CLI: "certificate list",
		Columns: "certificate_id, names, status, reason, not_after: ends, next_attempt_at: next attempt, failures, org_id, tenant_id, issued_at: issued",
	},
	{
		Page: "tenants/{tenant_id}/backups", Title: "Backups", Section: "tenants", API: "/v1/tenants/{tenant_id}/backups", Items: "backups", Row: "tenants/{tenant_id}/backups/{backup_id}", Kinds: "tenant, backup", CLI: "backup list {tenant_id}", Do: "createBackup",
		Columns: "backup_id, kind, state, reason, taken_at: taken, bytes: size, verified, verified_at: when, expires_at: expires, held_by: held by",
	},
	{
		Page: "tenants/{tenant_id}/drills", Title: "Drills", Section: "tenants", API: "/v1/tenants/{tenant_id}/drills", Items: "drills", Kinds: "tenant, backup", CLI: "drill list {tenant_id}", Do: "createDrill",
		Columns: "drill_id, backup_id: backup, server_id, state, reason, message, tables, rows, files, created_at: began, finished_at: ended",
	},
	{
		Page: "tenants/{tenant_id}/restores", Title: "Restores", Section: "tenants", API: "/v1/tenants/{tenant_id}/restores", Items: "restores", Row: "tenants/{tenant_id}/restores/{job_id}", Kinds: "tenant, backup", CLI: "restore list {tenant_id}", Do: "createRestore",
		Columns: "job_id, backup_id: backup, snapshot_id: snapshot, status, message, elsewhere, created_by: by, created_at: began, finished_at: ended",
	},
	{
		Page: "tenants/{tenant_id}/moves", Title: "Moves", Section: "tenants", API: "/v1/tenants/{tenant_id}/moves", Items: "moves", Row: "tenants/{tenant_id}/moves/{move_id}", Kinds: "tenant, move", CLI: "tenant moves {tenant_id}", Do: "createMove",
		Columns: "move_id, state, reason, from_server_id: from, to_server_id: to, copied_bytes: copied, downtime_ms: read-only for, requested_by: by, created_at: requested, finished_at: ended",
	},
	{
		Page: "tenants/{tenant_id}/snapshots", Title: "Snapshots", Section: "tenants", API: "/v1/tenants/{tenant_id}/snapshots", Items: "snapshots", Row: "tenants/{tenant_id}/snapshots/{snapshot_id}", Kinds: "tenant", CLI: "snapshot list {tenant_id}", Do: "createSnapshot",
		Columns: "snapshot_id, status, server_id, bytes: size, message, created_by: by, created_at: taken",
	},
	{
		Page: "tenants/{tenant_id}/domains", Title: "Custom domains", Section: "tenants", API: "/v1/tenants/{tenant_id}/domains", Items: "domains", Row: "domains/{domain_id}", Kinds: "tenant, certificate", CLI: "domain list --tenant {tenant_id}", Do: "createTenantDomain",
		Columns: "name, status, reason, points_here, checked_at: checked, created_at: age",
	},
	{
		Page: "servers/{server_id}/commands", Title: "Commands", Section: "servers", API: "/v1/servers/{server_id}/commands", Items: "commands", Kinds: "server", CLI: "server commands {server_id}", Flags: "kind:, actor:",
		About:   "What was run on the host, by whom, and what came of it.",
		Columns: "kind, args, requested_by: by, actor, requested_at: when, exit_code: exit, duration_ms: took, stdout, stderr, workflow_id: run",
	},
	{Page: "backup-policies", Title: "Backup policies", Section: "backups", API: "/v1/backup-policies", Items: "backup_policies", Row: "backup-policies/{owner}", Kinds: "backup", CLI: "backup policy list", Columns: "owner, source, schedule, spread_seconds: spread, keep_daily: days, keep_weekly: weeks, keep_monthly: months, next, hold.held_at: held, updated_by: by, updated_at: changed"},
	{Page: "releases", Title: "Releases of the stack", Section: "releases", API: "/v1/releases", Items: "releases", Row: "releases/{name}", Kinds: "release, server", CLI: "release list", Flags: "name:", Do: "createRelease", Columns: "name, image, status, reason, current, created_by: by, created_at: age, finished_at: ended"},
	{Page: "agent-releases", Title: "Releases of the agent", Section: "releases", API: "/v1/agent-releases", Items: "agent_releases", Row: "agent-releases/{version}", Kinds: "release, server", CLI: "agent release list", Flags: "version:", Columns: "version, status, reason, message, created_by: by, created_at: age, finished_at: ended"},
	{Page: "images", Title: "Golden images", Section: "releases", API: "/v1/images", Items: "images", Row: "images/{image_id}", Kinds: "", CLI: "image list", Flags: "image_id:, base_image: base", Do: "buildImage", Columns: "image_id, region, base_image, status, reason, current, size_gb: GB, created_at: age"},
	{Page: "rebalances", Title: "Packing plans carried out", Section: "map", API: "/v1/rebalances", Items: "rebalances", Row: "rebalances/{rebalance_id}", Kinds: "rebalance, move", CLI: "rebalance list", Columns: "rebalance_id, state, reason, total, moved, failed, monthly: saved per month, currency, requested_by: by, created_at: age, finished_at: ended"},
	{Page: "patch-waves", Title: "Security updates", Section: "servers", API: "/v1/patch-waves", Items: "patch_waves", Row: "patch-waves/{wave_id}", Kinds: "server", CLI: "patch-wave list", Flags: "requested_by: requested_by", Columns: "wave_id, servers, done, failed, cancelled, installed, fleets, requested_by: by, created_at: age, finished_at: ended"},
	{Page: "registries", Title: "Registries", Do: "rotateRegistries, deleteImageDigest", Section: "registries", API: "/v1/registries", Items: "registries", Row: "registries/{host}", Kinds: "org", CLI: "registry list", Columns: "host, username, key_id: key, created_by: by, updated_at: changed"},
	{
		Page: "ledger", Title: "Ledger", Section: "ledger", API: "/v1/ledger", Items: "resources", Kinds: "server, volume", CLI: "ledger list", CSV: true,
		About:   "Everything that the provider bills, who owns it, and what it costs per month. What nobody owns is untracked.",
		Columns: "name, kind, provider_id: provider's id, type, location, state, owner, org_id, price_month: per month, currency, since, until",
	},
	{
		Page: "audit", Title: "Audit", Section: "audit", API: "/v1/audit", Items: "entries", Row: "audit/{entry_id}", Kinds: "", CLI: "audit list",
		About:   "Who changed what, from where, with the old and the new value. Entries can't be changed, and each is chained to the one before.",
		Columns: "at, actor, operation, verb, kind, id, org_id, new: changed, from, seq: sealed as",
	},
}
