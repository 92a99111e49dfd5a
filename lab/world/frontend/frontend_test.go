package frontend_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/world/frontend"
)

const taskQueue = "q"

var quiet = log.NewStructuredLogger(slog.New(slog.DiscardHandler))

func TestMain(m *testing.M) {
	worker.SetStickyWorkflowCacheSize(0) // each task replays its run
	os.Exit(m.Run())
}

// steps are activities that count how often they ran.
type steps struct{ tries atomic.Int32 }

func (s *steps) Flaky(_ context.Context, failures int) (int, error) {
	n := s.tries.Add(1)
	if int(n) <= failures {
		return 0, errors.New("not yet")
	}
	return int(n), nil
}

func (*steps) Refuse(context.Context) error {
	return temporal.NewNonRetryableApplicationError("no", "refused", nil)
}

// Resume heartbeats, falls silent at its first attempt, and continues from its details.
func (*steps) Resume(ctx context.Context) (int, error) {
	from := 0
	if activity.HasHeartbeatDetails(ctx) {
		if err := activity.GetHeartbeatDetails(ctx, &from); err != nil {
			return 0, err
		}
		return from, nil
	}
	activity.RecordHeartbeat(ctx, 7)
	<-ctx.Done()
	return 0, ctx.Err()
}

// Wait ends when it is cancelled.
func (*steps) Wait(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
			activity.RecordHeartbeat(ctx)
		}
	}
}

func retrying(ctx workflow.Context) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute, HeartbeatTimeout: time.Second, WaitForCancellation: true,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaximumInterval: time.Second},
	})
}

// story uses everything that prego's workflows do, and returns what it met.
func story(ctx workflow.Context, round int) ([]string, error) {
	var met []string
	note := func(format string, args ...any) { met = append(met, fmt.Sprintf(format, args...)) }
	var s *steps
	var n int
	err := workflow.ExecuteActivity(retrying(ctx), s.Flaky, 2).Get(ctx, &n)
	note("flaky %v", err)
	err = workflow.ExecuteActivity(retrying(ctx), s.Refuse).Get(ctx, nil)
	var refused *temporal.ApplicationError
	note("refused %t", errors.As(err, &refused) && refused.Type() == "refused")
	err = workflow.ExecuteActivity(retrying(ctx), s.Resume).Get(ctx, &n)
	note("resumed %d %v", n, err)
	local := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{ScheduleToCloseTimeout: time.Minute})
	err = workflow.ExecuteLocalActivity(local, s.Flaky, 0).Get(ctx, nil)
	note("local %v", err)

	cancelled, cancel := workflow.WithCancel(ctx)
	waiting := workflow.ExecuteActivity(retrying(cancelled), s.Wait)
	timer := workflow.NewTimer(cancelled, time.Hour)
	_ = workflow.Sleep(ctx, 500*time.Millisecond)
	cancel()
	note("wait cancelled %t", temporal.IsCanceledError(waiting.Get(ctx, nil)))
	note("timer cancelled %t", temporal.IsCanceledError(timer.Get(ctx, nil)))

	child := workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{WorkflowID: workflow.GetInfo(ctx).WorkflowExecution.ID + "/child"})
	err = workflow.ExecuteChildWorkflow(child, kid, false).Get(ctx, &n)
	note("child %d %v", n, err)
	err = workflow.ExecuteChildWorkflow(child, kid, true).Get(ctx, nil)
	note("child failed %t", err != nil)
	stopped, stop := workflow.WithCancel(child)
	f := workflow.ExecuteChildWorkflow(stopped, patient)
	if err := f.GetChildWorkflowExecution().Get(ctx, nil); err != nil {
		return nil, err
	}
	stop()
	note("child cancelled %t", temporal.IsCanceledError(f.Get(ctx, nil)))

	var word string
	signals := workflow.GetSignalChannel(ctx, "word")
	got := workflow.NewSelector(ctx).AddReceive(signals, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, &word) }).
		AddFuture(workflow.NewTimer(ctx, time.Minute), func(workflow.Future) { word = "timeout" })
	got.Select(ctx)
	note("signal %s", word)
	if round == 0 {
		return nil, workflow.NewContinueAsNewError(ctx, story, 1)
	}
	return met, nil
}

func kid(ctx workflow.Context, fail bool) (int, error) {
	if err := workflow.Sleep(ctx, 100*time.Millisecond); err != nil {
		return 0, err
	}
	if fail {
		return 0, errors.New("failed")
	}
	return 3, nil
}

func patient(ctx workflow.Context) error { return workflow.Sleep(ctx, time.Hour) }

