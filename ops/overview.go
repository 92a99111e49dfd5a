package ops

import (
	"time"

	"github.com/prego/prego/cost"
)

// Overview is how an installation is in a few numbers, with how each went as far as rows have it.
type Overview struct {
	Tenants OverviewTenants
	Sites   OverviewSites
	Servers OverviewServers
	Waiting OverviewWaiting
	Costs   OverviewCosts
	AsOf    time.Time
}

// OverviewTenants counts tenants that are not terminated.
type OverviewTenants struct {
	Total, Active int
	Months        []OverviewMonth `db:"-"` // the oldest first
}

// OverviewMonth is a calendar month of the sites that edges probed in it.
type OverviewMonth struct {
	Month     string
	Sites     int
	UptimePct *float64 // nil if none was up or down
}

// OverviewSites counts sites that should answer and that edges probe now.
type OverviewSites struct{ Up, Down int }

// OverviewServers counts servers that are not terminated. Silent are active without a connected agent.
// MemoryPct is the mean of what active ones reported last.
type OverviewServers struct {
	Total, Active, Silent int
	MemoryPct             *float64
	Hours                 []OverviewHour `db:"-"` // of the last day, the oldest first
}

// OverviewHour is what the agents reported in the first minutes of an hour.
type OverviewHour struct {
	At        time.Time
	Servers   int
	MemoryPct *float64
}

// OverviewWaiting counts what is in the queue.
type OverviewWaiting struct {
	Count int
	Since *time.Time
}

// OverviewCosts is what the current calendar month cost so far, by kind of resource, and its last days.
type OverviewCosts struct {
	Month    time.Time
	Currency string
	Total    cost.Micro
	Kinds    []cost.KindTotal // the most expensive first
	Days     []cost.Day
}
