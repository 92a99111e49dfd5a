package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/workload"
)

// rolling is a group whose rounds are played.
type rolling struct {
	*testing.T
	s  *Store
	id prego.GroupID
}

func newRolling(t *testing.T, replicas int) *rolling {
	t.Helper()
	s := groupBundle(t)
	id, err := s.testGroup(t, 1, "acme", replicas, specOf(16))
	require.NoError(t, err)
	r := &rolling{t, s, prego.GroupID(id)}
	r.settle()
	return r
}

func (r *rolling) exec(sql string, args ...any) {
	r.Helper()
	_, err := r.s.pool.Exec(r.Context(), sql, args...)
	require.NoError(r, err)
}

func (r *rolling) plan() workload.GroupPlan {
	r.Helper()
	p, err := r.s.PlanGroup(r.Context(), r.id, time.Hour)
	require.NoError(r, err)
	return p
}

func (r *rolling) group() workload.Group {
	r.Helper()
	g, err := r.s.GetGroup(r.Context(), string(r.id))
	require.NoError(r, err)
	return g
}

// place plans and gives everything that is wanted a place.
func (r *rolling) place() (ids []string) {
	r.Helper()
	for r.plan(); ; {
		got, err := r.s.Allocate(r.Context(), workload.InstancePlace{GroupID: r.id, ServerID: "node-1"}, time.Hour)
		require.NoError(r, err)
		if got.Outcome != workload.Allocated {
			return ids
		}
		ids = append(ids, string(got.InstanceID))
	}
}

func (r *rolling) stop(ids []string) {
	r.Helper()
	for _, id := range ids {
		_, err := r.s.InstanceStopped(r.Context(), id)
		require.NoError(r, err)
	}
}

// fail makes an instance crash, and be stopped.
func (r *rolling) fail(id string) {
	r.Helper()
	ok, err := r.s.InstanceFailed(r.Context(), id, "it exited with 1")
	require.NoError(r, err)
	require.True(r, ok)
	r.stop([]string{id})
}

// settle plays successful rounds until nothing is left to do.
func (r *rolling) settle() {
	r.Helper()
	for range 50 {
		r.place()
		p := r.plan()
		if p.Settled {
			return
		}
		for _, id := range p.Boot {
			_, err := r.s.InstanceRunning(r.Context(), id)
			require.NoError(r, err)
		}
		r.stop(p.Stop)
	}
	r.Fatal("it never settled")
}

func (r *rolling) deploy(image string, change *workload.RolloutChange) workload.Group {
	r.Helper()
	spec := specOf(16)
	spec.Image = image
	g, err := r.s.DeployGroup(r.Context(), r.id, spec, change, "ann")
	require.NoError(r, err)
	return g
}

// operation checks the operation as a waiting client sees it.
func (r *rolling) operation(status ops.OperationStatus, reason string) {
	r.Helper()
	op, err := r.s.Operation(r.Context(), workload.GroupWorkflowID(r.id))
	require.NoError(r, err)
	require.Equal(r, []any{status, reason}, []any{op.Status, op.Reason})
}

// history is the group's rollouts, the newest first, as "release kind outcome by".
func (r *rolling) history() (out []string) {
	r.Helper()
	page, _, err := Rollouts.In(r.s)(r.Context(), prego.ListQuery{Limit: 200, Filters: map[string][]string{"group_id": {string(r.id)}}})
	require.NoError(r, err)
	for _, x := range page {
		require.Equal(r, x.Outcome == workload.RolloutUnderWay, x.EndedAt == nil)
		text := string(rune('0'+x.Release)) + " " + string(x.Kind) + " " + string(x.Outcome) + " " + x.CreatedBy
		if x.Reason != "" {
			text += " " + x.Reason
		}
		out = append(out, text)
	}
	return out
}

