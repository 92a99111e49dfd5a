package server

import (
	"slices"

	"github.com/prego/prego"
)

// EdgeAgentPort is where agents of edges listen if their port is one where the edge
// serves the public.
const EdgeAgentPort = 9443

// EdgeKeysPort is where an edge's Caddy takes certificates from, on a loopback address.
const EdgeKeysPort = 9444

// AgentPort is the port of the agent of a server, of the configured one for all roles.
func AgentPort(role prego.Role, configured int) int {
	if role == prego.RoleEdge && (configured == 80 || configured == 443) {
		return EdgeAgentPort
	}
	return configured
}

// EdgePort returns why a route can't have a port of an edge, or "". own are the ports on which the control plane calls
// edges.
func EdgePort(port int, raw, shared bool, own []int) string {
	switch {
	case slices.Contains(own, port), port == EdgeKeysPort:
		return "is used by edges' own programs"
	case raw && shared && (port == 80 || port == 443):
		return "is served by name on the shared address: a raw TCP route needs the IPv4 address of its env for it"
	}
	return ""
}

// AgentPorts are all ports that the control plane calls hosts on.
func AgentPorts(agent, docker int) []int {
	out := []int{agent, AgentPort(prego.RoleEdge, agent), docker}
	slices.Sort(out)
	return slices.Compact(out)
}
