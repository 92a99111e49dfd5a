package pack

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/prego/prego"
)

// Host is a running server of a fleet.
type Host struct {
	// ID is unique in the fleet.
	ID string
	// Place limits moves: residents can move to hosts of the same place without other changes.
	Place string
	// Capacity is the total that residents may take, by dimension, at least 0, in any unit that they share. All hosts
	// of a place name the same dimensions.
	Capacity map[string]float64
	// Price is per month, without tax; 0 is unknown.
	Price float64
	// Takes allows residents to move here, and Leaves allows emptying the host.
	Takes, Leaves bool
}

// Resident lives on a host.
type Resident struct {
	// ID is unique in the fleet.
	ID string
	// Host is where it lives.
	Host string
	// Demand is what it takes there, in the units of the capacity.
	Demand map[string]float64
	// Bytes is the size of the copy when it moves.
	Bytes int64
	// Stays means that it can't move.
	Stays bool
}

// ConsolidationLimits bound a consolidation; 0 is no limit.
type ConsolidationLimits struct {
	Moves int
	Bytes int64
}

// Move is the move of one resident.
type Move struct {
	ID, From, To string
	Bytes        int64
}

// Freed is a host that the moves empty.
type Freed struct {
	ID    string
	Price float64 // per month
	Moves int
	Bytes int64 // that they copy
}

// Consolidation is what can be freed, and how.
type Consolidation struct {
	// Moves are in an executable order. Moves that free the same host are adjacent.
	Moves []Move
	// Freed are the hosts, the host that frees most per moved byte first.
	Freed []Freed
	Bytes int64
	Price float64 // that is freed, per month
	// Used is how many hosts have residents now, and LowerBound the proven minimum.
	Used, LowerBound int
}

// minMoveBytes is what a move costs besides its bytes.
const minMoveBytes = 16 << 20

// Consolidate finds moves that empty hosts, first those that free the highest price per moved byte (placement-policy
// §4). It never moves a resident twice, nor to a host that will be emptied, so any order of the moves stays within
// the capacities. Overloaded hosts receive no resident. Equal choices are made by ID.
func Consolidate(hosts []Host, residents []Resident, limits ConsolidationLimits) (Consolidation, error) {
	f, err := newFleet(hosts, residents)
	if err != nil {
		return Consolidation{}, err
	}
	var out Consolidation
	out.Used, out.LowerBound = f.bound()
	for {
		freed := false
		for _, i := range f.byWorth() {
			moves, ok := f.empty(i)
			if !ok {
				continue
			}
			bytes := f.hosts[i].bytes
			if limits.Moves > 0 && len(out.Moves)+len(moves) > limits.Moves ||
				limits.Bytes > 0 && out.Bytes+bytes > limits.Bytes {
				continue
			}
			f.carryOut(i, moves)
			h := f.hosts[i]
			out.Freed = append(out.Freed, Freed{ID: h.ID, Price: h.Price, Moves: len(moves), Bytes: bytes})
			for _, m := range moves {
				move := Move{ID: m.resident.ID, From: h.ID, To: f.hosts[m.to].ID, Bytes: m.resident.Bytes}
				out.Moves = append(out.Moves, move)
			}
			out.Bytes += bytes
			out.Price += h.Price
			freed = true
		}
		if !freed {
			return out, nil
		}
	}
}

type fleet struct {
	hosts  []fleetHost // by ID
	places map[string][]int
}

type fleetHost struct {
	Host
	residents []Resident // largest share of the capacity first
	load      map[string]float64
	bytes     int64
	stays     bool // a resident can't leave
	gets      bool // a resident moves here
	freed     bool
}

type fleetMove struct {
	resident Resident
	to       int
}

func newFleet(hosts []Host, residents []Resident) (*fleet, error) {
	f := &fleet{hosts: make([]fleetHost, len(hosts)), places: map[string][]int{}}
	at := make(map[string]int, len(hosts))
	hosts = slices.SortedFunc(slices.Values(hosts), func(a, b Host) int { return cmp.Compare(a.ID, b.ID) })
	for i, h := range hosts {
		if _, twice := at[h.ID]; twice {
			return nil, prego.Invalid("hosts", fmt.Sprintf("%q is given twice", h.ID))
		}
		for d, v := range h.Capacity {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				return nil, prego.Invalid("hosts",
					fmt.Sprintf("%q has a capacity of %v in %s; it must be at least 0", h.ID, v, d))
			}
		}
		at[h.ID] = i
		f.hosts[i] = fleetHost{Host: h, load: make(map[string]float64, len(h.Capacity))}
		f.places[h.Place] = append(f.places[h.Place], i)
	}
	seen := make(map[string]bool, len(residents))
	for _, r := range residents {
		i, ok := at[r.Host]
		if !ok {
			return nil, prego.Invalid("residents", fmt.Sprintf("%q lives on %q, which is no host", r.ID, r.Host))
		}
		if seen[r.ID] {
			return nil, prego.Invalid("residents", fmt.Sprintf("%q is given twice", r.ID))
		}
		seen[r.ID] = true
		h := &f.hosts[i]
		for d, v := range r.Demand {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				return nil, prego.Invalid("residents",
					fmt.Sprintf("%q takes %v of %s; it must be at least 0", r.ID, v, d))
			}
			h.load[d] += v
		}
		h.residents = append(h.residents, r)
		h.bytes += r.Bytes
		h.stays = h.stays || r.Stays
	}
	for i := range f.hosts {
		h := &f.hosts[i]
		slices.SortFunc(h.residents, func(a, b Resident) int {
			return cmp.Or(cmp.Compare(h.share(b), h.share(a)), cmp.Compare(a.ID, b.ID))
		})
	}
	return f, nil
}

