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

// enrich draws what genFleet leaves at its default: a second cloud, zones that name clouds, dedications, instances,
// measures, and reserved servers.
func enrich(t *rapid.T, d *placement.Data) {
	// Small numbers are drawn far more often than others.
	rarely := func(what string) bool { return rapid.IntRange(0, 15).Draw(t, what) == 9 }
	pct := func(what string) *float64 {
		v := rapid.SampledFrom([]float64{-1, 0, 50, 79.9, 80, 85, 90, 100}).Draw(t, what)
		if v < 0 {
			return nil
		}
		return &v
	}
	// A sound part of a fleet, so that something is placed more often than not.
	for i, lock := range []prego.Plan{"", prego.PlanBusiness, ""} {
		d.Shards = append(d.Shards, placement.Shard{ShardID: prego.ShardID(fmt.Sprintf("db-%d", 5+i)), Region: "eu", Status: "active", Capacity: rapid.IntRange(1, 6).Draw(t, "capacity"), PlanTierLock: lock})
		d.Pools = append(d.Pools, placement.RedisPool{PoolID: fmt.Sprintf("redis-%d", 5+i), Region: "eu", Status: "active", Capacity: rapid.IntRange(1, 6).Draw(t, "capacity")})
	}
	for i := range 4 {
		s := placement.Server{
			ServerID: prego.ServerID(fmt.Sprintf("app-%d", 7+i)), Role: rapid.SampledFrom([]prego.Role{"app", "app", "node"}).Draw(t, "role"), Region: "eu", InfraProvider: "hetzner", Status: "active",
			MemoryPct: float64(rapid.IntRange(0, 69).Draw(t, "memory")),
		}
		d.Servers = append(d.Servers, s)
		for j, shard := range []string{"db-5", "db-6", "db-7"} {
			if s.Role == prego.RoleNode {
				shard = string(s.ServerID)
			}
			if rapid.Bool().Draw(t, "site") {
				d.Sites = append(d.Sites, placement.PoolSite{PoolSiteID: fmt.Sprintf("s-%d-%d", 7+i, j), AppServerID: s.ServerID, DBShardID: prego.ShardID(shard)})
			}
		}
	}
	d.Providers = append(d.Providers, placement.Provider{ID: "aws", Enabled: !rarely("aws off"), Regions: []prego.Region{"eu"}})
	d.Residency["FR"] = placement.Zone{Regions: []prego.Region{"eu"}, Providers: []prego.InfraProviderID{"aws"}}
	d.Residency["AT"] = placement.Zone{Regions: []prego.Region{"eu", "sg"}, Providers: []prego.InfraProviderID{"hetzner"}}
	networks := []prego.NetworkID{""}
	if rapid.Bool().Draw(t, "networks") {
		networks = []prego.NetworkID{"n1", "n1", "n1", "n2", ""}
	}
	network := rapid.SampledFrom(networks)
	for i := range d.Servers {
		s := &d.Servers[i]
		s.NetworkID = network.Draw(t, "network")
		s.NotServing, s.RunsInstances, s.CPUPct, s.WorkerSlotsPct = rarely("not serving"), rarely("instances"), pct("cpu"), pct("slots")
		if rarely("aws") {
			s.InfraProvider = "aws"
		}
		if rarely("dedicated") {
			s.DedicatedFor = "another"
		}
		if rarely("warm") {
			s.WarmPlan = rapid.SampledFrom(prego.Plans()).Draw(t, "warm for")
		}
	}
	for i := range d.Shards {
		s := &d.Shards[i]
		s.NetworkID = network.Draw(t, "network")
		s.NotServing, s.RunsInstances, s.DiskPct = rarely("not serving"), rarely("instances"), pct("disk")
		if rarely("dedicated") {
			s.DedicatedFor = "another"
		}
		if rarely("draining") {
			s.Status = server.Decommissioning
		}
	}
	for i := range d.Pools {
		p := &d.Pools[i]
		p.NetworkID = network.Draw(t, "network")
		p.NotServing, p.RunsInstances, p.MemoryPct = rarely("not serving"), rarely("instances"), pct("redis memory")
		if rarely("dedicated") {
			p.DedicatedFor = "another"
		}
		if rarely("draining") {
			p.Status = server.Decommissioning
		}
	}
}

