package exec

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/resp"
	"github.com/prego/prego/agent/rooted"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/need"
)

// denied demands that MariaDB refused a statement: for its syntax, or because the user may
// not. That something is not there is no refusal.
func denied(t *testing.T, err error, statement string) {
	t.Helper()
	var refused *mysql.MySQLError
	require.ErrorAs(t, err, &refused, statement)
	require.Contains(t, []uint16{
		1044, // access to the database denied
		1045, // access denied, for want of FILE or of the password
		1064, // a syntax error: what would begin a second statement
		1095, // another user's thread
		1142, // the command denied for the table
		1227, // a privilege is missing
	}, refused.Number, "%s: %v", statement, err)
}

// unprivileged makes a program run as nobody, where this is root.
func unprivileged(cmd *exec.Cmd) *exec.Cmd {
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	return cmd
}

// serviceHost is a host whose directory others may look into, with directories
// for its services.
func serviceHost(t testing.TB, services wire.Services) *host.Host {
	t.Helper()
	root, err := os.MkdirTemp("", "agent")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	require.NoError(t, os.Chmod(root, 0o755))
	for _, dir := range []string{"/data", filepath.Dir(wire.DefaultMariaDBSocket), filepath.Dir(wire.DefaultRedisSocket)} {
		require.NoError(t, os.MkdirAll(root+dir, 0o755))
		if os.Geteuid() == 0 {
			require.NoError(t, os.Chown(root+dir, 65534, 65534))
		}
	}
	b, err := json.Marshal(services)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(root+wire.ServicesPath), 0o755))
	require.NoError(t, os.WriteFile(root+wire.ServicesPath, b, 0o600))
	return &host.Host{Root: root, Config: wire.HostConfig{ServerID: agenttest.Server}}
}

// server runs a program until the test ends.
func server(t testing.TB, cmd *exec.Cmd, ready func() bool) {
	t.Helper()
	var log agenttest.Output
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	require.Eventually(t, ready, 60*time.Second, 50*time.Millisecond, "it is up")
}

// preparedHost is a host whose directory others may look into, with what prepare
// made for the services of its role. Data is in /data.
func preparedHost(t testing.TB, role string) (*host.Host, wire.Services) {
	t.Helper()
	h := serviceHost(t, wire.Services{})
	h.Config.Role = role
	require.NoError(t, rooted.Prepare(h, ""))
	// A container is given these directories by root. Here the server is nobody, and
	// comes in by itself.
	for _, dir := range []string{wire.MountsDir, wire.SocketsDir} {
		require.NoError(t, os.Chmod(h.Path(dir), 0o755))
	}
	s, err := h.Services()
	require.NoError(t, err)
	return h, s
}

// ownTmp keeps a server's temporary tables where no other server, when it starts, removes
// them.
func ownTmp(h *host.Host) string { return "--tmpdir=" + h.Path("data") }

