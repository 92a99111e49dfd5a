package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// played is a simulation at its end, with a living tenant of a plan in it.
func played(t *testing.T, mode tenant.PlacementMode, plan prego.Plan) (*Simulation, *resident) {
	t.Helper()
	p := placement.DefaultPolicy()
	p.Mode = mode
	s := New(DefaultConfig(400, p), rand.NewPCG(3, 3))
	s.Run()
	require.Empty(t, s.Check())
	for _, x := range s.tenants {
		if x.state == living && x.plan == plan {
			return s, x
		}
	}
	require.Fail(t, "no tenant lives", plan)
	return nil, nil
}

// TestCheckFinds breaks every invariant once.
func TestCheckFinds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		plan  prego.Plan
		do    func(*Simulation, *resident)
		finds string
	}{
		"a server's count": {prego.PlanStarter, func(s *Simulation, x *resident) {
			v, _ := s.fleet.Server(prego.ServerID(x.server.id))
			v.TenantCount++
			s.fleet.SetServer(v)
		}, "the fleet counts"},
		"a shard's count": {prego.PlanStarter, func(s *Simulation, x *resident) {
			v, _ := s.fleet.Shard(x.shard.id)
			v.Tenants--
			s.fleet.SetShard(v)
		}, "the fleet counts"},
		"a pool's count": {prego.PlanStarter, func(s *Simulation, x *resident) {
			v, _ := s.fleet.Pool(x.pool.id)
			v.Tenants--
			s.fleet.SetPool(v)
		}, "the fleet counts"},
		"enterprise alone": {prego.PlanStarter, func(_ *Simulation, x *resident) { x.plan = prego.PlanEnterprise }, "is not alone on"},
		"the lock":         {prego.PlanBusiness, func(_ *Simulation, x *resident) { x.plan = prego.PlanStarter }, "is locked to"},
		"a trial's lock":   {prego.PlanStarter, func(_ *Simulation, x *resident) { x.plan, x.shard.lock = prego.PlanTrial, prego.PlanBusiness }, "(trial) lives on"},
		"the fleet's lock": {prego.PlanStarter, func(s *Simulation, x *resident) {
			v, _ := s.fleet.Shard(x.shard.id)
			v.PlanTierLock = prego.PlanBusiness
			s.fleet.SetShard(v)
		}, "is not locked as it was made"},
		"an unknown shard":  {prego.PlanStarter, func(_ *Simulation, x *resident) { x.shard.id = "nowhere" }, "is not locked as it was made"},
		"an unknown server": {prego.PlanStarter, func(s *Simulation, x *resident) { s.fleet.RemoveServer(prego.ServerID(x.server.id)) }, "is not in the fleet"},
		"arrivals":          {prego.PlanStarter, func(s *Simulation, _ *resident) { s.m.arrived++ }, "which contradicts the counters"},
		"placements":        {prego.PlanStarter, func(s *Simulation, _ *resident) { s.m.placed++ }, "which contradicts the counters"},
		"departures":        {prego.PlanStarter, func(s *Simulation, _ *resident) { s.m.left++ }, "which contradicts the counters"},
		"the queue": {prego.PlanStarter, func(s *Simulation, x *resident) {
			r := s.regionOf(x.region)
			r.waiting = append(r.waiting, x)
		}, "which contradicts the counters"},
		"the region": {prego.PlanStarter, func(s *Simulation, x *resident) {
			for _, h := range s.hosts {
				if h.role == prego.RoleRedisPool && h.active && h.region != x.region {
					x.pool = h
				}
			}
		}, "is in region"},
		"the residency": {prego.PlanStarter, func(_ *Simulation, x *resident) {
			x.residency = map[prego.Region]string{"sg": "DE", "eu": "US", "us": "SG"}[x.region]
		}, "data of residents of"},
		"an active server":   {prego.PlanStarter, func(_ *Simulation, x *resident) { x.server.active = false }, "not active"},
		"a retired server":   {prego.PlanStarter, func(s *Simulation, x *resident) { x.server.retired = true }, "was given back with"},
		"a forgotten tenant": {prego.PlanStarter, func(_ *Simulation, x *resident) { x.state = left }, "which contradicts the counters"},
		"at most so many":    {prego.PlanStarter, func(s *Simulation, _ *resident) { s.c.Policy.MaxTenantsPerNode = 1 }, "more than 1"},
		"dedicated": {prego.PlanStarter, func(s *Simulation, x *resident) {
			v, _ := s.fleet.Shard(x.shard.id)
			v.DedicatedFor = "another"
			s.fleet.SetShard(v)
		}, "dedicated to another"},
		"sites": {prego.PlanStarter, func(_ *Simulation, x *resident) {
			x.server.sites = append(x.server.sites, site{id: "x", shard: x.shard})
		}, "sites, the fleet counts"},
		"memory":   {prego.PlanStarter, func(_ *Simulation, x *resident) { x.mb++ }, "were counted"},
		"reserved": {prego.PlanStarter, func(_ *Simulation, x *resident) { x.server.reserved = x }, "does not wait"},
		"the fleet's memory": {prego.PlanStarter, func(s *Simulation, x *resident) {
			v, _ := s.fleet.Server(prego.ServerID(x.server.id))
			v.MemoryPct++
			s.fleet.SetServer(v)
		}, "in the fleet"},
		"a server's parent orgs": {prego.PlanStarter, func(s *Simulation, x *resident) {
			v, _ := s.fleet.Server(prego.ServerID(x.server.id))
			v.ParentOrgs = map[string]int{"another": 1}
			s.fleet.SetServer(v)
		}, "of the parent orgs"},
		"a shard's parent orgs": {prego.PlanStarter, func(s *Simulation, x *resident) {
			v, _ := s.fleet.Shard(x.shard.id)
			v.ParentOrgs = map[string]int{"another": 1}
			s.fleet.SetShard(v)
		}, "of the parent orgs"},
		"live": {prego.PlanStarter, func(s *Simulation, _ *resident) { s.live++ }, "servers:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, x := played(t, tenant.ModeShared, tc.plan)
			tc.do(s, x)
			require.Contains(t, strings.Join(s.Check(), "\n"), tc.finds)
			require.NotEmpty(t, s.Report().Violations)
		})
	}
}

