package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

// backupTenants creates n active tenants with sites, every third on the same server.
func backupTenants(t *testing.T, n int) *Store {
	t.Helper()
	s := tenantStore(t)
	for i := range 3 {
		exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by) VALUES ($1, '', 'node', $2, 'hetzner', '{}', 'active', 'w', 'test')`,
			fmt.Sprintf("n-%d", i), []string{"eu", "eu", "us"}[i])
		exec(t, s, `INSERT INTO db_shards (shard_id, server_id, region, on_node, tenant_capacity) VALUES ($1, $1, $2, true, 100)`, fmt.Sprintf("n-%d", i), []string{"eu", "eu", "us"}[i])
		exec(t, s, `INSERT INTO redis_pools (pool_id, server_id, region, on_node, tenant_capacity) VALUES ($1, $1, $2, true, 100)`, fmt.Sprintf("n-%d", i), []string{"eu", "eu", "us"}[i])
	}
	for i := range n {
		id := fmt.Sprintf("t-%d", i)
		_, _, err := s.CreateTenant(context.Background(), tenantRequest(t, id, prego.PlanStarter), prego.TenantID(id), tenant.ModeShared, "", "someone")
		require.NoError(t, err)
		exec(t, s, `UPDATE tenants SET state = 'active', site = tenant_id || '.example.com' WHERE tenant_id = $1`, id)
		exec(t, s, `INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
			VALUES ($1, $2, $2, $2, $1, $1, 'hetzner', 'best_fit')`, id, fmt.Sprintf("n-%d", i%3))
	}
	return s
}

func asked(i int, kind tenant.BackupKind) tenant.BackupAsked {
	return tenant.BackupAsked{ID: prego.BackupID(fmt.Sprintf("bak-%d", i)), TenantID: prego.TenantID(fmt.Sprintf("t-%d", i)), Kind: kind, By: "test"}
}

// TestBackupsBeginInTurn: so many on a host, so many in a region, oldest first.
func TestBackupsBeginInTurn(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 9), context.Background()
	for i := range 9 {
		_, err := s.RequestBackup(ctx, asked(i, tenant.BackupManual))
		require.NoError(t, err)
		exec(t, s, `UPDATE backups SET created_at = now() + make_interval(secs => $2) WHERE backup_id = $1`, fmt.Sprintf("bak-%d", i), i)
	}
	began, err := s.AdmitBackups(ctx, 1, 1)
	require.NoError(t, err)
	require.ElementsMatch(t, prego.IDs[prego.BackupID]([]string{"bak-0", "bak-2"}), began, "one in eu, one in us")
	began, err = s.AdmitBackups(ctx, 2, 3)
	require.NoError(t, err)
	require.ElementsMatch(t, prego.IDs[prego.BackupID]([]string{"bak-1", "bak-3", "bak-5"}), began, "eu has three now, and n-2 two")
	began, err = s.AdmitBackups(ctx, 2, 3)
	require.NoError(t, err)
	require.Empty(t, began)
	require.NoError(t, s.BackupFailed(ctx, "bak-1", tenant.ReasonDiskFull, "no room"))
	began, err = s.AdmitBackups(ctx, 2, 3)
	require.NoError(t, err)
	require.Equal(t, prego.IDs[prego.BackupID]([]string{"bak-4"}), began)
}

// TestOrgsTakeTurnsAtBackups: one org's backups wait when another's is requested, on the same host or in the same
// region. It is next, each time.
func TestOrgsTakeTurnsAtBackups(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hosts              string // of tenants t-0 to t-8
		perHost, perRegion int
	}{
		"on a host":   {"n-0", 1, 20},
		"in a region": {"n-' || right(tenant_id, 1) || '", 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ctx := backupTenants(t, 9), context.Background()
			exec(t, s, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('quiet', 'paid', 'test')`)
			exec(t, s, `UPDATE tenants SET org_id = 'quiet' WHERE tenant_id IN ('t-6', 't-8')`)
			exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by)
				SELECT 'n-' || n, '', 'node', 'eu', 'hetzner', '{}', 'active', 'w', 'test' FROM generate_series(0, 8) n
				ON CONFLICT (server_id) DO UPDATE SET region = 'eu'`)
			exec(t, s, `UPDATE tenant_allocations SET app_server_id = '`+c.hosts+`'`)
			for i := range 9 {
				_, err := s.RequestBackup(ctx, asked(i, tenant.BackupManual))
				require.NoError(t, err)
				exec(t, s, `UPDATE backups SET created_at = now() + make_interval(secs => $2) WHERE backup_id = $1`, fmt.Sprintf("bak-%d", i), i)
			}
			var order []prego.BackupID
			for range 9 {
				began, err := s.AdmitBackups(ctx, c.perHost, c.perRegion)
				require.NoError(t, err)
				require.Len(t, began, 1)
				order = append(order, began...)
				require.NoError(t, s.BackupFailed(ctx, began[0], tenant.ReasonDiskFull, "no room"))
			}
			require.Equal(t, prego.IDs[prego.BackupID]([]string{
				"bak-0", "bak-6", "bak-1", "bak-8", "bak-2", "bak-3", "bak-4", "bak-5", "bak-7",
			}), order)
		})
	}
}

// TestBackupsBeginOnce: the look and the ends of backups begin others concurrently, one on each of three hosts.
func TestBackupsBeginOnce(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 9), context.Background()
	for i := range 9 {
		_, err := s.RequestBackup(ctx, asked(i, tenant.BackupManual))
		require.NoError(t, err)
	}
	var began atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			ids, err := s.AdmitBackups(ctx, 1, 20)
			if err != nil {
				t.Error(err)
			}
			began.Add(int32(len(ids)))
		})
	}
	all.Wait()
	require.EqualValues(t, 3, began.Load())
	require.Equal(t, 3, count(t, s, "backups WHERE state = 'making'"))
}

// TestBackupLifecycle takes each step once, however often it is repeated.
func TestBackupLifecycle(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 2), context.Background()
	first, err := s.RequestBackup(ctx, asked(0, tenant.BackupManual))
	require.NoError(t, err)
	again, err := s.RequestBackup(ctx, asked(0, tenant.BackupManual))
	require.NoError(t, err)
	require.Equal(t, first, again)
	_, err = s.RequestBackup(ctx, tenant.BackupAsked{ID: "bak-0", TenantID: "t-1", Kind: tenant.BackupManual, By: "test"})
	require.Equal(t, prego.CodeBackupNotFound, prego.CodeOf(err), "the id is another tenant's")
	_, err = s.RequestBackup(ctx, tenant.BackupAsked{ID: "bak-x", TenantID: "t-0", Kind: tenant.BackupManual, By: "test"})
	require.Equal(t, prego.CodeBackupUnderWay, prego.CodeOf(err))
	_, err = s.AdmitBackups(ctx, 1, 1)
	require.NoError(t, err)

	for _, recipient := range []string{"age1first", "age1second"} {
		require.NoError(t, s.BackupKey(ctx, "bak-0", recipient, tenant.SealedIdentity{Sealed: []byte(recipient), KeyID: "k"}))
	}
	taken := time.Now().UTC().Truncate(time.Second)
	sealed := tenant.SealedBackup{PlainBytes: 20, PlainSHA256: "p", Bytes: 11, SHA256: "s", TakenAt: taken}
	require.NoError(t, s.BackupSealed(ctx, "bak-0", sealed, 5, "o", "m"))
	run, err := s.BackupRecord(ctx, "bak-0")
	require.NoError(t, err)
	require.Equal(t, "age1first", run.Recipient, "the first one stays: something may be encrypted to it")
	require.Equal(t, []byte("age1first"), run.Sealed)
	require.Equal(t, 3, run.Parts)
	for _, ok := range []bool{true, false} {
		ours, err := s.BackupUpload(ctx, "bak-0", "up", "")
		require.NoError(t, err)
		require.Equal(t, ok, ours)
	}
	sealed.Bytes = 99
	require.NoError(t, s.BackupSealed(ctx, "bak-0", sealed, 5, "o", "m"))
	restorable, err := s.Restorable(ctx, "t-0")
	require.NoError(t, err)
	require.Nil(t, restorable)
	_, err = s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{TenantID: "t-0"}, "bak-0", "test")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))
	for range 2 {
		require.NoError(t, s.BackupStored(ctx, "bak-0", "mm", "e"))
	}
	require.NoError(t, s.BackupFailed(ctx, "bak-0", tenant.ReasonDiskFull, "late"), "a stored backup can't fail")
	run, err = s.BackupRecord(ctx, "bak-0")
	require.NoError(t, err)
	require.Equal(t, tenant.BackupStored, run.State)
	require.EqualValues(t, 11, run.Bytes, "the sealed backup does not change during an upload")
	r, ok, err := s.FindResource(ctx, storageProvider, "backup", "o")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "created", string(r.State))
	restorable, err = s.Restorable(ctx, "t-0")
	require.NoError(t, err)
	require.Equal(t, prego.BackupID("bak-0"), restorable.BackupID)
	require.True(t, taken.Equal(restorable.TakenAt))

	// Held, restored, deleted.
	_, err = s.HoldBackup(ctx, tenant.BackupOwner{TenantID: "t-0"}, "bak-0", "a case", "ann")
	require.NoError(t, err)
	_, err = s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{TenantID: "t-0"}, "bak-0", "retention")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))
	exec(t, s, `UPDATE backups SET expires_at = now() - interval '1 day'`)
	left, err := s.BackupsLeft(ctx, time.Hour, 10)
	require.NoError(t, err)
	require.Empty(t, left, "its retention has ended, and it is held")
	_, err = s.ReleaseBackup(impact.By(ctx, "test"), tenant.BackupOwner{TenantID: "t-0"}, "bak-0", "ann")
	require.NoError(t, err)
	_, err = s.CreateRestore(impact.By(ctx, "test"), "t-1", tenant.RestoreOf{BackupID: "bak-0"}, "rst-x", "ann")
	require.Equal(t, prego.CodeBackupUnknown, prego.CodeOf(err), "another tenant's backup does not count")
	_, err = s.CreateRestore(impact.By(ctx, "test"), "t-0", tenant.RestoreOf{BackupID: "bak-0"}, "rst-1", "ann")
	require.NoError(t, err)
	_, err = s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{TenantID: "t-0"}, "bak-0", "ann")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err), "it is being restored")
	require.NoError(t, s.RestoreFinished(ctx, "rst-1", tenant.JobSucceeded, ""))
	left, err = s.BackupsLeft(ctx, time.Hour, 10)
	require.NoError(t, err)
	require.Equal(t, []tenant.BackupLeft{{BackupID: "bak-0", TenantID: "t-0", State: tenant.BackupStored}}, left)
	_, err = s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{TenantID: "t-0"}, "bak-0", "ann")
	require.NoError(t, err)
	_, err = s.CreateRestore(impact.By(ctx, "test"), "t-0", tenant.RestoreOf{BackupID: "bak-0"}, "rst-2", "ann")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))
	require.NoError(t, s.BackupGone(ctx, "bak-0", "o"))
	run, err = s.BackupRecord(ctx, "bak-0")
	require.NoError(t, err)
	require.Equal(t, tenant.BackupDeleted, run.State)
	require.Nil(t, run.Sealed, "the key to a copy is also gone")
	_, ok, err = s.FindResource(ctx, storageProvider, "backup", "o")
	require.NoError(t, err)
	require.False(t, ok)
}

// TestOrgsTakeTurnsWithBackups: the backup of an org comes before the second of another one that is due for longer.
func TestOrgsTakeTurnsWithBackups(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 4), context.Background()
	unscheduled, err := s.UnscheduledTenants(ctx, 10)
	require.NoError(t, err)
	require.NoError(t, s.PutBackupSchedules(ctx, unscheduled))
	exec(t, s, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('corp', 'paid', 'test')`)
	exec(t, s, `UPDATE tenants SET org_id = 'corp' WHERE tenant_id = 't-3'`)
	exec(t, s, `UPDATE backup_schedules
		SET next_at = now() - make_interval(hours => CASE tenant_id WHEN 't-3' THEN 1 ELSE 9 END)`)
	due, err := s.DueBackups(ctx, 2)
	require.NoError(t, err)
	require.Equal(t, []prego.TenantID{"t-0", "t-3"}, []prego.TenantID{due[0].TenantID, due[1].TenantID})
}

