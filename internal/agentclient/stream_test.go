package agentclient_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// collect returns a function for lines, and what it was given.
func collect() (func(stream, line string), *[]string) {
	var got []string
	return func(stream, line string) { got = append(got, stream+": "+line) }, &got
}

func TestStreamOnARealAgent(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	port, root := p.host(t, "app-1", `echo ran >> ran; echo one; while [ ! -e go ]; do sleep 0.05; done; echo oops >&2; exit 3`)
	c := p.client(t, port)
	in := wire.ExecRequest{WorkflowID: "w", Kind: wire.KindBench, Args: []string{"list-sites"}, AuditID: "x"}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Stream(ctx, "app-1", "127.0.0.1", in, func(stream, line string) {
		require.Equal(t, "stdout: one", stream+": "+line)
		cancel()
	})
	require.ErrorIs(t, err, context.Canceled)
	onLine, got := collect()
	r, err := c.Stream(t.Context(), "app-1", "127.0.0.1", in, func(stream, line string) {
		onLine(stream, line)
		require.NoError(t, os.WriteFile(filepath.Join(root, wire.BenchDir, "go"), nil, 0o600))
	})
	require.NoError(t, err, "an exit code is no failure of the call")
	require.Equal(t, []any{3, "oops\n", "x"}, []any{r.ExitCode, r.StderrTruncated, r.AuditID})
	require.Equal(t, []string{"stdout: one", "stderr: oops"}, *got)
	again, err := c.Exec(t.Context(), "app-1", "127.0.0.1", in)
	require.NoError(t, err)
	require.Equal(t, r, again)
	ran, err := os.ReadFile(filepath.Join(root, wire.BenchDir, "ran"))
	require.NoError(t, err)
	require.Equal(t, "ran\n", string(ran))

	for kind, code := range map[wire.CommandKind]string{wire.KindMariaDB: "service_unavailable", wire.KindRedisCLI: "service_unavailable"} {
		args := map[wire.CommandKind][]string{wire.KindMariaDB: {"databases"}, wire.KindRedisCLI: {"ping"}}[kind]
		_, err := c.Exec(t.Context(), "app-1", "127.0.0.1", wire.ExecRequest{Kind: kind, Args: args})
		var ce *server.CommandError
		require.ErrorAs(t, err, &ce)
		require.Equal(t, []any{string(kind), false, code}, []any{ce.Kind, ce.Permanent, ce.Code})
		_, err = c.Stream(t.Context(), "app-1", "127.0.0.1", wire.ExecRequest{Kind: kind, Args: args}, onLine)
		require.ErrorAs(t, err, &ce)
		require.Equal(t, []any{string(kind), false, code}, []any{ce.Kind, ce.Permanent, ce.Code}, "as an event")
	}
	_, err = c.Stream(t.Context(), "app-1", "127.0.0.1", wire.ExecRequest{Kind: wire.KindBench, Args: []string{"console"}}, onLine)
	ce := failure(t, err)
	require.Equal(t, []any{true, "command_not_allowed"}, []any{ce.Permanent, ce.Code})
}

func TestStreamsThatAreNone(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	for name, tc := range map[string]struct {
		answer    string
		permanent bool
		code      string
	}{
		"nothing":            {"", false, server.CommandUnreachable},
		"cut off":            {"event: progress\ndata: {\"stream\":\"stdout\",\"line\":\"x\",\"missed\":2}\n\nevent: res", false, server.CommandUnreachable},
		"no last event":      {"event: progress\ndata: {\"stream\":\"stdout\",\"line\":\"x\",\"missed\":2}\n\n", false, server.CommandUnreachable},
		"not JSON":           {"event: result\ndata: <html>\n\n", false, server.CommandUnreachable},
		"an error for now":   {"event: error\ndata: {\"status\":503,\"code\":\"agent_stopping\",\"detail\":\"x\"}\n\n", false, "agent_stopping"},
		"a permanent error":  {"event: error\ndata: {\"status\":403,\"code\":\"site_not_owned\",\"field\":\"args\"}\n\n", true, "site_not_owned"},
		"an error like none": {"event: error\ndata: 7\n\n", false, server.CommandUnreachable},
		"unknown events":     {"event: news\ndata: 7\n\n", false, server.CommandUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port, _ := p.fake(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, tc.answer) })
			onLine, got := collect()
			_, err := p.client(t, port).Stream(t.Context(), "app-1", "127.0.0.1", wire.ExecRequest{Kind: wire.KindBench, Args: []string{"list-sites"}}, onLine)
			ce := failure(t, err)
			require.Equal(t, []any{tc.permanent, tc.code}, []any{ce.Permanent, ce.Code})
			if len(*got) > 0 {
				require.Equal(t, []string{"stdout: [2 lines left out]", "stdout: x"}, *got)
			}
		})
	}
}

func TestATokenIsBoundToItsRequest(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	seen := make(chan string, 2)
	port, _ := p.fake(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sum := sha256.Sum256(body)
		var claims jwt.MapClaims
		if _, _, err := jwt.NewParser().ParseUnverified(r.Header.Get("Authorization")[len("Bearer "):], &claims); err != nil {
			t.Error(err)
		}
		seen <- fmt.Sprintf("%v %v %v", claims["body"] == hex.EncodeToString(sum[:]), claims["scope"], claims["aud"])
		fmt.Fprint(w, `{"exitCode":0}`)
	})
	c := p.client(t, port)
	_, err := p.bench(t.Context(), c, "app-1", "127.0.0.1", "w", "", time.Minute, "list-sites")
	require.NoError(t, err)
	require.Equal(t, "true exec.bench [app-1]", <-seen)
	_, err = c.Exec(t.Context(), "app-1", "127.0.0.1", wire.ExecRequest{Kind: wire.KindRedisCLI, Args: []string{"ping"}})
	require.NoError(t, err)
	require.Equal(t, "true exec.redis-cli [app-1]", <-seen)
}
