package sim_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/lab/sim/judge"
)

// privately is a cloud with the calls that tests of private networks make.
type privately struct {
	*testing.T
	sim *sim.Sim
	*hcloud.Client
}

func newPrivately(t *testing.T, change func(*sim.Config)) *privately {
	t.Helper()
	s := newSim(t, change)
	return &privately{T: t, sim: s, Client: client(s, need.HTTP.Transport)}
}

func (p *privately) network(name, ipRange string, subnets ...string) *hcloud.Network {
	p.Helper()
	opts := hcloud.NetworkCreateOpts{Name: name, IPRange: cidr(ipRange)}
	for _, s := range subnets {
		opts.Subnets = append(opts.Subnets, hcloud.NetworkSubnet{Type: hcloud.NetworkSubnetTypeCloud, IPRange: cidr(s), NetworkZone: hcloud.NetworkZoneEUCentral})
	}
	n, _, err := p.Network.Create(p.Context(), opts)
	require.NoError(p, err)
	return n
}

func (p *privately) server(name, location string, networks ...*hcloud.Network) *hcloud.Server {
	p.Helper()
	out, err := p.tryServer(name, location, networks...)
	require.NoError(p, err)
	return out
}

func (p *privately) tryServer(name, location string, networks ...*hcloud.Network) (*hcloud.Server, error) {
	made, _, err := p.Server.Create(p.Context(), hcloud.ServerCreateOpts{
		Name: name, ServerType: &hcloud.ServerType{Name: "ccx13"}, Image: &hcloud.Image{Name: "debian-12"}, Location: &hcloud.Location{Name: location}, Networks: networks,
	})
	return made.Server, err
}

func (p *privately) attach(s *hcloud.Server, opts hcloud.ServerAttachToNetworkOpts) error {
	a, _, err := p.Server.AttachToNetwork(p.Context(), s, opts)
	if err != nil {
		return err
	}
	return p.Action.WaitFor(p.Context(), a)
}

// addresses are a server's by network: its own, and then its aliases.
func (p *privately) addresses(s *hcloud.Server) map[int64][]string {
	p.Helper()
	got, _, err := p.Server.GetByID(p.Context(), s.ID)
	require.NoError(p, err)
	out := map[int64][]string{}
	for _, n := range got.PrivateNet {
		require.Regexp(p, `^86:00:00(:[0-9a-f]{2}){3}$`, n.MACAddress)
		out[n.Network.ID] = []string{n.IP.String()}
		for _, a := range n.Aliases {
			out[n.Network.ID] = append(out[n.Network.ID], a.String())
		}
	}
	return out
}

func cidr(v string) *net.IPNet {
	_, n, err := net.ParseCIDR(v)
	if err != nil {
		panic(err)
	}
	return n
}

func refused(t *testing.T, err error, code hcloud.ErrorCode, says string) {
	t.Helper()
	require.True(t, hcloud.IsError(err, code), "%v, not %s", err, code)
	require.ErrorContains(t, err, says)
}

