package store

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

// scaleList is a list for the benchmark, with how it reads a page.
type scaleList struct {
	what           string
	filters, sorts map[string]string
	page           func(context.Context, *Store, prego.ListQuery) error
	of             string // the filter that each of its requests has: it is in the path
}

func scaled[T any](l Listing[T], of string) scaleList {
	return scaleList{what: l.what, filters: l.filters, sorts: l.sorts, of: of, page: func(ctx context.Context, s *Store, q prego.ListQuery) error {
		_, _, err := l.page(ctx, s, q)
		return err
	}}
}

// scaleLists are all lists.
func scaleLists() []scaleList {
	return []scaleList{
		scaled(Tenants, ""), scaled(servers, ""), scaled(Groups, ""), scaled(volumes, ""), scaled(Apps, ""), scaled(Envs, ""), scaled(Orgs, ""), scaled(Fleets, ""),
		scaled(Policies, ""), scaled(Images, ""), scaled(PlacementPools, ""), scaled(ScalingEvents, ""), scaled(FleetActions, "fleet_id"), scaled(Instances, "group_id"), scaled(Rollouts, "group_id"),
		scaled(Certificates, ""), scaled(Domains, ""), scaled(StackReleases, ""), scaled(AgentReleases, ""), scaled(Rebalances, ""), scaled(PatchWaves, ""), scaled(backupPolicies, ""), scaled(Drills, "tenant_id"), scaled(AuditEntries, ""),
		scaled(Commands, "server_id"), scaled(orgEvents, "org_id"), scaled(Snapshots, "tenant_id"), scaled(Backups, "tenant_id"), scaled(VolumeRestores, "volume_id"), scaled(Restores, "tenant_id"), scaled(Moves, "tenant_id"), scaled(Routes, ""), scaled(IPv4s, ""), scaled(Attachments, ""), scaled(AllInstances, ""), scaled(Decisions, ""), scaled(Ledger, ""),
		scaled(AllBackups, ""), scaled(accounts, ""), scaled(tokens, ""), scaled(logins, ""), scaled(grants, ""), scaled(Persons, ""), scaled(limitRequests, ""),
	}
}

// scaleValues are the values of filters that the benchmark asks for, of a list if some are
// only its own. They match many rows, few of them, only the oldest, or none.
var scaleValues = map[string][]string{
	"region": {"eu", "us", "sg"}, "plan": {"business", "enterprise", "trial"}, "state": {"active", "failed", "grace_period", "terminated"}, "status": {"active", "failed", "draining", "terminated"},
	"agent_status": {"connected", "disconnected", "degraded", "unknown"}, "role": {"app", "redis-pool", "node"}, "infra_provider": {"hetzner", "aws"}, "location": {"fsn1", "ash", "none"}, "patch_state": {"unknown", "pending", "reboot"},
	"org_id": {"o-0", "o-7", "none"}, "parent_org_id": {"o-0", "none"}, "tenant_id": {"t-77", "none"}, "slug": {"slug-77", "none"}, "external_ref": {"none"}, "server_id": {"s-77", "none"}, "fleet_id": {"nodes-7", "none"},
	"tag": {"many", "few", "oldest", "none"}, "group_id": {"g-7", "none"}, "env_id": {"e-7", "none"}, "app_id": {"a-7", "none"}, "volume_id": {"v-7", "none"},
	"instance_id": {"i-7", "none"}, "address": {"203.0.113.7", "none"}, "protocol": {"https", "tcp"}, "route_id": {"r-7", "none"}, "hostname": {"h-7.example.com", "none"}, "name": {"g", "a", "e", "v", "oldest", "none"}, "tier": {"enterprise", "paid", "free"},
	"subject": {"g-10", "none"}, "actor": {"operator", "workflow", "ann", "none"}, "type": {"group", "volume", "none"}, "trigger": {"threshold", "warm_pool", "scale_out_required"},
	"principal_id": {"none"}, "in_reach": {"o-0", "none"}, "prefix": {"none"}, "access_role": {"org_owner", "none"}, "issuer": {"none"},
	"domain_id": {"none"}, "requested_by": {"patch window", "none"}, "version": {"none"}, "reason": {"rate_limited", "none"},
	"id": {"nodes-7", "none"}, "operation": {"updateFleet", "none"}, "verb": {"update", "delete"}, "request_id": {"none"}, "since": {"2026-01-01T00:00:00Z", "2999-01-01T00:00:00Z"}, "until": {"2999-01-01T00:00:00Z", "2001-01-01T00:00:00Z"},
	"code": {"insufficient_resources", "none"}, "owner": {"server", "tenant:t-77", "none"},
	"outcome": {"succeeded", "under_way", "none"}, "kind": {"bench", "redis-cli", "mariadb"}, "action": {"CLUSTER_RESIZE", "NODE_CREATE", "CLUSTER_REPLACE"}, "policy_id": {"none"}, "dimension": {"max_tenants", "none"}, "token_id": {"none"}, "image_id": {"none"}, "base_image": {"none"},
}

