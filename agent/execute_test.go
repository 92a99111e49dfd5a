package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// putBench gives a host a bench of the test's own.
func putBench(t testing.TB, root, script string) {
	t.Helper()
	name := filepath.Join(root, wire.BenchBinary)
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, wire.BenchDir, "sites"), 0o755))
	require.NoError(t, os.WriteFile(name, []byte("#!/bin/sh\n"+script), 0o755))
}

func withBench(t testing.TB, script string) (*Agent, func(in wire.ExecRequest) answered) {
	t.Helper()
	g, a := serving(t)
	putBench(t, a.host.Root, script)
	c := g.caller(t, controlPlane(t, g.execCA))
	c.Timeout = time.Minute
	return a, func(in wire.ExecRequest) answered {
		in.ServerID = testServer
		if in.Kind == "" {
			in.Kind = wire.KindBench
		}
		if in.Args == nil {
			in.Args = []string{"list-sites"}
		}
		b, err := json.Marshal(in)
		if err != nil {
			t.Error(err)
		}
		out, err := a.try(c, g.tokenFor(t, string(b)), string(b))
		if err != nil {
			t.Errorf("the agent does not answer: %v", err)
			out.Response = &http.Response{}
		}
		return out
	}
}

func (a *Agent) inBench(name string) string {
	return filepath.Join(a.host.Root, wire.BenchDir, name)
}

func lines(t testing.TB, name string) int {
	t.Helper()
	b, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return 0
	}
	require.NoError(t, err)
	return strings.Count(string(b), "\n")
}

// pidIn reads the process id that a script left.
func pidIn(t testing.TB, name string) int {
	t.Helper()
	var pid int
	eventually(t, "the script runs", func() bool {
		b, err := os.ReadFile(name)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil && strings.HasSuffix(string(b), "\n") && pid > 0
	})
	return pid
}

// gone waits until a process is no more, or only waits for whoever is to reap it.
func gone(t testing.TB, pid int) {
	t.Helper()
	eventually(t, "the process is gone", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(b), ") Z ")
	})
}

func verbOf(kind wire.CommandKind, args []string) string {
	verb, _ := permitted(kind, args)
	return verb
}

