package placement_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
)

// full is a change that has everything of some data.
func full(d placement.Data) placement.Change {
	c := placement.Change{Full: true, Servers: d.Servers, Shards: d.Shards, Pools: d.Pools, Providers: d.Providers, Residency: d.Residency, LastServer: d.LastServer}
	for _, s := range d.Sites {
		c.Sites = append(c.Sites, placement.SiteChange{PoolSite: s, Available: true})
	}
	c.Sites = append(c.Sites, placement.SiteChange{PoolSite: placement.PoolSite{PoolSiteID: "taken", AppServerID: "app-1", DBShardID: "db-1"}})
	return c
}

// TestAFleetFollowsEveryChange: each kind of row changes the decisions.
func TestAFleetFollowsEveryChange(t *testing.T) {
	t.Parallel()
	at := func(f *placement.Snapshot) string {
		d := f.Decide(request(nil))
		return string(d.Outcome) + " " + string(d.AppServerID) + " " + d.PoolSiteID
	}
	require.Equal(t, "placed app-2 s-2", at(placement.SnapshotOf(shared(), full(fleet()))))
	require.Equal(t, 1, placement.SnapshotOf(shared(), full(fleet())).Sites("app-1"), "a taken site does not count")
	for name, tc := range map[string]struct {
		change func(*placement.Change)
		want   string
	}{
		"nothing":           {func(*placement.Change) {}, "placed app-2 s-2"},
		"a server's memory": {func(c *placement.Change) { s := fleet().Servers[1]; s.MemoryPct = 69; c.Servers = append(c.Servers, s) }, "placed app-1 s-1"},
		"a server gone": {func(c *placement.Change) {
			s := fleet().Servers[1]
			s.Status = server.Terminated
			c.Servers = append(c.Servers, s)
		}, "placed app-1 s-1"},
		"a shard full": {func(c *placement.Change) { s := fleet().Shards[0]; s.Tenants = 10; c.Shards = append(c.Shards, s) }, "awaiting_capacity  "},
		"a pool full":  {func(c *placement.Change) { p := fleet().Pools[0]; p.Tenants = 10; c.Pools = append(c.Pools, p) }, "awaiting_capacity  "},
		"a site gone":  {func(c *placement.Change) { c.Sites = append(c.Sites, placement.SiteChange{PoolSite: fleet().Sites[1]}) }, "placed app-1 s-1"},
		"a site more": {func(c *placement.Change) {
			c.Sites = append(c.Sites, placement.SiteChange{PoolSite: placement.PoolSite{PoolSiteID: "s-0", AppServerID: "app-2", DBShardID: "db-1"}, Available: true})
		}, "placed app-2 s-0"},
		"a provider off": {func(c *placement.Change) {
			c.Providers = []placement.Provider{{ID: "hetzner", Regions: []prego.Region{"eu"}}}
		}, "rejected  "},
		"a provider elsewhere": {func(c *placement.Change) {
			c.Providers = append(c.Providers, placement.Provider{ID: "aws", Enabled: true, Regions: []prego.Region{"eu"}})
			c.Providers[0].Regions = []prego.Region{"sg"}
		}, "awaiting_capacity  "},
	} {
		f := placement.SnapshotOf(shared(), full(fleet()))
		c := placement.Change{Providers: fleet().Providers, Residency: fleet().Residency}
		tc.change(&c)
		f.Update(c)
		require.Equal(t, tc.want, at(f), name)
	}
	d := fleet()
	d.Providers = append(d.Providers, placement.Provider{ID: "aws", Enabled: true, Regions: []prego.Region{"eu"}})
	d.Servers[1].InfraProvider = "aws"
	f := placement.SnapshotOf(shared(), full(d))
	require.Equal(t, "placed app-2 s-2", at(f))
	f.Update(placement.Change{Providers: fleet().Providers})
	require.Equal(t, "placed app-1 s-1", at(f), "a provider is gone")
	d.Providers = fleet().Providers
	require.Equal(t, "placed app-1 s-1", at(placement.SnapshotOf(shared(), full(d))))

	both := append(fleet().Providers, placement.Provider{ID: "aws", Enabled: true, Regions: []prego.Region{"eu"}})
	f.Update(placement.Change{Providers: both})
	require.Equal(t, "placed app-2 s-2", at(f))
	off := slices.Clone(both)
	off[1].Enabled = false
	f.Update(placement.Change{Providers: off})
	require.Equal(t, "placed app-1 s-1", at(f), "a provider is disabled")
	closed := fleet()
	closed.Providers[0].Enabled = false
	f = placement.SnapshotOf(shared(), full(closed))
	require.NotContains(t, at(f), "placed")
	f.Update(placement.Change{Providers: fleet().Providers})
	require.Equal(t, "placed app-2 s-2", at(f), "the only one is enabled")

	f = placement.SnapshotOf(shared(), full(fleet()))
	west := fleet()
	west.Shards[0].NetworkID, west.Pools[0].NetworkID = "west", "west"
	f.Update(placement.Change{Providers: fleet().Providers, Shards: west.Shards})
	require.Equal(t, "awaiting_capacity  ", at(f), "the shard is in another network")
	f.Update(placement.Change{Providers: fleet().Providers, Shards: fleet().Shards, Pools: west.Pools})
	require.Equal(t, "awaiting_capacity  ", at(f), "the pool is")
	f.Update(placement.Change{Providers: fleet().Providers, Pools: fleet().Pools})
	require.Equal(t, "placed app-2 s-2", at(f))
	require.Zero(t, f.Sites("app-0"))
	require.Zero(t, f.Sites("app-9"))

	f = placement.SnapshotOf(shared(), full(fleet()))
	changed := fleet().Servers
	changed[0].MemoryPct, changed[1].Status = 41, server.Terminated
	f.Update(placement.Change{Providers: fleet().Providers, Servers: changed})
	kept, there := f.Server("app-1")
	require.True(t, there)
	require.InDelta(t, 41, kept.MemoryPct, 0)
	_, there = f.Server("app-2")
	require.False(t, there, "a terminated server is removed")
	f.SetServer(placement.Server{ServerID: "db-9", Role: prego.RoleDBShard, Region: "eu"})
	_, there = f.Server("db-9")
	require.False(t, there, "no candidate")
	kin := fleet()
	kin.Servers[0].MemoryPct, kin.Servers[1].ParentOrgs = 20, map[string]int{"p": 1}
	f = placement.NewSnapshot(shared(), kin)
	ofKin := request(func(r *placement.Request) { r.ParentOrgID = "p" })
	require.Equal(t, "app-2", string(f.Decide(ofKin).AppServerID))
	f.RemoveServer("app-2")
	require.Equal(t, "app-1", string(f.Decide(ofKin).AppServerID))
	f.SetServer(placement.Server{ServerID: "app-3", Role: prego.RoleApp, Region: "eu", InfraProvider: "hetzner", Status: "active", MemoryPct: 20, TenantCount: 2})
	f.AddSite(placement.PoolSite{PoolSiteID: "s-3", AppServerID: "app-3", DBShardID: "db-1"})
	require.Equal(t, "app-1", string(f.Decide(ofKin).AppServerID), "no server has the org's tenants")
	f.Update(placement.Change{
		Providers: fleet().Providers, Networks: []placement.Network{{NetworkID: "n", Room: 3}},
		Edges: []placement.EdgeNetwork{{Network: "n", Serves: true}},
	})
	require.Equal(t, []placement.Network{{NetworkID: "n", Room: 3}}, f.Keep("").Data.Networks)
	require.Equal(t, []placement.EdgeNetwork{{Network: "n", Serves: true}}, f.Keep("").Data.Edges)
	f.Update(placement.Change{Providers: fleet().Providers})
	require.Nil(t, f.Keep("").Data.Networks, "unknown")
	f = placement.SnapshotOf(shared(), full(fleet()))
	f.Update(placement.Change{Providers: fleet().Providers, Residency: map[string]placement.Zone{"DE": {Regions: []prego.Region{"sg"}}}, LastServer: "app-1"})
	require.Equal(t, prego.CodeResidencyViolation, f.Decide(request(func(r *placement.Request) { r.DataResidency = "DE" })).Code)
	require.Equal(t, "app-2", string(f.Decide(request(func(r *placement.Request) { r.Algorithm = placement.RoundRobin })).AppServerID))
	in := request(func(r *placement.Request) { r.Algorithm = placement.RoundRobin })
	f.AddSite(placement.PoolSite{PoolSiteID: "s-3", AppServerID: "app-2", DBShardID: "db-1"})
	f.Apply(in, f.Decide(in))
	require.Equal(t, "app-1", string(f.Decide(in).AppServerID))
	f.Update(placement.Change{Providers: fleet().Providers, LastServer: "app-2"})
	require.Equal(t, "app-1", string(f.Decide(request(func(r *placement.Request) { r.Algorithm = placement.RoundRobin })).AppServerID))
}

