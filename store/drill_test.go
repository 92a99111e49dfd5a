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

// TestDrillsHavePlaces on another server of the region than the tenant's, one on each, a server tagged for it first;
// in no pool; and again when their turn comes.
func TestDrillsHavePlaces(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 6), context.Background() // t-0 and t-3 on n-0, t-1 and t-4 on n-1 (eu), t-2 and t-5 on n-2 (us)
	exec(t, s, `UPDATE servers SET agent_status = 'connected'`)
	exec(t, s, `INSERT INTO backup_schedules (tenant_id, policy_at, next_at) SELECT tenant_id, now(), now() FROM tenants`)
	storedBackup(t, s, "bak-old", "t-0", 2*time.Hour)
	storedBackup(t, s, "bak-new", "t-0", time.Hour)
	storedBackup(t, s, "bak-1", "t-1", time.Hour)
	storedBackup(t, s, "bak-2", "t-2", time.Hour)
	due := func(most int) (ids []prego.TenantID) {
		t.Helper()
		all, err := s.DueDrills(ctx, time.Hour, most)
		require.NoError(t, err)
		for _, d := range all {
			ids = append(ids, d.TenantID)
		}
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
	there, err := s.DrillsUnderWay(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, there)
	_, err = s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{TenantID: "t-0"}, "bak-new", "test")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err), "it is being restored")

	end := tenant.DrillEnd{DrillID: d.DrillID, State: tenant.DrillFailed, Reason: tenant.ReasonDigest, Message: "no"}
	for range 2 {
		require.NoError(t, s.FinishDrill(ctx, end, 59*time.Minute))
		end.State = tenant.DrillPassed // repeated, it changes nothing
	}
	run, err := s.DrillRecord(ctx, d.DrillID)
	require.NoError(t, err)
	require.Equal(t, []any{tenant.DrillFailed, tenant.ReasonDigest, false}, []any{run.State, run.Reason, run.Cleared})
	failedNow, late, err := s.CountDrills(ctx, 90*time.Minute)
	require.NoError(t, err)
	require.Equal(t, []int{1, 0}, []int{failedNow, late})
	require.NotContains(t, due(5), prego.TenantID("t-0"), "not immediately again")
	exec(t, s, `UPDATE backup_schedules SET drilled_at = drilled_at - interval '2 minutes'`)
	require.Contains(t, due(5), prego.TenantID("t-0"), "sooner than after a passed drill")
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

	// A drill on a server that went leaves the previous answer, and a turn that has come.
	for _, before := range []bool{false, true} {
		exec(t, s, `UPDATE backup_schedules SET drill_failed = $1 WHERE tenant_id = 't-1'`, before)
		exec(t, s, `UPDATE drills SET state = 'running', finished_at = NULL WHERE drill_id = $1`, again.DrillID)
		require.NoError(t, s.FinishDrill(ctx, tenant.DrillEnd{DrillID: again.DrillID, State: tenant.DrillFailed, Reason: "server_gone", Undecided: true}, time.Hour))
		require.Equal(t, before, count(t, s, "backup_schedules WHERE drill_failed AND tenant_id = 't-1'") == 1)
		require.Contains(t, due(5), prego.TenantID("t-1"))
	}
	_, late, err = s.CountDrills(ctx, 90*time.Minute)
	require.NoError(t, err)
	require.Zero(t, late, "which is no delay")
}

