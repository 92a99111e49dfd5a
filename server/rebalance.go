package server

import (
	"cmp"
	"fmt"
	"time"

	"github.com/prego/prego"
)

// PackingRequest asks for a plan that empties app servers by moving tenants to others.
type PackingRequest struct {
	Region   prego.Region  `json:"region,omitempty"`   // "" is every region
	FleetID  prego.FleetID `json:"fleet_id,omitempty"` // servers to empty; "" is every fleet and servers without one
	MaxMoves int           `json:"max_moves,omitempty"`
	MaxBytes int64         `json:"max_bytes,omitempty"` // to copy; this and the previous field are 0 for no limit
}

// Validate checks the request's own fields.
func (r PackingRequest) Validate() error {
	switch {
	case r.Region != "" && !r.Region.Valid():
		return prego.Invalid("region", "must be a region")
	case r.MaxMoves < 0 || r.MaxMoves > MaxPlannedMoves:
		return prego.Invalid("max_moves", fmt.Sprintf("must be 0 to %d", MaxPlannedMoves))
	case r.MaxBytes < 0:
		return prego.Invalid("max_bytes", "must be 0 or more")
	}
	return nil
}

// MaxPlannedMoves bounds the moves of one plan.
const MaxPlannedMoves = 10_000

// PackingPlan is what a plan moves, and what that frees.
type PackingPlan struct {
	MadeAt time.Time     `json:"made_at"`
	Moves  []PlannedMove `json:"moves"`
	Frees  []FreedServer `json:"frees"`
	Bytes  int64         `json:"bytes"` // that are copied
	// Monthly is the price of the freed servers, per month, without tax; Currency is "" if no price is known.
	Monthly  float64 `json:"monthly"`
	Currency string  `json:"currency,omitempty"`
	// Servers have tenants now, and they need at least Needed, which is proven.
	Servers int `json:"servers"`
	Needed  int `json:"needed"`
	// Unknown are servers that were left out, since what they use is not known.
	Unknown []prego.ServerID `json:"unknown,omitempty"`
}

// PlannedMove is a tenant's.
type PlannedMove struct {
	TenantID prego.TenantID `json:"tenant_id"`
	From     prego.ServerID `json:"from"`
	To       prego.ServerID `json:"to"`
	Bytes    int64          `json:"bytes"`
}

// FreedServer is a server that the moves empty.
type FreedServer struct {
	ServerID prego.ServerID `json:"server_id"`
	Monthly  float64        `json:"monthly"` // its price, without tax; 0 is unknown
	Moves    int            `json:"moves"`
	Bytes    int64          `json:"bytes"`
}

// Validate checks a submitted plan.
func (p PackingPlan) Validate() error {
	if len(p.Moves) == 0 || len(p.Moves) > MaxPlannedMoves {
		return prego.Invalid("plan.moves", fmt.Sprintf("must be 1 to %d moves", MaxPlannedMoves))
	}
	seen := map[prego.TenantID]bool{}
	gets, leaves := map[prego.ServerID]bool{}, map[prego.ServerID]bool{}
	for i, m := range p.Moves {
		at := fmt.Sprintf("plan.moves[%d]", i)
		switch {
		case m.TenantID == "" || m.From == "" || m.To == "":
			return prego.Invalid(at, "must name a tenant, from and to")
		case m.From == m.To:
			return prego.Invalid(at+".to", "must be another server than from")
		case seen[m.TenantID]:
			return prego.Invalid(at+".tenant_id", "is moved twice")
		}
		seen[m.TenantID], gets[m.To], leaves[m.From] = true, true, true
	}
	for i, f := range p.Frees {
		if gets[f.ServerID] || !leaves[f.ServerID] {
			return prego.Invalid(fmt.Sprintf("plan.frees[%d].server_id", i), "must be a server that tenants leave and nobody moves to")
		}
	}
	return nil
}

// RebalanceRequest asks that a plan is carried out.
type RebalanceRequest struct {
	Plan PackingPlan `json:"plan"`
	// AtOnce is how many tenants may be moving; 0 is 4.
	AtOnce int `json:"at_once,omitempty"`
	// MaxFailures is how many moves may fail before it stops.
	MaxFailures int `json:"max_failures,omitempty"`
	// RemoveServers deletes the servers that the plan frees.
	RemoveServers bool   `json:"remove_servers,omitempty"`
	Reason        string `json:"reason,omitempty"`
}

// Bounds of a request to carry out a plan.
const (
	defaultAtOnce = 4
	maxAtOnce     = 100
)

