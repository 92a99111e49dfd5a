package tenant

import (
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
)

// MoveState is the state of a move of a tenant from one place to another.
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
	WantedShard prego.ShardID
	WantedPool  prego.RedisPoolID
	// What moves. The other places are the same on both sides.
	MovesServer, MovesShard, MovesPool bool
	MaintenanceOf                      prego.ServerID // the server that is being emptied; "" if none is
	RequestedBy                        string

	Site         string
	FromServerID prego.ServerID
	ToServerID   prego.ServerID // "" before there is a place
	FromShardID  prego.ShardID  // "" of moves before shards moved
	ToShardID    prego.ShardID  // "" before there is a place
	FromPoolID   prego.RedisPoolID
	ToPoolID     prego.RedisPoolID
	FromRegion   prego.Region
	ToRegion     prego.Region // that was asked for, and "" for the one where it is

	CopiedBytes int64 // encrypted, while the site served
	DeltaBytes  int64 // and while it was frozen
	// DowntimeMS is for how many milliseconds the site was not writable: from the request to hold
	// it until the edges routed all requests to the new server. nil before that.
	DowntimeMS *int64

	CancelRequestedAt *time.Time
	CreatedAt         time.Time
	StartedAt         *time.Time // it has a place
	FrozenAt          *time.Time
	SwitchedAt        *time.Time
	OpenedAt          *time.Time // it can be written to again
	FinishedAt        *time.Time
}

// WorkflowID is the id of its run.
func (m Move) WorkflowID() string { return MoveWorkflowID(m.MoveID) }

// From and To name a place by its parts that move.
func (m Move) From() string { return m.parts(m.FromServerID, m.FromShardID, m.FromPoolID) }

// To is "" before there is a place.
func (m Move) To() string { return m.parts(m.ToServerID, m.ToShardID, m.ToPoolID) }

func (m Move) parts(srv prego.ServerID, shard prego.ShardID, pool prego.RedisPoolID) string {
	var out []string
	for _, p := range []struct {
		moves bool
		id    string
	}{{m.MovesServer, string(srv)}, {m.MovesShard, string(shard)}, {m.MovesPool, string(pool)}} {
		if p.moves && p.id != "" && !slices.Contains(out, p.id) {
			out = append(out, p.id)
		}
	}
	return strings.Join(out, " and ")
}

// AnyTarget asks that placement chooses where a part of a tenant moves to.
const AnyTarget = "any"

// MoveAsked is a requested move. Without any target the tenant moves to another app
// server.
type MoveAsked struct {
	ID            prego.MoveID
	TenantID      prego.TenantID
	To            prego.ServerID    // of the app server; "" for any, or for none if another part is named
	Shard         prego.ShardID     // AnyTarget for any; "" for none
	Pool          prego.RedisPoolID // the same
	Region        prego.Region      // all of it moves there; "" for the one where it is
	Why           string
	By            string
	MaintenanceOf prego.ServerID
}

// QuietMove is a move that may have lost its run, or, Lost, whose run waits while the new place is
// lost.
type QuietMove struct {
	MoveID prego.MoveID
	Lost   bool
}

// MoveRecord is a move with what its run needs.
type MoveRecord struct {
	Move
	AllocationID     int64 // what the tenant had when the move was asked for
	DatabaseName     string
	DataArchives     int // of the database, that have arrived while the site served
	FromHost         string
	FromAddress      string // in the private network
	FromStatus       string
	ToHost           string
	ToAddress        string
	ToStatus         string
	ToClosed         bool // it takes no more tenants
	TenantState      State
	AllocationServer prego.ServerID // where the tenant lives now; "" if it is gone
	AllocationShard  prego.ShardID
	AllocationPool   prego.RedisPoolID
	FromRole, ToRole prego.Role
	FromOnShard      bool // its database was on the shard, and not on the app server
	FromOnPool       bool
	Returned         bool // the new place was lost after the switch, and the tenant is at the old one again
	Crosses          bool // to another network, whose edges are others
	// The servers of shards and pools.
	FromShard, ToShard DataHost `db:"-"`
	FromPool, ToPool   DataHost `db:"-"`
}

// Here reports whether the tenant still lives where it was.
func (m MoveRecord) Here() bool {
	return m.AllocationServer == m.FromServerID && (m.FromShardID == "" || m.AllocationShard == m.FromShardID && m.AllocationPool == m.FromPoolID)
}

// There reports whether it lives at its target.
func (m MoveRecord) There() bool {
	return m.AllocationServer == m.ToServerID && (m.ToShardID == "" || m.AllocationShard == m.ToShardID && m.AllocationPool == m.ToPoolID)
}

// MovesData reports whether the database moves.
func (m MoveRecord) MovesData() bool { return m.MovesShard }

// MovePlace is the place that a move reserves. The other places are as they were.
type MovePlace struct {
	ServerID   prego.ServerID
	ShardID    prego.ShardID
	PoolID     prego.RedisPoolID
	Override   bool // an operator's: its limits don't count
	Dedicates  bool
	MaxTenants int
	MemoryMax  float64
	DBDiskMax  float64
	RedisMax   float64
	Alone      bool // also on shard and pool
	OwnPool    bool
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
	ReasonMoveFailed prego.Reason = "move_failed"
	// ReasonMoveOvertaken: the tenant ended, or was placed otherwise, meanwhile.
	ReasonMoveOvertaken prego.Reason = "tenant_changed"
	// ReasonMoveTarget: the new server was closed, or went away, before the switch.
	ReasonMoveTarget prego.Reason = "server_closed"
	// ReasonMoveCheck: the site did not open at its new place.
	ReasonMoveCheck prego.Reason = "check_failed"
)

// MoveWorkflowID is the id of the run that moves a tenant.
func MoveWorkflowID(id prego.MoveID) string { return "tenant-move/" + string(id) }

// MoveFolder is where a move's archives are in the bucket. Backups are elsewhere, so that
// none is taken for a backup.
func MoveFolder(environment string, id prego.MoveID) string {
	return environment + "/moves/" + string(id) + "/"
}
