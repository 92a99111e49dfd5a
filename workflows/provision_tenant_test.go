package workflows

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/tenant"
)

// scripted are steps that return a test's results, and record their calls.
type scripted struct {
	env  *testsuite.TestWorkflowEnvironment
	look activities.TenantNow
	did  []string
	end  activities.FailTenantInput
}

func script(place func() (activities.PlaceResult, error)) *scripted {
	var suite testsuite.WorkflowTestSuite
	s := &scripted{env: suite.NewTestWorkflowEnvironment()}
	step := func(name string, f any) { s.env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }
	step("BeginTenant", func(context.Context, tenant.Ref) (activities.TenantBegun, error) {
		s.did = append(s.did, "placed")
		placed, err := place()
		plan := activities.TenantPlan{Region: "eu", CapacityWait: time.Hour, CapacityPoll: time.Minute, StepTimeout: time.Minute}
		return activities.TenantBegun{Plan: plan, Place: placed}, err
	})
	step("ReadWaitingTenant", func(context.Context, tenant.Ref) (activities.TenantNow, error) { return s.look, nil })
	step("FreePlace", func(context.Context, activities.FreePlaceInput) error { s.did = append(s.did, "released"); return nil })
	step("FailTenant", func(_ context.Context, in activities.FailTenantInput) error { s.end = in; return nil })
	step("ServeQueue", func(context.Context, prego.Region) (int, error) { return 0, nil })
	step("DropSite", func(context.Context, activities.DropInput) error { return nil })
	return s
}

func (s *scripted) run() {
	s.env.ExecuteWorkflow(ProvisionTenant, ProvisionTenantInput{TenantID: "t-1", Generation: 1})
}

// TestAStepThatIsRefusedForACancelEndsAsCancelled: the wish is in the row before the run is
// signalled.
func TestAStepThatIsRefusedForACancelEndsAsCancelled(t *testing.T) {
	t.Parallel()
	s := script(func() (activities.PlaceResult, error) {
		return activities.PlaceResult{}, temporal.NewNonRetryableApplicationError("gone", activities.ErrTypeSuperseded, nil)
	})
	s.look = activities.TenantNow{Cancelled: true}
	s.run()
	require.True(t, s.env.IsWorkflowCompleted())
	require.Equal(t, []string{"placed", "released"}, s.did)
	require.Equal(t, prego.ReasonCancelled, s.end.Reason)
}
