package pack

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawn is a problem of up to most items in one to three dimensions, with
// round and ragged numbers, some items too large for any bin.
func drawn(t *rapid.T, most int) Problem {
	dims := []string{"memory", "cpu", "slots"}[:rapid.IntRange(1, 3).Draw(t, "dims")]
	p := Problem{Capacity: map[string]float64{}, ReservePct: rapid.SampledFrom([]float64{0, 0, 10, 30, 99.5}).Draw(t, "reserve")}
	for _, d := range dims {
		p.Capacity[d] = rapid.SampledFrom([]float64{1, 0.3, 16, 100, 65536}).Draw(t, d)
	}
	hi := rapid.SampledFrom([]int{20, 50, 70, 102}).Draw(t, "largest")
	ragged := rapid.Bool().Draw(t, "ragged")
	for i := range rapid.IntRange(0, most).Draw(t, "n") {
		it := Item{ID: fmt.Sprintf("i%d", i), Org: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "org"), Demand: map[string]float64{}}
		for _, d := range dims {
			usable := p.Capacity[d] * (1 - p.ReservePct/100)
			switch part := rapid.IntRange(-5, hi).Draw(t, "part"); {
			case part < 0: // the dimension is not named
			case ragged:
				it.Demand[d] = usable * (float64(part) + rapid.Float64Range(0, 1).Draw(t, "more")) / 103
			default:
				it.Demand[d] = usable * float64(part) / 100
			}
		}
		p.Items = append(p.Items, it)
	}
	return p
}

// packHolds checks the properties of every result, of any quality.
func packHolds(t require.TestingT, p Problem, r Result) {
	items := map[string]Item{}
	for _, it := range p.Items {
		items[it.ID] = it
	}
	seen := map[string]bool{}
	for _, b := range r.Bins {
		require.NotEmpty(t, b.Items)
		require.True(t, slices.IsSorted(b.Items))
		require.Len(t, b.Load, len(p.Capacity))
		load := map[string]float64{}
		for _, id := range b.Items {
			_, known := items[id]
			require.True(t, known && !seen[id], "%s is in two bins, or made up", id)
			seen[id] = true
			for d, v := range items[id].Demand {
				load[d] += v
			}
		}
		for d, c := range p.Capacity {
			require.InDelta(t, load[d], b.Load[d], 1e-9*c)
			require.LessOrEqual(t, b.Load[d], c*(1-p.ReservePct/100)*(1+1.01e-9), "%s of a bin", d)
		}
	}
	require.True(t, slices.IsSorted(r.Unplaceable))
	for _, id := range r.Unplaceable {
		require.False(t, seen[id], "%s is unplaceable and in a bin", id)
		seen[id] = true
		over := false
		for d, v := range items[id].Demand {
			over = over || v > p.Capacity[d]*(1-p.ReservePct/100)
		}
		require.True(t, over, "%s fits a bin", id)
	}
	require.Len(t, seen, len(p.Items))
	require.LessOrEqual(t, r.LowerBound, len(r.Bins))
	require.Equal(t, len(r.Bins) == r.LowerBound, r.Optimal)
}

func TestPackProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawn(t, 40)
		steps := rapid.IntRange(0, 30).Draw(t, "steps")
		r, err := Solve(p, packSteps(steps))
		require.NoError(t, err)
		packHolds(t, p, r)

		again, err := Solve(p, packSteps(steps))
		require.NoError(t, err)
		require.Equal(t, r, again, "the same problem and steps, the same result")

		shuffled := p
		shuffled.Items = rapid.Permutation(p.Items).Draw(t, "shuffled")
		other, err := Solve(shuffled, packSteps(steps))
		require.NoError(t, err)
		require.Equal(t, r, other, "the order of the items is irrelevant")

		greedy, err := Solve(p, nil)
		require.NoError(t, err)
		packHolds(t, p, greedy)
		require.LessOrEqual(t, len(r.Bins), len(greedy.Bins))
		require.GreaterOrEqual(t, r.LowerBound, greedy.LowerBound)
	})
}

