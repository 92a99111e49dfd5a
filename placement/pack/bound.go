package pack

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
)

// shrink makes sizes a little smaller than they are: by more than rounding
// enlarges them, and a bound for smaller items holds for larger ones.
const shrink = 1 - 1e-12

// packWhole is the least whole number of bins that is proven by a fractional one,
// which rounding may have made a little too large.
func packWhole(bins float64, n int) int {
	return int(math.Ceil(bins - max(1e-6, float64(n)*bins*2e-16)))
}

// staticBound is the best of the lower bounds that need no search: of each dimension, of their sums, and of cliques.
func (in *packInstance) staticBound() int {
	if in.n == 0 {
		return 0
	}
	best := max(1, in.cliqueBound())
	var weights [][]float64
	for d := range in.d {
		w := make([]float64, in.d)
		w[d] = 1
		weights = append(weights, w)
		for e := range d {
			half := make([]float64, in.d)
			half[d], half[e] = 0.5, 0.5
			weights = append(weights, half)
		}
	}
	even := make([]float64, in.d)
	for d := range even {
		even[d] = 1 / float64(in.d)
	}
	for _, w := range append(weights, even, in.scarce) {
		best = max(best, sizeBound(in.weighted(w)))
	}
	return best
}

// randomBound is the lower bound of one random one-dimensional relaxation: a dual
// feasible function on each dimension, and a sum of the results with weights that
// sum to 1. In every bin each function sums to at most 1, and so does that sum.
func (in *packInstance) randomBound(r *rand.Rand) int {
	w := make([]float64, in.d)
	total := 0.0
	for d := range w {
		w[d] = r.ExpFloat64()
		if r.IntN(3) == 0 {
			w[d] = 0
		}
		total += w[d]
	}
	if total == 0 {
		return 0
	}
	y := make([]float64, in.n)
	for d := range w {
		f := dual(r)
		for i := range y {
			y[i] += w[d] / total * f(float64(in.x[i*in.d+d])/float64(in.limit)*shrink)
		}
	}
	return sizeBound(y)
}

// dual is a random dual feasible function: if sizes sum to less than 1, their values sum to at most 1 (Fekete and
// Schepers, New classes of lower bounds for bin packing problems, 2001).
func dual(r *rand.Rand) func(float64) float64 {
	switch r.IntN(3) {
	case 0:
		return func(v float64) float64 { return v }
	case 1:
		t := r.Float64() / 2
		return func(v float64) float64 {
			switch {
			case v > 1-t:
				return 1
			case v < t:
				return 0
			}
			return v
		}
	}
	k := float64(1 + r.IntN(8))
	return func(v float64) float64 { return math.Floor((k+1)*v) / k }
}

// sizeBound is a lower bound for items of one dimension, sizes being parts of a bin: Martello and Toth's L2 over all
// its thresholds, and the stair functions ⌊(k+1)v⌋/k, which are dual feasible for sums below 1.
func sizeBound(sizes []float64) int {
	n := len(sizes)
	v := make([]float64, n)
	for i, s := range sizes {
		v[i] = s * shrink
	}
	slices.Sort(v)
	slices.Reverse(v)
	sum := make([]float64, n+1) // sum[i] is the size of the i largest
	for i, s := range v {
		sum[i+1] = sum[i] + s
	}
	below := func(t float64) int { return sort.Search(n, func(i int) bool { return v[i] <= t }) } // how many are larger
	half := below(0.5)
	best := max(packWhole(sum[n], n), half)
	whole := half // how many are larger than 1−t; it shrinks as t does
	for end := half + 1; end <= n; end++ {
		if end < n && v[end] == v[end-1] {
			continue // t takes in all items of its size
		}
		for t := v[end-1]; whole > 0 && v[whole-1] <= 1-t; {
			whole--
		}
		// Those above 1−t are alone; the other large ones each open a bin, whose room
		// the middling ones fill before they need more.
		large := half - whole
		room := float64(large) - (sum[half] - sum[whole])
		bins := half + max(0, packWhole(sum[end]-sum[half]-room, n))
		best = max(best, bins)
	}
	for k := 2; k <= 12; k++ {
		total := 0
		for _, s := range v {
			total += int(float64(k+1) * s * shrink)
		}
		best = max(best, (total+k-1)/k)
	}
	return best
}

// cliqueWork bounds the comparisons of cliqueBound.
const cliqueWork = 20_000_000

// cliqueBound finds items that cannot share a bin pairwise: all that take more than half of one dimension, and
// greedily any further item that fits beside none of them.
func (in *packInstance) cliqueBound() int {
	best, work := 0, 0
	dominant := in.byKey(in.keys()[0])
	for d := range in.d {
		var clique, rest []int32
		for _, i := range dominant {
			if 2*in.at(i)[d] > in.limit {
				clique = append(clique, i)
			} else {
				rest = append(rest, i)
			}
		}
		if len(clique) == 0 {
			continue
		}
		// The smallest first: beside them something fits soonest.
		slices.SortFunc(clique, func(a, b int32) int {
			return cmp.Or(cmp.Compare(in.at(a)[d], in.at(b)[d]), cmp.Compare(a, b))
		})
		for _, i := range rest {
			if work > cliqueWork {
				break
			}
			apart := true
			for _, j := range clique {
				if work++; !in.clash(i, j) {
					apart = false
					break
				}
			}
			if apart {
				clique = append(clique, i)
			}
		}
		best = max(best, len(clique))
	}
	return best
}

func (in *packInstance) clash(i, j int32) bool {
	b := in.at(j)
	for d, v := range in.at(i) {
		if v+b[d] > in.limit {
			return true
		}
	}
	return false
}
