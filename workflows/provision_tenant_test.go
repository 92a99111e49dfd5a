package workflows

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
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

// TestAnotherRunMadeTheTenantsServer: a lost run's server was provisioned by the run that replaced it. The child that
// comes late is refused, and the row decides.
func TestAnotherRunMadeTheTenantsServer(t *testing.T) {
	t.Parallel()
	for status, reason := range map[server.Status]prego.Reason{
		server.Active: prego.ReasonFailedPlacement, // by the next decision, which comes only with a server
		server.Failed: prego.ReasonFailedServer,
	} {
		s := script(func() (activities.PlaceResult, error) {
			return activities.PlaceResult{Outcome: placement.NeedsServer}, nil
		})
		s.look = activities.TenantNow{OwnServer: "n-1", OwnServerStatus: status}
		step := func(name string, f any) { s.env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }
		step("RequestOwnServer", func(context.Context, activities.OwnServerInput) (activities.ServerRef, error) {
			return activities.ServerRef{ServerID: "n-1", Generation: 1}, nil
		})
		step("PlaceTenant", func(context.Context, tenant.Ref) (activities.PlaceResult, error) {
			return activities.PlaceResult{}, temporal.NewNonRetryableApplicationError("full", activities.ErrTypePlacement, nil)
		})
		s.env.RegisterWorkflow(ProvisionServer)
		s.env.OnWorkflow(ProvisionServer, mock.Anything, mock.Anything).Return(ProvisionServerResult{},
			temporal.NewNonRetryableApplicationError("server n-1 is active in generation 1", activities.ErrTypeSuperseded, nil))
		s.run()
		require.True(t, s.env.IsWorkflowCompleted())
		require.Equal(t, reason, s.end.Reason, status)
	}
}
