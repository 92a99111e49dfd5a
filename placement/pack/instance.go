package pack

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// units is the usable capacity of a bin in every dimension. Whole numbers make loads exact: removing and adding an
// item a million times leaves no drift. 2⁴⁴ is fine enough for 1e-9 and leaves room to add half a million full bins
// into an int64.
const units = int64(1) << 44

// tolerance is the part of its capacity, one in so many, that a bin may be loaded above it.
const tolerance = 1_000_000_000

// packBins is a packing: items by bin.
type packBins [][]int32

// packInstance is a problem as dense numbers. Items are numbered in the order of their ids, which makes the order of
// the input irrelevant and "lower number" the same as "lower id".
type packInstance struct {
	items []Item
	n, d  int
	x     []int64 // n×d demands; item i has x[i*d:(i+1)*d]
	limit int64   // what a bin holds: packUnits and the tolerance
	org   []int32 // -1 for none
	orgs  int
	// scarce weighs the dimensions by the total demand for them, sum 1 if there is any: the weight of an item is its
	// demand for scarce dimensions.
	scarce []float64
	weight []float64
}

func (in *packInstance) at(i int32) []int64 { return in.x[int(i)*in.d : (int(i)+1)*in.d] }

// newPackInstance leaves out the items that fit no bin and names them.
func newPackInstance(p Problem) (*packInstance, []string) {
	dims := sortedKeys(p.Capacity)
	items := slices.Clone(p.Items)
	slices.SortFunc(items, func(a, b Item) int { return cmp.Compare(a.ID, b.ID) })
	in := &packInstance{d: len(dims)}
	// Demands are rounded up to whole units, so a bin that fits by count of units also fits exactly, except for the
	// tolerance. As the tolerance is at least one unit for each item, everything that fits exactly also fits by
	// count. The lower bound of the rounded problem therefore holds for the exact one.
	in.limit = units + max(units/tolerance, int64(len(items)))
	unplaceable := []string{}
	orgs := map[string]int32{}
	row := make([]int64, in.d)
	for _, it := range items {
		fits := true
		for d, name := range dims {
			// Divided twice, because capacity × share may round to where a full bin no longer compares equal to 1.
			v := it.Demand[name] / p.Capacity[name] / (1 - p.ReservePct/100)
			if v > 2 {
				fits = false
				break
			}
			row[d] = int64(math.Ceil(v * float64(units)))
			fits = fits && row[d] <= in.limit
		}
		if !fits {
			unplaceable = append(unplaceable, it.ID)
			continue
		}
		in.items = append(in.items, it)
		in.x = append(in.x, row...)
		org := int32(-1)
		if it.Org != "" {
			if _, ok := orgs[it.Org]; !ok {
				orgs[it.Org] = int32(len(orgs))
			}
			org = orgs[it.Org]
		}
		in.org = append(in.org, org)
	}
	in.n, in.orgs = len(in.items), len(orgs)
	in.weigh()
	return in, unplaceable
}

// scarcity is the power to which a dimension's demand weighs: the dimension that decides the number of bins should
// outweigh a dimension with a quarter less demand, and equal ones should count alike.
const scarcity = 6

func (in *packInstance) weigh() {
	in.scarce = make([]float64, in.d)
	total := 0.0
	for i := range in.n {
		for d := range in.d {
			in.scarce[d] += float64(in.x[i*in.d+d])
		}
	}
	most := max(1, slices.Max(in.scarce))
	for d, s := range in.scarce {
		in.scarce[d] = math.Pow(s/most, scarcity)
		total += in.scarce[d]
	}
	for d := range in.scarce {
		if total > 0 {
			in.scarce[d] /= total
		}
	}
	in.weight = in.weighted(in.scarce)
}

// weighted is each item's size as the weighted sum of its dimensions, 1 being a full bin if the weights sum to 1.
func (in *packInstance) weighted(w []float64) []float64 {
	out := make([]float64, in.n)
	for i := range out {
		for d, v := range in.at(int32(i)) {
			out[i] += w[d] * float64(v) / float64(in.limit)
		}
	}
	return out
}

// byKey is all items with the largest key first, equal ones by id.
func (in *packInstance) byKey(key []float64) []int32 {
	order := make([]int32, in.n)
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(key[b], key[a]), cmp.Compare(a, b))
	})
	return order
}

func sortedKeys(m map[string]float64) []string { return slices.Sorted(maps.Keys(m)) }

// packFits reports whether need is within free in every dimension.
func packFits(need, free []int64) bool {
	for d, v := range need {
		if v > free[d] {
			return false
		}
	}
	return true
}

func take(free, need []int64) {
	for d, v := range need {
		free[d] -= v
	}
}

func give(free, need []int64) {
	for d, v := range need {
		free[d] += v
	}
}
