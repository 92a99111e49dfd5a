package acme

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prego/prego/tenant"
)

const (
	// maxHops is how many redirects are followed; Let's Encrypt follows ten.
	maxHops      = 10
	probeTimeout = 10 * time.Second
	maxKeyAuth   = 1024 // bytes; what is expected has under 128
)

// ProbeConfig says how names are looked up and reached.
type ProbeConfig struct {
	Port     int    // where challenges are answered; 80 but in tests
	Resolver string // address and port of a name server; "" for the system's
	// AnyAddress lets names lead to addresses that are not public; only for simulations.
	AnyAddress bool
	// Transport sends requests; nil for one that looks names up and dials.
	Transport http.RoundTripper
}

// Probe asks for answers to challenges over HTTP as an authority does (RFC 8555 §8.3). What
// a customer's name leads to is not trusted: only public addresses are called, only the
// usual ports, and nothing of what is answered is shown.
type Probe struct {
	cfg    ProbeConfig
	client *http.Client
}

// NewProbe makes a probe.
func NewProbe(cfg ProbeConfig) *Probe {
	p := &Probe{cfg: cfg}
	dialer := &net.Dialer{Timeout: probeTimeout / 2}
	if cfg.Resolver != "" {
		dialer.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, cfg.Resolver)
		}}
	}
	dialer.Control = p.allowed
	p.client = &http.Client{
		Timeout: probeTimeout,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, DisableKeepAlives: true, ResponseHeaderTimeout: probeTimeout,
			// A redirect to HTTPS is followed whatever certificate is there, as authorities do.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // what is fetched is public, and compared
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= maxHops {
				return errors.New("it redirects too often")
			}
			if r.URL.Scheme != "http" && r.URL.Scheme != "https" {
				return errors.New("it redirects to " + r.URL.Scheme)
			}
			return nil
		},
	}
	if cfg.Transport != nil {
		p.client.Transport = cfg.Transport
	}
	return p
}

// errAddress says that a name leads where no authority can look.
var errAddress = errors.New("it leads to an address that is not public")

// allowed checks an address when it is dialled: a name may lead to another one the next
// time it is looked up.
func (p *Probe) allowed(_, address string, _ syscall.RawConn) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if port != strconv.Itoa(p.cfg.Port) && port != "80" && port != "443" {
		return errors.New("it redirects to port " + port)
	}
	if !p.cfg.AnyAddress && !isPublic(host) {
		return errAddress
	}
	return nil
}

// Answer is what is served for a token; surrounding white space is not part of it.
func (p *Probe) Answer(ctx context.Context, name, token string) (string, error) {
	host := name
	if p.cfg.Port != 80 {
		host = net.JoinHostPort(name, strconv.Itoa(p.cfg.Port))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/.well-known/acme-challenge/"+token, nil)
	if err != nil {
		return "", fmt.Errorf("ask %s: %w", name, err)
	}
	req.Header.Set("User-Agent", "prego")
	resp, err := p.client.Do(req)
	if err != nil {
		return "", notServed(name, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return "", &tenant.IssueError{Class: tenant.IssueNotServed, Name: name, Message: fmt.Sprintf("http://%s/.well-known/acme-challenge/ answers %d", name, resp.StatusCode)}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKeyAuth))
	if err != nil {
		return "", notServed(name, err)
	}
	return strings.TrimSpace(string(body)), nil
}

func notServed(name string, err error) error {
	why := "can't be reached: " + clean(err.Error())
	var dns *net.DNSError
	switch {
	case errors.Is(err, errAddress):
		why = errAddress.Error()
	case errors.As(err, &dns) && dns.IsNotFound:
		why = "has no address in the DNS"
	}
	return &tenant.IssueError{Class: tenant.IssueNotServed, Name: name, Message: name + " " + strings.TrimPrefix(why, "it ")}
}

// isPublic reports whether an authority could look at an address: it is none of this
// network, this host or a private one.
func isPublic(host string) bool {
	a, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	a = a.Unmap()
	return a.IsGlobalUnicast() && !a.IsPrivate() && !sharedRange.Contains(a)
}

// sharedRange is that of carriers' translation (RFC 6598), which clouds use inside, too.
var sharedRange = netip.MustParsePrefix("100.64.0.0/10")
