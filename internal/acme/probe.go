package acme

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

const (
	// maxHops is how many redirects are followed; Let's Encrypt follows ten.
	maxHops      = 10
	probeTimeout = 10 * time.Second
	maxKeyAuth   = 1024 // bytes; the expected answer has under 128
)

// ProbeConfig configures how names are looked up and reached.
type ProbeConfig struct {
	Port     int    // where challenges are answered; 80 except in tests
	Resolver string // address and port of a name server; "" for the system's
	// AnyAddress lets names lead to addresses that are not public; only for simulations.
	AnyAddress bool
	// Transport sends requests; nil for a transport that looks names up and dials.
	Transport http.RoundTripper
}

// Probe requests answers to challenges over HTTP as an authority does (RFC 8555 §8.3). The target of a customer's
// name is not trusted: only public addresses and the usual ports are called, and no part of the answer is shown.
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
			// A redirect to HTTPS is followed with any certificate, as authorities do.
			TLSClientConfig: &tls.Config{
				InsecureSkipVerify: true, //nolint:gosec // public data, compared
				MinVersion:         tls.VersionTLS12,
			},
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

// errAddress means that no authority can reach the name's address.
var errAddress = errors.New("it leads to an address that is not public")

// allowed checks an address when it is dialled: a name may lead to another address the next time it is looked up.
func (p *Probe) allowed(_, address string, _ syscall.RawConn) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if port != strconv.Itoa(p.cfg.Port) && port != "80" && port != "443" {
		return errors.New("it redirects to port " + port)
	}
	if !p.cfg.AnyAddress && prego.CheckPublicAddress(host) != nil {
		return errAddress
	}
	return nil
}

// Answer returns the answer for a token, without surrounding white space.
func (p *Probe) Answer(ctx context.Context, name, token string) (string, error) {
	host := name
	if p.cfg.Port != 80 {
		host = net.JoinHostPort(name, strconv.Itoa(p.cfg.Port))
	}
	url := "http://" + host + "/.well-known/acme-challenge/" + token
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
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
		return "", &tenant.IssueError{Class: tenant.IssueNotServed, Name: name, Message: fmt.Sprintf(
			"http://%s/.well-known/acme-challenge/ answers %d", name, resp.StatusCode)}
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
	return &tenant.IssueError{
		Class: tenant.IssueNotServed, Name: name, Message: name + " " + strings.TrimPrefix(why, "it "),
	}
}
