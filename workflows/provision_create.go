package workflows

import (
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

// create creates the server from one of the candidates, and waits for capacity if the provider has none of them: stock
// comes back, and quotas are raised.
func (p *provisionServer) create(ctx workflow.Context) (server.BootTimeouts, error) {
	w := CapacityWaited{Began: p.began, Since: workflow.Now(ctx), Pause: p.plan.CapacityPoll}
	if p.in.Waited != nil {
		w, p.in.Waited = *p.in.Waited, nil
	}
	for {
		made, err := p.tryCandidates(ctx)
		if err == nil {
			p.handle = made.Handle
			return p.plan.Timeouts[made.Candidate], nil
		}
		switch errType(err) {
		case activities.ErrTypeProvider: // the same attempt again
			if err := p.awaitProvider(ctx, err); err != nil {
				return server.BootTimeouts{}, err
			}
			continue
		case activities.ErrTypeCandidate, activities.ErrTypeQuota:
		default:
			return server.BootTimeouts{}, p.createFailed(err)
		}
		p.tries = 0
		left := p.plan.CapacityWait - workflow.Now(ctx).Sub(w.Since)
		if left <= 0 {
			return server.BootTimeouts{}, &stepError{
				reason: prego.ReasonFailedCapacity, text: "no capacity within " + p.plan.CapacityWait.String() + ": " + errorMessage(err),
			}
		}
		if err := p.awaitCapacity(ctx, errorMessage(err), min(w.Pause, left)); err != nil {
			return server.BootTimeouts{}, err
		}
		w.Pause = min(2*w.Pause, maxCapacityPolls*p.plan.CapacityPoll)
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			w.Retries = p.retries
			in := p.in
			in.Waited = &w
			return server.BootTimeouts{}, workflow.NewContinueAsNewError(ctx, ProvisionServer, in)
		}
	}
}

// tryCandidates is a round of all candidates, which is one attempt with one token, unless the provider failed the
// previous round: then it is the same attempt, which finds and adopts a server that landed after its answer was lost.
func (p *provisionServer) tryCandidates(ctx workflow.Context) (made activities.MadeServer, err error) {
	if p.tries == 0 {
		p.attempt++
		p.attemptAt = workflow.Now(ctx)
	}
	what := "a server"
	if n := len(p.plan.Candidates); n > 0 {
		what = p.plan.Candidates[0].String()
		if n > 1 {
			what += fmt.Sprintf(" or another of %d candidates", n)
		}
	}
	summary := fmt.Sprintf("create %s (attempt %d)", what, p.attempt)
	p.details(ctx, summary)
	within := callTotal - workflow.Now(ctx).Sub(p.attemptAt) // the token keeps aging
	err = do(call(ctx, summary, within), &made, p.steps.MakeServer, activities.CreateServerInput{
		ServerID: p.in.ServerID, Generation: p.in.Generation, Attempt: p.attempt,
		Candidates: p.plan.Candidates, Machines: p.plan.Machines,
	})
	return made, err
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

// awaitProvider waits before the provider is called again for an attempt. It gives up after a try for each pause and
// one more (direct-provisioning §3), or when the attempt's token might expire during the boot.
func (p *provisionServer) awaitProvider(ctx workflow.Context, failure error) error {
	p.tries++
	if p.tries > len(p.plan.ProviderPauses) || workflow.Now(ctx).Sub(p.attemptAt) > p.plan.TokenTTL/3 {
		p.tries = 0
		return &stepError{reason: prego.ReasonFailedCreate, text: errorMessage(failure)}
	}
	return p.pauseForProvider(ctx, p.plan.ProviderPauses[p.tries-1], errorMessage(failure))
}

// pauseForProvider waits, within the time that a server may wait for capacity.
func (p *provisionServer) pauseForProvider(ctx workflow.Context, pause time.Duration, text string) error {
	if workflow.Now(ctx).Add(pause).Sub(p.began) > p.plan.CapacityWait {
		return &stepError{reason: prego.ReasonFailedCreate, text: "the provider failed for " + p.plan.CapacityWait.String() + ": " + text}
	}
	text = fmt.Sprintf("%s; tried again in %s", text, pause)
	p.details(ctx, "awaiting the provider: "+text)
	setOutcome(ctx, string(prego.ReasonAwaitingProvider))
	var s story
	s.step(write(ctx, "note that the server awaits the provider"), p.steps.AwaitProvider,
		activities.NoteInput{Server: serverRef(p.in, p.attempt), Reason: prego.ReasonAwaitingProvider, Message: text})
	s.pause(ctx, pause, "awaiting the provider")
	return s.err
}

// maxCapacityPolls is the longest pause between two rounds of candidates, in terms of the first one: 10 minutes with
// the default of 30 s.
const maxCapacityPolls = 20

// awaitCapacity waits until the next round, or until a signal: what the provider sells has changed.
func (p *provisionServer) awaitCapacity(ctx workflow.Context, refusal string, pause time.Duration) error {
	p.details(ctx, "awaiting capacity: "+refusal)
	setOutcome(ctx, string(prego.ReasonAwaitingCapacity))
	var s story
	s.step(write(ctx, "note that the server awaits capacity"), p.steps.AwaitCapacity,
		activities.NoteInput{Server: serverRef(p.in, p.attempt), Reason: prego.ReasonAwaitingCapacity, Message: refusal})
	if s.err != nil {
		return s.err
	}
	for p.signals.ReceiveAsync(nil) { // of earlier attempts
	}
	return awaitSignal(ctx, pause, "awaiting capacity", p.signals)
}
