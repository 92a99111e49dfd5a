// Package sim simulates the life of a fleet with the placement engine: tenants arrive, grow and leave over simulated
// days, servers are booted for waiting ones, and a report card rates the policy. It is pure: the same configuration
// and the same seed give the same report to the byte.
package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
)

// MaxTenants is the maximum number of tenants in a simulation.
const MaxTenants = 100_000

// Config is the whole model. DefaultConfig has its constants.
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
	// Rhythm is the relative amplitude of the arrival rate within a day, 0 to 1.
	Rhythm float64
	// PeakHour is the hour of the day, 0 to 24, with the most arrivals.
	PeakHour float64

	// Plans is the mix of plans and the behaviour of their tenants. The shares need not sum up to 1.
	Plans []PlanModel
	// Regions is the mix of regions.
	Regions []RegionShare
	// TenantsPerOrg is the mean; the sizes follow Zipf's law.
	TenantsPerOrg int
	// OrgsPerParent is how many orgs there are for each parent org.
	OrgsPerParent int
	// ParentShare is the share of orgs that have a parent org.
	ParentShare float64
	// ZipfExponent and ZipfOffset shape the orgs' sizes: the weight of the k-th org is
	// (ZipfOffset + k)^-ZipfExponent.
	ZipfExponent, ZipfOffset float64
	// HomeShare is the share of an org's tenants that are in the region of its parent
	// (or its own, without a parent); the others follow Regions.
	HomeShare float64

	// ResidencyShare is the share of tenants whose data must stay in a country.
	ResidencyShare float64
	// MismatchShare is the share of requests for a region that must not store the data of their country.
	MismatchShare float64
	// UnknownShare is the share of those whose country has no residency zone.
	UnknownShare float64
	// DedicatedRedisShare is the share of business tenants with a dedicated Redis pool.
	DedicatedRedisShare float64

	// TrialFor is how long a trial lasts.
	TrialFor time.Duration
	// ConvertShare is the share of trials that become starters; the others leave.
	ConvertShare float64

	// Roles are the machines of each role.
	Roles []RoleModel
	// BootJitter is the relative deviation of a boot from its role's mean.
	BootJitter float64
	// MaxPerRun is the maximum number of servers per scale-out.
	MaxPerRun int
	// TenantsPerNewServer is the number of waiting tenants per ordered app server.
	TenantsPerNewServer int
	// ShardCapacity and PoolCapacity are tenants per DB shard and per Redis pool.
	ShardCapacity, PoolCapacity int
	// InitialServers is each region's number of app servers at the start, in shared
	// mode; there are also a DB shard, one locked to business, and a Redis pool.
	InitialServers int
	// IdleFor is how long a server is empty before it is returned.
	IdleFor time.Duration
	// WarmNodes is how many unclaimed nodes a region keeps, in one_tenant_one_server.
	WarmNodes int

	// UserMB is the memory of one user, in MB, and TenantMB that of a tenant without users.
	UserMB, TenantMB int
	// MaxGrowth is the maximum growth factor of a tenant's users.
	MaxGrowth float64

	// SitesPerServer is how many plain sites an app server's pool holds, and
	// BusinessSitesPerServer how many on business-locked shards.
	SitesPerServer, BusinessSitesPerServer int
	// SiteBuild is how long a pool site takes; a server builds one at a time.
	SiteBuild time.Duration

	// SampleEvery is the interval at which memory grows and the fleet is measured.
	SampleEvery time.Duration
}

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
		Days: 90, Settle: 24 * time.Hour, Rhythm: 0.7, PeakHour: 10,
		Plans: []PlanModel{
			{Plan: prego.PlanTrial, Share: 0.40, UsersSpread: 0.4, GrowthMin: 0, GrowthMax: 0.20, ChurnPerMonth: 0.10},
			{Plan: prego.PlanStarter, Share: 0.35, UsersSpread: 0.5, GrowthMin: -0.02, GrowthMax: 0.12, ChurnPerMonth: 0.04},
			{Plan: prego.PlanBusiness, Share: 0.20, UsersSpread: 0.5, GrowthMin: -0.01, GrowthMax: 0.10, ChurnPerMonth: 0.02},
			{Plan: prego.PlanEnterprise, Share: 0.05, UsersSpread: 0.4, GrowthMin: 0, GrowthMax: 0.06, ChurnPerMonth: 0.01},
		},
		Regions: []RegionShare{
			{Region: prego.RegionSG, Share: 0.40, Country: "SG"}, {Region: prego.RegionEU, Share: 0.35, Country: "DE"}, {Region: prego.RegionUS, Share: 0.25, Country: "US"},
		},
		TenantsPerOrg: 4, OrgsPerParent: 10, ParentShare: 0.4, ZipfExponent: 1.2, ZipfOffset: 8, HomeShare: 0.8,
		ResidencyShare: 0.10, MismatchShare: 0.02, UnknownShare: 0.01, DedicatedRedisShare: 0.03,
		TrialFor: 14 * 24 * time.Hour, ConvertShare: 0.25,
		Roles: []RoleModel{
			{Role: prego.RoleApp, ServerType: "cx43", CentsPerMonth: 1599, MemoryMB: 16_384, BaseMB: 1_200, Boot: 150 * time.Second},
			{Role: prego.RoleDBShard, ServerType: "ccx23", CentsPerMonth: 8599, MemoryMB: 16_384, BaseMB: 1_000, Boot: 240 * time.Second},
			{Role: prego.RoleRedisPool, ServerType: "cx33", CentsPerMonth: 849, MemoryMB: 8_192, BaseMB: 600, Boot: 120 * time.Second},
			{Role: prego.RoleNode, ServerType: "cx43", CentsPerMonth: 1599, MemoryMB: 16_384, BaseMB: 2_800, Boot: 300 * time.Second},
		},
		BootJitter: 0.2, MaxPerRun: 20, TenantsPerNewServer: 12, ShardCapacity: 60, PoolCapacity: 200,
		InitialServers: 2, IdleFor: 48 * time.Hour, WarmNodes: 2,
		UserMB: 10, TenantMB: 220, MaxGrowth: 4,
		SitesPerServer: 2, BusinessSitesPerServer: 1, SiteBuild: 6 * time.Minute,
		SampleEvery: 6 * time.Hour,
	}
}

