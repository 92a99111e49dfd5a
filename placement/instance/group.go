package instance

import (
	"cmp"
	"slices"
	"time"

	"github.com/prego/prego/workload"
)

// GroupState is the scheduler's view of a process group.
type GroupState struct {
	Replicas int
	Deleted  bool
	Paused   bool // nothing is replaced because of its release
	Release  int  // the wanted release
	Stable   int  // the last release that was healthy, 0 for none
	Deploy   workload.DeployStatus
	Open     bool // the last rollout has not come to its end
	Policy   workload.RolloutPolicy
	// NoSurge: an instance stops before the next one starts, regardless of the policy. SurgeLimit bounds the
	// instances in addition to the replicas; nil for none.
	NoSurge    bool
	SurgeLimit *int
	Short      int             // replicas that the org's quota refuses
	Exclusive  bool            `db:"-"` // it has a volume, which allows one writer
	Failures   int             // of instances of the wanted release since its rollout began
	Overdue    bool            `db:"-"` // the rollout made no progress in time
	Backoff    int             `db:"-"` // places of crashed instances that must stay empty for now
	Instances  []GroupInstance `db:"-"`
}

// GroupInstance is an instance that is not stopped.
type GroupInstance struct {
	ID      string
	Number  int64
	Release int
	State   workload.InstanceState
	Started bool // its container runs; while it boots, it is only watched
	Lost    bool // its server has failed or is gone
	Leaving bool // its server is draining or being emptied
	// Drain is the remaining time: once taken out of service, or for a draining instance from now.
	Drain   time.Duration
	Message string
}

// GroupSteps are the next steps of a group. The first four change rows, the others need work on containers.
type GroupSteps struct {
	Lose   []string       // fail, with their servers
	Failed *FailedRollout // the rollout has failed
	Proven bool           // every instance runs the wanted release
	Drain  []string       // in the order of picking

	Want    int           // instances to allocate
	Surge   bool          // some of them on top of the replicas
	Boot    []string      // must be started
	Booting int           // of all instances, started or not
	Stop    []string      // failed instances, and those drained for long enough
	Next    time.Duration // until the next one has drained; 0 for none
	Settled bool          // nothing is left to do
}

// FailedRollout is why a rollout failed, and whether the group goes back to its last good release.
type FailedRollout struct {
	Release  int
	RollBack bool
	Reason   string
	Message  string // of the newest instance that failed or does not start; may be empty
}

// ScheduleGroup decides the next steps of a group. It is pure: calling it again after the steps were taken returns
// the next ones.
//
// During a rollout there are at most max_surge instances more than replicas, draining ones included, and old ones are
// drained only while at least replicas - max_unavailable run, of those that the quota
// allows. With NoSurge old ones are stopped first, and with Exclusive all are.
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
	if s.Failed = g.failed(list); s.Failed != nil && s.Failed.RollBack {
		g.Release, g.Deploy, g.Open, g.Backoff = g.Stable, workload.DeployRolledBack, true, 0
	}
	if g.Deleted {
		g.Replicas = 0
	}
	r := newRollout(g, list, &s)
	r.drain()
	r.want()
	for _, v := range r.list {
		switch v.State {
		case workload.InstanceBooting:
			s.Booting++
			if !v.Started {
				s.Boot = append(s.Boot, v.ID)
			}
		case workload.InstanceDraining:
			switch {
			case v.Drain <= 0 || v.Lost:
				s.Stop = append(s.Stop, v.ID)
			case s.Next == 0 || v.Drain < s.Next:
				s.Next = v.Drain
			}
		case workload.InstanceFailed:
			s.Stop = append(s.Stop, v.ID)
		case workload.InstanceRunning, workload.InstanceStopped:
		}
	}
	full := r.count(r.current, workload.InstanceRunning) == g.Replicas && r.count(r.old, occupying...) == 0
	s.Proven = full && g.Replicas > 0 && (g.Open || g.Stable != g.Release)
	for _, v := range r.list { // a paused group may run other releases
		s.Proven = s.Proven && (v.State != workload.InstanceRunning || v.Release == g.Release)
	}
	s.Settled = full && s.Want == 0 && s.Booting == 0 && len(s.Stop) == 0 && s.Next == 0
	return s
}

