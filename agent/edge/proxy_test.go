package edge

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/golden"
	"github.com/prego/prego/lab/need"
)

func serving(name, tenant string, upstreams ...string) wire.EdgeHost {
	h := wire.EdgeHost{Name: name, Tenant: tenant, Site: name, TLS: true, State: wire.EdgeServing}
	for _, u := range upstreams {
		h.Upstreams = append(h.Upstreams, wire.EdgeUpstream{Address: u})
	}
	return h
}

// certified makes a CA and a separate certificate for each name.
func certified(t testing.TB, names ...string) (*x509.CertPool, []wire.EdgeCertificateRef, map[string]wire.EdgeCertificate) {
	t.Helper()
	return certifiedFor(t, time.Time{}, time.Now().Add(time.Hour), names...)
}

func certifiedFor(
	t testing.TB, from, until time.Time, names ...string,
) (*x509.CertPool, []wire.EdgeCertificateRef, map[string]wire.EdgeCertificate) {
	t.Helper()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	require.NoError(t, err)
	ca, err = x509.ParseCertificate(caDER)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	var refs []wire.EdgeCertificateRef
	certs := map[string]wire.EdgeCertificate{}
	for i, name := range names {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i) + 2), DNSNames: []string{name}, NotBefore: from, NotAfter: until,
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
		require.NoError(t, err)
		pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		chain := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		sum := sha256.Sum256([]byte(chain))
		ref := wire.EdgeCertificateRef{ID: fmt.Sprintf("crt-%d", i), Names: []string{name}, SHA256: hex.EncodeToString(sum[:])}
		refs = append(refs, ref)
		certs[ref.ID] = wire.EdgeCertificate{EdgeCertificateRef: ref, Chain: chain, Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))}
	}
	return pool, refs, certs
}

func TestHostsAreAnsweredFor(t *testing.T) {
	t.Parallel()
	p := newEdge(t)
	pool, refs, certs := certified(t, "*.eu.example.com", "shop.example.org")
	maintained := serving("later.eu.example.com", "t-2", upstream(t, "later"))
	maintained.State = wire.EdgeMaintenance
	plain := wire.EdgeHost{Name: "plain.example.org", Route: "rte-1", Port: 80, State: wire.EdgeServing, Upstreams: []wire.EdgeUpstream{{Address: upstream(t, "plain")}}}
	shop := serving("shop.example.org", "", upstream(t, "shop-1"), upstream(t, "shop-2"))
	shop.Site, shop.Tenant, shop.Route, shop.HSTS = "", "", "rte-2", 600
	gone := serving("gone.eu.example.com", "t-3")
	custom := serving("www.acme.net", "t-1", upstream(t, "acme"))
	custom.Site = "acme.eu.example.com"
	own := plain
	own.Route, own.Address, own.Upstreams = "rte-3", "127.0.0.2", []wire.EdgeUpstream{{Address: upstream(t, "own")}}
	d := wire.EdgeDocument{
		Version: 1, Hosts: []wire.EdgeHost{serving("acme.eu.example.com", "t-1", upstream(t, "acme")), maintained, plain, shop, gone, own, custom},
		Certificates: refs, Challenges: []wire.EdgeChallenge{{Host: "new.example.net", Token: "abc", KeyAuthorization: "abc.thumb"}},
	}
	require.NoError(t, p.Apply(context.Background(), d, slices.Collect(maps.Values(certs))))
	p.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}

	status, body, _ := p.get("https://acme.eu.example.com/x?y")
	require.Equal(t, 200, status)
	require.Equal(t, "acme host=acme.eu.example.com for=127.0.0.1 proto=https", body)
	_, body, _ = p.get("http://www.acme.net/x")
	require.Equal(t, "acme host=www.acme.net for=127.0.0.1 proto=http", body)
	_, body, _ = p.get("http://www.acme.net/socket.io/?EIO=4")
	require.Equal(t, "acme host=acme.eu.example.com for=127.0.0.1 proto=http", body, "Frappe's server of events knows no other name")
	status, _, header := p.get("http://acme.eu.example.com/x?y")
	require.Equal(t, 308, status)
	require.Equal(t, "https://acme.eu.example.com/x?y", header.Get("Location"))
	status, body, header = p.get("https://later.eu.example.com/")
	require.Equal(t, 503, status)
	require.Equal(t, "30", header.Get("Retry-After"))
	require.Contains(t, body, "Under maintenance")
	status, body, _ = p.get("https://gone.eu.example.com/")
	require.Equal(t, 503, status)
	require.Contains(t, body, "can't be reached")
	status, body, _ = p.get("http://plain.example.org/")
	require.Equal(t, 200, status)
	require.Contains(t, body, "plain ")
	seen := map[string]bool{}
	for range 20 {
		status, body, header = p.get("https://shop.example.org/")
		require.Equal(t, 200, status)
		seen[body[:6]] = true
	}
	require.Equal(t, map[string]bool{"shop-1": true, "shop-2": true}, seen)
	require.Equal(t, "max-age=600", header.Get("Strict-Transport-Security"))
	status, body, _ = p.get("http://new.example.net/.well-known/acme-challenge/abc")
	require.Equal(t, 200, status)
	require.Equal(t, "abc.thumb", body)

	// Nobody's names: a page without a certificate, and no certificate.
	status, body, _ = p.get("http://unknown.example.com/")
	require.Equal(t, 404, status)
	require.Contains(t, body, "Not found")
	_, err := p.client.Get("https://unknown.example.com/")
	require.ErrorContains(t, err, "tls: ", "there is no certificate for it")
	_, err = p.client.Get("https://plain.example.org/")
	require.Error(t, err)

	// On an environment's own address the same name is another route's.
	resp, err := need.HTTP.Do(requestTo(t, net.JoinHostPort("127.0.0.2", strconv.Itoa(p.proxy.settings.HTTPPort)), "plain.example.org"))
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(b), "own ")
}

