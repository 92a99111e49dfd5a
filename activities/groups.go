package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/workload"
)

// InstanceEngine runs the containers of instances. A permanent error is a
// *server.ContainerError.
type InstanceEngine interface {
	// StartInstance starts the container with an image that its org may have. A repeated call finds the container that
	// is already there.
	StartInstance(ctx context.Context, serverID prego.ServerID, addr string, org prego.OrgID, spec server.ContainerSpec) error
	// RemoveInstance stops and removes the container; a missing one is success.
	RemoveInstance(ctx context.Context, serverID prego.ServerID, addr, name string) error
	ListContainers(ctx context.Context, serverID prego.ServerID, addr string) ([]server.ContainerInfo, error)
}

// VolumeAttacher attaches a group's volumes to a server before its instance starts there, and
// returns how the engine mounts them.
type VolumeAttacher func(ctx context.Context, groupID prego.GroupID, serverID prego.ServerID) (binds []string, err error)

// GroupSettings are the settings of process groups.
type GroupSettings struct {
	Retry time.Duration // wait before the next try, and between checks of groups that have not converged
	Quiet time.Duration // how long a row may be unchanged before its run is checked
	Hosts int           // servers whose instances one sweep checks
}

// GroupMetrics count events of groups.
type GroupMetrics struct {
	Unschedulable *prometheus.GaugeVec   // groups, by reason
	Schedule      prometheus.Histogram   // seconds from wanted to allocated, within quota
	Failures      prometheus.Counter     // of instances
	Rollouts      *prometheus.CounterVec // that ended, by outcome
}

// NewGroupMetrics registers them.
func NewGroupMetrics(reg prometheus.Registerer) *GroupMetrics {
	m := &GroupMetrics{
		Unschedulable: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "prego_groups_unschedulable", Help: "Process groups that have no place for an instance, by reason."}, []string{"reason"}),
		Schedule: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "prego_instance_schedule_seconds", Help: "Seconds from an instance being wanted, and within quota, to its place.", Buckets: []float64{.1, .5, 1, 2, 5, 15, 30, 60, 300, 1800},
		}),
		Failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "prego_instance_failures_total", Help: "Instances that did not become healthy, or died."}),
	}
	m.Rollouts = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_group_rollouts_total", Help: "Rollouts of process groups that ended, by outcome."}, []string{"outcome"})
	reg.MustRegister(m.Unschedulable, m.Schedule, m.Failures, m.Rollouts)
	return m
}

// Groups are the steps of process groups and their instances.
type Groups struct {
	Store    *store.Store
	Engine   InstanceEngine
	Runs     Runs
	Settings GroupSettings
	Metrics  *GroupMetrics
	Log      *zap.Logger
	// Volumes attaches volumes; if nil, the mounts in the rows are used unchanged.
	Volumes VolumeAttacher
	// Drained waits until no edge sends requests to an instance of a server that drains; nil
	// if there are no edges.
	Drained func(ctx context.Context, serverID prego.ServerID) error
	// Idle detaches the volumes of a group without running or wanted instances; nil disables that.
	Idle func(ctx context.Context, groupID prego.GroupID) error
	Hooks

	turn struct {
		sync.Mutex
		n int64
	}
}

// fromGroups makes permanent errors non-retryable.
func fromGroups(err error) error {
	switch prego.CodeOf(err) {
	case prego.CodeGroupNotFound, prego.CodeInstanceNotFound:
		return permanentError(ErrTypeSuperseded, err.Error(), nil)
	}
	return fromContainers(err)
}

// PlanGroup decides what to do for a group now.
func (a *Groups) PlanGroup(ctx context.Context, groupID prego.GroupID) (workload.GroupPlan, error) {
	a.hook("group/plan")
	p, err := a.Store.PlanGroup(ctx, groupID, a.Settings.Retry)
	a.hook("group/planned")
	a.Metrics.Failures.Add(float64(p.Late))
	if p.Ended != "" {
		a.Metrics.Rollouts.WithLabelValues(string(p.Ended)).Inc()
	}
	a.wakeRuns(ctx, p.Wake)
	return p, fromGroups(err)
}

