package agentgw

import "github.com/prego/prego"

// Claim is a handshake's claim to a bootstrap token.
type Claim = prego.TokenClaim

// Consumed is a token that was consumed.
type Consumed = prego.TokenConsumed

// BootIdentity is the server that a bootstrap token belongs to.
type BootIdentity = prego.BootIdentity

// Heartbeat is one agent's sign of life.
type Heartbeat = prego.Heartbeat

// HeartbeatOutcome is what the row said when the heartbeat was written.
type HeartbeatOutcome = prego.HeartbeatOutcome

// AgentBinding is where a bound agent's server is.
type AgentBinding = prego.AgentBinding
