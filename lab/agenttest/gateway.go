// Package agenttest is for tests of the agent: a gateway and a control plane that it talks to,
// and the agent as it is released.
package agenttest

import (
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

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/need"
)

// Names of the one host that a gateway has, and of the gateway.
const (
	Server      = "app-1"
	Environment = "test"
	GatewayName = "agentgw.prego.internal"
)

// Authority is a self-signed CA for one purpose.
type Authority struct {
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
	PEM  string
}

// NewAuthority creates an authority with a new key.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &Authority{Cert: cert, Key: key, PEM: CertPEM(der)}
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)
	return n
}

// CertPEM is a certificate as text.
func CertPEM(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// Leaf is what to put into a certificate.
type Leaf struct {
	URI       string
	DNS       []string
	Usage     x509.ExtKeyUsage
	NotBefore time.Time
	NotAfter  time.Time
}

// Sign makes a certificate for a public key.
func (a *Authority) Sign(t testing.TB, public any, l Leaf) []byte {
	t.Helper()
	if l.NotBefore.IsZero() {
		l.NotBefore = time.Now().Add(-time.Minute)
	}
	if l.NotAfter.IsZero() {
		l.NotAfter = time.Now().Add(time.Hour)
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial(t), NotBefore: l.NotBefore, NotAfter: l.NotAfter, DNSNames: l.DNS,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{l.Usage},
	}
	if l.URI != "" {
		u, err := url.Parse(l.URI)
		require.NoError(t, err)
		tmpl.URIs = []*url.URL{u}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.Cert, public, a.Key)
	require.NoError(t, err)
	return der
}

// Pair is a new key with a certificate of this authority.
func (a *Authority) Pair(t testing.TB, l Leaf) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{a.Sign(t, key.Public(), l)}, PrivateKey: key}
}

// Gateway stands in for the agent gateway, behind real TLS 1.3. A fault is a function that may answer in its stead;
// hits are counted.
type Gateway struct {
	TB             testing.TB
	HTTP           *httptest.Server
	shown          atomic.Pointer[tls.Certificate] // the gateway's own
	GatewayCA      *Authority
	ClientCA       *Authority
	ServerCA       *Authority
	DockerServerCA *Authority // signs dockerd's certificate
	ExecCA         *Authority
	DockerCA       *Authority // signs Docker clients
	ExecKey        ed25519.PrivateKey

	mu          sync.Mutex
	Bundles     wire.Bundles
	certTTL     time.Duration
	CertAge     time.Duration // the age in issued certificates
	tokenTTL    time.Duration
	Seconds     int
	issued      int
	AlsoTrusted []*Authority // agent CAs of before
	faults      map[string]func(n int, w http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter)) bool
	seenSoFar   Record
}

// Record is what a gateway has seen.
type Record struct {
	Keys       []string // SHA-256 of the key of each handshake's connection
	Handshakes []wire.HandshakeRequest
	Rotations  []wire.RotateRequest
	Beats      []wire.HeartbeatRequest
	BeatTokens []string
	Logs       []wire.LogLine
	Metrics    [][]byte
	Sources    []string
	InFlight   int
	MostAtOnce int
	Calls      map[string]int
	hits       map[string]int // by path, of calls that met a fault
}

// Seen is a copy of the record.
func (g *Gateway) Seen() Record {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.seenSoFar // slices only ever grow
	r.Calls, r.hits = maps.Clone(r.Calls), maps.Clone(r.hits)
	return r
}

