package tenant

import (
	"encoding/json"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Reservation is a decision that is to be made true (placement-policy §2.6).
type Reservation struct {
	TenantID     prego.TenantID
	Generation   int
	AppServerID  prego.ServerID
	DBShardID    prego.ShardID
	RedisPoolID  prego.RedisPoolID
	PoolSiteID   string // "" for a site that is made on demand
	SiteName     string // of an on-demand site
	DatabaseName string // of an on-demand site
	Mode         PlacementMode
	Algorithm    string
	AuditAs      string // policy_json.algorithm
	Dedicates    bool
	Override     bool    // skips capacity, never an invariant
	AnyTags      bool    // an override that skips the constraint, too
	MemoryPctMax float64 // 0–100
	MaxTenants   int     // per node
	MeasuredLimits
	ReserveFor time.Duration
	Decision   json.RawMessage
	Policy     json.RawMessage
	Reason     string
	Actor      string
}

// MeasuredLimits are the thresholds, 0–100, of what agents measure beside memory: at or
// above them nobody new is placed. 0 is not to look at it, and a value that is not known
// refuses nobody. CPU and worker slots are not looked at where a tenant is to be alone:
// what an empty server is busy with is its own start.
type MeasuredLimits struct {
	CPUPctMax         float64 // of app servers
	WorkerSlotsPctMax float64 // of app servers
	DBDiskPctMax      float64 // of the disk that a shard's data is on
	RedisMemoryPctMax float64 // of what a pool's Redis may use
}

// ReserveOutcome is how a reservation ended.
type ReserveOutcome string

// The outcomes of a reservation. Lost names the row that was locked or had
// changed; nothing was written.
const (
	ReservePlaced  ReserveOutcome = "placed"
	ReserveAlready ReserveOutcome = "already" // the tenant has a live allocation
	ReserveLost    ReserveOutcome = "lost"
	ReserveGone    ReserveOutcome = "gone" // the tenant no longer asks
)

// ReserveResult is what became of a reservation.
type ReserveResult struct {
	Outcome      ReserveOutcome
	Lost         string // site, constraint, app_server, db_shard, redis_pool
	LostID       string
	AllocationID int64
}

// Run is what a tenant's run needs to know of its rows.
type Run struct {
	Tenant
	CancelRequested bool
	Allocation      *Allocation // the live one; nil for none
	AppServerHost   string      // address of the allocation's app server
	AppServerStatus server.Status
	// StorageLevel is where its site stands to its storage quota, and ReadOnly whether the
	// host was told that it is read-only.
	StorageLevel    StorageLevel
	ReadOnly        bool
	OwnServerID     prego.ServerID // of a server that is dedicated for the tenant and not its allocation's; "" for none
	OwnServerStatus server.Status
	// OwnServerReason is why the own server failed.
	OwnServerReason prego.Reason
	Waiting         bool
	Now             time.Time // the database's clock
	// Pools are the placement pools that apply to the tenant now, by name.
	Pools []prego.AppliedPool
}

// Effective is the constraint that its next placement goes by.
func (t Run) Effective() prego.Constraint { return prego.EffectiveConstraint(t.Constraint, t.Pools) }

// Ref names a generation of a tenant.
type Ref struct {
	TenantID   prego.TenantID `json:"tenant_id"`
	Generation int            `json:"generation"`
}

// PoolSite is a site that is to be built, or that stands ready.
type PoolSite struct {
	PoolSiteID   string         `json:"pool_site_id"`
	AppServerID  prego.ServerID `json:"app_server_id"`
	DBShardID    prego.ShardID  `json:"db_shard_id"`
	SiteName     string         `json:"site_name"`
	DatabaseName string         `json:"database_name"`
}

// WaitingTenant is one that is short of capacity, in the order in which it is to
// be served.
type WaitingTenant struct {
	TenantID   prego.TenantID
	Generation int
}

// ShortOf counts, for one role in one region, the tenants that wait for it and
// the servers that are on their way.
type ShortOf struct {
	Waiting    map[prego.Plan]int // tenants that are short of the role, by plan
	Dedicated  int                // of those, business tenants that want a Redis pool of their own
	InFlight   map[prego.Plan]int // servers being provisioned for the shared fleet, by plan_tier_lock ("" for none)
	Servers    int                // of the role in the region, all that are not terminated
	UsedPct    float64            // 0–100, of the capacity of active ones
	Provider   prego.InfraProviderID
	Capacities map[prego.Role]int
	Room       map[prego.Plan]int // tenants that active members still take, by tier lock
	Empty      int                // active members with nobody, for those who must be alone
}

// Demand is what the tenants of one constraint are short of. Room, Empty and InFlight
// count the servers that satisfy it.
type Demand struct {
	Constraint prego.Constraint // the pools' included
	ShortOf
}

// Work is what the periodic sweep found to do.
type Work struct {
	Provisions []WaitingTenant // that may have lost their run
	Changes    []string        // tenants whose state is not in effect
	Expired    []WaitingTenant // whose timer ran out
	Regions    []prego.Region  // in which tenants wait
	Refills    []string        // app servers below their watermark
	WarmPools  []WarmPool
	Abandoned  int // builds of pool sites that were given up
}

// WarmState is what a warm server pool has and wants, in servers.
type WarmState struct {
	Claimable, Coming, Broken, Target int
	Provider                          prego.InfraProviderID
	TenantsWait                       bool // in the region, for capacity or a server of their own
}

// SiteFate is what became of the site of a tenant that is released.
type SiteFate string

// The fates: it goes back to its pool, it is gone, or something is left of it.
const (
	SiteUntouched SiteFate = "untouched"
	SiteDropped   SiteFate = "dropped"
	SiteLeft      SiteFate = "left"
)

// ScalingRound is what one round of a run asks for.
type ScalingRound struct {
	ScalingEvent
	Round     string
	TierLocks []prego.Plan // beside ServerIDs
	Tags      [][]string   // beside ServerIDs
}
