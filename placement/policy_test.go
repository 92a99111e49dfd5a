package placement_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// TestAPolicyIsWithinItsBounds: the bounds themselves are.
func TestAPolicyIsWithinItsBounds(t *testing.T) {
	t.Parallel()
	type change = func(*placement.Policy)
	for field, tc := range map[string]struct{ good, bad []change }{
		"policy.mode":      {bad: []change{func(p *placement.Policy) { p.Mode = "alone" }}},
		"policy.algorithm": {bad: []change{func(p *placement.Policy) { p.Algorithm = "worst_fit" }}},
		"policy.memory_pct_max": {
			[]change{func(p *placement.Policy) { p.MemoryPctMax = 100 }, func(p *placement.Policy) { p.MemoryPctMax = 0.1 }},
			[]change{func(p *placement.Policy) { p.MemoryPctMax = 0 }, func(p *placement.Policy) { p.MemoryPctMax = 100.1 }, func(p *placement.Policy) { p.MemoryPctMax = math.NaN() }},
		},
		"policy.max_tenants_per_node": {
			[]change{func(p *placement.Policy) { p.MaxTenantsPerNode = 1 }, func(p *placement.Policy) { p.MaxTenantsPerNode = 100_000 }},
			[]change{func(p *placement.Policy) { p.MaxTenantsPerNode = 0 }, func(p *placement.Policy) { p.MaxTenantsPerNode = 100_001 }},
		},
		"policy.empty_pool":   {[]change{func(p *placement.Policy) { p.EmptyPool = placement.Hold }}, []change{func(p *placement.Policy) { p.EmptyPool = "wait" }}},
		"policy.max_rejected": {[]change{func(p *placement.Policy) { p.MaxRejected = 0 }}, []change{func(p *placement.Policy) { p.MaxRejected = -1 }}},
		"policy.redis_memory_pct_max": {
			[]change{func(p *placement.Policy) { p.RedisMemoryPctMax = 0 }, func(p *placement.Policy) { p.RedisMemoryPctMax = 100 }},
			[]change{func(p *placement.Policy) { p.RedisMemoryPctMax = -0.1 }, func(p *placement.Policy) { p.RedisMemoryPctMax = 100.1 }, func(p *placement.Policy) { p.RedisMemoryPctMax = math.NaN() }},
		},
		"policy.weights.affinity": {
			[]change{func(p *placement.Policy) { p.Weights.Affinity = 0 }, func(p *placement.Policy) { p.Weights.Affinity = 1 }},
			[]change{func(p *placement.Policy) { p.Weights.Affinity = -0.1 }, func(p *placement.Policy) { p.Weights.Affinity = 1.1 }, func(p *placement.Policy) { p.Weights.Affinity = math.NaN() }},
		},
	} {
		for i, good := range tc.good {
			p := placement.DefaultPolicy()
			good(&p)
			require.NoError(t, p.Validate(), "%s, %d", field, i)
		}
		for i, bad := range tc.bad {
			p := placement.DefaultPolicy()
			bad(&p)
			require.ErrorContains(t, p.Validate(), field, "%d", i)
		}
	}
}

// TestTheAuditNamesTheAlgorithm: the algorithm, also for a tenant with a dedicated server, unless a person chose.
func TestTheAuditNamesTheAlgorithm(t *testing.T) {
	t.Parallel()
	for _, a := range []placement.Algorithm{placement.BestFit, placement.FirstFit, placement.RoundRobin, placement.NewServer} {
		require.True(t, a.Valid(), a)
		require.Equal(t, string(a), placement.AuditName(tenant.ModeShared, a))
		require.Equal(t, "one_tenant_one_server_v1", placement.AuditName(tenant.ModeOneTenantOneServer, a))
	}
	require.Equal(t, string(placement.Manual), placement.AuditName(tenant.ModeOneTenantOneServer, placement.Manual))
	require.False(t, placement.Manual.Valid(), "no policy asks for it")
	e := placement.Decision{}.Explanation()
	require.NotNil(t, e.Rejected, "a list in JSON, if an empty one")
	require.NotNil(t, e.RejectedCounts)
	rejected := []placement.Rejection{{ID: "app-1", Reason: "memory"}}
	e = placement.Decision{Rejected: rejected, RejectedCounts: map[string]int{"memory": 1}}.Explanation()
	require.Equal(t, rejected, e.Rejected)
	require.Equal(t, map[string]int{"memory": 1}, e.RejectedCounts)
}

