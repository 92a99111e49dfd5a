package agentgw

import (
	"github.com/prego/prego/server"
)

// Claim is a handshake's claim to a bootstrap token.
type Claim = server.TokenClaim

// Consumed is a token that was consumed.
type Consumed = server.TokenConsumed

// BootIdentity is the server that a bootstrap token belongs to.
type BootIdentity = server.BootIdentity

// Heartbeat is one agent's sign of life.
type Heartbeat = server.Heartbeat

// HeartbeatOutcome is what the row said when the heartbeat was written.
type HeartbeatOutcome = server.HeartbeatOutcome

// AgentBinding is where a bound agent's server is.
type AgentBinding = server.AgentBinding
