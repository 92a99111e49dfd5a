// Package agent is what runs on a host: it exchanges the bootstrap token for an
// identity, sends heartbeats, renews what expires, and serves the closed set of
// command kinds. It shares nothing with the control plane but the messages in
// agent/wire.
package agent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"

	"github.com/prego/prego/agent/wire"
)

func (h *Host) identityPath() string { return h.path(wire.IdentityDir + "/identity.json") }

// keys are a host's own: generated here, and never sent anywhere. They live as long as
// the host; only the certificates on them are renewed.
type keys struct {
	client, server, docker, service *ecdsa.PrivateKey
}

// loadKeys reads the keys, and generates missing ones before they are used for a
// request: a repeated handshake must come with the same key.
func (h *Host) loadKeys() (keys, error) {
	var k keys
	if err := os.MkdirAll(h.path(wire.IdentityDir), 0o700); err != nil {
		return k, fmt.Errorf("identity directory: %w", err)
	}
	for name, into := range map[string]**ecdsa.PrivateKey{"client": &k.client, "server": &k.server, "docker": &k.docker, "service": &k.service} {
		key, err := loadKey(h.path(wire.IdentityDir + "/" + name + ".key"))
		if err != nil {
			return k, err
		}
		*into = key
	}
	return k, nil
}

func loadKey(name string) (*ecdsa.PrivateKey, error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("key: %w", err)
		}
		pemKey, err := encodeKey(key)
		if err != nil {
			return nil, err
		}
		return key, writeFile(name, pemKey, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("key %s is not PEM", name)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", name, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key %s is not ECDSA", name)
	}
	return key, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// csrs are the requests for the certificates of a host.
func (k keys) csrs(c wire.HostConfig) (wire.CSRs, error) {
	var out wire.CSRs
	requests := []struct {
		key  *ecdsa.PrivateKey
		into *string
	}{{k.client, &out.AgentClient}, {k.server, &out.AgentServer}, {k.docker, &out.DockerServer}}
	if serviceMount(c.Role) != "" {
		requests = append(requests, struct {
			key  *ecdsa.PrivateKey
			into *string
		}{k.service, &out.Service})
	}
	for _, e := range requests {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: c.ServerID}}, e.key)
		if err != nil {
			return out, fmt.Errorf("certificate request: %w", err)
		}
		*e.into = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	}
	return out, nil
}

// selfSigned is the certificate of the handshake: it proves that the host holds
// the client key, and says nothing else.
func (k keys) selfSigned(serverID string) (tls.Certificate, error) {
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: serverID},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, k.client.Public(), k.client)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("self-signed certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k.client}, nil
}

// LoadIdentity reads the identity that a handshake or rotation stored; nil if there is
// none. An identity of another server, as on a copied disk, is an error.
func (h *Host) LoadIdentity() (*wire.Identity, error) {
	b, err := os.ReadFile(h.identityPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	var id wire.Identity
	if err := json.Unmarshal(b, &id); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	if err := h.mine(&id); err != nil {
		return nil, err
	}
	return &id, nil
}

// mine rejects an identity that is not this host's.
func (h *Host) mine(id *wire.Identity) error {
	if id.ServerID != h.Config.ServerID || id.Environment != h.Config.Environment {
		return fmt.Errorf("the identity is of server %q in environment %q, and this host is %q in %q", id.ServerID, id.Environment, h.Config.ServerID, h.Config.Environment)
	}
	return nil
}

// saveIdentity stores an identity durably, dockerd's part first: if the identity
// exists, everything does.
func (h *Host) saveIdentity(id *wire.Identity, k keys) error {
	dockerKey, err := encodeKey(k.docker)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(h.path(wire.DockerTLSDir), 0o750); err != nil {
		return fmt.Errorf("docker certificates: %w", err)
	}
	// The key never changes, so the files match each other, no matter which of them a
	// reader sees renewed.
	for _, f := range []struct {
		name    string
		content []byte
		mode    os.FileMode
	}{
		{"ca.pem", []byte(id.Bundles.DockerClient), 0o644},
		{"key.pem", dockerKey, 0o600},
		{"cert.pem", []byte(id.Certificates.DockerServer), 0o644},
	} {
		if err := writeFile(h.path(wire.DockerTLSDir+"/"+f.name), f.content, f.mode); err != nil {
			return err
		}
	}
	if err := h.saveService(id, k); err != nil {
		return err
	}
	b, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	return writeFile(h.identityPath(), b, 0o600)
}

// saveService stores the certificate for services with its key and the CAs of the other
// side. The key never changes, so the files match each other, whichever a reader sees
// renewed; the certificate comes last, since whoever installs them waits for it.
func (h *Host) saveService(id *wire.Identity, k keys) error {
	if id.Certificates.Service == "" {
		return nil
	}
	trusted := id.Bundles.ServiceServer
	if servesOthers(h.Config.Role) {
		trusted = id.Bundles.ServiceClient
	}
	key, err := encodeKey(k.service)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(h.path(wire.ServiceTLSDir), 0o700); err != nil {
		return fmt.Errorf("certificate for services: %w", err)
	}
	for name, content := range map[string][]byte{"ca.pem": []byte(trusted), "key.pem": key} {
		if err := writeFile(h.path(wire.ServiceTLSDir+"/"+name), content, 0o600); err != nil {
			return err
		}
	}
	return writeFile(h.path(wire.ServiceTLSDir+"/cert.pem"), []byte(id.Certificates.Service), 0o600)
}