// NewGateway serves until the test ends.
func NewGateway(t testing.TB) *Gateway {
	t.Helper()
	_, execKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	g := &Gateway{
		TB: t, GatewayCA: NewAuthority(t, "gateway"), ClientCA: NewAuthority(t, "agent-client"),
		ServerCA: NewAuthority(t, "agent-server"), DockerServerCA: NewAuthority(t, "docker-server"),
		ExecCA: NewAuthority(t, "exec-client"), DockerCA: NewAuthority(t, "docker-client"), ExecKey: execKey,
		certTTL: time.Hour, tokenTTL: time.Hour, Seconds: 30,
		faults:    make(map[string]func(int, http.ResponseWriter, *http.Request, func(http.ResponseWriter)) bool),
		seenSoFar: Record{Calls: make(map[string]int), hits: make(map[string]int)},
	}
	der, err := x509.MarshalPKIXPublicKey(execKey.Public())
	require.NoError(t, err)
	g.Bundles = wire.Bundles{
		Version: "v1", Gateway: g.GatewayCA.PEM, ExecClient: g.ExecCA.PEM, DockerClient: g.DockerCA.PEM,
		ExecKeys: map[string]string{"k1": string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))},
	}
	g.Show(g.GatewayCA)
	g.HTTP = httptest.NewUnstartedServer(http.HandlerFunc(g.Serve))
	g.HTTP.TLS = &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return g.shown.Load(), nil },
	}
	g.HTTP.EnableHTTP2 = true
	g.HTTP.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	g.HTTP.StartTLS()
	t.Cleanup(g.HTTP.Close)
	return g
}

// Show makes the gateway present a certificate of ca from now on.
func (g *Gateway) Show(ca *Authority) {
	cert := ca.Pair(g.TB, Leaf{DNS: []string{GatewayName}, Usage: x509.ExtKeyUsageServerAuth})
	g.shown.Store(&cert)
}

// Change runs f while the gateway stands still.
func (g *Gateway) Change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// Fault answers calls of a path in the gateway's stead where f returns true; n
// counts the calls from 1.
func (g *Gateway) Fault(path string,
	f func(n int, w http.ResponseWriter, r *http.Request, serve func(http.ResponseWriter)) bool,
) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults[path] = f
}

// Hit is how many calls of a path met a fault.
func (g *Gateway) Hit(path string) int { return g.Seen().hits[path] }

// Serve answers a call, or has its fault do so.
func (g *Gateway) Serve(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	g.seenSoFar.Calls[r.URL.Path]++
	n, fault := g.seenSoFar.Calls[r.URL.Path], g.faults[r.URL.Path]
	g.seenSoFar.InFlight++
	g.seenSoFar.MostAtOnce = max(g.seenSoFar.MostAtOnce, g.seenSoFar.InFlight)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.seenSoFar.InFlight--
		g.mu.Unlock()
	}()
	serve := func(w http.ResponseWriter) { g.answer(w, r) }
	if fault == nil || !g.faulty(r.URL.Path, func() bool { return fault(n, w, r, serve) }) {
		serve(w)
	}
}

// faulty counts a fault that was hit; dropping the connection is one.
func (g *Gateway) faulty(path string, fault func() bool) (answered bool) {
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

func (g *Gateway) answer(w http.ResponseWriter, r *http.Request) {
	peer := r.TLS.PeerCertificates[0]
	spki := sha256.Sum256(peer.RawSubjectPublicKeyInfo)
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seenSoFar.Sources = append(g.seenSoFar.Sources, host)
	if r.URL.Path != wire.PathHandshake {
		if _, err := peer.Verify(x509.VerifyOptions{
			Roots:     g.pool(append(g.AlsoTrusted, g.ClientCA)...),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}); err != nil {
			Refuse(w, http.StatusUnauthorized, "certificate_invalid")
			return
		}
	}
	switch r.URL.Path {
	case wire.PathHandshake:
		var in wire.HandshakeRequest
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			Refuse(w, http.StatusBadRequest, "invalid_json")
			return
		}
		g.seenSoFar.Keys, g.seenSoFar.Handshakes = append(g.seenSoFar.Keys, hex.EncodeToString(spki[:])),
			append(g.seenSoFar.Handshakes, in)
		WriteJSON(w, g.identity(&in.CSRs))
	case wire.PathHeartbeat:
		var in wire.HeartbeatRequest
		_ = json.NewDecoder(r.Body).Decode(&in)
		g.seenSoFar.Beats, g.seenSoFar.BeatTokens = append(g.seenSoFar.Beats, in),
			append(g.seenSoFar.BeatTokens, r.Header.Get("Authorization"))
		WriteJSON(w, wire.HeartbeatResponse{BundleVersion: g.Bundles.Version, HeartbeatSeconds: g.Seconds})
	case wire.PathRotateToken:
		var in wire.RotateRequest
		_ = json.NewDecoder(r.Body).Decode(&in)
		g.seenSoFar.Rotations = append(g.seenSoFar.Rotations, in)
		WriteJSON(w, g.identity(in.CSRs))
	case wire.PathLogs:
		for dec := json.NewDecoder(r.Body); ; {
			var l wire.LogLine
			if dec.Decode(&l) != nil {
				break
			}
			g.seenSoFar.Logs = append(g.seenSoFar.Logs, l)
		}
		w.WriteHeader(http.StatusNoContent)
	case wire.PathMetrics:
		body, _ := io.ReadAll(r.Body)
		g.seenSoFar.Metrics = append(g.seenSoFar.Metrics, body)
		w.WriteHeader(http.StatusOK)
	default:
		Refuse(w, http.StatusNotFound, "not_found")
	}
}