// scaleStates are of lists whose states are called otherwise.
var scaleStates = map[string][]string{
	"the ledger": {"created", "untracked", "released"}, "process groups": {"running", "stopped", "pending"}, "volumes": {"ready", "pending", "releasing"}, "snapshots": {"succeeded", "running", "deleted"}, "restores": {"succeeded", "failed", "queued"},
	"images": {"ready"}, "backups": {"stored", "failed", "deleted"}, "moves": {"done", "failed", "cancelled"}, "rebalances": {"done", "stopped", "running"}, "drills": {"passed", "failed", "running"}, "domains": {"verified", "pending", "lost"}, "certificates": {"active", "failed", "retired"}, "releases": {"done", "stopped", "created"}, "releases of the agent": {"done", "stopped", "created"}, "instances": {"running", "stopped", "booting"}, "instances of all groups": {"running", "stopped", "booting"},
	"backups of all tenants": {"stored", "failed", "deleted"}, "IPv4 addresses": {"ready", "pending", "failed"}, "actions": {"succeeded", "failed", "running"},
}

func (l scaleList) values(field string) []string {
	if own, ok := scaleStates[l.what]; ok && (field == "status" || field == "state") {
		return own
	}
	return scaleValues[field]
}

// queries are the first pages of a list: with no filter, with each, and with each two, for
// each of their values, in each order, with and without ended objects.
func (l scaleList) queries() map[string]prego.ListQuery {
	var filters []map[string][]string
	with := func(f map[string][]string, field, value string) map[string][]string {
		f = maps.Clone(f)
		f[field] = []string{value}
		return f
	}
	whole := []map[string][]string{{}}
	if l.of != "" {
		whole = nil
		for _, v := range l.values(l.of) {
			whole = append(whole, map[string][]string{l.of: {v}})
		}
	}
	fields := without(slices.Sorted(maps.Keys(l.filters)), l.of)
	for _, of := range whole {
		filters = append(filters, of)
		for i, a := range fields {
			for _, v := range l.values(a) {
				one := with(of, a, v)
				filters = append(filters, one)
				for _, b := range fields[i+1:] {
					for _, w := range l.values(b) {
						filters = append(filters, with(one, b, w))
					}
				}
			}
		}
	}
	out := map[string]prego.ListQuery{}
	for _, f := range filters {
		var name []string
		for _, field := range slices.Sorted(maps.Keys(f)) {
			name = append(name, field+"="+f[field][0])
		}
		for by := range l.sorts {
			for _, order := range []string{by, "-" + by} {
				for _, all := range []bool{false, true} {
					q := prego.ListQuery{Limit: 50, Filters: f, Sort: order, All: all}
					out[fmt.Sprintf("%s %s by %s, all %t", l.what, strings.Join(name, " "), order, all)] = q
				}
			}
		}
	}
	return out
}

// A list that the benchmark left out could be slow without notice.
func TestTheBenchmarkOfListsHasThemAll(t *testing.T) {
	t.Parallel()
	for _, l := range scaleLists() {
		for field := range l.filters {
			require.NotEmpty(t, l.values(field), "%s by %s: name values that match many, few and none", l.what, field)
		}
	}
	n := 0
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(node ast.Node) bool {
			if lit, ok := node.(*ast.CompositeLit); ok {
				if generic, ok := lit.Type.(*ast.IndexExpr); ok {
					if id, ok := generic.X.(*ast.Ident); ok && id.Name == "Listing" {
						n++
					}
				}
			}
			return true
		})
	}
	require.Len(t, scaleLists(), n, "add the list to scaleLists")
}

func lists(b *testing.B, pool *pgxpool.Pool) {
	s := New(pool)
	ctx := context.Background()
	pages := map[string]func() error{}
	for _, l := range scaleLists() {
		for name, q := range l.queries() {
			pages[name] = func() error { return l.page(ctx, s, q) }
		}
	}
	for b.Loop() {
		name, took := slowest(b, pages)
		b.Logf("of %d pages the slowest: %s", len(pages), name)
		recordWorst(b, "list_worst", 10**scaleServers, took, pool)
	}
}
