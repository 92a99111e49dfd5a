package activities

import (
	"context"
	"time"

	"github.com/prego/prego/ops"
	"github.com/prego/prego/server"
)

// Looks are what a worker repeats by itself, without a run: a statement that finds out
// whether there is something to do. What is to be done is a run of its own. None of them
// is an activity.

// LookAtAgents marks agents that fell silent. One statement does.
func LookAtAgents(a *Reconciler) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		r, err := a.SweepSilent(ctx)
		return ops.LookResult{Found: r.Degraded+r.Failed > 0, Pause: ops.FleetPause(r.Fleet)}, err
	}
}

// notBegun is how long a row may be as it was accepted before its run is looked for.
const notBegun = 5 * time.Second

// LookAtRuns starts the runs of servers and of what orgs own that were accepted while Temporal
// was away, when the API that would have repeated the start has died meanwhile. Reconciliation
// finds those that were lost later.
func LookAtRuns(a *Reconciler) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		idle, err := a.Store.ServersWithoutRun(ctx, notBegun)
		if err != nil {
			return ops.LookResult{}, err
		}
		var r ReconcileResult
		if err := a.restart(ctx, idle, &r); err != nil {
			return ops.LookResult{Found: r.Restarted > 0}, err
		}
		started := 0
		if a.Org != nil {
			started, err = a.Org.startLost(ctx, notBegun)
		}
		return ops.LookResult{Found: r.Restarted+started > 0}, err
	}
}

// LookAtTenants starts the sweep of tenants if it would find something.
func LookAtTenants(a *Tenants) func(context.Context) (ops.LookResult, error) {
	return startIf(func(ctx context.Context) (bool, error) { return a.Store.TenantsNeedSweep(ctx, a.Settings.OrphanQuiet) }, a.Runs.StartTenantSweep)
}

// LookAtFleet starts what pools and fleets are short of.
func LookAtFleet(a *Tenants) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		size, err := a.Store.FleetSize(ctx)
		if err != nil {
			return ops.LookResult{}, err
		}
		var r SweepResult
		err = a.sweepFleet(ctx, &r)
		return ops.LookResult{Found: r.Refills+r.Fleets > 0, Pause: ops.FleetPause(size)}, err
	}
}

// LookAtNetworks attaches servers that should be in a private network and are not: those
// that an earlier version made, and those whose network is gone. There are few of them once
// in the life of an installation, and a call or two each, so there is no run.
func LookAtNetworks(a *Servers) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		found, err := a.attachAll(ctx)
		return ops.LookResult{Found: found}, err
	}
}

// LookAtStorage starts the measurement of sites if it is some site's turn.
func LookAtStorage(a *Tenants) func(context.Context) (ops.LookResult, error) {
	return startIf(func(ctx context.Context) (bool, error) { return a.Store.StorageDue(ctx, a.Settings.StorageEvery) }, a.Runs.StartMeasureSites)
}

// LookAtGroups wakes the runs of process groups that have something to do, and compares
// the containers of some servers with their instances.
func LookAtGroups(a *Groups) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		r, err := a.SweepGroups(ctx)
		return ops.LookResult{Found: r.Woken+r.Died+r.Removed > 0, Pause: ops.FleetPause(r.Servers)}, err
	}
}

// SampleStore keeps what hosts reported.
type SampleStore interface {
	TakeSamples(ctx context.Context, every time.Duration) (int, error)
}

// Samples keeps what agents reported of their hosts, a sample of each in every span of server.SampleEvery.
type Samples struct{ Store SampleStore }

// LookAtSamples takes those that the current span does not have yet. One statement does; looking several
// times in a span also finds agents that were silent at first.
func LookAtSamples(a *Samples) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		n, err := a.Store.TakeSamples(ctx, server.SampleEvery)
		return ops.LookResult{Found: n > 0}, err
	}
}

// startIf starts a run if there is something to do.
func startIf(needed func(context.Context) (bool, error), start func(context.Context) error) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		found, err := needed(ctx)
		if err == nil && found {
			err = start(ctx)
		}
		return ops.LookResult{Found: found}, err
	}
}
