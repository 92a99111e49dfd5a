package store

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ofOneThing are the store's methods that looks call for one row, or for a page of them that
// another statement found: what they cost does not depend on how many there are.
var ofOneThing = map[string]string{
	"Allocate":                "a group, by its id",
	"AwaitTenant":             "a tenant, by its id",
	"DrillRecord":             "a drill, by its id",
	"ExplainNoPlace":          "a group, by its id",
	"GrowForInstances":        "a fleet, by its id",
	"InstanceOffers":          "the fleets, which are few",
	"InstancesBackingOff":     "a page of a region's waiting groups",
	"LiveAllocation":          "a tenant, by its id",
	"MayRefill":               "a server by its id",
	"NoPlace":                 "a group, by its id",
	"OrderLocations":          "the names of one certificate",
	"OwnServers":              "a tenant, by its id",
	"PoolsOf":                 "the orgs of a page of waiting groups",
	"RequestDecommission":     "a server, by its id",
	"ServeInstances":          "a region's lock",
	"ShardHost":               "a shard, by its id",
	"AddEvent":                "a server's timeline",
	"CountCosts":              "billed resources, each of which has to be counted",
	"DecisionInput":           "a decision's input, by its number",
	"KeepInputs":              "a batch of decisions",
	"AddressDeparts":          "a server's addresses",
	"AssignNetwork":           "a server's network",
	"Attached":                "a server by its id",
	"GetRecord":               "a record by its name",
	"NetworkGone":             "a network by its id",
	"NetworkMade":             "a network by its id",
	"ProviderCatalog":         "a provider's catalog",
	"BackupSealed":            "a backup by its id",
	"DropRedo":                "what has changed since the last look",
	"NextRedo":                "what has changed since the last look",
	"RedoSaved":               "the one row of the redo log",
	"Recovering":              "the one row of the redo log",
	"RedoTrust":               "the one row of the redo log",
	"RedoVerified":            "the one row of the redo log",
	"Redo":                    "once, when an operator completes a restored database",
	"RedoState":               "the one row of the redo log",
	"RecordApplied":           "a record by its name",
	"RecordDrifted":           "a record by its name",
	"ZoneCompared":            "a zone by its name",
	"RecordFailed":            "a record by its name",
	"RecordOrphaned":          "a record by its name",
	"TakeRecord":              "a record by its name",
	"WantRecords":             "the records of edges and of sites away from home, which are few",
	"BackupRecord":            "a backup by its id",
	"MoveRecord":              "a move by its id",
	"QuietMoves":              "the moves under way, as many as operators and maintenances ask for",
	"DeleteBackup":            "a backup by its id",
	"LentVolumes":             "the volumes that are lent, as many as backups and restores under way",
	"ReturnVolume":            "a volume by its id",
	"IPv4Refused":             "an address by its id",
	"VolumeRefused":           "a volume by its id",
	"VolumeEver":              "a volume by its id",
	"VolumeLent":              "a volume by its id",
	"VolumeRestoresLeft":      "the restores under way, as many as orgs ask for",
	"PutBackupSchedules":      "some tenants' or volumes' turns, by their ids",
	"TakeDueBackup":           "a tenant's or a volume's turn, by its id",
	"SealAudit":               "the audit's entries that are new, a page in a transaction",
	"RequestMove":             "a tenant's move, by its id",
	"RequestMaintenance":      "a server, by its id",
	"RemoveFreed":             "a server that a plan has emptied, by its id",
	"StepRebalance":           "a plan that is carried out, by its id",
	"RebalanceMoveRefused":    "a move of a plan, by its id",
	"BenchRecord":             "a release on a server, by their ids",
	"BeginDrill":              "a tenant's drill, by its id",
	"BeginVolumeDrill":        "a volume's drill, by its id",
	"RestoreElsewhere":        "a tenant, by its id",
	"CertificateAsked":        "a certificate by its id",
	"ChallengeServed":         "a row",
	"IssuerAccount":           "the only account",
	"IssuerAccountRegistered": "the only account",
	"LiveChallenges":          "an order's rows",
	"PutIssuerAccount":        "the only account",
	"ResealIssuerAccount":     "the only account",
	"WantCertificates":        "the site domain's, a row for each",
	"ConfirmCreated":          "a resource by its id",
	"FindResource":            "a resource by its name",
	"GetServer":               "a server by its id",
	"StepAgentRelease":        "the open release of the agent, at most one",
	"QuietStackReleases":      "the open release, at most one",
	"QuietMaintenances":       "the maintenances under way, as many as operators ask for",
	"IPv4Record":              "an address by its id",
	"InstanceFailed":          "an instance by its id",
	"InstanceHost":            "an instance by its id",
	"InstanceRunning":         "an instance by its id",
	"InstancesOn":             "one server's instances, for a few servers a round",
	"Intend":                  "a row",
	"IntentRefused":           "a resource by its id",
	"PlacementChanges":        "what changed since the last answer; BenchmarkFollow times it",
	"ProvisionState":          "a server by its id",
	"RecordDecision":          "a row",
	"RecordOverride":          "a row",
	"Released":                "a resource by its id",
	"Reserve":                 "a tenant and where it goes",
	"ReserveAll":              "some tenants and where they go",
	"TenantRecord":            "a tenant by its id",
	"VolumeRecord":            "a volume by its id",
}

// functions are the functions of a package, by name; methods have no receiver here.
func functions(t *testing.T, pattern string) map[string][]*ast.FuncDecl {
	t.Helper()
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	out := map[string][]*ast.FuncDecl{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				out[f.Name.Name] = append(out[f.Name.Name], f)
			}
		}
	}
	return out
}

// TestLooksUseMeasuredStatements: what a look asks the store, itself or through other steps, is
// in BenchmarkAtScale, unless it is about one thing.
func TestLooksUseMeasuredStatements(t *testing.T) {
	t.Parallel()
	steps := functions(t, "../activities/[a-z]*[a-su-z].go") // no tests
	for _, of := range []string{"../placer/[a-z]*[a-su-z].go", "../worker/look[_s]*[a-su-z].go"} {
		for name, fs := range functions(t, of) {
			steps[name] = append(steps[name], fs...)
		}
	}
	asked, seen := map[string]bool{}, map[string]bool{}
	var follow func(name string)
	follow = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		for _, f := range steps[name] {
			ast.Inspect(f.Body, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					if id, ok := n.(*ast.Ident); ok && steps[id.Name] != nil {
						follow(id.Name)
					}
					return true
				}
				if of, ok := s.X.(*ast.SelectorExpr); ok && of.Sel.Name == "Store" {
					asked[s.Sel.Name] = true
				} else if steps[s.Sel.Name] != nil {
					follow(s.Sel.Name)
				}
				return true
			})
		}
	}
	looks := 0
	for _, name := range slices.Sorted(maps.Keys(steps)) {
		if strings.HasPrefix(name, "LookAt") {
			follow(name)
			looks++
		}
	}
	require.GreaterOrEqual(t, looks, 5)

	measured := map[string]bool{}
	for _, f := range functions(t, "scale_bench_test.go")["periodic"] {
		ast.Inspect(f.Body, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "s" {
					measured[s.Sel.Name] = true
				}
			}
			return true
		})
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if measured[name] == (ofOneThing[name] != "") {
			t.Errorf("%s: either periodic (scale_bench_test.go) measures it, or ofOneThing explains why it need not", name)
		}
	}
	for name := range ofOneThing {
		if !asked[name] {
			t.Errorf("%s: no look asks for it", name)
		}
	}
}
