package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
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

// trying makes a dry run of a change, and returns its impact.
func trying(t *testing.T, s *Store, change func(context.Context) error) impact.Impact {
	t.Helper()
	c := impact.Change{Operation: "test", Bound: impact.Destroys, At: time.Now(), DryRun: true}
	require.NoError(t, s.Try(impact.With(t.Context(), &c), change))
	return c.Impact
}

// classes is what an impact does to each id.
func classes(i impact.Impact) map[string]impact.Class {
	out := map[string]impact.Class{}
	for _, a := range i.Affected {
		out[a.ID] = a.Class
	}
	for _, d := range i.Destroyed {
		out[d.ID] = impact.Destroys
	}
	return out
}

// TestEmptyingAServerInterruptsWhatStopsFirst: what moves needs no acceptance; a group of which nothing runs
// meanwhile does.
func TestEmptyingAServerInterruptsWhatStopsFirst(t *testing.T) {
	t.Parallel()
	b, groups := maintenanceSetup(t, 1, 1, 2)
	for _, group := range []string{groups[0], groups[2]} {
		exec(t, b.Store, `UPDATE process_groups SET no_surge = true WHERE group_id = $1`, group)
	}
	exec(t, b.Store, `UPDATE instances SET server_id = 'node-2' WHERE instance_id =
		(SELECT max(instance_id) FROM instances WHERE group_id = $1)`, groups[2])
	of := func(group string) (id string) {
		require.NoError(t, b.pool.QueryRow(t.Context(),
			`SELECT instance_id FROM instances WHERE group_id = $1 AND server_id = 'node-1'`, group).Scan(&id))
		return id
	}
	want := map[string]impact.Class{
		of(groups[0]): impact.Interrupts, of(groups[1]): impact.Moves, of(groups[2]): impact.Moves,
	}
	for _, kind := range []server.MaintenanceKind{server.MaintenanceDrain, server.MaintenanceReplace} {
		i := trying(t, b.Store, func(ctx context.Context) error {
			_, err := b.RequestMaintenance(ctx, "node-1", kind, server.MaintenanceRequest{}, "ann")
			return err
		})
		require.Equal(t, impact.Interrupts, i.Class, kind)
		require.Equal(t, want, classes(i), kind)
		_, err := b.RequestMaintenance(t.Context(), "node-1", kind, server.MaintenanceRequest{}, "ann")
		require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(err), kind)
	}
	i := trying(t, b.Store, func(ctx context.Context) error {
		_, err := b.RequestMaintenance(ctx, "node-2", server.MaintenanceDrain, server.MaintenanceRequest{}, "ann")
		return err
	})
	require.Equal(t, impact.Moves, i.Class)
	require.Empty(t, i.Digest)
}

// TestAFleetsActionInterruptsWhatStopsFirst on the servers that it would remove now.
func TestAFleetsActionInterruptsWhatStopsFirst(t *testing.T) {
	t.Parallel()
	b, groups := maintenanceSetup(t, 1, 1)
	exec(t, b.Store, `UPDATE process_groups SET no_surge = true WHERE group_id = $1`, groups[0])
	remove := func(n int) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := b.RequestFleetAction(ctx, server.FleetActionRequest{
				FleetID: "nodes", Action: server.ClusterScaleIn, Inputs: fmt.Appendf(nil, `{"count":%d}`, n), By: "ann",
			}, scale.Plan)
			return err
		}
	}
	require.Empty(t, classes(trying(t, b.Store, remove(1))), "node-2 is empty")
	i := trying(t, b.Store, remove(2))
	require.Equal(t, impact.Interrupts, i.Class)
	require.Len(t, i.Affected, 2)
	require.ElementsMatch(t, []impact.Class{impact.Interrupts, impact.Moves}, slices.Collect(maps.Values(classes(i))))
	require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(remove(2)(t.Context())))
	require.NoError(t, remove(1)(t.Context()))
}

