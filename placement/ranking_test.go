package placement_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// TestEveryWeightCounts has two servers with a shard each, and pools, that differ in one measure: only the measure's
// weight decides about the choice and the margin.
func TestEveryWeightCounts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		weights placement.Weights
		data    func(*placement.Data)
		score   float64 // of the winner, app-2
		margin  float64 // to the other server; 0 where both have the same
		pool    string
	}{
		"app_load":        {weights: placement.Weights{AppLoad: 0.8}, data: func(d *placement.Data) { d.Servers[0].MemoryPct = 60 }, score: 0.8 * 0.8, margin: 0.8 * 0.4},
		"app_count":       {weights: placement.Weights{AppCount: 0.8}, data: func(d *placement.Data) { d.Servers[0].TenantCount = 12 }, score: 0.8 * 0.9, margin: 0.8 * 0.5},
		"db_load":         {weights: placement.Weights{DBLoad: 0.8}, data: func(d *placement.Data) { d.Shards[0].Tenants = 9 }, score: 0.8 * 0.6, margin: 0.8 * 0.5},
		"affinity":        {weights: placement.Weights{Affinity: 0.8}, data: func(d *placement.Data) { d.Servers[1].ParentOrgs = map[string]int{"p": 1} }, score: 0.8, margin: 0.8},
		"app_cpu":         {weights: placement.Weights{AppCPU: 0.8}, data: func(d *placement.Data) { d.Servers[0].CPUPct, d.Servers[1].CPUPct = new(60.0), new(10.0) }, score: 0.8 * 0.9, margin: 0.8 * 0.5},
		"app_cpu unknown": {weights: placement.Weights{AppCPU: 0.8}, data: func(d *placement.Data) { d.Servers[1].CPUPct = new(80.0) }, score: 0.8 * 0.2, margin: 0.8 * 0.2},
		"app_worker_slots": {weights: placement.Weights{AppWorkerSlots: 0.8}, data: func(d *placement.Data) {
			d.Servers[0].WorkerSlotsPct, d.Servers[1].WorkerSlotsPct = new(60.0), new(10.0)
		}, score: 0.8 * 0.9, margin: 0.8 * 0.5},
		"db_disk":         {weights: placement.Weights{DBDisk: 0.8}, data: func(d *placement.Data) { d.Shards[0].DiskPct, d.Shards[1].DiskPct = new(60.0), new(10.0) }, score: 0.8 * 0.9, margin: 0.8 * 0.5},
		"db_disk unknown": {weights: placement.Weights{DBDisk: 0.8}, data: func(d *placement.Data) { d.Shards[1].DiskPct = new(79.0) }, score: 0.8 * 0.21, margin: 0.8 * 0.21},
		"redis_load":      {weights: placement.Weights{RedisLoad: 0.8, AppLoad: 0.1}, data: func(d *placement.Data) { d.Pools[1].Tenants, d.Servers[0].MemoryPct = 2, 30 }, pool: "redis-2", score: 0.8*0.8 + 0.1*0.8, margin: 0.01},
		"redis_memory": {
			weights: placement.Weights{RedisMemory: 0.8, AppLoad: 0.1}, pool: "redis-2", score: 0.8*0.9 + 0.1*0.8, margin: 0.01,
			data: func(d *placement.Data) {
				d.Pools[0].MemoryPct, d.Pools[1].MemoryPct, d.Servers[0].MemoryPct = new(60.0), new(10.0), 30
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := fleet()
			d.Servers[0].MemoryPct = 20
			d.Shards = append(d.Shards, placement.Shard{ShardID: "db-2", Region: "eu", Tenants: 4, Capacity: 10, Status: "active"})
			d.Pools = append(d.Pools, placement.RedisPool{PoolID: "redis-2", Region: "eu", Tenants: 4, Capacity: 10, Status: "active"})
			d.Sites[1].DBShardID = "db-2"
			tc.data(&d)
			p := shared()
			p.Weights = tc.weights
			got := placement.NewSnapshot(p, d).Decide(request(func(r *placement.Request) { r.ParentOrgID = "p" }))
			require.Equal(t, []string{"app-2", "db-2"}, []string{string(got.AppServerID), string(got.DBShardID)}, "%s", got.SelectionReason)
			require.InDelta(t, tc.score, got.Score, 1e-9)
			require.InDelta(t, tc.margin, got.Confidence, 1e-9)
			if tc.pool != "" {
				require.Equal(t, tc.pool, string(got.RedisPoolID))
			}
			// Without the weight both are the same, and the first by id is taken.
			p.Weights = placement.Weights{}
			got = placement.NewSnapshot(p, d).Decide(request(nil))
			require.Equal(t, []string{"app-1", "db-1", "redis-1"}, []string{string(got.AppServerID), string(got.DBShardID), string(got.RedisPoolID)})
			require.Zero(t, got.Score)
		})
	}
}

