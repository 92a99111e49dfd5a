package placement

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/prego/prego"
)

// WaiterKind is what kind of thing waits for capacity.
type WaiterKind string

// The kinds.
const (
	WaiterTenant WaiterKind = "tenant"
	WaiterGroup  WaiterKind = "group"
)

// Waiter is a tenant or a process group that waits for capacity in a region.
type Waiter struct {
	Position     int // from 1, among waiters of its kind in its region
	Kind         WaiterKind
	ID, Name     string
	OrgID        prego.OrgID
	Region       prego.Region
	Plan         prego.Plan // of a tenant
	WaitingSince time.Time
	Code         prego.Reason
	Reason       string
	MissingRoles []prego.Role // of a tenant
	Own          *Coming      `json:"-"` // a tenant's own server, the only one that it waits for
}

// ComingKind is what kind of capacity is on its way.
type ComingKind string

// The kinds.
const (
	ComingServer   ComingKind = "server"    // has been asked for
	ComingScaleOut ComingKind = "scale_out" // asks for servers, and has not asked for all of them
)

// Coming is capacity on its way.
type Coming struct {
	Kind        ComingKind
	ID          string
	Status      string
	Region      prego.Region
	Role        prego.Role
	Tenants     bool // it takes tenants
	Workloads   bool // it takes instances
	RequestedAt time.Time
	Room        int  // for how many tenants; 0 if that is not known
	Stock       bool // it waits for the provider's stock or quota
}

// Usual is how long servers of a role in a region took from their request until they were active.
type Usual struct {
	Region   prego.Region
	Role     prego.Role
	Servers  int
	P50, P95 float64 // seconds
}

// Round is the last scale-out of a role in a region, and its message.
type Round struct {
	Region  prego.Region
	Role    prego.Role
	Message string
}

// Queue is the waiters in the order of service, and the capacity on its way.
type Queue struct {
	At      time.Time
	Waiters []Waiter
	Coming  []Coming
	Usual   []Usual
	Rounds  []Round
	Target  time.Duration // what servers should take, where none has been made
}

// ComingAt is capacity on its way and when it is expected, nil if unknown.
type ComingAt struct {
	Coming
	ExpectedAt *time.Time
}

// Expectation is a waiter with what it can expect.
type Expectation struct {
	Waiter
	Coming     []ComingAt
	ExpectedAt *time.Time // nil if nothing is on its way for it
	Because    string     `json:"expected_because"` // how that was estimated, or why not
}

// comingShown is how many things on their way are shown with a waiter.
const comingShown = 20

// Expect estimates for each waiter when it may have its place. A server is expected after the median time of its
// kind, or once that has passed, after the 95th percentile. Waiters share the coming capacity in their order: none is
// expected before an earlier one.
func (q Queue) Expect() []Expectation {
	ahead := map[lane]int{}
	last := map[lane]*Expectation{} // by region and kind
	out := make([]Expectation, len(q.Waiters))
	for i, w := range q.Waiters {
		e := &out[i]
		e.Waiter = w
		if w.Own != nil {
			e.ExpectedAt, e.Because = q.expected(*w.Own)
			e.Coming = []ComingAt{{*w.Own, e.ExpectedAt}}
			continue
		}
		lanes := q.lanes(w)
		e.Coming = q.coming(lanes)
		for _, l := range lanes {
			at, why := q.turn(l, ahead[l])
			ahead[l]++
			switch {
			case at == nil:
				e.ExpectedAt, e.Because = nil, why
			case e.ExpectedAt == nil || at.After(*e.ExpectedAt):
				e.ExpectedAt, e.Because = at, why
			}
			if at == nil {
				break
			}
		}
		if len(lanes) == 0 {
			e.Because = "it lacks no server: it waits for its site, or for its turn"
		}
		all := lane{region: w.Region, kind: w.Kind}
		if p := last[all]; e.ExpectedAt != nil && p != nil && p.ExpectedAt.After(*e.ExpectedAt) {
			e.ExpectedAt, e.Because = p.ExpectedAt, fmt.Sprintf("%s is served first, and %s", p.Name, p.Because)
		}
		if e.ExpectedAt != nil {
			if p := last[all]; p == nil || e.ExpectedAt.After(*p.ExpectedAt) {
				last[all] = e
			}
		}
	}
	return out
}

