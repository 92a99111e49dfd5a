package gateway

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// Session is an identity in use. It is immutable: a renewal creates another session, and running requests finish with
// theirs.
type Session struct {
	ID        *wire.Identity
	Gateway   *Client
	Client    *tls.Certificate
	Server    *tls.Certificate
	TrustExec *x509.CertPool
	ExecKeys  map[string]any
	Since     time.Time
}

// Open makes an identity usable, or returns what is wrong with it. Every identity is checked here before it is
// stored: an unusable one must neither replace a usable one, nor cost the host its token.
func Open(h *host.Host, id *wire.Identity, k host.Keys, addr string) (*Session, error) {
	if err := h.Mine(id); err != nil {
		return nil, err
	}
	if id.Token == "" {
		return nil, errors.New("the identity holds no token")
	}
	client, err := loadCertificate(id.Certificates.AgentClient, k.Client)
	if err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	server, err := loadCertificate(id.Certificates.AgentServer, k.Server)
	if err != nil {
		return nil, fmt.Errorf("server certificate: %w", err)
	}
	if _, err := loadCertificate(id.Certificates.DockerServer, k.Docker); err != nil {
		return nil, fmt.Errorf("certificate for Docker: %w", err)
	}
	if id.Certificates.Service != "" {
		if _, err := loadCertificate(id.Certificates.Service, k.Service); err != nil {
			return nil, fmt.Errorf("certificate for services: %w", err)
		}
	}
	trustExec := x509.NewCertPool()
	if !trustExec.AppendCertsFromPEM([]byte(id.Bundles.ExecClient)) {
		return nil, errors.New("the bundle of exec clients holds no certificate")
	}
	if !x509.NewCertPool().AppendCertsFromPEM([]byte(id.Bundles.DockerClient)) {
		return nil, errors.New("the bundle of Docker clients holds no certificate")
	}
	execKeys, err := parseExecKeys(id.Bundles.ExecKeys)
	if err != nil {
		return nil, err
	}
	gw, err := New(h, id.Bundles.Gateway, func() (*tls.Certificate, error) { return client, nil }, addr)
	if err != nil {
		return nil, err
	}
	return &Session{ID: id, Gateway: gw, Client: client, Server: server, TrustExec: trustExec, ExecKeys: execKeys, Since: time.Now()}, nil
}

// loadCertificate reads a PEM chain, leaf first, that must match the key.
func loadCertificate(chain string, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	out := &tls.Certificate{PrivateKey: key}
	for block, rest := pem.Decode([]byte(chain)); block != nil; block, rest = pem.Decode(rest) {
		out.Certificate = append(out.Certificate, block.Bytes)
	}
	if len(out.Certificate) == 0 {
		return nil, errors.New("not PEM")
	}
	leaf, err := x509.ParseCertificate(out.Certificate[0])
	if err != nil {
		return nil, err
	}
	out.Leaf = leaf
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(spki, leaf.RawSubjectPublicKeyInfo) {
		return nil, errors.New("it is not for the key of this host")
	}
	return out, nil
}

// CertificatesDue reports whether half of the certificates' life is over.
func (s *Session) CertificatesDue(now time.Time) bool {
	from, to := s.Client.Leaf.NotBefore, s.Client.Leaf.NotAfter
	if !s.ID.Certificates.NotAfter.IsZero() && s.ID.Certificates.NotAfter.Before(to) {
		to = s.ID.Certificates.NotAfter // the earliest of the three
	}
	return now.After(from.Add(to.Sub(from) / 2))
}

// TokenDue reports whether half of the token's life is over.
func (s *Session) TokenDue(now time.Time) bool {
	return now.After(s.Since.Add(s.ID.TokenExpires.Sub(s.Since) / 2))
}

func parseExecKeys(in map[string]string) (map[string]any, error) {
	out := make(map[string]any, len(in))
	for kid, text := range in {
		block, _ := pem.Decode([]byte(text))
		if block == nil {
			return nil, fmt.Errorf("exec key %s is not PEM", kid)
		}
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("exec key %s: %w", kid, err)
		}
		if _, ok := key.(ed25519.PublicKey); !ok {
			return nil, fmt.Errorf("exec key %s is not Ed25519", kid)
		}
		out[kid] = key
	}
	return out, nil
}