func requestTo(t *testing.T, addr, host string) *http.Request {
	r, err := http.NewRequest(http.MethodGet, "http://"+addr+"/", http.NoBody)
	require.NoError(t, err)
	r.Host = host
	return r
}

// TestSitesAreNamed: a client's claim about the site does not count.
func TestSitesAreNamed(t *testing.T) {
	t.Parallel()
	p := newEdge(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Values(wire.HeaderSite), " ", r.Host)
	}))
	t.Cleanup(s.Close)
	h := serving("www.acme.org", "t-1", strings.TrimPrefix(s.URL, "http://"))
	h.Site = "acme.eu.example.com"
	require.NoError(t, p.Apply(context.Background(), wire.EdgeDocument{Hosts: []wire.EdgeHost{h}}, nil))
	r, err := http.NewRequest(http.MethodGet, "http://www.acme.org/", http.NoBody)
	require.NoError(t, err)
	r.Header.Set(wire.HeaderSite, "other.example.com")
	r.Header.Set("X-Forwarded-For", "1.2.3.4")
	resp, err := p.client.Do(r)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "[acme.eu.example.com] www.acme.org", string(b))
}

// TestUploads sends 200 MB, which are passed on as they come, and more than a site takes.
func TestUploads(t *testing.T) {
	t.Parallel()
	p := newEdge(t)
	var early atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first := make([]byte, 1)
		if _, err := io.ReadFull(r.Body, first); err == nil {
			early.Store(true)
		}
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n+1, err)
	}))
	t.Cleanup(s.Close)
	h := serving("acme.example.com", "t-1", strings.TrimPrefix(s.URL, "http://"))
	h.MaxBody = 250 << 20
	require.NoError(t, p.Apply(context.Background(), wire.EdgeDocument{Hosts: []wire.EdgeHost{h}}, nil))
	const size = 200 << 20
	arrived := false
	body := io.MultiReader(io.LimitReader(zeros{}, 1<<20), readerFunc(func([]byte) (int, error) {
		for end := time.Now().Add(20 * time.Second); !early.Load() && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
		}
		arrived = early.Load()
		return 0, io.EOF
	}), io.LimitReader(zeros{}, size-1<<20))
	resp, err := p.client.Post("http://acme.example.com/api/method/upload_file", "application/octet-stream", body)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(size, " <nil>"), string(answer))
	require.True(t, arrived, "the site saw the beginning before the end was sent: nothing is gathered first")
	resp, err = p.client.Post("http://acme.example.com/", "application/octet-stream", io.LimitReader(zeros{}, 251<<20))
	if err == nil { // or the connection is closed while the client still sends
		_ = resp.Body.Close()
		require.Equal(t, 413, resp.StatusCode)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestWebSocketsOutliveChanges: an open WebSocket continues while the edge's document changes.
func TestWebSocketsOutliveChanges(t *testing.T) {
	t.Parallel()
	p := newEdge(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n", r.Header.Get("Upgrade"))
		_ = rw.Flush()
		for { // an echo of lines stands for frames, which the edge does not look into
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = rw.WriteString(line)
			_ = rw.Flush()
		}
	}))
	t.Cleanup(s.Close)
	site := serving("acme.example.com", "t-1", strings.TrimPrefix(s.URL, "http://"))
	require.NoError(t, p.Apply(context.Background(), wire.EdgeDocument{Hosts: []wire.EdgeHost{site}}, nil))
	// A connection that the previous configuration's listener has accepted is closed with it
	// (TestARollingDeployLosesNoRequest shows how hosts avoid that): a browser connects again.
	var conn net.Conn
	var r *bufio.Reader
	host := "acme.example.com"
	open := func() (status int, err error) {
		if conn, err = net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.proxy.settings.HTTPPort))); err != nil {
			return 0, err
		}
		if err = conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			return 0, err
		}
		r = bufio.NewReader(conn)
		fmt.Fprint(conn, "GET /socket.io HTTP/1.1\r\nHost: "+host+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return 0, errors.Join(err, conn.Close())
		}
		return resp.StatusCode, nil
	}
	status, err := open()
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		status, err = open()
	}
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.Equal(t, 101, status)
	echo := func(text string) {
		fmt.Fprintln(conn, text)
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, text+"\n", line)
	}
	echo("before")
	loads := p.countLoads()
	for i := range 3 {
		other := serving(fmt.Sprintf("new-%d.example.com", i), "t-2", "127.0.0.1:1")
		other.Port = need.Port(t)
		require.NoError(t, p.Apply(context.Background(), wire.EdgeDocument{Hosts: []wire.EdgeHost{site, other}}, nil))
		time.Sleep(100 * time.Millisecond)
		echo(fmt.Sprint("after ", i))
	}
	require.EqualValues(t, 3, loads.Load(), "one for each new listener")
	// Its site moves: it is cut, once, and the next one is of the new place. Other sites' are not.
	other := serving("other.example.com", "t-3", strings.TrimPrefix(s.URL, "http://"))
	require.NotEqual(t, socketsOf(site.Site), socketsOf(other.Site))
	first, firstReader := conn, r
	require.NoError(t, p.Apply(context.Background(), wire.EdgeDocument{Hosts: []wire.EdgeHost{site, other}}, nil))
	second := httptest.NewServer(s.Config.Handler)
	t.Cleanup(second.Close)
	host = "other.example.com"
	status, err = open()
	require.NoError(t, err)
	require.Equal(t, 101, status)
	echo("of another site")
	site.Upstreams = []wire.EdgeUpstream{{Address: strings.TrimPrefix(second.URL, "http://")}}
	require.NoError(t, p.Apply(context.Background(), wire.EdgeDocument{Hosts: []wire.EdgeHost{site, other}}, nil))
	require.NoError(t, first.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = firstReader.ReadString('\n')
	require.ErrorIs(t, err, io.EOF, "it is cut at the switch")
	echo("not cut")
	_ = conn.Close()
	host = "acme.example.com"
	status, err = open()
	require.NoError(t, err)
	require.Equal(t, 101, status)
	echo("at its new place")
	s.CloseClientConnections()
	echo("which it is")
	// Its site in maintenance takes no new ones; this one may end its work.
	site.State = wire.EdgeMaintenance
	require.NoError(t, p.Apply(context.Background(), wire.EdgeDocument{Hosts: []wire.EdgeHost{site}}, nil))
	echo("still there")
	status, _, _ = p.get("http://acme.example.com/")
	require.Equal(t, 503, status)
}

