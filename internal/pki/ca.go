// Package pki is the certificate authorities: one per purpose, so that a certificate of one is worth nothing
// elsewhere. For example, the CA that dockerd trusts must not also issue agents' certificates: dockerd accepts every
// client certificate of its CA, as root.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Purpose is what a CA's certificates are used for.
type Purpose string

// The purposes, each with its own CA.
const (
	Gateway      Purpose = "gateway"       // servers: the agent gateway; hosts trust it
	AgentClient  Purpose = "agent-client"  // clients: agents; the gateway trusts it
	AgentServer  Purpose = "agent-server"  // servers: agents' exec endpoints; the control plane trusts it
	ExecClient   Purpose = "exec-client"   // clients: the control plane at agents; hosts trust it
	DockerServer Purpose = "docker-server" // servers: dockerd; the control plane trusts it
	DockerClient Purpose = "docker-client" // clients: the control plane at dockerd; dockerd trusts it
	RelayServer  Purpose = "relay-server"  // servers: workers' relays; the API trusts it
	RelayClient  Purpose = "relay-client"  // clients: the API at workers' relays; workers trust it
	// ServiceServer is for the databases and caches of shards and pools, and ServiceClient for the servers whose
	// tenants use them. The control plane trusts neither.
	ServiceServer Purpose = "service-server"
	ServiceClient Purpose = "service-client"
)

// Purposes lists them all.
func Purposes() []Purpose {
	return []Purpose{
		Gateway, AgentClient, AgentServer, ExecClient, DockerServer, DockerClient, RelayServer, RelayClient,
		ServiceServer, ServiceClient,
	}
}

func (p Purpose) usage() x509.ExtKeyUsage {
	switch p {
	case AgentClient, ExecClient, DockerClient, RelayClient, ServiceClient:
		return x509.ExtKeyUsageClientAuth
	case Gateway, AgentServer, DockerServer, RelayServer, ServiceServer:
		return x509.ExtKeyUsageServerAuth
	}
	return x509.ExtKeyUsageAny
}

const (
	caLife = 10 * 365 * 24 * time.Hour
	// backdate tolerates clocks that are behind.
	backdate = 5 * time.Minute
)