// TestSameShardAffinity: the shard where the parent org lives is preferred within 0.05
// of the best, where that is wanted; among a server's sites and for one made on demand.
func TestSameShardAffinity(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		same   bool
		parent string
		load   int // tenants of 100 on db-2, where the parent org lives; db-1 has 40. 0.2 × 25/100 is 0.05
		shard  string
	}{
		"off":                {parent: "p", load: 45, shard: "db-1"},
		"on":                 {same: true, parent: "p", load: 45, shard: "db-2"},
		"just within":        {same: true, parent: "p", load: 64, shard: "db-2"},
		"at the delta":       {same: true, parent: "p", load: 65, shard: "db-2"},
		"beyond":             {same: true, parent: "p", load: 66, shard: "db-1"},
		"another parent org": {same: true, parent: "q", load: 45, shard: "db-1"},
		"no parent org":      {same: true, load: 45, shard: "db-1"},
		"and better anyway":  {parent: "p", load: 30, shard: "db-2"},
	} {
		for _, onDemand := range []bool{false, true} {
			d, p := fleet(), shared()
			p.SameShard = tc.same
			d.Servers = d.Servers[:1]
			d.Shards = []placement.Shard{
				{ShardID: "db-1", Region: "eu", Tenants: 40, Capacity: 100, Status: "active"},
				{ShardID: "db-2", Region: "eu", Tenants: tc.load, Capacity: 100, Status: "active", ParentOrgs: map[string]int{"p": 1}},
			}
			d.Sites = []placement.PoolSite{{PoolSiteID: "s-1", AppServerID: "app-1", DBShardID: "db-1"}, {PoolSiteID: "s-2", AppServerID: "app-1", DBShardID: "db-2"}}
			if onDemand {
				d.Sites = nil
			}
			got := placement.NewSnapshot(p, d).Decide(request(func(r *placement.Request) { r.ParentOrgID = prego.OrgID(tc.parent) }))
			require.Equal(t, onDemand, got.Outcome == placement.OnDemandSite)
			require.Equal(t, tc.shard, string(got.DBShardID), "%s, on demand %t", name, onDemand)
			share := map[string]int{"db-1": 40, "db-2": tc.load}[tc.shard]
			// The preference chooses, and scores nothing.
			require.InDelta(t, 0.4*0.6+0.2*0.9+0.2*(1-float64(share)/100)+0.1*0.6, got.Score, 1e-9)
		}
	}
}

