package region_test

import (
	"fmt"
	"math/big"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/region"
)

type counts = map[string]int64

// policy reads regions as name, weight, cap.
func policy(v ...any) region.Policy {
	var p region.Policy
	for i := 0; i < len(v); i += 3 {
		p.Regions = append(p.Regions, region.Region{Name: v[i].(string), Weight: int64(v[i+1].(int)), Cap: int64(v[i+2].(int))})
	}
	return p
}

func TestPlans(t *testing.T) {
	t.Parallel()
	even := policy("a", 100, -1, "b", 100, -1)
	for name, c := range map[string]struct {
		policy  region.Policy
		current counts
		usable  []string
		grow    int64 // negative shrinks
		plan    counts
		code    prego.Code
	}{
		"by weight":                         {policy: policy("a", 100, -1, "b", 200, -1), grow: 3, plan: counts{"a": 1, "b": 2}},
		"ties by order in the policy":       {policy: policy("b", 1, -1, "a", 1, -1), grow: 1, plan: counts{"b": 1}},
		"shrinking ties by order":           {policy: policy("b", 1, -1, "a", 1, -1), current: counts{"a": 2, "b": 2}, grow: -1, plan: counts{"b": 1}},
		"the largest deficit first":         {policy: even, current: counts{"a": 5}, grow: 3, plan: counts{"b": 3}},
		"the largest surplus first":         {policy: even, current: counts{"a": 5, "b": 2}, grow: -3, plan: counts{"a": 3}},
		"a surplus stays":                   {policy: policy("a", 1, -1, "b", 1, -1, "c", 2, -1), current: counts{"a": 10}, grow: 4, plan: counts{"c": 4}},
		"largest remainders":                {policy: policy("a", 1, -1, "b", 1, -1, "c", 1, -1), grow: 5, plan: counts{"a": 2, "b": 2, "c": 1}},
		"a cap's excess is split by weight": {policy: policy("a", 100, 1, "b", 100, -1, "c", 200, -1), grow: 100, plan: counts{"a": 1, "b": 33, "c": 66}},
		"and fills the next cap":            {policy: policy("a", 1, 2, "b", 1, 5, "c", 1, -1), grow: 18, plan: counts{"a": 2, "b": 5, "c": 11}},
		"the caps just suffice":             {policy: policy("a", 1, 2, "b", 1, 1), grow: 3, plan: counts{"a": 2, "b": 1}},
		"one more is too many":              {policy: policy("a", 1, 2, "b", 1, 1), grow: 4, code: region.CodeNoPlan},
		"a region above its cap is no room": {policy: policy("a", 1, 2, "b", 1, 1), current: counts{"a": 9}, grow: 1, plan: counts{"b": 1}},
		"and makes none":                    {policy: policy("a", 1, 2, "b", 1, 1), current: counts{"a": 9}, grow: 2, code: region.CodeNoPlan},
		"nor does it take from the others' shares": {
			policy: policy("R1", 30, 1, "R2", 70, -1, "R3", 100, 0, "R4", 10, -1), current: counts{"R2": 3, "R3": 3}, grow: 9, plan: counts{"R1": 1, "R2": 7, "R4": 1},
		},
		"a full region is in the total": {
			policy: policy("a", 1, 5, "b", 1, -1, "c", 3, -1), current: counts{"a": 5, "c": 2},
			grow: 2, plan: counts{"c": 2},
		},
		"regions of weight 0 share equally, within their caps": {
			policy: policy("a", 0, 2, "b", 0, -1, "c", 0, -1, "d", 1, 0), current: counts{"c": 10},
			grow: 2, plan: counts{"b": 2},
		},
		"and the largest deficit first": {
			policy: policy("a", 0, -1, "b", 1, 0, "c", 0, -1), current: counts{"a": 3}, grow: 3, plan: counts{"c": 3},
		},
		"an excess ends at its cap": {
			policy: policy("a", 1, 5, "b", 1, 4, "c", 1, 4, "d", 11, -1), current: counts{"a": 6, "b": 20, "c": 20},
			grow: -32, plan: counts{"a": 1, "b": 16, "c": 15},
		},
		"cap 0":                                        {policy: policy("a", 9, 0, "b", 1, -1), grow: 2, plan: counts{"b": 2}},
		"shrinking first drains above the cap":         {policy: policy("a", 1, 5, "b", 1, -1, "c", 1, -1), current: counts{"a": 6, "b": 20}, grow: -1, plan: counts{"a": 1}},
		"then the largest surplus":                     {policy: policy("a", 1, 5, "b", 1, -1, "c", 1, -1), current: counts{"a": 6, "b": 20}, grow: -3, plan: counts{"a": 1, "b": 2}},
		"weight 0 gets nothing":                        {policy: policy("a", 0, -1, "b", 1, -1), grow: 7, plan: counts{"b": 7}},
		"weight 0 gets what no other has room for":     {policy: policy("a", 0, -1, "b", 1, 3, "c", 0, 1), grow: 7, plan: counts{"a": 3, "b": 3, "c": 1}},
		"weight 0 gets none while a full one hides":    {policy: policy("a", 1, 2, "b", 1, 5, "z", 0, -1), current: counts{"a": 20}, grow: 5, plan: counts{"b": 5}},
		"weight 0 alone is usable":                     {policy: policy("a", 0, -1, "b", 1, -1, "c", 0, -1), usable: []string{"c", "a"}, grow: 3, plan: counts{"a": 2, "c": 1}},
		"shrinking takes weight 0 first":               {policy: policy("a", 1, -1, "z", 0, -1), current: counts{"a": 5, "z": 2}, grow: -3, plan: counts{"a": 1, "z": 2}},
		"none usable":                                  {policy: even, usable: []string{}, grow: 1, code: region.CodeNoRegion},
		"none usable, shrinking":                       {policy: even, current: counts{"a": 2}, usable: []string{"c"}, grow: -1, code: region.CodeNoRegion},
		"an unusable region does not grow":             {policy: even, usable: []string{"b"}, current: counts{"b": 5}, grow: 2, plan: counts{"b": 2}},
		"its nodes are in no share":                    {policy: policy("a", 1, -1, "b", 1, -1, "c", 1, -1), usable: []string{"b", "c"}, current: counts{"a": 9, "b": 1}, grow: 3, plan: counts{"b": 1, "c": 2}},
		"usable regions shrink first":                  {policy: even, usable: []string{"b"}, current: counts{"a": 5, "b": 2}, grow: -2, plan: counts{"b": 2}},
		"then the unusable ones":                       {policy: even, usable: []string{"b"}, current: counts{"a": 5, "b": 2}, grow: -3, plan: counts{"a": 1, "b": 2}},
		"all of them":                                  {policy: even, current: counts{"a": 5, "b": 2}, grow: -7, plan: counts{"a": 5, "b": 2}},
		"one more than there are":                      {policy: even, current: counts{"a": 5, "b": 2}, grow: -8, code: region.CodeNoPlan},
		"unlisted nodes stay":                          {policy: even, current: counts{"a": 1, "z": 5}, grow: -2, code: region.CodeNoPlan},
		"unlisted nodes are in no share":               {policy: even, current: counts{"a": 1, "z": 50}, grow: 3, plan: counts{"a": 1, "b": 2}},
		"the largest numbers":                          {policy: policy("a", 1_000_000_000, -1, "b", 999_999_999, 1_000_000_000, "c", 1, -1), current: counts{"a": 1e9, "b": 1e9, "c": 1e9}, grow: 1e9, plan: counts{"a": 1_000_000_000}},
		"the largest numbers, shrinking":               {policy: policy("a", 1_000_000_000, -1, "b", 1_000_000_000, -1, "c", 1, 1), current: counts{"a": 1e9, "b": 1e9, "c": 1e9}, grow: -1e9, plan: counts{"a": 1, "c": 999_999_999}},
		"weights that differ by all there is":          {policy: policy("a", 1, -1, "b", 1_000_000_000, -1), grow: 1e9, plan: counts{"b": 999_999_999, "a": 1}},
		"count 0":                                      {policy: even, code: prego.CodeInvalidField},
		"a negative count of nodes":                    {policy: even, current: counts{"a": -1}, grow: 1, code: prego.CodeInvalidField},
		"more nodes than are counted":                  {policy: even, current: counts{"a": 1e9 + 1}, grow: 1, code: prego.CodeInvalidField},
		"more nodes than are planned":                  {policy: even, grow: 1e9 + 1, code: prego.CodeInvalidField},
		"an empty name":                                {policy: even, current: counts{"": 1}, grow: 1, code: prego.CodeInvalidField},
		"a policy that is not valid":                   {grow: 1, code: prego.CodeInvalidField},
		"the original algorithm calls it not feasible": {policy: policy("a", 100, 2, "b", 100, -1, "c", 100, -1), grow: 9, plan: counts{"a": 2, "b": 4, "c": 3}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := region.Grow(c.policy, c.current, c.usable, c.grow)
			if c.grow < 0 {
				plan, err = region.Shrink(c.policy, c.current, c.usable, -c.grow)
			}
			if c.code != "" {
				require.Equal(t, c.code, prego.CodeOf(err), "%v", err)
				require.Nil(t, plan)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.plan, plan)
		})
	}
}

