package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// TestADeletedVolumeIsKept: one that may hold data, for a day, and for that time it can be had back as it was.
func TestADeletedVolumeIsKept(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), impact.By(context.Background(), "test")
	exec(t, s, `UPDATE volume_attachments SET deleted_at = now(), server_id = NULL`)
	exec(t, s, `
INSERT INTO resources (provider, kind, name, provider_id, state, created_at)
VALUES ('hetzner', 'volume', 'vol-0', '100', 'created', now());
INSERT INTO provider_prices (provider, kind, type, location, per_gb, monthly, currency)
VALUES ('hetzner', 'volume', '', '', true, 44000, 'EUR')`)
	remove := func(id prego.VolumeID) workload.Volume {
		v, err := s.DeleteVolume(ctx, id, "", "ann")
		require.NoError(t, err)
		require.Equal(t, workload.ResourceReleasing, v.Status)
		return v
	}
	gate := func() error { return s.MayDelete(ctx, "hetzner", server.ResourceVolume, "100") }
	upcoming := func() []impact.Upcoming {
		all, _, err := s.Upcoming(ctx, time.Now().Add(48*time.Hour), tenant.LifecyclePeriods{}, scale.Plan)
		require.NoError(t, err)
		return all
	}

	// The impact states until when it can be undone, and what that costs.
	i := trying(t, s, func(ctx context.Context) error {
		_, err := s.DeleteVolume(ctx, "vol-0", "", "ann")
		return err
	})
	require.Regexp(t, `^prego volume undelete vol-0, until \d{4}-\d\d-\d\dT\d\d:\d\dZ\. Until then it costs 0\.44 EUR a month$`,
		i.Undo)
	v := remove("vol-0")
	require.WithinDuration(t, time.Now().Add(24*time.Hour), *v.KeptUntil, time.Minute)
	require.Equal(t, v.KeptUntil, remove("vol-0").KeptUntil, "a second request changes nothing")
	require.Nil(t, remove("vol-1").KeptUntil, "no group ever had it")
	require.ErrorContains(t, gate(), "holds_data: ")
	require.Equal(t, 0, count(t, s, `(`+sqlAttOperationStuck+`) x`), "it is as intended")
	listed := upcoming()
	require.Len(t, listed, 1)
	require.WithinDuration(t, *v.KeptUntil, listed[0].At, time.Second)
	require.Equal(t, []string{"volume", "vol-0", "deletion", "ann", "prego volume undelete vol-0"},
		[]string{listed[0].Kind, listed[0].ID, listed[0].Policy, listed[0].AcceptedBy, listed[0].Stop})
	_, err := s.AttachVolume(ctx, workload.VolumeAttachment{AttachmentID: "vat-1", VolumeID: "vol-0", GroupID: "grp-0"}, "ann")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err))
	used := number(ctx, t, s, `SELECT used::int FROM org_used('acme', '{max_volumes}')`)
	require.Equal(t, 3, used, "it counts until it is gone")

	// Its last backup is none after its deletion is undone.
	_, err = s.RequestVolumeBackup(ctx, askedOf("bak-0", "vol-0", tenant.BackupFinal))
	require.NoError(t, err)
	exec(t, s, storedVolumes)
	for range 2 {
		v, err = s.UndeleteVolume(ctx, "vol-0", "bob")
		require.NoError(t, err)
		require.Equal(t, workload.ResourceReady, v.Status)
		require.Nil(t, v.KeptUntil)
	}
	require.Equal(t, 1, count(t, s, `org_events WHERE type = 'volume.undelete' AND subject = 'vol-0' AND actor = 'bob'`))
	require.Empty(t, upcoming())
	require.ErrorContains(t, gate(), "holds_data: ")
	last, err := s.FinalVolumeBackup(ctx, "vol-0")
	require.NoError(t, err)
	require.Nil(t, last)

	// Without its last backup it is kept, too. Its time ends.
	_, err = s.DeleteVolume(ctx, "vol-0", "moved", "ann")
	require.NoError(t, err)
	require.ErrorContains(t, gate(), "holds_data: ")
	exec(t, s, `UPDATE volumes SET kept_until = now() WHERE volume_id = 'vol-0'`)
	_, err = s.UndeleteVolume(ctx, "vol-0", "bob")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err))
	_, err = s.UndeleteVolume(ctx, "vol-1", "bob")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err))
	require.Empty(t, upcoming())
	require.NoError(t, gate())
	v, err = s.VolumeEver(ctx, "vol-0")
	require.NoError(t, err)
	require.NoError(t, s.VolumeGone(ctx, v))
	_, err = s.UndeleteVolume(ctx, "vol-0", "bob")
	require.Equal(t, prego.CodeVolumeNotFound, prego.CodeOf(err))
}

