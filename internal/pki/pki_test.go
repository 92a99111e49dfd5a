package pki

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

func open(t *testing.T) (*Authority, string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, Init(dir, "test"))
	a, err := Open(dir, "test")
	require.NoError(t, err)
	return a, dir
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return k
}

func csr(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		DNSNames: []string{"another"}, URIs: []*url.URL{ServerURI("test", "another")},
	}, key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func parse(t *testing.T, text string) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode([]byte(text))
	require.NotNil(t, block)
	c, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return c
}

// TestSwapMatrix presents a certificate of every purpose to the verifier of every
// purpose: only its own takes it.
func TestSwapMatrix(t *testing.T) {
	t.Parallel()
	a, _ := open(t)
	stranger, _ := open(t)
	for _, issued := range Purposes() {
		key := newKey(t)
		own, err := a.issue(issued, key.Public(), "x", ServerURI("test", "app-1"), []string{"app-1"}, nil, time.Hour)
		require.NoError(t, err)
		other, err := stranger.issue(issued, key.Public(), "x", ServerURI("test", "app-1"), []string{"app-1"}, nil, time.Hour)
		require.NoError(t, err)
		for _, verifier := range Purposes() {
			if issued == verifier {
				require.NoError(t, a.Verify(verifier, own))
			} else {
				require.Equal(t, prego.CodeCertificateInvalid, prego.CodeOf(a.Verify(verifier, own)), "%s taken for %s", issued, verifier)
			}
			require.Equal(t, prego.CodeCertificateInvalid, prego.CodeOf(a.Verify(verifier, other)), "another installation's %s", issued)
		}
	}
}

func TestCertificatesSayWhatTheIssuerDecides(t *testing.T) {
	t.Parallel()
	a, _ := open(t)
	request := csr(t, newKey(t))
	certs, err := a.SignCSRs("app-1", []net.IP{net.ParseIP("192.0.2.1")}, wire.CSRs{AgentClient: request, AgentServer: request, DockerServer: request}, time.Hour)
	require.NoError(t, err)
	client := parse(t, certs.AgentClient)
	id, err := a.VerifyAgent(client)
	require.NoError(t, err)
	require.Equal(t, "app-1", string(id), "not what the request asked for")
	require.Equal(t, []string{"app-1"}, client.DNSNames)
	require.Empty(t, client.IPAddresses)
	require.Len(t, parse(t, certs.AgentServer).IPAddresses, 1)
	_, err = a.VerifyAgent(parse(t, certs.AgentServer))
	require.ErrorContains(t, err, "not issued by us for agent-client")

	_, err = (&Authority{environment: "other"}).ServerID(client)
	require.Equal(t, prego.CodeCertificateInvalid, prego.CodeOf(err), "a certificate of another environment")
	_, err = Open(a.dir, "other")
	require.ErrorContains(t, err, "made for environment test", "another environment's keys")
}

func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	good := csr(t, newKey(t))
	block, _ := pem.Decode([]byte(good))
	block.Bytes[len(block.Bytes)-1] ^= 1
	for name, text := range map[string]string{
		"empty": "", "not PEM": "hello", "wrong key type": csr(t, weak), "two": good + good,
		"bad signature": string(pem.EncodeToMemory(block)),
		"a certificate": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})),
	} {
		_, err := ParseCSR("csrs.agent_client", text)
		require.Equal(t, prego.CodeInvalidField, prego.CodeOf(err), name)
	}
}

