package instance

import (
	"fmt"
	"slices"

	"github.com/prego/prego"
	"github.com/prego/prego/workload"
)

// Offer is a fleet that may run instances in a region: the capacity of one more, empty server.
type Offer struct {
	FleetID     prego.FleetID
	Tags        []string // of its future servers
	Location    string   // of its future servers; "" if it is not known beforehand
	MemoryBytes int64
	DiskBytes   int64
	CPUs        float64
	Serves      bool  // it creates servers for instances that wait
	Room        int64 // how many more servers it may have
	// Growing: it is already creating servers for instances, or failed to a moment ago.
	Growing bool
}

// Growth is how many servers a fleet must create.
type Growth struct {
	FleetID prego.FleetID
	Servers int64
}

// Waiting is the outlook of a group that waits for capacity.
type Waiting struct {
	Code string // a reason that replaces the decision's; "" keeps it
	Text string // "" if unknown
}

// Grow sizes the growth of fleets for all instances without a place, in order. Coming servers and the servers created
// for earlier instances are filled first. Of the fleets that serve instances and whose empty server an instance would
// fit, the first with room grows. For an instance that fits no empty server of any fleet nothing grows. The servers
// are not changed.
func Grow(waiting []Request, coming []Server, offers []Offer) ([]Growth, map[prego.GroupID]Waiting) {
	g := growth{offers: slices.Clone(offers), says: map[prego.GroupID]Waiting{}}
	for _, s := range coming {
		s.Active = true
		s.Groups = nil // must not be written to
		g.servers = append(g.servers, s)
	}
	g.made = make([]int64, len(offers))
	for _, r := range waiting {
		if w := g.ask(r); w != (Waiting{}) {
			g.says[r.GroupID] = w
		}
	}
	var out []Growth
	for i, n := range g.made {
		if n > 0 {
			out = append(out, Growth{FleetID: offers[i].FleetID, Servers: n})
		}
	}
	return out, g.says
}

type growth struct {
	offers  []Offer
	servers []Server // that are coming
	made    []int64  // beside offers
	says    map[prego.GroupID]Waiting
}

func (g *growth) ask(r Request) Waiting {
	if d := Place(r, g.servers); d.ServerID != "" {
		i := slices.IndexFunc(g.servers, func(s Server) bool { return s.ServerID == d.ServerID })
		g.take(i, r)
		return Waiting{Text: "a server is being created"}
	}
	serving, suits, fits, full := false, false, false, prego.FleetID("")
	for i := range g.offers {
		o := &g.offers[i]
		serving = serving || o.Serves
		if !o.suits(r) {
			continue
		}
		suits = true
		if o.MemoryBytes < r.MemoryBytes || o.DiskBytes < r.DiskBytes {
			continue
		}
		fits = true
		switch {
		case !o.Serves:
		case o.Growing:
			return Waiting{Text: fmt.Sprintf(
				"fleet %s is growing, or its last growth failed less than five minutes ago", o.FleetID)}
		case o.Room <= 0:
			full = o.FleetID
		default:
			o.Room--
			g.made[i]++
			g.servers = append(g.servers, Server{
				ServerID: prego.ServerID(fmt.Sprintf("%s/new-%d", o.FleetID, g.made[i])), Location: o.Location,
				Tags: o.Tags, Active: true, MemoryBytes: o.MemoryBytes, DiskBytes: o.DiskBytes, CPUs: o.CPUs,
			})
			g.take(len(g.servers)-1, r)
			return Waiting{Text: fmt.Sprintf("fleet %s creates a server", o.FleetID)}
		}
	}
	switch {
	case !serving:
		return Waiting{}
	case full != "":
		return Waiting{Text: fmt.Sprintf("fleet %s is at its maximum size", full)}
	case suits && !fits:
		return Waiting{
			Code: workload.ReasonLargerThanServers,
			Text: "not even an empty server of a fleet in the region could hold it",
		}
	}
	return Waiting{}
}

// take counts an instance on a coming server.
func (g *growth) take(i int, r Request) {
	s := &g.servers[i]
	s.MemoryUsed += r.MemoryBytes
	s.DiskUsed += r.DiskBytes
	s.CPURequested += r.CPURequest
	if s.Groups == nil {
		s.Groups = map[string]int{}
	}
	s.Groups[string(r.GroupID)]++
}

// suits reports whether a future server would satisfy a request, were it large enough.
func (o *Offer) suits(r Request) bool {
	elsewhere := func(l string) bool { return l != o.Location }
	return r.Constraint.SatisfiedBy(o.Tags) && !slices.ContainsFunc(r.Locations, elsewhere)
}