func TestARolloutThatFailsGoesBack(t *testing.T) {
	t.Parallel()
	r := newRolling(t, 2)
	require.Equal(t, []string{"1 create succeeded test"}, r.history())
	g := r.deploy("bad:1", nil)
	require.Equal(t, []any{2, workload.DeployRolling}, []any{g.Release, g.DeployStatus})
	for crash := range 3 {
		ids := r.place()
		require.Len(t, ids, 1, "crash %d", crash)
		r.fail(ids[0])
		require.Empty(t, r.place(), "the place is empty for a while")
		r.exec(`UPDATE instances SET retry_at = now() - interval '1s' WHERE retry_at IS NOT NULL`)
	}
	g = r.group()
	require.Equal(t, []any{1, 1, workload.DeployRolledBack, "web:1", workload.ReasonInstanceFailed}, []any{g.Release, g.StableRelease, g.DeployStatus, g.Spec.Image, g.DeployReason})
	require.Equal(t, "release 2 did not become healthy: 3 instances failed, and 2 may: it exited with 1", g.DeployMessage)
	r.settle()
	require.Equal(t, []string{"1 rollback succeeded system", "2 deploy rolled_back ann instance_failed", "1 create succeeded test"}, r.history())
	require.Equal(t, workload.DeployRolledBack, r.group().DeployStatus)
	r.operation(ops.OperationFailed, workload.ReasonInstanceFailed)
	require.Equal(t, 2, r.group().Instances[workload.InstanceRunning])
	var old int
	require.NoError(t, r.s.pool.QueryRow(t.Context(), `SELECT max(number) FROM instances WHERE state = 'running'`).Scan(&old))
	require.Equal(t, 2, old, "running instances continue untouched")
}

func TestARolloutWithoutProgressGoesBack(t *testing.T) {
	t.Parallel()
	r := newRolling(t, 2)
	r.deploy("slow:1", nil)
	ids := r.place()
	require.InDelta(t, 600*time.Second, r.plan().Wait, float64(10*time.Second), "it is looked at when its time is over")
	r.exec(`UPDATE process_groups SET progress_at = now() - interval '601 s'`)
	_, err := r.s.InstanceRunning(t.Context(), ids[0])
	require.NoError(t, err)
	r.plan()
	require.Equal(t, workload.DeployRolling, r.group().DeployStatus, "one more that is healthy is progress")
	r.exec(`UPDATE process_groups SET progress_at = now() - interval '601 s', status_message = 'no server fits'`)
	require.Equal(t, workload.RolloutRolledBack, r.plan().Ended)
	g := r.group()
	require.Equal(t, []any{workload.DeployRolledBack, workload.ReasonProgressDeadline}, []any{g.DeployStatus, g.DeployReason})
	require.Equal(t, "release 2 did not become healthy: no instance more within 10m0s: no server fits", g.DeployMessage)
}

func TestARolloutThatFailsIsLeftWhenItShouldBe(t *testing.T) {
	t.Parallel()
	r := newRolling(t, 1)
	never := false
	deadline := 5
	g := r.deploy("slow:1", &workload.RolloutChange{AutoRollback: &never, ProgressDeadlineSeconds: &deadline})
	require.Equal(t, workload.RolloutPolicy{MaxSurge: workload.Share{N: 1}, ProgressDeadlineSeconds: 5, MaxFailures: 2}, g.Policy)
	r.place()
	r.exec(`UPDATE process_groups SET progress_at = now() - interval '6 s'`)
	for _, ended := range []workload.RolloutOutcome{workload.RolloutFailed, ""} {
		require.Equal(t, ended, r.plan().Ended)
		g = r.group()
		require.Equal(t, []any{2, workload.DeployFailed, workload.ReasonProgressDeadline}, []any{g.Release, g.DeployStatus, g.DeployReason})
	}
	require.Equal(t, []string{"2 deploy failed ann progress_deadline_exceeded", "1 create succeeded test"}, r.history())
	r.operation(ops.OperationFailed, workload.ReasonProgressDeadline)
	r.settle()
	r.operation(ops.OperationSucceeded, "")
	g = r.group()
	require.Equal(t, []any{2, workload.DeploySucceeded, "", ""}, []any{g.StableRelease, g.DeployStatus, g.DeployReason, g.DeployMessage})
	require.Equal(t, "2 deploy succeeded ann", r.history()[0])
}

