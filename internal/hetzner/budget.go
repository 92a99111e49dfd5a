package hetzner

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Lane is the urgency of a request. When the budget runs low, lower lanes wait first: billed resources must always be
// deletable.
type Lane string

// The lanes, most urgent first.
const (
	LaneDelete Lane = "delete"
	LaneCreate Lane = "create"
	LanePoll   Lane = "poll"
)

// Budget is the number of requests that a provider project has left, shared by every worker.
type Budget interface {
	// Acquire waits until this lane may send one request.
	Acquire(ctx context.Context, lane string) error
	// Observe records the remaining requests reported by the provider.
	Observe(ctx context.Context, limit, remaining int) error
	// Block stops all requests until the time has passed.
	Block(ctx context.Context, d time.Duration) error
}

type laneKey struct{}

// WithLane sets the lane of a context's requests.
func WithLane(ctx context.Context, lane Lane) context.Context {
	return context.WithValue(ctx, laneKey{}, lane)
}

// transport takes each request from the budget and obeys the provider's rate-limit headers.
type transport struct {
	budget   Budget
	org      func(context.Context) string
	turns    map[Lane]*turns
	next     http.RoundTripper
	requests *prometheus.CounterVec
	waited   *prometheus.HistogramVec
}

func newTransport(cfg Config, next http.RoundTripper) *transport {
	f := promauto.With(cfg.Metrics)
	return &transport{
		budget: cfg.Budget, org: cfg.Org, next: next,
		turns: map[Lane]*turns{LaneDelete: newTurns(), LaneCreate: newTurns(), LanePoll: newTurns()},
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "prego_provider_requests_total", Help: "Requests to the provider, by lane and status class.",
		}, []string{"lane", "status"}),
		waited: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prego_provider_budget_wait_seconds", Help: "Seconds that requests waited for the shared budget.",
			Buckets: []float64{.001, .01, .1, 1, 5, 15, 60, 300},
		}, []string{"lane"}),
	}
}

func laneOf(r *http.Request) Lane {
	if lane, ok := r.Context().Value(laneKey{}).(Lane); ok {
		return lane
	}
	switch r.Method {
	case http.MethodDelete:
		return LaneDelete
	case http.MethodPost, http.MethodPut:
		return LaneCreate
	}
	return LanePoll
}

// RoundTrip sends one request. The wait for the budget does not count against the request's own timeout, which starts
// when it is sent.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	lane := laneOf(r)
	began := time.Now()
	if err := t.acquire(r.Context(), lane); err != nil {
		return nil, fmt.Errorf("request budget: %w", err)
	}
	t.waited.WithLabelValues(string(lane)).Observe(time.Since(began).Seconds())
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		t.requests.WithLabelValues(string(lane), "error").Inc()
		return nil, err
	}
	t.requests.WithLabelValues(string(lane), strconv.Itoa(resp.StatusCode/100)+"xx").Inc()
	if err := t.obey(r.Context(), resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

func (t *transport) acquire(ctx context.Context, lane Lane) error {
	org := ""
	if t.org != nil {
		org = t.org(ctx)
	}
	turns := t.turns[lane]
	if err := turns.take(ctx, org); err != nil {
		return err
	}
	defer turns.give()
	return t.budget.Acquire(ctx, string(lane))
}

func (t *transport) obey(ctx context.Context, resp *http.Response) error {
	limit, err1 := strconv.Atoi(resp.Header.Get("RateLimit-Limit"))
	remaining, err2 := strconv.Atoi(resp.Header.Get("RateLimit-Remaining"))
	if err1 == nil && err2 == nil {
		if err := t.budget.Observe(ctx, limit, remaining); err != nil {
			return fmt.Errorf("request budget: %w", err)
		}
	}
	if resp.StatusCode != http.StatusTooManyRequests {
		return nil
	}
	wait := time.Second
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		wait = time.Duration(s) * time.Second
	}
	if err := t.budget.Block(ctx, min(wait, time.Minute)); err != nil {
		return fmt.Errorf("request budget: %w", err)
	}
	return nil
}

// buffered reads a whole answer within the request's timeout, so that a connection cut mid-answer is an error of the
// call, not of the reader.
type buffered struct {
	next    http.RoundTripper
	timeout time.Duration
}

func (b buffered) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), b.timeout)
	defer cancel()
	resp, err := b.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 32<<20))
	_ = resp.Body.Close()
	if err != nil {
		return nil, err // not wrapped: reads are retried after timeouts, which must be recognized
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}