// TestDrillsOfVolumesHavePlaces: on the own disk of a server of the region that has room for it, one at a time with
// those of tenants, longest waiting first.
// TestOrgsTakeTurnsAtDrills: an org with many tenants delays another's drill by one.
func TestOrgsTakeTurnsAtDrills(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 6), context.Background()
	exec(t, s, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('quiet', 'paid', 'test')`)
	exec(t, s, `UPDATE tenants SET org_id = 'quiet' WHERE tenant_id = 't-5'`)
	exec(t, s, `UPDATE servers SET agent_status = 'connected'`)
	exec(t, s, `INSERT INTO backup_schedules (tenant_id, policy_at, next_at) SELECT tenant_id, now(), now() FROM tenants`)
	for i := range 6 {
		storedBackup(t, s, fmt.Sprintf("bak-%d", i), fmt.Sprintf("t-%d", i), time.Hour)
	}
	first := func() prego.TenantID {
		all, err := s.DueDrills(ctx, time.Hour, 1)
		require.NoError(t, err)
		require.Len(t, all, 1)
		return all[0].TenantID
	}
	var order []prego.TenantID
	for range 3 {
		id := first()
		order = append(order, id)
		d, err := s.BeginDrill(ctx, id, "", "sites.test", "test")
		require.NoError(t, err)
		require.NoError(t, s.FinishDrill(ctx, tenant.DrillEnd{DrillID: d.DrillID, State: tenant.DrillPassed}, 0))
		require.NoError(t, s.DrillCleared(ctx, d.DrillID))
	}
	require.Equal(t, []prego.TenantID{"t-0", "t-5", "t-1"}, order)
}

func TestDrillsOfVolumesHavePlaces(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	exec(t, s, `UPDATE servers SET disk_pct = 50, server_type = 'cx33'`)
	exec(t, s, `UPDATE servers SET disk_pct = 10 WHERE server_id = 'n-0'`)
	exec(t, s, `INSERT INTO provider_catalogs (provider, document, refreshed_at) VALUES ('hetzner', '{"server_types": [{"name": "cx33", "disk_gb": 100}]}', now()) ON CONFLICT (provider) DO UPDATE SET document = EXCLUDED.document, refreshed_at = now(), failure = ''`)
	exec(t, s, `INSERT INTO volume_backup_schedules (volume_id, policy_at, next_at) SELECT volume_id, now(), now() FROM volumes`)
	exec(t, s, `INSERT INTO backup_schedules (tenant_id, policy_at, next_at) VALUES ('t-0', now(), now())`)
	volumeDue := func() (ids []prego.VolumeID) {
		all, err := s.DueDrills(ctx, time.Hour, 10)
		require.NoError(t, err)
		for _, d := range all {
			ids = append(ids, d.VolumeID)
		}
		return ids
	}
	begin := func(id prego.VolumeID, backup prego.BackupID) (tenant.Drill, error) {
		return s.BeginVolumeDrill(ctx, id, backup, "test")
	}
	require.Empty(t, volumeDue(), "without a backup there is nothing to drill")
	_, err := begin("vol-0", "")
	require.Equal(t, prego.CodeBackupNotFound, prego.CodeOf(err))
	for _, id := range []prego.VolumeID{"vol-0", "vol-1"} {
		_, err := s.RequestVolumeBackup(ctx, askedOf(prego.BackupID("bak-"+id), id, tenant.BackupManual))
		require.NoError(t, err)
	}
	require.Empty(t, volumeDue(), "nor with a backup under way")
	exec(t, s, storedVolumes)
	storedBackup(t, s, "bak-t", "t-0", time.Hour)
	require.Equal(t, []prego.VolumeID{"vol-0", "vol-1", ""}, volumeDue(), "with the tenant; vol-1 is on no server, but has a backup")

	d, err := begin("vol-0", "")
	require.NoError(t, err)
	require.Equal(t, []any{prego.VolumeID("vol-0"), prego.BackupID("bak-vol-0"), prego.ServerID("n-1"), tenant.DrillRunning}, []any{d.VolumeID, d.BackupID, d.ServerID, d.State}, "rather not where the volume is, though it has more room")
	_, err = begin("vol-0", "")
	require.Equal(t, prego.CodeRestoreUnderWay, prego.CodeOf(err))
	_, err = s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{VolumeID: "vol-0"}, "bak-vol-0", "test")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err), "it is being restored")
	_, err = begin("vol-1", "bak-vol-0")
	require.Equal(t, prego.CodeBackupNotFound, prego.CodeOf(err), "another volume's")
	exec(t, s, `UPDATE servers SET agent_status = 'connected'`)
	other, err := begin("vol-1", "")
	require.NoError(t, err)
	require.Equal(t, prego.ServerID("n-0"), other.ServerID)
	_, err = s.BeginDrill(ctx, "t-0", "", "sites.test", "test")
	require.Equal(t, prego.CodeInsufficientResources, prego.CodeOf(err), "each server has one drill, of a tenant or a volume")
	there, err := s.DrillsUnderWay(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, there)
	run, err := s.DrillRecord(ctx, d.DrillID)
	require.NoError(t, err)
	require.Equal(t, tenant.PoolSite{AppServerID: "n-1"}, run.Site, "it has no site")
	require.Empty(t, run.TenantID)

	end := tenant.DrillEnd{DrillID: d.DrillID, State: tenant.DrillFailed, Reason: tenant.ReasonDigest, Message: "no", Files: 3, Bytes: 5}
	for range 2 {
		require.NoError(t, s.FinishDrill(ctx, end, 59*time.Minute))
		end.State = tenant.DrillPassed // repeated, it changes nothing
	}
	require.NoError(t, s.FinishDrill(ctx, tenant.DrillEnd{DrillID: other.DrillID, State: tenant.DrillPassed}, 59*time.Minute))
	failedNow, late, err := s.CountDrills(ctx, 90*time.Minute)
	require.NoError(t, err)
	require.Equal(t, []int{1, 0}, []int{failedNow, late})
	page, _, err := Drills.In(s)(ctx, prego.ListQuery{Filters: map[string][]string{"volume_id": {"vol-0"}}, Limit: 10})
	require.NoError(t, err)
	require.Len(t, page, 1)
	require.Equal(t, []any{tenant.DrillFailed, int64(3), int64(5)}, []any{page[0].State, page[0].Files, page[0].Bytes})
	require.NotContains(t, volumeDue(), prego.VolumeID("vol-0"), "not immediately again")
	exec(t, s, `UPDATE volume_backup_schedules SET drilled_at = drilled_at - interval '2 minutes'`)
	require.Contains(t, volumeDue(), prego.VolumeID("vol-0"), "sooner than after a passed drill")
	require.NotContains(t, volumeDue(), prego.VolumeID("vol-1"))
	exec(t, s, `UPDATE volume_backup_schedules SET drilled_at = NULL; UPDATE volumes SET created_at = now() - interval '1 day'`)
	_, late, err = s.CountDrills(ctx, 90*time.Minute)
	require.NoError(t, err)
	require.Equal(t, 2, late, "those with a backup")

	// Room: what the disk has left besides a tenth, by the catalog; a host of unknown size is asked itself.
	_, err = begin("vol-0", "")
	require.Equal(t, prego.CodeInsufficientResources, prego.CodeOf(err), "the restored copy is not removed yet")
	require.NoError(t, s.DrillCleared(ctx, d.DrillID))
	require.NoError(t, s.DrillCleared(ctx, other.DrillID))
	needs := func(bytes int64) (prego.ServerID, error) {
		exec(t, s, `UPDATE backups SET plain_bytes = $1 WHERE volume_id = 'vol-0'`, bytes)
		d, err := begin("vol-0", "")
		if err == nil {
			require.NoError(t, s.FinishDrill(ctx, tenant.DrillEnd{DrillID: d.DrillID, State: tenant.DrillPassed}, 0))
			require.NoError(t, s.DrillCleared(ctx, d.DrillID))
		}
		return d.ServerID, err
	}
	at, err := needs(39e9)
	require.NoError(t, err)
	require.Equal(t, prego.ServerID("n-1"), at)
	at, err = needs(60e9)
	require.NoError(t, err)
	require.Equal(t, prego.ServerID("n-0"), at, "it has 80 GB left")
	_, err = needs(81e9)
	require.ErrorContains(t, err, "it needs 81.0 GB of free local disk")
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, tags, agent_status, disk_pct)
		VALUES ('n-9', '', 'node', 'eu', 'hetzner', '{}', 'active', 'w', 'test', '{drill}', 'connected', 80)`)
	at, err = needs(1)
	require.NoError(t, err)
	require.Equal(t, prego.ServerID("n-9"), at, "tagged for it")
	for _, closed := range []string{`cordoned_at = now(), cordoned_by = 'ann'`, `agent_status = 'disconnected'`, `dedicated_for_tenant_id = 't-0'`} {
		exec(t, s, `UPDATE servers SET `+closed+` WHERE server_id = 'n-9'`)
		at, err = needs(1)
		require.NoError(t, err)
		require.Equal(t, prego.ServerID("n-1"), at, closed)
		exec(t, s, `UPDATE servers SET cordoned_at = NULL, cordoned_by = DEFAULT, agent_status = 'connected', dedicated_for_tenant_id = NULL WHERE server_id = 'n-9'`)
	}
	exec(t, s, `UPDATE volumes SET deleted_at = now(), status = 'releasing'`)
	require.Equal(t, []prego.VolumeID{""}, volumeDue(), "a volume being deleted is no longer drilled")
	_, err = begin("vol-0", "")
	require.Equal(t, prego.CodeVolumeNotFound, prego.CodeOf(err))
}

