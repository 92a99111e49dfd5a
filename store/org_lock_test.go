package store

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// volumeOf makes a volume of acme at a location.
func (s *Store) volumeOf(t *testing.T, id, location string) {
	t.Helper()
	_, err := s.CreateVolume(context.Background(), workload.Volume{VolumeID: prego.VolumeID(id), OrgID: "acme", Region: "eu", Location: location, Name: id, SizeBytes: 10e9}, "test", "test")
	require.NoError(t, err)
}

// holding runs do beside a transaction that holds a row, and once do waits for it has
// transaction continue with then: it must not wait for what do holds.
func (s *Store) holding(t *testing.T, hold string, do func() error, then func(tx pgx.Tx)) error {
	t.Helper()
	ctx := context.Background()
	done := make(chan error, 1)
	require.NoError(t, s.inTx(ctx, "test", func(tx *txn) error {
		if _, err := tx.Exec(ctx, hold); err != nil {
			return err
		}
		go func() { done <- do() }()
		require.Eventually(t, func() bool {
			var waits bool
			require.NoError(t, s.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits))
			return waits
		}, 10*time.Second, 5*time.Millisecond, "it waits for who came first")
		then(tx)
		return nil
	}))
	return <-done
}

// TestLocksAreTakenInOneOrder: of two that need the same rows one waits for the other,
// and never both.
func TestLocksAreTakenInOneOrder(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	group, err := s.testGroup(t, 1, "acme", 0, specOf(16))
	require.NoError(t, err)
	s.volumeOf(t, "vol-1", "fsn1")
	free := func(sql string) func(tx pgx.Tx) {
		return func(tx pgx.Tx) {
			_, err := tx.Exec(ctx, sql)
			require.NoError(t, err)
		}
	}
	const org, ofOrg = `SELECT FROM orgs WHERE org_id = 'acme' FOR NO KEY UPDATE`, `SELECT FROM orgs WHERE org_id = 'acme' FOR NO KEY UPDATE NOWAIT`
	// Who scales a group holds it, and then the org.
	require.NoError(t, s.holding(t, `SELECT FROM process_groups FOR NO KEY UPDATE`, func() error {
		_, err := s.AttachVolume(ctx, workload.VolumeAttachment{AttachmentID: "vat-1", VolumeID: "vol-1", GroupID: prego.GroupID(group), MountPath: "/data"}, "test")
		return err
	}, free(ofOrg)))
	// Who deletes an env holds the org, and then the env.
	require.NoError(t, s.holding(t, org, func() error {
		_, err := s.testGroup(t, 2, "acme", 0, specOf(16))
		return err
	}, free(`SELECT FROM envs WHERE env_id = 'env-acme' FOR UPDATE NOWAIT`)))
}

// TestAGroupIsNotDeletedUnderARoute: creating a route holds the org, and saw the group.
func TestAGroupIsNotDeletedUnderARoute(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	group, err := s.testGroup(t, 1, "acme", 0, specOf(16))
	require.NoError(t, err)
	err = s.holding(t, `SELECT FROM orgs WHERE org_id = 'acme' FOR NO KEY UPDATE`, func() error {
		_, err := s.DeleteGroup(impact.By(ctx, "test"), prego.GroupID(group), "test")
		return err
	}, func(tx pgx.Tx) {
		_, err := tx.Exec(ctx, sqlCreateRoute, "rte-1", "acme", "env-acme", group, "www.example.com", "shared_v6", 443, "https", 80, "test")
		require.NoError(t, err)
	})
	require.Equal(t, prego.CodeGroupInUse, prego.CodeOf(err), "%v", err)
}

