package cli

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/workload"
)

// TestEveryVerbSendsItsRequest has verbs ask an API that accepts all, and compares what
// they ask: method, path and body.
func TestEveryVerbSendsItsRequest(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("from a file\n"), 0o600))
	spec := filepath.Join(t.TempDir(), "spec.json")
	require.NoError(t, os.WriteFile(spec, []byte(`{"criteria":"RANDOM"}`), 0o600))
	const env, group, volume, tenant = "env-aaaabbbbcccc", "grp-aaaabbbbcccc", "vol-aaaabbbbcccc", "t-aaaabbbbcccc"
	at := strings.NewReplacer("ENV", env, "GRP", group, "VOL", volume, "TEN", tenant, "SECRET", secret, "SPEC", spec)
	for _, tc := range []struct{ args, stdin, asks, sends string }{
		{"server create app-7 --role app --region eu --tag a --type cx43", "", "POST /internal/servers/create", `{"server_id":"app-7","role":"app","region":"eu","infra_provider":"hetzner","spec":{"server_type":"cx43","tags":["a"]}}`},
		{"server list --region eu,us --state active,failed -l gpu --fleet web --all --limit 7", "", "GET /v1/servers?all=true&fleet_id=web&limit=7&region=eu%2Cus&status=active%2Cfailed&tag=gpu", ""},
		{"server delete app-7 --yes", "", "DELETE /v1/servers/app-7", ""},
		{"server delete app-7 --dry-run", "", "DELETE /v1/servers/app-7?dry_run=true", ""},
		{"tenant terminate TEN --dry-run", "", "POST /v1/tenants/TEN/terminate?dry_run=true", ""},
		{"server import app-7 --role app --region eu --provider-server-id 42", "", "POST /v1/servers/import", `{"server_id":"app-7","role":"app","region":"eu","infra_provider":"hetzner","provider_server_id":"42","managed_by":"worker_direct"}`},
		{"server cordon app-7 --reason disk", "", "POST /v1/servers/app-7/cordon", `{"reason":"disk"}`},
		{"server lose app-7 --yes", "", "POST /v1/servers/app-7/lost", ""},
		{"server lose app-7 --reason disk --yes", "", "POST /v1/servers/app-7/lost", `{"reason":"disk"}`},
		{"server cordon app-7", "", "POST /v1/servers/app-7/cordon", ""},
		{"server drain app-7 --timeout 30m --keep-tenants --reason disk", "", "POST /v1/servers/app-7/drain", `{"reason":"disk","timeout_seconds":1800,"keep_tenants":true}`},
		{"release create 15.80 --image frappe/erpnext:v15.80.0", "", "POST /v1/releases", `{"name":"15.80","image":"frappe/erpnext:v15.80.0"}`},
		{"release create 15.80 --image i:1 --apps frappe=15.80.1 --canary t-1,t-2 --soak 1h", "", "POST /v1/releases", `{"name":"15.80","image":"i:1","apps":{"frappe":"15.80.1"},"rings":[{"name":"canary","tenants":["t-1","t-2"],"soak_seconds":3600},{"name":"early","percent":5,"soak_seconds":3600},{"name":"rest"}]}`},
		{"release create 15.80 --image i:1 --ring a=1,b=50", "", "POST /v1/releases", `{"name":"15.80","image":"i:1","rings":[{"name":"a","percent":1},{"name":"b","percent":50},{"name":"rest"}]}`},
		{"release start 15.80", "", "POST /v1/releases/15.80/start", ""},
		{"release cancel 15.80", "", "POST /v1/releases/15.80/cancel", ""},
		{"agent release start v1.4.0", "", "POST /v1/agent-releases/v1.4.0/start", ""},
		{"agent release pause v1.4.0", "", "POST /v1/agent-releases/v1.4.0/pause", ""},
		{"server drain app-7", "", "POST /v1/servers/app-7/drain", ""},
		{"server reboot app-7 --reason kernel", "", "POST /v1/servers/app-7/reboot", `{"reason":"kernel"}`},
		{"server replace app-7 --timeout 1h --yes", "", "POST /v1/servers/app-7/replace", `{"timeout_seconds":3600}`},
		{"server resize app-7 --type cx43 --keep-tenants", "", "POST /v1/servers/app-7/resize", `{"keep_tenants":true,"server_type":"cx43"}`},
		{"server patch app-7 --wave openssl", "", "POST /v1/servers/app-7/patch", `{"wave":"openssl"}`},
		{"server patch app-7 --reason CVE-2026-1", "", "POST /v1/servers/app-7/patch", `{"reason":"CVE-2026-1"}`},
		{"server list --patches pending,reboot", "", "GET /v1/servers?limit=200&patch_state=pending%2Creboot", ""},
		{"server maintenance-status app-7", "", "GET /v1/servers/app-7/maintenance", ""},
		{"server maintenance-cancel app-7", "", "DELETE /v1/servers/app-7/maintenance", ""},
		{
			"server set db-3 --plan-tier-lock trial --tenant-capacity 150", "", "PATCH /v1/servers/db-3",
			`{"plan_tier_lock":"trial","tenant_capacity":150}`,
		},
		{"server set app-7 --accepts-trial=false", "", "PATCH /v1/servers/app-7", `{"accepts_trial":false}`},
		{"server set db-3 --plan-tier-lock none", "", "PATCH /v1/servers/db-3", `{"plan_tier_lock":"none"}`},
		{"server uncordon app-7", "", "POST /v1/servers/app-7/uncordon", ""},
		{"server samples app-7", "", "GET /v1/servers/app-7/samples", ""},
		{"server peers", "", "GET /v1/server-peers", ""},
		{"server stats --days 7", "", "GET /v1/server-stats?days=7", ""},
		{"container repair app-7", "", "POST /v1/servers/app-7/containers/repair", ""},
		{"container logs app-7 backend --tail 5 --tenant TEN", "", "GET /v1/servers/app-7/containers/backend/logs?follow=false&tail=5&tenant_id=" + tenant, ""},
		{"instance logs ins-1 -f", "", "GET /v1/instances/ins-1/logs?follow=true&tail=100", ""},
		{"decision list --outcome rejected,hold --region eu --limit 7", "", "GET /v1/decisions?limit=7&outcome=rejected%2Chold&region=eu", ""},
		{"decision replay 7", "", "POST /v1/decisions/7/replay", ""},
		{"fleet map --region eu --expand eu/web", "", "GET /v1/fleet-map?expand=eu%2Fweb&region=eu", ""},
		{"placement what-if --region eu --plan starter --org acme --require gpu --to-plan business --cordon app-1,app-2", "", "POST /v1/placements/what-if", `{"request":{"tenant_id":"what-if","org_id":"acme","region":"eu","plan":"starter","constraint":{"require":["gpu"]}},"change":{"plan":"business","cordon":["app-1","app-2"]}}`},
		{"placement what-if --tenant TEN --add-server app --add-type cx43 --add-tag gpu --to-require gpu --to-region us", "", "POST /v1/placements/what-if", `{"tenant_id":"` + tenant + `","change":{"region":"us","constraint":{"require":["gpu"]},"add_server":{"role":"app","server_type":"cx43","tags":["gpu"]}}}`},
		{"audit list --kind fleet --id web --actor ada --verb update --request r-1 --since 2026-11-01T00:00:00Z", "", "GET /v1/audit?actor=ada&id=web&kind=fleet&limit=100&request_id=r-1&since=2026-11-01T00%3A00%3A00Z&verb=update", ""},
		{"audit show 4711", "", "GET /v1/audit/4711", ""},
		{"audit head", "", "GET /v1/audit/head", ""},
		{"whoami", "", "GET /v1/whoami", ""},
		{"audit verify --head 1:00 --from 7", "", "GET /v1/audit/verification?from=7&head=1%3A00", ""},
		{"reconcile", "", "POST /internal/reconcile", ""},
		{"ledger list --untracked", "", "GET /v1/ledger?limit=200&state=untracked", ""},
		{"ledger list --owner tenant --all --sort -price_month", "", "GET /v1/ledger?all=true&limit=200&owner=tenant&sort=-price_month", ""},
		{"cost", "", "GET /v1/costs?by=org&limit=1000", ""},
		{"cost --by server --month 2026-11 -o csv", "", "GET /v1/costs?by=server&limit=1000&month=2026-11", ""},
		{"catalog refresh", "", "POST /internal/catalog/refresh", ""},
		{"tenant create acme-eu --org acme --region eu --plan starter --apps erpnext,hrms --policy shared --require a", "", "POST /v1/tenants", `{"slug":"acme-eu","org_id":"acme","region":"eu","plan":"starter","apps":["erpnext","hrms"],"policy":"shared","constraint":{"require":["a"]}}`},
		{"tenant suspend TEN --reason unpaid", "", "POST /v1/tenants/TEN/suspend", `{"reason":"unpaid"}`},
		{"tenant terminate TEN -y", "", "POST /v1/tenants/TEN/terminate", ""},
		{"tenant password TEN", "", "POST /v1/tenants/TEN/admin-password", ""},
		{"tenant user add TEN a@b.c --name Ann", "", "POST /v1/tenants/TEN/users", `{"email":"a@b.c","name":"Ann"}`},
		{"tenant user add TEN a@b.c --no-password", "", "POST /v1/tenants/TEN/users", `{"email":"a@b.c","password":"none"}`},
		{"tenant mail set TEN --server smtp.b.c --login erp --sender a@b.c", "s3cret\nmore", "PUT /v1/tenants/TEN/mail", `{"server":"smtp.b.c","port":587,"tls":true,"login":"erp","password":"s3cret","sender":"a@b.c"}`},
		{"tenant mail set TEN --server smtp.b.c --port 25 --tls=false --sender a@b.c", "", "PUT /v1/tenants/TEN/mail", `{"server":"smtp.b.c","port":25,"tls":false,"sender":"a@b.c"}`},
		{"tenant mail unset TEN", "", "DELETE /v1/tenants/TEN/mail", ""},
		{"tenant storage-quota TEN --gb 7", "", "PUT /v1/tenants/TEN/storage-quota", `{"gb":7}`},
		{"tenant storage-quota TEN --size 1.5TB", "", "PUT /v1/tenants/TEN/storage-quota", `{"gb":1500}`},
		{"backup policy list --plan starter", "", "GET /v1/backup-policies?limit=200&plan=starter", ""},
		{"backup policy get starter", "", "GET /v1/backup-policies/starter", ""},
		{"backup policy set TEN --schedule=0_1,13_*_*_* --days 14 --weeks 8 --months 12 --spread 1h", "", "PUT /v1/backup-policies/TEN", `{"schedule":"0_1,13_*_*_*","spread_seconds":3600,"keep_daily":14,"keep_weekly":8,"keep_monthly":12}`},
		{"backup policy set starter --schedule= --days 1 --dry-run", "", "PUT /v1/backup-policies/starter?dry_run=true", `{"schedule":"","spread_seconds":21600,"keep_daily":1,"keep_weekly":0,"keep_monthly":0}`},
		{"backup policy delete TEN --yes", "", "DELETE /v1/backup-policies/TEN", ""},
		{"backup policy hold TEN --reason case", "", "PUT /v1/backup-policies/TEN/hold", `{"reason":"case"}`},
		{"backup policy release TEN", "", "DELETE /v1/backup-policies/TEN/hold", ""},
		{"backup policy set vol-k3jq5x2m7abc --schedule= --days 1", "", "PUT /v1/backup-policies/vol-k3jq5x2m7abc", `{"schedule":"","spread_seconds":21600,"keep_daily":1,"keep_weekly":0,"keep_monthly":0}`},
		{"backup policy delete org:acme --yes", "", "DELETE /v1/backup-policies/org:acme", ""},
		{"backup policy get volumes", "", "GET /v1/backup-policies/volumes", ""},
		{"volume backup create VOL", "", "POST /v1/volumes/VOL/backups", ""},
		{"volume backup hold VOL bak-1 --reason case", "", "PUT /v1/volumes/VOL/backups/bak-1/hold", `{"reason":"case"}`},
		{"volume backup release VOL bak-1", "", "DELETE /v1/volumes/VOL/backups/bak-1/hold", ""},
		{"volume backup delete VOL bak-1 --yes", "", "DELETE /v1/volumes/VOL/backups/bak-1", ""},
		{"volume backup undelete VOL bak-1", "", "POST /v1/volumes/VOL/backups/bak-1/undelete", ""},
		{"volume undelete VOL", "", "POST /v1/volumes/VOL/undelete", ""},
		{"backup undelete TEN bak-1", "", "POST /v1/tenants/TEN/backups/bak-1/undelete", ""},
		{"volume restore create VOL bak-1 --yes", "", "POST /v1/volumes/VOL/restores", `{"backup_id":"bak-1"}`},
		{"volume drill create VOL", "", "POST /v1/volumes/VOL/drills", ""},
		{"volume drill create VOL --backup bak-1", "", "POST /v1/volumes/VOL/drills", `{"backup_id":"bak-1"}`},
		{"volume clone VOL copy --backup bak-1 --size 20GB", "", "POST /v1/volumes/VOL/clones", `{"name":"copy","backup_id":"bak-1","size_bytes":20000000000}`},
		{"volume delete VOL --yes --no-final-backup gone", "", "DELETE /v1/volumes/VOL?no_final_backup_reason=gone", ""},
		{"backup space set acme --limit 700GB --reason r", "", "PUT /v1/orgs/acme/backup-space", `{"limit_bytes":700000000000,"reason":"r"}`},
		{"backup space unset acme", "", "DELETE /v1/orgs/acme/backup-space", ""},
		{"placement override TEN --app-server n-1 --reason r", "", "POST /internal/placement-overrides", `{"tenant_id":"TEN","force_app_server_id":"n-1","reason":"r"}`},
		{"placement simulate -", `{"requests":[]}`, "POST /v1/placements/simulate", `{"requests":[]}`},
		{"placement-pool create gpu --require a,b --disallow c", "", "POST /v1/placement-pools", `{"name":"gpu","require":["a","b"],"disallow":["c"]}`},
		{"placement-pool update gpu --require a", "", "PUT /v1/placement-pools/gpu", `{"require":["a"]}`},
		{"placement-pool delete gpu", "", "DELETE /v1/placement-pools/gpu", ""},
		{"placement-pool default gpu", "", "PUT /v1/placement-pools/gpu/default", ""},
		{"placement-pool default gpu --unset", "", "DELETE /v1/placement-pools/gpu/default", ""},
		{"placement-pool associate acme gpu", "", "PUT /v1/orgs/acme/placement-pools/gpu", ""},
		{"placement-pool dissociate acme gpu", "", "DELETE /v1/orgs/acme/placement-pools/gpu", ""},
		{"pool refill app-1", "", "POST /v1/site-pools/app-1/refill", ""},
		{"pool provider list", "", "GET /v1/providers", ""},
		{
			"pool provider set hetzner --region sg,eu --enabled=false", "", "PATCH /v1/providers/hetzner",
			`{"enabled":false,"regions":["sg","eu"]}`,
		},
		{"pool residency list", "", "GET /v1/residency-zones", ""},
		{
			"pool residency set KR --region sg --provider hetzner", "", "PUT /v1/residency-zones/KR",
			`{"providers":["hetzner"],"regions":["sg"]}`,
		},
		{"pool capacity list", "", "GET /v1/capacity-defaults", ""},
		{"pool capacity set db-shard 150", "", "PUT /v1/capacity-defaults/db-shard", `{"tenant_capacity":150}`},
		{"pool warm set eu starter 2", "", "PUT /v1/warm-pools/eu/starter", `{"target":2}`},
		{"impact upcoming --days 3", "", "GET /v1/impact/upcoming?days=3", ""},
		{"scaling list --region eu", "", "GET /v1/scaling-events?limit=50&region=eu", ""},
		{"fleet scale-out pool", "", "POST /v1/fleets/pool/actions", `{"action":"CLUSTER_SCALE_OUT","inputs":{}}`},
		{"fleet scale-out pool --count 3 --region eu --region us", "", "POST /v1/fleets/pool/actions", `{"action":"CLUSTER_SCALE_OUT","inputs":{"count":3,"regions":["eu","us"]}}`},
		{"fleet scale-in pool --count 0 --yes", "", "POST /v1/fleets/pool/actions", `{"action":"CLUSTER_SCALE_IN","inputs":{"count":0}}`},
		{"fleet resize pool --to 5 --yes", "", "POST /v1/fleets/pool/actions", `{"action":"CLUSTER_RESIZE","inputs":{"adjustment_type":"EXACT_CAPACITY","number":5}}`},
		{"fleet resize pool --by -2 --best-effort --yes", "", "POST /v1/fleets/pool/actions", `{"action":"CLUSTER_RESIZE","inputs":{"adjustment_type":"CHANGE_IN_CAPACITY","number":-2,"strict":false}}`},
		{"fleet resize pool --percent 50 --min-step 2 --min 1 --max 9 -y", "", "POST /v1/fleets/pool/actions", `{"action":"CLUSTER_RESIZE","inputs":{"adjustment_type":"CHANGE_IN_PERCENTAGE","number":50,"min_step":2,"min_size":1,"max_size":9}}`},
		{"fleet resize pool --by 2", "", "POST /v1/fleets/pool/actions", `{"action":"CLUSTER_RESIZE","inputs":{"adjustment_type":"CHANGE_IN_CAPACITY","number":2}}`},
		{"fleet scale-in pool --dry-run -q", "", "POST /v1/fleets/pool/actions?dry_run=true", `{"action":"CLUSTER_SCALE_IN","inputs":{}}`},
		{"fleet replace pool --max-surge 2 --grace-period 1h --yes", "", "POST /v1/fleets/pool/actions", `{"action":"CLUSTER_REPLACE","inputs":{"max_surge":2,"grace_period":3600}}`},
		{"fleet node-create pool --region sg", "", "POST /v1/fleets/pool/actions", `{"action":"NODE_CREATE","inputs":{"region":"sg"}}`},
		{"fleet cancel pool 7", "", "POST /v1/fleets/pool/actions/7/cancel", ""},
		{"fleet create pool --role app --min 1 --max 5 --tag a --require a --serves-tenants", "", "POST /v1/fleets", `{"fleet_id":"pool","role":"app","infra_provider":"hetzner","min_size":1,"max_size":5,"spec":{"tags":["a"]},"constraint":{"require":["a"]},"serves_tenants":true}`},
		{"fleet create pool --role app --policy spread", "", "PUT /v1/fleets/pool/policies/spread", `{}`},
		{"fleet update pool --workload-disk 1GiB", "", "PATCH /v1/fleets/pool", `{"workload_disk_bytes":1073741824}`},
		{"fleet update pool --patch-window never", "", "PATCH /v1/fleets/pool", `{"patch_window":{"schedule":"never"}}`},
		{"fleet update pool --patch-window= ", "", "PATCH /v1/fleets/pool", `{"patch_window":{"schedule":""}}`},
		{"fleet update pool --patch-window @daily --patch-window-for 90m", "", "PATCH /v1/fleets/pool", `{"patch_window":{"schedule":"@daily","seconds":5400}}`},
		{"fleet update pool --serves-workloads", "", "PATCH /v1/fleets/pool", `{"serves_workloads":true}`},
		{"fleet update pool --serves-tenants=false", "", "PATCH /v1/fleets/pool", `{"serves_tenants":false}`},
		{"fleet update pool --workload-memory 1.5GiB --workload-cpus 0", "", "PATCH /v1/fleets/pool", `{"workload_memory_bytes":1610612736,"workload_cpus":0}`},
		{"fleet attach pool spread --position 3 --disabled", "", "PUT /v1/fleets/pool/policies/spread", `{"position":3,"enabled":false}`},
		{"fleet detach pool spread", "", "DELETE /v1/fleets/pool/policies/spread", ""},
		{"policy create p --region eu=100 --region us=50:3 --region sg", "", "POST /v1/policies", `{"policy_id":"p","type":"region_placement","spec":{"regions":[{"name":"eu","weight":100},{"name":"us","weight":50,"cap":3},{"name":"sg"}]}}`},
		{"policy create p --region eu=-1:-2", "", "POST /v1/policies", `{"policy_id":"p","type":"region_placement","spec":{"regions":[{"name":"eu","weight":-1,"cap":-2}]}}`},
		{"policy create p --criteria OLDEST_FIRST --grace-period 1h", "", "POST /v1/policies", `{"policy_id":"p","type":"deletion","spec":{"criteria":"OLDEST_FIRST","grace_period":3600}}`},
		{"policy create p --event CLUSTER_SCALE_OUT --adjustment CHANGE_IN_PERCENTAGE --number 20 --min-step 2 --cooldown 5m --best-effort", "", "POST /v1/policies", `{"policy_id":"p","type":"scaling","spec":{"event":"CLUSTER_SCALE_OUT",
			"adjustment":{"type":"CHANGE_IN_PERCENTAGE","number":20,"min_step":2,"cooldown":300,"best_effort":true}}}`},
		{"policy create p --type deletion --spec SPEC", "", "POST /v1/policies", `{"policy_id":"p","type":"deletion","spec":{"criteria":"RANDOM"}}`},
		{"policy update p --criteria RANDOM", "", "PUT /v1/policies/p", `{"spec":{"criteria":"RANDOM","grace_period":0}}`},
		{"policy update p --spec -", `{"a":1}`, "PUT /v1/policies/p", `{"spec":{"a":1}}`},
		{"org put acme --tier paid", "", "PUT /v1/orgs/acme", `{"tier":"paid"}`},
		{"org set acme --parent group", "", "PUT /v1/orgs/acme", `{"parent_org_id":"group"}`},
		{"org events acme --type org. --limit 5", "", "GET /v1/orgs/acme/events?limit=5&type=org.", ""},
		{"quota set acme max_total_cpu_request 0.5 --reason contract", "", "PUT /v1/orgs/acme/quotas/max_total_cpu_request", `{"limit":0.5,"reason":"contract"}`},
		{"quota set acme max_total_memory_bytes 64G --reason x", "", "PUT /v1/orgs/acme/quotas/max_total_memory_bytes", `{"limit":68719476736,"reason":"x"}`},
		{"limit-request create acme max_total_memory_bytes 64G --reason spring", "", "POST /v1/limit-requests", `{"org_id":"acme","dimension":"max_total_memory_bytes","limit":68719476736,"reason":"spring"}`},
		{"limit-request list --org acme --state refused", "", "GET /v1/limit-requests?limit=200&org_id=acme&state=refused", ""},
		{"limit-request approve lreq-aaaabbbbcccc --limit 30", "", "POST /v1/limit-requests/lreq-aaaabbbbcccc/approve", `{"limit":30}`},
		{"limit-request approve lreq-aaaabbbbcccc", "", "POST /v1/limit-requests/lreq-aaaabbbbcccc/approve", ""},
		{"limit-request refuse lreq-aaaabbbbcccc --reason no", "", "POST /v1/limit-requests/lreq-aaaabbbbcccc/refuse", `{"reason":"no"}`},
		{"limit-request withdraw lreq-aaaabbbbcccc", "", "POST /v1/limit-requests/lreq-aaaabbbbcccc/withdraw", ""},
		{"quota unset acme max_apps", "", "DELETE /v1/orgs/acme/quotas/max_apps", ""},
		{"app create shop --org acme", "", "POST /v1/apps", `{"name":"shop","org_id":"acme"}`},
		{"app list --org acme", "", "GET /v1/apps?limit=200&org_id=acme", ""},
		{"env create prod --app app-aaaabbbbcccc --region eu", "", "POST /v1/apps/app-aaaabbbbcccc/envs", `{"name":"prod","region":"eu"}`},
		{"env delete ENV", "", "DELETE /v1/envs/ENV", ""},
		{"group create ENV web --image web:1 --memory 64M --cpu 0.5 --port 80 --require gpu --replicas 2 -- serve --quiet", "", "POST /v1/envs/ENV/groups", `{"name":"web","replicas":2,"spec":{"image":"web:1","command":["serve","--quiet"],"memory_limit_bytes":67108864,"cpu_request":0.5,"ports":[80],"constraint":{"require":["gpu"]}}}`},
		{"group create ENV web --image web:1 --memory 64M --port 80,81 --health-http /up --health-port 81 --health-interval 1500ms --health-timeout 2s --health-retries 4 --health-start-period 1m", "", "POST /v1/envs/ENV/groups", `{"name":"web","replicas":1,"spec":{"image":"web:1","memory_limit_bytes":67108864,"cpu_request":0.25,"ports":[80,81],"health":{"kind":"http","path":"/up","port":81,"interval_seconds":2,"timeout_seconds":2,"retries":4,"start_period_seconds":60}}}`},
		{"group create ENV web --image web:1 --memory 64M --health-command /check,--quick", "", "POST /v1/envs/ENV/groups", `{"name":"web","replicas":1,"spec":{"image":"web:1","memory_limit_bytes":67108864,"cpu_request":0.25,"health":{"kind":"command","command":["/check","--quick"]}}}`},
		{"group create ENV web -f -", `{"image":"web:3"}`, "POST /v1/envs/ENV/groups", `{"name":"web","replicas":1,"spec":{"image":"web:3","memory_limit_bytes":0,"cpu_request":0}}`},
		{"group create ENV web --image web:1 --memory 64M --max-surge 25% --max-unavailable 1 --progress-deadline 5m --max-failures 0 --auto-rollback=false --drain 20s --stop-timeout 1m", "", "POST /v1/envs/ENV/groups", `{"name":"web","replicas":1,"spec":{"image":"web:1","memory_limit_bytes":67108864,"cpu_request":0.25,"drain_seconds":20,"stop_timeout_seconds":60},"rollout_policy":{"max_surge":"25%","max_unavailable":1,"progress_deadline_seconds":300,"max_failures":0,"auto_rollback":false}}`},
		{"group rollouts GRP --outcome failed,rolled_back", "", "GET /v1/groups/GRP/rollouts?limit=200&outcome=failed%2Crolled_back", ""},
		{"group rollback GRP", "", "POST /v1/groups/GRP/rollback", ""},
		{"group rollback GRP --to 3", "", "POST /v1/groups/GRP/rollback", `{"release":3}`},
		{"group restart GRP", "", "POST /v1/groups/GRP/restart", ""},
		{"group pause GRP", "", "POST /v1/groups/GRP/pause", ""},
		{"group resume GRP", "", "POST /v1/groups/GRP/resume", ""},
		{"group scale GRP 3", "", "POST /v1/groups/GRP/scale", `{"replicas":3}`},
		{"group delete GRP --yes", "", "DELETE /v1/groups/GRP", ""},
		{"group list ENV --sort -name", "", "GET /v1/groups?env_id=ENV&limit=200&sort=-name", ""},
		{"group list --org acme --sort status", "", "GET /v1/groups?limit=200&org_id=acme", ""},
		{"instance list GRP --all", "", "GET /v1/instances?all=true&group_id=GRP&limit=200", ""},
		{"instance list --server app-7 --org acme", "", "GET /v1/instances?limit=200&org_id=acme&server_id=app-7", ""},
		{"tenant list --server app-7,db-1", "", "GET /v1/tenants?limit=200&server_id=app-7%2Cdb-1", ""},
		{"backup list --server app-7 --state stored", "", "GET /v1/backups?limit=200&server_id=app-7&state=stored", ""},
		{"backup list TEN --all", "", "GET /v1/backups?all=true&limit=200&tenant_id=TEN", ""},
		{"pool list --server app-7", "", "GET /v1/site-pools?server_id=app-7", ""},
		{"route list --host www.example.com", "", "GET /v1/routes?hostname=www.example.com&limit=200", ""},
		{"ipv4 list ENV --all", "", "GET /v1/ipv4-addresses?all=true&env_id=ENV&limit=200", ""},
		{"search 203.0.113.7 --kind server,ipv4", "", "GET /v1/search?kind=server%2Cipv4&q=203.0.113.7", ""},
		{"events --kind server --org acme", "", "GET /v1/events?kind=server&limit=200&org_id=acme&tail=20", ""},
		{"events --since 7-1 --id t-1", "", "GET /v1/events?id=t-1&limit=200&since=7-1", ""},
		{"route create ENV --group GRP --host a.b --port 80 --protocol http --target 8000", "", "POST /v1/envs/ENV/routes", `{"group_id":"GRP","hostname":"a.b","listen_port":80,"listener":"shared_v6","protocol":"http","target_port":8000}`},
		{"route create ENV --group GRP --listener env_v4 --port 25 --protocol tcp", "", "POST /v1/envs/ENV/routes", `{"group_id":"GRP","listen_port":25,"listener":"env_v4","protocol":"tcp","target_port":8080}`},
		{"route delete ENV rte/1 --yes", "", "DELETE /v1/envs/ENV/routes/rte%2F1", ""},
		{"ipv4 enable ENV", "", "POST /v1/envs/ENV/ipv4", ""},
		{"ipv4 disable ENV --yes", "", "DELETE /v1/envs/ENV/ipv4", ""},
		{"domain create TEN www.example.com", "", "POST /v1/tenants/TEN/domains", `{"name":"www.example.com"}`},
		{"domain claim acme www.example.com", "", "POST /v1/domains", `{"org_id":"acme","name":"www.example.com"}`},
		{"domain check dom-k3jq5x2m7abc", "", "POST /v1/domains/dom-k3jq5x2m7abc/check", ""},
		{"domain delete dom-k3jq5x2m7abc --yes", "", "DELETE /v1/domains/dom-k3jq5x2m7abc", ""},
		{"volume create acme data --gb 20 --region us", "", "POST /v1/volumes", `{"name":"data","org_id":"acme","region":"us","size_bytes":20000000000}`},
		{"volume create acme data --size 10GiB", "", "POST /v1/volumes", `{"name":"data","org_id":"acme","region":"eu","size_bytes":10737418240}`},
		{"volume delete VOL --yes", "", "DELETE /v1/volumes/VOL", ""},
		{"volume attach VOL GRP --mount /srv", "", "POST /v1/volumes/VOL/attachments", `{"group_id":"GRP","mount_path":"/srv"}`},
		{"volume detach VOL vat-1", "", "DELETE /v1/volumes/VOL/attachments/vat-1", ""},
		{"snapshot create TEN", "", "POST /v1/tenants/TEN/snapshots", ""},
		{"snapshot delete TEN snp-1 --yes", "", "DELETE /v1/tenants/TEN/snapshots/snp-1", ""},
		{"snapshot undelete TEN snp-1", "", "POST /v1/tenants/TEN/snapshots/snp-1/undelete", ""},
		{"restore create TEN snp-1 --yes", "", "POST /v1/tenants/TEN/restores", `{"snapshot_id":"snp-1"}`},
		{"tenant clone TEN copy", "", "POST /v1/tenants/TEN/clones", `{"slug":"copy"}`},
		{"tenant clone TEN copy --backup bak-1 --plan trial", "", "POST /v1/tenants/TEN/clones", `{"slug":"copy","backup_id":"bak-1","plan":"trial"}`},
		{"tenant unmute TEN", "", "POST /v1/tenants/TEN/unmute", ""},
		{"queue cancel acme", "", "POST /v1/orgs/acme/queue/cancel", ""},
		{
			"queue cancel acme --reason test --dry-run", "", "POST /v1/orgs/acme/queue/cancel?dry_run=true",
			`{"reason":"test"}`,
		},
		{"drill create TEN", "", "POST /v1/tenants/TEN/drills", ""},
		{"drill create TEN --backup bak-1", "", "POST /v1/tenants/TEN/drills", `{"backup_id":"bak-1"}`},
		{"restore elsewhere TEN", "", "POST /v1/tenants/TEN/restores", `{"elsewhere":true}`},
		{"restore elsewhere TEN --backup bak-1", "", "POST /v1/tenants/TEN/restores", `{"backup_id":"bak-1","elsewhere":true}`},
		{"registry set r.b.c:5000 --username robot --password-file SECRET", "", "PUT /v1/registries/r.b.c:5000", `{"username":"robot","password":"from a file"}`},
		{"registry set r.b.c --username robot", "s3cret", "PUT /v1/registries/r.b.c", `{"username":"robot","password":"s3cret"}`},
		{"service-account create signup --org acme", "", "POST /v1/service-accounts", `{"name":"signup","org_id":"acme"}`},
		{"service-account disable sa-aaaabbbbcccc", "", "POST /v1/service-accounts/sa-aaaabbbbcccc/disable", ""},
		{"service-account token sa-aaaabbbbcccc production --ttl 2160h", "", "POST /v1/service-accounts/sa-aaaabbbbcccc/tokens", `{"name":"production","expires_in_seconds":7776000}`},
		{"token narrow visitor --ttl 30m --progress-of t-1", "", "POST /v1/tokens", `{"name":"visitor","expires_in_seconds":1800,"caveats":{"progress_of":"t-1"}}`},
		{"token narrow agent --ttl 1h --dry-run-only --seconds-down 30", "", "POST /v1/tokens", `{"name":"agent","expires_in_seconds":3600,"caveats":{"dry_run_only":true,"seconds_down":30}}`},
		{"token rotate token-aaaabbbbcccc --ttl 24h --overlap 10m", "", "POST /v1/tokens/token-aaaabbbbcccc/rotate", `{"expires_in_seconds":86400,"overlap_seconds":600}`},
		{"token revoke token-aaaabbbbcccc", "", "DELETE /v1/tokens/token-aaaabbbbcccc", ""},
		{"grant create developer --org acme --issuer https://id.example --subject bo", "", "POST /v1/grants", `{"access_role":"developer","org_id":"acme","issuer":"https://id.example","subject":"bo"}`},
		{"grant delete grant-aaaabbbbcccc", "", "DELETE /v1/grants/grant-aaaabbbbcccc", ""},
		{"access-role set hosts --capabilities server:*,tenant:read", "", "PUT /v1/access-roles/hosts", `{"capabilities":["server:*","tenant:read"]}`},
		{"user disable usr-aaaabbbbcccc", "", "POST /v1/users/usr-aaaabbbbcccc/disable", ""},
		{"user logout login-aaaabbbbcccc", "", "DELETE /v1/logins/login-aaaabbbbcccc", ""},
		{"access why signup createTenant acme", "", "GET /v1/access/why?object=acme&operation=createTenant&principal=signup", ""},
		{"registry rotate", "", "POST /v1/registries/rotate", ""},
		{"registry delete r.b.c", "", "DELETE /v1/registries/r.b.c", ""},
		{"registry unpin r.b.c/team/bench:v15", "", "DELETE /v1/image-digests?image=r.b.c%2Fteam%2Fbench%3Av15", ""},
		{"image build --debian 13", "", "POST /v1/images", `{"debian":"13","region":"eu"}`},
		{"image list --all", "", "GET /v1/images?all=true&limit=200", ""},
		{"image delete img-1 --yes", "", "DELETE /v1/images/img-1", ""},
	} {
		all := map[string][]func(http.ResponseWriter){}
		asks := at.Replace(tc.asks)
		all[asks] = []func(http.ResponseWriter){say(http.StatusOK, `{}`)}
		if strings.HasPrefix(asks, "GET ") {
			all[asks] = []func(http.ResponseWriter){say(http.StatusOK, `{"tenants":[{}],"backups":[{}],"site_pools":[{}],
"servers":[{}],"providers":[{}],"residency_zones":[{}],"capacity_defaults":[{}],"scaling_events":[{}],"events":[{}],"apps":[{}],"instances":[{}],"groups":[{}],"rollouts":[{}],"images":[{}],"activations":[{}],"backup_policies":[{}],"decisions":[{}],"resources":[{}],"routes":[{}],"ipv4_addresses":[{}],"results":[{}],"entries":[{}],"upcoming":[{}],"limit_requests":[{}]}`)}
		}
		all["GET /v1/audit/verification?from=7&head=1%3A00"] = []func(http.ResponseWriter){say(http.StatusOK, `{"ok":true}`)}
		all["POST /v1/fleets"] = []func(http.ResponseWriter){say(http.StatusCreated, `{"fleet_id":"pool"}`)}
		r := run(t, around{say: all, stdin: tc.stdin}, strings.Fields(at.Replace(tc.args))...)
		require.Zero(t, r.code, "%s: %s", tc.args, r.errs)
		require.Equal(t, asks, r.asked[len(r.asked)-1], tc.args)
		if tc.sends == "" {
			require.Empty(t, r.bodies[asks], tc.args)
		} else {
			require.JSONEq(t, at.Replace(tc.sends), strings.Replace(r.bodies[asks], `,"disallow":null`, "", 1), tc.args)
		}
	}
}