func TestKeysArePrivate(t *testing.T) {
	t.Parallel()
	_, dir := open(t)
	for _, p := range Purposes() {
		info, err := os.Stat(filepath.Join(caDir(dir, p), "issuer.pem"))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}
	before, err := os.ReadFile(filepath.Join(caDir(dir, Gateway), "issuer.pem"))
	require.NoError(t, err)
	require.NoError(t, Init(dir, "test"), "a second init changes nothing")
	after, err := os.ReadFile(filepath.Join(caDir(dir, Gateway), "issuer.pem"))
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// TestRotationDropsNoRequest rotates the CA behind a server while a client that
// follows the bundles sends requests all the time.
func TestRotationDropsNoRequest(t *testing.T) {
	t.Parallel()
	a, dir := open(t)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	srv.TLS = a.GatewayTLS("gw.test")
	srv.StartTLS()
	t.Cleanup(srv.Close)
	get := func() error {
		bundle, err := a.Bundle(Gateway)
		if err != nil {
			return err
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM([]byte(bundle))
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "gw.test", MinVersion: tls.VersionTLS13}, DisableKeepAlives: true}
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, srv.URL, nil)
		if err != nil {
			return err
		}
		resp, err := (&http.Client{Transport: tr}).Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	sent := 0
	during := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); sent++ {
			require.NoError(t, get(), "request %d", sent)
		}
	}
	v0, err := a.Bundles(nil, nil)
	require.NoError(t, err)
	add := func(dir string, p Purpose) error { return Add(dir, "test", p) }
	for i, step := range []func(string, Purpose) error{add, Activate, Retire} {
		during(200 * time.Millisecond)
		require.NoError(t, step(dir, Gateway), "step %d", i)
		during(reloadEvery + 300*time.Millisecond)
	}
	require.Greater(t, sent, 50)
	v1, err := a.Bundles(nil, nil)
	require.NoError(t, err)
	require.NotEqual(t, v0.Version, v1.Version, "agents learn of it")
	require.ErrorContains(t, Activate(dir, Gateway), "no new CA for gateway was added")
}

func TestClientsTakeOnlyTheServerThatTheyMean(t *testing.T) {
	t.Parallel()
	a, _ := open(t)
	serve := func(p Purpose, id prego.ServerID) string {
		key := newKey(t)
		cert, err := a.issue(p, key.Public(), string(id), ServerURI("test", id), []string{string(id)}, nil, time.Hour)
		require.NoError(t, err)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.TLS.PeerCertificates[0].URIs[0])
		}))
		srv.TLS = &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}
		srv.StartTLS()
		t.Cleanup(srv.Close)
		return srv.URL
	}
	get := func(cfg *tls.Config, u string) error {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, u, nil)
		require.NoError(t, err)
		resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: cfg}}).Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	require.NoError(t, get(a.ExecClientTLS()("app-1"), serve(AgentServer, "app-1")))
	refused := func(err error, says string) {
		t.Helper()
		var mistrust *tls.CertificateVerificationError
		require.ErrorAs(t, err, &mistrust, "it is the certificate that is refused")
		require.ErrorContains(t, err, says)
	}
	refused(get(a.ExecClientTLS()("app-1"), serve(AgentServer, "app-2")), "the host is app-2, not app-1")
	refused(get(a.ExecClientTLS()("app-1"), serve(DockerServer, "app-1")), "not issued by us for agent-server")
	require.NoError(t, get(a.DockerClientTLS()("app-1"), serve(DockerServer, "app-1")))
	refused(get(a.DockerClientTLS()("app-1"), serve(AgentServer, "app-1")), "not issued by us for docker-server")
}

// TestNameConstraints issues certificates with a CA's own key outside its purpose: verifiers refuse them although the
// issuer signed.
func TestNameConstraints(t *testing.T) {
	t.Parallel()
	a, _ := open(t)
	for _, p := range Purposes() {
		for name, cert := range map[string]struct {
			uri *url.URL
			ips []net.IP
			bad bool
		}{
			"a server":                        {uri: ServerURI("test", "app-1")},
			"a server of another environment": {uri: ServerURI("prod", "app-1"), bad: true},
			"an address":                      {ips: []net.IP{net.ParseIP("192.0.2.1")}, bad: p == ServiceServer || p.usage() == x509.ExtKeyUsageClientAuth},
			"an IPv6 address":                 {ips: []net.IP{net.ParseIP("2001:db8::1")}, bad: p == ServiceServer || p.usage() == x509.ExtKeyUsageClientAuth},
			"a private address":               {ips: []net.IP{net.ParseIP("10.64.0.2")}, bad: p.usage() == x509.ExtKeyUsageClientAuth},
		} {
			issued, err := a.issue(p, newKey(t).Public(), "x", cert.uri, []string{"app-1"}, cert.ips, time.Hour)
			require.NoError(t, err)
			require.Equal(t, cert.bad, a.Verify(p, issued) != nil, "%s by the CA for %s: %v", name, p, a.Verify(p, issued))
		}
	}
}