func TestBenchIsAllowedByTheTable(t *testing.T) {
	t.Parallel()
	site := "a-1.example.com"
	for _, tc := range []struct {
		verb string
		args []string
	}{
		{"new-site", []string{"new-site", site, "--db-name", "pool_a1"}},
		{"set-config", []string{"--site", site, "set-config", "host_name", "https://ü.example.com/ $(id)"}},
		{"set-config", []string{"--site", site, "set-config", "empty", ""}},
		{"install-app", []string{"--site", site, "install-app", "erpnext"}},
		{"list-apps", []string{"--site", site, "list-apps"}},
		{"set-maintenance-mode", []string{"--site", site, "set-maintenance-mode", "on"}},
		{"set-maintenance-mode", []string{"--site", site, "set-maintenance-mode", "off"}},
		{"", []string{"--site", site, "backup"}},
		{"", []string{"--site", site, "backup", "--with-files"}},
		{"", []string{"--site", site, "rename-site", "b.example.com"}},
		{"", []string{"drop-site", site, "--force", "--no-backup"}},
		{"", []string{"new-site", site, "--db-name", "mysql"}},
		{"", []string{"--site", site, "restore", "b.example.com/private/backups/20260102_030405-b-database.sql.gz"}},
		{"", []string{"--site", site, "restore", "/" + site + "/private/backups/20260102_030405-a-database.sql.gz"}},
		{"", []string{"--site", site, "restore", site + "/private/backups/../../20260102_030405-a-database.sql.gz"}},
		{"", []string{"--site", site, "restore", site + "/private/backups/20260102_030405-a-files.tar"}},
		{"", []string{"--site", site, "restore", "https://example.com/20260102_030405-a-database.sql.gz"}},
		{"", []string{"--site", site, "restore", site + "/private/backups/20260102_030405-a-database.sql.gz", "--force"}},
		{"", []string{"--site", site, "restore", site + "/private/backups/20260102_030405-a-database.sql.gz", "--admin-password", "x"}},
		{"list-sites", []string{"list-sites"}},
		{"promote-site", []string{"promote-site", site, "b.example.com"}},
		{"configure", []string{"--site", site, "configure", `{"host_name":"https://a.example.com"}`}},
		{"set-admin-password", []string{"--site", site, "set-admin-password"}},
		{"add-user", []string{"--site", site, "add-user", "kim.p+x@example.co.kr", "Kim Park-Ö"}},
		{"enable-scheduler", []string{"--site", site, "enable-scheduler"}},
		{"disable-scheduler", []string{"--site", site, "disable-scheduler"}},
		{"migrate", []string{"--site", site, "migrate"}},
		{"backup", []string{"--site", site, "backup", "snap-1"}},
		{"backup", []string{"--site", site, "backup", "snap-1", "--with-files"}},
		{"restore", []string{"--site", site, "restore", "snap-1"}},
		{"restore", []string{"--site", site, "restore", "snap-1", "--with-files"}},
		{"delete-backup", []string{"--site", site, "delete-backup", "snap-1"}},
		{"usage", []string{"--site", site, "usage"}},
		{"erase-site", []string{"erase-site", site, "--db-name", "pool_1"}},
		{"erase-site", []string{"erase-site", site, "--db-name", "tenant_a_db"}},
		{"", []string{"erase-site", site, "--db-name", "mysql"}},
		{"", []string{"erase-site", site, "--db-name", "_a1"}},
		{"", []string{"erase-site", site}},
		{"", []string{"promote-site", site, "../x"}},
		{"", []string{"promote-site", site, "--force"}},
		{"", []string{"--site", site, "configure", `["host_name"]`}},
		{"", []string{"--site", site, "set-admin-password", "a password"}},
		{"", []string{"--site", site, "add-user", "--password", "x"}},
		{"", []string{"--site", site, "add-user", "a@example.com", "-x"}},
		{"", []string{"--site", site, "add-user", "a@example.com", "<b>"}},
		{"", []string{"--site", site, "add-user", "a@example", "A"}},
		{"", []string{"--site", site, "backup", "../x"}},
		{"", []string{"--site", site, "backup", "Snap"}},
		{"", []string{"--site", site, "backup", strings.Repeat("a", 81)}},
		{"", []string{"--site", site, "restore", "snap-1", "--force"}},
		{"", []string{"--site", site, "migrate", "--skip-failing"}},
		{"", nil},
		{"", []string{""}},
		{"", []string{"version"}},
		{"", []string{"console"}},
		{"", []string{"--site", site, "console"}},
		{"", []string{"--site", site, "execute", "frappe.db.sql"}},
		{"", []string{"--site", "all", "backup"}},
		{"", []string{"list-sites", "--help"}},
		{"", []string{"List-Sites"}},
		{"", []string{"SITE"}},
		{"", []string{"new-site", site}},
		{"", []string{"new-site", site, "--db-name"}},
		{"", []string{"new-site", site, "--db-name", "a;b"}},
		{"", []string{"new-site", site, "--db-name", "pool_" + strings.Repeat("a", 64)}},
		{"", []string{"new-site", site, "--db-name", "pool_a", "--force"}},
		{"", []string{"new-site", "localhost", "--db-name", "pool_a"}},
		{"", []string{"new-site", "../../etc", "--db-name", "pool_a"}},
		{"", []string{"new-site", "A.example.com", "--db-name", "pool_a"}},
		{"", []string{"new-site", "-a.example.com", "--db-name", "pool_a"}},
		{"", []string{"new-site", "a.example.com\n", "--db-name", "pool_a"}},
		{"", []string{"new-site", "a..com", "--db-name", "pool_a"}},
		{"", []string{"new-site", strings.Repeat("a.", 130) + "com", "--db-name", "pool_a"}},
		{"", []string{"--site", site, "rename-site", "--force"}},
		{"", []string{"--site", site, "set-config", "-g", "value"}},
		{"", []string{"--site", site, "set-config", "key", "--parse"}},
		{"", []string{"--site", site, "set-config", "a key", "value"}},
		{"", []string{"--site", site, "set-config", "key", "two\nlines"}},
		{"", []string{"--site", site, "set-config", "key", "\x00"}},
		{"set-config", []string{"--site", site, "set-config", "key", strings.Repeat("x", 4096)}},
		{"", []string{"--site", site, "set-config", "key", strings.Repeat("x", 4097)}},
		{"", []string{"--site", site, "install-app", "https://example.com/app"}},
		{"", []string{"--site", site, "install-app", "Erpnext"}},
		{"", []string{"--site", site, "set-maintenance-mode", "maybe"}},
		{"", []string{"drop-site", site, "--no-backup", "--force"}},
		{"", []string{"drop-site", site}},
	} {
		require.Equal(t, tc.verb, verbOf(wire.KindBench, tc.args), "%q", tc.args)
	}
}