// part is a shard or a pool, as the rules see it.
type part struct {
	placement.Shard
	full *float64 // of its disk or memory
	most float64
}

// world is the history of a fleet, separate from the engine: who lives where, and which servers are dedicated.
type world struct {
	data    placement.Data
	policy  placement.Policy
	servers map[string]placement.Server
	shards  map[string]part
	pools   map[string]part
	tenants map[string][]placement.Request // by "a/", "d/" or "r/" and an id
	owner   map[string]string
	sites   map[string]string // site → tenant
}

func newWorld(d placement.Data, p placement.Policy) *world {
	w := &world{
		data: d, policy: p, servers: map[string]placement.Server{}, shards: map[string]part{}, pools: map[string]part{},
		tenants: map[string][]placement.Request{}, owner: map[string]string{}, sites: map[string]string{},
	}
	for _, s := range d.Shards {
		w.shards[string(s.ShardID)], w.owner[string("d/"+s.ShardID)] = part{s, s.DiskPct, p.DBDiskPctMax}, string(s.DedicatedFor)
	}
	for _, v := range d.Pools {
		w.pools[v.PoolID] = part{placement.Shard{
			ShardID: prego.ShardID(v.PoolID), Region: v.Region, NetworkID: v.NetworkID, AnyPlan: true, Capacity: v.Capacity, Status: v.Status, NotServing: v.NotServing, RunsInstances: v.RunsInstances,
		}, v.MemoryPct, p.RedisMemoryPctMax}
		w.owner["r/"+v.PoolID] = string(v.DedicatedFor)
	}
	for _, s := range d.Servers {
		w.servers[string(s.ServerID)], w.owner[string("a/"+s.ServerID)] = s, string(s.DedicatedFor)
		if s.Role == prego.RoleNode { // a whole stack
			own := part{placement.Shard{ShardID: prego.ShardID(s.ServerID), HostServerID: s.ServerID, Region: s.Region, NetworkID: s.NetworkID, AnyPlan: true, Capacity: p.MaxTenantsPerNode, Status: server.Active}, nil, 0}
			w.shards[string(s.ServerID)], w.pools[string(s.ServerID)] = own, own
		}
	}
	return w
}

func (w *world) allowed(r placement.Request, id string) bool {
	return w.owner[id] == "" || prego.TenantID(w.owner[id]) == r.TenantID
}

func below(v *float64, most float64) bool { return v == nil || most == 0 || *v < most }

func lonely(r placement.Request) bool {
	return r.Plan == prego.PlanEnterprise || r.Mode == tenant.ModeOneTenantOneServer
}

// takes are the rules for a server, apart from its companions (placement-policy §2).
func (w *world) takes(r placement.Request, s placement.Server) bool {
	here := w.tenants[string("a/"+s.ServerID)]
	provider := slices.ContainsFunc(w.data.Providers, func(p placement.Provider) bool {
		return p.ID == s.InfraProvider && p.Enabled && slices.Contains(p.Regions, s.Region)
	})
	zone := w.data.Residency[r.DataResidency]
	switch {
	case s.Region != r.Region, s.Status != server.Active, !provider, s.NotServing, !w.allowed(r, string("a/"+s.ServerID)),
		s.MemoryPct >= w.policy.MemoryPctMax, len(here) >= w.policy.MaxTenantsPerNode,
		s.RefusesTrials && r.Plan == prego.PlanTrial, s.WarmPlan != "" && (s.WarmPlan != r.Plan || r.Mode != tenant.ModeOneTenantOneServer),
		len(zone.Providers) > 0 && !slices.Contains(zone.Providers, s.InfraProvider):
		return false
	}
	for _, tag := range r.Constraint.Require {
		if !slices.Contains(s.Tags, tag) {
			return false
		}
	}
	if lonely(r) {
		return len(here) == 0 && !s.RunsInstances
	}
	return below(s.CPUPct, w.policy.CPUPctMax) && below(s.WorkerSlotsPct, w.policy.WorkerSlotsPctMax)
}