// TestADeletedSnapshotIsKept on its host's disk for a day, if it can be restored: its deletion can be undone.
func TestADeletedSnapshotIsKept(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 1), impact.By(context.Background(), "test")
	exec(t, s, `
INSERT INTO snapshots (snapshot_id, org_id, tenant_id, status, server_id, site, created_by) VALUES
    ('snp-0', 'acme', 't-0', 'succeeded', 'n-0', 's', 'ann'),
    ('snp-failed', 'acme', 't-0', 'failed', 'n-0', 's', 'ann'),
    ('snp-left', 'acme', 't-0', 'succeeded', 'n-1', 's', 'ann'),
    ('snp-new', 'acme', 't-0', 'queued', 'n-0', 's', 'ann')`)
	remove := func(id prego.SnapshotID) *time.Time {
		v, err := s.DeleteSnapshot(ctx, "t-0", id, "ann")
		require.NoError(t, err)
		require.Equal(t, tenant.JobDeleted, v.Status)
		return v.KeptUntil
	}
	due := func() []string {
		work, err := s.OrgWork(ctx, time.Hour)
		require.NoError(t, err)
		return work.Erasures
	}
	upcoming := func() []impact.Upcoming {
		all, _, err := s.Upcoming(ctx, time.Now().Add(48*time.Hour), tenant.LifecyclePeriods{}, scale.Plan)
		require.NoError(t, err)
		return all
	}
	i := trying(t, s, func(ctx context.Context) error {
		_, err := s.DeleteSnapshot(ctx, "t-0", "snp-0", "ann")
		return err
	})
	require.Regexp(t, `^prego snapshot undelete t-0 snp-0, until \d{4}-\d\d-\d\dT\d\d:\d\dZ$`, i.Undo)
	until := remove("snp-0")
	require.WithinDuration(t, time.Now().Add(24*time.Hour), *until, time.Minute)
	require.Equal(t, until, remove("snp-0"), "a second request changes nothing")
	require.Nil(t, remove("snp-failed"), "it holds nothing")
	require.Nil(t, remove("snp-left"), "its site is elsewhere")
	require.ElementsMatch(t, []string{"snp-failed", "snp-left"}, due())
	require.ErrorContains(t, s.MayForget(ctx, "snp-0"), "holds_data: ")
	require.NoError(t, s.MayForget(ctx, "snp-left"))
	require.Equal(t, prego.CodeSnapshotUnknown, prego.CodeOf(restoreOf(ctx, s, "snp-0")), "it is out of use")
	listed := upcoming()
	require.Len(t, listed, 1)
	require.Equal(t, []string{"snapshot", "snp-0", "deletion", "ann", "prego snapshot undelete t-0 snp-0"},
		[]string{listed[0].Kind, listed[0].ID, listed[0].Policy, listed[0].AcceptedBy, listed[0].Stop})

	for range 2 {
		v, err := s.UndeleteSnapshot(ctx, "t-0", "snp-0", "bob")
		require.NoError(t, err)
		require.Equal(t, []any{tenant.JobSucceeded, true}, []any{v.Status, v.KeptUntil == nil})
	}
	require.Equal(t, 1, count(t, s, `org_events
		WHERE type = 'snapshot.undelete' AND subject = 'snp-0' AND actor = 'bob'`))
	require.Empty(t, upcoming())
	_, err := s.UndeleteSnapshot(ctx, "t-0", "snp-new", "bob")
	require.Equal(t, prego.CodeSnapshotNotReady, prego.CodeOf(err))
	_, err = s.UndeleteSnapshot(ctx, "t-0", "snp-left", "bob")
	require.Equal(t, prego.CodeSnapshotNotFound, prego.CodeOf(err))

	// Its time ends; so does it with its site.
	remove("snp-0")
	exec(t, s, `UPDATE snapshots SET kept_until = now() WHERE kept_until IS NOT NULL`)
	require.NoError(t, s.MayForget(ctx, "snp-0"))
	require.Contains(t, due(), "snp-0")
	_, err = s.UndeleteSnapshot(ctx, "t-0", "snp-0", "bob")
	require.Equal(t, prego.CodeSnapshotNotFound, prego.CodeOf(err))
	exec(t, s, `UPDATE snapshots SET kept_until = now() + interval '1 hour' WHERE snapshot_id = 'snp-0'`)
	require.NoError(t, s.SiteErased(ctx, "t-0"))
	_, err = s.UndeleteSnapshot(ctx, "t-0", "snp-0", "bob")
	require.Equal(t, prego.CodeSnapshotNotFound, prego.CodeOf(err))
}

