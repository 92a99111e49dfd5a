package api_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/placement"
)

func TestDecisionsOfAllTenants(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, org := range []string{"acme", "other"} {
		b.sql(`INSERT INTO orgs (org_id, tier, created_by) VALUES ($1, 'free', 'x')`, org)
	}
	for i, org := range []string{"acme", "acme", "other"} {
		b.sql(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
			VALUES ($1, $1, $2, $3, 'starter', 1, 1, 'shared', '', 'provisioning', 'x')`, fmt.Sprintf("t-%d", i), org, []string{"eu", "us", "eu"}[i])
	}
	for i, outcome := range []string{"placed", "awaiting_capacity", "awaiting_capacity", "rejected", "moved", "placed"} {
		b.sql(`INSERT INTO allocation_snapshots (tenant_id, outcome, code, algorithm, decision_log, policy_json)
			VALUES ($1, $2, $3, 'best_fit', '{"selection_reason": "because"}', '{}')`, fmt.Sprintf("t-%d", i%3), outcome, map[string]string{"awaiting_capacity": "insufficient_resources", "rejected": "no_infra_provider"}[outcome])
	}
	ids := func(query string) (out []int64) {
		for cursor := ""; ; {
			resp, body := b.do("GET", "/v1/decisions?limit=2"+query+cursor, "viewer", "", "")
			require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
			page := as[api.DecisionPage](t, body)
			for _, d := range page.Decisions {
				require.NotEmpty(t, *d.TenantId)
				require.NotEmpty(t, *d.OrgId)
				require.NotEmpty(t, *d.Region)
				out = append(out, d.Id)
			}
			if page.NextCursor == nil {
				return out
			}
			cursor = "&cursor=" + *page.NextCursor
		}
	}
	for query, want := range map[string][]int64{
		"": {6, 5, 4, 3, 2, 1}, "&sort=id": {1, 2, 3, 4, 5, 6}, "&tenant_id=t-0": {4, 1}, "&org_id=acme": {5, 4, 2, 1}, "&region=us": {5, 2}, "&outcome=placed,moved": {6, 5, 1},
		"&code=insufficient_resources": {3, 2}, "&outcome=awaiting_capacity&org_id=other": {3}, "&outcome=rejected&region=us": nil,
	} {
		require.Equal(t, want, ids(query), query)
	}
	for path, refusal := range map[string]string{
		"GET /v1/decisions?outcome=lost":     "422 invalid_field outcome",
		"GET /v1/decisions?sort=at":          "422 invalid_field sort",
		"GET /v1/decisions?plan=x":           "400 unknown_field plan",
		"GET /v1/decisions?cursor=x":         "422 invalid_field cursor",
		"GET /v1/decisions/99":               "404 decision_not_found ",
		"GET /v1/decisions/x":                "422 invalid_field decision_id",
		"POST /v1/decisions/99/replay":       "404 decision_not_found ",
		"POST /v1/decisions/1/replay":        "409 decision_input_not_kept ",
		"GET /v1/fleet-map?expand=mars/x":    "422 invalid_field expand",
		"GET /v1/fleet-map?region=mars":      "422 invalid_field region",
		"GET /v1/fleet-map/packing?fleet_id": "422 invalid_field fleet_id",
	} {
		var method, at string
		_, err := fmt.Sscan(path, &method, &at)
		require.NoError(t, err)
		resp, body := b.do(method, at, "operator", "", "")
		p := as[api.Problem](t, body)
		field := ""
		if p.Field != nil {
			field = *p.Field
		}
		require.Equal(t, refusal, fmt.Sprintf("%d %s %s", resp.StatusCode, p.Code, field), path)
	}
	_, body := b.do("GET", "/v1/decisions/4", "viewer", "", "")
	d := as[api.ExplainedDecision](t, body)
	require.Equal(t, []any{"not_kept", "rejected", "because"}, []any{d.Input, d.Decision.Outcome, d.Decision.DecisionLog.SelectionReason})
	require.Nil(t, d.Funnel)
}

func TestWhatIfIsChecked(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const starter = `"request":{"tenant_id":"x","region":"eu","plan":"starter"}`
	for body, refusal := range map[string]string{
		`{"change":{}}`: "422 invalid_field request",
		`{"tenant_id":"t-1",` + starter + `,"change":{}}`: "422 invalid_field request",
		`{` + starter + `}`:                                             "422 invalid_field change",
		`{` + starter + `,"change":{"plan":"gold"}}`:                    "422 invalid_field change.plan",
		`{` + starter + `,"change":{"cordon":["nope"]}}`:                "422 server_unknown change.cordon[0]",
		`{` + starter + `,"change":{"add_server":{"role":"edge"}}}`:     "422 invalid_field change.add_server.role",
		`{` + starter + `,"change":{"constraint":{"require":["a b"]}}}`: "422 invalid_field change.constraint.require[0]",
		`{"tenant_id":"t-ghost","change":{}}`:                           "404 tenant_not_found ",
	} {
		resp, answer := b.do("POST", "/v1/placements/what-if", "operator", js, body)
		p := as[api.Problem](t, answer)
		field := ""
		if p.Field != nil {
			field = *p.Field
		}
		require.Equal(t, refusal, fmt.Sprintf("%d %s %s", resp.StatusCode, p.Code, field), body)
	}
	resp, answer := b.do("POST", "/v1/placements/what-if", "operator", js, `{`+starter+`,"change":{"add_server":{"role":"node","tags":["GPU"]}}}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", answer)
	r := as[api.WhatIfResult](t, answer)
	require.Equal(t, placement.AddedID, *r.AddedServerId)
}

func TestFleetMapIsNested(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for i := range 55 {
		b.sql(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, memory_pct, workflow_id, created_by)
			VALUES ($1, '', $2, $3, 'hetzner', '{}', 'active', 'connected', 40, 'w', 'x')`, fmt.Sprintf("s-%02d", i), []string{"app", "node"}[i/53], []string{"eu", "us"}[i/54])
	}
	resp, body := b.do("GET", "/v1/fleet-map", "viewer", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	m := as[api.FleetMap](t, body)
	require.Len(t, m.Regions, 2)
	require.Equal(t, []int{54, 1}, []int{m.Regions[0].ServersTotal, m.Regions[1].ServersTotal})
	require.Len(t, m.Regions[0].Fleets, 2)
	app, node := m.Regions[0].Fleets[0], m.Regions[0].Fleets[1]
	require.Equal(t, []any{53, 0, 1}, []any{app.ServersTotal, len(app.Servers), len(node.Servers)})
	require.Equal(t, []api.FleetMapGroup{{State: "active", Fill: "25-50", Servers: 53, MemoryPct: new(40.0)}}, *app.Groups)
	require.Nil(t, node.Groups)
	_, body = b.do("GET", "/v1/fleet-map?expand=eu/&region=eu", "viewer", "", "")
	m = as[api.FleetMap](t, body)
	require.Len(t, m.Regions, 1)
	require.Len(t, m.Regions[0].Fleets[0].Servers, 53)

	resp, body = b.do("GET", "/v1/fleet-map/packing?region=eu", "viewer", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	require.Equal(t, 53, as[api.PackingMap](t, body).ServersTotal)
}
