package attention

import (
	"maps"
	"slices"
	"strings"
)

// Kind is a kind of problem. Kinds are stable.
type Kind string

// Docs is the kind's section of the runbook.
func (k Kind) Docs() string { return "docs/runbook.md#" + string(k) }

// The kinds.
const (
	Recovering          Kind = "recovering"
	BreakGlass          Kind = "break_glass"
	DeletionsFrozen     Kind = "deletions_frozen"
	DeletionRefused     Kind = "deletion_refused"
	ReconcileBreaker    Kind = "reconcile_breaker"
	DNSBreaker          Kind = "dns_breaker"
	SweepFrozen         Kind = "sweep_frozen"
	ProcessDown         Kind = "process_down"
	LookLate            Kind = "look_late"
	LookFailing         Kind = "look_failing"
	ProviderBlocked     Kind = "provider_blocked"
	CatalogStale        Kind = "catalog_stale"
	ServerFailed        Kind = "server_failed"
	ServerStuck         Kind = "server_stuck"
	ServerAwaitingStock Kind = "server_awaiting_stock"
	AgentSilent         Kind = "agent_silent"
	ClockSkewed         Kind = "clock_skewed"
	DockerStopped       Kind = "docker_stopped"
	TenantLost          Kind = "tenant_lost"
	TenantFailed        Kind = "tenant_failed"
	TenantStuck         Kind = "tenant_stuck"
	TenantsWaiting      Kind = "tenants_waiting"
	GroupUnschedulable  Kind = "group_unschedulable"
	GroupOverQuota      Kind = "group_over_quota"
	RolloutFailed       Kind = "rollout_failed"
	WarmPoolLow         Kind = "warm_pool_low"
	SitePoolLow         Kind = "site_pool_low"
	FleetActionFailed   Kind = "fleet_action_failed"
	MaintenanceFailed   Kind = "maintenance_failed"
	MaintenanceStuck    Kind = "maintenance_stuck"
	MoveFailed          Kind = "move_failed"
	RebalanceStopped    Kind = "rebalance_stopped"
	ReleaseStopped      Kind = "release_stopped"
	AgentReleaseStopped Kind = "agent_release_stopped"
	ImageFailed         Kind = "image_failed"
	BackupLate          Kind = "backup_late"
	BackupMissing       Kind = "backup_missing"
	BackupFailed        Kind = "backup_failed"
	BackupLimit         Kind = "backup_limit"
	RestoreFailed       Kind = "restore_failed"
	DrillFailed         Kind = "drill_failed"
	BackupUnverified    Kind = "backup_unverified"
	CertificateEnding   Kind = "certificate_ending"
	CertificateFailing  Kind = "certificate_failing"
	DomainFailing       Kind = "domain_failing"
	VolumeFailed        Kind = "volume_failed"
	AddressFailed       Kind = "address_failed"
	SiteReadOnly        Kind = "site_read_only"
	SiteOverQuota       Kind = "site_over_quota"
	OrgAtQuota          Kind = "org_at_quota"
	OrgNearQuota        Kind = "org_near_quota"
	LimitRequested      Kind = "limit_requested"
	PatchesMissing      Kind = "patches_missing"
	OperationStuck      Kind = "operation_stuck"
	QuotaDrifted        Kind = "quota_drifted"
	PeersBehind         Kind = "peers_behind"
	EdgeBehind          Kind = "edge_behind"
	EdgeRejectedName    Kind = "edge_rejected_name"
	SiteDown            Kind = "site_down"
	DNSRecordFailing    Kind = "dns_record_failing"
	ProviderUntracked   Kind = "provider_untracked"
)

// spec is what a kind means. Texts hold {id}, {name}, {owner}, {org}, {by}, {reason} and {losses}.
type spec struct {
	severity Severity
	critical []string          // reasons that make it critical
	harmful  []string          // reasons that do while customers are affected; "" is any
	byReason bool              // one thing may have it for several reasons
	says     string            // unless the rows have a message
	plural   string            // of a sum, such as "tenants failed"
	todo     string            // what to do
	todos    map[string]string // what to do for some reasons
	kept     map[string]string // in place of both if data may be lost with it: for some reasons, and "" for the others
	dead     string            // in place of all if it is dead, with the actions give
	give     []Action
	actions  map[string][]Action // by what it is about, every subject that it may have
	all      []Action            // of a sum; nil if it is never one
}

func get(label, path, cli string) Action {
	return Action{Label: label, Method: "GET", Path: path, CLI: cli}
}

func post(label, path, cli string) Action {
	return Action{Label: label, Method: "POST", Path: path, CLI: cli}
}

func drop(label, path, cli string) Action {
	return Action{Label: label, Method: "DELETE", Path: path, CLI: cli}
}

// with is an action with a body.
func with(a Action, body map[string]any) Action {
	a.Body = body
	return a
}

// destroys is an action that destroys the data on its subject: it is proposed only where rows show that there is none.
func destroys(a Action) Action {
	a.Destroys = true
	return a
}

// because is an action that helps only for one reason.
func because(reason string, a Action) Action {
	a.reason = reason
	return a
}

func showOperation(id string) Action {
	return get("Show the operation", "/v1/operations/"+strings.ReplaceAll(id, "/", "%2F"), "prego operation show "+id)
}

