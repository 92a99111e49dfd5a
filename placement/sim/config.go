// Package sim simulates the life of a fleet with the placement engine: tenants arrive, grow and leave over simulated
// days, servers are booted for waiting ones, and a report card rates the policy. It is pure: the same configuration
// and the same seed give the same report to the byte.
package sim

import (
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
)

// MaxTenants is the maximum number of tenants in a simulation.
const MaxTenants = 100_000

// Config is the whole model, with the constants below. DefaultConfig has its values.
type Config struct {
	// Tenants is the number of arriving tenants.
	Tenants int
	// Policy is the placement policy.
	Policy placement.Policy

	// Days is the number of days over which tenants arrive.
	Days int
	// Settle is how long the simulation continues after the last of Days, so that
	// waiting tenants can still be placed.
	Settle time.Duration

	// Plans is the mix of plans and the behaviour of their tenants. The shares need not sum up to 1.
	Plans []PlanModel
	// Regions is the mix of regions.
	Regions []RegionShare

	// MismatchShare is the share of requests for a region that must not store the data of their country.
	MismatchShare float64
	// UnknownShare is the share of those whose country has no residency zone.
	UnknownShare float64
	// DedicatedRedisShare is the share of business tenants with a dedicated Redis pool.
	DedicatedRedisShare float64

	// TrialFor is how long a trial lasts.
	TrialFor time.Duration

	// Roles are the machines of each role.
	Roles []RoleModel
	// ShardCapacity and PoolCapacity are tenants per DB shard and per Redis pool.
	ShardCapacity, PoolCapacity int
	// IdleFor is how long a server is empty before it is returned.
	IdleFor time.Duration
	// WarmNodes is how many unclaimed nodes a region keeps, in one_tenant_one_server.
	WarmNodes int
}

const (
	// rhythm is the relative amplitude of the arrival rate within a day, and peakHour the hour of the day with the
	// most arrivals.
	rhythm, peakHour = 0.7, 10.0
	// tenantsPerOrg is the mean; the sizes follow Zipf's law: the weight of the k-th org is
	// (zipfOffset + k)^-zipfExponent.
	tenantsPerOrg            = 4
	zipfExponent, zipfOffset = 1.2, 8.0
	// orgsPerParent is how many orgs there are for each parent org, and parentShare the share of orgs that have one.
	orgsPerParent = 10
	parentShare   = 0.4
	// homeShare is the share of an org's tenants that are in the region of its parent (or its own, without a parent);
	// the others follow Regions.
	homeShare = 0.8
	// residencyShare is the share of tenants whose data must stay in a country.
	residencyShare = 0.10
	// convertShare is the share of trials that become starters; the others leave.
	convertShare = 0.25
	// bootJitter is the relative deviation of a boot from its role's mean.
	bootJitter = 0.2
	// maxPerRun is the maximum number of servers per scale-out, and tenantsPerNewServer the number of waiting tenants
	// per ordered app server.
	maxPerRun, tenantsPerNewServer = 20, 12
	// initialServers is each region's number of app servers at the start, in shared mode; there are also a DB shard,
	// one locked to business, and a Redis pool.
	initialServers = 2
	// userMB is the memory of one user, in MB, and tenantMB that of a tenant without users; maxGrowth is the maximum
	// growth factor of a tenant's users.
	userMB, tenantMB = 10, 220
	maxGrowth        = 4.0
	// sitesPerServer is how many plain sites an app server's pool holds, and businessSitesPerServer how many on
	// business-locked shards; siteBuild is how long one takes: a server builds one at a time.
	sitesPerServer, businessSitesPerServer = 2, 1
	siteBuild                              = 6 * time.Minute
	// sampleEvery is the interval at which memory grows and the fleet is measured.
	sampleEvery = 6 * time.Hour
)

