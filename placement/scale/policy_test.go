package scale_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/region"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
)

func refusedWith(t *testing.T, err error, code prego.Code, field, name string) {
	t.Helper()
	var e *prego.Error
	require.ErrorAs(t, err, &e, name)
	require.Equal(t, code, e.Code, "%s: %v", name, err)
	require.Equal(t, field, e.Field, "%s: %v", name, err)
	require.NotEmpty(t, e.Message, name)
}

func TestParsePolicy(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]struct {
		kind server.PolicyType
		out  string
	}{
		`{"regions":[{"name":"eu"},{"name":"us","weight":0,"cap":0}]}`: {server.PolicyRegionPlacement, `{"regions":[{"name":"eu","weight":100,"cap":-1},{"name":"us","weight":0,"cap":0}]}`},
		`{}`: {server.PolicyDeletion, `{"criteria":"OLDEST_FIRST"}`},
		`{"criteria":"RANDOM","grace_period":604800}`:            {server.PolicyDeletion, `{"criteria":"RANDOM","grace_period":604800}`},
		`{"event":"CLUSTER_SCALE_IN","adjustment":{"number":1}}`: {server.PolicyScaling, `{"event":"CLUSTER_SCALE_IN","adjustment":{"type":"CHANGE_IN_CAPACITY","number":1}}`},
		`{"event":"CLUSTER_SCALE_OUT","adjustment":{"type":"CHANGE_IN_PERCENTAGE","number":1000,"min_step":1,"cooldown":86400,"best_effort":true}}`: {
			server.PolicyScaling,
			`{"event":"CLUSTER_SCALE_OUT","adjustment":{"type":"CHANGE_IN_PERCENTAGE","number":1000,"min_step":1,"best_effort":true,"cooldown":86400}}`,
		},
	} {
		got, err := scale.ParsePolicy(want.kind, json.RawMessage(raw))
		require.NoError(t, err, raw)
		require.JSONEq(t, want.out, string(got))
		again, err := scale.ParsePolicy(want.kind, got)
		require.NoError(t, err, raw)
		require.Equal(t, string(got), string(again), "the stored form is accepted unchanged")
	}
	for step, ok := range map[int]bool{1000: true, 1001: false} {
		_, err := scale.ParsePolicy("scaling", json.RawMessage(fmt.Sprintf(
			`{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":1,"min_step":%d}}`, step)))
		require.Equal(t, ok, err == nil, "%d: %v", step, err)
	}
	for _, c := range []struct {
		kind  server.PolicyType
		raw   string
		code  prego.Code
		field string
	}{
		{"spread", `{}`, "invalid_field", "type"},
		{"", `{}`, "invalid_field", "type"},
		{"region_placement", ``, "invalid_field", "spec"},
		{"region_placement", `null`, "invalid_field", "spec"},
		{"deletion", `null`, "invalid_field", "spec"},
		{"deletion", `{"Criteria":"RANDOM"}`, "unknown_field", "spec.Criteria"},
		{"region_placement", `{"regions":[{"name":"eu","WEIGHT":1}]}`, "unknown_field", "spec.regions[0].WEIGHT"},
		{"deletion", `[]`, "invalid_field", "spec"},
		{"deletion", `{}{}`, "invalid_field", "spec"},
		{"deletion", `"OLDEST_FIRST"`, "invalid_field", "spec"},
		{"region_placement", `{}`, "invalid_field", "spec.regions"},
		{"region_placement", `{"regions":[]}`, "invalid_field", "spec.regions"},
		{"region_placement", `{"regions":[{"name":"eu"},{"name":"eu"}]}`, "invalid_field", "spec.regions[1].name"},
		{"region_placement", `{"regions":[{"name":"mars"}]}`, "invalid_field", "spec.regions[0].name"},
		{"region_placement", `{"regions":[{}]}`, "invalid_field", "spec.regions[0].name"},
		{"region_placement", `{"regions":[{"name":"eu","weight":-1}]}`, "invalid_field", "spec.regions[0].weight"},
		{"region_placement", `{"regions":[{"name":"eu","weight":0}]}`, "invalid_field", "spec.regions"},
		{"region_placement", `{"regions":[{"name":"eu","cap":-2}]}`, "invalid_field", "spec.regions[0].cap"},
		{"region_placement", `{"regions":[{"name":"eu","weight":1.5}]}`, "invalid_field", "spec.regions[0].weight"},
		{"region_placement", `{"regions":[{"name":"eu","cap":"3"}]}`, "invalid_field", "spec.regions[0].cap"},
		{"region_placement", `{"regions":[{"name":"eu","wight":1}]}`, "unknown_field", "spec.regions[0].wight"},
		{"deletion", `{"criteria":"NEWEST"}`, "invalid_field", "spec.criteria"},
		{"deletion", `{"grace_period":-1}`, "invalid_field", "spec.grace_period"},
		{"deletion", `{"grace_period":604801}`, "invalid_field", "spec.grace_period"},
		{"deletion", `{"grace_period":1.5}`, "invalid_field", "spec.grace_period"},
		{"scaling", `{}`, "invalid_field", "spec.event"},
		{"scaling", `{"event":"CLUSTER_RESIZE","adjustment":{"number":1}}`, "invalid_field", "spec.event"},
		{"scaling", `{"event":"CLUSTER_SCALE_OUT"}`, "invalid_field", "spec.adjustment.number"},
		{"scaling", `{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":0}}`, "invalid_field", "spec.adjustment.number"},
		{"scaling", `{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":1001}}`, "invalid_field", "spec.adjustment.number"},
		{"scaling", `{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":1,"type":"MORE"}}`, "invalid_field", "spec.adjustment.type"},
		{"scaling", `{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":1,"min_step":-1}}`, "invalid_field", "spec.adjustment.min_step"},
		{"scaling", `{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":1,"cooldown":86401}}`, "invalid_field", "spec.adjustment.cooldown"},
		{"scaling", `{"event":"CLUSTER_SCALE_OUT","adjustment":{"number":1,"best_effort":1}}`, "invalid_field", "spec.adjustment.best_effort"},
	} {
		_, err := scale.ParsePolicy(c.kind, json.RawMessage(c.raw))
		refusedWith(t, err, c.code, c.field, string(c.kind)+" "+c.raw)
	}
}

