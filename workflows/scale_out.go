package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// SignalDemand is the channel that notifies coalesced runs of more work. They read it from the
// rows.
const SignalDemand = "demand"

// gather is how long a coalesced run collects signals before it plans, so that tenants
// that arrive together are planned together.
const gather = 500 * time.Millisecond

// maxRounds is the number of rounds after which a coalesced run continues as new.
const maxRounds = 50

// provisionChild provisions a server as a child of the run.
func provisionChild(ctx workflow.Context, srv activities.ServerRef) workflow.ChildWorkflowFuture {
	ctx = child(ctx, server.ProvisionWorkflowID(srv.ServerID), string("Provision "+srv.ServerID))
	return workflow.ExecuteChildWorkflow(ctx, ProvisionServer, ProvisionServerInput{ServerID: srv.ServerID, Generation: srv.Generation})
}

// decommissionChild decommissions a draining server as a child of the run.
func decommissionChild(ctx workflow.Context, serverID prego.ServerID) workflow.ChildWorkflowFuture {
	ctx = child(ctx, server.DecommissionWorkflowID(serverID), string("Decommission "+serverID))
	return workflow.ExecuteChildWorkflow(ctx, DecommissionServer, DecommissionServerInput{ServerID: serverID})
}

func alreadyStarted(err error) bool { return temporal.IsWorkflowExecutionAlreadyStartedError(err) }

// othersServer reports whether another run provisions a child's server, or has done so: the row is what counts.
func othersServer(err error) bool { return alreadyStarted(err) || isSuperseded(err) }

// ScaleOutInput names a role in a region.
type ScaleOutInput struct {
	Region prego.Region `json:"region"`
	Role   prego.Role   `json:"role"`
}

// ScaleOut adds servers of a role to a region until no tenant there waits for one
// (placement-policy §3). One run serves all of them: further demand signals it.
func ScaleOut(ctx workflow.Context, in ScaleOutInput) error {
	signals := workflow.GetSignalChannel(ctx, SignalDemand)
	if err := searchable(ctx, AttrRegion.ValueSet(string(in.Region)), AttrRole.ValueSet(string(in.Role)), AttrOutcome.ValueSet("scaling")); err != nil {
		return err
	}
	var steps *activities.Tenants
	info := workflow.GetInfo(ctx)
	pause := time.Minute
	for round := 1; ; round++ {
		trigger := listen(ctx, signals)
		var plan activities.ScaleOutPlan
		if err := do(write(ctx, "size the scale-out and ask for servers"), &plan, steps.PlanScaleOut, activities.ScaleOutInput{
			Region: in.Region, Role: in.Role, Trigger: trigger, WorkflowID: info.WorkflowExecution.ID, Key: roundKey(info, round),
		}); err != nil {
			return err
		}
		if len(plan.Servers) == 0 {
			serveQueue(ctx, steps, in.Region)
			if signals.Len() == 0 {
				setOutcome(ctx, "done")
				return nil
			}
			continue
		}
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s in %s**: %d tenants wait, making %d servers (round %d)", in.Role, in.Region, plan.Waiting, len(plan.Servers), round))
		failed, err := provisionAll(ctx, plan.Servers, "record how the scale-out went", plan.EventID)
		if err != nil {
			return err
		}
		serveQueue(ctx, steps, in.Region)
		if len(failed) == len(plan.Servers) {
			// A cause that made every server fail will not pass immediately.
			if err := sleep(ctx, pause, "every server of the round failed"); err != nil {
				return err
			}
			pause = min(2*pause, 15*time.Minute)
		} else {
			pause = time.Minute
		}
		if round >= maxRounds || workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			drainSignals(signals)
			return workflow.NewContinueAsNewError(ctx, ScaleOut, in)
		}
	}
}