// about are the actions of a kind that is about one kind of thing.
func about(subject string, actions ...Action) map[string][]Action {
	return map[string][]Action{subject: actions}
}

var (
	showServer   = get("Show the server", "/v1/servers/{id}", "prego server show {id}")
	retryServer  = destroys(post("Provision it again", "/v1/servers/{id}/retry", "prego server retry {id}"))
	deleteServer = destroys(drop("Delete it", "/v1/servers/{id}", "prego server delete {id}"))
	listTenants  = get("List its tenants", "/v1/tenants?server_id={id}", "prego tenant list --server {id}")
	rebootServer = with(post("Reboot its host", "/v1/servers/{id}/reboot", "prego server reboot {id} --keep-tenants"),
		map[string]any{"keep_tenants": true})
	showTenant       = get("Show the tenant", "/v1/tenants/{id}", "prego tenant show {id}")
	showGroup        = get("Show the group", "/v1/groups/{id}", "prego group show {id}")
	showVolume       = get("Show the volume", "/v1/volumes/{id}", "prego volume show {id}")
	deleteVolume     = drop("Delete it", "/v1/volumes/{id}", "prego volume delete {id}")
	enableAddress    = post("Enable it again", "/v1/envs/{id}/ipv4", "prego ipv4 enable {id}")
	showFleets       = get("Show the fleets", "/v1/fleets", "prego fleet list")
	showQueue        = get("Show the queue", "/v1/queue", "prego queue list")
	showMaintenance  = get("Show how far it is", "/v1/servers/{id}/maintenance", "prego server maintenance-status {id}")
	listServers      = get("List the servers", "/v1/servers?region={by}", "prego server list --region {by}")
	listPeers        = get("List them", "/v1/server-peers", "prego server peers")
	listOrgs         = get("List the orgs", "/v1/orgs", "prego org list")
	showQuota        = get("Show its quota", "/v1/orgs/{id}/quotas", "prego quota show {id}")
	showCatalog      = get("Show the catalog", "/v1/catalog", "prego catalog")
	showReady        = get("Show what is ready", "/readyz", "prego health")
	showDomain       = get("Show the name", "/v1/domains/{id}", "prego domain show {id}")
	showCertificate  = get("Show the certificate", "/v1/certificates/{id}", "prego certificate show {id}")
	renewCertificate = post("Renew it now", "/v1/certificates/{id}/renew", "prego certificate renew {id}")
	listCertificates = get("List them", "/v1/certificates?status=active,failed", "prego certificate list --state active,failed")
	reconcile        = post("Compare again now", "/internal/reconcile", "prego reconcile")
)

