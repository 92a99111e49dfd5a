// Package acmetest runs Pebble, the ACME authority that Let's Encrypt tests clients with,
// and pebble-challtestsrv, the DNS that it looks names up in: real validation, with nothing
// of ours in between.
package acmetest

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/need"
)

// Options configure an authority.
type Options struct {
	// Env is added to Pebble's environment, such as PEBBLE_WFE_NONCEREJECT=15.
	Env []string
	// Validity is how long certificates are valid; 0 is 90 days.
	Validity time.Duration
	// EAB are keys of external accounts, by id; with any, an account needs one.
	EAB map[string]string
	// DNS answers Pebble's questions instead of pebble-challtestsrv: an address and port.
	DNS string
	// HTTPPort is the port of challenges over HTTP; 0 is a free port, for ServeHTTP.
	HTTPPort int
}

// Pebble is an authority that runs for as long as its test.
type Pebble struct {
	Directory string
	CAFile    string // PEM of the root of the authority's own HTTPS
	HTTPPort  int    // where challenges over HTTP are looked for
	DNS       string // where names are looked up: an address and port

	t          testing.TB
	o          Options
	dir        string
	listen     string
	manage     string
	challenges string

	mu  sync.Mutex
	run *devstack.Pebble
}

// Program finds a program of Pebble, where make installs it: Debian's has other flags, and no renewal information.
func Program(t testing.TB, name string) string {
	t.Helper()
	if found, _ := filepath.Glob(filepath.Join(need.Module(), ".prego", "bin", "pebble-v*", name)); len(found) > 0 {
		return found[len(found)-1]
	}
	need.Missing(t, name+" is not installed: make pebble installs it")
	return ""
}

// Start starts an authority and its DNS. Names lead to 127.0.0.1 there.
func Start(t testing.TB, o Options) *Pebble {
	t.Helper()
	pebble, dns := Program(t, "pebble"), Program(t, "pebble-challtestsrv")
	p := &Pebble{t: t, o: o, dir: t.TempDir(), listen: free(t), manage: free(t), DNS: o.DNS}
	p.Directory = "https://" + p.listen + "/dir"
	if p.HTTPPort = o.HTTPPort; p.HTTPPort == 0 {
		_, port, err := net.SplitHostPort(free(t))
		require.NoError(t, err)
		p.HTTPPort, err = strconv.Atoi(port)
		require.NoError(t, err)
	}
	if p.DNS == "" {
		p.DNS, p.challenges = free(t), free(t)
		p.startDNS(dns)
	}
	p.Boot(pebble)
	return p
}

// Boot starts the authority, again after Kill: it has forgotten everything.
func (p *Pebble) Boot(program ...string) {
	p.t.Helper()
	if len(program) == 0 {
		program = []string{Program(p.t, "pebble")}
	}
	log := filepath.Join(p.dir, "pebble.log")
	run, err := devstack.StartPebble(context.Background(), devstack.PebbleConfig{
		Program: program[0], Dir: p.dir, LogFile: log, Listen: p.listen, Manage: p.manage, HTTPPort: p.HTTPPort,
		DNS: p.DNS, Validity: p.o.Validity, EAB: p.o.EAB, Env: p.o.Env,
	})
	require.NoError(p.t, err)
	p.CAFile = run.CAFile
	p.mu.Lock()
	p.run = run
	p.mu.Unlock()
	p.t.Cleanup(func() {
		run.Kill()
		p.showLog(log)
	})
}

// Kill ends the authority immediately.
func (p *Pebble) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run.Kill()
	<-p.run.Done()
}

func (p *Pebble) showLog(file string) {
	if p.t.Failed() {
		b, _ := os.ReadFile(file)
		p.t.Logf("%s: %s", filepath.Base(file), b[max(0, len(b)-2000):])
	}
}

