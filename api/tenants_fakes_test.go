package api_test

import (
	"context"
	"net/http"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
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
