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
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// TestAServerIsResized: a server with enough disk gets another type and comes back, although the worker dies on the
// way; another one stays as it is, and on. Then it gets its security updates, again with a dying worker.
func TestAServerIsResizedAndPatched(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "crash")
	c := newCell(t, options{vars: groupVars(map[string]string{"PREGO_TEST_CRASH": file})})
	fleet := c.id("n")
	c.fleet(fleet, prego.RoleApp, nil, map[string]any{"region": "eu", "spec": map[string]any{"server_type": "cx43"}})
	c.awaitAction(fleet, c.act(fleet, "CLUSTER_SCALE_OUT", map[string]any{"count": 1}).Seq, "succeeded")
	eventually(t, func() bool { return c.number(`SELECT count(*) FROM servers WHERE agent_status = 'connected'`) == 1 }, patience, 50*time.Millisecond)
	var id, before, after string
	c.query(&id, `SELECT server_id FROM servers WHERE status = 'active'`)
	resize := func(serverType string) {
		t.Helper()
		c.query(&before, `SELECT agent_boot_id FROM servers WHERE server_id = $1`, id)
		c.post("/v1/servers/"+id+"/resize", map[string]any{"server_type": serverType}, http.StatusAccepted, nil)
	}
	open := func() int {
		return c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND cordoned_at IS NULL AND status = 'active' AND server_type = 'cx53'`, id)
	}
	require.NoError(t, os.WriteFile(file, []byte("maintenance/resized"), 0o600))
	began := time.Now()
	resize("cx53")
	eventually(t, func() bool {
		_, err := os.Stat(file + ".hit")
		return err == nil
	}, patience, 50*time.Millisecond)
	require.NoError(t, os.Remove(file+".hit"))
	c.kill("worker")
	c.start("worker")
	done := c.drained(id)
	require.Contains(t, deref(done.Message), "it is a cx53 now, and was away for")
	t.Logf("%s; %s since it was asked for", deref(done.Message), time.Since(began).Round(time.Second))
	c.query(&after, `SELECT agent_boot_id FROM servers WHERE server_id = $1`, id)
	require.NotEqual(t, before, after)
	require.Equal(t, 1, open())
	apt := c.standInForApt(id)
	keepHistory(t, c, "maintenance-resize", server.MaintenanceWorkflowID(prego.ServerID(id)))

	resize("cx23")
	refused := c.awaitMaintenance(id, "refused", func(d api.Maintenance) bool { return d.Status == "failed" })
	require.Equal(t, "resize_refused", deref(refused.Reason))
	require.Contains(t, deref(refused.Message), "disks don't shrink")
	c.query(&after, `SELECT agent_boot_id FROM servers WHERE server_id = $1`, id)
	require.Equal(t, before, after, "it was not switched off for that")
	require.Equal(t, 1, open())

	// Its agent reports missing updates by itself.
	var srv api.Server
	eventually(t, func() bool {
		c.send(http.MethodGet, "/v1/servers/"+id, nil, http.StatusOK, &srv)
		return srv.Patches != nil && srv.Patches.State == server.PatchPending
	}, patience, 100*time.Millisecond)
	from := "3.0.15-1~deb12u1"
	require.Equal(t, []api.PackageUpdate{{Name: "openssl", From: &from, To: "3.0.16-1~deb12u1"}}, srv.Patches.Packages)
	var page api.ServerPage
	c.send(http.MethodGet, "/v1/servers?patch_state=current,unknown,reboot", nil, http.StatusOK, &page)
	require.Empty(t, page.Servers)

	patch := func(status, reason string) api.Maintenance {
		t.Helper()
		c.query(&before, `SELECT agent_boot_id FROM servers WHERE server_id = $1`, id)
		c.post("/v1/servers/"+id+"/patch", nil, http.StatusAccepted, nil)
		d := c.awaitMaintenance(id, status, func(d api.Maintenance) bool { return server.MaintenanceStatus(d.Status).Ended() })
		require.Equal(t, []string{status, reason}, []string{string(d.Status), deref(d.Reason)}, deref(d.Message))
		c.query(&after, `SELECT agent_boot_id FROM servers WHERE server_id = $1`, id)
		return d
	}
	apt.set("mirror-down")
	require.Contains(t, deref(patch("failed", "patch_check_failed").Message), "Failed to fetch")
	require.Equal(t, 1, open(), "nothing was begun")
	apt.unset("mirror-down")
	apt.set("broken")
	require.Contains(t, deref(patch("failed", "patch_failed").Message), "returned an error code")
	require.Equal(t, 1, c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND cordoned_at IS NOT NULL AND cordon_reason LIKE 'patch_failed: %'`, id))
	apt.unset("broken")
	c.post("/v1/servers/"+id+"/uncordon", nil, http.StatusOK, nil)

	apt.set("kernel")
	require.NoError(t, os.WriteFile(file, []byte("patch/applied"), 0o600))
	began = time.Now()
	c.query(&before, `SELECT agent_boot_id FROM servers WHERE server_id = $1`, id)
	was := before
	c.post("/v1/servers/"+id+"/patch", nil, http.StatusAccepted, nil)
	eventually(t, func() bool {
		_, err := os.Stat(file + ".hit")
		return err == nil
	}, patience, 50*time.Millisecond)
	require.NoError(t, os.Remove(file+".hit"))
	c.kill("worker")
	c.start("worker")
	done = c.drained(id)
	require.Contains(t, deref(done.Message), "openssl 3.0.16-1~deb12u1 installed; rebooted (linux-image-amd64), and away for")
	require.Equal(t, 1, done.Patched.Installed, "the result of the first time, although the step was repeated")
	t.Logf("%s; %s since it was asked for", deref(done.Message), time.Since(began).Round(time.Second))
	c.query(&after, `SELECT agent_boot_id FROM servers WHERE server_id = $1`, id)
	require.NotEqual(t, was, after)
	require.Equal(t, 1, open())
	require.Equal(t, 1, strings.Count(apt.read("installed"), "openssl"))
	keepHistory(t, c, "maintenance-patch", server.MaintenanceWorkflowID(prego.ServerID(id)))
	apt.unset("kernel")
	require.Equal(t, "nothing to install, and no reboot is needed", deref(patch("done", "").Message))
	require.Equal(t, before, after, "no server is rebooted needlessly")

	// Its fleet's own window does the same by itself, and is remembered.
	c.exec(`UPDATE server_maintenances SET created_at = created_at - interval '1 hour'`)
	apt.lacks("openssl")
	eventually(t, func() bool {
		c.send(http.MethodGet, "/v1/servers/"+id, nil, http.StatusOK, &srv)
		return srv.Patches.State == server.PatchPending
	}, patience, 100*time.Millisecond)
	var f api.Fleet
	c.send(http.MethodPatch, "/v1/fleets/"+fleet, map[string]any{"patch_window": map[string]any{"schedule": "often"}}, http.StatusUnprocessableEntity, nil)
	c.send(http.MethodPatch, "/v1/fleets/"+fleet, map[string]any{"patch_window": map[string]any{"schedule": "* * * * *", "seconds": 600}}, http.StatusOK, &f)
	require.Equal(t, &server.FleetPatchWindow{Schedule: "* * * * *", Seconds: 600}, f.PatchWindow)
	var waves api.PatchWavePage
	eventually(t, func() bool {
		c.send(http.MethodGet, "/v1/patch-waves?requested_by=patch%20window", nil, http.StatusOK, &waves)
		return len(waves.PatchWaves) > 0 && waves.PatchWaves[0].FinishedAt != nil
	}, patience, 100*time.Millisecond)
	require.Len(t, waves.PatchWaves, 1)
	var w api.PatchWave
	c.send(http.MethodGet, "/v1/patch-waves/"+waves.PatchWaves[0].WaveId, nil, http.StatusOK, &w)
	require.Equal(t, []any{[]string{fleet}, 1, 1, 1}, []any{w.Fleets, w.Servers, w.Done, w.Installed})
	require.Contains(t, deref((*w.Members)[0].Message), "openssl 3.0.16-1~deb12u1 installed; no reboot was needed")
	require.Contains(t, []string{(*w.Timeline)[0].Step, (*w.Timeline)[1].Step}, "patched")
	c.send(http.MethodGet, "/v1/patch-waves/none", nil, http.StatusNotFound, nil)
}

