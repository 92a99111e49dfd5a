package sim

import (
	"net"
	"net/netip"
	"testing"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
	"github.com/stretchr/testify/require"
)

func TestRouterLeasesAnAddressAloneAndTheWayToTheOthers(t *testing.T) {
	t.Parallel()
	mac, err := net.ParseMAC("86:00:00:63:03:09")
	require.NoError(t, err)
	c := &cable{mac: mac, addresses: []string{"10.0.1.7", "10.0.1.8"}}
	ask := func(mac byte, options ...byte) []byte {
		q := question(3, 9, options...)
		q[28] = mac
		return q
	}
	for ipRange, way := range map[string][]byte{
		"10.0.0.0/8":  {8, 10, 10, 0, 0, 1},
		"10.0.0.0/12": {12, 10, 0, 10, 0, 0, 1},
		"10.0.0.0/16": {16, 10, 0, 10, 0, 0, 1},
		"10.0.0.0/17": {17, 10, 0, 0, 10, 0, 0, 1},
	} {
		r := &router{net: privateNetwork{ipRange: netip.MustParsePrefix(ipRange), gateway: netip.MustParseAddr("10.0.0.1")}}
		answer, _ := r.lease(c, ask(0x86, optKind, 1, dhcpRequest, optWanted, 4, 10, 0, 1, 7))
		require.Equal(t, net.IP{10, 0, 1, 7}, net.IP(answer[16:20]))
		require.Equal(t, []byte{optKind, 1, dhcpAck, optServer, 4, 10, 0, 0, 1, optLease, 4, 0, 1, 0x51, 0x80}, answer[240:255])
		options := []byte{optMask, 4, 255, 255, 255, 255, optMTU, 2, 0x05, 0xaa, optRoutes, byte(9 + len(way)), 32, 10, 0, 0, 1, 0, 0, 0, 0}
		require.Equal(t, append(append(options, way...), 255), answer[255:], ipRange)
		answer, _ = r.lease(c, ask(0x86, optKind, 1, dhcpRequest, optWanted, 4, 10, 0, 1, 8))
		require.Equal(t, []byte{optKind, 1, dhcpNak}, answer[240:243], "an alias is not leased")
		answer, _ = r.lease(c, ask(0x96, optKind, 1, dhcpDiscover))
		require.Nil(t, answer, "of another machine")
	}
}

func TestRouterKnowsTheWaysThatTheNetworkHas(t *testing.T) {
	t.Parallel()
	r := &router{
		net: privateNetwork{ipRange: netip.MustParsePrefix("10.0.0.0/16"), routes: []schema.NetworkRoute{
			{Destination: "10.200.0.0/24", Gateway: "10.0.1.8"}, {Destination: "0.0.0.0/0", Gateway: "10.0.1.99"},
		}},
		cables: map[int]*cable{5: {name: "m5", addresses: []string{"10.0.1.7", "10.0.1.8"}}, 6: {name: "m6", addresses: []string{"10.0.1.9"}}},
	}
	require.Equal(t, map[string][]string{
		"10.0.0.0/16":   {"unreachable", "10.0.0.0/16"},
		"10.0.1.7/32":   {"10.0.1.7/32", "dev", "m5"},
		"10.0.1.8/32":   {"10.0.1.8/32", "dev", "m5"},
		"10.0.1.9/32":   {"10.0.1.9/32", "dev", "m6"},
		"10.200.0.0/24": {"10.200.0.0/24", "via", "10.0.1.8", "dev", "m5", "onlink"},
	}, r.wants(), "and none by a missing gateway")
}
