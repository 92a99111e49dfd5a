package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// scripted answers each request for a tenant with the next of its answers, and the
// last one for ever.
type scripted struct {
	mu      sync.Mutex
	answers []func(http.ResponseWriter)
	asked   []string
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	next := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	next(w)
}

func answer(status int, v any) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
}

func refused(status int, code prego.Code) func(http.ResponseWriter) {
	return answer(status, api.Problem{Title: http.StatusText(status), Status: status, Code: string(code)})
}

var born = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// inState is an answer with the first n events of a life.
func inState(state, converged tenant.State, n int, change ...func(*api.Tenant)) func(http.ResponseWriter) {
	t := api.Tenant{TenantId: "t-1", Slug: "acme", State: api.TenantState(state), ConvergedState: string(converged), CreatedAt: born}
	steps := []string{"requested", "placed", "site_promoted", "apps_installed", "state_changed", "effects_in_place"}
	for i := range n {
		t.Timeline = append(t.Timeline, api.TenantEvent{Id: int64(10 + i), At: born.Add(time.Duration(i) * time.Second), ToState: "provisioning", Step: steps[i], Actor: "test"})
	}
	for _, c := range change {
		c(&t)
	}
	return answer(http.StatusOK, t)
}

func scriptedClient(t *testing.T, answers ...func(http.ResponseWriter)) (*apiClient, *scripted) {
	t.Helper()
	s := &scripted{answers: answers}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return &apiClient{base: srv.URL, token: "x", http: srv.Client()}, s
}

func TestWatchingFollowsEventsThroughAnOutage(t *testing.T) {
	t.Parallel()
	hangUp := func(w http.ResponseWriter) {
		c, _, err := w.(http.Hijacker).Hijack()
		require.NoError(t, err)
		_ = c.Close()
	}
	c, _ := scriptedClient(t,
		inState(tenant.Provisioning, "", 1), hangUp, refused(503, prego.CodeNotReady), refused(429, prego.CodeRateLimited), answer(502, "bad gateway"),
		inState(tenant.Provisioning, "", 3), inState(tenant.Active, "", 5), inState(tenant.Active, tenant.Active, 6))
	var out bytes.Buffer
	got, err := c.watchTenant(context.Background(), &out, "t-1", 10)
	require.NoError(t, err)
	require.Equal(t, api.TenantState("active"), got.State)
	text := out.String()
	require.NotContains(t, text, "requested", "that was before")
	for _, once := range []string{"placed", "site_promoted", "apps_installed", "state_changed", "effects_in_place"} {
		require.Equal(t, 1, strings.Count(text, " "+once+" "), "%s in %s", once, text)
	}
	require.Equal(t, 1, strings.Count(text, "the API does not answer"), "%s", text)
}

func TestWatchingGivesUp(t *testing.T) {
	t.Parallel()
	c, s := scriptedClient(t, refused(404, prego.CodeTenantNotFound))
	_, err := c.watchTenant(context.Background(), &bytes.Buffer{}, "t-1", 0)
	require.ErrorContains(t, err, "tenant_not_found")
	require.Len(t, s.asked, 1, "a refusal is no outage")

	c, _ = scriptedClient(t, refused(503, prego.CodeNotReady))
	_, err = c.watchTenantFor(context.Background(), &bytes.Buffer{}, "t-1", 0, 300*time.Millisecond)
	require.ErrorContains(t, err, "not_ready")

	c, _ = scriptedClient(t, inState(tenant.Suspended, tenant.Active, 1))
	ctx, cancel := context.WithTimeout(context.Background(), 400*time.Millisecond)
	defer cancel()
	_, err = c.watchTenant(ctx, &bytes.Buffer{}, "t-1", 0)
	require.ErrorIs(t, err, context.DeadlineExceeded, "suspended, but not in effect")
}

