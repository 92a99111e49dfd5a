package workflows

import (
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// SignalWake is the channel that signals a waiting tenant's run to read its row. A signal is a
// hint.
const SignalWake = "wake"

// ProvisionTenantInput names the tenant to provision; everything else is in its row.
type ProvisionTenantInput struct {
	TenantID   prego.TenantID `json:"tenant_id"`
	Generation int            `json:"generation"` // 1, one more per retry
}

// ProvisionTenant gives a tenant a place, a site and its apps (placement-policy §2). If there is no place it waits for
// a dedicated server, or ends: what gives the tenant its place later, in its turn after a scale-out or with a pool
// site, starts the next run. When the site is built it waits until an edge has opened it. A run that fails or is
// cancelled leaves nothing behind: its steps are undone in reverse order.
func ProvisionTenant(ctx workflow.Context, in ProvisionTenantInput) error {
	p := &provisionTenant{in: in, wake: workflow.GetSignalChannel(ctx, SignalWake)}
	err := p.run(ctx)
	if errors.Is(err, errQueued) {
		err = nil
	} else if !workflow.IsContinueAsNewError(err) {
		err = p.end(ctx, err)
	}
	if next := nextGeneration(ctx, in.Generation); next > in.Generation {
		return workflow.NewContinueAsNewError(ctx, ProvisionTenant, ProvisionTenantInput{TenantID: in.TenantID, Generation: next})
	}
	return err
}

type provisionTenant struct {
	in   ProvisionTenantInput
	plan activities.TenantPlan
	wake workflow.ReceiveChannel

	placed bool // the tenant has, or may have, a reservation
	begun  bool // its site may have been touched
	waits  bool // its outcome is that it waits
	try    int  // for a site
	steps  *activities.Tenants
}

func (p *provisionTenant) ref() tenant.Ref {
	return tenant.Ref{TenantID: p.in.TenantID, Generation: p.in.Generation}
}

// maxSites is how many sites are tried: one from a pool may turn out to be broken.
const maxSites = 2

func (p *provisionTenant) run(ctx workflow.Context) error {
	begun, err := p.begin(ctx)
	if err != nil {
		return err
	}
	for p.try = 1; ; p.try++ {
		if err := p.place(ctx, begun); err != nil {
			return err
		}
		begun = nil
		step, err := p.build(ctx)
		if err == nil || isSuperseded(err) || temporal.IsCanceledError(err) || workflow.IsContinueAsNewError(err) {
			return err
		}
		if step == activities.StepApps {
			return &stepError{reason: prego.ReasonFailedApps, text: errorMessage(err)}
		}
		if step == activities.StepRestore {
			return &stepError{reason: prego.ReasonFailedRestore, text: errorMessage(err)}
		}
		if step != activities.StepSite || errType(err) != activities.ErrTypeCommand || p.try == maxSites {
			return &stepError{reason: prego.ReasonFailedSite, text: errorMessage(err)}
		}
		p.details(ctx, "the site could not be made ("+errorMessage(err)+"): dropping it and taking another place")
		if err := p.release(ctx, &stepError{reason: prego.ReasonFailedSite, text: errorMessage(err)}); err != nil {
			return err
		}
	}
}

// begin reads the row and makes the first attempt at a place, in one step.
func (p *provisionTenant) begin(ctx workflow.Context) (*activities.PlaceResult, error) {
	var begun activities.TenantBegun
	// From here on there may be a reservation whose answer was lost.
	p.placed = true
	if err := workflow.ExecuteLocalActivity(unstoppable(ctx, "read the row, decide and reserve"), p.steps.BeginTenant, p.ref()).Get(ctx, &begun); err != nil {
		return nil, err
	}
	p.plan = begun.Plan
	p.placed, p.begun = p.plan.Resumed || !p.plan.Cancelled, p.plan.Resumed
	if _, known := workflow.GetTypedSearchAttributes(ctx).GetKeyword(AttrTenantID); !known {
		if err := searchable(ctx, tenantAttributes(p.in.TenantID, p.plan.OrgID, p.plan.Region)...); err != nil {
			return nil, err
		}
	}
	if p.plan.Cancelled {
		return nil, cancelled()
	}
	return &begun.Place, ctx.Err()
}

// tenantAttributes are the search attributes of a tenant's run.
func tenantAttributes(tenantID prego.TenantID, orgID prego.OrgID, region prego.Region) []temporal.SearchAttributeUpdate {
	return []temporal.SearchAttributeUpdate{
		AttrTenantID.ValueSet(string(tenantID)), AttrOrgID.ValueSet(string(orgID)), AttrRegion.ValueSet(string(region)),
	}
}

// build makes the site, installs its apps, and waits until it is open and the tenant active.
// step is the part that failed.
func (p *provisionTenant) build(ctx workflow.Context) (step activities.BuildStep, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	p.begun = true
	p.details(ctx, "making the site")
	if p.waits {
		p.waits = false
		setOutcome(ctx, "provisioning")
	}
	summary := "make the site, open it, make the tenant active"
	if p.plan.Apps > 0 {
		summary = fmt.Sprintf("make the site, install %d apps, open it, make the tenant active", p.plan.Apps)
	}
	if p.plan.RestoreFor > 0 {
		summary = "make the site, restore the backup into it, open it, make the tenant active"
	}
	onHost := 3*p.plan.StepTimeout + time.Duration(p.plan.Apps)*p.plan.AppTimeout + p.plan.RestoreFor
	options := finishing(ctx, summary, onHost)
	if p.plan.Apps > 0 || p.plan.RestoreFor > 0 {
		options = long(options)
	}
	var open bool
	if err = do(options, &open, p.steps.BuildTenant, p.ref()); err == nil && !open {
		err = p.awaitOpen(ctx, options)
	}
	if failed, ok := errors.AsType[*temporal.ApplicationError](err); ok && failed.HasDetails() {
		if e := failed.Details(&step); e != nil {
			return "", e
		}
	}
	return step, err
}

// Pauses between two looks at a site that no edge has opened. The gateway wakes the run when
// one has, so looks are for lost signals, and for edges that have died.
const (
	openPause    = 15 * time.Second
	openMaxPause = 5 * time.Minute
)

// awaitOpen waits until an edge has opened the site, or none is left that could, and the
// tenant is active. It has no deadline: the site is fine, and the row has what edges lack.
// options are of the step that built it.
func (p *provisionTenant) awaitOpen(ctx, options workflow.Context) error {
	p.details(ctx, "waiting until an edge opens the site")
	began := workflow.Now(ctx)
	for now := (activities.OpenResult{}); !now.Open; {
		pause := min(max(openPause, workflow.Now(ctx).Sub(began)/2), openMaxPause)
		woken := func() bool { return p.wake.Len() > 0 }
		const summary = "look again: a hint may be lost, and edges may have died"
		wait := workflow.AwaitOptions{Timeout: pause, TimerOptions: workflow.TimerOptions{Summary: summary}}
		over := waits(ctx, pause, summary)
		if _, err := workflow.AwaitWithOptions(ctx, wait, woken); err != nil {
			return err
		}
		over()
		for p.wake.ReceiveAsync(nil) { // one look serves several hints
		}
		look := unstoppable(ctx, "make the tenant active if its site is open")
		if err := workflow.ExecuteLocalActivity(look, p.steps.OpenTenant, p.ref()).Get(ctx, &now); err != nil {
			return err
		}
		if now.Alone {
			if err := do(options, &now.Open, p.steps.BuildTenant, p.ref()); err != nil {
				return err
			}
		}
		if !now.Open && workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			return workflow.NewContinueAsNewError(ctx, ProvisionTenant, p.in)
		}
	}
	return nil
}

