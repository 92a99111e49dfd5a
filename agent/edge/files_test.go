package edge

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/need"
)

// countLoads counts the configurations that Caddy gets.
func (e *testEdge) countLoads() *atomic.Int64 {
	var n atomic.Int64
	next := e.caddy.client.Transport
	e.caddy.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/load" {
			n.Add(1)
		}
		return next.RoundTrip(r)
	})
	return &n
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (p *proxy) dialTLS(name string, pool *x509.CertPool) (*tls.Conn, error) {
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(p.settings.HTTPSPort))
	return tls.Dial("tcp", at, &tls.Config{ServerName: name, RootCAs: pool, MinVersion: tls.VersionTLS12})
}

// shake returns the certificate that an edge has for a name, as a client spells it.
func (p *proxy) shake(name string, pool *x509.CertPool) (serial string, err error) {
	conn, err := p.dialTLS(name, pool)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	return fmt.Sprintf("%x", conn.ConnectionState().PeerCertificates[0].Raw), nil
}

// TestCertificatesComeWithoutALoad: 60 names get challenges and certificates, which are renewed and deleted, and Caddy
// gets no new configuration: WebSockets stay open, and no handshake and no request fails meanwhile.
func TestCertificatesComeWithoutALoad(t *testing.T) {
	t.Parallel()
	const names = 60
	e := newEdge(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
			"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
		_ = rw.Flush()
		for {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = rw.WriteString(line)
			_ = rw.Flush()
		}
	}))
	t.Cleanup(s.Close)
	at := strings.TrimPrefix(s.URL, "http://")
	all := []string{"*.eu.example.com"}
	d := wire.EdgeDocument{Version: 1, Hosts: []wire.EdgeHost{serving("acme.eu.example.com", "t-1", at)}}
	for i := range names {
		all = append(all, fmt.Sprintf("www.shop-%d.org", i))
		h := serving(all[i+1], "t-1", at)
		h.Site = "acme.eu.example.com"
		d.Hosts = append(d.Hosts, h)
	}
	pool, refs, certs := certified(t, all...)
	d.Certificates = refs[:1]
	require.NoError(t, e.Apply(context.Background(), d, []wire.EdgeCertificate{certs["crt-0"]}))
	loads := e.countLoads()
	e.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}

	open := func() (net.Conn, error) {
		conn, err := e.dialTLS("acme.eu.example.com", pool)
		if err != nil {
			return nil, err
		}
		_, err = fmt.Fprint(conn, "GET /socket.io HTTP/1.1\r\nHost: acme.eu.example.com\r\n"+
			"Connection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		if err != nil {
			return nil, err
		}
		resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil)
		if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
			err = fmt.Errorf("status %d", resp.StatusCode)
		}
		return conn, err
	}
	held := make([]net.Conn, 20)
	for i := range held {
		var err error
		held[i], err = open()
		require.NoError(t, err)
	}
	version := func(change func()) {
		d.Version++
		d.Hosts, d.Certificates = slices.Clone(d.Hosts), slices.Clone(d.Certificates)
		change()
		done := make(chan error, 3)
		for range cap(done) {
			go func() {
				conn, err := open()
				if err == nil {
					err = conn.Close()
				}
				done <- err
			}()
		}
		require.NoError(t, e.Apply(context.Background(), d, slices.Collect(maps.Values(certs))))
		for range cap(done) {
			require.NoError(t, <-done)
		}
	}
	for i, name := range all[1:] {
		token := fmt.Sprintf("token-%d", i)
		status, _, _ := e.get("http://" + name + "/")
		require.Equal(t, 200, status, "served as it is while it has no certificate")
		_, err := e.shake(name, pool)
		require.Error(t, err)
		version(func() {
			d.Challenges = []wire.EdgeChallenge{{Host: name, Token: token, KeyAuthorization: token + ".thumb"}}
		})
		url := "http://" + name + "/.well-known/acme-challenge/"
		status, body, header := e.get(url + token)
		require.Equal(t, 200, status)
		require.Equal(t, token+".thumb", body)
		require.Equal(t, "application/octet-stream", header.Get("Content-Type"))
		status, body, _ = e.get(url + "another")
		require.Equal(t, 200, status, "the site may have it")
		require.Empty(t, body)
		version(func() { d.Challenges, d.Certificates = nil, append(d.Certificates, refs[i+1]) })
		status, body, _ = e.get(url + token)
		require.Equal(t, 308, status, body)
		status, _, header = e.get("http://" + name + "/x?y")
		require.Equal(t, 308, status)
		require.Equal(t, "https://"+name+"/x?y", header.Get("Location"))
		status, _, _ = e.get("https://" + name + "/")
		require.Equal(t, 200, status)
	}
	_, err := e.shake("WWW.Shop-7.ORG", pool)
	require.NoError(t, err)

	// The next certificate of a name, and a name that is lost.
	newPool, newRefs, newCerts := certified(t, all...)
	before, err := e.shake("www.shop-3.org", pool)
	require.NoError(t, err)
	certs["crt-4"] = newCerts["crt-4"]
	version(func() {
		d.Certificates[4] = newRefs[4]
		d.Certificates = slices.Delete(d.Certificates, 9, 10)
	})
	after, err := e.shake("www.shop-3.org", newPool)
	require.NoError(t, err)
	require.NotEqual(t, before, after)
	_, err = e.shake("www.shop-8.org", pool)
	require.Error(t, err)
	_, err = os.Stat(filepath.Join(e.Edge.dir, keysDir, "www.shop-8.org"))
	require.ErrorIs(t, err, os.ErrNotExist, "its key is deleted")
	left, err := os.ReadDir(filepath.Join(e.Edge.dir, answersDir))
	require.NoError(t, err)
	require.Empty(t, left)

	require.Zero(t, loads.Load())
	for _, conn := range held {
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		fmt.Fprintln(conn, "still open")
		line, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "still open\n", line)
	}
}

