package api_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// sampleOf is a path with its parameters filled in.
func sampleOf(path string) string {
	samples := map[string]string{
		"{server_id}": "app-1", "{tenant_id}": "t-1", "{org_id}": "acme", "{app_id}": "app-1", "{env_id}": "env-1", "{group_id}": "grp-0123456789ab",
		"{fleet_id}": "web", "{name}": "redis", "{instance_id}": "ins-0123456789ab", "{dimension}": "max_apps", "{pool}": "gpu", "{plan}": "starter", "{region}": "eu",
	}
	for name, value := range samples {
		path = strings.ReplaceAll(path, name, value)
	}
	return path
}

// TestNoTextIsAFaultOfTheService: what Postgres can't keep as text is refused, wherever it
// is sent.
func TestNoTextIsAFaultOfTheService(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	sent := 0
	for path, item := range contract(t).Paths.Map() {
		if item.Get == nil || strings.Contains(path, "logs") {
			continue
		}
		for _, p := range append(append(openapi3.Parameters{}, item.Parameters...), item.Get.Parameters...) {
			if p.Value.In != openapi3.ParameterInQuery {
				continue
			}
			values := []string{"\x00", "a\x00b", "\xff", "a,\x00"}
			if p.Value.Name == "cursor" {
				for _, sort := range []string{"-created_at", "name", "-name", "org_id", "hostname", "slug"} {
					values = append(values, base64.RawURLEncoding.EncodeToString([]byte(`{"s":"`+sort+`","v":"a\u0000","i":"a\u0000"}`)))
				}
			}
			for _, v := range values {
				q := url.Values{p.Value.Name: {v}}
				for _, sort := range []string{"", "name", "-name", "org_id", "hostname", "slug"} {
					if sort != "" && p.Value.Name != "cursor" {
						break
					}
					if sort != "" {
						q.Set("sort", sort)
					}
					resp, body := b.send("GET", sampleOf(path)+"?"+q.Encode(), "viewer", "", "")
					require.Less(t, resp.StatusCode, 500, "%s?%s: %s", path, q.Encode(), body)
					sent++
				}
			}
		}
	}
	require.Greater(t, sent, 300)
	for request, body := range map[string]string{
		"POST /v1/envs/env-1/groups":               `{"name":"web","spec":{"image":"a","memory_limit_bytes":6291456,"cpu_request":0,"command":["\u0000"]}}`,
		"POST /v1/groups/grp-0123456789ab/deploys": `{"spec":{"image":"a","memory_limit_bytes":6291456,"cpu_request":0,"health":{"command":["\u0000"]}}}`,
		"PUT /v1/registries/r.example":             `{"username":"a\u0000","password":"p"}`,
		"POST /v1/tenants":                         `{"slug":"a","org_id":"acme","region":"eu","plan":"trial","admin_email":"a@b.example","admin_name":"\u0000"}`,
		"POST /v1/policies":                        `{"policy_id":"p","type":"region_placement","spec":{"regions":[{"name":"\u0000"}]}}`,
		"POST /v1/fleets":                          `{"fleet_id":"p","role":"app","infra_provider":"a\u0000"}`,
		"POST /v1/volumes":                         `{"org_id":"acme","region":"eu","name":"a","size_bytes":10000000000,"location":"\u0000"}`,
		"POST /v1/images":                          `{"debian":"\u0000"}`,
		"POST /v1/envs/env-1/routes":               `{"group_id":"grp-1","hostname":"a\u0000","listener":"shared_v6","listen_port":80,"protocol":"http","target_port":80}`,
	} {
		method, path, _ := strings.Cut(request, " ")
		resp, answer := b.send(method, path, "operator", js, body)
		require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "%s: %s", request, answer)
	}
	resp, answer := b.send("DELETE", "/v1/image-digests?image=a%00", "operator", "", "")
	require.Equal(t, 422, resp.StatusCode, "%s", answer)
}

// TestHostileQueriesAreAnsweredBriefly: of unknown parameters the first are named.
func TestHostileQueriesAreAnsweredBriefly(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	var names strings.Builder
	for i := range 4_000 {
		fmt.Fprintf(&names, "&k%05d", i)
	}
	resp, body := b.send("GET", "/v1/servers?"+names.String(), "viewer", "", "")
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	p := as[api.Problem](t, body)
	require.Len(t, *p.Errors, 20)
	require.Equal(t, "k00000", (*p.Errors)[0].Field)
	require.Equal(t, "k00019", (*p.Errors)[19].Field)
}

// leaving is a body whose sender leaves when it has been read.
type leaving struct {
	io.Reader
	leave context.CancelFunc
}

func (l leaving) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if err != nil {
		l.leave()
	}
	return n, err
}

func TestWorkEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	r := request(t, "http://api.test", "POST", "/v1/placements/simulate", "viewer", js,
		`{"requests":[{"tenant_id":"a","region":"eu","plan":"trial"}]}`)
	r.Body = io.NopCloser(leaving{r.Body, leave})
	answer := httptest.NewRecorder()
	b.api.Handler().ServeHTTP(answer, r.WithContext(ctx))
	require.Equal(t, http.StatusServiceUnavailable, answer.Code, "%s", answer.Body)
}
