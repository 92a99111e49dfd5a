package region

import (
	"cmp"
	"slices"

	"github.com/prego/prego/server"
)

// SpreadLocations orders the candidates of a fleet's server so that the fleet spreads over the locations of a region:
// the location with the fewest members comes first, and equal ones stay in their order. Machine types keep theirs: a
// better type goes before a better spread. members counts the fleet's other servers in the region by location; ahead
// are the servers without a location that choose before this one, by the same rule. Nothing is left out.
func SpreadLocations(candidates []server.Candidate, members map[string]int, ahead int) []server.Candidate {
	var locations, types []string
	counts := map[string]int{}
	for _, c := range candidates {
		locations, types = append(locations, c.Location), append(types, c.ServerType)
		counts[c.Location] = members[c.Location]
	}
	if len(candidates) == 0 {
		return candidates
	}
	fewest := func() []string {
		out := slices.Clone(locations)
		slices.SortStableFunc(out, func(a, b string) int { return cmp.Compare(counts[a], counts[b]) })
		return out
	}
	for range ahead {
		counts[fewest()[0]]++
	}
	out := slices.Clone(candidates)
	order := fewest()
	slices.SortStableFunc(out, func(a, b server.Candidate) int {
		return cmp.Or(cmp.Compare(slices.Index(types, a.ServerType), slices.Index(types, b.ServerType)),
			cmp.Compare(slices.Index(order, a.Location), slices.Index(order, b.Location)))
	})
	return out
}
