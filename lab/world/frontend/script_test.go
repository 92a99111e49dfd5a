package frontend_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"golang.org/x/sync/errgroup"

	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/world/frontend"
)

// step is a step of a script, which a workflow plays.
type step struct {
	Do string
	// Times is how often an activity fails, or which branch of a version is taken.
	Times int
	// For is how long something takes.
	For time.Duration
	// Parts are separate scripts: concurrent or cancelled ones, or a child's.
	Parts [][]step
}

// told is what a script observed.
type told struct {
	Met []string
	// Runs are the ids of workflows that it waited for, Left of those ending with it, and Abandoned of the others.
	Runs, Left, Abandoned []string
}

func (t *told) add(other told) {
	t.Met, t.Runs = append(t.Met, other.Met...), append(t.Runs, other.Runs...)
	t.Left, t.Abandoned = append(t.Left, other.Left...), append(t.Abandoned, other.Abandoned...)
}

func (t *told) notef(format string, args ...any) { t.Met = append(t.Met, fmt.Sprintf(format, args...)) }

// acts are the activities of scripts.
type acts struct {
	mu      sync.Mutex
	reached map[string]chan struct{} // by workflow id
}

func (a *acts) at(id string) chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reached[id] == nil {
		a.reached[id] = make(chan struct{})
	}
	return a.reached[id]
}

// Fail fails so many times, and returns which attempt did not.
func (*acts) Fail(ctx context.Context, times int) (int, error) {
	n := int(activity.GetInfo(ctx).Attempt)
	if n <= times {
		return 0, temporal.NewApplicationError("not yet", "again")
	}
	return n, nil
}

func (*acts) Refuse(context.Context) error {
	return temporal.NewNonRetryableApplicationError("no", "refused", nil)
}

// Silent ends with its time in so many attempts.
func (*acts) Silent(ctx context.Context, times int) (int, error) {
	n := int(activity.GetInfo(ctx).Attempt)
	if n <= times {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return n, nil
}

// Hang ends when it is cancelled.
func (*acts) Hang(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
			activity.RecordHeartbeat(ctx)
		}
	}
}

// Here returns the script's progress to its player.
func (a *acts) Here(ctx context.Context) error {
	close(a.at(activity.GetInfo(ctx).WorkflowExecution.ID))
	return nil
}

// why describes the end of something, without details that differ from run to run.
func why(err error) string {
	var app *temporal.ApplicationError
	var late *temporal.TimeoutError
	switch {
	case err == nil:
		return "done"
	case temporal.IsCanceledError(err):
		return "cancelled"
	case errors.As(err, &app):
		return "failed: " + app.Type()
	case errors.As(err, &late):
		return "late: " + late.TimeoutType().String()
	}
	return err.Error()
}

// script plays steps, and returns its observations. It continues as a new run where it has this step.
func script(ctx workflow.Context, steps []step, before told) (told, error) {
	out := before
	for i, s := range steps {
		if s.Do == "again" {
			return out, workflow.NewContinueAsNewError(ctx, script, steps[i+1:], out)
		}
		if s.Do == "fail" {
			return out, temporal.NewApplicationError("as scripted", "ends", out)
		}
		if s.Do == "last" { // until it is ended
			if err := workflow.ExecuteActivity(patiently(ctx, 0), (*acts).Here).Get(ctx, nil); err != nil {
				return out, err
			}
			err := workflow.Sleep(ctx, time.Hour)
			apart, end := workflow.NewDisconnectedContext(ctx)
			defer end()
			out.notef("last %s", why(workflow.ExecuteActivity(patiently(apart, 0), (*acts).Fail, 1).Get(apart, nil)))
			if temporal.IsCanceledError(err) {
				err = temporal.NewCanceledError(out)
			}
			return out, err
		}
		play(ctx, fmt.Sprint(i), s, &out)
	}
	return out, nil
}

func patiently(ctx workflow.Context, attempts int32) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute, WaitForCancellation: true,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 20 * time.Millisecond, MaximumAttempts: attempts},
	})
}

// late is when an activity is that does not answer, and none is that does, on the busiest machine.
const late = 3 * time.Second

