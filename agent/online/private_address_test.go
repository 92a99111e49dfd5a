package online

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrivateAddressesAreThoseOfTheProvidersNetworks(t *testing.T) {
	t.Parallel()
	at := func(cidr string) net.Addr {
		ip, n, err := net.ParseCIDR(cidr)
		require.NoError(t, err)
		return &net.IPNet{IP: ip, Mask: n.Mask}
	}
	require.Equal(t, []string{"10.64.0.2", "10.64.0.9"}, privateOf([]net.Addr{
		at("127.0.0.1/8"), at("203.0.113.7/32"), at("10.64.0.9/32"), at("172.17.0.1/16"), at("10.64.0.2/32"), at("fd00::2/128"), &net.UnixAddr{},
	}))
	require.Empty(t, privateOf(nil))
	many := make([]net.Addr, 0, 30)
	for i := range 30 {
		many = append(many, &net.IPNet{IP: net.IPv4(10, 64, 0, byte(i+1)), Mask: net.CIDRMask(32, 32)})
	}
	require.Len(t, privateOf(many), 18)
}