// TestBackupsAreDueOnce for a plan's policy, a tenant's separate policy, and late backups.
func TestBackupsAreDueOnce(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 2), context.Background()
	require.NoError(t, s.PutBackupPolicy(ctx, tenant.BackupPolicy{TenantID: "t-1", Schedule: "", Retention: tenant.Retention{Daily: 1}}, "ann"))
	policies, _, err := s.ListBackupPolicies(ctx, prego.ListQuery{Limit: 50})
	require.NoError(t, err)
	require.Len(t, policies, 6, "of four plans, of volumes, and of a tenant")
	for _, p := range policies {
		require.NoError(t, p.Validate(), "%s %s", p.Plan, p.TenantID)
	}
	unscheduled, err := s.UnscheduledTenants(ctx, 10)
	require.NoError(t, err)
	require.Len(t, unscheduled, 2)
	require.NoError(t, s.PutBackupSchedules(ctx, unscheduled))
	unscheduled, err = s.UnscheduledTenants(ctx, 10)
	require.NoError(t, err)
	require.Empty(t, unscheduled)
	due, err := s.DueBackups(ctx, 10)
	require.NoError(t, err)
	require.Empty(t, due)
	exec(t, s, `UPDATE backup_schedules SET next_at = now() - interval '3 hours' WHERE next_at IS NOT NULL`)
	due, err = s.DueBackups(ctx, 10)
	require.NoError(t, err)
	require.Len(t, due, 1, "t-1 is not backed up by schedule")
	for i, want := range []bool{true, false} {
		ok, err := s.TakeDueBackup(ctx, due[0], prego.BackupID(fmt.Sprintf("bak-%d", i)), "schedule")
		require.NoError(t, err)
		require.Equal(t, want, ok, "a turn is taken once")
	}
	b, err := s.GetBackup(ctx, tenant.BackupOwner{TenantID: "t-0"}, "bak-0")
	require.NoError(t, err)
	require.Equal(t, tenant.BackupScheduled, b.Kind)

	late := func() []prego.TenantID {
		t.Helper()
		ids, err := s.LateBackups(ctx, 2*time.Hour, 10)
		require.NoError(t, err)
		return ids
	}
	require.Equal(t, []prego.TenantID{"t-0"}, late())
	// Another turn comes before a backup exists: it has been due since the first.
	isDue := func(want time.Duration) {
		t.Helper()
		at, err := s.BackupDue(ctx, "t-0")
		require.NoError(t, err)
		if want == 0 {
			require.Nil(t, at)
			return
		}
		require.NotNil(t, at)
		require.WithinDuration(t, time.Now().Add(-want), *at, time.Minute)
	}
	isDue(3 * time.Hour)
	turn := func(ago string) {
		t.Helper()
		exec(t, s, `UPDATE backup_schedules SET next_at = now() - interval '`+ago+`' WHERE next_at IS NOT NULL`)
	}
	take := func() {
		t.Helper()
		due, err := s.DueBackups(ctx, 10)
		require.NoError(t, err)
		require.Len(t, due, 1)
		_, err = s.TakeDueBackup(ctx, due[0], "bak-1", "schedule")
		require.NoError(t, err)
	}
	turn("1 hour")
	take()
	require.Equal(t, []prego.TenantID{"t-0"}, late(), "failing at each turn is late")
	isDue(3 * time.Hour)
	exec(t, s, `UPDATE backups SET state = 'stored', taken_at = now() - interval '4 hours', sealed_identity = 'x', bytes = 1, sha256 = 'x', plain_sha256 = 'x', manifest_sha256 = 'x'`)
	require.Equal(t, []prego.TenantID{"t-0"}, late(), "a backup taken earlier does not count")
	exec(t, s, `UPDATE backups SET taken_at = now() - interval '2 hours'`)
	require.Empty(t, late())
	isDue(0)
	// The next turn, which stays untaken at first.
	turn("90 minutes")
	isDue(90 * time.Minute)
	take()
	isDue(90 * time.Minute)
	require.Empty(t, late(), "two hours are the limit here")
	exec(t, s, `UPDATE backup_schedules SET due_at = now() - interval '3 hours', next_at = NULL WHERE next_at IS NOT NULL`)
	require.Empty(t, late(), "without a schedule none is due")
	isDue(0)
	exec(t, s, `DELETE FROM backups WHERE backup_id = 'bak-1'`)

	// A changed policy changes the plan.
	p, err := s.BackupPolicy(ctx, "t-1")
	require.NoError(t, err)
	p.Schedule = "0 3 * * *"
	require.NoError(t, s.PutBackupPolicy(ctx, p, "ann"))
	unscheduled, err = s.UnscheduledTenants(ctx, 10)
	require.NoError(t, err)
	require.Len(t, unscheduled, 1)
	require.Equal(t, prego.TenantID("t-1"), unscheduled[0].TenantID)

	// The end of a tenant ends retention, except for its last backup.
	exec(t, s, `UPDATE backups SET kind = 'final', expires_at = NULL`)
	_, err = s.RequestBackup(ctx, tenant.BackupAsked{ID: "bak-2", TenantID: "t-0", Kind: tenant.BackupManual, By: "test", AtOnce: true})
	require.NoError(t, err)
	require.NoError(t, s.BackupFailed(ctx, "bak-2", "x", "x"))
	require.NoError(t, s.ExpireBackups(ctx, "t-0", time.Hour))
	left, err := s.BackupsLeft(ctx, time.Hour, 10)
	require.NoError(t, err)
	require.Equal(t, []tenant.BackupLeft{{BackupID: "bak-2", TenantID: "t-0", State: tenant.BackupFailed}}, left)
}