// TestRejectionsAreListedByID: shards, pools and servers together, at most as many as
// asked for; a missing site is one only where it decides.
func TestRejectionsAreListedByID(t *testing.T) {
	t.Parallel()
	d := fleet()
	d.Servers = append(d.Servers, placement.Server{ServerID: "a-0", Role: prego.RoleApp, Region: "sg", InfraProvider: "hetzner", Status: "active"})
	d.Shards = append(d.Shards, placement.Shard{ShardID: "b-0", Region: "sg", Capacity: 1, Status: "active"})
	d.Pools = append(d.Pools, placement.RedisPool{PoolID: "zz-0", Region: "eu", Capacity: 1, Tenants: 1, Status: "active"})
	d.Sites = d.Sites[1:]
	p := shared()
	got := placement.NewSnapshot(p, d).Decide(request(nil))
	require.Equal(t, []placement.Rejection{{ID: "a-0", Reason: "region_mismatch"}, {ID: "app-1", Reason: "site_pool_empty"}, {ID: "b-0", Reason: "region_mismatch"}, {ID: "zz-0", Reason: "redis_pool_full"}}, got.Rejected)
	require.Equal(t, map[string]int{"region_mismatch": 2, "site_pool_empty": 1, "redis_pool_full": 1}, got.RejectedCounts)
	require.Equal(t, 7, got.CandidatesEvaluated)
	p.MaxRejected = 2
	got = placement.NewSnapshot(p, d).Decide(request(nil))
	require.Equal(t, []placement.Rejection{{ID: "a-0", Reason: "region_mismatch"}, {ID: "app-1", Reason: "site_pool_empty"}}, got.Rejected)
	require.Equal(t, 1, got.RejectedCounts["redis_pool_full"], "counts are exact")
	d.Sites = nil
	got = placement.NewSnapshot(shared(), d).Decide(request(nil))
	require.Equal(t, placement.OnDemandSite, got.Outcome)
	require.Equal(t, []placement.Rejection{{ID: "a-0", Reason: "region_mismatch"}, {ID: "b-0", Reason: "region_mismatch"}, {ID: "zz-0", Reason: "redis_pool_full"}}, got.Rejected)
	require.Equal(t, map[string]int{"region_mismatch": 2, "redis_pool_full": 1}, got.RejectedCounts)
}

