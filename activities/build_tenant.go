package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego/server"
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

// BuildTenant makes a placed tenant's site, installs its apps, opens it, and makes the
// tenant active, with one UPDATE. Each part on the host has a time limit, repetitions
// included, and can be repeated; writing that the tenant is active is repeated until the
// database is back.
//
// A tenant that this generation made active before is the same success.
func (a *Tenants) BuildTenant(ctx context.Context, ref tenant.Ref) error {
	t, err := a.Store.TenantRecord(ctx, ref.TenantID)
	switch {
	case err != nil:
		return fromStore(err)
	case t.State.HasSite() && t.Generation == ref.Generation:
		return nil
	}
	if t, err = asPlaced(t, ref); err != nil {
		return err
	}
	if gone := t.LostServer(); gone != "" { // the tenant has no site yet that could be lost, and takes another place
		return permanentErrorIn(StepSite, ErrTypeCommand, fmt.Sprintf("server %s is gone", gone))
	}
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
		_, err := a.inTurn(ctx, a.opening(t)...)
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
		done, err := a.inTurn(ctx, commands...)
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