// drawn is a policy of up to 4 regions with the nodes that stand in them.
type drawn struct {
	policy  region.Policy
	current counts
	usable  []string
	n       int64
}

func draw(t *rapid.T) drawn {
	d := drawn{current: counts{}, n: rapid.Int64Range(1, 9).Draw(t, "n")}
	for i := range rapid.IntRange(1, 4).Draw(t, "regions") {
		r := region.Region{
			Name:   fmt.Sprintf("r%d", i),
			Weight: rapid.SampledFrom([]int64{0, 1, 1, 2, 3, 7, 100, 1e9}).Draw(t, "weight"),
			Cap:    rapid.SampledFrom([]int64{-1, -1, 0, 1, 2, 3, 5, 8}).Draw(t, "cap"),
		}
		d.policy.Regions = append(d.policy.Regions, r)
		d.current[r.Name] = rapid.Int64Range(0, 7).Draw(t, "current")
		if i == 0 || rapid.IntRange(0, 4).Draw(t, "unusable") > 0 {
			d.usable = append(d.usable, r.Name)
		}
	}
	d.policy.Regions[0].Weight = max(1, d.policy.Regions[0].Weight)
	d.current["elsewhere"] = rapid.Int64Range(0, 3).Draw(t, "elsewhere")
	return d
}

