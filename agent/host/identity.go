package host

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

func (h *Host) identityPath() string { return h.Path(wire.IdentityDir + "/identity.json") }

// Keys are generated on the host, and never sent anywhere. They live as long as the host; only the certificates on
// them are renewed.
type Keys struct {
	Client, Server, Docker, Service *ecdsa.PrivateKey
}

// LoadKeys reads the keys, and generates missing ones before they are used for a
// request: a repeated handshake must come with the same key.
func (h *Host) LoadKeys() (Keys, error) {
	var k Keys
	if err := os.MkdirAll(h.Path(wire.IdentityDir), 0o700); err != nil {
		return k, fmt.Errorf("identity directory: %w", err)
	}
	for name, into := range map[string]**ecdsa.PrivateKey{"client": &k.Client, "server": &k.Server, "docker": &k.Docker, "service": &k.Service} {
		key, err := loadKey(h.Path(wire.IdentityDir + "/" + name + ".key"))
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
		return key, WriteFile(name, pemKey, 0o600)
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

// CSRs are the requests for the certificates of a host.
func (k Keys) CSRs(c wire.HostConfig) (wire.CSRs, error) {
	var out wire.CSRs
	requests := []struct {
		key  *ecdsa.PrivateKey
		into *string
	}{{k.Client, &out.AgentClient}, {k.Server, &out.AgentServer}, {k.Docker, &out.DockerServer}, {k.Service, &out.Service}}
	if ServiceMount(c.Role) == "" {
		requests = requests[:3]
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

// SelfSigned is the certificate of the handshake. It only proves that the host holds the client key.
func (k Keys) SelfSigned(serverID string) (tls.Certificate, error) {
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: serverID},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, k.Client.Public(), k.Client)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("self-signed certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k.Client}, nil
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
	if err := h.Mine(&id); err != nil {
		return nil, err
	}
	return &id, nil
}

// Mine rejects an identity that is not this host's.
func (h *Host) Mine(id *wire.Identity) error {
	if id.ServerID != h.Config.ServerID || id.Environment != h.Config.Environment {
		return fmt.Errorf("the identity is of server %q in environment %q, and this host is %q in %q", id.ServerID, id.Environment, h.Config.ServerID, h.Config.Environment)
	}
	return nil
}

// SaveIdentity stores an identity durably, dockerd's part first: if the identity exists, everything does.
func (h *Host) SaveIdentity(id *wire.Identity, k Keys) error {
	dockerKey, err := encodeKey(k.Docker)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(h.Path(wire.DockerTLSDir), 0o750); err != nil {
		return fmt.Errorf("docker certificates: %w", err)
	}
	// The key never changes, so the files match each other, no matter which of them a reader sees renewed.
	for _, f := range []struct {
		name    string
		content []byte
		mode    os.FileMode
	}{
		{"ca.pem", []byte(id.Bundles.DockerClient), 0o644},
		{"key.pem", dockerKey, 0o600},
		{"cert.pem", []byte(id.Certificates.DockerServer), 0o644},
	} {
		if err := WriteFile(h.Path(wire.DockerTLSDir+"/"+f.name), f.content, f.mode); err != nil {
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
	return WriteFile(h.identityPath(), b, 0o600)
}

// saveService stores the certificate for services with its key and the CAs of the other side. The key never changes,
// so the files match each other even in the middle of a renewal. The certificate comes last, because its installer
// waits for it.
func (h *Host) saveService(id *wire.Identity, k Keys) error {
	if id.Certificates.Service == "" {
		return nil
	}
	trusted := id.Bundles.ServiceServer
	if ServesOthers(h.Config.Role) {
		trusted = id.Bundles.ServiceClient
	}
	key, err := encodeKey(k.Service)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(h.Path(wire.ServiceTLSDir), 0o700); err != nil {
		return fmt.Errorf("certificate for services: %w", err)
	}
	for name, content := range map[string][]byte{"ca.pem": []byte(trusted), "key.pem": key} {
		if err := WriteFile(h.Path(wire.ServiceTLSDir+"/"+name), content, 0o600); err != nil {
			return err
		}
	}
	return WriteFile(h.Path(wire.ServiceTLSDir+"/cert.pem"), []byte(id.Certificates.Service), 0o600)
}