// listen collects demand for a moment and returns its trigger: waiting tenants outrank
// a threshold.
func listen(ctx workflow.Context, signals workflow.ReceiveChannel) string {
	_ = workflow.NewTimerWithOptions(ctx, gather, workflow.TimerOptions{Summary: "gather demand"}).Get(ctx, nil)
	trigger := "scale_out_required"
	only := true
	for {
		var t string
		if !signals.ReceiveAsync(&t) {
			break
		}
		if t == "threshold" && only {
			trigger = t
		} else {
			trigger, only = "scale_out_required", false
		}
	}
	return trigger
}

func drainSignals(signals workflow.ReceiveChannel) {
	for signals.ReceiveAsync(nil) {
	}
}

// roundKey names the servers of one round of a run.
func roundKey(info *workflow.Info, round int) string {
	run, _, _ := strings.Cut(info.WorkflowExecution.RunID, "-")
	return fmt.Sprintf("%s%d", run, round)
}

// provisionAll provisions servers in parallel, records the outcome and returns the failed ones.
func provisionAll(ctx workflow.Context, servers []activities.ServerRef, summary string, eventID int64) (failed []string, err error) {
	var steps *activities.Tenants
	text := fmt.Sprintf("all %d came to life", len(servers))
	futures := make([]workflow.ChildWorkflowFuture, len(servers))
	for i, srv := range servers {
		futures[i] = provisionChild(ctx, srv)
	}
	for i, f := range futures {
		if err := f.Get(ctx, nil); err != nil && !othersServer(err) {
			failed = append(failed, string(servers[i].ServerID))
			text = fmt.Sprintf("%s: %s", servers[i].ServerID, errorMessage(err))
		}
	}
	if len(failed) > 0 {
		text = fmt.Sprintf("%d of %d failed; the last: %s", len(failed), len(servers), text)
	}
	return failed, do(write(ctx, summary), nil, steps.FinishScaleOut, activities.FinishScaleOutInput{EventID: eventID, Message: text, Failed: failed})
}

// WarmPoolInput names a warm server pool.
type WarmPoolInput struct {
	Region prego.Region `json:"region"`
	Plan   prego.Plan   `json:"plan"`
}

// FillWarmPool keeps the warm servers of a region and plan tier at their target.
func FillWarmPool(ctx workflow.Context, in WarmPoolInput) error {
	signals := workflow.GetSignalChannel(ctx, SignalDemand)
	if err := searchable(ctx, AttrRegion.ValueSet(string(in.Region)), AttrRole.ValueSet(string(prego.RoleNode)), AttrOutcome.ValueSet("filling")); err != nil {
		return err
	}
	var steps *activities.Tenants
	info := workflow.GetInfo(ctx)
	for round := 1; ; round++ {
		listen(ctx, signals)
		var plan activities.WarmPoolPlan
		if err := do(write(ctx, "count claimable servers and request missing ones"), &plan, steps.PlanWarmPool, activities.WarmPoolInput{
			Region: in.Region, Plan: in.Plan, WorkflowID: info.WorkflowExecution.ID, Key: roundKey(info, round),
		}); err != nil {
			return err
		}
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**warm pool %s in %s**: making %d servers, filling %d", in.Plan, in.Region, len(plan.Servers), len(plan.Bare)))
		var failed []string
		var s story
		if len(plan.Servers) > 0 {
			failed, s.err = provisionAll(ctx, plan.Servers, "record how it went", plan.EventID)
		}
		fill := plan.Bare
		for _, s := range plan.Servers {
			fill = append(fill, s.ServerID)
		}
		if len(fill) > 0 {
			s.step(write(ctx, "have sites made on them"), steps.FillWarmServers, fill)
		}
		if s.err != nil {
			return s.err
		}
		if signals.Len() == 0 && (len(plan.Servers) == 0 || len(failed) == len(plan.Servers)) {
			setOutcome(ctx, "done")
			return nil // the sweep asks again
		}
		if round >= maxRounds || workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			drainSignals(signals)
			return workflow.NewContinueAsNewError(ctx, FillWarmPool, in)
		}
	}
}
