package site

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/need"
)

// killedAt is the status of a verb that a test ended at a step.
const killedAt = 86

// TestMain runs a verb where a test started its own program for one, and ends it at
// the step that the test names.
func TestMain(m *testing.M) {
	smallTable = 20 << 10
	if len(os.Args) > 1 && os.Args[1] == Verb {
		if last, err := strconv.Atoi(os.Getenv("SITE_TEST_LAST_STEP")); err == nil {
			n := 0
			step = func() {
				if n++; n > last {
					os.Exit(killedAt)
				}
			}
		}
		os.Exit(Main(os.Args[2:]))
	}
	status := m.Run()
	if stopMariaDB != nil {
		stopMariaDB()
	}
	os.Exit(status)
}

const rootPassword = "root pass/word's"

// mariadb is one server for all tests, which use separate databases.
var (
	mariadbOnce sync.Once
	mariadbPort int
	mariadbErr  error
	stopMariaDB func()
)

func mariadb(t testing.TB) int {
	t.Helper()
	install, server := need.Program(t, "mariadb-install-db"), need.Program(t, "mariadbd")
	mariadbOnce.Do(func() { mariadbPort, stopMariaDB, mariadbErr = startMariaDB(install, server) })
	require.NoError(t, mariadbErr)
	return mariadbPort
}

// installOptions are the arguments that a new server and a running one share.
func installOptions(dir string) []string {
	return append([]string{
		"--no-defaults", "--datadir=" + dir + "/data",
		"--tmpdir=" + dir, // a server that starts removes what others keep in theirs
	}, child.MariaDBUser()...)
}

// serverOptions are the arguments of a server as it is declared, but with packets that tests can reach. It need not
// survive a power cut: it does not flush to a disk, which would take most of the time of erasing a site.
func serverOptions(dir string) []string {
	return slices.Concat(installOptions(dir), child.DeclaredMariaDB(), []string{
		"--max-allowed-packet=16M", "--socket=" + dir + "/sock", "--pid-file=" + dir + "/pid", "--skip-name-resolve",
		"--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-doublewrite=0",
		"--debug-no-sync", "--sync-frm=0", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M",
	})
}

func startMariaDB(install, server string) (port int, stop func(), err error) {
	dir, err := os.MkdirTemp("", "site-mariadb")
	if err != nil {
		return 0, nil, err
	}
	as := func(cmd *exec.Cmd) *exec.Cmd {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	options := append(installOptions(dir), "--auth-root-authentication-method=normal", "--skip-test-db")
	if out, err := as(exec.Command(install, options...)).CombinedOutput(); err != nil {
		return 0, nil, fmt.Errorf("%w: %s", err, out)
	}
	// As the official image has it: root from anywhere, with a password.
	sql := "CREATE USER root@'%' IDENTIFIED BY '" + strings.ReplaceAll(rootPassword, "'", "''") + "'; GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION; DROP USER IF EXISTS root@127.0.0.1; DROP USER IF EXISTS ''@localhost;\n"
	if err := os.WriteFile(dir+"/init.sql", []byte(strings.ReplaceAll(sql, "; ", ";\n")), 0o644); err != nil {
		return 0, nil, err
	}
	if port, err = child.FreePort(); err != nil {
		return 0, nil, err
	}
	cmd := as(exec.Command(server, append(serverOptions(dir),
		"--init-file="+dir+"/init.sql", "--bind-address=127.0.0.1", "--port="+strconv.Itoa(port))...))
	log, err := os.Create(dir + "/log")
	if err != nil {
		return 0, nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	for range 300 {
		db, err := databaseOf{Host: "127.0.0.1", Port: port}.open("root", rootPassword, "")
		if err == nil {
			return port, stop, db.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
	text, _ := os.ReadFile(dir + "/log")
	stop()
	return 0, nil, fmt.Errorf("mariadbd did not come up: %s", text)
}

// testBench is a bench in a directory, whose command line is the strict stand-in.
type testBench struct {
	t    testing.TB
	root string
	db   *sql.DB // root's
	id   string
}

var benches atomic.Int64

func newBench(t testing.TB) *testBench {
	t.Helper()
	python := need.Program(t, "/usr/bin/python3")
	port := mariadb(t)
	root := t.TempDir()
	b := &testBench{t: t, root: root, id: fmt.Sprintf("%d", benches.Add(1))}
	for _, dir := range []string{"apps/frappe", "apps/erpnext", "sites", "config/pids", "logs", ".sim"} {
		require.NoError(t, os.MkdirAll(b.path(dir), 0o755))
	}
	require.NoError(t, os.WriteFile(b.path("sites/apps.txt"), []byte("frappe\nerpnext\n"), 0o644))
	b.write("sites/common_site_config.json", map[string]any{"db_host": "127.0.0.1", "db_port": port, "redis_cache": "redis://127.0.0.1:1", "redis_queue": "redis://127.0.0.1:1"})
	program := filepath.Join(root, wire.BenchBinary)
	require.NoError(t, os.MkdirAll(filepath.Dir(program), 0o755))
	code, err := filepath.Abs("../../lab/sim/bench")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, fmt.Appendf(nil, "#!%s\nimport sys\nsys.dont_write_bytecode = True\nsys.path.insert(0, %q)\nfrom frappe import bench\nbench.main(sys.argv)\n", python, code), 0o755))
	b.db, err = databaseOf{Host: "127.0.0.1", Port: port}.open("root", rootPassword, "")
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.db.Close() })
	return b
}

