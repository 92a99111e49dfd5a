package exec

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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

// TestOnlyTheAgentsUserIsLetIn connects as one user to a process that expects
// another; the kernel says who it is, whatever the socket's mode.
func TestOnlyTheAgentsUserIsLetIn(t *testing.T) {
	t.Parallel()
	h := &host.Host{Root: t.TempDir(), Config: wire.HostConfig{ServerID: agenttest.Server}}
	e, err := New(h, "nobody", nil, agenttest.Quiet())
	require.NoError(t, err)
	require.NotEqual(t, uint32(os.Getuid()), e.uid)
	l, err := h.Listen(wire.ExecSocket)
	require.NoError(t, err)
	st, err := os.Stat(h.Path(wire.ExecSocket))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	agenttest.Loop(t, func(ctx context.Context) error { return e.Run(ctx, l) })
	// The connection is closed and nothing is answered. A client of net/http gives
	// that several names, as it learns of it before, while or after it writes.
	stranger, err := host.DialSocket(t.Context(), h.Path(wire.ExecSocket))
	require.NoError(t, err)
	defer func() { _ = stranger.Close() }()
	require.NoError(t, stranger.SetDeadline(time.Now().Add(time.Minute)))
	_, _ = fmt.Fprintf(stranger, "POST %s HTTP/1.1\r\nHost: exec\r\nContent-Length: %d\r\n\r\n%s", wire.PathExec, len(agenttest.Body), agenttest.Body)
	answer, err := io.ReadAll(stranger)
	require.Empty(t, answer)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)

	_, err = New(h, "no-such-user", nil, agenttest.Quiet())
	require.ErrorContains(t, err, "unknown user no-such-user")
}

func TestABusyHostRefuses(t *testing.T) {
	t.Parallel()
	h := &host.Host{Root: t.TempDir(), Config: wire.HostConfig{ServerID: agenttest.Server}}
	agenttest.PutBench(t, h.Root, `echo ran >> ran; while [ ! -e go ]; do sleep 0.05; done`)
	e, err := New(h, "", nil, agenttest.Quiet())
	require.NoError(t, err)
	t.Cleanup(e.cmds.stop)
	inBench := func(name string) string { return filepath.Join(h.Root, wire.BenchDir, name) }
	ask := func(auditID string) *httptest.ResponseRecorder {
		body := fmt.Sprintf(`{"serverId":%q,"kind":"bench","args":["list-sites"],"auditId":%q}`, agenttest.Server, auditID)
		w := httptest.NewRecorder()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		e.handle(w, httptest.NewRequestWithContext(ctx, http.MethodPost, wire.PathExec, strings.NewReader(body)))
		return w
	}
	var calls []*call
	for i := range policy.MaxRunning + policy.MaxQueued {
		k, refused := e.cmds.submit(wire.ExecRequest{Kind: wire.KindBench, Args: []string{"list-sites"}, AuditID: fmt.Sprint(i)}, agenttest.Quiet())
		require.Nil(t, refused)
		calls = append(calls, k)
	}
	agenttest.Eventually(t, "the first run", func() bool { return agenttest.Lines(t, inBench("ran")) == policy.MaxRunning })
	out := ask("one too many")
	require.Equal(t, http.StatusTooManyRequests, out.Code)
	require.Contains(t, out.Body.String(), `"code":"busy"`)
	require.Equal(t, "5", out.Header().Get("Retry-After"))
	time.Sleep(100 * time.Millisecond)
	require.Equal(t, policy.MaxRunning, agenttest.Lines(t, inBench("ran")), "the others wait")
	joined := make(chan int, 1)
	go func() { joined <- ask("0").Code }()
	require.NoError(t, os.WriteFile(inBench("go"), nil, 0o600))
	require.Equal(t, http.StatusOK, <-joined, "who joins takes no place")
	for _, k := range calls {
		<-k.ended
		require.Nil(t, k.failed)
	}
	require.Equal(t, policy.MaxRunning+policy.MaxQueued, agenttest.Lines(t, inBench("ran")))
}
