package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

func pools(t *testing.T) *Store {
	t.Helper()
	s := New(pgtest.Pool(t))
	for _, org := range []string{"acme", "corp"} {
		_, err := s.PutOrg(context.Background(), prego.OrgID(org), tenant.PutOrgRequest{Tier: prego.TierEnterprise}, "test")
		require.NoError(t, err)
	}
	return s
}

func TestPlacementPools(t *testing.T) {
	t.Parallel()
	s, ctx := pools(t), context.Background()
	blue := prego.Constraint{Require: []string{"blue"}}
	p, created, err := s.CreatePlacementPool(ctx, "Skynet", blue, "alice")
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, "Skynet", p.Name)
	_, created, err = s.CreatePlacementPool(ctx, "SKYNET", blue, "bob")
	require.NoError(t, err)
	require.False(t, created, "case does not matter in its name")
	_, _, err = s.CreatePlacementPool(ctx, "skynet", prego.Constraint{}, "bob")
	require.Equal(t, prego.CodePlacementPoolExists, prego.CodeOf(err))
	p, err = s.PutPlacementPool(ctx, "skynet", prego.Constraint{Disallow: []string{"old"}}, "bob")
	require.NoError(t, err)
	require.Empty(t, p.Constraint.Require)
	require.Equal(t, []string{"alice", "bob"}, []string{p.CreatedBy, p.UpdatedBy})

	_, _, err = s.CreatePlacementPool(ctx, "general", prego.Constraint{Disallow: []string{"skynet"}}, "alice")
	require.NoError(t, err)
	names := func(org prego.OrgID) (out []string) {
		got, err := s.OrgPlacementPools(ctx, org)
		require.NoError(t, err)
		for _, p := range got {
			out = append(out, p.Name)
		}
		return out
	}
	require.Empty(t, names("acme"))
	_, err = s.SetDefaultPool(ctx, "general", true, "alice")
	require.NoError(t, err)
	require.Equal(t, []string{"general"}, names("acme"))
	require.NoError(t, s.AssociatePool(ctx, "acme", "skynet", "alice"))
	require.NoError(t, s.AssociatePool(ctx, "acme", "SKYNET", "alice"), "repeated it changes nothing")
	require.Equal(t, []string{"Skynet"}, names("acme"), "the default is that of orgs without one")
	require.Equal(t, []string{"general"}, names("corp"))
	require.NoError(t, s.AssociatePool(ctx, "acme", "general", "alice"))
	require.Equal(t, []string{"general", "Skynet"}, names("acme"), "unless another is associated")
	got, err := s.PoolsOf(ctx, prego.IDs[prego.OrgID]([]string{"acme", "corp", "unknown", "acme"}))
	require.NoError(t, err)
	require.Len(t, got["acme"], 2)
	require.Equal(t, []prego.AppliedPool{{Name: "general", Require: []string{}, Disallow: []string{"skynet"}}}, got["unknown"])

	for name, err := range map[string]error{
		"unknown org":          s.AssociatePool(ctx, "unknown", "skynet", "a"),
		"dissociation of none": s.DissociatePool(ctx, "unknown", "skynet"),
	} {
		require.Equal(t, prego.CodeNotFound, prego.CodeOf(err), name)
	}
	_, err = s.GetPlacementPool(ctx, "nothing")
	_, putErr := s.PutPlacementPool(ctx, "nothing", blue, "a")
	_, defaultErr := s.SetDefaultPool(ctx, "nothing", true, "a")
	for name, err := range map[string]error{
		"get": err, "put": putErr, "default": defaultErr, "delete": s.DeletePlacementPool(ctx, "nothing"),
		"associate": s.AssociatePool(ctx, "acme", "nothing", "a"), "dissociate": s.DissociatePool(ctx, "acme", "nothing"),
	} {
		require.Equal(t, prego.CodePlacementPoolNotFound, prego.CodeOf(err), name)
	}
	require.Equal(t, []string{"general"}, names("corp"), "a default that is unknown leaves the old one")

	err = s.DeletePlacementPool(ctx, "general")
	require.Equal(t, prego.CodePlacementPoolInUse, prego.CodeOf(err))
	require.ErrorContains(t, err, "it is the default pool; orgs are associated with it: acme")
	_, err = s.SetDefaultPool(ctx, "skynet", true, "bob")
	require.NoError(t, err)
	require.Equal(t, prego.CodePlacementPoolInUse, prego.CodeOf(s.DeletePlacementPool(ctx, "general")))
	require.NoError(t, s.DissociatePool(ctx, "acme", "general"))
	require.NoError(t, s.DissociatePool(ctx, "acme", "general"))
	require.NoError(t, s.DeletePlacementPool(ctx, "general"))
	_, err = s.SetDefaultPool(ctx, "skynet", false, "bob")
	require.NoError(t, err)
	require.Empty(t, names("corp"))
}

