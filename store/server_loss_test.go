package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

// storedBackup puts a backup of a tenant into the rows, taken so long ago.
func storedBackup(t *testing.T, s *Store, id, tenantID string, ago time.Duration) {
	t.Helper()
	exec(t, s, `INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, state, created_by, taken_at, sealed_identity, bytes, sha256, plain_sha256, manifest_sha256)
		SELECT $1, t.org_id, t.tenant_id, a.app_server_id, t.site, 'manual', 'stored', 'test', now() - make_interval(secs => $3), 'x', 1, 'a', 'b', 'c'
		FROM tenants t JOIN tenant_allocations a USING (tenant_id) WHERE t.tenant_id = $2`, id, tenantID, ago.Seconds())
}

// counted sets what the servers count of tenants.
func counted(t *testing.T, s *Store) {
	t.Helper()
	exec(t, s, `UPDATE servers v SET tenant_count = (SELECT count(*) FROM tenant_allocations a WHERE a.app_server_id = v.server_id)`)
	exec(t, s, `UPDATE db_shards d SET current_tenant_count = (SELECT count(*) FROM tenant_allocations a WHERE a.db_shard_id = d.shard_id)`)
	exec(t, s, `UPDATE redis_pools r SET current_tenants = (SELECT count(*) FROM tenant_allocations a WHERE a.redis_pool_id = r.pool_id)`)
}

