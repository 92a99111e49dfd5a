package edge

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// from is a visitor with an address and trusted CAs, who knows one edge.
func (p *proxy) from(address string, trust *x509.CertPool) *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
			return d.DialContext(ctx, network, net.JoinHostPort("127.0.0.1", strconv.Itoa(p.settings.HTTPSPort)))
		},
		TLSClientConfig: &tls.Config{RootCAs: trust}, ForceAttemptHTTP2: true,
	}
	p.tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// TestASiteGoesToAnotherNetwork: visitors of the old edges are served by the new ones, during and after the switch,
// with their own address; the site's WebSockets are cut once and opened again.
func TestASiteGoesToAnotherNetwork(t *testing.T) {
	t.Parallel()
	const name, custom = "acme.eu.example.com", "www.acme.org"
	before, after := newEdge(t), newEdge(t)
	trust, refs, certs := certified(t, "*.eu.example.com", custom)
	keys := slices.Collect(maps.Values(certs))
	site := func(upstream string) []wire.EdgeHost {
		all := []wire.EdgeHost{serving(name, "t-1", upstream), serving(custom, "t-1", upstream)}
		all[1].Site = name
		return all
	}
	passed := func(to *testEdge) []wire.EdgeHost {
		all := site("")
		for i := range all {
			all[i].Upstreams, all[i].Via = nil, []wire.EdgeUpstream{{Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(to.proxy.settings.HTTPSPort))}}
		}
		return all
	}
	apply := func(e *testEdge, d wire.EdgeDocument) {
		t.Helper()
		d.Certificates = refs
		require.NoError(t, e.Apply(context.Background(), d, keys))
	}
	sockets := lines(t)
	at := func(which string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Upgrade") != "" {
				sockets(w, r)
				return
			}
			fmt.Fprintf(w, "%s host=%s for=%s proto=%s", which, r.Host, r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Forwarded-Proto"))
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	first, second := at("first"), at("second")
	apply(before, wire.EdgeDocument{Version: 1, Hosts: site(first)})
	apply(after, wire.EdgeDocument{Version: 1})

	get := func(c *http.Client, url string) (status int, body string) {
		t.Helper()
		resp, err := c.Get(url)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	old, young := before.from("127.0.0.9", trust), after.from("127.0.0.8", trust)
	_, body := get(old, "https://"+name+"/")
	require.Equal(t, "first host="+name+" for=127.0.0.9 proto=https", body)
	ws, said := before.socket(t, trust, name)
	said("before")

	// Somebody asks all the time, and knows the edge before alone.
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	var failed []string
	asked, again := 0, 0
	asking.Go(func() {
		c := before.from("127.0.0.7", trust)
		for tick := time.Tick(2 * time.Millisecond); ctx.Err() == nil; <-tick {
			var resp *http.Response
			var err error
			for range 2 { // Caddy's next configuration may close the listener of a waiting connection, at either edge (ADR 30)
				c.CloseIdleConnections()
				resp, err = c.Get("https://" + custom + "/x")
				if err == nil && resp.StatusCode == http.StatusServiceUnavailable {
					_ = resp.Body.Close()
				} else if !errors.Is(err, syscall.ECONNRESET) {
					break
				}
				again++
			}
			if asked++; err != nil {
				failed = append(failed, err.Error())
				continue
			}
			text, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK || !strings.HasSuffix(string(text), " host="+custom+" for=127.0.0.7 proto=https") {
				failed = append(failed, fmt.Sprint(resp.StatusCode, " ", string(text)))
			}
		}
	})
	// In the order of a move: the new edges know it, then those before pass it on.
	apply(after, wire.EdgeDocument{Version: 2, Hosts: site(second), Passing: []string{"127.0.0.1"}})
	_, body = get(old, "https://"+name+"/")
	require.Contains(t, body, "first host=")
	apply(before, wire.EdgeDocument{Version: 2, Hosts: passed(after)})
	for n := range 3 {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
			require.False(t, n > 0 && c.Reused, "each connection ends with its answer: the next request asks the DNS again")
		}})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+name+"/", nil)
		require.NoError(t, err)
		resp, err := old.Do(req)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, errors.Join(err, resp.Body.Close()))
		require.Equal(t, "second host="+name+" for=127.0.0.9 proto=https", string(text))
		time.Sleep(50 * time.Millisecond) // its end takes a moment to arrive
	}
	_, body = get(young, "https://"+name+"/")
	require.Equal(t, "second host="+name+" for=127.0.0.8 proto=https", body)
	time.Sleep(200 * time.Millisecond) // of requests
	stop()
	asking.Wait()
	require.Empty(t, failed, "of %d", asked)
	require.LessOrEqual(t, again, 2)
	require.Greater(t, asked, 10)

	// A WebSocket of before is cut, and the next one leads to the new place.
	require.NoError(t, ws.SetDeadline(time.Now().Add(20*time.Second)))
	_, err := ws.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	_, said = before.socket(t, trust, name)
	said("at its new place")

	// The header of others is not trusted, and the new edges count their own requests.
	lie, err := http.NewRequest(http.MethodGet, "https://"+name+"/", nil)
	require.NoError(t, err)
	lie.Header.Set(wire.HeaderVisitor, "203.0.113.1")
	lie.Header.Set("X-Forwarded-For", "203.0.113.1")
	resp, err := young.Do(lie)
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, errors.Join(err, resp.Body.Close()))
	require.Contains(t, string(text), " for=127.0.0.8 ")
	c := NewCounter(before.dir())
	c.Follow(before.Document())
	c.count([]byte(`{"request": {"host": "` + strings.ToUpper(name) + `"}, "status": 200}`))
	require.Empty(t, c.Take(1))

	// Two edges that pass on to each other: the request does not wait forever.
	apply(after, wire.EdgeDocument{Version: 3, Hosts: passed(before)})
	require.Eventually(t, func() bool { // Caddy may still take a request under its previous configuration
		young.CloseIdleConnections()
		resp, err := young.Get("https://" + name + "/")
		return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusServiceUnavailable
	}, 20*time.Second, 20*time.Millisecond)

	// Whoever has taken the address, and has no certificate of the name, sees no request.
	_, strangers, strange := certified(t, name)
	require.NoError(t, after.Apply(context.Background(), wire.EdgeDocument{Version: 4, Hosts: site(second)[:1], Certificates: strangers}, slices.Collect(maps.Values(strange))))
	status, _ := get(old, "https://"+name+"/")
	require.Equal(t, http.StatusBadGateway, status)
	require.NoError(t, before.Apply(context.Background(), wire.EdgeDocument{Version: 3, Hosts: passed(after)}, nil))
	apply(before, wire.EdgeDocument{Version: 4})
	status, _ = get(old, "https://"+name+"/")
	require.Equal(t, http.StatusNotFound, status)
}

// lines answers an upgrade by saying each line again, which stands for frames.
func lines(t testing.TB) http.HandlerFunc {
	t.Helper()
	return func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n", r.Header.Get("Upgrade"))
		for rw.Flush() == nil {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = rw.WriteString(line)
		}
	}
}

// socket opens a WebSocket over TLS; said checks that messages are echoed.
func (p *proxy) socket(t testing.TB, trust *x509.CertPool, name string) (conn *tls.Conn, said func(string)) {
	t.Helper()
	var resp *http.Response
	var r *bufio.Reader
	require.Eventually(t, func() bool {
		var err error
		if conn, err = tls.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.settings.HTTPSPort)), &tls.Config{RootCAs: trust, ServerName: name}); err != nil {
			return false
		}
		fmt.Fprint(conn, "GET /socket.io HTTP/1.1\r\nHost: "+name+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		r = bufio.NewReader(conn)
		resp, err = http.ReadResponse(r, nil)
		return err == nil && resp.StatusCode == http.StatusSwitchingProtocols
	}, 20*time.Second, 50*time.Millisecond)
	t.Cleanup(func() { _ = conn.Close() })
	return conn, func(text string) {
		t.Helper()
		fmt.Fprintln(conn, text)
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, text+"\n", line)
	}
}