// joins are the rules for a shard ("d/") or a pool ("r/") of a server.
func (w *world) joins(r placement.Request, s placement.Server, kind string, p part, alone bool) bool {
	here := len(w.tenants[kind+string(p.ShardID)])
	own := ""
	if s.Role == prego.RoleNode {
		own = string(s.ServerID)
	}
	return p.HostServerID == prego.ServerID(own) && p.NetworkID == s.NetworkID && p.Region == r.Region && p.Status == server.Active && !p.NotServing && w.allowed(r, kind+string(p.ShardID)) &&
		here < p.Capacity && below(p.full, p.most) && (!alone || here == 0 && !p.RunsInstances)
}

func locks(r placement.Request, s placement.Shard) bool {
	switch {
	case s.AnyPlan:
		return true
	case r.Plan == prego.PlanTrial:
		return s.PlanTierLock == "" || s.PlanTierLock == prego.PlanTrial
	case r.Plan == prego.PlanStarter:
		return s.PlanTierLock == ""
	case r.Plan == prego.PlanBusiness:
		return s.PlanTierLock == prego.PlanBusiness
	}
	return s.PlanTierLock != prego.PlanTrial
}

// outcome is what must become of a request without an override, by looking at every
// triple.
func (w *world) outcome(r placement.Request) (placement.Outcome, prego.Code) {
	zone, known := w.data.Residency[r.DataResidency]
	switch {
	case r.DataResidency != "" && !known:
		return placement.Refused, prego.CodeResidencyUnknown
	case r.DataResidency != "" && !slices.Contains(zone.Regions, r.Region):
		return placement.Refused, prego.CodeResidencyViolation
	case !slices.ContainsFunc(w.data.Providers, func(p placement.Provider) bool {
		return p.Enabled && slices.Contains(p.Regions, r.Region) && (len(zone.Providers) == 0 || slices.Contains(zone.Providers, p.ID))
	}):
		return placement.Refused, prego.CodeNoProvider
	}
	fits, sited := false, false
	for _, s := range w.servers {
		if !w.takes(r, s) {
			continue
		}
		for _, d := range w.shards {
			if !locks(r, d.Shard) || !w.joins(r, s, "d/", d, lonely(r)) {
				continue
			}
			for _, p := range w.pools {
				if w.joins(r, s, "r/", p, lonely(r) || r.DedicatedRedis) {
					fits = true
					sited = sited || slices.ContainsFunc(w.data.Sites, func(x placement.PoolSite) bool {
						return x.AppServerID == s.ServerID && x.DBShardID == d.ShardID && w.sites[x.PoolSiteID] == ""
					})
				}
			}
		}
	}
	satisfied := len(r.Constraint.Require) == 0 || slices.ContainsFunc(w.data.Servers, func(s placement.Server) bool {
		return s.Region == r.Region && s.Status == "active" && !s.Cordoned && r.Constraint.SatisfiedBy(s.Tags)
	})
	switch {
	case sited:
		return placement.Placed, ""
	case r.Mode == tenant.ModeOneTenantOneServer:
		return placement.NeedsServer, ""
	case fits && w.policy.EmptyPool == placement.OnDemand:
		return placement.OnDemandSite, ""
	case fits:
		return placement.HoldForSite, "site_pool_empty"
	case !satisfied:
		return placement.AwaitingCapacity, prego.CodeCellMismatch
	}
	return placement.AwaitingCapacity, prego.CodeInsufficientResources
}

