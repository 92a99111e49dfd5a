package agentclient

import (
	"context"
	"crypto/sha256"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// answers is a host that answers everything with the same bytes.
type answers struct {
	status int
	kind   string
	body   string
}

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: a.status, Status: http.StatusText(a.status), Header: http.Header{"Content-Type": {a.kind}},
		Body: io.NopCloser(strings.NewReader(a.body)), Request: r,
	}, nil
}

type noTokens struct{}

func (noTokens) Issue(prego.ServerID, wire.CommandKind, [sha256.Size]byte, time.Duration) (string, error) {
	return "token", nil
}

// FuzzAnswer: any answer of a host becomes a result or a command error that can be kept in a row: with a code, short,
// and text.
func FuzzAnswer(f *testing.F) {
	const problem, events, object = "application/problem+json", "text/event-stream", "application/json"
	f.Add(200, object, `{"exitCode":0,"stdoutTruncated":"[]","auditId":"a"}`)
	f.Add(200, object, `{"exitCode":1e400}`)
	f.Add(200, events, "event: progress\ndata: {\"stream\":\"stdout\",\"line\":\"x\",\"missed\":3}\n\nevent: result\ndata: {\"exitCode\":3}\n\n")
	f.Add(200, events, "event: error\ndata: {\"status\":503,\"code\":\"busy\",\"detail\":\"\u00e4\"}\n\n")
	f.Add(200, events, "event: progress\ndata: [\n\n")
	f.Add(429, problem, `{"code":"busy","detail":"too many","field":"args"}`)
	f.Add(500, problem, `{"code":"`+strings.Repeat("x\u00e4", 600)+`","detail":"`+strings.Repeat("\u00e4", 1000)+`"}`)
	f.Add(302, "", "")
	f.Add(404, problem+"; charset", `{"code":""}`)
	f.Fuzz(func(t *testing.T, status int, kind, body string) {
		c := New(Config{Tokens: noTokens{}, Port: 1, CheckAddr: func(string) error { return nil }})
		c.peers["app-1"] = &http.Client{Transport: answers{status, kind, body}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		check := func(err error) {
			if err == nil {
				require.Equal(t, http.StatusOK, status)
				return
			}
			var failed *server.CommandError
			require.ErrorAs(t, err, &failed)
			require.NotEmpty(t, failed.Code)
			require.True(t, utf8.ValidString(failed.Code) && len(failed.Code) <= 64, "a code of %d bytes", len(failed.Code))
			require.True(t, utf8.ValidString(failed.Message) && len(failed.Message) <= keptStderr, "a message of %d bytes", len(failed.Message))
			require.NotContains(t, failed.Message, "\x00", "Postgres stores no NUL")
			require.NotErrorIs(t, err, context.Canceled)
		}
		in := wire.ExecRequest{Kind: wire.KindBench, Args: []string{"list-sites"}, AuditID: "a"}
		_, err := c.Exec(t.Context(), "app-1", "10.0.0.1", in)
		check(err)
		lines := 0
		_, err = c.Stream(t.Context(), "app-1", "10.0.0.1", in, func(string, string) { lines++ })
		check(err)
		require.LessOrEqual(t, lines, 2*strings.Count(body, "\n"))
		_, err = c.PeersNow(t.Context(), "app-1", "10.0.0.1", 1)
		check(err)
		_, err = c.Transfer(t.Context(), "app-1", "10.0.0.1", wire.TransferRequest{})
		check(err)
	})
}
