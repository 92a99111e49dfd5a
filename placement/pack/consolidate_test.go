package pack

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestConsolidateFreesWhatIsCheapestToMove(t *testing.T) {
	t.Parallel()
	hosts := []Host{
		{ID: "a", Place: "eu", Capacity: map[string]float64{"memory": 10}, Price: 10, Takes: true, Leaves: true},
		{ID: "b", Place: "eu", Capacity: map[string]float64{"memory": 10}, Price: 10, Takes: true, Leaves: true},
		{ID: "c", Place: "eu", Capacity: map[string]float64{"memory": 10}, Price: 40, Takes: true, Leaves: true},
		{ID: "d", Place: "us", Capacity: map[string]float64{"memory": 10}, Price: 99, Takes: true, Leaves: true},
	}
	residents := []Resident{
		{ID: "1", Host: "a", Demand: map[string]float64{"memory": 5}, Bytes: 1 << 30},
		{ID: "2", Host: "b", Demand: map[string]float64{"memory": 4}, Bytes: 2 << 30},
		{ID: "3", Host: "c", Demand: map[string]float64{"memory": 4}, Bytes: 2 << 30},
		{ID: "4", Host: "d", Demand: map[string]float64{"memory": 1}, Bytes: 1},
	}
	got, err := Consolidate(hosts, residents, ConsolidationLimits{})
	require.NoError(t, err)
	require.Equal(t, []Freed{{ID: "c", Price: 40, Moves: 1, Bytes: 2 << 30}}, got.Freed, "it frees 20 a gigabyte; a and b then are too full for each other")
	require.Equal(t, []Move{{ID: "3", From: "c", To: "a", Bytes: 2 << 30}}, got.Moves, "to the fullest that has room")
	require.Equal(t, 4, got.Used)
	require.Equal(t, 3, got.LowerBound, "13 of 10 in one place, and one elsewhere")
	require.InDelta(t, 40, got.Price, 0)

	none, err := Consolidate(hosts, residents, ConsolidationLimits{Bytes: 1 << 29})
	require.NoError(t, err)
	require.Empty(t, none.Moves)
	residents[2].Stays = true
	other, err := Consolidate(hosts, residents, ConsolidationLimits{Moves: 1})
	require.NoError(t, err)
	require.Equal(t, "a", other.Freed[0].ID, "what can't move keeps its host, and the next best is freed")
}

func TestConsolidateRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	h := Host{ID: "a", Capacity: map[string]float64{"memory": 1}}
	for name, f := range map[string]func() ([]Host, []Resident){
		"a host twice":     func() ([]Host, []Resident) { return []Host{h, h}, nil },
		"a resident twice": func() ([]Host, []Resident) { return []Host{h}, []Resident{{ID: "1", Host: "a"}, {ID: "1", Host: "a"}} },
		"nowhere":          func() ([]Host, []Resident) { return []Host{h}, []Resident{{ID: "1", Host: "b"}} },
	} {
		hosts, residents := f()
		_, err := Consolidate(hosts, residents, ConsolidationLimits{})
		require.Error(t, err, name)
	}
	for _, v := range []float64{-1, math.NaN(), math.Inf(1)} {
		bad := map[string]float64{"memory": v}
		_, err := Consolidate([]Host{h}, []Resident{{ID: "1", Host: "a", Demand: bad}}, ConsolidationLimits{})
		require.Error(t, err, "a demand of %v", v)
		_, err = Consolidate([]Host{{ID: "b", Capacity: bad}}, nil, ConsolidationLimits{})
		require.Error(t, err, "a capacity of %v", v)
	}
}

