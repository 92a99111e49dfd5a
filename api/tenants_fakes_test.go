package api_test

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

var periods = tenant.LifecyclePeriods{Trial: 14 * 24 * time.Hour, Grace: 7 * 24 * time.Hour, Retention: 30 * 24 * time.Hour}

func (r *runs) StartTenantProvision(ctx context.Context, t tenant.Tenant) error {
	return r.note(ctx, "provision "+t.Slug)
}

func (r *runs) CancelTenantProvision(ctx context.Context, _ prego.TenantID) error {
	return r.note(ctx, "cancel")
}

func (r *runs) StartTenantChange(ctx context.Context, _ prego.TenantID) error {
	return r.note(ctx, "change")
}

func (r *runs) StartRefill(ctx context.Context, id prego.ServerID) (string, error) {
	return tenant.RefillWorkflowID(id), r.note(ctx, string("refill "+id))
}

func (r *runs) StartWarmPool(ctx context.Context, region prego.Region, plan prego.Plan) (string, error) {
	return tenant.WarmPoolWorkflowID("test", region, plan), r.note(ctx, "warm "+string(region)+" "+string(plan))
}

// placer stands for live placement: a fleet in memory.
type placer struct {
	mu        sync.Mutex
	simulated []placement.Request
	overrides []string
}

func (p *placer) Simulate(_ context.Context, requests []placement.Request) (out []placement.Decision, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.simulated = append(p.simulated, requests...)
	f := placement.NewSnapshot(placement.DefaultPolicy(), placement.Data{})
	for _, r := range requests {
		out = append(out, f.Decide(r))
	}
	return out, nil
}

func (p *placer) Explain(context.Context, tenant.DecisionRecord) (placement.Kept, placement.Funnel, error) {
	return placement.Kept{}, placement.Funnel{}, prego.Errorf(prego.CodeInputNotKept, "the input is not kept")
}

func (p *placer) Replay(context.Context, tenant.DecisionRecord) (placement.Kept, placement.Replay, error) {
	return placement.Kept{}, placement.Replay{}, prego.Errorf(prego.CodeInputNotKept, "the input is not kept")
}

func (p *placer) WhatIf(_ context.Context, id prego.TenantID, r placement.Request, w placement.WhatIf) (out [2]placement.Answer, err error) {
	if id == "t-nobody" {
		return out, prego.Errorf(prego.CodeTenantNotFound, "there is no tenant %q", id)
	}
	f := placement.NewSnapshot(placement.DefaultPolicy(), placement.Data{})
	out[0] = f.Answer(r, 10)
	if r, err = w.Apply(f, r); err == nil {
		out[1] = f.Answer(r, 10)
	}
	return out, err
}

func (p *placer) Override(_ context.Context, o tenant.PlacementOverride, by string) (placement.Decision, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.overrides = append(p.overrides, by+" "+string(o.TenantID))
	switch {
	case o.TenantID == "t-nobody":
		return placement.Decision{}, prego.Errorf(prego.CodeTenantNotFound, "there is no tenant %q", o.TenantID)
	case o.TenantID == "t-placed":
		return placement.Decision{}, prego.Errorf(prego.CodeTenantPlaced, "the tenant has a place")
	case o.ForceAppServerID == "nope":
		return placement.Decision{}, prego.Errorf(prego.CodeServerUnknown, "there is no app server %q", o.ForceAppServerID)
	case o.ForceDBShardID == "nope":
		return placement.Decision{}, prego.Errorf(prego.CodeShardUnknown, "there is no DB shard %q", o.ForceDBShardID)
	case o.ForceAppServerID == "draining-1":
		return placement.Decision{}, prego.Errorf(prego.CodeInvariantViolation, "app server draining-1 is draining, not active")
	}
	return placement.Decision{
		Outcome: placement.Placed, AppServerID: o.ForceAppServerID, DBShardID: "db-1", RedisPoolID: "redis-1", PoolSiteID: "site-1",
		InfraProvider: prego.ProviderHetzner, Algorithm: placement.Manual, SelectionReason: "manual: " + o.Reason, Confidence: 1,
	}, nil
}

// org makes an org.
func (b *bundle) org(id, parent string) {
	b.t.Helper()
	body := `{"tier":"enterprise"}`
	if parent != "" {
		body = `{"tier":"enterprise","parent_org_id":"` + parent + `"}`
	}
	resp, answer := b.do("PUT", "/v1/orgs/"+id, "operator", js, body)
	require.Equal(b.t, http.StatusOK, resp.StatusCode, "%s", answer)
}

// tenant requests a tenant and returns its id.
func (b *bundle) tenant(body string) string {
	b.t.Helper()
	resp, answer := b.do("POST", "/v1/tenants", "operator", js, body)
	require.Equal(b.t, http.StatusAccepted, resp.StatusCode, "%s", answer)
	return as[api.TenantAccepted](b.t, answer).TenantId
}

func (b *bundle) showTenant(id string) api.Tenant {
	b.t.Helper()
	resp, body := b.do("GET", "/v1/tenants/"+id, "viewer", "", "")
	require.Equal(b.t, http.StatusOK, resp.StatusCode, "%s", body)
	return as[api.Tenant](b.t, body)
}

// sql writes rows as the runs would.
func (b *bundle) sql(text string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(context.Background(), text, args...)
	require.NoError(b.t, err)
}

const order = `{"slug":"acme-kr","org_id":"acme","region":"sg","plan":"starter","data_residency":"KR","apps":["erpnext"]}`
