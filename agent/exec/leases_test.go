package exec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// TestAHostUndoesACommandWhoseLeaseEnds: by itself, also after it was restarted, and until that succeeds; the effect of
// a command that was kept or undone before stays.
func TestAHostUndoesACommandWhoseLeaseEnds(t *testing.T) {
	t.Parallel()
	h := &host.Host{Root: t.TempDir(), Config: wire.HostConfig{ServerID: agenttest.Server}}
	agenttest.PutBench(t, h.Root, `echo "$@" >>ran; [ ! -e broken ]`)
	inBench := func(name string) string { return filepath.Join(h.Root, wire.BenchDir, name) }
	open := func() *commands {
		c, err := newCommands(&workplace{Host: h})
		require.NoError(t, err)
		t.Cleanup(c.stop)
		return c
	}
	do := func(c *commands, lease *wire.Lease, verb string) (int, *policy.Problem) {
		t.Helper()
		k, refused := c.submit(wire.ExecRequest{
			Kind: wire.KindBench, Args: []string{"--site", "a.example", verb}, Lease: lease,
		}, agenttest.Quiet())
		if refused != nil {
			return 0, refused
		}
		<-k.ended
		return k.result.ExitCode, k.failed
	}
	undo := []string{"--site", "a.example", "free-site"}
	took := func(seconds int) *wire.Lease { return &wire.Lease{Seconds: seconds, Undo: undo} }
	ran := func() []string {
		b, err := os.ReadFile(inBench("ran"))
		require.NoError(t, err)
		require.NoError(t, os.Remove(inBench("ran")))
		return strings.Split(strings.TrimSpace(strings.ReplaceAll(string(b), "--site a.example ", "")), "\n")
	}
	good := func(c *commands, lease *wire.Lease, verb string) {
		t.Helper()
		code, refused := do(c, lease, verb)
		require.Nil(t, refused)
		require.Zero(t, code)
	}
	ended := func(c *commands) {
		t.Helper()
		_, refused := do(c, took(0), "hold-site")
		require.NotNil(t, refused)
		require.Equal(t, wire.CodeLeaseEnded, refused.Code)
	}
	later := func(d time.Duration) time.Time { return time.Now().Add(d) }

	c := open()
	ended(c) // there is none to keep
	good(c, took(60), "hold-site")
	require.Empty(t, c.leases.due(later(59*time.Second), agenttest.Quiet()))
	good(c, took(600), "hold-site") // is repeated, and does not last longer
	require.Equal(t, []string{"hold-site", "hold-site"}, ran())

	// Kept: the host leaves it.
	good(c, took(0), "hold-site")
	require.Empty(t, c.leases.due(later(time.Hour), agenttest.Quiet()))
	// Undone by the control plane.
	good(c, took(60), "hold-site")
	good(c, nil, "free-site")
	require.Empty(t, c.leases.due(later(time.Hour), agenttest.Quiet()))
	ended(c)
	require.Equal(t, []string{"hold-site", "free-site"}, ran())

	// Its time ends while the process is away, and the undoing fails at first.
	good(c, took(1), "hold-site")
	c.stop()
	require.NoError(t, os.WriteFile(inBench("broken"), nil, 0o600))
	next := open()
	go next.endLeases(agenttest.Quiet())
	agenttest.Eventually(t, "the first try", func() bool { return agenttest.Lines(t, inBench("ran")) == 2 })
	ended(next)
	require.NoError(t, os.Remove(inBench("broken")))
	agenttest.Eventually(t, "the second try", func() bool {
		next.leases.mu.Lock()
		defer next.leases.mu.Unlock()
		return len(next.leases.held) == 0
	})
	require.Equal(t, []string{"hold-site", "free-site", "free-site"}, ran())
	left, err := os.ReadDir(h.Path(wire.ExecLeasesDir))
	require.NoError(t, err)
	require.Empty(t, left)
	good(next, took(60), "hold-site") // another one

	for what, l := range map[string]*wire.Lease{
		"too long": took(86401), "negative": took(-1), "an undoing with a secret": {Seconds: 1, Undo: []string{
			"--site", "a.example", "connect-cache", "10.0.0.1", "1",
		}}, "one that erases": {Seconds: 1, Undo: []string{"erase-site", "a.example", "--db-name", "tenant_a_db"}},
		"no command": {Seconds: 1, Undo: []string{"sh"}},
	} {
		_, refused := do(next, l, "hold-site")
		require.NotNil(t, refused, what)
		require.Equal(t, "invalid_field", refused.Code, what)
		require.Equal(t, "lease", refused.Field, what)
	}
}
