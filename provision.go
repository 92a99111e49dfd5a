package prego

import (
	"errors"
	"time"
)

// ErrSuperseded tells a step that its row has moved on: another generation,
// a later attempt, a decommissioning. The step must not touch the provider.
var ErrSuperseded = errors.New("superseded: the server's row has moved on")

// ProvisionState is what a provisioning run needs to know of its row.
type ProvisionState struct {
	ServerID         string
	Role             Role
	Region           Region
	Provider         InfraProviderID
	Spec             ServerSpec
	Tags             []string
	RequestHash      []byte
	Status           ServerStatus
	Purpose          TokenPurpose
	Generation       int
	Attempt          int
	ProviderServerID string
	Host             string
	AgentStatus      AgentStatus
	RunningAt        *time.Time
	HandshakeAt      *time.Time
	FirstHeartbeatAt *time.Time
	RevokedAt        *time.Time
	BootstrapRefused bool // a second key presented the current attempt's token
	CreatedAt        time.Time
	Now              time.Time // the database's clock
}

// AttemptStart says which create attempt begins.
type AttemptStart struct {
	ServerID   string
	Generation int
	Attempt    int
	Candidate  Candidate
	Image      string
	// Resources are the names of what the attempt may make; each gets an intent
	// row before the provider is called.
	Resources []ResourceIntent
}