// lane is what waiters of a region need of the same.
type lane struct {
	region prego.Region
	kind   WaiterKind
	role   prego.Role // "" for instances: of any role that takes them
}

func (q Queue) lanes(w Waiter) (out []lane) {
	if w.Kind == WaiterGroup {
		return []lane{{w.Region, w.Kind, ""}}
	}
	for _, r := range w.MissingRoles {
		out = append(out, lane{w.Region, w.Kind, r})
	}
	return out
}

func (l lane) takes(c Coming) bool {
	if l.kind == WaiterGroup {
		return c.Region == l.region && c.Workloads
	}
	return c.Region == l.region && c.Role == l.role && c.Tenants
}

func (l lane) servers() string {
	if l.kind == WaiterGroup {
		return "server that takes instances"
	}
	return "server of role " + string(l.role)
}

// coming is the coming capacity for some lanes, earliest first.
func (q Queue) coming(lanes []lane) []ComingAt {
	out := []ComingAt{}
	for _, c := range q.Coming {
		if slices.ContainsFunc(lanes, func(l lane) bool { return l.takes(c) }) {
			at, _ := q.expected(c)
			out = append(out, ComingAt{c, at})
		}
	}
	slices.SortStableFunc(out, func(a, b ComingAt) int { return cmp.Or(soonest(a.ExpectedAt, b.ExpectedAt), cmp.Compare(a.ID, b.ID)) })
	return out[:min(len(out), comingShown)]
}

func soonest(a, b *time.Time) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return a.Compare(*b)
}

// expected is when something on its way is expected, and how that was estimated, or why it can't be.
func (q Queue) expected(c Coming) (at *time.Time, why string) {
	if c.Stock {
		return nil, fmt.Sprintf("server %s waits for the provider's stock or quota", c.ID)
	}
	what := fmt.Sprintf("server %s is being made", c.ID)
	if c.Kind == ComingScaleOut {
		what = fmt.Sprintf("scale-out %s is asking for servers", c.ID)
	}
	i := slices.IndexFunc(q.Usual, func(u Usual) bool { return u.Region == c.Region && u.Role == c.Role && u.Servers > 0 })
	if i < 0 {
		when := c.RequestedAt.Add(q.Target)
		if when.Before(q.At) {
			return nil, fmt.Sprintf("%s for longer than the %s that servers should take, and no other one was made in %s in 30 days", what, q.Target, c.Region)
		}
		return &when, fmt.Sprintf("%s; servers should take %s, and none was made in %s in 30 days", what, q.Target, c.Region)
	}
	u := q.Usual[i]
	for _, p := range []struct {
		seconds float64
		name    string
	}{{u.P50, "half"}, {u.P95, "95 %"}} {
		took := time.Duration(p.seconds * float64(time.Second))
		if when := c.RequestedAt.Add(took); !when.Before(q.At) {
			return &when, fmt.Sprintf("%s, and %s of %d servers of role %s in %s took at most %s", what, p.name, u.Servers, u.Role, u.Region, took.Round(time.Second))
		}
	}
	return nil, fmt.Sprintf("%s for longer than 95 %% of %d servers of role %s in %s took: the time is unknown",
		what, u.Servers, u.Role, u.Region)
}

// turn is when the waiter with so many before it in a lane gets capacity of it.
func (q Queue) turn(l lane, before int) (at *time.Time, why string) {
	type server struct {
		at   *time.Time
		why  string
		room int
		id   string
	}
	var all []server
	for _, c := range q.Coming {
		if l.takes(c) {
			at, why := q.expected(c)
			all = append(all, server{at, why, c.Room, c.ID})
		}
	}
	if len(all) == 0 {
		why := fmt.Sprintf("no %s is being made in %s", l.servers(), l.region)
		if i := slices.IndexFunc(q.Rounds, func(r Round) bool {
			return r.Region == l.region && r.Role == l.role && r.Message != ""
		}); i >= 0 {
			why += ": the last scale-out reported: " + q.Rounds[i].Message
		}
		return nil, why
	}
	slices.SortStableFunc(all, func(a, b server) int { return cmp.Or(soonest(a.at, b.at), cmp.Compare(a.id, b.id)) })
	room := 0
	for _, s := range all {
		if room += s.room; s.room == 0 || before < room {
			return s.at, s.why
		}
	}
	return nil, fmt.Sprintf("the coming capacity has room for %d, and %d are served before it", room, before)
}
