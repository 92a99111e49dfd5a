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

// fleet is data with one server, shard, pool and site of each kind in eu, for a test to change.
func fleet() placement.Data {
	return placement.Data{
		Servers: []placement.Server{
			{ServerID: "app-1", Role: prego.RoleApp, Region: "eu", InfraProvider: "hetzner", Status: "active", MemoryPct: 40, TenantCount: 2},
			{ServerID: "app-2", Role: prego.RoleApp, Region: "eu", InfraProvider: "hetzner", Status: "active", MemoryPct: 20, TenantCount: 2},
		},
		Shards:    []placement.Shard{{ShardID: "db-1", Region: "eu", Tenants: 4, Capacity: 10, Status: "active"}},
		Pools:     []placement.RedisPool{{PoolID: "redis-1", Region: "eu", Tenants: 4, Capacity: 10, Status: "active"}},
		Sites:     []placement.PoolSite{{PoolSiteID: "s-1", AppServerID: "app-1", DBShardID: "db-1"}, {PoolSiteID: "s-2", AppServerID: "app-2", DBShardID: "db-1"}},
		Providers: []placement.Provider{{ID: "hetzner", Enabled: true, Regions: []prego.Region{"eu", "sg"}}},
		Residency: map[string]placement.Zone{"DE": {Regions: []prego.Region{"eu"}}, "KR": {Regions: []prego.Region{"sg"}}},
	}
}

func shared() placement.Policy {
	p := placement.DefaultPolicy()
	p.Mode = tenant.ModeShared
	return p
}

func request(change func(*placement.Request)) placement.Request {
	r := placement.Request{TenantID: "t", OrgID: "o", Region: "eu", Plan: prego.PlanStarter}
	if change != nil {
		change(&r)
	}
	return r
}

