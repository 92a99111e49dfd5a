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

// ProvisionServerInput names the server to provision; everything else is in its row.
type ProvisionServerInput struct {
	ServerID   prego.ServerID `json:"server_id"`
	Generation int            `json:"generation"` // 1, one more per retry
	// Waited is where a run continues that waits for capacity in another run's place.
	Waited *CapacityWaited `json:"waited,omitempty"`
}

// CapacityWaited is how long a server has waited for capacity.
type CapacityWaited struct {
	Began   time.Time     `json:"began"`             // of the run
	Since   time.Time     `json:"since"`             // it waits
	Pause   time.Duration `json:"pause"`             // until the next round
	Retries int           `json:"retries,omitempty"` // boots that failed before
}

// ProvisionServerResult is the result of a provisioning.
type ProvisionServerResult struct {
	ServerID prego.ServerID `json:"server_id"`
	Attempt  int            `json:"attempt"` // the successful one
}

// ProvisionServer provisions a server (direct-provisioning §2): create, boot,
// handshake, first heartbeat, containers, active. A server that fails to boot is
// destroyed and created again, up to MaxRetries times. When the run ends, no billed
// server that is not active is left, except where the failure table keeps it for
// debugging.
func ProvisionServer(ctx workflow.Context, in ProvisionServerInput) (ProvisionServerResult, error) {
	p := &provisionServer{in: in, signals: workflow.GetSignalChannel(ctx, SignalAgent)}
	err := p.run(ctx)
	if !workflow.IsContinueAsNewError(err) {
		err = p.end(ctx, err)
	}
	if next := nextGeneration(ctx, in.Generation); next > in.Generation {
		err = workflow.NewContinueAsNewError(ctx, ProvisionServer, ProvisionServerInput{ServerID: in.ServerID, Generation: next})
	}
	return ProvisionServerResult{ServerID: in.ServerID, Attempt: p.attempt}, err
}

type provisionServer struct {
	in      ProvisionServerInput
	plan    activities.ProvisionPlan
	began   time.Time
	attempt int // of the current create
	// tries are how often the provider failed the current attempt, which began at attemptAt.
	tries     int
	attemptAt time.Time
	retries   int // boots that failed
	handle    server.Handle
	seen      activities.Progress // by the last look
	signals   workflow.ReceiveChannel

	steps *activities.Servers // nil: names the activities
}

// stepError ends an attempt, or the run, with a reason.
type stepError struct {
	reason prego.Reason
	text   string
	retry  bool // destroy it and start over, while there are retries
	keep   bool // keep the server for debugging
}

func (e *stepError) Error() string { return string(e.reason) + ": " + e.text }

func (p *provisionServer) run(ctx workflow.Context) error {
	if err := workflow.ExecuteLocalActivity(local(ctx, "read the row"), p.steps.PlanProvisioning, serverRef(p.in, 0)).Get(ctx, &p.plan); err != nil {
		if isSuperseded(err) || temporal.IsCanceledError(err) {
			return err
		}
		return &stepError{reason: prego.ReasonFailedCreate, text: errorMessage(err)}
	}
	p.attempt, p.began = p.plan.BaseAttempt, workflow.Now(ctx)
	if w := p.in.Waited; w != nil {
		p.began, p.retries = w.Began, w.Retries
	}
	if err := p.searchable(ctx); err != nil {
		return err
	}
	switch {
	case p.plan.Resume:
		return p.finish(ctx)
	case p.plan.Import:
		return p.takeOver(ctx)
	}
	var before string // why the previous attempt failed
	for ; ; p.retries++ {
		err := p.boot(ctx)
		if err == nil {
			return p.finish(ctx)
		}
		failed, ok := err.(*stepError) //nolint:errorlint // boot returns it bare
		if !ok || !failed.retry || p.retries >= p.plan.MaxRetries {
			if ok && before != "" && before != failed.Error() {
				failed.text += "; the attempt before ended with " + before
			}
			return err
		}
		before = failed.Error()
		p.details(ctx, fmt.Sprintf("attempt %d ended (%s); destroying it and beginning again, retry %d of %d", p.attempt, failed.text, p.retries+1, p.plan.MaxRetries))
		if err := p.note(ctx, failed); err != nil {
			return err
		}
		if err := p.destroy(ctx, failed.reason, failed.text); err != nil {
			return err
		}
	}
}

// searchable sets the search attributes of a run whose starter did not know them: a lost run, or a
// run for a server that another run wanted.
func (p *provisionServer) searchable(ctx workflow.Context) error {
	if _, known := workflow.GetTypedSearchAttributes(ctx).GetKeyword(AttrServerID); known {
		return nil
	}
	return searchable(ctx, serverAttributes(p.in.ServerID, p.plan.Region, p.plan.Role)...)
}

// serverAttributes are the search attributes of a server's run.
func serverAttributes(serverID prego.ServerID, region prego.Region, role prego.Role) []temporal.SearchAttributeUpdate {
	return []temporal.SearchAttributeUpdate{
		AttrServerID.ValueSet(string(serverID)), AttrRegion.ValueSet(string(region)), AttrRole.ValueSet(string(role)),
	}
}