// startDNS starts pebble-challtestsrv.
func (p *Pebble) startDNS(program string) {
	p.t.Helper()
	log := filepath.Join(p.dir, "dns.log")
	run, err := devstack.Start(devstack.Spec{Name: "dns", Path: program, LogFile: log, Args: []string{
		"-management", p.challenges, "-dnsserver", p.DNS, "-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-http01",
		"", "-https01", "", "-tlsalpn01", "", "-doh", "",
	}})
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		run.Kill()
		p.showLog(log)
	})
	require.Eventually(p.t, func() bool {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+p.challenges, nil)
		require.NoError(p.t, err)
		resp, err := need.HTTP.Do(req)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return true
	}, 20*time.Second, 20*time.Millisecond, "%s does not answer", program)
}

// Roots trust the authority's own HTTPS.
func (p *Pebble) Roots() *x509.CertPool {
	p.t.Helper()
	b, err := os.ReadFile(p.CAFile)
	require.NoError(p.t, err)
	pool := x509.NewCertPool()
	require.True(p.t, pool.AppendCertsFromPEM(b))
	return pool
}

// Trust trusts what the authority issues.
func (p *Pebble) Trust() *x509.CertPool {
	p.t.Helper()
	pool := x509.NewCertPool()
	require.True(p.t, pool.AppendCertsFromPEM(p.Manage(http.MethodGet, "/roots/0", nil)))
	return pool
}

// Manage sends a request to Pebble's management interface.
func (p *Pebble) Manage(method, path string, body []byte) []byte {
	p.t.Helper()
	answer, err := p.run.Manage(context.Background(), method, path, bytes.NewReader(body))
	require.NoError(p.t, err)
	return answer
}

// SetDNS configures the DNS: set-txt, add-a, set-servfail and the like, with pebble-challtestsrv's fields.
func (p *Pebble) SetDNS(what string, fields map[string]any) {
	p.t.Helper()
	b, err := json.Marshal(fields)
	require.NoError(p.t, err)
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://"+p.challenges+"/"+what,
		bytes.NewReader(b))
	require.NoError(p.t, err)
	resp, err := need.HTTP.Do(req)
	require.NoError(p.t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	require.Less(p.t, resp.StatusCode, 300, "%s: %s", what, answer)
}

// AddTXT implements activities.Challenges.
func (p *Pebble) AddTXT(_ context.Context, fqdn, value string) error {
	p.SetDNS("set-txt", map[string]any{"host": fqdn + ".", "value": value})
	return nil
}

// RemoveTXT implements activities.Challenges. All values of the name go.
func (p *Pebble) RemoveTXT(_ context.Context, fqdn, _ string) error {
	p.SetDNS("clear-txt", map[string]any{"host": fqdn + "."})
	return nil
}

// TXTVisible implements activities.Challenges.
func (p *Pebble) TXTVisible(ctx context.Context, fqdn, value string) (bool, error) {
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", p.DNS)
	}}
	texts, err := r.LookupTXT(ctx, fqdn+".")
	if err != nil {
		return false, fmt.Errorf("look up %s: %w", fqdn, err)
	}
	return slices.Contains(texts, value), nil
}

// ServeHTTP answers on the port where challenges over HTTP are looked for, as edges do:
// answers are looked up by name and token.
func (p *Pebble) ServeHTTP(answer func(name, token string) (string, bool)) {
	p.t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.HTTPPort))) //nolint:noctx // closed when the test ends
	require.NoError(p.t, err)
	s := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			host, _, err := net.SplitHostPort(r.Host)
			if err != nil {
				host = r.Host
			}
			token, ok := strings.CutPrefix(r.URL.Path, "/.well-known/acme-challenge/")
			if text, found := answer(host, token); ok && found {
				_, _ = io.WriteString(w, text)
				return
			}
			http.NotFound(w, r)
		}),
	}
	go func() { _ = s.Serve(l) }()
	p.t.Cleanup(func() { _ = s.Close() })
}

// free is an address with a port that no process listens on, and that no other call got.
func free(t testing.TB) string {
	t.Helper()
	port, err := child.FreePort()
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
