package api_test

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego/api"
	"github.com/prego/prego/console"
	"github.com/prego/prego/server"
)

// consoleBundle is a bundle with the console on top of its API.
type consoleBundle struct {
	*bundle
	deps console.Deps
	srv  *httptest.Server
}

func setupConsole(t *testing.T, change func(*consoleBundle)) *consoleBundle {
	t.Helper()
	b := &consoleBundle{bundle: setup(t, func(d *api.Deps) { d.RatePerSecond, d.RateBurst = 1000, 1000 })}
	b.deps = console.Deps{API: b.api.Handler(), Allow: b.api.Allow, Auth: auth{}, Sessions: b.store, Feed: b.api.Subscribe, Now: time.Now, Log: zap.NewNop()}
	if change != nil {
		change(b)
	}
	b.srv = httptest.NewServer(console.New(b.deps).Handler())
	t.Cleanup(b.srv.Close)
	return b
}

// page is what the console answered.
type page struct {
	status int
	header http.Header
	body   string
}

// browser keeps cookies and follows no redirects.
type browser struct {
	b      *consoleBundle
	client *http.Client
	csrf   string
}

func (b *consoleBundle) browser() *browser {
	jar, err := cookiejar.New(nil)
	require.NoError(b.t, err)
	return &browser{b: b, client: &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

var csrfInput = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

// login is a browser that has logged in.
func (b *consoleBundle) login(token string) *browser {
	b.t.Helper()
	v := b.browser()
	p := v.post("/console/login", url.Values{"token": {token}})
	require.Equal(b.t, http.StatusSeeOther, p.status, p.body)
	m := csrfInput.FindStringSubmatch(v.get("/console/servers").body)
	require.NotNil(b.t, m)
	v.csrf = m[1]
	return v
}

func (v *browser) send(method, path string, body io.Reader, header ...string) page {
	v.b.t.Helper()
	r, err := http.NewRequestWithContext(v.b.t.Context(), method, v.b.srv.URL+path, body)
	require.NoError(v.b.t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := v.client.Do(r)
	require.NoError(v.b.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(v.b.t, err)
	return page{resp.StatusCode, resp.Header, string(text)}
}

func (v *browser) get(path string, header ...string) page {
	v.b.t.Helper()
	return v.send(http.MethodGet, path, http.NoBody, header...)
}

func (v *browser) post(path string, form url.Values, header ...string) page {
	v.b.t.Helper()
	if v.csrf != "" && !form.Has("csrf") {
		form.Set("csrf", v.csrf)
	}
	return v.send(http.MethodPost, path, strings.NewReader(form.Encode()), append([]string{"Content-Type", "application/x-www-form-urlencoded"}, header...)...)
}

// TestConsoleRunsACommand: a command says many things before it ends, and the page shows the end. Its
// row has it, too.
func TestConsoleRunsACommand(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	b.reachable("app-1")
	three := 3
	b.hosts.run = func(_ context.Context, _ server.Command, onLine func(stream, line string)) (server.CommandOutcome, error) {
		onLine("stdout", "first")
		onLine("stdout", "second")
		return server.CommandOutcome{ExitCode: &three, Duration: time.Millisecond, Stdout: "all of it"}, nil
	}
	p := b.login("operator").post("/console/do/execOnServer", url.Values{"server_id": {"app-1"}, "f.kind": {"bench"}, "f.args": {"list-sites"}})
	require.Equal(t, http.StatusOK, p.status, p.body)
	require.Contains(t, p.body, "all of it")
	require.Contains(t, p.body, "ended with the exit code 3")
	require.NotContains(t, p.body, `class="verdict good"`)
	var ended int
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM agent_command_audit WHERE exit_code = 3 AND finished_at IS NOT NULL`).Scan(&ended))
	require.Equal(t, 1, ended)
}
