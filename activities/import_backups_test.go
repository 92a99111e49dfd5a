package activities_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// TestBackupsAreImported: after the database was lost, the bucket's backups come back if our keys
// verify them; nothing else does, and nothing twice.
func TestBackupsAreImported(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := s3test.Start(t)
	storage, err := objects.New(objects.Config{
		Endpoint: s.Endpoint, Bucket: s.Bucket, Region: s.Region, AccessKey: s.AccessKey, SecretKey: s.SecretKey,
		PathStyle: true, MayDelete: s3test.MayDelete,
	})
	require.NoError(t, err)
	vault := func() *token.Sealing {
		dir := t.TempDir()
		require.NoError(t, token.InitKeys(dir))
		v, err := token.OpenSealing(dir, token.SealBackups)
		require.NoError(t, err)
		return v
	}
	ours, other := vault(), vault()
	p := newPlacing(t, 4)
	a := &activities.Backups{Objects: storage, Vault: ours, Settings: activities.BackupSettings{Environment: "test"}}
	day := time.Date(2026, 11, 1, 3, 0, 0, 123456000, time.UTC)
	put := func(v *token.Sealing, tenantID prego.TenantID, id prego.BackupID, days int, change func(m *tenant.Manifest)) {
		t.Helper()
		sealed, key, err := v.Seal(tenant.BackupKeyFor(id), []byte("AGE-SECRET-KEY-1"))
		require.NoError(t, err)
		object, name := tenant.BackupKeys("test", tenantID, id)
		m := tenant.Manifest{
			Format: 1, Environment: "test", BackupID: id, OrgID: "acme", TenantID: tenantID, Slug: string("s-" + tenantID), Plan: prego.PlanStarter, Region: prego.RegionEU,
			ServerID: "app-1", Site: "a.example.com", Apps: []string{"erpnext"}, Kind: tenant.BackupScheduled, TakenAt: day.AddDate(0, 0, days), Object: object, Bytes: 5, SHA256: "aa",
			PlainBytes: 9, PlainSHA256: "bb", PartBytes: 5 << 20, Parts: []tenant.ObjectPart{{Number: 1, Bytes: 5, ETag: "x"}}, Encryption: "tar, zstd, age", Recipient: "age1", SealedIdentity: sealed, KeyID: key,
		}
		if change != nil {
			change(&m)
		}
		if m.Volume != nil {
			m.TenantID, m.Slug, m.Plan, m.Site, m.Apps = "", "", "", "", nil
			object, name = tenant.VolumeBackupKeys("test", prego.VolumeID(tenantID), id)
			m.Object = object
		}
		text, err := json.Marshal(m)
		require.NoError(t, err)
		m.MAC, err = v.MAC(m.KeyID, text)
		require.NoError(t, err)
		text, err = json.Marshal(m)
		require.NoError(t, err)
		require.NoError(t, storage.Put(ctx, object, []byte("12345")))
		require.NoError(t, storage.Put(ctx, name, text))
	}
	put(ours, "t-1", "bak-1", 0, nil)
	put(ours, "t-1", "bak-2", 1, func(m *tenant.Manifest) { m.Plan = prego.PlanBusiness })
	put(other, "t-2", "bak-3", 0, nil)                                            // of another installation's keys
	put(ours, "t-3", "bak-4", 0, func(m *tenant.Manifest) { m.Bytes = 6 })        // its object is shorter
	put(ours, "t-4", "bak-5", 0, func(m *tenant.Manifest) { m.TenantID = "t-1" }) // put where another's belongs
	put(ours, "t-5", "bak-6", 0, nil)
	_, name := tenant.BackupKeys("test", "t-5", "bak-6")
	text, err := storage.Get(ctx, name, 1<<20)
	require.NoError(t, err)
	var forged map[string]any
	require.NoError(t, json.Unmarshal(text, &forged))
	forged["org_id"] = "thief"
	text, err = json.Marshal(forged)
	require.NoError(t, err)
	require.NoError(t, storage.Put(ctx, name, text))
	put(ours, "t-6", "bak-7", 0, func(m *tenant.Manifest) { m.Slug = "s-t-1" }) // whose slug another has by then

	ofVolume := func(id prego.VolumeID) func(m *tenant.Manifest) {
		return func(m *tenant.Manifest) {
			m.Volume = &tenant.VolumeManifest{VolumeID: id, Name: "data", Location: "fsn1", SizeBytes: 10e9, Entries: 7}
		}
	}
	put(ours, "vol-1", "bak-8", 0, ofVolume("vol-1"))
	put(ours, "vol-1", "bak-9", 1, ofVolume("vol-1"))
	put(ours, "vol-2", "bak-10", 0, ofVolume("vol-1")) // put where another's belongs

	run := func(apply bool) map[prego.BackupID]tenant.ImportOutcome {
		t.Helper()
		found, err := a.ImportBackups(ctx, p.Store, apply)
		require.NoError(t, err)
		out := map[prego.BackupID]tenant.ImportOutcome{}
		for _, b := range found {
			out[b.BackupID] = b.Outcome
			require.Equal(t, b.Outcome == tenant.ImportRefused, b.Message != "", "%s %s", b.BackupID, b.Message)
		}
		return out
	}
	refused := tenant.ImportRefused
	told := run(false)
	require.Equal(t, tenant.ImportTenant, told["bak-2"])
	require.Zero(t, p.Number(`SELECT (SELECT count(*) FROM backups) + (SELECT count(*) FROM tenants)`), "nothing is written")

	require.Equal(t, map[prego.BackupID]tenant.ImportOutcome{
		"bak-1": tenant.ImportBackup, "bak-2": tenant.ImportTenant, "bak-3": refused, "bak-4": refused, "bak-5": refused, "bak-6": refused, "bak-7": refused,
		"bak-8": tenant.ImportBackup, "bak-9": tenant.ImportVolume, "bak-10": refused,
	}, run(true))
	require.Equal(t, tenant.ImportKnown, run(true)["bak-1"])
	require.Equal(t, 2, p.Number(`SELECT count(*) FROM backups WHERE tenant_id IS NOT NULL`))
	require.Equal(t, 4, p.Number(`SELECT count(*) FROM resources WHERE kind = 'backup' AND state = 'created'`))
	// A volume is there to be copied.
	copied, job, err := p.Store.CloneVolume(ctx, "vol-1", workload.Volume{VolumeID: "vol-3", Name: "data"}, workload.VolumeRestore{RestoreID: "vrs-1", CreatedBy: "test"}, "test")
	require.NoError(t, err)
	require.Equal(t, []any{int64(10e9), "fsn1", prego.BackupID("bak-9")}, []any{copied.SizeBytes, copied.Location, job.BackupID})
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenants`))
	got, err := p.Store.TenantRecord(ctx, "t-1")
	require.NoError(t, err)
	require.Equal(t, []any{tenant.Failed, prego.PlanBusiness, []string{"erpnext"}}, []any{got.State, got.Plan, got.Apps}, "as it was last")
	lost, err := p.Store.LostTenants(ctx, prego.Plans(), 5)
	require.NoError(t, err)
	require.Empty(t, lost, "it is restored only on request: its site may still exist")

	// What its run needs is there: the identity opens, and the restore is accepted.
	b, err := p.Store.BackupRecord(ctx, "bak-2")
	require.NoError(t, err)
	secret, err := ours.Open(tenant.BackupKeyFor("bak-2"), b.KeyID, b.Sealed)
	require.NoError(t, err)
	require.Equal(t, "AGE-SECRET-KEY-1", string(secret))
	require.Equal(t, 1, b.Parts)
	back, restore, err := p.Store.RestoreElsewhere(ctx, "t-1", "", "", "test")
	require.NoError(t, err)
	require.Equal(t, []any{tenant.Provisioning, prego.BackupID("bak-2"), prego.BackupID("bak-2")}, []any{back.State, back.RestoreFrom, restore.BackupID})
	p.Exec(`UPDATE restore_jobs SET status = 'failed'`)
	p.Exec(`UPDATE backups SET state = 'deleting' WHERE backup_id = 'bak-1'`)
	require.Equal(t, tenant.ImportDeleting, run(true)["bak-1"], "a deleted backup does not come back")
}