// TestPolicyChangesAreKept with their authors and the previous policies.
func TestPolicyChangesAreKept(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 1), context.Background()
	p := tenant.BackupPolicy{TenantID: "t-0", Schedule: "0 3 * * *", Spread: time.Hour, Retention: tenant.Retention{Daily: 2, Monthly: 1}}
	require.NoError(t, s.PutBackupPolicy(ctx, p, "ann"))
	got, err := s.BackupPolicy(ctx, "t-0")
	require.NoError(t, err)
	require.Equal(t, "0 3 * * *", got.Schedule)
	require.Equal(t, prego.TenantID("t-0"), got.TenantID)
	for range 2 {
		require.NoError(t, s.DeleteBackupPolicy(ctx, tenant.BackupPolicy{TenantID: "t-0"}, "bob"))
	}
	got, err = s.BackupPolicy(ctx, "t-0")
	require.NoError(t, err)
	require.Equal(t, prego.PlanStarter, got.Plan, "its plan's again")
	changes, err := s.BackupPolicyChanges(ctx, tenant.BackupPolicy{TenantID: "t-0"}.ID(), 10)
	require.NoError(t, err)
	require.Len(t, changes, 2, "deleting it twice is one change")
	require.Equal(t, "bob", changes[0].ChangedBy)
	require.Nil(t, changes[0].Policy)
	require.Equal(t, "ann", changes[1].ChangedBy)
	require.Equal(t, p.Retention, changes[1].Policy.Retention)
	require.Equal(t, time.Hour, changes[1].Policy.Spread)
	require.Equal(t, 2, count(t, s, `org_events WHERE type = 'backup.policy_set' AND subject = 't-0'`))

	require.NoError(t, s.PutBackupPolicy(ctx, tenant.BackupPolicy{Plan: prego.PlanStarter, Schedule: "0 4 * * *", Retention: tenant.Retention{Daily: 1}}, "ann"))
	plan, err := s.PlanBackupPolicy(ctx, prego.PlanStarter)
	require.NoError(t, err)
	require.Equal(t, "0 4 * * *", plan.Schedule)
	_, err = s.PlanBackupPolicy(ctx, "none")
	require.Equal(t, prego.CodePolicyNotFound, prego.CodeOf(err))
	require.Equal(t, prego.CodeTenantNotFound, prego.CodeOf(s.PutBackupPolicy(ctx, tenant.BackupPolicy{TenantID: "t-9", Retention: tenant.Retention{Daily: 1}}, "ann")))
}