func TestBenchRunsWithNothingOfTheAgents(t *testing.T) {
	t.Parallel()
	a, call := withBench(t, `env | sort; pwd; printf '<%s>' "$@"; echo oops >&2; exit 3`)
	out := call(wire.ExecRequest{Args: []string{"--site", "a.b", "set-config", "k", "$(id) *; 'x'"}, WorkingDir: "/home/frappe/frappe-bench/./sites", AuditID: "one"})
	require.Equal(t, http.StatusOK, out.StatusCode, out.problem)
	require.Equal(t, 3, out.result.ExitCode)
	require.Equal(t, "one", out.result.AuditID)
	require.Equal(t, "oops\n", out.result.StderrTruncated)
	require.Contains(t, out.result.StdoutTruncated, "<--site><a.b><set-config><k><$(id) *; 'x'>")
	require.Contains(t, out.result.StdoutTruncated, a.inBench("sites")+"\n")
	var names []string
	for line := range strings.Lines(out.result.StdoutTruncated) {
		if name, _, ok := strings.Cut(line, "="); ok {
			names = append(names, name)
		}
	}
	require.Subset(t, []string{"HOME", "LANG", "PATH", "PWD"}, names, "PWD is the shell's own")
	require.Contains(t, out.result.StdoutTruncated, "HOME="+filepath.Join(a.host.Root, "home/frappe")+"\n")
}

func TestBenchRefusesWhatIsOutOfBounds(t *testing.T) {
	t.Parallel()
	a, call := withBench(t, `echo ran >> ran`)
	configure := func(settings string) []string { return []string{"--site", "a.example.com", "configure", settings} }
	for name, tc := range map[string]struct {
		in          wire.ExecRequest
		code, field string
	}{
		"not allowed":         {wire.ExecRequest{Args: []string{"console"}}, "command_not_allowed", "args"},
		"too long":            {wire.ExecRequest{TimeoutSeconds: 901}, "invalid_field", "timeoutSeconds"},
		"negative":            {wire.ExecRequest{TimeoutSeconds: -1}, "invalid_field", "timeoutSeconds"},
		"a directory outside": {wire.ExecRequest{WorkingDir: "/etc"}, "invalid_field", "workingDir"},
		"a way out":           {wire.ExecRequest{WorkingDir: wire.BenchDir + "/../../.."}, "invalid_field", "workingDir"},
		"a neighbour":         {wire.ExecRequest{WorkingDir: wire.BenchDir + "-2"}, "invalid_field", "workingDir"},
		"relative":            {wire.ExecRequest{WorkingDir: "sites"}, "invalid_field", "workingDir"},
		"a long id":           {wire.ExecRequest{AuditID: strings.Repeat("x", 257)}, "invalid_field", "auditId"},
		"no tenant's id":      {wire.ExecRequest{TenantID: "../t"}, "invalid_field", "tenantId"},
		"the host's setting":  {wire.ExecRequest{Args: configure(`{"db_name":"x"}`)}, "invalid_field", "args"},
		"no owner's id":       {wire.ExecRequest{Args: configure(`{"` + wire.SiteOwnerFile + `":"../t"}`)}, "invalid_field", "args"},
		"an owner taken away": {wire.ExecRequest{Args: configure(`{"` + wire.SiteOwnerFile + `":null}`)}, "invalid_field", "args"},
		"a directory for SQL": {wire.ExecRequest{Kind: wire.KindMariaDB, Args: []string{"databases"}, WorkingDir: wire.BenchDir}, "invalid_field", "workingDir"},
		"a tenant for SQL":    {wire.ExecRequest{Kind: wire.KindMariaDB, Args: []string{"databases"}, TenantID: "t-1"}, "invalid_field", "tenantId"},
	} {
		out := call(tc.in)
		require.Equal(t, http.StatusUnprocessableEntity, out.StatusCode, name)
		require.Equal(t, []string{tc.code, tc.field}, []string{out.problem.Code, out.problem.Field}, name)
	}
	require.NoFileExists(t, a.inBench("ran"))
	require.Equal(t, http.StatusOK, call(wire.ExecRequest{TimeoutSeconds: 900, AuditID: strings.Repeat("x", 256)}).StatusCode, "the bounds themselves are within them")
}

