package cli

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/golden"
	"github.com/prego/prego/placement"
)

// leaves are the leaf verbs below a command.
func leaves(cmd *cobra.Command) []*cobra.Command {
	if !cmd.HasSubCommands() {
		return []*cobra.Command{cmd}
	}
	var out []*cobra.Command
	for _, sub := range cmd.Commands() {
		out = append(out, leaves(sub)...)
	}
	return out
}

func nouns(t *testing.T) []*cobra.Command {
	t.Helper()
	var out []*cobra.Command
	for _, cmd := range program(New(func(string) string { return "" }), io.Discard).Commands() {
		if cmd.Name() != "completion" && cmd.Name() != "help" {
			out = append(out, cmd)
		}
	}
	return out
}

func TestEveryVerbFollowsTheConventions(t *testing.T) {
	t.Parallel()
	imperative := strings.Fields(`Add Approve Associate Attach Back Bring Build Cancel Change Claim Close Compare Cordon Create Decide Decommission Delete Deploy Detach Disable Dissociate
		Download Enable End Follow Force Give Go Grow Import Inspect Install Keep List Log Look Make Move Open Order Pause Plan Reboot Repair Request Reset Retry Scale Suspend Update
		Manage Override Print Provision Publish Re-encrypt Reactivate Refill Refresh Refuse Release Remove Renew Replace Resize Restart Restore Resume Return Revoke Run Seal See Set Show Stop Store Take Terminate Try Unpin Verify Withdraw Write`)
	for _, noun := range nouns(t) {
		for _, cmd := range append(leaves(noun), noun) {
			path := cmd.CommandPath()
			require.Contains(t, imperative, strings.Fields(cmd.Short)[0], path)
			require.NotRegexp(t, `\.$|  `, cmd.Short, path)
			cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
				require.NotEmpty(t, f.Usage, "%s --%s", path, f.Name)
				require.NotRegexp(t, `\.$`, f.Usage, "%s --%s", path, f.Name)
			})
			if cmd.Name() == "list" && noun.Name() != "context" {
				for _, name := range []string{"columns", "no-header", "quiet", "sort"} {
					require.NotNil(t, cmd.Flag(name), "%s --%s", path, name)
				}
				require.NotNil(t, cmd.Flag("output"), path)
			}
			require.Equal(t, cmd.Flag("accept") != nil, cmd.Flag("yes") != nil, "%s: both accept an impact", path)
			flags := 0
			cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
				if _, needed := f.Annotations[cobra.BashCompOneRequiredFlag]; needed {
					flags++
				}
			})
			if flags > 1 {
				require.True(t, cmd.Example != "" || cmd.Name() == "import", "%s needs several flags, and so an example", path)
			}
		}
	}
}

func TestAnUnknownVerbEndsWithASuggestion(t *testing.T) {
	t.Parallel()
	for _, noun := range nouns(t) {
		for _, verb := range noun.Commands() {
			word := verb.Name()[:len(verb.Name())-1] + "~"
			r := run(t, around{}, noun.Name(), word)
			require.Equal(t, ExitUsage, r.code, "%s %s: %s", noun.Name(), word, r.out)
			if verb.Annotations[Harms] != "" {
				require.NotContains(t, r.errs, "did you mean "+verb.Name(), "%s %s", noun.Name(), word)
				continue
			}
			if len(word) < 3 || len(nearest(word, namesOf(noun))) > 1 { // like action and actions
				require.NotContains(t, r.errs, "did you mean", "%s %s", noun.Name(), word)
				continue
			}
			require.Contains(t, r.errs, "did you mean "+verb.Name()+"?", "%s %s", noun.Name(), word)
		}
		if noun.HasSubCommands() && noun.Name() != "catalog" {
			r := run(t, around{}, noun.Name())
			require.Zero(t, r.code)
			require.Contains(t, r.out, "Available Commands", "without a verb there is help")
		}
	}
	for args, want := range map[string]string{
		"servr list":              "prego: unknown command \"servr\" for \"prego\"; did you mean server?\n",
		"get servers":             "prego: unknown command \"get\" for \"prego\"; did you mean prego server list?\n",
		"describe tenant t":       "prego: unknown command \"describe\" for \"prego\"; did you mean prego tenant show?\n",
		"delete server app-7":     "prego: unknown command \"delete\" for \"prego\"; prego server --help lists the commands\n",
		"server lsot":             "prego: unknown command \"lsot\" for \"prego server\"; prego server --help lists the commands\n",
		"tenant terminat acme":    "prego: unknown command \"terminat\" for \"prego tenant\"; prego tenant --help lists the commands\n",
		"context delte prod":      "prego: unknown command \"delte\" for \"prego context\"; prego context --help lists the commands\n",
		"server list --region de": "prego: invalid argument \"de\" for \"--region\" flag: must be sg, eu or us\n",
		"server list --region ue": "prego: invalid argument \"ue\" for \"--region\" flag: must be sg, eu or us\n",
		"server list --region es": "prego: invalid argument \"es\" for \"--region\" flag: must be sg, eu or us\n",
		"server list --region e":  "prego: invalid argument \"e\" for \"--region\" flag: must be sg, eu or us; did you mean eu?\n",
	} {
		r := run(t, around{}, strings.Fields(args)...)
		require.Equal(t, ExitUsage, r.code, args)
		require.Equal(t, want, r.errs, args)
	}
}

