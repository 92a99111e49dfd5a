package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// Reconcile brings the provider and the rows into agreement: on a schedule, and on an
// operator's request.
func Reconcile(ctx workflow.Context) (activities.ReconcileResult, error) {
	var steps *activities.Reconciler
	result, err := periodically[activities.ReconcileResult](ctx, "compare the rows with what the provider lists", 10*time.Minute, steps.Reconcile)
	if err == nil {
		outcome := "reconciled"
		if result.BreakerHit {
			outcome = "breaker_hit"
		}
		setOutcome(ctx, outcome)
	}
	return result, err
}

// SweepHeartbeats marks agents that fell silent.
func SweepHeartbeats(ctx workflow.Context) (server.SweepResult, error) {
	var steps *activities.Reconciler
	var result server.SweepResult
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		ScheduleToCloseTimeout: 30 * time.Second, RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumAttempts: 3},
		Summary: "mark silent agents",
	})
	err := workflow.ExecuteLocalActivity(ctx, steps.SweepSilent).Get(ctx, &result)
	return result, err
}