func TestDecide(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy  func(*placement.Policy)
		data    func(*placement.Data)
		request func(*placement.Request)
		outcome placement.Outcome
		server  string
		code    prego.Code
		missing []prego.Role
	}{
		"best fit takes the one with more memory free": {outcome: placement.Placed, server: "app-2"},
		"first fit takes the first by id":              {policy: func(p *placement.Policy) { p.Algorithm = placement.FirstFit }, outcome: placement.Placed, server: "app-1"},
		"round robin continues after the last": {
			policy: func(p *placement.Policy) { p.Algorithm = placement.RoundRobin }, data: func(d *placement.Data) { d.LastServer = "app-1" },
			outcome: placement.Placed, server: "app-2",
		},
		"round robin begins again": {
			policy: func(p *placement.Policy) { p.Algorithm = placement.RoundRobin }, data: func(d *placement.Data) { d.LastServer = "app-2" },
			outcome: placement.Placed, server: "app-1",
		},
		"new server takes the created server": {
			policy: func(p *placement.Policy) { p.Algorithm = placement.NewServer },
			data:   func(d *placement.Data) { warm(d); d.Sites = nil; d.Servers[2].DedicatedFor = "t" }, outcome: placement.OnDemandSite, server: "node-1",
		},
		"override elsewhere, without companions there": {
			data:    func(d *placement.Data) { d.Servers[0].Region, d.Pools = "sg", nil },
			request: func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1"} },
			outcome: placement.Refused, code: prego.CodeInvariantViolation,
		},
		"new server makes one":                        {policy: func(p *placement.Policy) { p.Algorithm = placement.NewServer }, outcome: placement.NeedsServer},
		"equal scores go by id":                       {data: func(d *placement.Data) { d.Servers[0].MemoryPct = 20 }, outcome: placement.Placed, server: "app-1"},
		"a server at the memory threshold takes none": {data: func(d *placement.Data) { d.Servers[1].MemoryPct = 70 }, outcome: placement.Placed, server: "app-1"},
		"nor where no other is left": {
			data:    func(d *placement.Data) { d.Servers[0].MemoryPct, d.Servers[1].MemoryPct = 70, 70 },
			outcome: placement.AwaitingCapacity, code: prego.CodeInsufficientResources, missing: []prego.Role{prego.RoleApp},
		},
		"just below it is below it": {data: func(d *placement.Data) { d.Servers[0].MemoryPct, d.Servers[1].MemoryPct = 70, 69.9 }, outcome: placement.Placed, server: "app-2"},
		"servers with 20 tenants take no more": {
			data:    func(d *placement.Data) { d.Servers[0].TenantCount, d.Servers[1].TenantCount = 20, 20 },
			outcome: placement.AwaitingCapacity, code: prego.CodeInsufficientResources, missing: []prego.Role{prego.RoleApp},
		},
		"servers with 19 do":           {data: func(d *placement.Data) { d.Servers[0].TenantCount, d.Servers[1].TenantCount = 20, 19 }, outcome: placement.Placed, server: "app-2"},
		"a draining server takes none": {data: func(d *placement.Data) { d.Servers[1].Status = server.Decommissioning }, outcome: placement.Placed, server: "app-1"},
		"an empty pool is passed over": {data: func(d *placement.Data) { d.Sites = d.Sites[:1] }, outcome: placement.Placed, server: "app-1"},
		"all pools empty, on demand":   {data: func(d *placement.Data) { d.Sites = nil }, outcome: placement.OnDemandSite, server: "app-2"},
		"all pools empty, hold": {
			policy: func(p *placement.Policy) { p.EmptyPool = placement.Hold }, data: func(d *placement.Data) { d.Sites = nil },
			outcome: placement.HoldForSite, server: "app-2", code: "site_pool_empty",
		},
		"the site must be on a shard that the plan may use": {
			data: func(d *placement.Data) {
				d.Shards = append(d.Shards, placement.Shard{ShardID: "db-2", Region: "eu", PlanTierLock: prego.PlanTrial, Capacity: 10, Status: "active"})
				d.Sites[1].DBShardID = "db-2"
			},
			outcome: placement.Placed, server: "app-1",
		},
		"no shard":    {data: func(d *placement.Data) { d.Shards[0].Tenants = 10 }, outcome: placement.AwaitingCapacity, code: prego.CodeInsufficientResources, missing: []prego.Role{prego.RoleDBShard}},
		"a full pool": {data: func(d *placement.Data) { d.Pools[0].Tenants = 10 }, outcome: placement.AwaitingCapacity, code: prego.CodeInsufficientResources, missing: []prego.Role{prego.RoleRedisPool}},
		"no pool":     {data: func(d *placement.Data) { d.Pools = nil }, outcome: placement.AwaitingCapacity, code: prego.CodeInsufficientResources, missing: []prego.Role{prego.RoleRedisPool}},
		"nothing":     {data: func(d *placement.Data) { d.Servers, d.Shards, d.Pools = nil, nil, nil }, outcome: placement.AwaitingCapacity, code: prego.CodeInsufficientResources, missing: []prego.Role{prego.RoleApp, prego.RoleDBShard, prego.RoleRedisPool}},
		"no provider": {data: func(d *placement.Data) { d.Providers[0].Enabled = false }, outcome: placement.Refused, code: prego.CodeNoProvider},
		"residency elsewhere": {
			request: func(r *placement.Request) { r.DataResidency = "KR" }, outcome: placement.Refused, code: prego.CodeResidencyViolation,
		},
		"residency here":       {request: func(r *placement.Request) { r.DataResidency = "DE" }, outcome: placement.Placed, server: "app-2"},
		"residency of nowhere": {request: func(r *placement.Request) { r.DataResidency = "XX" }, outcome: placement.Refused, code: prego.CodeResidencyUnknown},
		"residency and provider": {data: func(d *placement.Data) {
			d.Residency["DE"] = placement.Zone{Regions: []prego.Region{"eu"}, Providers: []prego.InfraProviderID{"aws"}}
		}, request: func(r *placement.Request) { r.DataResidency = "DE" }, outcome: placement.Refused, code: prego.CodeNoProvider},
		"business needs a business shard": {
			request: func(r *placement.Request) { r.Plan = prego.PlanBusiness },
			outcome: placement.AwaitingCapacity, code: prego.CodeInsufficientResources, missing: []prego.Role{prego.RoleDBShard},
		},
		"enterprise needs empty ones": {
			request: func(r *placement.Request) { r.Plan = prego.PlanEnterprise },
			outcome: placement.AwaitingCapacity, code: prego.CodeInsufficientResources, missing: []prego.Role{prego.RoleApp, prego.RoleDBShard, prego.RoleRedisPool},
		},
		"a dedicated redis needs an empty pool": {
			data:    func(d *placement.Data) { d.Shards[0].PlanTierLock = prego.PlanBusiness },
			request: func(r *placement.Request) { r.Plan, r.DedicatedRedis = prego.PlanBusiness, true },
			outcome: placement.AwaitingCapacity, code: prego.CodeInsufficientResources, missing: []prego.Role{prego.RoleRedisPool},
		},
		"trials go where they are taken": {
			data: func(d *placement.Data) { d.Servers[1].RefusesTrials = true }, request: func(r *placement.Request) { r.Plan = prego.PlanTrial },
			outcome: placement.Placed, server: "app-1",
		},
		"required tag": {
			data: func(d *placement.Data) { d.Servers[0].Tags = []string{"blue"} }, request: func(r *placement.Request) { r.Constraint.Require = []string{"blue"} },
			outcome: placement.Placed, server: "app-1",
		},
		"disallowed tag": {
			data: func(d *placement.Data) { d.Servers[1].Tags = []string{"blue"} }, request: func(r *placement.Request) { r.Constraint.Disallow = []string{"blue"} },
			outcome: placement.Placed, server: "app-1",
		},
		"no server has the tag": {
			request: func(r *placement.Request) { r.Constraint.Require = []string{"blue"} },
			outcome: placement.AwaitingCapacity, code: prego.CodeCellMismatch, missing: []prego.Role{prego.RoleApp},
		},
		"one has the tag and no room": {
			data:    func(d *placement.Data) { d.Servers[0].Tags, d.Servers[0].MemoryPct = []string{"blue"}, 99 },
			request: func(r *placement.Request) { r.Constraint.Require = []string{"blue"} },
			outcome: placement.AwaitingCapacity, code: prego.CodeInsufficientResources, missing: []prego.Role{prego.RoleApp},
		},
		"the parent org wins by its bonus": {
			data: func(d *placement.Data) { d.Servers[0].ParentOrgs = map[string]int{"p": 1} }, request: func(r *placement.Request) { r.ParentOrgID = "p" },
			outcome: placement.Placed, server: "app-1",
		},
		"the parent org wins within 0.05 of the best": {
			data: func(d *placement.Data) { // 0.4*(0.75-0.4) = 0.14 apart, less the bonus of 0.1
				d.Servers[0].MemoryPct, d.Servers[1].MemoryPct = 60, 25
				d.Servers[0].ParentOrgs = map[string]int{"p": 1}
			},
			request: func(r *placement.Request) { r.ParentOrgID = "p" }, outcome: placement.Placed, server: "app-1",
		},
		"and not further away": {
			data: func(d *placement.Data) { // 0.16 apart
				d.Servers[0].MemoryPct, d.Servers[1].MemoryPct = 60, 20
				d.Servers[0].ParentOrgs = map[string]int{"p": 1}
			},
			request: func(r *placement.Request) { r.ParentOrgID = "p" }, outcome: placement.Placed, server: "app-2",
		},
		"one tenant, one server: nothing is empty": {
			policy: func(p *placement.Policy) { p.Mode = tenant.ModeOneTenantOneServer }, outcome: placement.NeedsServer,
		},
		"one tenant, one server: a warm one is claimed": {
			policy: func(p *placement.Policy) { p.Mode = tenant.ModeOneTenantOneServer }, data: warm,
			outcome: placement.Placed, server: "node-1",
		},
		"a warm server of another plan is not": {
			policy: func(p *placement.Policy) { p.Mode = tenant.ModeOneTenantOneServer },
			data:   func(d *placement.Data) { warm(d); d.Servers[2].WarmPlan = prego.PlanBusiness }, outcome: placement.NeedsServer,
		},
		"nor by shared tenants": {
			data:    func(d *placement.Data) { warm(d); d.Servers = d.Servers[2:]; d.Servers[0].WarmPlan = prego.PlanStarter },
			outcome: placement.AwaitingCapacity, code: prego.CodeInsufficientResources, missing: []prego.Role{prego.RoleApp},
		},
		"a tenant's own server needs no pool site": {
			policy: func(p *placement.Policy) { p.Mode = tenant.ModeOneTenantOneServer },
			data:   func(d *placement.Data) { warm(d); d.Sites = nil; d.Servers[2].DedicatedFor = "t" }, outcome: placement.OnDemandSite, server: "node-1",
		},
		"override skips capacity": {
			data:    func(d *placement.Data) { d.Servers[0].MemoryPct, d.Servers[0].TenantCount = 99, 40 },
			request: func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1", Reason: "colocate"} },
			outcome: placement.Placed, server: "app-1",
		},
		"override of a shard": {
			data: func(d *placement.Data) {
				d.Shards = append(d.Shards, placement.Shard{ShardID: "db-2", Region: "eu", Tenants: 9, Capacity: 10, Status: "active"})
			},
			request: func(r *placement.Request) { r.Override = &placement.Override{DBShardID: "db-2", Reason: "x"} },
			outcome: placement.OnDemandSite, server: "app-2",
		},
		"override of a pool": {
			data: func(d *placement.Data) {
				d.Pools = append(d.Pools, placement.RedisPool{PoolID: "redis-2", Region: "eu", Tenants: 10, Capacity: 10, Status: "active"})
			},
			request: func(r *placement.Request) { r.Override = &placement.Override{RedisPoolID: "redis-2", Reason: "x"} },
			outcome: placement.Placed, server: "app-2",
		},
		"override of all": {
			data: func(d *placement.Data) {
				d.Servers[0].MemoryPct, d.Shards[0].Tenants, d.Pools[0].Tenants = 99, d.Shards[0].Capacity, d.Pools[0].Capacity
			},
			request: func(r *placement.Request) {
				r.Override = &placement.Override{AppServerID: "app-1", DBShardID: "db-1", RedisPoolID: "redis-1", Reason: "x"}
			},
			outcome: placement.Placed, server: "app-1",
		},
		"override onto no pool": {
			request: func(r *placement.Request) {
				r.Override = &placement.Override{AppServerID: "app-1", RedisPoolID: "redis-9"}
			},
			outcome: placement.Refused, code: "redis_pool_unknown",
		},
		"override of a server, everything else full": {
			data: func(d *placement.Data) {
				d.Servers[0].MemoryPct, d.Shards[0].Tenants, d.Pools[0].MemoryPct = 99, d.Shards[0].Capacity, new(95.0)
			},
			request: func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1", Reason: "x"} },
			outcome: placement.Placed, server: "app-1",
		},
		"override of a shard, the least full server": {
			data: func(d *placement.Data) {
				d.Servers[0].MemoryPct, d.Servers[1].MemoryPct, d.Pools[0].Tenants = 80, 90, 11
			},
			request: func(r *placement.Request) { r.Override = &placement.Override{DBShardID: "db-1", Reason: "x"} },
			outcome: placement.Placed, server: "app-1",
		},
		"override onto nothing": {
			request: func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-9"} }, outcome: placement.Refused, code: prego.CodeServerUnknown,
		},
		"override onto no shard": {
			request: func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1", DBShardID: "db-9"} }, outcome: placement.Refused, code: prego.CodeShardUnknown,
		},
		"override keeps the tier lock": {
			data:    func(d *placement.Data) { d.Shards[0].PlanTierLock = prego.PlanBusiness },
			request: func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1", DBShardID: "db-1"} },
			outcome: placement.Refused, code: prego.CodeInvariantViolation,
		},
		"override keeps enterprise alone": {
			request: func(r *placement.Request) {
				r.Plan, r.Override = prego.PlanEnterprise, &placement.Override{AppServerID: "app-1", DBShardID: "db-1"}
			},
			outcome: placement.AwaitingCapacity, code: prego.CodeInsufficientResources, missing: []prego.Role{prego.RoleRedisPool},
		},
		"override keeps the region": {
			data:    func(d *placement.Data) { d.Servers[0].Region = "sg" },
			request: func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1"} },
			outcome: placement.Refused, code: prego.CodeInvariantViolation,
		},
		"override keeps the provider, before its companions": {
			data: func(d *placement.Data) {
				d.Servers[0].InfraProvider, d.Pools = "aws", nil
				d.Providers = append(d.Providers, placement.Provider{ID: "aws", Regions: []prego.Region{"eu"}})
			},
			request: func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1"} },
			outcome: placement.Refused, code: prego.CodeInvariantViolation,
		},
		"override keeps trials away": {
			data: func(d *placement.Data) { d.Servers[0].RefusesTrials = true },
			request: func(r *placement.Request) {
				r.Plan, r.Override = prego.PlanTrial, &placement.Override{AppServerID: "app-1"}
			},
			outcome: placement.Refused, code: prego.CodeInvariantViolation,
		},
		"override keeps the server active": {
			data:    func(d *placement.Data) { d.Servers[0].Status = server.Failed },
			request: func(r *placement.Request) { r.Override = &placement.Override{AppServerID: "app-1"} },
			outcome: placement.Refused, code: prego.CodeInvariantViolation,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, p := fleet(), shared()
			if tc.policy != nil {
				tc.policy(&p)
			}
			if tc.data != nil {
				tc.data(&d)
			}
			f := placement.NewSnapshot(p, d)
			got := f.Decide(request(tc.request))
			require.Equal(t, tc.outcome, got.Outcome, "%+v", got)
			require.Equal(t, tc.server, string(got.AppServerID), "%+v", got)
			require.Equal(t, tc.code, got.Code)
			require.Equal(t, tc.missing, got.MissingRoles)
			require.NotEmpty(t, got.SelectionReason)
			rejected := 0
			for _, n := range got.RejectedCounts {
				rejected += n
			}
			require.LessOrEqual(t, rejected, got.CandidatesEvaluated)
		})
	}
}