// TestAServerThatIsGoneTakesItsTenants: they fail, their places are free, they record the loss;
// then they come back as they were.
func TestAServerThatIsGoneTakesItsTenants(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 7), context.Background() // t-0, t-3 and t-6 on n-0
	exec(t, s, `UPDATE servers SET agent_last_heartbeat_at = now() - interval '10 minutes', provider_server_id = '7' WHERE server_id = 'n-0'`)
	counted(t, s)
	exec(t, s, `UPDATE tenants SET state = 'suspended' WHERE tenant_id = 't-3'`)
	exec(t, s, `UPDATE tenants SET state = 'terminated', site = 'x' WHERE tenant_id = 't-6'`)
	storedBackup(t, s, "bak-old", "t-0", 5*time.Hour)
	storedBackup(t, s, "bak-new", "t-0", 42*time.Minute+30*time.Second)

	marked, err := s.MarkMissing(ctx, "n-0", "8")
	require.NoError(t, err)
	require.False(t, marked, "another machine")
	require.Equal(t, 0, count(t, s, "tenants WHERE state = 'failed'"), "and no tenant is lost with that")
	marked, err = s.MarkMissing(ctx, "n-0", "7")
	require.NoError(t, err)
	require.True(t, marked)

	run := func(id prego.TenantID) tenant.Record {
		t.Helper()
		r, err := s.TenantRecord(ctx, id)
		require.NoError(t, err)
		return r
	}
	lost := run("t-0")
	require.Equal(t, []any{tenant.Failed, tenant.Failed, prego.ReasonServerLost, ""}, []any{lost.State, lost.ConvergedState, lost.StatusReason, lost.Site})
	require.Contains(t, lost.StatusMessage, "server n-0 is gone. The newest backup is of ")
	require.Contains(t, lost.StatusMessage, ": 33 min are lost")
	require.Nil(t, lost.Allocation)
	require.Contains(t, run("t-3").StatusMessage, "and there is no backup")
	require.Equal(t, tenant.Terminated, run("t-6").State)
	require.Nil(t, run("t-6").Allocation, "its place is also free")
	require.Equal(t, tenant.Active, run("t-1").State)
	require.Equal(t, 0, count(t, s, "servers WHERE server_id = 'n-0' AND tenant_count <> 0"))
	require.Equal(t, 3, count(t, s, "org_events WHERE type = 'tenant.server_lost'"))
	require.Equal(t, 1, count(t, s, "org_events WHERE type = 'tenant.server_lost' AND payload->>'lost_minutes' = '33'"))
	require.Equal(t, 2, count(t, s, "tenant_lifecycle_events WHERE reason = 'server_lost' AND step = 'state_changed' AND to_state = 'failed'"))

	plans := []prego.Plan{prego.PlanStarter}
	ids, err := s.LostTenants(ctx, plans, 5)
	require.NoError(t, err)
	require.Equal(t, []prego.TenantID{"t-0"}, ids, "the other has no backup")
	for _, c := range []struct {
		plans []prego.Plan
		most  int
	}{{[]prego.Plan{prego.PlanTrial}, 5}, {plans, 0}} {
		ids, err := s.LostTenants(ctx, c.plans, c.most)
		require.NoError(t, err)
		require.Empty(t, ids)
	}
	_, _, err = s.RestoreElsewhere(ctx, "t-3", "", "", "test")
	require.Equal(t, prego.CodeBackupNotFound, prego.CodeOf(err))
	_, _, err = s.RestoreElsewhere(ctx, "t-3", "bak-new", "", "test")
	require.Equal(t, prego.CodeBackupUnknown, prego.CodeOf(err), "another tenant's")
	_, _, err = s.RestoreElsewhere(ctx, "t-1", "", "", "test")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err))

	for _, action := range []tenant.Action{tenant.ActionSuspend, tenant.ActionResume} { // there is no site that could be taken offline
		_, err = s.ChangeTenant(impact.By(ctx, "test"), "t-0", action, tenant.LifecyclePeriods{}, "test", "")
		require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err), "%s", action)
	}

	// A retry of a lost tenant is its restore: never an empty site.
	back, err := s.ChangeTenant(impact.By(ctx, "test"), "t-0", tenant.ActionRetry, tenant.LifecyclePeriods{}, "test", "")
	require.NoError(t, err)
	require.Equal(t, []any{tenant.Provisioning, 2, prego.BackupID("bak-new")}, []any{back.State, back.Generation, back.RestoreFrom})
	exec(t, s, `INSERT INTO backups SELECT (jsonb_populate_record(b, '{"backup_id": "bak-3", "tenant_id": "t-3"}')).*
		FROM backups b WHERE backup_id = 'bak-new'`)
	ids, err = s.LostTenants(ctx, plans, 1)
	require.NoError(t, err)
	require.Empty(t, ids, "one is being restored")
	exec(t, s, `UPDATE tenants SET opening_since = now() WHERE tenant_id = 't-0'`)
	ids, err = s.LostTenants(ctx, plans, 1)
	require.NoError(t, err)
	require.Equal(t, []prego.TenantID{"t-3"}, ids, "a site that waits for an edge is restored")
	exec(t, s, `DELETE FROM backups WHERE backup_id = 'bak-3'`)
	ref := tenant.Ref{TenantID: "t-0", Generation: 2}
	require.NoError(t, s.FailTenant(ctx, ref, prego.ReasonFailedRestore, "no"))
	require.Equal(t, 1, count(t, s, "restore_jobs WHERE elsewhere AND status = 'failed' AND message = 'no'"))
	n, err := s.CountLost(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	ids, err = s.LostTenants(ctx, plans, 5)
	require.NoError(t, err)
	require.Empty(t, ids, "one whose restore failed is for an operator")

	comesBack := func(id prego.TenantID, state tenant.State) {
		t.Helper()
		t2, job, err := s.RestoreElsewhere(ctx, id, "", fmt.Sprintf("rst-%s", id), "test")
		require.NoError(t, err)
		work, err := s.OrgWork(ctx, 0)
		require.NoError(t, err)
		require.Empty(t, work.Restores, "its provisioning restores it: a run beside that would take the new site offline")
		require.Equal(t, tenant.ProvisionWorkflowID(id), job.WorkflowID())
		_, err = s.ActivateTenant(ctx, tenant.Ref{TenantID: id, Generation: t2.Generation}, 0, tenant.Event{TenantID: id, Step: tenant.StepRestored, Message: "back"})
		require.NoError(t, err)
		_, err = s.ActivateTenant(ctx, tenant.Ref{TenantID: id, Generation: t2.Generation}, 0)
		require.NoError(t, err, "repeated")
		r := run(id)
		require.Equal(t, []any{state, prego.BackupID(""), true}, []any{r.State, r.RestoreFrom, r.LostAt == nil})
		require.Equal(t, 1, count(t, s, "restore_jobs WHERE job_id = 'rst-"+string(id)+"' AND status = 'succeeded'"))
		require.Equal(t, 1, count(t, s, "tenant_lifecycle_events WHERE tenant_id = '"+string(id)+"' AND to_state = '"+string(state)+"' AND from_state = 'provisioning' AND step = 'state_changed'"))
	}
	comesBack("t-0", tenant.Active)
	loss, err := s.TenantLoss(ctx, "t-0")
	require.NoError(t, err)
	require.Equal(t, []any{prego.BackupID("bak-new"), 33}, []any{loss.BackupID, *loss.Minutes()})
	require.NotNil(t, loss.RestoredAt)

	exec(t, s, `UPDATE backups SET tenant_id = 't-3' WHERE backup_id = 'bak-old'`)
	comesBack("t-3", tenant.Suspended)
	require.Equal(t, tenant.State(""), run("t-3").ConvergedState, "its new site must be taken offline")
	n, err = s.CountLost(ctx)
	require.NoError(t, err)
	require.Zero(t, n)
}