// TestASiteMovesWithoutAClosedConnection: a site goes to and fro between two servers while it gets requests over
// connections that are never reopened, HTTP/1.1 and HTTP/2. No request fails, no connection is closed, and soon after
// a document is served no request reaches the previous place.
func TestASiteMovesWithoutAClosedConnection(t *testing.T) {
	t.Parallel()
	p := newEdge(t)
	pool, refs, certs := certified(t, "*.example.com")
	places := []string{upstream(t, "left"), upstream(t, "right")}
	d := wire.EdgeDocument{Version: 1, Hosts: []wire.EdgeHost{serving("acme.example.com", "t-1", places[0]), serving("stays.example.com", "t-2", places[0])}, Certificates: refs}
	require.NoError(t, p.Apply(context.Background(), d, slices.Collect(maps.Values(certs))))
	ctx, stop := context.WithCancel(context.Background())
	var asked, failed, opened atomic.Int64
	var why, place atomic.Value
	place.Store("left")
	var settled atomic.Int64 // requests that began well after a document was served, and saw the place before
	var all sync.WaitGroup
	t.Cleanup(func() { stop(); all.Wait() })
	for _, protocol := range []string{"http/1.1", "h2"} {
		for range 3 {
			all.Go(func() {
				conn, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.proxy.settings.HTTPSPort)),
					&tls.Config{RootCAs: pool, ServerName: "acme.example.com", NextProtos: []string{protocol}})
				if err != nil {
					failed.Add(1)
					why.Store(err.Error())
					return
				}
				defer func() { _ = conn.Close() }()
				opened.Add(1)
				ask := overOneConnection(conn, protocol)
				for ctx.Err() == nil {
					asked.Add(1)
					want := place.Load().(string)
					status, body, err := ask("acme.example.com")
					if err != nil || status != http.StatusOK {
						failed.Add(1)
						why.Store(fmt.Sprintf("%s: %d %v", protocol, status, err))
						return
					}
					if want != "" && !strings.HasPrefix(body, want+" ") && place.Load() == want {
						settled.Add(1)
					}
				}
			})
		}
	}
	const moves = 20
	for i := range moves {
		before := asked.Load()
		require.Eventually(t, func() bool { return asked.Load() > before+50 || failed.Load() > 0 }, time.Minute, time.Millisecond)
		place.Store("")
		d.Version++
		d.Hosts = slices.Clone(d.Hosts)
		d.Hosts[0].Upstreams = []wire.EdgeUpstream{{Address: places[(i+1)%2]}}
		require.NoError(t, p.Apply(context.Background(), d, nil))
		time.Sleep(100 * time.Millisecond) // what an edge settles in: a request on each connection that the old worker has
		place.Store([]string{"left", "right"}[(i+1)%2])
	}
	stop()
	all.Wait()
	t.Logf("%d requests over %d connections during %d moves, %d failed", asked.Load(), opened.Load(), moves, failed.Load())
	require.Zero(t, failed.Load(), "%v", why.Load())
	require.Zero(t, settled.Load())
	require.EqualValues(t, 6, opened.Load())
}

