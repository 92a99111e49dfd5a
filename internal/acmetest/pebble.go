// Package acmetest runs Pebble, the ACME authority that Let's Encrypt tests clients with,
// and pebble-challtestsrv, the DNS that it looks names up in: real validation, with nothing
// of ours in between.
package acmetest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/internal/child"
	"github.com/prego/prego/internal/need"
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
	client     *http.Client

	mu  sync.Mutex
	run *child.Process
}

// Program finds one of Pebble's programs: on PATH, or where make installs it.
func Program(t testing.TB, name string) string {
	t.Helper()
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	dir, err := os.Getwd()
	require.NoError(t, err)
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if found, _ := filepath.Glob(filepath.Join(dir, ".prego", "bin", "pebble-v*", name)); len(found) > 0 {
			return found[len(found)-1]
		}
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
	_, port, err := net.SplitHostPort(free(t))
	require.NoError(t, err)
	p.HTTPPort, err = strconv.Atoi(port)
	require.NoError(t, err)
	if p.DNS == "" {
		p.DNS, p.challenges = free(t), free(t)
		p.start(exec.Command(dns, "-management", p.challenges, "-dnsserver", p.DNS, "-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", //nolint:noctx // it ends with the test
			"-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""), "http://"+p.challenges, http.DefaultClient)
	}
	p.config()
	p.Boot(pebble)
	return p
}

// Boot starts the authority, anew after Kill: it has forgotten everything.
func (p *Pebble) Boot(program ...string) {
	p.t.Helper()
	if len(program) == 0 {
		program = []string{Program(p.t, "pebble")}
	}
	cmd := exec.Command(program[0], "-config", filepath.Join(p.dir, "pebble.json"), "-dnsserver", p.DNS, "-strict") //nolint:noctx // it ends with the test
	cmd.Env = append(append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0", "PEBBLE_WFE_NONCEREJECT=0"), p.o.Env...)
	run := p.start(cmd, p.Directory, p.client)
	p.mu.Lock()
	p.run = run
	p.mu.Unlock()
}

// Kill ends the authority at once.
func (p *Pebble) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run.Stop(syscall.SIGKILL, 5*time.Second)
	<-p.run.Done()
}

func (p *Pebble) start(cmd *exec.Cmd, url string, client *http.Client) *child.Process {
	p.t.Helper()
	log, err := os.CreateTemp(p.dir, "log")
	require.NoError(p.t, err)
	cmd.Stdout, cmd.Stderr = log, log
	run, err := child.Start(cmd, syscall.SIGKILL)
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		run.Stop(syscall.SIGKILL, 5*time.Second)
		_ = log.Close()
		if p.t.Failed() {
			b, _ := os.ReadFile(log.Name())
			p.t.Logf("%s: %s", filepath.Base(cmd.Path), b[max(0, len(b)-2000):])
		}
	})
	require.Eventually(p.t, func() bool {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
		require.NoError(p.t, err)
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return true
	}, 20*time.Second, 20*time.Millisecond, "%s does not answer", cmd.Path)
	return run
}

// config writes Pebble's configuration and the certificate of its own HTTPS.
func (p *Pebble) config() {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(p.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Pebble's HTTPS"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(p.t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(p.t, err)
	write := func(name string, b []byte) string {
		file := filepath.Join(p.dir, name)
		require.NoError(p.t, os.WriteFile(file, b, 0o600))
		return file
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	p.CAFile = write("https.pem", certPEM)
	keyFile := write("https-key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	p.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.Roots(), MinVersion: tls.VersionTLS12}}}

	validity := p.o.Validity
	if validity == 0 {
		validity = 90 * 24 * time.Hour
	}
	settings := map[string]any{
		"listenAddress": p.listen, "managementListenAddress": p.manage, "certificate": p.CAFile, "privateKey": keyFile,
		"httpPort": p.HTTPPort, "tlsPort": 1, "keyAlgorithm": "ecdsa", "domainBlocklist": []string{"blocked.example"},
		"retryAfter": map[string]int{"authz": 1, "order": 1},
		"profiles":   map[string]any{"default": map[string]any{"description": "the only one", "validityPeriod": int(validity.Seconds())}},
	}
	if len(p.o.EAB) > 0 {
		settings["externalAccountBindingRequired"], settings["externalAccountMACKeys"] = true, p.o.EAB
	}
	b, err := json.Marshal(map[string]any{"pebble": settings})
	require.NoError(p.t, err)
	write("pebble.json", b)
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
	return p.send(p.client, method, "https://"+p.manage+path, body)
}

func (p *Pebble) send(client *http.Client, method, url string, body []byte) []byte {
	p.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, url, bytes.NewReader(body))
	require.NoError(p.t, err)
	resp, err := client.Do(req)
	require.NoError(p.t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	require.Less(p.t, resp.StatusCode, 300, "%s %s: %s", method, url, answer)
	return answer
}

// SetDNS tells the DNS something: set-txt, add-a, set-servfail and the like, with the fields
// that pebble-challtestsrv takes.
func (p *Pebble) SetDNS(what string, fields map[string]any) {
	p.t.Helper()
	b, err := json.Marshal(fields)
	require.NoError(p.t, err)
	p.send(http.DefaultClient, http.MethodPost, "http://"+p.challenges+"/"+what, b)
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
	s := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	})}
	go func() { _ = s.Serve(l) }()
	p.t.Cleanup(func() { _ = s.Close() })
}

// free is an address with a port that nobody listens on.
func free(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
