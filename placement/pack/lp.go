package pack

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
)

// lpRows bounds the linear program: its basis has rows² numbers, and each step touches them all.
const lpRows = 450

// packLP solves the linear relaxation over patterns (Gilmore and Gomory, 1961) by column generation: the fractional
// number of bins, each filled with a set of items that fits, that covers all items. Any prices on items under which
// no pattern is worth more than z prove that Σ prices / z bins are needed (Farley, 1990), so every step may raise the
// bound, finished or not, and rounding in the simplex method cannot make it wrong: only the pricing has to be right.
type packLP struct {
	in    *packInstance
	kinds []packKind
	m     int
	inv   []float64 // inverse of the basis, m×m
	level []float64 // of the basis's patterns
	price []float64 // by kind
	done  bool
	knap  knapsack
}

// packKind are the items of the same demand.
type packKind struct {
	need  []int64
	count int
}

// newPackLP is nil if the program were too large.
func newPackLP(in *packInstance) *packLP {
	kinds := in.kinds()
	if len(kinds) > lpRows {
		return nil
	}
	m := len(kinds)
	lp := &packLP{
		in: in, kinds: kinds, m: m, inv: make([]float64, m*m),
		level: make([]float64, m), price: make([]float64, m),
	}
	for k, kind := range kinds {
		// Initially every kind has separate bins, as full as possible.
		fit := kind.count
		for _, v := range kind.need {
			if v > 0 {
				fit = min(fit, int(in.limit/v))
			}
		}
		lp.inv[k*m+k] = 1 / float64(fit)
		lp.level[k] = float64(kind.count) / float64(fit)
	}
	lp.knap.init(in, kinds)
	return lp
}

// kinds groups equal items, largest weight first.
func (in *packInstance) kinds() []packKind {
	index := map[string]int{}
	var kinds []packKind
	var key []byte
	for _, i := range in.byKey(in.weight) {
		key = key[:0]
		for _, v := range in.at(i) {
			key = binary.BigEndian.AppendUint64(key, uint64(v))
		}
		k, ok := index[string(key)]
		if !ok {
			k = len(kinds)
			index[string(key)] = k
			kinds = append(kinds, packKind{need: in.at(i)})
		}
		kinds[k].count++
	}
	return kinds
}

// step prices the items, finds the best pattern and takes it into the basis. It returns the number of bins that is
// proven so far.
func (lp *packLP) step() int {
	clear(lp.price)
	for r := range lp.m {
		for k, v := range lp.inv[r*lp.m : (r+1)*lp.m] {
			lp.price[k] += v // every pattern costs one bin
		}
	}
	total := 0.0
	for k, p := range lp.price {
		if p < 1e-12 {
			lp.price[k] = 0
		}
		total += lp.price[k] * float64(lp.kinds[k].count)
	}
	pattern, most := lp.knap.solve(lp.price)
	lp.pivot(pattern)
	return packWhole(total/most, lp.m)
}

// pivot takes a pattern into the basis. The program is solved if the pattern is empty.
func (lp *packLP) pivot(pattern []int) {
	m := lp.m
	column := make([]float64, m)
	out, least := -1, math.Inf(1)
	for r := range m {
		row := lp.inv[r*m : (r+1)*m]
		for k, c := range pattern {
			column[r] += row[k] * float64(c)
		}
		if column[r] > 1e-9 {
			// Of equal ratios the largest pivot, which keeps the inverse accurate.
			ratio := lp.level[r] / column[r]
			if ratio < least-1e-12 || (ratio < least+1e-12 && column[r] > column[out]) {
				out, least = r, ratio
			}
		}
	}
	if out < 0 {
		lp.done = true // no pattern is worth more than the bin that it costs
		return
	}
	pivotRow := lp.inv[out*m : (out+1)*m]
	for k := range pivotRow {
		pivotRow[k] /= column[out]
	}
	lp.level[out] /= column[out]
	for r := range m {
		f := column[r]
		if r == out || f == 0 {
			continue
		}
		row := lp.inv[r*m : (r+1)*m]
		for k, v := range pivotRow {
			row[k] -= f * v
		}
		lp.level[r] = max(0, lp.level[r]-f*lp.level[out])
	}
}

