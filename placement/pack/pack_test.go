package pack

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

func item(id, org string, a, b float64) Item {
	return Item{ID: id, Org: org, Demand: map[string]float64{"a": a, "b": b}}
}

func TestPackRefusals(t *testing.T) {
	t.Parallel()
	ok := map[string]float64{"a": 10, "b": 10}
	one := func(demand map[string]float64) Problem {
		return Problem{Capacity: ok, Items: []Item{{ID: "x", Demand: map[string]float64{"a": 1}}, {ID: "y", Demand: demand}}}
	}
	for name, c := range map[string]struct {
		p     Problem
		field string
	}{
		"no dimensions":     {Problem{}, "capacity"},
		"capacity 0":        {Problem{Capacity: map[string]float64{"a": 1, "b": 0}}, "capacity.b"},
		"capacity negative": {Problem{Capacity: map[string]float64{"a": -1}}, "capacity.a"},
		"capacity NaN":      {Problem{Capacity: map[string]float64{"a": math.NaN()}}, "capacity.a"},
		"capacity infinite": {Problem{Capacity: map[string]float64{"a": math.Inf(1)}}, "capacity.a"},
		"capacity reserved": {Problem{Capacity: map[string]float64{"a": 1e-300}, ReservePct: 50}, "capacity.a"},
		"reserve negative":  {Problem{Capacity: ok, ReservePct: -1}, "reserve_pct"},
		"reserve 100":       {Problem{Capacity: ok, ReservePct: 100}, "reserve_pct"},
		"reserve NaN":       {Problem{Capacity: ok, ReservePct: math.NaN()}, "reserve_pct"},
		"demand negative":   {one(map[string]float64{"b": -1}), "items[1].demand.b"},
		"demand NaN":        {one(map[string]float64{"b": math.NaN()}), "items[1].demand.b"},
		"demand infinite":   {one(map[string]float64{"b": math.Inf(1)}), "items[1].demand.b"},
		"unknown dimension": {one(map[string]float64{"c": 0}), "items[1].demand.c"},
		"id given twice":    {Problem{Capacity: ok, Items: []Item{{ID: "x"}, {ID: "x"}}}, "items[1].id"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Solve(c.p, nil)
			var e *prego.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, prego.CodeInvalidField, e.Code)
			require.Equal(t, c.field, e.Field)
		})
	}
	_, err := Solve(Problem{Capacity: map[string]float64{"a": 1e-300}}, nil)
	require.NoError(t, err, "the smallest")
}

func TestPackSmall(t *testing.T) {
	t.Parallel()
	capacity := map[string]float64{"a": 10, "b": 10}
	for name, c := range map[string]struct {
		items       []Item
		reserve     float64
		bins        [][]string
		unplaceable []string
	}{
		"nothing":              {nil, 0, [][]string{}, []string{}},
		"a demand of nothing":  {[]Item{{ID: "x"}}, 0, [][]string{{"x"}}, []string{}},
		"exactly full":         {[]Item{item("x", "", 4, 6), item("y", "", 6, 4)}, 0, [][]string{{"x", "y"}}, []string{}},
		"one dimension is":     {[]Item{item("x", "", 6, 1), item("y", "", 6, 1)}, 0, [][]string{{"x"}, {"y"}}, []string{}},
		"the reserve is kept":  {[]Item{item("x", "", 4, 0), item("y", "", 4, 0)}, 30, [][]string{{"x"}, {"y"}}, []string{}},
		"too large for a bin":  {[]Item{item("z", "", 7.1, 0), item("x", "", 7, 0), item("b", "", 0, 1e300)}, 30, [][]string{{"x"}}, []string{"b", "z"}},
		"kin share, ids break": {[]Item{item("1", "k", 6, 0), item("2", "l", 6, 0), item("3", "l", 3, 0), item("4", "", 3, 0)}, 0, [][]string{{"1", "4"}, {"2", "3"}}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := Solve(Problem{Capacity: capacity, Items: c.items, ReservePct: c.reserve}, nil)
			require.NoError(t, err)
			bins := [][]string{}
			for _, b := range r.Bins {
				bins = append(bins, b.Items)
			}
			require.Equal(t, c.bins, bins)
			require.Equal(t, c.unplaceable, r.Unplaceable)
			require.Equal(t, len(c.bins), r.LowerBound)
			require.True(t, r.Optimal)
		})
	}
}

