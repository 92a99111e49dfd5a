package e2e

import (
	"context"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/app"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/telemetry"
	"github.com/prego/prego/lab/need"
)

// part is a process of the control plane that runs within this one: with the same wiring, settings, keys, ports and
// log.
type part struct {
	stop context.CancelFunc
	done chan struct{}
	err  error // of its end; read it after done
}

// partsOf are what each process runs.
var partsOf = map[string]func(context.Context, app.Options) error{
	"api": app.RunAPI, "agentgw": app.RunGateway,
	"worker": func(ctx context.Context, o app.Options) error { return app.RunWorker(ctx, o, nil) },
}

func startPart(t testing.TB, name string, vars map[string]string, set func(*config.Config), logFile string) *part {
	t.Helper()
	cfg, err := config.From(vars)
	require.NoError(t, err)
	require.Empty(t, cfg.Unknown)
	cfg.Hetzner.Timeout = 3 * time.Second
	if set != nil {
		set(&cfg)
	}
	f, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	log, err := telemetry.Logger(f, cfg.LogLevel, cfg.LogFormat)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	p := &part{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		defer func() { _ = f.Close() }()
		p.err = partsOf[name](ctx, app.Options{Config: cfg, Version: "e2e", Log: log})
	}()
	return p
}

// awaitHTTP waits until a URL answers 200.
func (p *part) awaitHTTP(t testing.TB, url string) {
	t.Helper()
	var last string
	if !asked(func() bool {
		select {
		case <-p.done:
			t.Fatalf("%s: it ended: %v", url, p.err)
		default:
		}
		resp, err := need.HTTP.Get(url)
		if err != nil {
			last = err.Error()
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		last = resp.Status
		return resp.StatusCode == http.StatusOK
	}, 30*time.Second, 10*time.Millisecond) {
		t.Fatalf("%s is not ready in time: %s", url, last)
	}
}

// end stops a part as SIGTERM stops a process, which ends without an error.
func (p *part) end(t testing.TB, name string) {
	t.Helper()
	p.stop()
	select {
	case <-p.done:
		if p.err != nil {
			t.Errorf("%s ended: %v", name, p.err)
		}
	case <-time.After(30 * time.Second):
		t.Errorf("%s does not stop", name)
	}
}