// TestResidencyIsHeldByEachServer: within a region that a zone allows, one cloud's
// servers are and another's are not.
func TestResidencyIsHeldByEachServer(t *testing.T) {
	t.Parallel()
	d := fleet()
	d.Providers = append(d.Providers, placement.Provider{ID: "aws", Enabled: true, Regions: []prego.Region{"eu"}})
	d.Residency["FR"] = placement.Zone{Regions: []prego.Region{"eu"}, Providers: []prego.InfraProviderID{"aws"}}
	d.Servers[0].InfraProvider = "aws" // and has less memory free
	ask := func(country string) placement.Decision {
		return placement.NewSnapshot(shared(), d).Decide(request(func(r *placement.Request) { r.DataResidency = country }))
	}
	require.Equal(t, "app-2", string(ask("").AppServerID))
	require.Equal(t, "app-2", string(ask("DE").AppServerID))
	got := ask("FR")
	require.Equal(t, placement.Placed, got.Outcome, got.SelectionReason)
	require.Equal(t, "app-1", string(got.AppServerID))
	require.Equal(t, prego.InfraProviderID("aws"), got.InfraProvider)
	require.Equal(t, map[string]int{"data_residency": 1}, got.RejectedCounts)
	d.Servers[0].Status = server.Decommissioning
	got = ask("FR")
	require.Equal(t, placement.AwaitingCapacity, got.Outcome)
	require.Equal(t, []prego.Role{prego.RoleApp}, got.MissingRoles)
	require.Equal(t, []placement.Rejection{{ID: "app-1", Reason: "not_active"}, {ID: "app-2", Reason: "data_residency"}}, got.Rejected)
}

// TestMeasuresReject: at the threshold, by the name of the measure. Unknown measures and thresholds of 0 reject none,
// and dedicated tenants ignore CPU.
func TestMeasuresReject(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		set    func(*placement.Data, *float64)
		limit  func(*placement.Policy) *float64
		most   float64
		role   prego.Role
		lonely bool // dedicated tenants are also rejected
	}{
		"cpu_pct":          {func(d *placement.Data, v *float64) { d.Servers[0].CPUPct = v }, func(p *placement.Policy) *float64 { return &p.CPUPctMax }, 85, prego.RoleApp, false},
		"worker_slots_pct": {func(d *placement.Data, v *float64) { d.Servers[0].WorkerSlotsPct = v }, func(p *placement.Policy) *float64 { return &p.WorkerSlotsPctMax }, 90, prego.RoleApp, false},
		"db_disk_pct":      {func(d *placement.Data, v *float64) { d.Shards[0].DiskPct = v }, func(p *placement.Policy) *float64 { return &p.DBDiskPctMax }, 80, prego.RoleDBShard, true},
		"redis_memory_pct": {func(d *placement.Data, v *float64) { d.Pools[0].MemoryPct = v }, func(p *placement.Policy) *float64 { return &p.RedisMemoryPctMax }, 90, prego.RoleRedisPool, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ask := func(v *float64, policy func(*placement.Policy), change func(*placement.Request)) placement.Decision {
				d, p := fleet(), shared()
				d.Servers = d.Servers[:1]
				d.Servers[0].TenantCount, d.Shards[0].Tenants, d.Pools[0].Tenants = 0, 0, 0
				tc.set(&d, v)
				if policy != nil {
					policy(&p)
				}
				return placement.NewSnapshot(p, d).Decide(request(change))
			}
			require.Equal(t, placement.Placed, ask(nil, nil, nil).Outcome, "unknown")
			require.Equal(t, placement.Placed, ask(new(tc.most-0.1), nil, nil).Outcome)
			for _, v := range []float64{tc.most, 100} {
				got := ask(&v, nil, nil)
				require.Equal(t, placement.AwaitingCapacity, got.Outcome)
				require.Equal(t, map[string]int{name: 1}, got.RejectedCounts)
				require.Equal(t, []prego.Role{tc.role}, got.MissingRoles)
			}
			require.Equal(t, placement.Placed, ask(new(100.0), func(p *placement.Policy) { *tc.limit(p) = 0 }, nil).Outcome, "not looked at")
			require.Equal(t, placement.AwaitingCapacity, ask(new(10.0), func(p *placement.Policy) { *tc.limit(p) = 10 }, nil).Outcome)
			forced := ask(new(100.0), nil, func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1", DBShardID: "db-1"} })
			require.Equal(t, placement.Placed, forced.Outcome, "also a companion without room")
			for _, change := range []func(*placement.Request){
				func(r *placement.Request) { r.Plan = prego.PlanEnterprise },
				func(r *placement.Request) { r.Mode = tenant.ModeOneTenantOneServer },
			} {
				require.Equal(t, tc.lonely, ask(new(100.0), nil, change).Outcome != placement.Placed)
			}
		})
	}
}