func TestPagesOfPlacementPools(t *testing.T) {
	t.Parallel()
	s, ctx := pools(t), context.Background()
	for i := range 7 {
		_, _, err := s.CreatePlacementPool(ctx, fmt.Sprintf("%c-%d", "aB"[i%2], i), prego.Constraint{}, "a")
		require.NoError(t, err)
	}
	var all []string
	for q, more := (prego.ListQuery{Sort: "name", Limit: 2}), true; more; more = q.Cursor != "" {
		page, next, err := PlacementPools.In(s)(ctx, q)
		require.NoError(t, err)
		for _, p := range page {
			all = append(all, p.Name)
		}
		q.Cursor = next
	}
	require.Equal(t, []string{"a-0", "a-2", "a-4", "a-6", "B-1", "B-3", "B-5"}, all)
}

// TestPoolsRace: at most one default, no association with a pool that is gone, and no
// org with more pools than it may have, under concurrent changes.
func TestPoolsRace(t *testing.T) {
	t.Parallel()
	s, ctx := pools(t), context.Background()
	var wg sync.WaitGroup
	for i := range prego.MaxOrgPools + 8 {
		name := fmt.Sprintf("p%02d", i)
		_, _, err := s.CreatePlacementPool(ctx, name, prego.Constraint{}, "a")
		require.NoError(t, err)
		for _, f := range []func() error{
			func() error { return s.AssociatePool(ctx, "acme", name, "a") },
			func() error { _, err := s.SetDefaultPool(ctx, name, true, "a"); return err },
			func() error { return s.DeletePlacementPool(ctx, name) },
		} {
			wg.Go(func() {
				if err := f(); prego.CodeOf(err) == prego.CodeInternal && err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	var defaults, n int
	require.NoError(t, s.pool.QueryRow(ctx, `SELECT count(*) FILTER (WHERE is_default), (SELECT count(*) FROM org_placement_pools) FROM placement_pools`).Scan(&defaults, &n))
	require.LessOrEqual(t, defaults, 1)
	require.LessOrEqual(t, n, prego.MaxOrgPools)
}

// TestPostgresSatisfiesAsWeDo compares the guard of reservations with the constraint
// that decisions go by.
func TestPostgresSatisfiesAsWeDo(t *testing.T) {
	t.Parallel()
	s, ctx := pools(t), context.Background()
	tags := func() []string {
		out := []string{}
		for _, tag := range []string{"a", "b", "c"} {
			if rand.IntN(4) == 0 {
				out = append(out, tag)
			}
		}
		return out
	}
	for i := range 3 {
		_, _, err := s.CreatePlacementPool(ctx, fmt.Sprint("p", i), prego.Constraint{}, "a")
		require.NoError(t, err)
	}
	seen := map[bool]int{}
	for n := range 300 {
		name := fmt.Sprint("p", rand.IntN(3))
		_, err := s.PutPlacementPool(ctx, name, prego.Constraint{Require: tags(), Disallow: tags()}, "a")
		require.NoError(t, err)
		switch rand.IntN(4) {
		case 0:
			require.NoError(t, s.AssociatePool(ctx, "acme", name, "a"))
		case 1:
			require.NoError(t, s.DissociatePool(ctx, "acme", name))
		case 2:
			_, err = s.SetDefaultPool(ctx, name, rand.IntN(2) == 0, "a")
			require.NoError(t, err)
		}
		applied, err := s.PoolsOf(ctx, prego.IDs[prego.OrgID]([]string{"acme"}))
		require.NoError(t, err)
		own, server := prego.Constraint{Require: tags(), Disallow: tags()}, tags()
		_, _, err = s.CreateTenant(ctx, tenant.CreateRequest{Slug: fmt.Sprint("s", n), OrgID: "acme", Region: "eu", Plan: "starter", Constraint: own}, prego.TenantID(fmt.Sprint("t-", n)), tenant.ModeShared, "", "test")
		require.NoError(t, err)
		id := "app" + strings.Join(server, "")
		exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, tags, status, workflow_id, created_by)
			VALUES ($1, '\x00', 'app', 'eu', 'hetzner', '{}', $2, 'active', $1, 'test') ON CONFLICT DO NOTHING`, id, server)
		for _, any := range []bool{false, true} { // there is no such shard: it comes to that when the tags are right
			r, err := s.Reserve(ctx, tenant.Reservation{
				TenantID: prego.TenantID(fmt.Sprint("t-", n)), Generation: 1, AppServerID: prego.ServerID(id), DBShardID: "none", Mode: tenant.ModeShared, MemoryPctMax: 70, MaxTenants: 20,
				Override: any, AnyTags: any, Decision: []byte(`{}`), Policy: []byte(`{}`),
			})
			require.NoError(t, err)
			got := r.Lost == "db_shard"
			require.True(t, got || r.Lost == "constraint", r.Lost)
			require.Equal(t, any || prego.EffectiveConstraint(own, applied["acme"]).SatisfiedBy(server), got, "%v %v %v", server, own, applied)
			if !any {
				seen[got]++
			}
		}
	}
	require.Greater(t, min(seen[true], seen[false]), 20, "both were met: %v", seen)
}

func TestTagsAndConstraintsAreFixed(t *testing.T) {
	t.Parallel()
	s, ctx := pools(t), context.Background()
	insertServer(t, s, "app-1", "active")
	_, _, err := s.CreateTenant(ctx, tenant.CreateRequest{Slug: "a", OrgID: "acme", Region: "eu", Plan: "starter"}, "t-1", tenant.ModeShared, "", "test")
	require.NoError(t, err)
	for sql, name := range map[string]string{
		`UPDATE servers SET tags = '{blue}'`:          "servers_tags_fixed",
		`UPDATE tenants SET require_tags = '{blue}'`:  "tenants_constraint_fixed",
		`UPDATE tenants SET disallow_tags = '{blue}'`: "tenants_constraint_fixed",
	} {
		_, err := s.pool.Exec(ctx, sql)
		require.True(t, isViolation(err, name), "%s: %v", sql, err)
	}
	exec(t, s, `UPDATE servers SET tags = tags`)
}

// TestAgentsReportTheirTags: the tags that a host reports are kept and compared, and noted
// when that changes; the row stands.
func TestAgentsReportTheirTags(t *testing.T) {
	t.Parallel()
	s, ctx := New(pgtest.Pool(t)), context.Background()
	_, _, err := s.CreateServer(ctx, server.CreateRequest{
		ServerID: "app-1", Role: prego.RoleApp, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner, Spec: server.Spec{Tags: []string{"old", "blue"}},
	}, "test")
	require.NoError(t, err)
	exec(t, s, `UPDATE servers SET status = 'active', attempt = 1, agent_key_sha256 = $1, agent_status = 'connected', agent_first_heartbeat_at = now(), agent_last_heartbeat_at = now()`, hash("key-app-1"))
	before := len(stepsOf(t, s, "app-1"))
	srv, err := s.GetServer(ctx, "app-1")
	require.NoError(t, err)
	require.Nil(t, srv.AgentTags, "it has not reported tags")
	for _, step := range []struct {
		said []string
		want []string // steps so far
	}{
		{[]string{"blue", "old"}, nil},
		{[]string{"blue"}, []string{"agent_tags_differ"}},
		{[]string{"blue"}, []string{"agent_tags_differ"}},
		{nil, []string{"agent_tags_differ"}}, // once an hour
		{[]string{"blue", "old"}, []string{"agent_tags_differ", "agent_tags_agree"}},
	} {
		h := heartbeatOf("app-1")
		h.Tags = step.said
		_, err := s.FlushHeartbeats(ctx, []server.Heartbeat{h})
		require.NoError(t, err)
		require.Equal(t, step.want, append([]string(nil), stepsOf(t, s, "app-1")[before:]...))
		srv, err = s.GetServer(ctx, "app-1")
		require.NoError(t, err)
		require.NotNil(t, srv.AgentTags)
		require.True(t, prego.SameTags(step.said, srv.AgentTags))
		require.Equal(t, []string{"old", "blue"}, srv.Tags)
	}
	events, err := s.ServerEvents(ctx, "app-1")
	require.NoError(t, err)
	require.Equal(t, "the agent says blue; the server was asked for with old, blue", events[before].Message)
}

// TestDemandIsCountedByConstraint: tenants that wait with a constraint are no demand for
// servers without its tags, and such servers are no room for them.
func TestDemandIsCountedByConstraint(t *testing.T) {
	t.Parallel()
	s, ctx := pools(t), context.Background()
	_, _, err := s.CreatePlacementPool(ctx, "blue", prego.Constraint{Require: []string{"blue"}}, "a")
	require.NoError(t, err)
	require.NoError(t, s.AssociatePool(ctx, "corp", "blue", "a"))
	insertServer(t, s, "app-plain", "active")
	for i, r := range []tenant.CreateRequest{
		{OrgID: "acme"}, {OrgID: "acme"}, {OrgID: "corp"}, {OrgID: "acme", Constraint: prego.Constraint{Require: []string{"blue"}}}, {OrgID: "acme", Constraint: prego.Constraint{Disallow: []string{"old"}}},
	} {
		r.Slug, r.Region, r.Plan = fmt.Sprint("s", i), "eu", prego.PlanStarter
		id := fmt.Sprint("t-", i)
		_, _, err := s.CreateTenant(ctx, r, prego.TenantID(id), tenant.ModeShared, "", "test")
		require.NoError(t, err)
		require.NoError(t, s.AwaitTenant(ctx, tenant.Ref{TenantID: prego.TenantID(id), Generation: 1}, prego.ReasonAwaitingCapacity, "", []prego.Role{prego.RoleApp, prego.RoleDBShard}, "", true))
	}
	demand, err := s.Demand(ctx, "eu", prego.RoleApp, 20, 70, tenant.MeasuredLimits{}, nil)
	require.NoError(t, err)
	require.Len(t, demand, 3)
	counts := map[string][]int{}
	for _, d := range demand {
		counts[d.Constraint.String()] = []int{d.Waiting[prego.PlanStarter], d.Room[""]}
	}
	require.Equal(t, map[string][]int{"": {2, 20}, "require blue": {2, 0}, "disallow old": {1, 20}}, counts)
	require.True(t, demand[0].Constraint.Empty())
	demand, err = s.Demand(ctx, "eu", prego.RoleDBShard, 20, 70, tenant.MeasuredLimits{}, nil)
	require.NoError(t, err)
	require.Len(t, demand, 1, "constraints are about app servers")
	require.Equal(t, 5, demand[0].Waiting[prego.PlanStarter])
}

func TestADecisionByAnotherConstraintIsRecorded(t *testing.T) {
	t.Parallel()
	s, ctx := pools(t), context.Background()
	_, _, err := s.CreateTenant(ctx, tenant.CreateRequest{Slug: "a", OrgID: "acme", Region: "eu", Plan: "starter"}, "t-1", tenant.ModeShared, "", "test")
	require.NoError(t, err)
	for _, log := range []string{`{}`, `{}`, `{"constraint":{"require":["a"],"disallow":[],"servers_looked_at":1}}`, `{"constraint":{"require":["a"],"disallow":[],"servers_looked_at":2}}`, `{"constraint":{"require":["b"],"disallow":[]}}`} {
		_, err := s.RecordDecision(ctx, tenant.DecisionRecord{TenantID: "t-1", Outcome: "awaiting_capacity", Code: "cell_mismatch", Algorithm: "best_fit", Decision: []byte(log), Policy: []byte(`{}`), Actor: "a", CreatedAt: time.Now()})
		require.NoError(t, err)
	}
	all, err := s.ListDecisions(ctx, "t-1")
	require.NoError(t, err)
	require.Len(t, all, 3)
}