func TestATimeoutKillsTheWholeGroup(t *testing.T) {
	t.Parallel()
	a, call := withBench(t, `(sleep 300 & echo $! > child; wait) & echo started; wait`)
	began := time.Now()
	out := call(wire.ExecRequest{TimeoutSeconds: 1, AuditID: "slow"})
	require.Equal(t, http.StatusOK, out.StatusCode)
	require.Equal(t, 124, out.result.ExitCode)
	require.Equal(t, "started\n", out.result.StdoutTruncated)
	require.Contains(t, out.result.StderrTruncated, "killed after 1s")
	require.GreaterOrEqual(t, out.result.DurationMs, int64(500)) // the time for the start counts
	require.Less(t, time.Since(began), 20*time.Second)
	gone(t, pidIn(t, a.inBench("child")))
}

func TestNothingOutlivesItsCommand(t *testing.T) {
	t.Parallel()
	a, call := withBench(t, `sleep 300 & echo $! > child; echo done`)
	out := call(wire.ExecRequest{})
	require.Equal(t, http.StatusOK, out.StatusCode)
	require.Equal(t, 0, out.result.ExitCode)
	require.Equal(t, "done\n", out.result.StdoutTruncated)
	gone(t, pidIn(t, a.inBench("child")))
}

func TestAnAuditIDRunsOnce(t *testing.T) {
	t.Parallel()
	a, call := withBench(t, `echo ran >> ran; sleep 0.3; echo $$; exit 7`)
	results := make(chan wire.ExecResult, 8)
	for range cap(results) {
		go func() { results <- call(wire.ExecRequest{AuditID: "the one"}).result }()
	}
	first := <-results
	require.Equal(t, 7, first.ExitCode)
	for range cap(results) - 1 {
		require.Equal(t, first, <-results, "who comes meanwhile joins")
	}
	require.Equal(t, first, call(wire.ExecRequest{AuditID: "the one", TimeoutSeconds: 5, WorkflowID: "another"}).result)
	require.Equal(t, 1, lines(t, a.inBench("ran")))

	reused := call(wire.ExecRequest{AuditID: "the one", Args: []string{"--site", "a.b", "backup", "one"}})
	require.Equal(t, http.StatusUnprocessableEntity, reused.StatusCode)
	require.Equal(t, "audit_id_reused", reused.problem.Code)

	again, err := newCommands(a.host) // as the next agent on this host does
	require.NoError(t, err)
	t.Cleanup(again.stop)
	k, refused := again.submit(wire.ExecRequest{ServerID: testServer, Kind: wire.KindBench, Args: []string{"list-sites"}, AuditID: "the one"}, quiet())
	require.Nil(t, refused)
	<-k.ended
	require.Equal(t, first, k.result)
	require.Equal(t, 1, lines(t, a.inBench("ran")))

	for range 2 {
		require.NotEmpty(t, call(wire.ExecRequest{}).result.AuditID)
	}
	require.Equal(t, 3, lines(t, a.inBench("ran")), "without an id each is its own")
}

func TestResultsAreBoundedAndSurviveRubbish(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, resultFile("half")), []byte(`{"digest":`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".x-1"), nil, 0o600))
	for i := range keptResults + 5 { // without keep's patience with the disk
		b, err := json.Marshal(kept{At: time.Unix(int64(i), 0), Result: wire.ExecResult{AuditID: fmt.Sprint("../", i)}})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, resultFile(fmt.Sprint("../", i))), b, 0o600))
	}
	r, err := openResults(dir)
	require.NoError(t, err)
	_, ok := r.find("../4")
	require.False(t, ok, "the oldest are forgotten")
	_, ok = r.find("../5")
	require.True(t, ok)
	require.NoError(t, r.keep(&call{in: wire.ExecRequest{AuditID: "new"}, result: wire.ExecResult{AuditID: "new"}}))
	_, ok = r.find("../5")
	require.False(t, ok)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, keptResults+1, "and the key of digests")
}