// TestWhoIsAloneSharesNothing follows one decision by others that ask for the same.
func TestWhoIsAloneSharesNothing(t *testing.T) {
	t.Parallel()
	empty := func() placement.Data {
		d := fleet()
		d.Servers = d.Servers[:1]
		d.Servers[0].TenantCount, d.Shards[0].Tenants, d.Pools[0].Tenants = 0, 0, 0
		return d
	}
	single := func(r *placement.Request) { r.Mode = tenant.ModeOneTenantOneServer }
	t.Run("one tenant, one server", func(t *testing.T) {
		t.Parallel()
		f := placement.NewSnapshot(shared(), empty())
		r := request(single)
		d := f.Decide(r)
		require.Equal(t, placement.Placed, d.Outcome)
		require.True(t, d.Dedicates)
		f.Apply(r, d)
		got := f.Decide(request(func(r *placement.Request) { r.TenantID = "u" }))
		require.Equal(t, map[string]int{"dedicated_to_another_tenant": 3}, got.RejectedCounts, "server, shard and pool")
	})
	t.Run("an override shares used servers", func(t *testing.T) {
		t.Parallel()
		data := empty()
		data.Shards[0].Tenants = 3
		f := placement.NewSnapshot(shared(), data)
		r := request(func(r *placement.Request) {
			single(r)
			r.Override = &placement.Override{AppServerID: "app-1", Reason: "x"}
		})
		d := f.Decide(r)
		require.Equal(t, placement.Placed, d.Outcome, d.SelectionReason)
		require.True(t, d.Dedicates)
		f.Apply(r, d)
		shard, _ := f.Shard("db-1")
		pool, _ := f.Pool("redis-1")
		require.Equal(t, []string{"", "t"}, []string{string(shard.DedicatedFor), string(pool.DedicatedFor)})
	})
	for name, occupy := range map[string]func(*placement.Data){
		"server in use":              func(d *placement.Data) { d.Servers[0].TenantCount = 1 },
		"instances on the server":    func(d *placement.Data) { d.Servers[0].RunsInstances = true },
		"shard in use":               func(d *placement.Data) { d.Shards[0].Tenants = 1 },
		"instances beside the shard": func(d *placement.Data) { d.Shards[0].RunsInstances = true },
		"pool in use":                func(d *placement.Data) { d.Pools[0].Tenants = 1 },
		"instances beside the pool":  func(d *placement.Data) { d.Pools[0].RunsInstances = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := empty()
			occupy(&data)
			f := placement.NewSnapshot(shared(), data)
			d := f.Decide(request(single))
			require.Equal(t, placement.NeedsServer, d.Outcome)
			require.Equal(t, map[string]int{"not_empty": 1}, d.RejectedCounts)
			require.Equal(t, placement.AwaitingCapacity, f.Decide(request(func(r *placement.Request) { r.Plan = prego.PlanEnterprise })).Outcome)
			require.Equal(t, placement.Placed, f.Decide(request(nil)).Outcome, "who may share does")
		})
	}
}

// TestNonServingFleetsAreSkipped: their servers, shards and pools are skipped, except by an override and by the tenant
// they are dedicated to.
func TestNonServingFleetsAreSkipped(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*placement.Data){
		"server": func(d *placement.Data) { d.Servers[0].NotServing = true },
		"shard":  func(d *placement.Data) { d.Shards[0].NotServing = true },
		"pool":   func(d *placement.Data) { d.Pools[0].NotServing = true },
	} {
		data := fleet()
		data.Servers = data.Servers[:1]
		set(&data)
		got := placement.NewSnapshot(shared(), data).Decide(request(nil))
		require.Equal(t, placement.AwaitingCapacity, got.Outcome, name)
		require.Equal(t, map[string]int{"fleet_not_serving": 1}, got.RejectedCounts)
		data.Servers[0].DedicatedFor, data.Shards[0].DedicatedFor, data.Pools[0].DedicatedFor = "t", "t", "t"
		require.Equal(t, placement.Placed, placement.NewSnapshot(shared(), data).Decide(request(nil)).Outcome, "its own %s", name)
	}
	data := fleet()
	data.Servers[0].NotServing, data.Shards[0].NotServing = true, true
	got := placement.NewSnapshot(shared(), data).Decide(request(func(r *placement.Request) {
		r.Override = &placement.Override{AppServerID: "app-1", DBShardID: "db-1", Reason: "x"}
	}))
	require.Equal(t, placement.Placed, got.Outcome)
}