func TestRollbackRestartAndHistory(t *testing.T) {
	t.Parallel()
	r := newRolling(t, 1)
	ctx := t.Context()
	_, err := r.s.RollBackGroup(ctx, r.id, 0, "ann", "")
	require.Equal(t, prego.CodeReleaseNotFound, prego.CodeOf(err), "there is nothing before")
	r.deploy("web:2", nil)
	r.settle()
	r.deploy("web:3", nil)
	g := r.deploy("web:4", nil) // takes over
	require.Equal(t, 4, g.Release)
	r.settle()
	require.Equal(t, []string{"4 deploy succeeded ann", "3 deploy superseded ann", "2 deploy succeeded ann", "1 create succeeded test"}, r.history())
	require.Equal(t, 4, r.deploy("web:4", nil).Release, "the same spec is no other release")

	g, err = r.s.RollBackGroup(ctx, r.id, 0, "bob", "")
	require.NoError(t, err)
	require.Equal(t, []any{2, "web:2", workload.DeployRolling}, []any{g.Release, g.Spec.Image, g.DeployStatus})
	r.settle()
	g, err = r.s.RollBackGroup(ctx, r.id, 1, "bob", "")
	require.NoError(t, err)
	require.Equal(t, "web:1", g.Spec.Image)
	r.settle()
	again, err := r.s.RollBackGroup(ctx, r.id, 1, "bob", "")
	require.NoError(t, err)
	require.Equal(t, workload.DeploySucceeded, again.DeployStatus, "it is there")
	_, err = r.s.RollBackGroup(ctx, r.id, 9, "bob", "")
	require.Equal(t, prego.CodeReleaseNotFound, prego.CodeOf(err))

	before, err := r.s.InstancesOn(ctx, "node-1")
	require.NoError(t, err)
	g, err = r.s.RestartGroup(ctx, r.id, "bob", "key-1")
	require.NoError(t, err)
	require.Equal(t, []any{5, "web:1"}, []any{g.Release, g.Spec.Image})
	r.settle()
	g, err = r.s.RestartGroup(ctx, r.id, "bob", "key-1")
	require.NoError(t, err)
	require.Equal(t, 5, g.Release, "it was requested before")
	g, err = r.s.RollBackGroup(ctx, r.id, 0, "bob", "key-1")
	require.NoError(t, err)
	require.Equal(t, 5, g.Release)
	after, err := r.s.InstancesOn(ctx, "node-1")
	require.NoError(t, err)
	require.NotEqual(t, before[0].InstanceID, after[0].InstanceID)
	require.Equal(t, []string{"5 restart succeeded bob", "1 rollback succeeded bob", "2 rollback succeeded bob", "4 deploy succeeded ann"}, r.history()[:4])

	for range workload.KeptRollouts + 5 { // 5 and the release that is restarted take turns
		_, err = r.s.RollBackGroup(ctx, r.id, 0, "bob", "")
		require.NoError(t, err)
		r.settle()
	}
	require.Len(t, r.history(), workload.KeptRollouts)
	var events int
	require.NoError(t, r.s.pool.QueryRow(ctx, `SELECT count(*) FROM org_events WHERE type IN ('group.roll_back', 'group.restart') AND actor = 'bob'`).Scan(&events))
	require.Equal(t, 3+workload.KeptRollouts+5, events)
}

// TestCrashesAreCountedAndWaitedOut: each place by itself, in rows.
func TestCrashesAreCountedAndWaitedOut(t *testing.T) {
	t.Parallel()
	r := newRolling(t, 2)
	id := string(r.id[4:])
	victim := "ins-" + id + "-1"
	for crash, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		r.fail(victim)
		p := r.plan()
		require.False(t, p.Serve, "crash %d", crash)
		require.InDelta(t, want, p.Wait, float64(want))
		reason := workload.ReasonInstanceFailed
		if crash == 2 {
			reason = workload.ReasonCrashLoop
		}
		require.Equal(t, reason, r.group().StatusReason)
		require.NotNil(t, r.group().NextAttemptAt)
		if crash == 0 { // an instance that did not crash does not wait
			r.exec(`UPDATE process_groups SET replicas = 3, wanted = 0`)
			require.Len(t, r.place(), 1)
			r.settleBooting()
		}
		r.exec(`UPDATE instances SET retry_at = now() - interval '1s' WHERE retry_at IS NOT NULL`)
		ids := r.place()
		require.Len(t, ids, 1)
		victim = ids[0]
		i, err := r.s.GetInstance(t.Context(), victim)
		require.NoError(t, err)
		require.Equal(t, crash+1, i.Restarts)
	}
	// An instance that ran for long starts its count again.
	r.settleBooting()
	r.exec(`UPDATE instances SET running_at = now() - interval '11 minutes' WHERE instance_id = $1`, victim)
	r.fail(victim)
	require.InDelta(t, time.Second, r.plan().Wait, float64(time.Second))
	require.Equal(t, workload.ReasonInstanceFailed, r.group().StatusReason)
	// A user's request does not wait.
	_, err := r.s.ScaleGroup(impact.By(t.Context(), "test"), r.id, 4, "ann")
	require.NoError(t, err)
	require.Len(t, r.place(), 2)
}

