package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// TestExactlyWhatIsUpcomingIsDestroyed: each kind is listed for a week, the week passes with a backup at each turn, and
// then the timers act.
func TestExactlyWhatIsUpcomingIsDestroyed(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 6), t.Context()
	periods := tenant.LifecyclePeriods{Trial: 48 * time.Hour, Grace: 24 * time.Hour, Retention: 24 * time.Hour}
	const week = 7 * 24 * time.Hour
	daily := tenant.BackupPolicy{Plan: prego.PlanStarter, Schedule: "0 12 * * *", Retention: tenant.Retention{Daily: 4}}
	require.NoError(t, s.PutBackupPolicy(impact.By(ctx, "test"), daily, "ann"))
	noon := time.Now().UTC().Truncate(24 * time.Hour).Add(12 * time.Hour)
	if !noon.Before(time.Now()) {
		noon = noon.AddDate(0, 0, -1)
	}
	for n := range 3 {
		for _, id := range []string{"t-0", "t-1", "t-2"} {
			backupAt(t, s, id, fmt.Sprintf("bak-%s-%d", id, n), noon.AddDate(0, 0, -n))
		}
	}
	// t-0 lives, and one of its backups is held. t-1 is cancelled, and so is t-2, which has more than a week. t-3 is a
	// trial, t-4 ends although nobody has ended it, and t-5 has a backup that expires.
	_, err := s.HoldBackup(ctx, tenant.BackupOwner{TenantID: "t-0"}, "bak-t-0-1", "a case", "ann")
	require.NoError(t, err)
	for _, id := range []prego.TenantID{"t-1", "t-2"} {
		_, err := s.ChangeTenant(impact.By(ctx, "test"), id, tenant.ActionCancel, periods, "ann", "")
		require.NoError(t, err)
	}
	exec(t, s, `UPDATE tenants SET deadline_at = now() + interval '10 days' WHERE tenant_id = 't-2'`)
	exec(t, s, `UPDATE tenants SET plan = 'trial', deadline_at = now() + interval '2 days' WHERE tenant_id = 't-3'`)
	exec(t, s, `UPDATE tenants SET state = 'terminated', deadline_at = now() + interval '1 day'
		WHERE tenant_id = 't-4'`)
	backupAt(t, s, "t-5", "bak-last", noon)
	exec(t, s, `UPDATE backups SET kind = 'final', expires_at = now() + interval '3 days' WHERE backup_id = 'bak-last'`)
	exec(t, s, `INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by)
		VALUES ('nodes', '', 'node', 'hetzner', 0, 9, '{}', 'test')`)
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id,
		created_by, fleet_id) VALUES ('n-9', '', 'node', 'eu', 'hetzner', '{}', 'active', 'w', 'test', 'nodes')`)
	_, err = s.RequestFleetAction(ctx, server.FleetActionRequest{
		FleetID: "nodes", Action: server.ClusterScaleIn, Inputs: []byte(`{"count":1}`), By: "bob",
	}, scale.Plan)
	require.NoError(t, err)
	_, err = s.BeginFleetAction(ctx, "nodes", scale.Plan)
	require.NoError(t, err)

	all, truncated, err := s.Upcoming(ctx, time.Now().Add(week), periods, scale.Plan)
	require.NoError(t, err)
	require.False(t, truncated)
	require.True(t, slices.IsSortedFunc(all, func(a, b impact.Upcoming) int { return a.At.Compare(b.At) }))
	listed := []string{}
	for _, u := range all {
		if u.ID == "t-4" {
			require.Nil(t, u.AcceptedAt)
			continue
		}
		require.NotNil(t, u.AcceptedAt, u.ID)
		require.NotEmpty(t, u.Stop, u.ID)
		listed = append(listed, u.ID)
	}
	none, _, err := s.Upcoming(ctx, time.Now().Add(time.Minute), periods, scale.Plan)
	require.NoError(t, err)
	require.Len(t, none, 1, "the fleet's server: %v", none)

	// The week passes.
	exec(t, s, `UPDATE tenants SET deadline_at = deadline_at - interval '7 days'`)
	exec(t, s, `UPDATE backups SET taken_at = taken_at - interval '7 days',
		expires_at = expires_at - interval '7 days'`)
	for n := range 7 {
		backupAt(t, s, "t-0", fmt.Sprintf("bak-new-%d", n), noon.AddDate(0, 0, -n))
	}
	for range 3 {
		due, _, err := s.FindTenantWork(ctx, time.Hour, time.Hour)
		require.NoError(t, err)
		for _, d := range due.Expired {
			_, _ = s.ExpireTenant(ctx, d.TenantID, periods)
		}
		exec(t, s, `UPDATE tenants SET deadline_at = now() WHERE tenant_id IN ('t-1', 't-3') AND deadline_at > now()`)
	}
	gone, err := values[string](ctx, s.pool, `SELECT tenant_id FROM tenants WHERE state = 'data_purged'`)
	require.NoError(t, err)
	for _, id := range gone {
		require.NoError(t, s.ExpireBackups(ctx, prego.TenantID(id), time.Hour))
	}
	deleted := func(of prego.TenantID, id prego.BackupID) {
		_, err := s.DeleteBackup(impact.Standing(ctx, "retention"), tenant.BackupOwner{TenantID: of}, id, "retention")
		require.NoError(t, err)
	}
	kept, err := s.Retained(ctx, "t-0")
	require.NoError(t, err)
	for _, id := range tenant.Surplus(kept, daily.Retention, time.Now()) {
		deleted("t-0", id)
	}
	left, err := s.BackupsLeft(ctx, time.Hour, 100)
	require.NoError(t, err)
	for _, b := range left {
		if b.State == tenant.BackupStored {
			deleted(b.TenantID, b.BackupID)
		}
	}
	_, err = s.DecommissionMember(ctx, "n-9", "nodes action 1")
	require.NoError(t, err)
	lost, err := values[string](ctx, s.pool, `
