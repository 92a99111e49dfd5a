package instance

import (
	"cmp"
	"slices"

	"github.com/prego/prego/workload"
)

// GroupState is what the scheduler knows of a process group.
type GroupState struct {
	Replicas  int
	Deleted   bool
	Release   int // the wanted release
	Stable    int // the last release that was healthy, 0 for none
	Deploy    workload.DeployStatus
	NoSurge   bool            // stop an instance before the next one starts
	Exclusive bool            `db:"-"` // it has a volume, which allows one writer
	Instances []GroupInstance `db:"-"`
}

// GroupInstance is an instance that is not stopped.
type GroupInstance struct {
	ID      string
	Number  int64
	Release int
	State   workload.InstanceState
	Started bool // its container runs; while it boots, it is only watched
	Lost    bool // its server has failed or is gone
	Leaving bool // its server is draining
	Message string
}

// GroupSteps are the next steps of a group. The first four change rows, the others need
// work on containers.
type GroupSteps struct {
	Lose     []string // fail, with their servers
	RollBack *GroupInstance
	Proven   bool     // every instance runs the wanted release
	Drain    []string // in the order in which they were picked

	Want    int      // instances to allocate
	Surge   bool     // on top of the replicas
	Boot    []string // to be started
	Booting int      // of all instances, started or not
	Stop    []string
	Settled bool // nothing is left to do
}

// ScheduleGroup decides what to do for a group. It is pure: calling it again after the
// steps were taken returns the next ones.
//
// A rollout has at most one instance more than replicas (max_surge 1), including
// draining ones. With NoSurge an old one is stopped first, and with Exclusive all are.
func ScheduleGroup(g GroupState) GroupSteps {
	var s GroupSteps
	list := slices.Clone(g.Instances)
	slices.SortFunc(list, func(a, b GroupInstance) int { return cmp.Compare(a.Number, b.Number) })
	for i := range list {
		if v := &list[i]; v.Lost && (v.State == workload.InstanceBooting || v.State == workload.InstanceRunning) {
			v.State = workload.InstanceFailed
			s.Lose = append(s.Lose, v.ID)
		}
	}
	if g.Deploy.UnderWay() && g.Stable > 0 && g.Stable != g.Release && !g.Deleted {
		// The loss of an instance's server says nothing about the release.
		if i := slices.IndexFunc(list, func(v GroupInstance) bool {
			return v.State == workload.InstanceFailed && !v.Lost && v.Release == g.Release
		}); i >= 0 {
			failed := list[i]
			s.RollBack = &failed
			g.Release, g.Deploy = g.Stable, workload.DeployRolledBack
		}
	}
	if g.Deleted {
		g.Replicas = 0
	}
	r := rollout{g: g, list: list, steps: &s}
	r.drain()
	r.want()
	for _, v := range r.list {
		switch v.State {
		case workload.InstanceBooting:
			s.Booting++
			if !v.Started {
				s.Boot = append(s.Boot, v.ID)
			}
		case workload.InstanceDraining, workload.InstanceFailed:
			s.Stop = append(s.Stop, v.ID)
		case workload.InstanceRunning, workload.InstanceStopped:
		}
	}
	full := r.count(r.current, workload.InstanceRunning) == g.Replicas && r.count(r.old, occupying...) == 0
	s.Proven = full && g.Replicas > 0 && g.Stable != g.Release
	s.Settled = full && s.Want == 0 && s.Booting == 0 && len(s.Stop) == 0
	return s
}

// occupying are the states in which an instance counts as one of the replicas. A
// draining one no longer does, and a failed one does until it is stopped.
var occupying = []workload.InstanceState{workload.InstanceBooting, workload.InstanceRunning, workload.InstanceFailed}

type rollout struct {
	g     GroupState
	list  []GroupInstance
	steps *GroupSteps
}

// old reports whether an instance is to be replaced; current is the opposite.
func (r *rollout) old(v GroupInstance) bool { return v.Release != r.g.Release || v.Leaving }

func (r *rollout) current(v GroupInstance) bool { return !r.old(v) }

func (r *rollout) count(of func(GroupInstance) bool, states ...workload.InstanceState) (n int) {
	for _, v := range r.list {
		if of(v) && slices.Contains(states, v.State) {
			n++
		}
	}
	return n
}

func (r *rollout) take(v *GroupInstance) {
	v.State = workload.InstanceDraining
	r.steps.Drain = append(r.steps.Drain, v.ID)
}

// pick drains n matching instances: first those not running yet, then the newest.
func (r *rollout) pick(n int, of func(GroupInstance) bool) {
	for _, state := range []workload.InstanceState{workload.InstanceBooting, workload.InstanceRunning} {
		for i := len(r.list) - 1; i >= 0 && n > 0; i-- {
			if v := &r.list[i]; v.State == state && of(*v) {
				r.take(v)
				n--
			}
		}
	}
}

func (r *rollout) drain() {
	all := func(GroupInstance) bool { return true }
	if r.g.Replicas == 0 || r.g.Exclusive && r.count(r.old, occupying...) > 0 {
		of := r.old
		if r.g.Replicas == 0 {
			of = all
		}
		r.pick(len(r.list), of)
		return
	}
	// An old instance that is not running yet is useless.
	for i := range r.list {
		if v := &r.list[i]; r.old(*v) && v.State == workload.InstanceBooting {
			r.take(v)
		}
	}
	olds := r.count(r.old, workload.InstanceRunning)
	// Drain as many old ones as new ones run in their place.
	if over := r.count(r.current, workload.InstanceRunning) + olds - r.g.Replicas; over > 0 {
		r.pick(min(over, olds), r.old)
	}
	if over := r.count(all, occupying...) - r.g.Replicas - r.surging(); over > 0 {
		r.pick(over, r.current)
	}
	if r.g.NoSurge && r.count(r.old, workload.InstanceRunning) > 0 && len(r.list) <= r.g.Replicas &&
		r.count(all, workload.InstanceDraining) == 0 && r.count(r.current, workload.InstanceBooting, workload.InstanceFailed) == 0 && r.count(all, occupying...) == r.g.Replicas {
		r.pick(1, r.old)
	}
}

// surging is how many instances may exist in addition to the replicas: one, while there
// are old ones.
func (r *rollout) surging() int {
	if r.count(r.old, occupying...) > 0 && !r.g.Exclusive && !r.g.NoSurge {
		return 1
	}
	return 0
}

func (r *rollout) want() {
	all := func(GroupInstance) bool { return true }
	have := r.count(all, occupying...)
	olds := r.count(r.old, occupying...)
	switch {
	case r.g.Replicas == 0:
	case r.g.Exclusive:
		if len(r.list) == 0 { // the volume must be free
			r.steps.Want = 1
		}
	case olds == 0 && r.count(r.old, workload.InstanceDraining) == 0:
		r.steps.Want = max(0, r.g.Replicas-have)
	case len(r.list) < r.g.Replicas+r.surging() && r.count(r.current, occupying...) < r.g.Replicas &&
		r.count(r.current, workload.InstanceBooting, workload.InstanceFailed) == 0:
		r.steps.Want, r.steps.Surge = 1, have >= r.g.Replicas
	}
}