// installMariaDB makes the data of a new server, as MariaDB's image does.
func installMariaDB(t testing.TB, h *host.Host, args ...string) {
	t.Helper()
	out, err := exec.Command(need.Program(t, "mariadb-install-db"), slices.Concat([]string{
		"--no-defaults", "--datadir=" + h.Path("data"), ownTmp(h), "--skip-test-db",
		"--auth-root-authentication-method=normal",
	}, child.MariaDBUser(), args)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// declaredMariaDB is a server with the options of the declared stack, the init file that prepare made, and others.
func declaredMariaDB(t testing.TB, h *host.Host, args ...string) *exec.Cmd {
	return exec.Command(need.Program(t, "mariadbd"), slices.Concat([]string{
		"--no-defaults", "--datadir=" + h.Path("data"), ownTmp(h), "--socket=" + h.Path(wire.MariaDBSocket),
		"--init-file=" + h.Path(wire.MariaDBMount+"/init.sql"), "--pid-file=" + h.Path("data/pid"),
	}, child.DeclaredMariaDB(), child.MariaDBUser(), args)...)
}

// startMariaDB starts a server with the init file that prepare made, until the test
// ends or stop is called. Files could be written, if the user were allowed to.
func startMariaDB(t testing.TB, h *host.Host, user, password string) (admin *sql.DB, stop func()) {
	t.Helper()
	admin, err := h.OpenMariaDB(wire.Service{User: user, Password: password, Socket: wire.MariaDBSocket})
	require.NoError(t, err)
	t.Cleanup(func() { _ = admin.Close() })
	cmd := declaredMariaDB(t, h, "--skip-networking", "--secure-file-priv=", "--local-infile=1")
	server(t, cmd, func() bool { return admin.Ping() == nil })
	return admin, func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
}

// realMariaDB starts a server of the test's own, with what prepare made for it.
func realMariaDB(t testing.TB) (*host.Host, *sql.DB) {
	t.Helper()
	h, _ := preparedHost(t, "db-shard")
	installMariaDB(t, h)
	admin, _ := startMariaDB(t, h, "root", "") // the image sets its password
	for _, q := range []string{"CREATE DATABASE _secret", "CREATE TABLE _secret.t (x INT)", "INSERT INTO _secret.t VALUES (7)"} {
		_, err := admin.Exec(q)
		require.NoError(t, err, q)
	}
	return h, admin
}

func commandsOf(t testing.TB, h *host.Host) func(kind wire.CommandKind, args ...string) (wire.ExecResult, *policy.Problem) {
	t.Helper()
	c, err := newCommands(&workplace{Host: h})
	require.NoError(t, err)
	t.Cleanup(c.stop)
	return func(kind wire.CommandKind, args ...string) (wire.ExecResult, *policy.Problem) {
		k, refused := c.submit(wire.ExecRequest{ServerID: agenttest.Server, Kind: kind, Args: args}, agenttest.Quiet())
		if refused != nil {
			return wire.ExecResult{}, refused
		}
		<-k.ended
		return k.result, k.failed
	}
}

func TestRealMariaDB(t *testing.T) {
	t.Parallel()
	h, admin := realMariaDB(t)
	ask := commandsOf(t, h)
	for range 2 { // both are idempotent
		r, refused := ask(wire.KindMariaDB, "create-database", "pool_ab12")
		require.Nil(t, refused)
		require.Zero(t, r.ExitCode, r.StderrTruncated)
	}
	_, err := admin.Exec("CREATE TABLE pool_ab12.small (x INT) ENGINE=Aria")
	require.NoError(t, err)
	_, err = admin.Exec("CREATE TABLE pool_ab12.large (x TEXT) ENGINE=Aria")
	require.NoError(t, err)
	_, err = admin.Exec("INSERT INTO pool_ab12.large SELECT REPEAT('x', 1000) FROM pool_ab12.seq_1_to_500")
	require.NoError(t, err)
	r, refused := ask(wire.KindMariaDB, "table-sizes", "pool_ab12")
	require.Nil(t, refused)
	require.Regexp(t, `^small\t0\t\d+\nlarge\t500\t\d{5,}\n$`, r.StdoutTruncated)
	r, _ = ask(wire.KindMariaDB, "table-sizes", "_secret")
	require.Empty(t, r.StdoutTruncated, "its user sees no table that it has no right to")
	r, _ = ask(wire.KindMariaDB, "databases")
	require.Contains(t, r.StdoutTruncated, "pool_ab12\n")
	r, _ = ask(wire.KindMariaDB, "processlist")
	require.Contains(t, r.StdoutTruncated, "prego-exec\tlocalhost\t")
	require.NotContains(t, r.StdoutTruncated, "SELECT", "no text of queries")
	for range 2 {
		r, _ = ask(wire.KindMariaDB, "drop-database", "pool_ab12")
		require.Zero(t, r.ExitCode, r.StderrTruncated)
	}
	r, _ = ask(wire.KindMariaDB, "databases")
	require.NotContains(t, r.StdoutTruncated, "pool_ab12")

	t.Run("the policy lets nothing else through", func(t *testing.T) {
		for _, args := range [][]string{
			nil,
			{""},
			{"databases", ""},
			{"-e", "SELECT 1"},
			{"--execute=SELECT 1"},
			{"SELECT 1"},
			{"select", "pool_a", "SELECT 1"},
			{"system", "id"},
			{`\!`, "id"},
			{`\! id`},
			{"source", "/etc/passwd"},
			{"tee", "/tmp/x"},
			{"pager", "sh"},
			{"--init-command=SELECT 1"},
			{"--defaults-file=/etc/x"},
			{"--host=db.example.com"},
			{"--plugin-dir=/tmp"},
			{"databases", "--host=db.example.com"},
			{"databases; DROP DATABASE _secret"},
			{"drop-database", "_secret"},
			{"drop-database", "mysql"},
			{"drop-database", "information_schema"},
			{"drop-database", "pool_"},
			{"drop-database", "pool_a`; DROP DATABASE _secret; -- "},
			{"drop-database", "pool_a\n"},
			{"drop-database", "POOL_A"},
			{"drop-database", "tenant_x"},
			{"drop-database", "tenant__db"},
			{"drop-database", "pool_%"},
			{"drop-database", "pool_a", "pool_b"},
			{"drop-database", "--", "pool_a"},
			{"create-database", "pool_" + strings.Repeat("a", 60)},
			{"table-sizes", "a' OR '1'='1"},
			{"table-sizes", "a b"},
			{"table-sizes", "../x"},
			{"table-sizes", "-a"},
			{"table-sizes"},
		} {
			_, refused := ask(wire.KindMariaDB, args...)
			require.NotNil(t, refused, "%q", args)
			require.Equal(t, "command_not_allowed", refused.Code, "%q", args)
		}
	})
	t.Run("nor does what is behind it", func(t *testing.T) {
		for _, q := range []string{"CREATE DATABASE pool_x", "CREATE TABLE pool_x.t (x INT)", "INSERT INTO pool_x.t VALUES (7)"} {
			_, err := admin.Exec(q)
			require.NoError(t, err, q)
		}
		file := h.Path("data/out")
		var out strings.Builder
		try := func(verb, name string) error {
			s, err := h.Services()
			require.NoError(t, err)
			return (&workplace{Host: h}).mariadb(t.Context(), s.MariaDB, &policy.Command{Permit: &policy.Permit{Verb: verb}, In: wire.ExecRequest{Args: []string{verb, name}}}, &out)
		}
		for _, name := range []string{"x`; SELECT 1 INTO OUTFILE '" + file + "'; -- ", "_secret", "mysql", "x` /*! ; */ -- "} {
			denied(t, try("create-database", name), name)
			if name != "x` /*! ; */ -- " {
				denied(t, try("drop-database", name), name)
			}
		}
		require.NoError(t, try("table-sizes", "x' UNION SELECT x, x, x FROM _secret.t -- "), "it is a parameter")
		require.Empty(t, out.String())
		s, err := h.Services()
		require.NoError(t, err)
		db, err := h.OpenMariaDB(s.MariaDB)
		require.NoError(t, err)
		defer func() { _ = db.Close() }()
		var session int64 // root's own
		require.NoError(t, admin.QueryRow("SELECT CONNECTION_ID()").Scan(&session))
		for _, q := range []string{
			"SELECT 1; SELECT 2", "SELECT 1 INTO OUTFILE '" + file + "'", "SELECT 1 INTO DUMPFILE '" + file + "'", "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE pool_x.t",
			"SELECT x FROM _secret.t", "SELECT * FROM mysql.global_priv", "GRANT ALL ON *.* TO `prego-exec`@localhost", "SET GLOBAL general_log = 1", "INSTALL SONAME 'auth_pam'",
			"SELECT x FROM pool_x.t", "CREATE USER x", "CREATE USER `prego-exec`@`%`", "SET PASSWORD FOR root@localhost = PASSWORD('x')", "ALTER USER root@localhost IDENTIFIED BY 'x'",
			fmt.Sprintf("KILL %d", session), "CREATE FUNCTION f RETURNS STRING SONAME 'x.so'", "DROP DATABASE _secret", "SHUTDOWN",
		} {
			_, err := db.Exec(q)
			denied(t, err, q)
		}
		var content sql.NullString
		require.NoError(t, db.QueryRow("SELECT LOAD_FILE('/etc/passwd')").Scan(&content))
		require.False(t, content.Valid)
		require.NoFileExists(t, file)
	})
	t.Run("nobody there", func(t *testing.T) {
		s := wire.Services{MariaDB: wire.Service{Password: "wrong"}}
		other := serviceHost(t, s)
		_, refused := commandsOf(t, other)(wire.KindMariaDB, "databases")
		require.Equal(t, []any{http.StatusServiceUnavailable, "service_unavailable"}, []any{refused.Status, refused.Code})
		s.MariaDB.Socket = wire.MariaDBSocket
		b, err := json.Marshal(s)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(h.Path(wire.ServicesPath), b, 0o600))
		_, refused = ask(wire.KindMariaDB, "databases")
		require.Equal(t, "service_unavailable", refused.Code)
		require.NotContains(t, refused.Detail, "wrong", "the password is not told")
	})
}

// realRedis starts a server of the test's own, with the users that prepare made.
func realRedis(t testing.TB) *host.Host {
	t.Helper()
	h, _ := preparedHost(t, "node")
	cmd := unprivileged(exec.Command(need.Program(t, "redis-server"), "--port", "0", "--dir", h.Path("data"), "--save", "", "--slowlog-log-slower-than", "0",
		"--aclfile", h.Path(wire.RedisMount+"/users.acl"), "--unixsocket", h.Path(wire.RedisSocket), "--unixsocketperm", "777"))
	server(t, cmd, func() bool {
		conn, err := (&net.Dialer{}).DialContext(context.Background(), "unix", h.Path(wire.RedisSocket))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return h
}

func TestRealRedis(t *testing.T) {
	t.Parallel()
	h := realRedis(t)
	nobody, done, err := h.OpenRedis(t.Context(), wire.Service{Socket: wire.RedisSocket})
	require.NoError(t, err)
	defer done()
	_, err = nobody.Do("PING")
	require.ErrorContains(t, err, "NOAUTH", "nobody gets in without a password")
	app, err := os.ReadFile(h.Path(wire.SecretsDir + "/redis-app"))
	require.NoError(t, err)
	admin, done, err := h.OpenRedis(t.Context(), wire.Service{Socket: wire.RedisSocket, User: "default", Password: strings.TrimSpace(string(app))})
	require.NoError(t, err)
	defer done()
	for _, c := range [][]string{{"SET", "a key", "secret-value"}, {"SET", "b", strings.Repeat("x", 1000)}} {
		_, err := admin.Do(c...)
		require.NoError(t, err)
	}
	ask := commandsOf(t, h)
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"ping"}, "^PONG\n$"},
		{[]string{"dbsize"}, "^2\n$"},
		{[]string{"memory-usage", "b"}, `^1\d\d\d\n$`},
		{[]string{"memory-usage", "no such"}, `^\(nil\)\n$`},
		{[]string{"memory-usage", `$(id); "x" FLUSHALL`}, `^\(nil\)\n$`},
		{[]string{"info", "memory"}, `(?s)^# Memory\nused_memory:\d+\n`},
		{[]string{"slowlog", "128"}, `(?m)^\d+\t\d+\t\d+ µs\tSET$`},
		{[]string{"client-list"}, `^id=\d+ addr=`},
	} {
		r, refused := ask(wire.KindRedisCLI, tc.args...)
		require.Nil(t, refused, "%q", tc.args)
		require.Zero(t, r.ExitCode, r.StderrTruncated)
		require.Regexp(t, tc.want, r.StdoutTruncated, "%q", tc.args)
		require.NotContains(t, r.StdoutTruncated, "secret-value")
	}
	t.Run("the policy lets nothing else through", func(t *testing.T) {
		for _, args := range [][]string{
			nil,
			{""},
			{"PING"},
			{"eval", "return 1", "0"},
			{"EVAL", "return 1", "0"},
			{"config", "get", "*"},
			{"CONFIG", "SET", "dir", "/tmp"},
			{"module", "load", "/x.so"},
			{"debug", "sleep", "1"},
			{"slaveof", "10.0.0.1", "6379"},
			{"replicaof", "10.0.0.1", "6379"},
			{"-x"},
			{"--pipe"},
			{"--eval", "/tmp/x.lua"},
			{"-h", "10.0.0.1", "ping"},
			{"-u", "redis://10.0.0.1", "ping"},
			{"ping", "-h", "10.0.0.1"},
			{"--", "ping"},
			{"flushall"},
			{"keys", "*"},
			{"get", "a key"},
			{"shutdown"},
			{"acl", "list"},
			{"info"},
			{"info", "everything"},
			{"info", "Memory"},
			{"memory-usage", ""},
			{"memory-usage", "-x"},
			{"memory-usage", "a\r\nFLUSHALL\r\n"},
			{"memory-usage", "a\x00"},
			{"memory-usage", strings.Repeat("x", 1025)},
			{"slowlog", "0"},
			{"slowlog", "129"},
			{"slowlog", "-1"},
			{"slowlog", "1e9"},
			{"slowlog", "reset"},
			{"client-list", "TYPE", "normal"},
			{"client", "kill"},
		} {
			_, refused := ask(wire.KindRedisCLI, args...)
			require.NotNil(t, refused, "%q", args)
			require.Equal(t, "command_not_allowed", refused.Code, "%q", args)
		}
	})
	t.Run("nor does the server", func(t *testing.T) {
		s, err := h.Services()
		require.NoError(t, err)
		r, done, err := h.OpenRedis(t.Context(), s.Redis)
		require.NoError(t, err)
		defer done()
		for _, c := range [][]string{
			{"EVAL", "return 1", "0"},
			{"CONFIG", "GET", "*"},
			{"CONFIG", "SET", "dir", "/tmp"},
			{"MODULE", "LOAD", "/x.so"},
			{"DEBUG", "SLEEP", "0"},
			{"SLAVEOF", "10.0.0.1", "6379"},
			{"REPLICAOF", "10.0.0.1", "6379"},
			{"GET", "a key"},
			{"SET", "x", "y"},
			{"KEYS", "*"},
			{"FLUSHALL"},
			{"SHUTDOWN"},
			{"ACL", "SETUSER", "x"},
			{"SLOWLOG", "RESET"},
			{"CLIENT", "KILL", "ID", "1"},
			{"MONITOR"},
		} {
			_, err := r.Do(c...)
			var refused resp.Error
			require.ErrorAs(t, err, &refused, "%q", c)
			require.Regexp(t, "NOPERM|not allowed", string(refused), "%q", c)
		}
		n, err := r.Do("MEMORY", "USAGE", "a\r\n*1\r\n$8\r\nFLUSHALL\r\n")
		require.NoError(t, err)
		require.Nil(t, n, "it is one argument, whatever is in it")
		n, err = r.Do("DBSIZE")
		require.NoError(t, err)
		require.Equal(t, int64(2), n)
	})
}

