package workflows

import (
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// callTotal bounds one create step with all its retries, including outages of the
// database or the worker. It is shorter than the life of the token.
const callTotal = 14 * time.Minute

// create tries the candidates until one is created, and waits for capacity if none can
// be: stock comes back, and quotas are raised.
func (p *provisionServer) create(ctx workflow.Context) (server.BootTimeouts, error) {
	var fullGroups []string // placement groups that the provider refused
	began := workflow.Now(ctx)
	for {
		var refusal string
		for i := 0; i < len(p.plan.Candidates); {
			err := p.createFrom(ctx, i, &fullGroups)
			switch errType(err) {
			case "":
				if err == nil {
					return p.plan.Timeouts[i], nil
				}
				return server.BootTimeouts{}, p.createFailed(err)
			case activities.ErrTypeGroup: // the same candidate again, in another group
				if len(fullGroups) > 2 {
					refusal = errorMessage(err)
					i++
				}
			case activities.ErrTypeCandidate:
				refusal = errorMessage(err)
				i++
			case activities.ErrTypeQuota: // an account limit: no candidate would do better
				refusal = errorMessage(err)
				i = len(p.plan.Candidates)
			default:
				return server.BootTimeouts{}, p.createFailed(err)
			}
		}
		if workflow.Now(ctx).Sub(began) >= p.plan.CapacityWait {
			return server.BootTimeouts{}, &stepError{reason: prego.ReasonFailedCapacity, text: "no capacity within " + p.plan.CapacityWait.String() + ": " + refusal}
		}
		if err := p.awaitCapacity(ctx, refusal); err != nil {
			return server.BootTimeouts{}, err
		}
		fullGroups = nil
	}
}

// createFrom tries one candidate. Each call is a separate attempt with its own token.
func (p *provisionServer) createFrom(ctx workflow.Context, candidate int, fullGroups *[]string) error {
	c := p.plan.Candidates[candidate]
	p.attempt++
	p.details(ctx, fmt.Sprintf("creating %s (attempt %d)", c, p.attempt))
	err := workflow.ExecuteActivity(call(ctx, fmt.Sprintf("create %s (attempt %d)", c, p.attempt), callTotal), p.steps.MakeServer,
		activities.CreateServerInput{
			ServerID: p.in.ServerID, Generation: p.in.Generation, Attempt: p.attempt, Candidate: c,
			Machine: p.plan.Machines[candidate], FullGroups: *fullGroups,
		}).Get(ctx, &p.handle)
	var refused *temporal.ApplicationError
	if errors.As(err, &refused) && refused.Type() == activities.ErrTypeGroup {
		var group string
		if err := refused.Details(&group); err != nil {
			return err
		}
		*fullGroups = append(*fullGroups, group)
	}
	return err
}

func (p *provisionServer) createFailed(err error) error {
	switch {
	case isSuperseded(err) || temporal.IsCanceledError(err):
		return err
	case errType(err) == activities.ErrTypePermanent:
		return &stepError{reason: prego.ReasonFailedCreate, text: errorMessage(err)}
	default:
		return &stepError{reason: prego.ReasonFailedCreate, text: errorMessage(err), retry: true}
	}
}

func (p *provisionServer) awaitCapacity(ctx workflow.Context, refusal string) error {
	p.details(ctx, "awaiting capacity: "+refusal)
	setOutcome(ctx, string(prego.ReasonAwaitingCapacity))
	if err := workflow.ExecuteActivity(write(ctx, "note that the server awaits capacity"), p.steps.AwaitCapacity,
		activities.NoteInput{Server: serverRef(p.in, p.attempt), Reason: prego.ReasonAwaitingCapacity, Message: refusal}).Get(ctx, nil); err != nil {
		return err
	}
	return workflow.NewTimerWithOptions(ctx, p.plan.CapacityPoll, workflow.TimerOptions{Summary: "awaiting capacity"}).Get(ctx, nil)
}
