package region

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/prego/prego"
)

// Criterion is how a deletion policy chooses nodes.
type Criterion string

// The criteria.
const (
	OldestFirst        Criterion = "OLDEST_FIRST"
	YoungestFirst      Criterion = "YOUNGEST_FIRST"
	OldestProfileFirst Criterion = "OLDEST_PROFILE_FIRST"
	Random             Criterion = "RANDOM"
)

// Valid reports whether a policy may use c.
func (c Criterion) Valid() bool {
	return c == OldestFirst || c == YoungestFirst || c == OldestProfileFirst || c == Random
}

// CodeTooFewNodes refuses to delete more nodes than there are.
const CodeTooFewNodes prego.Code = "too_few_nodes"

// Member is a node that may be deleted.
type Member struct {
	ID                prego.ServerID
	Region            string
	CreatedAt         time.Time
	ProfileGeneration int64 // of its spec; lower is older
}

// SelectVictims chooses the nodes to delete, in order. With perRegion, which a placement policy decided, it chooses
// so many per region, ordered by region name, and ignores count. With perRegion nil it chooses count of all. Ties
// break by age, then by id. RANDOM depends only on seed and on the set of nodes.
func SelectVictims(nodes []Member, by Criterion, perRegion map[string]int64, count int64, seed uint64) ([]prego.ServerID, error) {
	if !by.Valid() {
		return nil, prego.Invalid("criteria", "must be OLDEST_FIRST, YOUNGEST_FIRST, OLDEST_PROFILE_FIRST or RANDOM")
	}
	sorted := orderMembers(nodes, by, seed)
	if perRegion == nil {
		return firstMembers(sorted, count, "the fleet")
	}
	groups := make(map[string][]Member)
	for _, n := range sorted {
		groups[n.Region] = append(groups[n.Region], n)
	}
	out := []prego.ServerID{}
	for _, name := range slices.Sorted(maps.Keys(perRegion)) {
		ids, err := firstMembers(groups[name], perRegion[name], name)
		if err != nil {
			return nil, err
		}
		out = append(out, ids...)
	}
	return out, nil
}

func orderMembers(nodes []Member, by Criterion, seed uint64) []Member {
	sorted := slices.Clone(nodes)
	slices.SortFunc(sorted, func(a, b Member) int {
		age, id := a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID)
		switch by {
		case OldestFirst:
			return cmp.Or(age, id)
		case YoungestFirst:
			return cmp.Or(-age, id)
		case OldestProfileFirst:
			return cmp.Or(cmp.Compare(a.ProfileGeneration, b.ProfileGeneration), age, id)
		}
		return id
	})
	if by == Random {
		rng := rand.New(rand.NewPCG(seed, 0))
		rng.Shuffle(len(sorted), func(i, j int) { sorted[i], sorted[j] = sorted[j], sorted[i] })
	}
	return sorted
}

func firstMembers(nodes []Member, n int64, where string) ([]prego.ServerID, error) {
	switch {
	case n < 0:
		return nil, prego.Invalid("count", "must not be negative")
	case n > int64(len(nodes)):
		return nil, prego.Errorf(CodeTooFewNodes, "%d nodes must be deleted of %s, which has %d.", n, where, len(nodes))
	}
	ids := make([]prego.ServerID, 0, n)
	for _, node := range nodes[:n] {
		ids = append(ids, node.ID)
	}
	return ids, nil
}