// stepFailed gives a failed step its reason, unless the run was superseded or
// cancelled.
func stepFailed(err error, reason prego.Reason) error {
	if isSuperseded(err) || temporal.IsCanceledError(err) {
		return err
	}
	return &stepError{reason: reason, text: errorMessage(err)}
}

// place waits until the tenant has its reservation. first is the result of an attempt that
// was made, nil if there was none.
func (p *provisionTenant) place(ctx workflow.Context, first *activities.PlaceResult) error {
	built := false
	began := workflow.Now(ctx)
	for {
		p.details(ctx, "finding a place")
		res, err := p.tryPlace(ctx, first)
		first = nil
		switch {
		case errType(err) == activities.ErrTypePlacement:
			return &stepError{reason: prego.ReasonFailedPlacement, text: errorMessage(err)}
		case err != nil:
			return err
		case res.Refused != "":
			return &stepError{reason: prego.ReasonFailedPlacement, text: res.Refused}
		case res.Placed && built:
			return do(write(ctx, "retire a server that is not needed"), nil, p.steps.RetireSpareServers, p.in.TenantID)
		case res.Placed:
			return nil
		case res.Outcome == placement.NeedsServer && built:
			return &stepError{reason: prego.ReasonFailedPlacement, text: "the tenant's own server does not satisfy its request"}
		case res.Outcome == placement.NeedsServer:
			if err := p.buildServer(ctx); err != nil {
				return err
			}
			built = true
			continue
		}
		p.details(ctx, string(res.Outcome)+": "+res.Message)
		if !p.waits {
			p.waits = true
			setOutcome(ctx, string(prego.ReasonAwaitingCapacity))
		}
		if res.Behind { // tenants ahead in the queue may have no use for the free places
			serveQueue(ctx, p.steps, p.plan.Region)
		}
		if !res.Owns && !built {
			if placed, err := p.queued(ctx, res.Behind); err != nil || placed {
				return err
			}
			return errQueued
		}
		left := p.plan.CapacityWait - workflow.Now(ctx).Sub(began)
		if err := p.await(ctx, left); err != nil {
			return err
		}
	}
}

