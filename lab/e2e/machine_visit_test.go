//go:build machines

package e2e

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/pki"
)

// credentials are what a site has for its shard and its pool.
type credentials struct {
	Database string `json:"db_name"`
	User     string `json:"db_user"`
	Password string `json:"db_password"`
	Host     string `json:"db_host"`
	Cache    string `json:"redis_cache"`
}

// credentialsOf reads a site's configuration on its app server.
func (m *machine) credentialsOf(site string) (out credentials) {
	m.t.Helper()
	require.NoError(m.t, json.Unmarshal([]byte(m.run("cat /var/lib/docker/volumes/*/_data/"+site+"/site_config.json")), &out))
	if out.User == "" {
		out.User = out.Database
	}
	return out
}

// clientTLS is that of the app server: its certificate, and the CA that it trusts shards and
// pools by.
func (m *machine) clientTLS() *tls.Config {
	m.t.Helper()
	dir := wire.BenchMount + "/" + wire.TLSDir + "/"
	pair, err := tls.X509KeyPair([]byte(m.run("cat "+dir+"cert.pem")), []byte(m.run("cat "+dir+"key.pem")))
	require.NoError(m.t, err)
	roots := x509.NewCertPool()
	require.True(m.t, roots.AppendCertsFromPEM([]byte(m.run("cat "+dir+"ca.pem"))))
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

// clientOf is the certificate that another app server would have.
func (c *cell) clientOf(serverID prego.ServerID) tls.Certificate {
	c.t.Helper()
	ca, err := pki.Open(c.vars["PREGO_KEYS_DIR"], c.env)
	require.NoError(c.t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(c.t, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(c.t, err)
	chain, _, err := ca.SignService(serverID, nil, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})), time.Hour)
	require.NoError(c.t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(c.t, err)
	pair, err := tls.X509KeyPair([]byte(chain), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	require.NoError(c.t, err)
	return pair
}

// reads counts rows of a tenant's database.
func (who credentials) reads(dial dialFunc, database string, config *tls.Config) func(context.Context) error {
	return func(ctx context.Context) error {
		cfg := mysql.NewConfig()
		cfg.Net, cfg.Addr, cfg.User, cfg.Passwd, cfg.DBName, cfg.TLS = "tcp", net.JoinHostPort(who.Host, "3306"), who.User, who.Password, database, config
		cfg.DialFunc, cfg.Logger = dial, &mysql.NopLogger{}
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			return err
		}
		conn, err := connector.Connect(ctx)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// pings logs in at the tenant's cache.
func (who credentials) pings(dial dialFunc, config *tls.Config) func(context.Context) error {
	return func(ctx context.Context) error {
		at, err := url.Parse(who.Cache)
		if err != nil {
			return err
		}
		plain, err := dial(ctx, "tcp", at.Host)
		if err != nil {
			return err
		}
		defer func() { _ = plain.Close() }()
		config := config.Clone()
		config.ServerName = at.Hostname()
		conn := tls.Client(plain, config)
		end, _ := ctx.Deadline()
		_ = conn.SetDeadline(end)
		password, _ := at.User.Password()
		if _, err := fmt.Fprintf(conn, "AUTH %s %s\r\n", at.User.Username(), password); err != nil {
			return err
		}
		answer, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil && !strings.HasPrefix(answer, "+OK") {
			err = fmt.Errorf("redis: %s", answer)
		}
		return err
	}
}

// public requests URLs from outside: names are looked up in the DNS, connections come from an address, and chains must
// lead to roots.
func (c *cell) public(from string, roots *x509.CertPool) *http.Client {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", c.sim.DNS())
	}}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		name, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		found, err := resolver.LookupIP(ctx, "ip4", name)
		if err != nil {
			return nil, err
		}
		return dialAs(from)(ctx, network, net.JoinHostPort(found[0].String(), port))
	}
	transport := &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	return &http.Client{Transport: transport, Timeout: 5 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// shows waits until a URL answers 200 with a text, and returns the time it took.
func shows(t *testing.T, client *http.Client, url, text string, within time.Duration) time.Duration {
	t.Helper()
	began, last := time.Now(), ""
	for time.Since(began) < within {
		resp, err := client.Get(url)
		if err != nil {
			last = err.Error()
		} else {
			b, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if last = fmt.Sprintf("%d %.300s %v", resp.StatusCode, b, err); resp.StatusCode == http.StatusOK && strings.Contains(string(b), text) {
				return time.Since(began).Round(100 * time.Millisecond)
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Fatalf("%s does not show %q within %s: %s", url, text, within, last)
	return 0
}

// opened lets connections to the machine pass its firewall, until the function that it
// returns is called.
func (m *machine) opened(from string) (closed func()) {
	m.t.Helper()
	for _, chain := range []string{"input", "forward"} {
		m.run("nft insert rule inet prego " + chain + " ip saddr " + from + " counter accept")
	}
	return func() {
		m.t.Helper()
		m.run("systemctl restart prego-firewall.service")
	}
}
