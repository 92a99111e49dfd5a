package online

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	agentexec "github.com/prego/prego/agent/exec"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
	"github.com/prego/prego/lab/need"
)

// streamed is the output of a stream.
type streamed struct {
	lines  []wire.ExecProgress
	result *wire.ExecResult
	failed *wire.Problem
}

// openStream asks for a stream; its status must be 200.
func openStream(t testing.TB, g *agenttest.Gateway, a *Agent, c *http.Client, in wire.ExecRequest) *http.Response {
	t.Helper()
	in.ServerID = agenttest.Server
	b, err := json.Marshal(in)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url(wire.PathExecStream), bytes.NewReader(b))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+g.TokenFor(t, string(b)))
	resp, err := c.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	return resp
}

// read reads a stream to its end, which comes after one result or error.
func (s *streamed) read(t testing.TB, body io.Reader) {
	t.Helper()
	events := wire.NewEventReader(body)
	for {
		name, data, err := events.Next()
		if errors.Is(err, io.EOF) {
			require.NotEqual(t, s.result == nil, s.failed == nil, "it ends with either")
			return
		}
		require.NoError(t, err)
		require.True(t, s.result == nil && s.failed == nil, "nothing comes after the last")
		switch name {
		case wire.EventProgress:
			var l wire.ExecProgress
			require.NoError(t, json.Unmarshal(data, &l))
			s.lines = append(s.lines, l)
		case wire.EventResult:
			require.NoError(t, json.Unmarshal(data, &s.result))
		case wire.EventError:
			require.NoError(t, json.Unmarshal(data, &s.failed))
		default:
			require.Fail(t, name)
		}
	}
}

func streaming(t *testing.T, script string) (*agenttest.Gateway, *Agent, *http.Client) {
	t.Helper()
	g, a := serving(t)
	agenttest.PutBench(t, a.host.Root, script)
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	c.Timeout = time.Minute
	status, _ := a.call(t, c, g.Token(t, nil), agenttest.Body) // it listens
	require.Equal(t, http.StatusUnprocessableEntity, status)
	return g, a, c
}

func TestAStreamShowsLinesAsTheyCome(t *testing.T) {
	t.Parallel()
	g, a, c := streaming(t, `echo one; printf 'a\r\nb\r50%%\r'; while [ ! -e go ]; do sleep 0.05; done; echo oops >&2; printf 'no end \377'; exit 3`)
	resp := openStream(t, g, a, c, wire.ExecRequest{Kind: wire.KindBench, Args: []string{"list-sites"}, AuditID: "x"})
	events := wire.NewEventReader(resp.Body)
	for _, want := range []string{"one", "a", "b", "50%"} {
		name, data, err := events.Next()
		require.NoError(t, err)
		require.Equal(t, wire.EventProgress, name)
		require.JSONEq(t, fmt.Sprintf(`{"stream":"stdout","line":%q}`, want), string(data), "while it runs")
	}
	require.NoError(t, os.WriteFile(a.inBench("go"), nil, 0o600))
	var rest []string
	for {
		name, data, err := events.Next()
		require.NoError(t, err)
		if name == wire.EventResult {
			var r wire.ExecResult
			require.NoError(t, json.Unmarshal(data, &r))
			require.Equal(t, []any{3, "x", "oops\n"}, []any{r.ExitCode, r.AuditID, r.StderrTruncated})
			break
		}
		rest = append(rest, string(data))
	}
	require.ElementsMatch(t, []string{`{"stream":"stderr","line":"oops"}`, `{"stream":"stdout","line":"no end ` + "\uFFFD" + `"}`}, rest)
	_, _, err := events.Next()
	require.ErrorIs(t, err, io.EOF, "nothing comes after the result")

	var again streamed
	again.read(t, openStream(t, g, a, c, wire.ExecRequest{Kind: wire.KindBench, Args: []string{"list-sites"}, AuditID: "x"}).Body)
	require.Equal(t, 3, again.result.ExitCode)
	require.Empty(t, again.lines, "the result has the end of them")
}

func TestTheCommandGoesOnWithoutItsReader(t *testing.T) {
	t.Parallel()
	g, a, c := streaming(t, `echo ran >> ran; echo one; while [ ! -e go ]; do sleep 0.05; done; echo two`)
	in := wire.ExecRequest{Kind: wire.KindBench, Args: []string{"list-sites"}, AuditID: "x"}
	resp := openStream(t, g, a, c, in)
	_, _, err := wire.NewEventReader(resp.Body).Next()
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	joined := openStream(t, g, a, c, in)
	require.NoError(t, os.WriteFile(a.inBench("go"), nil, 0o600))
	var s streamed
	s.read(t, joined.Body)
	require.Equal(t, []wire.ExecProgress{{Stream: "stdout", Line: "one"}, {Stream: "stdout", Line: "two"}}, s.lines)
	require.Equal(t, "one\ntwo\n", s.result.StdoutTruncated)
	require.Equal(t, 1, agenttest.Lines(t, a.inBench("ran")))
}