func TestNetworkHasRangesSubnetsAndRoutes(t *testing.T) {
	t.Parallel()
	p := newPrivately(t, func(c *sim.Config) { c.Limits.Networks = 2 })
	n := p.network("n", "10.0.0.0/16", "10.0.1.0/24")
	ctx := p.Context()
	add := func(ipRange string, change func(*hcloud.NetworkSubnet)) error {
		sub := hcloud.NetworkSubnet{Type: hcloud.NetworkSubnetTypeCloud, NetworkZone: hcloud.NetworkZoneEUCentral}
		if ipRange != "" {
			sub.IPRange = cidr(ipRange)
		}
		if change != nil {
			change(&sub)
		}
		_, _, err := p.Network.AddSubnet(ctx, n, hcloud.NetworkAddSubnetOpts{Subnet: sub})
		return err
	}
	require.NoError(t, add("", nil))
	require.NoError(t, add("", nil))
	for ipRange, says := range map[string]string{
		"10.0.1.128/25": "overlaps", "10.0.0.0/16": "overlaps", "10.1.0.0/24": "not within", "10.0.0.0/8": "not within", "10.0.9.0/31": "at least a /30",
	} {
		refused(t, add(ipRange, nil), hcloud.ErrorCodeInvalidInput, says)
	}
	refused(t, add("10.0.9.0/24", func(s *hcloud.NetworkSubnet) { s.NetworkZone = "moon" }), hcloud.ErrorCodeInvalidInput, "network zone not found")
	refused(t, add("10.0.9.0/24", func(s *hcloud.NetworkSubnet) { s.NetworkZone = hcloud.NetworkZoneUSEast }), hcloud.ErrorCodeInvalidInput, "one network zone")
	refused(t, add("10.0.9.0/24", func(s *hcloud.NetworkSubnet) { s.Type = "wifi" }), hcloud.ErrorCodeInvalidInput, "type")
	refused(t, add("10.0.9.0/24", func(s *hcloud.NetworkSubnet) { s.Type = hcloud.NetworkSubnetTypeVSwitch }), hcloud.ErrorCodeInvalidInput, "vSwitches")

	route := func(dest, gateway string) hcloud.NetworkRoute {
		return hcloud.NetworkRoute{Destination: cidr(dest), Gateway: net.ParseIP(gateway)}
	}
	addRoute := func(dest, gateway string) error {
		_, _, err := p.Network.AddRoute(ctx, n, hcloud.NetworkAddRouteOpts{Route: route(dest, gateway)})
		return err
	}
	require.NoError(t, addRoute("192.168.5.0/24", "10.0.1.1"))
	require.NoError(t, addRoute("0.0.0.0/0", "10.0.1.1"))
	for _, bad := range [][3]string{
		{"192.168.5.0/25", "10.0.1.1", "overlaps"},
		{"10.0.1.0/24", "10.0.1.1", "overlaps"},
		{"0.0.0.0/0", "10.0.1.2", "overlaps"},
		{"172.31.0.0/16", "10.0.1.1", "overlaps"},
		{"8.8.8.0/24", "10.0.1.1", "RFC1918"},
		{"10.9.0.0/16", "10.0.0.1", "gateway"},
		{"10.9.0.0/16", "172.31.1.1", "gateway"},
	} {
		refused(t, addRoute(bad[0], bad[1]), hcloud.ErrorCodeInvalidInput, bad[2])
	}
	_, _, err := p.Network.DeleteRoute(ctx, n, hcloud.NetworkDeleteRouteOpts{Route: route("192.168.5.0/24", "10.0.1.2")})
	refused(t, err, hcloud.ErrorCodeNotFound, "192.168.5.0/24")
	_, _, err = p.Network.DeleteRoute(ctx, n, hcloud.NetworkDeleteRouteOpts{Route: route("192.168.5.0/24", "10.0.1.1")})
	require.NoError(t, err)

	change := func(ipRange string) error {
		_, _, err := p.Network.ChangeIPRange(ctx, n, hcloud.NetworkChangeIPRangeOpts{IPRange: cidr(ipRange)})
		return err
	}
	for _, bad := range []string{"10.0.0.0/17", "10.0.0.0/16", "192.168.0.0/16"} {
		refused(t, change(bad), hcloud.ErrorCodeInvalidInput, "extend")
	}
	require.NoError(t, change("10.0.0.0/12"))
	got, _, err := p.Network.GetByName(ctx, "n")
	require.NoError(t, err)
	require.Equal(t, "10.0.0.0/12", got.IPRange.String())
	var subnets []string
	for _, s := range got.Subnets {
		require.Equal(t, "10.0.0.1", s.Gateway.String(), "the first address of the network")
		subnets = append(subnets, s.IPRange.String())
	}
	require.Equal(t, []string{"10.0.1.0/24", "10.0.0.0/24", "10.0.2.0/24"}, subnets, "the first that are free")
	require.Equal(t, []hcloud.NetworkRoute{route("0.0.0.0/0", "10.0.1.1")}, got.Routes)

	for ipRange, says := range map[string]string{"10.0.0.0/25": "at least a /24", "11.0.0.0/16": "RFC1918", "172.0.0.0/8": "RFC1918"} {
		_, _, err = p.Network.Create(ctx, hcloud.NetworkCreateOpts{Name: "bad", IPRange: cidr(ipRange)})
		refused(t, err, hcloud.ErrorCodeInvalidInput, says)
	}
	_, _, err = p.Network.Create(ctx, hcloud.NetworkCreateOpts{Name: "n", IPRange: cidr("10.0.0.0/16")})
	refused(t, err, hcloud.ErrorCodeUniquenessError, "network name")
	second := p.network("second", "10.0.0.0/16")
	_, _, err = p.Network.Create(ctx, hcloud.NetworkCreateOpts{Name: "third", IPRange: cidr("10.0.0.0/16")})
	refused(t, err, hcloud.ErrorCodeResourceLimitExceeded, "network limit reached")
	_, _, err = p.Network.Update(ctx, second, hcloud.NetworkUpdateOpts{Name: "n"})
	refused(t, err, hcloud.ErrorCodeUniquenessError, "network name")
	_, _, err = p.Network.Update(ctx, second, hcloud.NetworkUpdateOpts{Name: "2nd", Labels: map[string]string{"a": "b"}, ExposeRoutesToVSwitch: new(true)})
	require.NoError(t, err)
	labelled, err := p.Network.AllWithOpts(ctx, hcloud.NetworkListOpts{ListOpts: hcloud.ListOpts{LabelSelector: "a=b"}})
	require.NoError(t, err)
	require.Len(t, labelled, 1)
	require.Equal(t, "2nd", labelled[0].Name)
	require.True(t, labelled[0].ExposeRoutesToVSwitch)
}

