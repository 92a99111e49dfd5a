package placement

import (
	"slices"

	"github.com/prego/prego"
)

// Turns is the order in which requests that came together are decided, as indices. Those
// that need a server, shard or pool for themselves come first: what is empty is of no more
// use to them once somebody is there. Among them, and then among the others, the orgs take
// turns in the order in which they came, so that one with many requests leaves room for
// one with few. Each org's requests keep their order.
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
		if r.Mode == "" {
			r.Mode = p.Mode
		}
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

// DecideAll decides on requests one after the other, as Decide and Apply do, so that each
// sees those before it.
func (f *Snapshot) DecideAll(requests []Request) []Decision {
	out := make([]Decision, len(requests))
	for i, r := range requests {
		out[i] = f.Decide(r)
		f.Apply(r, out[i])
	}
	return out
}
