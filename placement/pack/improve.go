package pack

import (
	"math"
	"math/bits"
	"math/rand/v2"
)

// packSearch is a packing under improvement: from above by packing again and from below by better bounds.
type packSearch struct {
	in    *packInstance
	best  packBins
	bound int

	r      *rand.Rand
	lp     *packLP
	trials int // random bounds so far
	ruin   *packRuin
}

const (
	// exactItems is up to how many items the optimum is simply computed.
	exactItems = 12
	// ruinsPerStep makes a step long enough to ask whether to make another.
	ruinsPerStep = 16
	// boundTrials is after how many random bounds no better one is expected.
	boundTrials = 400
)

// run improves until more returns false or nothing is left to prove. Everything depends on the number of steps alone.
func (s *packSearch) run(more func() bool) {
	if len(s.best) == s.bound || !more() {
		return
	}
	if s.in.n <= exactItems {
		s.best = s.in.exact()
		s.bound = len(s.best)
		return
	}
	s.r = rand.New(rand.NewPCG(1, 2))
	s.lp = newPackLP(s.in)
	for step := 0; ; step++ {
		s.raise(step)
		if s.ruin == nil {
			s.ruin = newPackRuin(s.in, s.best, s.r)
		}
		for range ruinsPerStep {
			if len(s.best) == s.bound {
				return
			}
			if s.ruin.iterate() {
				s.best = s.ruin.packing()
				s.ruin.closeOne()
			}
		}
		if len(s.best) == s.bound || !more() {
			return
		}
	}
}

// raise does a step's part for the bound.
func (s *packSearch) raise(step int) {
	if s.lp != nil && !s.lp.done {
		// Its steps are the longest; the packing also needs its share of the time.
		if step%4 == 0 {
			s.bound = max(s.bound, s.lp.step())
		}
		return
	}
	// The linear program, once solved, is at least as strong as any of these.
	if s.lp == nil && s.trials < boundTrials && step%4 == 0 {
		s.trials++
		s.bound = max(s.bound, s.in.randomBound(s.r))
	}
}

// exact is a packing with the least number of bins, by dynamic programming over the sets of items.
func (in *packInstance) exact() packBins {
	all := 1<<in.n - 1
	fits := make([]bool, all+1)
	load := make([]int64, (all+1)*in.d)
	for set := 1; set <= all; set++ {
		low := set & -set
		rest := set &^ low
		i := int32(bits.TrailingZeros(uint(low)))
		fits[set] = rest == 0 || fits[rest]
		for d, v := range in.at(i) {
			load[set*in.d+d] = load[rest*in.d+d] + v
			fits[set] = fits[set] && load[set*in.d+d] <= in.limit
		}
	}
	need, last := make([]int, all+1), make([]int, all+1)
	for set := 1; set <= all; set++ {
		need[set] = math.MaxInt
		low := set & -set
		// The bin that holds the set's first item, and any others.
		for sub := set; sub > 0; sub = (sub - 1) & set {
			if sub&low != 0 && fits[sub] && need[set^sub]+1 < need[set] {
				need[set], last[set] = need[set^sub]+1, sub
			}
		}
	}
	var bins packBins
	for set := all; set > 0; set ^= last[set] {
		var bin []int32
		for sub := last[set]; sub > 0; sub &= sub - 1 {
			bin = append(bin, int32(bits.TrailingZeros(uint(sub))))
		}
		bins = append(bins, bin)
	}
	return bins
}