// TestTierLocks is every plan on every lock: where it may land and nowhere else.
func TestTierLocks(t *testing.T) {
	t.Parallel()
	allowed := map[prego.Plan][]prego.Plan{ // the locks by plan; "" is none
		prego.PlanTrial: {"", prego.PlanTrial}, prego.PlanStarter: {""}, prego.PlanBusiness: {prego.PlanBusiness},
		prego.PlanEnterprise: {"", prego.PlanStarter, prego.PlanBusiness, prego.PlanEnterprise},
	}
	for _, plan := range prego.Plans() {
		for _, lock := range append([]prego.Plan{""}, prego.Plans()...) {
			d := fleet()
			d.Servers[0].TenantCount, d.Shards[0].Tenants, d.Pools[0].Tenants, d.Shards[0].PlanTierLock = 0, 0, 0, lock
			got := placement.NewSnapshot(shared(), d).Decide(request(func(r *placement.Request) { r.Plan = plan }))
			require.Equal(t, slices.Contains(allowed[plan], lock), got.PlacesTenant(), "%s on a shard locked to %q: %s", plan, lock, got.SelectionReason)
			if !got.PlacesTenant() {
				require.Equal(t, 1, got.RejectedCounts["plan_tier_lock"])
			}
		}
	}
}

// warm adds a warm node to a fleet.
func warm(d *placement.Data) {
	d.Servers = append(d.Servers, placement.Server{ServerID: "node-1", Role: prego.RoleNode, Region: "eu", InfraProvider: "hetzner", Status: "active"})
	d.Shards = append(d.Shards, placement.Shard{ShardID: "node-1", HostServerID: "node-1", Region: "eu", Capacity: 1, Status: "active"})
	d.Pools = append(d.Pools, placement.RedisPool{PoolID: "node-1", HostServerID: "node-1", Region: "eu", Capacity: 1, Status: "active"})
	d.Sites = append(d.Sites, placement.PoolSite{PoolSiteID: "s-n", AppServerID: "node-1", DBShardID: "node-1"})
}