func TestServerGetsPrivateAddresses(t *testing.T) {
	t.Parallel()
	p := newPrivately(t, nil)
	n := p.network("n", "10.0.0.0/16", "10.0.0.0/29", "10.0.1.0/24")
	first := p.server("s1", "fsn1", n)
	require.Equal(t, map[int64][]string{n.ID: {"10.0.0.2"}}, p.addresses(first), "the first of a network is its gateway")
	other := p.server("s2", "hel1")
	require.NoError(t, p.attach(other, hcloud.ServerAttachToNetworkOpts{Network: n, IP: net.ParseIP("10.0.1.1"), AliasIPs: []net.IP{net.ParseIP("10.0.1.9")}}))
	require.Equal(t, map[int64][]string{n.ID: {"10.0.1.1", "10.0.1.9"}}, p.addresses(other))
	got, _, err := p.Network.GetByID(p.Context(), n.ID)
	require.NoError(t, err)
	require.Len(t, got.Servers, 2)

	refused(t, p.attach(other, hcloud.ServerAttachToNetworkOpts{Network: n}), hcloud.ErrorCodeServerAlreadyAttached, "already")
	third := p.server("s3", "nbg1")
	for ip, why := range map[string]string{
		"10.0.0.1": "the network's gateway", "10.0.1.0": "the subnet's first", "10.0.1.255": "its last", "10.0.0.2": "another server's", "10.0.1.9": "another server's alias",
		"10.0.2.1": "in no subnet", "172.31.1.1": "the gateway of public interfaces",
	} {
		err := p.attach(third, hcloud.ServerAttachToNetworkOpts{Network: n, IP: net.ParseIP(ip)})
		require.True(t, hcloud.IsError(err, hcloud.ErrorCodeIPNotAvailable), "%s is %s: %v", ip, why, err)
	}
	err = p.attach(third, hcloud.ServerAttachToNetworkOpts{Network: n, IP: net.ParseIP("10.0.1.5"), IPRange: cidr("10.0.0.0/29")})
	require.True(t, hcloud.IsError(err, hcloud.ErrorCodeIPNotAvailable), "%v", err)
	require.NoError(t, p.attach(third, hcloud.ServerAttachToNetworkOpts{Network: n, IPRange: cidr("10.0.1.0/24")}))
	require.Equal(t, "10.0.1.2", p.addresses(third)[n.ID][0])
	_, _, err = p.Server.ChangeAliasIPs(p.Context(), third, hcloud.ServerChangeAliasIPsOpts{Network: n, AliasIPs: []net.IP{net.ParseIP("10.0.1.9")}})
	refused(t, err, hcloud.ErrorCodeIPNotAvailable, "10.0.1.9")
	for _, aliases := range [][]string{{"10.0.1.20", "10.0.1.21"}, {"10.0.1.21", "10.0.1.22"}, {}} {
		ips := []net.IP{}
		for _, a := range aliases {
			ips = append(ips, net.ParseIP(a))
		}
		_, _, err = p.Server.ChangeAliasIPs(p.Context(), third, hcloud.ServerChangeAliasIPsOpts{Network: n, AliasIPs: ips})
		require.NoError(t, err)
		require.Equal(t, append([]string{"10.0.1.2"}, aliases...), p.addresses(third)[n.ID])
	}

	_, _, err = p.Network.DeleteSubnet(p.Context(), n, hcloud.NetworkDeleteSubnetOpts{Subnet: hcloud.NetworkSubnet{IPRange: cidr("10.0.0.0/29")}})
	refused(t, err, hcloud.ErrorCodeServiceError, "servers are attached")
	_, _, err = p.Server.DeleteWithResult(p.Context(), first)
	require.NoError(t, err)
	require.Equal(t, "10.0.0.2", p.addresses(p.server("s4", "fsn1", n))[n.ID][0], "a deleted server's address is free")
	detached, _, err := p.Server.DetachFromNetwork(p.Context(), third, hcloud.ServerDetachFromNetworkOpts{Network: n})
	require.NoError(t, err)
	require.NoError(t, p.Action.WaitFor(p.Context(), detached))
	require.Empty(t, p.addresses(third))
	_, _, err = p.Server.DetachFromNetwork(p.Context(), third, hcloud.ServerDetachFromNetworkOpts{Network: n})
	refused(t, err, hcloud.ErrorCodeNotFound, "not attached")
}

