package server

import (
	"slices"

	"github.com/prego/prego"
)

// EdgeAgentPort is where agents of edges listen if their port is one where the edge
// serves the public.
const EdgeAgentPort = 9443

// AgentPort is the port of the agent of a server, of the configured one for all roles.
func AgentPort(role prego.Role, configured int) int {
	if role == prego.RoleEdge && (configured == 80 || configured == 443) {
		return EdgeAgentPort
	}
	return configured
}

// AgentPorts are all ports that the control plane calls hosts on.
func AgentPorts(agent, docker int) []int {
	out := []int{agent, AgentPort(prego.RoleEdge, agent), docker}
	slices.Sort(out)
	return slices.Compact(out)
}
