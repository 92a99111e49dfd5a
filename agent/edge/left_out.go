package edge

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/idna"

	"github.com/prego/prego/agent/wire"
)

// A document is made of parts. A part that Caddy or HAProxy refuses is left out and reported, so that it
// costs only what it is about: both servers refuse a whole configuration for one bad line.

// part identifies a host, a challenge, a certificate, a forwarded port, or an edge to trust.
type part struct {
	Kind wire.EdgePart `json:"kind"`
	// Name is a host, the id of a certificate, or an address of wire.EdgePassing.
	Name    string `json:"name,omitempty"`
	Address string `json:"address,omitempty"` // to listen on; the token of a challenge
	Port    int    `json:"port,omitempty"`
}

func hostPart(h wire.EdgeHost) part { return part{wire.EdgeHostPart, h.Name, h.Address, h.Port} }

func challengePart(c wire.EdgeChallenge) part {
	return part{wire.EdgeChallengePart, c.Host, c.Token, 0}
}

func certificatePart(c wire.EdgeCertificateRef) part {
	return part{Kind: wire.EdgeCertificatePart, Name: c.ID}
}

func tcpPart(t wire.EdgeTCP) part { return part{wire.EdgeTCPPart, "", t.Address, t.Port} }

func passingPart(address string) part { return part{Kind: wire.EdgePassingPart, Name: address} }

// refusal is why a part is left out.
type refusal struct {
	part
	Tenant string `json:"tenant,omitempty"`
	Route  string `json:"route,omitempty"`
	Reason string `json:"reason"`
	// Tried is when the servers refused it last. Zero if it was not tried: its form is wrong, or others
	// were refused first.
	Tried time.Time `json:"tried,omitzero"`
}

func (r refusal) report() wire.EdgeLeftOut {
	// The end of a long reason is the cause; its beginning is the position in the configuration.
	reason := r.Reason[max(len(r.Reason)-wire.MaxEdgePartReason, 0):]
	out := wire.EdgeLeftOut{Kind: r.Kind, Name: r.Name, Tenant: r.Tenant, Route: r.Route, Reason: reason}
	if r.Kind == wire.EdgeTCPPart {
		out.Name = net.JoinHostPort(r.Address, strconv.Itoa(r.Port))
	}
	out.Name = out.Name[:min(len(out.Name), wire.MaxEdgePartName)]
	return out
}

// partsOf are the parts of a document in their order.
func partsOf(d wire.EdgeDocument) (keys []part, content map[part]any) {
	content = map[part]any{}
	add := func(p part, v any) {
		if _, twice := content[p]; !twice {
			keys = append(keys, p)
		}
		content[p] = v
	}
	for _, c := range d.Certificates {
		add(certificatePart(c), c)
	}
	for _, h := range d.Hosts {
		add(hostPart(h), h)
	}
	for _, c := range d.Challenges {
		add(challengePart(c), c)
	}
	for _, a := range d.Passing {
		add(passingPart(a), a)
	}
	for _, t := range d.TCP {
		add(tcpPart(t), t)
	}
	return keys, content
}

// with returns a document with changed parts: other returns for each part whether it differs from d, and its
// replacement, if any.
func with(d wire.EdgeDocument, other func(part) (instead any, differs bool)) wire.EdgeDocument {
	d.Certificates = choose(d.Certificates, certificatePart, other)
	d.Hosts = choose(d.Hosts, hostPart, other)
	d.Challenges = choose(d.Challenges, challengePart, other)
	d.TCP = choose(d.TCP, tcpPart, other)
	d.Passing = choose(d.Passing, passingPart, other)
	return d
}

func choose[T any](list []T, key func(T) part, other func(part) (any, bool)) (out []T) {
	for _, v := range list {
		instead, differs := other(key(v))
		switch {
		case !differs:
			out = append(out, v)
		case instead != nil:
			out = append(out, instead.(T))
		}
	}
	return out
}

// without leaves parts out. Of a certificate that can't be used, the previous one is.
func without(d wire.EdgeDocument, out map[part]refusal, certs map[string]wire.EdgeCertificate) wire.EdgeDocument {
	if len(out) == 0 {
		return d
	}
	return with(d, func(p part) (any, bool) {
		if _, left := out[p]; !left {
			return nil, false
		}
		if c, ok := certs[p.Name]; ok && p.Kind == wire.EdgeCertificatePart {
			return c.EdgeCertificateRef, true
		}
		return nil, true
	})
}

