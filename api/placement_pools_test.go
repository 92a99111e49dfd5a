package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

const poolsPath = "/v1/placement-pools"

func (b *bundle) ok(status int, method, path, body string) []byte {
	b.t.Helper()
	contentType := js
	if body == "" {
		contentType = ""
	}
	resp, answer := b.do(method, path, "operator", contentType, body)
	require.Equal(b.t, status, resp.StatusCode, "%s %s: %s", method, path, answer)
	return answer
}

func TestPlacementPools(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	p := as[api.PlacementPool](t, b.ok(201, "POST", poolsPath, `{"name":"Skynet","require":["Staging","skynet"]}`))
	require.Equal(t, []string{"staging", "skynet"}, p.Require)
	require.Empty(t, p.Disallow)
	require.Equal(t, "operator", p.CreatedBy)
	b.ok(200, "POST", poolsPath, `{"name":"skynet","require":["SKYNET","staging"]}`)
	b.ok(409, "POST", poolsPath, `{"name":"skynet"}`)
	b.ok(201, "POST", poolsPath, `{"name":"others","disallow":["skynet"]}`)

	// Viewers may look.
	resp, body := b.do("GET", poolsPath+"/SKYNET", "viewer", "", "")
	require.Equal(t, 200, resp.StatusCode)
	p = as[api.PlacementPool](t, body)
	require.Equal(t, "Skynet", p.Name)
	require.Empty(t, *p.OrgIds)

	p = as[api.PlacementPool](t, b.ok(200, "PUT", poolsPath+"/others/default", ""))
	require.True(t, p.IsDefault)
	of := as[api.OrgPlacementPools](t, b.ok(200, "GET", "/v1/orgs/acme/placement-pools", ""))
	require.Len(t, of.PlacementPools, 1)
	require.Equal(t, []string{"skynet"}, *of.Constraint.Disallow)
	of = as[api.OrgPlacementPools](t, b.ok(200, "PUT", "/v1/orgs/acme/placement-pools/skynet", ""))
	require.Len(t, of.PlacementPools, 1, "the default is that of orgs without one")
	require.Equal(t, []string{"skynet", "staging"}, *of.Constraint.Require)
	p = as[api.PlacementPool](t, b.ok(200, "GET", poolsPath+"/skynet", ""))
	require.Equal(t, []string{"acme"}, *p.OrgIds)

	for _, name := range []string{"skynet", "others"} {
		problem := as[api.Problem](t, b.ok(409, "DELETE", poolsPath+"/"+name, ""))
		require.Equal(t, "placement_pool_in_use", problem.Code)
		require.Contains(t, deref(problem.Detail), map[string]string{"skynet": "acme", "others": "default"}[name])
	}
	p = as[api.PlacementPool](t, b.ok(200, "PUT", poolsPath+"/skynet", `{"disallow":["old"]}`))
	require.Empty(t, p.Require, "an omitted list becomes empty")
	require.Equal(t, []string{"old"}, p.Disallow)
	of = as[api.OrgPlacementPools](t, b.ok(200, "DELETE", "/v1/orgs/acme/placement-pools/skynet", ""))
	require.Equal(t, "others", of.PlacementPools[0].Name)
	b.ok(204, "DELETE", poolsPath+"/skynet", "")
	b.ok(404, "DELETE", poolsPath+"/skynet", "")
	require.False(t, as[api.PlacementPool](t, b.ok(200, "DELETE", poolsPath+"/others/default", "")).IsDefault)
	b.ok(204, "DELETE", poolsPath+"/others", "")

	for i := range 5 {
		b.ok(201, "POST", poolsPath, fmt.Sprintf(`{"name":"p%d"}`, i))
	}
	var names []string
	for path := poolsPath + "?limit=2&sort=name"; path != ""; {
		page := as[api.PlacementPoolPage](t, b.ok(200, "GET", path, ""))
		for _, p := range page.PlacementPools {
			names = append(names, p.Name)
		}
		path = ""
		if page.NextCursor != nil {
			path = poolsPath + "?limit=2&sort=name&cursor=" + *page.NextCursor
		}
	}
	require.Equal(t, []string{"p0", "p1", "p2", "p3", "p4"}, names)
}

