package activities_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/worker"
)

// TestTheBucketIsCompared: objects without a row are reported and kept, missing objects are
// recorded on their rows, and abandoned uploads are aborted.
func TestTheBucketIsCompared(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 1)
	ctx := t.Context()
	srv := s3test.Start(t)
	bucket, err := objects.New(objects.Config{
		Endpoint: srv.Endpoint, Bucket: srv.Bucket, Region: srv.Region, AccessKey: srv.AccessKey,
		SecretKey: srv.SecretKey, PathStyle: true, MayDelete: s3test.MayDelete,
	})
	require.NoError(t, err)
	a := &activities.Backups{
		Store: p.Store, Objects: bucket, Metrics: activities.NewBackupMetrics(prometheus.NewRegistry()), Log: zap.NewNop(),
		Settings: activities.BackupSettings{Environment: "e", PerHost: 1, PerRegion: 1},
	}
	p.Server("app-0", prego.RoleApp, "")
	id := p.Tenant(prego.PlanStarter, nil).TenantID
	stored := func(backup prego.BackupID, size int) (object string) {
		object, manifest := tenant.BackupKeys("e", id, backup)
		p.Exec(`INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, state, created_by, taken_at, sealed_identity, object_key, manifest_key, bytes, sha256, plain_sha256, manifest_sha256)
			SELECT $1, org_id, tenant_id, (SELECT min(server_id) FROM servers), 'x', 'manual', 'stored', 'test', now(), 'x', $2, $3, $4, 'x', 'x', 'x' FROM tenants WHERE tenant_id = $5`, backup, object, manifest, size, id)
		require.NoError(t, bucket.Put(ctx, object, make([]byte, size)))
		require.NoError(t, bucket.Put(ctx, manifest, []byte("{}")))
		return object
	}
	stored("bak-1", 10)
	gone, short := stored("bak-2", 10), stored("bak-3", 10)
	require.NoError(t, bucket.Delete(ctx, gone))
	require.NoError(t, os.Truncate(srv.File(short), 9))
	require.NoError(t, bucket.Put(ctx, "e/tenants/t-lost/bak-9/site.age", []byte("all that is left")))
	require.NoError(t, bucket.Put(ctx, "another/tenants/t1/bak-9/site.age", []byte("not ours")))
	_, err = bucket.Begin(ctx, "e/tenants/t1/bak-8/site.age")
	require.NoError(t, err)

	c, err := a.CompareStorage(ctx, time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"e/tenants/t-lost/bak-9/site.age"}, c.Unknown)
	require.ElementsMatch(t, prego.IDs[prego.BackupID]([]string{"bak-2", "bak-3"}), c.Missing)
	require.Zero(t, c.Aborted, "it may still be in progress")
	for backup, want := range map[prego.BackupID]string{"bak-1": "", "bak-2": "the storage does not have it any more", "bak-3": "the storage does not have it any more"} {
		b, err := p.Store.GetBackup(ctx, tenant.BackupOwner{TenantID: id}, backup)
		require.NoError(t, err)
		require.Equal(t, want, b.VerifyMessage, backup)
	}
	missing := func() (ids []string) {
		require.NoError(t, p.Pool.QueryRow(ctx, `SELECT COALESCE(array_agg(backup_id ORDER BY backup_id), '{}') FROM backups WHERE missing_at IS NOT NULL`).Scan(&ids))
		return ids
	}
	require.Equal(t, []string{"bak-2", "bak-3"}, missing())
	require.NoError(t, bucket.Put(ctx, gone, make([]byte, 10)))
	c, err = a.CompareStorage(ctx, time.Now().Add(25*time.Hour))
	require.NoError(t, err)
	require.Equal(t, 1, c.Aborted)
	require.Equal(t, []string{"bak-3"}, missing(), "a backup that reappeared is not missing")
	left, err := bucket.Uploads(ctx, "e/")
	require.NoError(t, err)
	require.Empty(t, left)
	_, there, err := bucket.Head(ctx, "e/tenants/t-lost/bak-9/site.age")
	require.NoError(t, err)
	require.True(t, there)
	_, err = worker.LookAtBackupStorage(context.Background(), a)
	require.NoError(t, err)
}

// TestAScheduleThatFailsKeepsNoOtherFromItsBackup, and neither does a run that can't be started.
func TestAScheduleThatFailsKeepsNoOtherFromItsBackup(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 1)
	srv := s3test.Start(t)
	bucket, err := objects.New(objects.Config{
		Endpoint: srv.Endpoint, Bucket: srv.Bucket, Region: srv.Region, AccessKey: srv.AccessKey,
		SecretKey: srv.SecretKey, PathStyle: true, MayDelete: s3test.MayDelete,
	})
	require.NoError(t, err)
	runs := &backupRuns{}
	a := &activities.Backups{
		Store: p.Store, Objects: bucket, Runs: runs, Log: zap.NewNop(),
		Metrics:  activities.NewBackupMetrics(prometheus.NewRegistry()),
		NewID:    func() prego.BackupID { return prego.BackupID("bak-" + rand.Text()) },
		Settings: activities.BackupSettings{Environment: "e", PerHost: 10, PerRegion: 10, Quiet: time.Hour},
	}
	p.Server("app-0", prego.RoleApp, "")
	p.Exec(`INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity) VALUES ('s', 'app-0', 'eu', 9)`)
	p.Exec(`INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity) VALUES ('p', 'app-0', 'eu', 9)`)
	var ids []prego.TenantID
	for range 3 {
		tn := p.Tenant(prego.PlanStarter, nil)
		p.Exec(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name,
			database_name, infra_provider, algorithm)
			VALUES ($1, 'app-0', 's', 'p', $1, $1, 'hetzner', 'best_fit')`, tn.TenantID)
		p.Exec(`UPDATE tenants SET state = 'active', site = tenant_id WHERE tenant_id = $1`, tn.TenantID)
		p.Exec(`INSERT INTO backup_schedules (tenant_id, policy_at, next_at) VALUES ($1, now(), now())`, tn.TenantID)
		ids = append(ids, tn.TenantID)
	}
	p.Exec(`CREATE FUNCTION poisoned() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'poisoned' USING ERRCODE = 'check_violation'; END $$`)
	p.Exec(`CREATE TRIGGER poisoned BEFORE UPDATE ON backup_schedules FOR EACH ROW
		WHEN (NEW.tenant_id = '` + string(ids[1]) + `') EXECUTE FUNCTION poisoned()`)
	runs.err = errors.New("the engine is away")
	_, err = a.BeginBackups(t.Context())
	require.ErrorContains(t, err, "poisoned")
	require.ErrorContains(t, err, "the engine is away")
	require.Equal(t, 2, p.Number(`SELECT count(*) FROM backups WHERE tenant_id <> $1`, ids[1]))
	require.Len(t, runs.asked, 2)
}

// backupRuns is a workflow engine that is asked for runs of backups.
type backupRuns struct {
	activities.Runs
	asked []prego.BackupID
	err   error
}

func (r *backupRuns) EnsureBackup(_ context.Context, id prego.BackupID) (bool, error) {
	r.asked = append(r.asked, id)
	return true, r.err
}
