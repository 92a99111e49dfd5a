package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	sdktemporal "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// fairnessKey is the fairness key of a run: whose turn its tasks take.
func fairnessKey(t *testing.T, workflowID string) string {
	t.Helper()
	d, err := temporalClient.DescribeWorkflowExecution(t.Context(), workflowID, "")
	require.NoError(t, err)
	return d.GetWorkflowExecutionInfo().GetPriority().GetFairnessKey()
}

// TestABacklogDelaysNoOtherOrg: many runs of one org wait for a worker, and those of another that come last have every
// other turn, with their activities. A queue has partitions, which are drained one after the other at worst: in each
// the quiet org's half is first.
func TestABacklogDelaysNoOtherOrg(t *testing.T) {
	t.Parallel()
	const queue, backlog, few = "e2e-fairness", 100, 20
	var mu sync.Mutex
	var order []string
	step := func(_ context.Context, org string) error {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, org)
		return nil
	}
	run := func(ctx workflow.Context, org string) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
			StartToCloseTimeout: patience, DisableEagerExecution: true,
		})
		return workflow.ExecuteActivity(ctx, step, org).Get(ctx, nil)
	}
	start := func(org string, n int) client.WorkflowRun {
		r, err := temporalClient.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
			ID: fmt.Sprintf("fairness/%s/%d", org, n), TaskQueue: queue,
			Priority: sdktemporal.Priority{FairnessKey: org, FairnessWeight: 1},
		}, run, org)
		require.NoError(t, err)
		return r
	}
	var all []client.WorkflowRun
	for n := range backlog {
		all = append(all, start("noisy", n))
	}
	for n := range few {
		all = append(all, start("quiet", n))
	}
	w := worker.New(temporalClient, queue, worker.Options{
		MaxConcurrentWorkflowTaskExecutionSize: 2, MaxConcurrentActivityExecutionSize: 1,
		MaxConcurrentWorkflowTaskPollers: 2, MaxConcurrentActivityTaskPollers: 1,
	})
	w.RegisterWorkflow(run)
	w.RegisterActivity(step)
	require.NoError(t, w.Start())
	defer w.Stop()
	for _, r := range all {
		require.NoError(t, r.Get(t.Context(), nil))
	}
	require.Len(t, order, backlog+few)
	var quiet []int
	for at, org := range order {
		if org == "quiet" {
			quiet = append(quiet, at)
		}
	}
	require.Less(t, quiet[few/2], (backlog+few)/2, "%v", order)
}
