package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego/activities"
)

// measurePatience is how long one run may measure; what it does not get to, the next
// ones do.
const measurePatience = 10 * time.Minute

// MeasureSites measures the storage of tenants' sites, on a schedule, and has those
// above their quota be read-only.
func MeasureSites(ctx workflow.Context) (activities.StorageResult, error) {
	var steps *activities.Tenants
	var result activities.StorageResult
	err := workflow.ExecuteActivity(call(ctx, "measure sites", measurePatience), steps.MeasureSites).Get(ctx, &result)
	return result, err
}
