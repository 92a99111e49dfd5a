package exec

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"database/sql"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/resp"
	"github.com/prego/prego/agent/rooted"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
	"github.com/prego/prego/lab/need"
)

// testCA issues certificates, each for one use.
type testCA struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	use  x509.ExtKeyUsage
	pool *x509.CertPool
}

func newTestCA(t testing.TB, use x509.ExtKeyUsage) *testCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &testCA{t: t, key: key, cert: cert, use: use, pool: pool}
}

func (c *testCA) issue(name string) tls.Certificate {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(c.t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(c.t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name},
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP("127.0.0.2")}, ExtKeyUsage: []x509.ExtKeyUsage{c.use}, KeyUsage: x509.KeyUsageDigitalSignature,
	}, c.cert, key.Public(), c.key)
	require.NoError(c.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// write puts a certificate of one CA into a directory, with the other CA that its holder
// trusts.
func (c *testCA) write(dir, name string, trusts *testCA) {
	c.t.Helper()
	require.NoError(c.t, os.MkdirAll(dir, 0o755))
	cert := c.issue(name)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	require.NoError(c.t, err)
	for file, block := range map[string]*pem.Block{
		"ca.pem": {Type: "CERTIFICATE", Bytes: trusts.cert.Raw}, "cert.pem": {Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		require.NoError(c.t, os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o644))
	}
}

// askWith runs a command with secrets.
func askWith(t testing.TB, c *commands, kind wire.CommandKind, secrets map[string]string, args ...string) wire.ExecResult {
	t.Helper()
	k, refused := c.submit(wire.ExecRequest{ServerID: agenttest.Server, Kind: kind, Args: args, Secrets: secrets}, agenttest.Quiet())
	require.Nil(t, refused)
	<-k.ended
	require.Nil(t, k.failed)
	return k.result
}

func newTestCommands(t testing.TB, h *host.Host) *commands {
	t.Helper()
	c, err := newCommands(&workplace{Host: h})
	require.NoError(t, err)
	t.Cleanup(c.stop)
	return c
}

// tlsShard is a shard's MariaDB with the options of the declared stack.
func tlsShard(t testing.TB) (h *host.Host, port int, clients *testCA, servers *testCA, admin *sql.DB) {
	t.Helper()
	h, _ = preparedHost(t, host.RoleShard)
	servers, clients = newTestCA(t, x509.ExtKeyUsageServerAuth), newTestCA(t, x509.ExtKeyUsageClientAuth)
	dir := h.Path("data") + "-tls"
	servers.write(dir, "shard-1", clients)
	installMariaDB(t, h)
	port = need.Port(t)
	admin, err := h.OpenMariaDB(wire.Service{User: "root", Socket: wire.MariaDBSocket})
	require.NoError(t, err)
	t.Cleanup(func() { _ = admin.Close() })
	cmd := declaredMariaDB(t, h, "--bind-address=127.0.0.1", "--port="+strconv.Itoa(port), "--skip-name-resolve",
		"--require-secure-transport=ON", "--ssl-ca="+dir+"/ca.pem", "--ssl-cert="+dir+"/cert.pem",
		"--ssl-key="+dir+"/key.pem")
	server(t, cmd, func() bool { return admin.Ping() == nil })
	return h, port, clients, servers, admin
}

// TestATenantsDatabase is the matrix of who gets into a tenant's database, with a shard's
// real MariaDB: each thing that is needed is missing once, alone.
func TestATenantsDatabase(t *testing.T) {
	t.Parallel()
	h, port, clients, servers, admin := tlsShard(t)
	c := newTestCommands(t, h)
	const passwordA, passwordB = "password-of-a", "password-of-b"
	grant := func(name, address, client string, secrets map[string]string) wire.ExecResult {
		return askWith(t, c, wire.KindMariaDB, secrets, "grant-database", name, address, client)
	}
	of := func(password string) map[string]string {
		return map[string]string{wire.SecretDatabasePassword: password}
	}
	for range 2 {
		require.Zero(t, grant("tenant_a_b_db", "127.0.0.1", "app-1", of(passwordA)).ExitCode)
	}
	r := grant("tenant_axb_db", "127.0.0.2", "app-2", of(passwordB)) // a name that differs in one underscore
	require.Zero(t, r.ExitCode, r.StderrTruncated)

	cert1, cert2 := clients.issue("app-1"), clients.issue("app-2")
	foreign := newTestCA(t, x509.ExtKeyUsageClientAuth).issue("app-1")
	try := func(user, password, database, from string, with *tls.Config, statement string) error {
		cfg := mysql.NewConfig()
		cfg.User, cfg.Passwd, cfg.DBName, cfg.Net, cfg.Addr = user, password, database, "tcp", "127.0.0.1:"+strconv.Itoa(port)
		cfg.TLS, cfg.Timeout = with, 5*time.Second
		cfg.DialFunc = func(ctx context.Context, _, addr string) (net.Conn, error) {
			return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", addr)
		}
		connector, err := mysql.NewConnector(cfg)
		require.NoError(t, err)
		db := sql.OpenDB(connector)
		defer func() { _ = db.Close() }()
		_, err = db.ExecContext(t.Context(), statement)
		return err
	}
	secure := func(cert tls.Certificate) *tls.Config {
		return &tls.Config{RootCAs: servers.pool, ServerName: "127.0.0.1", Certificates: []tls.Certificate{cert}}
	}
	a := func(statement string) error {
		return try("tenant_a_b_db", passwordA, "tenant_a_b_db", "127.0.0.1", secure(cert1), statement)
	}
	require.NoError(t, a("CREATE TABLE t (x INT)"))
	require.NoError(t, a("INSERT INTO t VALUES (7)"))
	require.NoError(t, try("tenant_axb_db", passwordB, "tenant_axb_db", "127.0.0.2", secure(cert2), "CREATE TABLE t (x INT)"))

	const denied1044, denied1045, denied1142 = 1044, 1045, 1142
	for name, tc := range map[string]struct {
		err  error
		code uint16 // 0: there is no connection
	}{
		"another's database":       {a("SELECT x FROM tenant_axb_db.t"), denied1142},
		"another's, as its own":    {try("tenant_a_b_db", passwordA, "tenant_axb_db", "127.0.0.1", secure(cert1), "SELECT 1"), denied1044},
		"another's password":       {try("tenant_a_b_db", passwordB, "tenant_a_b_db", "127.0.0.1", secure(cert1), "SELECT 1"), denied1045},
		"another address":          {try("tenant_a_b_db", passwordA, "tenant_a_b_db", "127.0.0.3", secure(cert1), "SELECT 1"), 1130},
		"another's certificate":    {try("tenant_a_b_db", passwordA, "tenant_a_b_db", "127.0.0.1", secure(cert2), "SELECT 1"), denied1045},
		"no certificate":           {try("tenant_a_b_db", passwordA, "tenant_a_b_db", "127.0.0.1", &tls.Config{RootCAs: servers.pool, ServerName: "127.0.0.1"}, "SELECT 1"), denied1045},
		"no TLS":                   {try("tenant_a_b_db", passwordA, "tenant_a_b_db", "127.0.0.1", nil, "SELECT 1"), denied1045},
		"a certificate of nobody":  {try("tenant_a_b_db", passwordA, "tenant_a_b_db", "127.0.0.1", secure(foreign), "SELECT 1"), 0},
		"the users of the server":  {a("SELECT * FROM mysql.global_priv"), denied1142},
		"a database of its liking": {a("CREATE DATABASE other"), denied1044},
		"the shard's procedures":   {a("CALL prego.erase_database('tenant_axb_db')"), 1370},
		"root, without TLS":        {try("root", "", "", "127.0.0.1", nil, "SELECT 1"), denied1045},
	} {
		require.Error(t, tc.err, name)
		var refused *mysql.MySQLError
		if tc.code == 0 {
			require.NotErrorAs(t, tc.err, &refused, name)
			continue
		}
		require.ErrorAs(t, tc.err, &refused, name)
		if refused.Number == 3159 { // insecure transport: MariaDB 11.8 names it, 10.11 denies access
			refused.Number = denied1045
		}
		require.Equal(t, tc.code, refused.Number, "%s: %v", name, tc.err)
	}

	t.Run("its user can empty it", func(t *testing.T) {
		require.NoError(t, a("DROP DATABASE tenant_a_b_db"))
		require.NoError(t, try("tenant_a_b_db", passwordA, "", "127.0.0.1", secure(cert1), "CREATE DATABASE tenant_a_b_db"))
		require.NoError(t, a("CREATE TABLE t (x INT)"))
	})
	t.Run("a password is replaced without a gap", func(t *testing.T) {
		const next = "the next password"
		b := func(password string) error {
			return try("tenant_axb_db", password, "tenant_axb_db", "127.0.0.2", secure(cert2), "SELECT 1")
		}
		require.Zero(t, grant("tenant_axb_db", "127.0.0.2", "app-2", map[string]string{wire.SecretDatabasePassword: next, wire.SecretEarlierPassword: passwordB}).ExitCode)
		require.NoError(t, b(passwordB))
		require.NoError(t, b(next))
		require.Zero(t, grant("tenant_axb_db", "127.0.0.2", "app-2", of(next)).ExitCode)
		require.NoError(t, b(next))
		require.ErrorContains(t, b(passwordB), "1045")
	})
	t.Run("a site that moves is let in from both servers", func(t *testing.T) {
		admit := func(name, address, client string) wire.ExecResult {
			return askWith(t, c, wire.KindMariaDB, of("two"), "admit-database", name, address, client)
		}
		at := func(from string, cert tls.Certificate) error {
			return try("tenant_moves_db", "two", "tenant_moves_db", from, secure(cert), "CREATE TABLE IF NOT EXISTS t (x INT)")
		}
		require.NotZero(t, admit("tenant_moves_db", "127.0.0.2", "app-2").ExitCode, "it makes no database")
		require.Zero(t, grant("tenant_moves_db", "127.0.0.1", "app-1", of("two")).ExitCode)
		for range 2 {
			require.Zero(t, admit("tenant_moves_db", "127.0.0.2", "app-2").ExitCode)
			require.NoError(t, at("127.0.0.1", cert1))
			require.NoError(t, at("127.0.0.2", cert2))
			require.ErrorContains(t, at("127.0.0.2", cert1), "1045", "each by its own certificate")
		}
		require.Zero(t, grant("tenant_moves_db", "127.0.0.2", "app-2", of("two")).ExitCode)
		require.NoError(t, at("127.0.0.2", cert2))
		require.ErrorContains(t, at("127.0.0.1", cert1), "1045", "and then from one")
		// Both from one address: until one is named again either certificate will do.
		require.Zero(t, admit("tenant_moves_db", "127.0.0.2", "app-1").ExitCode)
		require.NoError(t, at("127.0.0.2", cert1))
		require.NoError(t, at("127.0.0.2", cert2))
		require.Error(t, at("127.0.0.2", foreign))
		require.Zero(t, grant("tenant_moves_db", "127.0.0.2", "app-1", of("two")).ExitCode)
		require.ErrorContains(t, at("127.0.0.2", cert2), "1045")
	})
	t.Run("a database that moves is written to by nobody", func(t *testing.T) {
		require.Zero(t, grant("tenant_frozen_db", "127.0.0.1", "app-1", of("f")).ExitCode)
		session := func() *sql.Conn {
			cfg := mysql.NewConfig()
			cfg.User, cfg.Passwd, cfg.DBName, cfg.Net, cfg.Addr, cfg.TLS = "tenant_frozen_db", "f", "tenant_frozen_db", "tcp", "127.0.0.1:"+strconv.Itoa(port), secure(cert1)
			connector, err := mysql.NewConnector(cfg)
			require.NoError(t, err)
			conn, err := sql.OpenDB(connector).Conn(t.Context())
			require.NoError(t, err)
			return conn
		}
		for again := range 2 { // frozen, and thawed, and frozen
			before := session()
			_, err := before.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS t (x INT)")
			require.NoError(t, err)
			_, err = before.ExecContext(t.Context(), "INSERT INTO t VALUES (?)", again)
			require.NoError(t, err)
			_, err = before.ExecContext(t.Context(), "START TRANSACTION")
			require.NoError(t, err)
			_, err = before.ExecContext(t.Context(), "INSERT INTO t VALUES (100)")
			require.NoError(t, err)
			began := time.Now()
			for range 2 {
				r := askWith(t, c, wire.KindMariaDB, nil, "freeze-database", "tenant_frozen_db")
				require.Zero(t, r.ExitCode, r.StderrTruncated)
			}
			require.Greater(t, time.Since(began), 900*time.Millisecond, "requests get their time")
			_, err = before.ExecContext(t.Context(), "COMMIT")
			require.Error(t, err, "a session from before has ended, and what it wrote is not there")
			after := session()
			var n int
			require.NoError(t, after.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM t WHERE x = 100").Scan(&n))
			require.Zero(t, n)
			for _, q := range []string{
				"INSERT INTO t VALUES (1)", "UPDATE t SET x = 1", "DELETE FROM t", "TRUNCATE t", "DROP TABLE t", "CREATE TABLE u (x INT)", "ALTER TABLE t ADD y INT", "LOCK TABLES t WRITE",
				"DROP DATABASE tenant_frozen_db", "REPLACE INTO t VALUES (1)", "RENAME TABLE t TO u", "CREATE VIEW v AS SELECT 1",
			} {
				_, err := after.ExecContext(t.Context(), q)
				var refused *mysql.MySQLError
				require.ErrorAs(t, err, &refused, q)
				require.Contains(t, []uint16{1142, 1044}, refused.Number, q)
			}
			// A trigger changes nothing by itself.
			_, err = after.ExecContext(t.Context(), "CREATE TRIGGER x AFTER INSERT ON t FOR EACH ROW SET @a = 1")
			require.NoError(t, err)
			_, err = after.ExecContext(t.Context(), "DROP TRIGGER x")
			require.NoError(t, err)
			r := askWith(t, c, wire.KindMariaDB, nil, "thaw-database", "tenant_frozen_db")
			require.Zero(t, r.ExitCode, r.StderrTruncated)
			thawed := session()
			_, err = thawed.ExecContext(t.Context(), "INSERT INTO t VALUES (2)")
			require.NoError(t, err)
		}
	})
	t.Run("the executor's user reads none of it", func(t *testing.T) {
		s, err := h.Services()
		require.NoError(t, err)
		db, err := h.OpenMariaDB(s.MariaDB)
		require.NoError(t, err)
		defer func() { _ = db.Close() }()
		for _, q := range []string{
			"SELECT x FROM tenant_a_b_db.t", "CREATE USER x", "ALTER USER root@localhost IDENTIFIED BY 'x'", "GRANT ALL ON *.* TO `prego-exec`@localhost",
			"ALTER USER `tenant_a_b_db`@`127.0.0.1` IDENTIFIED BY 'x'", "DROP PROCEDURE prego.erase_database",
		} {
			_, err := db.Exec(q)
			var refused *mysql.MySQLError
			require.ErrorAs(t, err, &refused, q)
			require.Contains(t, []uint16{1044, 1045, 1142, 1227, 1370}, refused.Number, "%s: %v", q, err)
		}
		for _, call := range []string{
			"freeze_database('mysql')", "thaw_database('mysql')", "erase_database('mysql')", "erase_database('prego')", "erase_database('POOL_A')", `erase_database('pool_a\n')`, "erase_database('pool_a`; DROP DATABASE mysql; -- ')", "erase_database(NULL)",
			"grant_database('mysql', '127.0.0.1', 'x', '*0123456789012345678901234567890123456789', '')",
			"grant_database('pool_a', '%', 'x', '*0123456789012345678901234567890123456789', '')",
			"grant_database('pool_a', '127.0.0.1', 'x'' OR 1', '*0123456789012345678901234567890123456789', '')",
			"grant_database('pool_a', '127.0.0.1', 'x', 'x', '')", "grant_database('pool_a', '127.0.0.1', 'x', '*0123456789012345678901234567890123456789', 'x')",
			"admit_database('mysql', '127.0.0.1', 'x', '*0123456789012345678901234567890123456789')", "admit_database('tenant_a_b_db', '127.0.0.1', 'x'' OR 1', '*0123456789012345678901234567890123456789')",
		} {
			_, err := db.Exec("CALL prego." + call)
			require.ErrorContains(t, err, "45000", call)
		}
	})
	t.Run("a database goes with its users and sessions", func(t *testing.T) {
		cfg := mysql.NewConfig()
		cfg.User, cfg.Passwd, cfg.DBName, cfg.Net, cfg.Addr, cfg.TLS = "tenant_a_b_db", passwordA, "tenant_a_b_db", "tcp", "127.0.0.1:"+strconv.Itoa(port), secure(cert1)
		connector, err := mysql.NewConnector(cfg)
		require.NoError(t, err)
		held, err := sql.OpenDB(connector).Begin()
		require.NoError(t, err)
		defer func() { _ = held.Rollback() }()
		_, err = held.Exec("INSERT INTO t VALUES (8)")
		require.NoError(t, err)
		require.Zero(t, grant("tenant_a_b_db", "127.0.0.9", "app-9", of(passwordA)).ExitCode, "the tenant moves to another host")
		require.ErrorContains(t, a("SELECT 1"), "1045")
		for range 2 {
			r := askWith(t, c, wire.KindMariaDB, nil, "erase-database", "tenant_a_b_db")
			require.Zero(t, r.ExitCode, r.StderrTruncated)
		}
		var n int
		require.NoError(t, admin.QueryRow("SELECT (SELECT COUNT(*) FROM mysql.user WHERE User = 'tenant_a_b_db') + (SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = 'tenant_a_b_db')").Scan(&n))
		require.Zero(t, n)
		require.NoError(t, admin.QueryRow("SELECT COUNT(*) FROM mysql.user WHERE User = 'tenant_axb_db'").Scan(&n))
		require.Equal(t, 1, n)
	})
}

// TestATenantsCache is the same for a pool's real Redis.
func TestATenantsCache(t *testing.T) {
	t.Parallel()
	h, _ := preparedHost(t, host.RolePool)
	servers, clients := newTestCA(t, x509.ExtKeyUsageServerAuth), newTestCA(t, x509.ExtKeyUsageClientAuth)
	dir := h.Path("data") + "-tls"
	servers.write(dir, "pool-1", clients)
	require.NoError(t, os.Chmod(h.Path(wire.RedisUsersDir+"/users.acl"), 0o666))
	port := need.Port(t)
	start := func() (stop func()) {
		cmd := unprivileged(exec.Command(need.Program(t, "redis-server"), "--dir", h.Path("data"), "--save", "", "--databases", "4096",
			"--aclfile", h.Path(wire.RedisUsersDir+"/users.acl"), "--unixsocket", h.Path(wire.RedisSocket), "--unixsocketperm", "777",
			"--port", "0", "--tls-port", strconv.Itoa(port), "--bind", "127.0.0.1", "--tls-auth-clients", "yes",
			"--tls-ca-cert-file", dir+"/ca.pem", "--tls-cert-file", dir+"/cert.pem", "--tls-key-file", dir+"/key.pem"))
		server(t, cmd, func() bool {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", h.Path(wire.RedisSocket))
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
		return func() { _, _ = cmd.Process.Kill(), cmd.Wait() }
	}
	stop := start()
	c := newTestCommands(t, h)
	of := func(password string) map[string]string { return map[string]string{wire.SecretCachePassword: password} }
	for range 2 {
		r := askWith(t, c, wire.KindRedisCLI, of("pw-a"), "create-user", "pool_a", "5")
		require.Zero(t, r.ExitCode, r.StderrTruncated)
	}
	require.Zero(t, askWith(t, c, wire.KindRedisCLI, of("pw-b"), "create-user", "pool_b", "4095").ExitCode)

	open := func(user, password, db string, with *tls.Config) (func(args ...string) (any, error), error) {
		var conn net.Conn
		var err error
		if conn, err = net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port)); err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		if with != nil {
			conn = tls.Client(conn, with)
		}
		r := resp.New(conn)
		if _, err = r.Do("AUTH", user, password); err == nil {
			_, err = r.Do("SELECT", db)
		}
		return r.Do, err
	}
	secure := &tls.Config{RootCAs: servers.pool, ServerName: "127.0.0.1", Certificates: []tls.Certificate{clients.issue("app-1")}}
	connected := func(user, password, db string) func(args ...string) (any, error) {
		do, err := open(user, password, db, secure)
		require.NoError(t, err)
		return do
	}
	a, b := connected("pool_a", "pw-a", "5"), connected("pool_b", "pw-b", "4095")
	for _, args := range [][]string{
		{"SET", "pool_a|x", "1"},
		{"SETEX", "pool_a|y", "100", "1"},
		{"GET", "pool_a|x"},
		{"KEYS", "pool_a|*"},
		{"HSET", "pool_a|h", "k", "v"},
		{"HGETALL", "pool_a|h"},
		{"RPUSH", "pool_a|l", "v"},
		{"SADD", "pool_a|s", "v"},
		{"SMEMBERS", "pool_a|s"},
		{"INCRBY", "pool_a|n", "1"},
		{"EXPIRE", "pool_a|n", "9"},
		{"EXISTS", "pool_a|x", "pool_a|y"},
		{"DEL", "pool_a|y"},
		{"MULTI"},
		{"GET", "pool_a|x"},
		{"EXEC"},
		{"PING"},
	} {
		_, err := a(args...)
		require.NoError(t, err, "%q: Frappe's cache needs it", args)
	}
	_, err := b("SET", "pool_b|x", "b's")
	require.NoError(t, err)
	for _, args := range [][]string{
		{"GET", "pool_b|x"},
		{"SET", "pool_b|x", "a's"},
		{"DEL", "pool_b|x"},
		{"GET", "assets_json"},
		{"SELECT", "4095"},
		{"SELECT", "0"},
		{"EVAL", "return 1", "0"},
		{"FUNCTION", "LIST"},
		{"CONFIG", "GET", "*"},
		{"ACL", "LIST"},
		{"CLIENT", "LIST"},
		{"MONITOR"},
		{"FLUSHALL"},
		{"FLUSHDB"},
		{"MOVE", "pool_a|x", "4095"},
		{"COPY", "pool_a|x", "pool_a|z", "DB", "4095"},
		{"SWAPDB", "5", "4095"},
		{"SUBSCRIBE", "x"},
		{"PUBLISH", "x", "y"},
		{"BLPOP", "pool_a|l", "0"},
		{"RENAME", "pool_a|x", "pool_b|x"},
		{"SCRIPT", "FLUSH"},
	} {
		_, err := a(args...)
		require.ErrorContains(t, err, "NOPERM", "%q", args)
	}
	names, err := a("KEYS", "*")
	require.NoError(t, err)
	require.NotContains(t, fmt.Sprint(names), "pool_b", "nor what keys there are")

	for name, with := range map[string]*tls.Config{
		"no TLS": nil, "no certificate": {RootCAs: servers.pool, ServerName: "127.0.0.1"},
		"a certificate of nobody": {RootCAs: servers.pool, ServerName: "127.0.0.1", Certificates: []tls.Certificate{newTestCA(t, x509.ExtKeyUsageClientAuth).issue("app-1")}},
	} {
		_, err := open("pool_a", "pw-a", "5", with)
		require.Error(t, err, name)
	}
	_, err = open("pool_a", "pw-b", "5", secure)
	require.ErrorContains(t, err, "WRONGPASS")
	_, err = open("pool_a", "pw-a", "4095", secure)
	require.ErrorContains(t, err, "NOPERM")

	require.Zero(t, askWith(t, c, wire.KindRedisCLI, of("pw-a2"), "create-user", "pool_a", "5").ExitCode)
	stop()
	require.NoError(t, rooted.Prepare(h, ""), "as at the next boot")
	require.NoError(t, os.Chmod(h.Path(wire.MountsDir), 0o755))
	require.NoError(t, os.Chmod(h.Path(wire.SocketsDir), 0o755))
	start()
	connected("pool_a", "pw-a2", "5")
	b = connected("pool_b", "pw-b", "4095")
	_, err = b("SET", "pool_b|x", "1")
	require.NoError(t, err)
	for range 2 {
		r := askWith(t, c, wire.KindRedisCLI, nil, "erase-user", "pool_b", "4095")
		require.Zero(t, r.ExitCode, r.StderrTruncated)
	}
	_, err = open("pool_b", "pw-b", "4095", secure)
	require.ErrorContains(t, err, "WRONGPASS")
	app, err := os.ReadFile(h.Path(wire.SecretsDir + "/redis-app"))
	require.NoError(t, err)
	admin, done, err := h.OpenRedis(t.Context(), wire.Service{Socket: wire.RedisSocket, User: "default", Password: string(app[:len(app)-1])})
	require.NoError(t, err)
	defer done()
	_, err = admin.Do("SELECT", "4095")
	require.NoError(t, err)
	n, err := admin.Do("DBSIZE")
	require.NoError(t, err)
	require.Zero(t, n)
}