func TestServerOnlyJoinsNetworksThatFit(t *testing.T) {
	t.Parallel()
	p := newPrivately(t, nil)
	eu, bare, same := p.network("eu", "10.0.0.0/16", "10.0.0.0/30"), p.network("bare", "10.1.0.0/16"), p.network("same", "10.0.0.0/8", "10.0.0.0/24")
	_, err := p.tryServer("far", "ash", eu)
	refused(t, err, hcloud.ErrorCodeNoSubnetAvailable, "location")
	_, err = p.tryServer("none", "fsn1", bare)
	refused(t, err, hcloud.ErrorCodeNoSubnetAvailable, "location")
	_, err = p.tryServer("both", "fsn1", eu, same)
	refused(t, err, hcloud.ErrorCodeNetworksOverlap, "overlaps")
	_, err = p.tryServer("twice", "fsn1", eu, eu)
	refused(t, err, hcloud.ErrorCodeServerAlreadyAttached, "already")
	_, err = p.tryServer("unknown", "fsn1", &hcloud.Network{ID: 5})
	refused(t, err, hcloud.ErrorCodeNotFound, "network")
	all, err := p.Server.All(p.Context())
	require.NoError(t, err)
	require.Empty(t, all, "a refused order makes no server")

	s := p.server("s", "fsn1", eu)
	_, err = p.tryServer("full", "fsn1", eu)
	refused(t, err, hcloud.ErrorCodeNoSubnetAvailable, "IP")
	refused(t, p.attach(s, hcloud.ServerAttachToNetworkOpts{Network: same}), hcloud.ErrorCodeNetworksOverlap, "overlaps")
	for i := range 3 {
		err = p.attach(s, hcloud.ServerAttachToNetworkOpts{Network: p.network(fmt.Sprint(i), fmt.Sprintf("192.168.%d.0/24", i), fmt.Sprintf("192.168.%d.0/24", i))})
		require.Equal(t, i < 2, err == nil, "a server is in three networks at most: %v", err)
	}
	refused(t, err, hcloud.ErrorCodeResourceLimitExceeded, "networks of a server limit")
}

