package sim

import (
	"container/heap"
	"time"
)

// event is something that happens at a moment. Events of the same moment happen in the order of planning.
type event struct {
	at   time.Duration
	turn int
	do   func()
}

type agenda []event

func (a agenda) Len() int { return len(a) }

func (a agenda) Less(i, j int) bool {
	if a[i].at != a[j].at {
		return a[i].at < a[j].at
	}
	return a[i].turn < a[j].turn
}

func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }

func (a *agenda) Push(e any) { *a = append(*a, e.(event)) }

func (a *agenda) Pop() any {
	old := *a
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*a = old[:len(old)-1]
	return e
}

func (s *Simulation) plan(at time.Duration, do func()) {
	s.turns++
	heap.Push(&s.agenda, event{at: at, turn: s.turns, do: do})
}

// Step lets the next thing happen, and reports whether there was one before the end.
func (s *Simulation) Step() bool {
	if len(s.agenda) == 0 || s.agenda[0].at > s.end {
		s.now = s.end
		return false
	}
	e := heap.Pop(&s.agenda).(event)
	s.now = e.at
	e.do()
	return true
}

// Run plays to the end.
func (s *Simulation) Run() {
	for s.Step() {
	}
}