// TestCheckFindsOnNodes breaks what holds when each tenant has a server.
func TestCheckFindsOnNodes(t *testing.T) {
	t.Parallel()
	for finds, do := range map[string]func(*Simulation, *resident){
		"and elsewhere": func(s *Simulation, x *resident) { x.shard = another(s, x) },
		"lives on node": func(s *Simulation, x *resident) { x.pool = another(s, x) },
		"more than 1":   func(s *Simulation, x *resident) { x.server = another(s, x) },
	} {
		t.Run(finds, func(t *testing.T) {
			t.Parallel()
			s, x := played(t, tenant.ModeOneTenantOneServer, prego.PlanStarter)
			do(s, x)
			require.Contains(t, strings.Join(s.Check(), "\n"), finds)
		})
	}
}

// another is another tenant's node.
func another(s *Simulation, x *resident) *host {
	for _, y := range s.tenants {
		if y.state == living && y != x && y.region == x.region {
			return y.server
		}
	}
	return nil
}

func sharedPolicy() placement.Policy {
	p := placement.DefaultPolicy()
	p.Mode = tenant.ModeShared
	return p
}

func TestNamesAreNumbered(t *testing.T) {
	t.Parallel()
	s := New(DefaultConfig(400, placement.DefaultPolicy()), rand.NewPCG(1, 1))
	for _, x := range s.tenants {
		require.Regexp(t, `^t-\d{6}$`, x.id)
		require.Regexp(t, `^org-\d{5}$`, x.org)
		require.Regexp(t, `^(parent-\d{4})?$`, x.parent)
	}
	require.Equal(t, "t-000001", s.tenants[0].id)
	require.Same(t, &s.m.daily[len(s.m.daily)-1], s.m.day(s.end), "the very last moment")
}