func TestNetworkHasLimits(t *testing.T) {
	t.Parallel()
	p := newPrivately(t, nil)
	n := p.network("n", "10.0.0.0/16", "10.0.0.0/24")
	var err error
	for i := range 50 {
		require.NoError(t, err, "subnet %d", i)
		_, _, err = p.Network.AddSubnet(p.Context(), n, hcloud.NetworkAddSubnetOpts{Subnet: hcloud.NetworkSubnet{Type: hcloud.NetworkSubnetTypeCloud, NetworkZone: hcloud.NetworkZoneEUCentral}})
	}
	refused(t, err, hcloud.ErrorCodeResourceLimitExceeded, "subnet limit reached")
	err = nil
	for i := range 101 {
		require.NoError(t, err, "route %d", i)
		_, _, err = p.Network.AddRoute(p.Context(), n, hcloud.NetworkAddRouteOpts{Route: hcloud.NetworkRoute{Destination: cidr(fmt.Sprintf("10.9.%d.0/24", i)), Gateway: net.ParseIP("10.0.0.2")}})
	}
	refused(t, err, hcloud.ErrorCodeResourceLimitExceeded, "route limit reached")
	var aliases []net.IP
	for i := range 6 {
		aliases = append(aliases, net.ParseIP(fmt.Sprintf("10.0.0.%d", 100+i)))
	}
	s := p.server("s", "fsn1")
	refused(t, p.attach(s, hcloud.ServerAttachToNetworkOpts{Network: n, AliasIPs: aliases}), hcloud.ErrorCodeResourceLimitExceeded, "alias IP limit")
	require.NoError(t, p.attach(s, hcloud.ServerAttachToNetworkOpts{Network: n, AliasIPs: aliases[:5]}))
	_, _, err = p.Server.ChangeAliasIPs(p.Context(), s, hcloud.ServerChangeAliasIPsOpts{Network: n, AliasIPs: aliases})
	refused(t, err, hcloud.ErrorCodeResourceLimitExceeded, "alias IP limit")
}

func TestDeletedNetworkLetsItsServersGo(t *testing.T) {
	t.Parallel()
	p := newPrivately(t, nil)
	n := p.network("n", "10.0.0.0/16", "10.0.0.0/24")
	s := p.server("s", "fsn1", n)
	_, _, err := p.Network.ChangeProtection(p.Context(), n, hcloud.NetworkChangeProtectionOpts{Delete: new(true)})
	require.NoError(t, err)
	_, err = p.Network.Delete(p.Context(), n)
	refused(t, err, hcloud.ErrorCodeProtected, "protected")
	_, _, err = p.Network.ChangeProtection(p.Context(), n, hcloud.NetworkChangeProtectionOpts{Delete: new(false)})
	require.NoError(t, err)
	_, err = p.Network.Delete(p.Context(), n)
	require.NoError(t, err)
	require.Empty(t, p.addresses(s))
	for _, e := range p.sim.Ledger(false) {
		require.NotEqual(t, "network", e.Kind, "networks cost nothing")
	}
}

func TestNetworksOutliveTheProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(c *sim.Config) { c.StateDir = dir }
	cfg := sim.Config{Listen: "127.0.0.1:0", Token: "secret"}
	in(&cfg)
	before, err := sim.New(cfg)
	require.NoError(t, err)
	require.NoError(t, before.Start())
	p := &privately{T: t, sim: before, Client: client(before, need.HTTP.Transport)}
	n := p.network("n", "10.0.0.0/16", "10.0.0.0/24")
	s := p.server("s", "fsn1", n)
	was := p.addresses(s)
	before.Close()
	p = newPrivately(t, in)
	require.Equal(t, was, p.addresses(s))
	require.Equal(t, "10.0.0.3", p.addresses(p.server("next", "fsn1", n))[n.ID][0])
}

// TestNetworksConformToTheProvidersSpecification has every request of a walk, and every
// answer, judged by the provider's own specification. prego calls none of this, so it is no
// part of our contract.
func TestNetworksConformToTheProvidersSpecification(t *testing.T) {
	t.Parallel()
	doc := judge.Specification(t)
	if doc == nil {
		return // it reports this, or fails
	}
	rt := judge.New(t, doc)
	s := newSim(t, nil)
	c := client(s, rt)
	ctx := context.Background()
	n, _, err := c.Network.Create(ctx, hcloud.NetworkCreateOpts{
		Name: "n", IPRange: cidr("10.0.0.0/16"), Labels: map[string]string{"a": "b"},
		Subnets: []hcloud.NetworkSubnet{{Type: hcloud.NetworkSubnetTypeCloud, IPRange: cidr("10.0.1.0/24"), NetworkZone: hcloud.NetworkZoneEUCentral}},
		Routes:  []hcloud.NetworkRoute{{Destination: cidr("10.100.1.0/24"), Gateway: net.ParseIP("10.0.1.1")}},
	})
	require.NoError(t, err)
	made, _, err := c.Server.Create(ctx, hcloud.ServerCreateOpts{
		Name: "s", ServerType: &hcloud.ServerType{Name: "cx23"}, Image: &hcloud.Image{Name: "debian-12"}, Location: &hcloud.Location{Name: "fsn1"}, Networks: []*hcloud.Network{n},
	})
	require.NoError(t, err)
	server := made.Server
	opts := hcloud.ServerAttachToNetworkOpts{Network: n, IP: net.ParseIP("10.0.1.7"), AliasIPs: []net.IP{net.ParseIP("10.0.1.8")}}
	subnet := hcloud.NetworkSubnet{Type: hcloud.NetworkSubnetTypeCloud, NetworkZone: hcloud.NetworkZoneEUCentral, IPRange: cidr("10.0.2.0/24")}
	route := hcloud.NetworkRoute{Destination: cidr("10.200.0.0/24"), Gateway: net.ParseIP("10.0.1.1")}
	for i, step := range []func() (*hcloud.Action, *hcloud.Response, error){
		func() (*hcloud.Action, *hcloud.Response, error) {
			return c.Server.DetachFromNetwork(ctx, server, hcloud.ServerDetachFromNetworkOpts{Network: n})
		},
		func() (*hcloud.Action, *hcloud.Response, error) { return c.Server.AttachToNetwork(ctx, server, opts) },
		func() (*hcloud.Action, *hcloud.Response, error) {
			return c.Server.ChangeAliasIPs(ctx, server, hcloud.ServerChangeAliasIPsOpts{Network: n, AliasIPs: []net.IP{}})
		},
		func() (*hcloud.Action, *hcloud.Response, error) {
			return c.Network.AddSubnet(ctx, n, hcloud.NetworkAddSubnetOpts{Subnet: subnet})
		},
		func() (*hcloud.Action, *hcloud.Response, error) {
			return c.Network.DeleteSubnet(ctx, n, hcloud.NetworkDeleteSubnetOpts{Subnet: subnet})
		},
		func() (*hcloud.Action, *hcloud.Response, error) {
			return c.Network.AddRoute(ctx, n, hcloud.NetworkAddRouteOpts{Route: route})
		},
		func() (*hcloud.Action, *hcloud.Response, error) {
			return c.Network.DeleteRoute(ctx, n, hcloud.NetworkDeleteRouteOpts{Route: route})
		},
		func() (*hcloud.Action, *hcloud.Response, error) {
			return c.Network.ChangeIPRange(ctx, n, hcloud.NetworkChangeIPRangeOpts{IPRange: cidr("10.0.0.0/8")})
		},
		func() (*hcloud.Action, *hcloud.Response, error) {
			return c.Network.ChangeProtection(ctx, n, hcloud.NetworkChangeProtectionOpts{Delete: new(false)})
		},
	} {
		a, _, err := step()
		require.NoError(t, err, "step %d", i)
		require.NoError(t, c.Action.WaitFor(ctx, a))
		_, _, err = c.Network.Action.GetByID(ctx, a.ID)
		require.NoError(t, err)
	}
	_, _, err = c.Server.AttachToNetwork(ctx, server, opts)
	refused(t, err, hcloud.ErrorCodeServerAlreadyAttached, "already")
	_, _, err = c.Network.Update(ctx, n, hcloud.NetworkUpdateOpts{Name: "m"})
	require.NoError(t, err)
	_, err = c.Network.All(ctx)
	require.NoError(t, err)
	got, _, err := c.Server.GetByID(ctx, server.ID)
	require.NoError(t, err)
	require.Equal(t, "10.0.1.7", got.PrivateNet[0].IP.String())
	_, err = c.Network.Delete(ctx, n)
	require.NoError(t, err)
	gone, _, err := c.Network.GetByID(ctx, n.ID)
	require.NoError(t, err)
	require.Nil(t, gone)
	require.Greater(t, rt.Checked(), 30)

	// A judge without refusals is useless: an answer that lacks required fields.
	req, err := http.NewRequest(http.MethodGet, s.URL()+"/networks/1", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer secret")
	require.Error(t, rt.Check(req, nil, &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}}, []byte(`{"network":{"id":1}}`)))
}

