package online

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	agentexec "github.com/prego/prego/agent/exec"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
	"github.com/prego/prego/lab/need"
)

func withBench(t testing.TB, script string) (*Agent, func(in wire.ExecRequest) answered) {
	t.Helper()
	g, a := serving(t)
	agenttest.PutBench(t, a.host.Root, script)
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	c.Timeout = time.Minute
	return a, func(in wire.ExecRequest) answered {
		in.ServerID = agenttest.Server
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
		out, err := a.try(c, g.TokenFor(t, string(b)), string(b))
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
	agenttest.Gone(t, agenttest.PIDIn(t, a.inBench("child")))
}

func TestNothingOutlivesItsCommand(t *testing.T) {
	t.Parallel()
	a, call := withBench(t, `sleep 300 & echo $! > child; echo done`)
	out := call(wire.ExecRequest{})
	require.Equal(t, http.StatusOK, out.StatusCode)
	require.Equal(t, 0, out.result.ExitCode)
	require.Equal(t, "done\n", out.result.StdoutTruncated)
	agenttest.Gone(t, agenttest.PIDIn(t, a.inBench("child")))
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
		require.Equal(t, first, <-results, "concurrent callers join")
	}
	require.Equal(t, first, call(wire.ExecRequest{AuditID: "the one", TimeoutSeconds: 5, WorkflowID: "another"}).result)
	require.Equal(t, 1, agenttest.Lines(t, a.inBench("ran")))

	reused := call(wire.ExecRequest{AuditID: "the one", Args: []string{"--site", "a.b", "backup", "one"}})
	require.Equal(t, http.StatusUnprocessableEntity, reused.StatusCode)
	require.Equal(t, "audit_id_reused", reused.problem.Code)

	executing(t, a.host) // the next executor of this host, in place of the other
	require.Equal(t, first, call(wire.ExecRequest{AuditID: "the one"}).result)
	require.Equal(t, 1, agenttest.Lines(t, a.inBench("ran")))

	for range 2 {
		require.NotEmpty(t, call(wire.ExecRequest{}).result.AuditID)
	}
	require.Equal(t, 3, agenttest.Lines(t, a.inBench("ran")), "without an id each is its own")
}

// TestACommandRunsOnceUnderItsID: a command with an unknown end is not started again, and a command that never began
// is.
func TestACommandRunsOnceUnderItsID(t *testing.T) {
	t.Parallel()
	a, call := withBench(t, `echo ran >> ran; kill -9 $$`)
	for range 2 {
		out := call(wire.ExecRequest{AuditID: "x"})
		require.Equal(t, http.StatusConflict, out.StatusCode)
		require.Equal(t, wire.CodeOutcomeUnknown, out.problem.Code)
	}
	require.Equal(t, 1, agenttest.Lines(t, a.inBench("ran")))
	require.NoError(t, os.Remove(filepath.Join(a.host.Root, wire.BenchBinary)))
	out := call(wire.ExecRequest{AuditID: "y"})
	require.Equal(t, http.StatusInternalServerError, out.StatusCode)
	require.Equal(t, "start_failed", out.problem.Code)
	agenttest.PutBench(t, a.host.Root, `echo well`)
	out = call(wire.ExecRequest{AuditID: "y"})
	require.Equal(t, "well\n", out.result.StdoutTruncated)
}

func TestAnEndingExecutorKillsWhatRuns(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	_, stop := executing(t, a.host)
	agenttest.Loop(t, func(ctx context.Context) error { return a.serve(ctx, agenttest.Quiet()) })
	agenttest.PutBench(t, a.host.Root, `sleep 300 & echo $! > child; wait`)
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	body := strings.Replace(agenttest.Body, "version", "list-sites", 1)
	status := make(chan int, 1)
	go func() {
		got, _ := a.call(t, c, g.TokenFor(t, body), body)
		status <- got
	}()
	child := agenttest.PIDIn(t, a.inBench("child"))
	stop()
	require.Equal(t, http.StatusConflict, <-status, "how far it came is not known")
	agenttest.Gone(t, child)
	got, code := a.call(t, c, g.TokenFor(t, body), body)
	require.Equal(t, []any{http.StatusServiceUnavailable, "exec_unavailable"}, []any{got, code}, "no executor is there")
}

