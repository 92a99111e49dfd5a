package api_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/server"
)

func TestReadinessNamesWhatIsNotReady(t *testing.T) {
	t.Parallel()
	b := setup(t, func(d *api.Deps) {
		d.Checks = append(d.Checks,
			api.Check{Name: "temporal", Run: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}, // hangs
			api.Check{Name: "migrations", Run: func(context.Context) error {
				return prego.Errorf(prego.CodeNotReady, "the schema is at 1, this binary needs 2: run prego migrate")
			}},
			api.Check{Name: "disk", Run: func(context.Context) error { return errors.New("dial postgres://u:hunter2@db.internal") }},
		)
	})
	resp, _ := b.do("GET", "/healthz", "", "", "")
	require.Equal(t, 200, resp.StatusCode)
	resp, body := b.do("GET", "/readyz", "", "", "")
	require.Equal(t, 503, resp.StatusCode)
	require.JSONEq(t, `{"ready":false,"checks":{"database":"ok","temporal":"does not answer","disk":"does not answer",
		"migrations":"the schema is at 1, this binary needs 2: run prego migrate"},
		"processes":{"agentgw":"none has run yet","worker":"none has run yet"}}`, string(body))
	for _, e := range b.logs.FilterMessage("not ready").All() {
		require.NotContains(t, e.ContextMap()["error"], "hunter2")
	}
	ready := setup(t, nil)
	resp, body = ready.do("GET", "/readyz", "", "", "")
	require.Equal(t, 200, resp.StatusCode)
	require.JSONEq(t, `{"ready":true,"checks":{"database":"ok"},
		"processes":{"agentgw":"none has run yet","worker":"none has run yet"}}`, string(body))
}

// TestReadinessHasTheOtherProcesses, which do not decide whether the API is ready.
func TestReadinessHasTheOtherProcesses(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, process := range []string{ops.ProcessWorker, ops.ProcessGateway} {
		_, _, err := b.store.BeginLook(t.Context(), process, "cp-1/x", time.Minute, time.Minute)
		require.NoError(t, err)
	}
	processes := func(sql string) map[string]string {
		t.Helper()
		if sql != "" {
			_, err := b.pool.Exec(t.Context(), sql)
			require.NoError(t, err)
		}
		resp, body := b.do("GET", "/readyz", "", "", "")
		require.Equal(t, 200, resp.StatusCode)
		return *as[api.Readiness](t, body).Processes
	}
	require.Equal(t, map[string]string{"agentgw": "ok", "worker": "ok"}, processes(""))
	late := processes(`UPDATE looks SET looked_at = '2026-11-24T09:12:00Z', began_at = '2026-11-24T09:11:59Z' WHERE look = 'worker'`)
	require.Equal(t, map[string]string{"agentgw": "ok", "worker": "none runs since 2026-11-24T09:12:00Z"}, late)
	notReady := processes(`UPDATE looks SET began_at = now(), error = 'dial hunter2'`)
	require.Equal(t, map[string]string{"agentgw": "is not ready", "worker": "is not ready"}, notReady)
}

func TestMetricsAndLogsAreBoundedAndHoldNoSecret(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.untried = true
	b.do("POST", create, "operator", js, valid)
	b.do("GET", "/v1/servers/app-1", "viewer", "", "")
	b.do("GET", "/v1/servers/other-1", "viewer", "", "")
	b.do("GET", "/v1/servers?tag=sesame", "a-wrong-token", "", "")
	b.do("GET", "/v2/made-up-path", "operator", "", "")
	b.do("BREW", "/v1/servers", "operator", "", "")
	text := b.metrics()
	for _, want := range []string{
		`{method="POST",route="/internal/servers/create",status="202"} 1`,
		`{method="GET",route="/v1/servers/:server_id",status="200"} 1`,
		`{method="GET",route="/v1/servers/:server_id",status="404"} 1`,
		`{method="GET",route="/v1/servers",status="401"} 1`,
		`{method="GET",route="none",status="404"} 1`,
		`{method="other",route="/v1/servers",status="405"} 1`,
	} {
		require.Contains(t, text, "prego_api_request_seconds_count"+want)
	}
	for _, e := range b.logs.All() {
		line := e.Message
		for k, v := range e.ContextMap() {
			line += " " + k + "=" + toString(v)
		}
		for _, secret := range []string{"a-wrong-token", "Bearer", "sesame"} {
			require.NotContains(t, line, secret)
		}
	}
	requests := b.logs.FilterMessage("request").All()
	require.Len(t, requests, 7, "with the operation's")
	require.Equal(t, "operator", requests[0].ContextMap()["principal"])
	for _, leak := range []string{"app-1", "other-1", "made-up", "BREW", "sesame"} {
		require.NotContains(t, text, leak)
	}
}

func toString(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return ""
}

