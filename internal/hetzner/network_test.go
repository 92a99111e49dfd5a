package hetzner_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

var lan = server.NetworkParams{Environment: "test", Name: "prego-test-eu-central-1", Zone: "eu-central", IPRange: "10.64.0.0/24"}

func infraError(t *testing.T, err error) *server.InfraError {
	t.Helper()
	var ie *server.InfraError
	require.True(t, errors.As(err, &ie), "%v", err)
	return ie
}

func (c *cloud) network(id string) map[string]any {
	return c.call("GET", "/networks/"+id, nil)["network"].(map[string]any)
}

func TestANetworkIsMadeOnce(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	id, ipRange, err := c.EnsureNetwork(t.Context(), lan)
	require.NoError(t, err)
	require.Equal(t, "10.64.0.0/24", ipRange)
	again, _, err := c.EnsureNetwork(t.Context(), lan)
	require.NoError(t, err)
	require.Equal(t, id, again)
	n := c.network(id)
	require.Len(t, n["subnets"], 1)
	subnet := n["subnets"].([]any)[0].(map[string]any)
	require.Equal(t, []any{"cloud", "10.64.0.0/24", "eu-central"}, []any{subnet["type"], subnet["ip_range"], subnet["network_zone"]})
	require.Equal(t, map[string]any{server.LabelManagedBy: "prego", server.LabelEnvironment: "test"}, n["labels"])

	// Somebody deleted its subnet, and extended it.
	c.call("POST", "/networks/"+id+"/actions/delete_subnet", map[string]string{"ip_range": "10.64.0.0/24"})
	c.call("POST", "/networks/"+id+"/actions/change_ip_range", map[string]string{"ip_range": "10.64.0.0/23"})
	_, ipRange, err = c.EnsureNetwork(t.Context(), lan)
	require.NoError(t, err)
	require.Equal(t, "10.64.0.0/23", ipRange, "the provider's range counts")
	require.Len(t, c.network(id)["subnets"], 1)
}

func TestANetworkIsMadeAlthoughTheAnswerIsLost(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]sim.Fault{
		"connection cut": {Kind: "http", Method: "POST", Path: "/v1/networks", Action: "commit_then_reset", Times: 1},
		"gateway":        {Kind: "http", Method: "POST", Path: "/v1/networks", Action: "commit_then_respond", Status: 502, Code: "bad_gateway", Times: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			c.inject(f)
			id, _, err := c.EnsureNetwork(t.Context(), lan)
			require.NoError(t, err)
			require.Equal(t, lan.Name, c.network(id)["name"])
			require.Len(t, c.call("GET", "/networks", nil)["networks"], 1)
		})
	}
}

func TestANetworkOfOthersIsLeftAlone(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	foreign := c.call("POST", "/networks", map[string]any{"name": lan.Name, "ip_range": "10.0.0.0/16"})["network"].(map[string]any)
	_, _, err := c.EnsureNetwork(t.Context(), lan)
	require.Equal(t, server.InfraForeign, infraError(t, err).Class)
	require.Empty(t, c.network(strconv.Itoa(int(foreign["id"].(float64))))["subnets"])

	// A network of ours in another zone does not match.
	elsewhere := lan
	elsewhere.Name = "prego-test-us-1"
	elsewhere.Zone = "us-east"
	_, _, err = c.EnsureNetwork(t.Context(), elsewhere)
	require.NoError(t, err)
	elsewhere.Zone = "us-west"
	_, _, err = c.EnsureNetwork(t.Context(), elsewhere)
	require.Equal(t, server.InfraForeign, infraError(t, err).Class)
}

