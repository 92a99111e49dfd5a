package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// MaintainServerInput names a server that is being emptied; its maintenance's row has the purpose.
type MaintainServerInput struct {
	ServerID prego.ServerID `json:"server_id"`
}

const (
	// maintenancePause is the first wait between two looks at a maintenance. Instances that stop and
	// requests of operators wake it; it doubles while nothing happens, since a place may be
	// missing for long.
	maintenancePause = 2 * time.Second
	// maintenancePatience bounds the longest wait.
	maintenancePatience = 30 * time.Second
	// dnsPatience bounds how long an edge's addresses may be in the DNS: the sets' time to live, and retries.
	dnsPatience = 24 * time.Hour
	// deletePatience bounds the retries of a request that is only refused while the server is in use.
	deletePatience = 10 * time.Minute
	// patchPatience bounds the retries of a host's installation or report; the next check continues.
	patchPatience        = 30 * time.Minute
	maxMaintenanceRounds = 200
)

// MaintainServer empties a server, and then reboots or deletes it if it was asked to. It lets
// instances leave, whose groups replace them (ReconcileGroup), and begins the moves of tenants
// (MoveTenant), until none is left. Each look reads the rows, so that a run can be lost at any
// step.
func MaintainServer(ctx workflow.Context, in MaintainServerInput) error {
	signals := workflow.GetSignalChannel(ctx, SignalDemand)
	var steps *activities.Maintenances
	pause := maintenancePause
	for round := 1; ; round++ {
		drainSignals(signals)
		var p activities.MaintenanceProgress
		if err := workflow.ExecuteActivity(write(ctx, "decide the next step"), steps.StepMaintenance, in.ServerID).Get(ctx, &p); err != nil {
			return err
		}
		if round == 1 && !p.Status.Ended() {
			if err := workflow.UpsertTypedSearchAttributes(ctx, AttrServerID.ValueSet(string(in.ServerID)), AttrRegion.ValueSet(string(p.Region)),
				AttrRole.ValueSet(string(p.Role)), AttrOutcome.ValueSet("draining")); err != nil {
				return fmt.Errorf("search attributes: %w", err)
			}
		}
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** %s, %s: %s", in.ServerID, p.Kind, p.Status, p.Message))
		if p.Status.Ended() && signals.Len() == 0 {
			setOutcome(ctx, string(p.Status))
			return nil
		}
		if p.Act != "" {
			if err := maintenanceAct(ctx, in.ServerID, p.Act); err != nil {
				workflow.GetLogger(ctx).Warn("a step of a maintenance failed; the next look repeats it", "act", p.Act, "error", err)
			}
		}
		if round >= maxMaintenanceRounds || workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			drainSignals(signals)
			return workflow.NewContinueAsNewError(ctx, MaintainServer, in)
		}
		if p.Changed {
			pause = maintenancePause
		}
		if !p.Status.Ended() {
			if err := awaitSignal(ctx, signals, pause, "look at the maintenance again"); err != nil {
				return err
			}
		}
		pause = min(2*pause, maintenancePatience)
	}
}

// maintenanceAct does what changes more than rows.
func maintenanceAct(ctx workflow.Context, id prego.ServerID, act server.MaintenanceAct) error {
	var steps *activities.Maintenances
	switch act {
	case server.ActMake:
		return workflow.ExecuteActivity(call(ctx, string("make a replacement of "+id), deletePatience), steps.MakeReplacement, id).Get(ctx, nil)
	case server.ActLeaveDNS:
		return workflow.ExecuteActivity(call(ctx, string("take "+id+" out of the DNS"), dnsPatience), steps.LeaveMaintenanceDNS, id).Get(ctx, nil)
	case server.ActReboot, server.ActReset:
		in := activities.RebootInput{ServerID: id, Hard: act == server.ActReset}
		return workflow.ExecuteActivity(call(ctx, string(act)+" "+string(id), deletePatience), steps.RebootServer, in).Get(ctx, nil)
	case server.ActResize:
		return workflow.ExecuteActivity(long(call(ctx, string("resize "+id), deletePatience)), steps.ResizeServer, id).Get(ctx, nil)
	case server.ActCheck:
		return workflow.ExecuteActivity(long(call(ctx, string("ask "+id+" which security updates are missing"), patchPatience)), steps.CheckPatches, id).Get(ctx, nil)
	case server.ActPatch:
		return workflow.ExecuteActivity(long(call(ctx, string("install security updates on "+id), patchPatience)), steps.PatchServer, id).Get(ctx, nil)
	case server.ActDelete:
		return workflow.ExecuteActivity(call(ctx, string("delete "+id), deletePatience), steps.DeleteReplaced, id).Get(ctx, nil)
	}
	return nil
}

// awaitSignal waits for a signal, up to a limit.
func awaitSignal(ctx workflow.Context, signals workflow.ReceiveChannel, most time.Duration, summary string) error {
	if signals.Len() > 0 {
		return ctx.Err()
	}
	timer, cancel := workflow.WithCancel(ctx)
	defer cancel()
	s := workflow.NewSelector(ctx)
	s.AddReceive(signals, func(c workflow.ReceiveChannel, _ bool) { c.ReceiveAsync(nil) })
	s.AddFuture(workflow.NewTimerWithOptions(timer, most, workflow.TimerOptions{Summary: summary}), func(workflow.Future) {})
	s.Select(ctx)
	return ctx.Err()
}
