package placement

import (
	"slices"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// filter is a rule that candidates must pass, and the reason for rejecting those that fail. A filter of servers
// applies to the few servers with its flag, and without a function rejects them all. The lists are in the order of
// the pipeline (placement-policy §2): a candidate is rejected by the first filter that it fails, and a funnel shows
// them in this order.
type filter[C any] struct {
	reason  reason
	flag    uint32 // 0 of shards and pools
	rejects func(s *search, c C) bool
	room    bool // it is about room, of which an override may ask for more than there is
}

// first is the reason of the first filter that a candidate fails.
func first[C any](s *search, filters []filter[C], flags uint32, c C) reason {
	for i := range filters {
		f := &filters[i]
		if f.flag&flags == f.flag && (f.rejects == nil || f.rejects(s, c)) &&
			(!f.room || !s.crowded && !s.wished) && (!waived(f.reason) || !s.wished) {
			return f.reason
		}
	}
	return passes
}

// candidate is a server during a scan.
type candidate struct {
	i     int
	flags uint32
}

var serverFilters = []filter[candidate]{
	{rejectConstraint, flagTags, func(s *search, c candidate) bool { return !s.satisfies(c.i) }, false},
	{rejectRegion, flagElsewhere, nil, false},
	{rejectProvider, flagBadProvider, nil, false},
	{rejectResidency, flagZone, func(s *search, c candidate) bool {
		return !slices.Contains(s.zone.Providers, s.f.servers[c.i].InfraProvider)
	}, false},
	{rejectDedicated, flagDedicated, func(s *search, c candidate) bool {
		return s.f.servers[c.i].DedicatedFor != s.r.TenantID
	}, false},
	{rejectNotServing, flagNotServing, func(_ *search, c candidate) bool { return c.flags&flagDedicated == 0 }, false},
	{rejectNotEmpty, flagAlone, func(_ *search, c candidate) bool { return c.flags&flagEmpty == 0 }, false},
	{rejectTrials, flagNoTrials, func(s *search, _ candidate) bool { return s.r.Plan == prego.PlanTrial }, false},
	{rejectWarmPlan, flagWarm, func(s *search, c candidate) bool {
		ours := s.mode == tenant.ModeOneTenantOneServer && s.f.servers[c.i].WarmPlan == s.r.Plan
		return !ours && c.flags&flagDedicated == 0
	}, false},
	{rejectStatus, flagClosed, func(s *search, c candidate) bool { return s.f.servers[c.i].Status != server.Active }, false},
	{rejectCordoned, flagClosed, nil, false},
	{rejectMemory, flagMemory, nil, true},
	{rejectCPU, flagCPU, func(s *search, _ candidate) bool { return !s.exclusive }, true},
	{rejectWorkerSlots, flagWorkerSlots, func(s *search, _ candidate) bool { return !s.exclusive }, true},
	{rejectCount, flagFull, nil, true},
	{rejectBusy, flagBusy, func(s *search, c candidate) bool { return s.r.Busy[string(s.f.servers[c.i].ServerID)] }, false},
}

// The tier lock is the first filter of a shard that depends on the plan (placement-policy §2.3).
var shardFilters = []filter[*Shard]{
	{rejectRegion, 0, func(s *search, sh *Shard) bool { return sh.Region != s.r.Region }, false},
	{rejectTierLock, 0, func(s *search, sh *Shard) bool {
		return !sh.AnyPlan && !TierLockAllows(s.r.Plan, sh.PlanTierLock)
	}, false},
	{rejectDedicated, 0, func(s *search, sh *Shard) bool {
		return sh.DedicatedFor != "" && sh.DedicatedFor != s.r.TenantID
	}, false},
	{rejectNotServing, 0, func(_ *search, sh *Shard) bool { return sh.NotServing && sh.DedicatedFor == "" }, false},
	{rejectStatus, 0, func(_ *search, sh *Shard) bool { return sh.Status != server.Active }, false},
	{rejectCordoned, 0, func(_ *search, sh *Shard) bool { return sh.Cordoned }, false},
	{rejectNotEmpty, 0, func(s *search, sh *Shard) bool { return s.alone && (sh.Tenants > 0 || sh.RunsInstances) }, false},
	{rejectDisk, 0, func(s *search, sh *Shard) bool { return HasReached(sh.DiskPct, s.f.policy.DBDiskPctMax) }, true},
	{rejectShardFull, 0, func(_ *search, sh *Shard) bool { return sh.Tenants >= sh.Capacity }, true},
	{rejectBusy, 0, func(s *search, sh *Shard) bool { return s.r.Busy[string(sh.ShardID)] }, false},
}

var poolFilters = []filter[*RedisPool]{
	{rejectRegion, 0, func(s *search, p *RedisPool) bool { return p.Region != s.r.Region }, false},
	{rejectDedicated, 0, func(s *search, p *RedisPool) bool {
		return p.DedicatedFor != "" && p.DedicatedFor != s.r.TenantID
	}, false},
	{rejectNotServing, 0, func(_ *search, p *RedisPool) bool { return p.NotServing && p.DedicatedFor == "" }, false},
	{rejectStatus, 0, func(_ *search, p *RedisPool) bool { return p.Status != server.Active }, false},
	{rejectCordoned, 0, func(_ *search, p *RedisPool) bool { return p.Cordoned }, false},
	{rejectNotEmpty, 0, func(s *search, p *RedisPool) bool { return s.ownPool && (p.Tenants > 0 || p.RunsInstances) }, false},
	{rejectRedisMemory, 0, func(s *search, p *RedisPool) bool {
		return HasReached(p.MemoryPct, s.f.policy.RedisMemoryPctMax)
	}, true},
	{rejectPoolFull, 0, func(_ *search, p *RedisPool) bool { return p.Tenants >= p.Capacity }, true},
	{rejectBusy, 0, func(s *search, p *RedisPool) bool { return s.r.Busy[p.PoolID] }, false},
}

func (s *search) shard(sh *Shard) reason { return first(s, shardFilters, 0, sh) }

func (s *search) pool(p *RedisPool) reason { return first(s, poolFilters, 0, p) }

// flags are a server's flags for a request.
func (s *search) flags(h *hot) uint32 {
	flags := uint32(h.flags) | s.asks
	if !s.near[h.place].here {
		flags |= flagElsewhere
	}
	return flags
}

// server filters a server, and a node also by its own shard and pool.
func (s *search) server(i int, flags uint32) reason {
	if why := first(s, serverFilters, flags, candidate{i, flags}); why != passes || flags&flagNode == 0 {
		return why
	}
	srv := &s.f.servers[i]
	if why := s.shard(&s.f.shards.items[srv.ownShard]); why != passes {
		return why
	}
	return s.pool(&s.f.pools.items[srv.ownPool])
}

// reasonsOf are the reasons of filters, in their order.
func reasonsOf[C any](filters []filter[C]) []reason {
	out := make([]reason, len(filters))
	for i, f := range filters {
		out[i] = f.reason
	}
	return out
}
