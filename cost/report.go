package cost

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
)

// Part is what an entry's amount was paid for.
type Part string

// The parts. Used has an owner, the others have none.
const (
	Used      Part = "used"
	Idle      Part = "idle"      // unused capacity
	Shared    Part = "shared"    // used by all tenants, such as edges and golden images
	Untracked Part = "untracked" // what no row owns
)

// Basis is how an owner's part of an amount was found.
type Basis string

// The bases.
const (
	Own      Basis = "own"    // all of it is for the owner
	ByWeight Basis = "weight" // shared by the weights of plans
	ByMemory Basis = "memory" // shared by the memory that instances were promised
	Mixed    Basis = "mixed"  // several of these
	NoBasis  Basis = "none"   // no owner causes it
)

// By is what costs are grouped by.
type By string

// What costs are grouped by.
const (
	ByTenant By = "tenant"
	ByOrg    By = "org"
	ByServer By = "server"
	ByPool   By = "pool"
	ByFleet  By = "fleet"
	ByRegion By = "region"
	ByKind   By = "kind"
)

// Line is a sum of entries that have all of this in common.
type Line struct {
	Key    string // of what they are grouped by, "" for none
	Name   string
	OrgID  prego.OrgID
	Part   Part
	Basis  Basis
	Amount Micro
}

// Row is the cost of a thing, or of everything without one.
type Row struct {
	Kind  string // that of By; or idle, shared, untracked, none, rest
	ID    string
	Name  string
	OrgID prego.OrgID
	Cost  Micro
	Idle  Micro // of Cost
	Basis Basis
}

// Day is what one day cost.
type Day struct {
	Day  time.Time
	Cost Micro
	Idle Micro
}

// KindTotal is what the resources of a kind cost.
type KindTotal struct {
	Kind string
	Cost Micro
}

// Month is the record of a calendar month, in UTC.
type Month struct {
	Currency string // "" if there is nothing
	Lines    []Line
	Days     []Day
	Unpriced int
	AsOf     *time.Time // nil if nothing was ever counted
	BeganAt  *time.Time // of the first counting
}

// Report is a month's costs.
type Report struct {
	Rows                           []Row
	Total, Idle, Shared, Untracked Micro
}

// What rows without a thing stand for, in their order at the end.
var withoutThing = []struct{ kind, name string }{
	{"rest", "all others"}, {"none", "without one"}, {string(Shared), "shared by all"}, {string(Idle), "idle capacity"}, {string(Untracked), "owned by no row"},
}

// Summarize makes rows of lines, the most expensive first; lines without a thing
// come last. More than limit rows of things are put together as one. Rows, and the parts, add up
// to what the lines do.
func Summarize(by By, lines []Line, limit int) Report {
	var out Report
	rows := map[[2]string]*Row{}
	for _, l := range lines {
		out.Total += l.Amount
		switch l.Part {
		case Idle:
			out.Idle += l.Amount
		case Shared:
			out.Shared += l.Amount
		case Untracked:
			out.Untracked += l.Amount
		case Used:
		}
		kind, id := string(by), l.Key
		if l.Key == "" {
			kind = string(l.Part)
			if l.Part == Used {
				kind = "none"
			}
			id = kind
		}
		r := rows[[2]string{kind, id}]
		if r == nil {
			r = &Row{Kind: kind, ID: id, Name: cmp.Or(l.Name, id), Basis: l.Basis}
			if l.Key != "" {
				r.OrgID = l.OrgID
			}
			rows[[2]string{kind, id}] = r
		}
		r.Cost += l.Amount
		if l.Part == Idle {
			r.Idle += l.Amount
		}
		if r.Basis != l.Basis {
			r.Basis = mixed(r.Basis, l.Basis)
		}
	}
	var special []Row
	for _, r := range rows {
		if r.Kind == string(by) {
			out.Rows = append(out.Rows, *r)
		} else {
			special = append(special, *r)
		}
	}
	slices.SortFunc(out.Rows, func(a, b Row) int { return cmp.Or(cmp.Compare(b.Cost, a.Cost), strings.Compare(a.ID, b.ID)) })
	if len(out.Rows) > limit {
		rest := Row{Kind: "rest", ID: "rest", Basis: out.Rows[limit].Basis}
		for _, r := range out.Rows[limit:] {
			rest.Cost += r.Cost
			rest.Idle += r.Idle
			if rest.Basis != r.Basis {
				rest.Basis = Mixed
			}
		}
		out.Rows, special = out.Rows[:limit], append(special, rest)
	}
	for _, w := range withoutThing {
		for _, r := range special {
			if r.Kind == w.kind {
				r.Name = w.name
				out.Rows = append(out.Rows, r)
			}
		}
	}
	return out
}

// mixed is the basis of a row with both; costs that no owner causes don't count beside
// the others.
func mixed(a, b Basis) Basis {
	switch {
	case a == NoBasis:
		return b
	case b == NoBasis:
		return a
	}
	return Mixed
}

// PerMonth is what something costs a month by current prices.
type PerMonth struct {
	Currency string
	Total    Micro
	Unpriced int // resources without a known price
	Parts    []PartPerMonth
}

// PartPerMonth is a part of it: of a server, "" for backups.
type PartPerMonth struct {
	ServerID string
	Cost     Micro
}

// Add adds an amount to a server's part.
func (p *PerMonth) Add(serverID string, amount Micro) {
	p.Total += amount
	for i := range p.Parts {
		if p.Parts[i].ServerID == serverID {
			p.Parts[i].Cost += amount
			return
		}
	}
	p.Parts = append(p.Parts, PartPerMonth{serverID, amount})
}

// MonthOf is the beginning of a time's calendar month, in UTC.
func MonthOf(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
}

// Complete reports whether everything of a month is counted at a known price: up to its end, or
// until not long before now. Slack is how late counting may be.
func (m Month) Complete(month, now time.Time, slack time.Duration) bool {
	end := month.AddDate(0, 1, 0)
	if end.After(now) {
		end = now.Add(-slack)
	}
	return m.Unpriced == 0 && m.AsOf != nil && m.BeganAt != nil && !m.AsOf.Before(end) && !MonthOf(*m.BeganAt).After(month)
}

// Numbers are what metrics show.
type Numbers struct {
	Kinds     []KindCost
	Untracked []KindCount
	Unpriced  int
	AsOf      *time.Time
}

// KindCost is what things of one kind cost in a month.
type KindCost struct {
	Kind, Currency string
	Cost, Idle     Micro
}

// KindCount is how many things of one kind no row owns.
type KindCount struct {
	Kind string
	N    int
}
