package region

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/prego/prego"
)

// lot is a region in a plan.
type lot struct {
	name   string
	index  int // in the policy
	weight int64
	most   int64 // the cap; math.MaxInt64 means none
	count  int64
	whole  int64 // the share is whole + part/denominator
	part   uint64
}

// Grow returns how many of n new nodes each region gets. Regions that get none are omitted. The only errors for valid
// input are CodeNoRegion, and CodeNoPlan if usable regions have less room than n. usable nil means all regions.
func Grow(p Policy, current map[string]int64, usable []string, n int64) (map[string]int64, error) {
	lots, _, err := prepare(p, current, usable, n)
	if err != nil {
		return nil, err
	}
	room := func(l lot) int64 { return min(n, max(0, l.most-l.count)) }
	var all, weighted int64
	for _, l := range lots {
		all += room(l)
		if l.weight > 0 {
			weighted += room(l)
		}
	}
	if all < n {
		return nil, errNoPlan
	}
	// Nodes above a region's cap stay in any case: they are excluded from the total, or
	// else the other regions' shares would be too large.
	lots = slices.DeleteFunc(lots, func(l lot) bool { return l.count > l.most })
	share(lots, total(lots)+n)
	plan := make(map[string]int64)
	first := min(n, weighted)
	takeLargest(lots, first, plan, func(l lot) step {
		return step{level: l.whole - l.count, part: int64(l.part), most: countIf(l.weight > 0, room(l))}
	})
	takeLargest(lots, n-first, plan, func(l lot) step {
		return step{level: l.whole - l.count, part: int64(l.part), most: countIf(l.weight == 0, room(l))}
	})
	return plan, nil
}

// Shrink returns how many of n nodes to remove from each region. Regions that lose none are omitted. Nodes in listed
// regions that are not usable are removed last, by the same rules: they still run and cost, but the plan is made for
// the usable ones. Errors are as with Grow; CodeNoPlan if the listed regions have fewer than n nodes.
func Shrink(p Policy, current map[string]int64, usable []string, n int64) (map[string]int64, error) {
	lots, others, err := prepare(p, current, usable, n)
	if err != nil {
		return nil, err
	}
	stand := total(lots)
	if stand+total(others) < n {
		return nil, errNoPlan
	}
	plan := make(map[string]int64)
	first := min(n, stand)
	shrink(lots, first, plan)
	shrink(others, n-first, plan)
	return plan, nil
}

func shrink(lots []lot, n int64, plan map[string]int64) {
	share(lots, total(lots)-n)
	above := func(l lot) int64 { return max(0, l.count-l.most) }
	var over int64
	for _, l := range lots {
		over += above(l)
	}
	over = min(n, over)
	takeLargest(lots, over, plan, func(l lot) step {
		return step{level: l.count - l.whole, part: -int64(l.part), most: above(l)}
	})
	for i := range lots {
		lots[i].count -= plan[lots[i].name]
	}
	takeLargest(lots, n-over, plan, func(l lot) step {
		return step{level: l.count - l.whole, part: -int64(l.part), most: l.count}
	})
}

// prepare splits a policy's regions into usable ones and others.
func prepare(p Policy, current map[string]int64, usable []string, n int64) (lots, others []lot, err error) {
	if err := p.Validate("policy"); err != nil {
		return nil, nil, err
	}
	if n < 1 || n > MaxNodes {
		return nil, nil, prego.Invalid("count", fmt.Sprintf("must be 1 to %d", MaxNodes))
	}
	if err := validateCurrent(current); err != nil {
		return nil, nil, err
	}
	can := make(map[string]bool, len(usable))
	for _, name := range usable {
		can[name] = true
	}
	for i, r := range p.Regions {
		l := lot{name: r.Name, index: i, weight: r.Weight, most: r.Cap, count: current[r.Name]}
		if r.Cap == NoCap {
			l.most = math.MaxInt64
		}
		if usable == nil || can[r.Name] {
			lots = append(lots, l)
		} else {
			others = append(others, l)
		}
	}
	if len(lots) == 0 {
		return nil, nil, errNoRegion
	}
	return lots, others, nil
}