func TestAServerIsMadeInItsNetwork(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	id, _, err := c.EnsureNetwork(t.Context(), lan)
	require.NoError(t, err)
	h := c.server(func(p *server.CreateParams) { p.NetworkID = id })
	require.Equal(t, []server.PrivateAddress{{ProviderNetworkID: id, IP: "10.64.0.2"}}, h.Private)
	require.Equal(t, "10.64.0.2", h.PrivateIn(id))
	require.Empty(t, h.PrivateIn("1"))
	address, err := c.AttachServer(t.Context(), h.ProviderServerID, id)
	require.NoError(t, err)
	require.Equal(t, "10.64.0.2", address, "it is there already")

	owned, err := c.ListOwned(t.Context())
	require.NoError(t, err)
	var networks []server.OwnedResource
	for _, o := range owned {
		if o.Kind == server.ResourceNetwork {
			networks = append(networks, o)
		}
	}
	require.Len(t, networks, 1)
	require.True(t, networks[0].Attached)
	require.Equal(t, id, networks[0].ProviderID)

	// Deleting it would take the server's address.
	err = c.DeleteResource(t.Context(), server.ResourceNetwork, prego.ServerID(id))
	require.Equal(t, "resource_in_use", infraError(t, err).Code)
	require.NoError(t, c.DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)))
	for range 2 {
		require.NoError(t, c.DeleteResource(t.Context(), server.ResourceNetwork, prego.ServerID(id)))
	}
	_, err = c.CreateServer(t.Context(), order(func(p *server.CreateParams) { p.NetworkID, p.Attempt = id, 2 }))
	require.Equal(t, server.InfraNetworkGone, infraError(t, err).Code)
	require.Equal(t, server.InfraNotFound, infraError(t, err).Class)
}

func TestAServerIsAttached(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	id, _, err := c.EnsureNetwork(t.Context(), lan)
	require.NoError(t, err)
	h := c.server(nil)
	require.Empty(t, h.Private)
	c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers/*/actions/attach_to_network", Action: "commit_then_reset", Times: 1})
	address, err := c.AttachServer(t.Context(), h.ProviderServerID, id)
	require.NoError(t, err)
	require.Equal(t, "10.64.0.2", address, "the answer was lost")

	// Its own network has the same range.
	other := lan
	other.Name = "prego-test-eu-central-2"
	overlapping, _, err := c.EnsureNetwork(t.Context(), other)
	require.NoError(t, err)
	_, err = c.AttachServer(t.Context(), h.ProviderServerID, overlapping)
	require.Equal(t, "networks_overlap", infraError(t, err).Code)
	require.Equal(t, server.InfraPermanent, infraError(t, err).Class)

	_, err = c.AttachServer(t.Context(), h.ProviderServerID, "999999")
	require.Equal(t, server.InfraNetworkGone, infraError(t, err).Code)
	_, err = c.AttachServer(t.Context(), "999999", id)
	require.Equal(t, "not_found", infraError(t, err).Code)

	c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers/*/actions/attach_to_network", Action: "respond", Status: 422, Code: "server_already_attached", Times: 1})
	other.Name, other.IPRange = "prego-test-eu-central-3", "10.64.2.0/24"
	third, _, err := c.EnsureNetwork(t.Context(), other)
	require.NoError(t, err)
	_, err = c.AttachServer(t.Context(), h.ProviderServerID, third)
	require.Equal(t, server.InfraRetry, infraError(t, err).Class,
		"the provider reports it as attached, without an address")
}

func TestAFullNetworkIsNoFullAccount(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]sim.Fault{
		"addresses": {Status: 422, Code: "no_subnet_available", Message: "no subnet or IP available"},
		"members":   {Status: 403, Code: "resource_limit_exceeded", Message: "servers of a network limit reached"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			id, _, err := c.EnsureNetwork(t.Context(), lan)
			require.NoError(t, err)
			f.Kind, f.Method, f.Path, f.Action, f.Times = "http", "POST", "/v1/servers", "respond", 1
			c.inject(f)
			_, err = c.CreateServer(t.Context(), order(func(p *server.CreateParams) { p.NetworkID = id }))
			require.Equal(t, server.InfraNetworkFull, infraError(t, err).Code)
			require.Equal(t, server.InfraNext, infraError(t, err).Class)
		})
	}
	c := newCloud(t)
	c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers", Action: "respond", Status: 403, Code: "resource_limit_exceeded", Message: "server limit exceeded", Times: 1})
	_, err := c.CreateServer(t.Context(), order(nil))
	require.Equal(t, server.InfraQuota, infraError(t, err).Class)
}

// TestProcessHostsMayHaveNetworksOnLoopback: only simulated hosts may, because elsewhere their private addresses
// would be unreachable.
func TestProcessHostsMayHaveNetworksOnLoopback(t *testing.T) {
	t.Parallel()
	loop := lan
	loop.IPRange = "127.250.0.0/24"
	_, _, err := newCloud(t).EnsureNetwork(t.Context(), loop)
	require.Equal(t, "invalid_input", infraError(t, err).Code, "the provider has no such networks")
	_, err = sim.New(sim.Config{StateDir: t.TempDir(), Token: apiToken, LoopbackNetworks: true, Machines: t.TempDir()})
	require.ErrorContains(t, err, "process hosts")
}
