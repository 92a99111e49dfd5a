package sim

import (
	"fmt"
	"slices"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
)

// site is a pre-made site on an app server, bound to a shard.
type site struct {
	id    string
	shard *host
}

// refill brings an app server's site pool to its target, one site at a time. Sites on closed shards are dropped
// first.
func (s *Simulation) refill(h *host) {
	s.dropSites(h, func(x site) bool { return !s.open(x.shard) })
	if h.building || s.siteShard(h) == nil {
		return
	}
	h.building = true
	s.plan(s.now+siteBuild, func() {
		h.building = false
		// The site may no longer be wanted, or be wanted elsewhere.
		if shard := s.siteShard(h); shard != nil {
			s.sites++
			x := site{id: fmt.Sprintf("site-%07d", s.sites), shard: shard}
			h.sites = append(h.sites, x)
			s.fleet.AddSite(placement.PoolSite{PoolSiteID: x.id, AppServerID: prego.ServerID(h.id), DBShardID: prego.ShardID(shard.id)})
			s.serve(s.regionOf(h.region))
		}
		s.refill(h)
	})
}

// siteShard is the shard for the next site of a server; nil when the pool is full, or the server closed or not active.
func (s *Simulation) siteShard(h *host) *host {
	srv, ok := s.fleet.Server(prego.ServerID(h.id))
	if !ok || srv.DedicatedFor != "" || srv.TenantCount+len(h.sites) >= s.c.Policy.MaxTenantsPerNode || srv.MemoryPct >= s.c.Policy.MemoryPctMax {
		return nil
	}
	if h.role == prego.RoleNode {
		if srv.TenantCount+len(h.sites) > 0 {
			return nil
		}
		return h
	}
	have := map[prego.Plan]int{}
	for _, x := range h.sites {
		have[x.shard.lock]++
	}
	if have[""] < sitesPerServer {
		if shard := s.roomiest(h.region, ""); shard != nil {
			return shard
		}
	}
	if have[prego.PlanBusiness] < businessSitesPerServer {
		return s.roomiest(h.region, prego.PlanBusiness)
	}
	return nil
}

// roomiest is the region's open shard of a lock with the fewest tenants.
func (s *Simulation) roomiest(name prego.Region, lock prego.Plan) *host {
	var best *host
	fewest := 0
	for _, h := range s.regionOf(name).hosts {
		if h.role != prego.RoleDBShard || h.lock != lock || !s.open(h) {
			continue
		}
		if n := s.tenantsOn(h); best == nil || n < fewest {
			best, fewest = h, n
		}
	}
	return best
}

// open reports whether a shard takes tenants of the ordinary kind.
func (s *Simulation) open(h *host) bool {
	v, ok := s.fleet.Shard(h.id)
	return ok && v.Status == server.Active && v.DedicatedFor == "" && v.Tenants < v.Capacity
}

func (s *Simulation) dropSites(h *host, drop func(site) bool) {
	h.sites = slices.DeleteFunc(h.sites, func(x site) bool {
		if !drop(x) {
			return false
		}
		s.fleet.RemoveSite(prego.ServerID(h.id), x.id)
		return true
	})
}