func TestScoreIsThePoliciesFormula(t *testing.T) {
	t.Parallel()
	d := placement.NewSnapshot(shared(), fleet()).Decide(request(nil))
	// 0.4*(1-0.2) + 0.2*(1-2/20) + 0.2*(1-4/10) + 0.1*(1-4/10)
	require.InDelta(t, 0.32+0.18+0.12+0.06, d.Score, 1e-12)
	require.InDelta(t, 0.4*0.2, d.Confidence, 1e-12, "the runner-up has 20 points of memory less")
	require.Equal(t, 4, d.CandidatesEvaluated)
	require.Empty(t, d.Rejected)
}

func TestEnterpriseDedicates(t *testing.T) {
	t.Parallel()
	data := fleet()
	data.Servers[0].TenantCount, data.Shards[0].Tenants, data.Pools[0].Tenants = 0, 0, 0
	data.Shards[0].PlanTierLock = prego.PlanBusiness
	f := placement.NewSnapshot(shared(), data)
	r := request(func(r *placement.Request) { r.Plan = prego.PlanEnterprise })
	d := f.Decide(r)
	require.Equal(t, placement.Placed, d.Outcome, "%+v", d)
	require.Equal(t, "app-1", string(d.AppServerID))
	f.Apply(r, d)
	d = f.Decide(request(func(r *placement.Request) { r.TenantID, r.Plan = "u", prego.PlanBusiness }))
	require.Equal(t, placement.AwaitingCapacity, d.Outcome)
	require.Equal(t, 1, d.RejectedCounts["dedicated_to_another_tenant"]-2, "the server, the shard and the pool")
}