// Sums that are exact on paper fit in spite of floating point, and real overloads do not.
func TestPackFitsExactly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		capacity, reserve, demand float64
		inOne                     int
	}{
		{1, 0, 0.1, 10},
		{0.3, 0, 0.1, 3},
		{64, 30, 4.48, 10},
		{0.7, 0, 0.007, 100},
		{100, 90, 1, 10},
		{1e-9, 0, 1e-10, 10},
		{1e18, 1, 0.33e18, 3},
		{1, 0, 0.1000001, 9},
		{1e6, 0, 100000.1, 9},
		{1, 0, 1e-4, 10_000},
	} {
		p := Problem{Capacity: map[string]float64{"a": c.capacity}, ReservePct: c.reserve}
		for i := range 2 * c.inOne {
			p.Items = append(p.Items, Item{ID: fmt.Sprint(i), Demand: map[string]float64{"a": c.demand}})
		}
		r, err := Solve(p, nil)
		require.NoError(t, err)
		require.Len(t, r.Bins, 2, "%+v", c)
		require.True(t, r.Optimal, "%+v", c)
		require.Len(t, r.Bins[0].Items, c.inOne, "%+v", c)
	}
}

// In each of the instances one kind of bound proves what the others miss.
func TestPackBounds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		demands [][2]float64
		bound   int
	}{
		"volume":                      {[][2]float64{{4, 0}, {4, 0}, {4, 0}}, 2},
		"more than half":              {[][2]float64{{6, 0}, {6, 0}, {6, 0}}, 3},
		"L2: sevens and fours":        {[][2]float64{{7, 0}, {7, 0}, {4, 0}, {4, 0}, {4, 0}}, 4},
		"three to a bin at the most":  {[][2]float64{{2.6, 0}, {2.6, 0}, {2.6, 0}, {2.6, 0}}, 2},
		"twelve to a bin at the most": {slices.Repeat([][2]float64{{0.77, 0}}, 25), 3},
		"clique across dimensions":    {[][2]float64{{6, 1}, {5, 6}, {1, 9.5}}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Problem{Capacity: map[string]float64{"a": 10, "b": 10}}
			for i, d := range c.demands {
				p.Items = append(p.Items, item(fmt.Sprint(i), "", d[0], d[1]))
			}
			r, err := Solve(p, nil)
			require.NoError(t, err)
			require.Equal(t, c.bound, r.LowerBound)
			require.True(t, r.Optimal)
		})
	}
}

// Of these no two dimensions, or not even one, show that at most two items share a bin.
func TestPackBoundsOfSeveralDimensions(t *testing.T) {
	t.Parallel()
	for name, demands := range map[string][][3]float64{
		"two":   {{4.5, 2.3}, {4.5, 2.3}, {4.5, 2.3}, {2.3, 4.5}, {2.3, 4.5}},
		"three": {{4.6, 2.8, 2.8}, {4.6, 2.8, 2.8}, {2.8, 4.6, 2.8}, {2.8, 4.6, 2.8}, {2.8, 2.8, 4.6}},
	} {
		p := Problem{Capacity: map[string]float64{"a": 10, "b": 10, "c": 10}}
		for i, v := range demands {
			demand := map[string]float64{"a": v[0], "b": v[1], "c": v[2]}
			p.Items = append(p.Items, Item{ID: fmt.Sprint(i), Demand: demand})
		}
		r, err := Solve(p, nil)
		require.NoError(t, err)
		require.Equal(t, 3, r.LowerBound, name)
		require.True(t, r.Optimal, name)
	}
}

