package store

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/workload"
)

// placedInstance is a group of one instance that has its place.
func (s *Store) placedInstance(t *testing.T, n int) (prego.GroupID, string) {
	t.Helper()
	id, err := s.testGroup(t, n, "acme", 1, specOf(16))
	require.NoError(t, err)
	_, err = s.PlanGroup(t.Context(), prego.GroupID(id), time.Second)
	require.NoError(t, err)
	got, err := s.Allocate(t.Context(), workload.InstancePlace{GroupID: prego.GroupID(id), ServerID: "node-1"}, time.Second)
	require.NoError(t, err)
	require.Equal(t, workload.Allocated, got.Outcome)
	return prego.GroupID(id), string(got.InstanceID)
}

// TestAllocationChecksTagsAgain: the group's constraint and the pools of its org hold for the server that an earlier
// decision chose.
func TestAllocationChecksTagsAgain(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	change := func(sql string) { // tags and constraints are fixed for everyone else
		exec(t, s, `BEGIN; SET LOCAL session_replication_role = replica; `+sql+`; COMMIT`, pgx.QueryExecModeSimpleProtocol)
	}
	change(`UPDATE servers SET tags = '{blue}' WHERE server_id = 'node-1'`)
	const newest = `WHERE group_id = (SELECT max(group_id) FROM process_groups)`
	n := 0
	for name, tc := range map[string]struct {
		change string
		lost   bool
	}{
		"nothing":                             {change: `SELECT`},
		"the group requires its tag":          {change: `UPDATE process_groups SET require_tags = '{blue}' ` + newest},
		"the group requires another":          {change: `UPDATE process_groups SET require_tags = '{green}' ` + newest, lost: true},
		"the group disallows its tag":         {change: `UPDATE process_groups SET disallow_tags = '{blue}' ` + newest, lost: true},
		"its org's pool requires its tag":     {change: poolOf("acme", "{blue}", "{}")},
		"its org's pool requires another":     {change: poolOf("acme", "{green}", "{}"), lost: true},
		"its org's pool disallows its tag":    {change: poolOf("acme", "{}", "{blue}"), lost: true},
		"another org's pool requires another": {change: poolOf("other", "{green}", "{}")},
		"the default pool requires another": {change: `INSERT INTO placement_pools (pool_id, name, require_tags, disallow_tags, is_default, created_by, updated_by)
			VALUES ('p', 'p', '{green}', '{}', true, 'test', 'test')`, lost: true},
		"the default pool requires another, and another org has a pool": {change: poolOf("other", "{blue}", "{}") + `;
			INSERT INTO placement_pools (pool_id, name, require_tags, disallow_tags, is_default, created_by, updated_by)
			VALUES ('d', 'd', '{green}', '{}', true, 'test', 'test')`, lost: true},
		"its org's pool replaces the default pool": {change: poolOf("acme", "{blue}", "{}") + `;
			INSERT INTO placement_pools (pool_id, name, require_tags, disallow_tags, is_default, created_by, updated_by)
			VALUES ('d', 'd', '{green}', '{}', true, 'test', 'test')`},
	} {
		n++
		id, err := s.testGroup(t, n, "acme", 1, specOf(16))
		require.NoError(t, err)
		_, err = s.PlanGroup(t.Context(), prego.GroupID(id), time.Second)
		require.NoError(t, err)
		change(tc.change)
		got, err := s.Allocate(t.Context(), workload.InstancePlace{GroupID: prego.GroupID(id), ServerID: "node-1"}, time.Second)
		require.NoError(t, err)
		want := workload.Allocated
		if tc.lost {
			want = workload.AllocationLost
		}
		require.Equal(t, want, got.Outcome, name)
		change(`UPDATE process_groups SET require_tags = '{}', disallow_tags = '{}'; DELETE FROM org_placement_pools; DELETE FROM placement_pools`)
	}
}

// poolOf associates a pool with an org.
func poolOf(id, require, disallow string) string {
	return `INSERT INTO placement_pools (pool_id, name, require_tags, disallow_tags, created_by, updated_by)
		VALUES ('p', 'p', '` + require + `', '` + disallow + `', 'test', 'test');
		INSERT INTO org_placement_pools (org_id, pool_id, created_by) SELECT org_id, 'p', 'test' FROM orgs WHERE org_id = '` + id + `'`
}