// TestWhatInterruptsOrDestroysIsAccepted: each kind of change, on something that others use and on something that
// nothing needs, which asks nothing.
func TestWhatInterruptsOrDestroysIsAccepted(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	exec(t, s, wellInstallation)
	exec(t, s, `
INSERT INTO golden_images (image_id, provider, region, base_image, architecture, created_by, status, current) VALUES
    ('img-ready', 'hetzner', 'eu', 'debian-13', 'x86', 'test', 'ready', false),
    ('img-failed', 'hetzner', 'eu', 'debian-13', 'x86', 'test', 'failed', false);
INSERT INTO snapshots (snapshot_id, org_id, tenant_id, status, server_id, site, created_by, created_at) VALUES
    ('snp-older', 'acme', 't-2', 'succeeded', 'app-1', 's', 'test', now() - interval '2 hours'),
    ('snp-only', 'acme', 't-2', 'succeeded', 'app-1', 's', 'test', now() - interval '1 hour'),
    ('snp-failed', 'acme', 't-3', 'failed', 'app-1', 's', 'test', now()),
    ('snp-saved', 'acme', 't-3', 'succeeded', 'app-1', 's', 'test', now() - interval '1 hour'),
    ('snp-left', 'acme', 't-4', 'succeeded', 'app-2', 's', 'test', now());
INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, created_by, state, taken_at, sealed_identity,
    bytes, sha256, plain_sha256, manifest_sha256)
VALUES ('bak-3', 'acme', 't-3', 'app-1', 's', 'scheduled', 'test', 'stored', now(), '', 1, 'x', 'x', 'x');
INSERT INTO envs (env_id, app_id, org_id, name, region, created_by)
VALUES ('env-b', 'app-a', 'acme', 'test', 'eu', 'test'), ('env-c', 'app-a', 'acme', 'old', 'eu', 'test');
INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by)
VALUES ('vol-b', 'acme', 'eu', 'fsn1', 'more', 10000000000, 'hetzner', 'w', 'ready', 'test');
INSERT INTO ipv4_allocations (allocation_id, org_id, env_id, provider, name, location, status, created_by)
VALUES ('ip-b', 'acme', 'env-b', 'hetzner', 'm', 'fsn1', 'pending', 'test');
INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas,
    status, converged, created_by)
VALUES ('grp-idle', 'env-a', 'acme', 'eu', 'idle', '{}', 1, 0.1, 0, 'running', true, 'test'),
    ('grp-many', 'env-a', 'acme', 'eu', 'many', '{}', 1, 0.1, 2, 'running', true, 'test');
INSERT INTO instances (instance_id, group_id, org_id, server_id, number, release, spec, state, memory_limit_bytes,
    cpu_request)
SELECT 'ins-' || n, CASE n WHEN 1 THEN 'grp-a' ELSE 'grp-many' END, 'acme', 'app-1', n, 1, '{}', 'running', 1, 0.1
FROM generate_series(1, 3) n;
INSERT INTO routes (route_id, org_id, env_id, group_id, hostname, listener_scope, listen_port, protocol, target_port,
    created_by) VALUES
    ('rte-a', 'acme', 'env-a', 'grp-a', '', 'shared_v6', 9443, 'tcp', 80, 'test'),
    ('rte-idle', 'acme', 'env-a', 'grp-idle', '', 'shared_v6', 9444, 'tcp', 80, 'test'),
    ('rte-unverified', 'acme', 'env-a', 'grp-a', 'new.example.com', 'shared_v6', 443, 'https', 80, 'test');
INSERT INTO domains (domain_id, org_id, tenant_id, name, token, sought_until, created_by, status)
VALUES ('dom-b', 'acme', 't-1', 'new.shop.example.com', 'x', now(), 'test', 'pending');
INSERT INTO stack_releases (name, image, rings, created_by) VALUES ('r-1', 'i:1', '[{"name": "all"}]', 'test');
UPDATE process_groups SET spec = '{"image": "web:1", "memory_limit_bytes": 16777216, "cpu_request": 0.1}';
UPDATE tenants SET mail = '{"server": "smtp.example.com"}', storage_quota_gb = 9 WHERE tenant_id = 't-2';
INSERT INTO site_usage (tenant_id, quota_gb, database_bytes, files_bytes) VALUES ('t-2', 9, 2000000000, 1000000000)`)
	newImage := workload.Spec{Image: "web:2", MemoryLimitBytes: 16 << 20, CPURequest: 0.1}
	is := func(pairs ...string) map[string]impact.Class {
		out := map[string]impact.Class{}
		for n := 0; n < len(pairs); n += 2 {
			out[pairs[n]] = impact.Class(pairs[n+1])
		}
		return out
	}
	for name, tc := range map[string]struct {
		change func(context.Context) error
		does   map[string]impact.Class
	}{
		"an image that failed": {func(ctx context.Context) error {
			_, err := s.RequestImageDelete(ctx, "img-failed", "ann")
			return err
		}, is()},
		"an image": {func(ctx context.Context) error {
			_, err := s.RequestImageDelete(ctx, "img-ready", "ann")
			return err
		}, is("img-ready", "destroys")},
		"a site's only copy": {func(ctx context.Context) error {
			_, err := s.DeleteSnapshot(ctx, "t-2", "snp-only", "ann")
			return err
		}, is("snp-only", "destroys")},
		"an older snapshot": {func(ctx context.Context) error {
			_, err := s.DeleteSnapshot(ctx, "t-2", "snp-older", "ann")
			return err
		}, is()},
		"a snapshot that failed": {func(ctx context.Context) error {
			_, err := s.DeleteSnapshot(ctx, "t-3", "snp-failed", "ann")
			return err
		}, is()},
		"a snapshot older than a backup": {func(ctx context.Context) error {
			_, err := s.DeleteSnapshot(ctx, "t-3", "snp-saved", "ann")
			return err
		}, is()},
		"a snapshot where its site is not": {func(ctx context.Context) error {
			_, err := s.DeleteSnapshot(ctx, "t-4", "snp-left", "ann")
			return err
		}, is()},
		"an address": {func(ctx context.Context) error {
			_, err := s.DisableIPv4(ctx, "env-a", "ann")
			return err
		}, is("ip-a", "interrupts")},
		"an address to come": {func(ctx context.Context) error {
			_, err := s.DisableIPv4(ctx, "env-b", "ann")
			return err
		}, is()},
		"a route": {func(ctx context.Context) error {
			return s.DeleteRoute(ctx, "env-a", "rte-a", "ann")
		}, is("rte-a", "interrupts")},
		"a route to nothing": {func(ctx context.Context) error {
			return s.DeleteRoute(ctx, "env-a", "rte-idle", "ann")
		}, is()},
		"a route without its name": {func(ctx context.Context) error {
			return s.DeleteRoute(ctx, "env-a", "rte-unverified", "ann")
		}, is()},
		"a site's mail settings": {func(ctx context.Context) error {
			return s.MayRemoveMail(ctx, "t-2")
		}, is("t-2", "interrupts")},
		"mail settings of a site without any": {func(ctx context.Context) error {
			return s.MayRemoveMail(ctx, "t-3")
		}, is()},
		"containers that tenants use": {func(ctx context.Context) error {
			return s.MayRepair(ctx, "app-1")
		}, is("t-2", "interrupts", "t-3", "interrupts", "t-4", "interrupts")},
		"containers of a server without tenants": {func(ctx context.Context) error {
			return s.MayRepair(ctx, "app-2")
		}, is()},
		"a quota that a site exceeds": {func(ctx context.Context) error {
			_, err := s.SetStorageQuota(ctx, "t-2", 3, "ann")
			return err
		}, is("t-2", "interrupts")},
		"a lower quota that a site keeps": {func(ctx context.Context) error {
			_, err := s.SetStorageQuota(ctx, "t-2", 4, "ann")
			return err
		}, is()},
		"a domain": {func(ctx context.Context) error {
			return s.DeleteDomain(ctx, "dom-a", "ann")
		}, is("dom-a", "interrupts")},
		"a domain that is not verified": {func(ctx context.Context) error {
			return s.DeleteDomain(ctx, "dom-b", "ann")
		}, is()},
		"a release": {func(ctx context.Context) error {
			_, err := s.StartStackRelease(ctx, "r-1", "ann")
			return err
		}, is("t-2", "interrupts", "t-3", "interrupts", "t-4", "interrupts")},
		"a group with a volume": {func(ctx context.Context) error {
			_, err := s.DeployGroup(ctx, "grp-a", newImage, nil, "ann")
			return err
		}, is("ins-1", "interrupts")},
		"a volume for a running group": {func(ctx context.Context) error {
			_, err := s.AttachVolume(ctx, workload.VolumeAttachment{
				AttachmentID: "att-b", VolumeID: "vol-b", GroupID: "grp-a", MountPath: "/more",
			}, "ann")
			return err
		}, is("ins-1", "interrupts")},
		"a volume for a group without instances": {func(ctx context.Context) error {
			_, err := s.AttachVolume(ctx, workload.VolumeAttachment{
				AttachmentID: "att-b", VolumeID: "vol-b", GroupID: "grp-idle", MountPath: "/more",
			}, "ann")
			return err
		}, is()},
		"a group of two": {func(ctx context.Context) error {
			_, err := s.RestartGroup(ctx, "grp-many", "ann", "")
			return err
		}, is()},
		"a group of which all may be missing": {func(ctx context.Context) error {
			none, all := workload.Share{}, workload.Share{N: 100, Percent: true}
			_, err := s.DeployGroup(ctx, "grp-many", newImage,
				&workload.RolloutChange{MaxSurge: &none, MaxUnavailable: &all}, "ann")
			return err
		}, is("ins-2", "interrupts", "ins-3", "interrupts")},
	} {
		i := trying(t, s, tc.change)
		require.Equal(t, tc.does, classes(i), name)
		err := s.Try(t.Context(), tc.change)
		if len(tc.does) == 0 {
			require.NoError(t, err, name)
			continue
		}
		require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(err), name)
		accepted := impact.Change{Operation: "test", Bound: impact.Destroys, At: time.Now(), Accepted: i.Digest}
		require.NoError(t, s.Try(impact.With(t.Context(), &accepted), tc.change), name)
	}
}