func TestABusyHostRefuses(t *testing.T) {
	t.Parallel()
	a, ask := withBench(t, `echo ran >> ran; while [ ! -e go ]; do sleep 0.05; done`)
	e, _ := executing(t, a.host) // in place of the other
	var calls []*call
	for i := range maxRunning + maxQueued {
		k, refused := e.cmds.submit(wire.ExecRequest{Kind: wire.KindBench, Args: []string{"list-sites"}, AuditID: fmt.Sprint(i)}, quiet())
		require.Nil(t, refused)
		calls = append(calls, k)
	}
	eventually(t, "the first run", func() bool { return lines(t, a.inBench("ran")) == maxRunning })
	out := ask(wire.ExecRequest{AuditID: "one too many"})
	require.Equal(t, http.StatusTooManyRequests, out.StatusCode)
	require.Equal(t, "busy", out.problem.Code)
	require.Equal(t, "5", out.Header.Get("Retry-After"))
	time.Sleep(100 * time.Millisecond)
	require.Equal(t, maxRunning, lines(t, a.inBench("ran")), "the others wait")
	joined := make(chan answered, 1)
	go func() { joined <- ask(wire.ExecRequest{AuditID: "0"}) }()
	require.NoError(t, os.WriteFile(a.inBench("go"), nil, 0o600))
	require.Equal(t, http.StatusOK, (<-joined).StatusCode, "who joins takes no place")
	for _, k := range calls {
		<-k.ended
		require.Nil(t, k.failed)
	}
	require.Equal(t, maxRunning+maxQueued, lines(t, a.inBench("ran")))
}

func TestOutputIsTheEndOfIt(t *testing.T) {
	t.Parallel()
	_, call := withBench(t, `i=0; while [ $i -lt 3000 ]; do echo "line $i ü"; i=$((i+1)); done; printf 'a\377b' >&2`)
	out := call(wire.ExecRequest{}).result
	require.LessOrEqual(t, len(out.StdoutTruncated), maxOutput)
	require.Greater(t, len(out.StdoutTruncated), maxOutput-4)
	require.True(t, strings.HasSuffix(out.StdoutTruncated, "line 2999 ü\n"))
	require.Equal(t, "a\uFFFDb", out.StderrTruncated)

	for name, written := range map[string]string{
		"nothing": "", "short": "ü", "cut characters": strings.Repeat("€", 10_000), "not UTF-8": strings.Repeat("a\xff", 10_000), "zeros": strings.Repeat("\x80", 20_000),
	} {
		var tl tail
		for i := 0; i < len(written); i += 1000 {
			_, _ = tl.Write([]byte(written[i:min(len(written), i+1000)]))
		}
		got := tl.String()
		require.True(t, utf8.ValidString(got), name)
		require.LessOrEqual(t, len(got), maxOutput, name)
		if utf8.ValidString(written) {
			require.True(t, strings.HasSuffix(written, got) && (len(written) <= maxOutput) == (got == written), name)
		}
	}
}

// TestACommandRunsOnceUnderItsID: one of which nobody knows how it ended is not
// begun again, and one that never began is.
func TestACommandRunsOnceUnderItsID(t *testing.T) {
	t.Parallel()
	a, call := withBench(t, `echo ran >> ran; kill -9 $$`)
	for range 2 {
		out := call(wire.ExecRequest{AuditID: "x"})
		require.Equal(t, http.StatusConflict, out.StatusCode)
		require.Equal(t, wire.CodeOutcomeUnknown, out.problem.Code)
	}
	require.Equal(t, 1, lines(t, a.inBench("ran")))
	require.NoError(t, os.Remove(filepath.Join(a.host.Root, wire.BenchBinary)))
	out := call(wire.ExecRequest{AuditID: "y"})
	require.Equal(t, http.StatusInternalServerError, out.StatusCode)
	require.Equal(t, "start_failed", out.problem.Code)
	putBench(t, a.host.Root, `echo well`)
	out = call(wire.ExecRequest{AuditID: "y"})
	require.Equal(t, "well\n", out.result.StdoutTruncated)
}

