package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// unusableBackups are newer backups than any other of t-0 that no restore may choose: taken 1, 2 and 3 minutes ago.
func unusableBackups(t *testing.T, s *Store) {
	t.Helper()
	for i, change := range []string{`state = 'deleting'`, `missing_at = now()`, `verify_message = 'digest_mismatch'`} {
		id := []string{"bak-deleting", "bak-missing", "bak-unreadable"}[i]
		storedBackup(t, s, id, "t-0", time.Duration(i+1)*time.Minute)
		exec(t, s, `UPDATE backups SET verified_at = now(), `+change+` WHERE backup_id = $1`, id)
	}
}

// TestRestoresChooseUsableBackups: the message about a loss, the restorable backup shown, and the restored one are the
// newest backup that is neither missing, nor unreadable, nor being deleted.
func TestRestoresChooseUsableBackups(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 2), context.Background()
	counted(t, s)
	unusableBackups(t, s)
	restorable, err := s.Restorable(ctx, "t-0")
	require.NoError(t, err)
	require.Nil(t, restorable)
	storedBackup(t, s, "bak-good", "t-0", 39*time.Minute+30*time.Second)
	storedBackup(t, s, "bak-older", "t-0", 50*time.Minute)
	restorable, err = s.Restorable(ctx, "t-0")
	require.NoError(t, err)
	require.Equal(t, prego.BackupID("bak-good"), restorable.BackupID)
	_, err = s.CreateRestore(impact.By(ctx, "test"), "t-0", tenant.RestoreOf{BackupID: "bak-missing"}, "rst-1", "ann")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))
	require.ErrorContains(t, err, "missing in the storage since")

	_, err = s.LoseServer(impact.By(ctx, "test"), "n-0", "its disk died", "ann")
	require.NoError(t, err)
	lost, err := s.TenantRecord(ctx, "t-0")
	require.NoError(t, err)
	require.Contains(t, lost.StatusMessage, ": 40 min are lost")
	back, job, err := s.RestoreElsewhere(ctx, "t-0", "", "rst-2", "ann")
	require.NoError(t, err)
	require.Equal(t, []prego.BackupID{"bak-good", "bak-good"}, []prego.BackupID{back.RestoreFrom, job.BackupID})

	clone := tenant.CloneRequest{Slug: "copy"}
	exec(t, s, `UPDATE tenants SET state = 'active', lost_at = NULL WHERE tenant_id = 't-0'`)
	copied, err := s.CloneTenant(ctx, "t-0", clone, "t-copy", "rst-3", "ann")
	require.NoError(t, err)
	require.Equal(t, prego.BackupID("bak-good"), copied.RestoreFrom)
}

// TestNoRestoreWithoutUsableBackup: not by the look either. A backup that was found unreadable can be named.
func TestNoRestoreWithoutUsableBackup(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 1), context.Background()
	counted(t, s)
	unusableBackups(t, s)
	_, err := s.LoseServer(impact.By(ctx, "test"), "n-0", "its disk died", "ann")
	require.NoError(t, err)
	lost, err := s.TenantRecord(ctx, "t-0")
	require.NoError(t, err)
	require.Contains(t, lost.StatusMessage, "there is no backup")
	ids, err := s.LostTenants(ctx, []prego.Plan{prego.PlanStarter}, 5)
	require.NoError(t, err)
	require.Empty(t, ids)
	_, _, err = s.RestoreElsewhere(ctx, "t-0", "", "", "ann")
	require.Equal(t, prego.CodeBackupNotFound, prego.CodeOf(err))
	for _, id := range []prego.BackupID{"bak-missing", "bak-deleting"} {
		_, _, err = s.RestoreElsewhere(ctx, "t-0", id, "", "ann")
		require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err), id)
	}
	back, _, err := s.RestoreElsewhere(ctx, "t-0", "bak-unreadable", "", "ann")
	require.NoError(t, err)
	require.Equal(t, prego.BackupID("bak-unreadable"), back.RestoreFrom)
}