// genFleet draws a fleet over two regions.
func genFleet(t *rapid.T) placement.Data {
	region := rapid.SampledFrom([]prego.Region{"eu", "sg"})
	status := rapid.SampledFrom([]server.Status{"active", "active", "active", "draining", "failed"})
	d := fleet()
	d.Servers, d.Shards, d.Pools, d.Sites = nil, nil, nil, nil
	for i := range rapid.IntRange(0, 4).Draw(t, "shards") {
		d.Shards = append(d.Shards, placement.Shard{
			ShardID: prego.ShardID(fmt.Sprintf("db-%d", i)), Region: region.Draw(t, "region"), Status: "active", Capacity: rapid.IntRange(1, 6).Draw(t, "capacity"),
			PlanTierLock: rapid.SampledFrom([]prego.Plan{"", "", "trial", "business"}).Draw(t, "lock"),
		})
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "pools") {
		d.Pools = append(d.Pools, placement.RedisPool{PoolID: fmt.Sprintf("redis-%d", i), Region: region.Draw(t, "region"), Status: "active", Capacity: rapid.IntRange(1, 12).Draw(t, "capacity")})
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "servers") {
		s := placement.Server{
			ServerID: prego.ServerID(fmt.Sprintf("app-%d", i)), Role: rapid.SampledFrom([]prego.Role{"app", "app", "app", "node"}).Draw(t, "role"),
			Region: region.Draw(t, "region"), InfraProvider: "hetzner", Status: status.Draw(t, "status"),
			MemoryPct: float64(rapid.IntRange(0, 90).Draw(t, "memory")), RefusesTrials: rapid.IntRange(0, 9).Draw(t, "trials") == 7,
		}
		if rapid.Bool().Draw(t, "tagged") {
			s.Tags = []string{"blue"}
		}
		d.Servers = append(d.Servers, s)
		for j := range rapid.IntRange(0, 3).Draw(t, "sites") {
			site := placement.PoolSite{PoolSiteID: fmt.Sprintf("s-%d-%d", i, j), AppServerID: s.ServerID}
			if s.Role == prego.RoleNode {
				site.DBShardID = prego.ShardID(s.ServerID)
			} else if len(d.Shards) > 0 {
				site.DBShardID = rapid.SampledFrom(d.Shards).Draw(t, "shard").ShardID
			}
			d.Sites = append(d.Sites, site)
		}
	}
	return d
}

