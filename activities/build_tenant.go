package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// BuildStep is a part of BuildTenant. An error that ends the step has it as its detail;
// histories record it, so the names must never change.
type BuildStep string

// The parts of BuildTenant.
const (
	StepSite BuildStep = "site"
	StepApps BuildStep = "apps"
	StepOpen BuildStep = "open"
	// StepRestore: a backup is restored into the site.
	StepRestore BuildStep = "restore"
)

// ErrTypeOverdue means that a part of a step on a host exceeded its time limit.
const ErrTypeOverdue = "overdue"

// BuildTenant makes a placed tenant's site, installs its apps, and makes the tenant active,
// with one UPDATE; if edges serve its network, it puts the site into their documents
// instead (OpenTenant). Each part on the host has a time limit, repetitions included, and
// can be repeated; the last UPDATE is repeated until the database is back.
//
// A tenant that this generation made active before is the same success.
func (a *Tenants) BuildTenant(ctx context.Context, ref tenant.Ref) (open bool, err error) {
	t, open, err := a.toOpen(ctx, ref)
	switch {
	case err != nil || open:
		return open, err
	case t.OpeningSince == nil:
		err = a.build(ctx, ref, t)
	case t.EdgeLives:
		return false, nil
	default:
		ask := func(ctx context.Context) error { return a.awaitAnswer(ctx, t) }
		if err = a.part(ctx, StepOpen, a.Settings.StepTimeout, ask); err == nil {
			err = a.activate(ctx, ref, t.Plan)
		}
	}
	if errors.Is(err, store.ErrNotOpen) {
		return false, nil
	}
	return err == nil, err
}

// toOpen reads a tenant whose site is being built or opened; open means that it is active.
func (a *Tenants) toOpen(ctx context.Context, ref tenant.Ref) (t tenant.Record, open bool, err error) {
	t, err = a.Store.TenantRecord(ctx, ref.TenantID)
	switch {
	case err != nil:
		return t, false, fromStore(err)
	case t.State.HasSite() && t.Generation == ref.Generation:
		return t, true, nil
	}
	if t, err = asPlaced(t, ref); err != nil {
		return t, false, err
	}
	if gone := t.LostServer(); gone != "" { // no visitor has used the site yet: the tenant takes another place
		return t, false, permanentErrorIn(StepSite, ErrTypeCommand, fmt.Sprintf("server %s is gone", gone))
	}
	return t, false, nil
}

// openWithin is how long edges usually take at most. Later the tenant's row has why none has opened its site.
const openWithin = 30 * time.Second

// OpenResult is how a built site stands.
type OpenResult struct {
	Open bool `json:"open,omitempty"` // the tenant is active
	// Alone: no edge is alive that could open it. BuildTenant asks the site on its host.
	Alone bool `json:"alone,omitempty"`
}

// OpenTenant makes a tenant with a built site active once an edge has found the site up.
func (a *Tenants) OpenTenant(ctx context.Context, ref tenant.Ref) (OpenResult, error) {
	t, open, err := a.toOpen(ctx, ref)
	if err != nil || open || !t.EdgeLives {
		return OpenResult{Open: open, Alone: err == nil && !open}, err
	}
	err = a.activate(ctx, ref, t.Plan)
	if !errors.Is(err, store.ErrNotOpen) {
		return OpenResult{Open: err == nil}, err
	}
	if t.OpeningSince != nil && t.Now.Sub(*t.OpeningSince) >= openWithin {
		return OpenResult{}, fromStore(a.Store.NotOpen(ctx, ref))
	}
	return OpenResult{}, nil
}

// openInTurn runs the last commands of a site. If no edge is alive that probes it, it is asked on
// its host until it answers. A site that was restored after a loss was compared with its backup.
func (a *Tenants) openInTurn(ctx context.Context, t tenant.Record, cs ...server.BenchCommand) (done int, err error) {
	if t.EdgeLives || t.LostAt != nil {
		return a.inTurn(ctx, cs...)
	}
	done, err = a.inTurn(ctx, append(slices.Clone(cs), a.ask(t, "answers"))...)
	if err != nil && done == len(cs) {
		err = a.awaitAnswer(ctx, t)
	}
	return done, err
}