// TestStartedInstanceIsWatched: it is started once, and an instance that is not healthy in time has failed,
// regardless of which process checks.
func TestStartedInstanceIsWatched(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	ctx := t.Context()
	group, id := s.placedInstance(t, 1)
	p, err := s.PlanGroup(ctx, group, time.Hour)
	require.NoError(t, err)
	require.Equal(t, []string{id}, p.Boot)

	ok, err := s.InstanceStarted(ctx, id, time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = s.InstanceStarted(ctx, id, time.Minute)
	require.NoError(t, err)
	require.False(t, ok, "a repeated start gives it no more time")
	p, err = s.PlanGroup(ctx, group, time.Hour)
	require.NoError(t, err)
	require.Empty(t, p.Boot)
	require.False(t, p.Settled)
	require.InDelta(t, time.Minute, p.Wait, float64(10*time.Second), "it is checked at its deadline")

	_, err = s.pool.Exec(ctx, `UPDATE instances SET healthy_by = now(), message = 'its health check ended with 1' WHERE instance_id = $1`, id)
	require.NoError(t, err)
	p, err = s.PlanGroup(ctx, group, time.Hour)
	require.NoError(t, err)
	require.Equal(t, 1, p.Late)
	require.Equal(t, []string{id}, p.Stop)
	i, err := s.GetInstance(ctx, id)
	require.NoError(t, err)
	require.Equal(t, workload.InstanceFailed, i.State)
	require.Equal(t, "it was not healthy in time: its health check ended with 1", i.Message)
	g, err := s.GetGroup(ctx, string(group))
	require.NoError(t, err)
	require.Equal(t, workload.ReasonInstanceFailed, g.StatusReason)
	require.NotNil(t, g.NextAttemptAt, "the next one waits")
}

// report writes one report of node-1, whose agent has the key "k".
func (s *Store) report(t *testing.T, r workload.InstanceReport) workload.ReportOutcome {
	t.Helper()
	if r.Key == nil {
		r.Key = []byte("k")
	}
	r.ServerID = "node-1"
	out, err := s.ReportInstances(t.Context(), []workload.InstanceReport{r})
	require.NoError(t, err)
	return out
}

func (s *Store) instanceState(t *testing.T, id string) string {
	t.Helper()
	i, err := s.GetInstance(t.Context(), id)
	require.NoError(t, err)
	return string(i.State) + "|" + i.Message
}

// TestReportsEndWithTheirServer: a terminated server's stream position is deleted, and does not return.
func TestReportsEndWithTheirServer(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	exec(t, s, `UPDATE servers SET agent_key_sha256 = 'k'`)
	s.report(t, workload.InstanceReport{Stream: "a", Seq: 1, Full: true})
	require.Equal(t, 1, count(t, s, "container_reports WHERE server_id = 'node-1'"))
	exec(t, s, `UPDATE servers SET status = 'draining' WHERE server_id = 'node-1'`)
	require.NoError(t, s.Terminate(t.Context(), "node-1"))
	require.Zero(t, count(t, s, "container_reports"))
	s.report(t, workload.InstanceReport{Stream: "b", Seq: 1, Full: true})
	require.Zero(t, count(t, s, "container_reports"))
}

// TestReportsOfContainers: an agent's reports become the state of its own instances, once and in order.
func TestReportsOfContainers(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	ctx := t.Context()
	_, err := s.pool.Exec(ctx, `UPDATE servers SET agent_key_sha256 = 'k'`)
	require.NoError(t, err)
	group, id := s.placedInstance(t, 1)
	tell := func(stream string, seq int64, full bool, seen ...workload.InstanceSight) workload.ReportOutcome {
		return s.report(t, workload.InstanceReport{Stream: stream, Seq: seq, Full: full, Seen: seen})
	}
	healthy := workload.InstanceSight{InstanceID: prego.InstanceID(id), Health: workload.HealthHealthy}
	failing := workload.InstanceSight{InstanceID: prego.InstanceID(id), Health: workload.HealthUnhealthy, Detail: "it ended with 1"}
	ended := workload.InstanceSight{InstanceID: prego.InstanceID(id), Ended: true, Detail: "it ended with status 137"}
	wakes := []workload.GroupRef{{GroupID: group, OrgID: "acme"}}

	// A stream begins with a full report, and only the bound key may begin one.
	require.Equal(t, []prego.ServerID{"node-1"}, tell("a", 2, false, healthy).Resync)
	require.Empty(t, s.report(t, workload.InstanceReport{Key: []byte("other"), Stream: "a", Seq: 1, Full: true, Seen: []workload.InstanceSight{healthy}}))
	require.Equal(t, "booting|", s.instanceState(t, id))
	require.Empty(t, tell("a", 1, true), "an instance that is not started yet can't be missing")
	require.Equal(t, "booting|", s.instanceState(t, id))

	// While it boots, a check that fails is only noted.
	require.Empty(t, tell("a", 2, false, failing), "the report precedes the record of the start")
	_, err = s.InstanceStarted(ctx, id, time.Minute)
	require.NoError(t, err)
	require.Equal(t, "booting|it ended with 1", s.instanceState(t, id))
	require.Equal(t, workload.ReportOutcome{Groups: wakes, Ran: 1}, tell("a", 3, false, healthy))
	require.Equal(t, "running|", s.instanceState(t, id))
	require.Empty(t, tell("a", 3, false, ended), "the same report again")
	require.Empty(t, tell("a", 2, false, ended), "a late report")
	require.Equal(t, []prego.ServerID{"node-1"}, tell("b", 2, false, ended).Resync)
	require.Equal(t, "running|", s.instanceState(t, id))
	require.Empty(t, tell("b", 1, true), "it became healthy so recently that the report may be older")
	_, err = s.pool.Exec(ctx, `UPDATE instances SET running_at = now() - interval '2 minutes'`)
	require.NoError(t, err)
	require.Empty(t, tell("c", 1, true, healthy))
	require.Equal(t, workload.ReportOutcome{Groups: wakes, Failed: 1}, tell("d", 1, true))
	require.Equal(t, "failed|its container is gone", s.instanceState(t, id))
	g, err := s.GetGroup(ctx, string(group))
	require.NoError(t, err)
	require.Equal(t, workload.ReasonInstanceFailed, g.StatusReason)
	require.NotNil(t, g.NextAttemptAt)
	require.Empty(t, tell("d", 2, false, healthy), "a failed instance stays failed")
	require.Equal(t, "failed|its container is gone", s.instanceState(t, id))

	for i, tc := range []struct {
		sight workload.InstanceSight
		want  string
	}{{ended, "failed|it ended with status 137"}, {failing, "failed|its health check fails: it ended with 1"}} {
		_, id := s.placedInstance(t, i+2)
		healthy.InstanceID, tc.sight.InstanceID = prego.InstanceID(id), prego.InstanceID(id)
		tell("d", int64(10*i+10), false, healthy)
		tell("d", int64(10*i+11), false, tc.sight)
		require.Equal(t, tc.want, s.instanceState(t, id))
	}
}
