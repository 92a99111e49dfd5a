package activities_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/workload"
)

// TestVolumesOfIdleGroupsAreDetached: a group that lost its instance by a crash, and is scaled to 0 then, has no instance
// whose stop detaches its volumes. The next look does, and a restore records until then what it waits for.
func TestVolumesOfIdleGroupsAreDetached(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	ctx := t.Context()
	s3 := s3test.Start(t)
	bucket, err := objects.New(objects.Config{
		Endpoint: s3.Endpoint, Bucket: s3.Bucket, Region: s3.Region, AccessKey: s3.AccessKey,
		SecretKey: s3.SecretKey, PathStyle: true, MayDelete: s3test.MayDelete,
	})
	require.NoError(t, err)
	require.NoError(t, bucket.Put(ctx, "k", []byte("0123456789")))
	cloud := &orgCloud{on: map[string]string{}}
	hosts := &volumeHosts{cloud: cloud, mounted: map[string]bool{}, bytes: 10_000_000_000}
	cloud.hosts = hosts
	volumes := &activities.OrgResources{Store: p.Store, Infra: map[prego.InfraProviderID]activities.OrgInfra{prego.ProviderHetzner: cloud}, Hosts: hosts}
	p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, provider_server_id, location, host)
		VALUES ('srv-1', '\x00', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'a', '1', 'fsn1', '192.0.2.1')`)
	p.Exec(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'o1', 'a', 'a')`)
	p.Exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-a', 'app-a', 'o1', 'a', 'eu', 'a')`)
	p.Exec(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by) VALUES ('grp-a', 'env-a', 'o1', 'eu', 'a', '{}', 1, 0, 1, 'a')`)
	p.Exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, provider_id, status, created_by, made_bytes, grown_bytes)
		VALUES ('vol-a', 'o1', 'eu', 'fsn1', 'a', 10000000000, 'hetzner', 'n', '77', 'ready', 'a', 10000000000, 10000000000)`)
	p.Exec(`INSERT INTO backups (backup_id, org_id, volume_id, server_id, site, kind, state, created_by, taken_at, sealed_identity, object_key, manifest_key, bytes, part_bytes, parts, sha256, plain_sha256, manifest_sha256)
		VALUES ('bak-1', 'o1', 'vol-a', 'srv-1', '', 'manual', 'stored', 'test', now(), 'x', 'k', 'm', 10, 10, 1, 'x', 'x', 'x')`)
	p.Exec(`INSERT INTO volume_restores (restore_id, org_id, volume_id, backup_id, created_by, status) VALUES ('vrs-1', 'o1', 'vol-a', 'bak-1', 'ann', 'running')`)
	_, err = p.Store.AttachVolume(ctx, workload.VolumeAttachment{AttachmentID: "vat-a", VolumeID: "vol-a", GroupID: "grp-a", MountPath: "/data"}, "a")
	require.NoError(t, err)
	_, err = volumes.AttachGroupVolumes(ctx, activities.GroupVolumesInput{GroupID: "grp-a", ServerID: "srv-1"})
	require.NoError(t, err)

	groups := &activities.Groups{
		Store: p.Store, Runs: &woken{}, Settings: activities.GroupSettings{Retry: time.Minute, Quiet: time.Hour}, Log: zap.NewNop(),
		Metrics: activities.NewGroupMetrics(prometheus.NewRegistry()), Idle: volumes.DetachIdleVolumes,
	}
	on := func() int { return p.Number(`SELECT count(*) FROM volume_attachments WHERE server_id = 'srv-1'`) }
	sweep := func(detached int) {
		t.Helper()
		r, err := groups.SweepGroups(ctx)
		require.NoError(t, err)
		require.Equal(t, detached, r.Detached)
	}
	sweep(0)
	require.Equal(t, 1, on(), "the group wants an instance")

	p.Exec(`UPDATE process_groups SET replicas = 0, converged = true`)
	backups := &activities.Backups{
		Store: p.Store, Objects: bucket, Vault: openVault{}, Hosts: takesAll{}, Audit: p.Store, Tenants: &activities.Tenants{Store: p.Store}, Volumes: volumes,
		Metrics: activities.NewBackupMetrics(prometheus.NewRegistry()), Log: zap.NewNop(),
	}
	env := (&testsuite.WorkflowTestSuite{}).NewTestActivityEnvironment()
	env.RegisterActivity(backups)
	_, err = env.ExecuteActivity(backups.RestoreVolumeFiles, "vrs-1")
	require.ErrorContains(t, err, "still on server")
	require.Equal(t, "not restored yet: volume vol-a is still on server srv-1 for its process group", p.Text(`SELECT message FROM volume_restores`))

	p.Exec(`INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request, spec, number, state)
		VALUES ('ins-1', 'grp-a', 'o1', 'srv-1', 1, 1, 0, '{}', 1, 'failed')`)
	sweep(0)
	p.Exec(`UPDATE instances SET state = 'stopped'`)
	p.Exec(`UPDATE volumes SET lent_to = 'srv-1', lent_for = 'bak-2'`)
	sweep(0)
	p.Exec(`UPDATE volumes SET lent_to = NULL, lent_for = ''`)
	sweep(1)
	require.Equal(t, 0, on())
	require.Empty(t, cloud.on)
	require.Contains(t, hosts.did, "volume unmount 77 on srv-1")
	sweep(0)
	require.NoError(t, p.Store.VolumeRestoreFinished(ctx, "vrs-1", "", ""))
	require.Empty(t, p.Text(`SELECT message FROM volume_restores`), "it waits no more")
}