// overOneConnection asks over a connection, which is not opened again, without trying twice.
func overOneConnection(conn net.Conn, protocol string) func(host string) (int, string, error) {
	if protocol == "h2" {
		c, err := (&http2.Transport{}).NewClientConn(conn) //nolint:staticcheck // what replaces it dials by itself
		return func(host string) (int, string, error) {
			if err != nil {
				return 0, "", err
			}
			req, err := http.NewRequest(http.MethodGet, "https://"+host+"/", http.NoBody)
			if err != nil {
				return 0, "", err
			}
			resp, err := c.RoundTrip(req)
			if err != nil {
				return 0, "", err
			}
			defer func() { _ = resp.Body.Close() }()
			b, err := io.ReadAll(resp.Body)
			return resp.StatusCode, string(b), err
		}
	}
	r := bufio.NewReader(conn)
	return func(host string) (int, string, error) {
		if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host); err != nil {
			return 0, "", err
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b), err
	}
}

// TestHostsAreFoundInAnySpelling: a site and a route answer to their names in capitals and with a final dot as they do in lower case.
func TestHostsAreFoundInAnySpelling(t *testing.T) {
	t.Parallel()
	p := newEdge(t)
	pool, refs, certs := certified(t, "acme.example.com")
	route := wire.EdgeHost{Name: "shop.example.org", Route: "rte-1", Port: 80, State: wire.EdgeServing, Upstreams: []wire.EdgeUpstream{{Address: upstream(t, "shop")}}}
	d := wire.EdgeDocument{
		Version: 1, Hosts: []wire.EdgeHost{serving("acme.example.com", "t-1", upstream(t, "acme")), route, serving("plain.example.com", "t-2", upstream(t, "plain"))},
		Certificates: refs, Challenges: []wire.EdgeChallenge{{Host: "new.example.net", Token: "t1", KeyAuthorization: "t1.thumb"}},
	}
	require.NoError(t, p.Apply(context.Background(), d, []wire.EdgeCertificate{certs["crt-0"]}))
	p.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool, ServerName: "acme.example.com"}
	for _, tc := range []struct{ scheme, host, want string }{
		{"http", "Plain.Example.COM", "plain host=plain.example.com "},
		{"http", "PLAIN.example.com:80", "plain host=plain.example.com:80 "},
		{"http", "plain.example.com.", "plain host=plain.example.com "},
		{"http", "Plain.example.com.:80", "plain host=plain.example.com:80 "},
		{"http", "Shop.Example.ORG", "shop host=shop.example.org "},
		{"https", "ACME.example.com", "acme host=acme.example.com "},
		{"http", "plain.example.com", "plain host=plain.example.com "},
	} {
		req, err := http.NewRequest(http.MethodGet, tc.scheme+"://acme.example.com/", http.NoBody)
		require.NoError(t, err)
		req.Host = tc.host
		began := time.Now()
		resp, err := p.client.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		_ = resp.Body.Close()
		require.Equal(t, 200, resp.StatusCode, "%s: %s", tc.host, body)
		require.Contains(t, string(body), tc.want)
		t.Log(tc.host, time.Since(began))
	}
	_, _, header := p.get("http://ACME.example.com/a")
	require.Equal(t, "https://acme.example.com/a", header.Get("Location"))
	_, answer, _ := p.get("http://NEW.example.net/.well-known/acme-challenge/t1")
	require.Equal(t, "t1.thumb", answer)
}

