package worker

import (
	"context"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops"
)

// LookAtStackReleases starts the runs of releases that have lost theirs.
func LookAtStackReleases(ctx context.Context, a *activities.StackReleases) (ops.LookResult, error) {
	names, err := a.Store.QuietStackReleases(ctx, a.Quiet)
	return startLost(ctx, names, err, a.Runs.EnsureStackRelease)
}
