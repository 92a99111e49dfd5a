package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prego/prego/agent/wire"
	"github.com/stretchr/testify/require"
)

const (
	testServer      = "app-1"
	testEnvironment = "test"
	testGatewayName = "agentgw.prego.internal"
)

// authority is a self-signed CA for one purpose.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert: cert, key: key, pem: certPEM(der)}
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)
	return n
}

func certPEM(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// leaf is what to put into a certificate.
type leaf struct {
	uri       string
	dns       []string
	usage     x509.ExtKeyUsage
	notBefore time.Time
	notAfter  time.Time
}

func (a *authority) sign(t testing.TB, public any, l leaf) []byte {
	t.Helper()
	if l.notBefore.IsZero() {
		l.notBefore = time.Now().Add(-time.Minute)
	}
	if l.notAfter.IsZero() {
		l.notAfter = time.Now().Add(time.Hour)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial(t), NotBefore: l.notBefore, NotAfter: l.notAfter, DNSNames: l.dns,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{l.usage},
	}
	if l.uri != "" {
		u, err := url.Parse(l.uri)
		require.NoError(t, err)
		tmpl.URIs = []*url.URL{u}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, public, a.key)
	require.NoError(t, err)
	return der
}

// pair is a new key with a certificate of this authority.
func (a *authority) pair(t testing.TB, l leaf) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{a.sign(t, key.Public(), l)}, PrivateKey: key}
}

// testGateway stands in for the agent gateway, behind real TLS 1.3. A fault is a
// function that may answer in its stead; what was hit is counted.
type testGateway struct {
	t      testing.TB
	srv    *httptest.Server
	shown  atomic.Pointer[tls.Certificate] // the gateway's own
	gwCA   *authority
	client *authority
	server *authority
	docker *authority // signs dockerd's certificate
	execCA *authority
	dockCA *authority // signs Docker clients
	exec   ed25519.PrivateKey

	mu          sync.Mutex
	bundles     wire.Bundles
	certTTL     time.Duration
	certAge     time.Duration // how long ago certificates say that they were issued
	tokenTTL    time.Duration
	seconds     int
	issued      int
	alsoTrusted []*authority // agent CAs of before
	faults      map[string]func(n int, w http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter)) bool
	seenSoFar   record
}

// record is what a gateway has seen.
type record struct {
	keys       []string // SHA-256 of the key of each handshake's connection
	handshakes []wire.HandshakeRequest
	rotations  []wire.RotateRequest
	beats      []wire.HeartbeatRequest
	beatTokens []string
	logs       []wire.LogLine
	metrics    [][]byte
	sources    []string
	inFlight   int
	mostAtOnce int
	calls      map[string]int
	hits       map[string]int // by path, of calls that met a fault
}

// seen is a copy of the record.
func (g *testGateway) seen() record {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.seenSoFar // slices only ever grow
	r.calls, r.hits = maps.Clone(r.calls), maps.Clone(r.hits)
	return r
}

func newTestGateway(t testing.TB) *testGateway {
	t.Helper()
	_, execKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	g := &testGateway{
		t: t, gwCA: newAuthority(t, "gateway"), client: newAuthority(t, "agent-client"), server: newAuthority(t, "agent-server"),
		docker: newAuthority(t, "docker-server"), execCA: newAuthority(t, "exec-client"), dockCA: newAuthority(t, "docker-client"), exec: execKey,
		certTTL: time.Hour, tokenTTL: time.Hour, seconds: 30,
		faults:    make(map[string]func(int, http.ResponseWriter, *http.Request, func(http.ResponseWriter)) bool),
		seenSoFar: record{calls: make(map[string]int), hits: make(map[string]int)},
	}
	der, err := x509.MarshalPKIXPublicKey(execKey.Public())
	require.NoError(t, err)
	g.bundles = wire.Bundles{
		Version: "v1", Gateway: g.gwCA.pem, ExecClient: g.execCA.pem, DockerClient: g.dockCA.pem,
		ExecKeys: map[string]string{"k1": string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))},
	}
	g.show(g.gwCA)
	g.srv = httptest.NewUnstartedServer(http.HandlerFunc(g.serve))
	g.srv.TLS = &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return g.shown.Load(), nil },
	}
	g.srv.EnableHTTP2 = true
	g.srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	g.srv.StartTLS()
	t.Cleanup(g.srv.Close)
	return g
}

// show makes the gateway present a certificate of ca from now on.
func (g *testGateway) show(ca *authority) {
	cert := ca.pair(g.t, leaf{dns: []string{testGatewayName}, usage: x509.ExtKeyUsageServerAuth})
	g.shown.Store(&cert)
}

// change runs f while the gateway stands still.
func (g *testGateway) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// fault answers calls of a path in the gateway's stead where f returns true; n
// counts the calls from 1.
func (g *testGateway) fault(path string, f func(n int, w http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter)) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults[path] = f
}

func (g *testGateway) hit(path string) int { return g.seen().hits[path] }

func (g *testGateway) serve(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	g.seenSoFar.calls[r.URL.Path]++
	n, fault := g.seenSoFar.calls[r.URL.Path], g.faults[r.URL.Path]
	g.seenSoFar.inFlight++
	g.seenSoFar.mostAtOnce = max(g.seenSoFar.mostAtOnce, g.seenSoFar.inFlight)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.seenSoFar.inFlight--
		g.mu.Unlock()
	}()
	serve := func(w http.ResponseWriter) { g.answer(w, r) }
	if fault == nil || !g.faulty(r.URL.Path, func() bool { return fault(n, w, r, serve) }) {
		serve(w)
	}
}