func TestCertificatesDoNotOutliveTheirCA(t *testing.T) {
	t.Parallel()
	a, _ := open(t)
	for _, p := range Purposes() {
		c, err := a.get(p)
		require.NoError(t, err)
		cert, err := a.issue(p, newKey(t).Public(), "x", nil, []string{"app-1"}, nil, 2*caLife)
		require.NoError(t, err)
		require.Equal(t, c.cert.NotAfter, cert.NotAfter)
		require.NoError(t, a.Verify(p, cert))
		expired, err := a.issue(p, newKey(t).Public(), "x", nil, []string{"app-1"}, nil, -time.Second)
		require.NoError(t, err)
		require.ErrorContains(t, a.Verify(p, expired), "not issued by us for "+string(p))
	}
}

// TestStepsThatWereCutOffAreFinishedByDoingThemAgain leaves the files as a process
// that died between two of them would.
func TestStepsThatWereCutOffAreFinishedByDoingThemAgain(t *testing.T) {
	t.Parallel()
	a, dir := open(t)
	works := func() {
		t.Helper()
		fresh, err := Open(dir, "test")
		require.NoError(t, err)
		cert, err := fresh.issue(Gateway, newKey(t).Public(), "x", nil, []string{"gw"}, nil, time.Hour)
		require.NoError(t, err)
		require.NoError(t, fresh.Verify(Gateway, cert), "what issues is trusted")
	}
	bundle := file(dir, Gateway, bundleFile)
	require.NoError(t, os.Remove(bundle))
	require.NoError(t, Init(dir, "test"))
	works()

	old, err := os.ReadFile(bundle)
	require.NoError(t, err)
	require.NoError(t, Add(dir, "test", Gateway))
	require.NoError(t, os.WriteFile(bundle, old, 0o600)) // it died before the bundle
	require.ErrorContains(t, Activate(dir, Gateway), "add it again")
	works()
	require.NoError(t, Add(dir, "test", Gateway))
	require.ErrorContains(t, Add(dir, "test", Gateway), "added already")
	require.ErrorContains(t, Retire(dir, Gateway), "activate it first")
	require.NoError(t, Activate(dir, Gateway))
	works()
	require.NoError(t, Retire(dir, Gateway))
	works()
	b, err := os.ReadFile(bundle)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(b), "BEGIN CERTIFICATE"))

	// A file that is broken for a moment does not stop running processes.
	require.NoError(t, os.WriteFile(bundle, []byte("half a f"), 0o600))
	before, err := a.Bundle(Gateway)
	require.NoError(t, err)
	a.mu.Lock()
	a.looked = time.Time{} // look again now
	a.mu.Unlock()
	after, err := a.Bundle(Gateway)
	require.NoError(t, err)
	require.Equal(t, before, after)
	_, err = Open(dir, "test")
	require.ErrorContains(t, err, "bundle.pem holds no certificate")
}

func TestInitIsSafeAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() { errs <- Init(dir, "test") }()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	a, err := Open(dir, "test")
	require.NoError(t, err)
	for _, p := range Purposes() {
		cert, err := a.issue(p, newKey(t).Public(), "x", nil, []string{"x"}, nil, time.Hour)
		require.NoError(t, err)
		require.NoError(t, a.Verify(p, cert), "issuer and bundle for %s are of one making", p)
	}
}