// TestTiesAndRunnersUp: equal candidates go by id, and the runner-up is the best of the others.
func TestTiesAndRunnersUp(t *testing.T) {
	t.Parallel()
	d := fleet()
	d.Sites = nil
	d.Shards = append(d.Shards, d.Shards[0])
	d.Shards[1].ShardID = "db-2"
	d.Pools = append(d.Pools, d.Pools[0])
	d.Pools[1].PoolID = "redis-2"
	got := placement.NewSnapshot(shared(), d).Decide(request(nil))
	require.Equal(t, []string{"db-1", "redis-1"}, []string{string(got.DBShardID), string(got.RedisPoolID)})

	d = fleet()
	d.Servers[0].MemoryPct, d.Servers[1].MemoryPct = 20, 40
	got = placement.NewSnapshot(shared(), d).Decide(request(nil))
	require.EqualValues(t, "app-1", got.AppServerID)
	require.InDelta(t, 0.08, got.Confidence, 1e-9)
	require.Contains(t, got.SelectionReason, "app-1 scored 0.6800, the runner-up 0.6000; site s-1 from its pool")
	got = placement.NewSnapshot(shared(), d).Decide(request(func(r *placement.Request) {
		r.Busy = map[string]bool{"app-1": true}
	}))
	require.EqualValues(t, "app-2", got.AppServerID, "another one is being reserved")
	require.Equal(t, map[string]int{"busy": 1}, got.RejectedCounts)
	require.Contains(t, got.SelectionReason, "scored 0.6000 and is the only one")
	require.EqualValues(t, 1, got.Confidence)

	d = fleet()
	d.LastServer, d.Servers[0].MemoryPct = "app-1", 20
	d.Shards = append(d.Shards, d.Shards[0])
	d.Shards[1].ShardID = "db-2"
	d.Sites = append(d.Sites, placement.PoolSite{PoolSiteID: "s-0", AppServerID: "app-1", DBShardID: "db-2"})
	got = placement.NewSnapshot(shared(), d).Decide(request(nil))
	require.Equal(t, []string{"app-1", "db-1"}, []string{string(got.AppServerID), string(got.DBShardID)})

	// Where the parent org lives twice, the better of the two is taken, and of equals the first.
	for _, c := range []struct {
		memory [3]float64
		want   string
	}{{[3]float64{45, 40, 10}, "app-2"}, {[3]float64{40, 40, 10}, "app-1"}} {
		d = fleet()
		d.Servers = append(d.Servers, d.Servers[1])
		d.Servers[2].ServerID, d.Sites = "app-3", nil
		for i := range d.Servers {
			d.Servers[i].MemoryPct = c.memory[i]
		}
		d.Servers[0].ParentOrgs, d.Servers[1].ParentOrgs = map[string]int{"p": 1}, map[string]int{"p": 1}
		got = placement.NewSnapshot(shared(), d).Decide(request(func(r *placement.Request) { r.ParentOrgID = "p" }))
		require.EqualValues(t, c.want, got.AppServerID)
	}
}

