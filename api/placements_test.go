package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
)

const fleet = `{"servers":[
    {"server_id":"app-1","role":"app","region":"eu","infra_provider":"hetzner","memory_pct":10,"tenant_count":1,"dedicated_for_tenant_id":null},
    {"server_id":"app-2","role":"app","region":"eu","infra_provider":"hetzner","memory_pct":90}],
  "db_shards":[{"shard_id":"db-1","region":"eu","tenant_capacity":10,"plan_tier_lock":null}],
  "redis_pools":[{"pool_id":"redis-1","region":"eu","tenant_capacity":1}],
  "infra_providers":[{"id":"hetzner","enabled":true,"regions":["eu"]}],
  "residency":{"DE":["eu"]},
  "site_pool":[{"pool_site_id":"site-1","app_server_id":"app-1","db_shard_id":"db-1","state":"available"}]}`

const two = `[{"tenant_id":"one","org_id":"acme","region":"eu","plan":"starter","data_residency":"DE"},{"tenant_id":"two","org_id":"acme","region":"eu","plan":"starter","override":null}]`

func TestSimulate(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	resp, body := b.do("POST", "/v1/placements/simulate", "operator", js, `{"requests":`+two+`,"fleet":`+fleet+`}`)
	require.Equal(t, 200, resp.StatusCode, "%s", body)
	lines := as[api.SimulationResult](t, body).Results
	require.Len(t, lines, 2)
	require.Equal(t, placement.Placed, lines[0].Outcome)
	require.Equal(t, []string{"app-1", "db-1", "redis-1", "site-1"}, []string{string(lines[0].AppServerID), string(lines[0].DBShardID), string(lines[0].RedisPoolID), lines[0].PoolSiteID})
	require.Equal(t, 1, lines[0].Decision.RejectedCounts["memory_pct"])
	require.Equal(t, placement.AwaitingCapacity, lines[1].Outcome, "decided after the first one, whose pool is full now")
	require.Equal(t, prego.CodeInsufficientResources, lines[1].Code)

	for _, body := range []string{`{"requests":` + two + `}`, `{"requests":` + two + `,"fleet":null}`} {
		resp, answer := b.do("POST", "/v1/placements/simulate", "operator", js, body)
		require.Equal(t, 200, resp.StatusCode, "%s", answer)
		live := as[api.SimulationResult](t, answer).Results
		require.Len(t, live, 2)
		require.Equal(t, placement.AwaitingCapacity, live[0].Outcome, "the live fleet is empty")
	}
	require.Zero(t, b.rows())
}

// TestASnapshotIsDecidedByTheConfiguredPolicy, except for the fields that the request sets.
func TestASnapshotIsDecidedByTheConfiguredPolicy(t *testing.T) {
	t.Parallel()
	b := setup(t, func(d *api.Deps) { d.Placer.Policy.MemoryPctMax = 10 })
	for policy, want := range map[string]placement.Outcome{
		`{}`: placement.AwaitingCapacity, `{"memory_pct_max":11}`: placement.Placed,
	} {
		of := `{"policy":` + policy + `,` + fleet[1:]
		_, body := b.do("POST", "/v1/placements/simulate", "operator", js, `{"requests":`+two+`,"fleet":`+of+`}`)
		require.Equal(t, want, as[api.SimulationResult](t, body).Results[0].Outcome, policy)
	}
}

// TestSimulationsOfACallerAreLimited: the third one at a time is refused, and another caller's is not.
func TestSimulationsOfACallerAreLimited(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	simulate := func(who string) (int, string) {
		resp, body := b.do("POST", "/v1/placements/simulate", who, js, `{"requests":`+two+`,"fleet":`+fleet+`}`)
		if resp.StatusCode != http.StatusOK {
			require.NotEmpty(t, resp.Header.Get("Retry-After"))
			return resp.StatusCode, as[api.Problem](t, body).Code
		}
		return 200, ""
	}
	leave := b.api.Simulating(granted("viewer", "support"), 2)
	status, code := simulate("viewer")
	require.Equal(t, []any{429, "busy"}, []any{status, code})
	status, _ = simulate("operator")
	require.Equal(t, 200, status)
	leave()
	status, _ = simulate("viewer")
	require.Equal(t, 200, status)
}

// TestASimulationOutOfItsTimeIsTimedOut: the database has nothing to do with it.
func TestASimulationOutOfItsTimeIsTimedOut(t *testing.T) {
	t.Parallel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	_, err := api.SimulateOn(late, placement.DocFleet{}, make([]placement.Request, 1))
	require.Equal(t, prego.CodeTimedOut, prego.CodeOf(err), "%v", err)
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err = api.SimulateOn(gone, placement.DocFleet{}, make([]placement.Request, 1))
	require.ErrorIs(t, err, context.Canceled)
}

