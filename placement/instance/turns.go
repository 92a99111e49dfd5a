package instance

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/prego/prego"
)

// WaitingGroup is a group whose instances wait for a place.
type WaitingGroup struct {
	GroupID prego.GroupID
	OrgID   prego.OrgID
	Size    float64 // of one instance, in parts of its org's share of a turn
	Wanted  int     // instances
	Tried   time.Time
	Since   time.Time
}

// Turns returns in which order instances are placed, as indexes of their groups in waiting, at most limit, and at
// most perGroup of each group.
//
// Orgs take turns by size: the next instance always belongs to the org that was given the least so far, so that an
// org with large instances gets fewer than an org with small ones. Within an org, and among orgs with the same
// amount, the group comes first that was tried longest ago: unplaceable groups go to the back, and do not block
// others.
func Turns(waiting []WaitingGroup, perGroup, limit int) []int {
	byOrg := map[prego.OrgID]*orgQueue{}
	for i, w := range waiting {
		q := byOrg[w.OrgID]
		if q == nil {
			q = &orgQueue{waiting: waiting}
			byOrg[w.OrgID] = q
		}
		q.groups = append(q.groups, i)
	}
	queue := make(orgQueues, 0, len(byOrg))
	for _, q := range byOrg {
		slices.SortFunc(q.groups, func(a, b int) int { return compareWaiting(waiting[a], waiting[b]) })
		if q.settle(perGroup) {
			queue = append(queue, q)
		}
	}
	heap.Init(&queue)
	var out []int
	for len(queue) > 0 && len(out) < limit {
		q := queue[0]
		out = append(out, q.groups[0])
		q.given += max(q.head().Size, smallest)
		q.taken++
		if q.settle(perGroup) {
			heap.Fix(&queue, 0)
		} else {
			heap.Pop(&queue)
		}
	}
	return out
}

// smallest is the least that an instance counts: even an instance without needs takes a turn.
const smallest = 1.0 / 64

func compareWaiting(a, b WaitingGroup) int {
	return cmp.Or(a.Tried.Compare(b.Tried), a.Since.Compare(b.Since), cmp.Compare(a.GroupID, b.GroupID))
}

// orgQueue is an org's groups in their order, and how much the org was given.
type orgQueue struct {
	waiting []WaitingGroup
	groups  []int
	taken   int // of the first group
	given   float64
}

func (q *orgQueue) head() WaitingGroup { return q.waiting[q.groups[0]] }

// settle skips groups that get no more, and reports whether one is left.
func (q *orgQueue) settle(perGroup int) bool {
	for len(q.groups) > 0 && q.taken >= min(q.head().Wanted, perGroup) {
		q.groups, q.taken = q.groups[1:], 0
	}
	return len(q.groups) > 0
}

// orgQueues is a heap of orgs: the first one is served next.
type orgQueues []*orgQueue

func (q orgQueues) Len() int      { return len(q) }
func (q orgQueues) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q orgQueues) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].given, q[j].given), compareWaiting(q[i].head(), q[j].head())) < 0
}

// Push implements heap.Interface.
func (q *orgQueues) Push(x any) { *q = append(*q, x.(*orgQueue)) }

// Pop implements heap.Interface.
func (q *orgQueues) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