// play plays one step; path names it within its run.
func play(ctx workflow.Context, path string, s step, out *told) {
	var a *acts
	n := 0
	switch s.Do {
	case "sleep":
		out.notef("slept %s", why(workflow.Sleep(ctx, s.For)))
	case "tries": // as often as it needs
		err := workflow.ExecuteActivity(patiently(ctx, 0), a.Fail, s.Times).Get(ctx, &n)
		out.notef("tries %d %s", n, why(err))
	case "gives up":
		err := workflow.ExecuteActivity(patiently(ctx, int32(s.Times)), a.Fail, s.Times).Get(ctx, &n)
		out.notef("gives up %d %s", n, why(err))
	case "refused":
		out.notef("refused %s", why(workflow.ExecuteActivity(patiently(ctx, 0), a.Refuse).Get(ctx, nil)))
	case "silent": // its time to end, or to heartbeat, is over in the first attempts
		o := workflow.ActivityOptions{StartToCloseTimeout: late, RetryPolicy: &temporal.RetryPolicy{InitialInterval: 20 * time.Millisecond}}
		if s.For > 0 {
			o.StartToCloseTimeout, o.HeartbeatTimeout = time.Minute, late
		}
		err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), a.Silent, s.Times).Get(ctx, &n)
		out.notef("silent %d %s", n, why(err))
	case "never": // and its time with all attempts
		o := workflow.ActivityOptions{StartToCloseTimeout: late, ScheduleToCloseTimeout: late + 500*time.Millisecond}
		if s.Times == 0 {
			o = workflow.ActivityOptions{StartToCloseTimeout: late, RetryPolicy: &temporal.RetryPolicy{MaximumAttempts: 1}}
		}
		err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), a.Silent, 99).Get(ctx, nil)
		out.notef("never %s", why(err))
	case "unserved": // no worker takes it: its time to be started is over
		o := workflow.ActivityOptions{TaskQueue: "unserved", ScheduleToStartTimeout: s.For, StartToCloseTimeout: time.Minute}
		out.notef("unserved %s", why(workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), a.Refuse).Get(ctx, nil)))
	case "local":
		o := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{ScheduleToCloseTimeout: time.Minute, RetryPolicy: &temporal.RetryPolicy{InitialInterval: 10 * time.Millisecond}})
		err := workflow.ExecuteLocalActivity(o, a.Fail, s.Times).Get(ctx, &n)
		out.notef("local %d %s", n, why(err))
	case "refused local":
		o := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{ScheduleToCloseTimeout: time.Minute})
		out.notef("refused local %s", why(workflow.ExecuteLocalActivity(o, a.Refuse).Get(ctx, nil)))
	case "version":
		out.notef("version %d", workflow.GetVersion(ctx, "change-"+path, workflow.DefaultVersion, 2))
	case "side effect":
		_ = workflow.SideEffect(ctx, func(workflow.Context) any { return 4 }).Get(&n)
		out.notef("side effect %d", n)
	case "signals":
		c := workflow.GetSignalChannel(ctx, "word")
		for range s.Times {
			word := "none"
			ok, _ := c.ReceiveWithTimeout(ctx, time.Minute, &word)
			out.notef("signal %s %t", word, ok)
		}
	case "no signal":
		ok, _ := workflow.GetSignalChannel(ctx, "never sent").ReceiveWithTimeout(ctx, s.For, nil)
		out.notef("no signal %t", ok)
	case "all":
		parts := make([]told, len(s.Parts))
		wg := workflow.NewWaitGroup(ctx)
		for i, steps := range s.Parts {
			wg.Add(1)
			workflow.Go(ctx, func(ctx workflow.Context) {
				defer wg.Done()
				for k, s := range steps {
					play(ctx, fmt.Sprintf("%s.%d.%d", path, i, k), s, &parts[i])
				}
			})
		}
		wg.Wait(ctx)
		for _, p := range parts {
			out.add(p)
		}
	case "cancelled": // long work, after the short work has ended
		some, cancel := workflow.WithCancel(ctx)
		var ends []workflow.Future
		for i, part := range s.Parts {
			switch part[0].Do {
			case "timer":
				ends = append(ends, workflow.NewTimer(some, time.Hour))
			case "short timer":
				ends = append(ends, workflow.NewTimer(some, 10*time.Millisecond))
			case "hangs":
				o := workflow.ActivityOptions{StartToCloseTimeout: time.Hour, HeartbeatTimeout: 10 * time.Second, WaitForCancellation: part[0].Times == 1}
				ends = append(ends, workflow.ExecuteActivity(workflow.WithActivityOptions(some, o), a.Hang))
			case "short":
				ends = append(ends, workflow.ExecuteActivity(patiently(some, 0), a.Fail, 0))
			case "child":
				id := fmt.Sprintf("%s/%s.%d", workflow.GetInfo(ctx).WorkflowExecution.ID, path, i)
				o := workflow.WithChildOptions(some, workflow.ChildWorkflowOptions{WorkflowID: id, WaitForCancellation: true})
				out.Runs = append(out.Runs, id)
				ends = append(ends, workflow.ExecuteChildWorkflow(o, patient))
			}
		}
		_ = workflow.Sleep(ctx, 3*time.Second) // everything has begun by then
		cancel()
		for i, f := range ends {
			out.notef("cancelled %s %d %s", s.Parts[i][0].Do, s.Parts[i][0].Times, why(f.Get(ctx, nil)))
		}
	case "child":
		id := fmt.Sprintf("%s/%s", workflow.GetInfo(ctx).WorkflowExecution.ID, path)
		out.Runs = append(out.Runs, id)
		var got told
		err := workflow.ExecuteChildWorkflow(workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{WorkflowID: id}), script, s.Parts[0], told{}).Get(ctx, &got)
		out.notef("child %s", why(err))
		out.add(got)
	case "left": // a child that is there when its parent ends
		id := fmt.Sprintf("%s/%s", workflow.GetInfo(ctx).WorkflowExecution.ID, path)
		if s.Times == 2 {
			out.Abandoned = append(out.Abandoned, id)
		} else {
			out.Left = append(out.Left, id)
		}
		o := workflow.ChildWorkflowOptions{WorkflowID: id, ParentClosePolicy: []enumspb.ParentClosePolicy{
			enumspb.PARENT_CLOSE_POLICY_TERMINATE, enumspb.PARENT_CLOSE_POLICY_REQUEST_CANCEL, enumspb.PARENT_CLOSE_POLICY_ABANDON,
		}[s.Times]}
		if s.Times == 0 {
			// A cancelled parent asks its children to end, too: which comes first, that or the termination, is a race.
			ctx, _ = workflow.NewDisconnectedContext(ctx)
		}
		out.notef("left %s", why(workflow.ExecuteChildWorkflow(workflow.WithChildOptions(ctx, o), patient).GetChildWorkflowExecution().Get(ctx, nil)))
	default:
		panic("no such step: " + s.Do)
	}
}

