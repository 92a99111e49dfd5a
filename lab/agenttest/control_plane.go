package agenttest

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
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// What the control plane is called in its certificate, and a command that no host allows.
const (
	PlaneURI = "prego://" + Environment + "/control-plane"
	Body     = `{"workflowId":"w","serverId":"app-1","kind":"bench","args":["version"]}`
)

// ControlPlane is the control plane's certificate for calls to agents.
func ControlPlane(t testing.TB, ca *Authority) *tls.Certificate {
	t.Helper()
	cert := ca.Pair(t, Leaf{URI: PlaneURI, Usage: x509.ExtKeyUsageClientAuth})
	return &cert
}

// Caller calls the agent's port as the control plane does: it verifies the agent
// by the server's id. cert nil is none.
func (g *Gateway) Caller(t testing.TB, cert *tls.Certificate) *http.Client {
	t.Helper()
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: g.pool(g.ServerCA), ServerName: Server}
	if cert != nil {
		// Any protocol that the server offers.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	tr := &http.Transport{TLSClientConfig: cfg}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Timeout: 10 * time.Second, Transport: tr}
}

// Token is a good one for Body, less what change does to it.
func (g *Gateway) Token(t testing.TB, change func(c jwt.MapClaims)) string {
	t.Helper()
	return g.Signed(t, jwt.SigningMethodEdDSA, "k1", g.ExecKey, change)
}

// TokenFor is a good one for another body.
func (g *Gateway) TokenFor(t testing.TB, body string) string {
	t.Helper()
	return g.Token(t, func(c jwt.MapClaims) {
		c["body"] = policy.Digest([]byte(body))
		var in wire.ExecRequest
		if json.Unmarshal([]byte(body), &in) == nil && in.Kind.Valid() {
			c["scope"] = "exec." + string(in.Kind)
		}
	})
}

// Signed is a token for Body, less what change does to it, with any method and key.
func (g *Gateway) Signed(t testing.TB, method jwt.SigningMethod, kid any, key any,
	change func(c jwt.MapClaims),
) string {
	t.Helper()
	now := time.Now()
	c := jwt.MapClaims{
		"iss": "prego", "sub": "control-plane", "aud": Server, "jti": uuid.NewString(), "scope": "exec.bench",
		"body": policy.Digest([]byte(Body)), "iat": now.Unix(), "nbf": now.Unix(),
		"exp": now.Add(5 * time.Minute).Unix(),
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

// PeersKey signs documents.
type PeersKey struct {
	ID      string
	private ed25519.PrivateKey
	Public  string
}

// NewPeersKey makes a key.
func NewPeersKey(t testing.TB, id string) PeersKey {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(public)
	require.NoError(t, err)
	return PeersKey{
		ID: id, private: private,
		Public: string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})),
	}
}

// Sign signs a document.
func (k PeersKey) Sign(t testing.TB, doc wire.PeersDocument) *wire.SignedPeers {
	t.Helper()
	if doc.Keys == nil {
		doc.Keys = map[string]string{k.ID: k.Public}
	}
	s, err := wire.SignPeers(doc, map[string]ed25519.PrivateKey{k.ID: k.private})
	require.NoError(t, err)
	return &s
}
