package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
)

// quotaOf is one line of an org's quotas.
func (b *bundle) quotaOf(org, dimension string) api.OrgQuota {
	b.t.Helper()
	all := as[api.OrgQuotas](b.t, b.ok(200, "GET", "/v1/orgs/"+org+"/quotas", ""))
	i := slices.IndexFunc(all.Quotas, func(q api.OrgQuota) bool { return q.Dimension == dimension })
	require.GreaterOrEqual(b.t, i, 0, dimension)
	return all.Quotas[i]
}

// exceeded asks for something that is refused by quota.
func (b *bundle) exceeded(method, path, body string) org.QuotaExceeded {
	b.t.Helper()
	resp, answer := b.do(method, path, "operator", js, body)
	require.Equal(b.t, http.StatusConflict, resp.StatusCode, "%s", answer)
	p := as[api.Problem](b.t, answer)
	require.Equal(b.t, "quota_exceeded", p.Code)
	require.NotNil(b.t, p.Dimension, "%s", answer)
	return org.QuotaExceeded{Dimension: *p.Dimension, Limit: *p.Limit, CurrentUsage: *p.CurrentUsage, RequestedDelta: *p.RequestedDelta}
}

func (b *bundle) orgEvents(org, query string) api.OrgEventPage {
	b.t.Helper()
	return as[api.OrgEventPage](b.t, b.ok(200, "GET", "/v1/orgs/"+org+"/events"+query, ""))
}

func types(p api.OrgEventPage) (out []string) {
	for _, e := range p.Events {
		out = append(out, e.Type)
	}
	return out
}

func TestOrgsHaveTiers(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	o := as[api.Org](t, b.ok(200, "PUT", "/v1/orgs/acme", `{}`))
	require.Equal(t, prego.TierFree, o.Tier)
	o = as[api.Org](t, b.ok(200, "PUT", "/v1/orgs/acme", `{"tier":"paid"}`))
	require.Equal(t, prego.TierPaid, o.Tier)
	o = as[api.Org](t, b.ok(200, "PUT", "/v1/orgs/acme", `{}`))
	require.Equal(t, prego.TierPaid, o.Tier, "an omitted field stays")
	require.Equal(t, prego.TierPaid, as[api.Org](t, b.ok(200, "GET", "/v1/orgs/acme", "")).Tier)
	require.Equal(t, prego.TierPaid, as[api.OrgPage](t, b.ok(200, "GET", "/v1/orgs", "")).Orgs[0].Tier)
	events := b.orgEvents("acme", "")
	require.Equal(t, []string{"org.tier_set", "org.create"}, types(events))
	require.JSONEq(t, `{"old":"free","new":"paid"}`, string(events.Events[0].Payload))
}