// TestHeldTenantLosesNoBackup to retention, to a request or to its end.
func TestHeldTenantLosesNoBackup(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 1), context.Background()
	_, err := s.RequestBackup(ctx, asked(0, tenant.BackupManual))
	require.NoError(t, err)
	exec(t, s, storedNow)
	require.NoError(t, s.HoldBackups(ctx, tenant.BackupOwner{TenantID: "t-0"}, "a case", "ann"))
	require.NoError(t, s.HoldBackups(ctx, tenant.BackupOwner{TenantID: "t-0"}, "a case", "bob"))
	hold, err := s.BackupHold(ctx, tenant.BackupOwner{TenantID: "t-0"})
	require.NoError(t, err)
	require.Equal(t, "ann", hold.HeldBy, "the same hold again changes nothing")
	_, err = s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{TenantID: "t-0"}, "bak-0", "ann")
	require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err))
	all, err := s.Retained(ctx, "t-0")
	require.NoError(t, err)
	require.True(t, all[0].Held)
	require.NoError(t, s.ExpireBackups(ctx, "t-0", time.Hour))
	exec(t, s, `UPDATE backups SET expires_at = now() - interval '1 hour'`)
	exec(t, s, `UPDATE tenants SET state = 'terminated', site = ''`) // its end
	left, err := s.BackupsLeft(ctx, time.Hour, 10)
	require.NoError(t, err)
	require.Empty(t, left)
	for range 2 {
		require.NoError(t, s.ReleaseBackups(impact.By(ctx, "test"), tenant.BackupOwner{TenantID: "t-0"}, "ann"))
	}
	left, err = s.BackupsLeft(ctx, time.Hour, 10)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, 1, count(t, s, `org_events WHERE type = 'backup.release_all'`))
}

