package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHealthAddrOfAProcessThatListensEverywhere(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"0.0.0.0:8080": "127.0.0.1:8080", ":8080": "127.0.0.1:8080", "[::]:8080": "[::1]:8080", "10.0.0.7:9090": "10.0.0.7:9090",
	} {
		got, err := healthAddr(listen)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := healthAddr("8080")
	require.ErrorContains(t, err, `"8080"`)
}

func TestHealthSaysWhatIsNotReady(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"ready":false,"error":"database: refused"}`))
		}
	}))
	run := func(args ...string) error {
		cmd := newHealthCommand(nil)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(args)
		return cmd.ExecuteContext(t.Context())
	}
	require.NoError(t, run("--live", srv.URL+"/"))
	err := run(srv.URL)
	require.ErrorContains(t, err, "503")
	require.ErrorContains(t, err, "database: refused")
	srv.Close()
	require.ErrorIs(t, run("--live", srv.URL), syscall.ECONNREFUSED)
}

func TestHealthAsksTheProcessBesideIt(t *testing.T) {
	var asked []string
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked = append(asked, r.Host+r.URL.Path) }))
	defer srv.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(srv.URL, "http://"), ":")
	t.Setenv("PREGO_API_LISTEN", "127.0.0.1:1")
	t.Setenv("PREGO_METRICS_LISTEN", "0.0.0.0:"+port)
	require.NoError(t, newHealthCommand(nil).ExecuteContext(t.Context()))
	require.Equal(t, []string{"127.0.0.1:" + port + "/readyz"}, asked)
	// Without the one, the other's.
	t.Setenv("PREGO_METRICS_LISTEN", "")
	require.ErrorContains(t, newHealthCommand(nil).ExecuteContext(t.Context()), "127.0.0.1:1")
}

// TestHealthAsksAllProcesses through the API that a person uses: a line for each, and 1 if one is missing.
func TestHealthAsksAllProcesses(t *testing.T) {
	t.Setenv("PREGO_API_LISTEN", "")
	t.Setenv("PREGO_METRICS_LISTEN", "")
	answer, status := "", 200
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	defer srv.Close()
	run := func(code int, text string) (string, error) {
		status, answer = code, text
		var out strings.Builder
		cmd := newHealthCommand(func() (string, error) { return srv.URL + "/", nil })
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(&out)
		cmd.SetArgs(nil)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	out, err := run(200, `{"ready":true,"checks":{"database":"ok"},"processes":{"agentgw":"ok","worker":"ok"}}`)
	require.NoError(t, err)
	require.Equal(t, "agentgw  ok\napi      ok\nworker   ok\n", out)
	out, err = run(200, `{"ready":true,"checks":{"database":"ok"},"processes":{"agentgw":"ok","worker":"none runs"}}`)
	require.ErrorContains(t, err, "1 of 3 kinds of processes are not ready")
	require.Equal(t, "agentgw  ok\napi      ok\nworker   none runs\n", out)
	out, err = run(503, `{"ready":false,"checks":{"database":"ok","temporal":"does not answer"},"processes":{"worker":"ok"}}`)
	require.ErrorContains(t, err, "1 of 2 kinds of processes are not ready")
	require.Equal(t, "api      temporal does not answer\nworker   ok\n", out)
	_, err = run(200, `<html>`)
	require.ErrorContains(t, err, "<html>", "something else is there")
}