SELECT backup_id FROM backups WHERE state = 'deleting' AND backup_id NOT LIKE 'bak-new-%'
UNION ALL SELECT server_id FROM servers WHERE status = 'draining'`)
	require.NoError(t, err)
	require.ElementsMatch(t, append(gone, lost...), listed)
	require.ElementsMatch(t, []string{
		"t-1", "t-3", "n-9", "bak-last", "bak-t-0-0", "bak-t-0-2", "bak-t-1-0", "bak-t-1-1", "bak-t-1-2",
	}, listed)
}

// TestUpcomingListsQueuedRemovals: servers that actions remove once those in front of them have ended, each once, with
// who requested the action and how it is cancelled.
func TestUpcomingListsQueuedRemovals(t *testing.T) {
	t.Parallel()
	s, ctx := tenantStore(t), t.Context()
	exec(t, s, `INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by)
		VALUES ('nodes', '', 'node', 'hetzner', 1, 9, '{}', 'test')`)
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id,
		created_by, fleet_id)
		SELECT 'n-' || n, '', 'node', 'eu', 'hetzner', '{}', 'active', 'w', 'test', 'nodes'
		FROM generate_series(1, 4) n`)
	listed := func() (out []string) {
		all, _, err := s.Upcoming(ctx, time.Now().Add(time.Hour), tenant.LifecyclePeriods{}, scale.Plan)
		require.NoError(t, err)
		for _, u := range all {
			require.NotNil(t, u.AcceptedAt)
			out = append(out, fmt.Sprint(u.Kind, " ", u.Policy, " ", u.AcceptedBy, ": ", u.Stop))
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	request := func(by string) {
		_, err := s.RequestFleetAction(ctx, server.FleetActionRequest{
			FleetID: "nodes", Action: server.ClusterScaleIn, Inputs: []byte(`{"count":1}`), By: by,
		}, scale.Plan)
		require.NoError(t, err)
	}
	require.Empty(t, listed())
	request("ann")
	request("bob")
	both := []string{"server fleet ann: prego fleet cancel nodes 1", "server fleet bob: prego fleet cancel nodes 2"}
	require.Equal(t, both, listed())
	_, err := s.BeginFleetAction(ctx, "nodes", scale.Plan)
	require.NoError(t, err)
	require.Equal(t, both, listed(), "the first runs")
	all, _, err := s.Upcoming(ctx, time.Now().Add(time.Hour), tenant.LifecyclePeriods{}, scale.Plan)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.NotEqual(t, all[0].ID, all[1].ID, "the second removes another server")
}