func restoreOf(ctx context.Context, s *Store, id prego.SnapshotID) error {
	_, err := s.CreateRestore(ctx, "t-0", tenant.RestoreOf{SnapshotID: id}, "rst-1", "ann")
	return err
}

// TestADeletedBackupIsKept: a stored one, for a day after a caller has deleted it. What retention deletes is not, since
// its policy says how long backups are kept.
func TestADeletedBackupIsKept(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 1), impact.By(context.Background(), "test")
	daily := tenant.BackupPolicy{Plan: prego.PlanStarter, Schedule: "0 12 * * *", Retention: tenant.Retention{Daily: 4}}
	require.NoError(t, s.PutBackupPolicy(ctx, daily, "ann"))
	for i, id := range []string{"bak-0", "bak-failed", "bak-missing", "bak-old"} {
		backupAt(t, s, "t-0", id, time.Now().Add(-time.Duration(i)*time.Hour))
	}
	exec(t, s, `UPDATE backups SET object_key = backup_id || '/site.age', manifest_key = backup_id || '/manifest.json'`)
	exec(t, s, `UPDATE backups SET state = 'failed' WHERE backup_id = 'bak-failed'`)
	exec(t, s, `UPDATE backups SET missing_at = now() WHERE backup_id = 'bak-missing'`)
	of := tenant.BackupOwner{TenantID: "t-0"}
	remove := func(ctx context.Context, id prego.BackupID) *time.Time {
		b, err := s.DeleteBackup(ctx, of, id, "ann")
		require.NoError(t, err)
		require.Equal(t, tenant.BackupDeleting, b.State)
		return b.KeptUntil
	}
	due := func() (ids []string) {
		left, err := s.BackupsLeft(ctx, time.Hour, 10)
		require.NoError(t, err)
		for _, b := range left {
			ids = append(ids, string(b.BackupID)+" "+string(b.State))
		}
		return ids
	}
	gate := func() error { return s.MayDeleteObject(ctx, "e/bak-0/site.age") }
	exec(t, s, `UPDATE backups SET object_key = 'e/' || object_key`)

	i := trying(t, s, func(ctx context.Context) error {
		_, err := s.DeleteBackup(ctx, of, "bak-0", "ann")
		return err
	})
	require.Regexp(t, `^prego backup undelete t-0 bak-0, until \d{4}-\d\d-\d\dT\d\d:\d\dZ$`, i.Undo)
	until := remove(ctx, "bak-0")
	require.WithinDuration(t, time.Now().Add(24*time.Hour), *until, time.Minute)
	require.Equal(t, until, remove(ctx, "bak-0"))
	require.Equal(t, until, remove(impact.Standing(ctx, "retention"), "bak-0"), "retention ends no caller's time")
	require.Nil(t, remove(ctx, "bak-failed"))
	require.Nil(t, remove(ctx, "bak-missing"))
	require.Nil(t, remove(impact.Standing(ctx, "retention"), "bak-old"))
	require.ElementsMatch(t, []string{"bak-failed deleting", "bak-missing deleting", "bak-old deleting"}, due())
	require.ErrorContains(t, gate(), "holds_data: ")
	newest, err := s.Restorable(ctx, "t-0")
	require.NoError(t, err)
	require.Nil(t, newest, "it is not restored from")
	listed, _, err := s.Upcoming(ctx, time.Now().Add(48*time.Hour), tenant.LifecyclePeriods{}, scale.Plan)
	require.NoError(t, err)
	require.Len(t, listed, 1)
	require.Equal(t, []string{"backup", "bak-0", "deletion", "ann", "prego backup undelete t-0 bak-0"},
		[]string{listed[0].Kind, listed[0].ID, listed[0].Policy, listed[0].AcceptedBy, listed[0].Stop})
	space, err := s.BackupSpace(ctx, "acme", 5)
	require.NoError(t, err)
	require.EqualValues(t, 4, space.UsedBytes, "it occupies what it did")

	for range 2 {
		b, err := s.UndeleteBackup(ctx, of, "bak-0", "bob")
		require.NoError(t, err)
		require.Equal(t, tenant.BackupStored, b.State)
		require.Nil(t, b.KeptUntil)
	}
	require.Equal(t, 1, count(t, s, `org_events WHERE type = 'backup.undelete' AND subject = 'bak-0' AND actor = 'bob'`))
	_, err = s.UndeleteBackup(ctx, of, "bak-old", "bob")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))

	// Its tenant's end is also the end of a backup that comes back later.
	remove(ctx, "bak-0")
	require.NoError(t, s.ExpireBackups(ctx, "t-0", time.Hour))
	_, err = s.UndeleteBackup(ctx, of, "bak-0", "bob")
	require.NoError(t, err)
	require.Contains(t, due(), "bak-0 stored")

	remove(ctx, "bak-0")
	exec(t, s, `UPDATE backups SET kept_until = now() WHERE kept_until IS NOT NULL`)
	_, err = s.UndeleteBackup(ctx, of, "bak-0", "bob")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))
	require.Contains(t, due(), "bak-0 deleting")
	require.NoError(t, gate())
}

