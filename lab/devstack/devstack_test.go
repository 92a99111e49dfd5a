package devstack

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("PREGO_TEST_HOLD"); dir != "" {
		hold(dir)
	}
	os.Exit(m.Run())
}

// hold starts children, writes their process ids down, and waits to be killed.
func hold(dir string) {
	p, err := Start(Spec{Name: "sleep", Path: "/bin/sleep", Args: []string{"600"}})
	if err != nil {
		panic(err)
	}
	pg, err := StartPostgres(context.Background(), PostgresConfig{Dir: filepath.Join(dir, "pg"), Volatile: true})
	if err != nil {
		panic(err)
	}
	text := strconv.Itoa(p.PID()) + " " + strconv.Itoa(pg.PID())
	if err := os.WriteFile(filepath.Join(dir, "pids.tmp"), []byte(text), 0o600); err != nil {
		panic(err)
	}
	_ = os.Rename(filepath.Join(dir, "pids.tmp"), filepath.Join(dir, "pids"))
	select {}
}

func scratch(t *testing.T) string {
	t.Helper()
	dir, err := Scratch("prego-devstack-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// alive reports whether a process runs and is no zombie.
func alive(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestChildrenDieWithTheirParent(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "PREGO_TEST_HOLD="+dir)
	require.NoError(t, parent.Start())
	var pids []int
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(filepath.Join(dir, "pids"))
		for f := range strings.FieldsSeq(string(b)) {
			pid, _ := strconv.Atoi(f)
			pids = append(pids, pid)
		}
		return err == nil
	}, time.Minute, 20*time.Millisecond)
	require.Len(t, pids, 2)
	for _, pid := range pids {
		require.True(t, alive(pid))
	}
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait()
	for _, pid := range pids {
		require.Eventually(t, func() bool { return !alive(pid) }, 10*time.Second, 20*time.Millisecond)
	}
}

func TestStopKillsStubbornProcesses(t *testing.T) {
	t.Parallel()
	p, err := Start(Spec{Name: "stubborn", Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; sleep 600 & wait; wait"}})
	require.NoError(t, err)
	began := time.Now()
	p.Stop(300 * time.Millisecond)
	require.Less(t, time.Since(began), 5*time.Second)
	require.False(t, alive(p.PID()))
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it ended meanwhile
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		fields := strings.Fields(rest) // state, parent, group …
		if len(fields) > 2 && fields[2] == strconv.Itoa(p.PID()) {
			require.Equal(t, "Z", fields[0], "something is left in its group")
		}
	}
}

func TestPostgresKeepsItsData(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cfg := PostgresConfig{Dir: filepath.Join(scratch(t), "pg")}
	query := func(pg *Postgres, sql string) error {
		c, err := pgx.Connect(ctx, pg.URL("mine"))
		require.NoError(t, err)
		defer func() { _ = c.Close(ctx) }()
		_, err = c.Exec(ctx, sql)
		return err
	}
	rows := func(pg *Postgres) (n int) {
		c, err := pgx.Connect(ctx, pg.URL("mine"))
		require.NoError(t, err)
		defer func() { _ = c.Close(ctx) }()
		require.NoError(t, c.QueryRow(ctx, "SELECT count(*) FROM kept").Scan(&n))
		return n
	}
	for i, end := range []func(*Postgres){func(p *Postgres) { p.Stop(20 * time.Second) }, func(p *Postgres) { p.Kill() }, func(p *Postgres) { p.Stop(20 * time.Second) }} {
		pg, err := StartPostgres(ctx, cfg)
		require.NoError(t, err, "start %d", i)
		require.NoError(t, pg.EnsureDatabase(ctx, "mine"))
		if i == 0 {
			require.NoError(t, query(pg, "CREATE TABLE kept (n int)"))
		}
		require.Equal(t, i, rows(pg), "what the earlier ones wrote is there, however they ended")
		require.NoError(t, query(pg, "SET synchronous_commit = on; INSERT INTO kept VALUES (1)"), "start %d", i)
		end(pg)
	}
}

func TestErrorsNameTheRemedy(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).Port
	require.ErrorContains(t, PortFree(port, "--api-port", "the API"), "port "+strconv.Itoa(port)+" for the API is in use: stop what uses it, or choose another with --api-port")

	logFile := filepath.Join(t.TempDir(), "log")
	p, err := Start(Spec{Name: "broken", Path: "/bin/sh", Args: []string{"-c", "echo cannot find my keys; exit 3"}, LogFile: logFile})
	require.NoError(t, err)
	err = p.AwaitHTTP(context.Background(), "http://127.0.0.1:1/", 10*time.Second)
	require.ErrorContains(t, err, "broken ended (exit status 3)")
	require.ErrorContains(t, err, "cannot find my keys")
}

func TestScratchGoesWhereThereIsRoom(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PREGO_TEST_SCRATCH", dir)
	got, err := Scratch("x-")
	require.NoError(t, err)
	require.Equal(t, dir, filepath.Dir(got))
	info, err := os.Stat(got)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode().Perm())

	require.True(t, roomy(dir, 1))
	require.False(t, roomy(dir, 1<<60))
	require.False(t, roomy(filepath.Join(dir, "missing"), 1))
	require.False(t, roomy("/proc", 1), "it has no room")
}
