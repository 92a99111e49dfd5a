package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// notCounted are filters whose servers a decision counts nowhere.
var notCounted = []string{"own_server", "no_redis_pool", "no_db_shard", "new_server", "override"}

// TestFunnelIsTheDecision: a funnel's decision is Decide's; every candidate was removed by one
// filter, which it fails, or remains; the counts are the decision's; the chosen one remains.
func TestFunnelIsTheDecision(t *testing.T) {
	t.Parallel()
	filters := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		data := genFleet(t)
		enrich(t, &data)
		policy := shared()
		policy.Algorithm = rapid.SampledFrom([]placement.Algorithm{placement.BestFit, placement.BestFit, placement.FirstFit, placement.RoundRobin, placement.NewServer}).Draw(t, "algorithm")
		policy.MaxRejected = rapid.IntRange(0, 5).Draw(t, "listed")
		policy.SameShard = rapid.Bool().Draw(t, "same shard")
		policy.Weights.AppCPU, policy.Weights.DBDisk = 0.1, 0.05
		for i := range data.Servers {
			data.Servers[i].Cordoned = rapid.IntRange(0, 9).Draw(t, "cordoned") == 7
		}
		f := placement.NewSnapshot(policy, data)
		for i := range 4 {
			r := genRequest(t, i)
			if rapid.Bool().Draw(t, "the policy's") {
				r.Algorithm = ""
			}
			if rapid.IntRange(0, 3).Draw(t, "busy") == 3 {
				r.Busy = map[string]bool{"app-7": true, "s-8-0": true, "db-5": true}
			}
			want := f.Decide(r)
			got, funnel := f.Funnel(r, 1000)
			require.Equal(t, want, got)
			checkFunnel(t, f, data, policy, r, got, funnel, filters)
			_, short := f.Funnel(r, 2)
			for k, p := range short.Parts {
				whole := funnel.Parts[k]
				require.Equal(t, []any{whole.Candidates, whole.Remaining, whole.Chosen, len(whole.Filters)}, []any{p.Candidates, p.Remaining, p.Chosen, len(p.Filters)})
				require.LessOrEqual(t, len(p.Scored), 2)
				for n, step := range p.Filters {
					require.Equal(t, whole.Filters[n].IDs[:min(2, len(whole.Filters[n].IDs))], step.IDs)
				}
				require.Equal(t, want.PlacesTenant() && p.Chosen != "", slices.ContainsFunc(p.Scored, func(c placement.ScoredCandidate) bool { return c.Chosen && c.ID == p.Chosen }))
			}
			f.Apply(r, want)
		}
	})
	for _, name := range []string{ // the frequent filters
		"region_mismatch", "dedicated_to_another_tenant", "not_empty", "not_active", "cpu_pct", "db_disk_pct", "redis_memory_pct", "plan_tier_lock", "site_pool_empty", "cordoned", "new_server", "busy",
	} {
		require.Positive(t, filters[name], "nothing drawn fails %s: %v", name, filters)
	}
}

func checkFunnel(t *rapid.T, f *placement.Snapshot, data placement.Data, policy placement.Policy, r placement.Request, d placement.Decision, funnel placement.Funnel, seen map[string]int) {
	counts, candidates := map[string]int{}, 0
	for _, p := range funnel.Parts {
		left := p.Candidates
		once := map[string]bool{}
		for _, step := range p.Filters {
			seen[step.Filter]++
			left -= step.Removed
			require.Equal(t, left, step.Left)
			require.Len(t, step.IDs, step.Removed)
			require.True(t, slices.IsSorted(step.IDs))
			for _, id := range step.IDs {
				require.False(t, once[id], "%s is removed twice", id)
				once[id] = true
				if r.Override == nil {
					require.True(t, fails(f, data, policy, r, d, funnel, p.Kind, id, step.Filter), "%s %s does not fail %s", p.Kind, id, step.Filter)
				}
			}
			if !slices.Contains(notCounted, step.Filter) {
				counts[step.Filter] += step.Removed
			}
		}
		candidates += p.Candidates
		require.Equal(t, left, p.Remaining)
		require.Len(t, p.Scored, p.Remaining)
		for _, c := range p.Scored {
			require.False(t, once[c.ID], "%s remains and is removed", c.ID)
			require.InDelta(t, c.Score, sum(c.Components), 1e-4)
			require.Equal(t, c.ID == p.Chosen, c.Chosen)
		}
		chosen := map[string]string{placement.KindAppServer: string(d.AppServerID), placement.KindDBShard: string(d.DBShardID), placement.KindRedisPool: string(d.RedisPoolID)}[p.Kind]
		if !d.PlacesTenant() {
			chosen = ""
		}
		require.Equal(t, chosen, p.Chosen)
		if d.PlacesTenant() {
			require.True(t, slices.ContainsFunc(p.Scored, func(c placement.ScoredCandidate) bool { return c.Chosen }), "%+v", p)
		}
		if p.Kind == placement.KindAppServer && d.PlacesTenant() && r.Override == nil {
			i := slices.IndexFunc(p.Scored, func(c placement.ScoredCandidate) bool { return c.Chosen })
			require.InDelta(t, d.Score, p.Scored[i].Score, 1e-5, "%+v", p.Scored[i])
			require.Equal(t, []any{d.DBShardID, d.RedisPoolID}, []any{p.Scored[i].DBShardID, p.Scored[i].RedisPoolID})
		}
	}
	require.Equal(t, d.CandidatesEvaluated, candidates)
	if r.Override == nil {
		require.Equal(t, d.RejectedCounts, counts)
	}
}

