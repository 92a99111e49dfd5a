package region_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego/placement/region"
	"github.com/prego/prego/server"
)

func TestSpreadLocations(t *testing.T) {
	t.Parallel()
	candidates := server.DefaultCatalog().Candidates("app", "eu", server.Spec{})
	first := func(members map[string]int, ahead int) string {
		return region.SpreadLocations(candidates, members, ahead)[0].String()
	}
	require.Equal(t, "cx43 in fsn1", first(nil, 0))
	require.Equal(t, "cx43 in nbg1", first(map[string]int{"fsn1": 1}, 0))
	require.Equal(t, "cx43 in hel1", first(map[string]int{"fsn1": 1}, 1), "the previous server takes nbg1")
	require.Equal(t, "cx43 in fsn1", first(map[string]int{"nbg1": 2, "hel1": 2, "ash": 0}, 1))
	pinned := server.DefaultCatalog().Candidates("app", "eu", server.Spec{Location: "fsn1"})
	require.Equal(t, pinned, region.SpreadLocations(pinned, map[string]int{"fsn1": 9}, 0))
	require.Empty(t, region.SpreadLocations(nil, nil, 3))
	at := func(typ, location string) server.Candidate {
		return server.Candidate{ServerType: typ, Location: location}
	}
	require.Equal(t, []server.Candidate{at("large", "b"), at("large", "a"), at("small", "b"), at("small", "a")},
		region.SpreadLocations([]server.Candidate{
			at("large", "a"), at("small", "a"), at("large", "b"), at("small", "b"),
		}, map[string]int{"a": 1}, 0), "each type's locations, also where types mix")
}

// TestFleetsSpreadEvenly: for any fleet, and servers choosing one after the other or concurrently, no location gets a
// server while another one has fewer.
func TestFleetsSpreadEvenly(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		locations := []string{"a", "b", "c", "d"}[:rapid.IntRange(1, 4).Draw(t, "locations")]
		var candidates []server.Candidate
		for _, typ := range []string{"small", "large"} {
			for _, l := range locations {
				candidates = append(candidates, server.Candidate{ServerType: typ, Location: l})
			}
		}
		members := map[string]int{}
		for _, l := range locations {
			members[l] = rapid.IntRange(0, 4).Draw(t, "members")
		}
		for left := rapid.IntRange(1, 12).Draw(t, "new"); left > 0; {
			together := rapid.IntRange(1, left).Draw(t, "together")
			left -= together
			now := maps.Clone(members)
			for ahead := range together {
				got := region.SpreadLocations(candidates, now, ahead)
				require.ElementsMatch(t, candidates, got)
				require.True(t, slices.IsSortedFunc(got, func(a, b server.Candidate) int {
					return slices.Index([]string{"small", "large"}, a.ServerType) - slices.Index([]string{"small", "large"}, b.ServerType)
				}))
				for _, n := range members {
					require.LessOrEqual(t, members[got[0].Location], n)
				}
				members[got[0].Location]++
			}
		}
	})
}