func (b *testBench) path(name string) string { return filepath.Join(b.root, wire.BenchDir, name) }

func (b *testBench) write(name string, v any) {
	b.t.Helper()
	text, err := json.Marshal(v)
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(b.path(name), text, 0o600))
}

func (b *testBench) read(name string) map[string]any {
	b.t.Helper()
	text, err := os.ReadFile(b.path(name))
	require.NoError(b.t, err)
	out := map[string]any{}
	require.NoError(b.t, json.Unmarshal(text, &out))
	return out
}

// database is a name for a database of this test.
func (b *testBench) database(name string) string { return "pool_t" + b.id + "_" + name }

// done is what a verb came to.
type done struct {
	status         int
	stdout, stderr string
}

// verb runs a verb in a separate process, which ends after so many steps; -1 is none.
func (b *testBench) verb(steps int, secrets map[string]string, args ...string) done {
	b.t.Helper()
	return b.finish(b.start(steps, secrets, args...))
}

type running struct {
	cmd      *exec.Cmd
	out, err bytes.Buffer
}

func (b *testBench) start(steps int, secrets map[string]string, args ...string) *running {
	b.t.Helper()
	all := map[string]string{policy.SecretRootUser: "root", policy.SecretRootPassword: rootPassword}
	maps.Copy(all, secrets)
	line, err := json.Marshal(all)
	require.NoError(b.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	b.t.Cleanup(cancel)
	r := &running{cmd: exec.CommandContext(ctx, "/proc/self/exe", append([]string{Verb, "--root", b.root}, args...)...)}
	r.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(b.root, wire.BenchHome), "LANG=C.UTF-8"}
	if race := os.Getenv("GORACE"); race != "" {
		r.cmd.Env = append(r.cmd.Env, "GORACE="+race)
	}
	if steps >= 0 {
		r.cmd.Env = append(r.cmd.Env, "SITE_TEST_LAST_STEP="+strconv.Itoa(steps))
	}
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = strings.NewReader(string(line)+"\n"), &r.out, &r.err
	r.cmd.WaitDelay = time.Second
	require.NoError(b.t, r.cmd.Start())
	return r
}

func (b *testBench) finish(r *running) done {
	_ = r.cmd.Wait()
	return done{status: r.cmd.ProcessState.ExitCode(), stdout: r.out.String(), stderr: r.err.String()}
}

// good runs a verb that succeeds, and reads what it printed.
func (b *testBench) good(args ...string) string {
	b.t.Helper()
	return b.goodWith(nil, args...)
}

func (b *testBench) goodWith(secrets map[string]string, args ...string) string {
	b.t.Helper()
	d := b.verb(-1, secrets, args...)
	require.Zero(b.t, d.status, "%q: %s", args, d.stderr)
	require.LessOrEqual(b.t, strings.Count(d.stdout, "\n"), 1, "one line at most")
	return strings.TrimSpace(d.stdout)
}

// bad runs a verb that fails, and returns why.
func (b *testBench) bad(args ...string) string {
	b.t.Helper()
	d := b.verb(-1, nil, args...)
	require.Equal(b.t, 1, d.status, "%q: %s", args, d.stderr)
	require.Empty(b.t, d.stdout)
	return d.stderr
}

func (b *testBench) ask(query string, args ...any) (n int) {
	b.t.Helper()
	require.NoError(b.t, b.db.QueryRow(query, args...).Scan(&n), query)
	return n
}

func (b *testBench) exec(statement string) {
	b.t.Helper()
	_, err := b.db.Exec(statement)
	require.NoError(b.t, err, statement)
}

// left is what there is of a database.
func (b *testBench) left(database string) (databases, users int) {
	b.t.Helper()
	return b.ask("SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", database), b.ask("SELECT COUNT(*) FROM mysql.user WHERE User = ?", database)
}

func unmarshal(t testing.TB, text string, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), into), text)
}