// TestAForcedShardNeedsTheRest: a server and a pool that could be used.
func TestAForcedShardNeedsTheRest(t *testing.T) {
	t.Parallel()
	forced := request(func(r *placement.Request) { r.Override = &placement.Override{DBShardID: "db-1", Reason: "x"} })
	for name, change := range map[string]func(*placement.Data){
		"no server": func(d *placement.Data) { d.Servers[0].Status, d.Servers[1].Status = "draining", "draining" },
		"no pool":   func(d *placement.Data) { d.Pools[0].Status = "draining" },
	} {
		d := fleet()
		change(&d)
		got := placement.NewSnapshot(shared(), d).Decide(forced)
		require.Equal(t, placement.AwaitingCapacity, got.Outcome, name)
		require.Empty(t, got.AppServerID, name)
	}
	got := placement.NewSnapshot(shared(), fleet()).Decide(forced)
	require.Equal(t, []any{placement.Placed, "app-2", 1.0}, []any{got.Outcome, string(got.AppServerID), got.Confidence})
	got = placement.NewSnapshot(shared(), fleet()).Decide(request(func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1", Reason: "x"} }))
	require.Equal(t, []any{placement.Placed, "app-1", 1.0}, []any{got.Outcome, string(got.AppServerID), got.Confidence}, "a person is certain")
}

// TestForcedPlacementsTakeTheMostRoom: companions with room come first; where none has room, the one with the most.
func TestForcedPlacementsTakeTheMostRoom(t *testing.T) {
	t.Parallel()
	d := fleet()
	full := func(id prego.ShardID, tenants int) placement.Shard {
		return placement.Shard{ShardID: id, Region: "eu", Tenants: tenants, Capacity: 10, Status: "active"}
	}
	d.Shards = append(d.Shards, full("db-2", 30), full("db-3", 10), full("db-4", 15))
	d.Shards[0].Tenants = 2 * d.Shards[0].Capacity
	d.Pools = append(d.Pools, placement.RedisPool{PoolID: "redis-2", Region: "eu", Tenants: 10, Capacity: 10, Status: "active"})
	d.Pools[0].Tenants = 5 * d.Pools[0].Capacity
	d.Sites = nil
	forced := request(func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1", Reason: "x"} })
	got := placement.NewSnapshot(shared(), d).Decide(forced)
	require.Equal(t, []string{"db-3", "redis-2"}, []string{string(got.DBShardID), string(got.RedisPoolID)}, "%s", got.SelectionReason)
	d.Shards[2].DiskPct, d.Shards[3].Tenants, d.Pools[0].Tenants = new(99.0), 9, 1
	got = placement.NewSnapshot(shared(), d).Decide(forced)
	require.Equal(t, []string{"db-4", "redis-1"}, []string{string(got.DBShardID), string(got.RedisPoolID)}, "they have room")
	d.Shards[3].PlanTierLock = "business"
	got = placement.NewSnapshot(shared(), d).Decide(forced)
	require.NotEqual(t, "db-4", string(got.DBShardID), "rules stay")
}

// TestAServerThatIsATenantsNoMoreHidesNoOther: given back or gone, the tenant is placed
// like any other.
func TestAServerThatIsATenantsNoMoreHidesNoOther(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(*placement.Snapshot, placement.Server){
		"given back": func(f *placement.Snapshot, s placement.Server) {
			s.DedicatedFor, s.TenantCount = "", 2
			f.Update(placement.Change{Providers: fleet().Providers, Servers: []placement.Server{s}})
		},
		"gone": func(f *placement.Snapshot, s placement.Server) { f.RemoveServer(s.ServerID) },
	} {
		d := fleet()
		own := d.Servers[0]
		own.ServerID, own.DedicatedFor, own.MemoryPct, own.TenantCount = "app-own", "t", 60, 0
		d.Servers = append(d.Servers, own)
		f := placement.NewSnapshot(shared(), d)
		require.Equal(t, "app-own", string(f.Decide(request(nil)).AppServerID))
		f.RemoveServer("unknown")
		require.Equal(t, "app-own", string(f.Decide(request(nil)).AppServerID))
		forget(f, own)
		require.Equal(t, "app-2", string(f.Decide(request(nil)).AppServerID), name)
	}
}