// TestARoundRobinListsRejectionsByID: it starts in the middle, and the list does not.
func TestARoundRobinListsRejectionsByID(t *testing.T) {
	t.Parallel()
	d, p := fleet(), shared()
	d.LastServer, p.Algorithm, p.MaxRejected = "app-1", placement.RoundRobin, 1
	d.Servers[0].MemoryPct, d.Servers[1].MemoryPct = 70, 70
	got := placement.NewSnapshot(p, d).Decide(request(nil))
	require.Equal(t, []placement.Rejection{{ID: "app-1", Reason: "memory_pct"}}, got.Rejected)
	require.Equal(t, map[string]int{"memory_pct": 2}, got.RejectedCounts)

	// It continues after a server that is gone.
	d = fleet()
	d.LastServer = "app-15"
	require.EqualValues(t, "app-2", placement.NewSnapshot(p, d).Decide(request(nil)).AppServerID)

	// A missing site is none where sites are created.
	d = fleet()
	d.LastServer, d.Sites = "app-1", nil
	p.MaxRejected = 9
	got = placement.NewSnapshot(p, d).Decide(request(nil))
	require.Equal(t, placement.OnDemandSite, got.Outcome)
	require.Empty(t, got.Rejected)

	// Servers in another network than all pools or shards, beside rejected pools and shards.
	for _, lacks := range []string{"pool", "shard"} {
		d = fleet()
		d.LastServer, d.Servers[0].NetworkID, p.MaxRejected = "app-1", "west", 1
		d.Shards = append(d.Shards, placement.Shard{ShardID: "db-0", Region: "eu", Status: "active"})
		d.Pools = append(d.Pools, placement.RedisPool{PoolID: "redis-0", Region: "eu", Status: "active"})
		if lacks == "shard" {
			d.Pools = append(d.Pools, d.Pools[0])
			d.Pools[2].PoolID, d.Pools[2].NetworkID = "redis-2", "west"
		}
		got = placement.NewSnapshot(p, d).Decide(request(nil))
		require.EqualValues(t, "app-2", got.AppServerID)
		require.Equal(t, []placement.Rejection{{ID: "app-1", Reason: "network_zone_mismatch"}}, got.Rejected, lacks)
	}
}

// TestReservedSitesAreSkipped, and only those.
func TestReservedSitesAreSkipped(t *testing.T) {
	t.Parallel()
	d := fleet()
	d.Servers = d.Servers[:1]
	for busy, outcome := range map[string]placement.Outcome{"s-1": placement.OnDemandSite, "x": placement.Placed} {
		got := placement.NewSnapshot(shared(), d).Decide(request(func(r *placement.Request) {
			r.Busy = map[string]bool{busy: true}
		}))
		require.Equal(t, outcome, got.Outcome, busy)
	}
}

// TestDecisionsExplainThemselves in the words of each case.
func TestDecisionsExplainThemselves(t *testing.T) {
	t.Parallel()
	everywhere := func(d *placement.Data, id prego.NetworkID) {
		d.Servers[0].NetworkID, d.Servers[1].NetworkID, d.Shards[0].NetworkID, d.Pools[0].NetworkID = id, id, id, id
	}
	for want, tc := range map[string]struct {
		algorithm placement.Algorithm // asked for
		data      func(*placement.Data)
		request   func(*placement.Request)
		chosen    placement.Algorithm
		network   prego.NetworkID
	}{
		"first_fit: app-1; site s-1 from its pool": {algorithm: placement.FirstFit, chosen: placement.FirstFit},
		"best_fit: app-1 (score 0.6500), where its parent org lives, within 0.05 of the best (0.6800); " +
			"site s-1 from its pool": {
			algorithm: placement.BestFit, chosen: placement.BestFit,
			data: func(d *placement.Data) {
				d.Servers[0].MemoryPct, d.Servers[0].ParentOrgs = 52.5, map[string]int{"p": 1}
			},
			request: func(r *placement.Request) { r.ParentOrgID = "p" },
		},
		"best_fit: app-2 scored 0.6800, the runner-up 0.6000; its site is created on demand": {
			algorithm: placement.BestFit, chosen: placement.BestFit,
			data: func(d *placement.Data) { d.Sites = nil },
		},
		"no candidate has room in region eu; short of: [redis-pool]": {
			algorithm: placement.FirstFit, chosen: placement.FirstFit,
			data: func(d *placement.Data) { d.Pools[0].Tenants = 10 },
		},
		"no candidate has room in region eu; short of: [redis-pool] in network west": {
			algorithm: placement.FirstFit, chosen: placement.FirstFit, network: "west",
			data: func(d *placement.Data) { d.Pools[0].Tenants = 10; everywhere(d, "west") },
		},
		"no server satisfies the constraint (require blue: 0 of 2 servers satisfy it, 2 lacks blue)": {
			algorithm: placement.FirstFit, chosen: placement.FirstFit, network: "west",
			data:    func(d *placement.Data) { everywhere(d, "west") },
			request: func(r *placement.Request) { r.Constraint.Require = []string{"blue"} },
		},
		"no warm server can be claimed: the tenant gets a new one": {
			algorithm: placement.BestFit, chosen: placement.NewServer,
			request: func(r *placement.Request) { r.Mode = tenant.ModeOneTenantOneServer },
		},
	} {
		d := fleet()
		if tc.data != nil {
			tc.data(&d)
		}
		r := request(tc.request)
		r.Algorithm = tc.algorithm
		got := placement.NewSnapshot(shared(), d).Decide(r)
		require.Equal(t, want, got.SelectionReason)
		require.Equal(t, tc.chosen, got.Algorithm)
		require.Equal(t, tc.network, got.MissingIn)
	}
}