func TestQuotasAreShownAndSet(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.ok(200, "PUT", "/v1/orgs/acme", `{}`)
	all := as[api.OrgQuotas](t, b.ok(200, "GET", "/v1/orgs/acme/quotas", ""))
	require.Equal(t, prego.TierFree, all.Tier)
	var order []quota.Dimension
	for _, q := range all.Quotas {
		order = append(order, quota.Dimension(q.Dimension))
		require.Equal(t, quota.DefaultTiers()[prego.TierFree][quota.Dimension(q.Dimension)], q.Limit, q.Dimension)
		require.Equal(t, "tier", q.Source)
		require.Zero(t, q.Usage)
		require.Equal(t, q.Limit, q.Headroom)
	}
	require.Equal(t, quota.Dimensions(), order)

	b.ok(201, "POST", "/v1/apps", `{"org_id":"acme","name":"one"}`)
	b.ok(201, "POST", "/v1/apps", `{"org_id":"acme","name":"two"}`)
	path := "/v1/orgs/acme/quotas/max_apps"
	q := as[api.OrgQuota](t, b.ok(200, "PUT", path, `{"limit":1,"reason":"too many, password=hunter2hunter2"}`))
	require.Equal(t, []any{1.0, "override", 2.0, 0.0, "operator"}, []any{q.Limit, q.Source, q.Usage, q.Headroom, deref(q.UpdatedBy)})
	require.NotContains(t, deref(q.Reason), "hunter2")
	require.Equal(t, q, b.quotaOf("acme", "max_apps"))
	require.Equal(t, org.QuotaExceeded{Dimension: "max_apps", Limit: 1, CurrentUsage: 2, RequestedDelta: 1},
		b.exceeded("POST", "/v1/apps", `{"org_id":"acme","name":"three"}`))
	b.ok(200, "PUT", path, `{"limit":1,"reason":"again"}`) // the same limit: nothing happened
	b.ok(200, "PUT", path, `{"limit":3,"reason":"more"}`)
	b.ok(201, "POST", "/v1/apps", `{"org_id":"acme","name":"three"}`)
	q = as[api.OrgQuota](t, b.ok(200, "DELETE", path, `{"reason":"trial over"}`))
	require.Equal(t, []any{2.0, "tier", 3.0, 0.0}, []any{q.Limit, q.Source, q.Usage, q.Headroom})
	b.ok(200, "DELETE", path, "")
	q = as[api.OrgQuota](t, b.ok(200, "PUT", "/v1/orgs/acme/quotas/max_total_cpu_request", `{"limit":0.5,"reason":"cpu"}`))
	require.InDelta(t, 0.5, q.Limit, 0)

	events := b.orgEvents("acme", "?type=org.quota")
	require.Len(t, events.Events, 4)
	require.JSONEq(t, `{"dimension":"max_apps","old":3,"new":2,"old_source":"override","new_source":"tier"}`, string(events.Events[1].Payload))
	require.Equal(t, []string{"operator", "trial over", "max_apps"}, []string{events.Events[1].Actor, deref(events.Events[1].Reason), events.Events[1].Subject})
	require.JSONEq(t, `{"dimension":"max_apps","old":2,"new":1,"old_source":"tier","new_source":"override"}`, string(events.Events[3].Payload))
	require.NotContains(t, deref(events.Events[3].Reason), "hunter2")

	// Another tier's limits apply immediately, except where the org has its own.
	b.ok(200, "PUT", "/v1/orgs/acme", `{"tier":"paid"}`)
	require.Equal(t, 25.0, b.quotaOf("acme", "max_apps").Limit)
	require.Equal(t, 0.5, b.quotaOf("acme", "max_total_cpu_request").Limit)
}

func TestEventsArePaged(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.org("other", "")
	for i := range 5 {
		b.ok(201, "POST", "/v1/apps", fmt.Sprintf(`{"org_id":"acme","name":"a%d"}`, i))
		b.ok(201, "POST", "/v1/apps", fmt.Sprintf(`{"org_id":"other","name":"a%d"}`, i))
	}
	var seen []string
	query := "?limit=2"
	for {
		page := b.orgEvents("acme", query)
		for _, e := range page.Events {
			var p struct{ Name string }
			require.NoError(t, json.Unmarshal(e.Payload, &p))
			seen = append(seen, p.Name)
		}
		if page.NextCursor == nil {
			break
		}
		b.ok(201, "POST", "/v1/apps", fmt.Sprintf(`{"org_id":"acme","name":"late-%d"}`, len(seen))) // is before the walk
		query = "?limit=2&cursor=" + *page.NextCursor
	}
	require.Equal(t, []string{"a4", "a3", "a2", "a1", "a0", ""}, seen)
	require.Empty(t, b.orgEvents("acme", "?type=tenant.").Events)
	require.Empty(t, b.orgEvents("acme", "?type=app_").Events, "an underscore is an underscore")
}

