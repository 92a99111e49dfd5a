package workflows

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// outage is a provider that fails some tries of creating a server, and a run that meets it.
type outage struct {
	env      *testsuite.TestWorkflowEnvironment
	fails    int // tries that fail, of three calls each
	attempts []int
	at       []time.Duration // of the tries, since the run began
	awaited  []string        // what the server's row reported
	did      []string
	end      activities.FailInput
}

func meetOutage(fails int, capacityWait time.Duration) *outage {
	var suite testsuite.WorkflowTestSuite
	o := &outage{env: suite.NewTestWorkflowEnvironment(), fails: fails}
	began := o.env.Now()
	step := func(name string, f any) { o.env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }
	step("PlanProvisioning", func(context.Context, activities.ServerRef) (activities.ProvisionPlan, error) {
		return activities.ProvisionPlan{
			Role: prego.RoleApp, Region: "eu", Candidates: []server.Candidate{{ServerType: "cx43", Location: "fsn1"}}, Machines: make([]activities.Machine, 1),
			Timeouts: make([]server.BootTimeouts, 1), MaxRetries: 2, CapacityWait: capacityWait, CapacityPoll: 30 * time.Second, TokenTTL: 15 * time.Minute,
			ProviderPauses: []time.Duration{30 * time.Second, 2 * time.Minute},
		}, nil
	})
	step("MakeServer", func(_ context.Context, in activities.CreateServerInput) (activities.MadeServer, error) {
		o.attempts, o.at = append(o.attempts, in.Attempt), append(o.at, o.env.Now().Sub(began).Round(time.Second))
		if len(o.at) <= o.fails {
			return activities.MadeServer{}, temporal.NewNonRetryableApplicationError("after 3 calls: unavailable", activities.ErrTypeProvider, nil)
		}
		o.env.SignalWorkflow(SignalAgent, AgentSignal{Kind: SignalHeartbeat, Attempt: in.Attempt})
		return activities.MadeServer{Handle: server.Handle{ProviderServerID: "1", Attempt: in.Attempt}}, nil
	})
	step("ReadProgress", func(context.Context, activities.ServerRef) (activities.Progress, error) {
		return activities.Progress{Handshake: true, FirstHeartbeat: true}, nil
	})
	step("AwaitProvider", func(_ context.Context, in activities.NoteInput) error {
		o.awaited = append(o.awaited, string(in.Reason)+": "+in.Message)
		return nil
	})
	step("NoteAttemptFailed", func(context.Context, activities.NoteInput) error { o.did = append(o.did, "noted"); return nil })
	step("DestroyServer", func(_ context.Context, in activities.DestroyInput) (activities.DestroyResult, error) {
		o.did = append(o.did, "destroyed")
		return activities.DestroyResult{}, nil
	})
	step("FinishServer", func(context.Context, activities.FinishInput) error { o.did = append(o.did, "active"); return nil })
	step("FailServer", func(_ context.Context, in activities.FailInput) error { o.end = in; return nil })
	return o
}

func (o *outage) run() error {
	o.env.ExecuteWorkflow(ProvisionServer, ProvisionServerInput{ServerID: "app-1", Generation: 1})
	return o.env.GetWorkflowError()
}

func seconds(s ...int) []time.Duration {
	out := make([]time.Duration, len(s))
	for i, n := range s {
		out[i] = time.Duration(n) * time.Second
	}
	return out
}

// TestOutageOfTheProviderCostsNoServer has the provider refuse six calls. The three tries, of three calls each, are 30 s
// and 2 min apart and share an attempt, which adopts what landed.
func TestOutageOfTheProviderCostsNoServer(t *testing.T) {
	t.Parallel()
	o := meetOutage(2, time.Hour)
	require.NoError(t, o.run())
	require.Equal(t, seconds(0, 30, 150), o.at)
	require.Equal(t, []int{1, 1, 1}, o.attempts)
	require.Equal(t, []string{"active"}, o.did)
	const why = "awaiting_provider: after 3 calls: unavailable; tried again in "
	require.Equal(t, []string{why + "30s", why + "2m0s"}, o.awaited)
}

// TestOutageThatLastsEndsTheRun ends it after three tries, or when a server may wait no longer.
func TestOutageThatLastsEndsTheRun(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		wait  time.Duration
		at    []time.Duration
		ended string
	}{
		"after three tries":       {time.Hour, seconds(0, 30, 150), "after 3 calls: unavailable"},
		"after the capacity wait": {2 * time.Minute, seconds(0, 30), "the provider failed for 2m0s: after 3 calls: unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := meetOutage(100, tc.wait)
			require.Error(t, o.run())
			require.Equal(t, tc.at, o.at)
			require.Equal(t, prego.ReasonFailedCreate, o.end.Reason)
			require.Equal(t, tc.ended, o.end.Message)
			require.Equal(t, []string{"destroyed"}, o.did, "what landed late is looked for")
		})
	}
}