// TestRestoreContinuesWithOlderBackup: the row, the restore and the timeline name it, until none is left. A backup that
// a caller named is not exchanged.
func TestRestoreContinuesWithOlderBackup(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 1), context.Background()
	counted(t, s)
	for id, ago := range map[string]time.Duration{"bak-3": time.Minute, "bak-2": time.Hour, "bak-1": 2 * time.Hour} {
		storedBackup(t, s, id, "t-0", ago)
	}
	_, err := s.LoseServer(impact.By(ctx, "test"), "n-0", "its disk died", "ann")
	require.NoError(t, err)
	back, _, err := s.RestoreElsewhere(ctx, "t-0", "", "rst-1", "ann")
	require.NoError(t, err)
	require.Equal(t, prego.BackupID("bak-3"), back.RestoreFrom)
	ref := tenant.Ref{TenantID: "t-0", Generation: back.Generation}
	require.NoError(t, s.BackupMissing(ctx, "bak-3"))
	_, err = s.RestoreFromOlder(ctx, tenant.Ref{TenantID: "t-0", Generation: 7}, "bak-3", "backup_missing", "it is gone")
	require.ErrorIs(t, err, server.ErrSuperseded)
	for range 2 { // also an attempt of the step that another one has overtaken
		older, err := s.RestoreFromOlder(ctx, ref, "bak-3", "backup_missing", "it is gone")
		require.NoError(t, err)
		require.Equal(t, prego.BackupID("bak-2"), older)
	}
	require.Equal(t, 1, count(t, s, "tenants WHERE restore_from = 'bak-2'"))
	require.Equal(t, 1, count(t, s, "restore_jobs WHERE job_id = 'rst-1' AND backup_id = 'bak-2' AND message LIKE 'backup bak-3 can''t be restored (it is gone)%from backup bak-2 of %'"))
	require.Equal(t, 1, count(t, s, "tenant_lifecycle_events WHERE step = 'backup_skipped' AND reason = 'backup_missing' AND message LIKE '%bak-3%bak-2%'"))
	require.Equal(t, 1, count(t, s, "backups WHERE backup_id = 'bak-3' AND missing_at IS NOT NULL AND verify_message <> ''"))
	_, err = s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{TenantID: "t-0"}, "bak-2", "ann")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err), "it is being restored")

	require.NoError(t, s.BackupVerified(ctx, "bak-2", "backup_unreadable: no"))
	require.NoError(t, s.BackupVerified(ctx, "bak-1", "backup_unreadable: no"))
	older, err := s.RestoreFromOlder(ctx, ref, "bak-2", "backup_unreadable", "no")
	require.NoError(t, err)
	require.Empty(t, older)
	require.Equal(t, 1, count(t, s, "tenants WHERE restore_from = 'bak-2'"))

	require.NoError(t, s.FailTenant(ctx, ref, prego.ReasonFailedRestore, "no"))
	require.NoError(t, s.BackupVerified(ctx, "bak-1", ""))
	back, _, err = s.RestoreElsewhere(ctx, "t-0", "bak-2", "", "ann")
	require.NoError(t, err)
	ref.Generation = back.Generation
	older, err = s.RestoreFromOlder(ctx, ref, "bak-2", "backup_unreadable", "no")
	require.NoError(t, err)
	require.Empty(t, older, "the caller named it")
}

// TestCopyIsTriedAgainWithOlderBackup: of the tenant that it is a copy of, and no newer than the requested backup.
func TestCopyIsTriedAgainWithOlderBackup(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 1), context.Background()
	storedBackup(t, s, "bak-2", "t-0", time.Hour)
	storedBackup(t, s, "bak-1", "t-0", 2*time.Hour)
	fails := func(slug string, named prego.BackupID) prego.TenantID {
		t.Helper()
		c, err := s.CloneTenant(ctx, "t-0", tenant.CloneRequest{Slug: slug, BackupID: named}, prego.TenantID("t-"+slug), "rst-"+slug, "ann")
		require.NoError(t, err)
		require.Equal(t, prego.BackupID("bak-2"), c.RestoreFrom)
		exec(t, s, `UPDATE tenants SET state = 'failed' WHERE tenant_id = $1`, c.TenantID)
		exec(t, s, `UPDATE restore_jobs SET status = 'failed' WHERE tenant_id = $1`, c.TenantID)
		return c.TenantID
	}
	chosen, named := fails("chosen", ""), fails("named", "bak-2")
	storedBackup(t, s, "bak-3", "t-0", time.Minute)
	require.NoError(t, s.BackupMissing(ctx, "bak-2"))
	back, _, err := s.RestoreElsewhere(ctx, chosen, "", "", "ann")
	require.NoError(t, err)
	require.Equal(t, prego.BackupID("bak-1"), back.RestoreFrom)
	_, _, err = s.RestoreElsewhere(ctx, named, "", "", "ann")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))
}

// TestLastBackupStandsOnlyIfItIsThere: data is not deleted on the word of a backup that the storage has lost.
func TestLastBackupStandsOnlyIfItIsThere(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 1), context.Background()
	storedBackup(t, s, "bak-1", "t-0", time.Hour)
	exec(t, s, `UPDATE backups SET kind = 'final'`)
	b, err := s.FinalBackup(ctx, "t-0")
	require.NoError(t, err)
	require.NotNil(t, b)
	require.NoError(t, s.BackupMissing(ctx, "bak-1"))
	b, err = s.FinalBackup(ctx, "t-0")
	require.NoError(t, err)
	require.Nil(t, b)
	require.NoError(t, s.BackupsMissing(ctx, nil))
	require.Equal(t, 1, count(t, s, "backups WHERE missing_at IS NULL AND verify_message <> ''"), "it is there again, and not trusted before it is verified")
}