// fleet adds active servers: of apps, shards and pools, named so.
func (b *bundle) fleet(ids ...prego.ServerID) {
	b.t.Helper()
	for _, id := range ids {
		kind, _, _ := strings.Cut(string(id), "-")
		role := map[string]prego.Role{"app": prego.RoleApp, "db": prego.RoleDBShard, "redis": prego.RoleRedisPool}[kind]
		_, err := b.store.RequestFleetServer(b.t.Context(), server.Wanted{ServerID: id, Role: role, Region: "eu", Provider: "hetzner"}, "test")
		require.NoError(b.t, err)
		b.sql(`UPDATE servers SET status = 'active', agent_status = 'connected', memory_pct = 20, active_at = now() WHERE server_id = $1`, id)
	}
}

func TestOverride(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1")
	id := b.tenant(`{"slug":"one","org_id":"acme","region":"eu","plan":"starter"}`)
	resp, body := b.do("POST", "/internal/placement-overrides", "operator", js, `{"tenant_id":"`+id+`","force_app_server_id":"app-1","reason":" colocate "}`)
	require.Equal(t, 200, resp.StatusCode, "%s", body)
	line := as[placement.Line](t, body)
	require.Equal(t, id, string(line.TenantID))
	require.Equal(t, "app-1", string(line.AppServerID))
	require.Equal(t, placement.Manual, line.Decision.Algorithm)
	require.Equal(t, "manual: colocate", line.Decision.SelectionReason)
	require.Contains(t, b.runs.asked(), "wake "+id)
}

func TestPools(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.do("POST", create, "operator", js, valid)
	b.set("app-1", server.Active)
	_, body := b.do("GET", "/v1/site-pools?region=eu", "viewer", "", "")
	pools := as[api.SitePoolList](t, body).SitePools
	require.Len(t, pools, 1)
	require.Equal(t, "app-1", pools[0].ServerId)
	_, body = b.do("GET", "/v1/site-pools?region=us", "viewer", "", "")
	require.Empty(t, as[api.SitePoolList](t, body).SitePools)
	resp, body := b.do("POST", "/v1/site-pools/app-1/refill", "operator", "", "")
	require.Equal(t, 202, resp.StatusCode)
	require.Equal(t, "site-pool-refill/app-1", as[api.WorkflowStarted](t, body).WorkflowId)

	resp, body = b.do("PUT", "/v1/site-pool-policies/starter", "operator", js, `{"low_watermark":0,"target":7,"slo_seconds":60}`)
	require.Equal(t, 200, resp.StatusCode, "%s", body)
	_, body = b.do("GET", "/v1/site-pool-policies", "viewer", "", "")
	policies := as[api.SitePoolPolicyList](t, body).SitePoolPolicies
	require.Len(t, policies, 4)
	require.Equal(t, api.SitePoolPolicy{Plan: "starter", LowWatermark: 0, Target: 7, SloSeconds: 60}, policies[1])

	resp, body = b.do("PUT", "/v1/warm-pools/eu/starter", "operator", js, `{"target":2}`)
	require.Equal(t, 202, resp.StatusCode, "%s", body)
	require.Equal(t, "warm-pool/test/eu/starter", deref(as[api.WarmPoolAccepted](t, body).WorkflowId))
	_, body = b.do("GET", "/v1/warm-pools", "viewer", "", "")
	warm := as[api.WarmPoolList](t, body).WarmPools
	require.Len(t, warm, 1)
	require.Equal(t, 2, warm[0].Target)
	require.Equal(t, "operator", warm[0].UpdatedBy)

	b.sql(`INSERT INTO scaling_events (region, role, trigger, waiting, requested, server_ids, workflow_id, round) VALUES ('eu', 'app', 'threshold', 3, 1, '{app-9}', 'scale-out/test/eu/app', 'r1')`)
	_, body = b.do("GET", "/v1/scaling-events?region=eu&limit=10", "viewer", "", "")
	events := as[api.ScalingEventList](t, body).ScalingEvents
	require.Len(t, events, 1)
	require.Equal(t, []string{"app-9"}, events[0].ServerIds)
	require.Equal(t, "http://ui/scale-out/test/eu/app", deref(events[0].RunUrl))

	b.runs.fail = errors.New("temporal is away")
	resp, _ = b.do("POST", "/v1/site-pools/app-1/refill", "operator", "", "")
	require.Equal(t, 503, resp.StatusCode)
	resp, body = b.do("PUT", "/v1/warm-pools/eu/trial", "operator", js, `{"target":0}`)
	require.Equal(t, 202, resp.StatusCode, "%s", body)
	require.Nil(t, as[api.WarmPoolAccepted](t, body).WorkflowId)
}
