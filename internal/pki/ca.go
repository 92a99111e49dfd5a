// Package pki is the certificate authorities: one per purpose, so that a
// certificate made for one is worth nothing anywhere else. A CA that dockerd
// trusts, say, must not be the one that agents get theirs from: dockerd lets in
// every client certificate of its CA, as root.
package pki

import (
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
	"os"
	"path/filepath"
	"time"
)

// Purpose is what a CA's certificates are for.
type Purpose string

// The purposes, each with a CA of its own.
const (
	Gateway      Purpose = "gateway"       // servers: the agent gateway; hosts trust it
	AgentClient  Purpose = "agent-client"  // clients: agents; the gateway trusts it
	AgentServer  Purpose = "agent-server"  // servers: agents' exec endpoints; the control plane trusts it
	ExecClient   Purpose = "exec-client"   // clients: the control plane at agents; hosts trust it
	DockerServer Purpose = "docker-server" // servers: dockerd; the control plane trusts it
	DockerClient Purpose = "docker-client" // clients: the control plane at dockerd; dockerd trusts it
)

// Purposes lists them all.
func Purposes() []Purpose {
	return []Purpose{Gateway, AgentClient, AgentServer, ExecClient, DockerServer, DockerClient}
}

func (p Purpose) usage() x509.ExtKeyUsage {
	switch p {
	case AgentClient, ExecClient, DockerClient:
		return x509.ExtKeyUsageClientAuth
	case Gateway, AgentServer, DockerServer:
		return x509.ExtKeyUsageServerAuth
	}
	return x509.ExtKeyUsageAny
}

const (
	caLife = 10 * 365 * 24 * time.Hour
	// backdate forgives clocks that are behind.
	backdate = 5 * time.Minute
)

// Init makes a CA for every purpose that has none in dir. What is there is left
// alone.
func Init(dir string) error {
	for _, p := range Purposes() {
		if _, err := os.Stat(filepath.Join(caDir(dir, p), "issuer.pem")); err == nil {
			continue
		}
		if err := os.MkdirAll(caDir(dir, p), 0o700); err != nil {
			return fmt.Errorf("certificate authority: %w", err)
		}
		cert, key, err := newCA(p)
		if err != nil {
			return err
		}
		if err := writeIssuer(dir, p, cert, key); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(caDir(dir, p), "bundle.pem"), cert, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// A rotation has three steps, with time in between for every trusting party to
// learn the new bundle: Add (the new CA is trusted, the old one still issues),
// Activate (the new one issues, both are trusted), Retire (the old one is not
// trusted any more).

// Add makes a new CA for a purpose and lets it be trusted.
func Add(dir string, p Purpose) error {
	cert, key, err := newCA(p)
	if err != nil {
		return err
	}
	d := caDir(dir, p)
	old, err := os.ReadFile(filepath.Join(d, "bundle.pem"))
	if err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	if _, err := os.Stat(filepath.Join(d, "next.pem")); err == nil {
		return fmt.Errorf("a new CA for %s was added already: activate it first", p)
	}
	if err := writeFile(filepath.Join(d, "next.key"), key, 0o600); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(d, "next.pem"), cert, 0o644); err != nil {
		return err
	}
	return writeFile(filepath.Join(d, "bundle.pem"), append(old, cert...), 0o644)
}

// Activate lets the CA that was added issue.
func Activate(dir string, p Purpose) error {
	d := caDir(dir, p)
	cert, err := os.ReadFile(filepath.Join(d, "next.pem"))
	if err != nil {
		return fmt.Errorf("no new CA for %s was added: %w", p, err)
	}
	key, err := os.ReadFile(filepath.Join(d, "next.key"))
	if err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	if err := writeIssuer(dir, p, cert, key); err != nil {
		return err
	}
	return errors.Join(os.Remove(filepath.Join(d, "next.pem")), os.Remove(filepath.Join(d, "next.key")))
}

// Retire stops trusting every CA but the one that issues.
func Retire(dir string, p Purpose) error {
	d := caDir(dir, p)
	if _, err := os.Stat(filepath.Join(d, "next.pem")); err == nil {
		return fmt.Errorf("the new CA for %s does not issue yet: activate it first", p)
	}
	both, err := os.ReadFile(filepath.Join(d, "issuer.pem"))
	if err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	block, _ := pem.Decode(both)
	if block == nil {
		return fmt.Errorf("certificate authority for %s is not PEM", p)
	}
	return writeFile(filepath.Join(d, "bundle.pem"), pem.EncodeToMemory(block), 0o644)
}

func caDir(dir string, p Purpose) string { return filepath.Join(dir, "ca", string(p)) }

// writeIssuer writes certificate and key in one file, since two can't be renamed
// at once.
func writeIssuer(dir string, p Purpose, cert, key []byte) error {
	return writeFile(filepath.Join(caDir(dir, p), "issuer.pem"), append(append([]byte{}, cert...), key...), 0o600)
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

func newCA(p Purpose) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate authority: %w", err)
	}
	id, err := keyID(key.Public())
	if err != nil {
		return nil, nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "prego " + string(p) + " " + hex.EncodeToString(id[:4])},
		NotBefore: time.Now().Add(-backdate), NotAfter: time.Now().Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, ExtKeyUsage: []x509.ExtKeyUsage{p.usage()}, SubjectKeyId: id,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate authority: %w", err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate authority: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}), nil
}

func keyID(pub crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return sum[:20], nil
}

// KeySHA256 is the SHA-256 of a public key's SubjectPublicKeyInfo: how a key is
// bound to a server.
func KeySHA256(pub crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return sum[:], nil
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic("pki: no randomness: " + err.Error())
	}
	return n.Add(n, big.NewInt(1))
}
