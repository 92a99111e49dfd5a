package prego

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
)

// CheckPublicAddress refuses addresses that are not hosts of the public Internet: customers' names, reported addresses
// and delegations must not lead the control plane or its probes into networks behind them. It is the only such list: a
// lab that has its hosts on loopback states that where it allows them. What hosts connect to has CheckHost.
func CheckPublicAddress(address string) error {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return fmt.Errorf("%q is not an IP address", address)
	}
	if p, use := specialPurpose(a); use != "" {
		return fmt.Errorf("%s is not public: %s is %s", a, p, use)
	}
	return nil
}

// CheckHost refuses an address, from an image's reference or of a site's mail server, that means the machine which
// connects to it or its cloud's metadata. Private ones are accepted, since registries and relays often are in private
// networks. So are names, unresolved: only a host connects to them, and images that were loaded by hand are often
// called localhost/….
func CheckHost(host string) error {
	a, err := netip.ParseAddr(host)
	if err != nil {
		if !endsInNumber(host) {
			return nil // a name
		}
		return fmt.Errorf("%s is not a server's: it is an IPv4 address to some programs, and must be written as four "+
			"decimal numbers", host)
	}
	if inner, ok := embedded(a); ok {
		a = inner
	}
	if p, use := specialPurpose(a); use != "" && !a.IsPrivate() && !sharedSpace.Contains(a) {
		return fmt.Errorf("%s is not a server's: %s is %s", host, p, use)
	}
	return nil
}

// endsInNumber reports whether a host's last label is a number in any notation, which makes the host an IPv4 address to
// browsers and to C libraries: 127.1, 0x7f.1 (https://url.spec.whatwg.org/#ends-in-a-number-checker).
func endsInNumber(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	last := host[strings.LastIndexByte(host, '.')+1:]
	digits, hex := strings.CutPrefix(last, "0x")
	return hex && strings.Trim(digits, "0123456789abcdef") == "" || last != "" && strings.Trim(last, "0123456789") == ""
}

// specialPurpose returns the block of an address that is not globally reachable, and what it is for. IPv4 addresses
// inside of IPv6 ones are looked at as what they are.
func specialPurpose(a netip.Addr) (netip.Prefix, string) {
	if a.Zone() != "" {
		return netip.PrefixFrom(a.WithZone(""), a.BitLen()), "an address of one link"
	}
	if inner, ok := embedded(a); ok {
		return specialPurpose(inner)
	}
	for _, s := range special() {
		if s.prefix.Contains(a) {
			return s.prefix, s.use
		}
	}
	return netip.Prefix{}, ""
}

// embedded is the IPv4 address to which a packet for a mapped or translated address goes.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if a.Is4In6() {
		return a.Unmap(), true
	}
	b := a.As16()
	switch {
	case a.Is4():
		return a, false
	case nat64.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:])), true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return a, false
}

var (
	sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

	nat64     = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	sixToFour = netip.MustParsePrefix("2002::/16")    // RFC 3056
)

// block is a block of addresses that are not globally reachable, and what it is for.
type block struct {
	prefix netip.Prefix
	use    string
}

// special are the blocks that are not globally reachable in IANA's registries of special-purpose addresses
// (https://www.iana.org/assignments/iana-ipv4-special-registry, …/iana-ipv6-special-registry, as of 2025-10), and
// multicast. Blocks inside that are reachable, such as 192.0.0.9, have no servers for us. 2000::/3 is all that is
// assigned of IPv6 for hosts.
var special = sync.OnceValue(func() (out []block) {
	for _, s := range [][2]string{
		{"0.0.0.0/8", "this network"},
		{"10.0.0.0/8", "private"},
		{"100.64.0.0/10", "shared by a provider's customers"},
		{"127.0.0.0/8", "loopback"},
		{"169.254.0.0/16", "link-local, and where clouds have their metadata"},
		{"172.16.0.0/12", "private"},
		{"192.0.0.0/24", "for protocols"},
		{"192.0.2.0/24", "for documentation"},
		{"192.31.196.0/24", "for AS112"},
		{"192.52.193.0/24", "for AMT"},
		{"192.88.99.0/24", "for relays of 6to4"},
		{"192.168.0.0/16", "private"},
		{"192.175.48.0/24", "for AS112"},
		{"198.18.0.0/15", "for benchmarks"},
		{"198.51.100.0/24", "for documentation"},
		{"203.0.113.0/24", "for documentation"},
		{"224.0.0.0/4", "multicast"},
		{"240.0.0.0/4", "reserved"},
		{"::/3", "not for hosts of the Internet"},
		{"2001::/23", "for protocols"},
		{"2001:db8::/32", "for documentation"},
		{"2620:4f:8000::/48", "for AS112"},
		{"3fff::/20", "for documentation"},
		{"4000::/2", "not assigned"},
		{"8000::/1", "not for hosts of the Internet: private, link-local, multicast or not assigned"},
	} {
		out = append(out, block{netip.MustParsePrefix(s[0]), s[1]})
	}
	return out
})