// TestCancelEndsThePause: a server that waits for the provider is given up as soon as it is cancelled or deleted.
func TestCancelEndsThePause(t *testing.T) {
	t.Parallel()
	o := meetOutage(100, time.Hour)
	began := o.env.Now()
	o.env.RegisterDelayedCallback(o.env.CancelWorkflow, 40*time.Second)
	require.True(t, temporal.IsCanceledError(errors.Unwrap(o.run())))
	require.Equal(t, seconds(0, 30), o.at)
	require.Equal(t, 40*time.Second, o.env.Now().Sub(began).Round(time.Second))
	require.Equal(t, []string{"destroyed"}, o.did)
	require.Equal(t, "provisioning was cancelled", o.end.Message)
}

// scarce is a run that finds no stock until a time.
func scarce(t *testing.T, until time.Duration) (o *outage, rounds *[]time.Duration, awaited *[]string) {
	t.Helper()
	o = meetOutage(0, 12*time.Hour)
	began := o.env.Now()
	rounds, awaited = new([]time.Duration), new([]string)
	step := func(name string, f any) {
		o.env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name, DisableAlreadyRegisteredCheck: true})
	}
	step("MakeServer", func(_ context.Context, in activities.CreateServerInput) (activities.MadeServer, error) {
		at := o.env.Now().Sub(began).Round(time.Second)
		*rounds = append(*rounds, at)
		if at < until {
			return activities.MadeServer{}, temporal.NewNonRetryableApplicationError("no stock", activities.ErrTypeCandidate, nil)
		}
		o.env.SignalWorkflow(SignalAgent, AgentSignal{Kind: SignalHeartbeat, Attempt: in.Attempt})
		return activities.MadeServer{Handle: server.Handle{ProviderServerID: "1", Attempt: in.Attempt}}, nil
	})
	step("AwaitCapacity", func(_ context.Context, in activities.NoteInput) error {
		*awaited = append(*awaited, in.Message)
		return nil
	})
	return o, rounds, awaited
}

// TestWaitingForStockCostsLessAndLess: an hour without stock is ten rounds, with pauses from 30 s to 10 minutes.
func TestWaitingForStockCostsLessAndLess(t *testing.T) {
	t.Parallel()
	o, rounds, awaited := scarce(t, time.Hour)
	require.NoError(t, o.run())
	require.Equal(t, seconds(0, 30, 90, 210, 450, 930, 1530, 2130, 2730, 3330, 3930), *rounds)
	require.Len(t, *awaited, 10)
	require.Equal(t, []string{"active"}, o.did)
}

// TestStockThatReturnsWakesWhoWaits: the next round begins with the signal.
func TestStockThatReturnsWakesWhoWaits(t *testing.T) {
	t.Parallel()
	o, rounds, _ := scarce(t, 20*time.Minute)
	o.env.RegisterDelayedCallback(func() { o.env.SignalWorkflow(SignalAgent, AgentSignal{Kind: SignalStock}) }, 20*time.Minute)
	require.NoError(t, o.run())
	require.Equal(t, seconds(0, 30, 90, 210, 450, 930, 1200), *rounds)
}

// TestAWaitContinuesInAnotherRun: the history of a run does not grow with its wait, which keeps its begin and its pause.
func TestAWaitContinuesInAnotherRun(t *testing.T) {
	t.Parallel()
	o, rounds, _ := scarce(t, 100*time.Hour)
	began := o.env.Now()
	o.env.RegisterDelayedCallback(func() { o.env.SetContinueAsNewSuggested(true) }, 5*time.Minute)
	err := o.run()
	require.True(t, workflow.IsContinueAsNewError(err), "%v", err)
	var next *workflow.ContinueAsNewError
	require.ErrorAs(t, err, &next)
	var in ProvisionServerInput
	require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(next.Input, &in))
	require.Equal(t, seconds(0, 30, 90, 210), *rounds)
	require.Equal(t, began.Unix(), in.Waited.Since.Unix())
	require.Equal(t, 8*time.Minute, in.Waited.Pause)
	require.Equal(t, 1, in.Generation)
	require.Empty(t, o.did)
	require.Empty(t, o.end.Reason, "the server still waits")

	o, rounds, _ = scarce(t, 100*time.Hour)
	in.Waited.Since = o.env.Now().Add(-12*time.Hour + 10*time.Minute)
	o.env.ExecuteWorkflow(ProvisionServer, in)
	require.Error(t, o.env.GetWorkflowError())
	require.Equal(t, seconds(0, 480, 600), *rounds)
	require.Equal(t, prego.ReasonFailedCapacity, o.end.Reason)
}