// Two items that together take the very last unit of a bin share it, and no bound says otherwise.
func TestPackBoundsOfTheLastUnit(t *testing.T) {
	t.Parallel()
	limit := units + units/tolerance
	for _, first := range []int64{limit / 2, limit * 6 / 10, limit * 2 / 3, limit * 3 / 4, limit * 8 / 9} {
		p := Problem{Capacity: map[string]float64{"a": 1}}
		for i, v := range []int64{first, limit - first} {
			demand := map[string]float64{"a": float64(v) / float64(units)}
			p.Items = append(p.Items, Item{ID: fmt.Sprint(i), Demand: demand})
		}
		in, _ := newPackInstance(p)
		require.Equal(t, limit, in.x[0]+in.x[1])
		r, err := Solve(p, nil)
		require.NoError(t, err)
		require.Len(t, r.Bins, 1)
		require.Equal(t, 1, r.LowerBound)
		random := rand.New(rand.NewPCG(1, uint64(first)))
		for range 200 {
			require.LessOrEqual(t, in.randomBound(random), 1)
		}
	}
	whole := Item{ID: "x", Demand: map[string]float64{"a": float64(limit) / float64(units)}}
	r, err := Solve(Problem{Capacity: map[string]float64{"a": 1}, Items: []Item{whole}}, nil)
	require.NoError(t, err)
	require.Empty(t, r.Unplaceable)
	require.Equal(t, 1_000_000, packWhole(1_000_000.00001, 1_000_000), "many items, whose rounding adds up")
}

// The linear program sees what no weighting of the sizes does: no two of these
// leave a bin full in both dimensions.
func TestPackLinearProgramRaisesTheBound(t *testing.T) {
	t.Parallel()
	p := packClass(6, 60, 3)
	before, err := Solve(p, nil)
	require.NoError(t, err)
	in, _ := newPackInstance(p)
	lp := newPackLP(in)
	bound := 0
	for range 3000 {
		if lp.done {
			break
		}
		bound = max(bound, lp.step())
	}
	require.True(t, lp.done, "column generation ends")
	require.Greater(t, bound, before.LowerBound)
}

func TestPackLinearProgramIsBounded(t *testing.T) {
	t.Parallel()
	p := Problem{Capacity: map[string]float64{"a": 1000}}
	for i := range lpRows + 1 {
		p.Items = append(p.Items, Item{ID: fmt.Sprint(i), Demand: map[string]float64{"a": float64(500 - i)}})
	}
	in, _ := newPackInstance(p)
	require.Nil(t, newPackLP(in))
	p.Items = p.Items[1:]
	in, _ = newPackInstance(p)
	require.NotNil(t, newPackLP(in))
}

func TestPackAffinity(t *testing.T) {
	t.Parallel()
	// 40 Orgs of 10 items, 20 items to a bin: the order of ids alternates the Orgs, so
	// without affinity every Org is everywhere.
	p := Problem{Capacity: map[string]float64{"a": 20}}
	for i := range 400 {
		p.Items = append(p.Items, Item{ID: fmt.Sprintf("%03d", i), Org: fmt.Sprint(i % 40), Demand: map[string]float64{"a": 1}})
	}
	r, err := Solve(p, nil)
	require.NoError(t, err)
	require.Len(t, r.Bins, 20)
	in, _ := newPackInstance(p)
	number := map[string]int32{}
	for i, it := range in.items {
		number[it.ID] = int32(i)
	}
	var bins packBins
	for _, b := range r.Bins {
		var bin []int32
		for _, id := range b.Items {
			bin = append(bin, number[id])
		}
		bins = append(bins, bin)
	}
	plain := in.spread(in.firstFit(in.byKey(in.weight), false))
	require.Less(t, in.spread(bins), plain)
	t.Logf("pairs of an Org and a bin: %d, without affinity %d, at best 40", in.spread(bins), plain)
}
