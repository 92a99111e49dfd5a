package acme_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/internal/acme"
)

// limiter is between us and the authority: it answers orders itself, or loses the answer.
type limiter struct {
	next http.RoundTripper

	mu     sync.Mutex
	status int
	body   string
	loses  int

	asked, lost atomic.Int32
}

func (l *limiter) say(status int, body string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status, l.body = status, body
}

func (l *limiter) lose(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loses = n
}

// RoundTrip implements http.RoundTripper.
func (l *limiter) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(r.URL.Path, "/order-plz") {
		return l.next.RoundTrip(r)
	}
	l.asked.Add(1)
	l.mu.Lock()
	status, body, lose := l.status, l.body, l.loses > 0
	l.loses = max(0, l.loses-1)
	l.mu.Unlock()
	if status != 0 {
		return &http.Response{
			StatusCode: status, Request: r, Body: io.NopCloser(strings.NewReader(body)),
			Header: http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"7200"}},
		}, nil
	}
	resp, err := l.next.RoundTrip(r)
	if err == nil && lose {
		_ = resp.Body.Close()
		l.lost.Add(1)
		return nil, io.ErrUnexpectedEOF
	}
	return resp, err
}

// through reaches the authority through a limiter.
func (b *testBundle) through(l *limiter) *acme.Authority {
	b.t.Helper()
	l.next = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: b.pebble.Roots(), MinVersion: tls.VersionTLS12}}
	a, err := acme.New(acme.Config{Directory: b.pebble.Directory, UserAgent: "prego-test", Transport: l})
	require.NoError(b.t, err)
	return a
}