// TestHelpHasGroups: each command belongs to one of the groups that the contract declares, and each of those exists.
func TestHelpHasGroups(t *testing.T) {
	t.Parallel()
	root := program(New(func(string) string { return "" }), io.Discard)
	for _, noun := range nouns(t) {
		require.NotEmpty(t, noun.GroupID, "%s has no group: add it to x-nouns", noun.Name())
	}
	for _, p := range api.Purposes {
		for _, name := range p.Commands {
			require.NotNil(t, child(root, name), name)
		}
	}
	r := run(t, around{}, "--help")
	require.Contains(t, r.out, "\nBackups:\n  backup ")
	require.NotContains(t, r.out, "Additional Commands")
}

func TestLsIsList(t *testing.T) {
	t.Parallel()
	r := run(t, around{say: always(map[string]any{"GET /v1/orgs": `{"orgs":[{"org_id":"acme"}]}`})}, "org", "ls", "-q")
	require.Equal(t, "acme\n", r.out, r.errs)
	for _, noun := range nouns(t) {
		for _, verb := range noun.Commands() {
			require.Equal(t, verb.Name() == "list", verb.HasAlias("ls"), verb.CommandPath())
		}
	}
}

// filled returns a value of a type with every field set.
func filled(v reflect.Value, name string, depth int) {
	switch v.Type() {
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(born))
		return
	case reflect.TypeFor[json.RawMessage]():
		v.SetBytes([]byte(`{"a":1}`))
		return
	case reflect.TypeFor[placement.Explanation]():
		v.Set(reflect.ValueOf(placement.Explanation{SelectionReason: "the emptiest", CandidatesEvaluated: 3, RejectedCounts: map[string]int{"memory_pct": 2}}))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(v.Elem(), name, depth)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && depth < 12 {
				tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				filled(v.Field(i), tag, depth+1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		filled(v.Index(0), strings.TrimSuffix(name, "s"), depth+1)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		e := reflect.New(v.Type().Elem()).Elem()
		filled(e, name, depth+1)
		v.SetMapIndex(reflect.ValueOf("running").Convert(v.Type().Key()), e)
	case reflect.String:
		text, ok := map[string]string{
			"status": "active", "state": "active", "next_cursor": "", "region": "eu", "plan": "starter", "tier": "paid", "role": "app", "slug": "northwind-traders-eu", "name": "storefront-web", "org_id": "northwind-traders",
			"tenant_id": "t-k3jq5x2m7abc", "app_id": "app-k3jq5x2m7abc", "env_id": "env-k3jq5x2m7abc", "group_id": "grp-k3jq5x2m7abc", "volume_id": "vol-k3jq5x2m7abc", "server_id": "app-eu-20260102-7",
			"run_url": "http://temporal/run", "site_url": "https://acme-eu.sites.example.com", "message": "no server fits: of 12 servers memory_pct 9, not_active 3",
		}[name]
		if !ok {
			text = strings.ReplaceAll(name, "_", "-")
		}
		v.SetString(text)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(2.5)
	case reflect.Int, reflect.Int64:
		n := int64(3)
		if strings.HasSuffix(name, "_bytes") {
			n = 3 << 29
		}
		v.SetInt(n)
	}
}

func example[T any](status int) []func(http.ResponseWriter) {
	var v T
	filled(reflect.ValueOf(&v).Elem(), "", 0)
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return []func(http.ResponseWriter){say(status, strings.ReplaceAll(string(b), `"next_cursor":""`, `"next_cursor":null`))}
}

// shown are the verbs that show things, and what the API answers them.
var shown = map[string]struct {
	path   string
	answer []func(http.ResponseWriter)
}{
	"server list":                            {"/v1/servers", example[api.ServerPage](200)},
	"server show app-eu-7":                   {"/v1/servers/app-eu-7", example[api.Server](200)},
	"server maintenance-status app-eu-7":     {"/v1/servers/app-eu-7/maintenance", example[api.Maintenance](200)},
	"server samples app-eu-7":                {"/v1/servers/app-eu-7/samples", []func(http.ResponseWriter){say(200, daySamples())}},
	"server peers":                           {"/v1/server-peers", example[api.ServerPeers](200)},
	"server stats":                           {"/v1/server-stats", example[api.ServerStats](200)},
	"server commands app-eu-7":               {"/v1/servers/app-eu-7/commands", example[api.CommandPage](200)},
	"container list app-eu-7":                {"/v1/servers/app-eu-7/containers", example[api.ContainerList](200)},
	"tenant list":                            {"/v1/tenants", example[api.TenantPage](200)},
	"tenant show t-k3jq5x2m7abc":             {"/v1/tenants/t-k3jq5x2m7abc", example[api.Tenant](200)},
	"backup list t-k3jq5x2m7abc":             {"/v1/backups", example[api.BackupPage](200)},
	"backup show t-k3jq5x2m7abc b":           {"/v1/tenants/t-k3jq5x2m7abc/backups/b", example[api.Backup](200)},
	"volume backup list vol-k3jq5x2m7abc":    {"/v1/volumes/vol-k3jq5x2m7abc/backups", example[api.VolumeBackupPage](200)},
	"volume backup show vol-k3jq5x2m7abc b":  {"/v1/volumes/vol-k3jq5x2m7abc/backups/b", example[api.VolumeBackup](200)},
	"volume restore list vol-k3jq5x2m7abc":   {"/v1/volumes/vol-k3jq5x2m7abc/restores", example[api.VolumeRestorePage](200)},
	"volume drill list vol-k3jq5x2m7abc":     {"/v1/volumes/vol-k3jq5x2m7abc/drills", example[api.VolumeDrillPage](200)},
	"volume restore show vol-k3jq5x2m7abc r": {"/v1/volumes/vol-k3jq5x2m7abc/restores/r", example[api.VolumeRestore](200)},
	"backup policy list":                     {"/v1/backup-policies", example[api.BackupPolicyPage](200)},
	"backup policy get starter":              {"/v1/backup-policies/starter", example[api.BackupPolicy](200)},
	"backup space show acme":                 {"/v1/orgs/acme/backup-space", example[api.BackupSpace](200)},
	"snapshot list t-k3jq5x2m7abc":           {"/v1/tenants/t-k3jq5x2m7abc/snapshots", example[api.SnapshotPage](200)},
	"snapshot show t-k3jq5x2m7abc s":         {"/v1/tenants/t-k3jq5x2m7abc/snapshots/s", example[api.Snapshot](200)},
	"restore list t-k3jq5x2m7abc":            {"/v1/tenants/t-k3jq5x2m7abc/restores", example[api.RestorePage](200)},
	"drill list t-k3jq5x2m7abc":              {"/v1/tenants/t-k3jq5x2m7abc/drills", example[api.DrillPage](200)},
	"restore show t-k3jq5x2m7abc r":          {"/v1/tenants/t-k3jq5x2m7abc/restores/r", example[api.RestoreJob](200)},
	"placement-pool list":                    {"/v1/placement-pools", example[api.PlacementPoolPage](200)},
	"placement-pool show gpu":                {"/v1/placement-pools/gpu", example[api.PlacementPool](200)},
	"placement-pool of acme":                 {"/v1/orgs/acme/placement-pools", example[api.OrgPlacementPools](200)},
	"pool list":                              {"/v1/site-pools", example[api.SitePoolList](200)},
	"pool policies":                          {"/v1/site-pool-policies", example[api.SitePoolPolicyList](200)},
	"pool provider list":                     {"/v1/providers", example[api.ProviderList](200)},
	"pool residency list":                    {"/v1/residency-zones", example[api.ResidencyZoneList](200)},
	"pool capacity list":                     {"/v1/capacity-defaults", example[api.CapacityDefaultList](200)},
	"pool warm list":                         {"/v1/warm-pools", example[api.WarmPoolList](200)},
	"impact upcoming":                        {"/v1/impact/upcoming", example[api.UpcomingList](200)},
	"scaling list":                           {"/v1/scaling-events", example[api.ScalingEventList](200)},
	"fleet list":                             {"/v1/fleets", example[api.FleetPage](200)},
	"fleet show web":                         {"/v1/fleets/web", example[api.Fleet](200)},
	"fleet actions web":                      {"/v1/fleets/web/actions", example[api.FleetActionPage](200)},
	"fleet action web 7":                     {"/v1/fleets/web/actions/7", example[api.FleetAction](200)},
	"policy list":                            {"/v1/policies", example[api.PolicyPage](200)},
	"policy show spread":                     {"/v1/policies/spread", example[api.Policy](200)},
	"org list":                               {"/v1/orgs", example[api.OrgPage](200)},
	"org show acme":                          {"/v1/orgs/acme", example[api.Org](200)},
	"org events acme":                        {"/v1/orgs/acme/events", example[api.OrgEventPage](200)},
	"quota show acme":                        {"/v1/orgs/acme/quotas", example[api.OrgQuotas](200)},
	"app list":                               {"/v1/apps", example[api.AppPage](200)},
	"app show app-k3jq5x2m7abc":              {"/v1/apps/app-k3jq5x2m7abc", example[api.App](200)},
	"env list":                               {"/v1/envs", example[api.EnvPage](200)},
	"env show env-k3jq5x2m7abc":              {"/v1/envs/env-k3jq5x2m7abc", example[api.Env](200)},
	"group list":                             {"/v1/groups", example[api.GroupPage](200)},
	"group show grp-k3jq5x2m7abc":            {"/v1/groups/grp-k3jq5x2m7abc", example[api.ProcessGroup](200)},
	"instance list grp-k3jq5x2m7abc":         {"/v1/instances", example[api.InstancePage](200)},
	"instance show ins-1":                    {"/v1/instances/ins-1", example[api.Instance](200)},
	"route list env-k3jq5x2m7abc":            {"/v1/routes", example[api.RoutePage](200)},
	"route show env-k3jq5x2m7abc r":          {"/v1/envs/env-k3jq5x2m7abc/routes/r", example[api.Route](200)},
	"ipv4 list":                              {"/v1/ipv4-addresses", example[api.IPv4Page](200)},
	"ipv4 show env-k3jq5x2m7abc":             {"/v1/envs/env-k3jq5x2m7abc/ipv4", example[api.IPv4](200)},
	"domain list":                            {"/v1/domains", example[api.DomainPage](200)},
	"domain show dom-uygh3jbw4x3d":           {"/v1/domains/dom-uygh3jbw4x3d", example[api.Domain](200)},
	"certificate list":                       {"/v1/certificates", example[api.CertificatePage](200)},
	"certificate show crt-1":                 {"/v1/certificates/crt-1", example[api.Certificate](200)},
	"volume list":                            {"/v1/volumes", example[api.VolumePage](200)},
	"volume show vol-k3jq5x2m7abc":           {"/v1/volumes/vol-k3jq5x2m7abc", example[api.Volume](200)},
	"limit-request list":                     {"/v1/limit-requests", example[api.LimitRequestPage](200)},
	"limit-request show lreq-aaaabbbbcccc":   {"/v1/limit-requests/lreq-aaaabbbbcccc", example[api.LimitRequest](200)},
	"invitation list":                        {"/v1/invitations", example[api.InvitationList](200)},
	"registry list":                          {"/v1/registries", example[api.RegistryList](200)},
	"registry show r.example.com":            {"/v1/registries/r.example.com", example[api.Registry](200)},
	"registry images":                        {"/v1/image-digests", example[api.ImageDigestList](200)},
	"agent release list":                     {"/v1/agent-releases", example[api.AgentReleasePage](200)},
	"agent release show v1.4.0":              {"/v1/agent-releases/v1.4.0", example[api.AgentRelease](200)},
	"release list":                           {"/v1/releases", example[api.StackReleasePage](200)},
	"release show 15.80":                     {"/v1/releases/15.80", example[api.StackRelease](200)},
	"rebalance list":                         {"/v1/rebalances", example[api.RebalancePage](200)},
	"rebalance show reb-1":                   {"/v1/rebalances/reb-1", example[api.Rebalance](200)},
	"decision list":                          {"/v1/decisions", example[api.DecisionPage](200)},
	"decision show 7":                        {"/v1/decisions/7", example[api.ExplainedDecision](200)},
	"fleet map":                              {"/v1/fleet-map", example[api.FleetMap](200)},
	"patch-wave list":                        {"/v1/patch-waves", example[api.PatchWavePage](200)},
	"patch-wave show web-20261124-0200":      {"/v1/patch-waves/web-20261124-0200", example[api.PatchWave](200)},
	"image list":                             {"/v1/images", example[api.GoldenImagePage](200)},
	"image show img-1":                       {"/v1/images/img-1", example[api.GoldenImage](200)},
	"operation show image-build/i":           {"/v1/operations/image-build%2Fi", example[api.Operation](200)},
	"status":                                 {"/v1/attention", example[api.AttentionList](200)},
	"status --todo":                          {"/v1/attention", example[api.AttentionList](200)},
	"queue list":                             {"/v1/queue", example[api.QueuePage](200)},
	"cost --by tenant":                       {"/v1/costs", example[api.Costs](200)},
	"ledger list":                            {"/v1/ledger", example[api.LedgerPage](200)},
	"service-account list":                   {"/v1/service-accounts", example[api.ServiceAccountPage](200)},
	"service-account show sa-aaaabbbbcccc":   {"/v1/service-accounts/sa-aaaabbbbcccc", example[api.ServiceAccount](200)},
	"token list":                             {"/v1/tokens", example[api.TokenPage](200)},
	"token show token-aaaabbbbcccc":          {"/v1/tokens/token-aaaabbbbcccc", example[api.Token](200)},
	"grant list":                             {"/v1/grants", example[api.GrantPage](200)},
	"access-role list":                       {"/v1/access-roles", example[api.AccessRoleList](200)},
	"user list":                              {"/v1/users", example[api.UserPage](200)},
	"user show usr-aaaabbbbcccc":             {"/v1/users/usr-aaaabbbbcccc", example[api.User](200)},
	"user logins":                            {"/v1/logins", example[api.LoginPage](200)},
	"audit list":                             {"/v1/audit", example[api.AuditPage](200)},
	"audit show 4711":                        {"/v1/audit/4711", example[api.AuditEntry](200)},
	"audit head":                             {"/v1/audit/head", example[api.AuditHead](200)},
	"audit verify":                           {"/v1/audit/verification", example[api.AuditVerification](200)},
	"catalog":                                {"/v1/catalog", example[api.Catalog](200)},
}

func TestEveryNounAsItIsShown(t *testing.T) {
	t.Parallel()
	looked := map[string]bool{"context": true}
	for args, tc := range shown {
		looked[strings.Fields(args)[0]] = true
		var out strings.Builder
		for _, width := range []int{80, 120, 0} {
			r := run(t, around{width: width, env: map[string]string{"NO_COLOR": "1"}, say: map[string][]func(http.ResponseWriter){"GET " + tc.path: tc.answer}}, strings.Fields(args)...)
			require.Zero(t, r.code, "%s: %s", args, r.errs)
			fmt.Fprintf(&out, "--- %s\n%s", map[int]string{80: "80 columns", 120: "120 columns", 0: "a pipe"}[width], r.out)
			require.False(t, width == 0 && strings.Contains(r.out, "…"), "%s\n%s", args, r.out)
			for line := range strings.SplitSeq(r.out, "\n") {
				require.True(t, width == 0 || !strings.Contains(args, " list") || len([]rune(line)) <= width, "%s at %d:\n%s", args, width, r.out)
			}
		}
		file := filepath.Join("testdata", strings.NewReplacer(" ", "-", "/", "-", "-k3jq5x2m7abc", "").Replace(args)+".txt")
		golden.Equal(t, file, out.String())
	}
	for _, noun := range nouns(t) {
		for _, verb := range noun.Commands() {
			if verb.Name() == "list" || verb.Name() == "show" {
				require.True(t, looked[noun.Name()], "%s has no golden file", noun.Name())
			}
		}
	}
}

// TestThereIsOneWayToMakeAVerb looks for the helpers that verbs once had: each was
// another way to send a request or to print an answer.
func TestThereIsOneWayToMakeAVerb(t *testing.T) {
	t.Parallel()
	before := strings.Fields("asked gone listed walk text printed oneOf showOne deleteOne follow followTenant followAction told made anything long printJSON newAPIClient lister answered")
	for _, dir := range []string{".", "../cmd/prego", "../cmd/prego-lab"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			require.NoError(t, err)
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
					require.NotContains(t, before, fn.Name.Name, name)
				}
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT && dir == "." {
					for _, s := range g.Specs {
						require.NotContains(t, s.(*ast.ImportSpec).Path.Value, "tabwriter", name)
					}
				}
			}
		}
	}
}

