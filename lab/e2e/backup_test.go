package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/tenant"
)

// backupVars point a cell at object storage.
func backupVars(s *s3test.Server, more map[string]string) map[string]string {
	vars := sharedVars()
	maps.Copy(vars, storageVars(s))
	maps.Copy(vars, more)
	return vars
}

func storageVars(s *s3test.Server) map[string]string {
	return map[string]string{
		"PREGO_BACKUP_ENDPOINT": s.Endpoint, "PREGO_BACKUP_BUCKET": s.Bucket, "PREGO_BACKUP_REGION": s.Region, "PREGO_BACKUP_ACCESS_KEY": s.AccessKey,
		"PREGO_BACKUP_SECRET_KEY": s.SecretKey, "PREGO_BACKUP_PATH_STYLE": "true", "PREGO_DRILL_EVERY": "0",
	}
}

// noise puts a file that does not compress into a site, so that its backup has several parts.
func (c *cell) noise(app, site, name string, bytes int) []byte {
	c.t.Helper()
	b := make([]byte, bytes)
	_, _ = rand.Read(b)
	require.NoError(c.t, os.WriteFile(filepath.Join(c.rootOf(app), wire.BenchDir, "sites", site, "private/files", name), b, 0o644))
	return b
}

func (c *cell) backup(of string) api.Backup {
	c.t.Helper()
	var b api.Backup
	c.post(of+"/backups", nil, http.StatusAccepted, &b)
	return b
}

func (c *cell) backupState(of string, b api.Backup, want ...tenant.BackupState) api.Backup {
	c.t.Helper()
	eventually(c.t, func() bool {
		c.send(http.MethodGet, of+"/backups/"+b.BackupId, nil, http.StatusOK, &b)
		return b.State == tenant.BackupFailed || slices.Contains(want, b.State)
	}, patience, 20*time.Millisecond, "%s must be %v", b.BackupId, want)
	require.Contains(c.t, want, b.State, "%s %s", deref(b.Reason), deref(b.Message))
	return b
}

func (c *cell) restoreOf(of string, what map[string]any, want api.JobStatus) api.RestoreJob {
	c.t.Helper()
	var j api.RestoreJob
	c.post(of+"/restores", what, http.StatusAccepted, &j)
	eventually(c.t, func() bool {
		c.send(http.MethodGet, of+"/restores/"+j.JobId, nil, http.StatusOK, &j)
		return j.Status == "succeeded" || j.Status == "failed"
	}, patience, 50*time.Millisecond)
	require.Equal(c.t, want, j.Status, deref(j.Message))
	return j
}

// agentPID is the process of a host that faces the network.
func (c *cell) agentPID(server string) int {
	for _, h := range c.sim.Hosts() {
		if h.Name == "prego-"+c.env+"-"+server {
			return h.AgentPID
		}
	}
	return 0
}