func TestAStackOfATenantIsARequiredTag(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	id := b.tenant(`{"slug":"a","org_id":"acme","region":"eu","plan":"starter","stack":"Lucid64","constraint":{"require":["blue"],"disallow":["BLUE"]}}`)
	s := b.showTenant(id)
	require.Equal(t, []string{"blue", "stack:lucid64"}, *s.Constraint.Require)
	require.Equal(t, []string{"blue"}, *s.Constraint.Disallow, "what contradicts itself is accepted")
}

// TestAStackOfAFleetIsARequiredTag: its servers have the tag, or they would not satisfy the constraint.
func TestAStackOfAFleetIsARequiredTag(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	short := `{"fleet_id":"web","role":"app","infra_provider":"hetzner","stack":"Lucid64","spec":{"tags":["gpu"]},"constraint":{"require":["gpu"]}}`
	long := `{"fleet_id":"web","role":"app","infra_provider":"hetzner","spec":{"tags":["gpu","stack:lucid64"]},
		"constraint":{"require":["gpu","stack:lucid64"]}}`
	created := as[api.Fleet](t, b.ok(201, "POST", "/v1/fleets", short))
	require.Equal(t, []string{"gpu", "stack:lucid64"}, *created.Constraint.Require)
	require.Equal(t, []string{"gpu", "stack:lucid64"}, *created.Spec.Tags)
	b.ok(200, "POST", "/v1/fleets", long)
}

