package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// TestDrillsHavePlaces: on another server of the region than the tenant's, one on each, the one
// that is tagged for it first; in no pool; and again when their turn comes.
func TestDrillsHavePlaces(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 6), context.Background() // t-0 and t-3 on n-0, t-1 and t-4 on n-1 (eu), t-2 and t-5 on n-2 (us)
	exec(t, s, `UPDATE servers SET agent_status = 'connected'`)
	exec(t, s, `INSERT INTO backup_turns (tenant_id, policy_at, next_at) SELECT tenant_id, now(), now() FROM tenants`)
	storedBackup(t, s, "bak-old", "t-0", 2*time.Hour)
	storedBackup(t, s, "bak-new", "t-0", time.Hour)
	storedBackup(t, s, "bak-1", "t-1", time.Hour)
	storedBackup(t, s, "bak-2", "t-2", time.Hour)
	due := func(most int) []prego.TenantID {
		t.Helper()
		ids, err := s.DueDrills(ctx, time.Hour, most)
		require.NoError(t, err)
		return ids
	}
	require.Equal(t, []prego.TenantID{"t-0", "t-1", "t-2"}, due(5), "those with a backup")
	require.Len(t, due(2), 2)

	begin := func(id prego.TenantID, backup prego.BackupID) (tenant.Drill, error) {
		return s.BeginDrill(ctx, id, backup, "sites.test", "test")
	}
	d, err := begin("t-0", "")
	require.NoError(t, err)
	require.Equal(t, []any{prego.BackupID("bak-new"), prego.ServerID("n-1"), tenant.DrillRunning}, []any{d.BackupID, d.ServerID, d.State}, "the newest, elsewhere")
	require.Equal(t, 1, count(t, s, "site_pool WHERE state = 'draining' AND site_name LIKE 'drill-%.sites.test' AND database_name LIKE 'pool_drill_%'"))
	_, err = begin("t-0", "bak-old")
	require.Equal(t, prego.CodeRestoreUnderWay, prego.CodeOf(err))
	other, err := begin("t-1", "")
	require.NoError(t, err)
	require.Equal(t, prego.ServerID("n-0"), other.ServerID)
	_, err = begin("t-4", "")
	require.Equal(t, prego.CodeBackupNotFound, prego.CodeOf(err))
	storedBackup(t, s, "bak-4", "t-4", time.Hour)
	_, err = begin("t-4", "bak-1")
	require.Equal(t, prego.CodeBackupNotFound, prego.CodeOf(err), "another tenant's")
	_, err = begin("t-4", "")
	require.Equal(t, prego.CodeInsufficientResources, prego.CodeOf(err), "each server has one")
	require.Equal(t, []prego.TenantID{"t-2"}, due(3), "with the two that are under way")
	_, err = s.DeleteBackup(ctx, "t-0", "bak-new", "test")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err), "it is being restored")

	end := tenant.DrillEnd{DrillID: d.DrillID, State: tenant.DrillFailed, Reason: tenant.ReasonDigest, Message: "no"}
	for range 2 {
		require.NoError(t, s.FinishDrill(ctx, end, 59*time.Minute))
		end.State = tenant.DrillPassed // repeated, it changes nothing
	}
	run, err := s.DrillRun(ctx, d.DrillID)
	require.NoError(t, err)
	require.Equal(t, []any{tenant.DrillFailed, tenant.ReasonDigest, false}, []any{run.State, run.Reason, run.Cleared})
	failedNow, late, err := s.CountDrills(ctx, 90*time.Minute)
	require.NoError(t, err)
	require.Equal(t, []int{1, 0}, []int{failedNow, late})
	require.NotContains(t, due(5), prego.TenantID("t-0"), "not at once again")
	exec(t, s, `UPDATE backup_turns SET drilled_at = drilled_at - interval '2 minutes'`)
	require.Contains(t, due(5), prego.TenantID("t-0"), "sooner than one that passed")
	require.NotContains(t, due(5), prego.TenantID("t-1"))

	left, err := s.DrillsLeft(ctx, 0)
	require.NoError(t, err)
	require.Len(t, left, 2)
	for range 2 {
		require.NoError(t, s.DrillCleared(ctx, d.DrillID))
	}
	require.Equal(t, 1, count(t, s, "site_pool"))
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, tags, agent_status, memory_pct)
		VALUES ('n-9', '', 'node', 'eu', 'hetzner', '{}', 'active', 'w', 'test', '{drill}', 'connected', 50)`)
	exec(t, s, `INSERT INTO db_shards (shard_id, server_id, region, on_node, tenant_capacity) VALUES ('n-9', 'n-9', 'eu', true, 100)`)
	require.NoError(t, s.FinishDrill(ctx, tenant.DrillEnd{DrillID: other.DrillID, State: tenant.DrillPassed}, 0))
	require.NoError(t, s.DrillCleared(ctx, other.DrillID))
	again, err := begin("t-1", "")
	require.NoError(t, err)
	require.Equal(t, prego.ServerID("n-9"), again.ServerID, "tagged for it")
}