// faulty counts a fault that was hit; dropping the connection is one.
func (g *testGateway) faulty(path string, fault func() bool) (answered bool) {
	answered = true
	defer func() {
		if answered {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.seenSoFar.hits[path]++
		}
	}()
	answered = fault()
	return answered
}

func (g *testGateway) answer(w http.ResponseWriter, r *http.Request) {
	peer := r.TLS.PeerCertificates[0]
	spki := sha256.Sum256(peer.RawSubjectPublicKeyInfo)
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seenSoFar.sources = append(g.seenSoFar.sources, host)
	if r.URL.Path != wire.PathHandshake {
		if _, err := peer.Verify(x509.VerifyOptions{Roots: g.pool(append(g.alsoTrusted, g.client)...), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			refuse(w, http.StatusUnauthorized, "certificate_invalid")
			return
		}
	}
	switch r.URL.Path {
	case wire.PathHandshake:
		var in wire.HandshakeRequest
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			refuse(w, http.StatusBadRequest, "invalid_json")
			return
		}
		g.seenSoFar.keys, g.seenSoFar.handshakes = append(g.seenSoFar.keys, hex.EncodeToString(spki[:])), append(g.seenSoFar.handshakes, in)
		writeJSON(w, g.identity(&in.CSRs))
	case wire.PathHeartbeat:
		var in wire.HeartbeatRequest
		_ = json.NewDecoder(r.Body).Decode(&in)
		g.seenSoFar.beats, g.seenSoFar.beatTokens = append(g.seenSoFar.beats, in), append(g.seenSoFar.beatTokens, r.Header.Get("Authorization"))
		writeJSON(w, wire.HeartbeatResponse{BundleVersion: g.bundles.Version, HeartbeatSeconds: g.seconds})
	case wire.PathRotateToken:
		var in wire.RotateRequest
		_ = json.NewDecoder(r.Body).Decode(&in)
		g.seenSoFar.rotations = append(g.seenSoFar.rotations, in)
		writeJSON(w, g.identity(in.CSRs))
	case wire.PathLogs:
		for dec := json.NewDecoder(r.Body); ; {
			var l wire.LogLine
			if dec.Decode(&l) != nil {
				break
			}
			g.seenSoFar.logs = append(g.seenSoFar.logs, l)
		}
		w.WriteHeader(http.StatusNoContent)
	case wire.PathMetrics:
		body, _ := io.ReadAll(r.Body)
		g.seenSoFar.metrics = append(g.seenSoFar.metrics, body)
		w.WriteHeader(http.StatusOK)
	default:
		refuse(w, http.StatusNotFound, "not_found")
	}
}

func (g *testGateway) pool(all ...*authority) *x509.CertPool {
	p := x509.NewCertPool()
	for _, a := range all {
		p.AddCert(a.cert)
	}
	return p
}

// identity signs what is asked for; g.mu is held.
func (g *testGateway) identity(csrs *wire.CSRs) wire.Identity {
	g.issued++
	id := wire.Identity{
		ServerID: testServer, Environment: testEnvironment, Token: fmt.Sprintf("jwt-%d", g.issued),
		TokenExpires: time.Now().Add(g.tokenTTL), Bundles: g.bundles, HeartbeatSeconds: g.seconds,
	}
	if csrs == nil {
		return id
	}
	from := time.Now().Add(-g.certAge)
	sign := func(ca *authority, csr string, usage x509.ExtKeyUsage) string {
		block, _ := pem.Decode([]byte(csr))
		req, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil || req.CheckSignature() != nil {
			panic("the agent's CSR is not good")
		}
		return certPEM(ca.sign(g.t, req.PublicKey, leaf{
			uri: "prego://" + testEnvironment + "/server/" + testServer, dns: []string{testServer}, usage: usage, notBefore: from, notAfter: from.Add(g.certTTL),
		}))
	}
	id.Certificates = wire.Certificates{
		AgentClient:  sign(g.client, csrs.AgentClient, x509.ExtKeyUsageClientAuth),
		AgentServer:  sign(g.server, csrs.AgentServer, x509.ExtKeyUsageServerAuth),
		DockerServer: sign(g.docker, csrs.DockerServer, x509.ExtKeyUsageServerAuth),
		NotAfter:     from.Add(g.certTTL),
	}
	return id
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(wire.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// drop ends the connection without an answer.
func drop() { panic(http.ErrAbortHandler) }

// plant writes what cloud-init would, and returns the root directory.
func (g *testGateway) plant(t testing.TB, port int) string {
	t.Helper()
	root := t.TempDir()
	write := func(name string, content []byte, mode os.FileMode) {
		p := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, content, mode))
	}
	cfg, err := json.Marshal(wire.HostConfig{
		ServerID: testServer, Environment: testEnvironment, Role: "app", Region: "eu", Tags: []string{"blue"},
		GatewayURL: g.srv.URL, GatewayServerName: testGatewayName, AgentPort: port, DockerPort: 2376,
	})
	require.NoError(t, err)
	write(wire.HostConfigPath, cfg, 0o644)
	write(wire.BootstrapTokenPath, []byte("raw-bootstrap-token\n"), 0o600)
	write(wire.GatewayCAPath, []byte(g.gwCA.pem), 0o644)
	return root
}

func (g *testGateway) host(t testing.TB) *Host {
	t.Helper()
	h, err := OpenHost(g.plant(t, freePort(t)))
	require.NoError(t, err)
	return h
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func freePort(t testing.TB) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().(*net.TCPAddr).Port
}

// eventually polls until ok, for at most 10 s.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 10*time.Second, 5*time.Millisecond, what)
}