func sum(m map[string]float64) (s float64) {
	for _, v := range m {
		s += v
	}
	return s
}

// fails is each filter by itself, according to the rules.
func fails(f *placement.Snapshot, data placement.Data, p placement.Policy, r placement.Request, d placement.Decision, funnel placement.Funnel, kind, id, filter string) bool {
	alone := lonely(r)
	switch kind {
	case placement.KindDBShard:
		s, ok := f.Shard(id)
		return ok && shardFails(p, r, s, filter)
	case placement.KindRedisPool:
		s, ok := f.Pool(id)
		return ok && poolFails(p, r, s, filter)
	}
	s, ok := f.Server(prego.ServerID(id))
	if !ok {
		return false
	}
	zone := data.Residency[r.DataResidency]
	switch filter {
	case "constraint_mismatch":
		return !r.Constraint.SatisfiedBy(s.Tags)
	case "region_mismatch":
		return s.Region != r.Region
	case "infra_provider_not_allowed":
		return !slices.ContainsFunc(data.Providers, func(v placement.Provider) bool {
			return v.ID == s.InfraProvider && v.Enabled && slices.Contains(v.Regions, s.Region)
		})
	case "data_residency":
		return !slices.Contains(zone.Providers, s.InfraProvider)
	case "refuses_trials":
		return s.RefusesTrials && r.Plan == prego.PlanTrial
	case "warm_for_another_plan":
		return s.WarmPlan != "" && (s.WarmPlan != r.Plan || r.Mode != tenant.ModeOneTenantOneServer)
	case "memory_pct":
		return s.MemoryPct >= p.MemoryPctMax
	case "cpu_pct":
		return !alone && !below(s.CPUPct, p.CPUPctMax)
	case "worker_slots_pct":
		return !alone && !below(s.WorkerSlotsPct, p.WorkerSlotsPctMax)
	case "tenant_count":
		return s.TenantCount >= p.MaxTenantsPerNode
	case "network_zone_mismatch":
		return s.NetworkID != "" || len(data.Shards) > 0
	case "site_pool_empty": // no free site on a usable shard
		return d.PoolSiteID == "" || d.AppServerID != s.ServerID
	case "no_redis_pool": // none that remains is in its network, and belongs to no node
		return s.Role != prego.RoleNode && !slices.ContainsFunc(funnel.Parts[2].Scored, func(c placement.ScoredCandidate) bool {
			v, _ := f.Pool(c.ID)
			return v.HostServerID == "" && v.NetworkID == s.NetworkID
		})
	case "no_db_shard":
		return s.Role != prego.RoleNode && !slices.ContainsFunc(funnel.Parts[1].Scored, func(c placement.ScoredCandidate) bool {
			v, _ := f.Shard(c.ID)
			return v.HostServerID == "" && v.NetworkID == s.NetworkID
		})
	case "own_server":
		return s.DedicatedFor != r.TenantID
	case "new_server":
		return d.Outcome == placement.NeedsServer || d.Outcome == placement.AwaitingCapacity
	case "dedicated_to_another_tenant":
		if s.DedicatedFor != "" && s.DedicatedFor != r.TenantID {
			return true
		}
	case "fleet_not_serving":
		if s.NotServing {
			return true
		}
	case "not_empty":
		if alone && (s.TenantCount > 0 || s.RunsInstances) {
			return true
		}
	case "not_active":
		if s.Status != server.Active {
			return true
		}
	case "cordoned":
		if s.Cordoned {
			return true
		}
	case "busy":
		if r.Busy[id] {
			return true
		}
	}
	if s.Role != prego.RoleNode {
		return false
	}
	// A node fails with its own shard and pool.
	shard, _ := f.Shard(id)
	pool, _ := f.Pool(id)
	return shardFails(p, r, shard, filter) || poolFails(p, r, pool, filter)
}

