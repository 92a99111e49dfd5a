package online

import (
	"net"
	"net/netip"
	"slices"

	"github.com/prego/prego/agent/wire"
)

// privateAddresses are the host's addresses in private networks of its provider. They have a mask of 32 bits there,
// because a host talks only to the network's gateway (docs.hetzner.com/networking/networks/faq). This distinguishes
// them from addresses of bridges.
func privateAddresses() []string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil // unknown addresses are not reported
	}
	return privateOf(all)
}

func privateOf(all []net.Addr) []string {
	var out []string
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		if ones, _ := n.Mask.Size(); ones != 32 {
			continue
		}
		if ip, ok := netip.AddrFromSlice(n.IP.To4()); ok && ip.IsPrivate() {
			out = append(out, ip.String())
		}
	}
	slices.Sort(out)
	return out[:min(len(out), wire.MaxPrivateAddresses)]
}