// knapsack finds the pattern that is worth most at given prices: a knapsack of several dimensions, by branch and
// bound on the kinds with the best price for their size first.
type knapsack struct {
	in     *packInstance
	kinds  []packKind
	sizes  [][]float64 // sizes of the kinds, by weighting of the dimensions
	weigh  [][]float64 // those weightings
	price  []float64
	size   []float64
	w      []float64
	order  []int
	free   []int64
	now    []int
	best   []int
	worth  float64 // of best, or 1 while nothing is worth more
	most   float64 // upper bound on what the search has left out
	budget int
}

// pricingNodes bounds one pricing.
const pricingNodes = 20_000

func (s *knapsack) init(in *packInstance, kinds []packKind) {
	s.in, s.kinds = in, kinds
	s.weigh = append(s.weigh, in.scarce)
	even := make([]float64, in.d)
	for d := range in.d {
		even[d] = 1 / float64(in.d)
		one := make([]float64, in.d)
		one[d] = 1
		s.weigh = append(s.weigh, one)
	}
	s.weigh = append(s.weigh, even)
	for _, w := range s.weigh {
		sizes := make([]float64, len(kinds))
		for k, kind := range kinds {
			for d, v := range kind.need {
				sizes[k] += w[d] * float64(v) / float64(in.limit)
			}
			sizes[k] = max(1e-12, sizes[k])
		}
		s.sizes = append(s.sizes, sizes)
	}
	s.free, s.now = slices.Repeat([]int64{in.limit}, in.d), make([]int, len(kinds))
}

// solve returns the pattern that is worth most of those worth more than 1, an empty one if there is none, and an upper
// bound of any pattern's worth (at least 1). That is more than the pattern's worth if the search was cut short.
func (s *knapsack) solve(price []float64) (best []int, most float64) {
	s.price, s.best, s.worth, s.most, s.budget = price, make([]int, len(price)), 1+1e-9, 0, pricingNodes
	// The weighting whose one-dimensional relaxation is tightest leads.
	least := math.Inf(1)
	for k, sizes := range s.sizes {
		order := s.sorted(sizes)
		if root := s.relaxed(order, sizes); root < least {
			least, s.order, s.size, s.w = root, order, sizes, s.weigh[k]
		}
	}
	s.search(0, 0)
	return s.best, max(s.worth, min(s.most, least)) * (1 + 1e-9)
}

func (s *knapsack) sorted(sizes []float64) []int {
	var order []int
	for k, p := range s.price {
		if p > 0 {
			order = append(order, k)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.price[b]*sizes[a], s.price[a]*sizes[b]), cmp.Compare(a, b))
	})
	return order
}

// relaxed fills one bin in order, the last kind by a fraction.
func (s *knapsack) relaxed(order []int, sizes []float64) float64 {
	room, worth := 1.0, 0.0
	for _, k := range order {
		c := min(float64(s.kinds[k].count), room/sizes[k])
		worth += c * s.price[k]
		if room -= c * sizes[k]; room <= 0 {
			break
		}
	}
	return worth
}

// search tries the kinds from position at on, with what now holds worth value.
func (s *knapsack) search(at int, value float64) {
	if value > s.worth {
		s.worth = value
		copy(s.best, s.now)
	}
	s.budget--
	room := 0.0
	for d, v := range s.free {
		room += s.w[d] * float64(v) / float64(s.in.limit)
	}
	for ; at < len(s.order); at++ {
		k := s.order[at]
		// All following kinds are worth no more for their size than this one.
		bound := value + room*s.price[k]/s.size[k]
		if bound <= s.worth {
			return
		}
		if s.budget <= 0 {
			s.most = max(s.most, bound)
			return
		}
		if s.now[k] < s.kinds[k].count && packFits(s.kinds[k].need, s.free) {
			s.now[k]++
			take(s.free, s.kinds[k].need)
			s.search(at, value+s.price[k])
			give(s.free, s.kinds[k].need)
			s.now[k]--
		}
	}
}