// TestTwoProcessesAcceptWhatOneWould of a caller, by any way of its requests.
func TestTwoProcessesAcceptWhatOneWould(t *testing.T) {
	t.Parallel()
	var deps api.Deps
	b := setup(t, func(d *api.Deps) { d.RatePerSecond, d.RateBurst = 0.01, 8; deps = *d })
	deps.Registry = prometheus.NewRegistry()
	both := []http.Handler{b.api.Handler(), api.New(deps).Handler()}
	var statuses []int
	var left []string
	for n := range 12 {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/servers", nil)
		r.Header.Set("Authorization", "Bearer viewer")
		both[n%2].ServeHTTP(w, r)
		statuses, left = append(statuses, w.Code), append(left, w.Header().Get("RateLimit"))
		require.Equal(t, `"token";q=8;w=800, "principal";q=16;w=800`, w.Header().Get("RateLimit-Policy"))
	}
	require.Equal(t, append(slices.Repeat([]int{200}, 8), slices.Repeat([]int{429}, 4)...), statuses)
	require.Contains(t, left[0], `"token";r=7;t=`)
	require.Contains(t, left[7], `"token";r=0;t=`)
	require.Contains(t, left[11], `"token";r=0;t=`)
}

func TestCallersAreLimitedEachOnTheirOwn(t *testing.T) {
	t.Parallel()
	b := setup(t, func(d *api.Deps) { d.RatePerSecond, d.RateBurst = 0.01, 3 })
	status := func(path, token string) (int, *http.Response) {
		resp, _ := b.do("GET", path, token, "", "")
		return resp.StatusCode, resp
	}
	for range 3 {
		code, _ := status("/v1/servers", "viewer")
		require.Equal(t, 200, code)
	}
	code, resp := status("/v1/servers", "viewer")
	require.Equal(t, 429, code)
	after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	require.NoError(t, err)
	require.InDelta(t, 100, after, 5, "when there is room again, in seconds")
	code, _ = status("/v1/servers", "operator")
	require.Equal(t, 200, code, "another caller is not concerned")

	for range 3 {
		code, _ = status("/v1/servers", "guess")
		require.Equal(t, 401, code)
	}
	code, _ = status("/v1/servers", "guess")
	require.Equal(t, 429, code, "who guesses tokens is limited by address")
	code, _ = status("/v1/servers", "operator")
	require.Equal(t, 200, code, "a good token from that address still counts on its own")
	for range 3 {
		code, _ = status("/readyz", "")
		require.Equal(t, 200, code, "and so do the probes")
	}
	code, _ = status("/readyz", "")
	require.Equal(t, 429, code)
	code, _ = status("/healthz", "")
	require.Equal(t, 200, code, "a process that is alive is never reported dead")
}

// serve runs an API on its own listener with a request under way,
// and returns what ends each.
func serve(t *testing.T, drain time.Duration) (stop func(), let chan struct{}, answered chan error, served chan error, addr string) {
	t.Helper()
	let = make(chan struct{})
	entered := make(chan struct{})
	b := tapped(t, func(sql string, _ []any) error {
		if strings.Contains(sql, "FROM servers") {
			close(entered)
			<-let
		}
		return nil
	}, nil)
	_, _, err := b.store.CreateServer(context.Background(), server.CreateRequest{ServerID: "app-1", Role: prego.RoleApp, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner}, "test")
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	served, answered = make(chan error, 1), make(chan error, 1)
	go func() { served <- b.api.Serve(ctx, l, drain) }()
	go func() {
		req, err := http.NewRequest(http.MethodGet, "http://"+l.Addr().String()+"/v1/servers/app-1", nil)
		if err != nil {
			answered <- err
			return
		}
		req.Header.Set("Authorization", "Bearer viewer")
		resp, err := (&http.Client{Transport: &http.Transport{}}).Do(req)
		if err == nil {
			if resp.StatusCode != http.StatusOK {
				err = errors.New(resp.Status)
			}
			_ = resp.Body.Close()
		}
		answered <- err
	}()
	<-entered
	return cancel, let, answered, served, l.Addr().String()
}

func TestServeDrains(t *testing.T) {
	t.Parallel()
	stop, let, answered, served, addr := serve(t, time.Minute)
	stop()
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}, 10*time.Second, 5*time.Millisecond, "new callers are turned away")
	select {
	case err := <-served:
		require.Fail(t, "a request is under way", "%v", err)
	default:
	}
	close(let)
	require.NoError(t, <-answered)
	require.NoError(t, <-served)
}

func TestServeCutsOffWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	stop, let, answered, served, _ := serve(t, 20*time.Millisecond)
	defer close(let)
	stop()
	require.ErrorIs(t, <-served, context.DeadlineExceeded)
	require.ErrorIs(t, <-answered, io.EOF)
}

func TestLargeHeadersAndSlowOnesAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.api.Serve(ctx, l, time.Second) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-served)
	})
	req, err := http.NewRequest(http.MethodGet, "http://"+l.Addr().String()+"/healthz", nil)
	require.NoError(t, err)
	req.Header.Set("X-Large", strings.Repeat("x", 64<<10))
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	_ = resp.Body.Close()
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)

	slow, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer func() { _ = slow.Close() }()
	_, err = slow.Write([]byte("GET /healthz HTTP/1.1\r\n"))
	require.NoError(t, err)
	require.NoError(t, slow.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = io.ReadAll(slow)
	require.NoError(t, err, "the server hung up, not the deadline")
}
