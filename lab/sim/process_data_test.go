package sim

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
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego/agent/wire"
)

// signed is a certificate with its key, and issues others.
type signed struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func sign(t *testing.T, by *signed, form *x509.Certificate) *signed {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	form.SerialNumber, form.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(time.Hour)
	if by == nil {
		by = &signed{key, form}
	}
	der, err := x509.CreateCertificate(rand.Reader, form, by.cert, key.Public(), by.key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &signed{key, cert}
}

func (c *signed) install(t *testing.T, h *processHost, mount string, trusts *signed) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.key)
	require.NoError(t, err)
	for name, block := range map[string]*pem.Block{
		"ca.pem": {Type: "CERTIFICATE", Bytes: trusts.cert.Raw}, "cert.pem": {Type: "CERTIFICATE", Bytes: c.cert.Raw}, "key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		require.NoError(t, h.write(mount+"/tls/"+name, string(pem.EncodeToMemory(block)), 0o644))
	}
}

// dataHost is a process host of a role, whose boot got as far as its services.
func dataHost(t *testing.T, s *Sim, id int64, role, private, agent string) *processHost {
	t.Helper()
	h := &processHost{sim: s, id: id, name: role, dir: s.hostDir(id), private: private, log: zap.NewNop()}
	config, err := json.Marshal(wire.HostConfig{ServerID: role + "-1", Role: role, Environment: "test", GatewayServerName: "gateway", GatewayURL: "https://gateway.test", AgentPort: 8443, DockerPort: 2376})
	require.NoError(t, err)
	require.NoError(t, h.write(wire.HostConfigPath, string(config), 0o644))
	require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(h.root(), wire.AgentBinary)), 0o755))
	require.NoError(t, os.Link(agent, filepath.Join(h.root(), wire.AgentBinary)))
	if role == "app" {
		require.NoError(t, h.installSimulation())
	}
	require.NoError(t, h.installServices(t.Context()))
	t.Cleanup(h.stopData)
	return h
}

// agentRun runs a program of a host's agent with one line of input.
func agentRun(t *testing.T, h *processHost, input string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(h.root(), wire.AgentBinary), args...)
	cmd.Stdin, cmd.Dir = strings.NewReader(input+"\n"), filepath.Join(h.root(), wire.BenchDir)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(h.root(), wire.BenchHome), "LANG=C.UTF-8"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestShardsAndPoolsOfProcessHosts: a site on an app server has its database in the shard's
// own MariaDB and its cache in the pool's own Redis, over TLS, and the app server has no
// secret of theirs.
func TestShardsAndPoolsOfProcessHosts(t *testing.T) {
	t.Parallel()
	s := benchSim(t, Profile{})
	agent := filepath.Join(s.cfg.StateDir, "prego-agent")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", agent, "github.com/prego/prego/cmd/prego-agent")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() {
		if s.services != nil {
			s.services.close()
		}
	})
	address := func(n int) string { return fmt.Sprintf("127.78.%d.%d", os.Getpid()%250+1, n) }
	shard := dataHost(t, s, 1, "db-shard", address(1), agent)
	pool := dataHost(t, s, 2, "redis-pool", address(2), agent)
	app := dataHost(t, s, 3, "app", address(3), agent)
	ca := func() *signed {
		return sign(t, nil, &x509.Certificate{Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	}
	servers, clients := ca(), ca()
	for h, mount := range map[*processHost]string{shard: wire.MariaDBMount, pool: wire.RedisMount} {
		sign(t, servers, &x509.Certificate{Subject: pkix.Name{CommonName: h.name}, IPAddresses: []net.IP{net.ParseIP(h.private)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}).install(t, h, mount, clients)
	}
	sign(t, clients, &x509.Certificate{Subject: pkix.Name{CommonName: "app-1"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}).install(t, app, wire.BenchMount, servers)

	root := func(h *processHost, secret string) string {
		b, err := os.ReadFile(filepath.Join(h.root(), wire.SecretsDir, secret))
		require.NoError(t, err)
		return strings.TrimSpace(string(b))
	}
	mariadb := func(query string) string {
		cmd := exec.CommandContext(t.Context(), "mariadb", "--no-defaults", "-u", "root", "--password="+root(shard, "mariadb-root"), "--socket="+shard.data.socket, "-N", "-B", "-e", query)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.TrimSpace(string(out))
	}
	redis := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "redis-cli", append([]string{"--no-auth-warning", "-s", pool.data.socket, "--user", "default", "--pass", root(pool, "redis-app")}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.TrimSpace(string(out))
	}
	// As the agents' verbs do (agent, TestATenantsDatabase, TestATenantsCache).
	mariadb("CALL prego.grant_database('pool_a', '127.0.0.1', 'app-1', PASSWORD('pw-of-a'), '')")
	require.Equal(t, "OK", redis("ACL", "SETUSER", "pool_a", "on", ">pw-of-a", "~pool_a|*", "+@all", "-select", "+select|9"))

	const secrets = `{"database_password":"pw-of-a","cache_password":"pw-of-a"}`
	verb := func(args ...string) {
		t.Helper()
		out, err := agentRun(t, app, secrets, append([]string{"site", "--root", app.root()}, args...)...)
		require.NoError(t, err, out)
	}
	verb("new-site", "a.example.com", "--db-name", "pool_a", "--db-host", shard.private)
	verb("--site", "a.example.com", "connect-cache", pool.private, "9")
	verb("--site", "a.example.com", "enable-scheduler")
	require.NotEqual(t, "0", mariadb("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'pool_a'"))
	require.Equal(t, "pool_a|app_hooks", redis("-n", "9", "KEYS", "*"))

	for _, secret := range []string{root(shard, "mariadb-root"), root(shard, "mariadb-exec"), root(pool, "redis-app"), root(pool, "redis-exec")} {
		require.NoError(t, filepath.WalkDir(app.root(), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			require.NotContains(t, string(content), secret, path)
			return err
		}))
	}
	// Without TLS no client gets as far as a password.
	plain := exec.CommandContext(t.Context(), "mariadb", "--no-defaults", "--skip-ssl", "-h", shard.private, "-u", "pool_a", "--password=pw-of-a", "-e", "SELECT 1")
	out, err = plain.CombinedOutput()
	require.Error(t, err)
	require.Regexp(t, "1045|3159", string(out)) // the latter with MariaDB 11.8

	// A renewed certificate is served before the old one ends.
	for h, mount := range map[*processHost]string{shard: wire.MariaDBMount, pool: wire.RedisMount} {
		next := sign(t, servers, &x509.Certificate{Subject: pkix.Name{CommonName: "renewed"}, IPAddresses: []net.IP{net.ParseIP(h.private)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		next.install(t, h, mount+"-next", clients)
		require.NoError(t, h.copyCertificates(t.Context(), filepath.Join(h.root(), mount+"-next/tls"), filepath.Join(h.root(), mount, wire.TLSDir)))
	}
	served, err := tls.Dial("tcp", net.JoinHostPort(pool.private, strconv.Itoa(dataPorts["redis-pool"])), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	require.Equal(t, "renewed", served.ConnectionState().PeerCertificates[0].Subject.CommonName)
	require.NoError(t, served.Close())
	verb("--site", "a.example.com", "usage")

	// What there is outlives the host's reboot.
	shard.stopData()
	require.NoError(t, shard.installServices(t.Context()))
	verb("--site", "a.example.com", "usage")
}
