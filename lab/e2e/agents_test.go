package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
)

// agentClients make agents that are connections alone: real certificates and tokens of
// the cell, and no process.
type agentClients struct {
	c      *cell
	ca     *pki.Authority
	tokens *token.Agents
	roots  *x509.CertPool
}

func (c *cell) agentClients() *agentClients {
	c.t.Helper()
	ca, err := pki.Open(c.vars["PREGO_KEYS_DIR"], c.env)
	require.NoError(c.t, err)
	ring, err := token.OpenKeyring(c.vars["PREGO_KEYS_DIR"], token.UseAgent)
	require.NoError(c.t, err)
	bundle, err := ca.Bundle(pki.Gateway)
	require.NoError(c.t, err)
	roots := x509.NewCertPool()
	require.True(c.t, roots.AppendCertsFromPEM([]byte(bundle)))
	return &agentClients{c: c, ca: ca, tokens: token.NewAgents(ring), roots: roots}
}

// agentClient is one agent. It keeps its connection, as the real one does.
type agentClient struct {
	id     prego.ServerID
	key    [32]byte // SHA-256 of its public key, as servers.agent_key_sha256
	url    string
	jwt    string
	client *http.Client
}

func (m *agentClients) make(id prego.ServerID) *agentClient {
	t := m.c.t
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	csr := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	certs, err := m.ca.SignCSRs(id, nil, wire.CSRs{AgentClient: csr, AgentServer: csr, DockerServer: csr}, time.Hour)
	require.NoError(t, err)
	block, _ := pem.Decode([]byte(certs.AgentClient))
	leaf, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	jwt, _, err := m.tokens.Issue(id, prego.RoleApp, leaf, time.Hour)
	require.NoError(t, err)
	return &agentClient{
		id: id, key: sha256.Sum256(leaf.RawSubjectPublicKeyInfo), jwt: jwt, url: "https://" + m.c.addr("agentgw") + wire.PathHeartbeat,
		client: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs: m.roots, ServerName: "agentgw.prego.internal", MinVersion: tls.VersionTLS13,
			Certificates: []tls.Certificate{{Certificate: [][]byte{block.Bytes}, PrivateKey: key}},
		}}},
	}
}

func (a *agentClient) close() { a.client.CloseIdleConnections() }

// beat sends one heartbeat, of a host without free memory.
func (a *agentClient) beat() error {
	req, err := http.NewRequest(http.MethodPost, a.url, strings.NewReader(`{"boot_id":"b","memory_pct":99,"docker_state":"running"}`))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+a.jwt)
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the gateway answered %d %s", resp.StatusCode, answer)
	}
	return err
}