func total(lots []lot) (sum int64) {
	for _, l := range lots {
		sum += l.count
	}
	return sum
}

func countIf(b bool, n int64) int64 {
	if b {
		return n
	}
	return 0
}

// share sets the shares of a total. Weighted regions come first; what their caps leave over is the unweighted ones'.
// When anything is left over, all weighted shares are caps and so whole: remainders never have two denominators.
func share(lots []lot, total int64) {
	left := fill(lots, total, func(l lot) int64 { return l.weight })
	fill(lots, left, func(l lot) int64 { return countIf(l.weight == 0, 1) })
}

// fill shares a total among the lots with a weight, each within its cap, and returns what all caps leave over.
func fill(lots []lot, total int64, weight func(lot) int64) int64 {
	order := make([]*lot, 0, len(lots))
	var sum uint64
	for i := range lots {
		if w := weight(lots[i]); w > 0 {
			order = append(order, &lots[i])
			sum += uint64(w)
		}
	}
	// The caps that are reached first are the lowest per weight: a.cap/a.weight < b.cap/b.weight, multiplied out.
	slices.SortFunc(order, func(a, b *lot) int {
		aHigh, aLow := bits.Mul64(uint64(a.most), uint64(weight(*b)))
		bHigh, bLow := bits.Mul64(uint64(b.most), uint64(weight(*a)))
		return cmp.Or(cmp.Compare(aHigh, bHigh), cmp.Compare(aLow, bLow), cmp.Compare(a.index, b.index))
	})
	for len(order) > 0 {
		l := order[0]
		w := uint64(weight(*l))
		// Is the cap below total·w/sum?
		capHigh, capLow := bits.Mul64(uint64(l.most), sum)
		high, low := bits.Mul64(uint64(total), w)
		if capHigh > high || capHigh == high && capLow >= low {
			break
		}
		l.whole, l.part = l.most, 0
		total -= l.most
		sum -= w
		order = order[1:]
	}
	if len(order) == 0 {
		return total
	}
	for _, l := range order {
		high, low := bits.Mul64(uint64(total), uint64(weight(*l)))
		whole, part := bits.Div64(high, low, sum) // weight ≤ sum, so that the quotient is at most total
		l.whole, l.part = int64(whole), part
	}
	return 0
}

// step is the first of a region's steps: its key's whole part, which is one less
// with each further step, its remainder, and how many steps there are.
type step struct{ level, part, most int64 }

// takeLargest adds the n largest steps to the plan. There are as many.
func takeLargest(lots []lot, n int64, plan map[string]int64, first func(lot) step) {
	steps := make([]step, len(lots))
	low, high := int64(math.MaxInt64), int64(math.MinInt64)
	for i, l := range lots {
		s := first(l)
		steps[i] = s
		low, high = min(low, s.level-s.most), max(high, s.level)
	}
	// How many of a region's steps are above a level.
	above := func(s step, level int64) int64 { return min(max(s.level-level, 0), s.most) }
	// The lowest level above which there are no more than n steps: at most n above
	// high, which has none, and at least n above low, which has all.
	for low < high {
		mid := low + (high-low)/2
		var sum int64
		for _, s := range steps {
			sum += above(s, mid)
		}
		if sum > n {
			low = mid + 1
		} else {
			high = mid
		}
	}
	var at []int
	for i, s := range steps {
		k := above(s, low)
		n -= k
		if k > 0 {
			plan[lots[i].name] += k
		}
		if k < s.most && s.level-k == low {
			at = append(at, i)
		}
	}
	// Steps of one level differ by remainder, then by order.
	slices.SortStableFunc(at, func(a, b int) int { return cmp.Compare(steps[b].part, steps[a].part) })
	for _, i := range at[:n] {
		plan[lots[i].name]++
	}
}
