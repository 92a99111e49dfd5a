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
	"github.com/prego/prego/tenant"
)

// TestAMoveRestsUntilItsNewPlaceIsLost: a run that is woken while it keeps the old place follows the row. It undoes
// the move, or immediately clears the remains of a tenant that is restored elsewhere.
func TestAMoveRestsUntilItsNewPlaceIsLost(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lost  bool
		then  activities.MoveRest
		want  []string
		state tenant.MoveState
		after time.Duration
	}{
		"nothing is lost":         {false, activities.MoveRest{}, []string{"free", "edges", "open", "late", "clear", "done "}, tenant.MoveDone, 10 * time.Minute},
		"it is woken for nothing": {true, activities.MoveRest{For: 9 * time.Minute}, []string{"free", "edges", "open", "late", "clear", "done "}, tenant.MoveDone, 10 * time.Minute},
		"it goes back":            {true, activities.MoveRest{Returned: true}, []string{"free", "edges", "open", "late", "undo", "failed server_closed"}, tenant.MoveFailed, time.Minute},
		"it is restored":          {true, activities.MoveRest{}, []string{"free", "edges", "open", "late", "clear", "done "}, tenant.MoveDone, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var suite testsuite.WorkflowTestSuite
			env := suite.NewTestWorkflowEnvironment()
			var did []string
			step := func(name string, f any) { env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }
			note := func(name, what string) {
				step(name, func(context.Context, prego.MoveID) error { did = append(did, what); return nil })
			}
			step("PlanMove", func(context.Context, prego.MoveID) (activities.MovePlan, error) {
				return activities.MovePlan{State: tenant.MoveSwitched, TenantID: "t-1", OrgID: "acme", From: "app-1", To: "app-2"}, nil
			})
			note("FreeMoved", "free")
			note("MoveOpened", "open")
			note("SweepLate", "late")
			note("ClearMove", "clear")
			note("UndoMove", "undo")
			step("AwaitEdges", func(context.Context, activities.AwaitEdgesInput) (activities.AwaitEdgesResult, error) {
				did = append(did, "edges")
				return activities.AwaitEdgesResult{}, nil
			})
			began, looks := env.Now(), 0
			step("RestMove", func(context.Context, prego.MoveID) (activities.MoveRest, error) {
				looks++
				switch {
				case looks == 1:
					return activities.MoveRest{For: 10 * time.Minute}, nil
				case tc.lost && looks == 2:
					return tc.then, nil
				}
				return activities.MoveRest{}, nil
			})
			step("FinishMove", func(_ context.Context, end activities.MoveEnd) (tenant.MoveResult, error) {
				did = append(did, string(end.State)+" "+string(end.Reason))
				return tenant.MoveResult{State: end.State}, nil
			})
			if tc.lost {
				env.RegisterDelayedCallback(func() { env.SignalWorkflow(SignalDemand, "turn") }, time.Minute)
			}
			env.ExecuteWorkflow(MoveTenant, MoveInput{MoveID: "mov-1"})
			require.NoError(t, env.GetWorkflowError())
			var out tenant.MoveResult
			require.NoError(t, env.GetWorkflowResult(&out))
			require.Equal(t, tc.state, out.State)
			require.Equal(t, tc.want, did)
			require.Equal(t, tc.after, env.Now().Sub(began).Round(time.Minute))
		})
	}
}