// Validate checks the request's own fields, and sets the defaults.
func (r *RebalanceRequest) Validate() error {
	r.AtOnce = cmp.Or(r.AtOnce, defaultAtOnce)
	switch {
	case r.AtOnce < 1 || r.AtOnce > maxAtOnce:
		return prego.Invalid("at_once", fmt.Sprintf("must be 1 to %d", maxAtOnce))
	case r.MaxFailures < 0 || r.MaxFailures > MaxPlannedMoves:
		return prego.Invalid("max_failures", fmt.Sprintf("must be 0 to %d", MaxPlannedMoves))
	}
	return cmp.Or(CordonRequest{Reason: r.Reason}.Validate(), r.Plan.Validate())
}

// RebalanceState is the state of a plan that is carried out.
type RebalanceState string

// The states of a rebalance. It stops by itself when moves failed or a server that gets tenants
// does not answer; finished moves stay.
const (
	RebalanceRunning   RebalanceState = "running"
	RebalanceDone      RebalanceState = "done"
	RebalanceStopped   RebalanceState = "stopped"
	RebalanceCancelled RebalanceState = "cancelled"
)

// Ended reports whether nothing more begins.
func (s RebalanceState) Ended() bool { return s != RebalanceRunning }

// The reasons why a rebalance stops.
const (
	RebalanceMovesFailed  prego.Reason = "moves_failed"
	RebalanceServerSilent prego.Reason = "server_silent"
)

// Rebalance is one row of rebalances.
type Rebalance struct {
	RebalanceID       prego.RebalanceID
	State             RebalanceState
	Reason            prego.Reason
	Message           string
	Why               string
	RequestedBy       string
	AtOnce            int
	MaxFailures       int
	RemoveServers     bool
	Monthly           float64 // of what the plan frees
	Currency          string
	Total             int // moves
	Waiting           int // that have not begun
	Moving            int
	Moved             int
	Failed            int
	Skipped           int // that the plan was overtaken in
	Frees             []prego.ServerID
	Freed             []prego.ServerID // of them, the servers without tenants now
	CancelRequestedAt *time.Time
	CreatedAt         time.Time
	FinishedAt        *time.Time
}

// Next decides its next state, given the counts and a server that gets tenants and does
// not answer.
func (r Rebalance) Next(silent []string) (state RebalanceState, reason prego.Reason, message string) {
	switch {
	case r.CancelRequestedAt != nil && r.Moving == 0:
		return RebalanceCancelled, "", fmt.Sprintf("%d of %d tenants were moved", r.Moved, r.Total)
	case r.Failed > r.MaxFailures:
		return RebalanceStopped, RebalanceMovesFailed, fmt.Sprintf("%d moves failed, and %d may; %d of %d tenants were moved", r.Failed, r.MaxFailures, r.Moved, r.Total)
	case len(silent) > 0:
		return RebalanceStopped, RebalanceServerSilent, fmt.Sprintf("server %s, which gets tenants, does not answer; %d of %d tenants were moved", silent[0], r.Moved, r.Total)
	case r.Waiting == 0 && r.Moving == 0:
		return RebalanceDone, "", fmt.Sprintf("%d of %d tenants were moved", r.Moved, r.Total)
	}
	return RebalanceRunning, "", ""
}

// RebalanceMove is one move of a plan that is carried out.
type RebalanceMove struct {
	PlannedMoveSeq
	State     string // waiting, moving, moved, failed or skipped
	Reason    prego.Reason
	Message   string
	MoveState *string // of the tenant's move; nil before there is one
}

// PlannedMoveSeq is a move with its number in the plan, from 1.
type PlannedMoveSeq struct {
	Seq int
	PlannedMove
}

// MoveID is the id of the tenant's move, so that beginning it twice is beginning it once.
func (m PlannedMoveSeq) MoveID(id prego.RebalanceID) string { return fmt.Sprintf("%s-%d", id, m.Seq) }

// RebalanceStep is the next step of a plan that is carried out.
type RebalanceStep struct {
	State RebalanceState
	// Begin are moves that have started here, and must start there.
	Begin []PlannedMoveSeq
	// Remove are servers that are empty, and to be deleted.
	Remove []prego.ServerID
}

// PackedFleet is what a packing plan is made from.
type PackedFleet struct {
	Servers []PackedServer
	Tenants []PackedTenant
}

// PackedServer is an app server.
type PackedServer struct {
	ServerID      prego.ServerID
	Region        prego.Region
	NetworkID     prego.NetworkID
	InfraProvider prego.InfraProviderID
	FleetID       prego.FleetID
	Tags          []string
	ServerType    string
	Location      string
	MemoryPct     *float64 // 0–100
	DiskPct       *float64 // 0–100
	Tenants       int
	Spec          Spec
	Takes, Leaves bool
}

// PackedTenant is a tenant on one.
type PackedTenant struct {
	TenantID prego.TenantID
	ServerID prego.ServerID
	Bytes    int64 // of its files, as measured last
	Stays    bool  // it can't move now
}
