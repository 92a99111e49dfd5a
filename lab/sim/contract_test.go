package sim_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim/judge"
)

// TestTheContractRefusesBadAnswers: a judge without refusals is useless.
func TestTheContractRefusesBadAnswers(t *testing.T) {
	t.Parallel()
	s := newSim(t, nil)
	rt := judge.New(t, judge.Contract(t))
	get := func(path string) (*http.Request, *http.Response, string) {
		req, err := http.NewRequest(http.MethodGet, s.URL()+path, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer secret")
		resp, err := need.HTTP.Do(req)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return req, resp, string(b)
	}
	for path, changes := range map[string][][2]string{
		"/server_types": {{`"locations":`, `"places":`}, {`"cpu_type":"shared"`, `"cpu_type":"stolen"`}, {`"available":true`, `"available":"yes"`}, {`"pagination":`, `"paging":`}},
		"/images":       {{`"type":"system"`, `"type":"golden"`}, {`"image_size":`, `"size":`}, {`"created":"2025`, `"created":"once in 2025`}},
		"/pricing":      {{`"currency":"EUR"`, `"currency":978`}, {`"price_per_gb_month":`, `"price":`}},
		"/locations":    {{`"network_zone":`, `"zone":`}},
		"/servers/77":   {{`"code":`, `"kind":`}},
	} {
		req, resp, answer := get(path)
		require.NoError(t, rt.Check(req, nil, resp, []byte(answer)), path)
		for _, c := range changes {
			changed := strings.Replace(answer, c[0], c[1], 1)
			require.NotEqual(t, answer, changed, "%s has no %s", path, c[0])
			require.Error(t, rt.Check(req, nil, resp, []byte(changed)), "%s with %s", path, c[1])
		}
	}
	req, resp, answer := get("/datacenters")
	require.Error(t, rt.Check(req, nil, resp, []byte(answer)), "a call that is not in the contract")
}

// agrees holds our contract against the specification: what we rely on has to be there,
// required and with the same closed sets of values.
func agrees(t *testing.T, ours, theirs *openapi3.T) {
	for path, item := range ours.Paths.Map() {
		there := theirs.Paths.Find(path)
		if !assertTrue(t, there != nil, "%s is not in the specification", path) {
			continue
		}
		for method, o := range item.Operations() {
			to := there.GetOperation(method)
			if !assertTrue(t, to != nil, "%s %s is not in the specification", method, path) {
				continue
			}
			where := method + " " + path
			if o.RequestBody != nil {
				sent, takes := bodySchema(o.RequestBody.Value.Content), bodySchema(to.RequestBody.Value.Content)
				for _, field := range takes.Required {
					assertTrue(t, slices.Contains(sent.Required, field), "%s: a request needs %s", where, field)
				}
				sameFields(t, where+" request", sent, takes, false)
			}
			for code, r := range o.Responses.Map() {
				tr := to.Responses.Value(code)
				if tr == nil {
					tr = to.Responses.Value(strings.ToLower(code))
				}
				if assertTrue(t, tr != nil, "%s never answers %s", where, code) && r.Value.Content != nil {
					sameFields(t, where+" "+code, bodySchema(r.Value.Content), bodySchema(tr.Value.Content), true)
				}
			}
		}
	}
}

func bodySchema(c openapi3.Content) *openapi3.Schema { return c["application/json"].Schema.Value }

func sameFields(t *testing.T, where string, ours, theirs *openapi3.Schema, answers bool) {
	for _, part := range ours.AllOf {
		sameFields(t, where, part.Value, theirs, answers)
	}
	if answers {
		for _, field := range ours.Required {
			assertTrue(t, slices.Contains(theirs.Required, field), "%s: %s is not required by the specification", where, field)
		}
	}
	if len(ours.Enum) > 0 {
		assertTrue(t, sameSet(ours.Enum, theirs.Enum), "%s has the values %v, by the specification %v", where, ours.Enum, theirs.Enum)
	}
	for name, p := range ours.Properties {
		tp := theirs.Properties[name]
		if assertTrue(t, tp != nil, "%s: %s is not in the specification", where, name) {
			sameFields(t, where+"."+name, p.Value, tp.Value, answers)
		}
	}
	if ours.Items != nil && assertTrue(t, theirs.Items != nil, "%s is no list in the specification", where) {
		sameFields(t, where+"[]", ours.Items.Value, theirs.Items.Value, answers)
	}
}

func sameSet(a, b []any) bool {
	words := func(in []any) []string {
		out := make([]string, 0, len(in))
		for _, v := range in {
			if v != nil {
				out = append(out, fmt.Sprint(v))
			}
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(words(a), words(b))
}

func assertTrue(t *testing.T, ok bool, format string, args ...any) bool {
	t.Helper()
	if !ok {
		t.Errorf(format, args...)
	}
	return ok
}
