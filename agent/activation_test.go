package agent

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// TestTheServiceManagerOpensTheSocket passes the socket as systemd does. Commands
// inherit nothing of it.
func TestTheServiceManagerOpensTheSocket(t *testing.T) {
	t.Parallel()
	g := newTestGateway(t)
	root := g.plant(t, 1)
	putBench(t, root, `ls -l /proc/$$/fd; env`)
	h, err := OpenHost(root)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(h.path(wire.ExecSocket)), 0o755))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.path(wire.ExecSocket), Net: "unix"})
	require.NoError(t, err)
	f, err := l.File()
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())

	// The variables name the process, which only it knows.
	script := filepath.Join(t.TempDir(), "start")
	require.NoError(t, os.WriteFile(script, []byte("export LISTEN_PID=$$ LISTEN_FDS=1\nexec \"$@\"\n"), 0o600))
	name, err := binary()
	require.NoError(t, err)
	p := &process{Cmd: exec.CommandContext(t.Context(), "/bin/sh", script, name, "exec", "--root", root)}
	p.Stdout, p.Stderr, p.ExtraFiles = &p.log, &p.log, []*os.File{f}
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

	require.Equal(t, 1, start(t, "exec", "--root", root, "--caller", "no-such-user").status(t))
}