// tell plays the story on a service, and returns its workflow's observations.
func tell(t *testing.T, c client.Client, id string) []string {
	t.Helper()
	w := worker.New(c, taskQueue, worker.Options{})
	for _, f := range []any{story, kid, patient} {
		w.RegisterWorkflow(f)
	}
	w.RegisterActivity(&steps{})
	require.NoError(t, w.Start())
	defer w.Stop()
	ctx := context.Background()
	o := client.StartWorkflowOptions{ID: id, TaskQueue: taskQueue, WorkflowExecutionErrorWhenAlreadyStarted: true}
	run, err := c.SignalWithStartWorkflow(ctx, id, "word", "one", o, story, 0)
	require.NoError(t, err)
	o.WorkflowIDConflictPolicy = enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL
	_, err = c.ExecuteWorkflow(ctx, o, story, 0)
	require.Error(t, err, "it is running")
	first := run.GetRunID()
	var signalled sync.WaitGroup
	defer signalled.Wait()
	signalled.Go(func() { // after it has continued as new: the first run would also take it
		for {
			now, err := c.DescribeWorkflowExecution(ctx, id, "")
			if err != nil || now.WorkflowExecutionInfo.Execution.RunId != first {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		_ = c.SignalWorkflow(ctx, id, "", "word", "two")
	})
	var met []string
	require.NoError(t, run.Get(ctx, &met))
	var gone *serviceerror.NotFound
	require.NoError(t, c.CancelWorkflow(ctx, id, ""), "it has ended")
	require.ErrorAs(t, c.CancelWorkflow(ctx, "none", ""), &gone)
	require.ErrorAs(t, c.SignalWorkflow(ctx, id, "", "word", "three"), &gone)
	require.ErrorAs(t, c.TerminateWorkflow(ctx, id, "", "test"), &gone)
	again, err := c.ExecuteWorkflow(ctx, o, kid, false)
	require.NoError(t, err, "it has ended")
	require.NoError(t, c.TerminateWorkflow(ctx, id, "", "test"))
	require.ErrorContains(t, again.Get(ctx, nil), "terminated")
	return met
}

var expected = []string{
	"flaky <nil>", "refused true", "resumed 7 <nil>", "local <nil>", "wait cancelled true", "timer cancelled true", "child 3 <nil>", "child failed true", "child cancelled true", "signal two",
}

// TestStoryOnTheRealService: the story is not what this package made up.
func TestStoryOnTheRealService(t *testing.T) {
	t.Parallel()
	binary, err := devstack.FindTemporal(filepath.Join("..", "..", "..", ".prego", "bin"))
	if err != nil {
		need.Missing(t, err.Error())
	}
	dir := t.TempDir()
	real, err := devstack.StartTemporal(t.Context(), devstack.TemporalConfig{Binary: binary, Dir: dir, NoSync: true, LogFile: filepath.Join(dir, "temporal.log")})
	require.NoError(t, err)
	t.Cleanup(func() { real.Stop(5 * time.Second) })
	c, err := client.Dial(client.Options{HostPort: real.Address(), Logger: quiet})
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, expected, tell(t, c, "story"))
}

// TestStory: the SDK's own client and worker see the same as at the real service, and the recorded history replays.
func TestStory(t *testing.T) {
	var met []string
	var began, ended time.Time
	var s *frontend.Service
	synctest.Test(t, func(t *testing.T) {
		next := 0
		s = frontend.New(frontend.Options{Namespace: "default", NewID: func() string { next++; return fmt.Sprintf("00000000-0000-4000-8000-%012d", next) }})
		c, err := client.Dial(client.Options{HostPort: frontend.Target, Logger: quiet, ConnectionOptions: client.ConnectionOptions{DialOptions: s.Connect(nil)}})
		require.NoError(t, err)
		began = time.Now()
		met = tell(t, c, "story")
		ended = time.Now()
		c.Close()
		s.Close()
	})
	require.Equal(t, expected, met)
	require.Greater(t, ended.Sub(began), time.Second, "by the clock of the bubble")
	require.Empty(t, s.Failures())
	replay(t, s, story, kid, patient)
}

func replay(t *testing.T, s *frontend.Service, workflows ...any) {
	t.Helper()
	r, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{DisableDeadlockDetection: true}) // this machine may be busy
	require.NoError(t, err)
	for _, f := range workflows {
		r.RegisterWorkflow(f)
	}
	for _, h := range s.Histories() {
		if !slices.ContainsFunc(h.Events.Events, func(e *historypb.HistoryEvent) bool { return e.EventType == enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED }) {
			continue // it was ended before its code ran
		}
		require.NoError(t, r.ReplayWorkflowHistoryWithOptions(quiet, h.Events, worker.ReplayWorkflowHistoryOptions{OriginalExecution: workflow.Execution{ID: h.WorkflowID, RunID: h.RunID}}), h.WorkflowID)
	}
}
