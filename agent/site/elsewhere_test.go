package site

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/resp"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/need"
)

// issuer is a CA of a test.
type issuer struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func certificate(t testing.TB, by *issuer, form *x509.Certificate) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	form.SerialNumber, form.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(time.Hour)
	if by == nil {
		by = &issuer{key: key, cert: form}
	}
	der, err := x509.CreateCertificate(rand.Reader, form, by.cert, key.Public(), by.key)
	require.NoError(t, err)
	made, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &issuer{key: key, cert: made}
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	return certificate(t, nil, &x509.Certificate{Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
}

func writeTLS(t testing.TB, dir string, of, trusts *issuer) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	key, err := x509.MarshalPKCS8PrivateKey(of.key)
	require.NoError(t, err)
	for name, block := range map[string]*pem.Block{
		"ca.pem": {Type: "CERTIFICATE", Bytes: trusts.cert.Raw}, "cert.pem": {Type: "CERTIFICATE", Bytes: of.cert.Raw}, "key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o644))
	}
}

// others are a shard and a pool at another address, which take TLS only.
type others struct {
	address string
	root    *sql.DB // the shard's
	redis   *resp.Conn
}

func startOthers(t testing.TB, b *testBench) *others {
	t.Helper()
	// Ports are fixed; addresses of loopback are many.
	o := &others{address: fmt.Sprintf("127.77.%d.%d", os.Getpid()%250+1, benches.Add(1)%250+1)}
	dir, err := os.MkdirTemp("", "others")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777))
	servers, clients := newIssuer(t), newIssuer(t)
	writeTLS(t, dir+"/tls", certificate(t, servers, &x509.Certificate{Subject: pkix.Name{CommonName: "shard"}, IPAddresses: []net.IP{net.ParseIP(o.address)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}), clients)
	writeTLS(t, filepath.Join(b.root, wire.ContainerTLSDir), certificate(t, clients, &x509.Certificate{Subject: pkix.Name{CommonName: "app-1"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}), servers)
	run := func(program string, args ...string) {
		cmd := exec.Command(need.Program(t, program), args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		log, err := os.Create(dir + "/" + program + ".log")
		require.NoError(t, err)
		cmd.Stdout, cmd.Stderr = log, log
		if program == "mariadb-install-db" {
			require.NoError(t, cmd.Run())
			return
		}
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	}
	run("mariadb-install-db", append(installOptions(dir),
		"--auth-root-authentication-method=normal", "--skip-test-db")...)
	run("mariadbd", append(serverOptions(dir), "--bind-address="+o.address, "--port=3306",
		"--require-secure-transport=ON", "--ssl-ca="+dir+"/tls/ca.pem", "--ssl-cert="+dir+"/tls/cert.pem",
		"--ssl-key="+dir+"/tls/key.pem")...)
	require.NoError(t, os.WriteFile(dir+"/users.acl", nil, 0o600))
	run("redis-server", "--port", "0", "--tls-port", "6379", "--bind", o.address, "--unixsocket", dir+"/redis", "--unixsocketperm", "777", "--tls-auth-clients", "yes", "--databases", "4096", "--save", "",
		"--dir", dir, "--aclfile", dir+"/users.acl", "--tls-ca-cert-file", dir+"/tls/ca.pem", "--tls-cert-file", dir+"/tls/cert.pem", "--tls-key-file", dir+"/tls/key.pem")
	require.Eventually(t, func() bool {
		o.root, err = databaseOf{Socket: dir + "/sock"}.open("root", "", "")
		return err == nil
	}, time.Minute, 50*time.Millisecond)
	t.Cleanup(func() { _ = o.root.Close() })
	var conn net.Conn
	require.Eventually(t, func() bool { conn, err = net.Dial("unix", dir+"/redis"); return err == nil }, time.Minute, 50*time.Millisecond)
	t.Cleanup(func() { _ = conn.Close() })
	o.redis = resp.New(conn)
	return o
}

// grant makes what the control plane has made on the shard and in the pool.
func (o *others) grant(t testing.TB, name, password string) {
	t.Helper()
	for _, q := range []string{
		"CREATE DATABASE IF NOT EXISTS `" + name + "` CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", "CREATE USER IF NOT EXISTS `" + name + "`@`127.0.0.1`",
		"ALTER USER `" + name + "`@`127.0.0.1` IDENTIFIED BY '" + password + "' REQUIRE SUBJECT '/CN=app-1'",
		"GRANT ALL ON `" + strings.ReplaceAll(name, "_", `\_`) + "`.* TO `" + name + "`@`127.0.0.1`",
	} {
		_, err := o.root.Exec(q)
		require.NoError(t, err, q)
	}
	_, err := o.redis.Do("ACL", "SETUSER", name, "reset", "on", ">"+password, "~"+name+"|*", "-@all", "+@string", "+@keyspace", "+@connection", "-@dangerous", "+keys", "-select", "+select|7")
	require.NoError(t, err)
}

func (o *others) count(t testing.TB, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, o.root.QueryRow(query, args...).Scan(&n), query)
	return n
}

// TestASiteWhoseDatabaseIsElsewhere is the life of a site of a shard: root's password is never used, and the bench's
// own MariaDB never sees it.
func TestASiteWhoseDatabaseIsElsewhere(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	o := startOthers(t, b)
	require.NoError(t, addresses{cache: "127.0.0.1:1", queue: "127.0.0.1:1", socketio: 9000}.configure(b.root, "", nil))
	const site, password = "a.example.com", "the-password-of-the-database"
	name := b.database("a")
	secrets := map[string]string{policy.SecretRootUser: "", policy.SecretRootPassword: "", wire.SecretDatabasePassword: password, wire.SecretCachePassword: password}
	good := func(args ...string) string {
		t.Helper()
		given := map[string]string{policy.SecretRootUser: "", policy.SecretRootPassword: ""}
		if len(args) == 6 || args[2] == "connect-database" || args[2] == "connect-cache" {
			given = secrets
		}
		return b.goodWith(given, args...)
	}
	d := b.verb(-1, secrets, "new-site", site, "--db-name", name, "--db-host", o.address)
	require.Equal(t, 1, d.status)
	require.Contains(t, d.stderr, "Access denied", "its user is not made yet")
	require.NoDirExists(t, b.path("sites/"+site))

	o.grant(t, name, password)
	for steps := range 6 { // killed, again and again
		require.Contains(t, []int{0, killedAt}, b.verb(steps, secrets, "new-site", site, "--db-name", name, "--db-host", o.address).status)
	}
	for range 2 {
		good("new-site", site, "--db-name", name, "--db-host", o.address)
	}
	databases, users := b.left(name)
	require.Zero(t, databases+users, "nothing of it is here")
	require.Positive(t, o.count(t, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ?", name))
	config := b.read("sites/" + site + "/site_config.json")
	require.Equal(t, []any{o.address, float64(3306), ""}, []any{config["db_host"], config["db_port"], config["db_socket"]})

	good("--site", site, "enable-scheduler")
	o2, err := o.redis.Do("DBSIZE")
	require.NoError(t, err)
	require.Zero(t, o2)
	for range 2 {
		good("--site", site, "connect-cache", o.address, "7")
	}
	good("--site", site, "install-app", "erpnext")
	_, err = o.redis.Do("SELECT", "7")
	require.NoError(t, err)
	keys, err := o.redis.Do("KEYS", "*")
	require.NoError(t, err)
	require.Equal(t, []any{name + "|app_hooks"}, keys, "what Frappe caches is in the pool")

	// One row is larger than what MariaDB's programs read and write by themselves (24 and 16 MiB), and as text larger
	// than any statement that the server takes, as are some of its values.
	for _, q := range []string{
		"CREATE TABLE `" + name + "`.`lar'ge` (id INT PRIMARY KEY, a LONGTEXT CHARACTER SET latin1, b LONGBLOB, " +
			"c LONGTEXT, j JSON, n BIT(9), g INT AS (LENGTH(b)) VIRTUAL)",
		"INSERT INTO `" + name + "`.`lar'ge` (id, a, b, c, j, n) VALUES (1, REPEAT('é\\'\\\\', 3*1024*1024), " +
			"REPEAT(X'00271aff5c', 3*1024*1024), REPEAT('ü\\n', 4*1024*1024), '[1]', 300), (2, 'x', X'00', '', NULL, NULL)",
	} {
		_, err := o.root.Exec(q)
		require.NoError(t, err, q)
	}
	large := "SELECT CONCAT_WS(' ', id, MD5(a), MD5(b), MD5(c), j, n + 0, g) FROM `" + name + "`.`lar'ge` ORDER BY id"
	was := content(t, o.root, large)
	good("--site", site, "backup", "snap", "--with-files")
	for _, table := range []string{"tabUser", "`lar'ge`"} {
		_, err = o.root.Exec("DELETE FROM `" + name + "`." + table)
		require.NoError(t, err)
	}
	held, err := o.root.Begin() // another's session, with an open transaction
	require.NoError(t, err)
	require.NoError(t, held.Rollback())
	for range 2 {
		good("--site", site, "restore", "snap", "--with-files")
	}
	require.Equal(t, 2, o.count(t, "SELECT COUNT(*) FROM `"+name+"`.tabUser"))
	require.Equal(t, was, content(t, o.root, large))
	require.Equal(t, 1, o.count(t, "SELECT COUNT(*) FROM `"+name+"`.tabSingles WHERE doctype = 'System Settings' AND field = 'enable_scheduler' AND value = '1'"))
	good("--site", site, "usage")
	good("promote-site", site, "b.example.com")
	keys, err = o.redis.Do("KEYS", "*")
	require.NoError(t, err)
	require.Empty(t, keys, "its cache is cleared")

	// Its password is replaced: first where its database is, then here.
	const next = "the-next-password"
	o.grant(t, name, next)
	require.Contains(t, b.verb(-1, map[string]string{policy.SecretRootPassword: ""}, "--site", "b.example.com", "usage").stderr, "Access denied")
	wrong := b.verb(-1, map[string]string{wire.SecretDatabasePassword: "not-this-one"}, "--site", "b.example.com", "connect-database", o.address)
	require.Equal(t, 1, wrong.status)
	require.NotContains(t, wrong.stderr, "not-this-one")
	secrets[wire.SecretDatabasePassword] = next
	good("--site", "b.example.com", "connect-database", o.address)
	good("--site", "b.example.com", "usage")

	erased := good("erase-site", "b.example.com", "--db-name", name)
	require.Contains(t, erased, `"database_unreached":true`)
	require.NoDirExists(t, b.path("sites/b.example.com"))
	require.Equal(t, 1, o.count(t, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", name), "the shard's own verb drops it")
	for _, text := range []string{password, next} {
		require.NoError(t, filepath.WalkDir(b.root, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			require.NotContains(t, string(content), text, path)
			return err
		}), "nothing that is left knows a password")
	}
}