// writeScript makes a script from chance.
func writeScript(r *rand.Rand) []step {
	short := func() time.Duration { return time.Duration(1+r.IntN(60)) * time.Millisecond }
	var steps func(n, deep int) []step
	steps = func(n, deep int) (out []step) {
		for range n {
			s := step{Do: []string{
				"sleep", "tries", "gives up", "refused", "silent", "never", "unserved", "local", "refused local", "version", "side effect", "no signal", "cancelled", "all", "child", "left",
			}[r.IntN(16)], For: short(), Times: 1 + r.IntN(3)}
			switch s.Do {
			case "silent":
				s.Times, s.For = r.IntN(2), time.Duration(r.IntN(2))
			case "never":
				s.Times = r.IntN(2)
			case "left":
				s.Times = r.IntN(3)
			case "cancelled":
				for range 1 + r.IntN(3) {
					s.Parts = append(s.Parts, []step{{Do: []string{"timer", "short timer", "hangs", "short", "child"}[r.IntN(5)], Times: r.IntN(2)}})
				}
			case "all":
				if deep == 0 {
					s.Do = "sleep"
					break
				}
				for range 2 + r.IntN(2) {
					s.Parts = append(s.Parts, steps(1+r.IntN(2), deep-1))
				}
			case "child":
				if deep == 0 {
					s.Do = "tries"
					break
				}
				part := steps(1+r.IntN(2), deep-1)
				switch r.IntN(4) {
				case 0:
					part = append(part, step{Do: "fail"})
				case 1:
					part = append(part, step{Do: "again"}, step{Do: "tries", Times: 1})
				}
				s.Parts = [][]step{part}
			}
			out = append(out, s)
		}
		return out
	}
	out := steps(1+r.IntN(4), 2)
	if r.IntN(2) == 0 {
		out = append([]step{{Do: "signals", Times: 1 + r.IntN(3)}}, out...)
	}
	if r.IntN(3) == 0 {
		out = append(append(out, step{Do: "again"}), steps(1+r.IntN(2), 1)...)
	}
	switch r.IntN(4) {
	case 0:
		out = append(out, step{Do: "fail"})
	case 1:
		out = append(out, step{Do: "last", Times: r.IntN(2)})
	}
	return out
}

