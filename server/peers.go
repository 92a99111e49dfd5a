package server

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/prego/prego"
)

// Ports that servers of a role open to others in their network.
const (
	PortMariaDB  = 3306
	PortRedis    = 6379
	PortFrontend = 8080
)

// PeerHost is a server as the rule of peers sees it.
type PeerHost struct {
	ServerID prego.ServerID `json:"server_id"`
	Role     prego.Role     `json:"role"`
	// Address is private, "" for none. Only servers of one provider network reach each other.
	Address string `json:"address"`
	Network string `json:"network"` // "" for none
}

// PeersInput is what decides who may reach a server.
type PeersInput struct {
	Server PeerHost
	// Egress is where the control plane calls from, CIDRs.
	Egress                []string
	AgentPort, DockerPort int
	// Users are the servers whose tenants or pool sites have their database or their cache on
	// this one.
	Users []PeerHost
	// Edges are the edges that may send requests to this server.
	Edges []PeerHost
	// InstancePorts are published here by instances of process groups.
	InstancePorts []int
	// PublicPorts are those, besides 80 and 443, at which an edge takes connections.
	PublicPorts []int
}

// PeersRule is the content of a server's peers document: the servers that may reach it, and where.
// All others may not.
type PeersRule struct {
	Address string       `json:"address,omitempty"`
	Control PeersControl `json:"control"`
	Access  []PeersGrant `json:"access,omitempty"`
}

// PeersControl is the control plane's access.
type PeersControl struct {
	CIDRs []string `json:"cidrs"`
	Ports []int    `json:"ports"`
}

// PeersGrant opens TCP ports to private addresses, or to Everyone.
type PeersGrant struct {
	Ports []int    `json:"ports"`
	From  []string `json:"from"`
}

// Everyone is any address. It is alone in its grant.
const Everyone = "*"

// Peers decides who may reach a server:
//
//   - the control plane: the agent and Docker;
//   - servers with tenants on a shard or pool: its database or its cache;
//   - edges: the frontend of a server with bench, and the ports that instances publish;
//   - everyone: an edge's HTTP, HTTPS and public ports, except those of the control plane.
//
// Equal input in any order gives the equal rule.
func Peers(in PeersInput) PeersRule {
	out := PeersRule{Address: in.Server.Address, Control: PeersControl{CIDRs: sorted(in.Egress), Ports: sorted([]int{in.AgentPort, in.DockerPort})}}
	grant := func(ports []int, from []PeerHost) {
		if addresses := in.Server.reachedFrom(from); len(ports) > 0 && len(addresses) > 0 {
			out.Access = append(out.Access, PeersGrant{Ports: sorted(ports), From: addresses})
		}
	}
	instances := in.InstancePorts
	switch in.Server.Role {
	case prego.RoleDBShard:
		grant([]int{PortMariaDB}, in.Users)
	case prego.RoleRedisPool:
		grant([]int{PortRedis}, in.Users)
	case prego.RoleApp, prego.RoleNode:
		instances = append(slices.Clone(instances), PortFrontend)
	case prego.RoleEdge:
		open := EdgePorts(in.PublicPorts, out.Control.Ports)
		out.Access = append(out.Access, PeersGrant{Ports: open, From: []string{Everyone}})
	}
	grant(instances, in.Edges)
	return out
}

// EdgePorts are the ports at which edges let everyone in: HTTP, HTTPS and the public ones of routes, except the control
// plane's own.
func EdgePorts(public, own []int) []int {
	others := slices.DeleteFunc(slices.Clone(public), func(p int) bool { return slices.Contains(own, p) })
	return sorted(append(others, 80, 443))
}

// reachedFrom are the addresses of the servers in its network, in order.
func (h PeerHost) reachedFrom(others []PeerHost) []string {
	if h.Address == "" || h.Network == "" {
		return nil
	}
	var out []netip.Addr
	for _, o := range others {
		if o.Network != h.Network || o.ServerID == h.ServerID {
			continue
		}
		if a, err := netip.ParseAddr(o.Address); err == nil {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	var texts []string
	for _, a := range slices.Compact(out) {
		texts = append(texts, a.String())
	}
	return texts
}

func sorted[T cmp.Ordered](in []T) []T {
	out := slices.Clone(in)
	slices.Sort(out)
	return slices.Compact(out)
}
