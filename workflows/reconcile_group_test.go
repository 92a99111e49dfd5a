package workflows_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/workflows"
	"github.com/prego/prego/workload"
)

// groupWorld stands for the rows and hosts: plans are given in order, the last one for
// ever.
type groupWorld struct {
	mu    sync.Mutex
	plans []workload.GroupPlan
	asked []string
	boot  func(ctx context.Context, id string) error
}

func (w *groupWorld) note(s string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, s)
}

func runGroup(t *testing.T, w *groupWorld, before func(env *testsuite.TestWorkflowEnvironment)) *testsuite.TestWorkflowEnvironment {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(20 * time.Second)
	step := func(name string, f any) { env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }
	step("PlanGroup", func(context.Context, prego.GroupID) (workload.GroupPlan, error) {
		w.note("plan")
		w.mu.Lock()
		defer w.mu.Unlock()
		p := w.plans[0]
		if len(w.plans) > 1 {
			w.plans = w.plans[1:]
		}
		if p.OrgID == "gone" {
			return p, temporal.NewNonRetryableApplicationError("gone", activities.ErrTypeSuperseded, nil)
		}
		return p, nil
	})
	step("ServeInstances", func(context.Context, prego.Region) (activities.Served, error) {
		w.note("serve")
		return activities.Served{Busy: true}, nil
	})
	step("BootInstance", func(ctx context.Context, id string) error {
		w.note("boot " + id)
		if w.boot != nil {
			return w.boot(ctx, id)
		}
		return nil
	})
	step("StopInstance", func(_ context.Context, id string) error { w.note("stop " + id); return nil })
	step("FailInstance", func(_ context.Context, in activities.FailInstanceInput) error {
		w.note(string("fail "+in.InstanceID+" ") + in.Message)
		return nil
	})
	if before != nil {
		before(env)
	}
	env.ExecuteWorkflow(workflows.ReconcileGroup, workflows.ReconcileGroupInput{GroupID: "grp-0123456789ab"})
	require.True(t, env.IsWorkflowCompleted())
	return env
}

func groupPlan(change func(*workload.GroupPlan)) workload.GroupPlan {
	p := workload.GroupPlan{OrgID: "acme", Region: "eu", Wait: 30 * time.Second}
	change(&p)
	return p
}

func TestAGroupIsServedBootedAndSettles(t *testing.T) {
	t.Parallel()
	w := &groupWorld{plans: []workload.GroupPlan{
		groupPlan(func(p *workload.GroupPlan) { p.Serve = true }), // another worker serves: again soon
		groupPlan(func(p *workload.GroupPlan) { p.Boot, p.Stop = []string{"a"}, []string{"b"} }),
		groupPlan(func(p *workload.GroupPlan) { p.Settled = true }),
	}}
	env := runGroup(t, w, func(env *testsuite.TestWorkflowEnvironment) {
		for range 3 { // equal signals count as one
			env.RegisterDelayedCallback(func() { env.SignalWorkflow(workflows.SignalDemand, "changed") }, 0)
		}
	})
	require.NoError(t, env.GetWorkflowError())
	require.Contains(t, w.asked, "boot a")
	require.Contains(t, w.asked, "stop b")
	require.Equal(t, "plan", w.asked[len(w.asked)-1], "it ends with a look at the rows")
}

func TestAGroupThatIsGoneEndsItsRun(t *testing.T) {
	t.Parallel()
	w := &groupWorld{plans: []workload.GroupPlan{{OrgID: "gone"}}}
	require.NoError(t, runGroup(t, w, nil).GetWorkflowError())
	require.Equal(t, []string{"plan"}, w.asked)
}

func TestAnInstanceThatCanNotBeStartedIsGivenUp(t *testing.T) {
	t.Parallel()
	w := &groupWorld{
		plans: []workload.GroupPlan{
			groupPlan(func(p *workload.GroupPlan) { p.Boot = []string{"a"} }), groupPlan(func(p *workload.GroupPlan) { p.Settled = true }),
		},
		boot: func(context.Context, string) error {
			return temporal.NewNonRetryableApplicationError("no way", activities.ErrTypeContainer, nil)
		},
	}
	require.NoError(t, runGroup(t, w, nil).GetWorkflowError())
	require.Contains(t, w.asked, "fail a no way")
}

// TestWhatIsNoLongerWantedIsNotStartedAnyFurther cancels a start that is under way,
// and stops the instance only after it.
func TestWhatIsNoLongerWantedIsNotStartedAnyFurther(t *testing.T) {
	t.Parallel()
	w := &groupWorld{plans: []workload.GroupPlan{
		groupPlan(func(p *workload.GroupPlan) { p.Boot = []string{"a"} }),
		groupPlan(func(p *workload.GroupPlan) { p.Stop = []string{"a"} }), // cancels
		groupPlan(func(p *workload.GroupPlan) { p.Stop = []string{"a"} }),
		groupPlan(func(p *workload.GroupPlan) { p.Settled = true }),
	}}
	w.boot = func(ctx context.Context, _ string) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(15 * time.Second):
			return errors.New("it was never cancelled")
		}
	}
	env := runGroup(t, w, func(env *testsuite.TestWorkflowEnvironment) {
		env.RegisterDelayedCallback(func() { env.SignalWorkflow(workflows.SignalDemand, "changed") }, time.Second)
	})
	require.NoError(t, env.GetWorkflowError())
	var order []string
	for _, s := range w.asked {
		if s != "plan" {
			order = append(order, s)
		}
	}
	require.Equal(t, []string{"boot a", "stop a"}, order)
}
