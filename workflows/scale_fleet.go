package workflows

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// ScaleFleetInput names the fleet; its actions' rows hold the work.
type ScaleFleetInput struct {
	FleetID prego.FleetID `json:"fleet_id"`
}

// ScaleFleet carries out the oldest queued action of a fleet, and continues as the next one's run:
// one at a time (region-placement). The policies are evaluated and the plan is written before the
// first server is touched; from then on the rows hold the remaining work, so that a run can be lost
// at any step.
func ScaleFleet(ctx workflow.Context, in ScaleFleetInput) error {
	s := &scaleFleet{in: in, signals: workflow.GetSignalChannel(ctx, SignalDemand)}
	for {
		drainSignals(s.signals)
		if err := do(write(ctx, "take the next action and plan it"), &s.action, s.steps.BeginFleetAction, in.FleetID); err != nil {
			return err
		}
		if s.action.Seq != 0 {
			break
		}
		if s.signals.Len() == 0 {
			setOutcome(ctx, "done")
			return nil
		}
	}
	if err := s.run(ctx); err != nil {
		return err
	}
	drainSignals(s.signals)
	return workflow.NewContinueAsNewError(ctx, ScaleFleet, in)
}

type scaleFleet struct {
	in      ScaleFleetInput
	action  activities.FleetActionTaken
	signals workflow.ReceiveChannel

	steps *activities.FleetActions // nil: names the activities
}

func (s *scaleFleet) ref() activities.FleetRef {
	return activities.FleetRef{FleetID: s.in.FleetID, Seq: s.action.Seq}
}

func (s *scaleFleet) run(ctx workflow.Context) error {
	if err := searchable(ctx, AttrFleetID.ValueSet(string(s.in.FleetID)), AttrOutcome.ValueSet("scaling")); err != nil {
		return err
	}
	if s.action.Status.Ended() {
		s.details(ctx, string(s.action.Status)+": "+s.action.Message)
		return nil
	}
	for {
		var batch activities.FleetBatch
		if err := do(write(ctx, "take the steps that are next"), &batch, s.steps.NextFleetBatch, s.ref()); err != nil {
			return err
		}
		if len(batch.Creates)+len(batch.Deletes)+len(batch.Refused) == 0 {
			break
		}
		s.details(ctx, fmt.Sprintf("making %d servers, taking down %d", len(batch.Creates), len(batch.Deletes)))
		made, err := s.create(ctx, batch.Creates)
		if err != nil {
			return err
		}
		deleted, err := s.takeDown(ctx, batch.Deletes)
		if err != nil {
			return err
		}
		results := activities.FleetResults{Fleet: s.ref(), Results: slices.Concat(batch.Refused, made, deleted)}
		if err := do(write(ctx, "record how the steps went"), nil, s.steps.RecordFleetSteps, results); err != nil {
			return err
		}
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			return nil // the next run continues this action
		}
	}
	var end activities.FleetActionResult
	if err := do(write(ctx, "end the action"), &end, s.steps.FinishFleetAction, s.ref()); err != nil {
		return err
	}
	s.details(ctx, string(end.Status)+" "+end.Message)
	return nil
}

// create provisions servers in parallel.
func (s *scaleFleet) create(ctx workflow.Context, servers []activities.ServerRef) ([]server.FleetStepResult, error) {
	return forEachServer(ctx, len(servers), func(ctx workflow.Context, i int) (server.FleetStepResult, error) {
		r := server.FleetStepResult{ServerID: servers[i].ServerID, Op: server.StepOpCreate, State: server.FleetStepDone}
		err := provisionChild(ctx, servers[i]).Get(ctx, nil)
		if othersServer(err) {
			return s.awaitServer(ctx, servers[i].ServerID)
		}
		if err != nil {
			r.State, r.Message = server.FleetStepFailed, errorMessage(err)
		}
		return r, nil
	})
}