func shardFails(p placement.Policy, r placement.Request, s placement.Shard, filter string) bool {
	switch filter {
	case "plan_tier_lock":
		return !locks(r, s)
	case "db_disk_pct":
		return !below(s.DiskPct, p.DBDiskPctMax)
	case "db_shard_full":
		return s.Tenants >= s.Capacity
	}
	return partFails(r, string(s.ShardID), s, lonely(r), filter)
}

func poolFails(p placement.Policy, r placement.Request, v placement.RedisPool, filter string) bool {
	switch filter {
	case "redis_memory_pct":
		return !below(v.MemoryPct, p.RedisMemoryPctMax)
	case "redis_pool_full":
		return v.Tenants >= v.Capacity
	}
	return partFails(r, v.PoolID, placement.Shard{
		Region: v.Region, DedicatedFor: v.DedicatedFor, NotServing: v.NotServing, Status: v.Status, Cordoned: v.Cordoned, Tenants: v.Tenants, RunsInstances: v.RunsInstances,
	}, lonely(r) || r.DedicatedRedis, filter)
}

func partFails(r placement.Request, id string, s placement.Shard, alone bool, filter string) bool {
	switch filter {
	case "region_mismatch":
		return s.Region != r.Region
	case "dedicated_to_another_tenant":
		return s.DedicatedFor != "" && s.DedicatedFor != r.TenantID
	case "fleet_not_serving":
		return s.NotServing
	case "not_active":
		return s.Status != server.Active
	case "cordoned":
		return s.Cordoned
	case "not_empty":
		return alone && (s.Tenants > 0 || s.RunsInstances)
	case "busy":
		return r.Busy[id]
	}
	return false
}

// TestFunnelOfAnOverride: what an operator forces is what remains of its kind.
func TestFunnelOfAnOverride(t *testing.T) {
	t.Parallel()
	data := fleet()
	for _, o := range []*placement.Override{
		{AppServerID: data.Servers[0].ServerID, Reason: "x"},
		{DBShardID: data.Shards[0].ShardID, Reason: "x"},
		{RedisPoolID: prego.RedisPoolID(data.Pools[0].PoolID), Reason: "x"},
		{AppServerID: "nope", Reason: "x"},
	} {
		t.Run(fmt.Sprint(o.AppServerID, o.DBShardID, o.RedisPoolID), func(t *testing.T) {
			t.Parallel()
			f := placement.NewSnapshot(shared(), fleet())
			r := request(func(r *placement.Request) { r.Override = o })
			want := f.Decide(r)
			got, funnel := f.Funnel(r, 100)
			require.Equal(t, want, got)
			candidates := 0
			for _, p := range funnel.Parts {
				candidates += p.Candidates
				left := p.Candidates
				for _, s := range p.Filters {
					left -= s.Removed
				}
				require.Equal(t, p.Remaining, left)
				if p.Kind == placement.KindAppServer && o.AppServerID != "" && got.PlacesTenant() {
					require.Equal(t, 1, p.Remaining)
					require.Equal(t, string(o.AppServerID), p.Chosen)
				}
				if p.Kind == placement.KindRedisPool && o.RedisPoolID != "" {
					require.Equal(t, 1, p.Remaining)
					require.Equal(t, string(o.RedisPoolID), p.Chosen)
				}
				if p.Kind == placement.KindDBShard && o.DBShardID != "" {
					require.Equal(t, 1, p.Remaining)
					require.Equal(t, string(o.DBShardID), p.Chosen)
				}
			}
			require.Equal(t, got.CandidatesEvaluated, candidates)
		})
	}
}