func TestParseInputs(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{``, `null`, `{}`} {
		in, err := scale.ParseInputs(server.ClusterScaleOut, json.RawMessage(raw), true)
		require.NoError(t, err)
		require.Equal(t, scale.Inputs{}, in)
	}
	for _, strict := range []bool{true, false} {
		in, err := scale.ParseInputs(server.ClusterResize, json.RawMessage(`{"adjustment_type":"EXACT_CAPACITY","number":0}`), strict)
		require.NoError(t, err)
		require.Equal(t, strict, *in.Strict)
		in, err = scale.ParseInputs(server.ClusterResize, json.RawMessage(`{"max_size":-1,"strict":false}`), true)
		require.NoError(t, err)
		require.False(t, *in.Strict)
	}
	_, err := scale.ParseInputs(server.ClusterResize, json.RawMessage(`{"min_size":2,"max_size":2}`), true)
	require.NoError(t, err)
	for _, c := range []struct {
		kind  server.FleetActionKind
		raw   string
		code  prego.Code
		field string
	}{
		{"CLUSTER_DELETE", `{}`, "invalid_field", "action"},
		{"", `{}`, "invalid_field", "action"},
		{"CLUSTER_SCALE_OUT", `[]`, "invalid_field", "inputs"},
		{"CLUSTER_SCALE_OUT", `3`, "invalid_field", "inputs"},
		{"CLUSTER_SCALE_OUT", `{"count":0}`, "invalid_field", "inputs.count"},
		{"CLUSTER_SCALE_OUT", `{"count":-1}`, "invalid_field", "inputs.count"},
		{"CLUSTER_SCALE_OUT", `{"count":1001}`, "invalid_field", "inputs.count"},
		{"CLUSTER_SCALE_OUT", `{"count":1.5}`, "invalid_field", "inputs.count"},
		{"CLUSTER_SCALE_OUT", `{"count":"1"}`, "invalid_field", "inputs.count"},
		{"CLUSTER_SCALE_OUT", `{"count":1e30}`, "invalid_field", "inputs.count"},
		{"CLUSTER_SCALE_OUT", `{"Count":1}`, "unknown_field", "inputs.Count"},
		{"CLUSTER_SCALE_OUT", `{"number":1}`, "unknown_field", "inputs.number"},
		{"CLUSTER_SCALE_OUT", `{"regions":["mars"]}`, "invalid_field", "inputs.regions[0]"},
		{"CLUSTER_SCALE_OUT", `{"regions":["eu","eu"]}`, "invalid_field", "inputs.regions[1]"},
		{"CLUSTER_SCALE_IN", `{"regions":["eu"]}`, "unknown_field", "inputs.regions"},
		{"CLUSTER_SCALE_IN", `{"count":0}`, "invalid_field", "inputs.count"},
		{"CLUSTER_RESIZE", `{}`, "invalid_field", "inputs.adjustment_type"},
		{"CLUSTER_RESIZE", `{"count":1}`, "unknown_field", "inputs.count"},
		{"CLUSTER_RESIZE", `{"number":1}`, "invalid_field", "inputs.adjustment_type"},
		{"CLUSTER_RESIZE", `{"number":1,"min_size":1}`, "invalid_field", "inputs.adjustment_type"},
		{"CLUSTER_RESIZE", `{"adjustment_type":"EXACT_CAPACITY"}`, "invalid_field", "inputs.number"},
		{"CLUSTER_RESIZE", `{"adjustment_type":"EXACT_CAPACITY","number":-1}`, "invalid_field", "inputs.number"},
		{"CLUSTER_RESIZE", `{"adjustment_type":"MORE","number":1}`, "invalid_field", "inputs.adjustment_type"},
		{"CLUSTER_RESIZE", `{"adjustment_type":"EXACT_CAPACITY","number":1,"min_step":1}`, "invalid_field", "inputs.min_step"},
		{"CLUSTER_RESIZE", `{"min_size":3,"max_size":2}`, "invalid_field", "inputs.min_size"},
		{"CLUSTER_RESIZE", `{"min_size":-1}`, "invalid_field", "inputs.min_size"},
		{"CLUSTER_RESIZE", `{"max_size":-2}`, "invalid_field", "inputs.max_size"},
		{"CLUSTER_RESIZE", `{"min_size":1,"strict":"no"}`, "invalid_field", "inputs.strict"},
		{"CLUSTER_REPLACE", `{"max_surge":0}`, "invalid_field", "inputs.max_surge"},
		{"CLUSTER_REPLACE", `{"max_surge":101}`, "invalid_field", "inputs.max_surge"},
		{"CLUSTER_REPLACE", `{"grace_period":-1}`, "invalid_field", "inputs.grace_period"},
		{"CLUSTER_REPLACE", `{"count":1}`, "unknown_field", "inputs.count"},
		{"NODE_CREATE", `{"region":"mars"}`, "invalid_field", "inputs.region"},
		{"NODE_CREATE", `{"count":1}`, "unknown_field", "inputs.count"},
	} {
		_, err := scale.ParseInputs(c.kind, json.RawMessage(c.raw), true)
		refusedWith(t, err, c.code, c.field, string(c.kind)+" "+c.raw)
	}
}

