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
	// requests of operators wake it.
	maintenancePause = 2 * time.Second
	// dnsPatience bounds how long an edge's addresses may be in the DNS: the sets' time to live, and retries.
	dnsPatience = 24 * time.Hour
	// deletePatience bounds the retries of a request that is only refused while the server is in use.
	deletePatience = 10 * time.Minute
	// patchPatience bounds the retries of a host's installation or report; the next check continues.
	patchPatience = 30 * time.Minute
)

// MaintainServer empties a server, and then reboots or deletes it if it was asked to. It lets
// instances leave, whose groups replace them (ReconcileGroup), and begins the moves of tenants
// (MoveTenant), until none is left. Each look reads the rows, so that a run can be lost at any
// step.
func MaintainServer(ctx workflow.Context, in MaintainServerInput) error {
	var steps *activities.Maintenances
	return untilRest(ctx, MaintainServer, in, maintenancePause, "look at the maintenance again", func(round int) (look, error) {
		var p activities.MaintenanceProgress
		var s story
		s.get(write(ctx, "decide the next step"), &p, steps.StepMaintenance, in.ServerID)
		if round == 1 && !p.Status.Ended() {
			s.found(ctx, AttrServerID.ValueSet(string(in.ServerID)), AttrRegion.ValueSet(string(p.Region)), AttrRole.ValueSet(string(p.Role)), AttrOutcome.ValueSet("draining"))
		}
		s.tell(ctx, fmt.Sprintf("**%s** %s, %s: %s", in.ServerID, p.Kind, p.Status, p.Message))
		if p.Act != "" && s.err == nil {
			if err := maintenanceAct(ctx, in.ServerID, p.Act); err != nil {
				workflow.GetLogger(ctx).Warn("a step of a maintenance failed; the next look repeats it", "act", p.Act, "error", err)
			}
		}
		return look{status: string(p.Status), rests: p.Status.Ended(), changed: p.Changed}, s.err
	})
}

const (
	// restPatience bounds the longest wait of untilRest.
	restPatience  = 30 * time.Second
	maxRestRounds = 200
)

// look is what a run saw of its row.
type look struct {
	status  string
	rests   bool // nothing is left to do
	changed bool // something was begun: the next look is soon
}

// untilRest looks at a row, which a step decides on, until it rests. A signal asks for the next look; the pause between
// two looks doubles while nothing happens, since a place may be missing for long.
func untilRest(ctx workflow.Context, self, in any, first time.Duration, summary string, decide func(round int) (look, error)) error {
	signals := workflow.GetSignalChannel(ctx, SignalDemand)
	pause := first
	for round := 1; ; round++ {
		drainSignals(signals)
		l, err := decide(round)
		switch {
		case err != nil:
			return err
		case l.rests && signals.Len() == 0:
			setOutcome(ctx, l.status)
			return nil
		case round >= maxRestRounds || workflow.GetInfo(ctx).GetContinueAsNewSuggested():
			drainSignals(signals)
			return workflow.NewContinueAsNewError(ctx, self, in)
		case l.changed:
			pause = first
		}
		if err := awaitSignal(ctx, pause, summary, signals); err != nil {
			return err
		}
		pause = min(2*pause, restPatience)
	}
}

// maintenanceAct does what changes more than rows.
func maintenanceAct(ctx workflow.Context, id prego.ServerID, act server.MaintenanceAct) error {
	var steps *activities.Maintenances
	switch act {
	case server.ActMake:
		return do(call(ctx, string("make a replacement of "+id), deletePatience), nil, steps.MakeReplacement, id)
	case server.ActLeaveDNS:
		return do(call(ctx, string("take "+id+" out of the DNS"), dnsPatience), nil, steps.LeaveMaintenanceDNS, id)
	case server.ActReboot, server.ActReset:
		return do(call(ctx, string(act)+" "+string(id), deletePatience), nil, steps.RebootServer, activities.RebootInput{ServerID: id, Hard: act == server.ActReset})
	case server.ActResize:
		return do(long(call(ctx, string("resize "+id), deletePatience)), nil, steps.ResizeServer, id)
	case server.ActCheck:
		return do(long(call(ctx, string("ask "+id+" which security updates are missing"), patchPatience)), nil, steps.CheckPatches, id)
	case server.ActPatch:
		return do(long(call(ctx, string("install security updates on "+id), patchPatience)), nil, steps.PatchServer, id)
	case server.ActDelete:
		return do(call(ctx, string("delete "+id), deletePatience), nil, steps.DeleteReplaced, id)
	}
	return nil
}

// awaitSignal waits for a signal on one of some channels, up to a limit.
func awaitSignal(ctx workflow.Context, most time.Duration, summary string, signals ...workflow.ReceiveChannel) error {
	defer waits(ctx, most, summary)()
	timer, cancel := workflow.WithCancel(ctx)
	defer cancel()
	s := workflow.NewSelector(ctx)
	for _, c := range signals {
		if c.Len() > 0 {
			return ctx.Err()
		}
		s.AddReceive(c, func(c workflow.ReceiveChannel, _ bool) { c.ReceiveAsync(nil) })
	}
	s.AddFuture(workflow.NewTimerWithOptions(timer, most, workflow.TimerOptions{Summary: summary}), func(workflow.Future) {})
	s.Select(ctx)
	return ctx.Err()
}