const storedNow = `UPDATE backups SET state = 'stored', taken_at = now(), sealed_identity = 'x', bytes = 600, sha256 = 'x', plain_sha256 = 'x', manifest_sha256 = 'x'`

// TestBackupBytesAreLimited: a request above the limit is refused; a backup by schedule, or before data is
// deleted, is made.
func TestBackupBytesAreLimited(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 2), context.Background()
	orgID, err := value[prego.OrgID](ctx, s.pool, `SELECT org_id FROM tenants WHERE tenant_id = 't-0'`)
	require.NoError(t, err)
	space, err := s.BackupSpace(ctx, orgID, 5)
	require.NoError(t, err)
	quotas, err := s.OrgQuotas(ctx, orgID)
	require.NoError(t, err)
	for _, q := range quotas {
		if q.Dimension == "max_total_volume_bytes" {
			require.InDelta(t, tenant.BackupSpaceFactor*q.Limit, float64(space.LimitBytes), 1)
		}
	}
	require.False(t, space.Own)
	require.Zero(t, space.UsedBytes)
	limit := int64(1000)
	for range 2 {
		require.NoError(t, s.SetBackupLimit(ctx, orgID, &limit, "contract", "ann"))
	}
	require.Equal(t, 1, count(t, s, `org_events WHERE type = 'org.backup_limit_set'`))

	for i := range 2 {
		_, err = s.RequestBackup(ctx, asked(i, tenant.BackupManual))
		require.NoError(t, err, "the first one leaves room")
		exec(t, s, storedNow)
	}
	space, err = s.BackupSpace(ctx, orgID, 5)
	require.NoError(t, err)
	require.EqualValues(t, 1200, space.UsedBytes)
	require.True(t, space.Over())
	require.Equal(t, []tenant.BackupsOfTenant{{TenantID: "t-0", Backups: 1, Bytes: 600}, {TenantID: "t-1", Backups: 1, Bytes: 600}}, space.Largest)
	over, bytes, err := s.BackupSpaces(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, over)
	require.EqualValues(t, 1200, bytes)

	_, err = s.RequestBackup(ctx, tenant.BackupAsked{ID: "bak-m", TenantID: "t-0", Kind: tenant.BackupManual, By: "ann"})
	require.Equal(t, prego.CodeBackupLimit, prego.CodeOf(err))
	require.Contains(t, err.Error(), "Scheduled backups continue")
	for _, kind := range []tenant.BackupKind{tenant.BackupFinal, tenant.BackupPreMove, tenant.BackupPreUpdate} {
		id := prego.BackupID("bak-" + strings.ReplaceAll(string(kind), "_", "-"))
		_, err = s.RequestBackup(ctx, tenant.BackupAsked{ID: id, TenantID: "t-0", Kind: kind, By: "workflow"})
		require.NoError(t, err, kind)
		require.NoError(t, s.BackupFailed(ctx, id, "x", "x"))
	}
	require.NoError(t, s.SetBackupLimit(ctx, orgID, nil, "", "ann"))
	_, err = s.RequestBackup(ctx, tenant.BackupAsked{ID: "bak-m", TenantID: "t-0", Kind: tenant.BackupManual, By: "ann"})
	require.NoError(t, err)
	require.Equal(t, prego.CodeNotFound, prego.CodeOf(s.SetBackupLimit(ctx, "nobody", nil, "", "ann")))
}

