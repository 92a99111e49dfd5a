package sim

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// provider is the one cloud of the generated fleet.
const provider prego.InfraProviderID = "hetzner"

// Simulation is one fleet's life under way. It is not safe for concurrent use.
type Simulation struct {
	c       Config
	rng     *rand.Rand
	fleet   *placement.Snapshot
	now     time.Duration
	end     time.Duration
	agenda  agenda
	turns   int
	tenants []*resident
	regions []*region
	// hosts are all hosts ever, in the order of their creation.
	hosts    []*host
	byID     map[string]*host
	live     int
	sites    int             // made so far, for their names
	assigned map[string]bool // sites that a tenant got
	families map[family]int  // living tenants of a parent org in a region
	m        measures
	faults   []string
}

type family struct {
	parent string
	region prego.Region
}

// region is the fleet and the queue of one region.
type region struct {
	name    prego.Region
	hosts   []*host // ordered or active
	waiting []*resident
	runs    map[prego.Role]int // servers that a scale-out under way has still to boot
	made    map[prego.Role]int // servers ordered so far, for their names
	counts  map[prego.Role]*ScaleOut
}

// New prepares a simulation. All that is random comes from src.
func New(c Config, src *rand.PCG) *Simulation {
	s := &Simulation{
		c: c, rng: rand.New(src), byID: map[string]*host{}, assigned: map[string]bool{}, families: map[family]int{},
		end: time.Duration(c.Days)*24*time.Hour + c.Settle,
	}
	regions := make([]prego.Region, 0, len(c.Regions))
	for _, r := range c.Regions {
		regions = append(regions, r.Region)
		reg := &region{name: r.Region, runs: map[prego.Role]int{}, made: map[prego.Role]int{}, counts: map[prego.Role]*ScaleOut{}}
		for _, role := range roles {
			reg.counts[role] = &ScaleOut{Region: r.Region, Role: role}
		}
		s.regions = append(s.regions, reg)
	}
	s.fleet = placement.NewSnapshot(c.Policy, placement.Data{
		Providers: []placement.Provider{{ID: provider, Enabled: true, Regions: regions}}, Residency: c.residency(),
	})
	s.m.init(c)
	s.tenants = draw(&s.c, s.rng)
	for _, r := range s.regions {
		s.begin(r)
	}
	for _, t := range s.tenants {
		s.plan(t.arrives, func() { s.arrive(t) })
	}
	s.plan(0, s.tick)
	return s
}

// begin is a region's first servers, there from the start.
func (s *Simulation) begin(r *region) {
	if s.single() {
		for range s.c.WarmNodes {
			s.activate(s.order(r, prego.RoleNode, "", nil))
		}
		return
	}
	s.activate(s.order(r, prego.RoleDBShard, "", nil))
	s.activate(s.order(r, prego.RoleDBShard, prego.PlanBusiness, nil))
	s.activate(s.order(r, prego.RoleRedisPool, "", nil))
	for range initialServers {
		s.activate(s.order(r, prego.RoleApp, "", nil))
	}
}

func (s *Simulation) single() bool { return s.c.Policy.Mode == tenant.ModeOneTenantOneServer }

func (s *Simulation) regionOf(name prego.Region) *region {
	for _, r := range s.regions {
		if r.name == name {
			return r
		}
	}
	return nil
}

func (s *Simulation) arrive(t *resident) {
	r := s.regionOf(t.region)
	t.state = waiting
	s.m.arrived++
	if s.try(t) {
		return
	}
	t.waited = true
	r.waiting = append(r.waiting, t)
	s.scaleOut(r)
}

// try decides on one tenant, and reports whether that was the end of its waiting.
func (s *Simulation) try(t *resident) bool {
	r := t.request()
	d := s.fleet.Decide(r)
	s.m.decisions++
	switch {
	case d.PlacesTenant():
		s.place(t, r, d)
		return true
	case d.Outcome == placement.Refused:
		t.state = refused
		s.m.refuse(s.now, d.Code)
		return true
	}
	if !t.waited {
		s.m.wait(s.now, t, d)
	}
	if t.missing = d.MissingRoles; d.Outcome == placement.AwaitingCapacity && len(t.missing) == 0 {
		t.missing = []prego.Role{prego.RoleApp}
	}
	return false
}