// brute is the least number of bins, by trying each item in each bin.
func brute(p Problem, items []Item, bins []map[string]float64, best int) int {
	if len(bins) >= best {
		return best
	}
	if len(items) == 0 {
		return len(bins)
	}
	it := items[0]
	for _, b := range bins {
		fits := true
		for d, c := range p.Capacity {
			fits = fits && b[d]+it.Demand[d] <= c*(1-p.ReservePct/100)*(1+1e-9)
		}
		if !fits {
			continue
		}
		for d, v := range it.Demand {
			b[d] += v
		}
		best = brute(p, items[1:], bins, best)
		for d, v := range it.Demand {
			b[d] -= v
		}
	}
	fresh := map[string]float64{}
	maps.Copy(fresh, it.Demand)
	return brute(p, items[1:], append(bins[:len(bins):len(bins)], fresh), best)
}

func TestPackAgainstBruteForce(t *testing.T) {
	t.Parallel()
	improvements := 0
	rapid.Check(t, func(t *rapid.T) {
		p := drawn(t, 8)
		greedy, err := Solve(p, nil)
		require.NoError(t, err)
		var placeable []Item
		for _, it := range p.Items {
			if !slices.Contains(greedy.Unplaceable, it.ID) {
				placeable = append(placeable, it)
			}
		}
		optimum := brute(p, placeable, nil, math.MaxInt)
		require.LessOrEqual(t, greedy.LowerBound, optimum)
		require.GreaterOrEqual(t, len(greedy.Bins), optimum)
		improved, err := Solve(p, packSteps(1))
		require.NoError(t, err)
		require.Len(t, improved.Bins, optimum)
		require.True(t, improved.Optimal)

		// The bounds that Pack has no need of with so few items.
		if in, _ := newPackInstance(p); in.n > 0 {
			r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			for range 50 {
				require.LessOrEqual(t, in.randomBound(r), optimum)
			}
			lp := newPackLP(in)
			for n := 0; !lp.done && n < 200; n++ {
				require.LessOrEqual(t, lp.step(), optimum)
			}
			alone := make(packBins, in.n) // from where there is something to improve
			for i := range alone {
				alone[i] = []int32{int32(i)}
			}
			s := newPackRuin(in, alone, r)
			for range 50 {
				if len(s.bins) == 0 { // one bin held them all
					break
				}
				if s.iterate() {
					require.GreaterOrEqual(t, len(s.packing()), optimum)
					improvements++
					break
				}
			}
		}
	})
	require.Positive(t, improvements)
}

// A pricing that is cut short still proves no more than is true.
func TestPackBoundsOfPlantedSolutions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		// Bins cut into pieces: as many bins suffice.
		bins := rapid.IntRange(1, 12).Draw(t, "bins")
		p := Problem{Capacity: map[string]float64{"a": 1000, "b": 1000}}
		for range bins {
			pieces := rapid.IntRange(1, 6).Draw(t, "pieces")
			a, b := packCut(t, pieces), packCut(t, pieces)
			for k := range pieces {
				p.Items = append(p.Items, item(fmt.Sprintf("%03d", len(p.Items)), "", a[k], b[k]))
			}
		}
		r, err := Solve(p, packSteps(100))
		require.NoError(t, err)
		packHolds(t, p, r)
		require.LessOrEqual(t, r.LowerBound, bins)
		in, _ := newPackInstance(p)
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for range 20 {
			require.LessOrEqual(t, in.randomBound(rnd), bins)
		}
	})
}

func packCut(t *rapid.T, pieces int) []float64 {
	cuts := []int{0, 1000}
	for range pieces - 1 {
		cuts = append(cuts, rapid.IntRange(0, 1000).Draw(t, "cut"))
	}
	slices.Sort(cuts)
	out := make([]float64, pieces)
	for k := range out {
		out[k] = float64(cuts[k+1] - cuts[k])
	}
	return out
}