// Served is the result of serving a region's waiting groups.
type Served struct {
	Busy      bool           `json:"busy,omitempty"` // another worker serves it
	Allocated map[string]int `json:"allocated,omitempty"`
	// Changed are groups that must plan again.
	Changed []string `json:"changed,omitempty"`
}

const (
	// serveAtOnce bounds how many instances one pass considers, serveFor how long
	// passes are repeated.
	serveAtOnce = 500
	serveFor    = 20 * time.Second
	// lostTries is how often a place is looked for again after a lost race.
	lostTries = 3
)

// ServeInstances allocates the waiting instances of a region, taking turns among the
// orgs so that none is served in bulk while another waits (quotas-and-fairness,
// "Fairness model"). Running instances are never moved to make room. Groups that got
// something are woken.
func (a *Groups) ServeInstances(ctx context.Context, region prego.Region) (Served, error) {
	s := serving{Served: Served{Allocated: map[string]int{}}, orgs: map[string]prego.OrgID{}}
	until := time.Now().Add(serveFor)
	done, err := a.Store.ServeInstances(ctx, region, func(ctx context.Context) error {
		for {
			more, err := a.servePass(ctx, region, &s)
			if err != nil {
				return err
			}
			if !more || time.Now().After(until) {
				return a.grow(ctx, region, s.short, s.refused)
			}
		}
	})
	out := s.Served
	out.Busy = !done && err == nil
	for _, id := range out.Changed {
		if err := a.Runs.WakeGroup(ctx, prego.GroupID(id), s.orgs[id]); err != nil {
			a.Log.Warn("process group not woken; its run looks by itself", zap.String("group_id", id), zap.Error(err))
		}
	}
	return out, err
}

// serving is the state of one call of ServeInstances.
type serving struct {
	Served
	orgs map[string]prego.OrgID // by group
	// refused are groups with a reason why they get nothing now. Later passes leave them
	// out: otherwise as many as a pass considers would hide all who came after them.
	refused []prego.GroupID
	short   []short // instances that fit on no server
}

// servePass goes through the waiting instances once. It reports whether another pass may
// allocate something.
func (a *Groups) servePass(ctx context.Context, region prego.Region, s *serving) (more bool, err error) {
	demand, err := a.Store.InstanceDemand(ctx, region, serveAtOnce, s.refused)
	if err != nil || len(demand) == 0 {
		return false, err
	}
	var ids []prego.OrgID
	var groups []prego.GroupID
	for _, d := range demand {
		ids, groups = append(ids, d.OrgID), append(groups, d.GroupID)
	}
	slices.Sort(groups)
	servers, err := a.Store.InstanceServers(ctx, region, slices.Compact(groups))
	if err != nil {
		return false, err
	}
	pools, err := a.Store.PoolsOf(ctx, ids)
	if err != nil {
		return false, err
	}
	over := map[prego.GroupID]bool{} // groups that get nothing more in this pass
	placed := map[prego.GroupID]int{}
	for _, d := range demand {
		id := string(d.GroupID)
		s.orgs[id] = d.OrgID
		if over[d.GroupID] {
			continue
		}
		got, none, err := a.place(ctx, d, pools[string(d.OrgID)], servers)
		if err != nil {
			return false, err
		}
		if first := s.Allocated[id] == 0; got == workload.Allocated && first || got == workload.AllocationSurge {
			s.Changed = append(s.Changed, id)
		}
		switch got {
		case workload.Allocated:
			s.Allocated[id]++
			placed[d.GroupID]++
			more = true
		case workload.AllocationLost: // to be tried again
			over[d.GroupID] = true
		default:
			if none != nil {
				s.short = append(s.short, slices.Repeat([]short{*none}, min(max(d.Wanted-placed[d.GroupID], 1), serveAtOnce))...)
			}
			over[d.GroupID], more = true, true
			s.refused = append(s.refused, d.GroupID)
		}
	}
	return more, nil
}

