package server

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
)

func TestPeers(t *testing.T) {
	t.Parallel()
	host := func(id string, role prego.Role, address string) PeerHost {
		return PeerHost{ServerID: prego.ServerID(id), Role: role, Address: address, Network: "1"}
	}
	shard, pool := host("shard", prego.RoleDBShard, "10.64.0.2"), host("pool", prego.RoleRedisPool, "10.64.0.3")
	a, b := host("a", prego.RoleApp, "10.64.0.10"), host("b", prego.RoleApp, "10.64.0.9")
	edge, node := host("edge", prego.RoleEdge, "10.64.0.4"), host("node", prego.RoleNode, "10.64.0.5")
	away, bare := host("away", prego.RoleApp, "10.64.0.11"), host("bare", prego.RoleApp, "")
	away.Network = "2"
	everyone := []string{Everyone}
	for name, c := range map[string]struct {
		in   PeersInput
		want []PeersGrant
	}{
		"shard without tenants":              {PeersInput{Server: shard, Edges: []PeerHost{edge}, InstancePorts: nil}, nil},
		"shard, in the order of addresses":   {PeersInput{Server: shard, Users: []PeerHost{a, b, a}}, []PeersGrant{{[]int{3306}, []string{"10.64.0.9", "10.64.0.10"}}}},
		"pool":                               {PeersInput{Server: pool, Users: []PeerHost{a}}, []PeersGrant{{[]int{6379}, []string{"10.64.0.10"}}}},
		"shard, user in another network":     {PeersInput{Server: shard, Users: []PeerHost{away}}, nil},
		"shard, user without address":        {PeersInput{Server: shard, Users: []PeerHost{bare}}, nil},
		"shard, itself":                      {PeersInput{Server: shard, Users: []PeerHost{shard}}, nil},
		"app server":                         {PeersInput{Server: a, Edges: []PeerHost{edge}}, []PeersGrant{{[]int{8080}, []string{"10.64.0.4"}}}},
		"app server without edges":           {PeersInput{Server: a, InstancePorts: []int{20000}}, nil},
		"app server, users are none of its":  {PeersInput{Server: a, Users: []PeerHost{b}}, nil},
		"app server without private address": {PeersInput{Server: bare, Edges: []PeerHost{edge}}, nil},
		"node with instances":                {PeersInput{Server: node, Edges: []PeerHost{edge}, InstancePorts: []int{20001, 20000, 20001}}, []PeersGrant{{[]int{8080, 20000, 20001}, []string{"10.64.0.4"}}}},
		"edge":                               {PeersInput{Server: edge, Edges: []PeerHost{edge}, PublicPorts: []int{5432, 443}}, []PeersGrant{{[]int{80, 443, 5432}, everyone}}},
	} {
		c.in.Egress, c.in.AgentPort, c.in.DockerPort = []string{"203.0.113.8/32", "203.0.113.7/32"}, 8443, 2376
		got := Peers(c.in)
		require.Equal(t, c.want, got.Access, name)
		require.Equal(t, PeersControl{CIDRs: []string{"203.0.113.7/32", "203.0.113.8/32"}, Ports: []int{2376, 8443}}, got.Control, name)
		require.Equal(t, c.in.Server.Address, got.Address, name)
	}
	own := PeersInput{Server: edge, AgentPort: 8443, DockerPort: 2376, PublicPorts: []int{2376, 8443, 22}}
	require.Equal(t, []PeersGrant{{[]int{22, 80, 443}, everyone}}, Peers(own).Access, "routes at the edge's own ports")
}

// For any rows, no server is let in without a reason, and their order is of no
// consequence.
func TestPeersProperties(t *testing.T) {
	t.Parallel()
	hosts := rapid.Custom(func(t *rapid.T) PeerHost {
		n := rapid.IntRange(1, 20).Draw(t, "host")
		h := PeerHost{
			ServerID: prego.ServerID(fmt.Sprintf("s-%d", n)), Address: netip.AddrFrom4([4]byte{10, 64, 0, byte(n)}).String(),
			Role: rapid.SampledFrom(prego.Roles()).Draw(t, "role"), Network: rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "network"),
		}
		if rapid.IntRange(0, 5).Draw(t, "bare") == 0 {
			h.Address = ""
		}
		return h
	})
	rapid.Check(t, func(rt *rapid.T) {
		in := PeersInput{
			Server: hosts.Draw(rt, "server"), Egress: []string{"203.0.113.7/32"}, AgentPort: 8443, DockerPort: 2376,
			Users: rapid.SliceOf(hosts).Draw(rt, "users"), Edges: rapid.SliceOf(hosts).Draw(rt, "edges"),
			InstancePorts: rapid.SliceOf(rapid.IntRange(20000, 20010)).Draw(rt, "ports"),
		}
		got := Peers(in)
		require.Equal(rt, []int{2376, 8443}, got.Control.Ports)
		for _, g := range got.Access {
			require.NotContains(rt, g.Ports, 8443)
			require.NotContains(rt, g.Ports, 2376)
			require.NotEmpty(rt, g.From)
			for _, from := range g.From {
				if from == Everyone {
					require.Equal(rt, prego.RoleEdge, in.Server.Role)
					require.Len(rt, g.From, 1)
					continue
				}
				reason := in.Edges
				if slices.Contains(g.Ports, PortMariaDB) || slices.Contains(g.Ports, PortRedis) {
					reason = in.Users
				}
				require.True(rt, slices.ContainsFunc(reason, func(h PeerHost) bool {
					return h.Address == from && h.Network == in.Server.Network && h.ServerID != in.Server.ServerID
				}))
			}
		}
		other := in
		other.Users, other.Edges, other.InstancePorts = shuffled(in.Users), shuffled(in.Edges), shuffled(in.InstancePorts)
		require.Equal(rt, got, Peers(other))
	})
}

func shuffled[T any](in []T) []T {
	out := slices.Clone(in)
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}