func backupAt(t *testing.T, s *Store, of, id string, taken time.Time) {
	t.Helper()
	exec(t, s, `
INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, created_by, state, taken_at, sealed_identity,
    bytes, sha256, plain_sha256, manifest_sha256)
SELECT $1, 'acme', $2::text, app_server_id, 's', 'scheduled', 'test', 'stored', $3, '', 1, 'x', 'x', 'x'
FROM tenant_allocations WHERE tenant_id = $2`, id, of, taken)
}

// TestShorterRetentionIsAccepted: a policy and the end of a hold state which backups the next prune deletes.
func TestShorterRetentionIsAccepted(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 2), t.Context()
	day := time.Now().UTC().Truncate(24 * time.Hour).Add(-time.Hour)
	for n := range 5 {
		for _, tenant := range []string{"t-0", "t-1"} {
			backupAt(t, s, tenant, fmt.Sprint(tenant, "-", n), day.AddDate(0, 0, -n))
		}
	}
	keep := func(days int) tenant.Retention { return tenant.Retention{Daily: days} }
	set := func(p tenant.BackupPolicy) map[string]impact.Class {
		return classes(trying(t, s, func(ctx context.Context) error { return s.PutBackupPolicy(ctx, p, "ann") }))
	}
	lost := func(ids ...string) map[string]impact.Class {
		out := map[string]impact.Class{}
		for _, id := range ids {
			out[id] = impact.Destroys
		}
		return out
	}
	require.Empty(t, set(tenant.BackupPolicy{Plan: prego.PlanStarter, Retention: keep(5)}))
	three := tenant.BackupPolicy{Plan: prego.PlanStarter, Retention: keep(3)}
	require.Equal(t, lost("t-0-3", "t-0-4", "t-1-3", "t-1-4"), set(three))
	require.Equal(t, lost("t-1-4"), set(tenant.BackupPolicy{TenantID: "t-1", Retention: keep(4)}))
	own := tenant.BackupPolicy{TenantID: "t-1", Retention: keep(4)}
	require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(s.PutBackupPolicy(ctx, own, "ann")))
	require.NoError(t, s.PutBackupPolicy(impact.By(ctx, "test"), own, "ann"))
	require.Equal(t, lost("t-0-3", "t-0-4"), set(three), "it has its own")

	of := tenant.BackupOwner{TenantID: "t-1"}
	require.NoError(t, s.HoldBackups(ctx, of, "a case", "ann"))
	require.Empty(t, set(tenant.BackupPolicy{TenantID: "t-1", Retention: keep(2)}), "they are held")
	own.Retention = keep(2)
	require.NoError(t, s.PutBackupPolicy(ctx, own, "ann"))
	release := func(ctx context.Context) error { return s.ReleaseBackups(ctx, of, "ann") }
	require.Equal(t, lost("t-1-2", "t-1-3", "t-1-4"), classes(trying(t, s, release)))
	require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(release(ctx)))
	_, err := s.HoldBackup(ctx, of, "t-1-3", "it is wanted", "ann")
	require.NoError(t, err)
	require.NoError(t, release(impact.By(ctx, "test")))
	one := func(ctx context.Context) error {
		_, err := s.ReleaseBackup(ctx, of, "t-1-3", "ann")
		return err
	}
	require.Equal(t, lost("t-1-3"), classes(trying(t, s, one)))
	back := func(ctx context.Context) error {
		return s.DeleteBackupPolicy(ctx, tenant.BackupPolicy{TenantID: "t-1"}, "ann")
	}
	require.Empty(t, classes(trying(t, s, back)), "its plan keeps more")
}

