package workflows

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// cloudRow is a volume's row and the steps on it.
type cloudRow struct {
	env    *testsuite.TestWorkflowEnvironment
	status workload.ResourceStatus
	left   int
	kept   time.Duration
	did    []string
	waits  []activities.OrgResourceWait
	make   func() error
}

func rowScript(status workload.ResourceStatus) *cloudRow {
	var suite testsuite.WorkflowTestSuite
	r := &cloudRow{env: suite.NewTestWorkflowEnvironment(), status: status, make: func() error { return nil }}
	step := func(name string, f any) {
		r.env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name})
	}
	step("PlanOrgResource", func(context.Context, activities.OrgResourceRef) (activities.OrgResourcePlan, error) {
		return activities.OrgResourcePlan{
			OrgID: "acme", Status: r.status, Left: r.left, Kept: r.kept, Wait: time.Hour, Poll: time.Minute,
		}, nil
	})
	step("MakeOrgResource", func(context.Context, activities.OrgResourceRef) error {
		r.did = append(r.did, "make")
		err := r.make()
		if err == nil && r.status == workload.ResourcePending {
			r.status = workload.ResourceReady
		}
		return err
	})
	step("OrgResourceWaits", func(_ context.Context, in activities.OrgResourceWait) error {
		r.waits = append(r.waits, in)
		if in.Failed {
			r.status = workload.ResourceFailed
		}
		return nil
	})
	step("ReleaseOrgResource", func(context.Context, activities.OrgResourceRef) error {
		r.did, r.status = append(r.did, "release"), ""
		return nil
	})
	step("DetachLeftVolume", func(context.Context, prego.VolumeID) error {
		r.did, r.left = append(r.did, "detach"), 0
		return nil
	})
	return r
}

func (r *cloudRow) run(t *testing.T) {
	t.Helper()
	r.env.ExecuteWorkflow(ReconcileVolume, OrgResourceInput{ID: "vol-1"})
	require.True(t, r.env.IsWorkflowCompleted())
}

func full() error {
	return temporal.NewNonRetryableApplicationError("volume limit exceeded", activities.ErrTypeQuota, nil)
}

func TestAFullProviderIsWaitedForAndThenSaidToBeFull(t *testing.T) {
	t.Parallel()
	r := rowScript(workload.ResourcePending)
	r.make = full
	r.run(t)
	require.NoError(t, r.env.GetWorkflowError())
	require.Len(t, r.waits, 61, "each minute of an hour")
	for i, w := range r.waits {
		require.Equal(t, []any{prego.ReasonNoCapacityVolume, "volume limit exceeded", i == 60}, []any{w.Reason, w.Message, w.Failed})
	}
	require.Equal(t, workload.ResourceFailed, r.status)
}

func TestAnAddressThatTheProviderLacksIsSaidSo(t *testing.T) {
	t.Parallel()
	r := rowScript(workload.ResourcePending)
	r.make = func() error {
		if len(r.did) > 2 {
			return nil
		}
		return temporal.NewNonRetryableApplicationError("none", activities.ErrTypeCandidate, nil)
	}
	r.env.ExecuteWorkflow(ReconcileAddress, OrgResourceInput{ID: "ip4-1"})
	require.NoError(t, r.env.GetWorkflowError())
	require.Len(t, r.waits, 2)
	require.Equal(t, prego.ReasonIPAMExhausted, r.waits[0].Reason)
	require.Equal(t, workload.ResourceReady, r.status)
}

func TestARefusalIsFinal(t *testing.T) {
	t.Parallel()
	r := rowScript(workload.ResourcePending)
	r.make = func() error {
		return temporal.NewNonRetryableApplicationError("the name is taken", activities.ErrTypePermanent, nil)
	}
	r.run(t)
	require.Equal(t, []activities.OrgResourceWait{{
		Ref: activities.OrgResourceRef{Kind: server.ResourceVolume, ID: "vol-1"}, Reason: prego.ReasonProviderRefused, Message: "the name is taken", Failed: true,
	}}, r.waits)
}

// TestAWaitIsEndedByAChange: a cancelled request does not wait for the provider, and a repeated
// signal changes nothing.
func TestAWaitIsEndedByAChange(t *testing.T) {
	t.Parallel()
	r := rowScript(workload.ResourcePending)
	r.make = full
	r.env.RegisterDelayedCallback(func() {
		r.status = workload.ResourceReleasing
		r.env.SignalWorkflow(SignalGeneration, again)
		r.env.SignalWorkflow(SignalGeneration, again)
	}, 10*time.Second)
	r.run(t)
	require.NoError(t, r.env.GetWorkflowError())
	require.Equal(t, []string{"make", "release"}, r.did)
}