// TestWhatAServerTakesIsChanged for its shard too, and the audit has who changed it and what it was.
func TestWhatAServerTakesIsChanged(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for id, role := range map[string]string{"db-1": "db-shard", "app-1": "app"} {
		b.ok(202, "POST", create, strings.NewReplacer("app-1", id, `"app"`, `"`+role+`"`).Replace(valid))
		b.set(id, server.Active)
	}
	number := func(sql string) (n int) {
		require.NoError(t, b.pool.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	patch := func(status int, id, body string) string {
		return string(b.ok(status, "PATCH", "/v1/servers/"+id, body))
	}
	before := number(`SELECT count(*) FROM audit_entries`)
	resp, body := b.do("PATCH", "/v1/servers/db-1?dry_run=true", "operator", js, `{"tenant_capacity":7}`)
	require.Equal(t, 200, resp.StatusCode, "%s", body)
	require.Equal(t, 100, number(`SELECT tenant_capacity FROM db_shards WHERE shard_id = 'db-1'`))
	got := as[api.Server](t, b.ok(200, "PATCH", "/v1/servers/db-1", `{"plan_tier_lock":"trial","tenant_capacity":150}`))
	require.Equal(t, []any{"trial", 150}, []any{deref(got.PlanTierLock), *got.TenantCapacity})
	require.Equal(t, 1, number(`
SELECT count(*) FROM db_shards WHERE plan_tier_lock = 'trial' AND tenant_capacity = 150`))
	patch(200, "db-1", `{"plan_tier_lock":"none"}`)
	require.Equal(t, 1, number(`SELECT count(*) FROM db_shards WHERE plan_tier_lock IS NULL AND tenant_capacity = 150`))
	patch(200, "app-1", `{"accepts_trial":false}`)
	require.False(t, b.show("app-1").AcceptsTrial)
	patch(200, "app-1", `{"accepts_trial":false}`) // changes nothing, and is recorded as such
	require.Equal(t, 4, number(`
SELECT count(*) FROM audit_entries WHERE kind = 'server' AND operation = 'patchServer'`))
	require.Equal(t, before+4, number(`SELECT count(*) FROM audit_entries`), "the change of the shard is the server's")
	timeline := b.show("db-1").Timeline
	require.Equal(t, "by operator: plan_tier_lock trial, tenant_capacity 150", deref(timeline[len(timeline)-2].Message))
	for body, want := range map[string]string{
		`{"accepts_trial":true}`: "accepts_trial", `{"plan_tier_lock":"gold"}`: "plan_tier_lock",
		`{"tenant_capacity":0}`: "tenant_capacity",
	} {
		require.Equal(t, want, deref(as[api.Problem](t, b.ok(422, "PATCH", "/v1/servers/db-1", body)).Field), body)
	}
	patch(422, "app-1", `{"tenant_capacity":5}`)
	patch(422, "app-1", `{"plan_tier_lock":"trial"}`)
	patch(404, "nope", `{"accepts_trial":true}`)
}

func TestTagsAndConstraintsNeverChange(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	id := b.tenant(`{"slug":"a","org_id":"acme","region":"eu","plan":"starter","constraint":{"require":["blue"]}}`)
	b.ok(202, "POST", create, strings.Replace(valid, `{}`, `{"tags":["blue"]}`, 1))
	for _, tc := range []struct {
		path, body, code string
		says             string
	}{
		{"/v1/servers/app-1", `{"tags":["green"]}`, "tags_immutable", "CLUSTER_REPLACE"},
		{"/v1/servers/app-1", `{"tags":[]}`, "tags_immutable", "CLUSTER_REPLACE"},
		{"/v1/tenants/" + id, `{"constraint":{}}`, "constraint_immutable", "another tenant"},
		{"/v1/tenants/" + id, `{"constraint":{"require":["green"]}}`, "constraint_immutable", "another tenant"},
		{"/v1/tenants/" + id, `{"stack":"green"}`, "constraint_immutable", "another tenant"},
	} {
		resp, body := b.do("PATCH", tc.path, "operator", js, tc.body)
		require.Equal(t, http.StatusConflict, resp.StatusCode, "%s", body)
		p := as[api.Problem](t, body)
		require.Equal(t, tc.code, p.Code)
		require.Contains(t, deref(p.Detail), tc.says, "the way to do it is named")
	}
	require.Equal(t, []string{"blue"}, *b.showTenant(id).Constraint.Require)
	require.Equal(t, []string{"blue"}, b.show("app-1").Tags)
	p := as[api.Problem](t, b.ok(409, "POST", create, strings.Replace(valid, `{}`, `{"tags":["green"]}`, 1)))
	require.Equal(t, "server_id_conflict", p.Code)
	b.ok(202, "POST", create, strings.Replace(valid, `{}`, `{"tags":["BLUE"]}`, 1))
}

func TestWhatAnAgentSaysOfItsTagsIsShown(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.ok(202, "POST", create, strings.Replace(valid, `{}`, `{"tags":["blue"]}`, 1))
	s := b.show("app-1")
	require.Nil(t, s.Agent.Tags)
	require.Nil(t, s.Agent.TagsDiffer)
	for said, differ := range map[string]bool{"{blue}": false, "{}": true, "{blue,green}": true} {
		b.sql(`UPDATE servers SET agent_tags = $1::text[]`, said)
		require.Equal(t, differ, *b.show("app-1").Agent.TagsDiffer, said)
	}
}

func TestBadInputOfPlacementPoolsIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.tenant(`{"slug":"a","org_id":"acme","region":"eu","plan":"starter"}`)
	b.ok(201, "POST", poolsPath, `{"name":"p"}`)
	b.ok(202, "POST", create, valid)
	long, many := strings.Repeat("a", 64), `"t"`
	for i := range 32 {
		many += fmt.Sprintf(`,"t%d"`, i)
	}
	one := poolsPath + "/p"
	assoc := "/v1/orgs/acme/placement-pools/"
	plus := func(member string) string { return strings.Replace(order, `{`, `{`+member+`,`, 1) }
	for name, tc := range map[string]struct {
		method, path, token, body string
		status                    int
		code, field               string
	}{
		"viewer makes":          {"POST", poolsPath, "viewer", `{"name":"a"}`, 403, "forbidden", ""},
		"viewer changes":        {"PUT", one, "viewer", `{}`, 403, "forbidden", ""},
		"viewer deletes":        {"DELETE", one, "viewer", "", 403, "forbidden", ""},
		"viewer associates":     {"PUT", assoc + "p", "viewer", "", 403, "forbidden", ""},
		"viewer patches":        {"PATCH", "/v1/servers/app-1", "viewer", `{"tags":[]}`, 403, "forbidden", ""},
		"no name":               {"POST", poolsPath, "operator", `{}`, 422, "invalid_field", "name"},
		"empty name":            {"POST", poolsPath, "operator", `{"name":""}`, 422, "invalid_field", "name"},
		"name with a space":     {"POST", poolsPath, "operator", `{"name":"a b"}`, 422, "invalid_field", "name"},
		"name of 64":            {"POST", poolsPath, "operator", `{"name":"` + long + `"}`, 422, "invalid_field", "name"},
		"name of a path":        {"POST", poolsPath, "operator", `{"name":".."}`, 422, "invalid_field", "name"},
		"tag of 64":             {"POST", poolsPath, "operator", `{"name":"a","require":["` + long + `"]}`, 422, "invalid_field", "require"},
		"empty tag":             {"POST", poolsPath, "operator", `{"name":"a","disallow":[""]}`, 422, "invalid_field", "disallow"},
		"tag with a space":      {"PUT", one, "operator", `{"require":["a b"]}`, 422, "invalid_field", "require"},
		"tag with a newline":    {"PUT", one, "operator", `{"require":["a\n"]}`, 422, "invalid_field", "require"},
		"tag with NUL":          {"PUT", one, "operator", `{"disallow":["a\u0000"]}`, 422, "invalid_field", "disallow"},
		"tag twice":             {"PUT", one, "operator", `{"require":["Blue","bLUE"]}`, 422, "invalid_field", "require"},
		"33 tags":               {"PUT", one, "operator", `{"require":[` + many + `]}`, 422, "invalid_field", "require"},
		"tag a number":          {"PUT", one, "operator", `{"require":[1]}`, 422, "invalid_field", "require[0]"},
		"tags no list":          {"PUT", one, "operator", `{"require":"a"}`, 422, "invalid_field", "require"},
		"unknown field":         {"PUT", one, "operator", `{"prefer":[]}`, 400, "unknown_field", "prefer"},
		"name is not changed":   {"PUT", one, "operator", `{"name":"b"}`, 400, "unknown_field", "name"},
		"no body":               {"PUT", one, "operator", "", 415, "unsupported_media_type", ""},
		"unknown pool":          {"GET", poolsPath + "/nothing", "viewer", "", 404, "placement_pool_not_found", ""},
		"unknown put":           {"PUT", poolsPath + "/nothing", "operator", `{}`, 404, "placement_pool_not_found", ""},
		"unknown default":       {"PUT", poolsPath + "/nothing/default", "operator", "", 404, "placement_pool_not_found", ""},
		"unknown no default":    {"DELETE", poolsPath + "/nothing/default", "operator", "", 404, "placement_pool_not_found", ""},
		"bad pool":              {"GET", poolsPath + "/a%20b", "viewer", "", 422, "invalid_field", "pool"},
		"bad cursor":            {"GET", poolsPath + "?cursor=%00", "viewer", "", 422, "invalid_field", "cursor"},
		"limit 201":             {"GET", poolsPath + "?limit=201", "viewer", "", 422, "invalid_field", "limit"},
		"filter misspelt":       {"GET", poolsPath + "?nam=a", "viewer", "", 400, "unknown_field", "nam"},
		"of an unknown org":     {"GET", "/v1/orgs/ghost/placement-pools", "viewer", "", 404, "not_found", ""},
		"unknown org":           {"PUT", "/v1/orgs/ghost/placement-pools/p", "operator", "", 404, "not_found", ""},
		"bad org":               {"PUT", "/v1/orgs/A/placement-pools/p", "operator", "", 422, "invalid_field", "org_id"},
		"unknown association":   {"PUT", assoc + "nothing", "operator", "", 404, "placement_pool_not_found", ""},
		"unknown dissociation":  {"DELETE", assoc + "nothing", "operator", "", 404, "placement_pool_not_found", ""},
		"bad association":       {"PUT", assoc + "%2e%2e", "operator", "", 422, "invalid_field", "pool"},
		"patch of a role":       {"PATCH", "/v1/servers/app-1", "operator", `{"role":"app"}`, 400, "unknown_field", "role"},
		"patch with a bad tag":  {"PATCH", "/v1/servers/app-1", "operator", `{"tags":[""]}`, 422, "invalid_field", "tags"},
		"patch of unknown":      {"PATCH", "/v1/servers/nope", "operator", `{"tags":[]}`, 404, "server_not_found", ""},
		"tenant patch, nothing": {"PATCH", "/v1/tenants/t-1", "operator", `{}`, 422, "invalid_field", "constraint"},
		"tenant patch, plan":    {"PATCH", "/v1/tenants/t-1", "operator", `{"plan":"trial"}`, 400, "unknown_field", "plan"},
		"tenant patch, tag":     {"PATCH", "/v1/tenants/t-1", "operator", `{"constraint":{"require":["a b"]}}`, 422, "invalid_field", "constraint.require"},
		"tenant patch, stack":   {"PATCH", "/v1/tenants/t-1", "operator", `{"stack":"a b"}`, 422, "invalid_field", "stack"},
		"tenant patch, unknown": {"PATCH", "/v1/tenants/t-nope", "operator", `{"stack":"a"}`, 404, "tenant_not_found", ""},
		"stack with a space":    {"POST", "/v1/tenants", "operator", plus(`"stack":"a b"`), 422, "invalid_field", "stack"},
		"stack of 58":           {"POST", "/v1/tenants", "operator", plus(`"stack":"` + strings.Repeat("a", 58) + `"`), 422, "invalid_field", "stack"},
		"stack a number":        {"POST", "/v1/tenants", "operator", plus(`"stack":1`), 422, "invalid_field", "stack"},
		"tenant's tag of 64":    {"POST", "/v1/tenants", "operator", plus(`"constraint":{"require":["` + long + `"]}`), 422, "invalid_field", "constraint.require"},
		"tenant's tag twice":    {"POST", "/v1/tenants", "operator", plus(`"constraint":{"require":["a","A"]}`), 422, "invalid_field", "constraint.require"},
		"server's tag twice":    {"POST", create, "operator", strings.Replace(valid, `{}`, `{"tags":["a","A"]}`, 1), 422, "invalid_field", "spec.tags"},
		"simulated stack":       {"POST", "/v1/placements/simulate", "operator", `{"requests":[{"tenant_id":"t","region":"eu","plan":"starter","stack":"a b"}]}`, 422, "invalid_field", "requests[0].stack"},
	} {
		contentType := js
		if tc.body == "" {
			contentType = ""
		}
		resp, body := b.do(tc.method, tc.path, tc.token, contentType, tc.body)
		require.Equal(t, tc.status, resp.StatusCode, "%s: %s", name, body)
		p := as[api.Problem](t, body)
		require.Equal(t, tc.code, p.Code, "%s: %s", name, body)
		require.Equal(t, strings.TrimSuffix(tc.field, "[0]"), strings.TrimSuffix(deref(p.Field), "[0]"), "%s: %s", name, body)
		if beyond := strings.HasSuffix(name, "twice"); tc.status == 422 && tc.code == "invalid_field" && tc.body != "" && !beyond {
			require.True(t, b.contractRefuses(tc.method, tc.path, contentType, tc.body), "%s: the contract lets it pass", name)
		}
	}
	page := as[api.PlacementPoolPage](t, b.ok(200, "GET", poolsPath, ""))
	require.Len(t, page.PlacementPools, 1, "a refused request writes nothing")
	require.Empty(t, page.PlacementPools[0].Require)

	for i := range 16 {
		b.ok(201, "POST", poolsPath, fmt.Sprintf(`{"name":"q%d"}`, i))
		b.ok(200, "PUT", assoc+fmt.Sprintf("q%d", i), "")
	}
	p := as[api.Problem](t, b.ok(422, "PUT", assoc+"p", ""))
	require.Equal(t, "pool", deref(p.Field))
}
