// Package contracts holds the product to the names that the contracts fix: they are kept exactly, wherever the code that
// makes them goes. All names here are literals, so that a renamed constant can't rename what it is compared with.
package contracts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/agentgw"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func words(s string) []string { return strings.Fields(s) }

// status is what a handler answers to an empty request.
func status(h http.Handler, endpoint string, from func(*http.Request)) int {
	method, path, _ := strings.Cut(endpoint, " ")
	r := httptest.NewRequest(method, path, nil)
	if from != nil {
		from(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

// operators are the endpoints of the API that contracts name, or that a rule of theirs needs.
var operators = words(`
	POST./internal/servers/create
	POST./internal/placement-overrides
	GET./v1/placement-pools POST./v1/placement-pools
	GET./v1/placement-pools/{pool} PUT./v1/placement-pools/{pool} DELETE./v1/placement-pools/{pool}
	PUT./v1/placement-pools/{pool}/default DELETE./v1/placement-pools/{pool}/default
	GET./v1/orgs/{org_id}/placement-pools
	PUT./v1/orgs/{org_id}/placement-pools/{pool} DELETE./v1/orgs/{org_id}/placement-pools/{pool}
	GET./v1/orgs/{org_id}/quotas PUT./v1/orgs/{org_id}/quotas/{dimension} DELETE./v1/orgs/{org_id}/quotas/{dimension}
	GET./v1/orgs/{org_id}/events`)

func anybody(context.Context, string) (access.Principal, error) {
	return access.Principal{PrincipalID: "caller", Name: "caller", Grants: []access.Grant{{Role: "operator"}}}, nil
}

func bearer(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }

// served is the contract that an API serves, and the API.
func served(t *testing.T) (h http.Handler, doc map[string]any) {
	t.Helper()
	h = api.New(api.Deps{
		Auth: anybody, Log: zap.NewNop(), Registry: prometheus.NewRegistry(), RatePerSecond: 1e6, RateBurst: 1e6,
	}).Handler()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.yaml", nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.NoError(t, yaml.Unmarshal(w.Body.Bytes(), &doc))
	return h, doc
}

// at walks down a document.
func at(t *testing.T, doc any, keys ...string) any {
	t.Helper()
	for _, k := range keys {
		m, ok := doc.(map[string]any)
		require.True(t, ok, "%v", keys)
		doc, ok = m[k]
		require.True(t, ok, "the contract has no %s of %v", k, keys)
	}
	return doc
}

func TestOperatorsEndpointsAreServed(t *testing.T) {
	t.Parallel()
	h, doc := served(t)
	for _, e := range operators {
		method, path, _ := strings.Cut(e, ".")
		at(t, doc, "paths", path, strings.ToLower(method))
		// A served operation refuses an unknown parameter; a missing one is not found.
		example := method + " " + regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "x")
		require.Equal(t, http.StatusBadRequest, status(h, example+"?unknown-parameter=1", bearer), example)
		require.Equal(t, http.StatusNotFound, status(h, strings.Replace(example, " /", " /none/", 1), bearer), example)
	}
}

// gatewayDeps stand in for what a gateway asks before it lets a request in.
type gatewayDeps struct {
	agentgw.Authority
	agentgw.Tokens

	scope *string
}

func (gatewayDeps) VerifyAgent(*x509.Certificate) (prego.ServerID, error) { return "app-1", nil }

func (d gatewayDeps) Verify(_ string, _ *x509.Certificate, scope string) (prego.ServerID, error) {
	*d.scope = scope
	return "", errors.New("no one may enter")
}

func TestAgentsEndpointsAreServedWithTheirScopes(t *testing.T) {
	t.Parallel()
	var asked string
	d := gatewayDeps{scope: &asked}
	h := agentgw.New(agentgw.Deps{
		CA: d, Tokens: d, Log: zap.NewNop(), Settings: agentgw.Settings{Flush: time.Second, FlushRows: 1},
	}).Handler()
	agent := func(r *http.Request) {
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
		bearer(r)
	}
	for endpoint, scope := range map[string]string{
		"POST /internal/agent/heartbeat":     "heartbeat",
		"POST /internal/agent/metrics":       "metrics",
		"POST /internal/agent/logs":          "logs",
		"POST /internal/agent/backup-report": "backup_report",
		"POST /internal/agent/rotate-token":  "", // the current token, for any purpose
	} {
		asked = "nothing"
		require.NotContains(t, []int{http.StatusNotFound, http.StatusMethodNotAllowed}, status(h, endpoint, agent), endpoint)
		require.Equal(t, scope, asked, endpoint)
		require.Equal(t, http.StatusUnauthorized, status(h, endpoint, nil), "%s without a certificate", endpoint)
	}
	// The handshake has the bootstrap token in its body; there is nothing to authenticate by before it is read.
	require.Equal(t, http.StatusBadRequest, status(h, "POST /internal/agent/handshake", nil))
	for _, none := range words("/internal/agent/handshakes /internal/agent/exec /agent/v1/exec") {
		require.Equal(t, http.StatusNotFound, status(h, "POST "+none, agent), none)
	}
}

// TestTheAgentsOwnEndpoints: that the agent serves these paths and nothing else is tested where it does
// (TestThereIsNothingButTheExecEndpoint), in terms of these constants.
func TestTheAgentsOwnEndpoints(t *testing.T) {
	t.Parallel()
	p := parse(t)
	require.Equal(t, `"/agent/v1/exec"`, p.source(t, "PathExec"))
	require.Equal(t, `"/agent/v1/exec/stream"`, p.source(t, "PathExecStream"))
	require.Equal(t, `"exec."`, p.source(t, "ScopeExecPrefix"))
	for value := range p.literals {
		if strings.HasPrefix(value, "/agent/v1/") {
			require.Contains(t, words("/agent/v1/exec /agent/v1/exec/stream"), value)
		}
	}
}

// tables are the tables of the contracts, with the columns that they name. There may be others.
var tables = map[string]string{
	// direct-provisioning:
	"servers": `server_id role region infra_provider spec status workflow_id host managed_by agent_status agent_first_seen_at
		agent_last_heartbeat_at imported_from_pulumi_at memory_pct tenant_count tags`,
	"server_bootstrap_tokens": "token_id server_id token_hash purpose issued_at expires_at consumed_at superseded_at",
	"agent_command_audit": `audit_id server_id workflow_id command_kind args_redacted actor requested_at started_at
		finished_at exit_code duration_ms stdout_truncated stderr_truncated`,
	// placement-policy:
	"infra_providers": "id enabled regions",
	"db_shards":       "plan_tier_lock dedicated_for_tenant_id current_tenant_count tenant_capacity status region",
	"redis_pools":     "current_tenants tenant_capacity status region",
	"site_pool":       "state app_server_id site_name database_name",
	"scaling_events":  "region role trigger workflow_id",
	"tenant_allocations": `tenant_id app_server_id db_shard_id redis_pool_id site_name database_name infra_provider
		algorithm`,
	"allocation_snapshots":    "tenant_id algorithm decision_log policy_json",
	"tenant_lifecycle_events": "tenant_id from_state to_state actor reason",
	"placement_overrides":     "tenant_id force_app_server_id force_db_shard_id reason",
	"tenants": `region plan expected_users storage_quota_gb data_residency parent_org_id require_tags
		disallow_tags`,
	// placement-pools:
	"placement_pools":     "require_tags disallow_tags is_default",
	"org_placement_pools": "org_id pool_id",
	"process_groups":      "require_tags disallow_tags",
	// quotas-and-fairness:
	"org_quotas":     "org_id dimension limit_value updated_at",
	"org_usage_view": "org_id dimension usage",
	"instances":      "org_id memory_limit_bytes cpu_request state",
	"volumes":        "org_id size_bytes deleted_at",
	"routes":         "org_id listener_scope listen_port deleted_at",
}

var indexes = map[string]string{
	"idx_bootstrap_token_server": "server_bootstrap_tokens", "idx_audit_workflow": "agent_command_audit",
}

// set is a closed set of words: the contract's words, and the product's further ones.
type set struct{ contract, more string }

// columns are those whose values are a closed set.
var columns = map[string]set{
	"servers.status":       {"provisioning active draining terminated failed", ""},
	"servers.role":         {"app db-shard redis-pool", "node edge"},
	"servers.region":       {"sg eu us", ""},
	"servers.managed_by":   {"worker_direct pulumi", ""},
	"servers.agent_status": {"unknown connected degraded disconnected", ""},
	"infra_providers.id":   {"hetzner aws gcp", ""},
	"server_bootstrap_tokens.purpose": {
		"agent_bootstrap import_existing_server", "",
	},
	"agent_command_audit.command_kind": {"bench mariadb redis-cli bootstrap", "volume address transfer patch"},
	"agent_command_audit.actor":        {"workflow operator system", ""},
	"db_shards.plan_tier_lock":         {"trial starter business enterprise", ""},
	"db_shards.region":                 {"sg eu us", ""},
	"site_pool.state":                  {"available", "reserved assigned failed draining"},
	"scaling_events.trigger":           {"scale_out_required", "threshold warm_pool"},
	"tenants.plan":                     {"trial starter business enterprise", ""},
	"tenants.region":                   {"sg eu us", ""},
	"tenants.state":                    {"trial provisioning", "active suspended grace_period terminated data_purged failed"},
	"tenants.policy":                   {"one_tenant_one_server", "shared"},
	"instances.state":                  {"running draining booting failed stopped", ""},
	"snapshots.status":                 {"queued running", "succeeded failed deleted"},
	"restore_jobs.status":              {"queued running", "succeeded failed"},
	"process_groups.status":            {"unschedulable", "pending running stopped"},
	"fleet_actions.action":             {"CLUSTER_SCALE_OUT CLUSTER_SCALE_IN CLUSTER_RESIZE NODE_CREATE", "CLUSTER_REPLACE"},
	"policies.type":                    {"scaling region_placement deletion", ""},
}

var quoted = regexp.MustCompile(`'([^']*)'::text`)

// schema asks the migrated schema for a list.
func schema(t *testing.T) (query func(sql string, args ...any) []string) {
	t.Helper()
	pool := pgtest.Pool(t)
	return func(sql string, args ...any) []string {
		rows, err := pool.Query(t.Context(), sql, args...)
		require.NoError(t, err)
		out, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return out
	}
}

func TestTablesHaveTheirColumns(t *testing.T) {
	t.Parallel()
	query := schema(t)
	has := query(`SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = 'public'`)
	for table, named := range tables {
		for _, c := range words(named) {
			require.Contains(t, has, table+"."+c)
		}
	}
	for index, table := range indexes {
		require.Equal(t, []string{table}, query(`SELECT tablename FROM pg_indexes WHERE indexname = $1`, index), index)
	}
	for column, s := range columns {
		table, name, _ := strings.Cut(column, ".")
		checks := query(`SELECT pg_get_constraintdef(c.oid) FROM pg_constraint c
			JOIN pg_attribute a ON a.attrelid = c.conrelid AND c.conkey = ARRAY[a.attnum]
			WHERE c.contype = 'c' AND c.conrelid = to_regclass($1) AND a.attname = $2`, table, name)
		require.Len(t, checks, 1, "%s has one check", column)
		var allowed []string
		for _, m := range quoted.FindAllStringSubmatch(checks[0], -1) {
			allowed = append(allowed, m[1])
		}
		require.ElementsMatch(t, words(s.contract+" "+s.more), allowed, column)
	}
	// What the contract gives as numbers and the schema keeps.
	require.Equal(t, []string{"33554432"}, query(`SELECT overhead_bytes_per_instance::text FROM workload_settings`))
	require.Equal(t, []string{"sg"}, query(`SELECT unnest(regions) FROM residency_zones WHERE country = 'KR'`))
	require.Equal(t, []string{"hetzner"}, query(`SELECT id FROM infra_providers WHERE enabled`))
}

// settings are the ones in contracts, and the ones that carry their limits, with their defaults.
var settings = map[string]string{
	"PREGO_SHARED_PLACEMENT_LEGACY":  "",
	"PLACEMENT_ALGORITHM":            "best_fit",
	"PLACEMENT_MEMORY_PCT_MAX":       "70",
	"PLACEMENT_MAX_TENANTS_PER_NODE": "20",
	"PLACEMENT_CPU_PCT_MAX":          "85",
	"PLACEMENT_WORKER_SLOTS_PCT_MAX": "90",
	"PLACEMENT_DB_DISK_PCT_MAX":      "80",
	"PLACEMENT_REDIS_MEMORY_PCT_MAX": "90",
	"PLACEMENT_WEIGHTS":              "",
	"PLACEMENT_EMPTY_POOL":           "on_demand",
	"PLACEMENT_SAME_SHARD_AFFINITY":  "false",
	"PREGO_SCALE_OUT_THRESHOLD_PCT":  "70",
	"PREGO_BOOTSTRAP_TOKEN_TTL":      "15m0s",
	"PREGO_PROVISION_RETRIES":        "2",
	"PREGO_RECONCILE_EVERY":          "5m0s",
	"PREGO_DEGRADED_AFTER":           "1m0s",
	"PREGO_FAILED_AFTER":             "5m0s",
	"PREGO_AGENTGW_HEARTBEAT":        "30s",
	"PREGO_AGENT_PORT":               "443",
	"PREGO_DOCKER_PORT":              "2376",
	"PREGO_EGRESS_CIDRS":             "[]",
	"PREGO_CATALOG_FILE":             "",
	"PREGO_GROUP_RETRY":              "30s",
	"PREGO_DEFAULT_TIER":             "free",
	"PREGO_TIERS_FILE":               "",
}

// known are all settings, with what they are.
func known(prefix string, v reflect.Value, out map[string]string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if name := f.Tag.Get("env"); name != "" {
			out[prefix+name] = fmt.Sprint(v.Field(i).Interface())
		} else if f.Type.Kind() == reflect.Struct {
			known(prefix+f.Tag.Get("envPrefix"), v.Field(i), out)
		}
	}
}

func TestSettingsHaveTheirDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := config.From(nil)
	require.NoError(t, err)
	is := map[string]string{}
	known("", reflect.ValueOf(cfg), is)
	for name, value := range settings {
		got, ok := is[name]
		require.True(t, ok, "there is no setting %s", name)
		require.Equal(t, value, got, name)
	}
	for value, mode := range map[string]string{
		"": "one_tenant_one_server", "1": "shared", "true": "shared", "yes": "shared",
		"0": "one_tenant_one_server", "false": "one_tenant_one_server", "no": "one_tenant_one_server",
	} {
		cfg, err := config.From(map[string]string{"PREGO_SHARED_PLACEMENT_LEGACY": value})
		require.NoError(t, err)
		policy, err := cfg.Placement.Policy()
		require.NoError(t, err)
		require.Equal(t, mode, string(policy.Mode), "PREGO_SHARED_PLACEMENT_LEGACY=%s", value)
	}
	policy, err := cfg.Placement.Policy()
	require.NoError(t, err)
	weights, err := json.Marshal(policy.Weights)
	require.NoError(t, err)
	require.JSONEq(t, `{"app_load":0.4,"app_count":0.2,"db_load":0.2,"redis_load":0.1,"affinity":0.1,
		"app_cpu":0,"app_worker_slots":0,"db_disk":0,"redis_memory":0}`, string(weights))
	// What the steps of a boot may take is in the catalog, which PREGO_CATALOG_FILE replaces.
	catalog, err := cfg.Worker.Catalog()
	require.NoError(t, err)
	times, err := json.Marshal(catalog.DefaultTimeouts)
	require.NoError(t, err)
	require.JSONEq(t, `{"running":"5m0s","handshake":"1m30s","boot":"5m0s","heartbeat":"1m30s"}`, string(times))
}