// Validate rejects an impossible model.
func (c Config) Validate() error {
	if err := c.Policy.Validate(); err != nil {
		return err
	}
	if c.Policy.Algorithm == placement.NewServer {
		return prego.Invalid("policy.algorithm", "must be best_fit, first_fit or round_robin")
	}
	if c.Tenants < 0 || c.Tenants > MaxTenants {
		return prego.Invalid("tenants", fmt.Sprintf("must be 0 to %d", MaxTenants))
	}
	if len(c.Plans) == 0 || len(c.Regions) == 0 {
		return prego.Invalid("plans", "and regions must not be empty")
	}
	for _, role := range roles {
		if c.role(role).MemoryMB <= 0 || c.role(role).Boot <= 0 {
			return prego.Invalid("roles", fmt.Sprintf("must describe %s", role))
		}
	}
	for _, v := range []struct {
		name string
		v    int
	}{
		{"days", c.Days},
		{"tenants_per_org", c.TenantsPerOrg},
		{"orgs_per_parent", c.OrgsPerParent},
		{"max_per_run", c.MaxPerRun},
		{"tenants_per_new_server", c.TenantsPerNewServer},
		{"shard_capacity", c.ShardCapacity},
		{"pool_capacity", c.PoolCapacity},
		{"sample_every", int(c.SampleEvery)},
		{"site_build", int(c.SiteBuild)},
		{"initial_servers", c.InitialServers},
	} {
		if v.v < 1 {
			return prego.Invalid(v.name, "must be at least 1")
		}
	}
	for _, v := range []struct {
		name string
		v    float64
	}{
		{"rhythm", c.Rhythm},
		{"parent_share", c.ParentShare},
		{"home_share", c.HomeShare},
		{"residency_share", c.ResidencyShare},
		{"mismatch_share", c.MismatchShare},
		{"unknown_share", c.UnknownShare},
		{"dedicated_redis_share", c.DedicatedRedisShare},
		{"convert_share", c.ConvertShare},
		{"boot_jitter", c.BootJitter},
	} {
		if math.IsNaN(v.v) || v.v < 0 || v.v > 1 {
			return prego.Invalid(v.name, "must be 0 to 1")
		}
	}
	if !(c.ZipfExponent > 1) || !(c.ZipfOffset >= 1) {
		return prego.Invalid("zipf_exponent", "must be above 1, and zipf_offset at least 1")
	}
	return nil
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