// TestTimersDestroyOnlyWhatWasAccepted: a tenant by its cancellation or as a trial, a backup by its policy. What nobody
// accepted stays, and states why.
func TestTimersDestroyOnlyWhatWasAccepted(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 4), t.Context()
	periods := tenant.LifecyclePeriods{Grace: time.Hour, Retention: time.Hour}
	cancel := func(id prego.TenantID) {
		_, err := s.ChangeTenant(impact.By(ctx, "test"), id, tenant.ActionCancel, periods, "ann", "")
		require.NoError(t, err)
	}
	_, err := s.ChangeTenant(ctx, "t-0", tenant.ActionCancel, periods, "ann", "")
	require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(err), "its end is accepted when it is cancelled")
	cancel("t-0")
	exec(t, s, `UPDATE tenants SET plan = 'trial', state = 'grace_period' WHERE tenant_id = 't-1'`)
	exec(t, s, `UPDATE tenants SET state = 'grace_period' WHERE tenant_id = 't-2'`)
	cancel("t-3")
	_, err = s.ChangeTenant(ctx, "t-3", tenant.ActionReactivate, periods, "ann", "")
	require.NoError(t, err)
	exec(t, s, `UPDATE tenants SET state = 'grace_period' WHERE tenant_id = 't-3'`)
	for _, want := range []string{"terminated", "data_purged"} {
		exec(t, s, `UPDATE tenants SET deadline_at = now() - interval '1 second'`)
		for _, id := range []prego.TenantID{"t-0", "t-1"} {
			changed, err := s.ExpireTenant(ctx, id, periods)
			require.NoError(t, err)
			require.True(t, changed, id)
		}
		for _, id := range []prego.TenantID{"t-2", "t-3"} {
			_, err := s.ExpireTenant(ctx, id, periods)
			require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(err), id)
		}
		require.Equal(t, 2, count(t, s, `tenants WHERE tenant_id IN ('t-0', 't-1') AND state = '`+want+`'`))
	}
	held := `tenants WHERE state = 'grace_period' AND status_message`
	require.Equal(t, 2, count(t, s, held+` LIKE 'its data is kept: %site t-_.example.com%'`))

	backupAt(t, s, "t-2", "bak-1", time.Now())
	backupAt(t, s, "t-2", "bak-2", time.Now())
	prune := func(id prego.BackupID) error {
		of := tenant.BackupOwner{TenantID: "t-2"}
		_, err := s.DeleteBackup(impact.Standing(ctx, "retention"), of, id, "retention")
		return err
	}
	require.NoError(t, prune("bak-1"))
	exec(t, s, `DELETE FROM backup_policies WHERE policy_id = 'plan/starter'`)
	require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(prune("bak-2")))
}