// The moves that empty one host can make another's residents choose better places.
func TestConsolidateLooksAgain(t *testing.T) {
	t.Parallel()
	hosts := []Host{
		{ID: "first", Capacity: map[string]float64{"memory": 9, "disk": 9}, Price: 40, Leaves: true},
		{ID: "second", Capacity: map[string]float64{"memory": 9, "cards": 1}, Price: 10, Leaves: true},
		{ID: "x", Capacity: map[string]float64{"memory": 10, "disk": 10}, Takes: true},
		{ID: "y", Capacity: map[string]float64{"memory": 20, "cards": 1}, Takes: true},
	}
	got, err := Consolidate(hosts, []Resident{
		{ID: "1", Host: "first", Demand: map[string]float64{"memory": 4}},
		{ID: "2", Host: "first", Demand: map[string]float64{"memory": 3, "disk": 1}}, // only x has a disk
		{ID: "3", Host: "second", Demand: map[string]float64{"memory": 2.5, "cards": 1}},
		{ID: "4", Host: "x", Demand: map[string]float64{"memory": 5}},
		{ID: "5", Host: "y", Demand: map[string]float64{"memory": 12}},
	}, ConsolidationLimits{})
	require.NoError(t, err)
	require.Equal(t, []Move{{"3", "second", "y", 0}, {"1", "first", "y", 0}, {"2", "first", "x", 0}}, got.Moves)
}

func TestConsolidateMovesTheLargestFirst(t *testing.T) {
	t.Parallel()
	host := func(id string, memory float64) Host {
		capacity := map[string]float64{"memory": memory, "disk": 0}
		return Host{ID: id, Capacity: capacity, Takes: id != "a", Leaves: id == "a"}
	}
	resident := func(id, at string, memory float64) Resident {
		return Resident{ID: id, Host: at, Demand: map[string]float64{"memory": memory, "disk": 0}}
	}
	got, err := Consolidate([]Host{host("a", 10), host("x", 10), host("y", 4)}, []Resident{
		resident("1", "a", 2), resident("2", "a", 5), resident("3", "x", 5), resident("4", "y", 0.5),
	}, ConsolidationLimits{})
	require.NoError(t, err)
	require.Equal(t, []Move{{"2", "a", "x", 0}, {"1", "a", "y", 0}}, got.Moves)
}

func TestConsolidateIntoHostsWithoutADimension(t *testing.T) {
	t.Parallel()
	host := func(id string, capacity map[string]float64) Host {
		return Host{ID: id, Capacity: capacity, Price: 1, Takes: true, Leaves: id == "a"}
	}
	hosts := []Host{
		host("a", map[string]float64{"memory": 10, "disk": 5}),
		host("b", map[string]float64{"memory": 10, "disk": 0}),
		host("c", map[string]float64{"memory": 10}),
	}
	plan := func(demand map[string]float64) []Move {
		c, err := Consolidate(hosts, []Resident{
			{ID: "1", Host: "a", Demand: demand},
			{ID: "2", Host: "b", Demand: map[string]float64{"memory": 2}},
			{ID: "3", Host: "c", Demand: map[string]float64{"memory": 1}},
		}, ConsolidationLimits{})
		require.NoError(t, err)
		return c.Moves
	}
	to := func(id string) []Move { return []Move{{ID: "1", From: "a", To: id}} }
	require.Equal(t, to("b"), plan(map[string]float64{"memory": 1, "disk": 0}), "nothing of what there is none")
	require.Empty(t, plan(map[string]float64{"memory": 1, "disk": 1}))
	hosts[1].Takes = false
	require.Equal(t, to("c"), plan(map[string]float64{"memory": 1, "disk": 0}), "nothing of what is not named")

	for i := range hosts {
		hosts[i].Capacity = map[string]float64{"memory": 10, "disk": 0}
	}
	c, err := Consolidate(hosts, []Resident{
		{ID: "1", Host: "a", Demand: map[string]float64{"memory": 6, "disk": 0}},
		{ID: "2", Host: "b", Demand: map[string]float64{"memory": 6}},
	}, ConsolidationLimits{})
	require.NoError(t, err)
	require.Equal(t, 2, c.LowerBound, "of memory, though there is no disk")
	hosts[0].Capacity = nil
	c, err = Consolidate(hosts[:1], []Resident{{ID: "1", Host: "a"}}, ConsolidationLimits{})
	require.NoError(t, err)
	require.Equal(t, 1, c.LowerBound, "nothing is known of what there is")
}

