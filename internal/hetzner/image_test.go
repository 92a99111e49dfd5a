package hetzner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// off makes a server and powers it off, as a builder does by itself.
func (c *cloud) off() server.Handle {
	c.t.Helper()
	h := c.server(nil)
	_, err := c.AwaitRunning(c.t.Context(), h, func(string) {})
	require.NoError(c.t, err)
	c.call("POST", "/servers/"+h.ProviderServerID+"/actions/poweroff", nil)
	require.Eventually(c.t, func() bool {
		now, err := c.GetServer(c.t.Context(), prego.ServerID(h.ProviderServerID))
		return err == nil && now.Status == "off"
	}, 10*time.Second, 5*time.Millisecond)
	return h
}

func snapshotOf(h server.Handle) server.SnapshotParams {
	return server.SnapshotParams{Environment: "test", ImageID: "img-1", ProviderServerID: h.ProviderServerID, Description: "prego-test-img-1", Labels: map[string]string{server.LabelBase: "debian-12"}}
}

func (c *cloud) snapshots() (n int) {
	c.t.Helper()
	for _, e := range c.Ledger(true) {
		if e.Kind == "image" {
			n++
		}
	}
	return n
}

func TestSnapshotIsTakenOnce(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	h := c.off()
	first, err := c.EnsureSnapshot(t.Context(), snapshotOf(h))
	require.NoError(t, err)
	require.EqualValues(t, 160, first.DiskGB)
	require.Positive(t, first.SizeGB)
	again, err := c.EnsureSnapshot(t.Context(), snapshotOf(h))
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.Equal(t, 1, c.snapshots())

	owned, err := c.ListOwned(t.Context())
	require.NoError(t, err)
	var found []server.OwnedResource
	for _, o := range owned {
		if o.Kind == server.ResourceImage {
			found = append(found, o)
		}
	}
	require.Len(t, found, 1)
	require.Equal(t, "prego-test-img-1", found[0].Name)
	require.Equal(t, map[string]string{server.LabelManagedBy: server.ManagedByPrego, server.LabelEnvironment: "test", server.LabelImageID: "img-1", server.LabelBase: "debian-12"}, found[0].Labels)

	made, err := c.CreateServer(t.Context(), order(func(o *server.CreateParams) { o.ServerID, o.Image = "app-9", first.ProviderImageID }))
	require.NoError(t, err, "a snapshot is named by its id")
	require.NoError(t, c.DestroyServer(t.Context(), prego.ServerID(made.ProviderServerID)))

	require.NoError(t, c.DeleteSnapshots(t.Context(), "img-1"))
	require.NoError(t, c.DeleteSnapshots(t.Context(), "img-1"), "absent is success")
	require.Zero(t, c.snapshots())
	_, err = c.CreateServer(t.Context(), order(func(o *server.CreateParams) { o.ServerID, o.Image = "app-10", first.ProviderImageID }))
	_ = requireClass(t, err, server.InfraPermanent, server.InfraImageGone)
}

func TestSnapshotWhoseAnswerWasLostIsFound(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"commit_then_respond", "commit_then_reset"} {
		c := newCloud(t)
		h := c.off()
		c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers/*/actions/create_image", Action: action, Status: 504, Code: "timeout", Times: 1})
		_, err := c.EnsureSnapshot(t.Context(), snapshotOf(h))
		require.NoError(t, err, action)
		require.Equal(t, 1, c.snapshots(), action)
	}
}

func TestSnapshotOfAServerThatRunsOrFails(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	running := c.server(nil)
	_, err := c.EnsureSnapshot(t.Context(), snapshotOf(running))
	_ = requireClass(t, err, server.InfraRetry, "locked")
	require.NoError(t, c.DestroyServer(t.Context(), prego.ServerID(running.ProviderServerID)))

	h := c.off()
	c.inject(sim.Fault{Kind: "create_image_fails", Times: 1})
	_, err = c.EnsureSnapshot(t.Context(), snapshotOf(h))
	_ = requireClass(t, err, server.InfraRetry, "action_failed")
	require.Equal(t, 1, c.snapshots(), "a failed snapshot is billed")
	_, err = c.EnsureSnapshot(t.Context(), snapshotOf(h))
	require.NoError(t, err, "and is not taken for the image")
	require.NoError(t, c.DeleteSnapshots(t.Context(), "img-1"))
	require.Zero(t, c.snapshots())
}

func TestCatalogIsRead(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	gone := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	c.Retire("cx33", "nbg1", gone)
	c.SetStock("ccx13", "sin", false)
	got, err := c.Catalog(t.Context())
	require.NoError(t, err)
	require.Equal(t, "EUR", got.Currency)
	require.Len(t, got.Locations, 6)
	require.Equal(t, server.Price{Net: "0.5000", Gross: "0.5950"}, got.IPv4["sin"].Monthly)
	require.Equal(t, server.Price{Net: "0.0440", Gross: "0.0524"}, got.VolumeGBMonth)
	require.Equal(t, server.Price{Net: "0.0110", Gross: "0.0131"}, got.ImageGBMonth)
	cx33, ok := got.Type("cx33")
	require.True(t, ok)
	require.Equal(t, []any{4, 8.0, 80, "shared", "x86"}, []any{cx33.Cores, cx33.MemoryGB, cx33.DiskGB, cx33.CPU, cx33.Architecture})
	nbg, ok := cx33.AtLocation("nbg1")
	require.True(t, ok)
	require.Equal(t, gone, *nbg.UnavailableAfter)
	require.True(t, nbg.Retired(gone))
	require.False(t, nbg.Retired(gone.Add(-time.Second)))
	require.Equal(t, "8.4900", nbg.Monthly.Net)
	_, sold := cx33.AtLocation("sin")
	require.False(t, sold)
	ccx13, _ := got.Type("ccx13")
	sin, _ := ccx13.AtLocation("sin")
	require.False(t, sin.Available)

	for _, path := range []string{"/locations", "/server_types", "/images", "/pricing"} {
		away := newCloud(t)
		away.inject(sim.Fault{Kind: "http", Method: "GET", Path: "/v1" + path, Action: "respond", Status: 500, Code: "server_error"})
		_, err := away.Catalog(t.Context())
		_ = requireClass(t, err, server.InfraRetry, "server_error")
	}
}
