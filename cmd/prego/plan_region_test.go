package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/cli"
	"github.com/prego/prego/placement/region"
)

// plan runs one of the plan verbs.
func plan(verb func() *cobra.Command, stdin string) (string, error) {
	cmd := verb()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	var out bytes.Buffer
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetArgs(nil)
	err := cmd.ExecuteContext(context.Background())
	return out.String(), err
}

func TestPlanRegionResizeConstraint(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verb          func() *cobra.Command
		stdin, stdout string
	}{
		"region grows": {
			newPlanRegionCommand,
			`{"action":"CLUSTER_SCALE_OUT","policy":{"regions":[{"name":"RegionOne","weight":100,"cap":-1}]},"current":{"RegionOne":3},"usable_regions":["RegionOne"],` +
				`"cluster":{"min_size":0,"max_size":-1,"desired_capacity":3},"inputs":{"count":2},"data":{},"node":{"profile_region":null}}`,
			`{"status":"OK","creation":{"count":2,"regions":{"RegionOne":2}}}`,
		},
		"region shrinks": {
			newPlanRegionCommand,
			`{"action":"CLUSTER_SCALE_IN","policy":{"regions":[{"name":"RegionOne"},{"name":"RegionTwo"}]},"current":{"RegionOne":4,"RegionTwo":3},"inputs":{"count":3}}`,
			`{"status":"OK","deletion":{"count":3,"regions":{"RegionOne":2,"RegionTwo":1}}}`,
		},
		"region none usable": {
			newPlanRegionCommand, `{"action":"NODE_CREATE","policy":{"regions":[{"name":"a<b>"}]},"usable_regions":[]}`,
			`{"status":"ERROR","reason":"No region is found usable."}`,
		},
		"region no room": {
			newPlanRegionCommand, `{"action":"NODE_CREATE","policy":{"regions":[{"name":"a","cap":0}]}}`,
			`{"status":"ERROR","reason":"There is no feasible plan to handle all nodes."}`,
		},
		"resize": {
			newPlanResizeCommand,
			`{"adjustment_type":"CHANGE_IN_PERCENTAGE","number":25,"min_size":null,"max_size":null,"min_step":2,"strict":true,"current":10,"cluster":{"min_size":1,"max_size":20,"desired_capacity":10},"global_max":1000}`,
			`{"status":"OK","desired":12,"creation":{"count":2}}`,
		},
		"resize is strict by default": {
			newPlanResizeCommand, `{"adjustment_type":"EXACT_CAPACITY","number":30,"current":10,"cluster":{"max_size":20}}`,
			`{"status":"ERROR","code":"target_above_fleet_max_size","reason":"The target capacity (30) is greater than the fleet's max_size (20)."}`,
		},
		"resize best effort": {
			newPlanResizeCommand, `{"adjustment_type":"EXACT_CAPACITY","number":3,"strict":false,"current":10,"cluster":{"min_size":4}}`,
			`{"status":"OK","desired":4,"deletion":{"count":6}}`,
		},
		"constraint": {
			newPlanConstraintCommand,
			`{"servers":[{"id":"a","tags":["Staging"],"fits":true},{"id":"b","tags":["staging"],"fits":false},{"id":"c","tags":[]}],"constraint":{"require":["STAGING"],"disallow":[]}}`,
			`{"eligible":["a"],"error":null}`,
		},
		"constraint full": {
			newPlanConstraintCommand, `{"servers":[{"id":"b","tags":["staging"],"fits":false},{"id":"c","tags":[]}],"constraint":{"require":["staging"],"disallow":[]}}`,
			`{"eligible":[],"error":"insufficient_resources"}`,
		},
		"constraint mismatch": {
			newPlanConstraintCommand, `{"servers":[{"id":"c","tags":[],"fits":false}],"constraint":{"require":["staging"]}}`,
			`{"eligible":[],"error":"cell_mismatch"}`,
		},
		"no constraint": {newPlanConstraintCommand, `{"servers":[{"id":"c"}]}`, `{"eligible":["c"],"error":null}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := plan(c.verb, c.stdin)
			require.NoError(t, err)
			require.Equal(t, c.stdout+"\n", out)
		})
	}
}

// TestPlanResizeContradiction: such a document is an answer and a mistake.
func TestPlanResizeContradiction(t *testing.T) {
	t.Parallel()
	out, err := plan(newPlanResizeCommand, `{"current":3,"min_size":5,"max_size":4}`)
	require.JSONEq(t, `{"status":"ERROR","code":"min_size_above_max_size","reason":"The specified min_size (5) is greater than the specified max_size (4)."}`, out)
	refusedWith(t, err, region.CodeMinAboveMax, "min_size")
}

func refusedWith(t *testing.T, err error, code prego.Code, field string) {
	t.Helper()
	var exit *cli.Exit
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 2, exit.Code)
	var e *prego.Error
	require.ErrorAs(t, exit.Err, &e)
	require.Equal(t, code, e.Code, e.Error())
	require.Equal(t, field, e.Field, e.Error())
}

func TestPlanRegionResizeConstraintRefusals(t *testing.T) {
	t.Parallel()
	const a = `{"action":"CLUSTER_SCALE_OUT","policy":{"regions":[{"name":"a"}]}`
	regions := func(r string) string { return `{"action":"CLUSTER_SCALE_OUT","policy":{"regions":[` + r + `]}}` }
	tag := func(t string) string { return `{"servers":[{"id":"a","tags":["` + t + `"]}]}` }
	require64 := func(t string) string { return `{"servers":[],"constraint":{"require":["` + t + `"]}}` }
	for name, c := range map[string]struct {
		verb  func() *cobra.Command
		stdin string
		code  prego.Code
		field string
	}{
		"nothing":                     {newPlanRegionCommand, ``, prego.CodeInvalidJSON, ""},
		"half a document":             {newPlanResizeCommand, `{"current":`, prego.CodeInvalidJSON, ""},
		"a list":                      {newPlanConstraintCommand, `[]`, prego.CodeInvalidJSON, ""},
		"unknown field":               {newPlanRegionCommand, a + `,"count":1}`, prego.CodeUnknownField, "count"},
		"unknown field of a region":   {newPlanRegionCommand, regions(`{"name":"a","wieght":1}`), prego.CodeUnknownField, "policy.regions[0].wieght"},
		"unknown field of data":       {newPlanRegionCommand, a + `,"data":{"creation":{"counts":1}}}`, prego.CodeUnknownField, "data.creation.counts"},
		"field given twice":           {newPlanRegionCommand, a + `,"current":{"a":1,"a":2}}`, prego.CodeDuplicateField, "current.a"},
		"no action":                   {newPlanRegionCommand, `{"policy":{"regions":[{"name":"a"}]}}`, prego.CodeInvalidField, "action"},
		"unknown action":              {newPlanRegionCommand, `{"action":"CLUSTER_DELETE","policy":{"regions":[{"name":"a"}]}}`, prego.CodeInvalidField, "action"},
		"no policy":                   {newPlanRegionCommand, `{"action":"CLUSTER_SCALE_OUT"}`, prego.CodeInvalidField, "policy.regions"},
		"duplicate region":            {newPlanRegionCommand, regions(`{"name":"a"},{"name":"a"}`), prego.CodeInvalidField, "policy.regions[1].name"},
		"region without a name":       {newPlanRegionCommand, regions(`{"weight":1}`), prego.CodeInvalidField, "policy.regions[0].name"},
		"negative weight":             {newPlanRegionCommand, regions(`{"name":"a","weight":-1}`), prego.CodeInvalidField, "policy.regions[0].weight"},
		"weight 2.5":                  {newPlanRegionCommand, regions(`{"name":"a","weight":2.5}`), prego.CodeInvalidField, "policy.regions[0].weight"},
		"all weights 0":               {newPlanRegionCommand, regions(`{"name":"a","weight":0}`), prego.CodeInvalidField, "policy.regions"},
		"cap -2":                      {newPlanRegionCommand, regions(`{"name":"a","cap":-2}`), prego.CodeInvalidField, "policy.regions[0].cap"},
		"count 0":                     {newPlanRegionCommand, a + `,"inputs":{"count":0}}`, prego.CodeInvalidField, "inputs.count"},
		"count -1":                    {newPlanRegionCommand, a + `,"inputs":{"count":-1}}`, prego.CodeInvalidField, "inputs.count"},
		"count 2.5":                   {newPlanRegionCommand, a + `,"inputs":{"count":2.5}}`, prego.CodeInvalidField, "inputs.count"},
		"count a string":              {newPlanRegionCommand, a + `,"inputs":{"count":"2"}}`, prego.CodeInvalidField, "inputs.count"},
		"count 1e30":                  {newPlanRegionCommand, a + `,"inputs":{"count":1e30}}`, prego.CodeInvalidField, "inputs.count"},
		"count beyond 64 bits":        {newPlanRegionCommand, a + `,"inputs":{"count":9223372036854775808}}`, prego.CodeInvalidField, "inputs.count"},
		"count beyond the limit":      {newPlanRegionCommand, a + `,"inputs":{"count":9223372036854775807}}`, prego.CodeInvalidField, "inputs.count"},
		"a decided count of 0":        {newPlanRegionCommand, a + `,"data":{"creation":{"count":0}}}`, prego.CodeInvalidField, "data.creation.count"},
		"unknown status":              {newPlanRegionCommand, a + `,"data":{"status":"DONE"}}`, prego.CodeInvalidField, "data.status"},
		"negative current":            {newPlanRegionCommand, a + `,"current":{"a":-1}}`, prego.CodeInvalidField, "current.a"},
		"empty region in current":     {newPlanRegionCommand, a + `,"current":{"":1}}`, prego.CodeInvalidField, "current"},
		"usable twice":                {newPlanRegionCommand, a + `,"usable_regions":["a","a"]}`, prego.CodeInvalidField, "usable_regions[1]"},
		"usable without a name":       {newPlanRegionCommand, a + `,"usable_regions":[""]}`, prego.CodeInvalidField, "usable_regions[0]"},
		"profile without a name":      {newPlanRegionCommand, a + `,"node":{"profile_region":""}}`, prego.CodeInvalidField, "node.profile_region"},
		"fleet's min above its max":   {newPlanRegionCommand, a + `,"cluster":{"min_size":2,"max_size":1}}`, prego.CodeInvalidField, "cluster.min_size"},
		"input min_step negative":     {newPlanRegionCommand, a + `,"inputs":{"min_step":-1}}`, prego.CodeInvalidField, "inputs.min_step"},
		"input number alone":          {newPlanRegionCommand, a + `,"inputs":{"number":1}}`, prego.CodeInvalidField, "inputs.adjustment_type"},
		"service limit of 0":          {newPlanRegionCommand, a + `,"global_max":0}`, prego.CodeInvalidField, "global_max"},
		"number 2.5":                  {newPlanResizeCommand, `{"adjustment_type":"EXACT_CAPACITY","number":2.5,"current":1}`, prego.CodeInvalidField, "number"},
		"number a string":             {newPlanResizeCommand, `{"adjustment_type":"EXACT_CAPACITY","number":"2","current":1}`, prego.CodeInvalidField, "number"},
		"strict a string":             {newPlanResizeCommand, `{"current":1,"strict":"true"}`, prego.CodeInvalidField, "strict"},
		"current missing":             {newPlanResizeCommand, `{}`, prego.CodeInvalidField, "current"},
		"tag of 64":                   {newPlanConstraintCommand, tag(strings.Repeat("a", 64)), prego.CodeInvalidField, "servers[0].tags"},
		"empty tag":                   {newPlanConstraintCommand, tag(""), prego.CodeInvalidField, "servers[0].tags"},
		"tag with a space":            {newPlanConstraintCommand, tag("a b"), prego.CodeInvalidField, "servers[0].tags"},
		"tag with a control":          {newPlanConstraintCommand, tag(`a\u0007`), prego.CodeInvalidField, "servers[0].tags"},
		"required tag of 64":          {newPlanConstraintCommand, require64(strings.Repeat("a", 64)), prego.CodeInvalidField, "constraint.require"},
		"required empty tag":          {newPlanConstraintCommand, require64(""), prego.CodeInvalidField, "constraint.require"},
		"server without an id":        {newPlanConstraintCommand, `{"servers":[{"tags":[]}]}`, prego.CodeInvalidField, "servers[0].id"},
		"server given twice":          {newPlanConstraintCommand, `{"servers":[{"id":"a"},{"id":"a"}]}`, prego.CodeInvalidField, "servers[1].id"},
		"unknown field of constraint": {newPlanConstraintCommand, `{"servers":[],"constraint":{"Require":[]}}`, prego.CodeUnknownField, "constraint.Require"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := plan(c.verb, c.stdin)
			require.Empty(t, out)
			refusedWith(t, err, c.code, c.field)
		})
	}
}

// FuzzPlanDocuments: whatever is read is answered with a line of JSON or refused
// with status 2.
func FuzzPlanDocuments(f *testing.F) {
	for _, s := range []string{
		`{"action":"CLUSTER_RESIZE","policy":{"regions":[{"name":"a","weight":1000000000,"cap":3},{"name":"b","weight":0}]},"current":{"a":1000000000,"c":2},"usable_regions":["a"],` +
			`"cluster":{"min_size":0,"max_size":-1,"desired_capacity":3},"inputs":{"adjustment_type":"CHANGE_IN_PERCENTAGE","number":-1000000000},"data":{},"node":{"profile_region":null}}`,
		`{"action":"CLUSTER_SCALE_IN","policy":{"regions":[{"name":"a"}]},"current":{"a":5},"data":{"deletion":{"count":2}}}`,
		`{"adjustment_type":"CHANGE_IN_PERCENTAGE","number":25,"min_size":1,"max_size":9,"min_step":2,"strict":false,"current":10,"cluster":{"min_size":1,"max_size":20},"global_max":1000}`,
		`{"servers":[{"id":"a","tags":["x"],"fits":true}],"constraint":{"require":["x"],"disallow":[]}}`,
		`{"usable_regions":null,"inputs":null,"data":null,"node":null,"cluster":null}`, `{"policy":{"regions":null}}`, "{}{}", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, stdin string) {
		for _, verb := range []func() *cobra.Command{newPlanRegionCommand, newPlanResizeCommand, newPlanConstraintCommand} {
			out, err := plan(verb, stdin)
			var exit *cli.Exit
			switch {
			case err == nil:
				require.True(t, json.Valid([]byte(out)))
			case !errors.As(err, &exit) || exit.Code != 2:
				t.Fatalf("%q: %v", stdin, err)
			}
		}
	})
}