// TestFiguresAreMeasured: how long earlier releases took sites away, and what a change costs or saves a month. What was
// never measured, or has no price, has none.
func TestFiguresAreMeasured(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	exec(t, s, wellInstallation)
	exec(t, s, `INSERT INTO stack_releases (name, image, rings, created_by)
		VALUES ('r-1', 'i:1', '[{"name": "all"}]', 'test')`)
	start := func(ctx context.Context) error {
		_, err := s.StartStackRelease(ctx, "r-1", "ann")
		return err
	}
	remove := func(ctx context.Context) error {
		_, err := s.DeleteVolume(ctx, "vol-b", "", "ann")
		return err
	}
	exec(t, s, `
INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, made_bytes, provider, provider_name, status,
    created_by)
VALUES ('vol-b', 'acme', 'eu', 'fsn1', 'more', 10000000000, 10000000000, 'hetzner', 'vb', 'ready', 'test');
INSERT INTO resources (provider, kind, name, provider_id, state, created_at)
VALUES ('hetzner', 'volume', 'vb', '77', 'created', now())`)
	require.Zero(t, trying(t, s, start).Seconds)
	require.Zero(t, trying(t, s, remove).MonthlyCents)
	exec(t, s, `
INSERT INTO stack_releases (name, image, rings, status, created_by, finished_at)
VALUES ('r-0', 'i:0', '[{"name": "all"}]', 'done', 'test', now());
INSERT INTO stack_release_servers (release, server_id, ring, status) VALUES ('r-0', 'app-1', 0, 'done');
INSERT INTO stack_release_sites (release, server_id, site, offline_at, opened_at)
SELECT 'r-0', 'app-1', 's-' || n, now() - interval '1 hour', now() - interval '1 hour' + make_interval(secs => n)
FROM generate_series(1, 100) n;
INSERT INTO provider_prices (provider, kind, type, location, per_gb, monthly, currency)
VALUES ('hetzner', 'volume', '', '', true, 44000, 'EUR')`)
	require.InDelta(t, 98, trying(t, s, start).Seconds, 2)
	saved := trying(t, s, remove)
	require.Equal(t, []any{int64(-44), "EUR"}, []any{saved.MonthlyCents, saved.Currency})
	grown := trying(t, s, func(ctx context.Context) error {
		_, err := s.GrowVolume(ctx, "vol-b", 30_000_000_000, "ann")
		return err
	})
	require.Equal(t, []any{impact.None, int64(88)}, []any{grown.Class, grown.MonthlyCents})
}

