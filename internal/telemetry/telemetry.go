// Package telemetry is the logging and operations endpoints of processes.
package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/prego/prego"
)

// Logger returns a logger. Every line passes through the redactor as a whole, so that no field can be missed.
func Logger(to io.Writer, level, format string) (*zap.Logger, error) {
	lvl, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, fmt.Errorf("PREGO_LOG_LEVEL: %w", err)
	}
	cfg := zap.NewProductionEncoderConfig()
	cfg.EncodeTime = zapcore.ISO8601TimeEncoder
	var enc zapcore.Encoder
	switch format {
	case "json":
		enc = zapcore.NewJSONEncoder(cfg)
	case "console":
		cfg.EncodeLevel = zapcore.CapitalLevelEncoder
		enc = zapcore.NewConsoleEncoder(cfg)
	default:
		return nil, fmt.Errorf("PREGO_LOG_FORMAT must be json or console, not %q", format)
	}
	return zap.New(zapcore.NewCore(enc, redacting{zapcore.Lock(zapcore.AddSync(to))}, lvl)), nil
}

type redacting struct {
	zapcore.WriteSyncer
}

func (r redacting) Write(p []byte) (int, error) {
	if _, err := r.WriteSyncer.Write([]byte(prego.Redact(string(p)))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Registry returns a metrics registry with the process's own metrics.
func Registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// ServeOps serves /healthz, /readyz and /metrics at addr until ctx ends; with addr "" it serves nothing.
func ServeOps(ctx context.Context, addr string, reg *prometheus.Registry, ready func(context.Context) error) error {
	if addr == "" {
		<-ctx.Done()
		return nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("PREGO_METRICS_LISTEN: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	answer := func(w http.ResponseWriter, status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		c, cancel := context.WithTimeout(r.Context(), 3*time.Second)
		defer cancel()
		if err := ready(c); err != nil {
			answer(w, 503, map[string]any{"ready": false, "error": prego.Redact(err.Error())})
			return
		}
		answer(w, 200, map[string]any{"ready": true})
	})
	srv := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
	}
	go func() {
		<-ctx.Done()
		shut, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = srv.Shutdown(shut)
	}()
	if err := srv.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("operations endpoint: %w", err)
	}
	return nil
}
