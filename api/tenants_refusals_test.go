package api_test

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/tenant"
)

func TestBadInputOfTenantsIsRefusedAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.org("group", "")
	b.org("child", "group")
	b.tenant(`{"slug":"taken","org_id":"acme","region":"eu","plan":"starter"}`)
	b.do("POST", create, "operator", js, valid)
	b.do("POST", create, "operator", js, strings.ReplaceAll(strings.Replace(valid, `"app"`, `"redis-pool"`, 1), "app-1", "redis-1"))
	b.sql(`UPDATE infra_providers SET regions = '{sg,eu}'`)
	b.fleet("app-8", "app-9", "db-9", "redis-9")
	b.sql(`UPDATE servers SET server_id = 'draining-1', status = 'draining' WHERE server_id = 'app-8'`)
	for _, id := range []prego.TenantID{"t-1", "t-placed"} {
		r := tenant.CreateRequest{Slug: string(id), OrgID: "acme", Region: "eu", Plan: prego.PlanStarter}
		require.NoError(t, r.Validate())
		_, _, err := b.store.CreateTenant(t.Context(), r, id, tenant.ModeShared, "", "test")
		require.NoError(t, err)
	}
	resp, body := b.do("POST", "/internal/placement-overrides", "operator", js, `{"tenant_id":"t-placed","force_app_server_id":"app-9","reason":"r"}`)
	require.Equal(t, 200, resp.StatusCode, "%s", body)
	rows, started := b.rows(), len(b.runs.asked())
	with := func(old, replaced string) string {
		require.Contains(t, order, old)
		return strings.Replace(order, old, replaced, 1)
	}
	plus := func(member string) string { return with(`{`, `{`+member+`,`) }
	cursor := base64.RawURLEncoding.EncodeToString([]byte(`{"t":"2026-01-01T00:00:00Z","i":"A"}`))
	const (
		ts   = "/v1/tenants"
		sim  = "/v1/placements/simulate"
		over = "/internal/placement-overrides"
		pol  = "/v1/site-pool-policies/starter"
		warm = "/v1/warm-pools/eu/starter"
	)
	forced := `{"tenant_id":"t-1","force_app_server_id":"app-1","reason":"because"}`
	policy := `{"low_watermark":1,"target":2,"slo_seconds":60}`
	asked := `{"tenant_id":"t","region":"eu","plan":"starter"}`
	for name, tc := range map[string]struct {
		method, path, token, body string
		status                    int
		code, field               string
	}{
		"viewer creates":         {"POST", ts, "viewer", order, 403, "forbidden", ""},
		"viewer suspends":        {"POST", ts + "/t-1/suspend", "viewer", "", 403, "forbidden", ""},
		"viewer overrides":       {"POST", over, "viewer", forced, 403, "forbidden", ""},
		"viewer sets a pool":     {"PUT", warm, "viewer", `{"target":1}`, 403, "forbidden", ""},
		"no token":               {"POST", ts, "", order, 401, "unauthenticated", ""},
		"no body":                {"POST", ts, "operator", "", 400, "invalid_json", ""},
		"unknown field":          {"POST", ts, "operator", plus(`"slag":"a"`), 400, "unknown_field", "slag"},
		"duplicate field":        {"POST", ts, "operator", plus(`"plan":"trial"`), 400, "duplicate_field", "plan"},
		"null":                   {"POST", ts, "operator", with(`"acme-kr"`, `null`), 422, "invalid_field", "slug"},
		"slug a number":          {"POST", ts, "operator", with(`"acme-kr"`, `7`), 422, "invalid_field", "slug"},
		"no slug":                {"POST", ts, "operator", with(`"slug":"acme-kr",`, ``), 422, "invalid_field", "slug"},
		"slug with capitals":     {"POST", ts, "operator", with(`acme-kr`, `Acme`), 422, "invalid_field", "slug"},
		"slug with a dot":        {"POST", ts, "operator", with(`acme-kr`, `acme.kr`), 422, "invalid_field", "slug"},
		"slug with underscore":   {"POST", ts, "operator", with(`acme-kr`, `acme_kr`), 422, "invalid_field", "slug"},
		"slug with outer hyphen": {"POST", ts, "operator", with(`acme-kr`, `-acme`), 422, "invalid_field", "slug"},
		"slug with a newline":    {"POST", ts, "operator", with(`acme-kr`, `acme\n`), 422, "invalid_field", "slug"},
		"slug with NUL":          {"POST", ts, "operator", with(`acme-kr`, `a\u0000`), 422, "invalid_field", "slug"},
		"slug of 55":             {"POST", ts, "operator", with(`acme-kr`, strings.Repeat("a", 55)), 422, "invalid_field", "slug"},
		"slug taken":             {"POST", ts, "operator", with(`acme-kr`, `taken`), 409, "slug_taken", "slug"},
		"no org":                 {"POST", ts, "operator", with(`"org_id":"acme",`, ``), 422, "invalid_field", "org_id"},
		"unknown org":            {"POST", ts, "operator", with(`"acme"`, `"ghost"`), 422, "org_unknown", "org_id"},
		"bad org":                {"POST", ts, "operator", with(`"acme"`, `"a b"`), 422, "invalid_field", "org_id"},
		"unknown parent":         {"POST", ts, "operator", plus(`"parent_org_id":"ghost"`), 422, "org_unknown", "parent_org_id"},
		"bad parent":             {"POST", ts, "operator", plus(`"parent_org_id":"A"`), 422, "invalid_field", "parent_org_id"},
		"another parent":         {"POST", ts, "operator", strings.Replace(plus(`"parent_org_id":"acme"`), `"org_id":"acme"`, `"org_id":"child"`, 1), 422, "invalid_field", "parent_org_id"},
		"unknown region":         {"POST", ts, "operator", with(`"sg"`, `"mars"`), 422, "invalid_field", "region"},
		"region not served":      {"POST", ts, "operator", `{"slug":"a","org_id":"acme","region":"us","plan":"starter"}`, 422, "region_not_served", "region"},
		"unknown plan":           {"POST", ts, "operator", with(`starter`, `gold`), 422, "invalid_field", "plan"},
		"no plan":                {"POST", ts, "operator", with(`"plan":"starter",`, ``), 422, "invalid_field", "plan"},
		"negative users":         {"POST", ts, "operator", plus(`"expected_users":-1`), 422, "invalid_field", "expected_users"},
		"users too many":         {"POST", ts, "operator", plus(`"expected_users":1000001`), 422, "invalid_field", "expected_users"},
		"users a string":         {"POST", ts, "operator", plus(`"expected_users":"5"`), 422, "invalid_field", "expected_users"},
		"users a fraction":       {"POST", ts, "operator", plus(`"expected_users":1.5`), 422, "invalid_field", "expected_users"},
		"negative storage":       {"POST", ts, "operator", plus(`"storage_quota_gb":-1`), 422, "invalid_field", "storage_quota_gb"},
		"storage too much":       {"POST", ts, "operator", plus(`"storage_quota_gb":100001`), 422, "invalid_field", "storage_quota_gb"},
		"no country":             {"POST", ts, "operator", with(`"KR"`, `"Korea"`), 422, "invalid_field", "data_residency"},
		"country in small":       {"POST", ts, "operator", with(`"KR"`, `"kr"`), 422, "invalid_field", "data_residency"},
		"unknown country":        {"POST", ts, "operator", with(`"KR"`, `"ZZ"`), 422, "data_residency_unknown", "data_residency"},
		"country elsewhere":      {"POST", ts, "operator", with(`"KR"`, `"DE"`), 422, "data_residency_violation", "data_residency"},
		"redis for starter":      {"POST", ts, "operator", plus(`"dedicated_redis":true`), 422, "invalid_field", "dedicated_redis"},
		"redis a string":         {"POST", ts, "operator", plus(`"dedicated_redis":"yes"`), 422, "invalid_field", "dedicated_redis"},
		"bad app":                {"POST", ts, "operator", with(`"erpnext"`, `"ERP; rm"`), 422, "invalid_field", "apps[0]"},
		"app twice":              {"POST", ts, "operator", with(`"erpnext"`, `"erpnext","erpnext"`), 422, "invalid_field", "apps"},
		"apps a string":          {"POST", ts, "operator", with(`["erpnext"]`, `"erpnext"`), 422, "invalid_field", "apps"},
		"33 apps":                {"POST", ts, "operator", with(`["erpnext"]`, `["a0"`+apps(32)+`]`), 422, "invalid_field", "apps"},
		"bad policy":             {"POST", ts, "operator", plus(`"policy":"best"`), 422, "invalid_field", "policy"},
		"empty tag":              {"POST", ts, "operator", plus(`"constraint":{"require":[""]}`), 422, "invalid_field", "constraint.require"},
		"bad tag":                {"POST", ts, "operator", plus(`"constraint":{"disallow":["a b"]}`), 422, "invalid_field", "constraint.disallow"},
		"tag a number":           {"POST", ts, "operator", plus(`"constraint":{"disallow":[1]}`), 422, "invalid_field", "constraint.disallow[0]"},
		"unknown in constraint":  {"POST", ts, "operator", plus(`"constraint":{"prefer":[]}`), 400, "unknown_field", "constraint.prefer"},
		"query on create":        {"POST", ts + "?dry=1", "operator", order, 400, "unknown_field", "dry"},
		"too large":              {"POST", ts, "operator", `{"slug":"` + strings.Repeat("a", 70_000) + `"}`, 413, "body_too_large", ""},
		"unknown tenant":         {"GET", ts + "/t-nope", "viewer", "", 404, "tenant_not_found", ""},
		"decisions of unknown":   {"GET", ts + "/t-nope/decisions", "viewer", "", 404, "tenant_not_found", ""},
		"bad tenant id":          {"GET", ts + "/T", "viewer", "", 422, "invalid_field", "tenant_id"},
		"NUL in tenant id":       {"POST", ts + "/a%00/suspend", "operator", "", 422, "invalid_field", "tenant_id"},
		"suspend of unknown":     {"POST", ts + "/t-nope/suspend", "operator", "", 404, "tenant_not_found", ""},
		"purge by a caller":      {"POST", ts + "/t-1/purge", "operator", "", 404, "not_found", ""},
		"reason a number":        {"POST", ts + "/t-1/suspend", "operator", `{"reason":1}`, 422, "invalid_field", "reason"},
		"reason with NUL":        {"POST", ts + "/t-1/suspend", "operator", `{"reason":"a\u0000"}`, 422, "invalid_field", "reason"},
		"reason too long":        {"POST", ts + "/t-1/suspend", "operator", `{"reason":"` + strings.Repeat("a", 501) + `"}`, 422, "invalid_field", "reason"},
		"reason misspelt":        {"POST", ts + "/t-1/suspend", "operator", `{"raison":"a"}`, 400, "unknown_field", "raison"},
		"filter misspelt":        {"GET", ts + "?reg=eu", "viewer", "", 400, "unknown_field", "reg"},
		"filter state":           {"GET", ts + "?state=happy", "viewer", "", 422, "invalid_field", "state"},
		"filter plan":            {"GET", ts + "?plan=gold", "viewer", "", 422, "invalid_field", "plan"},
		"filter region":          {"GET", ts + "?region=mars", "viewer", "", 422, "invalid_field", "region"},
		"filter org":             {"GET", ts + "?org_id=%00", "viewer", "", 422, "invalid_field", "org_id"},
		"limit 201":              {"GET", ts + "?limit=201", "viewer", "", 422, "invalid_field", "limit"},
		"bad cursor":             {"GET", ts + "?cursor=x", "viewer", "", 422, "invalid_field", "cursor"},
		"cursor of no tenant":    {"GET", ts + "?cursor=" + cursor, "viewer", "", 422, "invalid_field", "cursor"},
		"empty cursor":           {"GET", ts + "?cursor=", "viewer", "", 422, "invalid_field", "cursor"},

		"simulate nothing":      {"POST", sim, "operator", `{"requests":[]}`, 422, "invalid_field", "requests"},
		"simulate without":      {"POST", sim, "operator", `{}`, 422, "invalid_field", "requests"},
		"simulate too many":     {"POST", sim, "operator", `{"requests":[` + asked + strings.Repeat(","+asked, 10_000) + `]}`, 422, "invalid_field", "requests"},
		"simulate twice one":    {"POST", sim, "operator", `{"requests":[` + asked + `,` + asked + `]}`, 422, "invalid_field", "requests[1].tenant_id"},
		"simulate bad region":   {"POST", sim, "operator", `{"requests":[` + strings.Replace(asked, "eu", "mars", 1) + `]}`, 422, "invalid_field", "requests[0].region"},
		"simulate bad tag":      {"POST", sim, "operator", `{"requests":[` + strings.Replace(asked, "{", `{"constraint":{"require":[""]},`, 1) + `]}`, 422, "invalid_field", "requests[0].constraint.require"},
		"simulate unknown":      {"POST", sim, "operator", `{"requests":[` + strings.Replace(asked, "{", `{"size":1,`, 1) + `]}`, 400, "unknown_field", "requests[0].size"},
		"fleet with requests":   {"POST", sim, "operator", `{"requests":[` + asked + `],"fleet":{"requests":[]}}`, 400, "unknown_field", "fleet.requests"},
		"fleet of bad role":     {"POST", sim, "operator", `{"requests":[` + asked + `],"fleet":{"servers":[{"server_id":"a","role":"king","region":"eu"}]}}`, 422, "invalid_field", "fleet.servers[0].role"},
		"fleet of bad policy":   {"POST", sim, "operator", `{"requests":[` + asked + `],"fleet":{"policy":{"mode":"chaos"}}}`, 422, "invalid_field", "fleet.policy.mode"},
		"fleet beyond a limit":  {"POST", sim, "operator", `{"requests":[` + asked + `],"fleet":{"policy":{"memory_pct_max":101}}}`, 422, "invalid_field", "fleet.policy.memory_pct_max"},
		"simulate 9 MiB":        {"POST", sim, "operator", `{"requests":[{"tenant_id":"` + strings.Repeat("a", 9<<20) + `"}]}`, 413, "body_too_large", ""},
		"override of unknown":   {"POST", over, "operator", strings.Replace(forced, "t-1", "t-ghost", 1), 404, "tenant_not_found", ""},
		"override of placed":    {"POST", over, "operator", strings.Replace(forced, "t-1", "t-placed", 1), 409, "tenant_already_placed", ""},
		"override, no server":   {"POST", over, "operator", strings.Replace(forced, "app-1", "nope", 1), 422, "server_unknown", "force_app_server_id"},
		"override, no shard":    {"POST", over, "operator", strings.Replace(forced, `"force_app_server_id":"app-1"`, `"force_db_shard_id":"nope"`, 1), 422, "db_shard_unknown", "force_db_shard_id"},
		"override, draining":    {"POST", over, "operator", strings.Replace(forced, "app-1", "draining-1", 1), 409, "invariant_violation", ""},
		"override of nothing":   {"POST", over, "operator", `{"tenant_id":"t-1","reason":"x"}`, 422, "invalid_field", "force_app_server_id"},
		"override, bad id":      {"POST", over, "operator", strings.Replace(forced, "app-1", "APP", 1), 422, "invalid_field", "force_app_server_id"},
		"override, bad tenant":  {"POST", over, "operator", strings.Replace(forced, "t-1", "T", 1), 422, "invalid_field", "tenant_id"},
		"override, no reason":   {"POST", over, "operator", strings.Replace(forced, "because", "", 1), 422, "invalid_field", "reason"},
		"override, blank":       {"POST", over, "operator", strings.Replace(forced, "because", " ", 1), 422, "invalid_field", "reason"},
		"override, NUL":         {"POST", over, "operator", strings.Replace(forced, "because", `a\u0000b`, 1), 422, "invalid_field", "reason"},
		"override, unknown":     {"POST", over, "operator", strings.Replace(forced, "{", `{"force_edge_id":"a",`, 1), 400, "unknown_field", "force_edge_id"},
		"override, no pool":     {"POST", over, "operator", strings.Replace(forced, `"force_app_server_id":"app-1"`, `"force_redis_pool_id":"nope"`, 1), 422, "redis_pool_unknown", "force_redis_pool_id"},
		"pools of mars":         {"GET", "/v1/site-pools?region=mars", "viewer", "", 422, "invalid_field", "region"},
		"refill of unknown":     {"POST", "/v1/site-pools/nope/refill", "operator", "", 404, "server_not_found", ""},
		"refill of a cache":     {"POST", "/v1/site-pools/redis-1/refill", "operator", "", 422, "invalid_field", "server_id"},
		"refill too early":      {"POST", "/v1/site-pools/app-1/refill", "operator", "", 409, "invalid_transition", ""},
		"policy of no plan":     {"PUT", "/v1/site-pool-policies/gold", "operator", policy, 422, "invalid_field", "plan"},
		"policy negative":       {"PUT", pol, "operator", strings.Replace(policy, "1", "-1", 1), 422, "invalid_field", "low_watermark"},
		"policy incomplete":     {"PUT", pol, "operator", `{"target":1,"slo_seconds":1}`, 422, "invalid_field", "low_watermark"},
		"policy upside down":    {"PUT", pol, "operator", strings.Replace(policy, "1", "50", 1), 422, "invalid_field", "target"},
		"policy too large":      {"PUT", pol, "operator", strings.Replace(policy, "2", "101", 1), 422, "invalid_field", "target"},
		"policy without time":   {"PUT", pol, "operator", strings.Replace(policy, "60", "0", 1), 422, "invalid_field", "slo_seconds"},
		"warm pool negative":    {"PUT", warm, "operator", `{"target":-1}`, 422, "invalid_field", "target"},
		"warm pool of 101":      {"PUT", warm, "operator", `{"target":101}`, 422, "invalid_field", "target"},
		"warm pool of nothing":  {"PUT", warm, "operator", `{}`, 422, "invalid_field", "target"},
		"warm pool of mars":     {"PUT", "/v1/warm-pools/mars/starter", "operator", `{"target":1}`, 422, "invalid_field", "region"},
		"warm pool of gold":     {"PUT", "/v1/warm-pools/eu/gold", "operator", `{"target":1}`, 422, "invalid_field", "plan"},
		"scaling of mars":       {"GET", "/v1/scaling-events?region=mars", "viewer", "", 422, "invalid_field", "region"},
		"scaling 0":             {"GET", "/v1/scaling-events?limit=0", "viewer", "", 422, "invalid_field", "limit"},
		"unknown org is shown":  {"GET", "/v1/orgs/ghost", "viewer", "", 404, "not_found", ""},
		"bad org in path":       {"PUT", "/v1/orgs/A", "operator", `{}`, 422, "invalid_field", "org_id"},
		"org of unknown parent": {"PUT", "/v1/orgs/new", "operator", `{"parent_org_id":"ghost"}`, 422, "org_unknown", "parent_org_id"},
		"org of bad parent":     {"PUT", "/v1/orgs/new", "operator", `{"parent_org_id":"A"}`, 422, "invalid_field", "parent_org_id"},
		"org above itself":      {"PUT", "/v1/orgs/acme", "operator", `{"parent_org_id":"acme"}`, 422, "invalid_field", "parent_org_id"},
		"orgs in a circle":      {"PUT", "/v1/orgs/group", "operator", `{"parent_org_id":"child"}`, 422, "invalid_field", "parent_org_id"},
		"orgs, bad cursor":      {"GET", "/v1/orgs?cursor=A", "viewer", "", 422, "invalid_field", "cursor"},
		"orgs, limit":           {"GET", "/v1/orgs?limit=1000", "viewer", "", 422, "invalid_field", "limit"},
	} {
		contentType := js
		if tc.body == "" && name != "no body" {
			contentType = ""
		}
		resp, body := b.do(tc.method, tc.path, tc.token, contentType, tc.body)
		require.Equal(t, tc.status, resp.StatusCode, "%s: %s", name, body)
		p := as[api.Problem](t, body)
		require.Equal(t, tc.code, p.Code, "%s: %s", name, body)
		require.Equal(t, strings.TrimSuffix(tc.field, "[0]"), strings.TrimSuffix(deref(p.Field), "[0]"), "%s: %s", name, body)
		require.NotEmpty(t, deref(p.Detail), name)
		// Whatever the contract can express, it does. It can't express these.
		beyond := []string{
			"another parent", "redis for starter", "simulate twice one", "override of nothing", "override, blank", "override, NUL",
			"reason with NUL", "policy upside down", "org above itself", "orgs in a circle",
		}
		if tc.status == 422 && tc.code == "invalid_field" && tc.body != "" && !slices.Contains(beyond, name) {
			require.True(t, b.contractRefuses(tc.method, tc.path, contentType, tc.body), "%s: the contract lets it pass", name)
		}
	}
	require.Equal(t, rows, b.rows(), "a refused request writes nothing")
	require.Len(t, b.runs.asked(), started)
	var overrides int
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM placement_overrides WHERE NOT accepted`).Scan(&overrides))
	require.Equal(t, 5, overrides, "only the placer could refuse these tenants")
	require.Equal(t, 1, b.events("taken"), "no timeline grew")
}

func apps(n int) (out string) {
	for i := range n {
		out += fmt.Sprintf(`,"a%d"`, i+1)
	}
	return out
}

func (b *bundle) events(slug string) int {
	_, body := b.do("GET", "/v1/tenants", "viewer", "", "")
	for _, v := range as[api.TenantPage](b.t, body).Tenants {
		if v.Slug == slug {
			return len(b.showTenant(v.TenantId).Timeline)
		}
	}
	return 0
}

func TestResidencyAllowsOnlySomeProviders(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.sql(`UPDATE residency_zones SET providers = '{aws}' WHERE country = 'KR'`)
	resp, body := b.do("POST", "/v1/tenants", "operator", js, order)
	require.Equal(t, 422, resp.StatusCode)
	require.Equal(t, string(prego.CodeResidencyViolation), as[api.Problem](t, body).Code)
	b.sql(`UPDATE infra_providers SET enabled = true, regions = '{sg}' WHERE id = 'aws'`)
	b.tenant(order)
}