// TestARestoreSaysForHowLong: as long as the newest restores took since they began, however long they waited.
func TestARestoreSaysForHowLong(t *testing.T) {
	t.Parallel()
	s := backupTenants(t, 2)
	counted(t, s)
	storedBackup(t, s, "bak-0", "t-0", 0)
	restore := func(ctx context.Context) error {
		_, err := s.CreateRestore(ctx, "t-0", tenant.RestoreOf{BackupID: "bak-0"}, "rst-new", "ann")
		return err
	}
	require.Zero(t, trying(t, s, restore).Seconds)
	exec(t, s, `
INSERT INTO restore_jobs (job_id, org_id, tenant_id, backup_id, status, created_by, created_at)
VALUES ('rst-old', 'acme', 't-0', 'bak-0', 'queued', 'test', now() - interval '1 day')`)
	require.NoError(t, s.RestoreBegun(t.Context(), "rst-old"))
	exec(t, s, `UPDATE restore_jobs SET begun_at = now() - interval '40 seconds'`)
	require.NoError(t, s.RestoreBegun(t.Context(), "rst-old"), "repeated")
	require.NoError(t, s.RestoreFinished(t.Context(), "rst-old", tenant.JobSucceeded, ""))
	require.InDelta(t, 41, trying(t, s, restore).Seconds, 2)
}