// boot creates one server and waits for its agent.
func (p *provisionServer) boot(ctx workflow.Context) error {
	timeouts, err := p.create(ctx)
	if err != nil {
		return err
	}
	return p.awaitAgent(ctx, timeouts)
}

// finish is what follows the first heartbeat.
func (p *provisionServer) finish(ctx workflow.Context) error {
	in := activities.FinishInput{Server: serverRef(p.in, p.attempt), Within: p.plan.ContainerTimeout}
	summary := "make the server active"
	if in.Containers = !p.plan.Import && p.plan.Role.StartsContainers(); in.Containers {
		summary = "start the containers of role " + string(p.plan.Role) + ", make the server active"
		p.details(ctx, "starting containers")
	}
	err := do(long(finishing(ctx, summary, in.Within)), nil, p.steps.FinishServer, in)
	if errType(err) == activities.ErrTypeContainer {
		return &stepError{reason: prego.ReasonFailedContainer, text: errorMessage(err), keep: true}
	}
	return err
}

// takeOver enrolls an existing server. Its agent is installed by hand while its token
// is valid; if that does not happen, nothing is destroyed.
func (p *provisionServer) takeOver(ctx workflow.Context) error {
	keep := func(err error) error {
		if s, ok := err.(*stepError); ok { //nolint:errorlint // returned bare by the waits
			s.retry, s.keep = false, true
		}
		return err
	}
	p.details(ctx, "taking over an existing server")
	if err := do(call(ctx, "find and label the existing server", 15*time.Minute), nil, p.steps.AdoptImported, serverRef(p.in, p.attempt)); err != nil {
		if isSuperseded(err) || temporal.IsCanceledError(err) {
			return err
		}
		return &stepError{reason: prego.ReasonFailedCreate, text: errorMessage(err), keep: true}
	}
	life := prego.Duration(p.plan.TokenTTL)
	if err := p.await(ctx, life.D(), 0, handshakeWait()); err != nil {
		return keep(err)
	}
	if !p.seen.FirstHeartbeat {
		if err := p.await(ctx, 90*time.Second, 0, heartbeatWait()); err != nil {
			return keep(err)
		}
	}
	return p.finish(ctx)
}

func (p *provisionServer) note(ctx workflow.Context, e *stepError) error {
	return do(write(ctx, "note why the attempt ended"), nil, p.steps.NoteAttemptFailed, activities.NoteInput{Server: serverRef(p.in, p.attempt), Reason: e.reason, Message: e.text})
}

// destroy deletes everything that this run created. After an hour it gives up, and
// leaves the rest visibly to the reconciler.
func (p *provisionServer) destroy(ctx workflow.Context, reason prego.Reason, text string) error {
	err := do(call(ctx, fmt.Sprintf("destroy attempt %d and revoke its identity", p.attempt), time.Hour), nil,
		p.steps.DestroyServer, activities.DestroyInput{ServerID: p.in.ServerID, Attempt: p.attempt, Reason: reason, Message: text})
	if err == nil || temporal.IsCanceledError(err) {
		return err
	}
	return do(write(ctx, "clean-up incomplete: left to the reconciler"), nil, p.steps.NoteCleanupIncomplete,
		activities.NoteInput{Server: serverRef(p.in, p.attempt), Reason: reason, Message: errorMessage(err)})
}

// end writes the terminal state. It runs to completion even if the run was cancelled:
// an abandoned server is still billed.
func (p *provisionServer) end(ctx workflow.Context, err error) error {
	if err == nil {
		p.details(ctx, "active")
		succeeded(ctx)
		return nil
	}
	if isSuperseded(err) {
		setOutcome(ctx, "superseded")
		return err
	}
	cleanup, _ := workflow.NewDisconnectedContext(ctx)
	failed, ok := err.(*stepError) //nolint:errorlint // returned bare by the steps
	if !ok {
		failed = &stepError{reason: prego.ReasonFailedInternal, text: errorMessage(err)}
		if temporal.IsCanceledError(err) {
			failed.text = "provisioning was cancelled"
		}
	}
	p.details(cleanup, fmt.Sprintf("ending as %s: %s", failed.reason, failed.text))
	var s story
	if !failed.keep && !p.plan.Import && p.attempt > 0 {
		s.err = p.destroy(cleanup, failed.reason, failed.text)
	}
	s.step(write(cleanup, "mark the server failed: "+string(failed.reason)), p.steps.FailServer,
		activities.FailInput{Server: serverRef(p.in, p.attempt), Role: p.plan.Role, Reason: failed.reason, Message: failed.text})
	return s.failed(cleanup, err, failed)
}

func (p *provisionServer) details(ctx workflow.Context, text string) {
	workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** (%s in %s): %s", p.in.ServerID, p.plan.Role, p.plan.Region, text))
}
