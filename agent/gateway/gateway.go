// Package gateway is a client of the agent gateway, and an identity in use. It is for the process that faces the
// network, and for the process that gets the identity at the first boot, as root.
package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// Refusal is an error response of a gateway.
type Refusal struct {
	wire.Problem
	RetryAfter time.Duration
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("the gateway answered %d %s: %s", r.Status, r.Code, r.Detail)
}

// Client is a client of the agent gateway.
type Client struct {
	base   string
	Client *http.Client
}

// New returns a client that trusts bundle, presents cert, and calls from addr ("" for any of the host's addresses).
func New(h *host.Host, bundle string, cert func() (*tls.Certificate, error), addr string) (*Client, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(bundle)) {
		return nil, errors.New("the gateway's CA bundle holds no certificate")
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	if addr != "" {
		ip := net.ParseIP(addr)
		if ip == nil {
			return nil, fmt.Errorf("%q is not an address to call from", addr)
		}
		dialer.LocalAddr = &net.TCPAddr{IP: ip}
	}
	return &Client{
		base: strings.TrimSuffix(h.Config.GatewayURL, "/"),
		Client: &http.Client{
			Timeout: 20 * time.Second,
			Transport: &http.Transport{
				DialContext: dialer.DialContext, TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 75 * time.Second,
				MaxIdleConnsPerHost: 2,
				// HTTP/1.1: a connection whose request timed out is closed immediately. HTTP/2 would keep using a
				// silently dead connection until the system noticed, a quarter of an hour later.
				TLSClientConfig: &tls.Config{
					MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: h.Config.GatewayServerName,
					GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert() },
				},
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Close closes the connections that nothing uses.
func (g *Client) Close() { g.Client.CloseIdleConnections() }

// send sends a request. The answer may take so long, or with 0 as long as ctx lives.
func (g *Client) send(
	ctx context.Context, method, path, token, contentType string, body []byte, within time.Duration,
) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, g.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	// Every call is safe to repeat: if the gateway was just closing the connection, the request is sent again
	// immediately. The empty value enables that, and is not sent.
	req.Header["Idempotency-Key"] = []string{}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := *g.Client
	client.Timeout = within
	resp, err := client.Do(req)
	if err != nil {
		g.Close() // the idle ones may be dead too: dial for the next try
	}
	return resp, err
}

// Post sends JSON, or raw bytes of the given type, and decodes JSON into out if it is not nil.
func (g *Client) Post(ctx context.Context, path, token, contentType string, body []byte, out any) error {
	resp, err := g.send(ctx, http.MethodPost, path, token, contentType, body, g.Client.Timeout)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := answerOf(resp, 1<<20, out); err != nil {
		var refused *Refusal
		if !errors.As(err, &refused) {
			g.Close()
		}
		return err
	}
	return nil
}

// answerOf decodes an answer into out, if it is not nil, or returns the *Refusal.
func answerOf(resp *http.Response, limit int64, out any) error {
	answer, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if err != nil {
		return fmt.Errorf("read the gateway's answer: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		r := &Refusal{}
		if json.Unmarshal(answer, &r.Problem) != nil || r.Status == 0 {
			r.Problem = wire.Problem{Status: resp.StatusCode, Title: http.StatusText(resp.StatusCode)}
		}
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
			r.RetryAfter = time.Duration(min(s, 300)) * time.Second
		}
		return r
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("the gateway's answer: %w", err)
	}
	return nil
}

// PostJSON sends JSON and decodes JSON into out if it is not nil.
func (g *Client) PostJSON(ctx context.Context, path, token string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return g.Post(ctx, path, token, "application/json", body, out)
}

// Backoff is full jitter: a random time up to a bound that doubles.
type Backoff struct {
	Base, Cap time.Duration
	n         int
}

// Next is the time to wait before the next try.
func (b *Backoff) Next(atLeast time.Duration) time.Duration {
	bound := b.Base << min(b.n, 20)
	if bound > b.Cap || bound <= 0 {
		bound = b.Cap
	}
	b.n++
	return max(atLeast, time.Duration(rand.Int64N(int64(bound)+1)))
}

// Reset begins again with short times.
func (b *Backoff) Reset() { b.n = 0 }

// downloadTime bounds the download of a program.
const downloadTime = 5 * time.Minute

// Download asks for a file, which the caller closes.
func (g *Client) Download(ctx context.Context, path, token string) (io.ReadCloser, error) {
	resp, err := g.send(ctx, http.MethodGet, path, token, "", nil, downloadTime)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }()
		return nil, answerOf(resp, 1<<20, nil)
	}
	return resp.Body, nil
}

// Poll gets JSON that may take as long as wire.EdgeWait to come. changed is false when there is nothing new.
func (g *Client) Poll(ctx context.Context, path, token string, out any) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, wire.EdgeWait+20*time.Second)
	defer cancel()
	resp, err := g.send(ctx, http.MethodGet, path, token, "", nil, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusNotModified {
		return false, nil
	}
	if err := answerOf(resp, maxDocument, out); err != nil {
		return false, fmt.Errorf("document: %w", err)
	}
	return true, nil
}

// maxDocument bounds a document, in bytes: 10,000 hosts take 2 MB.
const maxDocument = 64 << 20