// TestRequestsAreSentOnce: what may have reached an upstream is not sent to another.
func TestRequestsAreSentOnce(t *testing.T) {
	t.Parallel()
	p := newEdge(t)
	var received atomic.Int64
	cut := func() string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			received.Add(1)
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.Close() // after it was read
			}
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	dead := "127.0.0.1:" + strconv.Itoa(need.Port(t))
	h := serving("shop.example.org", "", cut(), cut())
	h.Site, h.Route = "", "rte-1"
	alive := serving("alive.example.org", "", dead, upstream(t, "alive"))
	alive.Site, alive.Route = "", "rte-2"
	h.Port, alive.Port = 80, 80
	require.NoError(t, p.Apply(context.Background(), wire.EdgeDocument{Version: 1, Hosts: []wire.EdgeHost{alive, h}}, nil))
	resp, err := p.client.Post("http://shop.example.org/order", "text/plain", strings.NewReader("one"))
	require.NoError(t, err)
	_ = resp.Body.Close()
	require.Equal(t, 502, resp.StatusCode)
	require.Equal(t, int64(1), received.Load())
	// A server without a connection costs no request.
	for range 20 {
		resp, err := p.client.Post("http://alive.example.org/order", "text/plain", strings.NewReader("one"))
		require.NoError(t, err)
		_ = resp.Body.Close()
		require.Equal(t, 200, resp.StatusCode)
	}
}