// word is what can be written to the servers' files as it is.
var word = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`)

// checkName checks a host name as Caddy does (modules/caddyhttp/matchers.go, MatchHost.Provision): it converts each
// name to ASCII and refuses its configuration if it can't. Nothing of a name is a wildcard or a placeholder.
func checkName(name string) error {
	if !word.MatchString(name) {
		return fmt.Errorf("%q is no host name", name)
	}
	ascii, err := idna.ToASCII(name)
	if err == nil && strings.ToLower(ascii) != name {
		err = fmt.Errorf("it is another spelling of %q", ascii)
	}
	if err != nil {
		return fmt.Errorf("%q is no host name: %w", name, err)
	}
	return nil
}

func checkHost(h wire.EdgeHost) error {
	if err := checkName(h.Name); err != nil {
		return err
	}
	if h.Route != "" && !word.MatchString(h.Route) {
		return fmt.Errorf("route %q is no id", h.Route)
	}
	if h.Site != "" && !word.MatchString(h.Site) {
		return fmt.Errorf("site %q is no host name", h.Site)
	}
	return errors.Join(checkListen(h.Address, h.Port), checkUpstreams(h.Upstreams), checkUpstreams(h.Via))
}

func checkTCP(t wire.EdgeTCP) error {
	if !word.MatchString(t.Route) {
		return fmt.Errorf("route %q is no id", t.Route)
	}
	if t.Port == 0 {
		return errors.New("there is no port 0")
	}
	return errors.Join(checkListen(t.Address, t.Port), checkUpstreams(t.Upstreams))
}

func checkListen(address string, port int) error {
	if port < 0 || port > 65535 {
		return fmt.Errorf("there is no port %d", port)
	}
	if address == "" {
		return nil
	}
	a, err := netip.ParseAddr(address)
	if err != nil || a.Zone() != "" {
		return fmt.Errorf("%q is no address", address)
	}
	return nil
}

func checkUpstreams(list []wire.EdgeUpstream) error {
	for _, u := range list {
		if _, err := addrPort(u.Address); err != nil {
			return err
		}
	}
	return nil
}

// Tokens are base64url (RFC 8555 §8.1); anything else could be a pattern or a placeholder to Caddy.
var (
	token            = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	keyAuthorization = regexp.MustCompile(`^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$`)
)

func checkChallenge(c wire.EdgeChallenge) error {
	if err := checkName(c.Host); err != nil {
		return err
	}
	if !token.MatchString(c.Token) || !keyAuthorization.MatchString(c.KeyAuthorization) {
		return errors.New("its token or answer is not base64url")
	}
	return nil
}

// malformed are the parts of a document whose form no server takes.
func malformed(d wire.EdgeDocument) map[part]refusal {
	out := map[part]refusal{}
	add := func(p part, content any, err error) {
		if err != nil {
			out[p] = refusalOf(p, content, err.Error())
		}
	}
	for _, h := range d.Hosts {
		add(hostPart(h), h, checkHost(h))
	}
	for _, c := range d.Challenges {
		add(challengePart(c), c, checkChallenge(c))
	}
	for _, t := range d.TCP {
		add(tcpPart(t), t, checkTCP(t))
	}
	for _, a := range d.Passing {
		add(passingPart(a), a, checkListen(a, 0))
	}
	return out
}

// busy are parts that listen on a port, new on this host, that another program has. HAProxy stops taking
// connections while it tries to get such a port, so it is not even asked to.
func (e *Edge) busy(d wire.EdgeDocument, out map[part]refusal) {
	type port struct {
		address string
		number  int
	}
	had := map[port]bool{{number: 80}: true, {number: 443}: true, {}: true}
	for _, h := range e.served.Hosts {
		had[port{h.Address, h.Port}] = true
	}
	for _, t := range e.served.TCP {
		had[port{t.Address, t.Port}] = true
	}
	tried := map[port]error{}
	try := func(p part, content any, at port) {
		if had[at] || at.number == 80 || at.number == 443 || at.address != "" && (e.settings.Own == nil || !e.settings.Own(at.address)) {
			return
		}
		if _, left := out[p]; left {
			return
		}
		if _, known := tried[at]; !known {
			tried[at] = e.tryPort(at.address, at.number)
		}
		if tried[at] != nil {
			out[p] = refusalOf(p, content, tried[at].Error())
		}
	}
	for _, h := range d.Hosts {
		try(hostPart(h), h, port{h.Address, h.Port})
	}
	for _, t := range d.TCP {
		try(tcpPart(t), t, port{t.Address, t.Port})
	}
}

// tryPort reports whether another program has a port. An unprivileged agent can't test ports below 1024.
func (s Settings) tryPort(address string, port int) error {
	at := []string{address}
	if address == "" && len(s.Listen) > 0 {
		at = at[:0]
		for _, a := range s.Listen {
			at = append(at, a.String())
		}
	}
	for _, a := range at {
		l, err := net.Listen("tcp", net.JoinHostPort(a, strconv.Itoa(port))) //nolint:noctx // it does not block
		switch {
		case err == nil:
			_ = l.Close()
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("another program of the edge has port %d", port)
		}
	}
	return nil
}

// refusalOf is a refusal with the owner of the part.
func refusalOf(p part, content any, reason string) refusal {
	r := refusal{part: p, Reason: reason}
	switch v := content.(type) {
	case wire.EdgeHost:
		r.Tenant, r.Route = v.Tenant, v.Route
	case wire.EdgeTCP:
		r.Route = v.Route
	}
	return r
}

// checkPair checks a certificate and its key as Caddy does (modules/caddytls/pemloader.go).
func checkPair(c wire.EdgeCertificate) error {
	_, err := tls.X509KeyPair([]byte(c.Chain), []byte(c.Key))
	return err
}

const (
	// retryRefused is how long a part that the servers refused is left out before it is tried again,
	// unless it changes: the cause may be gone, such as another program that had the port.
	retryRefused = 10 * time.Minute
	// maxTries bounds how often configurations are loaded to find the parts that are refused: one bad
	// part of 10,000 takes 28.
	maxTries = 64
)

// remembered are parts that the servers refused lately, and that are in d as they were then.
func (e *Edge) remembered(d wire.EdgeDocument, now time.Time) (out []refusal) {
	if !slices.ContainsFunc(e.leftOut, func(r refusal) bool { return !r.Tried.IsZero() }) {
		return nil
	}
	_, before := partsOf(e.document)
	_, after := partsOf(d)
	for _, r := range e.leftOut {
		content, there := after[r.part]
		if there && !r.Tried.IsZero() && now.Sub(r.Tried) < retryRefused && reflect.DeepEqual(content, before[r.part]) {
			out = append(out, r)
		}
	}
	return out
}

// search finds the parts of a document that the servers refuse, and adds them to out. It loads the served document
// with more and more of the new parts: other requests are answered as before all the while. Only new or changed parts
// are suspected. If the rest is also refused, so is the document.
func (e *Edge) search(ctx context.Context, d wire.EdgeDocument, out map[part]refusal, fetched []wire.EdgeCertificate) error {
	_, before := partsOf(e.served)
	keys, content := partsOf(d)
	var suspects []part
	good := map[part]bool{}
	for _, p := range keys {
		if _, left := out[p]; left {
			continue
		}
		if reflect.DeepEqual(content[p], before[p]) {
			good[p] = true
		} else {
			suspects = append(suspects, p)
		}
	}
	version := e.document.Version // which stays until all that can be served is
	load := func(more []part) error {
		in := map[part]bool{}
		for _, p := range more {
			in[p] = true
		}
		trial := with(d, func(p part) (any, bool) { return before[p], !good[p] && !in[p] })
		trial.Version = version
		return e.apply(ctx, trial, trial, e.leftOut, fetched)
	}
	if err := load(nil); err != nil {
		return err
	}
	tries := 1
	var try func(parts []part) error
	try = func(parts []part) error {
		if len(parts) == 0 {
			return nil
		}
		if tries++; tries > maxTries {
			for _, p := range parts {
				out[p] = refusalOf(p, content[p], "so much of the document is refused that it has not been tried yet")
			}
			return nil
		}
		err := load(parts)
		var refused *RefusedError
		switch {
		case err == nil:
			for _, p := range parts {
				good[p] = true
			}
			return nil
		case !errors.As(err, &refused):
			return err
		case len(parts) == 1:
			r := refusalOf(parts[0], content[parts[0]], refused.Reason)
			r.Tried = time.Now()
			out[parts[0]] = r
			return nil
		}
		half := len(parts) / 2
		if err := try(parts[:half]); err != nil {
			return err
		}
		return try(parts[half:])
	}
	// What HAProxy refuses is almost always a port that it forwards. It takes seconds to refuse one, so these are
	// not tried with each half of the rest.
	ports := slices.IndexFunc(suspects, func(p part) bool { return p.Kind == wire.EdgeTCPPart })
	if ports < 0 {
		ports = len(suspects)
	}
	if err := try(suspects[:ports]); err != nil {
		return err
	}
	return try(suspects[ports:])
}

// LeftOut are the parts of the document that are not served because the servers refuse them.
func (e *Edge) LeftOut() (out []wire.EdgeLeftOut) {
	for _, r := range e.leftOut[:min(len(e.leftOut), wire.MaxEdgeLeftOut)] {
		out = append(out, r.report())
	}
	return out
}

// sorted are refusals in an order that depends on nothing else.
func sorted(out map[part]refusal) []refusal {
	list := make([]refusal, 0, len(out))
	for _, r := range out {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b refusal) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port))
	})
	return list
}
