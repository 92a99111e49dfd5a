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
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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
	// reports are reports about containers, instances the changes that they caused.
	reports   *prometheus.CounterVec
	instances *prometheus.CounterVec
	// edgeRefusals are documents that edges' servers rejected.
	edgeRefusals prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, pending func() int) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	seconds := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "prego_agentgw_heartbeats_pending", Help: "Heartbeats that are not yet written.",
	}, func() float64 { return float64(pending()) })
	return &metrics{
		requests: seconds("prego_agentgw_request_seconds", "Seconds per request, by route and status.",
			[]float64{.001, .005, .02, .1, .5, 2, 10}, "route", "status"),
		refusals: counters("prego_agentgw_refusals_total", "Requests refused, by route and code.", "route", "code"),
		flushed:  counter("prego_agentgw_heartbeats_total", "Heartbeats written."),
		flushes: seconds("prego_agentgw_flush_seconds", "Seconds per write of a batch of heartbeats.",
			[]float64{.002, .01, .05, .2, 1, 5}, "outcome"),
		signals: counters("prego_agentgw_signals_total", "Signals to provisioning runs, by kind and outcome.",
			"kind", "outcome"),
		points:   counter("prego_agentgw_metric_points_total", "Metric data points taken from agents."),
		forwards: counters("prego_agentgw_otlp_forwards_total", "Metrics requests forwarded, by outcome.", "outcome"),
		logs:     counter("prego_agentgw_log_lines_total", "Log lines taken from agents."),
		backups:  counters("prego_agentgw_backup_reports_total", "Backup reports, by status.", "status"),
		reports: counters("prego_agentgw_container_reports_total", "Reports of instances' containers, by outcome.",
			"outcome"),
		instances: counters("prego_agentgw_instances_total",
			"Instances that agents reported healthy or failed, by state.", "state"),
		ailing: counters(prego.MetricAilingHosts,
			"Heartbeats and handshakes that reported a problem of their host: its clock, or Docker.",
			prego.Metrics()[prego.MetricAilingHosts]...),
		edgeRefusals: counter("prego_edge_documents_refused_total",
			"Documents that an edge's servers rejected; the edge keeps serving the previous one."),
	}
}

func (g *Gateway) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := time.Now()
		err := next(c)
		if err != nil {
			c.Error(err)
		}
		route := c.Path()
		route = cmp.Or(route, "none")
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
		return prego.Errorf(prego.CodeInvalidJSON, "the body is not the expected JSON: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return prego.Errorf(prego.CodeInvalidJSON, "the body holds more than one JSON document")
	}
	return nil
}

// nothing is an answer without content.
type nothing struct{}

// report is the handler of an agent's report, in JSON.
func report[T any](take func(ctx context.Context, who caller, in T) (any, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		var in T
		if err := decode(c, &in); err != nil {
			return err
		}
		answer, err := take(c.Request().Context(), callerOf(c), in)
		switch {
		case err != nil:
			return err
		case answer == nothing{}:
			return c.NoContent(http.StatusNoContent)
		}
		return c.JSON(http.StatusOK, answer)
	}
}

// sourceAddress is a request's source address, as Postgres parses it.
func sourceAddress(c echo.Context) string {
	from, err := netip.ParseAddrPort(c.Request().RemoteAddr)
	if err != nil {
		return "0.0.0.0" // invalid
	}
	return from.Addr().Unmap().WithZone("").String()
}

// limiters are rate limits by key. At most the given number is kept.
type limiters struct {
	mu    sync.Mutex
	every rate.Limit
	burst int
	most  int
	of    map[string]*rate.Limiter
}

func newLimiters(every rate.Limit, burst, most int) *limiters {
	return &limiters{every: every, burst: burst, most: most, of: make(map[string]*rate.Limiter)}
}

// spent reports whether a key has nothing left.
func (l *limiters) spent(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit, ok := l.of[key]
	return ok && limit.TokensAt(now) < 1
}

// take takes n from a key's limit, if that has them.
func (l *limiters) take(key string, now time.Time, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit, ok := l.of[key]
	if !ok {
		if len(l.of) >= l.most {
			clear(l.of) // bounded memory matters more than a perfect count
		}
		limit = rate.NewLimiter(l.every, l.burst)
		l.of[key] = limit
	}
	return limit.AllowN(now, n)
}

const (
	// maxSources bounds the addresses whose failures are limited. Requests that succeed are free, so that a data
	// centre behind one address does not block itself.
	maxSources = 10_000
	// A host's requests count 1 and 1 more for each 64 KiB of their bodies: hostUnits are what it may send per second,
	// and hostBurst together, far more than any needs.
	hostUnits, hostBurst = 10, 200
	unitBytes            = 64 << 10
)

// afford takes a request from the limit of its host, which its key stands for: a predecessor whose identity is revoked
// takes nothing from it.
func (g *Gateway) afford(c echo.Context, key []byte) error {
	size := c.Request().ContentLength
	if size < 0 || size > maxTelemetry {
		size = maxTelemetry
	}
	if !g.hosts.take(string(key), g.settings.Now(), 1+int(size/unitBytes)) {
		return prego.Errorf(prego.CodeRateLimited,
			"this host reports more than a host can have to report; try again later")
	}
	return nil
}

// guarded runs f unless the source has failed too often.
func (g *Gateway) guarded(c echo.Context, f func() error) error {
	from := sourceAddress(c)
	now := g.settings.Now()
	if g.limiter.spent(from, now) {
		return prego.Errorf(prego.CodeRateLimited, "too many failed attempts from this address")
	}
	err := f()
	switch prego.CodeOf(err) {
	case prego.CodeTokenUnknown, prego.CodeTokenConsumed, prego.CodeTokenSuperseded,
		prego.CodeSourceMismatch, prego.CodeCertificateInvalid, prego.CodeInvalidJSON:
		g.limiter.take(from, now, 1)
	}
	return err
}

// revokedSet holds the servers that are revoked although their tokens and certificates still look valid; nil until it
// was read.
type revokedSet struct {
	ids atomic.Pointer[map[string]bool]
}

// has reports whether id may be revoked; true for every id before the set was read.
func (r *revokedSet) has(id prego.ServerID) bool {
	ids := r.ids.Load()
	return ids == nil || (*ids)[string(id)]
}

// followRevocations reads the revoked servers every two seconds.
func (g *Gateway) followRevocations(ctx context.Context) {
	g.follow(ctx, 2*time.Second, "revocations", func() error {
		ids, err := g.store.RevokedServers(ctx, g.settings.CertTTL+time.Hour)
		if err != nil {
			return err
		}
		set := make(map[string]bool, len(ids))
		for _, id := range ids {
			set[id] = true
		}
		g.revoked.ids.Store(&set)
		return nil
	})
}

// follow reads what other processes changed, again and again until ctx ends.
func (g *Gateway) follow(ctx context.Context, every time.Duration, what string, read func() error) {
	t := time.NewTicker(cmp.Or(g.settings.Follow, every))
	defer t.Stop()
	for {
		if err := read(); err != nil && ctx.Err() == nil {
			g.log.Warn(what+" not read", zap.Error(err))
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}
