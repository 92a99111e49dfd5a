package edge

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/prego/prego/agent/wire"
)

// HAProxy is the configuration of HAProxy for the ports of a document that are forwarded as
// they are. Ports without upstreams are closed. The one socket that nobody knows is there
// because HAProxy does not run without any.
func HAProxy(d wire.EdgeDocument, s Settings) (string, error) {
	var b strings.Builder
	b.WriteString("global\n\tmaxconn 50000\n\tno log\n" +
		"defaults\n\tmode tcp\n\ttimeout connect 2s\n\ttimeout client 1h\n\ttimeout server 1h\n\ttimeout client-fin 30s\n\tretries 3\n\toption redispatch 1\n\tbalance leastconn\n" +
		"frontend idle\n\tbind unix@" + s.RunDir + "/haproxy-idle.sock\n")
	for _, t := range d.TCP {
		if len(t.Upstreams) == 0 || t.Address != "" && (s.Own == nil || !s.Own(t.Address)) {
			continue
		}
		fmt.Fprintf(&b, "listen %s\n", t.Route)
		binds := []string{fmt.Sprintf(":::%d v4v6", t.Port)}
		if t.Address != "" {
			a, err := netip.ParseAddr(t.Address)
			if err != nil {
				return "", fmt.Errorf("address %q: %w", t.Address, err)
			}
			binds = []string{bind(a, t.Port)}
		} else if len(s.Listen) > 0 {
			binds = nil
			for _, a := range s.Listen {
				binds = append(binds, bind(a, t.Port))
			}
		}
		for _, at := range binds {
			fmt.Fprintf(&b, "\tbind %s\n", at)
		}
		for i, u := range t.Upstreams {
			at, err := netip.ParseAddrPort(u.Address)
			if err != nil {
				return "", fmt.Errorf("upstream %q: %w", u.Address, err)
			}
			fmt.Fprintf(&b, "\tserver u%d %s weight %d\n", i+1, at, cmp.Or(u.Weight, 1))
		}
	}
	return b.String(), nil
}

func bind(a netip.Addr, port int) string {
	return netip.AddrPortFrom(a, uint16(port)).String() //nolint:gosec // ports were checked when routes were made
}