// TestProvidersOwnCommandLineMakesNetworks drives networks with the provider's client.
func TestProvidersOwnCommandLineMakesNetworks(t *testing.T) {
	t.Parallel()
	bin, err := exec.LookPath("hcloud")
	require.NoError(t, err, "hcloud is not installed; make test installs what the tests need")
	p := newPrivately(t, nil)
	home := t.TempDir()
	hc := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(bin, args...)
		cmd.Env = []string{"HCLOUD_TOKEN=secret", "HCLOUD_ENDPOINT=" + p.sim.URL(), "HOME=" + home, "PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "hcloud %v: %s", args, out)
		return string(out)
	}
	hc("network", "create", "--name", "lan", "--ip-range", "10.0.0.0/16", "--label", "a=b")
	hc("network", "add-subnet", "lan", "--type", "cloud", "--network-zone", "eu-central", "--ip-range", "10.0.1.0/24")
	hc("network", "add-route", "lan", "--destination", "10.100.0.0/16", "--gateway", "10.0.1.1")
	s := p.server("s", "fsn1")
	hc("server", "attach-to-network", "s", "--network", "lan", "--ip", "10.0.1.5", "--alias-ips", "10.0.1.6")
	require.Contains(t, hc("server", "describe", "s"), "10.0.1.5")
	described := hc("network", "describe", "lan")
	for _, says := range []string{"10.0.1.0/24", "10.0.0.1", "10.100.0.0/16"} {
		require.Contains(t, described, says)
	}
	require.Contains(t, hc("network", "list", "--output", "noheader", "--output", "columns=name,servers"), "1 server")
	hc("server", "change-alias-ips", "s", "--network", "lan", "--clear")
	require.Equal(t, []string{"10.0.1.5"}, firstOf(p.addresses(s)))
	hc("network", "change-ip-range", "lan", "--ip-range", "10.0.0.0/12")
	hc("network", "enable-protection", "lan", "delete")
	hc("network", "disable-protection", "lan", "delete")
	hc("server", "detach-from-network", "s", "--network", "lan")
	require.Empty(t, p.addresses(s))
	hc("network", "remove-subnet", "lan", "--ip-range", "10.0.1.0/24")
	hc("network", "remove-route", "lan", "--destination", "10.100.0.0/16", "--gateway", "10.0.1.1")
	require.Contains(t, hc("network", "list", "--selector", "a=b"), "lan")
	hc("network", "delete", "lan")
	require.NotContains(t, hc("network", "list"), "lan")
}

