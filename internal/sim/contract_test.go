package sim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/stretchr/testify/require"
)

// providerContract is what we wrote down of the provider's API: always there.
func providerContract(t *testing.T) *openapi3.T {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "provider-contract.yaml"))
	require.NoError(t, err)
	doc, err := openapi3.NewLoader().LoadFromData(b)
	require.NoError(t, err)
	require.NoError(t, doc.Validate(context.Background()))
	return doc
}

// providerSpecification is the provider's own OpenAPI document, which is not ours to
// ship: PREGO_HCLOUD_OPENAPI names it, or it is beside the checkout. Without it nil,
// and a failure where all judges have to be there.
func providerSpecification(t *testing.T) *openapi3.T {
	t.Helper()
	file := os.Getenv("PREGO_HCLOUD_OPENAPI")
	if file == "" {
		file = filepath.Join("..", "..", "..", "shared", "hcloud-openapi.json")
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		const missing = "the provider's specification is not at %s: only our extract of it, testdata/provider-contract.yaml, judges. Download it from docs.hetzner.cloud and name it in PREGO_HCLOUD_OPENAPI"
		if os.Getenv("CI") != "" || os.Getenv("PREGO_TEST_REAL") != "" {
			t.Fatalf(missing, file)
		}
		t.Logf(missing, file)
		return nil
	}
	require.NoError(t, err)
	doc, err := openapi3.NewLoader().LoadFromData(b)
	require.NoError(t, err)
	return doc
}

// notOurs are paths that the simulator answers for the provider's own tools, and that
// prego never calls.
var notOurs = []string{"/v1/networks", "/v1/ssh_keys"}

// judge has requests and answers validated by a document.
func judge(t *testing.T, doc *openapi3.T) *conforming {
	t.Helper()
	return judgeWith(t, doc, true)
}

// judgeWith leaves requests out if the client is older than the document.
func judgeWith(t *testing.T, doc *openapi3.T, requests bool) *conforming {
	t.Helper()
	doc.Servers = openapi3.Servers{{URL: "/v1"}}
	for _, p := range doc.Paths.Map() {
		p.Servers = nil
		for _, o := range p.Operations() {
			// The specification writes 4xx, which the library takes for no range: refusals
			// would be judged by nothing.
			for code, r := range o.Responses.Map() {
				if upper := strings.ToUpper(code); upper != code {
					o.Responses.Delete(code)
					o.Responses.Set(upper, r)
				}
			}
		}
	}
	router, err := gorillamux.NewRouter(doc)
	require.NoError(t, err)
	ours := doc.Paths.Find("/networks") == nil
	return &conforming{t: t, beyond: func(r *http.Request) bool { return ours && slices.Contains(notOurs, r.URL.Path) }, check: func(r *http.Request, body []byte, resp *http.Response, answer []byte) error {
		plain := &http.Request{Method: r.Method, URL: &url.URL{Path: r.URL.Path, RawQuery: r.URL.RawQuery}, Header: r.Header.Clone(), Body: io.NopCloser(bytes.NewReader(body))}
		route, params, err := router.FindRoute(plain)
		if err != nil {
			return err
		}
		in := &openapi3filter.RequestValidationInput{Request: plain, Route: route, PathParams: params, Options: &openapi3filter.Options{
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, ExcludeReadOnlyValidations: true,
		}}
		if requests && resp.StatusCode < 400 {
			if err := openapi3filter.ValidateRequest(context.Background(), in); err != nil {
				return fmt.Errorf("request: %w", err)
			}
		}
		return openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
			RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header, Body: io.NopCloser(bytes.NewReader(answer)),
			Options: &openapi3filter.Options{IncludeResponseStatus: true},
		})
	}}
}

// TestTheContractRefusesWhatItShould: a judge that says yes to all is none.
func TestTheContractRefusesWhatItShould(t *testing.T) {
	t.Parallel()
	s := newSim(t, nil)
	rt := judge(t, providerContract(t))
	get := func(path string) (*http.Request, *http.Response, string) {
		req, err := http.NewRequest(http.MethodGet, s.URL()+path, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer secret")
		resp, err := http.DefaultClient.Do(req)
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
		require.NoError(t, rt.check(req, nil, resp, []byte(answer)), path)
		for _, c := range changes {
			changed := strings.Replace(answer, c[0], c[1], 1)
			require.NotEqual(t, answer, changed, "%s has no %s", path, c[0])
			require.Error(t, rt.check(req, nil, resp, []byte(changed)), "%s with %s", path, c[1])
		}
	}
	req, resp, answer := get("/datacenters")
	require.Error(t, rt.check(req, nil, resp, []byte(answer)), "a call that is not in the contract")
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
		assertTrue(t, sameSet(ours.Enum, theirs.Enum), "%s is one of %v, by the specification of %v", where, ours.Enum, theirs.Enum)
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