// PlanModel is the behaviour of a plan's tenants.
type PlanModel struct {
	Plan prego.Plan
	// Share is the plan's share of the arrivals.
	Share float64
	// UsersSpread is the sigma of the log-normal factor on the plan's default users.
	UsersSpread float64
	// GrowthMin and GrowthMax bound a tenant's relative growth in users per month.
	GrowthMin, GrowthMax float64
	// ChurnPerMonth is the share of tenants that leaves per month.
	ChurnPerMonth float64
}

// RegionShare is a region's share of the arrivals.
type RegionShare struct {
	Region prego.Region
	Share  float64
	// Country is a country whose data must stay in this region.
	Country string
}

// RoleModel is the machine of a role. A price is one for all regions.
type RoleModel struct {
	Role       prego.Role
	ServerType string
	// CentsPerMonth is the price in euro cents per month.
	CentsPerMonth int
	// MemoryMB is the machine's memory, and BaseMB what it uses without tenants.
	MemoryMB, BaseMB int
	// Boot is the time from the order until it is active.
	Boot time.Duration
}

// hoursPerMonth as the provider counts: 365.25 days of 24 hours by 12.
const hoursPerMonth = 730.5

const month = time.Duration(hoursPerMonth * float64(time.Hour))

// DefaultConfig is the default model with a policy.
func DefaultConfig(tenants int, p placement.Policy) Config {
	p.MaxRejected = 0 // only the counts are used
	return Config{
		Tenants: tenants, Policy: p,
		Days: 90, Settle: 24 * time.Hour,
		Plans: []PlanModel{
			{Plan: prego.PlanTrial, Share: 0.40, UsersSpread: 0.4, GrowthMin: 0, GrowthMax: 0.20, ChurnPerMonth: 0.10},
			{Plan: prego.PlanStarter, Share: 0.35, UsersSpread: 0.5, GrowthMin: -0.02, GrowthMax: 0.12, ChurnPerMonth: 0.04},
			{Plan: prego.PlanBusiness, Share: 0.20, UsersSpread: 0.5, GrowthMin: -0.01, GrowthMax: 0.10, ChurnPerMonth: 0.02},
			{Plan: prego.PlanEnterprise, Share: 0.05, UsersSpread: 0.4, GrowthMin: 0, GrowthMax: 0.06, ChurnPerMonth: 0.01},
		},
		Regions: []RegionShare{
			{Region: prego.RegionSG, Share: 0.40, Country: "SG"}, {Region: prego.RegionEU, Share: 0.35, Country: "DE"}, {Region: prego.RegionUS, Share: 0.25, Country: "US"},
		},
		MismatchShare: 0.02, UnknownShare: 0.01, DedicatedRedisShare: 0.03, TrialFor: 14 * 24 * time.Hour,
		Roles: []RoleModel{
			{Role: prego.RoleApp, ServerType: "cx43", CentsPerMonth: 1599, MemoryMB: 16_384, BaseMB: 1_200, Boot: 150 * time.Second},
			{Role: prego.RoleDBShard, ServerType: "ccx23", CentsPerMonth: 8599, MemoryMB: 16_384, BaseMB: 1_000, Boot: 240 * time.Second},
			{Role: prego.RoleRedisPool, ServerType: "cx33", CentsPerMonth: 849, MemoryMB: 8_192, BaseMB: 600, Boot: 120 * time.Second},
			{Role: prego.RoleNode, ServerType: "cx43", CentsPerMonth: 1599, MemoryMB: 16_384, BaseMB: 2_800, Boot: 300 * time.Second},
		},
		ShardCapacity: 60, PoolCapacity: 200, IdleFor: 48 * time.Hour, WarmNodes: 2,
	}
}

// roles are all roles, in the order of ordering and display.
var roles = []prego.Role{prego.RoleApp, prego.RoleDBShard, prego.RoleRedisPool, prego.RoleNode}

func (c Config) role(r prego.Role) RoleModel {
	for _, m := range c.Roles {
		if m.Role == r {
			return m
		}
	}
	return RoleModel{}
}

func (c Config) plan(p prego.Plan) PlanModel {
	for _, m := range c.Plans {
		if m.Plan == p {
			return m
		}
	}
	return PlanModel{Plan: p}
}
