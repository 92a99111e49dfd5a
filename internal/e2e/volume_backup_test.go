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
	"github.com/prego/prego/internal/s3test"
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
	require.Eventually(t, func() bool {
		b.c.send(http.MethodGet, b.of+"/backups/"+out.BackupId, nil, http.StatusOK, &out)
		return out.State == tenant.BackupStored || out.State == tenant.BackupFailed
	}, patience, 20*time.Millisecond)
	require.Equal(t, tenant.BackupStored, out.State, "%s %s", deref(out.Reason), deref(out.Message))
	require.False(t, out.Verified)
	require.Positive(t, *out.Entries)
	var v api.Volume
	b.c.send(http.MethodGet, b.of, nil, http.StatusOK, &v)
	require.Equal(t, out.BackupId, v.LastRestorable.BackupId)
	return out
}

// restore restores the volume, while the worker dies at a point, if any, and says why if it fails.
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
	require.Eventually(t, func() bool {
		b.c.send(http.MethodGet, b.of+"/restores/"+r.RestoreId, nil, http.StatusOK, &r)
		return r.Status == workload.RestoreSucceeded || r.Status == workload.RestoreFailed
	}, patience, 50*time.Millisecond)
	require.Equal(t, want, r.Status, "%s %s", deref(r.Reason), deref(r.Message))
	return prego.Reason(deref(r.Reason))
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
