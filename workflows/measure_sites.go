package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego/activities"
)

// measurePatience bounds one run; the next ones continue with the remaining sites.
const measurePatience = 10 * time.Minute

// MeasureSites measures the storage of tenants' sites, on a schedule, and makes those
// above their quota read-only.
func MeasureSites(ctx workflow.Context) (activities.StorageResult, error) {
	var steps *activities.Tenants
	return periodically[activities.StorageResult](ctx, "measure sites", measurePatience, steps.MeasureSites)
}
