package placement

import (
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// override is placement-policy §8: capacity and ranking are skipped, invariants and other filters are not. The other
// parts are chosen among those that have room; if there is none, capacity is skipped for them also.
func (s *search) override() Decision {
	s.algorithm = Manual
	before := s.tally
	d := s.force()
	if d.Code != prego.CodeInsufficientResources {
		return d
	}
	crowded := *s
	crowded.tally, crowded.passed, crowded.crowded = before, struct{ shard, pool int }{}, true
	if d := crowded.again(); d.PlacesTenant() {
		return d
	}
	s.look()
	s.tally = before
	return s.again()
}

func (s *search) force() Decision {
	f, o := s.f, s.r.Override
	appID := o.AppServerID
	if o.RedisPoolID != "" {
		if _, ok := f.pools.get(string(o.RedisPoolID)); !ok {
			return s.refuse(prego.CodePoolUnknown, fmt.Sprintf("there is no Redis pool %q", o.RedisPoolID))
		}
	}
	if appID == "" {
		// Take the server that an ordinary placement with the forced parts would take.
		return s.forceParts()
	}
	i, ok := f.find(appID)
	if !ok {
		return s.refuse(prego.CodeServerUnknown, fmt.Sprintf("there is no app server %q", appID))
	}
	srv := &f.servers[i]
	if srv.Region != s.r.Region || srv.Status != server.Active { // before its companions are chosen
		return s.refuse(prego.CodeInvariantViolation, fmt.Sprintf(
			"app server %s is %s in region %s, and the tenant belongs on an active one in %s",
			appID, srv.Status, srv.Region, s.r.Region))
	}
	if srv.Cordoned {
		return s.refuse(prego.CodeInvariantViolation,
			fmt.Sprintf("app server %s is cordoned: it takes no new tenants", appID))
	}
	if err := f.checkKept(s.r, &srv.Server); err != nil {
		return s.refuse(prego.CodeOf(err), messageOf(err))
	}
	if !s.satisfies(i) {
		s.countServers()
		return s.refuse(prego.CodeCellMismatch, fmt.Sprintf(
			"app server %s does not satisfy the constraint (%s); ignore_constraint forces it", appID, s.r.Constraint))
	}
	s.scoreShards()
	s.scorePools()
	s.countServers()
	here := s.nearTo(srv)
	d := s.decision(Placed)
	d.AppServerID, d.InfraProvider = appID, srv.InfraProvider
	d.Dedicates = s.exclusive && f.hot[i].flags&flagEmpty != 0
	d.Confidence = 1
	switch {
	case o.DBShardID != "":
		if _, ok := f.shards.get(string(o.DBShardID)); !ok {
			return s.refuse(prego.CodeShardUnknown, fmt.Sprintf("there is no DB shard %q", o.DBShardID))
		}
		d.DBShardID = o.DBShardID
	case srv.Role == prego.RoleNode:
		d.DBShardID = f.shards.items[srv.ownShard].ShardID
	default:
		// A shard for which the server has a site, or else the best one.
		if slot := s.siteShard(i, &f.hot[i]); slot >= 0 {
			d.DBShardID = f.shards.items[slot].ShardID
		} else if here.bestShard >= 0 {
			d.DBShardID = f.shards.items[here.bestShard].ShardID
		}
	}
	switch {
	case o.RedisPoolID != "":
		d.RedisPoolID = o.RedisPoolID
	case srv.Role == prego.RoleNode:
		d.RedisPoolID = prego.RedisPoolID(f.pools.items[srv.ownPool].PoolID)
	case here.bestPool >= 0:
		d.RedisPoolID = prego.RedisPoolID(f.pools.items[here.bestPool].PoolID)
	}
	if d.DBShardID == "" || d.RedisPoolID == "" {
		out := s.noCapacity()
		out.MissingRoles, out.MissingIn = nil, srv.NetworkID
		if d.DBShardID == "" {
			out.MissingRoles = append(out.MissingRoles, prego.RoleDBShard)
		}
		if d.RedisPoolID == "" {
			out.MissingRoles = append(out.MissingRoles, prego.RoleRedisPool)
		}
		out.Code = prego.CodeInsufficientResources
		out.SelectionReason = fmt.Sprintf("the forced server has no companion in region %s; short of: %v",
			s.r.Region, out.MissingRoles)
		return out
	}
	return s.finishOverride(d, srv)
}

func (s *search) finishOverride(d Decision, srv *member) Decision {
	f := s.f
	for _, g := range srv.groups {
		if f.shards.items[g.shard].ShardID == d.DBShardID {
			d.PoolSiteID = s.freeSite(&g)
		}
	}
	d.SelectionReason = "manual: " + s.r.Override.Reason
	if err := f.CheckInvariants(s.r, d); err != nil {
		return s.refuse(prego.CodeOf(err), messageOf(err))
	}
	if d.PoolSiteID == "" {
		if d.Outcome = OnDemandSite; f.policy.EmptyPool == Hold && s.mode == tenant.ModeShared {
			h := s.without(HoldForSite, codeNoSite,
				"the forced server has no site left on the forced shard: the placement waits for a refill")
			h.AppServerID = d.AppServerID
			return h
		}
	}
	return d
}

// forceParts forces the shard, the Redis pool or both, and chooses the server.
func (s *search) forceParts() Decision {
	f, o := s.f, *s.r.Override
	var node prego.ServerID // whose part is forced: it is reached through its node
	place, slot := -1, int32(-1)
	if o.DBShardID != "" {
		shard, ok := f.shards.get(string(o.DBShardID))
		if !ok {
			return s.refuse(prego.CodeShardUnknown, fmt.Sprintf("there is no DB shard %q", o.DBShardID))
		}
		node, slot = shard.HostServerID, f.shards.byID[string(o.DBShardID)]
		place = int(f.shardPlace[slot])
	}
	if o.RedisPoolID != "" && node == "" {
		pool, _ := f.pools.get(string(o.RedisPoolID))
		node = pool.HostServerID
		if place < 0 {
			place = int(f.poolPlace[f.pools.byID[string(o.RedisPoolID)]])
		}
	}
	if node != "" {
		o.AppServerID = node
		s.r.Override = &o
		return s.force()
	}
	s.scoreShards()
	s.scorePools()
	here := &s.near[place]
	s.saw.servers = true
	var best, bare triple
	for i := range f.hot {
		s.looked++
		if why := s.server(i, s.flags(&f.hot[i])); why != passes {
			s.reject(listServers, string(f.servers[i].ServerID), why)
			continue
		}
		if f.hot[i].flags&flagNode != 0 {
			continue
		}
		if int(f.hot[i].place) != place {
			s.reject(listServers, string(f.servers[i].ServerID), rejectNetwork)
			continue
		}
		t := triple{server: i, shard: slot, score: f.hot[i].score, ok: true}
		site := false
		if slot >= 0 {
			for _, g := range f.servers[i].groups {
				site = site || g.shard == slot
			}
		} else if t.shard = s.siteShard(i, &f.hot[i]); t.shard >= 0 {
			site = true
		} else if t.shard = here.bestShard; t.shard < 0 {
			continue
		}
		if s.passing != nil {
			s.passing(t, site)
		}
		into := &bare
		if site {
			into = &best
		}
		if !into.ok || t.score > into.score+epsilon {
			*into = t
		}
	}
	if !best.ok {
		best = bare
	}
	pool := o.RedisPoolID
	if pool == "" && here.bestPool >= 0 {
		pool = prego.RedisPoolID(f.pools.items[here.bestPool].PoolID)
	}
	if !best.ok || pool == "" {
		return s.noCapacity()
	}
	srv := &f.servers[best.server]
	d := s.decision(Placed)
	d.AppServerID, d.InfraProvider, d.Confidence = srv.ServerID, srv.InfraProvider, 1
	d.Dedicates = s.exclusive && f.hot[best.server].flags&flagEmpty != 0
	d.DBShardID, d.RedisPoolID = f.shards.items[best.shard].ShardID, pool
	return s.finishOverride(d, srv)
}

func (s *search) again() Decision {
	if s.restarts != nil {
		s.restarts()
	}
	return s.force()
}

func messageOf(err error) string {
	if e, ok := err.(*prego.Error); ok { //nolint:errorlint // made by CheckInvariants
		return e.Message
	}
	return err.Error()
}
