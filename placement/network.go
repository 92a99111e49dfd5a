package placement

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/prego/prego"
)

// Servers, shards and pools can only be used together within one private network: a region may have several
// unconnected networks, in different network zones or because one is full. Servers outside of any network, because
// they were imported or theirs was deleted, count as one network with the id "".

// Network is a private network that takes more servers.
type Network struct {
	NetworkID prego.NetworkID
	Room      int // servers
}

// place is a network in a region. Decisions choose within one.
type place struct {
	region  uint8
	network prego.NetworkID
}

// placeOf is the index of a place.
func (f *Snapshot) placeOf(region prego.Region, network prego.NetworkID) uint16 {
	p := place{regionIndex(region), network}
	i, known := f.placeAt[p]
	if !known {
		i = uint16(len(f.places)) // a provider's account has some dozens of networks
		f.places, f.near = append(f.places, p), append(f.near, near{})
		f.placeAt[p] = i
	}
	return i
}

// near is what a request finds at a place.
type near struct {
	here                  bool  // in the request's region
	bestShard             int32 // the best that any app server there may use; -1 for none
	bestPool              int32
	shardScore, poolScore float64
	// How many passed every filter of their kind.
	app, shard, pool int
}

// look starts a decision.
func (s *search) look() {
	s.near = s.f.near
	region := regionIndex(s.r.Region)
	for i, p := range s.f.places {
		s.near[i] = near{here: p.region == region, bestShard: -1, bestPool: -1}
	}
}

func (n *near) missing() []prego.Role {
	var out []prego.Role
	if n.app == 0 {
		out = append(out, prego.RoleApp)
	}
	if n.shard == 0 {
		out = append(out, prego.RoleDBShard)
	}
	if n.pool == 0 {
		out = append(out, prego.RoleRedisPool)
	}
	return out
}

// grow chooses the network and the roles of new servers for a request without a place: the network that lacks the
// fewest roles and has room for them, so that its existing servers become usable; among several the lowest id.
// Without such a network the control plane chooses one, with all roles.
func (s *search) grow() (prego.NetworkID, []prego.Role) {
	network, best := prego.NetworkID(""), (&near{}).missing()
	var candidates []int
	networks := false
	for i, n := range s.near {
		if n.here {
			candidates = append(candidates, i)
			networks = networks || s.f.places[i].network != ""
		}
	}
	slices.SortFunc(candidates, func(a, b int) int {
		return cmp.Compare(s.f.places[a].network, s.f.places[b].network)
	})
	for _, i := range candidates {
		id := s.f.places[i].network
		if id == "" && networks { // new servers would not be there
			continue
		}
		if missing := s.near[i].missing(); len(missing) < len(best) && s.f.hasRoom(id, len(missing)) {
			network, best = id, missing
		}
	}
	return network, best
}

// hasRoom reports whether a network takes so many more servers.
func (f *Snapshot) hasRoom(id prego.NetworkID, servers int) bool {
	if id == "" || f.room == nil {
		return true
	}
	return f.room[id] >= servers
}

func (f *Snapshot) setNetworks(networks []Network) {
	f.room = nil // unknown
	if networks == nil {
		return
	}
	f.room = make(map[prego.NetworkID]int, len(networks))
	for _, n := range networks {
		f.room[n.NetworkID] = n.Room
	}
}

// EdgeNetwork is a network that has edges: the id of a private network, or the region whose servers are in none.
type EdgeNetwork struct {
	Network string
	Serves  bool // an edge is active
}

func (f *Snapshot) setEdges(edges []EdgeNetwork) {
	f.edges = make(map[string]bool, len(edges))
	for _, e := range edges {
		f.edges[e.Network] = e.Serves
	}
}

// loses reports whether visitors reach a tenant through edges now, and could not on another server.
func (f *Snapshot) loses(from prego.ServerID, to *Server) bool {
	i, ok := f.find(from)
	if !ok {
		return false
	}
	at, there := edgesOf(&f.servers[i].Server), edgesOf(to)
	_, has := f.edges[at]
	return has && at != there && !f.edges[there]
}

// edgesOf is the network whose edges serve a server.
func edgesOf(s *Server) string { return cmp.Or(string(s.NetworkID), string(s.Region)) }

// networkName names a network in a sentence.
func networkName(id prego.NetworkID) string {
	if id == "" {
		return "no network"
	}
	return fmt.Sprintf("network %s", id)
}