// takeDown drains servers in parallel. A server that still has tenants at the end of its grace
// period is kept, and accepts new ones again.
func (s *scaleFleet) takeDown(ctx workflow.Context, ids []string) ([]server.FleetStepResult, error) {
	return forEachServer(ctx, len(ids), func(ctx workflow.Context, i int) (server.FleetStepResult, error) {
		return s.takeDownOne(ctx, prego.ServerID(ids[i]))
	})
}

// forEachServer runs n steps in parallel, and returns the results of the finished ones.
func forEachServer(ctx workflow.Context, n int, do func(ctx workflow.Context, i int) (server.FleetStepResult, error)) ([]server.FleetStepResult, error) {
	out := make([]server.FleetStepResult, n)
	errs := make([]error, n)
	wg := workflow.NewWaitGroup(ctx)
	for i := range n {
		wg.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer wg.Done()
			out[i], errs[i] = do(ctx, i)
		})
	}
	wg.Wait(ctx)
	return slices.DeleteFunc(out, func(r server.FleetStepResult) bool { return r.State == "" }), errors.Join(errs...)
}

// leaveOff waits, unless this run's history is long enough: then the next run continues.
func leaveOff(ctx workflow.Context, wait time.Duration, summary string) (later bool, err error) {
	if workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
		return true, nil
	}
	return false, sleep(ctx, wait, summary)
}

// mostPatient is the longest interval between two checks of a server, for any kind of wait.
const mostPatient = time.Minute

func (s *scaleFleet) takeDownOne(ctx workflow.Context, id prego.ServerID) (server.FleetStepResult, error) {
	r := server.FleetStepResult{ServerID: id, Op: server.StepOpDelete, State: server.FleetStepDone}
	for pause := s.action.Poll; ; {
		var d activities.RemoveServerResult
		if err := do(write(ctx, string("drain "+id)), &d, s.steps.RemoveFleetServer, activities.RemoveServerInput{Fleet: s.ref(), ServerID: id}); err != nil {
			return r, err
		}
		wait := pause
		switch {
		case d.Gone:
			return r, nil
		case !d.Occupied:
			if err := decommissionChild(ctx, id).Get(ctx, nil); err == nil || !alreadyStarted(err) {
				return r, err
			}
			// Another run takes it down.
		case d.Cancelled:
			r.State, r.Message = server.FleetStepSkipped, "the action was cancelled"
		case d.Left <= 0:
			r.State, r.Message = server.FleetStepKept, cmp.Or(d.Why, "tenants live on it")
		default: // tenants take hours or days to leave
			wait, pause = min(pause, d.Left), min(2*pause, mostPatient)
		}
		if r.State != server.FleetStepDone {
			return r, do(write(ctx, string("keep "+id)), nil, s.steps.KeepFleetServer, id)
		}
		if later, err := leaveOff(ctx, wait, string("look again at "+id)); later || err != nil {
			return server.FleetStepResult{}, err
		}
	}
}

func (s *scaleFleet) details(ctx workflow.Context, text string) {
	workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** action %d (%s): %s", s.in.FleetID, s.action.Seq, s.action.Action, text))
}

// awaitServer watches a server that another run provisions: the previous run of this
// fleet started it, or the reconciler did.
func (s *scaleFleet) awaitServer(ctx workflow.Context, id prego.ServerID) (server.FleetStepResult, error) {
	r := server.FleetStepResult{ServerID: id, Op: server.StepOpCreate, State: server.FleetStepDone}
	for pause := s.action.Poll; ; pause = min(2*pause, mostPatient) {
		var look activities.FleetServerState
		if err := do(write(ctx, string("look at "+id)), &look, s.steps.ReadFleetServer, id); err != nil {
			return r, err
		}
		switch look.Status {
		case server.Active:
			return r, nil
		case server.Provisioning:
		case server.Failed, server.Decommissioning, server.Terminated:
			r.State, r.Message = server.FleetStepFailed, fmt.Sprintf("%s: %s", look.Reason, look.Message)
			return r, nil
		}
		if later, err := leaveOff(ctx, pause, "the server's run is another's"); later || err != nil {
			return server.FleetStepResult{}, err
		}
	}
}