// FuzzParse: refusals have a reason, and accepted policies are accepted again in their written form, and can be
// planned with.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `{}`, `{"count":3}`, `{"regions":[{"name":"eu","weight":50,"cap":3}]}`, `{"event":"CLUSTER_SCALE_IN","adjustment":{"number":3,"cooldown":1}}`,
		`{"adjustment_type":"CHANGE_IN_PERCENTAGE","number":-50,"min_step":2,"min_size":1}`, `{"region":"us"}`, `{"criteria":"RANDOM","grace_period":1}`, `{"max_surge":3}`, `{"count":null}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		coded := func(err error) bool {
			if err == nil {
				return false
			}
			var e *prego.Error
			require.True(t, errors.As(err, &e), "%v", err)
			require.Contains(t, []prego.Code{prego.CodeInvalidField, prego.CodeUnknownField}, e.Code)
			require.NotEmpty(t, e.Field)
			return true
		}
		st := state(regions{"eu": 3, "us": 2}, nil)
		for _, kind := range []server.PolicyType{server.PolicyScaling, server.PolicyRegionPlacement, server.PolicyDeletion} {
			spec, err := scale.ParsePolicy(kind, json.RawMessage(raw))
			if coded(err) {
				continue
			}
			again, err := scale.ParsePolicy(kind, spec)
			require.NoError(t, err)
			require.Equal(t, string(spec), string(again))
			st.Fleet.Policies = append(st.Fleet.Policies, server.Attachment{FleetPolicy: server.FleetPolicy{PolicyID: prego.PolicyID(string(kind)), Type: kind, Spec: spec}, Enabled: true})
		}
		for _, kind := range []server.FleetActionKind{server.ClusterScaleOut, server.ClusterScaleIn, server.ClusterResize, server.ClusterReplace, server.NodeCreate} {
			in, err := scale.ParseInputs(kind, json.RawMessage(raw), true)
			if coded(err) {
				raw := `{"max_size":9}`
				if kind != server.ClusterResize {
					raw = `{}`
				}
				_, err := scale.Plan(st, action(kind, raw))
				require.NoError(t, err)
				continue
			}
			out, err := json.Marshal(in)
			require.NoError(t, err)
			again, err := scale.ParseInputs(kind, out, false)
			require.NoError(t, err)
			require.Equal(t, in, again)
			_, err = scale.Plan(st, action(kind, string(out)))
			require.NoError(t, err)
		}
	})
}

// TestReasonsHaveCodes: each sentence has a code.
func TestReasonsHaveCodes(t *testing.T) {
	t.Parallel()
	for code, raw := range map[prego.Code]string{region.CodeNoRegion: `[{"name":"eu"}]`, region.CodeNoPlan: `[{"name":"us","cap":0}]`} {
		st := state(nil, func(st *server.FleetState) { st.Usable = []prego.Region{"us"} }, policy(t, server.PolicyRegionPlacement, `{"regions":`+raw+`}`))
		p, err := scale.Plan(st, action(server.ClusterScaleOut, `{}`))
		require.NoError(t, err)
		require.Equal(t, string(code), p.Reason)
		require.True(t, strings.HasSuffix(p.Message, "."))
	}
}