func TestTenantsTakeTheirOrgsQuota(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.ok(200, "PUT", "/v1/orgs/acme", `{}`)
	b.ok(200, "PUT", "/v1/orgs/acme/quotas/max_instances", `{"limit":2,"reason":"test"}`)
	order := func(slug, more string) string {
		return `{"slug":"` + slug + `","org_id":"acme","region":"eu","plan":"starter"` + more + `}`
	}
	one, two := b.tenant(order("one", "")), b.tenant(order("two", `,"storage_quota_gb":30`))
	require.Equal(t, 2.0, b.quotaOf("acme", "max_instances").Usage)
	require.Equal(t, 2.0*(1<<30+32<<20), b.quotaOf("acme", "max_total_memory_bytes").Usage)
	require.Equal(t, 1.0, b.quotaOf("acme", "max_total_cpu_request").Usage)
	require.Equal(t, 40e9, b.quotaOf("acme", "max_total_volume_bytes").Usage)
	require.Equal(t, org.QuotaExceeded{Dimension: "max_instances", Limit: 2, CurrentUsage: 2, RequestedDelta: 1}, b.exceeded("POST", "/v1/tenants", order("three", "")))
	b.ok(200, "PUT", "/v1/orgs/acme/quotas/max_instances", `{"limit":9,"reason":"test"}`)
	require.Equal(t, org.QuotaExceeded{Dimension: "max_total_volume_bytes", Limit: 50e9, CurrentUsage: 40e9, RequestedDelta: 20e9},
		b.exceeded("POST", "/v1/tenants", order("three", `,"storage_quota_gb":20`)))
	require.Equal(t, org.QuotaExceeded{Dimension: "max_total_memory_bytes", Limit: 8 << 30, CurrentUsage: 2 * (1<<30 + 32<<20), RequestedDelta: 8<<30 + 32<<20},
		b.exceeded("POST", "/v1/tenants", strings.Replace(order("three", ""), "starter", "enterprise", 1)))

	// A failed item without remains is free, and a retry takes it again.
	b.ok(200, "PUT", "/v1/orgs/acme/quotas/max_instances", `{"limit":2,"reason":"test"}`)
	b.sql(`UPDATE tenants SET state = 'failed', converged_state = 'failed' WHERE tenant_id = $1`, one)
	require.Equal(t, 1.0, b.quotaOf("acme", "max_instances").Usage)
	three := b.tenant(order("three", ""))
	require.Equal(t, "max_instances", b.exceeded("POST", "/v1/tenants/"+one+"/retry", "").Dimension)
	require.Equal(t, api.TenantState("failed"), b.showTenant(one).State)
	b.sql(`UPDATE tenants SET state = 'active' WHERE tenant_id = $1`, three)
	b.ok(202, "POST", "/v1/tenants/"+three+"/cancel", `{"reason":"enough"}`)
	require.Equal(t, 2.0, b.quotaOf("acme", "max_instances").Usage, "in its grace period it can come back")
	b.ok(202, "POST", "/v1/tenants/"+three+"/reactivate", "")
	b.ok(202, "POST", "/v1/tenants/"+three+"/cancel", "")
	b.ok(202, "POST", "/v1/tenants/"+three+"/terminate", "")
	require.Equal(t, 1.0, b.quotaOf("acme", "max_instances").Usage, "it never had a place: nothing is left of it")
	b.ok(202, "POST", "/v1/tenants/"+one+"/retry", "")
	require.Equal(t, 2.0, b.quotaOf("acme", "max_instances").Usage)
	require.Equal(t, []string{"tenant.retry", "tenant.terminate", "tenant.cancel", "tenant.reactivate", "tenant.cancel", "tenant.create", "tenant.create", "tenant.create"},
		types(b.orgEvents("acme", "?type=tenant.")))
	_ = two

	// The rejections are counted by endpoint and dimension.
	metrics := b.metrics()
	require.Contains(t, metrics, `prego_quota_rejections_total{dimension="max_instances",endpoint="POST /v1/tenants"} 1`)
	require.Contains(t, metrics, `prego_quota_rejections_total{dimension="max_instances",endpoint="POST /v1/tenants/:tenant_id/retry"} 1`)
	require.Contains(t, metrics, `prego_quota_rejections_total{dimension="max_total_volume_bytes",endpoint="POST /v1/tenants"} 1`)
}

// TestARepeatedRequestIsNeverRefused sends the request that takes the last of a quota
// many times concurrently, and again when the org has nothing left.
func TestARepeatedRequestIsNeverRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.ok(200, "PUT", "/v1/orgs/acme", `{}`)
	for _, d := range []string{"max_instances", "max_apps", "max_envs"} {
		b.ok(200, "PUT", "/v1/orgs/acme/quotas/"+d, `{"limit":1,"reason":"test"}`)
	}
	var app string
	for _, tc := range []struct{ path, body, id string }{
		{"/v1/tenants", `{"slug":"one","org_id":"acme","region":"eu","plan":"starter"}`, "tenant_id"},
		{"/v1/apps", `{"org_id":"acme","name":"shop"}`, "app_id"},
		{"/v1/apps/%s/envs", `{"name":"prod","region":"eu"}`, "env_id"},
	} {
		path := tc.path
		if strings.Contains(path, "%s") {
			path = fmt.Sprintf(path, app)
		}
		ids, made := map[string]bool{}, 0
		var mu sync.Mutex
		ask := func() {
			resp, body := b.sendWith("POST", path, tc.body, "Idempotency-Key", "k"+tc.id)
			mu.Lock()
			defer mu.Unlock()
			if resp.StatusCode == http.StatusCreated {
				made++
			}
			require.Less(t, resp.StatusCode, 300, "%s", body)
			ids[as[map[string]any](t, body)[tc.id].(string)] = true
		}
		var wg sync.WaitGroup
		for range 12 {
			wg.Add(1)
			go func() { defer wg.Done(); ask() }()
		}
		wg.Wait()
		ask()
		require.Len(t, ids, 1, tc.path)
		if tc.id != "tenant_id" {
			require.Equal(t, 1, made, tc.path)
		}
		for id := range ids {
			app = id
		}
		other := strings.NewReplacer(`"one"`, `"two"`, `"shop"`, `"two"`, `"prod"`, `"two"`).Replace(tc.body)
		resp, body := b.sendWith("POST", path, other, "Idempotency-Key", "k"+tc.id)
		require.Equal(t, http.StatusConflict, resp.StatusCode)
		require.Equal(t, "idempotency_key_conflict", as[api.Problem](t, body).Code)
		b.exceeded("POST", path, other)
	}
}

