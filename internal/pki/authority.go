package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

// Authority issues and verifies with the CAs of one directory. It follows changes of the files, so that a rotation
// needs no restart.
type Authority struct {
	dir, environment string

	mu     sync.Mutex
	loaded map[Purpose]*ca
	stamp  string // of the files that are loaded
	looked time.Time
}

type ca struct {
	bundle string
	pool   *x509.CertPool // nil if this process may only issue
	cert   *x509.Certificate
	key    crypto.Signer // nil if this process may only verify
}

// Open reads the CAs that exist: a process that only verifies lacks the issuer file, a process that only issues lacks
// the bundle, and most lack most purposes. Need checks for the required purposes.
func Open(dir, environment string) (*Authority, error) {
	a := &Authority{dir: dir, environment: environment}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a, a.load()
}

// Need fails if a purpose is missing whose certificates this process issues, verifies or passes on.
func (a *Authority) Need(issue, trust []Purpose) error {
	for _, p := range issue {
		if c, err := a.get(p); err != nil {
			return err
		} else if c.key == nil {
			return a.missing(p, issuerFile)
		}
	}
	for _, p := range trust {
		if _, err := a.trusted(p); err != nil {
			return err
		}
	}
	return nil
}

func (a *Authority) missing(p Purpose, name string) error {
	return fmt.Errorf("certificate authority for %s: %s is missing "+
		"(prego keys init creates missing files, prego keys share gives them to a process)", p, file(a.dir, p, name))
}

// reloadEvery is how often the files are checked for changes.
const reloadEvery = time.Second

func (a *Authority) get(p Purpose) (*ca, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.looked) >= reloadEvery {
		// A rotation may be in progress: then the loaded CAs stay valid.
		_ = a.load()
	}
	c := a.loaded[p]
	if c == nil {
		return nil, a.missing(p, issuerFile)
	}
	return c, nil
}

// trusted is a CA that verifies certificates.
func (a *Authority) trusted(p Purpose) (*ca, error) {
	c, err := a.get(p)
	if err != nil || c.pool == nil {
		return nil, a.missing(p, bundleFile)
	}
	return c, nil
}

// load reads the files when they have changed.
func (a *Authority) load() error {
	a.looked = time.Now()
	stamp := a.fileStamp()
	if a.loaded != nil && stamp == a.stamp {
		return nil
	}
	loaded := make(map[Purpose]*ca)
	for _, p := range Purposes() {
		c, err := load(caDir(a.dir, p), a.environment)
		if err != nil {
			return fmt.Errorf("certificate authority for %s: %w", p, err)
		}
		if c.pool != nil || c.key != nil {
			loaded[p] = c
		}
	}
	a.loaded, a.stamp = loaded, stamp
	return nil
}

func (a *Authority) fileStamp() string {
	var b strings.Builder
	for _, p := range Purposes() {
		for _, f := range []string{bundleFile, issuerFile} {
			if info, err := os.Stat(filepath.Join(caDir(a.dir, p), f)); err == nil {
				fmt.Fprintf(&b, "%s/%s %d %d\n", p, f, info.ModTime().UnixNano(), info.Size())
			}
		}
	}
	return b.String()
}

func load(dir, environment string) (*ca, error) {
	c := &ca{}
	bundle, err := os.ReadFile(filepath.Join(dir, bundleFile))
	switch {
	case err == nil:
		c.bundle, c.pool = string(bundle), x509.NewCertPool()
		if !c.pool.AppendCertsFromPEM(bundle) {
			return nil, fmt.Errorf("bundle.pem holds no certificate")
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	issuer, err := os.ReadFile(filepath.Join(dir, issuerFile))
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(issuer)
	keyBlock, _ := pem.Decode(rest)
	if block == nil || keyBlock == nil {
		return nil, fmt.Errorf("issuer.pem is not a certificate and a key")
	}
	if c.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return nil, err
	}
	if made := c.cert.PermittedURIDomains; len(made) > 0 && !slices.Contains(made, environment) {
		return nil, fmt.Errorf("it was made for environment %s, not %s", strings.Join(made, ", "), environment)
	}
	key, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("issuer.pem holds a key that can't sign")
	}
	c.key = signer
	return c, nil
}