// TestCreatingAndMovingStateTheirFigures: what a new or larger server costs a month more, and for how long a move takes
// its tenant away. Without prices or measurements they are absent, and nothing must be accepted.
func TestCreatingAndMovingStateTheirFigures(t *testing.T) {
	t.Parallel()
	s := moveSetup(t).s
	order := server.CreateRequest{
		ServerID: "new-1", Role: prego.RoleApp, Region: prego.RegionEU, InfraProvider: "hetzner",
		Spec: server.Spec{VolumeGB: 100},
	}
	create := func(ctx context.Context) error {
		_, _, err := s.CreateServer(ctx, order, "ann", server.Candidate{ServerType: "cpx32", Location: "nbg1"},
			server.Candidate{ServerType: "cpx42", Location: "nbg1"})
		return err
	}
	resize := func(ctx context.Context) error {
		_, err := s.RequestMaintenance(ctx, "app-1", server.MaintenanceResize,
			server.MaintenanceRequest{ServerType: "cpx42"}, "ann")
		return err
	}
	move := func(ctx context.Context) error {
		_, err := s.RequestMove(ctx, tenant.MoveAsked{ID: "mov-1", TenantID: "t-1", By: "ann"})
		return err
	}
	figures := func(i impact.Impact) []any { return []any{i.Seconds, i.MonthlyCents, i.Currency} }
	for _, change := range []func(context.Context) error{create, resize, move} {
		require.Equal(t, []any{0, int64(0), ""}, figures(trying(t, s, change)))
	}
	exec(t, s, `UPDATE servers SET server_type = 'cpx22', location = 'nbg1' WHERE server_id = 'app-1';
		INSERT INTO provider_prices (provider, kind, type, location, per_gb, monthly, currency) VALUES
			('hetzner', 'server', 'cpx22', 'nbg1', false, 7990000, 'EUR'),
			('hetzner', 'server', 'cpx32', 'nbg1', false, 13990000, 'EUR'),
			('hetzner', 'server', 'cpx42', 'nbg1', false, 25490000, 'EUR'),
			('hetzner', 'server', 'cpx42', 'ash', false, 1, 'EUR'), ('hetzner', 'volume', '', '', true, 44000, 'EUR');
		SET session_replication_role = replica;
		INSERT INTO tenant_moves (move_id, org_id, tenant_id, allocation_id, requested_by, site, database_name,
			from_server_id, to_server_id, state, finished_at, frozen_at, opened_at)
		SELECT 'old-' || n, 'acme', 't-9', n, 'test', 's', 'd', 'app-1', 'app-2', 'done', now(),
			now() - interval '12 seconds', now()
		FROM generate_series(1, 3) n; SET session_replication_role = DEFAULT`)
	require.Equal(t, []any{0, int64(1399 + 440), "EUR"}, figures(trying(t, s, create)))
	require.Equal(t, []any{12, int64(2549 - 799), "EUR"}, figures(trying(t, s, resize)))
	moved := trying(t, s, move)
	require.Equal(t, []any{12, int64(0), ""}, figures(moved))
	require.Equal(t, map[string]impact.Class{"t-1": impact.Moves}, classes(moved))
	require.NoError(t, move(t.Context()), "it needs no acceptance")
	_, created, err := s.CreateServer(t.Context(), order, "ann")
	require.NoError(t, err)
	require.True(t, created)
}
