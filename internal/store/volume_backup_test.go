package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// volumesOf makes an org's volumes: vol-0 is with group grp-0 on n-0, vol-1 on no server, vol-2 at a
// location without servers.
func volumesOf(t *testing.T) *Store {
	t.Helper()
	s := backupTenants(t, 1)
	exec(t, s, `UPDATE servers SET location = 'fsn1', agent_status = 'connected' WHERE server_id IN ('n-0', 'n-1')`)
	for i := range 3 {
		exec(t, s, `INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, made_bytes, grown_bytes, provider, provider_name, provider_id, status, created_by)
			VALUES ($1, 'acme', 'eu', $2, $1, 10000000000, 10000000000, 10000000000, 'hetzner', $1, $3, 'ready', 'test')`, fmt.Sprintf("vol-%d", i), []string{"fsn1", "fsn1", "hel1"}[i], fmt.Sprint(100+i))
	}
	exec(t, s, `INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-0', 'acme', 'a', 'test')`)
	exec(t, s, `INSERT INTO envs (env_id, org_id, app_id, name, region, created_by) VALUES ('env-0', 'acme', 'app-0', 'e', 'eu', 'test')`)
	exec(t, s, `INSERT INTO process_groups (group_id, org_id, env_id, name, region, replicas, spec, memory_limit_bytes, cpu_request, created_by) VALUES ('grp-0', 'acme', 'env-0', 'g', 'eu', 1, '{}', 1, 1, 'test')`)
	exec(t, s, `INSERT INTO volume_attachments (attachment_id, org_id, volume_id, group_id, mount_path, server_id, created_by) VALUES ('vat-0', 'acme', 'vol-0', 'grp-0', '/data', 'n-0', 'test')`)
	return s
}

func askedOf(id prego.BackupID, volume prego.VolumeID, kind tenant.BackupKind) tenant.BackupAsked {
	return tenant.BackupAsked{ID: id, VolumeID: volume, Kind: kind, By: "test"}
}

const storedVolumes = `UPDATE backups SET state = 'stored', taken_at = now(), sealed_identity = 'x', bytes = 600, sha256 = 'x', plain_sha256 = 'x', manifest_sha256 = 'x' WHERE volume_id IS NOT NULL AND state <> 'stored'`