// TestSettingsAreDocumented: docs/reference/settings.md has each setting with its default, and no page and no file of deploy
// names a variable that is no setting.
func TestSettingsAreDocumented(t *testing.T) {
	t.Parallel()
	cfg, err := config.From(nil)
	require.NoError(t, err)
	is := map[string]string{}
	known("", reflect.ValueOf(cfg), is)
	page, err := os.ReadFile("../reference/settings.md")
	require.NoError(t, err)
	rows := regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\|(?: `([^`]*)`)? \\| .+ \\|$").FindAllStringSubmatch(string(page), -1)
	var documented []string
	for _, row := range rows {
		documented = append(documented, row[1])
		again, err := config.From(map[string]string{row[1]: row[2]})
		require.NoError(t, err, "the default of %s", row[1])
		require.Equal(t, cfg, again, "the default of %s", row[1])
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(is)), documented)

	named := map[string]string{}
	for _, glob := range []string{"../*.md", "*.md", "../../README.md", "../../docker-compose.yml", "../../deploy/*.*"} {
		files, err := filepath.Glob(glob)
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, name := range regexp.MustCompile(`\b(PREGO|PLACEMENT)_[A-Z_]*[A-Z]\b`).FindAllString(string(text), -1) {
				named[name] = ""
			}
		}
	}
	cfg, err = config.From(named)
	require.NoError(t, err)
	require.Empty(t, cfg.Unknown)
}

// schemas are closed sets in the contract that the API serves.
var schemas = map[string]set{
	"Role":                       {"app db-shard redis-pool", "node edge"},
	"Region":                     {"sg eu us", ""},
	"Plan":                       {"trial starter business enterprise", ""},
	"ServerStatus":               {"provisioning active draining terminated failed", ""},
	"AgentStatus":                {"unknown connected degraded disconnected", ""},
	"Server.managed_by":          {"worker_direct pulumi", ""},
	"ExecKind":                   {"bench mariadb redis-cli", ""},
	"Command.kind":               {"bench mariadb redis-cli bootstrap", "volume address transfer patch"},
	"Command.actor":              {"workflow operator system", ""},
	"PlacementMode":              {"one_tenant_one_server", "shared"},
	"SnapshotPolicy.algorithm":   {"best_fit first_fit round_robin new_server", ""},
	"TenantState":                {"trial provisioning", "active suspended grace_period terminated data_purged failed"},
	"ScalingEvent.trigger":       {"scale_out_required", "threshold warm_pool"},
	"FleetActionKind":            {"CLUSTER_SCALE_OUT CLUSTER_SCALE_IN CLUSTER_RESIZE NODE_CREATE", "CLUSTER_REPLACE"},
	"PolicyType":                 {"scaling region_placement deletion", ""},
	"Instance.state":             {"running draining booting failed stopped", ""},
	"ProcessGroup.status":        {"unschedulable", "pending running stopped"},
	"ProcessGroup.deploy_status": {"draining_first", "none rolling stopping_first succeeded rolled_back failed"},
	"Dimension":                  {dimensions, "max_servers max_monthly_euros"},
	"Tier":                       {"free paid", "enterprise"},
	"OrgQuota.source":            {"override tier", ""},
}

const dimensions = `max_instances max_total_memory_bytes max_total_cpu_request max_envs max_apps
	max_routes max_public_ports max_ipv4_allocations max_hostnames
	max_volumes max_total_volume_bytes max_volume_attachments max_snapshots_per_volume max_restore_jobs
	max_log_streams max_exec_sessions max_exec_sessions_per_hour`

// fields are the fields of the API's documents. There may be others.
var fields = map[string]string{
	"CreateServer":      "role region infra_provider spec server_id",
	"Accepted":          "workflow_id",
	"PlacementOverride": "tenant_id force_app_server_id force_db_shard_id reason",
	"CreateTenant":      "region plan expected_users storage_quota_gb data_residency parent_org_id constraint stack",
	"Constraint":        "require disallow",
	"PlacementPool":     "require disallow",
	"Problem":           "code dimension limit current_usage requested_delta",
	"Exec":              "kind args timeout_seconds",
	"Server":            "managed_by agent status workflow_id",
	"ServerSpec":        "server_type location image tags",
	"DecisionLog":       "algorithm candidates_evaluated selection_reason confidence_score rejected",
	"Allocation":        "app_server_id db_shard_id redis_pool_id site_name database_name infra_provider",
	"OrgQuota":          "dimension limit usage",
	"RolloutPolicy":     "max_surge",
	"WorkloadSpec":      "memory_limit_bytes cpu_request constraint",
}

// refusals are codes of the API's problem documents.
const refusals = `quota_exceeded cell_mismatch insufficient_resources no_infra_provider data_residency_violation
	server_id_conflict tenant_already_placed invariant_violation constraint_immutable tags_immutable kind_unknown
	command_not_allowed`

func TestTheServedContractHasItsNames(t *testing.T) {
	t.Parallel()
	_, doc := served(t)
	enum := func(name string) (out []string) {
		schema, property, nested := strings.Cut(name, ".")
		path := []string{"components", "schemas", schema}
		if nested {
			path = append(path, "properties", property)
		}
		for _, v := range at(t, doc, append(path, "enum")...).([]any) {
			if v != "" { // the default
				out = append(out, v.(string))
			}
		}
		return out
	}
	for name, s := range schemas {
		require.ElementsMatch(t, words(s.contract+" "+s.more), enum(name), name)
	}
	for schema, named := range fields {
		for _, f := range words(named) {
			at(t, doc, "components", "schemas", schema, "properties", f)
		}
	}
	require.Subset(t, enum("Problem.code"), words(refusals))
}

// constants are words that rows, answers and histories hold, by the type of their constants, or by how the constants'
// names begin.
var constants = map[string]string{
	"Reason": `failed_create failed_boot failed_handshake failed_bootstrap failed_no_heartbeat failed_container
		heartbeat_lost awaiting_capacity awaiting_site cell_mismatch ipam_exhausted server_missing`,
	"Code": `quota_exceeded cell_mismatch insufficient_resources token_consumed token_superseded bootstrap_token_expired
		server_id_conflict scope_missing kind_unknown command_not_allowed invariant_violation data_residency_violation
		no_infra_provider constraint_immutable tags_immutable tenant_already_placed no_usable_region no_feasible_plan`,
	"Algorithm":            "best_fit first_fit round_robin new_server ai_recommended manual",
	"ActorPlacementEngine": "placement_engine",
	"ReasonOrgQuota":       "org_quota_exceeded",
	"ReasonNo":             "no_nodes_active no_capacity_memory",
	"ReasonVolume":         "volume_locality_no_node",
	"Scope":                "heartbeat metrics logs backup_report exec.",
	"CommandKind":          "bench mariadb redis-cli",
	"TokenPurpose":         "agent_bootstrap import_existing_server",
	"InfraProviderID":      "hetzner aws gcp",
	"ManagedBy":            "worker_direct pulumi",
	"Actor":                "workflow operator system",
	"Action":               "CLUSTER_SCALE_IN CLUSTER_SCALE_OUT CLUSTER_RESIZE NODE_CREATE",
	"FleetActionKind":      "CLUSTER_SCALE_IN CLUSTER_SCALE_OUT CLUSTER_RESIZE NODE_CREATE",
	"Adjustment":           "EXACT_CAPACITY CHANGE_IN_CAPACITY CHANGE_IN_PERCENTAGE",
	"Status":               "OK ERROR provisioning active draining terminated failed",
	"StackTag":             "stack:",
	"BootstrapTokenPath":   "/etc/prego-agent/bootstrap.token",
	"BenchDir":             "/home/frappe/frappe-bench",
	"database":             "tenant_ _db", // tenant_<slug>_db
}

// texts are words that code writes without a constant.
const texts = `one_tenant_one_server_v1 org.quota_set org.tier_set
	app.create app.delete env.create env.delete group.scale group.deploy
	route.create route.delete ipv4.enable ipv4.disable volume.create volume.delete attachment.create attachment.delete
	snapshot.create restore.create`

// methods are the methods of a provider of servers.
const methods = "CreateServer DestroyServer AttachVolume"

// sentences are from region-placement.
var sentences = []string{"No region is found usable.", "There is no feasible plan to handle all nodes."}

// limits are constants by name, as they are written.
var limits = map[string]string{
	"MaxUserData":      "32768",           // the provider's: 32 KiB
	"MaxExecTTL":       "5 * time.Minute", // of a command's token, where it is issued
	"maxExecTTL":       "5 * time.Minute", // and where it is taken
	"defaultTimeout":   "time.Minute",     // of a command
	"MaxOutput":        "8 << 10",         // of each of a command's streams
	"MaxAuditedOutput": "8 << 10",
	"repeatWindow":     "60 * time.Second", // during this time the key that consumed a token may repeat the handshake
	"MaxTagLen":        "63",               // less than 64
	"MaxTags":          "32",               // of a server and of a list of a constraint
	"MaxServerVolumes": "16",               // the provider's
	"DefaultWeight":    "100",
	"NoCap":            "-1",
	"AffinityDelta":    "0.05",
}

// members are the JSON names of structs that are no documents of the API.
var members = map[string]string{
	"ExecRequest": "workflowId serverId kind args timeoutSeconds workingDir",
	"ExecResult":  "exitCode stdoutTruncated stderrTruncated durationMs auditId",
	"Explanation": "algorithm candidates_evaluated selection_reason confidence_score rejected",
	"Rejection":   "id reason",
	"Data":        "status reason creation deletion",
	"Change":      "count regions",
	"Region":      "name weight cap",
	"Inputs":      "count adjustment_type number min_size max_size min_step strict",
	"Constraint":  "require disallow",
}

func TestCodeHasItsWords(t *testing.T) {
	t.Parallel()
	p := parse(t)
	for kind, named := range constants {
		require.Subset(t, p.values(kind), words(named), kind)
	}
	for _, text := range append(words(texts), sentences...) {
		require.Contains(t, p.literals, text)
	}
	for _, name := range words(methods) {
		require.Contains(t, p.functions, name)
	}
	for name, want := range limits {
		require.Equal(t, want, p.source(t, name), name)
	}
	for name, named := range members {
		require.True(t, slices.ContainsFunc(p.structs[name], func(has []string) bool {
			return !slices.ContainsFunc(words(named), func(w string) bool { return !slices.Contains(has, w) })
		}), "no struct %s has %s: %v", name, named, p.structs[name])
	}
}

// TestMetricsHaveTheirNames: that what runs exports all of prego.Metrics is tested where it is put together.
func TestMetricsHaveTheirNames(t *testing.T) {
	t.Parallel()
	for name, labels := range map[string]string{
		"prego_org_quota_usage":           "org dimension",
		"prego_org_quota_limit":           "org dimension",
		"prego_org_quota_usage_ratio":     "org dimension",
		"prego_quota_rejections_total":    "endpoint dimension",
		"prego_groups_unschedulable":      "reason",
		"prego_instance_schedule_seconds": "",
	} {
		is, ok := prego.Metrics()[name]
		require.True(t, ok, "there is no metric %s", name)
		require.ElementsMatch(t, words(labels), is, name)
	}
}

// deviations are names of contracts that the product does not have, what it has instead ("" for nothing), and where
// that is argued: a decision, or the rule of a contract here ("" for nowhere yet).
var deviations = []struct{ name, here, argued string }{
	// direct-provisioning. Its states failed_bootstrap, failed_no_heartbeat and failed_container are reasons here, held
	// above (../adr/0002-states-and-reasons.md).
	{"idx_audit_server", "agent_command_audit_listing", ""},
	{"inconsistent", "orphan_sightings", "direct-provisioning.md **3.8**"},
	{"ufw", "", "direct-provisioning.md **5.3**"},
	{"base64(cloud-init)", "user_data", ""}, // the provider's API takes plain text
	// placement-policy. Documents are in snake_case.
	{"w_app_load", "app_load", "placement-policy.md **2.5.2**"},
	{"w_app_count", "app_count", "placement-policy.md **2.5.2**"},
	{"w_db_load", "db_load", "placement-policy.md **2.5.2**"},
	{"w_redis_load", "redis_load", "placement-policy.md **2.5.2**"},
	{"w_affinity", "affinity", "placement-policy.md **2.5.2**"},
	{"site_pool_refill", "site-pool-refill/", "placement-policy.md **2.6.4**"},
	{"candidatesEvaluated", "candidates_evaluated", "../adr/0009-names-of-rejections-and-confidence.md"},
	{"confidenceScore", "confidence_score", "../adr/0009-names-of-rejections-and-confidence.md"},
	{"rejectedCandidates", "rejected", "../adr/0009-names-of-rejections-and-confidence.md"},
	{"selectionReason", "selection_reason", "../adr/0009-names-of-rejections-and-confidence.md"},
	// placement-pools:
	{"CELL_MISMATCH_MESSAGE", "cell_mismatch", "../adr/0010-placement-pools.md"},
	{"INSUFFICIENT_RESOURCES_MESSAGE", "insufficient_resources", "../adr/0010-placement-pools.md"},
	// quotas-and-fairness: what the views would show is in tables, counted by one function.
	{"instances_desired_view", "instances", "quotas-and-fairness.md **8**"},
	{"desired_state", "instances.state", "quotas-and-fairness.md **8**"},
	{"vmm_overhead_bytes_per_instance", "workload_settings.overhead_bytes_per_instance", "quotas-and-fairness.md **9**"},
	{"volumes_view", "volumes", "quotas-and-fairness.md **13**"},
	{"volume_attachments_view", "volume_attachments", "quotas-and-fairness.md **13**"},
	{"routes_view", "routes", "quotas-and-fairness.md **14**"},
	{"listener_address_scope", "routes.listener_scope", "quotas-and-fairness.md **14**"},
	{"env_networking_view", "ipv4_allocations", "quotas-and-fairness.md **15**"},
	{"ipv4_enabled", "ipv4_allocations.allocation_id", "quotas-and-fairness.md **15**"},
	{"snapshots_view", "snapshots", "quotas-and-fairness.md **17**"},
	{"restore_jobs_view", "restore_jobs", "quotas-and-fairness.md **17**"},
	{"max_snapshot_requests_per_hour", "", ""}, // it is optional there, and has no name
}

// TestDeviationsAreListed: a name of this list that the product gets, or its replacement that it loses, leaves it.
func TestDeviationsAreListed(t *testing.T) {
	t.Parallel()
	has := map[string]bool{}
	for text := range parse(t).literals {
		has[text] = true
	}
	for _, name := range schema(t)(`SELECT unnest(ARRAY[table_name, column_name, table_name || '.' || column_name])
		FROM information_schema.columns WHERE table_schema = 'public' UNION SELECT indexname FROM pg_indexes`) {
		has[name] = true
	}
	for _, d := range deviations {
		require.False(t, has[d.name], "there is a %s", d.name)
		require.True(t, d.here == "" || has[d.here], "there is no %s for %s", d.here, d.name)
		if d.argued != "" {
			page, rule, _ := strings.Cut(d.argued, " ")
			text, err := os.ReadFile(page)
			require.NoError(t, err, d.name)
			require.Contains(t, string(text), rule, d.name)
		}
	}
}
