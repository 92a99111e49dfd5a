package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/placement/scale"
)

const (
	aFleet  = `{"fleet_id":"pool","role":"redis-pool","infra_provider":"hetzner","max_size":5}`
	aPolicy = `{"policy_id":"spread","type":"region_placement","spec":{"regions":[{"name":"eu"},{"name":"us","weight":50,"cap":1}]}}`
)

func TestFleetsOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	f := as[api.Fleet](t, b.ok(201, "POST", "/v1/fleets", aFleet))
	require.Equal(t, []any{"pool", int64(0), int64(5), int64(0), 1, "operator"}, []any{f.FleetId, f.MinSize, f.MaxSize, f.Size, f.Profile, f.CreatedBy})
	require.Equal(t, "http://ui/fleet-scale/test/pool", deref(f.RunUrl))
	b.ok(200, "POST", "/v1/fleets", aFleet)
	b.ok(201, "POST", "/v1/policies", aPolicy)
	b.ok(200, "POST", "/v1/policies", aPolicy)
	f = as[api.Fleet](t, b.ok(200, "PUT", "/v1/fleets/pool/policies/spread", `{"position":5}`))
	require.JSONEq(t, `{"regions":[{"name":"eu","weight":100,"cap":-1},{"name":"us","weight":50,"cap":1}]}`, string((*f.Policies)[0].Spec))
	f = as[api.Fleet](t, b.ok(200, "PUT", "/v1/fleets/pool/policies/spread", `{"enabled":false}`))
	require.Equal(t, 5, (*f.Policies)[0].Position)
	require.False(t, (*f.Policies)[0].Enabled)
	b.ok(200, "PUT", "/v1/fleets/pool/policies/spread", `{}`)

	page := as[api.FleetPage](t, b.ok(200, "GET", "/v1/fleets?limit=2", ""))
	require.Len(t, page.Fleets, 2)
	require.Nil(t, page.Fleets[0].Policies)
	page = as[api.FleetPage](t, b.ok(200, "GET", "/v1/fleets?limit=200&cursor="+*page.NextCursor, ""))
	require.Len(t, page.Fleets, 3, "four are there from the beginning")
	require.Nil(t, page.NextCursor)
	page = as[api.FleetPage](t, b.ok(200, "GET", "/v1/fleets?role=redis-pool", ""))
	require.Len(t, page.Fleets, 2)

	f = as[api.Fleet](t, b.ok(200, "PATCH", "/v1/fleets/pool", `{"min_size":1,"spec":{"tags":["A"]}}`))
	require.Equal(t, []any{int64(1), int64(5), 2}, []any{f.MinSize, f.MaxSize, f.Profile})
	require.Equal(t, as[api.Fleet](t, b.ok(200, "GET", "/v1/fleets/pool", "")), f)

	p := as[api.Policy](t, b.ok(200, "PUT", "/v1/policies/spread", `{"spec":{"regions":[{"name":"sg"}]}}`))
	require.JSONEq(t, `{"regions":[{"name":"sg","weight":100,"cap":-1}]}`, string(p.Spec))
	require.Equal(t, p.Spec, as[api.Policy](t, b.ok(200, "GET", "/v1/policies/spread", "")).Spec)
	require.Len(t, as[api.PolicyPage](t, b.ok(200, "GET", "/v1/policies?type=region_placement&limit=1", "")).Policies, 1)
	require.Empty(t, as[api.PolicyPage](t, b.ok(200, "GET", "/v1/policies?type=deletion", "")).Policies)

	b.ok(204, "DELETE", "/v1/fleets/pool/policies/spread", "")
	b.ok(204, "DELETE", "/v1/fleets/pool/policies/spread", "")
	b.ok(204, "DELETE", "/v1/policies/spread", "")
	b.ok(204, "DELETE", "/v1/fleets/pool", "")
	require.Empty(t, b.runs.asked())
}

func TestActionsOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.ok(201, "POST", "/v1/fleets", aFleet)
	b.ok(201, "POST", "/v1/policies", aPolicy)
	b.ok(200, "PUT", "/v1/fleets/pool/policies/spread", `{}`)
	plan := planned[api.FleetActionPlan](t, b.ok(200, "POST", "/v1/fleets/pool/actions?dry_run=true", `{"action":"CLUSTER_SCALE_OUT","inputs":{"count":3}}`))
	require.JSONEq(t, `{"status":"OK","creation":{"count":3,"regions":{"eu":2,"us":1}}}`, string(plan.Data))
	require.Len(t, plan.Steps, 3)
	require.EqualValues(t, 3, plan.DesiredCapacity)
	plan = planned[api.FleetActionPlan](t, b.ok(200, "POST", "/v1/fleets/pool/actions?dry_run=true", `{"action":"CLUSTER_SCALE_OUT","inputs":{"count":6}}`))
	require.Equal(t, "target_above_fleet_max_size", deref(plan.Reason))
	require.JSONEq(t, `{"status":"ERROR","reason":"The target capacity (6) is greater than the fleet's max_size (5)."}`, string(plan.Data))
	require.Empty(t, as[api.FleetActionPage](t, b.ok(200, "GET", "/v1/fleets/pool/actions", "")).Actions)
	require.Empty(t, b.runs.asked())

	body := `{"action":"CLUSTER_SCALE_OUT","inputs":{"count":3}}`
	for range 2 {
		resp, answer := b.sendWith("POST", "/v1/fleets/pool/actions", body, "Idempotency-Key", "k")
		require.Equal(t, 202, resp.StatusCode, "%s", answer)
		accepted := as[api.FleetActionAccepted](t, answer)
		require.Equal(t, "fleet-scale/test/pool/1", accepted.Operation.Id)
		b.shown(*accepted.Operation)
		accepted.Operation = nil
		require.Equal(t, api.FleetActionAccepted{FleetId: "pool", Seq: 1, Status: "queued", WorkflowId: "fleet-scale/test/pool", StatusUrl: "/v1/fleets/pool/actions/1"}, accepted)
	}
	resp, answer := b.sendWith("POST", "/v1/fleets/pool/actions", `{"action":"CLUSTER_SCALE_IN"}`, "Idempotency-Key", "k")
	require.Equal(t, 409, resp.StatusCode)
	require.Equal(t, "idempotency_key_conflict", as[api.Problem](t, answer).Code)
	require.Equal(t, []string{"scale pool", "scale pool"}, b.runs.asked())
	// The run can't be started: the row is what counts.
	b.runs.fail = errors.New("temporal is away")
	require.Equal(t, 2, as[api.FleetActionAccepted](t, b.ok(202, "POST", "/v1/fleets/pool/actions", `{"action":"CLUSTER_RESIZE","inputs":{"adjustment_type":"EXACT_CAPACITY","number":0}}`)).Seq)
	b.ok(202, "POST", "/v1/fleets/pool/actions", `{"action":"NODE_CREATE"}`)

	_, err := b.store.BeginFleetAction(context.Background(), "pool", scale.Plan)
	require.NoError(t, err)
	a := as[api.FleetAction](t, b.ok(200, "GET", "/v1/fleets/pool/actions/1", ""))
	require.EqualValues(t, "running", a.Status)
	require.Len(t, *a.Steps, 3)
	require.Regexp(t, `^pool-[0-9a-f]{8}-1$`, (*a.Steps)[0].ServerId)
	require.NotZero(t, (*a.Steps)[0].At)
	page := as[api.FleetActionPage](t, b.ok(200, "GET", "/v1/fleets/pool/actions?limit=2", ""))
	require.Equal(t, []int{3, 2}, []int{page.Actions[0].Seq, page.Actions[1].Seq})
	require.JSONEq(t, `{"adjustment_type":"EXACT_CAPACITY","number":0,"strict":true}`, string(page.Actions[1].Inputs), "strict over the API")
	page = as[api.FleetActionPage](t, b.ok(200, "GET", "/v1/fleets/pool/actions?cursor="+*page.NextCursor, ""))
	require.Len(t, page.Actions, 1)

	require.EqualValues(t, "cancelled", as[api.FleetAction](t, b.ok(202, "POST", "/v1/fleets/pool/actions/2/cancel", "")).Status)
	got := as[api.FleetAction](t, b.ok(202, "POST", "/v1/fleets/pool/actions/1/cancel", ""))
	require.EqualValues(t, "running", got.Status)
	require.True(t, got.CancelRequested)
	for path, code := range map[string]string{"/v1/fleets/pool/actions/2/cancel": "invalid_transition", "/v1/fleets/pool": "fleet_not_empty"} {
		method := map[bool]string{true: "POST", false: "DELETE"}[strings.HasSuffix(path, "cancel")]
		require.Equal(t, code, as[api.Problem](t, b.ok(409, method, path, "")).Code)
	}
}

