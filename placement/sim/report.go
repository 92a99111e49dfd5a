package sim

import (
	"github.com/prego/prego"
)

// Report is what a simulation came to. It holds no map and no clock, so that its JSON is the same for the same seed.
type Report struct {
	// Seed is set by the caller that seeded the simulation.
	Seed      uint64 `json:"seed"`
	Policy    string `json:"policy"`
	Algorithm string `json:"algorithm"`
	// Days is how long was simulated, in days.
	Days      float64 `json:"days"`
	Decisions int     `json:"decisions"`

	Tenants   Tenants    `json:"tenants"`
	Waits     Waits      `json:"waits"`
	Plans     []PlanRow  `json:"plans"`
	Rejected  []Reason   `json:"rejected"`    // tenants that can never be placed
	WaitedFor []Reason   `json:"waited_for"`  // what waiting tenants were short of; a tenant may count several times
	TurnedBy  []Reason   `json:"turned_down"` // candidates by the failed filter, at a waiting tenant's first try
	ScaleOuts []ScaleOut `json:"scale_outs"`

	Servers     []ServerRow  `json:"servers"`
	ServersEnd  int          `json:"servers_end"`
	ServersPeak int          `json:"servers_peak"`
	PeakHours   float64      `json:"servers_peak_at_hours"`
	Regions     []Usage      `json:"regions"`
	Heat        []RegionHeat `json:"heat"`

	Sites    Sites    `json:"sites"`
	Affinity Affinity `json:"affinity"`
	Fairness Fairness `json:"fairness"`
	Cost     Cost     `json:"cost"`

	Samples []Sample `json:"samples"`
	Daily   []Day    `json:"daily"`

	// Violations are the invariants that did not hold.
	Violations []string `json:"violations"`
}

// Tenants counts all that arrived by what became of them.
type Tenants struct {
	Arrived  int `json:"arrived"`
	Placed   int `json:"placed"` // ever
	Living   int `json:"living"` // at the end
	Left     int `json:"left"`   // trials that expired, and churn
	Waiting  int `json:"waiting"`
	Rejected int `json:"rejected"`
}

// Waits is how long tenants without an immediate place waited for it, in seconds.
type Waits struct {
	Waited int     `json:"waited"`
	P50    float64 `json:"p50_seconds"`
	P95    float64 `json:"p95_seconds"`
	Max    float64 `json:"max_seconds"`
}

// PlanRow is one plan's tenants, by the plan at arrival.
type PlanRow struct {
	Plan    prego.Plan `json:"plan"`
	Arrived int        `json:"arrived"`
	Placed  int        `json:"placed"`
	Waits
}

// Reason is a count by name.
type Reason struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

// ScaleOut is how often and by how much a region grew in a role.
type ScaleOut struct {
	Region  prego.Region `json:"region"`
	Role    prego.Role   `json:"role"`
	Runs    int          `json:"runs"`
	Servers int          `json:"servers"`
}

// ServerRow is the machines of a role at the end.
type ServerRow struct {
	Role          prego.Role `json:"role"`
	ServerType    string     `json:"server_type"`
	Count         int        `json:"count"`
	CentsPerMonth int        `json:"cents_per_month"` // each
}

// Gauge is a spread over servers.
type Gauge struct {
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	Max float64 `json:"max"`
}

// Usage is how full the servers with apps are in a region at the end.
type Usage struct {
	Region    prego.Region `json:"region"`
	Servers   int          `json:"servers"`
	MemoryPct Gauge        `json:"memory_pct"`
	Tenants   Gauge        `json:"tenants"`
}

// RegionHeat is the memory of each of a region's servers with apps at the end, in percent, the fullest first.
type RegionHeat struct {
	Region    prego.Region `json:"region"`
	MemoryPct []float64    `json:"memory_pct"`
}

// Sites is how the site pools served.
type Sites struct {
	FromPool int     `json:"from_pool"`
	OnDemand int     `json:"on_demand"`
	Share    float64 `json:"share_from_pool"` // 0–1
}

// Affinity is how often a tenant came to a server where its parent org lives, out of the possible cases: the org
// lives in the region, and the tenant may have neighbours.
type Affinity struct {
	Possible int     `json:"possible"`
	Together int     `json:"together"`
	Rate     float64 `json:"rate"` // 0–1
}

// Fairness compares the org with the most waiting tenants with the org with the most placed tenants.
type Fairness struct {
	MaxShareWaited float64 `json:"max_org_share_waited"` // 0–1
	MaxShareServed float64 `json:"max_org_share_served"`
}

// Cost is the price of all machines, in euro.
type Cost struct {
	PerMonthEnd  float64 `json:"per_month_end"`
	PerTenantEnd float64 `json:"per_tenant_end"` // per month and living tenant; 0 without any
	PerMonthMean float64 `json:"per_month_mean"`
	Spent        float64 `json:"spent"` // in the whole simulation, billed by the hour
}

// Sample is the fleet at a moment.
type Sample struct {
	Hours        float64 `json:"hours"`
	Tenants      int     `json:"tenants"`
	Waiting      int     `json:"waiting"`
	Servers      int     `json:"servers"`
	CostPerMonth float64 `json:"cost_per_month"`
	// Bands are how many servers with apps use 0–10 %, 10–20 %, … of their memory.
	Bands [10]int `json:"memory_bands"`
}

// Day is what happened in one day.
type Day struct {
	Day      int `json:"day"` // from 1
	Placed   int `json:"placed"`
	Waited   int `json:"waited"` // had to wait
	Rejected int `json:"rejected"`
	Runs     int `json:"scale_outs"`
	Booted   int `json:"servers_ordered"`
}