// standIn is apt on a simulated host.
type standIn struct {
	t    testing.TB
	root string
}

// standInForApt gives a host an apt that has one update (agent/rooted/testdata/apt-get).
func (c *cell) standInForApt(serverID string) standIn {
	c.t.Helper()
	a := standIn{c.t, c.rootOf(serverID)}
	text, err := os.ReadFile(filepath.Join(repo, "agent", "rooted", "testdata", "apt-get"))
	require.NoError(c.t, err)
	for name, text := range map[string]string{
		"usr/bin/apt-get": string(text), "usr/bin/dpkg": "#!/bin/sh\nexit 0\n",
	} {
		require.NoError(c.t, os.MkdirAll(filepath.Dir(filepath.Join(a.root, name)), 0o755))
		require.NoError(c.t, os.WriteFile(filepath.Join(a.root, name), []byte(text), 0o755))
	}
	a.lacks("openssl")
	return a
}

// lacks has an update of a package missing.
func (a standIn) lacks(name string) {
	line := "Inst " + name + " [3.0.15-1~deb12u1] (3.0.16-1~deb12u1 Debian-Security:12/stable-security [amd64]) []\n"
	require.NoError(a.t, os.WriteFile(filepath.Join(a.root, "pending"), []byte(line), 0o600))
	status := filepath.Join(a.root, "var/lib/dpkg/status")
	require.NoError(a.t, os.MkdirAll(filepath.Dir(status), 0o755))
	require.NoError(a.t, os.WriteFile(status, []byte(time.Now().String()), 0o600))
}

func (a standIn) set(name string) {
	require.NoError(a.t, os.WriteFile(filepath.Join(a.root, name), nil, 0o600))
}
func (a standIn) unset(name string) { require.NoError(a.t, os.Remove(filepath.Join(a.root, name))) }
func (a standIn) read(name string) string {
	b, err := os.ReadFile(filepath.Join(a.root, name))
	require.NoError(a.t, err)
	return string(b)
}
