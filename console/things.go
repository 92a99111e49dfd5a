package console

// thing is a page about one thing. What neither its facts nor its parts show stands below them.
type thing struct {
	Page    string // below /console, with the contract's parameters
	Kind    string // as events name it
	Noun    string
	Name    string // the field with its name; its id if empty
	Section string
	API     string
	States  string // fields with states, for the head of the page
	Facts   string
	Parts   []part
	Do      string // operations on it, in the order of the buttons
	CLI     string
}

// part is a part of such a page: a field with a list of objects, an object, or another list.
type part struct {
	Title   string
	Field   string
	Columns string // of a list of objects; without them a field is shown as facts
	Style   string // timeline, boot, quotas, samples, decision, funnel, difference, later for a page that takes its time, or "" for a table
	List    string // the page of a listing, of which the newest are shown
}

var things = []thing{
	{
		Page: "servers/{server_id}", Kind: "server", Noun: "Server", Section: "servers", API: "/v1/servers/{server_id}", CLI: "server show {server_id}",
		States: "status, agent.status", Facts: "role, region, status_reason, status_message, holds.tenants, holds.instances, holds.volumes, fleet_id, provider.server_type, provider.location, provider.ipv4, provider.private_address, provider.network, provider.provider_server_id, provider.image, tags, cordoned_at, cordoned_by, cordon_reason, cost, run_url, created_by, created_at, active_at, terminated_at",
		Parts: []part{
			{Title: "How it booted", Field: "timeline", Style: "boot"},
			{Title: "Agent and host", Field: "agent"},
			{Title: "Last day", List: "servers/{server_id}/samples", Style: "samples"},
			{Title: "Security updates", Field: "patches"},
			{Title: "Maintenance", List: "servers/{server_id}/maintenance"},
			{Title: "Containers", List: "servers/{server_id}/containers", Style: "later"},
			{Title: "Commands", List: "servers/{server_id}/commands"},
			{Title: "Cost this month", List: "costs?by=server&id={server_id}", Style: "later"},
			{Title: "Timeline", Field: "timeline", Style: "timeline"},
		},
		Do: "cordonServer, uncordonServer, drainServer, cancelMaintenance, rebootServer, installPatches, resizeServer, replaceServer, patchServer, retryServer, repairContainers, execOnServer, loseServer, deleteServer",
	},
	{
		Page: "tenants/{tenant_id}", Kind: "tenant", Noun: "Tenant", Name: "slug", Section: "tenants", API: "/v1/tenants/{tenant_id}", CLI: "tenant show {tenant_id}",
		States: "state, converged_state", Facts: "tenant_id, org_id, parent_org_id, region, plan, policy, status_reason, status_message, site_url, apps, waiting_since, waiting_roles, deadline_at, last_restorable, muted, data_residency, constraint, run_url, created_by, created_at, active_at",
		Parts: []part{
			{Title: "Where it is", Field: "allocation"},
			{Title: "Why it is there", Field: "decision.decision_log", Style: "decision"},
			{Title: "Certificate", Field: "certificate"},
			{Title: "Storage", Field: "storage"},
			{Title: "What was lost", Field: "loss"},
			{Title: "Backups", List: "tenants/{tenant_id}/backups"},
			{Title: "Drills", List: "tenants/{tenant_id}/drills"},
			{Title: "Moves", List: "tenants/{tenant_id}/moves"},
			{Title: "Restores", List: "tenants/{tenant_id}/restores"},
			{Title: "Custom domains", List: "tenants/{tenant_id}/domains"},
			{Title: "Snapshots", List: "tenants/{tenant_id}/snapshots"},
			{Title: "Cost this month", List: "costs?by=tenant&id={tenant_id}", Style: "later"},
			{Title: "History", Field: "timeline", Style: "timeline"},
		},
		Do: "createBackup, createMove, createRestore, createDrill, suspendTenant, resumeTenant, cancelTenant, reactivateTenant, retryTenant, cloneTenant, unmuteTenant, createTenantDomain, setAdminPassword, addTenantUser, putStorageQuota, putTenantMail, deleteTenantMail, patchTenant, overridePlacement, createSnapshot, terminateTenant",
	},
	{
		Page: "tenants/{tenant_id}/moves/{move_id}", Kind: "move", Noun: "Move", Section: "tenants", API: "/v1/tenants/{tenant_id}/moves/{move_id}", CLI: "tenant move-show {tenant_id} {move_id}", States: "state",
		Facts: "tenant_id, org_id, reason, message, why, maintenance_of, from_server_id, to_server_id, from_shard_id, to_shard_id, from_pool_id, to_pool_id, copied_bytes, delta_bytes, downtime_ms, requested_by, created_at, started_at, frozen_at, switched_at, opened_at, finished_at", Do: "cancelMove",
	},
	{
		Page: "tenants/{tenant_id}/backups/{backup_id}", Kind: "backup", Noun: "Backup", Section: "tenants", API: "/v1/tenants/{tenant_id}/backups/{backup_id}", CLI: "backup show {tenant_id} {backup_id}", States: "state",
		Facts: "tenant_id, org_id, kind, reason, message, taken_at, bytes, plain_bytes, verified, verified_at, verify_message, expires_at, held_at, held_by, hold_reason, server_id, sha256, object", Do: "holdBackup, releaseBackup, deleteBackup",
	},
	{Page: "tenants/{tenant_id}/restores/{job_id}", Kind: "tenant", Noun: "Restore", Section: "tenants", API: "/v1/tenants/{tenant_id}/restores/{job_id}", CLI: "restore show {tenant_id} {job_id}", States: "status"},
	{Page: "tenants/{tenant_id}/snapshots/{snapshot_id}", Kind: "tenant", Noun: "Snapshot", Section: "tenants", API: "/v1/tenants/{tenant_id}/snapshots/{snapshot_id}", CLI: "snapshot show {tenant_id} {snapshot_id}", States: "status", Do: "deleteSnapshot"},
	{
		Page: "decisions/{decision_id}", Kind: "tenant", Noun: "Decision", Section: "decisions", API: "/v1/decisions/{decision_id}", CLI: "decision show {decision_id}", States: "decision.outcome",
		Facts: "decision.tenant_id, decision.org_id, decision.region, decision.code, decision.algorithm, decision.actor, decision.at, decision.decision_log.selection_reason, decision.decision_log.confidence_score, decision.decision_log.score, decision.decision_log.candidates_evaluated, input",
		Parts: []part{{Title: "How it was decided", Field: "funnel", Style: "funnel"}, {Title: "What was asked for", Field: "request"}, {Title: "Policy", Field: "decision.policy"}},
	},
	{
		Page: "fleets/{fleet_id}", Kind: "fleet", Noun: "Fleet", Section: "fleets", API: "/v1/fleets/{fleet_id}", CLI: "fleet show {fleet_id}",
		Facts: "role, region, size, desired_capacity, min_size, max_size, regions, serves_tenants, serves_workloads, workload_memory_bytes, workload_cpus, patch_window, constraint, infra_provider, spec, run_url, created_by, created_at",
		Parts: []part{{Title: "Policies", Field: "policies", Columns: "position, policy_id, type, enabled, spec, last_used_at: used"}, {Title: "Actions", List: "fleets/{fleet_id}/actions"}},
		Do:    "createFleetAction, updateFleet, attachPolicy, detachPolicy, deleteFleet",
	},
	{
		Page: "fleets/{fleet_id}/actions/{seq}", Kind: "fleet", Noun: "Action", Section: "fleets", API: "/v1/fleets/{fleet_id}/actions/{seq}", CLI: "fleet action {fleet_id} {seq}", States: "status",
		Facts: "fleet_id, action, reason, message, cause, inputs, data, requested_by, run_url, created_at, started_at, finished_at", Parts: []part{{Title: "Steps", Field: "steps", Columns: "at, op: step, server_id, region, round, state, message"}}, Do: "cancelFleetAction",
	},
	{Page: "policies/{policy_id}", Kind: "fleet", Noun: "Policy", Section: "policies", API: "/v1/policies/{policy_id}", CLI: "policy show {policy_id}", Facts: "type, spec, created_by, created_at, updated_at", Do: "putPolicy, deletePolicy"},
	{Page: "warm-pools/{region}/{plan}", Kind: "server", Noun: "Warm pool", Section: "pools", API: "/v1/warm-pools/{region}/{plan}", CLI: "pool warm list", Do: "putWarmPool"},
	{Page: "site-pool-policies/{plan}", Kind: "tenant", Noun: "Policy of site pools", Section: "pools", API: "/v1/site-pool-policies/{plan}", CLI: "pool policies", Do: "putSitePoolPolicy"},
	{Page: "placement-pools/{pool}", Kind: "org", Noun: "Placement pool", Section: "pools", API: "/v1/placement-pools/{pool}", CLI: "placement-pool show {pool}", Facts: "name, require, disallow, is_default, org_count, org_ids, created_by, created_at, updated_by, updated_at", Do: "putPlacementPool, setDefaultPlacementPool, unsetDefaultPlacementPool, associatePlacementPool, dissociatePlacementPool, deletePlacementPool"},
	{
		Page: "orgs/{org_id}", Kind: "org", Noun: "Org", Section: "orgs", API: "/v1/orgs/{org_id}", CLI: "org show {org_id}", Facts: "parent_org_id, tier, created_by, created_at",
		Parts: []part{{Title: "Quotas", List: "orgs/{org_id}/quotas", Style: "quotas"}, {Title: "Backups' space", List: "orgs/{org_id}/backup-space"}, {Title: "Placement pools", List: "orgs/{org_id}/placement-pools"}, {Title: "Cost this month", List: "costs?by=org&id={org_id}", Style: "later"}, {Title: "Events", List: "orgs/{org_id}/events"}},
		Do:    "putOrg, setOrgQuota, unsetOrgQuota, setBackupLimit, unsetBackupLimit, associatePlacementPool, dissociatePlacementPool",
	},
	{Page: "apps/{app_id}", Kind: "org", Noun: "App", Name: "name", Section: "apps", API: "/v1/apps/{app_id}", CLI: "app show {app_id}", Facts: "app_id, org_id, created_by, created_at, deleted_at", Do: "createEnv, deleteApp"},
	{Page: "envs/{env_id}", Kind: "org", Noun: "Environment", Name: "name", Section: "apps", API: "/v1/envs/{env_id}", CLI: "env show {env_id}", Facts: "env_id, app_id, org_id, region, created_by, created_at, deleted_at", Parts: []part{{Title: "IPv4 address", List: "envs/{env_id}/ipv4"}}, Do: "createGroup, createRoute, enableIPv4, disableIPv4, deleteEnv"},
	{Page: "envs/{env_id}/routes/{route_id}", Kind: "route", Noun: "Route", Name: "hostname", Section: "routes", API: "/v1/envs/{env_id}/routes/{route_id}", CLI: "route show {env_id} {route_id}", Do: "deleteRoute"},
	{
		Page: "groups/{group_id}", Kind: "group", Noun: "Process group", Name: "name", Section: "groups", API: "/v1/groups/{group_id}", CLI: "group show {group_id}", States: "status, deploy_status",
		Facts: "group_id, org_id, env_id, region, status_reason, status_message, deploy_reason, deploy_message, release, stable_release, replicas, constraint, waiting_since, next_attempt_at, paused_at, run_url, created_by, created_at",
		Parts: []part{{Title: "Why it is so", Field: "decision"}, {Title: "What it runs", Field: "spec"}, {Title: "Instances", List: "groups/{group_id}/instances"}, {Title: "Rollouts", List: "groups/{group_id}/rollouts"}},
		Do:    "scaleGroup, deployGroup, rollBackGroup, restartGroup, pauseGroup, resumeGroup, deleteGroup",
	},
	{Page: "instances/{instance_id}", Kind: "instance", Noun: "Instance", Section: "instances", API: "/v1/instances/{instance_id}", CLI: "instance show {instance_id}", States: "state", Facts: "group_id, org_id, server_id, healthy, message, restarts, release, image, memory_limit_bytes, disk_request_bytes, cpu_request, created_at, started_at, running_at, stopped_at", Parts: []part{{Title: "Ports", Field: "ports", Columns: "container_port, host_port"}}},
	{
		Page: "volumes/{volume_id}", Kind: "volume", Noun: "Volume", Name: "name", Section: "volumes", API: "/v1/volumes/{volume_id}", CLI: "volume show {volume_id}", States: "status",
		Facts: "volume_id, org_id, region, location, size_bytes, reason, message, last_restorable, created_by, created_at", Parts: []part{{Title: "Attached to", Field: "attachment"}, {Title: "Backups", List: "volumes/{volume_id}/backups"}, {Title: "Drills", List: "volumes/{volume_id}/drills"}, {Title: "Restores", List: "volumes/{volume_id}/restores"}},
		Do: "growVolume, attachVolume, detachVolume, createVolumeBackup, createVolumeRestore, createVolumeDrill, cloneVolume, deleteVolume",
	},
	{Page: "volumes/{volume_id}/backups/{backup_id}", Kind: "backup", Noun: "Backup", Section: "volumes", API: "/v1/volumes/{volume_id}/backups/{backup_id}", CLI: "volume backup show {volume_id} {backup_id}", States: "state", Do: "holdVolumeBackup, releaseVolumeBackup, deleteVolumeBackup"},
	{Page: "domains/{domain_id}", Kind: "org", Noun: "Custom domain", Name: "name", Section: "domains", API: "/v1/domains/{domain_id}", CLI: "domain show {domain_id}", States: "status", Parts: []part{{Title: "Records", Field: "records", Columns: "type, name, value, purpose"}}, Do: "checkDomain, deleteDomain"},
	{Page: "certificates/{certificate_id}", Kind: "certificate", Noun: "Certificate", Section: "certificates", API: "/v1/certificates/{certificate_id}", CLI: "certificate show {certificate_id}", States: "status", Facts: "names, challenge, org_id, tenant_id, reason, message, renews, failures, issuer, serial, not_before, not_after, next_attempt_at, issued_at, explanation_url", Parts: []part{{Title: "Orders", Field: "orders", Columns: "order_id, state, reason, message, created_at: began, ended_at: ended"}}, Do: "renewCertificate"},
	{Page: "backup-policies/{owner}", Kind: "backup", Noun: "Backup policy", Section: "backups", API: "/v1/backup-policies/{owner}", CLI: "backup policy get {owner}", Do: "putBackupPolicy, holdBackups, releaseBackups, deleteBackupPolicy"},
	{Page: "releases/{name}", Kind: "release", Noun: "Release", Section: "releases", API: "/v1/releases/{name}", CLI: "release show {name}", States: "status", Facts: "image, apps, reason, message, current, run_url, created_by, created_at, started_at, finished_at", Parts: []part{{Title: "Rings", Field: "rings", Columns: "name, percent, tenants, soak_seconds: waits"}, {Title: "Servers", Field: "servers", Columns: "server_id, ring, status, reason, message, started_at, finished_at"}}, Do: "startRelease, pauseRelease, resumeRelease, cancelRelease"},
	{Page: "agent-releases/{version}", Kind: "release", Noun: "Release of the agent", Section: "releases", API: "/v1/agent-releases/{version}", CLI: "agent release show {version}", States: "status", Parts: []part{{Title: "Servers", Field: "servers", Columns: "server_id, ring, status, agent_version, message, offered_at, finished_at"}}, Do: "startAgentRelease, pauseAgentRelease, cancelAgentRelease"},
	{Page: "images/{image_id}", Kind: "image", Noun: "Golden image", Section: "releases", API: "/v1/images/{image_id}", CLI: "image show {image_id}", States: "status", Do: "deleteImage"},
	{Page: "rebalances/{rebalance_id}", Kind: "rebalance", Noun: "Packing plan", Section: "map", API: "/v1/rebalances/{rebalance_id}", CLI: "rebalance show {rebalance_id}", States: "state", Facts: "reason, message, why, requested_by, at_once, total, waiting, moving, moved, failed, skipped, frees, freed, monthly, currency, remove_servers, created_at, finished_at", Parts: []part{{Title: "Moves", Field: "moves", Columns: "seq, tenant_id, from, to, bytes: size, state, reason, message"}}, Do: "cancelRebalance"},
	{Page: "patch-waves/{wave_id}", Kind: "server", Noun: "Wave of security updates", Section: "servers", API: "/v1/patch-waves/{wave_id}", CLI: "patch-wave show {wave_id}", Parts: []part{{Title: "Servers", Field: "members", Columns: "server_id, status, reason, message, started_at, finished_at"}, {Title: "Timeline", Field: "timeline", Style: "timeline"}}},
	{Page: "registries/{host}", Kind: "org", Noun: "Registry", Section: "registries", API: "/v1/registries/{host}", CLI: "registry show {host}", Do: "putRegistry, deleteRegistry"},
	{Page: "operations/{operation_id}", Kind: "", Noun: "Operation", Section: "", API: "/v1/operations/{operation_id}", CLI: "operation show {operation_id}", States: "status", Facts: "id, kind, reason, message, target"},
	{Page: "audit/{entry_id}", Kind: "audit", Noun: "Audit entry", Section: "audit", API: "/v1/audit/{entry_id}", CLI: "audit show {entry_id}", Facts: "at, actor, role, from, operation, request_id, verb, kind, id, org_id, seq, hash", Parts: []part{{Title: "Changed", Style: "difference"}}},
}