// TestANodeFailsWithItsParts: its shard and its pool are its own, and it is rejected for theirs.
func TestANodeFailsWithItsParts(t *testing.T) {
	t.Parallel()
	for reason, set := range map[string]func(*placement.Data){
		"not_active":       func(d *placement.Data) { d.Shards[1].Status = server.Failed },
		"db_disk_pct":      func(d *placement.Data) { d.Shards[1].DiskPct = new(80.0) },
		"redis_memory_pct": func(d *placement.Data) { d.Pools[1].MemoryPct = new(90.0) },
	} {
		d := fleet()
		warm(&d)
		set(&d)
		got := placement.NewSnapshot(shared(), d).Decide(request(func(r *placement.Request) {
			r.Mode = tenant.ModeOneTenantOneServer
		}))
		require.Equal(t, placement.NeedsServer, got.Outcome)
		require.Contains(t, got.Rejected, placement.Rejection{ID: "node-1", Reason: reason})
		require.Equal(t, 2, got.RejectedCounts[reason], "%v", got.RejectedCounts)
	}
}

// TestFamiliesCountForTheBestFitOnly, wherever they are, and for all of their servers.
func TestFamiliesCountForTheBestFitOnly(t *testing.T) {
	t.Parallel()
	family := request(func(r *placement.Request) { r.ParentOrgID = "p" })
	d := fleet()
	d.Servers[1].ParentOrgs = map[string]int{"p": 1}
	first := family
	first.Algorithm = placement.FirstFit
	require.EqualValues(t, "app-1", placement.NewSnapshot(shared(), d).Decide(first).AppServerID)

	d = fleet()
	d.Servers, d.Sites = nil, nil
	for i := range 10 {
		s := fleet().Servers[0]
		s.ServerID, s.ParentOrgs = prego.ServerID(rune('a'+i)), map[string]int{"p": 1}
		d.Servers = append(d.Servers, s)
	}
	for range 20 { // servers of a family come in any order
		got := placement.NewSnapshot(shared(), d).Decide(family)
		require.EqualValues(t, "a", got.AppServerID)
		require.InDelta(t, 0.7, got.Score, 1e-9)
		require.Zero(t, got.Confidence)
	}

	// Two shards with a site, and none that weighs anything.
	d, p := fleet(), shared()
	p.Weights.DBLoad = 0
	d.Servers, d.Shards = d.Servers[:1], append(d.Shards, d.Shards[0])
	d.Shards[1].ShardID = "db-2"
	d.Sites = append(d.Sites[:1], placement.PoolSite{PoolSiteID: "s-2", AppServerID: "app-1", DBShardID: "db-2"})
	require.Equal(t, placement.Placed, placement.NewSnapshot(p, d).Decide(request(nil)).Outcome)
}