// failed reports whether the current rollout has failed. The loss of an instance's server is no sign of a bad
// release.
func (g GroupState) failed(list []GroupInstance) *FailedRollout {
	if !g.Deploy.UnderWay() || g.Stable == g.Release || g.Deleted || g.Paused || g.Replicas == 0 {
		return nil
	}
	f := &FailedRollout{Release: g.Release, RollBack: g.Stable > 0 && g.Policy.AutoRollback}
	tells := []workload.InstanceState{workload.InstanceFailed}
	switch {
	case g.Failures > g.Policy.MaxFailures:
		f.Reason = workload.ReasonInstanceFailed
	case g.Overdue:
		f.Reason = workload.ReasonProgressDeadline
		tells = append(tells, workload.InstanceBooting)
	default:
		return nil
	}
	for _, v := range list {
		if v.Message != "" && !v.Lost && v.Release == g.Release && slices.Contains(tells, v.State) {
			f.Message = v.Message
		}
	}
	return f
}

// occupying are the states of instances that count as replicas. A draining instance no longer does, and a failed one
// does until it is stopped.
var occupying = []workload.InstanceState{workload.InstanceBooting, workload.InstanceRunning, workload.InstanceFailed}

type rollout struct {
	g     GroupState
	list  []GroupInstance
	steps *GroupSteps
	// Instances in addition to the replicas, and replicas that may be missing.
	surge, unavailable int
}

func newRollout(g GroupState, list []GroupInstance, steps *GroupSteps) *rollout {
	r := &rollout{g: g, list: list, steps: steps}
	r.surge, r.unavailable = g.Policy.Bounds(g.Replicas)
	if g.SurgeLimit != nil {
		r.surge = min(r.surge, *g.SurgeLimit)
	}
	if g.NoSurge {
		r.surge = 0
	}
	if r.surge == 0 {
		r.unavailable = max(r.unavailable, 1)
	}
	return r
}

// old reports whether an instance must be replaced; current is the opposite.
func (r *rollout) old(v GroupInstance) bool {
	return v.Leaving || v.Release != r.g.Release && !r.g.Paused
}

func (r *rollout) current(v GroupInstance) bool { return !r.old(v) }

func (*rollout) all(GroupInstance) bool { return true }

func (r *rollout) count(of func(GroupInstance) bool, states ...workload.InstanceState) (n int) {
	for _, v := range r.list {
		if of(v) && slices.Contains(states, v.State) {
			n++
		}
	}
	return n
}

// take drains an instance. An instance that was never healthy has no users, and stops immediately.
func (r *rollout) take(v *GroupInstance) {
	if v.State == workload.InstanceBooting {
		v.Drain = 0
	}
	v.State = workload.InstanceDraining
	r.steps.Drain = append(r.steps.Drain, v.ID)
}

// pick drains at most n matching instances of a state, the newest first.
func (r *rollout) pick(n int, of func(GroupInstance) bool, state workload.InstanceState) {
	for i := len(r.list) - 1; i >= 0 && n > 0; i-- {
		if v := &r.list[i]; v.State == state && of(*v) {
			r.take(v)
			n--
		}
	}
}

func (r *rollout) drain() {
	if r.g.Replicas == 0 || r.g.Exclusive && r.count(r.old, occupying...) > 0 {
		of := r.old
		if r.g.Replicas == 0 {
			of = r.all
		}
		r.pick(len(r.list), of, workload.InstanceBooting)
		r.pick(len(r.list), of, workload.InstanceRunning)
		return
	}
	// An old instance that is not running yet is useless.
	r.pick(len(r.list), r.old, workload.InstanceBooting)
	// Of the old ones, as many as can be missed go.
	needed := r.g.Replicas - r.g.Short - r.unavailable
	r.pick(r.count(r.all, workload.InstanceRunning)-needed, r.old, workload.InstanceRunning)
	// Of the others, the surplus of a group that was scaled down goes.
	running := r.count(r.current, workload.InstanceRunning)
	r.pick(running+r.count(r.current, workload.InstanceBooting)-r.g.Replicas, r.current, workload.InstanceBooting)
	r.pick(running-r.g.Replicas, r.current, workload.InstanceRunning)
}

func (r *rollout) want() {
	want := r.g.Replicas - r.count(r.current, occupying...)
	rolling := slices.ContainsFunc(r.list, r.old)
	switch {
	case r.g.Exclusive && len(r.list) > 0: // the volume must be free
		want = 0
	case rolling:
		want = min(want, r.g.Replicas+r.surge-len(r.list))
	}
	r.steps.Want = max(0, want-r.g.Backoff)
	r.steps.Surge = rolling && r.count(r.all, occupying...)+r.steps.Want > r.g.Replicas
}