// place finds and reserves a place for one instance, and updates servers accordingly for the next
// one. It reports an instance that fits on no server.
func (a *Groups) place(ctx context.Context, d workload.InstanceDemand, pools []prego.AppliedPool, servers []instance.Server) (workload.AllocationOutcome, *short, error) {
	if len(d.Missing) > 0 {
		return workload.AllocationNone, nil, a.Store.NoPlace(ctx, d.GroupID, workload.ReasonVolumeMissing, "no volume of the group is mounted at "+strings.Join(d.Missing, ", "), nil, d.At, a.Settings.Retry)
	}
	r := requestOf(d, pools)
	for try := 1; ; try++ {
		decision := instance.Place(r, servers)
		b, err := json.Marshal(decision)
		if err != nil {
			return "", nil, err
		}
		if decision.ServerID == "" {
			return workload.AllocationNone, &short{r, decision}, a.Store.NoPlace(ctx, d.GroupID, decision.Code, decision.SelectionReason, b, d.At, a.Settings.Retry)
		}
		a.hook("group/allocate")
		got, err := a.Store.Allocate(ctx, workload.InstancePlace{GroupID: d.GroupID, ServerID: decision.ServerID, Decision: b}, a.Settings.Retry)
		if err != nil {
			return "", nil, err
		}
		a.hook("group/allocated")
		if got.Outcome == workload.AllocationLost && try < lostTries {
			// A heartbeat may have held the row for a moment.
			if err := prego.Sleep(ctx, 20*time.Millisecond); err != nil {
				return "", nil, err
			}
			continue
		}
		if got.Outcome == workload.Allocated {
			a.Metrics.Schedule.Observe(got.Waited.Seconds())
			for i := range servers {
				if s := &servers[i]; s.ServerID == decision.ServerID {
					s.MemoryUsed += d.MemoryBytes
					s.CPURequested += d.CPURequest
					s.DiskUsed += d.DiskBytes
					if s.Groups == nil {
						s.Groups = map[string]int{}
					}
					s.Groups[string(d.GroupID)]++
					s.Volumes += d.Volumes - s.GroupVolumes[string(d.GroupID)]
					if s.GroupVolumes == nil {
						s.GroupVolumes = map[string]int{}
					}
					s.GroupVolumes[string(d.GroupID)] = d.Volumes
				}
			}
		}
		return got.Outcome, nil, nil
	}
}

// ServerFree wakes the groups waiting in a server's region after it became active or
// usable again. It is not an activity.
func ServerFree(a *Groups) func(ctx context.Context, serverID prego.ServerID) { return a.serverFree }

func (a *Groups) serverFree(ctx context.Context, serverID prego.ServerID) {
	st, err := a.Store.ProvisionState(ctx, serverID)
	if err != nil {
		a.Log.Warn("waiting process groups not woken; their runs look by themselves", zap.String("server_id", string(serverID)), zap.Error(err))
		return
	}
	a.wakeRegion(ctx, st.Region)
}

// wakeRegion wakes the groups that wait for capacity in a region, in order.
func (a *Groups) wakeRegion(ctx context.Context, region prego.Region) {
	freed := a.Store.RoomFreed(ctx, region)
	groups, err := a.Store.WaitingGroups(ctx, region)
	err = errors.Join(freed, err)
	for _, g := range groups {
		err = errors.Join(err, a.Runs.WakeGroup(ctx, g.GroupID, g.OrgID))
	}
	if err != nil {
		a.Log.Warn("waiting process groups not woken; their runs look by themselves", zap.String("region", string(region)), zap.Error(err))
	}
}