func TestTheCatalogSaysWhatIsSold(t *testing.T) {
	t.Parallel()
	before, after := born.Add(-time.Hour), born.Add(time.Hour)
	for want, at := range map[string]api.CatalogOffer{
		"retired": {UnavailableAfter: &before}, "deprecated until 2026-01-02": {Available: true, UnavailableAfter: &after}, "out of stock": {}, "available": {Available: true},
	} {
		require.Equal(t, want, offerState(at, born))
	}
	on := func(answer string) around { return around{say: always(map[string]any{"GET /v1/catalog": answer})} }
	r := run(t, on(`{"provider":"hetzner","known":false,"stale":true,"locations":[],"server_types":[],"images":[],"problems":[]}`), "catalog")
	require.Contains(t, r.out, "hetzner's catalog was never read")
	two := `{"provider":"hetzner","known":true,"stale":false,"refreshed_at":"2026-01-02T03:04:05Z","currency":"EUR","locations":[],"images":[],"problems":[],"server_types":[{"name":"cx43","cores":8,"locations":[
		{"location":"fsn1","available":true,"price":{"hourly":{"net":"0.0256","gross":"0.0305"},"monthly":{"net":"15.9900","gross":"19.0281"}}},
		{"location":"nbg1","available":false,"price":{"hourly":{"net":"0.0256","gross":"0.0305"},"monthly":{"net":"15.9900","gross":"19.0281"}}}]}]}`
	r = run(t, on(two), "catalog", "--location", "nbg1")
	require.Contains(t, r.out, "EUR/MONTH")
	require.Contains(t, r.out, "out of stock")
	require.NotContains(t, r.out, "fsn1")
	require.JSONEq(t, two, run(t, on(two), "catalog", "-o", "json").out)
}

