package api_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// TestProvidersZonesAndCapacitiesAreChanged: with a dry run, and one entry in the audit for each change.
func TestProvidersZonesAndCapacitiesAreChanged(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	number := func(sql string) (n int) {
		require.NoError(t, b.pool.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	for _, change := range []struct{ method, path, body, kind, sql string }{
		{
			"PATCH", "/v1/providers/hetzner", `{"regions":["sg","eu"]}`, "infra_provider",
			`SELECT count(*) FROM infra_providers WHERE id = 'hetzner' AND enabled AND regions = '{sg,eu}'`,
		}, {
			"PATCH", "/v1/providers/aws", `{"enabled":false,"regions":["us"]}`, "infra_provider",
			`SELECT count(*) FROM infra_providers WHERE id = 'aws' AND NOT enabled AND regions = '{us}'`,
		}, {
			"PUT", "/v1/residency-zones/BR", `{"regions":["us"],"providers":["hetzner"]}`, "residency_zone",
			`SELECT count(*) FROM residency_zones
WHERE country = 'BR' AND regions = '{us}' AND providers = '{hetzner}'`,
		}, {
			"PUT", "/v1/residency-zones/KR", `{"regions":["sg","eu"]}`, "residency_zone",
			`SELECT count(*) FROM residency_zones WHERE country = 'KR' AND regions = '{sg,eu}' AND providers IS NULL`,
		}, {
			"PUT", "/v1/capacity-defaults/db-shard", `{"tenant_capacity":150}`, "capacity_default",
			`SELECT count(*) FROM capacity_defaults WHERE role = 'db-shard' AND tenant_capacity = 150`,
		},
	} {
		const changes = `SELECT count(*) FROM audit_entries WHERE verb <> 'request'`
		before := number(changes)
		resp, body := b.do(change.method, change.path+"?dry_run=true", "operator", js, change.body)
		require.Equal(t, 200, resp.StatusCode, "%s", body)
		require.Zero(t, number(change.sql), "%s: a dry run", change.path)
		b.untried = true
		resp, body = b.do(change.method, change.path, "viewer", js, change.body)
		require.Equal(t, 403, resp.StatusCode, "%s", body)
		shown := b.ok(200, change.method, change.path, change.body)
		require.Equal(t, 1, number(change.sql), change.path)
		require.JSONEq(t, string(shown), string(b.ok(200, "GET", change.path, "")))
		all := change.path[:strings.LastIndex(change.path, "/")]
		require.Contains(t, string(b.ok(200, "GET", all, "")), strings.TrimSpace(string(shown)))
		b.ok(200, change.method, change.path, change.body)
		require.Equal(t, before+1, number(changes), "%s: once", change.path)
		require.Positive(t, number(`SELECT count(*) FROM audit_entries
WHERE role = 'operator' AND kind = '`+change.kind+`'`))
		b.untried = false
	}
	refused := func(status int, code, method, path, body string) {
		t.Helper()
		require.Equal(t, code, as[api.Problem](t, b.ok(status, method, path, body)).Code)
	}
	refused(422, "infra_provider_unknown", "PATCH", "/v1/providers/gcp", `{"enabled":true}`)
	refused(422, "invalid_field", "PATCH", "/v1/providers/azure", `{"enabled":false}`)
	refused(422, "invalid_field", "PATCH", "/v1/providers/hetzner", `{}`)
	refused(422, "invalid_field", "PUT", "/v1/residency-zones/KR", `{"regions":[]}`)
	refused(422, "invalid_field", "PUT", "/v1/residency-zones/kr", `{"regions":["sg"]}`)
	refused(422, "invalid_field", "PUT", "/v1/capacity-defaults/app", `{"tenant_capacity":1}`)
	refused(404, "not_found", "GET", "/v1/residency-zones/ZZ", "")

	const tenant = `{"slug":"kim","org_id":"acme","region":"sg","plan":"starter","data_residency":"KR"}`
	b.ok(202, "POST", "/v1/tenants", tenant)
	refused(422, "data_residency_violation", "PUT", "/v1/residency-zones/KR", `{"regions":["eu"]}`)
	b.ok(200, "PUT", "/v1/residency-zones/KR", `{"regions":["sg"]}`)
}