// TestAVolumeIsBackedUpWhereItIs: on its group's server, on another one for a while, or not at all;
// once at a time, and beside tenants' backups in the turns of hosts and the org's bytes.
func TestAVolumeIsBackedUpWhereItIs(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	b, err := s.RequestVolumeBackup(ctx, askedOf("bak-0", "vol-0", tenant.BackupManual))
	require.NoError(t, err)
	require.Equal(t, prego.ServerID("n-0"), b.ServerID)
	again, err := s.RequestVolumeBackup(ctx, askedOf("bak-0", "vol-0", tenant.BackupManual))
	require.NoError(t, err)
	require.Equal(t, b, again)
	_, err = s.RequestVolumeBackup(ctx, askedOf("bak-1", "vol-0", tenant.BackupManual))
	require.Equal(t, prego.CodeBackupUnderWay, prego.CodeOf(err))
	b, err = s.RequestVolumeBackup(ctx, askedOf("bak-1", "vol-1", tenant.BackupManual))
	require.NoError(t, err)
	require.Equal(t, prego.ServerID("n-1"), b.ServerID, "the one with fewest volumes")
	_, err = s.RequestVolumeBackup(ctx, askedOf("bak-2", "vol-2", tenant.BackupManual))
	require.Equal(t, prego.CodeInsufficientResources, prego.CodeOf(err))
	_, err = s.RequestBackup(ctx, asked(0, tenant.BackupManual))
	require.Equal(t, prego.CodeBackupNotFound, prego.CodeOf(err), "bak-0 is a volume's")
	_, err = s.RequestBackup(ctx, tenant.BackupAsked{ID: "bak-t", TenantID: "t-0", Kind: tenant.BackupManual, By: "test"})
	require.NoError(t, err)
	began, err := s.AdmitBackups(ctx, 1, 5, 10)
	require.NoError(t, err)
	require.ElementsMatch(t, prego.IDs[prego.BackupID]([]string{"bak-0", "bak-1"}), began, "the tenant's is after the volume's on n-0")

	exec(t, s, storedVolumes)
	_, err = s.GetBackup(ctx, "t-0", "bak-0")
	require.Equal(t, prego.CodeBackupNotFound, prego.CodeOf(err))
	_, err = s.GetVolumeBackup(ctx, "vol-1", "bak-0")
	require.Equal(t, prego.CodeBackupNotFound, prego.CodeOf(err))
	space, err := s.BackupSpace(ctx, "acme", 5)
	require.NoError(t, err)
	require.EqualValues(t, 1200, space.UsedBytes)
	require.Equal(t, []tenant.BackupsOfTenant{{VolumeID: "vol-0", Backups: 1, Bytes: 600}, {VolumeID: "vol-1", Backups: 1, Bytes: 600}}, space.Largest)
	require.NoError(t, s.SetBackupLimit(ctx, "acme", new(int64), "none", "test"))
	_, err = s.RequestVolumeBackup(ctx, askedOf("bak-3", "vol-0", tenant.BackupManual))
	require.Equal(t, prego.CodeBackupLimit, prego.CodeOf(err))
	_, err = s.RequestVolumeBackup(ctx, askedOf("bak-3", "vol-0", tenant.BackupFinal))
	require.NoError(t, err, "the last one is made all the same")

	// What is held or restored is not deleted; a volume that goes leaves its newest.
	_, err = s.HoldVolumeBackup(ctx, "vol-1", "bak-1", "case", "ann")
	require.NoError(t, err)
	_, err = s.DeleteVolumeBackup(ctx, "vol-1", "bak-1", "ann")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))
	_, err = s.ReleaseVolumeBackup(ctx, "vol-1", "bak-1", "ann")
	require.NoError(t, err)
	_, err = s.CreateVolumeRestore(ctx, workload.VolumeRestore{RestoreID: "vrs-1", VolumeID: "vol-1", BackupID: "bak-1", CreatedBy: "ann"})
	require.NoError(t, err)
	_, err = s.DeleteVolumeBackup(ctx, "vol-1", "bak-1", "ann")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))
	require.NoError(t, s.ExpireVolumeBackups(ctx, "vol-1", time.Hour))
	left, err := s.BackupsLeft(ctx, time.Hour, 10)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, s.VolumeRestoreFinished(ctx, "vrs-1", "", ""))
	exec(t, s, `UPDATE backups SET expires_at = now() - interval '1 hour' WHERE backup_id = 'bak-1'`)
	left, err = s.BackupsLeft(ctx, time.Hour, 10)
	require.NoError(t, err)
	require.Equal(t, []tenant.BackupLeft{{BackupID: "bak-1", VolumeID: "vol-1", State: tenant.BackupStored}}, left)
	_, err = s.DeleteVolumeBackup(ctx, "vol-1", "bak-1", "retention")
	require.NoError(t, err)
}

