package hetzner_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/hetzner"
	"github.com/prego/prego/server"
)

func TestEveryRequestIsTakenOutOfItsLane(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	budget := &ledger{}
	hz := p.provider(func(c *hetzner.Config) { c.Budget = budget })
	taken := func(f func() error) string {
		n := len(budget.lanes())
		sent := len(p.seen("GET", "/")) + len(p.seen("POST", "/")) + len(p.seen("PUT", "/")) + len(p.seen("DELETE", "/"))
		require.NoError(t, f())
		lanes := budget.lanes()[n:]
		now := len(p.seen("GET", "/")) + len(p.seen("POST", "/")) + len(p.seen("PUT", "/")) + len(p.seen("DELETE", "/"))
		require.Len(t, lanes, now-sent, "one token for one request")
		return strings.Join(lanes, " ")
	}
	var h server.Handle
	require.Equal(t, "create", taken(func() (err error) { h, err = hz.CreateServer(t.Context(), order(nil)); return err }))
	require.Equal(t, "create create", taken(func() error { _, err := hz.CreateServer(t.Context(), order(nil)); return err }), "POST, look up")
	require.Equal(t, "poll poll", taken(func() error {
		h.ActionIDs = h.ActionIDs[:1]
		_, err := hz.AwaitRunning(t.Context(), h, noBeat)
		return err
	}), "actions, server")
	require.Equal(t, "delete", taken(func() error { _, err := hz.FindServers(t.Context(), "app-1"); return err }), "needed to delete")
	require.Equal(t, "poll create", taken(func() error { return hz.LabelServer(t.Context(), h.ProviderServerID, order(nil).Labels()) }))
	require.Equal(t, "create", taken(func() error {
		_, err := hz.GetServer(hetzner.WithLane(t.Context(), hetzner.LaneCreate), prego.ServerID(h.ProviderServerID))
		return err
	}), "the caller decides")
	require.Equal(t, "delete delete delete", taken(func() error { return hz.DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)) }), "DELETE, action, gone")
}

func TestRepeatedReadsPayAgain(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	budget := &ledger{}
	p.inject(&fault{method: "GET", path: "/servers/", times: 2, answer: code(502, "bad_gateway")})
	_, err := p.provider(func(c *hetzner.Config) { c.Budget = budget }).GetServer(t.Context(), "42")
	_ = requireClass(t, err, server.InfraNotFound, "not_found")
	require.Equal(t, []string{"poll", "poll", "poll"}, budget.lanes())
}

func TestNothingIsSentWithoutBudget(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	hz := p.provider(func(c *hetzner.Config) { c.Budget = &ledger{fail: errors.New("database is away")} })
	_, err := hz.CreateServer(t.Context(), order(nil))
	require.ErrorContains(t, err, "database is away")
	_, err = hz.GetServer(t.Context(), "42")
	require.ErrorContains(t, err, "database is away")
	require.Empty(t, p.requests)
}

// TestWaitingForBudgetIsNotARequestsTime: a request's timeout starts when it is
// sent, and the wait ends with the caller's context.
func TestWaitingForBudgetIsNotARequestsTime(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	h := p.running("app-1")
	hz := p.provider(func(c *hetzner.Config) {
		c.Timeout, c.Budget = 200*time.Millisecond, &ledger{wait: 300 * time.Millisecond}
	})
	_, err := hz.GetServer(t.Context(), prego.ServerID(h.ProviderServerID))
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	sent := len(p.requests)
	hz = p.provider(func(c *hetzner.Config) {
		c.Budget = &ledger{shut: map[string]chan struct{}{"poll": make(chan struct{})}}
	})
	_, err = hz.GetServer(ctx, prego.ServerID(h.ProviderServerID))
	_ = requireClass(t, err, server.InfraAmbiguous, "timeout")
	require.Len(t, p.requests, sent)
}

func TestRateLimitHeadersAreTakenOver(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		limit, remaining string
		want             [][2]int
	}{
		"both":        {"3600", "3587", [][2]int{{3600, 3587}}},
		"none left":   {"3600", "0", [][2]int{{3600, 0}}},
		"neither":     {"", "", nil},
		"one":         {"3600", "", nil},
		"not numbers": {"many", "few", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			p.headers = http.Header{}
			if tc.limit != "" {
				p.headers.Set("RateLimit-Limit", tc.limit)
			}
			if tc.remaining != "" {
				p.headers.Set("RateLimit-Remaining", tc.remaining)
			}
			budget := &ledger{}
			h := p.running("app-1")
			_, err := p.provider(func(c *hetzner.Config) { c.Budget = budget }).GetServer(t.Context(), prego.ServerID(h.ProviderServerID))
			require.NoError(t, err)
			require.Equal(t, tc.want, budget.observed)
			require.Empty(t, budget.blocked)
		})
	}
}

