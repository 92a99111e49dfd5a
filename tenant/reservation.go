package tenant

import (
	"encoding/json"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Reservation is a decision to be written (placement-policy §2.6).
type Reservation struct {
	TenantID     prego.TenantID
	Generation   int
	AppServerID  prego.ServerID
	DBShardID    prego.ShardID
	RedisPoolID  prego.RedisPoolID
	PoolSiteID   string // "" for a site created on demand
	SiteName     string // of an on-demand site
	DatabaseName string // of an on-demand site
	Mode         PlacementMode
	Algorithm    string
	AuditAs      string // policy_json.algorithm
	Dedicates    bool
	Override     bool    // skips capacity, never an invariant
	AnyTags      bool    // an override that skips the constraint as well
	MemoryPctMax float64 // 0–100
	MaxTenants   int     // per node
	MeasuredLimits
	ReserveFor time.Duration
	Decision   json.RawMessage
	Policy     json.RawMessage
	Reason     string
	Actor      string
}

// MeasuredLimits are thresholds, 0–100, for what agents measure besides memory: servers
// at or above them get no new tenants. 0 disables a check, and an unknown value never
// excludes a server. CPU and worker slots are ignored for dedicated servers: on an
// empty server they only measure its own startup.
type MeasuredLimits struct {
	CPUPctMax         float64 `json:"cpu_pct_max"`          // of app servers
	WorkerSlotsPctMax float64 `json:"worker_slots_pct_max"` // of app servers
	DBDiskPctMax      float64 `json:"db_disk_pct_max"`      // of the disk that holds a shard's data
	RedisMemoryPctMax float64 `json:"redis_memory_pct_max"` // of the memory that a pool's Redis may use
}

// ReserveOutcome is the outcome of a reservation.
type ReserveOutcome string

// The outcomes of a reservation. Lost means that a row was locked or had changed;
// nothing was written.
const (
	ReservePlaced  ReserveOutcome = "placed"
	ReserveAlready ReserveOutcome = "already" // the tenant has a live allocation
	ReserveLost    ReserveOutcome = "lost"
	ReserveGone    ReserveOutcome = "gone" // the tenant no longer wants a place
)

// ReserveResult is the result of a reservation.
type ReserveResult struct {
	Outcome      ReserveOutcome
	Lost         string // site, constraint, app_server, db_shard, redis_pool
	LostID       string
	AllocationID int64
}

// Record is what a tenant's run needs from its rows.
type Record struct {
	Tenant
	CancelRequested bool        `db:"-"`
	Allocation      *Allocation `db:"-"` // the live one, or nil
	AppServerHost   string      // address of the allocation's app server
	// AppServerAddress is its private address, "" for none. Shard and Pool are the servers of
	// the allocation's shard and Redis pool.
	AppServerAddress string
	Shard, Pool      DataHost `db:"-"`
	// PoolKnown reports that the app server uses the Redis pool for another tenant already.
	PoolKnown       bool
	AppServerStatus server.Status
	// StorageLevel is its site's storage level, and ReadOnly whether the host was instructed
	// to make it read-only.
	StorageLevel StorageLevel
	ReadOnly     bool
	// Updating is set while a release has the site offline: nothing else changes it.
	Updating bool
	// Held is set while the tenant is being moved: nothing else works on its site.
	Held            bool
	Moving          bool           // a move has not ended
	OwnServerID     prego.ServerID // of the tenant's dedicated server, unless that is its allocation's; "" for none
	OwnServerStatus server.Status
	// OwnServerReason is why the dedicated server failed.
	OwnServerReason prego.Reason
	Waiting         bool            `db:"-"`
	WaitingNetwork  prego.NetworkID // of the servers that it waits for; "" for any
	// Queued is set when others of the tenant's policy wait in its region: a new one joins
	// them instead of overtaking. Tenants that no server satisfies do not block others.
	Queued bool
	Now    time.Time // the database's clock
	// EdgeLives: an edge of its site's network is alive.
	EdgeLives bool
	// Pools are the placement pools that apply to the tenant now, by name.
	Pools []prego.AppliedPool
}

// Effective is the constraint of the tenant's next placement.
func (t Record) Effective() prego.Constraint { return prego.EffectiveConstraint(t.Constraint, t.Pools) }

// LostServer is a server of the tenant's place that is gone, "" for none.
func (t Record) LostServer() prego.ServerID {
	switch al := t.Allocation; {
	case al == nil:
	case t.AppServerStatus == server.Terminated:
		return al.AppServerID
	case al.OnShard && t.Shard.Status == server.Terminated:
		return t.Shard.ServerID
	case al.OnPool && t.Pool.Status == server.Terminated:
		return t.Pool.ServerID
	}
	return ""
}

// Ref names a generation of a tenant.
type Ref struct {
	TenantID   prego.TenantID `json:"tenant_id"`
	Generation int            `json:"generation"`
}

// PoolSite is a site that is available or to be built.
type PoolSite struct {
	PoolSiteID   string         `json:"pool_site_id"`
	AppServerID  prego.ServerID `json:"app_server_id"`
	DBShardID    prego.ShardID  `json:"db_shard_id"`
	SiteName     string         `json:"site_name"`
	DatabaseName string         `json:"database_name"`
	OnShard      bool           `json:"on_shard,omitempty"` // the database is on the shard's server
}

// DataHost is a server that holds databases or caches of tenants on other servers.
type DataHost struct {
	ServerID prego.ServerID
	Host     string // where the control plane calls it
	Address  string // private
	Status   server.Status
}

// CacheDB is the number of the database that an allocation's cache has in its Redis pool.
// Names keep the keys of tenants apart; a separate database also hides
// the names from other tenants. Two share one when the first stays while 4,095 others are placed.
func CacheDB(allocationID int64) int { return int(allocationID%4095) + 1 }

// WaitingTenant is a tenant short of capacity; they are listed in the order of
// service.
type WaitingTenant struct {
	TenantID   prego.TenantID
	Generation int
	// Alike is the same for tenants with equal requests that are short of the same: what has no place for one has none
	// for the others.
	Alike int64
}

// OverdueTenant has waited for capacity for longer than it may.
type OverdueTenant struct {
	TenantID   prego.TenantID
	Generation int
	Plan       prego.Plan
}

// ProvisioningCancelled is the message of a tenant whose provisioning was cancelled.
const ProvisioningCancelled = "the provisioning was cancelled"

// CancelledQueue is how many tenants of an org that waited for capacity were cancelled.
type CancelledQueue struct {
	OrgID     prego.OrgID `json:"org_id"`
	Cancelled int         `json:"cancelled"` // and have ended
	Ending    int         `json:"ending"`    // when their runs have undone their servers
}

// ShortOf counts, for one role in one region, the tenants that wait for it and the
// servers being provisioned.
type ShortOf struct {
	Waiting    map[prego.Plan]int // waiting tenants, by plan
	Dedicated  int                // of those, business tenants that want a dedicated Redis pool
	InFlight   map[prego.Plan]int // servers being provisioned for shared use, by plan_tier_lock ("" for none)
	Servers    int                // servers of the role in the region, except terminated ones
	UsedPct    float64            // percent of the active servers' capacity
	Provider   prego.InfraProviderID
	Capacities map[prego.Role]int
	Room       map[prego.Plan]int // tenants that active members can still take, by tier lock
	Empty      int                // active members without tenants, for dedicated use
}

// Demand is the demand of tenants with one constraint in one private network. Room, Empty and
// InFlight count the servers that satisfy it and are there.
type Demand struct {
	Constraint prego.Constraint // including the pools'
	Network    prego.NetworkID  // private network for the servers; "" for any
	ShortOf
}

// Work is what the periodic sweep found.
type Work struct {
	Provisions []Ref          // that may have lost their run
	Changes    []string       // tenants whose state is not in effect yet
	Expired    []Ref          // whose timer expired
	Regions    []prego.Region // with waiting tenants
	Refills    []string       // app servers below their watermark
	WarmPools  []WarmPool
	Abandoned  int // failed builds of pool sites
}

// WarmState is what a warm server pool has and needs, in servers.
type WarmState struct {
	Claimable, Coming, Broken, Target int
	Provider                          prego.InfraProviderID
	TenantsWait                       bool // tenants in the region waiting for capacity or for a dedicated server
}

// SiteFate is what happens to the site of a released tenant.
type SiteFate string

// The fates: returned to its pool, erased, or partly left behind.
const (
	SiteUntouched SiteFate = "untouched"
	SiteDropped   SiteFate = "dropped"
	SiteLeft      SiteFate = "left"
)

// ScalingRound is one round of a scale-out.
type ScalingRound struct {
	ScalingEvent
	Round     string
	TierLocks []prego.Plan // beside ServerIDs
	Tags      [][]string   // beside ServerIDs
	// Networks, beside ServerIDs, are the wanted private networks, "" for any.
	// A round that was started before is found without them.
	Networks []prego.NetworkID
}