func (g *Gateway) pool(all ...*Authority) *x509.CertPool {
	p := x509.NewCertPool()
	for _, a := range all {
		p.AddCert(a.Cert)
	}
	return p
}

// identity signs the requested certificates; g.mu is held.
func (g *Gateway) identity(csrs *wire.CSRs) wire.Identity {
	g.issued++
	id := wire.Identity{
		ServerID: Server, Environment: Environment, Token: fmt.Sprintf("jwt-%d", g.issued),
		TokenExpires: time.Now().Add(g.tokenTTL), Bundles: g.Bundles, HeartbeatSeconds: g.Seconds,
	}
	if csrs == nil {
		return id
	}
	from := time.Now().Add(-g.CertAge)
	sign := func(ca *Authority, csr string, usage x509.ExtKeyUsage) string {
		block, _ := pem.Decode([]byte(csr))
		req, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil || req.CheckSignature() != nil {
			panic("the agent's CSR is not good")
		}
		return CertPEM(ca.Sign(g.TB, req.PublicKey, Leaf{
			URI: "prego://" + Environment + "/server/" + Server, DNS: []string{Server}, Usage: usage, NotBefore: from,
			NotAfter: from.Add(g.certTTL),
		}))
	}
	id.Certificates = wire.Certificates{
		AgentClient:  sign(g.ClientCA, csrs.AgentClient, x509.ExtKeyUsageClientAuth),
		AgentServer:  sign(g.ServerCA, csrs.AgentServer, x509.ExtKeyUsageServerAuth),
		DockerServer: sign(g.DockerServerCA, csrs.DockerServer, x509.ExtKeyUsageServerAuth),
		NotAfter:     from.Add(g.certTTL),
	}
	return id
}

// Refuse answers with a problem.
func Refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(wire.Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status,
		Code: code,
	})
}

// WriteJSON answers with a document.
func WriteJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// Drop ends the connection without an answer.
func Drop() { panic(http.ErrAbortHandler) }

// Plant writes what cloud-init would, and returns the root directory.
func (g *Gateway) Plant(t testing.TB, port int) string {
	t.Helper()
	root := t.TempDir()
	write := func(name string, content []byte, mode os.FileMode) {
		p := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, content, mode))
	}
	cfg, err := json.Marshal(wire.HostConfig{
		ServerID: Server, Environment: Environment, Role: "app", Region: "eu", Tags: []string{"blue"},
		GatewayURL: g.HTTP.URL, GatewayServerName: GatewayName, AgentPort: port, DockerPort: 2376,
	})
	require.NoError(t, err)
	write(wire.HostConfigPath, cfg, 0o644)
	write(wire.BootstrapTokenPath, []byte("raw-bootstrap-token\n"), 0o600)
	write(wire.GatewayCAPath, []byte(g.GatewayCA.PEM), 0o644)
	return root
}

// Host is a host of this gateway that has not been bootstrapped.
func (g *Gateway) Host(t testing.TB) *host.Host {
	t.Helper()
	h, err := host.OpenHost(g.Plant(t, need.Port(t)))
	require.NoError(t, err)
	return h
}

// Quiet is a logger that writes nothing.
func Quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Eventually polls until ok, for at most 10 s.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 10*time.Second, 5*time.Millisecond, what)
}
