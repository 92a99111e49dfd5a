package region_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/region"
)

func nodes() []region.Member {
	at := func(h int) time.Time { return time.Date(2026, 1, 1, h, 0, 0, 0, time.UTC) }
	return []region.Member{
		{ID: "e", Region: "two", CreatedAt: at(5), ProfileGeneration: 1},
		{ID: "c", Region: "two", CreatedAt: at(1), ProfileGeneration: 2},
		{ID: "b", Region: "one", CreatedAt: at(3), ProfileGeneration: 1},
		{ID: "a", Region: "one", CreatedAt: at(3), ProfileGeneration: 1},
		{ID: "d", Region: "one", CreatedAt: at(2), ProfileGeneration: 3},
	}
}

func TestSelectVictims(t *testing.T) {
	t.Parallel()
	plan := counts{"one": 2, "two": 1}
	for name, c := range map[string]struct {
		by        region.Criterion
		perRegion counts
		count     int64
		victims   []string
	}{
		"oldest":                      {by: region.OldestFirst, count: 3, victims: []string{"c", "d", "a"}},
		"youngest":                    {by: region.YoungestFirst, count: 3, victims: []string{"e", "a", "b"}},
		"oldest profile":              {by: region.OldestProfileFirst, count: 4, victims: []string{"a", "b", "e", "c"}},
		"oldest of each region":       {by: region.OldestFirst, perRegion: plan, victims: []string{"d", "a", "c"}},
		"youngest of each region":     {by: region.YoungestFirst, perRegion: plan, victims: []string{"a", "b", "e"}},
		"oldest profile of each":      {by: region.OldestProfileFirst, perRegion: plan, victims: []string{"a", "b", "e"}},
		"a placement that takes none": {by: region.OldestFirst, perRegion: counts{}, count: 3, victims: []string{}},
		"none":                        {by: region.Random, victims: []string{}},
		"all":                         {by: region.OldestFirst, count: 5, victims: []string{"c", "d", "a", "b", "e"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			victims, err := region.SelectVictims(nodes(), c.by, c.perRegion, c.count, 0)
			require.NoError(t, err)
			require.Equal(t, c.victims, prego.Strings(victims))
		})
	}
	_, err := region.SelectVictims(nodes(), "NEWEST", nil, 1, 0)
	refused(t, err, prego.CodeInvalidField, "criteria")
	_, err = region.SelectVictims(nodes(), region.Random, nil, -1, 0)
	refused(t, err, prego.CodeInvalidField, "count")
	_, err = region.SelectVictims(nodes(), region.OldestFirst, nil, 6, 0)
	refused(t, err, region.CodeTooFewNodes, "")
	_, err = region.SelectVictims(nodes(), region.OldestFirst, counts{"three": 1}, 0, 0)
	refused(t, err, region.CodeTooFewNodes, "")
}

// TestSelectVictimsIgnoresTheOrderOfNodes: with any criterion, the same set of nodes and the same seed give the same
// victims, so many of each region.
func TestSelectVictimsIgnoresTheOrderOfNodes(t *testing.T) {
	t.Parallel()
	plan := counts{"one": 2, "two": 1}
	rapid.Check(t, func(t *rapid.T) {
		by := rapid.SampledFrom([]region.Criterion{region.OldestFirst, region.YoungestFirst, region.OldestProfileFirst, region.Random}).Draw(t, "by")
		seed := rapid.Uint64().Draw(t, "seed")
		one, err := region.SelectVictims(nodes(), by, plan, 0, seed)
		require.NoError(t, err)
		other, err := region.SelectVictims(rapid.Permutation(nodes()).Draw(t, "nodes"), by, plan, 0, seed)
		require.NoError(t, err)
		require.Equal(t, one, other)
		got := counts{}
		for _, n := range nodes() {
			if slices.Contains(one, n.ID) {
				got[n.Region]++
			}
		}
		require.Equal(t, plan, got)
	})
	seen := map[string]bool{}
	for seed := range uint64(100) {
		v, err := region.SelectVictims(nodes(), region.Random, nil, 1, seed)
		require.NoError(t, err)
		seen[string(v[0])] = true
	}
	require.Len(t, seen, len(nodes()), "every node can be the one")
}
