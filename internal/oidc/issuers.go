package oidc

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

// Issuers verifies tokens of the issuers that service accounts trust. Customers name them, so that only addresses of
// the internet are called, by TLS.
type Issuers struct {
	client  *http.Client
	private bool // also private addresses, without TLS

	mu sync.Mutex
	of map[string]*issuer
}

// mostIssuers is how many issuers are remembered.
const mostIssuers = 1000

// NewIssuers calls nobody. With private, issuers of this host and of private networks are called also, as tests need.
func NewIssuers(private bool) *Issuers {
	d := net.Dialer{Timeout: patience, Control: func(_, address string, _ syscall.RawConn) error {
		if at, err := netip.ParseAddrPort(address); !private && (err != nil || !public(at.Addr())) {
			return errors.New("the address of the issuer is not of the internet")
		}
		return nil
	}}
	return &Issuers{private: private, of: map[string]*issuer{}, client: &http.Client{
		Timeout:       patience,
		Transport:     limited{&http.Transport{DialContext: d.DialContext, TLSHandshakeTimeout: patience, IdleConnTimeout: time.Minute, MaxIdleConns: 100}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// shared are networks that are neither private nor of the internet: of carriers (RFC 6598), translated IPv4 (RFC 6052).
var shared = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("0.0.0.0/8")}

func public(a netip.Addr) bool {
	a = a.Unmap()
	for _, p := range shared {
		if p.Contains(a) {
			return false
		}
	}
	return a.IsGlobalUnicast() && !a.IsPrivate()
}

// Check refuses the URL of an issuer that Identity would not call.
func (s *Issuers) Check(issuer string) error {
	u, err := url.Parse(issuer)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && (!s.private || u.Scheme != "http") {
		return prego.Invalid("issuer", "must be the URL of an issuer, such as https://token.actions.githubusercontent.com")
	}
	return nil
}

// Identity returns what a token of an issuer for an audience vouches for.
func (s *Issuers) Identity(ctx context.Context, raw, issuer, audience string) (access.Identity, error) {
	if err := s.Check(issuer); err != nil {
		return access.Identity{}, err
	}
	t, err := s.issuer(issuer).verify(ctx, raw, audience)
	if err != nil {
		return access.Identity{}, err
	}
	return identity(t, "")
}

func (s *Issuers) issuer(at string) *issuer {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.of[at]
	if i == nil {
		for other := range s.of {
			if len(s.of) < mostIssuers {
				break
			}
			delete(s.of, other)
		}
		i = &issuer{url: at, client: s.client, now: time.Now}
		s.of[at] = i
	}
	return i
}
