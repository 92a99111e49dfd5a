package sim

import (
	"slices"

	"github.com/prego/prego"
)

// want is one machine of a scale-out.
type want struct {
	lock  prego.Plan
	alone *resident
}

// scaleOut orders what the waiting tenants of a region are short of: one run per role at a time, sized for the
// present waiters. Later ones are counted when the run has ended.
func (s *Simulation) scaleOut(r *region) {
	if s.single() {
		s.ownNodes(r)
		return
	}
	for _, role := range roles {
		if r.runs[role] > 0 {
			continue
		}
		if wants := s.wants(r, role); len(wants) > 0 {
			s.run(r, role, wants[:min(len(wants), maxPerRun)])
		}
	}
}

// wants are the machines that would let the waiting in. Who must be alone gets one that is set aside for it: else the
// next starter would take it as the emptiest of all, and the tenant waited for ever.
func (s *Simulation) wants(r *region, role prego.Role) []want {
	var out []want
	sharing := map[prego.Plan]int{}
	for _, t := range inTurn(r.waiting) {
		switch {
		case !slices.Contains(t.missing, role):
		case t.plan == prego.PlanEnterprise, role == prego.RoleRedisPool && t.dedicatedRedis:
			if !slices.ContainsFunc(t.reserved, func(h *host) bool { return h.role == role }) {
				out = append(out, want{alone: t})
			}
		case role == prego.RoleDBShard && t.plan == prego.PlanBusiness:
			sharing[prego.PlanBusiness]++
		default:
			sharing[""]++
		}
	}
	each := map[prego.Role]int{prego.RoleApp: tenantsPerNewServer, prego.RoleDBShard: s.c.ShardCapacity, prego.RoleRedisPool: s.c.PoolCapacity}[role]
	for _, lock := range []prego.Plan{prego.PlanBusiness, ""} {
		for n := sharing[lock]; n > 0; n -= each {
			out = append(out, want{lock: lock})
		}
	}
	return out
}

// run boots machines; its end lets the waiting try again and looks for what they are still short of.
func (s *Simulation) run(r *region, role prego.Role, wants []want) {
	r.runs[role] = len(wants)
	s.m.scaleOut(s.now, r.counts[role], len(wants))
	for _, w := range wants {
		h := s.order(r, role, w.lock, w.alone)
		s.plan(s.now+s.bootTime(role), func() {
			r.runs[role]--
			s.activate(h)
			s.serve(r)
		})
	}
}

// ownNodes is one_tenant_one_server: each tenant that no warm node was left for gets a new one.
func (s *Simulation) ownNodes(r *region) {
	for _, t := range r.waiting {
		if len(t.reserved) == 0 {
			s.bootNode(r, t)
		}
	}
}

// warm keeps the region's number of unclaimed nodes.
func (s *Simulation) warm(r *region) {
	have := 0
	for _, h := range r.hosts {
		if h.reserved == nil && (!h.active || s.tenantsOn(h) == 0) {
			have++
		}
	}
	for ; have < s.c.WarmNodes; have++ {
		s.bootNode(r, nil)
	}
}

func (s *Simulation) bootNode(r *region, alone *resident) {
	s.m.scaleOut(s.now, r.counts[prego.RoleNode], 1)
	h := s.order(r, prego.RoleNode, "", alone)
	s.plan(s.now+s.bootTime(prego.RoleNode), func() {
		s.activate(h)
		s.serve(r)
	})
}