// TestARenewedCertificateWaits: a renewal gives Caddy no configuration, and comes with the next one that has another
// reason, in whichever life of the agent and of Caddy. A name without a certificate has no key in Caddy.
func TestARenewedCertificateWaits(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	now, day := time.Now(), 24*time.Hour
	names := []string{"www.shop.org", "www.baker.org"}
	oldPool, oldRefs, old := certifiedFor(t, now.Add(-70*day), now.Add(20*day), names...)
	newPool, refs, renewed := certifiedFor(t, now.Add(-time.Hour), now.Add(90*day), names...)
	other := serving("other.org", "t-3", "127.0.0.1:1")
	other.Port = need.Port(t)
	d := wire.EdgeDocument{Version: 1, Hosts: []wire.EdgeHost{
		other, serving(names[0], "t-1", "127.0.0.1:1"), serving(names[1], "t-2", "127.0.0.1:1"),
	}, Certificates: oldRefs[:1]}
	loads := e.countLoads()
	version := func(edge *Edge) {
		t.Helper()
		d.Version++
		fetched := slices.Collect(maps.Values(renewed))
		for _, ref := range d.Certificates {
			if ref.SHA256 == old[ref.ID].SHA256 {
				fetched = append(fetched, old[ref.ID])
			}
		}
		require.NoError(t, edge.Apply(context.Background(), d, fetched))
	}
	require.NoError(t, e.Apply(context.Background(), d, []wire.EdgeCertificate{old["crt-0"]}))
	require.EqualValues(t, 1, loads.Load())
	d.Certificates = oldRefs
	version(e.Edge)
	d.Certificates = refs
	version(e.Edge)
	require.EqualValues(t, 1, loads.Load())
	_, err := e.shake(names[0], oldPool)
	require.NoError(t, err, "its first certificate is in Caddy's configuration")
	_, err = e.shake(names[1], newPool)
	require.NoError(t, err, "its first certificate was a file")

	// Neither the agent's next life nor Caddy's changes that.
	again, err := Open(e.Edge.dir, e.proxy.settings)
	require.NoError(t, err)
	require.NoError(t, again.Apply(context.Background(), again.Document(), nil))
	_, err = e.shake(names[0], oldPool)
	require.NoError(t, err)
	config, err := os.ReadFile(filepath.Join(e.Edge.dir, caddyFile))
	require.NoError(t, err)
	e.process.Stop(syscall.SIGTERM, 10*time.Second)
	e.start(need.Program(t, "caddy"), config)
	_, err = e.shake(names[0], oldPool)
	require.NoError(t, err)
	_, err = e.shake(names[1], newPool)
	require.NoError(t, err)

	d.Hosts[0].Port = need.Port(t)
	version(again)
	for _, name := range names {
		_, err = e.shake(name, newPool)
		require.NoError(t, err)
	}
	d.Certificates = refs[1:]
	version(again)
	_, err = e.shake(names[0], newPool)
	require.Error(t, err)
	_, err = e.shake(names[1], newPool)
	require.NoError(t, err)
}

// TestStale: Caddy needs a configuration for certificates whose place is taken in its current one.
func TestStale(t *testing.T) {
	t.Parallel()
	now, day := time.Now(), 24*time.Hour
	aged := func(age time.Duration, name string) map[string]wire.EdgeCertificate {
		_, _, certs := certifiedFor(t, now.Add(-age), now.Add(90*day-age), name)
		return certs
	}
	const name, wild = "www.shop.org", "*.eu.example.com"
	none, fresh, due := map[string]wire.EdgeCertificate{}, aged(0, name), aged(56*day, name)
	for _, tt := range []struct {
		why         string
		loaded, now map[string]wire.EdgeCertificate
		want        bool
	}{
		{"nothing", none, none, false},
		{"the same", fresh, fresh, false},
		{"a new name's is a file", none, fresh, false},
		{"a deleted key is gone", fresh, none, true},
		{"renewed when due", due, fresh, false},
		{"renewed early: the key may have leaked", aged(50*day, name), fresh, true},
		{"soon expired", aged(76*day, name), fresh, true},
		{"expired", aged(91*day, name), fresh, true},
		{"a new wildcard", none, aged(0, wild), true},
		{"a wildcard renewed when due", aged(56*day, wild), aged(0, wild), false},
	} {
		require.Equal(t, tt.want, stale(tt.loaded, tt.now, now), tt.why)
	}
}

