// Package pack packs items into as few servers as it can, over any number of dimensions, and proves how few are
// possible (placement-policy §4). It is pure.
package pack

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/prego/prego"
)

// Item is something to place: a tenant, or its demand on one server.
type Item struct {
	// ID is unique in the problem.
	ID string
	// Org groups items: items of one Org prefer to share a bin (affinity). "" is no group.
	Org string
	// Demand is what the item takes, in the units of the capacity. A missing dimension is 0.
	Demand map[string]float64
}

// Problem is a question: how many bins of one size do the items need.
type Problem struct {
	// Capacity of one bin by dimension, each above 0, in any unit that the items share.
	Capacity map[string]float64
	Items    []Item
	// ReservePct of each bin stays free, in percent, 0 ≤ ReservePct < 100: the usable part is capacity × (1 −
	// ReservePct/100).
	ReservePct float64
}

// Bin is one used bin.
type Bin struct {
	// Items are the ids in the bin, sorted.
	Items []string
	// Load is the sum of their demands in every dimension of the capacity.
	Load map[string]float64
}

// Result is a packing with a bound on its quality.
type Result struct {
	Bins []Bin
	// LowerBound is proven: no packing of the placeable items has fewer bins.
	LowerBound int
	// Optimal means that the packing has no more bins than that.
	Optimal bool
	// Unplaceable are the ids of items that are larger than a bin's usable part in some dimension, sorted. They are
	// in no bin and not in the bound.
	Unplaceable []string
}

// Solve puts the items into as few bins as it finds (placement-policy §4): the best of several greedy packings,
// First-Fit Decreasing on the dominant dimension among them, improved for as long as more returns true or until the
// number of bins is proven least. more is called between steps of some ten microseconds to a few milliseconds; nil
// never improves. The same number of steps gives the same result, for any order of the items.
//
// An item fits if the bin's load stays within its usable capacity × (1 + 1e-9), so that demands whose exact sum is
// the capacity fit in spite of floating-point rounding. (Beyond 17,592 items the tolerance is their number × 2⁻⁴⁴,
// still less than 1e-7 for a million.)
//
// Among equally good bins a bin with an item of the same Org is taken, then the bin with the lowest index; equal
// items are taken by ID.
func Solve(p Problem, more func() bool) (Result, error) {
	if err := check(p); err != nil {
		return Result{}, err
	}
	in, unplaceable := newPackInstance(p)
	best := in.initial()
	s := &packSearch{in: in, best: best, bound: in.staticBound()}
	if more != nil {
		s.run(more)
	}
	in.polish(s.best)
	return Result{
		Bins: in.result(p, s.best), LowerBound: s.bound, Optimal: len(s.best) == s.bound, Unplaceable: unplaceable,
	}, nil
}

func check(p Problem) error {
	if math.IsNaN(p.ReservePct) || p.ReservePct < 0 || p.ReservePct >= 100 {
		return prego.Invalid("reserve_pct", "must be at least 0 and less than 100")
	}
	if len(p.Capacity) == 0 {
		return prego.Invalid("capacity", "must name at least one dimension")
	}
	for _, d := range sortedKeys(p.Capacity) {
		// Below, 1/capacity overflows; no unit makes a server that small.
		if c := p.Capacity[d]; math.IsNaN(c) || math.IsInf(c, 0) || c*(1-p.ReservePct/100) < 1e-300 {
			return prego.Invalid("capacity."+d, "must be a finite number above 0")
		}
	}
	seen := make(map[string]bool, len(p.Items))
	for i, it := range p.Items {
		if seen[it.ID] {
			return prego.Invalid(fmt.Sprintf("items[%d].id", i), fmt.Sprintf("must be unique: %q is given twice", it.ID))
		}
		seen[it.ID] = true
		for _, d := range sortedKeys(it.Demand) {
			at := fmt.Sprintf("items[%d].demand.%s", i, d)
			if _, ok := p.Capacity[d]; !ok {
				return prego.Invalid(at, "must be a dimension of the capacity")
			}
			if v := it.Demand[d]; math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				return prego.Invalid(at, "must be a finite number, at least 0")
			}
		}
	}
	return nil
}

// result writes a packing out: items by ID in each bin, bins by their first item.
func (in *packInstance) result(p Problem, bins packBins) []Bin {
	for _, b := range bins {
		slices.Sort(b)
	}
	slices.SortFunc(bins, func(a, b []int32) int { return cmp.Compare(a[0], b[0]) })
	out := make([]Bin, len(bins))
	for k, b := range bins {
		bin := Bin{Items: make([]string, len(b)), Load: make(map[string]float64, len(p.Capacity))}
		for d := range p.Capacity {
			bin.Load[d] = 0
		}
		for i, it := range b {
			item := in.items[it]
			bin.Items[i] = item.ID
			for d, v := range item.Demand {
				bin.Load[d] += v
			}
		}
		out[k] = bin
	}
	return out
}
