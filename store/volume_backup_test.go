package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/server"
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
	began, err := s.AdmitBackups(ctx, 1, 5)
	require.NoError(t, err)
	require.ElementsMatch(t, prego.IDs[prego.BackupID]([]string{"bak-0", "bak-1"}), began, "the tenant's is after the volume's on n-0")

	exec(t, s, storedVolumes)
	_, err = s.GetBackup(ctx, tenant.BackupOwner{TenantID: "t-0"}, "bak-0")
	require.Equal(t, prego.CodeBackupNotFound, prego.CodeOf(err))
	_, err = s.GetBackup(ctx, tenant.BackupOwner{VolumeID: "vol-1"}, "bak-0")
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

	// Held or restored backups are not deleted; a volume that goes leaves its newest.
	_, err = s.HoldBackup(ctx, tenant.BackupOwner{VolumeID: "vol-1"}, "bak-1", "case", "ann")
	require.NoError(t, err)
	_, err = s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{VolumeID: "vol-1"}, "bak-1", "ann")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))
	_, err = s.ReleaseBackup(ctx, tenant.BackupOwner{VolumeID: "vol-1"}, "bak-1", "ann")
	require.NoError(t, err)
	_, err = s.CreateVolumeRestore(impact.By(ctx, "test"), workload.VolumeRestore{RestoreID: "vrs-1", VolumeID: "vol-1", BackupID: "bak-1", CreatedBy: "ann"})
	require.NoError(t, err)
	_, err = s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{VolumeID: "vol-1"}, "bak-1", "ann")
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
	_, err = s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{VolumeID: "vol-1"}, "bak-1", "retention")
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

	unscheduled, err := s.UnscheduledVolumes(ctx, 10)
	require.NoError(t, err)
	require.Len(t, unscheduled, 3)
	require.NoError(t, s.PutBackupSchedules(ctx, unscheduled))
	unscheduled, err = s.UnscheduledVolumes(ctx, 10)
	require.NoError(t, err)
	require.Empty(t, unscheduled)
	exec(t, s, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('corp', 'paid', 'test')`)
	exec(t, s, `UPDATE volumes SET org_id = 'corp' WHERE volume_id = 'vol-2'`)
	exec(t, s, `UPDATE volume_backup_schedules
		SET next_at = now() - make_interval(hours => CASE volume_id WHEN 'vol-2' THEN 1 ELSE 9 END)`)
	turns, err := s.DueVolumeBackups(ctx, 2)
	require.NoError(t, err)
	first := []prego.VolumeID{turns[0].VolumeID, turns[1].VolumeID}
	require.Equal(t, []prego.VolumeID{"vol-0", "vol-2"}, first, "orgs take turns")
	exec(t, s, `UPDATE volumes SET org_id = 'acme' WHERE volume_id = 'vol-2'`)
	exec(t, s, `UPDATE volume_backup_schedules SET next_at = now() - interval '3 hours'`)
	due, err := s.DueVolumeBackups(ctx, 10)
	require.NoError(t, err)
	require.Len(t, due, 3)
	queued := 0
	var mu sync.Mutex
	var work sync.WaitGroup
	for i := range 2 { // by two concurrent workers
		for _, d := range due {
			work.Go(func() {
				ok, err := s.TakeDueBackup(ctx, d, prego.BackupID(fmt.Sprintf("bak-%d-%s", i, d.VolumeID)), "schedule")
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
	// Another turn comes before there is one.
	exec(t, s, `UPDATE volume_backup_schedules SET next_at = now() - interval '1 hour' WHERE volume_id = 'vol-0'`)
	due, err = s.DueVolumeBackups(ctx, 10)
	require.NoError(t, err)
	require.Len(t, due, 1)
	_, err = s.TakeDueBackup(ctx, due[0], "bak-again", "schedule")
	require.NoError(t, err)
	late, err = s.LateVolumeBackups(ctx, 2*time.Hour, 10)
	require.NoError(t, err)
	require.Equal(t, []prego.VolumeID{"vol-0"}, late)
	exec(t, s, storedVolumes)
	late, err = s.LateVolumeBackups(ctx, 2*time.Hour, 10)
	require.NoError(t, err)
	require.Empty(t, late)
}

// TestALentVolumeHasOneUser: only one of a group, a backup and a restore has it, the first to come.
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
	_, err = s.DeleteVolume(impact.By(ctx, "test"), "vol-0", "", "ann")
	require.Equal(t, prego.CodeVolumeInUse, prego.CodeOf(err))
	exec(t, s, `UPDATE volume_attachments SET deleted_at = NULL`)
	left, err := s.LentVolumes(ctx, 10)
	require.NoError(t, err)
	require.Equal(t, map[prego.VolumeID]string{"vol-0": "bak-0"}, left, "there is no such backup under way")
	require.NoError(t, s.ReturnVolume(ctx, "vol-0", "vrs-0"))
	require.Equal(t, prego.CodeVolumeInUse, prego.CodeOf(s.AttachedTo(ctx, "vat-0", "n-1")), "it was not lent for that")
	require.NoError(t, s.ReturnVolume(ctx, "vol-0", "bak-0"))
	require.NoError(t, s.AttachedTo(ctx, "vat-0", "n-1"))

	// Both concurrently, many times: never both.
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
		_, err := s.CreateVolumeRestore(impact.By(ctx, "test"), workload.VolumeRestore{RestoreID: id, VolumeID: "vol-0", BackupID: backup, CreatedBy: "ann"})
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
	_, err = s.DeleteVolume(impact.By(ctx, "test"), "vol-0", "", "ann")
	require.NoError(t, err)
	_, err = s.DeleteVolume(impact.By(ctx, "test"), "vol-0", "its data is elsewhere", "ann")
	require.NoError(t, err, "also while it is being deleted")
	wants, err = s.WantsLastBackup(ctx, "vol-0")
	require.NoError(t, err)
	require.False(t, wants)
	require.Equal(t, 1, count(t, s, `org_events WHERE type = 'volume.no_final_backup' AND subject = 'vol-0'`))
	wants, err = s.WantsLastBackup(ctx, "vol-1")
	require.NoError(t, err)
	require.False(t, wants, "no group ever had it")
}

// TestAVolumesBackupsAreHeldTogether: existing and later backups, by retention, on request and
// after the volume's end, until they are released; also for a volume that is deleted already.
func TestAVolumesBackupsAreHeldTogether(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	vol0 := tenant.BackupOwner{VolumeID: "vol-0"}
	for _, id := range []prego.VolumeID{"vol-0", "vol-1"} {
		_, err := s.RequestVolumeBackup(ctx, askedOf(prego.BackupID("bak-"+id), id, tenant.BackupManual))
		require.NoError(t, err)
	}
	exec(t, s, storedVolumes)
	require.NoError(t, s.HoldBackups(ctx, vol0, "a case", "ann"))
	require.NoError(t, s.HoldBackups(ctx, vol0, "a case", "bob"))
	hold, err := s.BackupHold(ctx, vol0)
	require.NoError(t, err)
	require.Equal(t, []string{"a case", "ann"}, []string{hold.Reason, hold.HeldBy}, "a repeated request changes nothing")
	require.Equal(t, 1, count(t, s, "org_events WHERE type = 'backup.hold_all' AND subject = 'vol-0'"))
	none, err := s.BackupHold(ctx, tenant.BackupOwner{VolumeID: "vol-1"})
	require.NoError(t, err)
	require.Nil(t, none)
	require.Equal(t, prego.CodeVolumeNotFound, prego.CodeOf(s.HoldBackups(ctx, tenant.BackupOwner{VolumeID: "vol-9"}, "a case", "ann")))

	_, err = s.RequestVolumeBackup(ctx, askedOf("bak-later", "vol-0", tenant.BackupManual))
	require.NoError(t, err)
	exec(t, s, storedVolumes)
	kept, err := s.VolumeRetained(ctx, "vol-0")
	require.NoError(t, err)
	require.Len(t, kept, 2)
	for _, b := range kept {
		require.True(t, b.Held, b.BackupID)
		_, err = s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{VolumeID: "vol-0"}, b.BackupID, "ann")
		require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))
	}
	free, err := s.VolumeRetained(ctx, "vol-1")
	require.NoError(t, err)
	require.False(t, free[0].Held, "another volume's")

	exec(t, s, `UPDATE volumes SET status = 'releasing', deleted_at = now()`)
	for _, id := range []prego.VolumeID{"vol-0", "vol-1"} {
		require.NoError(t, s.ExpireVolumeBackups(ctx, id, 0))
	}
	exec(t, s, `UPDATE backups SET expires_at = now() - interval '1 hour'`)
	left := func() (ids []prego.BackupID) {
		all, err := s.BackupsLeft(ctx, time.Hour, 10)
		require.NoError(t, err)
		for _, b := range all {
			ids = append(ids, b.BackupID)
		}
		return ids
	}
	require.Equal(t, []prego.BackupID{"bak-vol-1"}, left())
	require.NoError(t, s.HoldBackups(ctx, tenant.BackupOwner{VolumeID: "vol-1"}, "a case", "ann"), "its last backup is there")
	require.Empty(t, left())
	for range 2 {
		require.NoError(t, s.ReleaseBackups(impact.By(ctx, "test"), vol0, "ann"))
	}
	require.ElementsMatch(t, []prego.BackupID{"bak-vol-0", "bak-later"}, left())
}

// TestALoanTakesASlot: the provider attaches 16 volumes to a server. Volumes lent to it for a
// backup or a restore count when an instance is placed, when it is allocated, and when another is lent.
func TestALoanTakesASlot(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	exec(t, s, `UPDATE volume_attachments SET server_id = NULL`)
	exec(t, s, `INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, made_bytes, grown_bytes, provider, provider_name, provider_id, status, created_by)
		SELECT 'vol-l' || i, 'acme', 'eu', 'fsn1', 'l' || i, 10000000000, 10000000000, 10000000000, 'hetzner', 'l' || i, 'l' || i, 'ready', 'test' FROM generate_series(1, 40) i`)
	lend := func(id string, want prego.ServerID) (prego.ServerID, error) {
		at, _, err := s.LendVolume(ctx, prego.VolumeID(id), want, "bak-"+id)
		return at, err
	}
	for i := 1; i <= 15; i++ {
		_, err := lend(fmt.Sprintf("vol-l%d", i), "n-0")
		require.NoError(t, err)
	}
	has := func(server prego.ServerID) int {
		return count(t, s, fmt.Sprintf("(SELECT DISTINCT volume_id FROM volumes_on('%s')) x", server))
	}
	require.Equal(t, 15, has("n-0"))

	// A group's own volume that is on loan where it goes is one, not two.
	_, err := lend("vol-0", "n-0")
	require.NoError(t, err)
	require.Equal(t, 1, count(t, s, "volumes_on('n-0') x WHERE group_id = 'grp-0' AND volume_id = 'vol-0'"))
	require.Equal(t, 16, has("n-0"))
	_, err = lend("vol-l16", "n-0")
	require.Equal(t, prego.CodeInsufficientResources, prego.CodeOf(err))
	require.ErrorContains(t, err, "server n-0 has 16 volumes, and the provider attaches no more than 16")
	at, err := lend("vol-l1", "n-0")
	require.NoError(t, err, "it is there already")
	require.Equal(t, prego.ServerID("n-0"), at)
	at, err = lend("vol-l16", "")
	require.NoError(t, err)
	require.Equal(t, prego.ServerID("n-1"), at, "another one has room")

	// Two concurrently want the last slot, many times: one gets it.
	for i := 17; i <= 30; i++ {
		_, err := lend(fmt.Sprintf("vol-l%d", i), "n-1")
		require.NoError(t, err)
	}
	require.Equal(t, 15, has("n-1"))
	for round := range 10 {
		var work sync.WaitGroup
		var got [3]error
		for i := range got {
			work.Go(func() { _, got[i] = lend(fmt.Sprintf("vol-l%d", 31+i), "n-1") })
		}
		work.Wait()
		refused := 0
		for i, err := range got {
			if err != nil {
				require.Equal(t, prego.CodeInsufficientResources, prego.CodeOf(err))
				refused++
			}
			require.NoError(t, s.ReturnVolume(ctx, prego.VolumeID(fmt.Sprintf("vol-l%d", 31+i)), fmt.Sprintf("bak-vol-l%d", 31+i)))
		}
		require.Equal(t, 2, refused, "round %d", round)
	}
	_, err = lend("vol-l31", "n-1")
	require.NoError(t, err)
	_, err = lend("vol-l32", "")
	require.ErrorContains(t, err, "no server at fsn1 can have volume vol-l32 for a while")
	_, err = s.RequestVolumeBackup(ctx, askedOf("bak-full", "vol-l32", tenant.BackupManual))
	require.Equal(t, prego.CodeInsufficientResources, prego.CodeOf(err))
}

// TestAnInstanceFindsNoSlotThatIsLent: with 16 volumes on loan, a server is rejected by placement, and
// when it is allocated by who decided before; an instance without a volume may go there.
func TestAnInstanceFindsNoSlotThatIsLent(t *testing.T) {
	t.Parallel()
	s, ctx := groupBundle(t), context.Background()
	one, err := s.testGroup(t, 1, "acme", 1, specOf(16))
	require.NoError(t, err)
	two, err := s.testGroup(t, 2, "acme", 1, specOf(16))
	require.NoError(t, err)
	for _, id := range []string{one, two} {
		_, err = s.PlanGroup(ctx, prego.GroupID(id), time.Second)
		require.NoError(t, err)
	}
	for _, sql := range []string{
		`UPDATE servers SET location = 'fsn1' WHERE server_id = 'node-1'`,
		`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, made_bytes, grown_bytes, provider, provider_name, provider_id, status, created_by)
			SELECT 'vol-' || i, 'acme', 'eu', 'fsn1', 'v' || i, 10000000000, 10000000000, 10000000000, 'hetzner', 'v' || i, 'v' || i, 'ready', 'test' FROM generate_series(0, 16) i`,
		`INSERT INTO volume_attachments (attachment_id, org_id, volume_id, group_id, mount_path, created_by) VALUES ('vat-0', 'acme', 'vol-0', '` + one + `', '/data', 'test')`,
	} {
		_, err := s.pool.Exec(ctx, sql)
		require.NoError(t, err)
	}
	for i := range 16 {
		_, lent, err := s.LendVolume(ctx, prego.VolumeID(fmt.Sprintf("vol-%d", i+1)), "node-1", fmt.Sprintf("bak-%d", i+1))
		require.NoError(t, err)
		require.True(t, lent)
	}
	decide := func(id string, volumes int) instance.Decision {
		servers, err := s.InstanceServers(ctx, "eu", prego.IDs[prego.GroupID]([]string{id}))
		require.NoError(t, err)
		servers = slices.DeleteFunc(servers, func(x instance.Server) bool { return x.ServerID != "node-1" })
		require.Len(t, servers, 1)
		return instance.Place(instance.Request{GroupID: prego.GroupID(id), MemoryBytes: 1, Volumes: volumes}, servers)
	}
	allocate := func(id string) workload.AllocationOutcome {
		got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(id), ServerID: "node-1"}, time.Second)
		require.NoError(t, err)
		return got.Outcome
	}
	d := decide(one, 1)
	require.Equal(t, []any{string(workload.ReasonNoVolumeSlots), 1}, []any{d.Code, d.RejectedCounts["volume_slots"]})
	require.Equal(t, workload.AllocationLost, allocate(one))
	require.Empty(t, decide(two, 0).Code)
	require.Equal(t, workload.Allocated, allocate(two))
	require.NoError(t, s.ReturnVolume(ctx, "vol-16", "bak-16"))
	require.Empty(t, decide(one, 1).Code)
	require.Equal(t, workload.Allocated, allocate(one))
	// Now the group has the last slot, though its volume is attached only later.
	_, _, err = s.LendVolume(ctx, "vol-16", "node-1", "bak-16")
	require.Equal(t, prego.CodeInsufficientResources, prego.CodeOf(err))
	require.Empty(t, decide(one, 1).Code, "its own volume is not counted twice")
}

// TestALastBackupThatFailsIsTriedLaterEachTime: the volume records why, how often and when next, its org is notified
// once, and with a given reason the volume goes immediately.
func TestALastBackupThatFailsIsTriedLaterEachTime(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	exec(t, s, `UPDATE volume_attachments SET deleted_at = now(), server_id = NULL`)
	_, err := s.DeleteVolume(impact.By(ctx, "test"), "vol-0", "", "ann")
	require.NoError(t, err)
	var waits []time.Duration
	for range 10 {
		wait, err := s.LastBackupFailed(ctx, "vol-0", tenant.ReasonStorageAway, "no answer. ")
		require.NoError(t, err)
		waits = append(waits, wait)
	}
	m := time.Minute
	require.Equal(t, []time.Duration{5 * m, 10 * m, 20 * m, 40 * m, 80 * m, 160 * m, 320 * m, 360 * m, 360 * m, 360 * m}, waits)
	v, err := s.GetVolume(ctx, "vol-0")
	require.NoError(t, err)
	require.Equal(t, []any{workload.ResourceReleasing, tenant.ReasonStorageAway}, []any{v.Status, v.Reason})
	require.Regexp(t, `^it is kept, because its last backup failed: no answer\. Failed 10 times so far; the next try is at \d{4}-\d\d-\d\dT\d\d:\d\dZ, or when it is deleted once more\. `+
		`To delete it without a backup, say why: no_final_backup_reason$`, v.Message)
	require.Equal(t, 1, count(t, s, `org_events WHERE type = 'volume.last_backup_failed' AND subject = 'vol-0' AND reason = 'storage_unreachable'`))
	require.Equal(t, 1, count(t, s, `volumes WHERE volume_id = 'vol-0' AND last_backup_at BETWEEN now() + interval '5 hours' AND now() + interval '7 hours'`))

	_, err = s.DeleteVolume(impact.By(ctx, "test"), "vol-0", "its data is elsewhere", "ann")
	require.NoError(t, err)
	wait, err := s.LastBackupFailed(ctx, "vol-0", tenant.ReasonStorageAway, "no answer")
	require.NoError(t, err)
	require.Zero(t, wait, "it is wanted gone without one")
	exec(t, s, `UPDATE volumes SET deleted_at = now() WHERE volume_id = 'vol-0'`)
	_, err = s.LastBackupFailed(ctx, "vol-0", tenant.ReasonStorageAway, "no answer")
	require.NoError(t, err, "it is gone")
}

// TestVolumeRowRecordsItsChangeTime: whatever changes it; without a change it stays.
func TestVolumeRowRecordsItsChangeTime(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	changes := func(what string, want bool, f func() error) {
		t.Helper()
		exec(t, s, `ALTER TABLE volumes DISABLE TRIGGER volumes_note_change`)
		exec(t, s, `UPDATE volumes SET updated_at = now() - interval '1 day'`)
		exec(t, s, `ALTER TABLE volumes ENABLE TRIGGER volumes_note_change`)
		require.NoError(t, f(), what)
		n := count(t, s, `volumes WHERE updated_at > now() - interval '1 hour'`)
		require.Equal(t, want, n == 1, "%s changed %d rows", what, n)
	}
	lend := func() error {
		_, _, err := s.LendVolume(ctx, "vol-1", "n-1", "bak-1")
		return err
	}
	changes("a loan", true, lend)
	changes("the same loan", false, lend)
	changes("its return", true, func() error { return s.ReturnVolume(ctx, "vol-1", "bak-1") })
	changes("a wish to grow", true, func() error {
		_, err := s.GrowVolume(ctx, "vol-1", 20_000_000_000, "ann")
		return err
	})
	grown := func() error { return s.VolumeGrown(ctx, "vol-1", 20_000_000_000, 20_000_000_000) }
	changes("growth", true, grown)
	changes("the same growth", false, grown)
	changes("what the provider lost", true, func() error {
		return s.OrgResourceMissing(ctx, server.ProviderResource{Kind: server.ResourceVolume, Provider: "hetzner", ProviderID: "102", Name: "vol-2"})
	})
	changes("a deletion", true, func() error {
		_, err := s.DeleteVolume(impact.By(ctx, "test"), "vol-1", "", "ann")
		return err
	})
	changes("why it is still there", true, func() error {
		_, err := s.LastBackupFailed(ctx, "vol-1", tenant.ReasonStorageAway, "no answer")
		return err
	})
	changes("no last backup", true, func() error {
		_, err := s.DeleteVolume(impact.By(ctx, "test"), "vol-1", "moved", "ann")
		return err
	})
	changes("its end", true, func() error {
		v, err := s.VolumeEver(ctx, "vol-1")
		if err == nil {
			err = s.VolumeGone(ctx, v)
		}
		return err
	})
	exec(t, s, `UPDATE volumes SET status = 'pending', provider_id = NULL, made_bytes = 0, grown_bytes = 0 WHERE volume_id = 'vol-0'`)
	changes("why it waits", true, func() error { return s.VolumeWaits(ctx, "vol-0", prego.ReasonNoCapacityVolume, "full", false) })
	fresh, err := s.VolumeEver(ctx, "vol-0")
	require.NoError(t, err)
	exec(t, s, `INSERT INTO resources (provider, kind, name, state) VALUES ('hetzner', 'volume', 'vol-0', 'intended') ON CONFLICT DO NOTHING`)
	changes("that it is made", true, func() error { return s.VolumeMade(ctx, fresh, "777") })
}

// TestAVolumeIsNotLentToATenantsServer: a server dedicated to a tenant while the volume waited for it gets none.
func TestAVolumeIsNotLentToATenantsServer(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	lend := func() error {
		_, _, err := s.LendVolume(ctx, "vol-1", "n-1", "bak-1")
		return err
	}
	err := s.holding(t, `SELECT FROM servers WHERE server_id = 'n-1' FOR NO KEY UPDATE`, lend, does(t, `UPDATE servers SET dedicated_for_tenant_id = 't-0' WHERE server_id = 'n-1'`))
	require.Equal(t, prego.CodeInsufficientResources, prego.CodeOf(err), "%v", err)
	exec(t, s, `UPDATE servers SET dedicated_for_tenant_id = NULL`)
	require.NoError(t, lend())
}
