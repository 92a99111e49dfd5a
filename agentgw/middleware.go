package agentgw

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/prego/prego"
)

type metrics struct {
	requests *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	flushed  prometheus.Counter
	flushes  *prometheus.HistogramVec
	signals  *prometheus.CounterVec
	points   prometheus.Counter
	forwards *prometheus.CounterVec
	logs     prometheus.Counter
	backups  *prometheus.CounterVec
	ailing   *prometheus.CounterVec
	// reports are those of containers, instances what they changed.
	reports   *prometheus.CounterVec
	instances *prometheus.CounterVec
	// edgeRefusals are documents that edges' servers did not take.
	edgeRefusals prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, pending func() int) *metrics {
	m := &metrics{
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "prego_agentgw_request_seconds", Help: "Seconds per request, by route and status.", Buckets: []float64{.001, .005, .02, .1, .5, 2, 10}}, []string{"route", "status"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_agentgw_refusals_total", Help: "Requests refused, by route and code."}, []string{"route", "code"}),
		flushed:  prometheus.NewCounter(prometheus.CounterOpts{Name: "prego_agentgw_heartbeats_total", Help: "Heartbeats written."}),
		flushes:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "prego_agentgw_flush_seconds", Help: "Seconds per write of a batch of heartbeats.", Buckets: []float64{.002, .01, .05, .2, 1, 5}}, []string{"outcome"}),
		signals:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_agentgw_signals_total", Help: "Signals to provisioning runs, by kind and outcome."}, []string{"kind", "outcome"}),
		points:   prometheus.NewCounter(prometheus.CounterOpts{Name: "prego_agentgw_metric_points_total", Help: "Metric data points taken from agents."}),
		forwards: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_agentgw_otlp_forwards_total", Help: "Metrics requests forwarded, by outcome."}, []string{"outcome"}),
		logs:     prometheus.NewCounter(prometheus.CounterOpts{Name: "prego_agentgw_log_lines_total", Help: "Log lines taken from agents."}),
		backups:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_agentgw_backup_reports_total", Help: "Backup reports, by status."}, []string{"status"}),
	}
	m.reports = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_agentgw_container_reports_total", Help: "Reports of instances' containers, by outcome."}, []string{"outcome"})
	m.instances = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_agentgw_instances_total", Help: "Instances that agents reported healthy or failed, by state."}, []string{"state"})
	m.ailing = prometheus.NewCounterVec(prometheus.CounterOpts{Name: prego.MetricAilingHosts, Help: "Heartbeats and handshakes that told of something wrong with their host: its clock, or docker."}, prego.Metrics()[prego.MetricAilingHosts])
	m.edgeRefusals = prometheus.NewCounter(prometheus.CounterOpts{Name: "prego_edge_documents_refused_total", Help: "Documents that an edge's servers refused; it goes on with the one before."})
	if reg != nil {
		reg.MustRegister(m.edgeRefusals, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "prego_agentgw_heartbeats_pending", Help: "Heartbeats gathered and not yet written."},
			func() float64 { return float64(pending()) }), m.requests, m.refusals, m.flushed, m.flushes, m.signals, m.points, m.forwards, m.logs, m.backups, m.ailing, m.reports, m.instances)
	}
	return m
}

func (g *Gateway) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := time.Now()
		err := next(c)
		if err != nil {
			c.Error(err)
		}
		route := c.Path()
		if route == "" {
			route = "none"
		}
		g.metrics.requests.WithLabelValues(route, strconv.Itoa(c.Response().Status)).Observe(time.Since(began).Seconds())
		return nil
	}
}

func (g *Gateway) recoverPanics(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			if r := recover(); r != nil {
				g.log.Error("panic", zap.String("path", c.Path()), zap.Stack("stack"))
				err = fmt.Errorf("panic: %v", r)
			}
		}()
		return next(c)
	}
}

func limitBody(n int64) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Request().Body = http.MaxBytesReader(c.Response(), c.Request().Body, n)
			return next(c)
		}
	}
}

// decode reads one JSON document and rejects unknown fields.
func decode(c echo.Context, into any) error {
	dec := json.NewDecoder(c.Request().Body)
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return err
	case err != nil:
		return prego.Errorf(prego.CodeInvalidJSON, "the body is not the JSON that is expected here: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return prego.Errorf(prego.CodeInvalidJSON, "the body holds more than one JSON document")
	}
	return nil
}

// sourceAddress is a request's source address, as Postgres parses it.
func sourceAddress(c echo.Context) string {
	from, err := netip.ParseAddrPort(c.Request().RemoteAddr)
	if err != nil {
		return "0.0.0.0" // invalid
	}
	return from.Addr().Unmap().WithZone("").String()
}

// sourceLimiter limits failures per source address. Successful requests are free, so
// that a data centre behind one address does not block itself.
type sourceLimiter struct {
	mu      sync.Mutex
	every   rate.Limit
	burst   int
	sources map[string]*rate.Limiter
}

const maxSources = 10_000

func newSourceLimiter(every rate.Limit, burst int) *sourceLimiter {
	return &sourceLimiter{every: every, burst: burst, sources: make(map[string]*rate.Limiter)}
}

func (l *sourceLimiter) allowed(source string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.sources[source]
	return !ok || s.Tokens() >= 1
}

func (l *sourceLimiter) failed(source string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sources) >= maxSources {
		l.sources = make(map[string]*rate.Limiter) // bounded memory matters more than a perfect count
	}
	s, ok := l.sources[source]
	if !ok {
		s = rate.NewLimiter(l.every, l.burst)
		l.sources[source] = s
	}
	s.Allow()
}

// guarded runs f unless the source has failed too often.
func (g *Gateway) guarded(c echo.Context, f func() error) error {
	from := sourceAddress(c)
	if !g.limiter.allowed(from) {
		return prego.Errorf(prego.CodeRateLimited, "too many failed attempts from this address")
	}
	err := f()
	switch prego.CodeOf(err) {
	case prego.CodeTokenUnknown, prego.CodeTokenConsumed, prego.CodeTokenSuperseded, prego.CodeSourceMismatch, prego.CodeCertificateInvalid, prego.CodeInvalidJSON:
		g.limiter.failed(from)
	}
	return err
}

// revokedSet holds the servers whose tokens and certificates still look valid but are
// revoked.
type revokedSet struct {
	mu  sync.RWMutex
	ids map[string]bool // nil until first read
}

// has reports whether id may be revoked; true for every id before the set was read.
func (r *revokedSet) has(id prego.ServerID) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.ids == nil || r.ids[string(id)]
}

// followRevocations reads the revoked servers every two seconds.
func (g *Gateway) followRevocations(ctx context.Context) {
	t := time.NewTicker(cmp.Or(g.settings.Follow, 2*time.Second))
	defer t.Stop()
	for {
		ids, err := g.store.RevokedServers(ctx, g.settings.CertTTL+time.Hour)
		if err != nil {
			if ctx.Err() == nil {
				g.log.Warn("revocations not read", zap.Error(err))
			}
		} else {
			set := make(map[string]bool, len(ids))
			for _, id := range ids {
				set[id] = true
			}
			g.revoked.mu.Lock()
			g.revoked.ids = set
			g.revoked.mu.Unlock()
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}