// TestOneDrillOnAHost: of two drills that look for a place concurrently, one sees the other.
func TestOneDrillOnAHost(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 2), context.Background()
	storedBackup(t, s, "bak-0", "t-0", time.Hour)
	storedBackup(t, s, "bak-1", "t-1", time.Hour)
	exec(t, s, `UPDATE servers SET agent_status = 'connected' WHERE server_id = 'n-0'`)
	exec(t, s, `INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, made_bytes, grown_bytes, provider, provider_name, provider_id, status, created_by)
		VALUES ('vol-0', 'acme', 'eu', 'fsn1', 'v', 10000000000, 10000000000, 10000000000, 'hetzner', 'v', '1', 'ready', 'test')`)
	exec(t, s, `INSERT INTO backups (backup_id, org_id, volume_id, server_id, site, kind, state, created_by, taken_at, sealed_identity, bytes, sha256, plain_sha256, manifest_sha256)
		VALUES ('bak-v', 'acme', 'vol-0', 'n-0', '', 'manual', 'stored', 'test', now(), 'x', 1, 'a', 'b', 'c')`)
	for what, begins := range map[string]func() error{
		"tenant": func() error { _, err := s.BeginDrill(ctx, "t-0", "", "pool.example.com", "test"); return err },
		"volume": func() error { _, err := s.BeginVolumeDrill(ctx, "vol-0", "", "test"); return err },
	} {
		err := s.holding(t, sqlOneDrillPlace, begins,
			does(t, `INSERT INTO drills (drill_id, org_id, tenant_id, backup_id, server_id, created_by) VALUES ('drl-1', 'acme', 't-1', 'bak-1', 'n-0', 'test')`))
		require.Equal(t, prego.CodeInsufficientResources, prego.CodeOf(err), "%s: %v", what, err)
		exec(t, s, `DELETE FROM drills`)
		require.NoError(t, begins(), what)
		exec(t, s, `DELETE FROM drills`)
	}
}