// TestWhenAVolumeIsBackedUp: by its own policy, its org's, or that of all; one on no server is
// passed over, and not late.
func TestWhenAVolumeIsBackedUp(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	source := func(id prego.VolumeID) string {
		p, err := s.VolumeBackupPolicy(ctx, id)
		require.NoError(t, err)
		return p.ID()
	}
	require.Equal(t, tenant.AllVolumes, source("vol-0"))
	policy := tenant.BackupPolicy{Schedule: "0 * * * *", Retention: tenant.Retention{Daily: 1}}
	policy.OrgID = "acme"
	require.NoError(t, s.PutBackupPolicy(ctx, policy, "ann"))
	policy.OrgID, policy.VolumeID = "", "vol-0"
	require.NoError(t, s.PutBackupPolicy(ctx, policy, "ann"))
	require.Equal(t, []string{"volume/vol-0", "org/acme"}, []string{source("vol-0"), source("vol-1")})
	require.NoError(t, s.DeleteBackupPolicy(ctx, tenant.BackupPolicy{VolumeID: "vol-0"}, "ann"))
	require.Equal(t, "org/acme", source("vol-0"))
	require.Error(t, s.PutBackupPolicy(ctx, tenant.BackupPolicy{VolumeID: "vol-9", Retention: policy.Retention}, "ann"))

	turns, err := s.VolumesWithoutTurn(ctx, 10)
	require.NoError(t, err)
	require.Len(t, turns, 3)
	require.NoError(t, s.PutVolumeBackupTurns(ctx, turns))
	turns, err = s.VolumesWithoutTurn(ctx, 10)
	require.NoError(t, err)
	require.Empty(t, turns)
	exec(t, s, `UPDATE volume_backup_turns SET next_at = now() - interval '3 hours'`)
	due, err := s.DueVolumeBackupTurns(ctx, 10)
	require.NoError(t, err)
	require.Len(t, due, 3)
	queued := 0
	var mu sync.Mutex
	var work sync.WaitGroup
	for i := range 2 { // by two workers at once
		for _, d := range due {
			work.Go(func() {
				ok, err := s.TakeVolumeBackupTurn(ctx, d, prego.BackupID(fmt.Sprintf("bak-%d-%s", i, d.VolumeID)), "schedule")
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				if ok {
					queued++
				}
			})
		}
	}
	work.Wait()
	require.Equal(t, 1, queued, "vol-0 once; the others are on no server")
	late, err := s.LateVolumeBackups(ctx, 2*time.Hour, 10)
	require.NoError(t, err)
	require.Equal(t, []prego.VolumeID{"vol-0"}, late)
	exec(t, s, storedVolumes)
	late, err = s.LateVolumeBackups(ctx, 2*time.Hour, 10)
	require.NoError(t, err)
	require.Empty(t, late)
}

// TestALentVolumeHasOneUser: of a group, a backup and a restore one has it, whoever comes first.
func TestALentVolumeHasOneUser(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	at, lent, err := s.LendVolume(ctx, "vol-0", "n-0", "bak-0")
	require.NoError(t, err)
	require.Equal(t, []any{prego.ServerID("n-0"), false}, []any{at, lent}, "its group has it")
	require.NoError(t, s.AttachedTo(ctx, "vat-0", ""))
	for range 2 { // a repeated step
		at, lent, err = s.LendVolume(ctx, "vol-0", "", "bak-0")
		require.NoError(t, err)
		require.Equal(t, []any{prego.ServerID("n-0"), true}, []any{at, lent})
	}
	_, _, err = s.LendVolume(ctx, "vol-0", "", "vrs-0")
	require.Equal(t, prego.CodeVolumeInUse, prego.CodeOf(err))
	require.Equal(t, prego.CodeVolumeInUse, prego.CodeOf(s.AttachedTo(ctx, "vat-0", "n-1")))
	exec(t, s, `UPDATE volume_attachments SET deleted_at = now()`)
	_, err = s.DeleteVolume(ctx, "vol-0", "", "ann")
	require.Equal(t, prego.CodeVolumeInUse, prego.CodeOf(err))
	exec(t, s, `UPDATE volume_attachments SET deleted_at = NULL`)
	left, err := s.LentVolumes(ctx, 10)
	require.NoError(t, err)
	require.Equal(t, map[prego.VolumeID]string{"vol-0": "bak-0"}, left, "there is no such backup under way")
	require.NoError(t, s.ReturnVolume(ctx, "vol-0", "vrs-0"))
	require.Equal(t, prego.CodeVolumeInUse, prego.CodeOf(s.AttachedTo(ctx, "vat-0", "n-1")), "it was not lent for that")
	require.NoError(t, s.ReturnVolume(ctx, "vol-0", "bak-0"))
	require.NoError(t, s.AttachedTo(ctx, "vat-0", "n-1"))

	// Both at once, many times: never both.
	for i := range 20 {
		require.NoError(t, s.AttachedTo(ctx, "vat-0", ""))
		require.NoError(t, s.ReturnVolume(ctx, "vol-0", "bak-0"))
		var lends, attaches bool
		var work sync.WaitGroup
		work.Go(func() {
			_, lent, err := s.LendVolume(ctx, "vol-0", "", "bak-0")
			lends = err == nil && lent
		})
		work.Go(func() { attaches = s.AttachedTo(ctx, "vat-0", "n-1") == nil })
		work.Wait()
		require.NotEqual(t, lends, attaches, "round %d", i)
	}
}