// Bundle is the PEM of the trusted CAs of a purpose.
func (a *Authority) Bundle(p Purpose) (string, error) {
	c, err := a.trusted(p)
	if err != nil {
		return "", err
	}
	return c.bundle, nil
}

// Bundles are the CAs that hosts trust; execKeys are the public keys for exec tokens, and peersKeys for peers
// documents. The version changes with any of them.
func (a *Authority) Bundles(execKeys, peersKeys map[string]string) (wire.Bundles, error) {
	b := wire.Bundles{ExecKeys: execKeys, PeersKeys: peersKeys}
	for _, e := range []struct {
		p    Purpose
		into *string
	}{
		{Gateway, &b.Gateway},
		{ExecClient, &b.ExecClient},
		{DockerClient, &b.DockerClient},
		{ServiceServer, &b.ServiceServer},
		{ServiceClient, &b.ServiceClient},
	} {
		bundle, err := a.Bundle(e.p)
		if err != nil {
			return b, err
		}
		*e.into = bundle
	}
	// The issuer of agents' certificates is part of the version, although it is not sent: when it changes, agents
	// have to request new ones.
	h := sha256.New()
	for _, s := range []string{b.Gateway, b.ExecClient, b.DockerClient, b.ServiceServer, b.ServiceClient} {
		fmt.Fprintf(h, "%d %s", len(s), s)
	}
	for _, p := range []Purpose{AgentClient, AgentServer, DockerServer, ServiceServer, ServiceClient} {
		c, err := a.get(p)
		if err != nil {
			return b, err
		}
		if c.cert != nil {
			h.Write(c.cert.Raw)
		}
	}
	for _, keys := range []map[string]string{execKeys, peersKeys} {
		for _, kid := range slices.Sorted(maps.Keys(keys)) {
			fmt.Fprintf(h, "%s %s", kid, keys[kid])
		}
	}
	b.Version = hex.EncodeToString(h.Sum(nil))[:16]
	return b, nil
}

// ServerURI is a server's name in certificates.
func ServerURI(environment string, serverID prego.ServerID) *url.URL {
	return &url.URL{Scheme: "prego", Host: environment, Path: string("/server/" + serverID)}
}

// ControlPlaneURI is the control plane's name in certificates.
func ControlPlaneURI(environment string) *url.URL {
	return &url.URL{Scheme: "prego", Host: environment, Path: "/control-plane"}
}

// ServerID reads the server id from a certificate, which must be of this environment and name exactly one server.
func (a *Authority) ServerID(cert *x509.Certificate) (string, error) {
	if len(cert.URIs) != 1 {
		return "", prego.Errorf(prego.CodeCertificateInvalid, "the certificate names no server")
	}
	u := cert.URIs[0]
	id, ok := strings.CutPrefix(u.Path, "/server/")
	if u.Scheme != "prego" || u.Host != a.environment || !ok || prego.ValidateServerID(id) != nil {
		return "", prego.Errorf(prego.CodeCertificateInvalid, "the certificate names no server of this environment")
	}
	return id, nil
}

// SignCSRs issues an agent's three certificates. Only the keys of the requests are used; their other contents are
// ignored. ips are the host's addresses.
func (a *Authority) SignCSRs(
	serverID prego.ServerID, ips []net.IP, csrs wire.CSRs, ttl time.Duration,
) (wire.Certificates, error) {
	var out wire.Certificates
	for _, e := range []struct {
		field   string
		purpose Purpose
		csr     string
		into    *string
	}{
		{"csrs.agent_client", AgentClient, csrs.AgentClient, &out.AgentClient},
		{"csrs.agent_server", AgentServer, csrs.AgentServer, &out.AgentServer},
		{"csrs.docker_server", DockerServer, csrs.DockerServer, &out.DockerServer},
	} {
		var addrs []net.IP
		if e.purpose.usage() == x509.ExtKeyUsageServerAuth {
			addrs = ips
		}
		certificate, notAfter, err := a.issueServer(serverID, e.purpose, e.field, e.csr, addrs, ttl)
		if err != nil {
			return out, err
		}
		*e.into = certificate
		if out.NotAfter.IsZero() || notAfter.Before(out.NotAfter) {
			out.NotAfter = notAfter
		}
	}
	return out, nil
}

