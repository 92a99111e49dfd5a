package sim_test

import (
	"testing"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/need"
)

// TestTheLedgerFollowsPrices: what changes a price changes the ledger, which leak checks and
// costs are counted by.
func TestTheLedgerFollowsPrices(t *testing.T) {
	t.Parallel()
	s := newSim(t, nil)
	c := client(s, need.HTTP.Transport)
	ctx := t.Context()
	monthly := func(kind string) float64 {
		t.Helper()
		sum := 0.0
		for _, e := range s.Ledger(true) {
			if e.Kind == kind {
				sum += e.Monthly
			}
		}
		return sum
	}
	act := func(a *hcloud.Action, _ *hcloud.Response, err error) {
		t.Helper()
		require.NoError(t, err)
		require.NoError(t, c.Action.WaitFor(ctx, a))
	}
	made, _, err := c.Server.Create(ctx, hcloud.ServerCreateOpts{
		Name: "web", ServerType: &hcloud.ServerType{Name: "cx23"}, Image: &hcloud.Image{Name: "debian-12"}, Location: &hcloud.Location{Name: "fsn1"}, StartAfterCreate: new(false),
	})
	require.NoError(t, err)
	require.NoError(t, c.Action.WaitFor(ctx, made.Action))
	require.InDelta(t, 5.49, monthly("server"), 0.001)
	act(c.Server.EnableBackup(ctx, made.Server, ""))
	require.InDelta(t, 5.49*1.2, monthly("server"), 0.001, "backups cost a fifth")
	act(c.Server.ChangeType(ctx, made.Server, hcloud.ServerChangeTypeOpts{ServerType: &hcloud.ServerType{Name: "cx33"}}))
	require.InDelta(t, 8.49*1.2, monthly("server"), 0.001)
	backup, _, err := c.Server.CreateImage(ctx, made.Server, &hcloud.ServerCreateImageOpts{Type: hcloud.ImageTypeBackup})
	require.NoError(t, err)
	require.Zero(t, monthly("image"), "a backup is paid with the server")
	_, _, err = c.Image.Update(ctx, backup.Image, hcloud.ImageUpdateOpts{Type: hcloud.ImageTypeSnapshot})
	require.NoError(t, err)
	require.Positive(t, monthly("image"), "a snapshot is not")
	act(c.Server.DisableBackup(ctx, made.Server))
	require.InDelta(t, 8.49, monthly("server"), 0.001)

	v, _, err := c.Volume.Create(ctx, hcloud.VolumeCreateOpts{Name: "v", Size: 10, Location: &hcloud.Location{Name: "fsn1"}})
	require.NoError(t, err)
	act(c.Volume.Resize(ctx, v.Volume, 20))
	require.InDelta(t, 0.88, monthly("volume"), 0.001)
	for _, typ := range []hcloud.FloatingIPType{hcloud.FloatingIPTypeIPv4, hcloud.FloatingIPTypeIPv6} {
		_, _, err := c.FloatingIP.Create(ctx, hcloud.FloatingIPCreateOpts{Type: typ, HomeLocation: &hcloud.Location{Name: "fsn1"}})
		require.NoError(t, err)
	}
	require.InDelta(t, 4.0, monthly("floating_ip"), 0.001)
}
