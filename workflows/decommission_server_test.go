package workflows

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/testsuite"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
)

// TestALostServerIsLookedAtUntilItsTenantsAreRestored: soon at first, and no more than every half hour.
func TestALostServerIsLookedAtUntilItsTenantsAreRestored(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	var did []string
	step := func(name string, f any) {
		env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name})
	}
	step("PlanDecommission", func(context.Context, prego.ServerID) (activities.DecommissionPlan, error) {
		return activities.DecommissionPlan{Attempt: 1}, nil
	})
	step("StopProvisioning", func(context.Context, prego.ServerID) error { return nil })
	left := 200
	step("DestroyServer", func(context.Context, activities.DestroyInput) (activities.DestroyResult, error) {
		left--
		return activities.DestroyResult{Unrestored: max(0, left)}, nil
	})
	step("TerminateServer", func(context.Context, prego.ServerID) error {
		did = append(did, "terminated")
		return nil
	})
	began := env.Now()
	env.ExecuteWorkflow(DecommissionServer, DecommissionServerInput{ServerID: "app-1"})
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, []string{"terminated"}, did)
	require.Zero(t, left)
	// 1 s, 2 s, 4 s, … 1,024 s, and 188 times half an hour.
	require.InDelta(t, (2047*time.Second + 188*30*time.Minute).Seconds(), env.Now().Sub(began).Seconds(), 5)
}