func TestAnEndingExecutorKillsWhatRuns(t *testing.T) {
	t.Parallel()
	g := newTestGateway(t)
	a := g.enrolled(t)
	_, stop := executing(t, a.host)
	run(t, func(ctx context.Context) error { return a.serve(ctx, quiet()) })
	putBench(t, a.host.Root, `sleep 300 & echo $! > child; wait`)
	c := g.caller(t, controlPlane(t, g.execCA))
	body := strings.Replace(execBody, "version", "list-sites", 1)
	status := make(chan int, 1)
	go func() {
		got, _ := a.call(t, c, g.tokenFor(t, body), body)
		status <- got
	}()
	child := pidIn(t, a.inBench("child"))
	stop()
	require.Equal(t, http.StatusConflict, <-status, "how far it came is not known")
	gone(t, child)
	got, code := a.call(t, c, g.tokenFor(t, body), body)
	require.Equal(t, []any{http.StatusServiceUnavailable, "exec_unavailable"}, []any{got, code}, "nobody is there")
}

func TestAnEndingAgentLetsTheCommandGoOn(t *testing.T) {
	t.Parallel()
	g := newTestGateway(t)
	a := g.enrolled(t)
	executing(t, a.host)
	putBench(t, a.host.Root, `echo ran >> ran; while [ ! -e go ]; do sleep 0.05; done; echo done`)
	c := g.caller(t, controlPlane(t, g.execCA))
	body := strings.Replace(execBody, `"args":["version"]`, `"args":["list-sites"],"auditId":"x"`, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.serve(ctx, quiet()) }()
	status := make(chan int, 1)
	go func() {
		got, _ := a.call(t, c, g.tokenFor(t, body), body)
		status <- got
	}()
	eventually(t, "it runs", func() bool { return lines(t, a.inBench("ran")) == 1 })
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, http.StatusServiceUnavailable, <-status)

	again, err := New(a.host, "127.0.0.1", "v-test", quiet())
	require.NoError(t, err)
	run(t, func(ctx context.Context) error { return again.serve(ctx, quiet()) })
	require.NoError(t, os.WriteFile(a.inBench("go"), nil, 0o600))
	out, err := again.try(g.caller(t, controlPlane(t, g.execCA)), g.tokenFor(t, body), body)
	require.NoError(t, err)
	require.Equal(t, "done\n", out.result.StdoutTruncated)
	require.Equal(t, 1, lines(t, a.inBench("ran")), "who asks the next agent joins it")
}

// TestAKilledExecutorLeavesNothingRunning kills the real program, which can do
// nothing about it.
func TestAKilledExecutorLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	g := newTestGateway(t)
	port := freePort(t)
	root := g.plant(t, port)
	require.Equal(t, 0, start(t, "bootstrap", "--root", root, "--addr", "127.0.0.1").status(t))
	putBench(t, root, `echo ran >> ran; [ -e child ] && exit 0; sleep 300 & echo $! > child; wait`)
	h, err := OpenHost(root)
	require.NoError(t, err)
	a := &Agent{host: h}
	c := g.caller(t, controlPlane(t, g.execCA))
	body := strings.Replace(execBody, `"args":["version"]`, `"args":["list-sites"],"auditId":"x"`, 1)

	p := start(t, "exec", "--root", root)
	start(t, "run", "--root", root, "--addr", "127.0.0.1")
	eventually(t, "it listens", func() bool { return strings.Contains(p.log.String(), "running commands") })
	failed := make(chan string, 1)
	go func() { _, code := a.call(t, c, g.tokenFor(t, body), body); failed <- code }()
	child := pidIn(t, a.inBench("child"))
	require.NoError(t, syscall.Kill(p.Process.Pid, syscall.SIGKILL))
	require.Equal(t, "exec_unavailable", <-failed)
	gone(t, child)

	_ = p.Wait()
	p = start(t, "exec", "--root", root)
	eventually(t, "it listens", func() bool { return strings.Contains(p.log.String(), "running commands") })
	out, err := a.try(c, g.tokenFor(t, body), body)
	require.NoError(t, err)
	require.Equal(t, http.StatusConflict, out.StatusCode)
	require.Equal(t, wire.CodeOutcomeUnknown, out.problem.Code)
	require.Equal(t, 1, lines(t, a.inBench("ran")), "nothing runs twice")
}
