package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/workload"
)

// ReconcileGroupInput names a process group.
type ReconcileGroupInput struct {
	GroupID prego.GroupID `json:"group_id"`
}

const (
	// instanceParallel is how many containers of a group are started or stopped concurrently.
	instanceParallel = 16
	// instanceStep bounds starting or stopping one container, including retries.
	instanceStep = 15 * time.Minute
	// servedElsewhere is the first wait while another worker serves the region; it
	// doubles.
	servedElsewhere = 500 * time.Millisecond
	maxGroupRounds  = 100
)

// ReconcileGroup makes a process group match its row, and ends when it does (quotas-and-fairness,
// "Scheduler reconciliation"). One run serves all changes: callers signal it. It reads everything
// it decides on from the rows in each round, so losing a run only costs time.
func ReconcileGroup(ctx workflow.Context, in ReconcileGroupInput) error {
	signals := workflow.GetSignalChannel(ctx, SignalDemand)
	var steps *activities.Groups
	work := newInstanceWork(ctx, steps)
	elsewhere := servedElsewhere
	for round := 1; ; round++ {
		drainSignals(signals)
		var plan workload.GroupPlan
		err := do(write(ctx, "decide the next steps"), &plan, steps.PlanGroup, in.GroupID)
		if isSuperseded(err) {
			setOutcome(ctx, "gone")
			return nil
		}
		if err != nil {
			return err
		}
		if round == 1 {
			if err := searchable(ctx, AttrOrgID.ValueSet(string(plan.OrgID)), AttrRegion.ValueSet(string(plan.Region)), AttrOutcome.ValueSet("reconciling")); err != nil {
				return err
			}
		}
		workflow.SetCurrentDetails(ctx, string("**"+in.GroupID+"**: ")+plan.Details)
		work.stop(plan.Stop)
		work.boot(plan.Boot)
		wait := plan.Wait
		if plan.Serve {
			var served activities.Served
			err := do(call(ctx, "give the instances that wait in "+string(plan.Region)+" their places", time.Minute), &served, steps.ServeInstances, plan.Region)
			switch {
			case err != nil:
				workflow.GetLogger(ctx).Warn("waiting instances not served; the next round does it", "error", err)
			case served.Allocated[string(in.GroupID)] > 0:
				wait = 0
			case served.Busy: // the serving worker wakes the groups it places: check less and less often
				wait, elsewhere = min(elsewhere, max(plan.Wait, servedElsewhere)), min(2*elsewhere, max(time.Minute, plan.Wait))
			default:
				elsewhere = servedElsewhere
			}
		}
		if plan.Settled && work.idle() && signals.Len() == 0 {
			setOutcome(ctx, "converged")
			return nil
		}
		if round >= maxGroupRounds || workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			if err := work.await(); err != nil {
				return err
			}
			drainSignals(signals)
			return workflow.NewContinueAsNewError(ctx, ReconcileGroup, in)
		}
		if err := work.pause(signals, wait); err != nil {
			return err
		}
	}
}

// instanceWork starts and stops containers in parallel to the rounds: a container that is slow to
// become healthy delays neither the others nor changes of the group.
type instanceWork struct {
	ctx   workflow.Context
	steps *activities.Groups
	busy  map[string]workflow.CancelFunc // by instance; looked up, never iterated
	n     int
	done  workflow.Channel
	free  workflow.Semaphore
}

func newInstanceWork(ctx workflow.Context, steps *activities.Groups) *instanceWork {
	return &instanceWork{
		ctx: ctx, steps: steps, busy: map[string]workflow.CancelFunc{}, done: workflow.NewBufferedChannel(ctx, 1024), free: workflow.NewSemaphore(ctx, instanceParallel),
	}
}

func (w *instanceWork) idle() bool { return w.n == 0 }

// boot starts instances.
func (w *instanceWork) boot(ids []string) {
	for _, id := range ids {
		w.start(id, func(ctx workflow.Context) {
			err := do(long(call(ctx, "start "+id, instanceStep)), nil, w.steps.BootInstance, id)
			if err == nil || temporal.IsCanceledError(err) || isSuperseded(err) {
				return
			}
			// Its server does not answer, or the outcome is unknown.
			if err := do(write(ctx, "give up "+id), nil, w.steps.FailInstance, activities.FailInstanceInput{InstanceID: prego.InstanceID(id), Message: errorMessage(err)}); err != nil {
				workflow.GetLogger(ctx).Warn("instance not given up; the next round tries it again", "instance_id", id, "error", err)
			}
		})
	}
}

// stop stops instances. An instance that is still starting is cancelled, and stopped in the next
// round.
func (w *instanceWork) stop(ids []string) {
	for _, id := range ids {
		if cancel := w.busy[id]; cancel != nil {
			cancel()
			continue
		}
		w.start(id, func(ctx workflow.Context) {
			if err := do(long(call(ctx, "stop "+id, instanceStep)), nil, w.steps.StopInstance, id); err != nil {
				workflow.GetLogger(ctx).Warn("instance not stopped; the next round tries it again", "instance_id", id, "error", err)
			}
		})
		w.busy[id] = func() {} // a running stop is not cancelled
	}
}

func (w *instanceWork) start(id string, f func(ctx workflow.Context)) {
	if w.busy[id] != nil {
		return
	}
	ctx, cancel := workflow.WithCancel(w.ctx)
	w.busy[id] = cancel
	w.n++
	workflow.Go(ctx, func(ctx workflow.Context) {
		if err := w.free.Acquire(ctx, 1); err == nil {
			f(ctx)
			w.free.Release(1)
		}
		delete(w.busy, id)
		w.n--
		w.done.SendAsync(id)
	})
}

// pause waits for a change, up to a limit.
func (w *instanceWork) pause(signals workflow.ReceiveChannel, most time.Duration) error {
	if most > 0 {
		_ = awaitSignal(w.ctx, most, "read the rows again", signals, w.done) // an error is the context's
	}
	for w.done.ReceiveAsync(nil) {
		continue
	}
	return w.ctx.Err()
}

// await waits for all running steps.
func (w *instanceWork) await() error {
	return workflow.Await(w.ctx, w.idle)
}

// SweepGroups looks for groups and instances without a run, on a schedule.
func SweepGroups(ctx workflow.Context) (activities.GroupSweepResult, error) {
	var steps *activities.Groups
	return periodically[activities.GroupSweepResult](ctx, "look for groups and instances without a run", 5*time.Minute, steps.SweepGroups)
}