// SignService issues a host's certificate for its databases and caches, PEM: a server's, for
// the private address, or, if that is nil, a client's. Both name the server.
func (a *Authority) SignService(
	serverID prego.ServerID, private net.IP, request string, ttl time.Duration,
) (certificate string, notAfter time.Time, err error) {
	p, addrs := ServiceClient, []net.IP(nil)
	if private != nil {
		p, addrs = ServiceServer, []net.IP{private}
	}
	return a.issueServer(serverID, p, "csrs.service", request, addrs, ttl)
}

// issueServer issues a certificate, PEM, that names a server.
func (a *Authority) issueServer(
	serverID prego.ServerID, p Purpose, field, request string, addrs []net.IP, ttl time.Duration,
) (certificate string, notAfter time.Time, err error) {
	csr, err := ParseCSR(field, request)
	if err != nil {
		return "", time.Time{}, err
	}
	uri, dns := ServerURI(a.environment, serverID), []string{string(serverID)}
	cert, err := a.issue(p, csr.PublicKey, string(serverID), uri, dns, addrs, ttl)
	if err != nil {
		return "", time.Time{}, err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})), cert.NotAfter, nil
}

// KeyOfCSR is the SHA-256 of the key of a PEM certificate request.
func (*Authority) KeyOfCSR(field, text string) ([]byte, error) {
	csr, err := ParseCSR(field, text)
	if err != nil {
		return nil, err
	}
	return KeySHA256(csr.PublicKey)
}

// KeySHA256 is the SHA-256 of a certificate's key.
func (*Authority) KeySHA256(cert *x509.Certificate) ([]byte, error) { return KeySHA256(cert.PublicKey) }

// ParseCSR reads a PEM certificate request and checks that its sender has the key, and
// that the key is of an accepted kind.
func ParseCSR(field, text string) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE REQUEST" || strings.TrimSpace(string(rest)) != "" {
		return nil, prego.Invalid(field, "must be one PEM certificate request")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || csr.CheckSignature() != nil {
		return nil, prego.Invalid(field, "must be a certificate request signed with its own key")
	}
	_, isEd25519 := csr.PublicKey.(ed25519.PublicKey)
	if key, ok := csr.PublicKey.(*ecdsa.PublicKey); !isEd25519 && (!ok || key.Curve != elliptic.P256()) {
		return nil, prego.Invalid(field, "must be of an ECDSA P-256 or Ed25519 key")
	}
	return csr, nil
}

func (a *Authority) issue(
	p Purpose, pub crypto.PublicKey, name string, uri *url.URL, dns []string, ips []net.IP, ttl time.Duration,
) (*x509.Certificate, error) {
	c, err := a.get(p)
	if err != nil {
		return nil, err
	}
	if c.key == nil {
		return nil, fmt.Errorf("this process has no key of the CA for %s", p)
	}
	notAfter := time.Now().Add(ttl)
	if notAfter.After(c.cert.NotAfter) {
		notAfter = c.cert.NotAfter
	}
	t := &x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-backdate), NotAfter: notAfter, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{p.usage()},
		DNSNames: dns, IPAddresses: ips,
	}
	if uri != nil {
		t.URIs = []*url.URL{uri}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, c.cert, pub, c.key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", p, err)
	}
	return x509.ParseCertificate(der)
}

// Verify checks that a certificate was issued by a CA of the purpose, for that purpose.
func (a *Authority) Verify(p Purpose, cert *x509.Certificate) error {
	c, err := a.trusted(p)
	if err != nil {
		return err
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: c.pool, KeyUsages: []x509.ExtKeyUsage{p.usage()}}); err != nil {
		return prego.Errorf(prego.CodeCertificateInvalid, "the certificate was not issued by us for %s", p)
	}
	return nil
}

// VerifyAgent verifies an agent's client certificate and returns its server.
func (a *Authority) VerifyAgent(cert *x509.Certificate) (prego.ServerID, error) {
	if err := a.Verify(AgentClient, cert); err != nil {
		return "", err
	}
	id, err := a.ServerID(cert)
	return prego.ServerID(id), err
}
