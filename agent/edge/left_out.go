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

func partOf(content any) part {
	switch v := content.(type) {
	case wire.EdgeCertificateRef:
		return part{Kind: wire.EdgeCertificatePart, Name: v.ID}
	case wire.EdgeHost:
		return part{wire.EdgeHostPart, v.Name, v.Address, v.Port}
	case wire.EdgeChallenge:
		return part{wire.EdgeChallengePart, v.Host, v.Token, 0}
	case wire.EdgeTCP:
		return part{wire.EdgeTCPPart, "", v.Address, v.Port}
	}
	return part{Kind: wire.EdgePassingPart, Name: content.(string)}
}

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

// contents are the parts of a document in their order.
func contents(d wire.EdgeDocument) (all []any) {
	return slices.Concat(anys(d.Certificates), anys(d.Hosts), anys(d.Challenges), anys(d.Passing), anys(d.TCP))
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = v
	}
	return out
}

func byPart(d wire.EdgeDocument) map[part]any {
	out := map[part]any{}
	for _, v := range contents(d) {
		out[partOf(v)] = v
	}
	return out
}

// with returns a document with changed parts: other returns for each part whether it differs from d, and its
// replacement, if any.
func with(d wire.EdgeDocument, other func(part) (instead any, differs bool)) wire.EdgeDocument {
	all := contents(d)
	d.Certificates, d.Hosts, d.Challenges, d.TCP, d.Passing = nil, nil, nil, nil, nil
	for _, v := range all {
		if instead, differs := other(partOf(v)); differs {
			v = instead
		}
		switch v := v.(type) {
		case wire.EdgeCertificateRef:
			d.Certificates = append(d.Certificates, v)
		case wire.EdgeHost:
			d.Hosts = append(d.Hosts, v)
		case wire.EdgeChallenge:
			d.Challenges = append(d.Challenges, v)
		case wire.EdgeTCP:
			d.TCP = append(d.TCP, v)
		case string:
			d.Passing = append(d.Passing, v)
		}
	}
	return d
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

// word is what can be written to the servers' files, and name one, as it is.
var word = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$`)

// checkName refuses names that no browser asks for and no authority certifies, and other spellings: files are found by
// their names. Nothing of a name is a path, a wildcard or a placeholder.
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

// check refuses a part whose form no server takes.
func check(content any) error {
	switch v := content.(type) {
	case wire.EdgeHost:
		if err := checkName(v.Name); err != nil {
			return err
		}
		if v.Route != "" && !word.MatchString(v.Route) {
			return fmt.Errorf("route %q is no id", v.Route)
		}
		if v.Site != "" && !word.MatchString(v.Site) {
			return fmt.Errorf("site %q is no host name", v.Site)
		}
		return errors.Join(checkListen(v.Address, v.Port), checkUpstreams(v.Upstreams), checkUpstreams(v.Via))
	case wire.EdgeTCP:
		if !word.MatchString(v.Route) {
			return fmt.Errorf("route %q is no id", v.Route)
		}
		if v.Port == 0 {
			return errors.New("there is no port 0")
		}
		return errors.Join(checkListen(v.Address, v.Port), checkUpstreams(v.Upstreams))
	case wire.EdgeChallenge:
		if err := checkName(v.Host); err != nil {
			return err
		}
		if !token.MatchString(v.Token) || !keyAuthorization.MatchString(v.KeyAuthorization) {
			return errors.New("its token or answer is not base64url")
		}
	case string:
		return checkListen(v, 0)
	}
	return nil
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

// malformed are the parts of a document whose form no server takes.
func malformed(d wire.EdgeDocument) map[part]refusal {
	out := map[part]refusal{}
	for _, v := range contents(d) {
		if err := check(v); err != nil {
			out[partOf(v)] = refusalOf(v, err.Error())
		}
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
	for _, v := range contents(d) {
		p := partOf(v)
		at := port{p.Address, p.Port}
		if p.Kind != wire.EdgeHostPart && p.Kind != wire.EdgeTCPPart {
			continue
		}
		if had[at] || at.number == 80 || at.number == 443 || at.address != "" && (e.settings.Own == nil || !e.settings.Own(at.address)) {
			continue
		}
		if _, left := out[p]; left {
			continue
		}
		if _, known := tried[at]; !known {
			tried[at] = e.tryPort(at.address, at.number)
		}
		if tried[at] != nil {
			out[p] = refusalOf(v, tried[at].Error())
		}
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
func refusalOf(content any, reason string) refusal {
	r := refusal{part: partOf(content), Reason: reason}
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
	if c.Refused != "" {
		return errors.New(c.Refused)
	}
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
	before, after := byPart(e.document), byPart(d)
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
	before, content := byPart(e.served), byPart(d)
	var suspects []part
	good := map[part]bool{}
	for _, v := range contents(d) {
		p := partOf(v)
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
		return e.apply(ctx, trial, saved{trial, e.leftOut, e.closed}, fetched)
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
				out[p] = refusalOf(content[p], "so much of the document is refused that it has not been tried yet")
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
			r := refusalOf(content[parts[0]], refused.Reason)
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
