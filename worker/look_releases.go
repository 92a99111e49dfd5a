package worker

import (
	"context"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops"
)

// LookAtStackReleases starts the runs of releases that have lost theirs.
func LookAtStackReleases(a *activities.StackReleases) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		names, err := a.Store.QuietStackReleases(ctx, a.Quiet)
		return startLost(ctx, names, err, a.Runs.EnsureStackRelease)
	}
}