func TestAppsAndEnvs(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.org("other", "")
	app := as[api.App](t, b.ok(201, "POST", "/v1/apps", `{"org_id":"acme","name":"shop"}`))
	require.Regexp(t, `^app-[a-z2-7]{12}$`, app.AppId)
	require.Equal(t, app, as[api.App](t, b.ok(200, "GET", "/v1/apps/"+app.AppId, "")))
	p := as[api.Problem](t, b.ok(409, "POST", "/v1/apps", `{"org_id":"acme","name":"shop"}`))
	require.Equal(t, []string{"app_exists", "name"}, []string{p.Code, deref(p.Field)})
	require.Contains(t, deref(p.Detail), app.AppId)
	b.ok(201, "POST", "/v1/apps", `{"org_id":"other","name":"shop"}`)
	require.Len(t, as[api.AppPage](t, b.ok(200, "GET", "/v1/apps", "")).Apps, 2)
	require.Equal(t, []api.App{app}, as[api.AppPage](t, b.ok(200, "GET", "/v1/apps?org_id=acme", "")).Apps)

	envs := "/v1/apps/" + app.AppId + "/envs"
	prod := as[api.Env](t, b.ok(201, "POST", envs, `{"name":"prod","region":"eu"}`))
	require.Regexp(t, `^env-[a-z2-7]{12}$`, prod.EnvId)
	require.Equal(t, []string{"acme", app.AppId, "eu"}, []string{prod.OrgId, prod.AppId, string(prod.Region)})
	require.Equal(t, prod, as[api.Env](t, b.ok(200, "GET", "/v1/envs/"+prod.EnvId, "")))
	p = as[api.Problem](t, b.ok(409, "POST", envs, `{"name":"prod","region":"us"}`))
	require.Equal(t, "env_exists", p.Code)
	require.Contains(t, deref(p.Detail), prod.EnvId)
	b.ok(201, "POST", envs, `{"name":"stage","region":"us"}`)
	first := as[api.EnvPage](t, b.ok(200, "GET", envs+"?limit=1", ""))
	require.Equal(t, "stage", first.Envs[0].Name)
	second := as[api.EnvPage](t, b.ok(200, "GET", envs+"?limit=1&cursor="+*first.NextCursor, ""))
	require.Equal(t, "prod", second.Envs[0].Name)
	require.Nil(t, second.NextCursor)

	require.Equal(t, "app_in_use", as[api.Problem](t, b.ok(409, "DELETE", "/v1/apps/"+app.AppId, "")).Code)
	for _, of := range [][2]string{
		{"process_groups", `INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
			VALUES ('grp-1', $1, 'acme', 'eu', 'web', '{}', 1, 0, 0, 'test')`},
		{"routes", `INSERT INTO routes (route_id, org_id, env_id, group_id, listener_scope, listen_port, protocol, target_port, created_by)
			VALUES ('rte-1', 'acme', $1, 'grp-1', 'shared_v6', 80, 'tcp', 80, 'test')`},
		{"ipv4_allocations", `INSERT INTO ipv4_allocations (allocation_id, org_id, env_id, provider, location, name, status, created_by)
			VALUES ('ip4-1', 'acme', $1, 'hetzner', 'fsn1', 'n', 'ready', 'test')`},
	} {
		table, row := of[0], of[1]
		b.sql(row, prod.EnvId)
		require.Equal(t, "env_in_use", as[api.Problem](t, b.ok(409, "DELETE", "/v1/envs/"+prod.EnvId, "")).Code, table)
		b.sql(`UPDATE ` + table + ` SET deleted_at = now()`)
	}
	for range 2 {
		b.ok(204, "DELETE", "/v1/envs/"+prod.EnvId, "")
	}
	require.Equal(t, "env_not_found", as[api.Problem](t, b.ok(404, "GET", "/v1/envs/"+prod.EnvId, "")).Code)
	b.ok(204, "DELETE", "/v1/envs/"+first.Envs[0].EnvId, "")
	for range 2 {
		b.ok(204, "DELETE", "/v1/apps/"+app.AppId, "")
	}
	require.Equal(t, "app_not_found", as[api.Problem](t, b.ok(404, "POST", envs, `{"name":"late","region":"eu"}`)).Code)
	b.ok(201, "POST", "/v1/apps", `{"org_id":"acme","name":"shop"}`) // the name is free again
	for path, n := range map[string]int{"/v1/apps?org_id=acme": 1, "/v1/envs?org_id=acme": 2, envs + "?limit=9": 2, "/v1/envs/" + prod.EnvId + "/routes?limit=9": 1} {
		all := b.ok(200, "GET", path+"&all=true", "")
		require.Equal(t, n, strings.Count(string(all), `"deleted_at"`), "%s: %s", path, all)
		_, without := b.send("GET", path, "viewer", "", "")
		require.NotContains(t, string(without), `"deleted_at"`, path)
	}
	for _, path := range []string{"/v1/groups?", "/v1/envs/" + prod.EnvId + "/groups?"} { // whose spec is none of the contract's
		_, all := b.send("GET", path+"all=true", "viewer", "", "")
		require.Equal(t, 1, strings.Count(string(all), `"deleted_at"`), "%s: %s", path, all)
	}
	require.Equal(t, []string{"app.create", "app.delete", "env.delete", "env.delete", "env.create", "env.create", "app.create"},
		slices.DeleteFunc(types(b.orgEvents("acme", "")), func(s string) bool { return strings.HasPrefix(s, "org.") }))
}

func TestBadInputOfQuotasIsRefusedAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	app := as[api.App](t, b.ok(201, "POST", "/v1/apps", `{"org_id":"acme","name":"taken"}`))
	count := func() (n int) {
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM org_events) + (SELECT count(*) FROM org_quotas) + (SELECT count(*) FROM apps)
			+ (SELECT count(*) FROM envs) + (SELECT count(*) FROM request_keys WHERE created_id IS NOT NULL)`).Scan(&n))
		return n
	}
	before := count()
	const (
		apps  = "/v1/orgs/acme/quotas/max_apps"
		cpu   = "/v1/orgs/acme/quotas/max_total_cpu_request"
		limit = "invalid_field"
	)
	envs := "/v1/apps/" + app.AppId + "/envs"
	for name, tc := range map[string]struct {
		method, path, token, body string
		status                    int
		code, field               string
	}{
		"viewer sets":            {"PUT", apps, "viewer", `{"limit":1,"reason":"r"}`, 403, "forbidden", ""},
		"viewer unsets":          {"DELETE", apps, "viewer", "", 403, "forbidden", ""},
		"no token":               {"GET", "/v1/orgs/acme/quotas", "", "", 401, "unauthenticated", ""},
		"unknown dimension":      {"PUT", "/v1/orgs/acme/quotas/max_fun", "operator", `{"limit":1,"reason":"r"}`, 422, limit, "dimension"},
		"dimension with NUL":     {"DELETE", "/v1/orgs/acme/quotas/max%00apps", "operator", "", 422, limit, "dimension"},
		"dimension in capitals":  {"PUT", "/v1/orgs/acme/quotas/MAX_APPS", "operator", `{"limit":1,"reason":"r"}`, 422, limit, "dimension"},
		"unknown org":            {"PUT", "/v1/orgs/ghost/quotas/max_apps", "operator", `{"limit":1,"reason":"r"}`, 404, "not_found", ""},
		"unknown org unset":      {"DELETE", "/v1/orgs/ghost/quotas/max_apps", "operator", "", 404, "not_found", ""},
		"unknown org shown":      {"GET", "/v1/orgs/ghost/quotas", "viewer", "", 404, "not_found", ""},
		"unknown org's events":   {"GET", "/v1/orgs/ghost/events", "viewer", "", 404, "not_found", ""},
		"bad org":                {"GET", "/v1/orgs/A/quotas", "viewer", "", 422, limit, "org_id"},
		"negative":               {"PUT", apps, "operator", `{"limit":-1,"reason":"r"}`, 422, limit, "limit"},
		"fraction":               {"PUT", apps, "operator", `{"limit":1.5,"reason":"r"}`, 422, limit, "limit"},
		"negative CPU":           {"PUT", cpu, "operator", `{"limit":-0.5,"reason":"r"}`, 422, limit, "limit"},
		"above 2^53":             {"PUT", apps, "operator", `{"limit":9007199254740994,"reason":"r"}`, 422, limit, "limit"},
		"overflow":               {"PUT", apps, "operator", `{"limit":99999999999999999999,"reason":"r"}`, 422, limit, "limit"},
		"overflowing a float":    {"PUT", cpu, "operator", `{"limit":1e400,"reason":"r"}`, 422, limit, "limit"},
		"NaN":                    {"PUT", cpu, "operator", `{"limit":NaN,"reason":"r"}`, 400, "invalid_json", ""},
		"infinity":               {"PUT", cpu, "operator", `{"limit":Infinity,"reason":"r"}`, 400, "invalid_json", ""},
		"NaN in a string":        {"PUT", cpu, "operator", `{"limit":"NaN","reason":"r"}`, 422, limit, "limit"},
		"a string":               {"PUT", apps, "operator", `{"limit":"10","reason":"r"}`, 422, limit, "limit"},
		"null":                   {"PUT", apps, "operator", `{"limit":null,"reason":"r"}`, 422, limit, "limit"},
		"no limit":               {"PUT", apps, "operator", `{"reason":"r"}`, 422, limit, "limit"},
		"no reason":              {"PUT", apps, "operator", `{"limit":1}`, 422, limit, "reason"},
		"blank reason":           {"PUT", apps, "operator", `{"limit":1,"reason":" "}`, 422, limit, "reason"},
		"long reason":            {"PUT", apps, "operator", `{"limit":1,"reason":"` + strings.Repeat("r", 501) + `"}`, 422, limit, "reason"},
		"reason with NUL":        {"PUT", apps, "operator", `{"limit":1,"reason":"a\u0000"}`, 422, limit, "reason"},
		"unknown field":          {"PUT", apps, "operator", `{"limit":1,"reason":"r","org":"x"}`, 400, "unknown_field", "org"},
		"limit twice":            {"PUT", apps, "operator", `{"limit":1,"limit":2,"reason":"r"}`, 400, "duplicate_field", "limit"},
		"no body":                {"PUT", apps, "operator", "", 400, "invalid_json", ""},
		"bad tier":               {"PUT", "/v1/orgs/acme", "operator", `{"tier":"gold"}`, 422, limit, "tier"},
		"tier a number":          {"PUT", "/v1/orgs/acme", "operator", `{"tier":1}`, 422, limit, "tier"},
		"tier null":              {"PUT", "/v1/orgs/acme", "operator", `{"tier":null}`, 422, limit, "tier"},
		"event type":             {"GET", "/v1/orgs/acme/events?type=A%25", "viewer", "", 422, limit, "type"},
		"event type empty":       {"GET", "/v1/orgs/acme/events?type=", "viewer", "", 422, limit, "type"},
		"event limit":            {"GET", "/v1/orgs/acme/events?limit=0", "viewer", "", 422, limit, "limit"},
		"event cursor":           {"GET", "/v1/orgs/acme/events?cursor=x", "viewer", "", 422, limit, "cursor"},
		"event cursor overflows": {"GET", "/v1/orgs/acme/events?cursor=9999999999999999999", "viewer", "", 422, limit, "cursor"},
		"event cursor 0":         {"GET", "/v1/orgs/acme/events?cursor=0", "viewer", "", 422, limit, "cursor"},
		"event filter":           {"GET", "/v1/orgs/acme/events?by=me", "viewer", "", 400, "unknown_field", "by"},
		"app without org":        {"POST", "/v1/apps", "operator", `{"name":"a"}`, 422, limit, "org_id"},
		"app of unknown org":     {"POST", "/v1/apps", "operator", `{"org_id":"ghost","name":"a"}`, 422, "org_unknown", "org_id"},
		"app without name":       {"POST", "/v1/apps", "operator", `{"org_id":"acme"}`, 422, limit, "name"},
		"app of bad name":        {"POST", "/v1/apps", "operator", `{"org_id":"acme","name":"A b"}`, 422, limit, "name"},
		"app of long name":       {"POST", "/v1/apps", "operator", `{"org_id":"acme","name":"` + strings.Repeat("a", 64) + `"}`, 422, limit, "name"},
		"viewer makes an app":    {"POST", "/v1/apps", "viewer", `{"org_id":"acme","name":"a"}`, 403, "forbidden", ""},
		"unknown app":            {"GET", "/v1/apps/app-nope", "viewer", "", 404, "app_not_found", ""},
		"unknown app deleted":    {"DELETE", "/v1/apps/app-nope", "operator", "", 404, "app_not_found", ""},
		"bad app":                {"GET", "/v1/apps/env-1", "viewer", "", 422, limit, "app_id"},
		"app with NUL":           {"DELETE", "/v1/apps/app-%00", "operator", "", 422, limit, "app_id"},
		"apps' cursor":           {"GET", "/v1/apps?cursor=x", "viewer", "", 422, limit, "cursor"},
		"apps' cursor empty":     {"GET", "/v1/apps?cursor=", "viewer", "", 422, limit, "cursor"},
		"apps of bad org":        {"GET", "/v1/apps?org_id=A", "viewer", "", 422, limit, "org_id"},
		"apps' limit":            {"GET", "/v1/apps?limit=201", "viewer", "", 422, limit, "limit"},
		"env of unknown app":     {"POST", "/v1/apps/app-nope/envs", "operator", `{"name":"a","region":"eu"}`, 404, "app_not_found", ""},
		"envs of unknown app":    {"GET", "/v1/apps/app-nope/envs", "viewer", "", 404, "app_not_found", ""},
		"env without region":     {"POST", envs, "operator", `{"name":"a"}`, 422, limit, "region"},
		"env in bad region":      {"POST", envs, "operator", `{"name":"a","region":"mars"}`, 422, limit, "region"},
		"env without name":       {"POST", envs, "operator", `{"region":"eu"}`, 422, limit, "name"},
		"unknown env":            {"GET", "/v1/envs/env-nope", "viewer", "", 404, "env_not_found", ""},
		"unknown env deleted":    {"DELETE", "/v1/envs/env-nope", "operator", "", 404, "env_not_found", ""},
		"bad env":                {"GET", "/v1/envs/prod", "viewer", "", 422, limit, "env_id"},
	} {
		contentType := ""
		if tc.body != "" || tc.method == "PUT" || tc.method == "POST" {
			contentType = js
		}
		resp, body := b.do(tc.method, tc.path, tc.token, contentType, tc.body)
		require.Equal(t, tc.status, resp.StatusCode, "%s: %s", name, body)
		p := as[api.Problem](t, body)
		require.Equal(t, []string{tc.code, tc.field}, []string{p.Code, deref(p.Field)}, "%s: %s", name, body)
		beyond := []string{"fraction", "blank reason", "overflowing a float", "app of unknown org", "reason with NUL", "event cursor overflows"}
		if tc.status == 422 && tc.body != "" && !slices.Contains(beyond, name) {
			require.True(t, b.contractRefuses(tc.method, tc.path, js, tc.body), "%s: the contract lets it pass", name)
		}
	}
	require.Equal(t, before, count(), "a refused request writes nothing")
}

func TestTheContractKnowsEveryDimensionAndMetric(t *testing.T) {
	t.Parallel()
	var inContract []quota.Dimension
	for _, d := range contract(t).Components.Schemas["Dimension"].Value.Enum {
		inContract = append(inContract, quota.Dimension(d.(string)))
	}
	require.Equal(t, quota.Dimensions(), inContract)

	reg := prometheus.NewRegistry()
	b := setup(t, func(d *api.Deps) { d.Registry = reg })
	b.ok(200, "PUT", "/v1/orgs/acme", `{}`)
	b.ok(200, "PUT", "/v1/orgs/acme/quotas/max_apps", `{"limit":0,"reason":"test"}`)
	b.exceeded("POST", "/v1/apps", `{"org_id":"acme","name":"a"}`)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != prego.MetricQuotaRejections {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		require.ElementsMatch(t, prego.Metrics()[prego.MetricQuotaRejections], labels)
		return
	}
	t.Fatal("no rejections are counted")
}