// share is the largest part of the capacity that a resident takes in some dimension.
func (h *fleetHost) share(r Resident) (most float64) {
	for d, v := range r.Demand {
		if v > 0 {
			most = max(most, v/h.Capacity[d])
		}
	}
	return most
}

// byWorth are the hosts that can be emptied, the host that frees most per moved byte first.
func (f *fleet) byWorth() []int {
	var out []int
	for i, h := range f.hosts {
		if h.Leaves && !h.stays && !h.gets && !h.freed && len(h.residents) > 0 {
			out = append(out, i)
		}
	}
	worth := func(i int) float64 {
		h := f.hosts[i]
		return h.Price / float64(h.bytes+int64(len(h.residents))*minMoveBytes)
	}
	slices.SortFunc(out, func(a, b int) int {
		return cmp.Or(cmp.Compare(worth(b), worth(a)), cmp.Compare(f.hosts[a].bytes, f.hosts[b].bytes), cmp.Compare(a, b))
	})
	return out
}

// empty finds where the residents of a host can go: each to the fullest host that has room.
func (f *fleet) empty(from int) (moves []fleetMove, ok bool) {
	h := &f.hosts[from]
	if h.gets || h.freed {
		return nil, false
	}
	added := map[int]map[string]float64{}
	for _, r := range h.residents {
		best, fullest := -1, -1.0
		for _, to := range f.places[h.Place] {
			t := &f.hosts[to]
			// An empty host is not filled to empty another.
			if to == from || !t.Takes || t.freed || len(t.residents) == 0 && !t.gets {
				continue
			}
			if full, fits := t.with(r, added[to]); fits && full > fullest {
				best, fullest = to, full
			}
		}
		if best < 0 {
			return nil, false
		}
		if added[best] == nil {
			added[best] = map[string]float64{}
		}
		for d, v := range r.Demand {
			added[best][d] += v
		}
		moves = append(moves, fleetMove{resident: r, to: best})
	}
	return moves, true
}

// with returns how full the host would be in its fullest dimension, and whether a resident fits in addition.
func (h *fleetHost) with(r Resident, added map[string]float64) (full float64, fits bool) {
	for d, c := range h.Capacity {
		v := h.load[d] + added[d] + r.Demand[d]
		if v > c*(1+1e-9) {
			return 0, false
		}
		if c > 0 {
			full = max(full, v/c)
		}
	}
	for d, v := range r.Demand {
		if _, named := h.Capacity[d]; !named && v > 0 {
			return 0, false
		}
	}
	return full, true
}

func (f *fleet) carryOut(from int, moves []fleetMove) {
	f.hosts[from].freed = true
	for _, m := range moves {
		t := &f.hosts[m.to]
		t.gets = true
		for d, v := range m.resident.Demand {
			t.load[d] += v
		}
	}
}

// bound is how many hosts have residents, and how many of the largest of each place the residents there would need at
// least.
func (f *fleet) bound() (used, least int) {
	for _, list := range f.places {
		p := Problem{Capacity: map[string]float64{}}
		here := 0
		for _, i := range list {
			h := &f.hosts[i]
			if len(h.residents) == 0 {
				continue
			}
			here++
			for d, c := range h.Capacity {
				// A host may exceed its capacity: the bound must also hold for it.
				p.Capacity[d] = max(p.Capacity[d], c, h.load[d])
			}
			for _, r := range h.residents {
				p.Items = append(p.Items, Item{ID: r.ID, Demand: r.Demand})
			}
		}
		used += here
		for d, c := range p.Capacity {
			if c == 0 {
				delete(p.Capacity, d)
			}
		}
		for i, it := range p.Items {
			demand := make(map[string]float64, len(it.Demand))
			for d, v := range it.Demand {
				if p.Capacity[d] > 0 {
					demand[d] = v
				}
			}
			p.Items[i].Demand = demand
		}
		r, _ := Solve(p, nil) // nothing is proven for what it refuses, such as no dimension
		least += min(here, max(r.LowerBound, 1))
	}
	return used, least
}