// TestReachedBackupLimitIsReported once, by the backup that reached it.
func TestReachedBackupLimitIsReported(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 2), context.Background()
	orgID, err := value[prego.OrgID](ctx, s.pool, `SELECT org_id FROM tenants WHERE tenant_id = 't-0'`)
	require.NoError(t, err)
	limit := int64(1000)
	require.NoError(t, s.SetBackupLimit(ctx, orgID, &limit, "contract", "ann"))
	for i, told := range []int{0, 1} {
		_, err := s.RequestBackup(ctx, asked(i, tenant.BackupScheduled))
		require.NoError(t, err)
		_, err = s.AdmitBackups(ctx, 1, 1)
		require.NoError(t, err)
		id := asked(i, "").ID
		require.NoError(t, s.BackupKey(ctx, id, "age1", tenant.SealedIdentity{Sealed: []byte("x"), KeyID: "k"}))
		require.NoError(t, s.BackupSealed(ctx, id, tenant.SealedBackup{PlainBytes: 20, PlainSHA256: "p", Bytes: 600, SHA256: "s", TakenAt: time.Now()}, 600, string(id), string(id)+"m"))
		for range 2 {
			require.NoError(t, s.BackupStored(ctx, id, "mm", "e"))
		}
		require.Equal(t, told, count(t, s, `org_events WHERE type = 'backup.limit_reached'`))
	}
}

