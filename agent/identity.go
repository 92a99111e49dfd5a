// Package agent is what runs on a host: it exchanges the bootstrap token for an
// identity, sends heartbeats, renews what expires, and serves the closed set of
// command kinds. It shares nothing with the control plane but the messages in
// agent/wire.
package agent

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
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/prego/prego/agent/wire"
)

// Host is the directory tree that the agent uses: "/" on a real host.
type Host struct {
	Root   string
	Config wire.HostConfig

	pause func(ctx context.Context, d time.Duration) error // so that tests can advance the time
	// alone says that no other process of the host does what takes root.
	alone bool

	// For tests: how much of the disk backups of volumes leave free, and what is called while a
	// file system is frozen.
	keepFree     int64
	duringFreeze func()
}

// OpenHost reads the configuration written by cloud-init. It rejects one that no agent
// could work with.
func OpenHost(root string) (*Host, error) {
	h := &Host{Root: root, pause: sleep}
	b, err := os.ReadFile(h.path(wire.HostConfigPath))
	if err != nil {
		return nil, fmt.Errorf("host configuration: %w", err)
	}
	if err := json.Unmarshal(b, &h.Config); err != nil {
		return nil, fmt.Errorf("host configuration %s: %w", wire.HostConfigPath, err)
	}
	if err := h.checkConfig(); err != nil {
		return nil, fmt.Errorf("host configuration %s: %w", wire.HostConfigPath, err)
	}
	return h, nil
}

func (h *Host) checkConfig() error {
	c := h.Config
	switch u, err := url.Parse(c.GatewayURL); {
	case c.ServerID == "" || c.Environment == "" || c.GatewayServerName == "":
		return errors.New("server_id, environment and gateway_server_name are required")
	case err != nil || u.Scheme != "https" || u.Host == "":
		return errors.New("gateway_url must be an https URL: tokens travel to it")
	case c.AgentPort < 1 || c.AgentPort > 65535:
		return errors.New("agent_port must be 1 to 65535")
	}
	return nil
}

func (h *Host) path(p string) string { return filepath.Join(h.Root, p) }

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
	if h.alone {
		if err := h.copyServiceTLS(); err != nil {
			return err
		}
	}
	b, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	return writeFile(h.identityPath(), b, 0o600)
}

// writeFile replaces a file atomically and durably; unchanged content is left alone.
func writeFile(name string, content []byte, mode os.FileMode) error {
	if old, err := os.ReadFile(name); err == nil && bytes.Equal(old, content) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, werr := f.Write(content)
	err = errors.Join(werr, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", name, err)
	}
	if dir, err := os.Open(filepath.Dir(name)); err == nil {
		_ = dir.Sync()
		_ = dir.Close()
	}
	return nil
}