func TestAConstraintsReportIsASentence(t *testing.T) {
	t.Parallel()
	d := fleet()
	d.Servers[0].Tags, d.Servers[1].Tags = []string{"red"}, []string{"blue"}
	got := placement.NewSnapshot(shared(), d).Decide(request(func(r *placement.Request) {
		r.Constraint, r.Pools = prego.Constraint{Require: []string{"blue"}, Disallow: []string{"blue"}}, []string{"p1", "p2"}
	}))
	require.Equal(t, "no server satisfies the constraint (require blue; disallow blue with placement pools p1, p2: 0 of 2 servers satisfy it, 1 has blue, 1 lacks blue)", got.SelectionReason)
	require.Equal(t, map[string]int{"has blue": 1, "lacks blue": 1}, got.Constraint.Unsatisfied)
	got = placement.NewSnapshot(shared(), d).Decide(request(func(r *placement.Request) { r.Constraint.Require = []string{"blue"} }))
	require.Equal(t, map[string]int{"lacks blue": 1}, got.Constraint.Unsatisfied)
	require.Equal(t, []string{}, got.Constraint.PlacementPools)
	got = placement.NewSnapshot(shared(), d).Decide(request(func(r *placement.Request) {
		r.Constraint.Disallow = []string{"green", "red"}
	}))
	require.Equal(t, map[string]int{"has red": 1}, got.Constraint.Unsatisfied)
	require.NotContains(t, got.Constraint.String(), "pools")
}
