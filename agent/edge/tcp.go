package edge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/prego/prego/agent/wire"
)

// HAProxy is the configuration of HAProxy for a document: routes' instances, sites' servers of events, which get
// requests from Caddy, and forwarded ports. HAProxy loads another configuration without losing a request, which Caddy
// can't: when stopped, Go's server closes connections that have just received a request (net/http, conn.serve), and
// Caddy starts another server with each configuration. So the parts that change with every deploy, or that a moving
// site cuts, are here, and Caddy keeps its own.
//
// names is the content of a file beside it.
func HAProxy(d wire.EdgeDocument, s Settings) (config, names string, err error) {
	if err := words(d); err != nil {
		return "", "", err
	}
	var b strings.Builder
	b.WriteString("global\n\tfd-hard-limit 100000\n\tno log\n\thard-stop-after 10m\n" +
		"defaults\n\tmode tcp\n\ttimeout connect 2s\n\ttimeout client 1h\n\ttimeout server 1h\n\ttimeout tunnel 24h\n\ttimeout client-fin 30s\n\tretries 3\n\toption redispatch 1\n\tbalance leastconn\n" +
		"frontend routes\n\tmode http\n\tbind unix@" + s.RunDir + "/" + routesSocket + " mode 666\n\toption idle-close-on-response\n\toption http-server-close\n\ttimeout http-request 30s\n\tuse_backend %[req.hdr(" + headerRoute + ")]\n")
	names = sites(&b, d, s)
	routes := map[string]bool{}
	for _, h := range d.Hosts {
		if h.Route == "" || routes[h.Route] {
			continue
		}
		routes[h.Route] = true
		// A connection to an instance serves one request: a reused connection may just be closing.
		fmt.Fprintf(&b, "backend %s\n\tmode http\n\thttp-reuse never\n\thttp-request del-header %s\n", h.Route, headerRoute)
		if len(h.Upstreams) == 0 {
			b.WriteString("\thttp-request return status 503 content-type \"text/html; charset=utf-8\" string \"This application can't be reached right now.\" hdr Retry-After 5\n")
		}
		servers(&b, h.Upstreams, h.UpstreamTLS)
	}
	for _, t := range d.TCP {
		if len(t.Upstreams) == 0 || t.Address != "" && (s.Own == nil || !s.Own(t.Address)) {
			continue
		}
		fmt.Fprintf(&b, "listen %s\n", t.Route)
		binds, err := s.binds(t.Address, t.Port)
		if err != nil {
			return "", "", err
		}
		if len(binds) == 0 {
			binds = []string{fmt.Sprintf(":::%d v4v6", t.Port)}
		}
		for _, at := range binds {
			fmt.Fprintf(&b, "\tbind %s\n", at)
		}
		servers(&b, t.Upstreams, false)
	}
	return b.String(), names, nil
}

// words refuses a document with names that would be more than a name in a configuration.
func words(d wire.EdgeDocument) error {
	for _, h := range d.Hosts {
		if err := check(h); err != nil {
			return err
		}
	}
	for _, t := range d.TCP {
		if err := check(t); err != nil {
			return err
		}
	}
	return nil
}

// addrPort reads an address without a zone, which may be any text.
func addrPort(text string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(text)
	if err == nil && at.Addr().Zone() != "" {
		err = errors.New("it has a zone")
	}
	if err != nil {
		return at, fmt.Errorf("upstream %q: %w", text, err)
	}
	return at, nil
}

// servers are the servers of a backend. A server without a connection is skipped for a moment; the requests that
// found it go to another, and nothing else is sent twice.
func servers(b *strings.Builder, upstreams []wire.EdgeUpstream, tls bool) {
	for i, u := range upstreams {
		fmt.Fprintf(b, "\tserver u%d %s weight %d", i+1, netip.MustParseAddrPort(u.Address), min(max(u.Weight, 1), 256))
		if tls {
			b.WriteString(" ssl verify none sni req.hdr(host),field(1,:)")
		}
		b.WriteString("\n")
	}
}

// binds are where servers listen for an address of a document, "" for the shared ones; none is everywhere.
func (s Settings) binds(address string, port int) (out []string, err error) {
	at := s.Listen
	if address != "" {
		a, err := netip.ParseAddr(address)
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("%q is no address", address)
		}
		at = []netip.Addr{a}
	}
	for _, a := range at {
		out = append(out, bind(a, port))
	}
	return out, nil
}

func bind(a netip.Addr, port int) string {
	return net.JoinHostPort(a.String(), strconv.Itoa(port))
}
