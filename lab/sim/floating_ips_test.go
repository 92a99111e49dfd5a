package sim_test

import (
	"context"
	"testing"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/sim/judge"
)

// TestFloatingIPsConformToTheProvidersSpecification: each request and answer is judged by the
// provider's own document, refusals as well.
func TestFloatingIPsConformToTheProvidersSpecification(t *testing.T) {
	t.Parallel()
	doc := judge.Specification(t)
	if doc == nil {
		return // it reports this, or fails
	}
	s := newSim(t, nil)
	rt := judge.New(t, doc)
	c := client(s, rt)
	ctx := context.Background()
	var servers []*hcloud.Server
	for _, name := range []string{"one", "two"} {
		made, _, err := c.Server.Create(ctx, hcloud.ServerCreateOpts{
			Name: name, ServerType: &hcloud.ServerType{Name: "ccx13"}, Image: &hcloud.Image{Name: "debian-12"}, Location: &hcloud.Location{Name: "fsn1"},
		})
		require.NoError(t, err)
		servers = append(servers, made.Server)
	}
	made, _, err := c.FloatingIP.Create(ctx, hcloud.FloatingIPCreateOpts{
		Type: hcloud.FloatingIPTypeIPv4, HomeLocation: &hcloud.Location{Name: "fsn1"}, Name: new("a"), Labels: map[string]string{"a": "b"},
	})
	require.NoError(t, err)
	ip := made.FloatingIP
	require.Nil(t, ip.Server)
	require.Len(t, s.Ledger(true), 7, "two servers with two addresses each, and this one")
	_, _, err = c.FloatingIP.Create(ctx, hcloud.FloatingIPCreateOpts{Type: hcloud.FloatingIPTypeIPv4, HomeLocation: &hcloud.Location{Name: "fsn1"}, Name: new("a")})
	require.True(t, hcloud.IsError(err, hcloud.ErrorCodeUniquenessError))

	assign := func(srv *hcloud.Server) error {
		action, _, err := c.FloatingIP.Assign(ctx, ip, srv)
		if err == nil {
			err = c.Action.WaitFor(ctx, action)
		}
		return err
	}
	at := func() *hcloud.Server {
		got, _, err := c.FloatingIP.GetByID(ctx, ip.ID)
		require.NoError(t, err)
		return got.Server
	}
	require.NoError(t, assign(servers[0]))
	require.Equal(t, servers[0].ID, at().ID)
	require.True(t, hcloud.IsError(assign(servers[1]), "floating_ip_assigned"))
	_, err = c.FloatingIP.Delete(ctx, ip)
	require.True(t, hcloud.IsError(err, "must_be_unassigned"))
	action, _, err := c.FloatingIP.Unassign(ctx, ip)
	require.NoError(t, err)
	require.NoError(t, c.Action.WaitFor(ctx, action))
	require.Nil(t, at())
	require.NoError(t, assign(servers[1]))
	_, _, err = c.Server.DeleteWithResult(ctx, servers[1])
	require.NoError(t, err)
	require.Nil(t, at(), "it outlives its server")
	_, _, err = c.FloatingIP.Update(ctx, ip, hcloud.FloatingIPUpdateOpts{Name: "b", Labels: map[string]string{"c": "d"}})
	require.NoError(t, err)
	got, _, err := c.FloatingIP.GetByName(ctx, "b")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"c": "d"}, got.Labels)
	_, err = c.FloatingIP.Delete(ctx, ip)
	require.NoError(t, err)
	all, err := c.FloatingIP.All(ctx)
	require.NoError(t, err)
	require.Empty(t, all)
	require.Greater(t, rt.Checked(), 15)
}
