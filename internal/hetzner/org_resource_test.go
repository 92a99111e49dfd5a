package hetzner_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

var address = server.FloatingIPParams{Environment: "test", OrgID: "acme", Name: "prego-test-ip4-1", Location: "fsn1"}

// TestAnAddressIsOnOneServerAtATime, moves, and outlives its server.
func TestAnAddressIsOnOneServerAtATime(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	one, two := c.server(nil), c.server(func(p *server.CreateParams) { p.ServerID = "app-2" })
	id, _, err := c.EnsureFloatingIP(t.Context(), address)
	require.NoError(t, err)
	at := func() any {
		return c.call("GET", "/floating_ips/"+id, nil)["floating_ip"].(map[string]any)["server"]
	}
	for _, srv := range []server.Handle{one, one, two} {
		require.NoError(t, c.AssignFloatingIP(t.Context(), id, prego.ServerID(srv.ProviderServerID)))
		require.Equal(t, srv.ProviderServerID, fmt.Sprintf("%.0f", at()))
	}
	require.NoError(t, c.DestroyServer(t.Context(), prego.ServerID(two.ProviderServerID)))
	require.Nil(t, at(), "it is there, on no server")
	require.NoError(t, c.AssignFloatingIP(t.Context(), id, prego.ServerID(one.ProviderServerID)))
	for range 2 {
		require.NoError(t, c.DeleteResource(t.Context(), server.ResourceFloatingIP, prego.ServerID(id)))
	}
	var ie *server.InfraError
	require.True(t, errors.As(c.AssignFloatingIP(t.Context(), id, prego.ServerID(one.ProviderServerID)), &ie))
	require.Equal(t, server.InfraNotFound, ie.Class)
}

// TestAnAddressStaysWithoutAServer: it is created once, found by its name, kept, and deleted permanently.
func TestAnAddressStaysWithoutAServer(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	id, ip, err := c.EnsureFloatingIP(t.Context(), address)
	require.NoError(t, err)
	require.Regexp(t, `^127\.`, ip)
	again, same, err := c.EnsureFloatingIP(t.Context(), address)
	require.NoError(t, err)
	require.Equal(t, []string{id, ip}, []string{again, same})
	found, err := c.FindNamed(t.Context(), server.ResourceFloatingIP, address.Name)
	require.NoError(t, err)
	require.Equal(t, id, found)
	owned, err := c.ListOwned(t.Context())
	require.NoError(t, err)
	require.Len(t, owned, 1)
	require.Equal(t, "acme", owned[0].Labels[server.LabelOrgID])
	for range 2 {
		require.NoError(t, c.DeleteResource(t.Context(), server.ResourceFloatingIP, prego.ServerID(id)))
	}
	found, err = c.FindNamed(t.Context(), server.ResourceFloatingIP, address.Name)
	require.NoError(t, err)
	require.Empty(t, found)
	require.Empty(t, c.Ledger(true))
}

func TestAFullAccountIsCapacity(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/floating_ips", Action: "respond", Status: 403, Code: "resource_limit_exceeded", Message: "floating IP limit exceeded", Times: 1})
	_, _, err := c.EnsureFloatingIP(t.Context(), address)
	var ie *server.InfraError
	require.True(t, errors.As(err, &ie))
	require.Equal(t, server.InfraQuota, ie.Class)
}

// TestWhatIsProtectedIsNotDeleted, nor is a protected volume detached, until its protection is lifted.
func TestWhatIsProtectedIsNotDeleted(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	srv := c.server(nil)
	volume, err := c.EnsureVolume(t.Context(), server.VolumeParams{
		Environment: "test", OrgID: "acme", Name: "prego-test-vol-1", Location: srv.Location, GB: 10,
	})
	require.NoError(t, err)
	require.NoError(t, c.AttachVolume(t.Context(), prego.VolumeID(volume), prego.ServerID(srv.ProviderServerID)))
	things := map[server.ResourceKind]string{server.ResourceServer: srv.ProviderServerID, server.ResourceVolume: volume}
	for kind, id := range things {
		for range 2 {
			require.NoError(t, c.Protect(t.Context(), kind, id, true))
		}
		var ie *server.InfraError
		require.ErrorAs(t, c.DeleteResource(t.Context(), kind, prego.ServerID(id)), &ie)
		require.Equal(t, server.InfraProtected, ie.Code)
	}
	owned, err := c.ListOwned(t.Context())
	require.NoError(t, err)
	for _, o := range owned {
		_, ours := things[o.Kind]
		require.Equal(t, ours, o.Protected, o.Kind)
		require.True(t, o.Attached || o.Kind != server.ResourceVolume, "still attached")
	}
	for kind, id := range things {
		require.NoError(t, c.Protect(t.Context(), kind, id, false))
		require.NoError(t, c.DeleteResource(t.Context(), kind, prego.ServerID(id)))
	}
	require.Error(t, c.Protect(t.Context(), server.ResourceFirewall, "1", true))
	require.Empty(t, c.Ledger(true))
}

func TestAVolumeIsOnOneServerAtATime(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	one, two := c.server(nil), c.server(func(p *server.CreateParams) { p.ServerID = "app-2" })
	v, err := c.EnsureVolume(t.Context(), server.VolumeParams{Environment: "test", OrgID: "acme", Name: "prego-test-vol-1", Location: one.Location, GB: 10})
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, c.AttachVolume(t.Context(), prego.VolumeID(v), prego.ServerID(one.ProviderServerID)))
	}
	var ie *server.InfraError
	require.True(t, errors.As(c.AttachVolume(t.Context(), prego.VolumeID(v), prego.ServerID(two.ProviderServerID)), &ie))
	require.Equal(t, "volume_already_attached", ie.Code)
	for range 2 {
		require.NoError(t, c.DetachVolume(t.Context(), prego.VolumeID(v)))
	}
	require.NoError(t, c.AttachVolume(t.Context(), prego.VolumeID(v), prego.ServerID(two.ProviderServerID)))

	for range 2 {
		require.NoError(t, c.ResizeVolume(t.Context(), prego.VolumeID(v), 20), "while it is attached")
	}
	require.EqualValues(t, 20, c.call("GET", "/volumes/"+v, nil)["volume"].(map[string]any)["size"])

	far, err := c.EnsureVolume(t.Context(), server.VolumeParams{Environment: "test", OrgID: "acme", Name: "prego-test-vol-2", Location: "nbg1", GB: 10})
	require.NoError(t, err)
	require.True(t, errors.As(c.AttachVolume(t.Context(), prego.VolumeID(far), prego.ServerID(one.ProviderServerID)), &ie))
	require.Equal(t, server.InfraPermanent, ie.Class, "no server attaches across locations")

	// It outlives its server, and goes also while it is attached.
	require.NoError(t, c.DestroyServer(t.Context(), prego.ServerID(two.ProviderServerID)))
	require.NoError(t, c.DetachVolume(t.Context(), prego.VolumeID(v)))
	require.NoError(t, c.AttachVolume(t.Context(), prego.VolumeID(v), prego.ServerID(one.ProviderServerID)))
	require.NoError(t, c.DeleteResource(t.Context(), server.ResourceVolume, prego.ServerID(v)))
	require.NoError(t, c.DetachVolume(t.Context(), prego.VolumeID(v)), "a deleted volume is on no server")
}
