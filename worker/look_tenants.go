package worker

import (
	"context"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/tenant"
)

// LookAtTenants starts the sweep of tenants if it would find something.
func LookAtTenants(ctx context.Context, a *activities.Tenants) (ops.LookResult, error) {
	found, err := a.Store.TenantsNeedSweep(ctx, a.Settings.OrphanQuiet)
	return startIf(ctx, found, err, a.Runs.StartTenantSweep)
}

// LookAtFleet starts missing servers and sites of pools and fleets.
func LookAtFleet(ctx context.Context, a *activities.Tenants) (ops.LookResult, error) {
	size, err := a.Store.FleetSize(ctx)
	if err != nil {
		return ops.LookResult{}, err
	}
	r, err := a.SweepFleet(ctx)
	return ops.LookResult{Found: r.Refills+r.Fleets > 0, Pause: ops.FleetPause(size)}, err
}

// LookAtStorage starts the measurement of sites if one is due.
func LookAtStorage(ctx context.Context, a *activities.Tenants) (ops.LookResult, error) {
	found, err := a.Store.StorageDue(ctx, a.Settings.StorageEvery)
	return startIf(ctx, found, err, a.Runs.StartMeasureSites)
}

// LookAtMoves starts the runs of moves that have lost theirs.
func LookAtMoves(ctx context.Context, a *activities.Moves) (ops.LookResult, error) {
	quiet, err := a.Store.QuietMoves(ctx, a.Settings.Quiet)
	return startLost(ctx, quiet, err, func(ctx context.Context, m tenant.QuietMove) (bool, error) {
		started, err := a.Runs.EnsureMove(ctx, m.MoveID)
		if err == nil && !started && m.Lost { // its run waits for the grace time of the old place
			err = a.Runs.WakeRuns(ctx, []string{tenant.MoveWorkflowID(m.MoveID)})
		}
		return started, err
	})
}

// LookAtLost restores tenants of lost servers, within the limit, and counts tenants without a site. Their leftovers on
// other servers are erased.
func LookAtLost(ctx context.Context, a *activities.Tenants) (ops.LookResult, error) {
	lost, err := a.Store.CountLost(ctx)
	if err != nil {
		return ops.LookResult{}, err
	}
	a.Metrics.Lost.Set(float64(lost))
	if lost == 0 || a.Restorer == nil || len(a.Settings.Losses.Plans) == 0 {
		return ops.LookResult{}, nil
	}
	ids, err := a.Store.LostTenants(ctx, a.Settings.Losses.Plans, a.Settings.Losses.AtOnce)
	var try activities.Attempts
	try.OK(err)
	for id := range activities.Each(&try, ids) {
		try.OK(a.RestoreLost(ctx, id))
	}
	return ops.LookResult{Found: len(ids) > 0}, try.Err()
}