// TestARollingDeployLosesNoRequest replaces 20 instances one by one, as the control plane does: a new one comes, the
// old one leaves the document, that is acknowledged, requests in progress end, it stops. Meanwhile the edge is under
// load.
//
// It runs in a separate network. There, connections that wait for a closed socket go to its successor, as on hosts
// (internal/cloudinit/files/agent-edge.conf): Caddy opens a new socket with each configuration.
func TestARollingDeployLosesNoRequest(t *testing.T) {
	t.Parallel()
	if !inOwnNetwork(t) {
		return
	}
	e := newEdge(t)
	start := func() *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(2 * time.Millisecond)
			fmt.Fprint(w, "ok")
		}))
	}
	var running []*httptest.Server
	version := int64(0)
	apply := func() {
		version++
		d := wire.EdgeDocument{Version: version, Hosts: []wire.EdgeHost{{Name: "shop.example.org", Route: "rte-1", Port: 80, State: wire.EdgeServing}}}
		for _, i := range running {
			d.Hosts[0].Upstreams = append(d.Hosts[0].Upstreams, wire.EdgeUpstream{Address: strings.TrimPrefix(i.URL, "http://")})
		}
		require.NoError(t, e.Apply(context.Background(), d, nil))
	}
	const replicas = 20
	for range replicas {
		running = append(running, start())
	}
	t.Cleanup(func() {
		for _, i := range running {
			i.Close()
		}
	})
	apply()
	ctx, stop := context.WithCancel(context.Background())
	var load sync.WaitGroup
	var sent, failed atomic.Int64
	var first atomic.Value
	for range 8 {
		load.Go(func() {
			c := e.newClient()
			for ctx.Err() == nil {
				sent.Add(1)
				resp, err := c.Get("http://shop.example.org/")
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					if err == nil && resp.StatusCode != http.StatusOK {
						err = fmt.Errorf("status %d", resp.StatusCode)
					}
				}
				if err != nil {
					failed.Add(1)
					first.CompareAndSwap(nil, err.Error())
					t.Logf("%s: %v", time.Now().Format("05.000"), err)
				}
			}
		})
	}
	for range replicas {
		running = append(running, start())
		apply()
		old := running[0]
		running = running[1:]
		apply()
		time.Sleep(50 * time.Millisecond)
		old.Close() // which lets requests that are under way end
	}
	stop()
	load.Wait()
	t.Logf("%d requests, %d documents", sent.Load(), version)

	require.Zero(t, failed.Load(), "%v", first.Load())
	require.Greater(t, sent.Load(), int64(200))
}

// inOwnNetwork runs the test again in a separate network and returns false, or returns true there.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv("PREGO_TEST_NETNS") == "" {
		need.Root(t, "it makes a separate network")
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "PREGO_TEST_NETNS=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		require.NoError(t, err)
		return false
	}
	out, err := exec.Command(need.Program(t, "ip"), "link", "set", "lo", "up").CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/tcp_migrate_req", []byte("1"), 0o600))
	return true
}

// testEdge is an edge with real servers.
type testEdge struct {
	*proxy
	*Edge
}

func newEdge(t testing.TB) *testEdge {
	t.Helper()
	p := newProxy(t)
	e, err := Open(filepath.Join(p.dir, "state"), p.settings)
	require.NoError(t, err)
	p.haproxy(filepath.Join(p.dir, "state", haproxyFile))
	return &testEdge{proxy: p, Edge: e}
}