// TestAKeptVolumeIsReleasedWhenItsTimeIsOver: by one timer, after it was taken from its server.
func TestAKeptVolumeIsReleasedWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	r := rowScript(workload.ResourceReleasing)
	r.left, r.kept = 1, 24*time.Hour
	var waited []time.Duration
	r.env.SetOnTimerScheduledListener(func(_ string, d time.Duration) { waited = append(waited, d) })
	r.env.RegisterDelayedCallback(func() { r.kept = 0 }, 24*time.Hour-time.Second)
	r.run(t)
	require.NoError(t, r.env.GetWorkflowError())
	require.Equal(t, []time.Duration{24 * time.Hour}, waited)
	require.Equal(t, []string{"detach", "release"}, r.did)
}

// TestAnUndoneDeletionReleasesNothing: the run hears of it and ends.
func TestAnUndoneDeletionReleasesNothing(t *testing.T) {
	t.Parallel()
	r := rowScript(workload.ResourceReleasing)
	r.kept = 24 * time.Hour
	began := r.env.Now()
	r.env.RegisterDelayedCallback(func() {
		r.status, r.kept = workload.ResourceReady, 0
		r.env.SignalWorkflow(SignalGeneration, again)
	}, time.Hour)
	r.run(t)
	require.NoError(t, r.env.GetWorkflowError())
	require.Empty(t, r.did)
	require.Less(t, r.env.Now().Sub(began), 2*time.Hour)
}

func TestALateSignalIsReadBeforeTheEnd(t *testing.T) {
	t.Parallel()
	r := rowScript(workload.ResourcePending)
	r.make = func() error {
		// The row is given back while it is being made, and then detached permanently.
		r.status, r.left = workload.ResourceReleasing, 1
		return nil
	}
	r.run(t)
	require.Equal(t, []string{"make", "detach", "release"}, r.did)
}

func TestACancelledRunStops(t *testing.T) {
	t.Parallel()
	r := rowScript(workload.ResourcePending)
	r.make = full
	r.env.RegisterDelayedCallback(r.env.CancelWorkflow, 10*time.Second)
	r.run(t)
	require.True(t, temporal.IsCanceledError(r.env.GetWorkflowError()))
	require.Equal(t, workload.ResourcePending, r.status, "the row is as it was: the reconciler begins another run")
}

// restoring is a restore whose steps fail as a test wants.
func restoring(fails map[string]bool) (env *testsuite.TestWorkflowEnvironment, did *[]string, end *activities.SnapshotEnd) {
	var suite testsuite.WorkflowTestSuite
	env, did, end = suite.NewTestWorkflowEnvironment(), &[]string{}, &activities.SnapshotEnd{}
	note := func(what string) error {
		*did = append(*did, what)
		if fails[what] {
			return temporal.NewNonRetryableApplicationError(what+" failed", activities.ErrTypeCommand, nil)
		}
		return nil
	}
	step := func(name string, f any) {
		env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name})
	}
	step("PlanRestore", func(context.Context, string) (activities.SnapshotPlan, error) {
		return activities.SnapshotPlan{OrgID: "acme", TenantID: "t-1", Files: []string{"new"}, Step: time.Minute}, nil
	})
	step("BeginRestore", func(context.Context, string) error {
		if fails["cancel"] {
			env.CancelWorkflow()
		}
		return nil
	})
	step("MaintainForRestore", func(_ context.Context, in activities.RestoreMaintenance) error {
		return note(map[bool]string{true: "online", false: "offline"}[in.Off])
	})
	step("BackupBeforeRestore", func(context.Context, string) ([]string, error) { return []string{"old"}, note("keep") })
	step("RestoreSite", func(_ context.Context, in activities.RestoreInput) error { return note(fmt.Sprint(in.What, in.Files)) })
	step("FinishRestore", func(_ context.Context, in activities.SnapshotEnd) error { *end = in; return nil })
	return env, did, end
}