// TestLossOfATerminatedTenantIsOnRecord, with what is left of it: within its retention its data is lost like another's.
// What survives on its shard stays until it is purged.
func TestLossOfATerminatedTenantIsOnRecord(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 5), context.Background() // all but t-1, t-2 and t-4 on n-0
	exec(t, s, `UPDATE tenant_allocations SET app_server_id = 'n-0', db_shard_id = 'n-1', redis_pool_id = 'n-1', on_shard = true`)
	counted(t, s)
	exec(t, s, `UPDATE tenants SET state = 'terminated', converged_state = 'terminated', site = 's-' || tenant_id,
		deadline_at = now() + interval '7 days'`)
	exec(t, s, `UPDATE tenants SET site = '' WHERE tenant_id = 't-3'`) // never had one
	storedBackup(t, s, "bak-1", "t-1", 41*time.Minute+30*time.Second)
	storedBackup(t, s, "bak-2", "t-2", 5*time.Hour)
	exec(t, s, `UPDATE backups SET kind = 'final' WHERE backup_id = 'bak-2'`)
	_, err := s.LoseServer(impact.By(ctx, "test"), "n-0", "its disk died", "ann")
	require.NoError(t, err)
	for id, says := range map[prego.TenantID]string{
		"t-0": "server n-0 is gone, and there is no backup",
		"t-1": ": 42 min are lost", "t-2": ", after the site was offline: nothing is lost", "t-3": "",
	} {
		r, err := s.TenantRecord(ctx, id)
		require.NoError(t, err)
		require.Equal(t, []any{tenant.Terminated, "", true}, []any{r.State, r.Site, r.Allocation == nil}, id)
		loss, err := s.TenantLoss(ctx, id)
		require.NoError(t, err)
		if says == "" {
			require.Nil(t, loss)
			require.Empty(t, r.StatusReason)
			continue
		}
		require.Contains(t, r.StatusMessage, says)
		require.Equal(t, prego.ReasonServerLost, r.StatusReason)
		require.Equal(t, []any{tenant.Terminated, prego.ServerID("n-0")}, []any{loss.State, loss.ServerID})
	}
	require.Equal(t, 5, count(t, s, "tenants WHERE deadline_at IS NOT NULL"))
	require.Equal(t, 4, count(t, s, "org_events WHERE type = 'tenant.server_lost'"))
	require.Equal(t, 4, count(t, s, `tenant_lifecycle_events
		WHERE reason = 'server_lost' AND step = 'state_changed' AND to_state = 'terminated'`))
	ids, err := s.UnclearedLosses(ctx)
	require.NoError(t, err)
	require.Empty(t, ids, "within their retention")
	exec(t, s, `UPDATE tenants SET state = 'data_purged' WHERE tenant_id = 't-0'`)
	ids, err = s.UnclearedLosses(ctx)
	require.NoError(t, err)
	require.Equal(t, []prego.TenantID{"t-0"}, ids)
	left, err := s.LeftOfLosses(ctx, "t-0")
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, prego.ServerID("n-1"), left[0].Shard.ServerID, "its database is still there")
}

