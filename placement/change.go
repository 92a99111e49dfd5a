package placement

import (
	"github.com/prego/prego/server"
)

// Change lists changed rows of a snapshot: all of them, or those changed since an earlier answer.
type Change struct {
	Full       bool
	Since      string // the source's cursor for the next change
	Servers    []Server
	Shards     []Shard
	Pools      []RedisPool
	Sites      []SiteChange
	Providers  []Provider
	Residency  map[string]Zone
	Networks   []Network // all that take more servers
	Edges      []EdgeNetwork
	LastServer string // where the newest tenant was placed
}

// SiteChange is a pool site, and whether it can be claimed.
type SiteChange struct {
	PoolSite
	Available bool
}

// SnapshotOf builds a snapshot from a full change.
func SnapshotOf(p Policy, c Change) *Snapshot {
	d := Data{
		Servers: c.Servers, Shards: c.Shards, Pools: c.Pools, Providers: c.Providers, Residency: c.Residency,
		Networks: c.Networks, Edges: c.Edges, LastServer: c.LastServer,
	}
	for _, s := range c.Sites {
		if s.Available {
			d.Sites = append(d.Sites, s.PoolSite)
		}
	}
	return NewSnapshot(p, d)
}

// Update applies changed rows to the snapshot.
func (f *Snapshot) Update(c Change) {
	f.setProviders(c.Providers)
	f.setNetworks(c.Networks)
	f.setEdges(c.Edges)
	f.residency, f.last = c.Residency, c.LastServer
	for _, s := range c.Shards {
		f.SetShard(s)
	}
	for _, p := range c.Pools {
		f.SetPool(p)
	}
	for _, s := range c.Servers {
		if s.Status == server.Terminated {
			f.RemoveServer(s.ServerID)
			continue
		}
		f.SetServer(s)
	}
	for _, s := range c.Sites {
		if s.Available {
			f.AddSite(s.PoolSite)
		} else {
			f.RemoveSite(s.AppServerID, s.PoolSiteID)
		}
	}
}