func TestAnEndingAgentLetsTheCommandGoOn(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	executing(t, a.host)
	agenttest.PutBench(t, a.host.Root, `echo ran >> ran; while [ ! -e go ]; do sleep 0.05; done; echo done`)
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	body := strings.Replace(agenttest.Body, `"args":["version"]`, `"args":["list-sites"],"auditId":"x"`, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.serve(ctx, agenttest.Quiet()) }()
	status := make(chan int, 1)
	go func() {
		got, _ := a.call(t, c, g.TokenFor(t, body), body)
		status <- got
	}()
	agenttest.Eventually(t, "it runs", func() bool { return agenttest.Lines(t, a.inBench("ran")) == 1 })
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, http.StatusServiceUnavailable, <-status)

	again, err := New(a.host, "127.0.0.1", "v-test", agenttest.Quiet())
	require.NoError(t, err)
	agenttest.Loop(t, func(ctx context.Context) error { return again.serve(ctx, agenttest.Quiet()) })
	require.NoError(t, os.WriteFile(a.inBench("go"), nil, 0o600))
	out, err := again.try(g.Caller(t, agenttest.ControlPlane(t, g.ExecCA)), g.TokenFor(t, body), body)
	require.NoError(t, err)
	require.Equal(t, "done\n", out.result.StdoutTruncated)
	require.Equal(t, 1, agenttest.Lines(t, a.inBench("ran")), "a request to the next agent joins it")
}

// TestAKilledExecutorLeavesNothingRunning kills the real program, which can do
// nothing about it.
func TestAKilledExecutorLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	port := need.Port(t)
	root := g.Plant(t, port)
	require.Equal(t, 0, agenttest.Start(t, "bootstrap", "--root", root, "--addr", "127.0.0.1").Status(t))
	agenttest.PutBench(t, root, `echo ran >> ran; [ -e child ] && exit 0; sleep 300 & echo $! > child; wait`)
	h, err := host.OpenHost(root)
	require.NoError(t, err)
	a := &Agent{host: h}
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	body := strings.Replace(agenttest.Body, `"args":["version"]`, `"args":["list-sites"],"auditId":"x"`, 1)

	p := agenttest.Start(t, "exec", "--root", root)
	agenttest.Start(t, "run", "--root", root, "--addr", "127.0.0.1")
	agenttest.Eventually(t, "it listens", func() bool { return strings.Contains(p.Log.String(), "running commands") })
	failed := make(chan string, 1)
	go func() { _, code := a.call(t, c, g.TokenFor(t, body), body); failed <- code }()
	child := agenttest.PIDIn(t, a.inBench("child"))
	require.NoError(t, syscall.Kill(p.Process.Pid, syscall.SIGKILL))
	require.Equal(t, "exec_unavailable", <-failed)
	agenttest.Gone(t, child)

	_ = p.Wait()
	p = agenttest.Start(t, "exec", "--root", root)
	agenttest.Eventually(t, "it listens", func() bool { return strings.Contains(p.Log.String(), "running commands") })
	out, err := a.try(c, g.TokenFor(t, body), body)
	require.NoError(t, err)
	require.Equal(t, http.StatusConflict, out.StatusCode)
	require.Equal(t, wire.CodeOutcomeUnknown, out.problem.Code)
	require.Equal(t, 1, agenttest.Lines(t, a.inBench("ran")), "nothing runs twice")
}

func TestOutputIsTheEndOfIt(t *testing.T) {
	t.Parallel()
	_, call := withBench(t, `i=0; while [ $i -lt 3000 ]; do echo "line $i ü"; i=$((i+1)); done; printf 'a\377b' >&2`)
	out := call(wire.ExecRequest{}).result
	require.LessOrEqual(t, len(out.StdoutTruncated), agentexec.MaxOutput)
	require.Greater(t, len(out.StdoutTruncated), agentexec.MaxOutput-4)
	require.True(t, strings.HasSuffix(out.StdoutTruncated, "line 2999 ü\n"))
	require.Equal(t, "a\uFFFDb", out.StderrTruncated)
}
