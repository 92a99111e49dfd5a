package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// WhatIf changes a placement that is tried: the request, or the fleet. Nil fields change nothing.
type WhatIf struct {
	Plan             *prego.Plan
	Region           *prego.Region
	Constraint       *prego.Constraint // normalized; instead of the request's own
	DedicatedRedis   *bool
	Cordon, Uncordon []string // servers, shards and pools
	Add              *AddedServer
}

// AddedServer is one more server, active and empty.
type AddedServer struct {
	Role      prego.Role
	Region    prego.Region    // "" for the request's
	NetworkID prego.NetworkID // "" for the network with most servers of its region
	Provider  prego.InfraProviderID
	Tags      []string // lower-case
	Capacity  int      // of a shard or a pool, in tenants
}

// AddedID is the id of an added server.
const AddedID = "what-if-1"

// Apply changes a request, and a snapshot for it. A server that is not known is refused with CodeServerUnknown.
func (w WhatIf) Apply(f *Snapshot, r Request) (Request, error) {
	prego.Assign(&r.Plan, w.Plan)
	prego.Assign(&r.Region, w.Region)
	prego.Assign(&r.Constraint, w.Constraint)
	prego.Assign(&r.DedicatedRedis, w.DedicatedRedis)
	for _, list := range []struct {
		field string
		ids   []string
		on    bool
	}{{"change.cordon", w.Cordon, true}, {"change.uncordon", w.Uncordon, false}} {
		for i, id := range list.ids {
			if !f.setCordoned(id, list.on) {
				return r, &prego.Error{Code: prego.CodeServerUnknown, Field: fmt.Sprintf("%s[%d]", list.field, i), Message: fmt.Sprintf("there is no server %q that takes tenants", id)}
			}
		}
	}
	if w.Add != nil {
		f.add(*w.Add, r)
	}
	return r, nil
}

// setCordoned closes or opens the app server or node (with its parts), shard or pool of that id.
func (f *Snapshot) setCordoned(id string, on bool) (found bool) {
	if i, ok := f.find(prego.ServerID(id)); ok {
		s := f.servers[i].Server
		s.Cordoned, found = on, true
		f.SetServer(s)
	}
	if s, ok := f.shards.get(id); ok {
		s.Cordoned, found = on, true
		f.SetShard(s)
	}
	if p, ok := f.pools.get(id); ok {
		p.Cordoned, found = on, true
		f.SetPool(p)
	}
	return found
}

func (f *Snapshot) add(a AddedServer, r Request) {
	a.Region = cmp.Or(a.Region, r.Region)
	a.NetworkID = cmp.Or(a.NetworkID, f.usualNetwork(a.Region))
	a.Provider = cmp.Or(a.Provider, f.usualProvider(a.Region))
	switch a.Role {
	case prego.RoleDBShard:
		f.SetShard(Shard{ShardID: AddedID, Region: a.Region, NetworkID: a.NetworkID, PlanTierLock: ShardLockFor(r.Plan), Capacity: a.Capacity, Status: server.Active})
	case prego.RoleRedisPool:
		f.SetPool(RedisPool{PoolID: AddedID, Region: a.Region, NetworkID: a.NetworkID, Capacity: a.Capacity, Status: server.Active})
	default:
		f.SetServer(Server{ServerID: AddedID, Role: a.Role, Region: a.Region, NetworkID: a.NetworkID, InfraProvider: a.Provider, Tags: a.Tags, Status: server.Active})
	}
}

// usualNetwork is the network with most servers, shards and pools of a region; the lowest id of several.
func (f *Snapshot) usualNetwork(region prego.Region) prego.NetworkID {
	n := map[prego.NetworkID]int{}
	for i := range f.servers {
		if f.servers[i].Region == region {
			n[f.servers[i].NetworkID]++
		}
	}
	for i := range f.shards.items {
		if f.shards.items[i].Region == region {
			n[f.shards.items[i].NetworkID]++
		}
	}
	for i := range f.pools.items {
		if f.pools.items[i].Region == region {
			n[f.pools.items[i].NetworkID]++
		}
	}
	return most(n)
}

// usualProvider is the cloud that serves a region; the lowest id of several.
func (f *Snapshot) usualProvider(region prego.Region) prego.InfraProviderID {
	n := map[prego.InfraProviderID]int{}
	for id, p := range f.providers {
		if p.Enabled && slices.Contains(p.Regions, region) {
			n[id] = 1
		}
	}
	return most(n)
}

func most[K ~string](n map[K]int) (best K) {
	for _, k := range slices.Sorted(maps.Keys(n)) {
		if n[k] > n[best] {
			best = k
		}
	}
	return best
}

// AnotherTenant is the tenant of a request that stands for one more like an existing one.
const AnotherTenant = "what-if"

// Answer is a decision with its funnel.
type Answer struct {
	Line   Line
	Funnel Funnel
}

// Answer decides on a request; the funnel lists at most so many.
func (f *Snapshot) Answer(r Request, most int) Answer {
	d, funnel := f.Funnel(r, most)
	return Answer{LineOf(r, d), funnel}
}

// SamePlace reports whether two decisions come to the same.
func SamePlace(a, b Line) bool {
	of := func(l Line) KeptPlace {
		return KeptPlace{
			Outcome: l.Outcome, Code: l.Code, AppServerID: l.AppServerID, DBShardID: l.DBShardID, RedisPoolID: l.RedisPoolID, PoolSiteID: l.PoolSiteID, MissingRoles: l.MissingRoles,
		}
	}
	return of(a).same(of(b))
}