func TestStorageIsSaidInOneLine(t *testing.T) {
	t.Parallel()
	message := "no\nanswer"
	require.Equal(t, "11.00 of 10.00 GB (110 %): database 8.00, files 3.00; backups 1.00 GB extra; read_only, over since 2026-01-02T03:04:05Z, the site is read-only; "+
		"measured 2026-01-02T03:04:05Z, the last try failed: no answer", storageText(api.TenantStorage{
		UsedBytes: 11e9, DatabaseBytes: 8e9, FilesBytes: 3e9, BackupsBytes: 1e9, QuotaBytes: 10e9, UsedPct: 110, Level: "read_only", OverSince: &born, ReadOnly: true,
		MeasuredAt: born, Message: &message,
	}))
}

func TestADecisionIsShownAsASentence(t *testing.T) {
	t.Parallel()
	require.Equal(t, "1 of 1 servers fit (n-1)", decided(json.RawMessage(`{"server_id":"n-1","selection_reason":"1 of 1 servers fit"}`)))
	require.JSONEq(t, `{"code":"no_capacity_memory"}`, decided(json.RawMessage(`{"code":"no_capacity_memory"}`)))
	decision, message := json.RawMessage(`{"selection_reason":"no server in the region"}`), "no server in the region"
	g := api.ProcessGroup{GroupId: "grp-0123456789ab", Decision: &decision, StatusMessage: &message}
	r := run(t, around{say: always(map[string]any{"GET /v1/groups/grp-0123456789ab": g})}, "group", "show", "grp-0123456789ab")
	require.Equal(t, 1, strings.Count(r.out, message), "it is printed once:\n%s", r.out)
}
