package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
)

// DecommissionServerInput names a draining server.
type DecommissionServerInput struct {
	ServerID prego.ServerID `json:"server_id"`
}

// unresolvedPoll is how long to wait before looking again for a create that may still
// complete.
const unresolvedPoll = 15 * time.Second

// keptPoll is the longest time until a lost server is looked at again whose tenants are being restored.
const keptPoll = 30 * time.Minute

// DecommissionServer takes down a server at any moment of its life, even during
// provisioning: it stops that run, revokes the identity, deletes everything that the
// server owns at the provider, and keeps the row as terminated. It never gives up while
// anything is still billed.
func DecommissionServer(ctx workflow.Context, in DecommissionServerInput) error {
	var steps *activities.Servers
	var plan activities.DecommissionPlan
	var s story
	s.row(ctx, &plan, steps.PlanDecommission, in.ServerID)
	s.found(ctx, AttrServerID.ValueSet(string(in.ServerID)), AttrRegion.ValueSet(string(plan.Region)), AttrRole.ValueSet(string(plan.Role)), AttrOutcome.ValueSet("draining"))
	if s.err == nil && plan.Done {
		setOutcome(ctx, "terminated")
		return nil
	}
	tell := func(text string) {
		s.tell(ctx, fmt.Sprintf("**%s** (%s in %s): %s", in.ServerID, plan.Role, plan.Region, text))
	}
	tell("ending its provisioning, if that is under way")
	s.step(long(call(ctx, "end a provisioning that is under way", 24*time.Hour)), steps.StopProvisioning, in.ServerID)
	// The row is read again: the stopped run may have made a last attempt.
	s.row(ctx, &plan, steps.PlanDecommission, in.ServerID)
	for kept, gone := time.Second, false; !gone && s.err == nil; {
		tell("revoking its identity and deleting what it owns")
		var result activities.DestroyResult
		s.get(call(ctx, "delete all that the server owns", 7*24*time.Hour), &result, steps.DestroyServer,
			activities.DestroyInput{ServerID: in.ServerID, Attempt: plan.Attempt, Reason: prego.ReasonDecommission})
		switch {
		case result.Unrestored > 0:
			tell(fmt.Sprintf("switched off, and kept until its %d lost tenants are restored", result.Unrestored))
			s.pause(ctx, kept, "its disk has the newest data of lost tenants")
			kept = min(2*kept, keptPoll)
		case result.Unresolved > 0:
			tell("waiting for a create of unknown outcome to land or to lapse")
			s.pause(ctx, unresolvedPoll, "a create may still land")
		default:
			gone = true
		}
	}
	s.step(write(ctx, "mark the server terminated"), steps.TerminateServer, in.ServerID)
	tell("terminated")
	s.outcome(ctx, "terminated")
	return s.err
}