// haproxy starts a real HAProxy.
func (p *proxy) haproxy(file string) {
	p.tb.Helper()
	cmd := exec.Command(need.Program(p.tb, "haproxy"), "-W", "-db", "-S", filepath.Join(p.dir, masterSocket)+",mode,666", "-f", file)
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(p.tb, err)
	cmd.Stdout, cmd.Stderr = out, out
	process, err := child.Start(cmd, syscall.SIGTERM)
	require.NoError(p.tb, err)
	_ = out.Close()
	p.tb.Cleanup(func() { process.Stop(syscall.SIGTERM, 10*time.Second) })
	p.tb.Cleanup(func() {
		if p.tb.Failed() {
			p.tb.Log(p.said())
		}
	})
	require.Eventually(p.tb, func() bool {
		answer, err := haproxy{socket: filepath.Join(p.dir, masterSocket)}.ask(context.Background(), "show proc")
		return err == nil && fresh(answer)
	}, 20*time.Second, 20*time.Millisecond, "haproxy does not run")
}

// TestAnEdgeServesWhatItServedLast: a certificate that is refused changes nothing for others, and after a
// restart without the control plane the last document is served, by Caddy alone.
func TestAnEdgeServesWhatItServedLast(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	pool, refs, certs := certified(t, "acme.example.com")
	d := wire.EdgeDocument{Version: 7, Hosts: []wire.EdgeHost{serving("acme.example.com", "t-1", upstream(t, "acme"))}, Certificates: refs}
	require.Equal(t, []string{"crt-0"}, e.Missing(d))
	require.NoError(t, e.Apply(context.Background(), d, []wire.EdgeCertificate{certs["crt-0"]}))
	require.Empty(t, e.Missing(d))
	e.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	status, _, _ := e.get("https://acme.example.com/")
	require.Equal(t, 200, status)

	bad, broken := d, certs["crt-0"]
	bad.Version = 8
	broken.ID, broken.Key = "crt-1", "no key"
	bad.Certificates = append(slices.Clone(refs), wire.EdgeCertificateRef{ID: "crt-1", Names: []string{"x.example.com"}, SHA256: broken.SHA256})
	require.NoError(t, e.Apply(context.Background(), bad, []wire.EdgeCertificate{broken}))
	require.Len(t, e.LeftOut(), 1)
	require.Equal(t, int64(8), e.Document().Version)
	status, _, _ = e.get("https://acme.example.com/")
	require.Equal(t, 200, status)

	for _, file := range []string{documentFile, certificatesFile, caddyFile, haproxyFile} {
		info, err := os.Stat(filepath.Join(e.Edge.dir, file))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "%s may hold keys", file)
	}
	e.process.Stop(syscall.SIGKILL, 5*time.Second)
	config, err := os.ReadFile(filepath.Join(e.Edge.dir, caddyFile))
	require.NoError(t, err)
	e.start(need.Program(t, "caddy"), config)
	e.client.CloseIdleConnections()
	status, body, _ := e.get("https://acme.example.com/")
	require.Equal(t, 200, status)
	require.Contains(t, body, "acme ")
	again, err := Open(e.Edge.dir, e.proxy.settings)
	require.NoError(t, err)
	require.Equal(t, bad.Version, again.Document().Version)
	require.Equal(t, e.LeftOut(), again.LeftOut())
	require.False(t, again.Applied())
	require.NoError(t, again.Apply(context.Background(), again.Document(), nil), "its keys are also there")
	require.True(t, again.Applied())

	// The control plane's database was restored: its document is older.
	err = again.Apply(context.Background(), wire.EdgeDocument{Version: bad.Version - 1}, nil)
	require.ErrorContains(t, err, "version 7 is older than 8")
	require.Equal(t, bad.Version, again.Document().Version)
	status, _, _ = e.get("https://acme.example.com/")
	require.Equal(t, 200, status)
}