// TestRestoresOfVolumesTakeQuota: restores and clones of volumes count as restores until they have ended, and beside
// restores of tenants.
func TestRestoresOfVolumesTakeQuota(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	_, err := s.RequestVolumeBackup(ctx, askedOf("bak-1", "vol-0", tenant.BackupFinal))
	require.NoError(t, err)
	exec(t, s, storedVolumes)
	limit := func(n int) {
		t.Helper()
		_, err := s.SetQuota(ctx, "acme", quota.MaxRestoreJobs, float64(n), "test", "")
		require.NoError(t, err)
	}
	restore := func(id string) error {
		_, err := s.CreateVolumeRestore(impact.By(ctx, "test"), workload.VolumeRestore{RestoreID: id, VolumeID: "vol-0", BackupID: "bak-1", CreatedBy: "ann"})
		return err
	}
	clone := func(name string) error {
		_, _, err := s.CloneVolume(ctx, "vol-0", workload.Volume{VolumeID: prego.VolumeID("vol-" + name), Name: name},
			workload.VolumeRestore{RestoreID: "vrs-" + name, BackupID: "bak-1", CreatedBy: "ann"}, "test")
		return err
	}
	limit(0)
	for what, err := range map[string]error{"restore": restore("vrs-0"), "clone": clone("none")} {
		require.Equal(t, prego.CodeQuotaExceeded, prego.CodeOf(err), what)
		require.ErrorContains(t, err, "max_restore_jobs", what)
	}
	limit(2)
	require.NoError(t, restore("vrs-1"))
	require.NoError(t, clone("first"))
	require.Equal(t, prego.CodeQuotaExceeded, prego.CodeOf(clone("second")))
	require.Equal(t, 1, count(t, s, "org_usage_view WHERE org_id = 'acme' AND dimension = 'max_restore_jobs' AND usage = 2"))
	require.NoError(t, s.VolumeRestoreFinished(ctx, "vrs-1", "", ""))
	require.NoError(t, clone("second"))
}

// TestVolumesAreRestoredFromUsableBackups: as tenants are.
func TestVolumesAreRestoredFromUsableBackups(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	for i, id := range []prego.BackupID{"bak-1", "bak-2", "bak-3"} {
		_, err := s.RequestVolumeBackup(ctx, askedOf(id, "vol-0", tenant.BackupFinal))
		require.NoError(t, err)
		exec(t, s, storedVolumes)
		exec(t, s, `UPDATE backups SET taken_at = now() - make_interval(hours => 3 - $2) WHERE backup_id = $1`, id, i)
	}
	require.NoError(t, s.BackupMissing(ctx, "bak-3"))
	newest, err := s.VolumeRestorable(ctx, "vol-0")
	require.NoError(t, err)
	require.Equal(t, prego.BackupID("bak-2"), newest.BackupID)
	last, err := s.FinalVolumeBackup(ctx, "vol-0")
	require.NoError(t, err)
	require.Equal(t, prego.BackupID("bak-2"), last.BackupID)
	clone := func(name string, backup prego.BackupID) (workload.VolumeRestore, error) {
		_, r, err := s.CloneVolume(ctx, "vol-0", workload.Volume{VolumeID: prego.VolumeID("vol-" + name), Name: name},
			workload.VolumeRestore{RestoreID: "vrs-" + name, BackupID: backup, CreatedBy: "ann"}, "test")
		return r, err
	}
	_, err = clone("missing", "bak-3")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))
	chosen, err := clone("chosen", "")
	require.NoError(t, err)
	require.Equal(t, prego.BackupID("bak-2"), chosen.BackupID)
	_, err = clone("named", "bak-2")
	require.NoError(t, err)
	require.NoError(t, s.BackupVerified(ctx, "bak-2", "digest_mismatch"))
	for id, want := range map[string]bool{"vrs-chosen": true, "vrs-named": false} {
		for range 2 { // also an attempt of the step that another one has overtaken
			ok, err := s.VolumeRestoreFromOlder(ctx, id, "bak-2", "digest_mismatch")
			require.NoError(t, err)
			require.Equal(t, want, ok, id)
		}
	}
	require.NoError(t, s.VolumeRestoreFinished(ctx, "vrs-chosen", "", ""))
	require.Equal(t, 1, count(t, s, "volume_restores WHERE restore_id = 'vrs-chosen' AND status = 'succeeded' AND backup_id = 'bak-1' AND message LIKE 'backup bak-2 can''t be restored (digest_mismatch)%bak-1'"))

	require.NoError(t, s.ExpireVolumeBackups(ctx, "vol-0", time.Hour))
	require.Equal(t, 1, count(t, s, "backups WHERE backup_id = 'bak-1' AND expires_at > now()"), "the newest that can be read is kept for a while")
}