// split is the regions that are usable, in order, and the others.
func (d drawn) split() (in, out []region.Region) {
	for _, r := range d.policy.Regions {
		at := &out
		for _, u := range d.usable {
			if u == r.Name {
				at = &in
			}
		}
		*at = append(*at, r)
	}
	return in, out
}

// shares restates the shares in fractions: a region above its cap gets the cap, and the rest is shared again.
func shares(regions []region.Region, total int64) map[string]*big.Rat {
	out := map[string]*big.Rat{}
	left := big.NewRat(total, 1)
	for _, weight := range []func(region.Region) int64{
		func(r region.Region) int64 { return r.Weight },
		func(r region.Region) int64 {
			if r.Weight == 0 {
				return 1
			}
			return 0
		},
	} {
		open := map[string]region.Region{}
		for _, r := range regions {
			if weight(r) > 0 {
				open[r.Name] = r
				out[r.Name] = new(big.Rat)
			}
		}
		for capped := true; capped && len(open) > 0; {
			capped = false
			var sum int64
			for _, r := range open {
				sum += weight(r)
			}
			for name, r := range open {
				out[name] = new(big.Rat).Mul(left, big.NewRat(weight(r), sum))
			}
			spent := new(big.Rat)
			for name, r := range open {
				if most := big.NewRat(r.Cap, 1); r.Cap >= 0 && out[name].Cmp(most) > 0 {
					out[name], capped = most, true
					spent.Add(spent, most)
					delete(open, name)
				}
			}
			left = new(big.Rat).Sub(left, spent)
		}
		if len(open) > 0 {
			left = new(big.Rat)
		}
	}
	return out
}

