package server

import (
	"github.com/prego/prego"
)

// TokenClaim is a handshake's claim to a token.
type TokenClaim struct {
	TokenHash    []byte
	Key          []byte // SHA-256 of the SubjectPublicKeyInfo that the connection proved
	ServerID     prego.ServerID
	Source       string // source address of the handshake; "" to skip the check
	AgentVersion string
	BootID       string
	Tags         []string // reported by the host, normalized
}

// TokenConsumed is a token consumed now, or just before by the same key.
type TokenConsumed struct {
	ServerID prego.ServerID
	Attempt  int
	Host     string
	IPv6     string
	Status   Status
	Role     prego.Role
}

// SecondKeyError rejects a token that another key consumed while its server is being
// provisioned: the bootstrap has failed.
type SecondKeyError struct {
	Refusal  *prego.Error
	ServerID prego.ServerID
	Attempt  int
}

func (e *SecondKeyError) Error() string { return e.Refusal.Error() }

// Unwrap makes the code available to errors.As.
func (e *SecondKeyError) Unwrap() error { return e.Refusal }

// Boot stages that are not milestones (wire.StageRetrying and wire.StageFailed).
const (
	BootStageRetrying = "retrying"
	BootStageFailed   = "failed"
)

// BootIdentity is the server that a bootstrap token belongs to, while it is being
// provisioned.
type BootIdentity struct {
	ServerID prego.ServerID
	Attempt  int
}

// Heartbeat is one heartbeat of an agent.
type Heartbeat struct {
	ServerID     prego.ServerID
	Key          []byte // SHA-256 of the key that the connection proved
	BootID       string
	AgentVersion string
	Load1        float64
	MemoryPct    float64
	DiskPct      float64
	DockerState  string
	Tags         []string // reported by the host, normalized
	// 0–100; nil is unknown.
	CPUPct, WorkerSlotsPct, DBDiskPct, RedisMemoryPct *float64
	// ClockAhead is how many seconds the host's clock is ahead, negative if behind; nil
	// is unknown. ClockSkewed means that it is too much.
	ClockAhead  *float64
	ClockSkewed bool
	// PrivateAddresses are the host's addresses in private networks; empty is unknown.
	PrivateAddresses []string
}

// HeartbeatOutcome is the row's state when the heartbeat was written.
type HeartbeatOutcome struct {
	ServerID prego.ServerID
	Status   Status
	Attempt  int
}

// AgentBinding is what a rotation checks and needs.
type AgentBinding struct {
	Host           string
	IPv6           string
	Role           prego.Role
	PrivateAddress string // "" for none
}