func TestServicesAreLocal(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]wire.Services{
		"another host":      {Redis: wire.Service{Addr: "10.0.0.1:6379"}},
		"a name":            {Redis: wire.Service{Addr: "localhost:6379"}},
		"MariaDB by TCP":    {MariaDB: wire.Service{Addr: "127.0.0.1:3306"}},
		"any local address": {Redis: wire.Service{Addr: "0.0.0.0:6379"}},
	} {
		_, refused := commandsOf(t, serviceHost(t, s))(wire.KindRedisCLI, "ping")
		require.NotNil(t, refused, name)
		require.Equal(t, "service_unavailable", refused.Code, name)
	}
	h := serviceHost(t, wire.Services{})
	require.NoError(t, os.WriteFile(h.Path(wire.ServicesPath), []byte(`{"redis":{"password":"secret`), 0o600))
	_, refused := commandsOf(t, h)(wire.KindRedisCLI, "ping")
	require.NotContains(t, refused.Detail, "secret")
}

// TestASilentServiceIsGivenUp asks a server that never answers.
func TestASilentServiceIsGivenUp(t *testing.T) {
	t.Parallel()
	h := serviceHost(t, wire.Services{Redis: wire.Service{}})
	var lc net.ListenConfig
	listeners := map[string]net.Listener{}
	for _, name := range []string{wire.DefaultRedisSocket, wire.DefaultMariaDBSocket} {
		l, err := lc.Listen(t.Context(), "unix", h.Path(name))
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		listeners[name] = l
	}
	c, err := newCommands(&workplace{Host: h})
	require.NoError(t, err)
	for kind, verb := range map[wire.CommandKind]string{wire.KindRedisCLI: "ping", wire.KindMariaDB: "databases"} {
		k, refused := c.submit(wire.ExecRequest{ServerID: agenttest.Server, Kind: kind, Args: []string{verb}, TimeoutSeconds: 1}, agenttest.Quiet())
		require.Nil(t, refused)
		<-k.ended
		require.Nil(t, k.failed)
		require.Equal(t, ExitTimeout, k.result.ExitCode)
		require.Contains(t, k.result.StderrTruncated, "given up after 1s")
	}
	// The agent stops after it connected for the second ping: that one had begun.
	ping := wire.ExecRequest{ServerID: agenttest.Server, Kind: wire.KindRedisCLI, Args: []string{"ping"}}
	k, refused := c.submit(ping, agenttest.Quiet())
	require.Nil(t, refused)
	for range 2 {
		conn, err := listeners[wire.DefaultRedisSocket].Accept()
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
	}
	c.stop()
	<-k.ended
	require.Equal(t, wire.CodeOutcomeUnknown, k.failed.Code)
	_, refused = c.submit(ping, agenttest.Quiet())
	require.Equal(t, "agent_stopping", refused.Code)
}