// TestABackupLeavesItsHost: made, uploaded while storage and agent are killed, deleted from its
// host, restored; not made and not restored on a full disk; and refused when a bit of it is another. URLs that
// come too late are signed again.
func TestABackupLeavesItsHost(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	urls := startLateURLs(t, s)
	c := newCell(t, options{vars: backupVars(s, map[string]string{"PREGO_BACKUP_ENDPOINT": urls.URL}), set: func(cfg *config.Config) { cfg.Backups.PartBytes = 5 << 20 }})
	c.org("acme", "")
	app := c.sharedFleet(1)
	const site = "alpha.sites.test"
	id := c.tenant("alpha", prego.PlanStarter, nil)
	tn := c.settledTenant(id, tenant.Active)
	of, database := "/v1/tenants/"+id, tn.Allocation.DatabaseName
	require.Nil(t, tn.LastRestorable)
	write := func(text string) {
		t.Helper()
		_, err := c.hostDB(app, database).ExecContext(t.Context(), "REPLACE INTO `"+database+"`.tabToDo (name, description) VALUES ('one', ?)", text)
		require.NoError(t, err)
	}
	holds := func(want string) {
		t.Helper()
		require.Equal(t, want, inMariaDB[string](c, app, database, "SELECT description FROM `"+database+"`.tabToDo"))
		require.Equal(t, "off", c.maintenance(app, site), "the site serves")
	}
	write("first")
	kept := c.noise(app, site, "noise", 21<<20)

	// The storage dies and comes back, and so does the process that uploads.
	b := c.backup(of)
	require.Equal(t, "backup/"+b.BackupId, b.Operation.Id)
	b = c.backupState(of, b, tenant.BackupUploading, tenant.BackupStored)
	s.Kill()
	died := b.State == tenant.BackupUploading
	if pid := c.agentPID(app); pid > 0 {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	time.Sleep(time.Second)
	s.Boot()
	b = c.backupState(of, b, tenant.BackupStored)
	require.True(t, died, "it was killed in the middle")
	require.GreaterOrEqual(t, *b.Parts, 5)
	require.False(t, b.Verified)
	keepHistory(t, c, "backup-stored", b.WorkflowId)

	content, err := os.ReadFile(s.File(deref(b.Object)))
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	require.Equal(t, deref(b.Sha256), hex.EncodeToString(sum[:]))
	require.False(t, bytes.Contains(content, kept[:64]), "nothing can be read in it")
	var m tenant.Manifest
	text, err := os.ReadFile(filepath.Join(filepath.Dir(s.File(deref(b.Object))), "manifest.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &m))
	require.Equal(t, prego.TenantID(id), m.TenantID)
	require.Equal(t, deref(b.PlainSha256), m.PlainSHA256)
	require.NotEmpty(t, m.MAC)
	require.NotContains(t, string(text), "AGE-SECRET-KEY")

	// The host keeps nothing of it.
	snapshots := filepath.Join(c.rootOf(app), wire.BenchDir, "sites", site, wire.SnapshotsDir)
	eventually(t, func() bool {
		left, err := os.ReadDir(snapshots)
		return err == nil && len(left) == 0
	}, patience, 50*time.Millisecond)
	require.Equal(t, 1, c.number(`SELECT count(*) FROM resources WHERE kind = 'backup' AND state = 'created'`))
	tn = c.getTenant(id)
	require.Equal(t, b.BackupId, tn.LastRestorable.BackupId)
	require.False(t, tn.LastRestorable.Verified)

	write("second")
	require.NoError(t, os.Remove(filepath.Join(c.rootOf(app), wire.BenchDir, "sites", site, "private/files/noise")))
	j := c.restoreOf(of, map[string]any{"backup_id": b.BackupId}, "succeeded")
	require.Equal(t, b.BackupId, deref(j.BackupId))
	holds("first")
	back, err := os.ReadFile(filepath.Join(c.rootOf(app), wire.BenchDir, "sites", site, "private/files/noise"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(kept, back))
	eventually(t, func() bool { return c.getTenant(id).LastRestorable.Verified }, patience, 50*time.Millisecond)
	keepHistory(t, c, "restore-of-backup", j.WorkflowId)

	// There is room neither for a dump nor for a restore: both end immediately, with nothing left of them. The backup
	// is as good as it was.
	write("third")
	c.exec(`UPDATE backups SET taken_at = taken_at - interval '1 hour'`) // one an hour may be asked for
	room := smallDisk(t, snapshots, 1<<20)
	full := c.backup(of)
	eventually(t, func() bool {
		c.send(http.MethodGet, of+"/backups/"+full.BackupId, nil, http.StatusOK, &full)
		return full.State == tenant.BackupFailed
	}, patience, 20*time.Millisecond)
	require.Equal(t, string(tenant.ReasonDiskFull), deref(full.Reason), deref(full.Message))
	j = c.restoreOf(of, map[string]any{"backup_id": b.BackupId}, "failed")
	require.Contains(t, deref(j.Message), "part 1: disk_full: ")
	require.Contains(t, deref(j.Message), "The site is as it was")
	holds("third")
	left, err := os.ReadDir(snapshots)
	require.NoError(t, err)
	require.Empty(t, left)
	room()
	require.True(t, c.getTenant(id).LastRestorable.Verified)

	// A URL is used when its time is over, of an upload and of a download: neither goes without.
	expired := func() int {
		return c.number(`SELECT count(*) FROM agent_command_audit WHERE command_kind = 'transfer' AND exit_code = 1 AND stderr_truncated LIKE 'url_expired: 403 %'`)
	}
	urls.late.Store(1)
	late := c.backupState(of, c.backup(of), tenant.BackupStored)
	require.Equal(t, 1, expired())
	urls.late.Store(1)
	c.restoreOf(of, map[string]any{"backup_id": late.BackupId}, "succeeded")
	require.Equal(t, 2, expired())
	holds("third")
	eventually(t, func() bool {
		return c.metric("agentgw", `prego_agentgw_backup_reports_total{status="succeeded"}`) == 2
	}, patience, 50*time.Millisecond, "the agent reports each")
	// Deleted, it is kept for a day, and can be had back.
	c.send(http.MethodDelete, of+"/backups/"+late.BackupId, nil, http.StatusNoContent, nil)
	late = c.backupState(of, late, tenant.BackupDeleting)
	require.WithinDuration(t, time.Now().Add(24*time.Hour), *late.KeptUntil, time.Minute)
	c.send(http.MethodPost, of+"/backups/"+late.BackupId+"/undelete", nil, http.StatusOK, nil)
	c.restoreOf(of, map[string]any{"backup_id": late.BackupId}, "succeeded")
	c.send(http.MethodDelete, of+"/backups/"+late.BackupId, nil, http.StatusNoContent, nil)
	c.exec(keptEnough)
	c.backupState(of, late, tenant.BackupDeleted)

	// A bit of it is another, in the storage: nothing of the site is touched.
	content[len(content)/3] ^= 8
	require.NoError(t, os.WriteFile(s.File(deref(b.Object)), content, 0o644))
	j = c.restoreOf(of, map[string]any{"backup_id": b.BackupId}, "failed")
	require.Contains(t, deref(j.Message), "digest_mismatch")
	require.Contains(t, deref(j.Message), "The site is as it was")
	holds("third")
	c.send(http.MethodGet, of+"/backups/"+b.BackupId, nil, http.StatusOK, &b)
	require.Contains(t, deref(b.VerifyMessage), "digest_mismatch")

	// Held, it is not deleted; released, it is deleted permanently.
	c.send(http.MethodPut, of+"/backups/"+b.BackupId+"/hold", map[string]any{"reason": "a case"}, http.StatusOK, &b)
	require.Equal(t, "alice", deref(b.HeldBy))
	c.send(http.MethodDelete, of+"/backups/"+b.BackupId, nil, http.StatusConflict, nil)
	c.send(http.MethodDelete, of+"/backups/"+b.BackupId+"/hold", nil, http.StatusOK, nil)
	c.send(http.MethodDelete, of+"/backups/"+b.BackupId, nil, http.StatusNoContent, nil)
	c.exec(keptEnough)
	b = c.backupState(of, b, tenant.BackupDeleted)
	keepHistory(t, c, "backup-deleted", tenant.BackupDeleteWorkflowID(prego.BackupID(b.BackupId)))
	require.NoFileExists(t, s.File(deref(b.Object)))
	require.Equal(t, 0, c.number(`SELECT count(*) FROM resources WHERE kind = 'backup' AND state <> 'released'`))
	require.Equal(t, 0, c.number(`SELECT count(*) FROM backups WHERE sealed_identity IS NOT NULL AND state <> 'failed'`))
	require.Nil(t, c.getTenant(id).LastRestorable)

	// No secret is anywhere that is read by many.
	require.Equal(t, 0, c.number(`SELECT count(*) FROM agent_command_audit WHERE args_redacted || COALESCE(stdout_truncated, '') || COALESCE(stderr_truncated, '') LIKE '%AGE-SECRET%'
		OR args_redacted || COALESCE(stdout_truncated, '') || COALESCE(stderr_truncated, '') LIKE '%X-Amz-Signature%'`))
}

// keptEnough ends the time for which deleted backups are kept.
const keptEnough = `UPDATE backups SET kept_until = now() WHERE kept_until IS NOT NULL`

// TestTheLastBackupIsElsewhere: scheduled ones come by themselves; a tenant that ends is not
// erased before its last one is stored, and that one outlives it.
func TestTheLastBackupIsElsewhere(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	crash := filepath.Join(t.TempDir(), "crash")
	c := newCell(t, options{vars: backupVars(s, map[string]string{"PREGO_TEST_CRASH": crash})})
	c.org("acme", "")
	app := c.sharedFleet(1)
	id := c.tenant("beta", prego.PlanStarter, nil)
	c.settledTenant(id, tenant.Active)
	of := "/v1/tenants/" + id
	c.noise(app, "beta.sites.test", "noise", 17<<20)

	// Any process may die at any step.
	eventually(t, func() bool { return c.number(`SELECT count(*) FROM backup_schedules WHERE next_at > now()`) == 1 }, patience, 50*time.Millisecond)
	c.exec(`UPDATE backup_schedules SET next_at = now()`)
	for _, point := range []string{"stored-backup/sealed", "stored-backup/uploaded", "stored-backup/completed", "stored-backup/manifest"} {
		require.NoError(t, os.WriteFile(crash, []byte(point), 0o600))
		eventually(t, func() bool {
			_, err := os.Stat(crash + ".hit")
			return err == nil
		}, patience, 50*time.Millisecond, point)
		require.NoError(t, os.Remove(crash+".hit"))
		c.kill("worker")
		c.start("worker")
	}
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM backups WHERE state = 'stored' AND kind = 'scheduled'`) == 1
	}, patience, 50*time.Millisecond)
	require.Equal(t, 1, c.number(`SELECT count(*) FROM backups`))

	// Without storage nothing is erased.
	s.Kill()
	c.ask(id, "cancel")
	c.settledTenant(id, tenant.GracePeriod)
	c.exec(`UPDATE tenants SET deadline_at = now()`)
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM backups WHERE kind = 'final' AND state IN ('uploading', 'failed')`) > 0
	}, patience, 50*time.Millisecond)
	require.DirExists(t, filepath.Join(c.rootOf(app), wire.BenchDir, "sites/beta.sites.test"))
	s.Boot()
	c.settledTenant(id, tenant.Terminated)
	c.exec(`UPDATE tenants SET deadline_at = now()`)
	eventually(t, func() bool { return c.getTenant(id).ConvergedState == string(tenant.DataPurged) }, 2*patience, 100*time.Millisecond)
	require.NoDirExists(t, filepath.Join(c.rootOf(app), wire.BenchDir, "sites/beta.sites.test"))
	var page api.BackupPage
	c.send(http.MethodGet, of+"/backups", nil, http.StatusOK, &page)
	final := 0
	for _, b := range page.Backups {
		if b.Kind == tenant.BackupFinal && b.State == tenant.BackupStored {
			final++
			require.FileExists(t, s.File(deref(b.Object)))
			require.WithinDuration(t, time.Now().Add(90*24*time.Hour), *b.ExpiresAt, time.Hour)
		}
	}
	require.Equal(t, 1, final)
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM backups WHERE kind <> 'final' AND state <> 'deleted'`) == 0
	}, patience, 50*time.Millisecond, "the others go with the tenant")
	objects := 0
	require.NoError(t, filepath.WalkDir(filepath.Join(s.Dir, s.Bucket), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(path, "/tenants/") {
			objects++
		}
		return err
	}))
	require.Equal(t, 2, objects, "the last backup and its manifest")
}