func TestTooManyRequestsBlockEverybody(t *testing.T) {
	t.Parallel()
	for after, want := range map[string]time.Duration{
		"": time.Second, "7": 7 * time.Second, "0": time.Second, "-5": time.Second, "soon": time.Second,
		"100000": time.Minute, // no answer stops the fleet for a day
	} {
		t.Run(after, func(t *testing.T) {
			t.Parallel()
			p := newProject(t)
			p.headers = http.Header{"Ratelimit-Limit": {"3600"}, "Ratelimit-Remaining": {"0"}}
			if after != "" {
				p.headers.Set("Retry-After", after)
			}
			p.inject(&fault{method: "POST", path: "/servers", answer: code(429, "rate_limit_exceeded")})
			budget := &ledger{}
			_, err := p.provider(func(c *hetzner.Config) { c.Budget = budget }).CreateServer(t.Context(), order(nil))
			_ = requireClass(t, err, server.InfraThrottled, "rate_limit_exceeded")
			require.Equal(t, []time.Duration{want}, budget.blocked)
			require.Equal(t, [][2]int{{3600, 0}}, budget.observed)
		})
	}
}

func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	p := newProject(t)
	reg := prometheus.NewRegistry()
	hz := p.provider(func(c *hetzner.Config) { c.Metrics = reg })
	h, err := hz.CreateServer(t.Context(), order(nil))
	require.NoError(t, err)
	_, err = hz.GetServer(t.Context(), "424242")
	_ = requireClass(t, err, server.InfraNotFound, "not_found")
	p.inject(&fault{method: "DELETE", path: "/servers/", answer: reset})
	_ = requireClass(t, hz.DestroyServer(t.Context(), prego.ServerID(h.ProviderServerID)), server.InfraAmbiguous, "connection_lost")
	families, err := reg.Gather()
	require.NoError(t, err)
	counted, waited := map[string]float64{}, map[string]uint64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			switch family.GetName() {
			case "prego_provider_requests_total":
				counted[strings.Join(values, " ")] = m.GetCounter().GetValue()
			case "prego_provider_budget_wait_seconds":
				waited[strings.Join(values, " ")] = m.GetHistogram().GetSampleCount()
			}
		}
	}
	require.Equal(t, map[string]float64{"create 2xx": 1, "delete error": 1, "poll 4xx": 1}, counted)
	require.Equal(t, map[string]uint64{"create": 1, "delete": 1, "poll": 1}, waited)
}

func TestNewRefusesBadSettings(t *testing.T) {
	t.Parallel()
	good := hetzner.Config{
		Endpoint: "https://api.hetzner.cloud/v1", Token: "t", Environment: "test", Budget: &ledger{}, MayDelete: mayDelete,
	}
	_, err := hetzner.New(good)
	require.NoError(t, err)
	for want, change := range map[string]func(*hetzner.Config){
		"is not a URL":  func(c *hetzner.Config) { c.Endpoint = "api.hetzner.cloud" },
		"not a URL":     func(c *hetzner.Config) { c.Endpoint = "" },
		"must be https": func(c *hetzner.Config) { c.Endpoint = "http://api.hetzner.cloud/v1" },
		"HCLOUD_TOKEN":  func(c *hetzner.Config) { c.Token = "" },
		"budget":        func(c *hetzner.Config) { c.Budget = nil },
		"gate":          func(c *hetzner.Config) { c.MayDelete = nil },
	} {
		c := good
		change(&c)
		_, err := hetzner.New(c)
		require.ErrorContains(t, err, want)
	}
	good.Endpoint, good.Simulated = "http://127.0.0.1:1/v1", true
	p, err := hetzner.New(good)
	require.NoError(t, err)
	require.Equal(t, prego.ProviderHetzner, p.ID())
}

// gate is a budget that grants a request for each token.
type gate struct {
	tokens  chan struct{}
	waiting atomic.Int32 // requests that ask for one now
	most    atomic.Int32
}

func (g *gate) Acquire(ctx context.Context, _ string) error {
	g.most.Store(max(g.most.Load(), g.waiting.Add(1)))
	defer g.waiting.Add(-1)
	select {
	case <-g.tokens:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
func (*gate) Observe(context.Context, int, int) error    { return nil }
func (*gate) Block(context.Context, time.Duration) error { return nil }

// TestOrgsTakeTurnsAtTheBudget: one org has 20 requests waiting when another's two come. The budget is asked for one
// request at a time, however many wait.
func TestOrgsTakeTurnsAtTheBudget(t *testing.T) {
	t.Parallel()
	type org struct{}
	p := newProject(t)
	budget := &gate{tokens: make(chan struct{})}
	hz := p.provider(func(c *hetzner.Config) {
		c.Budget = budget
		c.Org = func(ctx context.Context) string { name, _ := ctx.Value(org{}).(string); return name }
	})
	served := make(chan string)
	ask := func(ctx context.Context, name string) {
		go func() {
			_, err := hz.GetServer(context.WithValue(ctx, org{}, name), "42")
			if errors.Is(err, context.Canceled) {
				name = "cancelled"
			}
			served <- name
		}()
		time.Sleep(5 * time.Millisecond) // so that they wait in this order
	}
	for range 20 {
		ask(t.Context(), "noisy")
	}
	gone, cancel := context.WithCancel(t.Context())
	ask(gone, "quiet")
	ask(t.Context(), "quiet")
	cancel()
	require.Equal(t, "cancelled", <-served)
	var order []string
	for range 21 {
		budget.tokens <- struct{}{}
		order = append(order, <-served)
	}
	require.Less(t, slices.Index(order, "quiet"), 3, "%v", order)
	require.EqualValues(t, 1, budget.most.Load())
}
