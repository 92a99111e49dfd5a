package workflows

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/testsuite"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// TestCancelledUpdatesLetGoOfTheirServers: a cancelled update ends within seconds, also while a step is repeated. Before
// anything was changed it just ends; later it goes back, unless the sites are being opened.
func TestCancelledUpdatesLetGoOfTheirServers(t *testing.T) {
	t.Parallel()
	for stuck, want := range map[string][]string{
		"waiting":      {"let go"},
		"PrepareBench": {"PrepareBench", "let go"},
		"CloseSites":   {"PrepareBench", "CloseSites", "UndoBench", "OfflineSite", "SwapBench", "RestoreOld", "OpenSites", "ForgetOld", "rolled_back"},
		"MigrateSite": {
			"PrepareBench", "CloseSites", "KeepSite", "SwapBench", "MigrateSite",
			"UndoBench", "OfflineSite", "SwapBench", "RestoreOld", "OpenSites", "ForgetOld", "rolled_back",
		},
		"OpenSites": {
			"PrepareBench", "CloseSites", "KeepSite", "SwapBench", "MigrateSite", "CheckSite", "OpenSites", "ForgetOld", "done",
		},
	} {
		t.Run(stuck, func(t *testing.T) {
			t.Parallel()
			var suite testsuite.WorkflowTestSuite
			env := suite.NewTestWorkflowEnvironment()
			var did []string
			cancelled, touched, began := false, false, env.Now()
			note := func(what string) {
				if len(did) == 0 || did[len(did)-1] != what {
					did = append(did, what)
				}
			}
			step := func(name string, f any) { env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }
			step("PlanBench", func(context.Context, activities.BenchRef) (activities.BenchPlan, error) {
				if cancelled && !touched {
					note("let go")
					return activities.BenchPlan{Done: true}, nil
				}
				p := activities.BenchPlan{Try: 1, Step: time.Hour, Sites: []server.StackReleaseSite{{Site: "s", TenantID: "t-1"}}, Cancelled: cancelled}
				if stuck == "waiting" {
					p.Waits = "tenant t-1 is being moved"
				}
				return p, nil
			})
			for _, name := range []string{
				"PrepareBench", "CloseSites", "KeepSite", "SwapBench", "MigrateSite", "CheckSite", "OpenSites", "UndoBench", "OfflineSite", "RestoreOld", "ForgetOld",
			} {
				step(name, func(context.Context, any) error {
					note(name)
					touched = touched || name == "CloseSites"
					if name == stuck && env.Now().Sub(began) < 110*time.Second {
						return errors.New("it does not answer")
					}
					return nil
				})
			}
			step("NoteBench", func(context.Context, activities.PhaseInput) error { return nil })
			step("EndBench", func(_ context.Context, end activities.BenchEnd) error {
				note(string(end.Status))
				return nil
			})
			env.RegisterDelayedCallback(func() {
				cancelled = true
				env.CancelWorkflow()
			}, 100*time.Second)
			env.ExecuteWorkflow(UpdateBench, BenchUpdateInput{Release: "r1", ServerID: "app-1"})
			require.NoError(t, env.GetWorkflowError())
			require.Equal(t, want, did)
			if stuck != "OpenSites" {
				require.Less(t, env.Now().Sub(began), 110*time.Second, "it is let go within seconds")
			}
		})
	}
}