// check holds a decision against the invariants, and lets the world follow it.
func (w *world) check(t *rapid.T, r placement.Request, d placement.Decision) {
	require.LessOrEqual(t, len(d.Rejected), w.policy.MaxRejected)
	require.True(t, slices.IsSortedFunc(d.Rejected, func(a, b placement.Rejection) int { return compare(a.ID, b.ID) }))
	if !d.PlacesTenant() {
		return
	}
	require.GreaterOrEqual(t, d.Confidence, 0.0)
	require.LessOrEqual(t, d.Confidence, 1.0)
	s, shard, pool := w.servers[string(d.AppServerID)], w.shards[string(d.DBShardID)], w.pools[string(d.RedisPoolID)]
	require.Equal(t, s.InfraProvider, d.InfraProvider)
	if r.Override == nil { // P2, P3, P6, P7: with all rules
		require.True(t, w.takes(r, s), "%+v", s)
		require.True(t, locks(r, shard.Shard) && w.joins(r, s, "d/", shard, lonely(r)), "%+v", shard)
		require.True(t, w.joins(r, s, "r/", pool, lonely(r) || r.DedicatedRedis), "%+v", pool)
	}
	// These also hold for an override.
	require.Equal(t, []prego.Region{r.Region, r.Region, r.Region}, []prego.Region{s.Region, shard.Region, pool.Region})
	require.Equal(t, []prego.NetworkID{s.NetworkID, s.NetworkID}, []prego.NetworkID{shard.NetworkID, pool.NetworkID})
	require.Equal(t, []server.Status{"active", "active", "active"}, []server.Status{s.Status, shard.Status, pool.Status})
	require.True(t, locks(r, shard.Shard))
	require.True(t, w.allowed(r, string("a/"+s.ServerID)) && w.allowed(r, string("d/"+d.DBShardID)) && w.allowed(r, string("r/"+d.RedisPoolID)))
	require.True(t, r.Constraint.SatisfiedBy(s.Tags) || r.Override != nil && r.Override.IgnoreConstraint)
	if r.DataResidency != "" { // P7
		zone, known := w.data.Residency[r.DataResidency]
		require.True(t, known && slices.Contains(zone.Regions, s.Region), "%s in %s", r.DataResidency, s.Region)
		require.True(t, len(zone.Providers) == 0 || slices.Contains(zone.Providers, s.InfraProvider), "%s at %s", r.DataResidency, s.InfraProvider)
	}
	empty := map[string]bool{
		string("a/" + d.AppServerID): len(w.tenants[string("a/"+d.AppServerID)]) == 0 && !s.RunsInstances,
		string("d/" + d.DBShardID):   len(w.tenants[string("d/"+d.DBShardID)]) == 0 && !shard.RunsInstances,
		string("r/" + d.RedisPoolID): len(w.tenants[string("r/"+d.RedisPoolID)]) == 0 && !pool.RunsInstances,
	}
	alone := r.Plan == prego.PlanEnterprise || lonely(r) && r.Override == nil
	for id, nobody := range empty { // P4, and all other dedicated tenants
		require.True(t, nobody || !alone, "%s", id)
		for _, other := range w.tenants[id] {
			require.NotEqual(t, prego.PlanEnterprise, other.Plan)
		}
		if alone || d.Dedicates && nobody {
			w.owner[id] = string(r.TenantID)
		}
		w.tenants[id] = append(w.tenants[id], r)
	}
	require.Equal(t, lonely(r) && empty[string("a/"+d.AppServerID)], d.Dedicates)
	if r.DedicatedRedis {
		require.True(t, empty[string("r/"+d.RedisPoolID)])
		w.owner[string("r/"+d.RedisPoolID)] = string(r.TenantID)
	}
	if d.Outcome == placement.Placed { // P8
		require.Empty(t, w.sites[d.PoolSiteID], "assigned twice")
		w.sites[d.PoolSiteID] = string(r.TenantID)
		require.Contains(t, w.data.Sites, placement.PoolSite{PoolSiteID: d.PoolSiteID, AppServerID: d.AppServerID, DBShardID: d.DBShardID})
	} else {
		require.Empty(t, d.PoolSiteID)
	}
}

// TestTheDrawnWorldsAreWorthIt: enough of the drawn requests are placed, and refused, that the properties mean
// something.
func TestTheDrawnWorldsAreWorthIt(t *testing.T) {
	t.Parallel()
	outcomes := map[placement.Outcome]int{}
	plans := map[prego.Plan]int{}
	rapid.Check(t, func(t *rapid.T) {
		data := genFleet(t)
		enrich(t, &data)
		f := placement.NewSnapshot(shared(), data)
		for i := range 5 {
			r := genRequest(t, i)
			d := f.Decide(r)
			f.Apply(r, d)
			if outcomes[d.Outcome]++; d.PlacesTenant() {
				plans[r.Plan]++
			}
		}
	})
	for _, o := range []placement.Outcome{placement.Placed, placement.OnDemandSite, placement.AwaitingCapacity, placement.NeedsServer, placement.Refused} {
		require.Positive(t, outcomes[o], "%v", outcomes)
	}
	for _, p := range prego.Plans() {
		require.Positive(t, plans[p], "%v", plans)
	}
	all := 0
	for _, n := range outcomes {
		all += n
	}
	require.Greater(t, 6*(outcomes[placement.Placed]+outcomes[placement.OnDemandSite]), all, "%v", outcomes)
	t.Log(outcomes, plans)
}