// ending is compared: how a script ended, its observations, the status of each run, and the number of each event in the
// histories of the runs that it waited for. Details that depend on speed are left out: the number of workflow tasks,
// and work that was started or timed out just before it was ended.
type ending struct {
	Met    []string
	Status map[string]string
	Events map[string]int
}

// perform plays a script, and returns how it ended.
func perform(ctx context.Context, c client.Client, a *acts, id string, steps []step) (ending, error) {
	o := client.StartWorkflowOptions{ID: id, TaskQueue: taskQueue}
	var run client.WorkflowRun
	var err error
	if steps[0].Do == "signals" {
		run, err = c.SignalWithStartWorkflow(ctx, id, "word", "1", o, script, steps, told{})
		for i := 1; err == nil && i < steps[0].Times; i++ {
			err = c.SignalWorkflow(ctx, id, "", "word", fmt.Sprint(i+1))
		}
	} else {
		run, err = c.ExecuteWorkflow(ctx, o, script, steps, told{})
	}
	if err != nil {
		return ending{}, err
	}
	first := run.GetRunID()
	if last := steps[len(steps)-1]; last.Do == "last" {
		select {
		case <-a.at(id):
		case <-ctx.Done():
			return ending{}, ctx.Err()
		}
		time.Sleep(time.Second) // its sleep has begun by then
		if last.Times == 0 {
			err = c.CancelWorkflow(ctx, id, "")
		} else {
			err = c.TerminateWorkflow(ctx, id, "", "test")
		}
		if err != nil {
			return ending{}, err
		}
	}
	var got told
	e := ending{Status: map[string]string{}, Events: map[string]int{}}
	err = run.Get(ctx, &got)
	var app *temporal.ApplicationError
	var cancelled *temporal.CanceledError
	switch {
	case errors.As(err, &app) && app.HasDetails():
		err = app.Details(&got)
	case errors.As(err, &cancelled) && cancelled.HasDetails():
		err = cancelled.Details(&got)
	case err != nil && strings.Contains(err.Error(), "terminated"):
		err = nil
	}
	if err != nil {
		return ending{}, err
	}
	e.Met = got.Met
	if err := e.add(ctx, c, id, first); err != nil {
		return ending{}, err
	}
	for _, child := range got.Runs {
		if err := e.add(ctx, c, child, ""); err != nil {
			return ending{}, err
		}
	}
	for _, child := range got.Left {
		if _, err := e.status(ctx, c, child, time.Minute); err != nil {
			return ending{}, err
		}
	}
	for _, child := range got.Abandoned {
		if _, err := e.status(ctx, c, child, 300*time.Millisecond); err != nil {
			return ending{}, err
		}
	}
	return e, nil
}

// status adds the status that a run has, once it has ended or so much time is over. It returns its first run's id.
func (e *ending) status(ctx context.Context, c client.Client, id string, patience time.Duration) (first string, err error) {
	for late := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		d, err := c.DescribeWorkflowExecution(ctx, id, "")
		if err != nil {
			return "", fmt.Errorf("%s: %w", id, err)
		}
		if d.WorkflowExecutionInfo.Status != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING || time.Now().After(late) {
			e.Status[id] = d.WorkflowExecutionInfo.Status.String()
			return d.WorkflowExecutionInfo.FirstRunId, nil
		}
	}
}