// Init creates a CA in dir for every purpose that has none, for the servers of one environment. Existing CAs are left
// alone.
func Init(dir, environment string) error {
	return withLock(dir, func() error {
		for _, p := range Purposes() {
			issuer, err := os.ReadFile(file(dir, p, issuerFile))
			if errors.Is(err, os.ErrNotExist) {
				if issuer, err = newCA(p, environment); err != nil {
					return err
				}
				err = writeFile(file(dir, p, issuerFile), issuer, 0o600)
			}
			if err != nil {
				return fmt.Errorf("certificate authority for %s: %w", p, err)
			}
			if _, err := os.Stat(file(dir, p, bundleFile)); err == nil {
				continue
			}
			cert, err := certificateOf(issuer)
			if err != nil {
				return fmt.Errorf("certificate authority for %s: %w", p, err)
			}
			if err := writeFile(file(dir, p, bundleFile), cert, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}

// A rotation has three steps, with time in between for every trusting party to get the new bundle: Add (the new CA is
// trusted, the old one still issues), Activate (the new one issues, both are trusted), Retire (the old one is no
// longer trusted). An interrupted step is completed by repeating it.

// Add creates a new CA for a purpose and adds it to the trusted ones.
func Add(dir, environment string, p Purpose) error {
	return withLock(dir, func() error {
		bundle, err := os.ReadFile(file(dir, p, bundleFile))
		if err != nil {
			return fmt.Errorf("certificate authority: %w", err)
		}
		next, err := os.ReadFile(file(dir, p, nextFile))
		if errors.Is(err, os.ErrNotExist) {
			if next, err = newCA(p, environment); err != nil {
				return err
			}
			err = writeFile(file(dir, p, nextFile), next, 0o600)
		}
		if err != nil {
			return fmt.Errorf("certificate authority: %w", err)
		}
		cert, err := certificateOf(next)
		if err != nil {
			return fmt.Errorf("new certificate authority for %s: %w", p, err)
		}
		if bytes.Contains(bundle, cert) {
			return fmt.Errorf("a new CA for %s was added already: activate it first", p)
		}
		return writeFile(file(dir, p, bundleFile), append(bundle, cert...), 0o644)
	})
}

// Activate makes the added CA the issuer.
func Activate(dir string, p Purpose) error {
	return withLock(dir, func() error {
		next, err := os.ReadFile(file(dir, p, nextFile))
		if err != nil {
			return fmt.Errorf("no new CA for %s was added: %w", p, err)
		}
		bundle, err := os.ReadFile(file(dir, p, bundleFile))
		if err != nil {
			return fmt.Errorf("certificate authority: %w", err)
		}
		cert, err := certificateOf(next)
		if err != nil {
			return fmt.Errorf("new certificate authority for %s: %w", p, err)
		}
		if !bytes.Contains(bundle, cert) {
			return fmt.Errorf("the new CA for %s is not trusted yet: add it again", p)
		}
		if err := os.Rename(file(dir, p, nextFile), file(dir, p, issuerFile)); err != nil {
			return fmt.Errorf("certificate authority: %w", err)
		}
		return nil
	})
}

// Retire stops trusting every CA except the issuer.
func Retire(dir string, p Purpose) error {
	return withLock(dir, func() error {
		if _, err := os.Stat(file(dir, p, nextFile)); err == nil {
			return fmt.Errorf("the new CA for %s does not issue yet: activate it first", p)
		}
		issuer, err := os.ReadFile(file(dir, p, issuerFile))
		if err != nil {
			return fmt.Errorf("certificate authority: %w", err)
		}
		cert, err := certificateOf(issuer)
		if err != nil {
			return fmt.Errorf("certificate authority for %s: %w", p, err)
		}
		return writeFile(file(dir, p, bundleFile), cert, 0o644)
	})
}

// The files of a CA. Certificate and key share one, since two files can't be renamed atomically.
const (
	issuerFile = "issuer.pem" // certificate and key of the issuing CA
	nextFile   = "next.pem"   // of an added CA that does not issue yet
	bundleFile = "bundle.pem" // trusted certificates
)

// IssuerFile holds certificate and key of the issuing CA of a purpose.
func IssuerFile(dir string, p Purpose) string { return file(dir, p, issuerFile) }

// BundleFile holds the trusted certificates of a purpose.
func BundleFile(dir string, p Purpose) string { return file(dir, p, bundleFile) }

func caDir(dir string, p Purpose) string { return filepath.Join(dir, "ca", string(p)) }

func file(dir string, p Purpose, name string) string { return filepath.Join(caDir(dir, p), name) }

// withLock serializes processes that change the CAs of one directory.
func withLock(dir string, f func() error) error {
	for _, p := range Purposes() {
		if err := os.MkdirAll(caDir(dir, p), 0o700); err != nil {
			return fmt.Errorf("certificate authority: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(dir, "ca", ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	defer func() { _ = lock.Close() }() // which unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("certificate authority: lock: %w", err)
	}
	return f()
}

// certificateOf is the PEM of the first certificate in a file.
func certificateOf(text []byte) ([]byte, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("the file does not begin with a certificate")
	}
	return pem.EncodeToMemory(block), nil
}

func writeFile(name string, content []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".tmp-*")
	if err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	_, werr := f.Write(content)
	err = errors.Join(werr, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("certificate authority: %w", err)
	}
	return nil
}

// newCA creates a certificate and its key, PEM. Besides its usage, name constraints limit a CA: it can name nothing
// outside its environment, a client CA no addresses, and the CA of services only private ones.
func newCA(p Purpose, environment string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	id, err := KeySHA256(key.Public())
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: newSerial(),
		Subject:      pkix.Name{CommonName: "prego " + string(p) + " " + hex.EncodeToString(id[:4])},
		NotBefore:    time.Now().Add(-backdate), NotAfter: time.Now().Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		ExtKeyUsage: []x509.ExtKeyUsage{p.usage()}, SubjectKeyId: id[:20],
		PermittedDNSDomainsCritical: true, PermittedURIDomains: []string{environment},
	}
	if p.usage() == x509.ExtKeyUsageClientAuth {
		t.ExcludedIPRanges = []*net.IPNet{
			{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
		}
	}
	if p == ServiceServer {
		t.PermittedIPRanges = privateRanges()
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return append(certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})...), nil
}

// privateRanges are the ranges of providers' networks (RFC 1918), and loopback for the simulator.
func privateRanges() []*net.IPNet {
	return []*net.IPNet{
		{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)},
		{IP: net.IPv4(172, 16, 0, 0).To4(), Mask: net.CIDRMask(12, 32)},
		{IP: net.IPv4(192, 168, 0, 0).To4(), Mask: net.CIDRMask(16, 32)},
		{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)},
	}
}

// KeySHA256 is the SHA-256 of a public key's SubjectPublicKeyInfo. It binds a key to a server.
func KeySHA256(pub crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return sum[:], nil
}

func newSerial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic("pki: no randomness: " + err.Error())
	}
	return n.Add(n, big.NewInt(1))
}
