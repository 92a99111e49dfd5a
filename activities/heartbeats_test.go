package activities_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego/activities"
)

// TestHeartbeatsRepeatTheProgress of an earlier attempt, then that of this one.
func TestHeartbeatsRepeatTheProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := (&testsuite.WorkflowTestSuite{}).NewTestWorkflowEnvironment()
		env.SetTestTimeout(time.Hour)
		env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{&activities.Heartbeats{}}})
		var mu sync.Mutex
		var beats []int
		env.SetOnActivityHeartbeatListener(func(_ *activity.Info, details converter.EncodedValues) {
			mu.Lock()
			defer mu.Unlock()
			var n int
			require.NoError(t, details.Get(&n))
			beats = append(beats, n)
		})
		step := func(ctx context.Context) error {
			if activity.GetInfo(ctx).Attempt == 1 {
				activity.RecordHeartbeat(ctx, 7)
				return errors.New("once")
			}
			time.Sleep(5 * time.Second)
			activity.RecordHeartbeat(ctx, 8)
			time.Sleep(8 * time.Second)
			return nil
		}
		env.RegisterActivity(step)
		env.ExecuteWorkflow(func(ctx workflow.Context) error {
			ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
				StartToCloseTimeout: time.Minute, HeartbeatTimeout: 10 * time.Second, RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Millisecond},
			})
			return workflow.ExecuteActivity(ctx, step).Get(ctx, nil)
		})
		require.NoError(t, env.GetWorkflowError())
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []int{7, 7, 8}, beats, "the client sends one every 8 s")
	})
}