func TestARestoreSaysWhatTheSiteIsLike(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fails []string
		did   []string
		says  string
	}{
		"nothing":         {nil, []string{"offline", "keep", "apply[new]", "online"}, ""},
		"offline":         {[]string{"offline"}, []string{"offline", "online"}, "could not be taken offline: offline failed. The site is as it was"},
		"keep":            {[]string{"keep"}, []string{"offline", "keep", "online"}, "could not be kept: keep failed. The site is as it was"},
		"apply":           {[]string{"apply[new]"}, []string{"offline", "keep", "apply[new]", "undo[old]", "online"}, "apply[new] failed. The site is as it was"},
		"apply and undo":  {[]string{"apply[new]", "undo[old]"}, []string{"offline", "keep", "apply[new]", "undo[old]"}, "The site stays in maintenance; what it held is in old"},
		"online":          {[]string{"online"}, []string{"offline", "keep", "apply[new]", "online"}, "holds the snapshot, and could not be brought back"},
		"keep and online": {[]string{"keep", "online"}, []string{"offline", "keep", "online"}, "holds what it held, and is in maintenance"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fails := map[string]bool{}
			for _, f := range tc.fails {
				fails[f] = true
			}
			env, did, end := restoring(fails)
			env.ExecuteWorkflow(RestoreTenant, RestoreJobInput{JobID: "rst-1"})
			require.NoError(t, env.GetWorkflowError())
			require.Equal(t, tc.did, *did)
			require.Contains(t, end.Message, tc.says)
			require.Equal(t, map[bool]tenant.JobStatus{true: tenant.JobSucceeded, false: tenant.JobFailed}[tc.says == ""], end.Status)
		})
	}
}

func TestARestoreThatHasBegunIsSeenToItsEnd(t *testing.T) {
	t.Parallel()
	env, did, end := restoring(map[string]bool{"cancel": true})
	env.ExecuteWorkflow(RestoreTenant, RestoreJobInput{JobID: "rst-1"})
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, []string{"offline", "keep", "apply[new]", "online"}, *did)
	require.Equal(t, tenant.JobSucceeded, end.Status)
}

func TestASnapshotThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	var end activities.SnapshotEnd
	step := func(name string, f any) {
		env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name})
	}
	step("PlanSnapshot", func(context.Context, prego.SnapshotID) (activities.SnapshotPlan, error) {
		return activities.SnapshotPlan{OrgID: "acme", TenantID: "t-1", Step: time.Minute}, nil
	})
	step("TakeSnapshot", func(context.Context, prego.SnapshotID) ([]string, error) {
		return []string{"half"}, temporal.NewNonRetryableApplicationError("the disk is full", activities.ErrTypeCommand, nil)
	})
	step("FinishSnapshot", func(_ context.Context, in activities.SnapshotEnd) error { end = in; return nil })
	env.ExecuteWorkflow(SnapshotTenant, SnapshotInput{SnapshotID: "snp-1"})
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, activities.SnapshotEnd{ID: "snp-1", Status: tenant.JobFailed, Message: "the disk is full"}, end)
}

// TestALastBackupWaitsAsLongAsItIsTold by the row.
func TestALastBackupWaitsAsLongAsItIsTold(t *testing.T) {
	t.Parallel()
	for _, told := range []time.Duration{5 * time.Minute, 40 * time.Minute, 6 * time.Hour} {
		r := rowScript(workload.ResourceReleasing)
		tries := 0
		r.env.RegisterActivityWithOptions(func(context.Context, activities.OrgResourceRef) (activities.OrgResourcePlan, error) {
			return activities.OrgResourcePlan{OrgID: "acme", Status: r.status, LastBackup: tries < 2, Wait: time.Hour, Poll: time.Minute}, nil
		}, activity.RegisterOptions{Name: "PlanOrgResource"})
		r.env.RegisterActivityWithOptions(func(context.Context, prego.VolumeID) (activities.BackupGranted, error) {
			tries++
			return activities.BackupGranted{}, temporal.NewNonRetryableApplicationError("no server", string(tenant.ReasonNoHost), nil)
		}, activity.RegisterOptions{Name: "WantVolumeBackup"})
		var said activities.VolumeNotBackedUp
		r.env.RegisterActivityWithOptions(func(_ context.Context, in activities.VolumeNotBackedUp) (time.Duration, error) {
			said = in
			return told, nil
		}, activity.RegisterOptions{Name: "SayNotBackedUp"})
		var waited []time.Duration
		r.env.SetOnTimerScheduledListener(func(_ string, d time.Duration) { waited = append(waited, d) })
		r.run(t)
		require.NoError(t, r.env.GetWorkflowError())
		require.Equal(t, []time.Duration{told, told}, waited)
		require.Equal(t, activities.VolumeNotBackedUp{VolumeID: "vol-1", Reason: tenant.ReasonNoHost, Message: "no server"}, said)
		require.Equal(t, []string{"release"}, r.did)
	}
}
