package tenant

import (
	"time"

	"github.com/prego/prego"
)

// MoveState is the state of a move of a tenant to another app server.
type MoveState string

// The states of a move. Until it has switched it can be undone.
const (
	MoveQueued    MoveState = "queued"   // it has no place yet
	MoveCopying   MoveState = "copying"  // its place is reserved; the site serves, and is copied
	MoveFrozen    MoveState = "frozen"   // the site is read-only; what changed since is copied
	MoveSwitched  MoveState = "switched" // it lives on the new server; the old one is being cleared
	MoveDone      MoveState = "done"
	MoveFailed    MoveState = "failed"
	MoveCancelled MoveState = "cancelled"
)

// Ended reports whether nothing more happens.
func (s MoveState) Ended() bool { return s == MoveDone || s == MoveFailed || s == MoveCancelled }

// Undoable reports whether the tenant still lives where it was.
func (s MoveState) Undoable() bool {
	return s == MoveQueued || s == MoveCopying || s == MoveFrozen
}

// Move is one row of tenant_moves.
type Move struct {
	MoveID      prego.MoveID
	OrgID       prego.OrgID
	TenantID    prego.TenantID
	State       MoveState
	Reason      prego.Reason // stable; why it failed, "" otherwise
	Message     string
	Why         string         // as the caller gave it
	Wanted      prego.ServerID // the server that was asked for; "" for any
	DrainOf     prego.ServerID // the server that is being emptied; "" if nobody does
	RequestedBy string

	Site         string
	FromServerID prego.ServerID
	ToServerID   prego.ServerID // "" before there is a place

	CopiedBytes int64 // encrypted, while the site served
	DeltaBytes  int64 // and while it was frozen
	// DowntimeMS is for how many milliseconds nothing could be written: from the request to hold
	// the site until the edges sent everybody to the new server. nil before that.
	DowntimeMS *int64

	CancelRequestedAt *time.Time
	CreatedAt         time.Time
	StartedAt         *time.Time // it has a place
	FrozenAt          *time.Time
	SwitchedAt        *time.Time
	OpenedAt          *time.Time // it can be written to again
	FinishedAt        *time.Time
}

// MoveAsked is a move that somebody asks for.
type MoveAsked struct {
	ID       prego.MoveID
	TenantID prego.TenantID
	To       prego.ServerID // "" for any
	Why      string
	By       string
	DrainOf  prego.ServerID
}

// MoveRun is a move with what its run needs.
type MoveRun struct {
	Move
	AllocationID     int64 // what the tenant had when the move was asked for
	DatabaseName     string
	FromHost         string
	FromAddress      string // in the private network
	FromStatus       string
	ToHost           string
	ToAddress        string
	ToStatus         string
	ToClosed         bool // it takes no more tenants
	TenantState      State
	AllocationServer prego.ServerID // where the tenant lives now; "" if it is gone
}

// MovePlace is the server that a move reserves.
type MovePlace struct {
	ServerID   prego.ServerID
	Override   bool // an operator's: its limits don't count
	Dedicates  bool
	MaxTenants int
	MemoryMax  float64
	Decision   []byte // JSON
	Policy     []byte // JSON
	Algorithm  string
}

// MoveResult is what a run of a move comes to.
type MoveResult struct {
	State      MoveState    `json:"state"`
	Reason     prego.Reason `json:"reason,omitempty"`
	Message    string       `json:"message,omitempty"`
	DowntimeMS int64        `json:"downtime_ms,omitempty"`
}

// Reasons why moves fail, besides codes of placement and the reasons of backups.
const (
	// ReasonDataOnServer: the tenant's database is on its app server, which moves don't do yet.
	ReasonDataOnServer prego.Reason = "database_on_server"
	ReasonMoveFailed   prego.Reason = "move_failed"
	// ReasonMoveOvertaken: the tenant ended, or was placed otherwise, meanwhile.
	ReasonMoveOvertaken prego.Reason = "tenant_changed"
	// ReasonMoveTarget: the new server was closed, or went away, before the switch.
	ReasonMoveTarget prego.Reason = "server_closed"
	// ReasonMoveCheck: the site did not open at its new place.
	ReasonMoveCheck prego.Reason = "check_failed"
)

const movePrefix = "tenant-move/"

// MoveWorkflowID is the id of the run that moves a tenant.
func MoveWorkflowID(id prego.MoveID) string { return movePrefix + string(id) }

// MoveFolder is where a move's archives are in the bucket. Backups are elsewhere, so that
// nobody takes one for a backup.
func MoveFolder(environment string, id prego.MoveID) string {
	return environment + "/moves/" + string(id) + "/"
}
