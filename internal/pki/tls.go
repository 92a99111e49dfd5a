package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/prego/prego"
)

// ownTTL is the life of certificates that the control plane issues to itself.
const ownTTL = 24 * time.Hour

// renewing is a certificate of the control plane. It is renewed at half its life and when its CA changes.
type renewing struct {
	a       *Authority
	purpose Purpose
	uri     *url.URL
	dns     []string

	mu     sync.Mutex
	cert   *tls.Certificate
	renew  time.Time
	issuer *x509.Certificate
}

func (r *renewing) get() (*tls.Certificate, error) {
	c, err := r.a.get(r.purpose)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cert != nil && time.Now().Before(r.renew) && c.cert != nil && c.cert.Equal(r.issuer) {
		return r.cert, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	cert, err := r.a.issue(r.purpose, key.Public(), "prego control plane", r.uri, r.dns, nil, ownTTL)
	if err != nil {
		return nil, err
	}
	r.cert = &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
	r.renew, r.issuer = time.Now().Add(ownTTL/2), c.cert
	return r.cert, nil
}

// GatewayTLS is the agent gateway's server side. Every client must present a certificate and prove its key. Each
// route decides which certificates it accepts: the handshake a self-signed one, all others only ours.
func (a *Authority) GatewayTLS(serverName string) *tls.Config {
	own := &renewing{a: a, purpose: Gateway, dns: []string{serverName}}
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		ClientAuth:     tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.get() },
		NextProtos:     []string{"http/1.1"}, // as agents use it
		// A resumed session would carry an identity that may have been revoked.
		SessionTicketsDisabled: true,
	}
}

// ExecClientTLS calls a server's agent: the peer must be that very server.
func (a *Authority) ExecClientTLS() func(serverID prego.ServerID) *tls.Config {
	return a.clientTLS(ExecClient, AgentServer, tls.VersionTLS13)
}

// DockerClientTLS calls a server's dockerd.
func (a *Authority) DockerClientTLS() func(serverID prego.ServerID) *tls.Config {
	return a.clientTLS(DockerClient, DockerServer, tls.VersionTLS12)
}

// clientTLS presents a certificate of one purpose and accepts only a peer of the other, identified by the server's id
// rather than its address.
func (a *Authority) clientTLS(present, expect Purpose, minVersion uint16) func(serverID prego.ServerID) *tls.Config {
	own := &renewing{a: a, purpose: present, uri: ControlPlaneURI(a.environment)}
	return func(serverID prego.ServerID) *tls.Config {
		return &tls.Config{
			MinVersion: minVersion,
			ServerName: string(serverID),
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return own.get()
			},
			// The CA may rotate while this configuration is in use, so the pool is looked up for each connection,
			// below.
			InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies
			VerifyConnection: func(cs tls.ConnectionState) error {
				if len(cs.PeerCertificates) == 0 {
					return errors.New("the host showed no certificate")
				}
				peer := cs.PeerCertificates[0]
				if err := a.Verify(expect, peer); err != nil {
					return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
				}
				id, err := a.ServerID(peer)
				if err == nil && prego.ServerID(id) != serverID {
					err = fmt.Errorf("the host is %s, not %s", id, serverID)
				}
				if err != nil {
					return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
				}
				return nil
			},
		}
	}
}

// RelayTLS is the server side of a worker's relay: it accepts only the API.
func (a *Authority) RelayTLS() *tls.Config {
	own := &renewing{a: a, purpose: RelayServer, uri: ControlPlaneURI(a.environment), dns: []string{relayName}}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"http/1.1"},
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.get() },
		VerifyConnection:       func(cs tls.ConnectionState) error { return a.verifyOurs(RelayClient, cs) },
	}
}

// RelayClientTLS calls the relay of any worker.
func (a *Authority) RelayClientTLS() *tls.Config {
	own := &renewing{a: a, purpose: RelayClient, uri: ControlPlaneURI(a.environment)}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: relayName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.get() },
		InsecureSkipVerify:   true, //nolint:gosec // VerifyConnection verifies, with a pool that may rotate
		VerifyConnection:     func(cs tls.ConnectionState) error { return a.verifyOurs(RelayServer, cs) },
	}
}

// relayName is the server name that the API sends, for a worker at any address.
const relayName = "relay.prego.internal"

// verifyOurs accepts only a process of this control plane.
func (a *Authority) verifyOurs(p Purpose, cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("the peer showed no certificate")
	}
	peer := cs.PeerCertificates[0]
	err := a.Verify(p, peer)
	if err == nil && (len(peer.URIs) != 1 || peer.URIs[0].String() != ControlPlaneURI(a.environment).String()) {
		err = errors.New("the peer is no process of this control plane")
	}
	if err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
	}
	return nil
}
