package agent

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	"github.com/prego/prego/agent/wire"
	"github.com/stretchr/testify/require"
)

const (
	planeURI = "prego://" + testEnvironment + "/control-plane"
	execBody = `{"workflowId":"w","serverId":"app-1","kind":"bench","args":["version"]}`
)

func controlPlane(t testing.TB, ca *authority) *tls.Certificate {
	t.Helper()
	cert := ca.pair(t, leaf{uri: planeURI, usage: x509.ExtKeyUsageClientAuth})
	return &cert
}

// caller calls the agent's port as the control plane does: it verifies the agent
// by the server's id. cert nil is none.
func (g *testGateway) caller(t testing.TB, cert *tls.Certificate) *http.Client {
	t.Helper()
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: g.pool(g.server), ServerName: testServer}
	if cert != nil {
		// Whatever the server says that it accepts.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	tr := &http.Transport{TLSClientConfig: cfg}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Timeout: 10 * time.Second, Transport: tr}
}

// token is a good one for execBody, less what change does to it.
func (g *testGateway) token(t testing.TB, change func(c jwt.MapClaims)) string {
	t.Helper()
	return g.signed(t, jwt.SigningMethodEdDSA, "k1", g.exec, change)
}

// tokenFor is a good one for another body.
func (g *testGateway) tokenFor(t testing.TB, body string) string {
	t.Helper()
	return g.token(t, func(c jwt.MapClaims) {
		c["body"] = digest([]byte(body))
		var in wire.ExecRequest
		if json.Unmarshal([]byte(body), &in) == nil && in.Kind.Valid() {
			c["scope"] = "exec." + string(in.Kind)
		}
	})
}

func (g *testGateway) signed(t testing.TB, method jwt.SigningMethod, kid any, key any, change func(c jwt.MapClaims)) string {
	t.Helper()
	now := time.Now()
	c := jwt.MapClaims{
		"iss": "prego", "sub": "control-plane", "aud": testServer, "jti": uuid.NewString(), "scope": "exec.bench", "body": digest([]byte(execBody)),
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
	}
	if change != nil {
		change(c)
	}
	tok := jwt.NewWithClaims(method, c)
	if kid != nil {
		tok.Header["kid"] = kid
	}
	raw, err := tok.SignedString(key)
	require.NoError(t, err)
	return raw
}

// peersKey signs documents.
type peersKey struct {
	id      string
	private ed25519.PrivateKey
	public  string
}

func newPeersKey(t testing.TB, id string) peersKey {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(public)
	require.NoError(t, err)
	return peersKey{id: id, private: private, public: string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))}
}

func (k peersKey) sign(t testing.TB, doc wire.PeersDocument) *wire.SignedPeers {
	t.Helper()
	if doc.Keys == nil {
		doc.Keys = map[string]string{k.id: k.public}
	}
	s, err := wire.SignPeers(doc, map[string]ed25519.PrivateKey{k.id: k.private})
	require.NoError(t, err)
	return &s
}