func TestAnIdempotencyKeyGoesWithEveryPost(t *testing.T) {
	t.Parallel()
	r := run(t, around{say: always(map[string]any{"POST /v1/apps": api.App{}})}, "app", "create", "shop", "--org", "acme", "--idempotency-key", "k")
	require.Zero(t, r.code, r.errs)
	require.Equal(t, "k", r.headers["POST /v1/apps"].Get("Idempotency-Key"))
}

func TestWhatIsWrongIsRefusedHere(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "wrong.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"image": "web:2", "memory_limit": 7}`), 0o600))
	for args, want := range map[string]string{
		"quota set acme max_apps many --reason x":                             "LIMIT must be a number",
		"quota set acme max_apps 64G --reason x":                              "LIMIT must be a number",
		"quota set acme max_apps NaN --reason x":                              "LIMIT must be a number",
		"volume create acme data --gb=-1":                                     "--gb must be 10 to 10000",
		"volume create acme data --gb 9223372036854775807":                    "--gb must be 10 to 10000",
		"fleet create pool --role app --workload-memory lots":                 `"lots" is not a size`,
		"fleet update pool --workload-memory=-1":                              `"-1" is not a size`,
		"fleet update pool --workload-memory 99999999999999999999":            "is not a size",
		"fleet update pool --patch-window-for 1h":                             "--patch-window-for needs --patch-window",
		"fleet update pool":                                                   "nothing to change",
		"fleet resize pool --to 5 --by 2":                                     "[by to] were all set",
		"fleet scale-out pool --dry-run --watch":                              "[dry-run watch] were all set",
		"fleet scale-out":                                                     "FLEET is missing",
		"fleet scale-out a b":                                                 `unexpected argument "b"`,
		"fleet scale-in pool --region eu":                                     "unknown flag: --region",
		"policy create p":                                                     "the policy is empty",
		"policy create p --spec -":                                            "--spec needs --type",
		"policy create p --type deletion --spec - --criteria RANDOM":          "give either --spec or the flags",
		"policy create p --region eu --criteria RANDOM":                       "is not for a policy of type",
		"policy create p --type scaling --criteria RANDOM":                    "is not for a policy of type scaling",
		"policy create p --region eu=many":                                    `the weight "many" is not a whole number`,
		"policy create p --region eu=1:":                                      `the cap "" is not a whole number`,
		"group create env-aaaabbbbcccc web":                                   "--image or --file is required",
		"group create env-aaaabbbbcccc web -f " + file:                        "unknown field",
		"group create env-aaaabbbbcccc web -f /nowhere":                       "no such file",
		"group create env-aaaabbbbcccc web --image a --memory 9223372036854T": "is not a size",
		"group create env-aaaabbbbcccc web --image a --health-retries 2":      "there is no health check to change",
		"group create env-aaaabbbbcccc web -f x --health-tcp 1":               "none of the others can be",
		"group deploy grp-aaaabbbbcccc --max-surge half":                      "is neither a number of instances",
		"group deploy grp-aaaabbbbcccc --max-unavailable 101%":                "is neither a number of instances",
		"group deploy grp-aaaabbbbcccc":                                       "nothing to deploy",
		"group deploy grp-aaaabbbbcccc --file - --image web:2":                "none of the others can be",
		"registry set r.b.c --username robot":                                 "standard input holds no password",
		"exec app-1 bench":                                                    "the command is missing",
		"pool warm set eu starter two":                                        `"two" is not a number of servers`,
	} {
		r := run(t, around{}, strings.Fields(args)...)
		require.Equal(t, ExitUsage, r.code, args)
		require.Contains(t, r.errs, want, args)
		require.Empty(t, r.asked, args)
	}
}

