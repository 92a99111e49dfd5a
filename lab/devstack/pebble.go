package devstack

import (
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
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// PebbleConfig configures Pebble, Let's Encrypt's ACME authority for tests.
type PebbleConfig struct {
	Program string
	Dir     string // holds its configuration and its HTTPS certificate
	LogFile string
	Listen  string // address and port of the ACME API
	Manage  string // address and port where its roots are
	// HTTPPort is where challenges over HTTP are looked for, and DNS, an address and port,
	// where names are looked up.
	HTTPPort int
	DNS      string
	Validity time.Duration     // of certificates; 0 is 90 days
	EAB      map[string]string // keys of external accounts, by id; with any, an account needs one
	Env      []string          // added to its environment
}

// Pebble is a running authority. It forgets everything when it ends, its roots included.
type Pebble struct {
	*Process
	Directory string
	CAFile    string // PEM of the root of its HTTPS certificate
	cfg       PebbleConfig
}

// StartPebble starts an authority and waits until it answers.
func StartPebble(ctx context.Context, cfg PebbleConfig) (*Pebble, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("pebble: %w", err)
	}
	p := &Pebble{Directory: "https://" + cfg.Listen + "/dir", CAFile: filepath.Join(dir, "https.pem"), cfg: cfg}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("pebble: %w", err)
	}
	settings, err := p.configure(dir)
	if err != nil {
		return nil, fmt.Errorf("pebble: %w", err)
	}
	env := append(append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0", "PEBBLE_WFE_NONCEREJECT=0"),
		cfg.Env...)
	if p.Process, err = Start(Spec{
		Name: "pebble", Path: cfg.Program,
		Args: []string{"-config", settings, "-dnsserver", cfg.DNS, "-strict"}, Env: env,
		LogFile: cfg.LogFile,
	}); err != nil {
		return nil, err
	}
	ready, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := p.await(ready, func(ctx context.Context) error {
		// The two interfaces begin to listen one after the other.
		if _, err := p.ask(ctx, http.MethodGet, p.Directory, nil); err != nil {
			return err
		}
		_, err := p.Root(ctx)
		return err
	}); err != nil {
		p.Stop(time.Second)
		return nil, err
	}
	return p, nil
}

// Root is the PEM of the root that certificates lead to.
func (p *Pebble) Root(ctx context.Context) ([]byte, error) {
	return p.Manage(ctx, http.MethodGet, "/roots/0", nil)
}

// Manage sends a request to the management interface.
func (p *Pebble) Manage(ctx context.Context, method, path string, body io.Reader) ([]byte, error) {
	return p.ask(ctx, method, "https://"+p.cfg.Manage+path, body)
}

func (p *Pebble) ask(ctx context.Context, method, url string, body io.Reader) ([]byte, error) {
	own, err := os.ReadFile(p.CAFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(own)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %.200s", method, url, resp.Status, answer)
	}
	return answer, err
}

// configure writes the settings, and the certificate of the authority's own HTTPS: once,
// since who uses the authority trusts it.
func (p *Pebble) configure(dir string) (file string, err error) {
	keyFile := filepath.Join(dir, "https-key.pem")
	if _, err := os.Stat(p.CAFile); errors.Is(err, os.ErrNotExist) {
		if err := p.certify(keyFile); err != nil {
			return "", err
		}
	}
	validity := p.cfg.Validity
	if validity == 0 {
		validity = 90 * 24 * time.Hour
	}
	settings := map[string]any{
		"listenAddress": p.cfg.Listen, "managementListenAddress": p.cfg.Manage, "certificate": p.CAFile,
		"privateKey": keyFile, "httpPort": p.cfg.HTTPPort, "tlsPort": 1, "keyAlgorithm": "ecdsa",
		"domainBlocklist": []string{"blocked.example"}, "retryAfter": map[string]int{"authz": 1, "order": 1},
		"profiles": map[string]any{"default": map[string]any{
			"description":    "the only one",
			"validityPeriod": int(validity.Seconds()),
		}},
	}
	if len(p.cfg.EAB) > 0 {
		settings["externalAccountBindingRequired"], settings["externalAccountMACKeys"] = true, p.cfg.EAB
	}
	b, err := json.Marshal(map[string]any{"pebble": settings})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "pebble.json")
	return file, os.WriteFile(file, b, 0o600)
}

// certify makes the certificate of the authority's own HTTPS.
func (p *Pebble) certify(keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Pebble's HTTPS"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600),
		os.WriteFile(p.CAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
	)
}