func firstOf(m map[int64][]string) []string {
	for _, v := range m {
		return v
	}
	return nil
}

func TestNetworkRequestsAreChecked(t *testing.T) {
	t.Parallel()
	p := newPrivately(t, nil)
	n := p.network("n", "10.0.0.0/16", "10.0.0.0/24")
	s := p.server("s", "fsn1")
	post := func(path, body string) (int, schema.ErrorResponse) {
		t.Helper()
		var out schema.ErrorResponse
		req, err := p.NewRequest(p.Context(), http.MethodPost, path, strings.NewReader(body))
		require.NoError(t, err)
		resp, err := p.Do(req, nil)
		var refusal hcloud.Error
		require.ErrorAs(t, err, &refusal, "%s %s", path, body)
		out.Error.Code = string(refusal.Code)
		return resp.StatusCode, out
	}
	for _, c := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"/networks", `{`, 400, "json_error"},
		{"/networks", `{"ip_range":"10.0.0.0/16"}`, 422, "invalid_input"},
		{"/networks", `{"name":"x","ip_range":"10.0.0.1/16"}`, 422, "invalid_input"},
		{"/networks", `{"name":"x","ip_range":"fd00::/16"}`, 422, "invalid_input"},
		{"/networks", `{"name":"x","ip_range":"10.0.0.0/16","subnets":[{"type":"cloud","network_zone":"eu-central","ip_range":"11.0.0.0/24"}]}`, 422, "invalid_input"},
		{"/networks", `{"name":"x","ip_range":"10.0.0.0/16","routes":[{"destination":"nowhere","gateway":"10.0.0.9"}]}`, 422, "invalid_input"},
		{"/networks/1/actions/add_subnet", `{}`, 404, "not_found"},
		{fmt.Sprintf("/networks/%d/actions/dance", n.ID), `{}`, 404, "not_found"},
		{fmt.Sprintf("/networks/%d/actions/delete_subnet", n.ID), `{"ip_range":"10.0.7.0/24"}`, 404, "not_found"},
		{fmt.Sprintf("/servers/%d/actions/attach_to_network", s.ID), fmt.Sprintf(`{"network":%d,"ip":"10.0.0"}`, n.ID), 422, "invalid_input"},
		{fmt.Sprintf("/servers/%d/actions/attach_to_network", s.ID), fmt.Sprintf(`{"network":%d,"alias_ips":["fd00::1"]}`, n.ID), 422, "invalid_input"},
		{fmt.Sprintf("/servers/%d/actions/attach_to_network", s.ID), `{"network":1}`, 404, "not_found"},
		{fmt.Sprintf("/servers/%d/actions/change_alias_ips", s.ID), fmt.Sprintf(`{"network":%d,"alias_ips":[]}`, n.ID), 404, "not_found"},
	} {
		status, answer := post(c.path, c.body)
		require.Equal(t, c.status, status, "%s %s", c.path, c.body)
		require.Equal(t, c.code, answer.Error.Code, "%s %s", c.path, c.body)
	}
	require.Empty(t, p.addresses(s))
}