func TestAChangeLeavesWhatIsNotGiven(t *testing.T) {
	t.Parallel()
	g := api.ProcessGroup{GroupId: "grp-0123456789ab", Spec: workload.Spec{
		Image: "web:1", Command: []string{"serve"}, MemoryLimitBytes: 64 << 20, CPURequest: 0.5, Ports: []int{80}, Volumes: []string{"/data"}, Constraint: &prego.Constraint{Require: []string{"gpu"}},
		Health: &workload.HealthCheck{Kind: workload.HealthHTTP, Path: "/up", Port: 80, IntervalSeconds: 5},
	}}
	image := "debian-13"
	f := api.Fleet{FleetId: "pool", Spec: api.ServerSpec{Tags: &[]string{"old"}, Image: &image}}
	on := always(map[string]any{"GET /v1/groups/grp-0123456789ab": g, "POST /v1/groups/grp-0123456789ab/deploys": g, "GET /v1/fleets/pool": f, "PATCH /v1/fleets/pool": f})
	for args, want := range map[string]string{
		"--image web:2":                  `{"image":"web:2","command":["serve"],"memory_limit_bytes":67108864,"cpu_request":0.5,"ports":[80],"volumes":["/data"],"health":HTTP}`,
		"--memory 1G --cpu 2 --port 81":  `{"image":"web:1","command":["serve"],"memory_limit_bytes":1073741824,"cpu_request":2,"ports":[81],"volumes":["/data"],"health":HTTP}`,
		"--volume /srv -- serve --quiet": `{"image":"web:1","command":["serve","--quiet"],"memory_limit_bytes":67108864,"cpu_request":0.5,"ports":[80],"volumes":["/srv"],"health":HTTP}`,
		"--no-health":                    `{"image":"web:1","command":["serve"],"memory_limit_bytes":67108864,"cpu_request":0.5,"ports":[80],"volumes":["/data"]}`,
		"--health-interval 10s":          `{"image":"web:1","command":["serve"],"memory_limit_bytes":67108864,"cpu_request":0.5,"ports":[80],"volumes":["/data"],"health":{"kind":"http","path":"/up","port":80,"interval_seconds":10}}`,
		"--health-tcp 80":                `{"image":"web:1","command":["serve"],"memory_limit_bytes":67108864,"cpu_request":0.5,"ports":[80],"volumes":["/data"],"health":{"kind":"tcp","port":80,"interval_seconds":5}}`,
	} {
		want = strings.ReplaceAll(want, "HTTP", `{"kind":"http","path":"/up","port":80,"interval_seconds":5}`)
		r := run(t, around{say: on}, append([]string{"group", "deploy", "grp-0123456789ab"}, strings.Fields(args)...)...)
		require.Zero(t, r.code, r.errs)
		require.JSONEq(t, `{"spec":`+want+`}`, r.bodies["POST /v1/groups/grp-0123456789ab/deploys"], args)
	}
	for args, want := range map[string]string{
		"--tag new --min 0":                     `{"min_size":0,"spec":{"image":"debian-13","tags":["new"]}}`,
		"--network 42":                          `{"spec":{"image":"debian-13","network":"42","tags":["old"]}}`,
		"--workload-cpus 0.5 --tag new --max 3": `{"workload_cpus":0.5,"max_size":3,"spec":{"image":"debian-13","tags":["new"]}}`,
	} {
		r := run(t, around{say: on}, append([]string{"fleet", "update", "pool"}, strings.Fields(args)...)...)
		require.Zero(t, r.code, r.errs)
		require.JSONEq(t, want, r.bodies["PATCH /v1/fleets/pool"], args)
	}
}