func TestConsolidationsCanBeCarriedOut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		hosts, residents := drawFleet(t)
		limits := ConsolidationLimits{Moves: rapid.IntRange(0, 12).Draw(t, "moves"), Bytes: int64(rapid.IntRange(0, 40).Draw(t, "GB")) << 30}
		got, err := Consolidate(hosts, residents, limits)
		require.NoError(t, err)

		hostOf, load, before := map[string]Host{}, map[string]map[string]float64{}, map[string]map[string]float64{}
		for _, h := range hosts {
			hostOf[h.ID], load[h.ID], before[h.ID] = h, map[string]float64{}, map[string]float64{}
		}
		at, who := map[string]string{}, map[string]Resident{}
		for _, r := range residents {
			at[r.ID], who[r.ID] = r.Host, r
			for d, v := range r.Demand {
				load[r.Host][d] += v
				before[r.Host][d] += v
			}
		}
		used := map[string]bool{}
		for _, h := range at {
			used[h] = true
		}
		var bytes int64
		moved := map[string]bool{}
		// In any order: while a resident moves, it takes room on both.
		order := rand.New(rand.NewPCG(1, uint64(len(got.Moves)))).Perm(len(got.Moves))
		for _, i := range order {
			m := got.Moves[i]
			require.False(t, moved[m.ID], "no resident moves twice")
			moved[m.ID] = true
			r := who[m.ID]
			require.False(t, r.Stays)
			require.Equal(t, at[m.ID], m.From)
			require.Equal(t, hostOf[m.From].Place, hostOf[m.To].Place)
			require.True(t, hostOf[m.To].Takes && hostOf[m.From].Leaves)
			require.Equal(t, r.Bytes, m.Bytes)
			bytes += m.Bytes
			at[m.ID] = m.To
			for d, v := range r.Demand {
				load[m.To][d] += v
				require.LessOrEqual(t, load[m.To][d], hostOf[m.To].Capacity[d]*(1+1e-6))
			}
		}
		after := map[string]bool{}
		for _, h := range at {
			after[h] = true
		}
		var price float64
		for _, f := range got.Freed {
			require.True(t, used[f.ID] && !after[f.ID], "it had residents, and has none")
			price += f.Price
		}
		require.Len(t, after, len(used)-len(got.Freed), "nothing else is emptied, and no empty host is filled")
		require.Equal(t, len(used), got.Used)
		require.GreaterOrEqual(t, len(after), got.LowerBound)
		require.Equal(t, bytes, got.Bytes)
		require.InDelta(t, price, got.Price, 1e-6)
		if limits.Moves > 0 {
			require.LessOrEqual(t, len(got.Moves), limits.Moves)
		}
		if limits.Bytes > 0 {
			require.LessOrEqual(t, got.Bytes, limits.Bytes)
		}

		slices.Reverse(hosts)
		slices.Reverse(residents)
		again, err := Consolidate(hosts, residents, limits)
		require.NoError(t, err)
		require.Equal(t, got, again, "in any order")
		if limits == (ConsolidationLimits{}) {
			rest := slices.Clone(residents)
			for i := range rest {
				rest[i].Host = at[rest[i].ID]
			}
			more, err := Consolidate(hosts, rest, limits)
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(after)-len(more.Freed), got.LowerBound)
		}
	})
}

func drawFleet(t *rapid.T) (hosts []Host, residents []Resident) {
	for i := range rapid.IntRange(1, 12).Draw(t, "hosts") {
		hosts = append(hosts, Host{
			ID: fmt.Sprintf("h%02d", i), Place: rapid.SampledFrom([]string{"eu", "us"}).Draw(t, "place"), Price: float64(rapid.IntRange(0, 50).Draw(t, "price")),
			Capacity: map[string]float64{"memory": float64(rapid.IntRange(0, 64).Draw(t, "memory")), "disk": float64(rapid.IntRange(1, 100).Draw(t, "disk"))},
			Takes:    rapid.IntRange(0, 9).Draw(t, "takes") > 0, Leaves: rapid.IntRange(0, 9).Draw(t, "leaves") > 0,
		})
		for j := range rapid.IntRange(0, 6).Draw(t, "residents") {
			residents = append(residents, Resident{
				ID: fmt.Sprintf("t%02d-%d", i, j), Host: hosts[i].ID, Bytes: int64(rapid.IntRange(0, 8).Draw(t, "bytes")) << 30, Stays: rapid.IntRange(0, 19).Draw(t, "stays") == 0,
				Demand: map[string]float64{"memory": float64(rapid.IntRange(0, 20).Draw(t, "takes memory")), "disk": float64(rapid.IntRange(0, 30).Draw(t, "takes disk"))},
			})
		}
	}
	return hosts, residents
}