// TestABackupIsNotDeletedUnderADrill: nor under a restore. Who deletes it saw none, and looks again after having waited.
func TestABackupIsNotDeletedUnderADrill(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 2), context.Background()
	storedBackup(t, s, "bak-1", "t-0", time.Hour)
	exec(t, s, `UPDATE servers SET agent_status = 'connected'; INSERT INTO backup_schedules (tenant_id, policy_at, next_at) VALUES ('t-0', now(), now())`)
	for what, begins := range map[string]string{
		"drill":   `INSERT INTO drills (drill_id, org_id, tenant_id, backup_id, server_id, created_by) SELECT 'drl-1', org_id, tenant_id, 'bak-1', 'n-0', 'test' FROM tenants WHERE tenant_id = 't-0'`,
		"restore": `INSERT INTO restore_jobs (job_id, org_id, tenant_id, backup_id, status, created_by) SELECT 'rst-1', org_id, tenant_id, 'bak-1', 'queued', 'test' FROM tenants WHERE tenant_id = 't-0'`,
	} {
		err := s.holding(t, `WITH o AS (SELECT org_id FROM orgs WHERE org_id = (SELECT org_id FROM tenants WHERE tenant_id = 't-0') FOR NO KEY UPDATE) SELECT FROM backups b JOIN o USING (org_id) WHERE b.backup_id = 'bak-1' FOR SHARE OF b`, func() error {
			_, err := s.DeleteBackup(impact.By(ctx, "test"), tenant.BackupOwner{TenantID: "t-0"}, "bak-1", "test")
			return err
		}, does(t, begins))
		require.Equal(t, prego.CodeBackupNotReady, prego.CodeOf(err), "%s: %v", what, err)
		exec(t, s, `DELETE FROM drills; DELETE FROM restore_jobs`)
	}
}

// TestAnAllocationLooksAtTheVolumesAgain: a volume that was attached after the place was
// decided on keeps the instance from a server that can't have it.
func TestAnAllocationLooksAtTheVolumesAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	group, err := s.testGroup(t, 1, "acme", 1, specOf(16))
	require.NoError(t, err)
	_, err = s.PlanGroup(ctx, prego.GroupID(group), time.Second)
	require.NoError(t, err)
	s.volumeOf(t, "vol-1", "hel1")
	a := workload.VolumeAttachment{AttachmentID: "vat-1", VolumeID: "vol-1", GroupID: prego.GroupID(group), MountPath: "/data"}
	_, err = s.AttachVolume(ctx, a, "test")
	require.NoError(t, err)
	got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(group), ServerID: "node-1"}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, workload.AllocationLost, got.Outcome)
	require.NoError(t, s.DetachVolume(ctx, "vol-1", "vat-1", "test"))
	got, err = s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(group), ServerID: "node-1"}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, workload.Allocated, got.Outcome)
	// A step that comes late finds the attachment ended, and brings the volume nowhere.
	require.ErrorContains(t, s.AttachedTo(ctx, "vat-1", "node-1"), "attachment vat-1 has ended")
	left, err := s.LeftAttached(ctx, "vol-1")
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, s.AttachedTo(ctx, "vat-1", ""))
}

// TestARefusedSurgeWaits: what the gate counts as promised is not usage, so that a group
// that was refused is not tried again and again.
func TestARefusedSurgeWaits(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	limit := func(n int) {
		_, err := s.SetQuota(ctx, "acme", quota.MaxInstances, float64(n), "test", "test")
		require.NoError(t, err)
	}
	limit(3)
	group, err := s.testGroup(t, 1, "acme", 1, specOf(16))
	require.NoError(t, err)
	for range 2 {
		_, err = s.turn(ctx, prego.GroupID(group))
		require.NoError(t, err)
	}
	_, err = s.testGroup(t, 2, "acme", 1, specOf(16))
	require.NoError(t, err)
	next := specOf(16)
	next.Image = "web:2"
	_, err = s.DeployGroup(ctx, prego.GroupID(group), next, nil, "test")
	require.NoError(t, err)
	limit(2)
	_, err = s.PlanGroup(ctx, prego.GroupID(group), time.Second)
	require.NoError(t, err)
	got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(group), ServerID: "node-1"}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, workload.AllocationQuota, got.Outcome)
	demand, err := s.InstanceDemand(ctx, "eu", 10, nil)
	require.NoError(t, err)
	require.Empty(t, demand)
	// A refusal that comes after the group was changed reports nothing about it any more.
	_, err = s.ScaleGroup(impact.By(ctx, "test"), prego.GroupID(group), 0, "test")
	require.NoError(t, err)
	for _, surge := range []bool{false, true} {
		_, err = s.refuseAllocation(ctx, prego.GroupID(group), &refusedAllocation{over: &org.QuotaExceeded{Dimension: "max_instances"}, surge: surge}, time.Hour)
		require.NoError(t, err)
	}
	g, err := s.GetGroup(ctx, group)
	require.NoError(t, err)
	require.Nil(t, g.NextAttemptAt)
	require.Equal(t, workload.DeployRolling, g.DeployStatus)
}