// ordered are the kinds as they are listed within a severity: what hides or risks
// most comes first.
var ordered = []struct {
	kind Kind
	spec spec
}{
	{Recovering, spec{
		severity: Critical, says: "nothing is changed: the database was restored to an earlier moment",
		todo: "With a worker's settings and keys, `prego restore check` shows what the database lacks, and " +
			"`prego restore apply` completes it. Sites serve meanwhile.",
		actions: about("installation", showReady),
	}},
	{BreakGlass, spec{
		severity: Critical, says: "a person has an operator's login from the control plane's host",
		todo: "Ask them why: it depends on no issuer and no passkey. It ends by itself within 15 minutes; " +
			"`prego access break-glass --end` ends it now.",
		actions: about("installation", get("Show who made it", "/v1/audit?kind=login_link", "prego audit list --kind login_link")),
	}},
	{DeletionsFrozen, spec{
		severity: Warning, critical: []string{"breaker"}, says: "nothing is deleted: deletions are frozen",
		todo:    "Find out why. `prego unfreeze` lets deletions continue.",
		actions: about("installation", get("Show the freeze", "/v1/freeze", "prego freeze-status")),
	}},
	{DeletionRefused, spec{
		severity: Critical, says: "a run tried to delete it although it holds data", plural: "deletions were refused",
		todo: "Nothing is lost. Find out why the run requests it: the run repeats it until it may.",
		actions: map[string][]Action{
			"server": {showServer}, "tenant": {showTenant}, "volume": {showVolume},
			"ipv4": {get("List the addresses", "/v1/ipv4-addresses", "prego ipv4 list")},
		},
		all: []Action{get("Show the freeze", "/v1/freeze", "prego freeze-status")},
	}},
	{ReconcileBreaker, spec{
		severity: Critical, says: "the reconciliation deletes nothing: too much at the provider has no row here",
		todo:    "Find out whether this database is the right one and complete before anything else: it may be empty or restored. `prego restore check` lists what would be deleted.",
		actions: about("installation", reconcile),
	}},
	{DNSBreaker, spec{
		severity: Critical, says: "no DNS record of {id} is deleted: too many have no row here", plural: "zones have too many records without a row",
		todo:    "Find out whether this database is the right one and complete before anything else: it may be empty or restored. Unwanted records stay until then.",
		actions: about("zone", showReady), all: []Action{showReady},
	}},
	{SweepFrozen, spec{
		severity: Critical, says: "too many agents are silent at the same time; none is marked",
		todo: "Check the agent gateway and the way to it first: a simultaneous failure of this many hosts is " +
			"unlikely.",
		actions: about("installation", get("List the servers", "/v1/servers?agent_status=connected,degraded", "prego server list --agent connected,degraded")),
	}},
	{ProcessDown, spec{
		severity: Warning, critical: []string{"no_worker", "no_agentgw"},
		says: "it does not run", plural: "kinds of processes do not run",
		todo: "Start it, and read its log: accepted requests wait until then and lose nothing. " +
			"`prego health` shows all processes.",
		todos: map[string]string{
			"not_ready": "Read its error: it needs Postgres and Temporal, and continues by itself with them.",
		},
		actions: about("process", showReady), all: []Action{showReady},
	}},
	{LookLate, spec{
		severity: Warning, says: "no worker has checked {id} for minutes", plural: "checks are late",
		todo: "Read the worker's log: a worker runs, and this check does not end or does not start. " +
			"What it would find is found every 15 minutes.",
		actions: about("look", showReady), all: []Action{showReady},
	}},
	{TenantLost, spec{
		severity: Critical, says: "its site was lost with its server", plural: "tenants are without a site since their server was lost",
		todo: "Restore it from its newest backup, if that is not under way.",
		actions: about("tenant", showTenant,
			with(post("Restore it elsewhere", "/v1/tenants/{id}/restores", "prego restore elsewhere {id}"), map[string]any{"elsewhere": true})),
		all: []Action{get("List the failed tenants", "/v1/tenants?region={by}&state=failed", "prego tenant list --region {by} --state failed")},
	}},
	{DrillFailed, spec{
		severity: Critical, says: "its newest backup could not be restored in a drill", plural: "newest backups could not be restored in a drill",
		todo: "Create another backup and drill that one: the present one may not restore it.",
		actions: map[string][]Action{
			"tenant": {
				get("List its drills", "/v1/tenants/{id}/drills", "prego drill list {id}"),
				post("Back it up now", "/v1/tenants/{id}/backups", "prego backup create {id}"),
				post("Drill it again", "/v1/tenants/{id}/drills", "prego drill create {id}"),
			},
			"volume": {
				get("List its drills", "/v1/volumes/{id}/drills", "prego volume drill list {id}"),
				post("Back it up now", "/v1/volumes/{id}/backups", "prego volume backup create {id}"),
				post("Drill it again", "/v1/volumes/{id}/drills", "prego volume drill create {id}"),
			},
		},
		all: []Action{get("List the tenants", "/v1/tenants?region={by}", "prego tenant list --region {by}")},
	}},
	{ReleaseStopped, spec{
		severity: Warning, harmful: []string{""}, says: "the release has stopped", plural: "releases have stopped",
		todo: "Read why, fix the server or the image, and resume the release or cancel it. After `broken` sites may be " +
			"in maintenance.",
		actions: about("release", get("Show the release", "/v1/releases/{id}", "prego release show {id}"),
			post("Resume it", "/v1/releases/{id}/resume", "prego release resume {id}"), post("Cancel it", "/v1/releases/{id}/cancel", "prego release cancel {id}")),
		all: []Action{get("List the releases", "/v1/releases", "prego release list")},
	}},
	{BackupLate, spec{
		severity: Critical, says: "it has no backup since its last one was due", plural: "have no backup since their last one was due",
		todo: "See why its last backups failed: data written since the last good backup would be lost with its host.",
		actions: map[string][]Action{
			"tenant": {get("List its backups", "/v1/tenants/{id}/backups", "prego backup list {id}"), post("Back it up now", "/v1/tenants/{id}/backups", "prego backup create {id}")},
			"volume": {get("List its backups", "/v1/volumes/{id}/backups", "prego volume backup list {id}"), post("Back it up now", "/v1/volumes/{id}/backups", "prego volume backup create {id}")},
		},
		all: []Action{get("List the tenants", "/v1/tenants?region={by}", "prego tenant list --region {by}")},
	}},
	{CertificateEnding, spec{
		severity: Warning, critical: []string{"ends_in_days"},
		says: "it ends soon and was not renewed", plural: "certificates end soon and were not renewed",
		todo:    "See why its last orders failed and renew it: when it ends, visitors are turned away.",
		actions: about("certificate", showCertificate, renewCertificate),
		all:     []Action{listCertificates},
	}},
	{ServerFailed, spec{
		severity: Warning, critical: []string{"failed_bootstrap"}, harmful: []string{"heartbeat_lost", "server_missing"},
		says: "it failed: {reason}", plural: "servers failed",
		todo: "Read the reason and its message on the server's timeline, fix the cause, and provision it again or " +
			"delete it.",
		todos: map[string]string{
			"server_missing":   "Find out who deleted it at the provider, and provision it again, give it up or delete it.",
			"failed_bootstrap": "A second key used its one-time token, so its user_data leaked: investigate, then delete it.",
			"failed_capacity":  "Raise the provider's limit or add machine types to the catalog, and provision it again.",
			"clock_skew": "Set the host's clock right; if all new hosts fail this way, check the control plane's " +
				"clock.",
		},
		kept: map[string]string{
			"": "Read the reason and its message on the server's timeline, and fix the cause. " +
				"Data may be on its machine, so neither a retry nor a deletion is proposed.",
			"heartbeat_lost": "Find out whether its host runs: its sites may still be served while only the agent is silent. " +
				"A reboot restarts the host, and resets it if it does not follow; its tenants are down meanwhile. " +
				"The server is active again with its next heartbeat.",
		},
		dead: "Give it up if it cannot be brought back at the provider: its tenants are restored elsewhere from " +
			"their newest backups, and what they wrote since then is lost: {losses}.",
		give: []Action{showServer, listTenants, destroys(post("Give it up as lost", "/v1/servers/{id}/lost",
			"prego server lose {id}"))},
		actions: about("server", showServer, listTenants, because("heartbeat_lost", rebootServer), retryServer, deleteServer),
		all:     []Action{get("List the failed servers", "/v1/servers?region={by}&status=failed", "prego server list --region {by} --state failed")},
	}},
	{DockerStopped, spec{
		severity: Warning, harmful: []string{""},
		says: "dockerd does not run on its host", plural: "servers are without a running dockerd",
		todo:    "Check the host: running containers keep running, but none can be started, stopped or inspected.",
		actions: about("server", showServer, listTenants, rebootServer),
		all:     []Action{get("List the servers", "/v1/servers?region={by}", "prego server list --region {by}")},
	}},
	{GroupUnschedulable, spec{
		severity: Warning, says: "no server has a place for it", plural: "process groups find no place",
		todo: "Add room: its org is within quota, and no server has a place for it. Look at the fleets that serve workloads, and their limits.",
		todos: map[string]string{
			"cell_mismatch": "No server has the tags that it requires: tag servers, or change its constraint or its org's placement pools.",
		},
		actions: about("group", showGroup, showQueue, showFleets),
		all:     []Action{get("List them", "/v1/groups?region={by}&status=unschedulable", "prego group list --region {by} --state unschedulable"), showQueue, showFleets},
	}},
	{TenantsWaiting, spec{
		severity: Warning, says: "it waits for a place", plural: "tenants wait for a place",
		todo: "See in the queue what is being added. If nothing is, add room: servers of the missing role, or a higher ceiling of the fleet or the region.",
		todos: map[string]string{
			"cell_mismatch":   "No server has the tags that it requires: tag servers, or change its constraint or its org's placement pools.",
			"awaiting_site":   "A site is being built for it. If that takes long, look at the site pool of its server.",
			"building_server": "Its own server is being provisioned: nothing to do, unless that takes long.",
		},
		actions: about("tenant", showTenant, showQueue, showFleets),
		all:     []Action{showQueue, get("List the scale-outs", "/v1/scaling-events?region={by}", "prego scaling list --region {by}"), showFleets},
	}},
	{TenantFailed, spec{
		severity: Warning, says: "it failed: {reason}", plural: "tenants failed",
		todo:    "Read the reason on its timeline, fix the cause, and provision it again or terminate it.",
		actions: about("tenant", showTenant, post("Provision it again", "/v1/tenants/{id}/retry", "prego tenant retry {id}")),
		all:     []Action{get("List the failed tenants", "/v1/tenants?region={by}&state=failed", "prego tenant list --region {by} --state failed")},
	}},
	{LookFailing, spec{
		severity: Warning, says: "looking at {id} fails", plural: "looks fail",
		todo: "Read the error: what the look would find is found only every 15 minutes.",
		todos: map[string]string{
			"rows_rejected": "Read which rows, and correct or delete them: the others of the batch were written. " +
				"It is a fault of prego, so report it.",
		},
		actions: about("look", showReady), all: []Action{showReady},
	}},
	{ProviderBlocked, spec{
		severity: Warning, says: "it limits our requests", plural: "interfaces limit our requests",
		todo:    "Wait: requests resume by themselves. If it happens often, request a higher limit or spread the requests.",
		actions: about("provider", showCatalog), all: []Action{showCatalog},
	}},
	{CatalogStale, spec{
		severity: Warning, says: "what it sells was not read for a long time", plural: "catalogs are old",
		todo:    "Read why with `prego catalog`, and refresh it: types, stock and prices are as they were then.",
		actions: about("provider", showCatalog, post("Read it now", "/internal/catalog/refresh", "prego catalog refresh")), all: []Action{showCatalog},
	}},
	{AgentSilent, spec{
		severity: Warning, harmful: []string{"agent_disconnected"}, says: "its agent is silent", plural: "agents are silent",
		todo: "Find out whether its host runs and reaches the gateway: its sites may still be served. " +
			"A reboot restarts an agent that hangs, and its tenants are down meanwhile. " +
			"An active server whose agent is silent for long is failed; its data stays.",
		actions: about("server", showServer, listTenants, rebootServer),
		all:     []Action{get("List them", "/v1/servers?region={by}&agent_status=degraded,disconnected", "prego server list --region {by} --agent degraded,disconnected")},
	}},
	{ClockSkewed, spec{
		severity: Warning, says: "its clock differs from the control plane's", plural: "hosts' clocks differ from the control plane's",
		todo: "Set its clock right: commands on it are refused. If it is all hosts, check the control plane's " +
			"clock.",
		actions: about("server", showServer),
		all:     []Action{get("List the servers", "/v1/servers?region={by}", "prego server list --region {by}")},
	}},
	{ServerStuck, spec{
		severity: Warning, says: "it is stuck", plural: "servers are stuck",
		todo: "Look at its timeline and its run in Temporal: no step of it takes so long.",
		todos: map[string]string{
			"decommission_requested": "Look at its timeline and its run in Temporal: it stays recorded as billed until the provider confirms the deletion.",
			"provider_refused": "Read why something of it is not deleted, and remove the cause at the provider. " +
				"It stays recorded as billed until then. The deletion is repeated.",
		},
		actions: about("server", showServer, deleteServer),
		all:     []Action{get("List them", "/v1/servers?region={by}&status=provisioning,draining", "prego server list --region {by} --state provisioning,draining")},
	}},
	{ServerAwaitingStock, spec{
		severity: Warning, says: "the provider has no stock, or no quota for us", plural: "servers wait for the provider's stock or quota",
		todo: "If the provider has no stock, add machine types or locations to the catalog; if it is its quota for us, " +
			"raise that there. The queue shows which requests wait for it. After PREGO_CAPACITY_WAIT it fails.",
		actions: about("server", showServer, showQueue, showCatalog),
		all:     []Action{get("List them", "/v1/servers?region={by}&status=provisioning", "prego server list --region {by} --state provisioning"), showCatalog},
	}},
	{TenantStuck, spec{
		severity: Warning, says: "its state has not taken effect on its host", plural: "tenants' states have not taken effect on their hosts",
		todo: "Look at its timeline and its run in Temporal, and whether its server's agent answers.",
		todos: map[string]string{
			"timer_held": "Its time is over, and its data is kept because no caller has accepted its end. " +
				"`prego tenant cancel {id}` does that while it is in use, and `prego tenant terminate {id}` in " +
				"its grace period or once it is terminated; both show what is destroyed first. " +
				"`prego tenant reactivate {id}` keeps it in its grace period.",
		},
		actions: about("tenant", showTenant),
		all:     []Action{get("List the tenants", "/v1/tenants?region={by}", "prego tenant list --region {by}")},
	}},
	{RolloutFailed, spec{
		severity: Warning, says: "its last rollout failed", plural: "process groups' last rollouts failed",
		todo:    "Read why, and deploy a release that starts.",
		actions: about("group", showGroup, get("List its rollouts", "/v1/groups/{id}/rollouts", "prego group rollouts {id}")),
		all:     []Action{get("List the groups", "/v1/groups?region={by}", "prego group list --region {by}")},
	}},
	{WarmPoolLow, spec{
		severity: Warning, says: "it has fewer servers than it promises, and too few are on their way", plural: "warm pools are low",
		todo:    "See what keeps its servers: failed ones, the provider's stock, or a ceiling.",
		actions: about("warm_pool", get("List the warm pools", "/v1/warm-pools", "prego pool warm list"), get("List the scale-outs", "/v1/scaling-events", "prego scaling list")),
		all:     []Action{get("List the warm pools", "/v1/warm-pools", "prego pool warm list")},
	}},
	{SitePoolLow, spec{
		severity: Warning, says: "sites of its pool failed, or take longer than promised", plural: "site pools are below their promise",
		todo:    "See why its sites fail: new tenants there wait while their site is built.",
		actions: about("server", get("List the site pools", "/v1/site-pools", "prego pool list"), showServer, post("Refill it now", "/v1/site-pools/{id}/refill", "prego pool refill {id}")),
		all:     []Action{get("List the site pools", "/v1/site-pools?region={by}", "prego pool list --region {by}")},
	}},
	{FleetActionFailed, spec{
		severity: Warning, says: "its last action failed", plural: "fleets' last actions failed",
		todo:    "Read which steps failed, fix the cause, and request the action again.",
		actions: about("fleet", get("Show the fleet", "/v1/fleets/{id}", "prego fleet show {id}"), get("List its actions", "/v1/fleets/{id}/actions", "prego fleet actions {id}")),
		all:     []Action{showFleets},
	}},
	{MaintenanceFailed, spec{
		severity: Warning, says: "emptying it failed", plural: "maintenances failed",
		todo:    "Read what did not move. Ask again, or open the server if it is cordoned and should not be.",
		actions: about("server", showMaintenance, post("Open it", "/v1/servers/{id}/uncordon", "prego server uncordon {id}")),
		all:     []Action{listServers},
	}},
	{MaintenanceStuck, spec{
		severity: Warning, says: "it is being emptied and is stuck", plural: "servers are being emptied and are stuck",
		todo: "See what is still there and why it has no other place. Add room, or cancel.",
		todos: map[string]string{
			"impact_grew": "Repeat the request to accept its impact as it is now, or cancel.",
		},
		actions: about("server", showMaintenance, drop("Cancel it", "/v1/servers/{id}/maintenance", "prego server maintenance-cancel {id}")),
		all:     []Action{listServers},
	}},
	{MoveFailed, spec{
		severity: Warning, says: "its last move failed", plural: "tenants' last moves failed",
		todo:    "Read why. The tenant is where it was; move it again, if it should still go.",
		actions: about("tenant", get("List its moves", "/v1/tenants/{id}/moves", "prego tenant moves {id}"), showTenant),
		all:     []Action{get("List the tenants", "/v1/tenants?region={by}", "prego tenant list --region {by}")},
	}},
	{RebalanceStopped, spec{
		severity: Warning, says: "the last rebalance stopped", plural: "rebalances stopped",
		todo:    "See which moves failed, and create another plan.",
		actions: about("rebalance", get("Show it", "/v1/rebalances/{id}", "prego rebalance show {id}")),
		all:     []Action{get("List the rebalances", "/v1/rebalances", "prego rebalance list")},
	}},
	{AgentReleaseStopped, spec{
		severity: Warning, says: "the release of the agent has stopped", plural: "releases of the agent have stopped",
		todo: "See which hosts went back or fell silent, and start it again or cancel it.",
		actions: about("agent_release", get("Show it", "/v1/agent-releases/{id}", "prego agent release show {id}"),
			post("Start it again", "/v1/agent-releases/{id}/start", "prego agent release start {id}"), post("Cancel it", "/v1/agent-releases/{id}/cancel", "prego agent release cancel {id}")),
		all: []Action{get("List them", "/v1/agent-releases", "prego agent release list")},
	}},
	{ImageFailed, spec{
		severity: Warning, says: "the newest image was not built", plural: "newest images were not built",
		todo:    "Read why, and build another: servers are created from the previous one, or from the stock image.",
		actions: about("image", get("Show the image", "/v1/images/{id}", "prego image show {id}")),
		all:     []Action{get("List the images", "/v1/images", "prego image list")},
	}},
	{BackupMissing, spec{
		severity: Critical, says: "the storage does not have its backup {owner} any more", plural: "backups are not in the storage any more",
		todo: "Make a new backup now, then find out who deleted objects from the bucket: prego did not.",
		actions: map[string][]Action{
			"tenant": {post("Back it up now", "/v1/tenants/{id}/backups", "prego backup create {id}"), get("List its backups", "/v1/tenants/{id}/backups", "prego backup list {id}")},
			"volume": {post("Back it up now", "/v1/volumes/{id}/backups", "prego volume backup create {id}"), get("List its backups", "/v1/volumes/{id}/backups", "prego volume backup list {id}")},
		},
		all: []Action{get("List the tenants", "/v1/tenants", "prego tenant list")},
	}},
	{BackupFailed, spec{
		severity: Warning, says: "its last backup failed", plural: "last backups failed",
		todo: "Read why. It is tried again when it is next due.",
		actions: map[string][]Action{
			"tenant": {get("List its backups", "/v1/tenants/{id}/backups", "prego backup list {id}"), post("Back it up now", "/v1/tenants/{id}/backups", "prego backup create {id}")},
			"volume": {get("List its backups", "/v1/volumes/{id}/backups", "prego volume backup list {id}"), post("Back it up now", "/v1/volumes/{id}/backups", "prego volume backup create {id}")},
		},
		all: []Action{get("List the tenants", "/v1/tenants", "prego tenant list")},
	}},
	{BackupLimit, spec{
		severity: Warning, says: "its backups have reached their limit", plural: "orgs' backups have reached their limit",
		todo:    "Raise its limit, or keep fewer: backups on request are refused, scheduled backups continue.",
		actions: about("org", get("Show what they occupy", "/v1/orgs/{id}/backup-space", "prego backup space show {id}")),
		all:     []Action{listOrgs},
	}},
	{BackupUnverified, spec{
		severity: Warning, says: "its newest backup was not drilled for too long", plural: "were not drilled for too long",
		todo: "Tag a server with drill, or raise PREGO_DRILLS_AT_ONCE: it is unknown whether its backup can be restored.",
		actions: map[string][]Action{
			"tenant": {post("Drill it now", "/v1/tenants/{id}/drills", "prego drill create {id}"), get("List its drills", "/v1/tenants/{id}/drills", "prego drill list {id}")},
			"volume": {post("Drill it now", "/v1/volumes/{id}/drills", "prego volume drill create {id}"), get("List its drills", "/v1/volumes/{id}/drills", "prego volume drill list {id}")},
		},
		all: []Action{get("List the tenants", "/v1/tenants?region={by}", "prego tenant list --region {by}")},
	}},
	{RestoreFailed, spec{
		severity: Warning, says: "its last restore failed", plural: "last restores failed",
		todo: "Read why, and restore it again or from another backup.",
		actions: map[string][]Action{
			"tenant": {get("List its restores", "/v1/tenants/{id}/restores", "prego restore list {id}"), get("List its backups", "/v1/tenants/{id}/backups", "prego backup list {id}")},
			"volume": {get("List its restores", "/v1/volumes/{id}/restores", "prego volume restore list {id}"), get("List its backups", "/v1/volumes/{id}/backups", "prego volume backup list {id}")},
		},
		all: []Action{get("List the tenants", "/v1/tenants?region={by}", "prego tenant list --region {by}")},
	}},
	{CertificateFailing, spec{
		severity: Warning, says: "it can't be issued or renewed", plural: "certificates can't be issued or renewed",
		todo:    "Read its last orders. A customer's DNS is the most frequent reason.",
		actions: about("certificate", showCertificate, renewCertificate),
		all:     []Action{listCertificates},
	}},
	{DomainFailing, spec{
		severity: Warning, says: "its TXT record is gone, or it leads elsewhere",
		plural:  "names are not set up in the DNS",
		todo:    "Tell its org which record to create or to remove; check it afterwards.",
		actions: about("domain", showDomain, post("Look again now", "/v1/domains/{id}/check", "prego domain check {id}")),
		all:     []Action{get("List them", "/v1/domains?status=lost", "prego domain list --state lost")},
	}},
	{VolumeFailed, spec{
		severity: Warning, says: "it is not as requested", plural: "volumes are not as requested",
		todo: "Read why. Delete it and create another, elsewhere if its location has no room.",
		todos: map[string]string{
			"change_refused": "Read why the provider refuses to change or delete it, and remove the cause there. The " +
				"request is repeated.",
			"not_attached": "Read where the provider has it. If another server has it, detach it there. It is attached again by itself with the group's next instance.",
		},
		actions: about("volume", showVolume, because("no_capacity_volume", deleteVolume),
			because("provider_refused", deleteVolume), because("missing_at_provider", deleteVolume)),
		all: []Action{get("List them", "/v1/volumes?region={by}&status=failed",
			"prego volume list --region {by} --state failed")},
	}},
	{AddressFailed, spec{
		severity: Warning, says: "its IPv4 address is not as requested", plural: "IPv4 addresses are not as requested",
		todo: "Read why. Ask the provider for a higher limit, and enable it again.",
		todos: map[string]string{
			"change_refused": "Read why the provider refuses to move or delete it, and remove the cause there. The " +
				"request is repeated.",
		},
		actions: about("env", get("Show it", "/v1/envs/{id}/ipv4", "prego ipv4 show {id}"),
			because("ipam_exhausted", enableAddress), because("provider_refused", enableAddress),
			because("missing_at_provider", enableAddress)),
		all: []Action{get("List the envs", "/v1/envs", "prego env list")},
	}},
	{SiteReadOnly, spec{
		severity: Warning, says: "its site is read-only, above its storage quota", plural: "sites are read-only, above their storage quota",
		todo:    "Raise its storage quota, or have it make room: its users can't enter anything.",
		actions: about("tenant", showTenant), all: []Action{get("List the tenants", "/v1/tenants?region={by}", "prego tenant list --region {by}")},
	}},
	{OrgAtQuota, spec{
		severity: Warning, byReason: true, says: "it has reached its limit of {reason}", plural: "limits of orgs are reached",
		todo:    "Raise the limit if the org should have more: nearly all its requests for this are refused.",
		actions: about("org", showQuota), all: []Action{listOrgs},
	}},
	{LimitRequested, spec{
		severity: Warning, byReason: true, says: "it requests a higher limit of {reason}", plural: "orgs request higher limits",
		todo:    "Approve the request with `prego limit-request approve`, or refuse it with the reason.",
		actions: about("org", get("List its requests", "/v1/limit-requests?org_id={org}", "prego limit-request list --org {org}"), showQuota),
		all:     []Action{get("List the requests", "/v1/limit-requests", "prego limit-request list")},
	}},
	{PatchesMissing, spec{
		severity: Warning, says: "it has lacked security updates, or a reboot, for two weeks", plural: "servers have lacked security updates, or a reboot, for two weeks",
		todo:    "Patch it: its instances and tenants move before.",
		actions: about("server", showServer, post("Patch it", "/v1/servers/{id}/patch", "prego server patch {id}")),
		all:     []Action{get("List them", "/v1/servers?region={by}&patch_state=pending,reboot", "prego server list --region {by} --patches pending,reboot")},
	}},
	{OperationStuck, spec{
		severity: Warning, says: "it was accepted and is stuck", plural: "operations were accepted and are stuck",
		todo: "Look at its run in Temporal, and whether a worker serves its task queue.",
		todos: map[string]string{
			"instance_not_started": "Fix what the message names: the image, its registry or the host. " +
				"The start is repeated for a quarter of an hour.",
			"step_repeated": "Fix what the message names, or cancel the release.",
		},
		actions: map[string][]Action{
			"backup":         {showOperation("backup/{id}")},
			"snapshot":       {showOperation("snapshot/{id}")},
			"restore":        {showOperation("restore/{id}")},
			"volume_restore": {showOperation("volume-restore/{id}")},
			"move":           {showOperation("tenant-move/{id}")},
			"volume":         {showOperation("volume/{id}"), showVolume},
			"address":        {showOperation("address/{id}")},
			"image":          {showOperation("image-build/{id}")},
			"drill":          {showReady},
			"fleet":          {get("List its actions", "/v1/fleets/{id}/actions", "prego fleet actions {id}")},
			"certificate":    {showCertificate},
			"group":          {showGroup},
			"release": {
				get("Show the release", "/v1/releases/{id}", "prego release show {id}"),
				post("Cancel it", "/v1/releases/{id}/cancel", "prego release cancel {id}"),
			},
		},
		all: []Action{showReady},
	}},
	{QuotaDrifted, spec{
		severity: Warning, says: "its quota counters differed from its rows; they are counted again", plural: "orgs' quota counters differed from their rows",
		todo:    "Find out who changed rows with triggers off, or report a fault of prego: until it was found the org was held against wrong usage.",
		actions: about("org", showQuota), all: []Action{listOrgs},
	}},
	{PeersBehind, spec{
		severity: Warning, says: "its firewall is not as it should be", plural: "hosts' firewalls are not as they should be",
		todo:    "See what its host refused or leaves out, or why it does not answer.",
		actions: about("server", listPeers, showServer), all: []Action{listPeers},
	}},
	{SiteDown, spec{
		severity: Warning, critical: []string{"region_down", "no_edge"},
		says: "it does not answer", plural: "sites do not answer",
		todo: "Find out what its server lacks: whether its agent is connected, its containers run, and its database " +
			"answers. It ends by itself with the first request that the site answers.",
		todos: map[string]string{
			"not_open": "Fix what its edges lack: its tenant becomes active with the first request that the site answers.",
			"no_edge":  "Restart the agents of its edges, or create new ones: visitors get no answer.",
		},
		actions: map[string][]Action{
			"tenant": {showTenant},
			"region": {get("List the servers", "/v1/servers?region={by}", "prego server list --region {by}")},
		},
		all: []Action{listServers},
	}},
	{EdgeBehind, spec{
		severity: Warning, critical: []string{"no_edge_opens", "document_held"},
		says: "it refused what it should serve", plural: "edges refused what they should serve",
		todo: "Fix the cause, which the message and the agent's log name. What it served before is served; nothing " +
			"new of its network opens over it.",
		todos: map[string]string{
			"no_edge_opens": "Fix the cause, which the message and the agent's log name. No other edge of the network " +
				"has taken the document either: what it served before is served, and nothing new opens.",
			"document_held": "Restore the rows that lead to these sites, or suspend or delete their tenants if they " +
				"should be closed. No new site of the network opens until then. If only this edge does not reach them, " +
				"replace it.",
		},
		actions: about("server", showServer), all: []Action{get("List the edges", "/v1/servers?role=edge", "prego server list --role edge")},
	}},
	{EdgeRejectedName, spec{
		severity: Warning, says: "edges refuse it and serve everything else", plural: "names or ports are refused by edges",
		todo: "Give it another name or port, or remove it: the reason does not go away by itself. All other sites are served.",
		actions: map[string][]Action{
			"tenant":      {showTenant},
			"domain":      {showDomain},
			"group":       {showGroup},
			"certificate": {showCertificate, renewCertificate},
			"server":      {showServer},
		},
		all: []Action{get("List the edges", "/v1/servers?role=edge", "prego server list --role edge")},
	}},
	{DNSRecordFailing, spec{
		severity: Warning, says: "it could not be written", plural: "DNS records could not be written",
		todo:    "Read the provider's answer: names that need the record are not found until it is there.",
		actions: about("dns_record", showReady), all: []Action{showReady},
	}},
	{ProviderUntracked, spec{
		severity: Warning, critical: []string{"protected"},
		says:   "it carries our labels and is not in the database",
		plural: "things at the provider carry our labels and are not in the database",
		todo:   "Nothing, if it is deleted within the hour. Otherwise find out who created it: it is billed.",
		todos: map[string]string{
			"protected": "It was in use and is not deleted by prego: the database may have been restored, or another installation has " +
				"the same PREGO_ENV. If it is not needed, lift its protection at the provider; it is then deleted.",
		},
		actions: about("provider_resource", reconcile), all: []Action{reconcile},
	}},
	{GroupOverQuota, spec{
		severity: Info, says: "its org has no quota for all its instances", plural: "process groups wait for their orgs' quota",
		todo:    "Nothing, or raise the org's limit: there may be room on the servers all the same.",
		actions: about("group", showGroup, get("Show the org's quota", "/v1/orgs/{org}/quotas", "prego quota show {org}")),
		all:     []Action{get("List them", "/v1/groups?region={by}&status=unschedulable", "prego group list --region {by} --state unschedulable")},
	}},
	{SiteOverQuota, spec{
		severity: Info, says: "its site is above its storage quota, and will be read-only", plural: "sites are above their storage quota, and will be read-only",
		todo:    "Raise its storage quota, or have it make room within PREGO_STORAGE_GRACE.",
		actions: about("tenant", showTenant), all: []Action{get("List the tenants", "/v1/tenants?region={by}", "prego tenant list --region {by}")},
	}},
	{OrgNearQuota, spec{
		severity: Info, byReason: true, says: "it nears its limit of {reason}", plural: "limits of orgs are near",
		todo:    "Raise the limit before it is reached, if the org should have more.",
		actions: about("org", showQuota), all: []Action{listOrgs},
	}},
}

var specs, order = func() (map[Kind]spec, map[Kind]int) {
	specs, order := map[Kind]spec{}, map[Kind]int{}
	for i, o := range ordered {
		specs[o.kind], order[o.kind] = o.spec, i
	}
	return specs, order
}()

// Kinds lists every kind, in the order within its severity.
func Kinds() []Kind {
	out := make([]Kind, len(ordered))
	for i, o := range ordered {
		out[i] = o.kind
	}
	return out
}

// Subjects are the kinds of things that each kind may be about.
func Subjects() map[Kind][]string {
	out := map[Kind][]string{}
	for _, o := range ordered {
		out[o.kind] = slices.Sorted(maps.Keys(o.spec.actions))
	}
	return out
}

// AllActions are the actions of each kind, of what it is about and of a sum, without ids.
func AllActions() map[Kind][]Action {
	out := map[Kind][]Action{}
	for _, o := range ordered {
		for _, subject := range slices.Sorted(maps.Keys(o.spec.actions)) {
			out[o.kind] = append(out[o.kind], o.spec.actions[subject]...)
		}
		out[o.kind] = append(out[o.kind], o.spec.give...)
		out[o.kind] = append(out[o.kind], o.spec.all...)
	}
	return out
}
