// Package judge holds a simulated provider's answers against documents of its API: our own
// contract, which is always there, and the provider's specification.
package judge

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/need"
)

//go:embed testdata/provider-contract.yaml
var contract []byte

// Contract is what we wrote down of the provider's API: always there.
func Contract(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(contract)
	require.NoError(t, err)
	require.NoError(t, doc.Validate(context.Background()))
	return doc
}

// Specification is the provider's own OpenAPI document, which is not ours to
// ship: PREGO_HCLOUD_OPENAPI names it, or it is beside the checkout. Without it nil,
// and a failure where all judges have to be there.
func Specification(t *testing.T) *openapi3.T {
	t.Helper()
	file := os.Getenv("PREGO_HCLOUD_OPENAPI")
	if file == "" {
		file = filepath.Join(need.Module(), "..", "shared", "hcloud-openapi.json")
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		const missing = "the provider's specification is not at %s: only our extract of it, lab/sim/judge/testdata/provider-contract.yaml, judges. Download it from docs.hetzner.cloud and name it in PREGO_HCLOUD_OPENAPI"
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
var notOurs = []string{"/v1/networks"}

// Judge is a RoundTripper that fails its test for a request or an answer that a document
// doesn't allow.
type Judge struct {
	t *testing.T
	// Beyond lists the parts that the document does not cover.
	Beyond func(r *http.Request) bool
	// Check judges one request and its answer.
	Check   func(r *http.Request, body []byte, resp *http.Response, answer []byte) error
	mu      sync.Mutex
	checked int
}

// RoundTrip sends a request and judges the answer.
func (j *Judge) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(answer))
	if err != nil || j.Beyond(r) {
		return resp, err
	}
	if err := j.Check(r, body, resp, answer); err != nil {
		j.t.Errorf("%s %s → %d %s: %v", r.Method, r.URL, resp.StatusCode, answer, err)
	}
	j.mu.Lock()
	j.checked++
	j.mu.Unlock()
	return resp, nil
}

// Checked is how many answers were judged.
func (j *Judge) Checked() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.checked
}

// New judges requests and answers by a document.
func New(t *testing.T, doc *openapi3.T) *Judge {
	t.Helper()
	return newJudge(t, doc, true)
}

// OfAnswers leaves requests out, for a client that is older than the document.
func OfAnswers(t *testing.T, doc *openapi3.T) *Judge {
	t.Helper()
	return newJudge(t, doc, false)
}

func newJudge(t *testing.T, doc *openapi3.T, requests bool) *Judge {
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
	return &Judge{
		t: t, Beyond: func(r *http.Request) bool { return ours && slices.Contains(notOurs, r.URL.Path) },
		Check: func(r *http.Request, body []byte, resp *http.Response, answer []byte) error {
			plain := &http.Request{
				Method: r.Method, URL: &url.URL{Path: r.URL.Path, RawQuery: r.URL.RawQuery},
				Header: r.Header.Clone(), Body: io.NopCloser(bytes.NewReader(body)),
			}
			route, params, err := router.FindRoute(plain)
			if err != nil {
				return err
			}
			in := &openapi3filter.RequestValidationInput{
				Request: plain, Route: route, PathParams: params,
				Options: &openapi3filter.Options{
					AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, ExcludeReadOnlyValidations: true,
				},
			}
			if requests && resp.StatusCode < 400 {
				if err := openapi3filter.ValidateRequest(context.Background(), in); err != nil {
					return fmt.Errorf("request: %w", err)
				}
			}
			return openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
				RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header,
				Body:    io.NopCloser(bytes.NewReader(answer)),
				Options: &openapi3filter.Options{IncludeResponseStatus: true},
			})
		},
	}
}

// Front is an address that passes on to the provider's, and at which every answer is judged.
func (j *Judge) Front(provider string) string {
	t := j.t
	t.Helper()
	to, err := url.Parse(provider)
	require.NoError(t, err)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := r.Clone(r.Context())
		out.RequestURI, out.URL.Scheme, out.URL.Host = "", to.Scheme, to.Host
		if r.ContentLength == 0 {
			out.Body = nil
		}
		resp, err := j.RoundTrip(out)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	t.Cleanup(front.Close)
	return front.URL + "/v1"
}