// TestSnapshotsOfEachTenantAreLimited: a tenant is held against the limit also when
// another one has more under way than a lowered limit allows.
func TestSnapshotsOfEachTenantAreLimited(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	for _, sql := range placedBefore(0)[:3] {
		_, err := s.pool.Exec(ctx, sql)
		require.NoError(t, err)
	}
	for _, id := range []string{"t-1", "t-2"} {
		_, _, err := s.CreateTenant(ctx, tenantRequest(t, id, prego.PlanStarter), prego.TenantID(id), tenant.ModeShared, "", "someone")
		require.NoError(t, err)
		_, err = s.pool.Exec(ctx, `UPDATE tenants SET state = 'active', site = tenant_id WHERE tenant_id = $1`, id)
		require.NoError(t, err)
		_, err = s.pool.Exec(ctx, `INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
			VALUES ($1, 'old', 'old', 'old', $1, $1, 'hetzner', 'best_fit')`, id)
		require.NoError(t, err)
	}
	take := func(tenant, id string) error {
		_, err := s.CreateSnapshot(ctx, prego.TenantID(tenant), id, "test")
		return err
	}
	_, err := s.SetQuota(ctx, "acme", quota.MaxSnapshotsPerVolume, 2, "test", "test")
	require.NoError(t, err)
	require.NoError(t, take("t-1", "snp-1"))
	require.NoError(t, take("t-1", "snp-2"))
	_, err = s.SetQuota(ctx, "acme", quota.MaxSnapshotsPerVolume, 1, "test", "test")
	require.NoError(t, err)
	require.NoError(t, take("t-2", "snp-3"))
	var over *org.QuotaExceeded
	require.ErrorAs(t, take("t-2", "snp-4"), &over)
	require.Equal(t, org.QuotaExceeded{Dimension: "max_snapshots_per_volume", Limit: 1, CurrentUsage: 1, RequestedDelta: 1}, *over)
}

// TestAFleetKeepsAServerWithInstances: taking one away would end containers without
// a request.
func TestAFleetKeepsAServerWithInstances(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := groupBundle(t)
	group, err := s.testGroup(t, 1, "acme", 1, specOf(16))
	require.NoError(t, err)
	for range 2 {
		_, err = s.turn(ctx, prego.GroupID(group))
		require.NoError(t, err)
	}
	st, err := s.FleetState(ctx, "nodes")
	require.NoError(t, err)
	require.Len(t, st.Members, 1)
	require.Equal(t, 1, st.Members[0].Tenants)
	_, err = s.DecommissionMember(ctx, "node-1", "test")
	require.Equal(t, prego.CodeServerHasTenants, prego.CodeOf(err), "%v", err)
	_, err = s.RequestDecommission(ctx, "node-1", "test")
	require.Equal(t, prego.CodeServerHasTenants, prego.CodeOf(err), "%v", err)
	_, err = s.ScaleGroup(impact.By(ctx, "test"), prego.GroupID(group), 0, "test")
	require.NoError(t, err)
	for range 2 {
		_, err = s.turn(ctx, prego.GroupID(group))
		require.NoError(t, err)
	}
	_, err = s.DecommissionMember(ctx, "node-1", "test")
	require.NoError(t, err)
}
