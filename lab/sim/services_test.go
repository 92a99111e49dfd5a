package sim

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/need"
)

// running reports whether a process exists and is no zombie.
func running(t *testing.T, pid int) bool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	return !strings.Contains(string(b), ") Z ")
}

func TestServicesStartWhenTheyAreNeeded(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	s := b.host.sim.services
	require.Nil(t, s.mariadb.process.Load())
	require.Equal(t, []string{"1"}, b.query("SELECT 1"))
	pid := s.mariadb.process.Load().PID()
	require.True(t, running(t, pid))
	require.Nil(t, s.redis.process.Load(), "it was not needed")
	conn, err := net.Dial("unix", filepath.Join(b.host.root(), "run/prego/mysqld/mysqld.sock"))
	require.NoError(t, err, "hosts have it where a real one has it")
	require.NoError(t, conn.Close())
	other := b.other("prego-app-2")
	other.newSite(site, db)
	require.Equal(t, []string{"_a"}, b.databases(), "hosts share it")
	s.close()
	require.False(t, running(t, pid))

	// What it kept is there when the cloud comes up again.
	again, err := New(b.host.sim.cfg)
	require.NoError(t, err)
	next := &bench{t: t, host: &processHost{sim: again, name: "prego-app-2", dir: other.host.dir}}
	next.install()
	t.Cleanup(again.services.close)
	require.Equal(t, "\nfrappe\n\n", next.run(0, "--site "+site+" list-apps").stdout)
}

// TestABootstrapThatDiesIsRepeated, as the host's unit has it.
func TestABootstrapThatDiesIsRepeated(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	boot, end := context.WithCancel(t.Context())
	tries := 0
	b.host.sim.cfg.RunAgent = func(string) func(context.Context, string, string, string) error {
		return func(ctx context.Context, verb, _, _ string) error {
			switch verb {
			case "bootstrap":
				if tries++; tries < 3 {
					return errors.New("killed")
				}
				return nil
			case "run":
				end()
			}
			<-ctx.Done()
			return ctx.Err()
		}
	}
	require.NoError(t, b.host.live(boot))
	require.Equal(t, phaseRunning, b.host.info().Phase)
	require.Equal(t, 3, tries)
}

// TestSitesHaveTheDeclaredMariaDB: the version that hosts run, with the settings that Frappe needs. Naming series read
// one row FOR UPDATE in each transaction, after other sessions have changed it: no transaction fails, since Frappe would
// not repeat it.
func TestSitesHaveTheDeclaredMariaDB(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	version := b.query("SELECT VERSION()")[0]
	if want := child.MariaDBVersion(); !strings.HasPrefix(version, want+".") {
		need.Missing(t, "MariaDB "+want+" is needed, and found is "+version+": make images builds it into .prego/bin")
	}
	require.Equal(t, []string{"0 536870912 500 5368709120 utf8mb4 utf8mb4_unicode_ci REPEATABLE-READ"},
		b.query("SELECT @@innodb_snapshot_isolation, @@max_allowed_packet, @@max_connections, @@tmp_disk_table_size, "+
			"@@character_set_server, @@collation_server, @@tx_isolation"))

	b.newSite(site, db)
	b.query("CREATE TABLE " + db + ".counters (name VARCHAR(9) PRIMARY KEY, current INT)")
	b.query("INSERT INTO " + db + ".counters VALUES ('INV-', 0)")
	var sessions sync.WaitGroup
	for range 4 {
		conn := b.connect()
		sessions.Go(func() {
			for range 40 {
				tx, err := conn.BeginTx(t.Context(), nil)
				if !assert.NoError(t, err) {
					return
				}
				for _, q := range []string{
					"SELECT COUNT(*) FROM " + db + ".tabSingles", // the transaction's view is of now
					"SELECT current FROM " + db + ".counters WHERE name = 'INV-' FOR UPDATE",
					"UPDATE " + db + ".counters SET current = current + 1 WHERE name = 'INV-'",
				} {
					if _, err := tx.ExecContext(t.Context(), q); err != nil {
						t.Errorf("%s: %v", q, err)
					}
				}
				assert.NoError(t, tx.Commit())
			}
		})
	}
	sessions.Wait()
	require.Equal(t, []string{"160"}, b.query("SELECT current FROM "+db+".counters"))
}

func TestServicesDieWithTheirProcess(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv("PREGO_TEST_SERVICES"); dir != "" {
		s, err := New(Config{Listen: "127.0.0.1:0", StateDir: dir, Token: "secret"})
		require.NoError(t, err)
		services, err := s.benchServices()
		require.NoError(t, err)
		_, err = net.Dial("unix", services.mariadb.socket)
		require.NoError(t, err)
		require.Eventually(t, func() bool { _, err := os.Stat(services.mariadb.dir + ".pid"); return err == nil }, time.Minute, 10*time.Millisecond)
		_, _ = os.Stdout.WriteString("up\n")
		select {}
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestServicesDieWithTheirProcess$")
	cmd.Env = append(os.Environ(), "PREGO_TEST_SERVICES="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "up\n", line)
	b, err := os.ReadFile(filepath.Join(dir, "services", "mariadb.pid"))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	require.True(t, running(t, pid))
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait()
	require.Eventually(t, func() bool { return !running(t, pid) }, 10*time.Second, 10*time.Millisecond)
}

// TestAServerThatEndedIsStartedAgain starts a server whose port was taken at its first start.
func TestAServerThatEndedIsStartedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	starts := 0
	v := &service{name: "redis", dir: filepath.Join(dir, "redis"), socket: filepath.Join(dir, "redis.sock")}
	v.start = func(ctx context.Context, socket string) (*exec.Cmd, error) {
		if starts++; starts == 1 {
			return exec.CommandContext(ctx, "false"), nil
		}
		return startRedis(ctx, socket)
	}
	var work sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	require.NoError(t, v.listen(ctx, &work))
	ping := func() string {
		conn, err := net.Dial("unix", v.socket)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write([]byte("PING\r\n"))
		answer := make([]byte, 7)
		n, _ := conn.Read(answer)
		return string(answer[:n])
	}
	require.Empty(t, ping())
	require.Equal(t, "+PONG\r\n", ping())
	stop()
	work.Wait()
}