// deviation is L1 and L2 (squared) of counts from shares.
func deviation(share map[string]*big.Rat, final counts) (l1, l2 *big.Rat) {
	l1, l2 = new(big.Rat), new(big.Rat)
	for name, s := range share {
		d := new(big.Rat).Sub(big.NewRat(final[name], 1), s)
		l1.Add(l1, new(big.Rat).Abs(d))
		l2.Add(l2, new(big.Rat).Mul(d, d))
	}
	return l1, l2
}

// distributions calls f with every way to spread n over the regions with room.
func distributions(regions []region.Region, room counts, n int64, f func(counts)) {
	plan := counts{}
	var next func(i int, left int64)
	next = func(i int, left int64) {
		if i == len(regions) {
			if left == 0 {
				f(plan)
			}
			return
		}
		name := regions[i].Name
		for k := range min(left, room[name]) + 1 {
			plan[name] = k
			next(i+1, left-k)
		}
		delete(plan, name)
	}
	next(0, n)
}

func after(current, plan counts, sign int64) counts {
	out := counts{}
	for name, n := range current {
		out[name] = n + sign*plan[name]
	}
	return out
}

func sum(regions []region.Region, c counts) (n int64) {
	for _, r := range regions {
		n += c[r.Name]
	}
	return n
}

// sums checks that a plan adds up, over listed regions and without zeros.
func (d drawn) sums(t require.TestingT, plan counts) {
	require.Equal(t, d.n, sum(d.policy.Regions, plan))
	for name, k := range plan {
		require.Positive(t, k, name)
		require.NotEqual(t, "elsewhere", name)
	}
}

// least checks that nothing that is allowed deviates less than the plan, in L1 or
// in L2.
func least(t require.TestingT, regions []region.Region, d drawn, room, plan counts, n, sign int64, allowed func(final counts) bool) {
	share := shares(regions, sum(regions, d.current)+sign*n)
	l1, l2 := deviation(share, after(d.current, plan, sign))
	found := false
	distributions(regions, room, n, func(other counts) {
		final := after(d.current, other, sign)
		if !allowed(final) {
			return
		}
		found = true
		o1, o2 := deviation(share, final)
		require.LessOrEqual(t, l1.Cmp(o1), 0, "L1: %v beats %v of %v", other, plan, share)
		require.LessOrEqual(t, l2.Cmp(o2), 0, "L2: %v beats %v of %v", other, plan, share)
	})
	require.True(t, found)
	require.True(t, allowed(after(d.current, plan, sign)))
}

// walk takes one step at a time (region-placement, "Properties"): the n largest of
// sign·(share − count) among those with room, ties by order.
func walk(regions []region.Region, share map[string]*big.Rat, count, room counts, n, sign int64) {
	for range n {
		var best *big.Rat
		var at string
		for _, r := range regions {
			d := new(big.Rat).Sub(share[r.Name], big.NewRat(count[r.Name], 1))
			if d.Mul(d, big.NewRat(sign, 1)); room[r.Name] > 0 && (best == nil || d.Cmp(best) > 0) {
				best, at = d, r.Name
			}
		}
		count[at] += sign
		room[at]--
	}
}

func TestGrowIsTheBestPlan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := draw(t)
		in, _ := d.split()
		room, weighted := counts{}, []region.Region{}
		for _, r := range in {
			if room[r.Name] = d.n; r.Cap >= 0 {
				room[r.Name] = min(d.n, max(0, r.Cap-d.current[r.Name]))
			}
			if r.Weight > 0 {
				weighted = append(weighted, r)
			}
		}
		plan, err := region.Grow(d.policy, d.current, d.usable, d.n)
		if sum(in, room) < d.n {
			require.Equal(t, region.CodeNoPlan, prego.CodeOf(err))
			return
		}
		require.NoError(t, err)
		d.sums(t, plan)
		// Nodes above a cap are in no total: without them the plan is the same.
		in = slices.DeleteFunc(in, func(r region.Region) bool { return r.Cap >= 0 && d.current[r.Name] > r.Cap })
		if without := (region.Policy{Regions: in}); without.Validate("policy") == nil {
			same, err := region.Grow(without, d.current, d.usable, d.n)
			require.NoError(t, err)
			require.Equal(t, same, plan)
		}
		// Those without weight receive only what the others have no room for.
		first := min(d.n, sum(weighted, room))
		was := sum(weighted, d.current)
		least(t, in, d, room, plan, d.n, 1, func(final counts) bool { return sum(weighted, final) == was+first })

		share, walked, left := shares(in, sum(in, d.current)+d.n), after(d.current, nil, 1), counts{}
		for _, r := range weighted {
			left[r.Name] = room[r.Name]
		}
		walk(in, share, walked, left, first, 1)
		for _, r := range in {
			left[r.Name] = 0
			if r.Weight == 0 {
				left[r.Name] = room[r.Name]
			}
		}
		walk(in, share, walked, left, d.n-first, 1)
		require.Equal(t, walked, after(d.current, plan, 1))
	})
}

