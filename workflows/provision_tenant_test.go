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
	"go.temporal.io/sdk/workflow"

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
	// alone: no edge is alive
	alone bool
	end   activities.FailTenantInput
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

// built is a script whose site is built; open answers whether it is open at the nth look.
func built(open func(n int) (bool, error)) (s *scripted, looks *[]time.Duration) {
	s = script(func() (activities.PlaceResult, error) { return activities.PlaceResult{Placed: true}, nil })
	looks = &[]time.Duration{}
	began := s.env.Now()
	step := func(name string, f any) { s.env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }
	step("BuildTenant", func(context.Context, tenant.Ref) (bool, error) {
		s.did = append(s.did, "built")
		return s.alone, nil
	})
	step("OpenTenant", func(context.Context, tenant.Ref) (activities.OpenResult, error) {
		*looks = append(*looks, s.env.Now().Sub(began).Round(time.Second))
		is, err := open(len(*looks))
		return activities.OpenResult{Open: is, Alone: s.alone}, err
	})
	return s, looks
}

// TestARunEndsWhenItsSiteIsOpen: with the gateway's signal, which may come before the run waits, twice, or for nothing.
// Without it the run looks by itself, less and less often.
func TestARunEndsWhenItsSiteIsOpen(t *testing.T) {
	t.Parallel()
	after := func(n int) func(int) (bool, error) { return func(look int) (bool, error) { return look == n, nil } }
	for name, c := range map[string]struct {
		opensAt int // look
		wakes   []time.Duration
		looks   []time.Duration
	}{
		"signalled":       {1, []time.Duration{2 * time.Second}, []time.Duration{2 * time.Second}},
		"signalled early": {1, []time.Duration{0}, []time.Duration{0}},
		"signalled twice": {1, []time.Duration{time.Second, time.Second}, []time.Duration{time.Second}},
		"signalled for less": {
			2, []time.Duration{time.Second, 3 * time.Second}, []time.Duration{time.Second, 3 * time.Second},
		},
		"signal is lost": {1, nil, []time.Duration{15 * time.Second}},
		"none for minutes": {7, nil, []time.Duration{
			15 * time.Second, 30 * time.Second, 45 * time.Second, 68 * time.Second, 101 * time.Second,
			152 * time.Second, 228 * time.Second,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, looks := built(after(c.opensAt))
			for _, at := range c.wakes {
				s.env.RegisterDelayedCallback(func() { s.env.SignalWorkflow(SignalWake, nil) }, at)
			}
			s.run()
			require.True(t, s.env.IsWorkflowCompleted())
			require.NoError(t, s.env.GetWorkflowError())
			require.Equal(t, []string{"placed", "built"}, s.did)
			require.Equal(t, c.looks, *looks)
		})
	}
}

// TestEdgesDieWhileATenantWaits: the step that built the site asks it on its host.
func TestEdgesDieWhileATenantWaits(t *testing.T) {
	t.Parallel()
	s, _ := built(func(int) (bool, error) { return false, nil })
	s.env.RegisterDelayedCallback(func() { s.alone = true }, time.Minute)
	s.run()
	require.NoError(t, s.env.GetWorkflowError())
	require.Equal(t, []string{"placed", "built", "built"}, s.did)
}

// TestAWaitForAnEdgeIsCancelled: what was built is undone.
func TestAWaitForAnEdgeIsCancelled(t *testing.T) {
	t.Parallel()
	s, _ := built(func(int) (bool, error) { return false, nil })
	s.env.RegisterDelayedCallback(s.env.CancelWorkflow, time.Hour)
	s.run()
	require.True(t, s.env.IsWorkflowCompleted())
	require.Equal(t, []string{"placed", "built", "released"}, s.did)
	require.Equal(t, prego.ReasonCancelled, s.end.Reason)
}

// TestASiteThatIsLostBeforeItOpensIsBuiltElsewhere: its server is gone while the run waits for an edge.
func TestASiteThatIsLostBeforeItOpensIsBuiltElsewhere(t *testing.T) {
	t.Parallel()
	s, _ := built(func(look int) (bool, error) {
		if look == 2 {
			return false, temporal.NewNonRetryableApplicationError(
				"server app-1 is gone", activities.ErrTypeCommand, nil, activities.StepSite)
		}
		return look == 3, nil
	})
	s.env.RegisterActivityWithOptions(func(context.Context, tenant.Ref) (activities.PlaceResult, error) {
		s.did = append(s.did, "placed again")
		return activities.PlaceResult{Placed: true}, nil
	}, activity.RegisterOptions{Name: "PlaceTenant"})
	s.run()
	require.NoError(t, s.env.GetWorkflowError())
	require.Equal(t, []string{"placed", "built", "released", "placed again", "built"}, s.did)
}

// TestALongWaitForAnEdgeIsContinued: no history grows with it.
func TestALongWaitForAnEdgeIsContinued(t *testing.T) {
	t.Parallel()
	s, _ := built(func(look int) (bool, error) { return false, nil })
	s.env.SetContinueAsNewSuggested(true)
	s.run()
	require.True(t, workflow.IsContinueAsNewError(s.env.GetWorkflowError()))
	require.Equal(t, []string{"placed", "built"}, s.did, "nothing is undone")
}

// TestATenantThatWaitsHasNoRun: a run without a place ends, and leaves the row as it is. If the tenant gets its place
// before that, the run continues; if it has a server, the run stays to undo that.
func TestATenantThatWaitsHasNoRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		found  activities.PlaceResult
		placed bool // by others, after the decision
		wake   bool
		did    []string
		stays  bool
	}{
		"ends": {found: activities.PlaceResult{}, did: []string{"placed"}},
		"placed by another": {
			found: activities.PlaceResult{}, placed: true, wake: true,
			did: []string{"placed", "built"},
		},
		"placed while it served": {
			found: activities.PlaceResult{Behind: true}, placed: true,
			did: []string{"placed", "built"},
		},
		"served others":     {found: activities.PlaceResult{Behind: true}, did: []string{"placed"}},
		"woken for nothing": {found: activities.PlaceResult{}, wake: true, did: []string{"placed"}},
		"stays with its resource": {
			found: activities.PlaceResult{Owns: true}, did: []string{"placed", "released"},
			stays: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := script(func() (activities.PlaceResult, error) {
				c.found.Outcome = placement.AwaitingCapacity
				return c.found, nil
			})
			s.look.Placed = c.placed
			s.env.RegisterActivityWithOptions(func(context.Context, tenant.Ref) (bool, error) {
				s.did = append(s.did, "built")
				return true, nil
			}, activity.RegisterOptions{Name: "BuildTenant"})
			if c.wake {
				s.env.RegisterDelayedCallback(func() { s.env.SignalWorkflow(SignalWake, nil) }, 0)
			}
			began := s.env.Now()
			s.run()
			require.True(t, s.env.IsWorkflowCompleted())
			require.Equal(t, c.did, s.did)
			if c.stays { // until its time is over
				require.Equal(t, prego.ReasonFailedCapacity, s.end.Reason)
				require.Equal(t, time.Hour, s.env.Now().Sub(began).Round(time.Minute))
				return
			}
			require.NoError(t, s.env.GetWorkflowError())
			require.Less(t, s.env.Now().Sub(began), time.Second)
			require.Empty(t, s.end.Reason, "the row is as it was")
		})
	}
}
