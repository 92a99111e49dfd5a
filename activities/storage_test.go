package activities_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

// living is a tenant with a promoted pool site on app-0.
func living(t *testing.T, change func(*tenant.CreateRequest)) (*placing, *steps, tenant.Ref) {
	t.Helper()
	p := newPlacing(t, 4)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	p.Sites("app-0", "db-0", 1)
	p.Exec(`UPDATE servers SET host = '192.0.2.1'`)
	placer := p.Placer(nil)
	s := p.steps(placer)
	s.Settings.Storage = tenant.StorageRules{WarnPct: 90, HardPct: 120, Grace: time.Hour}
	s.Settings.StorageEvery, s.Settings.StorageBatch, s.Settings.StorageHosts = 0, 10, 2
	tn := p.Tenant(prego.PlanStarter, change)
	d, err := placer.Place(t.Context(), tenant.Record{Tenant: tn}, nil, "test")
	require.NoError(t, err)
	require.True(t, d.PlacesTenant())
	return p, s, tenant.Ref{TenantID: tn.TenantID, Generation: 1}
}

func (s *steps) do(t *testing.T, step any, arg ...any) {
	t.Helper()
	_, err := s.env.ExecuteActivity(step, arg...)
	require.NoError(t, err)
}

// TestASiteIsPromotedConfiguredAndOpened with as few commands as there can be.
func TestASiteIsPromotedConfiguredAndOpened(t *testing.T) {
	t.Parallel()
	p, s, ref := living(t, func(r *tenant.CreateRequest) { r.AdminEmail, r.AdminName = "ann@example.com", "Ann" })
	s.do(t, s.MakeSite, ref)
	require.Equal(t, []string{"app-0", "promote-site", "app-0-db-0-0.pool", "s1.sites.test"}, s.hosts.ran[0])
	require.Len(t, s.hosts.ran, 2)
	require.JSONEq(t, `{"host_name":"https://s1.sites.test","prego_tenant_id":"t1","prego_plan":"starter","prego_max_users":10,"prego_storage_quota_gb":10}`, s.hosts.ran[1][4])
	s.hosts.asked()
	s.do(t, s.OpenSite, ref)
	require.Equal(t, []string{"app-0", "--site", "s1.sites.test", "add-user", "ann@example.com", "Ann"}, s.hosts.ran[0])
	require.Equal(t, []string{"add-user", "enable-scheduler"}, s.hosts.asked())
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenant_lifecycle_events WHERE step = 'user_added' AND message = 'ann@example.com'`))
}

// TestPurgingErasesUnderBothNames, even if one of them is gone, and deletes the site's kept files.
func TestPurgingErasesUnderBothNames(t *testing.T) {
	t.Parallel()
	p, s, ref := living(t, nil)
	s.do(t, s.MakeSite, ref)
	p.Exec(`UPDATE tenants SET state = 'data_purged'`)
	p.Exec(`INSERT INTO site_usage (tenant_id, quota_gb) VALUES ('t1', 10)`)
	p.Exec(`INSERT INTO snapshots (snapshot_id, org_id, tenant_id, server_id, site, status, created_by) VALUES ('snp-1', 'o1', 't1', 'app-0', 's1.sites.test', 'succeeded', 'a')`)
	s.hosts.asked()
	s.hosts.says = map[string]string{"erase-site": `{"database":true}`}
	s.do(t, s.DropSite, activities.DropInput{TenantID: "t1"})
	require.Equal(t, [][]string{
		{"app-0", "erase-site", "app-0-db-0-0.pool", "--db-name", "app-0-db-0-0"}, {"app-0", "erase-site", "s1.sites.test", "--db-name", "app-0-db-0-0"},
	}, s.hosts.ran)
	require.Zero(t, p.Number(`SELECT count(*) FROM site_usage`))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM snapshots WHERE status = 'deleted' AND erased_at IS NOT NULL`))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenant_lifecycle_events WHERE step = 'site_dropped' AND message LIKE '%"database":true%'`))
}

// TestSuspendingAndResuming also stops a site's scheduled work.
func TestSuspendingAndResuming(t *testing.T) {
	t.Parallel()
	p, s, ref := living(t, nil)
	s.do(t, s.MakeSite, ref)
	s.hosts.asked()
	p.Exec(`UPDATE tenants SET state = 'suspended'`)
	s.do(t, s.SetOffline, activities.OfflineInput{TenantID: "t1", State: tenant.Suspended})
	require.Equal(t, []string{"set-maintenance-mode on", "disable-scheduler"}, s.hosts.asked())
	p.Exec(`UPDATE tenants SET state = 'active'`)
	s.do(t, s.SetOffline, activities.OfflineInput{TenantID: "t1", State: tenant.Active, Off: true})
	require.Equal(t, []string{"set-maintenance-mode off", "enable-scheduler"}, s.hosts.asked())
	s.do(t, s.SetOffline, activities.OfflineInput{TenantID: "t1", State: tenant.Suspended})
	require.Empty(t, s.hosts.asked(), "the tenant has moved on")
}

// TestASiteAboveItsQuotaIsReadOnly until there is room, through every change meanwhile.
func TestASiteAboveItsQuotaIsReadOnly(t *testing.T) {
	t.Parallel()
	p, s, ref := living(t, nil)
	s.do(t, s.MakeSite, ref)
	_, err := p.Store.ActivateTenant(t.Context(), ref, 0)
	require.NoError(t, err)
	s.hosts.asked()
	measure := func(gb float64) []string {
		t.Helper()
		s.hosts.says = map[string]string{"usage": fmt.Sprintf(`{"database_bytes":%.0f,"files_bytes":0,"backups_bytes":9000000000,"users":1}`, gb*1e9)}
		s.do(t, s.MeasureSites)
		return s.hosts.asked()
	}
	level := func() string {
		t.Helper()
		var l string
		require.NoError(t, p.Pool.QueryRow(t.Context(), `SELECT level || CASE WHEN read_only THEN '!' ELSE '' END FROM site_usage`).Scan(&l))
		return l
	}
	readOnly := []string{"usage", `configure {"allow_reads_during_maintenance":1}`, "set-maintenance-mode on"}
	writable := []string{"usage", "set-maintenance-mode off", `configure {"allow_reads_during_maintenance":null}`, "enable-scheduler"}
	require.Equal(t, []string{"usage"}, measure(8))
	require.Equal(t, []string{"usage"}, measure(9.5))
	require.Equal(t, "warned", level())
	require.Equal(t, []string{"usage"}, measure(11))
	require.Equal(t, "over", level(), "there is time to make room")
	p.Exec(`UPDATE site_usage SET over_since = now() - interval '61 minutes'`)
	require.Equal(t, readOnly, measure(11))
	require.Equal(t, "read_only!", level())
	require.Equal(t, []string{"usage"}, measure(11), "reported once")

	// While suspended, it can't be read; resumed, it is as before.
	p.Exec(`UPDATE tenants SET state = 'suspended', converged_state = 'suspended'`)
	s.do(t, s.SetOffline, activities.OfflineInput{TenantID: "t1", State: tenant.Suspended})
	require.Equal(t, []string{`configure {"allow_reads_during_maintenance":null}`, "set-maintenance-mode on", "disable-scheduler"}, s.hosts.asked())
	require.Equal(t, []string{"usage"}, measure(11))
	p.Exec(`UPDATE tenants SET state = 'active', converged_state = 'active'`)
	s.do(t, s.SetOffline, activities.OfflineInput{TenantID: "t1", State: tenant.Active, Off: true})
	require.Equal(t, readOnly[1:], s.hosts.asked())

	// A host that fails half way gets the command again.
	s.hosts.fails = "configure"
	measure(5)
	require.Equal(t, "ok!", level())
	s.hosts.fails = ""
	require.Equal(t, writable, measure(5))
	require.Equal(t, "ok", level())

	// An operator raises the quota.
	require.Equal(t, readOnly, measure(12), "by so much in one step")
	_, err = p.Store.SetStorageQuota(t.Context(), "t1", 20, "op")
	require.NoError(t, err)
	require.Equal(t, append([]string{"usage", `configure {"prego_storage_quota_gb":20}`}, writable[1:]...), measure(12))
	require.Equal(t, []string{"usage"}, measure(12))
	require.Equal(t, 7, p.Number(`SELECT count(*) FROM tenant_lifecycle_events WHERE step = 'storage'`), "each change is on the timeline, once")
}

// TestAHostThatDoesNotAnswerKeepsNobodyWaiting: the site's next turn comes, and its measurement
// stays.
func TestAHostThatDoesNotAnswerKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	p, s, ref := living(t, nil)
	s.do(t, s.MakeSite, ref)
	_, err := p.Store.ActivateTenant(t.Context(), ref, 0)
	require.NoError(t, err)
	s.hosts.fails = "usage"
	v, err := s.env.ExecuteActivity(s.MeasureSites)
	require.NoError(t, err)
	var r activities.StorageResult
	require.NoError(t, v.Get(&r))
	require.Equal(t, activities.StorageResult{Failed: 1}, r)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM site_usage WHERE message LIKE '%no%' AND measured_at IS NULL`))
	s.hosts.fails, s.hosts.says = "", map[string]string{"usage": "not JSON"}
	s.do(t, s.MeasureSites)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM site_usage WHERE message LIKE '%no JSON%'`))
	p.Exec(`INSERT INTO snapshots (snapshot_id, org_id, tenant_id, server_id, site, status, created_by) VALUES ('snp-1', 'o1', 't1', 'app-0', 's1.sites.test', 'succeeded', 'a')`)
	p.Exec(`INSERT INTO restore_jobs (job_id, org_id, tenant_id, snapshot_id, status, created_by) VALUES ('rst-1', 'o1', 't1', 'snp-1', 'running', 'a')`)
	turns, err := p.Store.TakeSitesToMeasure(t.Context(), 0, 10)
	require.NoError(t, err)
	require.Empty(t, turns, "a restore goes through maintenance by itself")
}

// backups are the steps of snapshots and restores.
func (s *steps) snapshots(p *placing) *activities.Snapshots {
	b := &activities.Snapshots{Store: p.Store, Tenants: s.Tenants}
	s.env.RegisterActivity(b)
	return b
}

// TestSnapshotsHaveTheNamesThatTheyAreGiven, which restore and delete them.
func TestSnapshotsHaveTheNamesThatTheyAreGiven(t *testing.T) {
	t.Parallel()
	p, s, ref := living(t, func(r *tenant.CreateRequest) { r.Slug = "acme-kr-2" })
	s.do(t, s.MakeSite, ref)
	b := s.snapshots(p)
	p.Exec(`UPDATE tenants SET state = 'active', converged_state = 'active'`)
	s.hosts.asked()
	_, err := p.Store.CreateSnapshot(t.Context(), "t1", "snp-1", "op")
	require.NoError(t, err)
	report := func(name string) string {
		return fmt.Sprintf(`{"name":%q,"files":[{"path":"acme-kr-2.sites.test/private/snapshots/%s-database.sql.gz","bytes":7}]}`, name, name)
	}
	s.hosts.says = map[string]string{"backup": report("snp-1")}
	v, err := s.env.ExecuteActivity(b.TakeSnapshot, prego.SnapshotID("snp-1"))
	require.NoError(t, err)
	var files []string
	require.NoError(t, v.Get(&files))
	require.Equal(t, []string{"acme-kr-2.sites.test/private/snapshots/snp-1-database.sql.gz"}, files)
	require.Equal(t, []string{"app-0", "--site", "acme-kr-2.sites.test", "backup", "snp-1", "--with-files"}, s.hosts.ran[0])
	s.do(t, b.FinishSnapshot, activities.SnapshotEnd{ID: "snp-1", Status: tenant.JobSucceeded, Files: files})
	snap, err := p.Store.GetSnapshot(t.Context(), "t1", "snp-1")
	require.NoError(t, err)
	require.EqualValues(t, 7, *snap.Bytes)

	j, err := p.Store.CreateRestore(impact.By(t.Context(), "test"), "t1", tenant.RestoreOf{SnapshotID: "snp-1"}, "rst-1", "op")
	require.NoError(t, err)
	s.hosts.asked()
	s.hosts.says["backup"] = report("rst-1-before")
	s.do(t, b.MaintainForRestore, activities.RestoreMaintenance{JobID: j.JobID})
	s.do(t, b.BackupBeforeRestore, j.JobID)
	s.do(t, b.RestoreSite, activities.RestoreInput{JobID: j.JobID, What: activities.RestoreApply})
	s.do(t, b.RestoreSite, activities.RestoreInput{JobID: j.JobID, What: activities.RestoreUndo})
	s.do(t, b.MaintainForRestore, activities.RestoreMaintenance{JobID: j.JobID, Off: true})
	s.do(t, b.ForgetKept, j.JobID)
	ran := s.hosts.ran
	require.Equal(t, []string{"backup", "rst-1-before"}, ran[1][3:5])
	require.Equal(t, []string{"restore", "snp-1", "--with-files"}, ran[2][3:])
	require.Equal(t, []string{"restore", "rst-1-before", "--with-files"}, ran[3][3:])
	require.Equal(t, []string{"delete-backup", "rst-1-before"}, ran[len(ran)-1][3:])
	require.Equal(t, []string{"set-maintenance-mode on", "backup", "restore", "restore", "set-maintenance-mode off", "enable-scheduler", "delete-backup"}, s.hosts.asked())
	s.do(t, b.FinishRestore, activities.SnapshotEnd{ID: j.JobID, Status: tenant.JobSucceeded})

	// A file with another name is no backup of ours.
	_, err = p.Store.CreateSnapshot(t.Context(), "t1", "snp-2", "op")
	require.NoError(t, err)
	_, err = s.env.ExecuteActivity(b.TakeSnapshot, prego.SnapshotID("snp-2"))
	require.ErrorContains(t, err, `instead of "snp-2"`)

	_, err = p.Store.DeleteSnapshot(impact.By(t.Context(), "test"), "t1", "snp-1", "op")
	require.NoError(t, err)
	s.hosts.asked()
	s.do(t, b.EraseSnapshot, prego.SnapshotID("snp-1"))
	require.Empty(t, s.hosts.asked(), "its deletion can be undone")
	p.Exec(`UPDATE snapshots SET kept_until = now()`)
	work, err := p.Store.OrgWork(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Equal(t, []string{"snp-1"}, work.Erasures)
	s.do(t, b.EraseSnapshot, prego.SnapshotID("snp-1"))
	require.Equal(t, []string{"app-0", "--site", "acme-kr-2.sites.test", "delete-backup", "snp-1"}, s.hosts.ran[0])
	s.hosts.asked()
	s.do(t, b.EraseSnapshot, prego.SnapshotID("snp-1"))
	require.Empty(t, s.hosts.asked(), "gone is gone")
}

// TestTheLastBackupSaysWhereItIs, and how large.
func TestTheLastBackupSaysWhereItIs(t *testing.T) {
	t.Parallel()
	p, s, ref := living(t, nil)
	s.do(t, s.MakeSite, ref)
	p.Exec(`UPDATE tenants SET state = 'terminated'`)
	s.hosts.says = map[string]string{"backup": `{"name":"final-t1","files":[{"path":"s1.sites.test/private/snapshots/final-t1-database.sql.gz","bytes":1234}]}`}
	s.do(t, s.FinalBackup, prego.TenantID("t1"))
	s.do(t, s.FinalBackup, prego.TenantID("t1"))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenant_lifecycle_events WHERE step = 'final_backup'
		AND message = 'on app-0: s1.sites.test/private/snapshots/final-t1-database.sql.gz (1234 bytes)'`))
}