// BootInstance starts an instance's container. Its server's agent then reports when it is
// healthy, or has ended, and the next plan notices when it takes too long: nothing waits
// here. An instance that is no longer wanted is left alone.
func (a *Groups) BootInstance(ctx context.Context, id string) (err error) {
	defer func() {
		if err == nil {
			a.endWork(ctx, id)
		}
		noteWhy(ctx, a.Log, err, func(ctx context.Context, why string) error {
			return a.Store.InstanceRetries(ctx, id, why)
		})
	}()
	h, err := a.Store.InstanceHost(ctx, id)
	switch {
	case err != nil:
		return fromGroups(err)
	case h.State != workload.InstanceBooting || h.StartedAt != nil:
		return nil
	case h.ServerStatus != server.Active:
		return nil // the next plan handles it
	}
	binds := h.Binds
	if a.Volumes != nil {
		binds, err = a.Volumes(ctx, h.GroupID, h.ServerID)
		if ce, ok := errors.AsType[*server.ContainerError](err); ok {
			return a.failed(ctx, id, ce.Message)
		}
		if err != nil {
			return fromGroups(err)
		}
	}
	a.hook("instance/boot")
	err = a.Engine.StartInstance(ctx, h.ServerID, h.Host, h.OrgID, workload.OnHost(h.Spec.Container(h.InstanceID, h.GroupID, h.Ports, binds), h.EnvID, h.Private))
	a.hook("instance/booted")
	if ce, ok := errors.AsType[*server.ContainerError](err); ok {
		return a.failed(ctx, id, ce.Message)
	}
	if err != nil {
		return err
	}
	ok, err := a.Store.InstanceStarted(ctx, id, h.Spec.StartTimeout())
	if err != nil {
		return fromGroups(err)
	}
	a.hook("instance/running")
	if ok {
		return nil
	}
	// It was stopped while it started: remove the container started after the stop.
	if h, err = a.Store.InstanceHost(ctx, id); err != nil {
		return fromGroups(err)
	}
	if h.State == workload.InstanceRunning || h.State == workload.InstanceBooting {
		return nil
	}
	return fromContainers(a.Engine.RemoveInstance(ctx, h.ServerID, h.Host, id))
}

// endWork gives an instance's turn to the next. If that fails, its lease ends.
func (a *Groups) endWork(ctx context.Context, id string) {
	wake, err := a.Store.EndWork(ctx, id)
	if err != nil {
		a.Log.Warn("a turn is given on late", zap.String("instance_id", id), zap.Error(err))
	}
	a.wakeRuns(ctx, wake)
}

// wakeRuns wakes the runs whose turn has come. A run that misses its signal checks again by itself.
func (a *Groups) wakeRuns(ctx context.Context, runs []string) {
	if len(runs) == 0 {
		return
	}
	if err := a.Runs.WakeRuns(ctx, runs); err != nil {
		a.Log.Warn("runs whose turn has come are not woken; they ask again", zap.Error(err))
	}
}

// FailInstanceInput is the reason why an instance failed.
type FailInstanceInput struct {
	InstanceID prego.InstanceID `json:"instance_id"`
	Message    string           `json:"message"`
}

// FailInstance records that an instance could not be started.
func (a *Groups) FailInstance(ctx context.Context, in FailInstanceInput) error {
	a.endWork(ctx, string(in.InstanceID))
	return a.failed(ctx, string(in.InstanceID), in.Message)
}

func (a *Groups) failed(ctx context.Context, id, message string) error {
	ok, err := a.Store.InstanceFailed(ctx, id, message)
	if ok {
		a.Metrics.Failures.Inc()
		a.Log.Info("instance failed", zap.String("instance_id", id), zap.String("why", prego.Redact(message)))
	}
	return fromGroups(err)
}

// lastContact bounds how long we try to stop an instance on a server that has failed.
const lastContact = 15 * time.Second

