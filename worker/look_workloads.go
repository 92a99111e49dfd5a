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

// LookAtPlaces allocates the instances that wait in the regions where some are due. It stands in for a round of each
// waiting group.
func LookAtPlaces(ctx context.Context, a *activities.Groups) (r ops.LookResult, err error) {
	regions, err := a.Store.WaitingRegions(ctx)
	var try activities.Attempts
	try.OK(err)
	for region := range activities.Each(&try, regions) {
		served, err := a.ServeInstances(ctx, region)
		try.OK(err)
		r.Found = r.Found || len(served.Allocated) > 0
	}
	return r, try.Err()
}

// LookAtAddresses starts the runs of misplaced addresses: new ones, and addresses whose edge drains, has failed or is
// gone.
func LookAtAddresses(ctx context.Context, a *activities.OrgResources) (ops.LookResult, error) {
	ids, err := a.Store.AddressesAstray(ctx)
	_, startErr := startLost(ctx, ids, err, a.Runs.EnsureAddress)
	return ops.LookResult{Found: len(ids) > 0}, startErr
}
