package online

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// TestTheServiceManagerOpensTheSocket passes the socket as systemd does. Commands
// inherit nothing of it.
func TestTheServiceManagerOpensTheSocket(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	root := g.Plant(t, 1)
	agenttest.PutBench(t, root, `ls -l /proc/$$/fd; env`)
	h, err := host.OpenHost(root)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(h.Path(wire.ExecSocket)), 0o755))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.Path(wire.ExecSocket), Net: "unix"})
	require.NoError(t, err)
	f, err := l.File()
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())

	// The variables name the process, which only it knows.
	script := filepath.Join(t.TempDir(), "start")
	require.NoError(t, os.WriteFile(script, []byte("export LISTEN_PID=$$ LISTEN_FDS=1\nexec \"$@\"\n"), 0o600))
	name, err := agenttest.Binary()
	require.NoError(t, err)
	p := &agenttest.Process{Cmd: exec.CommandContext(t.Context(), "/bin/sh", script, name, "exec", "--root", root)}
	p.Stdout, p.Stderr, p.ExtraFiles = &p.Log, &p.Log, []*os.File{f}
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	require.NoError(t, f.Close())

	resp, err := executorClient(h).Post("http://exec"+wire.PathExecStream, "application/json", strings.NewReader(`{"serverId":"app-1","kind":"bench","args":["list-sites"]}`))
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	var s streamed
	s.read(t, resp.Body)
	require.Zero(t, s.result.ExitCode, s.result.StderrTruncated)
	require.NotContains(t, s.result.StdoutTruncated, "socket:")
	require.NotContains(t, s.result.StdoutTruncated, "LISTEN_")
	require.Contains(t, s.result.StdoutTruncated, "pipe:")

	require.Equal(t, 1, agenttest.Start(t, "exec", "--root", root, "--caller", "no-such-user").Status(t))
}