// errQueued ends a run whose tenant waits for capacity and has nothing to undo. What places it starts the next run, a
// cancellation and the end of its time are changes of its row, and waiting costs nothing.
var errQueued = errors.New("it waits in the queue, without a run")

// queued reports whether a tenant that was queued has its place by now. A signal that comes later, before the run has
// ended, repeats its last task.
func (p *provisionTenant) queued(ctx workflow.Context, served bool) (placed bool, err error) {
	if p.wake.Len() == 0 && !served {
		return false, ctx.Err()
	}
	look, err := p.look(ctx)
	return look.Placed, err
}

// tryPlace decides and reserves, unless that was done.
func (p *provisionTenant) tryPlace(ctx workflow.Context, done *activities.PlaceResult) (res activities.PlaceResult, err error) {
	if done != nil {
		return *done, nil
	}
	// From here on there may be a reservation whose answer was lost.
	p.placed = true
	if err = workflow.ExecuteLocalActivity(unstoppable(ctx, "decide and reserve"), p.steps.PlaceTenant, p.ref()).Get(ctx, &res); err == nil {
		err = ctx.Err()
	}
	return res, err
}

// await waits until the tenant is placed in the row.
func (p *provisionTenant) await(ctx workflow.Context, limit time.Duration) error {
	timerCtx, stop := workflow.WithCancel(ctx)
	defer stop()
	const summary = "how long a tenant waits for a place"
	deadline := workflow.NewTimerWithOptions(timerCtx, max(limit, 0), workflow.TimerOptions{Summary: summary})
	defer waits(ctx, max(limit, 0), "a place; then the tenant fails")()
	for {
		look, err := p.look(ctx)
		if err != nil {
			return err
		}
		if look.Placed {
			return nil
		}
		expired := false
		pollCtx, stopPoll := workflow.WithCancel(ctx)
		s := workflow.NewSelector(ctx)
		s.AddReceive(p.wake, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil) })
		s.AddFuture(deadline, func(workflow.Future) { expired = true })
		s.AddFuture(workflow.NewTimerWithOptions(pollCtx, p.plan.CapacityPoll, workflow.TimerOptions{Summary: "look again: a hint may be lost"}), func(workflow.Future) {})
		s.Select(ctx)
		stopPoll()
		if err := ctx.Err(); err != nil {
			return err
		}
		if expired {
			if look, err = p.look(ctx); err != nil || look.Placed {
				return err
			}
			return &stepError{reason: prego.ReasonFailedCapacity, text: "no place within " + p.plan.CapacityWait.String()}
		}
	}
}