// StopInstance removes an instance's container. The instance then no longer counts, and
// its resources go to waiting instances. On a failed server the container may be left
// behind until the sweep finds it.
func (a *Groups) StopInstance(ctx context.Context, id string) error {
	h, err := a.Store.InstanceHost(ctx, id)
	if err != nil {
		return fromGroups(err)
	}
	if h.State != workload.InstanceDraining && h.State != workload.InstanceFailed {
		return nil
	}
	a.endWork(ctx, id) // it may have waited for its start
	if a.Drained != nil && h.State == workload.InstanceDraining {
		if err := a.Drained(ctx, h.ServerID); err != nil {
			return err
		}
	}
	a.hook("instance/stop")
	if err := a.remove(ctx, h); err != nil {
		return err
	}
	a.hook("instance/removed")
	if _, err := a.Store.InstanceStopped(ctx, id); err != nil {
		return fromGroups(err)
	}
	a.hook("instance/stopped")
	if h.Drained {
		a.wakeRuns(ctx, []string{server.MaintenanceWorkflowID(h.ServerID)})
	}
	if a.Idle != nil {
		if err := a.Idle(ctx, h.GroupID); err != nil { // its next instance, or the volume's end, does it
			a.Log.Warn("volumes not detached after the last stop", zap.String("group_id", string(h.GroupID)), zap.String("error", prego.Redact(err.Error())))
		}
	}
	if err := a.Store.RoomFreed(ctx, h.Region); err != nil {
		return err
	}
	served, err := a.ServeInstances(ctx, h.Region)
	if served.Busy {
		// A serving worker may have looked before this became free.
		a.wakeRegion(ctx, h.Region)
	}
	if err != nil {
		a.Log.Warn("what an instance left is not given on; waiting groups look by themselves", zap.String("instance_id", id), zap.Error(err))
	}
	return nil
}

func (a *Groups) remove(ctx context.Context, h workload.InstanceHost) error {
	switch h.ServerStatus {
	case server.Terminated:
		return nil
	case server.Failed, server.Decommissioning:
		ctx, cancel := context.WithTimeout(ctx, lastContact)
		defer cancel()
		if err := a.Engine.RemoveInstance(ctx, h.ServerID, h.Host, string(h.InstanceID)); err != nil {
			a.Log.Warn("a container is left on a server that is lost", zap.String("instance_id", string(h.InstanceID)), zap.String("server_id", string(h.ServerID)), zap.String("error", prego.Redact(err.Error())))
		}
		return nil
	case server.Active, server.Provisioning:
	}
	return a.Engine.RemoveInstance(ctx, h.ServerID, h.Host, string(h.InstanceID))
}

// GroupSweepResult counts what a sweep found.
type GroupSweepResult struct {
	Woken   int `json:"woken"`   // groups
	Checked int `json:"checked"` // servers whose instances were checked
	Unknown int `json:"unknown"` // of those, not reached
	Died    int `json:"died"`    // instances
	Removed int `json:"removed"` // containers of stopped instances
	Servers int `json:"servers"` // that may run instances
	// Detached counts idle groups whose volumes were detached.
	Detached int `json:"detached,omitempty"`
}

// SweepGroups looks for groups whose run was lost or whose servers are gone, for instances whose
// containers ended or became healthy without a report of their agents, and for containers that
// belong to no instance. It detaches the volumes of idle groups. Agents report immediately; this is the fallback.
func (a *Groups) SweepGroups(ctx context.Context) (GroupSweepResult, error) {
	var r GroupSweepResult
	w, err := a.Store.FindGroupWork(ctx, a.Settings.Quiet)
	if err != nil {
		return r, err
	}
	a.Metrics.Unschedulable.Reset()
	for reason, n := range w.Unschedulable {
		a.Metrics.Unschedulable.WithLabelValues(reason).Set(float64(n))
	}
	var try Attempts
	for g := range Each(&try, w.Groups) {
		if try.OK(a.Runs.WakeGroup(ctx, g.GroupID, g.OrgID)) {
			r.Woken++
		}
	}
	a.turn.Lock()
	a.turn.n++
	n := a.turn.n
	a.turn.Unlock()
	r.Servers = len(w.Servers)
	for _, id := range Turn(w.Servers, n, a.Settings.Hosts) {
		if ctx.Err() != nil {
			break
		}
		if err := a.checkInstances(ctx, prego.ServerID(id), &r); err != nil {
			r.Unknown++
			a.Log.Warn("instances not looked at", zap.String("server_id", id), zap.String("error", prego.Redact(err.Error())))
		}
	}
	if a.Idle != nil {
		for _, id := range Turn(w.Idle, n, idleAtOnce) {
			a.detachIdle(ctx, prego.GroupID(id), &r)
		}
	}
	return r, try.Err()
}