// TestASlowReaderHoldsUpNothing opens a stream and reads none of it.
func TestASlowReaderHoldsUpNothing(t *testing.T) {
	t.Parallel()
	g, a, c := streaming(t, `head -c 10485760 /dev/zero | tr '\0' 'x' | fold -w 1000; echo; echo done; echo ended > ended`)
	in := wire.ExecRequest{Kind: wire.KindBench, Args: []string{"list-sites"}, AuditID: "x"}
	slow := openStream(t, g, a, c, in)
	agenttest.Eventually(t, "the command ends", func() bool { return agenttest.Lines(t, a.inBench("ended")) == 1 })
	var s streamed
	s.read(t, slow.Body)
	require.Equal(t, 0, s.result.ExitCode)
	require.LessOrEqual(t, len(s.result.StdoutTruncated), agentexec.MaxOutput)
	require.Equal(t, "done", s.lines[len(s.lines)-1].Line)
	n := 0
	for _, l := range s.lines {
		n += 1 + l.Missed
	}
	require.Equal(t, 10486+1, n, "each line came or is counted")
}

func TestAStreamSaysWhyThereIsNoResult(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	_, stop := executing(t, a.host)
	agenttest.Loop(t, func(ctx context.Context) error { return a.serve(ctx, agenttest.Quiet()) })
	agenttest.PutBench(t, a.host.Root, `echo one; sleep 300`)
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	_, _ = a.call(t, c, g.Token(t, nil), agenttest.Body)
	resp := openStream(t, g, a, c, wire.ExecRequest{Kind: wire.KindBench, Args: []string{"list-sites"}})
	body := bufio.NewReader(resp.Body)
	_, err := body.Peek(10)
	require.NoError(t, err)
	stop()
	var s streamed
	s.read(t, body)
	require.Equal(t, wire.CodeOutcomeUnknown, s.failed.Code)

	// A process that dies without a word.
	root := a.host.Root
	p := agenttest.Start(t, "exec", "--root", root)
	agenttest.Eventually(t, "it listens", func() bool { return strings.Contains(p.Log.String(), "running commands") })
	resp = openStream(t, g, a, c, wire.ExecRequest{Kind: wire.KindBench, Args: []string{"list-sites"}})
	body = bufio.NewReader(resp.Body)
	_, err = body.Peek(10)
	require.NoError(t, err)
	require.NoError(t, p.Process.Kill())
	s = streamed{}
	s.read(t, body)
	require.Equal(t, "exec_unavailable", s.failed.Code)
}

// TestTwoHundredStreamsAreSmall follows one command two hundred times.
func TestTwoHundredStreamsAreSmall(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	root := g.Plant(t, need.Port(t))
	require.Equal(t, 0, agenttest.Start(t, "bootstrap", "--root", root, "--addr", "127.0.0.1").Status(t))
	agenttest.PutBench(t, root, `i=0; while [ $i -lt 2000 ]; do echo "line $i of some length, as there are"; i=$((i+1)); done; while [ ! -e go ]; do sleep 0.1; done`)
	h, err := host.OpenHost(root)
	require.NoError(t, err)
	a := &Agent{host: h}
	front := agenttest.Start(t, "run", "--root", root, "--addr", "127.0.0.1")
	back := agenttest.Start(t, "exec", "--root", root)
	c := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	c.Timeout = time.Minute
	_, _ = a.call(t, c, g.Token(t, nil), agenttest.Body)
	agenttest.Eventually(t, "it listens", func() bool { return strings.Contains(back.Log.String(), "running commands") })
	var all []*http.Response
	for range 200 {
		resp := openStream(t, g, a, c, wire.ExecRequest{Kind: wire.KindBench, Args: []string{"list-sites"}, AuditID: "x"})
		_, err := resp.Body.Read(make([]byte, 10))
		require.NoError(t, err)
		all = append(all, resp)
	}
	frontKiB, backKiB := agenttest.ResidentKiB(t, front.Process.Pid), agenttest.ResidentKiB(t, back.Process.Pid)
	t.Logf("with 200 streams: %.1f MiB in front, %.1f MiB behind", float64(frontKiB)/1024, float64(backKiB)/1024)
	require.Less(t, frontKiB, 128<<10, "the unit's limit")
	require.NoError(t, os.WriteFile(filepath.Join(root, wire.BenchDir, "go"), nil, 0o600))
	for _, resp := range all {
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Contains(t, string(b), "event: result\n")
	}
}