// TestUndeleteAndTheGateExclude each other in the last moment: the gate waits for a deletion that is being undone, and
// nothing is undone by the time at which its transaction began.
func TestUndeleteAndTheGateExclude(t *testing.T) {
	t.Parallel()
	s, ctx := volumesOf(t), context.Background()
	backupAt(t, s, "t-0", "bak-0", time.Now())
	exec(t, s, `UPDATE backups SET object_key = 'e/bak-0/o'`)
	exec(t, s, `INSERT INTO snapshots (snapshot_id, org_id, tenant_id, status, server_id, site, created_by)
		SELECT 'snp-0', org_id, tenant_id, 'succeeded', server_id, site, 'ann' FROM backups`)
	for _, c := range []struct {
		deleted, undo string
		args          []any
		gate          func() error
	}{
		{
			`volumes SET status = 'releasing', kept_until = %s WHERE volume_id = 'vol-0'`, sqlUndeleteVolume,
			[]any{"vol-0"},
			func() error { return s.MayDelete(ctx, "hetzner", server.ResourceVolume, "100") },
		},
		{
			`backups SET state = 'deleting', kept_until = %s`, sqlUndeleteBackup,
			[]any{"bak-0", "t-0"},
			func() error { return s.MayDeleteObject(ctx, "e/bak-0/o") },
		},
		{
			`snapshots SET status = 'deleted', kept_until = %s`, sqlUndeleteSnapshot,
			[]any{"snp-0", "t-0"},
			func() error { return s.MayForget(ctx, "snp-0") },
		},
	} {
		deleted := func(until string) { exec(t, s, `UPDATE `+fmt.Sprintf(c.deleted, until)) }
		early, err := s.pool.Begin(ctx)
		require.NoError(t, err)
		defer early.Rollback(ctx) //nolint:errcheck // a failed test would wait for it
		deleted(`clock_timestamp()`)
		done, err := early.Exec(ctx, c.undo, c.args...)
		require.NoError(t, err)
		require.Zero(t, done.RowsAffected(), c.undo)
		require.NoError(t, early.Rollback(ctx))

		deleted(`clock_timestamp() + interval '300 milliseconds'`)
		open, err := s.pool.Begin(ctx)
		require.NoError(t, err)
		defer open.Rollback(ctx) //nolint:errcheck // as above
		done, err = open.Exec(ctx, c.undo, c.args...)
		require.NoError(t, err)
		require.EqualValues(t, 1, done.RowsAffected())
		passed := make(chan error, 1)
		go func() {
			var over bool
			for err := error(nil); err == nil && !over; {
				err = s.pool.QueryRow(ctx, `SELECT kept_until < now() FROM (SELECT kept_until FROM volumes
					UNION ALL SELECT kept_until FROM backups UNION ALL SELECT kept_until FROM snapshots) k
					WHERE kept_until IS NOT NULL ORDER BY 1 LIMIT 1`).Scan(&over)
			}
			passed <- c.gate()
		}()
		require.Eventually(t, func() bool {
			return len(passed) > 0 || number(ctx, t, s, `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
		}, 10*time.Second, 10*time.Millisecond)
		require.NoError(t, open.Commit(ctx))
		require.ErrorContains(t, <-passed, "holds_data: ", c.undo)
	}
}