func TestSiteIsAssignedOnce(t *testing.T) {
	t.Parallel()
	s := New(DefaultConfig(50, sharedPolicy()), rand.NewPCG(1, 1))
	s.Run()
	require.Empty(t, s.Check())
	require.Len(t, s.assigned, s.m.fromPool)
	s = New(DefaultConfig(50, sharedPolicy()), rand.NewPCG(1, 1))
	for n := range 1000 {
		s.assigned[fmt.Sprintf("site-%07d", n)] = true
	}
	s.Run()
	require.Contains(t, strings.Join(s.Check(), "\n"), "was assigned twice")
}

func TestNodesHaveOneSite(t *testing.T) {
	t.Parallel()
	p := placement.DefaultPolicy()
	p.Mode = tenant.ModeOneTenantOneServer
	s := New(DefaultConfig(50, p), rand.NewPCG(1, 1))
	for s.Step() {
		for _, h := range s.hosts {
			require.LessOrEqual(t, len(h.sites), 1)
		}
	}
}

func TestOnlyServersAreInTheFleet(t *testing.T) {
	t.Parallel()
	s := New(DefaultConfig(50, sharedPolicy()), rand.NewPCG(1, 1))
	s.Run()
	_, ok := s.fleet.Server("")
	require.False(t, ok)
}

// A server that boots does not let the last one go.
func TestShrinkKeepsAnActiveServer(t *testing.T) {
	t.Parallel()
	s := New(DefaultConfig(0, sharedPolicy()), rand.NewPCG(1, 1))
	r := s.regions[0]
	s.order(r, prego.RoleApp, "", nil)
	s.now = s.c.IdleFor
	s.shrink(r)
	active := 0
	for _, h := range r.hosts {
		if h.active && h.role == prego.RoleApp {
			active++
		}
	}
	require.Equal(t, 1, active)
}

// What is on the way for a tenant is not ordered again; another tenant's is free when it is not needed.
func TestServersOfATenantAlone(t *testing.T) {
	t.Parallel()
	s := New(DefaultConfig(0, sharedPolicy()), rand.NewPCG(1, 1))
	r := s.regions[0]
	x := &resident{id: "x", plan: prego.PlanEnterprise, missing: []prego.Role{prego.RoleApp}, state: waiting}
	r.waiting = []*resident{x}
	require.Equal(t, []want{{alone: x}}, s.wants(r, prego.RoleApp))
	h := s.order(r, prego.RoleApp, "", x)
	require.Empty(t, s.wants(r, prego.RoleApp))

	s.activate(h)
	v, _ := s.fleet.Server(prego.ServerID(h.id))
	require.Equal(t, prego.TenantID("x"), v.DedicatedFor)
	require.False(t, h.building)
	s.release(x)
	v, _ = s.fleet.Server(prego.ServerID(h.id))
	require.Empty(t, v.DedicatedFor)
	require.True(t, h.building, "it gets a pool of sites")
}

func TestInTurn(t *testing.T) {
	t.Parallel()
	// By age: a big org first, then a small one, then a business and an enterprise.
	queue := []*resident{
		{id: "a1", org: "a", plan: prego.PlanStarter},
		{id: "a2", org: "a", plan: prego.PlanStarter},
		{id: "a3", org: "a", plan: prego.PlanStarter},
		{id: "b1", org: "b", plan: prego.PlanStarter},
		{id: "t1", org: "a", plan: prego.PlanTrial},
		{id: "c1", org: "a", plan: prego.PlanBusiness},
		{id: "e1", org: "a", plan: prego.PlanEnterprise},
	}
	var got []string
	for _, x := range inTurn(queue) {
		got = append(got, x.id)
	}
	require.Equal(t, []string{"e1", "c1", "a1", "b1", "a2", "a3", "t1"}, got)
}

func TestGauge(t *testing.T) {
	t.Parallel()
	require.Equal(t, Gauge{}, gauge(nil))
	require.Equal(t, Gauge{Min: 1, P50: 1, P95: 1, Max: 1}, gauge([]float64{1}))
	v := make([]float64, 0, 100)
	for i := range 100 {
		v = append(v, float64(100-i))
	}
	require.Equal(t, Gauge{Min: 1, P50: 50, P95: 95, Max: 100}, gauge(v))
}