func FuzzRedisReply(f *testing.F) {
	for _, s := range []string{"+OK\r\n", "-ERR x\r\n", ":1\r\n", "$3\r\nabc\r\n", "*2\r\n:1\r\n*1\r\n$-1\r\n", "$99999999999\r\n", "*1000000\r\n", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		reply, err := resp.New(struct {
			io.Reader
			io.Writer
		}{strings.NewReader(s), io.Discard}).Do("PING")
		if err == nil {
			var out strings.Builder
			printReply(&out, reply)
			_ = printSlowlog(&out, reply)
			require.NotContains(t, out.String(), "\x1b")
		}
	})
}

// TestMariaDBTakesWhatPrepareMade starts servers as MariaDB's image does: the data is
// made with the options of the server, a first start sets root's password, and every
// later one, also on old data, brings the users to what the host's secrets say.
func TestMariaDBTakesWhatPrepareMade(t *testing.T) {
	t.Parallel()
	h, s := preparedHost(t, "app")
	installMariaDB(t, h, "--init-file="+h.Path(wire.MariaDBMount+"/init.sql"))
	admin, stop := startMariaDB(t, h, "root", "")
	for _, q := range []string{"SET PASSWORD FOR root@localhost = PASSWORD('of earlier')", "CREATE USER root@'%' IDENTIFIED BY 'of earlier'", "CREATE DATABASE kept"} {
		_, err := admin.Exec(q)
		require.NoError(t, err, q)
	}
	user, err := h.OpenMariaDB(s.MariaDB)
	require.NoError(t, err)
	defer func() { _ = user.Close() }()
	require.NoError(t, user.Ping(), "the user is there from the first start")
	_, err = admin.Exec("GRANT ALL ON *.* TO `prego-exec`@localhost")
	require.NoError(t, err)
	stop()

	for _, secret := range []string{"mariadb-exec", "mariadb-root"} { // as on another host with this one's volume
		require.NoError(t, os.Remove(h.Path(wire.SecretsDir+"/"+secret)))
	}
	require.NoError(t, rooted.Prepare(h, ""))
	for _, dir := range []string{wire.MountsDir, wire.SocketsDir} {
		require.NoError(t, os.Chmod(h.Path(dir), 0o755))
	}
	root, err := os.ReadFile(h.Path(wire.MariaDBMount + "/root-password"))
	require.NoError(t, err)
	_, stop = startMariaDB(t, h, "root", string(root))
	defer stop()
	require.ErrorContains(t, func() error {
		old, err := h.OpenMariaDB(s.MariaDB)
		require.NoError(t, err)
		defer func() { _ = old.Close() }()
		return old.Ping()
	}(), "Error 1045", "the password of earlier is gone")
	s, err = h.Services()
	require.NoError(t, err)
	now, err := h.OpenMariaDB(s.MariaDB)
	require.NoError(t, err)
	defer func() { _ = now.Close() }()
	require.NoError(t, now.Ping())
	_, err = now.Exec("DROP DATABASE kept")
	require.ErrorContains(t, err, "Error 1044", "what it was given besides is gone")
	admin, err = h.OpenMariaDB(wire.Service{User: "root", Password: string(root), Socket: wire.MariaDBSocket})
	require.NoError(t, err)
	defer func() { _ = admin.Close() }()
	var hashes int
	require.NoError(t, admin.QueryRow("SELECT COUNT(DISTINCT authentication_string) FROM mysql.user WHERE User = 'root' AND Host IN ('localhost', '%')").Scan(&hashes))
	require.Equal(t, 1, hashes, "root has the new password from wherever it comes")
}

// TestEveryVerbOfMariaDBIsHere and no other.
func TestEveryVerbOfMariaDBIsHere(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, r := range policy.Rules[wire.KindMariaDB] {
		require.NotEqual(t, statements[r.Name()] != "", grantVerbs[r.Name()] != nil, r.Line)
		known[r.Name()] = true
	}
	require.Len(t, known, len(statements)+len(grantVerbs))
}