func TestExitStatusOfChanges(t *testing.T) {
	t.Parallel()
	cancelled := func(t *api.Tenant) { r := string(prego.ReasonCancelled); t.StatusReason = &r }
	accepted := func(state tenant.State) func(http.ResponseWriter) {
		return answer(http.StatusAccepted, api.TenantAccepted{TenantId: "t-1", State: api.TenantState(state), WorkflowId: "w"})
	}
	before := inState(tenant.Active, tenant.Active, 1)
	for name, tc := range map[string]struct {
		action  tenant.Action
		answers []func(http.ResponseWriter)
		code    int // 0 for success
	}{
		"suspended":            {tenant.ActionSuspend, []func(http.ResponseWriter){before, accepted(tenant.Suspended), inState(tenant.Suspended, tenant.Suspended, 2)}, 0},
		"resumed meanwhile":    {tenant.ActionSuspend, []func(http.ResponseWriter){before, accepted(tenant.Suspended), inState(tenant.Active, tenant.Active, 2)}, exitOutcome},
		"refused":              {tenant.ActionResume, []func(http.ResponseWriter){before, refused(409, prego.CodeInvalidTransition)}, 2},
		"retried":              {tenant.ActionRetry, []func(http.ResponseWriter){before, accepted(tenant.Provisioning), inState(tenant.Active, tenant.Active, 2)}, 0},
		"retried and failed":   {tenant.ActionRetry, []func(http.ResponseWriter){before, accepted(tenant.Provisioning), inState(tenant.Failed, tenant.Failed, 2)}, exitOutcome},
		"cancelled in time":    {tenant.ActionCancel, []func(http.ResponseWriter){before, accepted(tenant.Provisioning), inState(tenant.Failed, tenant.Failed, 2, cancelled)}, 0},
		"cancelled too late":   {tenant.ActionCancel, []func(http.ResponseWriter){before, accepted(tenant.Provisioning), inState(tenant.Active, tenant.Active, 2)}, exitOutcome},
		"cancelled, and alive": {tenant.ActionCancel, []func(http.ResponseWriter){before, accepted(tenant.GracePeriod), inState(tenant.GracePeriod, tenant.GracePeriod, 2)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, s := scriptedClient(t, tc.answers...)
			cmd := &cobra.Command{}
			cmd.SetContext(context.Background())
			cmd.SetOut(&bytes.Buffer{})
			err := changeTenant(cmd, c, "t-1", tc.action, "because", "table", true)
			require.Equal(t, "POST /v1/tenants/t-1/"+string(tc.action), s.asked[1])
			if tc.code == 0 {
				require.NoError(t, err)
				return
			}
			var exit *exitError
			require.True(t, errors.As(err, &exit), "%v", err)
			require.Equal(t, tc.code, exit.code, "%v", err)
		})
	}
}

func TestShowingATenantSaysWhyItIsThere(t *testing.T) {
	t.Parallel()
	code, reason := "insufficient_resources", "awaiting_capacity"
	var out bytes.Buffer
	require.NoError(t, printTenant(&out, api.Tenant{
		TenantId: "t-1", Slug: "acme", OrgId: "acme", Region: "eu", Plan: "starter", State: "provisioning", StatusReason: &reason,
		WaitingSince: &born, WaitingRoles: []api.Role{"app"}, CreatedAt: born, WorkflowId: "tenant-provision/t-1",
		Allocation: &api.Allocation{AppServerId: "app-1", DbShardId: "db-1", RedisPoolId: "redis-1", InfraProvider: "hetzner", Dedicated: true},
		Decision: &api.Decision{
			Outcome: "awaiting_capacity", Code: &code, Algorithm: "best_fit", At: born,
			DecisionLog: placement.Explanation{SelectionReason: "short of app", CandidatesEvaluated: 7, RejectedCounts: map[string]int{"memory_pct": 4, "not_active": 2}},
		},
	}))
	for _, want := range []string{
		"provisioning: awaiting_capacity", "since 2026-01-02T03:04:05Z for [app]", "app-1, shard db-1, pool redis-1 at hetzner, its own",
		"awaiting_capacity by best_fit (insufficient_resources)", "short of app", "7 candidates", "memory_pct 4, not_active 2",
	} {
		require.Contains(t, out.String(), want)
	}
}
