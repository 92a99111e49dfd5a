package prego_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
)

func TestCheckPublicAddress(t *testing.T) {
	t.Parallel()
	for _, a := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.9.9.9", "169.254.169.254",
		"172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1",
		"198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::7f00:1", "64:ff9b::a00:1",
		"64:ff9b::169.254.169.254", "64:ff9b:1::1", "100::1", "2001::1", "2001:2::1", "2001:20::1", "2001:db8::1",
		"2002:a00:1::1", "2002:7f00:1::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0",
		"2a01:4f8::1%eth0", "fec0::1", "ff02::1", "4000::1", "", "localhost",
		"1.2.3", "1.2.3.4:80", "010.0.0.1", "0x7f.1",
	} {
		require.Error(t, prego.CheckPublicAddress(a), a)
	}
	for _, a := range []string{
		"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
		"128.0.0.1",
		"172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0",
		"223.255.255.255",
		"88.198.1.1", "2a01:4f8::1", "2001:4860:4860::8888", "2606:4700::1111", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8",
	} {
		require.NoError(t, prego.CheckPublicAddress(a), a)
	}
	require.EqualError(t, prego.CheckPublicAddress("::ffff:169.254.169.254"),
		"::ffff:169.254.169.254 is not public: 169.254.0.0/16 is link-local, and where clouds have their metadata")
}

// TestNoSpellingOfAPrivateAddressIsPublic: what leads to an IPv4 address is judged like it.
func TestNoSpellingOfAPrivateAddressIsPublic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v4 := [4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address"))
		plain := netip.AddrFrom4(v4)
		mapped := netip.AddrFrom16(plain.As16())
		nat64 := [16]byte{0, 0x64, 0xff, 0x9b, 12: v4[0], 13: v4[1], 14: v4[2], 15: v4[3]}
		want := prego.CheckPublicAddress(plain.String()) == nil
		for _, a := range []netip.Addr{mapped, netip.AddrFrom16(nat64)} {
			if got := prego.CheckPublicAddress(a.String()) == nil; got != want {
				t.Fatalf("%s is public: %t, %s: %t", plain, want, a, got)
			}
		}
	})
}

// TestRegistriesMayBePrivate: but no address, in any notation, means the host that connects, or its cloud.
func TestRegistriesMayBePrivate(t *testing.T) {
	t.Parallel()
	for _, host := range []string{
		"8.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "fd00::1", "2a01:4f8::1",
		"::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "registry.example", "registry", "localhost",
		"0x7f.example", "1.2.example", "x0x1",
	} {
		require.NoError(t, prego.CheckHost(host), host)
	}
	for _, host := range []string{
		"127.0.0.1", "127.1.2.3", "169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1",
		"ff02::1", "fe80::1%eth0", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::",
		"127.1", "0x7f.1", "0177.0.0.1", "2130706433", "0x7f000001", "127.0.0.1.", "169.254.169.0XFE", "1.2.3.4.5",
	} {
		require.Error(t, prego.CheckHost(host), host)
	}
	require.EqualError(t, prego.CheckHost("169.254.169.254"),
		"169.254.169.254 is not a server's: 169.254.0.0/16 is link-local, and where clouds have their metadata")
}
