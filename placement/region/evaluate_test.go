package region_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/region"
)

const (
	noRegion = `{"status":"ERROR","reason":"No region is found usable."}`
	noPlan   = `{"status":"ERROR","reason":"There is no feasible plan to handle all nodes."}`
)

// TestEvaluate is every scenario of region-placement, S1 to S4.
func TestEvaluate(t *testing.T) {
	t.Parallel()
	const (
		in, out    = `"action":"CLUSTER_SCALE_IN"`, `"action":"CLUSTER_SCALE_OUT"`
		size, node = `"action":"CLUSTER_RESIZE"`, `"action":"NODE_CREATE"`
		// Two regions with equal weights, with four nodes and two.
		fleet = `,"policy":{"regions":[{"name":"RegionOne"},{"name":"RegionTwo"}]},"current":{"RegionOne":4,"RegionTwo":2}`
	)
	for name, c := range map[string]struct{ doc, data string }{
		"S1 two regions alike":              {in + `,"policy":{"regions":[{"name":"RegionOne"},{"name":"RegionTwo"}]},"current":{"RegionOne":4,"RegionTwo":3},"inputs":{"count":3}`, `{"status":"OK","deletion":{"count":3,"regions":{"RegionOne":2,"RegionTwo":1}}}`},
		"S1 another policy's count":         {in + fleet + `,"inputs":{"count":3},"data":{"deletion":{"count":2}}`, `{"status":"OK","deletion":{"count":2,"regions":{"RegionOne":2}}}`},
		"S1 a deletion without a count":     {in + fleet + `,"inputs":{"count":3},"data":{"deletion":{}}`, `{"status":"OK","deletion":{"count":1,"regions":{"RegionOne":1}}}`},
		"S1 a null count is none":           {in + fleet + `,"inputs":{"count":3},"data":{"deletion":{"count":null}}`, `{"status":"OK","deletion":{"count":1,"regions":{"RegionOne":1}}}`},
		"S1 a creation is not asked":        {in + fleet + `,"inputs":{"count":2},"data":{"creation":{"count":5}}`, `{"status":"OK","creation":{"count":5},"deletion":{"count":2,"regions":{"RegionOne":2}}}`},
		"S1 no count at all":                {in + fleet, `{"status":"OK","deletion":{"count":1,"regions":{"RegionOne":1}}}`},
		"S1 none usable":                    {in + fleet + `,"usable_regions":[]`, noRegion},
		"S1 none of those usable is listed": {in + fleet + `,"usable_regions":["RegionThree"]`, noRegion},
		"S1 too many":                       {in + fleet + `,"inputs":{"count":7}`, noPlan},
		"S1 what else is decided is kept": {
			in + fleet + `,"data":{"status":"OK","deletion":{"count":1,"candidates":["n1"],"grace_period":30}}`,
			`{"status":"OK","deletion":{"count":1,"regions":{"RegionOne":1},"candidates":["n1"],"grace_period":30}}`,
		},

		"S2 a region of twice the weight": {out + `,"policy":{"regions":[{"name":"RegionOne"},{"name":"RegionTwo","weight":200}]},"inputs":{"count":3}`, `{"status":"OK","creation":{"count":3,"regions":{"RegionOne":1,"RegionTwo":2}}}`},
		"S2 with everything given":        {out + `,"policy":{"regions":[{"name":"RegionOne","weight":100,"cap":-1}]},"current":{"RegionOne":3},"usable_regions":["RegionOne"],"cluster":{"min_size":0,"max_size":-1,"desired_capacity":3},"inputs":{"count":2},"data":{},"node":{"profile_region":null}`, `{"status":"OK","creation":{"count":2,"regions":{"RegionOne":2}}}`},
		"S2 another policy's count":       {out + fleet + `,"inputs":{"count":3},"data":{"creation":{"count":2}}`, `{"status":"OK","creation":{"count":2,"regions":{"RegionTwo":2}}}`},
		"S2 a creation without a count":   {out + fleet + `,"inputs":{"count":3},"data":{"creation":{}}`, `{"status":"OK","creation":{"count":1,"regions":{"RegionTwo":1}}}`},
		"S2 the input's count":            {out + fleet + `,"inputs":{"count":4}`, `{"status":"OK","creation":{"count":4,"regions":{"RegionOne":1,"RegionTwo":3}}}`},
		"S2 no count at all":              {out + fleet + `,"inputs":{}`, `{"status":"OK","creation":{"count":1,"regions":{"RegionTwo":1}}}`},
		"S2 an unusable region":           {out + fleet + `,"usable_regions":["RegionOne"]`, `{"status":"OK","creation":{"count":1,"regions":{"RegionOne":1}}}`},
		"S2 all usable by default":        {out + fleet + `,"usable_regions":null`, `{"status":"OK","creation":{"count":1,"regions":{"RegionTwo":1}}}`},
		"S2 none usable":                  {out + fleet + `,"usable_regions":[]`, noRegion},
		"S2 no room":                      {out + `,"policy":{"regions":[{"name":"RegionOne","cap":2}]},"inputs":{"count":3},"data":{"creation":{"count":3}}`, noPlan},

		"S3 creation before deletion":         {size + fleet + `,"data":{"creation":{"count":2},"deletion":{"count":3}}`, `{"status":"OK","creation":{"count":2,"regions":{"RegionTwo":2}},"deletion":{"count":3}}`},
		"S3 deletion before inputs":           {size + fleet + `,"inputs":{"adjustment_type":"EXACT_CAPACITY","number":9},"data":{"deletion":{}}`, `{"status":"OK","deletion":{"count":1,"regions":{"RegionOne":1}}}`},
		"S3 creation without a count":         {size + fleet + `,"inputs":{"count":3},"data":{"creation":{}}`, `{"status":"OK","creation":{"count":1,"regions":{"RegionTwo":1}}}`},
		"S3 growing":                          {size + fleet + `,"inputs":{"adjustment_type":"EXACT_CAPACITY","number":8}`, `{"status":"OK","creation":{"count":2,"regions":{"RegionTwo":2}}}`},
		"S3 shrinking":                        {size + fleet + `,"inputs":{"adjustment_type":"CHANGE_IN_CAPACITY","number":-4}`, `{"status":"OK","deletion":{"count":4,"regions":{"RegionOne":3,"RegionTwo":1}}}`},
		"S3 percent":                          {size + fleet + `,"inputs":{"adjustment_type":"CHANGE_IN_PERCENTAGE","number":10,"min_step":2}`, `{"status":"OK","creation":{"count":2,"regions":{"RegionTwo":2}}}`},
		"S3 nothing to do":                    {size + fleet + `,"inputs":{"adjustment_type":"EXACT_CAPACITY","number":6}`, `{"status":"OK"}`},
		"S3 without inputs":                   {size + fleet, `{"status":"OK"}`},
		"S3 not strict by default":            {size + fleet + `,"cluster":{"max_size":7},"inputs":{"adjustment_type":"EXACT_CAPACITY","number":20}`, `{"status":"OK","creation":{"count":1,"regions":{"RegionTwo":1}}}`},
		"S3 strict":                           {size + fleet + `,"cluster":{"max_size":7},"inputs":{"adjustment_type":"EXACT_CAPACITY","number":20,"strict":true}`, `{"status":"ERROR","reason":"The target capacity (20) is greater than the fleet's max_size (7)."}`},
		"S3 an invalid combination":           {size + fleet + `,"inputs":{"adjustment_type":"EXACT_CAPACITY","number":5,"min_size":5,"max_size":4}`, `{"status":"ERROR","reason":"The specified min_size (5) is greater than the specified max_size (4)."}`},
		"S3 the service limit":                {size + fleet + `,"inputs":{"adjustment_type":"EXACT_CAPACITY","number":1001}`, `{"status":"ERROR","reason":"The target capacity (1001) is greater than the maximum number of nodes allowed per fleet (1000)."}`},
		"S3 unlisted nodes are in the size":   {size + `,"policy":{"regions":[{"name":"a"}]},"current":{"a":1,"z":2},"inputs":{"adjustment_type":"EXACT_CAPACITY","number":5}`, `{"status":"OK","creation":{"count":2,"regions":{"a":2}}}`},
		"S3 none usable":                      {size + fleet + `,"usable_regions":[],"inputs":{"adjustment_type":"EXACT_CAPACITY","number":8}`, noRegion},
		"S3 no room":                          {size + `,"policy":{"regions":[{"name":"a","cap":1}]},"inputs":{"adjustment_type":"EXACT_CAPACITY","number":8}`, noPlan},
		"S4 one node, other inputs ignored":   {node + fleet + `,"inputs":{"count":4},"data":{"creation":{"count":3}}`, `{"status":"OK","creation":{"count":1,"regions":{"RegionTwo":1}}}`},
		"S4 a profile with a region":          {node + fleet + `,"node":{"profile_region":"RegionThree"}`, `{"status":"OK"}`},
		"S4 its data is left alone":           {node + fleet + `,"node":{"profile_region":"RegionOne"},"data":{"creation":{"count":3}},"usable_regions":[]`, `{"status":"OK","creation":{"count":3}}`},
		"S4 none usable":                      {node + fleet + `,"usable_regions":[]`, noRegion},
		"S4 no room":                          {node + `,"policy":{"regions":[{"name":"a","cap":0}]}`, noPlan},
		"an earlier policy's refusal remains": {out + fleet + `,"data":{"status":"ERROR","reason":"The fleet is cooling down."}`, `{"status":"ERROR","reason":"The fleet is cooling down."}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var doc region.Document
			require.NoError(t, json.Unmarshal([]byte("{"+c.doc+"}"), &doc))
			r, err := doc.Build()
			require.NoError(t, err)
			before, err := json.Marshal(r)
			require.NoError(t, err)
			data, err := json.Marshal(region.Evaluate(r))
			require.NoError(t, err)
			require.Equal(t, c.data, string(data))
			after, err := json.Marshal(r)
			require.NoError(t, err)
			require.Equal(t, string(before), string(after), "the request is left as it was")
		})
	}
}

func TestEvaluateRefusesWhatIsNotValid(t *testing.T) {
	t.Parallel()
	require.Equal(t, region.Data{Status: region.StatusError, Reason: "invalid_field: action must be CLUSTER_SCALE_IN, CLUSTER_SCALE_OUT, CLUSTER_RESIZE or NODE_CREATE"}, region.Evaluate(region.Request{}))
	zero := int64(0)
	r := region.Request{Action: region.ScaleIn, Policy: policy("a", 1, -1), MaxSize: -1}
	require.NoError(t, r.Validate())
	r.Data.Deletion = &region.Change{Count: &zero}
	refused(t, r.Validate(), prego.CodeInvalidField, "data.deletion.count")
	most := int64(1e9)
	r.Data.Deletion.Count = &most
	require.NoError(t, r.Validate())
	r.ProfileRegion = "a b"
	refused(t, r.Validate(), prego.CodeInvalidField, "node.profile_region")

	for doc, field := range map[string]string{
		`"usable_regions":["a","a"]`:                         "usable_regions[1]",
		`"usable_regions":[" "]`:                             "usable_regions[0]",
		`"node":{"profile_region":""}`:                       "node.profile_region",
		`"cluster":{"desired_capacity":-1}`:                  "cluster.desired_capacity",
		`"cluster":{"min_size":2,"max_size":1}`:              "cluster.min_size",
		`"inputs":{"number":1}`:                              "inputs.adjustment_type",
		`"inputs":{"min_step":-1}`:                           "inputs.min_step",
		`"inputs":{"count":0}`:                               "inputs.count",
		`"inputs":{"count":1000000001}`:                      "inputs.count",
		`"data":{"status":"WARNING"}`:                        "data.status",
		`"data":{"creation":{"count":-1}}`:                   "data.creation.count",
		`"global_max":0`:                                     "global_max",
		`"node":{"profile_region":"a"},"inputs":{"count":0}`: "inputs.count",
		`"global_max":1000000001`:                            "global_max",
		`"current":{"":1}`:                                   "current",
		`"current":{"a":-1}`:                                 "current.a",
	} {
		var d region.Document
		doc = `{"action":"CLUSTER_SCALE_IN","policy":{"regions":[{"name":"a"}]},` + doc + "}"
		require.NoError(t, json.Unmarshal([]byte(doc), &d))
		_, err := d.Build()
		refused(t, err, prego.CodeInvalidField, field)
	}
	var d region.Document
	require.NoError(t, json.Unmarshal([]byte(`{"action":"NODE_CREATE","policy":{"regions":[{"name":"a"}]},
		"global_max":1,"usable_regions":["a","b"],"node":{"profile_region":"a"},"inputs":{"count":1},
		"cluster":{"desired_capacity":1000000000}}`), &d))
	_, err := d.Build()
	require.NoError(t, err)
}
