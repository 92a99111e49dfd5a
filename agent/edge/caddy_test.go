package edge

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/need"
)

// proxy is a real Caddy.
type proxy struct {
	tb       testing.TB
	dir      string
	settings Settings
	admin    *caddy
	process  *child.Process
	log      string
	client   *http.Client
}

func newProxy(tb testing.TB) *proxy {
	tb.Helper()
	program := need.Program(tb, "caddy")
	dir, err := os.MkdirTemp("", "prego-edge-")
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &proxy{tb: tb, dir: dir, settings: Settings{
		Listen: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, RunDir: dir,
		HTTPPort: need.Port(tb), HTTPSPort: need.Port(tb), keysPort: need.Port(tb),
		Own: func(a string) bool { return strings.HasPrefix(a, "127.") },
	}, log: filepath.Join(dir, "caddy.log")}
	p.admin = newCaddy(filepath.Join(dir, adminSocket))
	first, err := Caddy(wire.EdgeDocument{}, nil, p.settings)
	require.NoError(tb, err)
	p.start(program, first)
	p.client = p.newClient()
	return p
}

func (p *proxy) start(program string, config []byte) {
	p.tb.Helper()
	file := filepath.Join(p.dir, "config.json")
	require.NoError(p.tb, os.WriteFile(file, config, 0o600))
	cmd := exec.Command(program, "run", "--config", file)
	cmd.Env = append(os.Environ(), "HOME="+p.dir, "XDG_DATA_HOME="+p.dir, "XDG_CONFIG_HOME="+p.dir)
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(p.tb, err)
	cmd.Stdout, cmd.Stderr = out, out
	p.process, err = child.Start(cmd, syscall.SIGKILL)
	require.NoError(p.tb, err)
	_ = out.Close()
	process := p.process
	p.tb.Cleanup(func() { process.Stop(syscall.SIGTERM, 10*time.Second) })
	require.Eventually(p.tb, func() bool {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.settings.HTTPPort)))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, 20*time.Second, 20*time.Millisecond, "caddy does not listen: %s", p.said())
}

func (p *proxy) said() string {
	b, _ := os.ReadFile(p.log)
	return string(b)
}

// newClient sends every request to the proxy, for any host.
func (p *proxy) newClient() *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			port := p.settings.HTTPPort
			if strings.HasSuffix(addr, ":443") {
				port = p.settings.HTTPSPort
			}
			return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		},
		MaxIdleConnsPerHost: 64,
	}
	p.tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: time.Minute, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (p *proxy) get(url string) (int, string, http.Header) {
	p.tb.Helper()
	resp, err := p.client.Get(url)
	require.NoError(p.tb, err, p.said())
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(p.tb, err)
	return resp.StatusCode, string(body), resp.Header
}

// upstream is a server behind the edge; it answers with its name and the request.
func upstream(tb testing.TB, name string) string {
	tb.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s host=%s for=%s proto=%s", name, r.Host, r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Forwarded-Proto"))
	}))
	tb.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// large is a document of many hosts, some with several upstreams.
func large(sites, routes int, single []string, several [][]string) wire.EdgeDocument {
	d := wire.EdgeDocument{Version: 1}
	for i := range sites {
		d.Hosts = append(d.Hosts, wire.EdgeHost{
			Name: fmt.Sprintf("tenant-%05d.eu.example.com", i), Tenant: fmt.Sprintf("t-%d", i), Site: fmt.Sprintf("tenant-%05d.eu.example.com", i), TLS: true, State: wire.EdgeServing, MaxBody: 512 << 20,
			Upstreams: []wire.EdgeUpstream{{Address: single[i%len(single)]}},
		})
	}
	for i := range routes {
		h := wire.EdgeHost{Name: fmt.Sprintf("www.shop-%05d.example.org", i), Route: fmt.Sprintf("rte-%d", i), TLS: true, State: wire.EdgeServing}
		for _, a := range several[i%len(several)] {
			h.Upstreams = append(h.Upstreams, wire.EdgeUpstream{Address: a})
		}
		d.Hosts = append(d.Hosts, h)
	}
	return d
}

// TestLargeDocuments: 10,000 names, of sites and of routes, are found, and a change is served
// in less than a second on a machine that does nothing else.
func TestLargeDocuments(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	a, b, c := upstream(t, "a"), upstream(t, "b"), upstream(t, "c")
	const sites, routes = 9000, 1000
	d := large(sites, routes, []string{a, b}, [][]string{{a, b}, {b, c}})
	require.NoError(t, e.Apply(context.Background(), d, nil))
	t.Logf("%d hosts applied in %v", len(d.Hosts), e.Took())
	d.Version, d.Hosts[5].State = 2, wire.EdgeMaintenance
	require.NoError(t, e.Apply(context.Background(), d, nil))
	t.Logf("a site's state applied in %v", e.Took())
	d.Version, d.Hosts[sites+5].Upstreams = 3, []wire.EdgeUpstream{{Address: c}}
	require.NoError(t, e.Apply(context.Background(), d, nil))
	t.Logf("a route's instances applied in %v", e.Took())
	for _, i := range []int{0, 1, sites / 2, sites - 1} {
		status, body, _ := e.get(fmt.Sprintf("http://tenant-%05d.eu.example.com/", i))
		require.Equal(t, 200, status)
		require.Contains(t, body, map[int]string{0: "a", 1: "b"}[i%2]+fmt.Sprintf(" host=tenant-%05d.eu.example.com for=127.0.0.1 proto=http", i))
	}
	for _, i := range []int{0, 1, routes / 2, routes - 1} {
		status, body, _ := e.get(fmt.Sprintf("http://www.shop-%05d.example.org/", i))
		require.Equal(t, 200, status)
		require.Contains(t, map[int]string{0: "ab", 1: "bc"}[i%2], body[:1])
	}
	status, _, _ := e.get("http://tenant-00005.eu.example.com/")
	require.Equal(t, 503, status)
	_, body, _ := e.get("http://www.shop-00005.example.org/")
	require.Equal(t, "c", body[:1])
	status, _, _ = e.get("http://tenant-99999.eu.example.com/")
	require.Equal(t, 404, status)
}