func TestADryRunShowsCountsAndServers(t *testing.T) {
	t.Parallel()
	id, reason, message := "pool-1-2", "no_feasible_plan", "There is no feasible plan to handle all nodes."
	for name, tc := range map[string]struct {
		plan api.FleetActionPlan
		want string
		code int
	}{
		"grows": {api.FleetActionPlan{
			Data: json.RawMessage(`{"status":"OK"}`), DesiredCapacity: 5,
			Steps: []api.FleetPlannedStep{{Op: "create", Region: "us", Round: 1}, {Op: "create", Region: "eu", Round: 1}, {Op: "create", Region: "eu", Round: 1}},
		}, "create   3: eu 2, us 1\ndesired  5 servers from then on\n", 0},
		"shrinks": {api.FleetActionPlan{
			Data: json.RawMessage(`{"status":"OK","deletion":{"count":1,"candidates":["pool-1-2"],"grace_period":90}}`), DesiredCapacity: 1,
			Steps: []api.FleetPlannedStep{{Op: "delete", ServerId: &id, Region: "us", Round: 1}},
		}, "delete        1: us 1\nservers       pool-1-2\ngrace period  1m30s for servers that have tenants\ndesired       1 servers from then on\n", 0},
		"replaces": {api.FleetActionPlan{
			Data: json.RawMessage(`{"status":"OK","replacement":{"count":1,"regions":{"us":1},"max_surge":2}}`), DesiredCapacity: 1,
			Steps: []api.FleetPlannedStep{{Op: "create", Region: "us", Round: 1}, {Op: "delete", ServerId: &id, Region: "us", Round: 1}},
		}, "create   1: us 1\ndelete   1: us 1\nservers  pool-1-2\nsurge    2 new servers before their old ones go\ndesired  1 servers from then on\n", 0},
		"does nothing": {api.FleetActionPlan{Data: json.RawMessage(`{"status":"OK"}`), DesiredCapacity: 2}, "nothing to do\ndesired  2 servers from then on\n", 0},
		"can't":        {api.FleetActionPlan{Data: json.RawMessage(`{"status":"ERROR"}`), Reason: &reason, Message: &message, DesiredCapacity: 2}, "", ExitOutcome},
	} {
		on := always(map[string]any{"POST /v1/fleets/pool/actions?dry_run=true": map[string]any{"plan": tc.plan}})
		r := run(t, around{say: on}, "fleet", "scale-out", "pool", "--dry-run")
		require.Equal(t, tc.code, r.code, "%s: %s", name, r.errs)
		require.Equal(t, tc.want, r.out, name)
		r = run(t, around{say: on}, "fleet", "scale-out", "pool", "--dry-run", "-o", "json")
		require.Equal(t, tc.code, r.code)
		require.Contains(t, r.out, `"desired_capacity"`, name)
	}
}
