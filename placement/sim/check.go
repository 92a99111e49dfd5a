package sim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/prego/prego"
)

// Check recounts the fleet from the tenants, independently of the counts of the
// placement engine and the simulation, and returns the violated invariants.
func (s *Simulation) Check() []string {
	out := slices.Clone(s.faults)
	fault := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	on := map[*host][]*resident{}
	arrived, placed, gone, waits, rejected := 0, 0, 0, 0, 0
	for _, t := range s.tenants {
		switch t.state {
		case coming:
			continue
		case living:
			placed++
			on[t.server] = append(on[t.server], t)
			if t.shard != t.server { // a node is all three
				on[t.shard], on[t.pool] = append(on[t.shard], t), append(on[t.pool], t)
			}
			s.checkTenant(t, fault)
		case left:
			placed++
			gone++
		case waiting:
			waits++
		case refused:
			rejected++
		}
		arrived++
	}
	queued := 0
	for _, r := range s.regions {
		queued += len(r.waiting)
	}
	if arrived != s.m.arrived || placed != s.m.placed || gone != s.m.left || waits != queued || arrived != placed+waits+rejected {
		fault("tenants: %d arrived, %d were placed, %d left, %d wait and %d were rejected, "+
			"which contradicts the counters",
			arrived, placed, gone, waits, rejected)
	}
	live := 0
	for _, h := range s.hosts {
		if h.retired {
			if len(on[h]) > 0 {
				fault("%s was given back with %d tenants", h.id, len(on[h]))
			}
			continue
		}
		live++
		if h.active {
			s.checkHost(h, on[h], fault)
		}
	}
	if live != s.live {
		fault("servers: %d are there, %d were counted", live, s.live)
	}
	if out == nil {
		out = []string{} // null means no list
	}
	return out
}

type faulter func(format string, args ...any)

// checkTenant checks where a tenant was placed.
func (s *Simulation) checkTenant(t *resident, fault faulter) {
	for _, h := range []*host{t.server, t.shard, t.pool} {
		if h == nil || !h.active {
			fault("%s lives on a server that is not active", t.id)
			return
		}
		if h.region != t.region {
			fault("%s is in region %s on %s", t.id, t.region, h.id)
		}
	}
	for _, r := range s.c.Regions {
		if t.residency == r.Country && t.region != r.Region {
			fault("%s: data of residents of %s is in region %s", t.id, t.residency, t.region)
		}
	}
	if t.server.role == prego.RoleNode {
		if t.shard != t.server || t.pool != t.server {
			fault("%s lives on node %s and elsewhere", t.id, t.server.id)
		}
		return
	}
	lock := t.shard.lock
	if sh, ok := s.fleet.Shard(t.shard.id); !ok || sh.PlanTierLock != lock {
		fault("%s is not locked as it was made", t.shard.id)
	}
	ok := false
	switch t.plan {
	case prego.PlanTrial:
		ok = lock == "" || lock == prego.PlanTrial
	case prego.PlanStarter:
		ok = lock == ""
	case prego.PlanBusiness:
		ok = lock == prego.PlanBusiness
	case prego.PlanEnterprise:
		ok = lock != prego.PlanTrial
	}
	if !ok {
		fault("%s (%s) lives on %s, which is locked to %q", t.id, t.plan, t.shard.id, lock)
	}
}

// checkHost checks a machine and its tenants.
func (s *Simulation) checkHost(h *host, tenants []*resident, fault faulter) {
	n := len(tenants)
	if counted := s.tenantsOn(h); counted != n {
		fault("%s has %d tenants, the fleet counts %d", h.id, n, counted)
	}
	parents := map[string]int{}
	for _, t := range tenants {
		if t.parent != "" && h.role != prego.RoleRedisPool {
			parents[t.parent]++
		}
	}
	var counted map[string]int
	most := s.c.Policy.MaxTenantsPerNode
	var dedicatedFor prego.TenantID
	switch h.role {
	case prego.RoleDBShard:
		v, _ := s.fleet.Shard(h.id)
		most, dedicatedFor, counted = s.c.ShardCapacity, v.DedicatedFor, v.ParentOrgs
	case prego.RoleRedisPool:
		v, _ := s.fleet.Pool(h.id)
		most, dedicatedFor = s.c.PoolCapacity, v.DedicatedFor
	default:
		v, ok := s.fleet.Server(prego.ServerID(h.id))
		if !ok {
			fault("%s is not in the fleet", h.id)
		}
		if dedicatedFor, counted = v.DedicatedFor, v.ParentOrgs; s.single() {
			most = 1
		}
		mb := 0
		for _, t := range tenants {
			mb += t.mb
		}
		if mb != h.mb || v.MemoryPct != s.pct(h) {
			fault("%s: its tenants use %d MB, %d were counted, %.1f %% in the fleet", h.id, mb, h.mb, v.MemoryPct)
		}
		if sites := s.fleet.Sites(prego.ServerID(h.id)); sites != len(h.sites) {
			fault("%s has %d sites, the fleet counts %d", h.id, len(h.sites), sites)
		}
	}
	if !maps.Equal(parents, counted) {
		fault("%s has tenants of the parent orgs %v, the fleet counts %v", h.id, parents, counted)
	}
	if n > most {
		fault("%s has %d tenants, more than %d", h.id, n, most)
	}
	for _, t := range tenants {
		if n > 1 && (t.plan == prego.PlanEnterprise || (h.role == prego.RoleRedisPool && t.dedicatedRedis)) {
			fault("%s (%s) is not alone on %s", t.id, t.plan, h.id)
		}
		if dedicatedFor != "" && prego.TenantID(t.id) != dedicatedFor {
			fault("%s lives on %s, which is dedicated to %s", t.id, h.id, dedicatedFor)
		}
	}
	if h.reserved != nil && h.reserved.state != waiting {
		fault("%s is set aside for %s, which does not wait", h.id, h.reserved.id)
	}
}