// TestNewCertificatesSurviveLoads: Caddy gets configurations for new listeners while visitors come to a name whose
// certificate it has only had as a file. Its listeners may reset connections that wait, but no handshake fails.
func TestNewCertificatesSurviveLoads(t *testing.T) {
	t.Parallel()
	const rounds, visitors = 10, 3
	e := newEdge(t)
	var names []string
	for i := range rounds {
		names = append(names, fmt.Sprintf("www.shop-%d.org", i))
	}
	pool, refs, certs := certified(t, names...)
	d := wire.EdgeDocument{Version: 1}
	for _, name := range names {
		d.Hosts = append(d.Hosts, serving(name, "t-1", "127.0.0.1:1"))
	}
	require.NoError(t, e.Apply(context.Background(), d, nil))
	var shaken atomic.Int64
	for i, name := range names {
		d.Version++
		d.Certificates = append(slices.Clone(d.Certificates), refs[i])
		require.NoError(t, e.Apply(context.Background(), d, slices.Collect(maps.Values(certs))))
		loads := e.countLoads()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, visitors)
		for range visitors {
			go func() {
				for ctx.Err() == nil {
					if _, err := e.shake(name, pool); err != nil && !errors.Is(err, syscall.ECONNRESET) {
						done <- err
						return
					}
					shaken.Add(1)
				}
				done <- nil
			}()
		}
		d.Version++
		other := serving("new-"+name, "t-2", "127.0.0.1:1")
		other.Port = need.Port(t)
		d.Hosts = append(slices.Clone(d.Hosts), other)
		require.NoError(t, e.Apply(context.Background(), d, nil))
		require.EqualValues(t, 1, loads.Load())
		stop()
		for range visitors {
			require.NoError(t, <-done)
		}
	}
	t.Logf("%d handshakes", shaken.Load())
}

// TestOnlyCaddyGetsItsKeys: other programs of the host can connect to where Caddy takes certificates from itself, and
// get none without the edge's secret, nor anything else with it.
func TestOnlyCaddyGetsItsKeys(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	_, refs, certs := certified(t, "www.shop.org")
	hosts := []wire.EdgeHost{serving("www.shop.org", "t-1", "127.0.0.1:1")}
	d := wire.EdgeDocument{Version: 1, Hosts: hosts, Certificates: refs}
	require.NoError(t, e.Apply(context.Background(), d, slices.Collect(maps.Values(certs))))
	get := func(path string) (int, string) {
		resp, err := need.HTTP.Get("http://" + e.Edge.settings.keysAt().String() + path)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		content := make([]byte, 1<<16)
		n, _ := resp.Body.Read(content)
		return resp.StatusCode, string(content[:n])
	}
	secret := "/" + e.Edge.settings.secret
	require.GreaterOrEqual(t, len(secret), 20)
	status, body := get(secret + "?server_name=www.shop.org")
	require.Equal(t, 200, status)
	require.Contains(t, body, "PRIVATE KEY")
	for _, path := range []string{
		"/?server_name=www.shop.org", "/www.shop.org", "/x?server_name=www.shop.org", secret,
		secret + "/www.shop.org",
		secret + "/none?domain=www.shop.org", secret + "?server_name=../secret", secret + "?server_name=*",
		secret + "?server_name=www.shop.or%3f", secret + "?server_name=../config.json%3f",
	} {
		status, body = get(path)
		require.Equal(t, 404, status, path)
		require.Empty(t, body, path)
	}
	info, err := os.Stat(filepath.Join(e.Edge.dir, secretFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	// It stays the same over a restart, and keys of names that are gone do not.
	require.NoError(t, os.WriteFile(filepath.Join(e.Edge.dir, keysDir, "gone.org"), nil, 0o600))
	again, err := Open(e.Edge.dir, e.proxy.settings)
	require.NoError(t, err)
	require.Equal(t, e.Edge.settings.secret, again.settings.secret)
	_, err = os.Stat(filepath.Join(e.Edge.dir, keysDir, "gone.org"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// BenchmarkHandshake compares certificates in Caddy's configuration, as wildcards are, with those in files.
func BenchmarkHandshake(b *testing.B) {
	e := newEdge(b)
	pool, refs, certs := certified(b, "*.eu.example.com", "www.shop.org")
	hosts := []wire.EdgeHost{serving("a.eu.example.com", "t-1", "127.0.0.1:1")}
	hosts = append(hosts, serving("www.shop.org", "t-1", "127.0.0.1:1"))
	d := wire.EdgeDocument{Version: 1, Hosts: hosts, Certificates: refs}
	require.NoError(b, e.Apply(context.Background(), d, slices.Collect(maps.Values(certs))))
	for _, name := range []string{"a.eu.example.com", "www.shop.org"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_, err := e.shake(name, pool)
				require.NoError(b, err)
			}
		})
	}
}