func TestShrinkIsTheBestPlan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := draw(t)
		in, others := d.split()
		plan, err := region.Shrink(d.policy, d.current, d.usable, d.n)
		if sum(d.policy.Regions, d.current) < d.n {
			require.Equal(t, region.CodeNoPlan, prego.CodeOf(err))
			return
		}
		require.NoError(t, err)
		d.sums(t, plan)
		first := min(d.n, sum(in, d.current))
		require.Equal(t, first, sum(in, plan), "usable regions shrink first")
		d.shrunk(t, in, plan, first)
		d.shrunk(t, others, plan, d.n-first)
	})
}

// shrunk checks one group's part of a plan.
func (d drawn) shrunk(t require.TestingT, regions []region.Region, plan counts, n int64) {
	if n == 0 {
		return
	}
	over := func(c counts) (n int64) {
		for _, r := range regions {
			if r.Cap >= 0 {
				n += max(0, c[r.Name]-r.Cap)
			}
		}
		return n
	}
	drained := min(n, over(d.current))
	room := after(d.current, nil, 1)
	part := counts{}
	for _, r := range regions {
		part[r.Name] = plan[r.Name]
	}
	least(t, regions, d, room, part, n, -1, func(final counts) bool { return over(final) == over(d.current)-drained })

	share, walked := shares(regions, sum(regions, d.current)-n), after(d.current, nil, 1)
	above := counts{}
	for _, r := range regions {
		if r.Cap >= 0 {
			above[r.Name] = max(0, d.current[r.Name]-r.Cap)
		}
	}
	walk(regions, share, walked, above, drained, -1)
	walk(regions, share, walked, after(walked, nil, 1), n-drained, -1)
	require.Equal(t, walked, after(d.current, part, -1))
}

// TestShrinkAfterGrow: going there and back never ends further from the shares than
// it began, and doing so again ends where it did the first time.
func TestShrinkAfterGrow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := draw(t)
		in, _ := d.split()
		thereAndBack := func(c counts) counts {
			up, err := region.Grow(d.policy, c, d.usable, d.n)
			if err != nil {
				t.Skip("no room")
			}
			c = after(c, up, 1)
			down, err := region.Shrink(d.policy, c, d.usable, d.n)
			require.NoError(t, err)
			return after(c, down, -1)
		}
		once := thereAndBack(d.current)
		require.Equal(t, sum(in, d.current), sum(in, once))
		share := shares(in, sum(in, d.current))
		l1, l2 := deviation(share, d.current)
		b1, b2 := deviation(share, once)
		for _, r := range in {
			if r.Cap >= 0 && d.current[r.Name] > r.Cap {
				return // draining comes before deviation
			}
		}
		require.LessOrEqual(t, b1.Cmp(l1), 0)
		require.LessOrEqual(t, b2.Cmp(l2), 0)
	})
}

// TestPlansAreDeterministic: neither the order of usable regions nor the map's
// matters, and the input is left as it was.
func TestPlansAreDeterministic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := draw(t)
		before := after(d.current, nil, 1)
		for _, f := range []func(region.Policy, map[string]int64, []string, int64) (map[string]int64, error){region.Grow, region.Shrink} {
			one, err := f(d.policy, d.current, d.usable, d.n)
			other, err2 := f(d.policy, after(d.current, nil, 1), rapid.Permutation(d.usable).Draw(t, "usable"), d.n)
			require.Equal(t, one, other)
			require.Equal(t, err, err2)
			require.Equal(t, before, d.current)
		}
	})
}
