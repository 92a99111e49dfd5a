package sim

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
)

// measures are the counts of a simulation under way.
type measures struct {
	arrived, placed, left, decisions int
	rejected, waitedFor, turnedBy    map[string]int
	waits                            map[prego.Plan][]time.Duration
	fromPool, onDemand               int
	kin, kinTogether                 int
	peakServers                      int
	peakAt                           time.Duration
	daily                            []Day
	samples                          []Sample
}

func (m *measures) init(c Config) {
	m.rejected, m.waitedFor, m.turnedBy, m.waits = map[string]int{}, map[string]int{}, map[string]int{}, map[prego.Plan][]time.Duration{}
	days := int(math.Ceil((time.Duration(c.Days)*24*time.Hour + c.Settle).Hours() / 24))
	m.daily = make([]Day, days)
	for i := range m.daily {
		m.daily[i].Day = i + 1
	}
}

func (m *measures) day(now time.Duration) *Day {
	return &m.daily[min(int(now/(24*time.Hour)), len(m.daily)-1)]
}

func (m *measures) peak(now time.Duration, live int) {
	if live > m.peakServers {
		m.peakServers, m.peakAt = live, now
	}
}

func (m *measures) refuse(now time.Duration, code prego.Code) {
	m.rejected[string(code)]++
	m.day(now).Rejected++
}

// wait is a tenant's first try that placed it nowhere.
func (m *measures) wait(now time.Duration, t *resident, d placement.Decision) {
	m.day(now).Waited++
	for _, role := range d.MissingRoles {
		name := string(role)
		if role == prego.RoleDBShard && placement.ShardLockFor(t.plan) != "" {
			name += " (" + string(placement.ShardLockFor(t.plan)) + ")"
		}
		m.waitedFor[name]++
	}
	switch d.Outcome {
	case placement.NeedsServer:
		m.waitedFor[string(prego.RoleNode)]++
	case placement.HoldForSite:
		m.waitedFor["site"]++
	}
	for why, n := range d.RejectedCounts { // sums: the order is of no matter
		m.turnedBy[why] += n
	}
}

func (m *measures) place(now time.Duration, t *resident, d placement.Decision) {
	m.placed++
	m.day(now).Placed++
	if d.Outcome == placement.Placed {
		m.fromPool++
	} else {
		m.onDemand++
	}
	if t.waited {
		m.waits[t.asked] = append(m.waits[t.asked], now-t.arrives)
	}
}

func (m *measures) scaleOut(now time.Duration, into *ScaleOut, servers int) {
	into.Runs++
	into.Servers += servers
	d := m.day(now)
	d.Runs++
	d.Booted += servers
}

func (s *Simulation) sample() {
	x := Sample{Hours: s.now.Hours(), Tenants: s.m.placed - s.m.left, Servers: s.live}
	cents := 0
	for _, r := range s.regions {
		x.Waiting += len(r.waiting)
		for _, h := range r.hosts {
			cents += s.c.role(h.role).CentsPerMonth
			if h.active && h.hostsApp() {
				x.Bands[min(9, int(s.pct(h)/10))]++
			}
		}
	}
	x.CostPerMonth = euro(cents)
	s.m.samples = append(s.m.samples, x)
}

func euro(cents int) float64 { return float64(cents) / 100 }

// Report is how it went so far.
func (s *Simulation) Report() Report {
	r := Report{
		Policy: string(s.c.Policy.Mode), Algorithm: string(s.c.Policy.Algorithm), Days: round(s.now.Hours()/24, 2), Decisions: s.m.decisions,
		Tenants:  Tenants{Arrived: s.m.arrived, Placed: s.m.placed, Living: s.m.placed - s.m.left, Left: s.m.left},
		Rejected: reasons(s.m.rejected), WaitedFor: reasons(s.m.waitedFor), TurnedBy: reasons(s.m.turnedBy),
		ScaleOuts: []ScaleOut{}, ServersEnd: s.live, ServersPeak: s.m.peakServers, PeakHours: round(s.m.peakAt.Hours(), 2),
		Sites:    Sites{FromPool: s.m.fromPool, OnDemand: s.m.onDemand, Share: share(s.m.fromPool, s.m.placed)},
		Affinity: Affinity{Possible: s.m.kin, Together: s.m.kinTogether, Rate: share(s.m.kinTogether, s.m.kin)},
		Samples:  append([]Sample{}, s.m.samples...), Daily: slices.Clone(s.m.daily), Violations: s.Check(),
	}
	for _, x := range r.Rejected {
		r.Tenants.Rejected += x.Count
	}
	r.Waits, r.Plans = s.waits()
	r.Fairness = s.fairness()
	for _, reg := range s.regions {
		r.Tenants.Waiting += len(reg.waiting)
		for _, role := range roles {
			if (role == prego.RoleNode) == s.single() {
				r.ScaleOuts = append(r.ScaleOuts, *reg.counts[role])
			}
		}
		usage, heat := s.usage(reg)
		r.Regions, r.Heat = append(r.Regions, usage), append(r.Heat, heat)
	}
	s.price(&r)
	return r
}

