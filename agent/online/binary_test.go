package online

import (
	"debug/elf"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
	"github.com/prego/prego/lab/need"
)

func TestTheBinaryIsStaticAndSmall(t *testing.T) {
	t.Parallel()
	name, err := agenttest.Binary()
	require.NoError(t, err)
	st, err := os.Stat(name)
	require.NoError(t, err)
	t.Logf("binary: %.1f MiB", float64(st.Size())/(1<<20))
	require.Less(t, st.Size(), int64(20<<20))
	f, err := elf.Open(name)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	libs, err := f.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libs)
	for _, p := range f.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type, "it needs no loader")
	}
}

func TestTheBinarySharesOnlyTheMessages(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "github.com/prego/prego/cmd/prego-agent").Output()
	require.NoError(t, err)
	var ours []string
	for p := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(p, "github.com/prego/prego") {
			ours = append(ours, p)
		}
	}
	for _, p := range ours {
		require.Regexp(t, "^github.com/prego/prego/(agent/[a-z]+|cmd/prego-agent)$", p)
	}
}

func TestTheBinaryRunsSmallAndEndsOnSIGTERM(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	g.Seconds = 1
	root := g.Plant(t, need.Port(t))
	require.Equal(t, 0, agenttest.Start(t, "bootstrap", "--root", root, "--addr", "127.0.0.1").Status(t))
	require.NoFileExists(t, filepath.Join(root, wire.BootstrapTokenPath))
	p := agenttest.Start(t, "run", "--root", root, "--addr", "127.0.0.1")
	agenttest.Eventually(t, "heartbeats", func() bool { return len(g.Seen().Beats) >= 3 })
	require.Equal(t, "v-built", g.Seen().Beats[0].AgentVersion)

	rss := agenttest.ResidentKiB(t, p.Process.Pid)
	t.Logf("resident: %.1f MiB", float64(rss)/1024)
	require.Less(t, rss, 30<<10)

	began := time.Now()
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, p.Status(t), p.Log.String())
	require.Less(t, time.Since(began), 5*time.Second)
	require.NotContains(t, p.Log.String(), "raw-bootstrap-token")
	require.NotContains(t, p.Log.String(), "jwt-")
}

// TestTheBinaryIsKilledBetweenAnswerAndIdentity lets the gateway answer a process
// that is no more.
func TestTheBinaryIsKilledBetweenAnswerAndIdentity(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	root := g.Plant(t, need.Port(t))
	arrived, killed := make(chan struct{}), make(chan struct{})
	g.Fault(wire.PathHandshake, func(n int, _ http.ResponseWriter, _ *http.Request, serve func(http.ResponseWriter)) bool {
		if n > 1 {
			return false
		}
		serve(httptest.NewRecorder())
		close(arrived)
		<-killed
		return true
	})
	p := agenttest.Start(t, "bootstrap", "--root", root)
	<-arrived
	require.NoError(t, p.Process.Kill())
	_ = p.Wait()
	close(killed)
	require.FileExists(t, filepath.Join(root, wire.BootstrapTokenPath))

	require.Equal(t, 0, agenttest.Start(t, "bootstrap", "--root", root).Status(t))
	require.Len(t, g.Seen().Keys, 2)
	require.Equal(t, g.Seen().Keys[0], g.Seen().Keys[1])
}

func TestExitStatuses(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	g.Fault(wire.PathHandshake, func(_ int, w http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
		agenttest.Refuse(w, http.StatusGone, "bootstrap_token_expired")
		return true
	})
	refused := g.Plant(t, need.Port(t))
	for name, tc := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"version":           {[]string{"version"}, 0, "v-built"},
		"help":              {[]string{"run", "-h"}, 0, "-root"},
		"nothing":           {nil, 2, "usage"},
		"unknown verb":      {[]string{"shell"}, 2, "usage"},
		"unknown flag":      {[]string{"run", "--shell"}, 2, "shell"},
		"an argument":       {[]string{"run", "fast"}, 2, "fast"},
		"not an address":    {[]string{"run", "--addr", "localhost"}, 2, "localhost"},
		"no configuration":  {[]string{"run", "--root", t.TempDir()}, 1, "host configuration"},
		"no identity":       {[]string{"run", "--root", g.Plant(t, 1)}, 4, "bootstrap"},
		"refused for ever":  {[]string{"bootstrap", "--root", refused}, 3, "bootstrap_token_expired"},
		"stopped meanwhile": {[]string{"bootstrap", "--root", waiting(t)}, 0, "trying again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := agenttest.Start(t, tc.args...)
			if name == "stopped meanwhile" {
				agenttest.Eventually(t, "it tries", func() bool { return strings.Contains(p.Log.String(), tc.says) })
				require.NoError(t, p.Process.Signal(syscall.SIGTERM))
			}
			require.Equal(t, tc.status, p.Status(t), p.Log.String())
			require.Contains(t, p.Log.String(), tc.says)
		})
	}
}

// waiting is a host whose gateway is down.
func waiting(t *testing.T) string {
	t.Helper()
	g := agenttest.NewGateway(t)
	root := g.Plant(t, 1)
	g.HTTP.Close()
	return root
}
