package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// volumeBackups are the backups of one volume.
type volumeBackups struct {
	c     *cell
	store *s3test.Server
	of    string // its path
	crash string // the file that names the point at which the worker dies
}

// dir is what containers have of a volume, wherever it is: a directory stands for it.
func (b *volumeBackups) dir(t *testing.T, volume string) string {
	t.Helper()
	var provider string
	b.c.query(&provider, `SELECT provider_id FROM volumes WHERE volume_id = $1`, volume)
	return filepath.Join(b.c.dir, "sim", "volumes", provider, filepath.Base(wire.VolumeDir("")))
}

func (b *volumeBackups) write(t *testing.T, volume, text string) {
	t.Helper()
	dir := b.dir(t, volume)
	require.NoError(t, os.MkdirAll(dir+"/deep", 0o755))
	require.NoError(t, os.WriteFile(dir+"/deep/file", []byte(text), 0o640))
	require.NoError(t, os.WriteFile(dir+"/"+text, []byte(strings.Repeat(text, 1000)), 0o600))
}

func (b *volumeBackups) read(t *testing.T, volume string) string {
	t.Helper()
	text, err := os.ReadFile(b.dir(t, volume) + "/deep/file")
	require.NoError(t, err)
	return string(text)
}

// backup backs the volume up.
func (b *volumeBackups) backup(t *testing.T) (out api.VolumeBackup) {
	t.Helper()
	b.c.post(b.of+"/backups", nil, http.StatusAccepted, &out)
	eventually(t, func() bool {
		b.c.send(http.MethodGet, b.of+"/backups/"+out.BackupId, nil, http.StatusOK, &out)
		return out.State == tenant.BackupStored || out.State == tenant.BackupFailed
	}, patience, 20*time.Millisecond)
	require.Equal(t, tenant.BackupStored, out.State, "%s %s", deref(out.Reason), deref(out.Message))
	require.Positive(t, *out.Entries)
	var v api.Volume
	b.c.send(http.MethodGet, b.of, nil, http.StatusOK, &v)
	require.Equal(t, out.BackupId, v.LastRestorable.BackupId)
	return out
}

// restore restores the volume, with a death of the worker at a point, if any, and returns why if it fails.
func (b *volumeBackups) restore(t *testing.T, backup string, want workload.RestoreStatus, point string) prego.Reason {
	t.Helper()
	var r api.VolumeRestore
	if point != "" {
		require.NoError(t, os.WriteFile(b.crash, []byte(point), 0o600))
	}
	b.c.post(b.of+"/restores", map[string]any{"backup_id": backup}, http.StatusAccepted, &r)
	if point != "" {
		b.c.killedAt(b.crash, point)
	}
	eventually(t, func() bool {
		b.c.send(http.MethodGet, b.of+"/restores/"+r.RestoreId, nil, http.StatusOK, &r)
		return r.Status == workload.RestoreSucceeded || r.Status == workload.RestoreFailed
	}, patience, 50*time.Millisecond)
	require.Equal(t, want, r.Status, "%s %s", deref(r.Reason), deref(r.Message))
	if point == "" || want == workload.RestoreSucceeded {
		keepHistory(t, b.c, "volume-restore-"+string(want), workload.VolumeRestoreWorkflowID(r.RestoreId))
	}
	return prego.Reason(deref(r.Reason))
}

// drilledWhoeverDies backs the volume up for the first time, whereupon the backup is drilled by schedule, and again on
// request in each further round, with deaths on the way.
func (b *volumeBackups) drilledWhoeverDies(t *testing.T) (first api.VolumeBackup) {
	t.Helper()
	m := &mortals{cell: b.c, crash: b.crash, s3: b.store}
	points := []string{"drill/start", "stored-restore/downloaded", "stored-restore/opened", "drill/restored", "drill/erased"}
	for i, round := range rounds(t, 1, points, []string{"worker", "agent", "s3"}) {
		m.play(round, func() {
			if i == 0 {
				first = b.backup(t)
				return
			}
			b.c.post(b.of+"/drills", nil, http.StatusCreated, nil)
		})
		d := b.drilled(t, tenant.DrillPassed)
		require.Equal(t, []string{"schedule", "operator", "operator"}[i], d.CreatedBy)
		require.Equal(t, []any{first.BackupId, *first.Entries}, []any{d.BackupId, *d.Entries})
		require.EqualValues(t, len("first")*1001, *d.Bytes)
		b.c.send(http.MethodGet, b.of+"/backups/"+first.BackupId, nil, http.StatusOK, &first)
		require.True(t, first.Verified)
		keepHistory(t, b.c, "drill-of-volume-passed", d.WorkflowId)
	}
	return first
}

// drilledInVain drills the volume's newest backup, which is damaged.
func (b *volumeBackups) drilledInVain(t *testing.T) {
	t.Helper()
	b.c.post(b.of+"/drills", nil, http.StatusCreated, nil)
	d := b.drilled(t, tenant.DrillFailed)
	require.Equal(t, string(tenant.ReasonDigest), deref(d.Reason), deref(d.Message))
	var got api.VolumeBackup
	b.c.send(http.MethodGet, b.of+"/backups/"+d.BackupId, nil, http.StatusOK, &got)
	require.False(t, got.Verified)
	require.Contains(t, deref(got.VerifyMessage), string(tenant.ReasonDigest))
	require.Equal(t, 1, b.c.number(`SELECT count(*) FROM volume_backup_schedules WHERE drill_failed`))
	keepHistory(t, b.c, "drill-of-volume-failed", d.WorkflowId)
}

// drilled waits until the newest drill is over and thrown away: nothing of it is on any host.
func (b *volumeBackups) drilled(t *testing.T, want tenant.DrillState) (d api.VolumeDrill) {
	t.Helper()
	eventually(t, func() bool {
		var all api.VolumeDrillPage
		b.c.send(http.MethodGet, b.of+"/drills", nil, http.StatusOK, &all)
		if len(all.Drills) > 0 {
			d = all.Drills[0]
		}
		return d.State.Ended() && b.c.number(`SELECT count(*) FROM drills WHERE cleared_at IS NULL`) == 0
	}, patience, 50*time.Millisecond)
	require.Equal(t, want, d.State, "%s %s", deref(d.Reason), deref(d.Message))
	for _, h := range b.c.sim.Hosts() {
		left, err := filepath.Glob(filepath.Join(h.Root, wire.DevicesDir, "*", "*"+wire.DrillPrefix+"*"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
	return d
}

// flip changes a bit of an object, and back.
func (b *volumeBackups) flip(t *testing.T, object string) {
	t.Helper()
	name := b.store.File(object)
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	text[len(text)/2] ^= 1
	require.NoError(t, os.WriteFile(name, text, 0o600))
}