// A sweep detaches the volumes of so many idle groups, each within a limit.
const (
	idleAtOnce = 3
	detachFor  = 20 * time.Second
)

// detachIdle detaches the volumes of a group that lost its last instance otherwise than by a stop: after a crash, or
// with its server. If it fails, a later sweep repeats it.
func (a *Groups) detachIdle(ctx context.Context, id prego.GroupID, r *GroupSweepResult) {
	ctx, cancel := context.WithTimeout(ctx, detachFor)
	defer cancel()
	if err := a.Idle(ctx, id); err != nil {
		a.Log.Warn("volumes of an idle group not detached",
			zap.String("group_id", string(id)), zap.String("error", prego.Redact(err.Error())))
		return
	}
	r.Detached++
}

// unnoticed is how long an instance without a check may run before it counts as healthy here,
// without a report of its agent.
const unnoticed = 30 * time.Second

// becameHealthy reports whether a booting instance is healthy according to its engine. Only the
// agent knows the outcome of checks that it carries out itself.
func becameHealthy(i workload.Instance, c server.ContainerInfo, now time.Time) bool {
	if h := i.Spec.Health; h != nil {
		return h.Kind == workload.HealthCommand && c.Health == "healthy"
	}
	return now.Sub(*i.StartedAt) > unnoticed
}

// checkInstances compares a server's instances with the containers on its host.
func (a *Groups) checkInstances(ctx context.Context, serverID prego.ServerID, r *GroupSweepResult) error {
	ctx, cancel := context.WithTimeout(ctx, driftPerHost)
	defer cancel()
	st, err := a.Store.ProvisionState(ctx, serverID)
	if err != nil || st.Status != server.Active {
		return err
	}
	r.Checked++
	// Read the rows first: an instance started later can't be missing from the list,
	// and one allocated later is not taken for a leftover, since leftovers are looked
	// up again.
	rows, err := a.Store.InstancesOn(ctx, serverID)
	if err != nil {
		return err
	}
	list, err := a.Engine.ListContainers(ctx, serverID, st.Host)
	if err != nil {
		return err
	}
	there := map[string]server.ContainerInfo{}
	for _, c := range list {
		if c.Instance != "" {
			there[c.Instance] = c
		}
	}
	for _, i := range rows {
		c, ok := there[string(i.InstanceID)]
		delete(there, string(i.InstanceID))
		var why string
		switch {
		case i.State != workload.InstanceRunning && (i.State != workload.InstanceBooting || i.StartedAt == nil):
			continue
		case !ok:
			why = "its container is gone"
		case c.State != "running":
			why = fmt.Sprintf("its container is %s, with status %d", c.State, c.ExitCode)
			if c.OOMKilled {
				why += " (out of memory)"
			}
		case i.State == workload.InstanceBooting && becameHealthy(i, c, st.Now):
			if _, err := a.Store.InstanceRunning(ctx, string(i.InstanceID)); err != nil {
				return err
			}
			if err := a.Runs.WakeGroup(ctx, i.GroupID, i.OrgID); err != nil {
				return err
			}
			continue
		case i.State == workload.InstanceRunning && c.Health == "unhealthy":
			why = "its health check fails"
		default:
			continue
		}
		if err := a.failed(ctx, string(i.InstanceID), why); err != nil {
			return err
		}
		r.Died++
		if err := a.Runs.WakeGroup(ctx, i.GroupID, i.OrgID); err != nil {
			return err
		}
	}
	for _, c := range list {
		if _, left := there[c.Instance]; !left {
			continue
		}
		h, err := a.Store.InstanceHost(ctx, c.Instance)
		if prego.CodeOf(err) != prego.CodeInstanceNotFound && err != nil {
			return err
		}
		if err == nil && h.State != workload.InstanceStopped && h.ServerID == serverID {
			continue
		}
		if err := a.Engine.RemoveInstance(ctx, serverID, st.Host, c.Instance); err != nil {
			return err
		}
		r.Removed++
	}
	return nil
}