func genRequest(t *rapid.T, i int) placement.Request {
	r := placement.Request{
		TenantID: prego.TenantID(fmt.Sprintf("t-%d", i)), OrgID: prego.OrgID(rapid.SampledFrom([]string{"o1", "o2"}).Draw(t, "org")), ParentOrgID: prego.OrgID(rapid.SampledFrom([]string{"", "p1", "p2"}).Draw(t, "parent")),
		Region: rapid.SampledFrom([]prego.Region{"eu", "eu", "sg"}).Draw(t, "region"), Plan: rapid.SampledFrom(prego.Plans()).Draw(t, "plan"),
		DataResidency: rapid.SampledFrom([]string{"", "", "DE", "KR", "FR", "AT", "XX"}).Draw(t, "residency"),
		Mode:          rapid.SampledFrom([]tenant.PlacementMode{"shared", "shared", "one_tenant_one_server"}).Draw(t, "mode"),
		Algorithm:     rapid.SampledFrom([]placement.Algorithm{"best_fit", "first_fit", "round_robin"}).Draw(t, "algorithm"),
	}
	r.DedicatedRedis = r.Plan == prego.PlanBusiness && rapid.Bool().Draw(t, "dedicated redis")
	if rapid.IntRange(0, 9).Draw(t, "constrained") == 7 {
		r.Constraint.Require = []string{"blue"}
	}
	if rapid.IntRange(0, 9).Draw(t, "override") == 7 {
		r.Override = &placement.Override{AppServerID: prego.ServerID(fmt.Sprintf("app-%d", rapid.IntRange(0, 10).Draw(t, "force"))), Reason: "r"}
		if rapid.Bool().Draw(t, "force shard") {
			r.Override.DBShardID = prego.ShardID(fmt.Sprintf("db-%d", rapid.IntRange(0, 7).Draw(t, "shard")))
		}
		if rapid.Bool().Draw(t, "force pool") {
			r.Override.RedisPoolID = prego.RedisPoolID(fmt.Sprintf("redis-%d", rapid.IntRange(0, 7).Draw(t, "pool")))
		}
	}
	return r
}