// waits are over all plans, and by plan; tenants that still wait count with their time so far.
func (s *Simulation) waits() (Waits, []PlanRow) {
	byPlan := map[prego.Plan][]time.Duration{}
	rows := make([]PlanRow, 0, len(s.c.Plans))
	for p, v := range s.m.waits {
		byPlan[p] = slices.Clone(v)
	}
	for _, r := range s.regions {
		for _, t := range r.waiting {
			byPlan[t.asked] = append(byPlan[t.asked], s.now-t.arrives)
		}
	}
	var all []time.Duration
	for _, m := range s.c.Plans {
		row := PlanRow{Plan: m.Plan}
		for _, t := range s.tenants {
			if t.asked == m.Plan && t.state != coming {
				row.Arrived++
				if t.state == living || t.state == left {
					row.Placed++
				}
			}
		}
		row.Waits = waitsOf(byPlan[m.Plan])
		rows, all = append(rows, row), append(all, byPlan[m.Plan]...)
	}
	return waitsOf(all), rows
}

func waitsOf(v []time.Duration) Waits {
	seconds := make([]float64, 0, len(v))
	for _, d := range v {
		seconds = append(seconds, d.Seconds())
	}
	g := gauge(seconds)
	return Waits{Waited: len(v), P50: g.P50, P95: g.P95, Max: g.Max}
}

func (s *Simulation) fairness() Fairness {
	waited, served := map[string]int{}, map[string]int{}
	sumWaited, sumServed, mostWaited, mostServed := 0, 0, 0, 0
	for _, t := range s.tenants {
		if t.waited {
			waited[t.org]++
			sumWaited++
			mostWaited = max(mostWaited, waited[t.org])
		}
		if t.state == living || t.state == left {
			served[t.org]++
			sumServed++
			mostServed = max(mostServed, served[t.org])
		}
	}
	return Fairness{MaxShareWaited: share(mostWaited, sumWaited), MaxShareServed: share(mostServed, sumServed)}
}

func (s *Simulation) usage(r *region) (Usage, RegionHeat) {
	memory, tenants := []float64{}, []float64{}
	for _, h := range r.hosts {
		if h.active && h.hostsApp() {
			memory, tenants = append(memory, round(s.pct(h), 2)), append(tenants, float64(s.tenantsOn(h)))
		}
	}
	u := Usage{Region: r.name, Servers: len(memory), MemoryPct: gauge(memory), Tenants: gauge(tenants)}
	slices.SortFunc(memory, func(a, b float64) int { return cmp.Compare(b, a) })
	return u, RegionHeat{Region: r.name, MemoryPct: memory}
}

func (s *Simulation) price(r *Report) {
	count := map[prego.Role]int{}
	hours := map[prego.Role]float64{}
	for _, h := range s.hosts {
		until := s.now
		if h.retired {
			until = h.gone
		} else {
			count[h.role]++
		}
		hours[h.role] += math.Ceil((until - h.ordered).Hours())
	}
	cents, spent := 0, 0.0
	for _, role := range roles {
		m := s.c.role(role)
		if (role == prego.RoleNode) == s.single() {
			r.Servers = append(r.Servers, ServerRow{Role: role, ServerType: m.ServerType, Count: count[role], CentsPerMonth: m.CentsPerMonth})
		}
		cents += count[role] * m.CentsPerMonth
		spent += hours[role] * float64(m.CentsPerMonth) / hoursPerMonth
	}
	r.Cost = Cost{PerMonthEnd: euro(cents), Spent: round(spent/100, 2)}
	if h := s.now.Hours(); h > 0 {
		r.Cost.PerMonthMean = round(spent/100/h*hoursPerMonth, 2)
	}
	if r.Tenants.Living > 0 {
		r.Cost.PerTenantEnd = round(r.Cost.PerMonthEnd/float64(r.Tenants.Living), 2)
	}
}

// reasons are the most frequent first, then by name.
func reasons(counts map[string]int) []Reason {
	out := make([]Reason, 0, len(counts))
	for name, n := range counts {
		out = append(out, Reason{Name: name, Count: n})
	}
	slices.SortFunc(out, func(a, b Reason) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// gauge takes the percentiles by nearest rank.
func gauge(v []float64) Gauge {
	if len(v) == 0 {
		return Gauge{}
	}
	v = slices.Sorted(slices.Values(v))
	at := func(p float64) float64 { return v[max(0, int(math.Ceil(p*float64(len(v))))-1)] }
	return Gauge{Min: v[0], P50: at(0.5), P95: at(0.95), Max: v[len(v)-1]}
}

func share(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return round(float64(n)/float64(of), 4)
}

func round(v float64, digits int) float64 {
	f := math.Pow10(digits)
	return math.Round(v*f) / f
}