// TestARestoreNeedsAVolumeAtRest: no instance, no other restore, no backup under way.
func TestARestoreNeedsAVolumeAtRest(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	restore := func(id string, backup prego.BackupID) error {
		_, err := s.CreateVolumeRestore(ctx, workload.VolumeRestore{RestoreID: id, VolumeID: "vol-0", BackupID: backup, CreatedBy: "ann"})
		return err
	}
	_, err := s.RequestVolumeBackup(ctx, askedOf("bak-0", "vol-0", tenant.BackupManual))
	require.NoError(t, err)
	_, err = s.RequestVolumeBackup(ctx, askedOf("bak-1", "vol-1", tenant.BackupManual))
	require.NoError(t, err)
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(restore("vrs-0", "bak-0")))
	exec(t, s, storedVolumes)
	require.Equal(t, prego.CodeBackupUnknown, prego.CodeOf(restore("vrs-0", "bak-1")), "of another volume")
	exec(t, s, `INSERT INTO instances (instance_id, org_id, group_id, number, release, spec, server_id, state, memory_limit_bytes, cpu_request) VALUES ('ins-0', 'acme', 'grp-0', 1, 1, '{}', 'n-0', 'running', 1, 1)`)
	require.Equal(t, prego.CodeVolumeInUse, prego.CodeOf(restore("vrs-0", "bak-0")))
	exec(t, s, `DELETE FROM instances`)
	require.NoError(t, restore("vrs-0", "bak-0"))
	require.Equal(t, prego.CodeRestoreUnderWay, prego.CodeOf(restore("vrs-1", "bak-0")))
	left, err := s.VolumeRestoresLeft(ctx, -time.Second, 10)
	require.NoError(t, err)
	require.Equal(t, []string{"vrs-0"}, left)
	require.NoError(t, s.VolumeRestoreBegun(ctx, "vrs-0"))
	require.NoError(t, s.VolumeRestoreFinished(ctx, "vrs-0", tenant.ReasonDigest, "a bit is another"))
	require.NoError(t, s.VolumeRestoreFinished(ctx, "vrs-0", "", ""), "it has ended")
	r, err := s.GetVolumeRestore(ctx, "vol-0", "vrs-0")
	require.NoError(t, err)
	require.Equal(t, []any{workload.RestoreFailed, tenant.ReasonDigest}, []any{r.Status, r.Reason})
	_, err = s.GetVolumeRestore(ctx, "vol-1", "vrs-0")
	require.Equal(t, prego.CodeRestoreNotFound, prego.CodeOf(err))

	// Without its last backup it goes only with a reason.
	exec(t, s, `UPDATE volume_attachments SET deleted_at = now(), server_id = NULL`)
	wants, err := s.WantsLastBackup(ctx, "vol-0")
	require.NoError(t, err)
	require.True(t, wants)
	_, err = s.DeleteVolume(ctx, "vol-0", "", "ann")
	require.NoError(t, err)
	_, err = s.DeleteVolume(ctx, "vol-0", "its data is elsewhere", "ann")
	require.NoError(t, err, "also while it is being deleted")
	wants, err = s.WantsLastBackup(ctx, "vol-0")
	require.NoError(t, err)
	require.False(t, wants)
	require.Equal(t, 1, count(t, s, `org_events WHERE type = 'volume.no_final_backup' AND subject = 'vol-0'`))
	wants, err = s.WantsLastBackup(ctx, "vol-1")
	require.NoError(t, err)
	require.False(t, wants, "no group ever had it")
}