// add adds a run, and its continuations.
func (e *ending) add(ctx context.Context, c client.Client, id, runID string) error {
	first, err := e.status(ctx, c, id, time.Minute)
	if err != nil {
		return err
	}
	if runID == "" {
		runID = first
	}
	for runID != "" {
		next, hangs := "", map[int64]bool{}
		events := c.GetWorkflowHistory(ctx, id, runID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for events.HasNext() {
			event, err := events.Next()
			if err != nil {
				return err
			}
			if on := event.GetWorkflowExecutionContinuedAsNewEventAttributes(); on != nil {
				next = on.NewExecutionRunId
			}
			if a := event.GetActivityTaskScheduledEventAttributes(); a != nil && a.ActivityType.Name == "Hang" {
				hangs[event.EventId] = true
			}
			if !hurried(event) && !hangs[event.GetActivityTaskStartedEventAttributes().GetScheduledEventId()] {
				e.Events[event.EventType.String()+about(event)]++
			}
		}
		runID = next
	}
	return nil
}

// hurried reports whether it depends on speed that there is such an event.
func hurried(e *historypb.HistoryEvent) bool {
	switch e.EventType {
	case enumspb.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, enumspb.EVENT_TYPE_WORKFLOW_TASK_STARTED, enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED, enumspb.EVENT_TYPE_WORKFLOW_TASK_FAILED,
		enumspb.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT, enumspb.EVENT_TYPE_ACTIVITY_TASK_CANCELED, enumspb.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED:
		return true
	case enumspb.EVENT_TYPE_TIMER_STARTED:
		return e.GetTimerStartedEventAttributes().GetStartToFireTimeout().AsDuration() == time.Hour
	}
	return false
}

// about is what matters of an event, besides that there is one.
func about(e *historypb.HistoryEvent) string {
	switch {
	case e.GetActivityTaskStartedEventAttributes() != nil:
		return fmt.Sprintf(" attempt %d", e.GetActivityTaskStartedEventAttributes().Attempt)
	case e.GetActivityTaskFailedEventAttributes() != nil:
		return " " + e.GetActivityTaskFailedEventAttributes().RetryState.String()
	case e.GetWorkflowExecutionSignaledEventAttributes() != nil:
		return " " + e.GetWorkflowExecutionSignaledEventAttributes().SignalName
	case e.GetMarkerRecordedEventAttributes() != nil:
		return " " + e.GetMarkerRecordedEventAttributes().MarkerName
	}
	return ""
}

// performAll plays scripts concurrently.
func performAll(t *testing.T, c client.Client, scripts map[string][]step) map[string]ending {
	t.Helper()
	a := &acts{reached: map[string]chan struct{}{}}
	w := worker.New(c, taskQueue, worker.Options{DisableEagerActivities: true})
	for _, f := range []any{script, patient} {
		w.RegisterWorkflow(f)
	}
	w.RegisterActivity(a)
	require.NoError(t, w.Start())
	defer w.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	out := map[string]ending{}
	var mu sync.Mutex
	var all errgroup.Group
	all.SetLimit(50)
	for _, id := range slices.Sorted(maps.Keys(scripts)) {
		all.Go(func() error {
			e, err := perform(ctx, c, a, id, scripts[id])
			mu.Lock()
			defer mu.Unlock()
			if out[id] = e; err != nil {
				return fmt.Errorf("%s: %w: %v", id, err, scripts[id])
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	return out
}

// TestScriptsEndAsOnTheRealService: 50 random workflows end with the same results, statuses and events on Temporal's
// own server and here, and the recorded histories replay.
func TestScriptsEndAsOnTheRealService(t *testing.T) {
	t.Parallel()
	binary, err := devstack.FindTemporal(filepath.Join("..", "..", "..", ".prego", "bin"))
	if err != nil {
		need.Missing(t, err.Error())
	}
	scripts := map[string][]step{}
	for seed := range deep.Times(50) {
		scripts[fmt.Sprintf("script-%d", seed)] = writeScript(rand.New(rand.NewPCG(uint64(seed), 7)))
	}
	var here map[string]ending
	var s *frontend.Service
	synctest.Test(t, func(t *testing.T) {
		next := 0
		var mu sync.Mutex
		s = frontend.New(frontend.Options{Namespace: "default", NewID: func() string {
			mu.Lock()
			defer mu.Unlock()
			next++
			return fmt.Sprintf("00000000-0000-4000-8000-%012d", next)
		}})
		c, err := client.Dial(client.Options{HostPort: frontend.Target, Logger: quiet, ConnectionOptions: client.ConnectionOptions{DialOptions: s.Connect(nil)}})
		require.NoError(t, err)
		here = performAll(t, c, scripts)
		c.Close()
		s.Close()
	})
	require.Empty(t, s.Failures())
	replay(t, s, script, patient)

	dir := t.TempDir()
	server, err := devstack.StartTemporal(t.Context(), devstack.TemporalConfig{Binary: binary, Dir: dir, NoSync: true, LogFile: filepath.Join(dir, "temporal.log")})
	require.NoError(t, err)
	t.Cleanup(func() { server.Stop(5 * time.Second) })
	c, err := client.Dial(client.Options{HostPort: server.Address(), Logger: quiet})
	require.NoError(t, err)
	defer c.Close()
	there := performAll(t, c, scripts)
	events := 0
	for _, id := range slices.Sorted(maps.Keys(scripts)) {
		steps := scripts[id]
		assert.Equal(t, there[id], here[id], "%s: expected is what the real service did with %v", id, steps)
		for _, n := range there[id].Events {
			events += n
		}
	}
	t.Logf("%d scripts ended alike, with %d events", len(scripts), events)
}