// TestALostTenantIsNotMadeActiveWithoutItsData: whatever its run does.
func TestALostTenantIsNotMadeActiveWithoutItsData(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 1), context.Background()
	counted(t, s)
	_, err := s.LoseServer(impact.By(ctx, "test"), "n-0", "its disk died", "alice")
	require.NoError(t, err)
	srv, err := s.LoseServer(impact.By(ctx, "test"), "n-0", "again", "alice")
	require.NoError(t, err)
	require.Equal(t, []string{"draining", "server_lost"}, []string{string(srv.Status), string(srv.StatusReason)})
	require.NotNil(t, srv.IdentityRevokedAt, "from this moment its host, should it return, runs no jobs")
	exec(t, s, `UPDATE tenants SET state = 'provisioning', generation = 2 WHERE tenant_id = 't-0'`)
	_, err = s.ActivateTenant(ctx, tenant.Ref{TenantID: "t-0", Generation: 2}, 0)
	require.Error(t, err)
	require.Equal(t, 0, count(t, s, "tenants WHERE state = 'active'"))
	exec(t, s, `UPDATE servers SET status = 'provisioning' WHERE server_id = 'n-1'`)
	_, err = s.LoseServer(impact.By(ctx, "test"), "n-1", "", "alice")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err))
	_, err = s.LoseServer(impact.By(ctx, "test"), "nope", "", "alice")
	require.Equal(t, prego.CodeServerNotFound, prego.CodeOf(err))
}

// TestAServerWithWhatSurvivedALossIsInUse: the database on the shard of a lost app server is newer than any backup.
// Until its tenant is restored, its server is neither taken down as empty nor provisioned again.
func TestAServerWithWhatSurvivedALossIsInUse(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 1), context.Background()
	exec(t, s, `UPDATE tenant_allocations SET db_shard_id = 'n-1', redis_pool_id = 'n-1', on_shard = true,
		on_pool = true`)
	exec(t, s, `UPDATE servers SET tenant_count = 0`)
	exec(t, s, `UPDATE servers SET provider_server_id = '7' WHERE server_id = 'n-0'`)
	exec(t, s, `UPDATE db_shards SET current_tenant_count = 1 WHERE shard_id = 'n-1'`)
	exec(t, s, `UPDATE redis_pools SET current_tenants = 1 WHERE pool_id = 'n-1'`)
	exec(t, s, `UPDATE servers SET tenant_count = 1 WHERE server_id = 'n-0'`)
	marked, err := s.MarkMissing(ctx, "n-0", "7")
	require.NoError(t, err)
	require.True(t, marked)
	refused := func(err error) {
		t.Helper()
		require.Equal(t, prego.CodeServerHasTenants, prego.CodeOf(err))
	}
	_, err = s.RequestDecommission(ctx, "n-1", "ann")
	refused(err)
	_, err = s.DecommissionMember(ctx, "n-1", "fleet")
	refused(err)
	exec(t, s, `UPDATE servers SET status = 'failed', status_reason = 'heartbeat_lost' WHERE server_id = 'n-1'`)
	_, err = s.RequestRetry(ctx, "n-1", "ann")
	refused(err)
	// What a missing machine had is nowhere, and does not keep its server from being provisioned again.
	_, err = s.RequestRetry(ctx, "n-0", "ann")
	require.NoError(t, err)
	terminate := func(ctx context.Context) error {
		_, err := s.ChangeTenant(ctx, "t-0", tenant.ActionTerminate, lasting, "ann", "")
		return err
	}
	require.Equal(t, map[string]impact.Class{"t-0": impact.Destroys}, classes(trying(t, s, terminate)))
	exec(t, s, `UPDATE tenant_losses SET restored_at = now()`)
	_, err = s.RequestRetry(ctx, "n-1", "ann")
	require.NoError(t, err)
	require.Equal(t, map[string]impact.Class{"t-0": impact.Interrupts}, classes(trying(t, s, terminate)))
}