func (s *Simulation) place(t *resident, r placement.Request, d placement.Decision) {
	s.m.place(s.now, t, d)
	s.affinity(t, d)
	s.fleet.Apply(r, d)
	t.state, t.placed = living, s.now
	t.server, t.shard, t.pool = s.byID[string(d.AppServerID)], s.byID[string(d.DBShardID)], s.byID[string(d.RedisPoolID)]
	t.mb = t.memory(s.now)
	t.server.mb += t.mb
	s.setMemory(t.server)
	s.families[family{t.parent, t.region}]++
	if d.PoolSiteID != "" {
		if s.assigned[d.PoolSiteID] {
			s.faults = append(s.faults, "site "+d.PoolSiteID+" was assigned twice")
		}
		s.assigned[d.PoolSiteID] = true
		t.server.sites = slices.DeleteFunc(t.server.sites, func(x site) bool { return x.id == d.PoolSiteID })
	}
	s.release(t)
	if d.Dedicates {
		s.dropSites(t.server, func(site) bool { return true })
	}
	s.planLeaving(t)
	if s.single() {
		s.warm(s.regionOf(t.region))
	} else {
		s.refill(t.server)
	}
}

// affinity counts how often a tenant whose family lives in its region came to it.
// Tenants that must be alone have no choice.
func (s *Simulation) affinity(t *resident, d placement.Decision) {
	if t.parent == "" || d.Dedicates || s.families[family{t.parent, t.region}] == 0 {
		return
	}
	s.m.kin++
	if srv, ok := s.fleet.Server(d.AppServerID); ok && srv.ParentOrgs[t.parent] > 0 {
		s.m.kinTogether++
	}
}

func (s *Simulation) planLeaving(t *resident) {
	if t.plan == prego.PlanTrial {
		s.plan(s.now+s.c.TrialFor, func() {
			if !t.converts {
				s.leave(t)
				return
			}
			t.plan = prego.PlanStarter
			s.planLeaving(t)
		})
		return
	}
	// A life longer than the simulation, infinite without churn, is none that ends; it must not overflow.
	if life := t.life / s.c.plan(t.plan).ChurnPerMonth * float64(month); life < float64(s.end) {
		s.plan(s.now+time.Duration(life), func() { s.leave(t) })
	}
}

func (s *Simulation) leave(t *resident) {
	r := s.regionOf(t.region)
	t.state = left
	s.m.left++
	s.families[family{t.parent, t.region}]--
	t.server.mb -= t.mb
	// What is dedicated to a tenant has no other.
	srv, _ := s.fleet.Server(prego.ServerID(t.server.id))
	srv.TenantCount--
	srv.ParentOrgs = without(srv.ParentOrgs, t.parent)
	srv.MemoryPct, srv.DedicatedFor = s.pct(t.server), ""
	s.fleet.SetServer(srv)
	sh, _ := s.fleet.Shard(t.shard.id)
	sh.Tenants--
	sh.ParentOrgs = without(sh.ParentOrgs, t.parent)
	sh.DedicatedFor = ""
	s.fleet.SetShard(sh)
	p, _ := s.fleet.Pool(t.pool.id)
	p.Tenants--
	p.DedicatedFor = ""
	s.fleet.SetPool(p)
	for _, h := range []*host{t.server, t.shard, t.pool} {
		h.emptySince = s.now // read only when the host is empty
	}
	if t.server.role == prego.RoleNode {
		s.retire(t.server)
		return
	}
	s.refill(t.server)
	s.serve(r)
}

// without is a copy: the fleet looks at the old map once more.
func without(orgs map[string]int, parent string) map[string]int {
	if parent == "" {
		return orgs
	}
	orgs = maps.Clone(orgs)
	if orgs[parent]--; orgs[parent] <= 0 {
		delete(orgs, parent)
	}
	return orgs
}

// class is what makes two tenants the same to the filters.
type class struct {
	plan      prego.Plan
	residency string
	redis     bool
}

// serve lets the waiting of a region try again: by the plan's priority, then the orgs in turn, then by age.
func (s *Simulation) serve(r *region) {
	if len(r.waiting) == 0 {
		return
	}
	queue := inTurn(r.waiting)
	hopeless := map[class]bool{}
	for _, t := range queue {
		k := class{t.plan, t.residency, t.dedicatedRedis}
		if hopeless[k] {
			continue
		}
		// What one tenant cannot have, another may that something was made for.
		if !s.try(t) && !s.single() && t.plan != prego.PlanEnterprise && !t.dedicatedRedis {
			hopeless[k] = true
		}
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(t *resident) bool { return t.state != waiting })
	s.scaleOut(r)
}

func inTurn(waiting []*resident) []*resident {
	type line struct {
		priority int
		org      string
	}
	turns := map[line]int{}
	for _, t := range waiting { // the oldest first
		k := line{t.plan.Priority(), t.org}
		t.turn = turns[k]
		turns[k]++
	}
	queue := slices.Clone(waiting)
	sort.SliceStable(queue, func(i, j int) bool {
		a, b := queue[i], queue[j]
		if a.plan.Priority() != b.plan.Priority() {
			return a.plan.Priority() < b.plan.Priority()
		}
		return a.turn < b.turn
	})
	return queue
}
