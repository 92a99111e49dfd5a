package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
)

// host is one machine, of any role, from its order to its end.
type host struct {
	id         string
	role       prego.Role
	region     prego.Region
	lock       prego.Plan // of DB shards
	ordered    time.Duration
	gone       time.Duration
	active     bool
	retired    bool
	emptySince time.Duration
	mb         int // memory of its tenants
	reserved   *resident
	sites      []site
	building   bool
}

// hostsApp reports whether tenants' apps run on h.
func (h *host) hostsApp() bool { return h.role == prego.RoleApp || h.role == prego.RoleNode }

// order buys a machine; a tenant that it is for alone may be given.
func (s *Simulation) order(r *region, role prego.Role, lock prego.Plan, alone *resident) *host {
	r.made[role]++
	h := &host{
		id: fmt.Sprintf("%s-%s-%05d", short(role), r.name, r.made[role]), role: role, region: r.name, lock: lock,
		ordered: s.now, reserved: alone,
	}
	if alone != nil {
		alone.reserved = append(alone.reserved, h)
	}
	s.hosts, r.hosts, s.byID[h.id] = append(s.hosts, h), append(r.hosts, h), h
	s.live++
	s.m.peak(s.now, s.live)
	return h
}

func short(role prego.Role) string {
	switch role {
	case prego.RoleDBShard:
		return "db"
	case prego.RoleRedisPool:
		return "redis"
	}
	return string(role)
}

func (s *Simulation) bootTime(role prego.Role) time.Duration {
	f := 1 + bootJitter*(2*s.rng.Float64()-1)
	return time.Duration(float64(s.c.role(role).Boot) * f).Round(time.Second)
}

// activate makes a machine a candidate.
func (s *Simulation) activate(h *host) {
	h.active, h.emptySince = true, s.now
	aloneFor := ""
	if h.reserved != nil {
		aloneFor = h.reserved.id
	}
	r := s.regionOf(h.region)
	switch h.role {
	case prego.RoleDBShard:
		s.fleet.SetShard(placement.Shard{ShardID: prego.ShardID(h.id), Region: h.region, PlanTierLock: h.lock, DedicatedFor: prego.TenantID(aloneFor), Capacity: s.c.ShardCapacity, Status: server.Active})
		for _, other := range r.hosts {
			s.refill(other)
		}
	case prego.RoleRedisPool:
		s.fleet.SetPool(placement.RedisPool{PoolID: h.id, Region: h.region, DedicatedFor: prego.TenantID(aloneFor), Capacity: s.c.PoolCapacity, Status: server.Active})
	default:
		s.fleet.SetServer(placement.Server{
			ServerID: prego.ServerID(h.id), Role: h.role, Region: h.region, InfraProvider: provider, Status: server.Active,
			MemoryPct: s.pct(h), DedicatedFor: prego.TenantID(aloneFor),
		})
		s.refill(h)
	}
}

// release frees servers that were created for one tenant, which got others.
func (s *Simulation) release(t *resident) {
	for _, h := range t.reserved {
		h.reserved = nil
		if h.active && h != t.server && h != t.shard && h != t.pool {
			s.free(h)
		}
	}
}

func (s *Simulation) free(h *host) {
	switch h.role {
	case prego.RoleDBShard:
		v, _ := s.fleet.Shard(h.id)
		v.DedicatedFor = ""
		s.fleet.SetShard(v)
	case prego.RoleRedisPool:
		v, _ := s.fleet.Pool(h.id)
		v.DedicatedFor = ""
		s.fleet.SetPool(v)
	default:
		v, _ := s.fleet.Server(prego.ServerID(h.id))
		v.DedicatedFor = ""
		s.fleet.SetServer(v)
		s.refill(h)
	}
}

// tenantsOn is how many live on a machine, by the fleet's count.
func (s *Simulation) tenantsOn(h *host) int {
	switch h.role {
	case prego.RoleDBShard:
		v, _ := s.fleet.Shard(h.id)
		return v.Tenants
	case prego.RoleRedisPool:
		v, _ := s.fleet.Pool(h.id)
		return v.Tenants
	}
	v, _ := s.fleet.Server(prego.ServerID(h.id))
	return v.TenantCount
}

func (s *Simulation) pct(h *host) float64 {
	m := s.c.role(h.role)
	return min(100, 100*float64(m.BaseMB+h.mb)/float64(m.MemoryMB))
}

// setMemory gives the fleet what a server uses, if h is one and active.
func (s *Simulation) setMemory(h *host) {
	if v, ok := s.fleet.Server(prego.ServerID(h.id)); ok {
		v.MemoryPct = s.pct(h)
		s.fleet.SetServer(v)
	}
}

// retire gives a machine back.
func (s *Simulation) retire(h *host) {
	h.active, h.retired, h.gone = false, true, s.now
	s.live--
	r := s.regionOf(h.region)
	r.hosts = slices.DeleteFunc(r.hosts, func(x *host) bool { return x == h })
	s.fleet.RemoveServer(prego.ServerID(h.id))
	if v, ok := s.fleet.Shard(h.id); ok {
		v.Status, v.DedicatedFor = server.Terminated, ""
		s.fleet.SetShard(v)
	}
	if v, ok := s.fleet.Pool(h.id); ok {
		v.Status, v.DedicatedFor = server.Terminated, ""
		s.fleet.SetPool(v)
	}
}

// shrink gives back servers that have long been empty, and keeps one of each kind. A region with waiting tenants
// keeps all.
func (s *Simulation) shrink(r *region) {
	if s.single() || len(r.waiting) > 0 {
		return
	}
	type kind struct {
		role prego.Role
		lock prego.Plan
	}
	left := map[kind]int{}
	for _, h := range r.hosts {
		if h.active {
			left[kind{h.role, h.lock}]++
		}
	}
	for _, h := range slices.Clone(r.hosts) {
		k := kind{h.role, h.lock}
		if h.active && h.reserved == nil && left[k] > 1 && h.emptySince+s.c.IdleFor <= s.now && s.tenantsOn(h) == 0 {
			left[k]--
			s.retire(h)
		}
	}
}

// tick is what happens by the clock: tenants grow, empty machines are given back,
// pools are looked after, and the fleet is measured.
func (s *Simulation) tick() {
	for _, t := range s.tenants {
		if t.state == living {
			mb := t.memory(s.now)
			t.server.mb += mb - t.mb
			t.mb = mb
		}
	}
	for _, r := range s.regions {
		for _, h := range r.hosts {
			s.setMemory(h)
		}
		s.shrink(r)
		for _, h := range r.hosts {
			s.refill(h)
		}
		s.serve(r)
	}
	s.sample()
	s.plan(s.now+sampleEvery, s.tick)
}
