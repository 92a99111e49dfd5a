package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
)

// state is where a tenant stands.
type state uint8

const (
	coming state = iota
	waiting
	living
	left
	refused
)

// tenant is one customer from the first draw to the last day.
type resident struct {
	id, org, parent string
	region          prego.Region
	plan            prego.Plan
	asked           prego.Plan // the plan at arrival: a trial may become a starter
	residency       string
	dedicatedRedis  bool
	arrives         time.Duration
	users           float64 // at arrival
	growth          float64 // of users per month
	life            float64 // drawn from the exponential distribution of mean 1
	converts        bool

	state  state
	placed time.Duration
	mb     int // the memory that it has on its server
	// server, shard and pool are where it lives; shard and pool of a node are the node.
	server, shard, pool *host

	waited   bool
	turn     int          // its place among its org's waiting
	missing  []prego.Role // what its last decision was short of
	reserved []*host      // ordered or booted for it alone
}

func (t *resident) request() placement.Request {
	return placement.Request{
		TenantID: prego.TenantID(t.id), OrgID: prego.OrgID(t.org), ParentOrgID: prego.OrgID(t.parent), Region: t.region, Plan: t.plan,
		DataResidency: t.residency, DedicatedRedis: t.dedicatedRedis,
	}
}

// memory is what the tenant uses at a moment, in MB.
func (t *resident) memory(now time.Duration) int {
	months := float64(now-t.placed) / float64(month)
	grown := min(max(1+t.growth*months, 0.2), maxGrowth)
	return tenantMB + int(t.users*grown*float64(userMB))
}

type org struct {
	id, parent string
	home       prego.Region
}

// draw makes all tenants before anything happens, so that the same seed asks the same of every policy and algorithm.
func draw(c *Config, rng *rand.Rand) []*resident {
	orgs := drawOrgs(c, rng)
	zipf := rand.NewZipf(rng, zipfExponent, zipfOffset, uint64(len(orgs)-1))
	arrivals := drawArrivals(c, rng)
	out := make([]*resident, c.Tenants)
	for i := range out {
		o := orgs[zipf.Uint64()]
		t := &resident{id: fmt.Sprintf("t-%06d", i+1), org: o.id, parent: o.parent, region: o.home, arrives: arrivals[i]}
		if rng.Float64() >= homeShare {
			t.region = c.Regions[pick(rng, len(c.Regions), func(i int) float64 { return c.Regions[i].Share })].Region
		}
		m := c.Plans[pick(rng, len(c.Plans), func(i int) float64 { return c.Plans[i].Share })]
		t.plan, t.asked = m.Plan, m.Plan
		t.users = max(1, math.Round(float64(m.Plan.DefaultUsers())*math.Exp(rng.NormFloat64()*m.UsersSpread)))
		t.growth = m.GrowthMin + rng.Float64()*(m.GrowthMax-m.GrowthMin)
		t.life = rng.ExpFloat64()
		t.converts = rng.Float64() < convertShare
		t.dedicatedRedis = rng.Float64() < c.DedicatedRedisShare && m.Plan == prego.PlanBusiness
		t.residency = drawResidency(c, rng, t.region)
		out[i] = t
	}
	return out
}

func drawOrgs(c *Config, rng *rand.Rand) []org {
	orgs := make([]org, max(1, c.Tenants/tenantsPerOrg))
	parents := max(1, len(orgs)/orgsPerParent)
	homes := make([]prego.Region, parents)
	region := func() prego.Region {
		return c.Regions[pick(rng, len(c.Regions), func(i int) float64 { return c.Regions[i].Share })].Region
	}
	for i := range homes {
		homes[i] = region()
	}
	for i := range orgs {
		orgs[i] = org{id: fmt.Sprintf("org-%05d", i+1), home: region()}
		if rng.Float64() < parentShare {
			p := rng.IntN(parents)
			orgs[i].parent, orgs[i].home = fmt.Sprintf("parent-%04d", p+1), homes[p]
		}
	}
	return orgs
}

// drawArrivals are the moments of a Poisson process with a daily rhythm, given how
// many there are: independent draws from its rate, in order.
func drawArrivals(c *Config, rng *rand.Rand) []time.Duration {
	span := time.Duration(c.Days) * 24 * time.Hour
	out := make([]time.Duration, 0, c.Tenants)
	for len(out) < c.Tenants {
		at := time.Duration(rng.Int64N(int64(span))).Truncate(time.Second)
		hour := math.Mod(at.Hours(), 24)
		rate := 1 + rhythm*math.Cos(2*math.Pi*(hour-peakHour)/24)
		if rng.Float64()*(1+rhythm) < rate {
			out = append(out, at)
		}
	}
	slices.Sort(out)
	return out
}

func drawResidency(c *Config, rng *rand.Rand, region prego.Region) string {
	wants, kind := rng.Float64() < residencyShare, rng.Float64()
	if !wants {
		return ""
	}
	if kind < c.UnknownShare {
		return "XX"
	}
	mismatch := kind < c.UnknownShare+c.MismatchShare
	for _, r := range c.Regions {
		if (r.Region != region) == mismatch {
			return r.Country
		}
	}
	return ""
}

// residency is where each country's data may be.
func (c *Config) residency() map[string]placement.Zone {
	out := make(map[string]placement.Zone, len(c.Regions))
	for _, r := range c.Regions {
		out[r.Country] = placement.Zone{Regions: []prego.Region{r.Region}}
	}
	return out
}

// pick draws an index by weight.
func pick(rng *rand.Rand, n int, weight func(int) float64) int {
	sum := 0.0
	for i := range n {
		sum += weight(i)
	}
	v := rng.Float64() * sum
	for i := range n {
		if v -= weight(i); v < 0 {
			return i
		}
	}
	return n - 1
}