func (a *Tenants) ask(t tenant.Record, what string) server.BenchCommand {
	return command(t, what, a.Settings.CommandTimeout, "--site", t.Site, "answers")
}

// awaitAnswer waits until a site answers on its host.
func (a *Tenants) awaitAnswer(ctx context.Context, t tenant.Record) error {
	for n := 1; ; n++ {
		_, err := a.bench(ctx, a.ask(t, fmt.Sprintf("answers-%d-%d", t.Now.UnixMicro(), n)))
		if err == nil || prego.Sleep(ctx, answerPause) != nil {
			return err
		}
	}
}

func (a *Tenants) build(ctx context.Context, ref tenant.Ref, t tenant.Record) error {
	a.hook("site/start")
	if t.RestoreFrom != "" || t.LostAt != nil {
		return a.buildFromBackup(ctx, ref, t)
	}
	if t.Allocation.PoolSiteID != "" && len(t.Apps) == 0 {
		return a.promote(ctx, ref, t)
	}
	limit := a.Settings.StepTimeout
	if err := a.part(ctx, StepSite, limit, func(ctx context.Context) (err error) {
		t.Site, err = a.makeSite(ctx, ref, t)
		return err
	}); err != nil {
		return err
	}
	if len(t.Apps) > 0 {
		limit += time.Duration(len(t.Apps))*a.Settings.AppTimeout + a.Settings.StepTimeout
		if err := a.part(ctx, StepApps, limit, func(ctx context.Context) error { return a.installApps(ctx, ref, t) }); err != nil {
			return err
		}
	}
	limit += a.Settings.StepTimeout
	if err := a.part(ctx, StepOpen, limit, func(ctx context.Context) error {
		_, err := a.openInTurn(ctx, t, a.opening(t)...)
		return err
	}); err != nil {
		return err
	}
	a.hook("site/opened")
	return a.activate(ctx, ref, t.Plan, opened(t)...)
}

// promote takes a pool site into use for a tenant without apps: short commands, which are
// recorded together, and on the timeline with the tenant's activation.
func (a *Tenants) promote(ctx context.Context, ref tenant.Ref, t tenant.Record) error {
	t.Site = tenant.SiteName(t.Slug, a.Settings.SiteDomain)
	commands := append([]server.BenchCommand{a.obtain(t, t.Site), a.configure(t, t.Site)}, a.cacheCommands(t, t.Site, "")...)
	making := len(commands)
	commands = append(commands, a.opening(t)...)
	if err := a.part(ctx, StepSite, a.Settings.StepTimeout, func(ctx context.Context) error {
		if err := a.awaitPool(ctx, t); err != nil {
			return err
		}
		done, err := a.openInTurn(ctx, t, commands...)
		if err != nil && done >= making {
			return inPart(err, StepOpen)
		}
		return err
	}); err != nil {
		return err
	}
	a.hook("site/made")
	a.hook("site/configured")
	a.hook("site/opened")
	return a.activate(ctx, ref, t.Plan, append([]tenant.Event{{TenantID: t.TenantID, Step: siteStep(t), Message: t.Site}}, opened(t)...)...)
}

// part runs a part of the step until limit has passed since the step was first scheduled; later
// failures are permanent.
func (a *Tenants) part(ctx context.Context, step BuildStep, limit time.Duration, f func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, max(limit-time.Since(activity.GetInfo(ctx).ScheduledTime), leastTry))
	defer cancel()
	err := f(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return permanentErrorIn(step, ErrTypeOverdue, fmt.Sprintf("no end within %s: %s", limit, err))
	}
	return inPart(err, step)
}

// inPart adds the name of the failed part to an error that ends the step.
func inPart(err error, step BuildStep) error {
	var ended *temporal.ApplicationError
	if !errors.As(err, &ended) || !ended.NonRetryable() || ended.HasDetails() {
		return err
	}
	return permanentErrorIn(step, ended.Type(), ended.Message())
}

func permanentErrorIn(step BuildStep, errType, message string) error {
	return temporal.NewNonRetryableApplicationError(message, errType, nil, step)
}
