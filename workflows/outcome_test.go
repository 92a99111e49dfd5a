package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
)

// TestWhatWaitsShowsUntilWhen: while a run waits, its details have the time and the reason, next to what it does.
func TestWhatWaitsShowsUntilWhen(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.SetStartTime(time.Date(2026, 11, 22, 7, 41, 0, 0, time.UTC))
	var during, replaced, after string
	env.ExecuteWorkflow(func(ctx workflow.Context) error {
		workflow.SetCurrentDetails(ctx, "**app-1**: booting")
		workflow.Go(ctx, func(ctx workflow.Context) {
			_ = workflow.Sleep(ctx, time.Second)
			during = workflow.GetCurrentDetails(ctx)
		})
		if err := sleep(ctx, time.Minute, "a create may still land"); err != nil {
			return err
		}
		after = workflow.GetCurrentDetails(ctx)
		over := waits(ctx, time.Hour, "a place")
		workflow.SetCurrentDetails(ctx, "**app-1**: placed")
		over()
		replaced = workflow.GetCurrentDetails(ctx)
		return nil
	})
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, "**app-1**: booting\n\nWaits until 2026-11-22 07:42:00 UTC at most: a create may still land", during)
	require.Equal(t, "**app-1**: booting", after)
	require.Equal(t, "**app-1**: placed", replaced, "what was begun meanwhile stays")
}

// TestARunsResultIsItsOutcome: its state, why it is not the wanted one, and what it was about.
func TestARunsResultIsItsOutcome(t *testing.T) {
	t.Parallel()
	run := func(body func(workflow.Context) error) (out Outcome) {
		var suite testsuite.WorkflowTestSuite
		env := suite.NewTestWorkflowEnvironment()
		env.ExecuteWorkflow(WithOutcome(func(ctx workflow.Context, _ DrillInput) error { return body(ctx) }), DrillInput{})
		require.NoError(t, env.GetWorkflowError())
		require.NoError(t, env.GetWorkflowResult(&out))
		return out
	}
	require.Equal(t, Outcome{State: "done"}, run(func(workflow.Context) error { return nil }))
	require.Equal(t, Outcome{State: "failed", Reason: "drill_failed", Message: "it has no tables", OrgID: "acme", ServerID: "app-1"},
		run(func(ctx workflow.Context) error {
			require.NoError(t, searchable(ctx, AttrOrgID.ValueSet("acme"), AttrServerID.ValueSet("app-1")))
			last, _ := workflow.NewDisconnectedContext(ctx)
			setOutcome(last, "failed")
			because(last, prego.Reason("drill_failed"), "it has no tables")
			return nil
		}))
	require.Equal(t, Outcome{State: "active"}, run(func(ctx workflow.Context) error { succeeded(ctx); return nil }))
}