func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	d := wire.EdgeDocument{Version: 1, Hosts: []wire.EdgeHost{serving("acme.example.com", "t-1", upstream(t, "acme"))}}
	require.NoError(t, e.Apply(context.Background(), d, nil))
	c := NewCounter(e.dir())
	c.Follow(d)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	time.Sleep(100 * time.Millisecond)
	for range 5 {
		e.get("http://acme.example.com/secret-path")
	}
	e.get("http://unknown.example.com/")
	got := map[string]wire.EdgeCounts{}
	require.Eventually(t, func() bool {
		for _, v := range c.Take(10) {
			before := got[v.Tenant]
			for i, n := range v.Statuses {
				before.Statuses[i] += n
			}
			before.BytesOut += v.BytesOut
			got[v.Tenant] = before
		}
		return got["t-1"].Statuses == [5]int64{0, 5, 0, 0, 0} && got[""].Statuses == [5]int64{0, 0, 0, 1, 0}
	}, 10*time.Second, 100*time.Millisecond)
	require.Positive(t, got["t-1"].BytesOut)
	log, err := os.ReadFile(filepath.Join(e.dir(), accessLog))
	require.NoError(t, err)
	require.NotContains(t, string(log), "secret-path", "visitors' paths are private")
	require.NotContains(t, string(log), "127.0.0.1", "nor is who they are")
}

func (e *testEdge) dir() string { return e.proxy.dir }

func TestCaddysConfiguration(t *testing.T) {
	t.Parallel()
	d := wire.EdgeDocument{Version: 3, Hosts: []wire.EdgeHost{
		serving("acme.eu.example.com", "t-1", "10.64.0.7:8080"), serving("shop.example.org", "", "10.64.0.8:20001", "10.64.0.9:20001"),
	}, Challenges: []wire.EdgeChallenge{{Host: "new.example.net", Token: "abc", KeyAuthorization: "abc.thumb"}}}
	d.Hosts[1].Site, d.Hosts[1].Route, d.Hosts[1].Upstreams[0].Weight = "", "rte-1", 3
	got, err := Caddy(d, nil, Settings{RunDir: "/run/prego-edge"})
	require.NoError(t, err)
	again, err := Caddy(d, nil, Settings{RunDir: "/run/prego-edge"})
	require.NoError(t, err)
	require.Equal(t, string(got), string(again))
	var indented strings.Builder
	var v any
	require.NoError(t, json.Unmarshal(got, &v))
	enc := json.NewEncoder(&indented)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	require.NoError(t, enc.Encode(v))
	golden.Equal(t, "testdata/caddy.json", indented.String())
}

// TestPortsAreForwarded: bytes go both ways, and a port without instances is closed.
func TestPortsAreForwarded(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	echo := func(name string) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer func() { _ = c.Close() }()
					fmt.Fprintln(c, name)
					_, _ = io.Copy(c, c)
				}()
			}
		}()
		return l.Addr().String()
	}
	port := need.Port(t)
	d := wire.EdgeDocument{Version: 1, TCP: []wire.EdgeTCP{{Route: "rte-1", Port: port, Upstreams: []wire.EdgeUpstream{{Address: echo("one")}}}}}
	require.NoError(t, e.Apply(context.Background(), d, nil))
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	open, err := net.Dial("tcp", at)
	require.NoError(t, err)
	defer func() { _ = open.Close() }()
	require.NoError(t, open.SetDeadline(time.Now().Add(time.Minute)))
	r := bufio.NewReader(open)
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "one\n", line)

	// Another instance takes its place; existing connections stay.
	d.Version, d.TCP[0].Upstreams = 2, []wire.EdgeUpstream{{Address: echo("two")}}
	require.NoError(t, e.Apply(context.Background(), d, nil))
	next, err := net.Dial("tcp", at)
	require.NoError(t, err)
	defer func() { _ = next.Close() }()
	line, err = bufio.NewReader(next).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "two\n", line)
	fmt.Fprintln(open, "still here")
	line, err = r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "still here\n", line)

	d.Version, d.TCP[0].Upstreams = 3, nil
	require.NoError(t, e.Apply(context.Background(), d, nil))
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", at)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}, 10*time.Second, 50*time.Millisecond, "the old worker closes its socket")
}
