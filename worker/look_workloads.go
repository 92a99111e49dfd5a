package worker

import (
	"context"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops"
)

// LookAtGroups wakes the runs of process groups that have something to do, and compares
// the containers of some servers with their instances.
func LookAtGroups(ctx context.Context, a *activities.Groups) (ops.LookResult, error) {
	r, err := a.SweepGroups(ctx)
	return ops.LookResult{Found: r.Woken+r.Died+r.Removed > 0, Pause: ops.FleetPause(r.Servers)}, err
}

// LookAtAddresses starts the runs of misplaced addresses: new ones, and addresses whose edge drains, has failed or is
// gone.
func LookAtAddresses(ctx context.Context, a *activities.OrgResources) (ops.LookResult, error) {
	ids, err := a.Store.AddressesAstray(ctx)
	_, startErr := startLost(ctx, ids, err, a.Runs.EnsureAddress)
	return ops.LookResult{Found: len(ids) > 0}, startErr
}
