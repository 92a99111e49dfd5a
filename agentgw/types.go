package agentgw

import (
	"github.com/prego/prego/server"
)

// Claim is a handshake's claim to a bootstrap token.
type Claim = server.TokenClaim

// Consumed is a consumed token.
type Consumed = server.TokenConsumed

// BootIdentity is the server that a bootstrap token belongs to.
type BootIdentity = server.BootIdentity

// Heartbeat is one heartbeat of an agent.
type Heartbeat = server.Heartbeat

// HeartbeatOutcome is the row's state when the heartbeat was written.
type HeartbeatOutcome = server.HeartbeatOutcome

// AgentBinding is the region and role of a bound agent's server.
type AgentBinding = server.AgentBinding