// cancelled ends a run whose row was cancelled.
func cancelled() *stepError {
	return &stepError{reason: prego.ReasonCancelled, text: "the provisioning was cancelled"}
}

// look reads the row. It fails if that was cancelled, unless the tenant has its place.
func (p *provisionTenant) look(ctx workflow.Context) (activities.TenantNow, error) {
	for p.wake.ReceiveAsync(nil) { // one read serves several hints
	}
	var look activities.TenantNow
	err := workflow.ExecuteLocalActivity(local(ctx, "look at the row"), p.steps.ReadWaitingTenant, p.ref()).Get(ctx, &look)
	if err == nil && look.Cancelled && !look.Placed {
		err = cancelled()
	}
	return look, err
}

// buildServer provisions the tenant's dedicated server.
func (p *provisionTenant) buildServer(ctx workflow.Context) error {
	p.details(ctx, "building a server of its own")
	srv, err := p.requestServer(ctx)
	if err != nil {
		return err
	}
	child := provisionChild(ctx, srv)
	if ended, err := p.awaitChild(ctx, child); err != nil || !ended {
		return err
	}
	err = child.Get(ctx, nil)
	if othersServer(err) {
		return p.awaitServer(ctx, srv)
	}
	if err != nil && !temporal.IsCanceledError(err) {
		return &stepError{reason: prego.ReasonFailedServer, text: fmt.Sprintf("server %s: %s", srv.ServerID, errorMessage(err))}
	}
	return err
}

// awaitChild waits until the child that provisions the tenant's own server ended, or the
// tenant was placed elsewhere meanwhile: the child then ends with its server's
// decommissioning.
func (p *provisionTenant) awaitChild(ctx workflow.Context, child workflow.Future) (ended bool, err error) {
	for !ended {
		s := workflow.NewSelector(ctx)
		s.AddFuture(child, func(workflow.Future) { ended = true })
		s.AddReceive(p.wake, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil) })
		s.Select(ctx)
		if ended {
			break
		}
		if look, err := p.look(ctx); err != nil || look.Placed {
			return false, err
		}
	}
	return true, nil
}

// requestServer requests the tenant's dedicated server, and waits while no fleet has
// room for it.
func (p *provisionTenant) requestServer(ctx workflow.Context) (srv activities.ServerRef, err error) {
	began := workflow.Now(ctx)
	for {
		err := do(write(ctx, "ask for the tenant's own server"), &srv, p.steps.RequestOwnServer, activities.OwnServerInput{Tenant: p.ref(), Try: p.try})
		if errType(err) != activities.ErrTypeFleetFull {
			if err != nil {
				err = stepFailed(err, prego.ReasonFailedServer)
			}
			return srv, err
		}
		p.details(ctx, "waiting: "+errorMessage(err))
		if workflow.Now(ctx).Sub(began) > p.plan.CapacityWait {
			return srv, &stepError{reason: prego.ReasonFailedCapacity, text: errorMessage(err)}
		}
		if _, err := p.look(ctx); err != nil {
			return srv, err
		}
		if err := sleep(ctx, p.plan.CapacityPoll, "a fleet may have room later"); err != nil {
			return srv, err
		}
	}
}

// awaitServer watches a server that another run provisions.
func (p *provisionTenant) awaitServer(ctx workflow.Context, srv activities.ServerRef) error {
	began := workflow.Now(ctx)
	for {
		look, err := p.look(ctx)
		switch {
		case err != nil:
			return err
		case workflow.Now(ctx).Sub(began) > p.plan.CapacityWait:
			return &stepError{reason: prego.ReasonFailedServer, text: fmt.Sprintf("server %s did not come to life within %s", srv.ServerID, p.plan.CapacityWait)}
		case look.Placed || look.OwnServerStatus == server.Active:
			return nil
		case look.OwnServer != srv.ServerID || look.OwnServerStatus != server.Provisioning:
			return &stepError{reason: prego.ReasonFailedServer, text: fmt.Sprintf("server %s is %s (%s)", srv.ServerID, look.OwnServerStatus, look.OwnServerReason)}
		}
		if err := sleep(ctx, p.plan.CapacityPoll, "the server's run is another's"); err != nil {
			return err
		}
	}
}