// TestWrongHostClockIsIgnored: an impossible time is ignored and reported. Otherwise an old backup would count as the
// newest, be kept instead of it, and be restored.
func TestWrongHostClockIsIgnored(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 1), context.Background()
	for i, off := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute, 24 * time.Hour, -24 * time.Hour} {
		id := prego.BackupID(fmt.Sprintf("bak-%d", i))
		_, err := s.RequestBackup(ctx, tenant.BackupAsked{ID: id, TenantID: "t-0", Kind: tenant.BackupManual, By: "test"})
		require.NoError(t, err)
		_, err = s.AdmitBackups(ctx, 1, 1)
		require.NoError(t, err)
		require.NoError(t, s.BackupKey(ctx, id, "age1", tenant.SealedIdentity{Sealed: []byte("x"), KeyID: "k"}))
		began := time.Now()
		require.NoError(t, s.BackupSealed(ctx, id, tenant.SealedBackup{PlainBytes: 20, PlainSHA256: "p", Bytes: 11, SHA256: "s", TakenAt: began.Add(off)}, 5, "o"+string(id), "m"+string(id)))
		require.NoError(t, s.BackupStored(ctx, id, "mm", "e"))
		run, err := s.BackupRecord(ctx, id)
		require.NoError(t, err)
		require.WithinDuration(t, began, *run.TakenAt, 30*time.Second, off)
		require.Equal(t, off != 0, strings.HasPrefix(run.Message, "clock_skew: by its host's clock it was taken at "), run.Message)
		last, err := s.Restorable(ctx, "t-0")
		require.NoError(t, err)
		require.Equal(t, id, last.BackupID, "the last backup is the newest")
	}
}
