package placement

import (
	"cmp"
	"slices"

	"github.com/prego/prego"
)

// Turns returns the order of decisions for requests that came together, as indices. Requests that need a dedicated
// server, shard or pool come first, because they can only use empty ones. Within both groups the orgs take turns in
// the order of their arrival, so that an org with many requests leaves room for an org with few. Each org's requests
// keep their order.
func (p Policy) Turns(requests []Request) []int {
	type place struct {
		shares bool
		turn   int
	}
	type queue struct {
		shares bool
		org    prego.OrgID
	}
	order, places, lengths := make([]int, len(requests)), make([]place, len(requests)), map[queue]int{}
	for i, r := range requests {
		r.Mode = cmp.Or(r.Mode, p.Mode)
		q := queue{shares: !MustBeAlone(r.Plan, r.Mode, false) && !r.DedicatedRedis, org: r.OrgID}
		order[i], places[i] = i, place{q.shares, lengths[q]}
		lengths[q]++
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch x, y := places[a], places[b]; {
		case x.shares == y.shares:
			return x.turn - y.turn
		case y.shares:
			return -1
		}
		return 1
	})
	return order
}