// release undoes a tenant's placement: the site, then the reservation, then its
// dedicated server.
func (p *provisionTenant) release(ctx workflow.Context, why *stepError) error {
	var s story
	fate := tenant.SiteUntouched
	if p.begun {
		fate = tenant.SiteDropped
		err := do(call(ctx, "drop what there is of the site", p.plan.StepTimeout), nil, p.steps.DropSite, activities.DropInput{TenantID: p.in.TenantID})
		if temporal.IsCanceledError(err) {
			return err
		}
		if err != nil { // recorded; operators have to remove it
			fate = tenant.SiteLeft
			s.step(write(ctx, "note that the site is left"), p.steps.NoteSiteLeft, activities.FailTenantInput{Tenant: p.ref(), Message: errorMessage(err)})
		}
	}
	s.step(write(ctx, "free the reservation"), p.steps.FreePlace,
		activities.FreePlaceInput{TenantID: p.in.TenantID, Reason: string(why.reason), Message: why.text, Fate: fate})
	if s.err == nil {
		p.placed, p.begun = false, false
	}
	return s.err
}

// end writes the terminal state. It runs to completion even if the run was cancelled.
func (p *provisionTenant) end(ctx workflow.Context, err error) error {
	if err == nil {
		p.details(ctx, "active")
		succeeded(ctx)
		return nil
	}
	if isSuperseded(err) && !p.placed {
		setOutcome(ctx, "superseded")
		return err
	}
	cleanup, _ := workflow.NewDisconnectedContext(ctx)
	var failed *stepError
	if !errors.As(err, &failed) {
		failed = &stepError{reason: prego.ReasonFailedInternal, text: errorMessage(err)}
		if temporal.IsCanceledError(err) {
			failed = cancelled()
		}
	}
	p.details(cleanup, fmt.Sprintf("ending as %s: %s", failed.reason, failed.text))
	var s story
	if p.placed {
		var look activities.TenantNow
		lookErr := workflow.ExecuteLocalActivity(local(cleanup, "look at the row"), p.steps.ReadWaitingTenant, p.ref()).Get(cleanup, &look)
		if isSuperseded(lookErr) {
			setOutcome(cleanup, "superseded")
			return err // the row belongs to another run
		}
		if lookErr == nil && look.Cancelled { // a step was refused because of that
			failed = cancelled()
		}
		s.err = p.release(cleanup, failed)
	}
	s.step(write(cleanup, "mark the tenant failed: "+string(failed.reason)), p.steps.FailTenant,
		activities.FailTenantInput{Tenant: p.ref(), Plan: p.plan.Plan, Reason: failed.reason, Message: failed.text})
	err = s.failed(cleanup, err, failed)
	if s.err == nil {
		serveQueue(cleanup, p.steps, p.plan.Region)
	}
	return err
}

// serveQueue offers freed places to waiting tenants. A failure only costs time: the
// sweep does it again.
func serveQueue(ctx workflow.Context, steps *activities.Tenants, region prego.Region) {
	if region == "" {
		return
	}
	if err := do(call(ctx, "place the tenants that wait in "+string(region), 5*time.Minute), nil, steps.ServeQueue, region); err != nil {
		workflow.GetLogger(ctx).Warn("queue not served", "error", err)
	}
}

func (p *provisionTenant) details(ctx workflow.Context, text string) {
	workflow.SetCurrentDetails(ctx, fmt.Sprintf("**%s** (%s in %s, org %s): %s", p.in.TenantID, p.plan.Plan, p.plan.Region, p.plan.OrgID, text))
}