// settleBooting makes all that boots run.
func (r *rolling) settleBooting() {
	r.Helper()
	for _, id := range r.plan().Boot {
		_, err := r.s.InstanceRunning(r.Context(), id)
		require.NoError(r, err)
	}
}

func TestDrainingTakesItsTime(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	spec := specOf(16)
	spec.DrainSeconds = 30
	id, err := s.testGroup(t, 1, "acme", 1, spec)
	require.NoError(t, err)
	r := &rolling{t, s, prego.GroupID(id)}
	r.settle()
	_, err = s.ScaleGroup(impact.By(t.Context(), "test"), r.id, 0, "ann")
	require.NoError(t, err)
	for range 2 {
		p := r.plan()
		require.Empty(t, p.Stop)
		require.False(t, p.Settled)
		require.InDelta(t, 30*time.Second, p.Wait, float64(10*time.Second))
	}
	r.exec(`UPDATE instances SET drain_until = now()`)
	require.Len(t, r.plan().Stop, 1)
}

func TestAPausedGroupIsNotRolled(t *testing.T) {
	t.Parallel()
	r := newRolling(t, 2)
	_, err := r.s.PauseGroup(t.Context(), r.id, true, "ann")
	require.NoError(t, err)
	r.deploy("web:2", nil)
	require.True(t, r.plan().Settled)
	require.Equal(t, 1, r.group().StableRelease)
	_, err = r.s.PauseGroup(t.Context(), r.id, false, "ann")
	require.NoError(t, err)
	r.settle()
	require.Equal(t, 2, r.group().StableRelease)
	require.Equal(t, "2 deploy succeeded ann", r.history()[0])
}

// TestTheQuotaLimitsTheSurge to what it has room for.
func TestTheQuotaLimitsTheSurge(t *testing.T) {
	t.Parallel()
	r := newRolling(t, 3)
	three := workload.Share{N: 3}
	r.deploy("web:2", &workload.RolloutChange{MaxSurge: &three})
	r.exec(`INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ('acme', 'max_instances', 4, 'test')`)
	require.Len(t, r.place(), 1)
	g := r.group()
	require.Equal(t, workload.DeployRolling, g.DeployStatus)
	require.False(t, r.plan().Serve, "no more are tried")
	r.settle()
	require.Equal(t, workload.DeploySucceeded, r.group().DeployStatus)
}

// TestTheVersionBeforeDeploysWithoutARollout while processes are replaced.
func TestTheVersionBeforeDeploysWithoutARollout(t *testing.T) {
	t.Parallel()
	r := newRolling(t, 1)
	r.exec(`UPDATE process_groups SET release = 2, last_release = 2, spec = jsonb_set(spec, '{image}', '"web:2"'), deploy_status = 'rolling', wanted = 0, failures = 0, converged = false,
		progress_at = now() - interval '1 day'`)
	r.settle()
	require.Equal(t, []any{2, workload.DeploySucceeded}, []any{r.group().StableRelease, r.group().DeployStatus})
	require.Equal(t, []string{"1 create succeeded test"}, r.history())
	r.deploy("web:3", nil)
	r.settle()
	require.Equal(t, "3 deploy succeeded ann", r.history()[0])
}

// TestALateRolloutNamesWhatDelaysIt: a rollback for lack of progress ends with what the newest instance reports.
func TestALateRolloutNamesWhatDelaysIt(t *testing.T) {
	t.Parallel()
	r := newRolling(t, 2)
	r.deploy("slow:1", &workload.RolloutChange{MaxSurge: &workload.Share{N: 2}})
	ids := r.place()
	require.Len(t, ids, 2)
	r.fail(ids[0])
	require.NoError(t, r.s.InstanceRetries(t.Context(), ids[1], "pull slow:1: no such host"))
	r.exec(`UPDATE process_groups SET progress_at = now() - interval '601 s'`)
	require.Equal(t, workload.RolloutRolledBack, r.plan().Ended)
	require.Equal(t, "release 2 did not become healthy: no instance more within 10m0s: not started yet: pull slow:1: no such host",
		r.group().DeployMessage)
}