// TestInvariants holds P1 to P8 (placement-policy §9) against streams of requests,
// shared and dedicated, overrides among them, and every outcome against a model that
// knows the rules and no fleet.
func TestInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		data := genFleet(t)
		enrich(t, &data)
		policy := shared()
		policy.MaxTenantsPerNode = rapid.IntRange(1, 4).Draw(t, "max tenants")
		policy.EmptyPool = rapid.SampledFrom([]placement.EmptyPool{"on_demand", "hold"}).Draw(t, "empty pool")
		w := newWorld(data, policy)
		f, twin := placement.NewSnapshot(policy, data), placement.NewSnapshot(policy, data)
		counts := map[string]int{}
		for i := range rapid.IntRange(1, 20).Draw(t, "requests") {
			r := genRequest(t, i)
			if r.Override != nil {
				r.Override.IgnoreConstraint = rapid.Bool().Draw(t, "ignore")
			}
			outcome, code := w.outcome(r)
			d := f.Decide(r)
			if r.Override == nil { // P1
				require.Equal(t, outcome, d.Outcome, "%s", d.SelectionReason)
				require.Equal(t, code, d.Code)
			}
			require.Equal(t, d, twin.Decide(r), "the same input, the same decision")
			require.Equal(t, d, f.Decide(r), "deciding changes nothing")
			f.Apply(r, d)
			twin.Apply(r, d)
			w.check(t, r, d)
			for _, s := range data.Servers { // P5
				now, _ := f.Server(s.ServerID)
				require.GreaterOrEqual(t, now.TenantCount, counts[string(s.ServerID)])
				counts[string(s.ServerID)] = now.TenantCount
				require.Len(t, w.tenants[string("a/"+s.ServerID)], now.TenantCount, "every tenant is counted once")
			}
		}
	})
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// TestBestFitIsBest compares with a walk over every triple.
func TestBestFitIsBest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		data, policy := genFleet(t), shared()
		for i := range data.Servers {
			data.Servers[i].Role, data.Servers[i].TenantCount = prego.RoleApp, rapid.IntRange(0, 20).Draw(t, "count")
		}
		for i := range data.Shards {
			data.Shards[i].Tenants = rapid.IntRange(0, data.Shards[i].Capacity).Draw(t, "tenants")
		}
		for i := range data.Pools {
			data.Pools[i].Tenants = rapid.IntRange(0, data.Pools[i].Capacity).Draw(t, "tenants")
		}
		r := placement.Request{TenantID: "t", OrgID: "o", Region: "eu", Plan: prego.PlanStarter}
		best, sited := -1.0, -1.0
		for _, a := range data.Servers {
			for _, s := range data.Shards {
				for _, p := range data.Pools {
					if a.Region != "eu" || s.Region != "eu" || p.Region != "eu" || a.Status != "active" || a.MemoryPct >= 70 || a.TenantCount >= 20 ||
						s.PlanTierLock != "" || s.Tenants >= s.Capacity || p.Tenants >= p.Capacity {
						continue
					}
					score := 0.4*(1-a.MemoryPct/100) + 0.2*(1-float64(a.TenantCount)/20) + 0.2*(1-float64(s.Tenants)/float64(s.Capacity)) + 0.1*(1-float64(p.Tenants)/float64(p.Capacity))
					best = max(best, score)
					if slices.ContainsFunc(data.Sites, func(x placement.PoolSite) bool { return x.AppServerID == a.ServerID && x.DBShardID == s.ShardID }) {
						sited = max(sited, score)
					}
				}
			}
		}
		d := placement.NewSnapshot(policy, data).Decide(r)
		switch {
		case sited >= 0:
			require.Equal(t, placement.Placed, d.Outcome)
			require.InDelta(t, sited, d.Score, 1e-9)
		case best >= 0:
			require.Equal(t, placement.OnDemandSite, d.Outcome)
			require.InDelta(t, best, d.Score, 1e-9)
		default:
			require.Equal(t, placement.AwaitingCapacity, d.Outcome)
		}
	})
}
