package server

import (
	"errors"
	"time"

	"github.com/prego/prego"
)

// ErrSuperseded means to a step that its row has moved on: another generation,
// a later attempt, a decommissioning. The step must not touch the provider.
var ErrSuperseded = errors.New("superseded: the server's row has moved on")

// ProvisionState is what a provisioning run needs to know of its row.
type ProvisionState struct {
	ServerID         prego.ServerID
	Role             prego.Role
	Region           prego.Region
	Provider         prego.InfraProviderID
	Spec             Spec
	Tags             []string
	RequestHash      []byte
	Status           Status
	Purpose          TokenPurpose
	Generation       int
	Attempt          int
	Image            string // of the current attempt
	ProviderServerID string
	Host             string
	ServerType       string // of the current attempt, as is Location
	Location         string
	NetworkID        prego.NetworkID
	PrivateAddress   string // "" until the provider reports it
	AgentStatus      AgentStatus
	RunningAt        *time.Time
	HandshakeAt      *time.Time
	FirstHeartbeatAt *time.Time
	RevokedAt        *time.Time
	Member           bool // of a fleet
	Spread           bool // a fleet's, which may be created in another region instead
	BootstrapRefused bool // a second key presented the current attempt's token
	// BootFailed is the reason of the current attempt's failed boot, "" if it did not
	// fail, and BootFailure the host's message.
	BootFailed  prego.Reason
	BootFailure string
	// BootSign is the last sign of life of the current attempt's boot, and BootSignAt
	// its time; nil if there was none. BootSignReason is its reason, if it has one.
	BootSign       string
	BootSignReason prego.Reason
	BootSignAt     *time.Time
	CreatedAt      time.Time
	Now            time.Time // the database's clock
}

// AttemptStart describes a create attempt that begins.
type AttemptStart struct {
	ServerID   prego.ServerID
	Generation int
	Attempt    int
	Candidate  Candidate
	Image      string
	// Resources are the names of what the attempt may create; each gets an intent row
	// before the provider is called.
	Resources []ResourceIntent
}

// TokenIssue requests the bootstrap token of an attempt. Only the hash is stored.
type TokenIssue struct {
	TokenID  string
	ServerID prego.ServerID
	Attempt  int
	Purpose  TokenPurpose
	Hash     []byte // SHA-256 of the raw token
	TTL      time.Duration
}

// TokenIssued is the attempt's token: the requested one, or the token that an earlier
// call already issued.
type TokenIssued struct {
	TokenID   string
	IssuedAt  time.Time
	ExpiresAt time.Time
}

// SweepParams decide when silent agents are marked (direct-provisioning §3).
type SweepParams struct {
	DegradedAfter time.Duration
	FailedAfter   time.Duration
	FreezePct     float64 // share of the fleet newly silent together; above it none is marked
	FreezeMin     int     // smaller fleets never freeze
}

// SweepResult counts what one sweep marked.
type SweepResult struct {
	Fleet    int  `json:"fleet"`    // servers whose agents are watched
	Silent   int  `json:"silent"`   // that this sweep found newly silent
	Degraded int  `json:"degraded"` // marked degraded
	Failed   int  `json:"failed"`   // marked disconnected, the server failed
	Frozen   bool `json:"frozen"`   // none was marked
}

// ActivationTarget is how long a server may take from its request to active
// (direct-provisioning §2).
const ActivationTarget = 120 * time.Second

// Activation describes how a server became active.
type Activation struct {
	Seconds  float64 // since its request
	Location string
	Image    string
}

// ActivationStats is the distribution of the seconds from servers' requests to active.
type ActivationStats struct {
	Role               prego.Role
	Location, Image    string
	Servers            int
	P50, P95, P99, Max float64
	InTime             int // of Servers, within ActivationTarget
}
