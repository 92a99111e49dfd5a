// Package dns queries the public DNS for orgs' claims to names: through the configured resolvers and, if possible, at
// the zones' own name servers, without a cache in between.
package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/prego/prego"
)

// Config configures the servers to query.
type Config struct {
	Resolvers []string // host:port
	// Authoritative asks a zone's own name servers for texts; the resolvers are asked if those do not answer.
	Authoritative bool
	// Local allows name servers without public addresses, at a port other than 53.
	Local   bool
	Port    string        // of name servers; "53" when empty
	Timeout time.Duration // of one question; 3 s when 0
	// Exchange asks a server; nil uses UDP, and TCP for answers that are too large for UDP.
	Exchange Exchange
}

// Exchange asks a server, host:port, a question.
type Exchange func(ctx context.Context, server string, q *dns.Msg) (*dns.Msg, error)

// Resolver asks the DNS. It is safe for concurrent use.
type Resolver struct{ cfg Config }

// New checks the configuration; it asks nothing.
func New(cfg Config) (*Resolver, error) {
	for _, r := range cfg.Resolvers {
		if _, _, err := net.SplitHostPort(r); err != nil {
			return nil, fmt.Errorf("resolver %q is not host:port", r)
		}
	}
	cfg.Port = cmp.Or(cfg.Port, "53")
	if cfg.Timeout <= 0 {
		cfg.Timeout = 3 * time.Second
	}
	if len(cfg.Resolvers) == 0 {
		own, err := dns.ClientConfigFromFile("/etc/resolv.conf")
		if err != nil || len(own.Servers) == 0 {
			// resolv.conf(5): without name servers the one on this machine is asked.
			own = &dns.ClientConfig{Servers: []string{"127.0.0.1"}, Port: "53"}
		}
		for _, s := range own.Servers {
			cfg.Resolvers = append(cfg.Resolvers, net.JoinHostPort(s, own.Port))
		}
	}
	if cfg.Exchange == nil {
		cfg.Exchange = overNetwork(cfg.Timeout)
	}
	return &Resolver{cfg: cfg}, nil
}

// overNetwork asks over UDP, and over TCP if the answer is too large for that.
func overNetwork(timeout time.Duration) Exchange {
	return func(ctx context.Context, server string, q *dns.Msg) (*dns.Msg, error) {
		client := dns.Client{Timeout: timeout, UDPSize: udpSize}
		m, _, err := client.ExchangeContext(ctx, q, server)
		if err == nil && m.Truncated {
			client.Net = "tcp"
			m, _, err = client.ExchangeContext(ctx, q, server)
		}
		return m, err
	}
}

// Bounds of one question: aliases that are followed, name servers that are asked, bytes of an answer over UDP (the
// size that passes everywhere, dnsflagday.net/2020).
const (
	maxAliases = 8
	maxServers = 4
	udpSize    = 1232
)

// errUnknown means that no name server answered.
var errUnknown = errors.New("no name server answered")

// TXT returns the texts of a name; none if there is no such name.
func (r *Resolver) TXT(ctx context.Context, name string) ([]string, error) {
	name = dns.Fqdn(name)
	for range maxAliases {
		m, err := r.askZone(ctx, name, dns.TypeTXT)
		if err != nil {
			return nil, err
		}
		texts, alias := textsOf(m, name)
		if len(texts) > 0 || alias == "" {
			return texts, nil
		}
		name = alias
	}
	return nil, fmt.Errorf("%s: too many aliases", name)
}

// textsOf returns the texts that an answer has for a name, or the alias that it ends at.
func textsOf(m *dns.Msg, name string) (texts []string, alias string) {
	at := name
	for range m.Answer { // as many aliases as there may be
		for _, rr := range m.Answer {
			if c, ok := rr.(*dns.CNAME); ok && strings.EqualFold(c.Hdr.Name, at) {
				at = c.Target
			}
		}
	}
	for _, rr := range m.Answer {
		if t, ok := rr.(*dns.TXT); ok && strings.EqualFold(t.Hdr.Name, at) {
			texts = append(texts, strings.Join(t.Txt, ""))
		}
	}
	if len(texts) == 0 && !strings.EqualFold(at, name) {
		return nil, at
	}
	return texts, ""
}

// Addresses are the addresses that a name leads to, aliases followed.
func (r *Resolver) Addresses(ctx context.Context, name string) ([]string, error) {
	var out []string
	for _, typ := range []uint16{dns.TypeA, dns.TypeAAAA} {
		m, err := r.askResolvers(ctx, dns.Fqdn(name), typ)
		if err != nil {
			return nil, err
		}
		for _, rr := range m.Answer {
			switch rr := rr.(type) {
			case *dns.A:
				out = append(out, rr.A.String())
			case *dns.AAAA:
				out = append(out, rr.AAAA.String())
			}
		}
	}
	return out, nil
}

// askZone asks the name servers of a name's zone, or the resolvers.
func (r *Resolver) askZone(ctx context.Context, name string, typ uint16) (*dns.Msg, error) {
	if r.cfg.Authoritative {
		for _, server := range r.nameServers(ctx, name) {
			if m, err := r.exchange(ctx, server, name, typ, false); err == nil && (m.Authoritative || len(m.Answer) > 0) {
				return m, nil
			}
		}
	}
	return r.askResolvers(ctx, name, typ)
}

// nameServers returns the addresses of the name servers of the closest zone above a name.
func (r *Resolver) nameServers(ctx context.Context, name string) []string {
	for zone := name; zone != "." && zone != ""; {
		m, err := r.askResolvers(ctx, zone, dns.TypeNS)
		if err != nil {
			return nil
		}
		var out []string
		for _, rr := range m.Answer {
			ns, ok := rr.(*dns.NS)
			if !ok || !strings.EqualFold(ns.Hdr.Name, zone) {
				continue
			}
			addresses, err := r.Addresses(ctx, ns.Ns)
			if err != nil {
				continue
			}
			for _, a := range addresses {
				if r.allowed(a) && len(out) < maxServers {
					out = append(out, net.JoinHostPort(a, r.cfg.Port))
				}
			}
		}
		if len(out) > 0 {
			return out
		}
		_, zone, _ = strings.Cut(zone, ".")
	}
	return nil
}

// allowed refuses name servers in this installation's own networks, because the customer's zone chooses the
// addresses.
func (r *Resolver) allowed(address string) bool {
	return r.cfg.Local || prego.CheckPublicAddress(address) == nil
}

func (r *Resolver) askResolvers(ctx context.Context, name string, typ uint16) (*dns.Msg, error) {
	err := errUnknown
	for _, server := range r.cfg.Resolvers {
		var m *dns.Msg
		if m, err = r.exchange(ctx, server, name, typ, true); err == nil {
			return m, nil
		}
	}
	return nil, err
}

// exchange asks one server. The absence of a name is an answer; the server's inability to answer is an error.
func (r *Resolver) exchange(ctx context.Context, server, name string, typ uint16, recursive bool) (*dns.Msg, error) {
	q := new(dns.Msg).SetQuestion(name, typ)
	q.RecursionDesired = recursive
	q.SetEdns0(udpSize, false)
	m, err := r.cfg.Exchange(ctx, server, q)
	what := dns.TypeToString[typ] + " of " + strings.TrimSuffix(name, ".")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return nil, fmt.Errorf("%s: the name server answered %s", what, dns.RcodeToString[m.Rcode])
	}
	return m, nil
}