func TestFleetsRefuse(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.ok(201, "POST", "/v1/fleets", aFleet)
	b.ok(201, "POST", "/v1/policies", aPolicy)
	b.ok(200, "PUT", "/v1/fleets/pool/policies/spread", `{}`)
	b.ok(201, "POST", "/v1/policies", strings.Replace(aPolicy, "spread", "other", 1))
	b.ok(201, "POST", "/v1/policies", `{"policy_id":"oldest","type":"deletion","spec":{}}`)
	fleet := func(old, replaced string) string {
		require.Contains(t, aFleet, old)
		return strings.Replace(aFleet, old, replaced, 1)
	}
	spread := func(regions string) string {
		return `{"policy_id":"bad","type":"region_placement","spec":{"regions":` + regions + `}}`
	}
	act := func(kind, inputs string) string { return `{"action":"` + kind + `","inputs":` + inputs + `}` }
	const fleets, policies, actions = "/v1/fleets", "/v1/policies", "/v1/fleets/pool/actions"
	type refusal struct {
		method, path, token, body string
		status                    int
		code, field               string
	}
	table := map[string]refusal{
		"no token":                      {"GET", fleets, "", "", 401, "unauthenticated", ""},
		"fleet not JSON":                {"POST", fleets, "operator", `{`, 400, "invalid_json", ""},
		"fleet unknown field":           {"POST", fleets, "operator", fleet(`"role"`, `"size":3,"role"`), 400, "unknown_field", "size"},
		"fleet field twice":             {"POST", fleets, "operator", fleet(`"role"`, `"max_size":3,"role"`), 400, "duplicate_field", "max_size"},
		"fleet without id":              {"POST", fleets, "operator", fleet(`"fleet_id":"pool",`, ``), 422, "invalid_field", "fleet_id"},
		"fleet id upper case":           {"POST", fleets, "operator", fleet(`"pool"`, `"Pool"`), 422, "invalid_field", "fleet_id"},
		"fleet id null":                 {"POST", fleets, "operator", fleet(`"pool"`, `null`), 422, "invalid_field", "fleet_id"},
		"fleet id of 33":                {"POST", fleets, "operator", fleet(`pool`, strings.Repeat("a", 33)), 422, "invalid_field", "fleet_id"},
		"fleet without role":            {"POST", fleets, "operator", fleet(`"role":"redis-pool",`, ``), 422, "invalid_field", "role"},
		"fleet unknown role":            {"POST", fleets, "operator", fleet(`redis-pool`, `king`), 422, "invalid_field", "role"},
		"fleet unknown region":          {"POST", fleets, "operator", fleet(`"role"`, `"region":"mars","role"`), 422, "invalid_field", "region"},
		"fleet unknown cloud":           {"POST", fleets, "operator", `{"fleet_id":"new","role":"app","infra_provider":"acme"}`, 422, "infra_provider_unknown", "infra_provider"},
		"fleet min below 0":             {"POST", fleets, "operator", fleet(`"max_size":5`, `"min_size":-1`), 422, "invalid_field", "min_size"},
		"fleet min not whole":           {"POST", fleets, "operator", fleet(`"max_size":5`, `"min_size":1.5`), 422, "invalid_field", "min_size"},
		"fleet min as text":             {"POST", fleets, "operator", fleet(`"max_size":5`, `"min_size":"1"`), 422, "invalid_field", "min_size"},
		"fleet min above max":           {"POST", fleets, "operator", fleet(`"max_size":5`, `"min_size":6,"max_size":5`), 422, "invalid_field", "min_size"},
		"fleet max below -1":            {"POST", fleets, "operator", fleet(`5`, `-2`), 422, "invalid_field", "max_size"},
		"fleet max above the service":   {"POST", fleets, "operator", fleet(`5`, `1001`), 422, "invalid_field", "max_size"},
		"fleet empty tag":               {"POST", fleets, "operator", fleet(`"max_size":5`, `"spec":{"tags":[""]}`), 422, "invalid_field", "spec.tags[0]"},
		"fleet tag with space":          {"POST", fleets, "operator", fleet(`"max_size":5`, `"spec":{"tags":["a b"]}`), 422, "invalid_field", "spec.tags[0]"},
		"fleet of another body":         {"POST", fleets, "operator", fleet(`5`, `6`), 409, "fleet_conflict", "fleet_id"},
		"fleet cursor":                  {"GET", fleets + "?cursor=A", "viewer", "", 422, "invalid_field", "cursor"},
		"fleet limit":                   {"GET", fleets + "?limit=0", "viewer", "", 422, "invalid_field", "limit"},
		"fleet role filter":             {"GET", fleets + "?role=king", "viewer", "", 422, "invalid_field", "role"},
		"fleet filter misspelt":         {"GET", fleets + "?roles=app", "viewer", "", 400, "unknown_field", "roles"},
		"fleet unknown":                 {"GET", fleets + "/nope", "viewer", "", 404, "fleet_not_found", ""},
		"fleet bad id":                  {"GET", fleets + "/NOPE", "viewer", "", 422, "invalid_field", "fleet_id"},
		"change unknown":                {"PATCH", fleets + "/nope", "operator", `{}`, 404, "fleet_not_found", ""},
		"change min above max":          {"PATCH", fleets + "/pool", "operator", `{"min_size":6}`, 422, "invalid_field", "min_size"},
		"change max below -1":           {"PATCH", fleets + "/pool", "operator", `{"max_size":-2}`, 422, "invalid_field", "max_size"},
		"change constraint":             {"PATCH", fleets + "/pool", "operator", `{"constraint":{"require":["a"]}}`, 409, "constraint_immutable", "constraint"},
		"change stack":                  {"PATCH", fleets + "/pool", "operator", `{"stack":"a"}`, 409, "constraint_immutable", "stack"},
		"change role":                   {"PATCH", fleets + "/pool", "operator", `{"role":"app"}`, 400, "unknown_field", "role"},
		"change tag":                    {"PATCH", fleets + "/pool", "operator", `{"spec":{"tags":["` + strings.Repeat("a", 64) + `"]}}`, 422, "invalid_field", "spec.tags[0]"},
		"delete unknown":                {"DELETE", fleets + "/nope", "operator", "", 404, "fleet_not_found", ""},
		"attach unknown policy":         {"PUT", fleets + "/pool/policies/nope", "operator", `{}`, 404, "policy_not_found", ""},
		"attach to unknown fleet":       {"PUT", fleets + "/nope/policies/spread", "operator", `{}`, 404, "fleet_not_found", ""},
		"attach a second":               {"PUT", fleets + "/pool/policies/other", "operator", `{}`, 409, "policy_type_attached", ""},
		"attach at 0":                   {"PUT", fleets + "/pool/policies/oldest", "operator", `{"position":0}`, 422, "invalid_field", "position"},
		"attach, bad id":                {"PUT", fleets + "/pool/policies/A", "operator", `{}`, 422, "invalid_field", "policy_id"},
		"attach maybe":                  {"PUT", fleets + "/pool/policies/oldest", "operator", `{"enabled":"no"}`, 422, "invalid_field", "enabled"},
		"detach of unknown":             {"DELETE", fleets + "/nope/policies/spread", "operator", "", 404, "fleet_not_found", ""},
		"policy unknown":                {"GET", policies + "/nope", "viewer", "", 404, "policy_not_found", ""},
		"policy bad id":                 {"GET", policies + "/A", "viewer", "", 422, "invalid_field", "policy_id"},
		"policy type filter":            {"GET", policies + "?type=all", "viewer", "", 422, "invalid_field", "type"},
		"policy id null":                {"POST", policies, "operator", `{"policy_id":null,"type":"deletion","spec":{}}`, 422, "invalid_field", "policy_id"},
		"policy type":                   {"POST", policies, "operator", `{"policy_id":"bad","type":"spread","spec":{}}`, 422, "invalid_field", "type"},
		"policy without spec":           {"POST", policies, "operator", `{"policy_id":"bad","type":"deletion"}`, 422, "invalid_field", "spec"},
		"policy spec null":              {"POST", policies, "operator", `{"policy_id":"bad","type":"deletion","spec":null}`, 422, "invalid_field", "spec"},
		"policy spec a list":            {"POST", policies, "operator", `{"policy_id":"bad","type":"deletion","spec":[]}`, 422, "invalid_field", "spec"},
		"policy of another body":        {"POST", policies, "operator", `{"policy_id":"oldest","type":"deletion","spec":{"criteria":"RANDOM"}}`, 409, "policy_conflict", "policy_id"},
		"policy in use":                 {"DELETE", policies + "/spread", "operator", "", 409, "policy_in_use", ""},
		"policy change of unknown":      {"PUT", policies + "/nope", "operator", `{"spec":{}}`, 404, "policy_not_found", ""},
		"policy change to another type": {"PUT", policies + "/oldest", "operator", `{"spec":{"regions":[{"name":"eu"}]}}`, 400, "unknown_field", "spec.regions"},
		"regions none":                  {"POST", policies, "operator", spread(`[]`), 422, "invalid_field", "spec.regions"},
		"region unknown":                {"POST", policies, "operator", spread(`[{"name":"mars"}]`), 422, "invalid_field", "spec.regions[0].name"},
		"region twice":                  {"POST", policies, "operator", spread(`[{"name":"eu"},{"name":"eu"}]`), 422, "invalid_field", "spec.regions[1].name"},
		"weight negative":               {"POST", policies, "operator", spread(`[{"name":"eu","weight":-1}]`), 422, "invalid_field", "spec.regions[0].weight"},
		"weights all 0":                 {"POST", policies, "operator", spread(`[{"name":"eu","weight":0},{"name":"us","weight":0}]`), 422, "invalid_field", "spec.regions"},
		"weight not whole":              {"POST", policies, "operator", spread(`[{"name":"eu","weight":0.5}]`), 422, "invalid_field", "spec.regions[0].weight"},
		"cap below -1":                  {"POST", policies, "operator", spread(`[{"name":"eu","cap":-2}]`), 422, "invalid_field", "spec.regions[0].cap"},
		"action unknown fleet":          {"POST", fleets + "/nope/actions", "operator", act("CLUSTER_SCALE_OUT", `{}`), 404, "fleet_not_found", ""},
		"dry run of unknown fleet":      {"POST", fleets + "/nope/actions?dry_run=true", "operator", act("CLUSTER_SCALE_OUT", `{}`), 404, "fleet_not_found", ""},
		"dry run maybe":                 {"POST", actions + "?dry_run=perhaps", "operator", act("CLUSTER_SCALE_OUT", `{}`), 422, "invalid_field", "dry_run"},
		"action none":                   {"POST", actions, "operator", `{}`, 422, "invalid_field", "action"},
		"action null":                   {"POST", actions, "operator", `{"action":null}`, 422, "invalid_field", "action"},
		"action unknown":                {"POST", actions, "operator", act("CLUSTER_DELETE", `{}`), 422, "invalid_field", "action"},
		"action unknown field":          {"POST", actions, "operator", `{"action":"CLUSTER_SCALE_OUT","count":1}`, 400, "unknown_field", "count"},
		"inputs a list":                 {"POST", actions, "operator", act("CLUSTER_SCALE_OUT", `[]`), 422, "invalid_field", "inputs"},
		"inputs null":                   {"POST", actions, "operator", act("CLUSTER_SCALE_OUT", `null`), 422, "invalid_field", "inputs"},
		"count null":                    {"POST", actions, "operator", act("CLUSTER_SCALE_OUT", `{"count":null}`), 422, "invalid_field", "inputs.count"},
		"inputs twice":                  {"POST", actions, "operator", act("CLUSTER_SCALE_OUT", `{"count":1,"count":2}`), 400, "duplicate_field", "inputs.count"},
		"count 0":                       {"POST", actions, "operator", act("CLUSTER_SCALE_OUT", `{"count":0}`), 422, "invalid_field", "inputs.count"},
		"count below 0":                 {"POST", actions, "operator", act("CLUSTER_SCALE_IN", `{"count":-3}`), 422, "invalid_field", "inputs.count"},
		"count not whole":               {"POST", actions, "operator", act("CLUSTER_SCALE_OUT", `{"count":2.5}`), 422, "invalid_field", "inputs.count"},
		"count as text":                 {"POST", actions, "operator", act("CLUSTER_SCALE_OUT", `{"count":"2"}`), 422, "invalid_field", "inputs.count"},
		"inputs of another action":      {"POST", actions, "operator", act("CLUSTER_SCALE_IN", `{"number":2}`), 400, "unknown_field", "inputs.number"},
		"inputs unknown":                {"POST", actions, "operator", act("CLUSTER_RESIZE", `{"size":2}`), 400, "unknown_field", "inputs.size"},
		"resize without a target":       {"POST", actions, "operator", act("CLUSTER_RESIZE", `{}`), 422, "invalid_field", "inputs.adjustment_type"},
		"resize min above max":          {"POST", actions, "operator", act("CLUSTER_RESIZE", `{"min_size":3,"max_size":2}`), 422, "invalid_field", "inputs.min_size"},
		"resize to below 0":             {"POST", actions, "operator", act("CLUSTER_RESIZE", `{"adjustment_type":"EXACT_CAPACITY","number":-1}`), 422, "invalid_field", "inputs.number"},
		"region of the node":            {"POST", actions, "operator", act("NODE_CREATE", `{"region":"mars"}`), 422, "invalid_field", "inputs.region"},
		"regions asked twice":           {"POST", actions, "operator", act("CLUSTER_SCALE_OUT", `{"regions":["eu","eu"]}`), 422, "invalid_field", "inputs.regions[1]"},
		"surge 0":                       {"POST", actions, "operator", act("CLUSTER_REPLACE", `{"max_surge":0}`), 422, "invalid_field", "inputs.max_surge"},
		"actions of unknown":            {"GET", fleets + "/nope/actions", "viewer", "", 404, "fleet_not_found", ""},
		"actions cursor":                {"GET", actions + "?cursor=x", "viewer", "", 422, "invalid_field", "cursor"},
		"actions cursor 0":              {"GET", actions + "?cursor=0", "viewer", "", 422, "invalid_field", "cursor"},
		"action seq unknown":            {"GET", actions + "/9", "viewer", "", 404, "action_not_found", ""},
		"action seq 0":                  {"GET", actions + "/0", "viewer", "", 422, "invalid_field", "seq"},
		"action seq a word":             {"GET", actions + "/first", "viewer", "", 422, "invalid_field", "seq"},
		"action seq too large":          {"GET", actions + "/99999999999", "viewer", "", 422, "invalid_field", "seq"},
		"cancel unknown":                {"POST", actions + "/9/cancel", "operator", "", 404, "action_not_found", ""},
	}
	for name, write := range map[string][3]string{
		"creates": {"POST", fleets, aFleet}, "changes": {"PATCH", fleets + "/pool", `{}`}, "deletes": {"DELETE", fleets + "/pool", ""},
		"attaches": {"PUT", fleets + "/pool/policies/oldest", `{}`}, "detaches": {"DELETE", fleets + "/pool/policies/spread", ""},
		"makes a policy": {"POST", policies, aPolicy}, "changes a policy": {"PUT", policies + "/oldest", `{"spec":{}}`}, "deletes a policy": {"DELETE", policies + "/oldest", ""},
		"acts": {"POST", actions, act("CLUSTER_SCALE_OUT", `{}`)}, "cancels": {"POST", actions + "/1/cancel", ""}, "acts, bad body": {"POST", actions, `{`},
	} {
		table["viewer "+name] = refusal{write[0], write[1], "viewer", write[2], 403, "forbidden", ""}
	}
	var before, after string
	everything := `SELECT (SELECT json_agg(f) FROM fleets f)::text || (SELECT json_agg(p) FROM policies p)::text || (SELECT json_agg(x) FROM fleet_policies x)::text || (SELECT count(*) FROM fleet_actions)`
	require.NoError(t, b.pool.QueryRow(context.Background(), everything).Scan(&before))
	// The contents of specs and inputs depend on the type and the action, and are
	// beyond the contract; so is what depends on rows.
	beyond := []string{"fleet unknown cloud", "fleet min above max", "change min above max"}
	for name, c := range table {
		contentType := ""
		if c.body != "" {
			contentType = js
		}
		resp, body := b.do(c.method, c.path, c.token, contentType, c.body)
		require.Equal(t, c.status, resp.StatusCode, "%s: %s", name, body)
		p := as[api.Problem](t, body)
		require.Equal(t, c.code, p.Code, "%s: %s", name, body)
		require.Equal(t, c.field, deref(p.Field), "%s: %s", name, body)
		require.NotEmpty(t, deref(p.Detail), name)
		if c.status == http.StatusUnprocessableEntity && c.body != "" && !strings.HasPrefix(c.field, "spec.regions") && !strings.HasPrefix(c.field, "inputs.") && !slices.Contains(beyond, name) {
			require.True(t, b.contractRefuses(c.method, c.path, contentType, c.body), "%s: the contract lets it pass", name)
		}
	}
	require.NoError(t, b.pool.QueryRow(context.Background(), everything).Scan(&after))
	require.Equal(t, before, after, "a refused request writes nothing")
	require.Empty(t, b.runs.asked())
	for _, key := range []string{"", strings.Repeat("k", 256), "a b"} {
		resp, body := b.sendWith("POST", actions, act("CLUSTER_SCALE_OUT", `{}`), "Idempotency-Key", key)
		require.Equal(t, 422, resp.StatusCode, "%q: %s", key, body)
		require.Equal(t, "Idempotency-Key", deref(as[api.Problem](t, body).Field))
	}
}

// TestWhatIsPlannedIsInTheContract: the contract describes the data of every kind of action.
func TestWhatIsPlannedIsInTheContract(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.ok(201, "POST", "/v1/fleets", strings.Replace(aFleet, `"max_size":5`, `"region":"eu"`, 1))
	for _, body := range []string{
		`{"action":"CLUSTER_SCALE_OUT"}`, `{"action":"CLUSTER_SCALE_IN"}`, `{"action":"CLUSTER_RESIZE","inputs":{"max_size":-1}}`, `{"action":"CLUSTER_REPLACE","inputs":{"max_surge":3}}`,
		`{"action":"NODE_CREATE","inputs":{"region":"us"}}`,
	} {
		p := planned[api.FleetActionPlan](t, b.ok(200, "POST", "/v1/fleets/pool/actions?dry_run=true", body))
		var data map[string]any
		require.NoError(t, json.Unmarshal(p.Data, &data), body)
		require.Contains(t, []any{"OK", "ERROR"}, data["status"], body)
	}
}
