package api_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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

// cpu is the CPU time that do uses on its thread; other work on the machine does not count.
func cpu(t *testing.T, do func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before))
	do()
	require.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after))
	return time.Duration(after.Nano() - before.Nano())
}

// filled is a text of at most size bytes: start, as many of each's parts as fit, with commas between them, and end.
func filled(size int, start, end string, each func(i int) string) string {
	var b strings.Builder
	b.WriteString(start)
	for i := 0; ; i++ {
		part := each(i)
		if i > 0 {
			part = "," + part
		}
		if b.Len()+len(part)+len(end) > size {
			return b.String() + end
		}
		b.WriteString(part)
	}
}

// oversized are bodies of size bytes that are wrong in as many places as possible, by kind of error.
func oversized(size int, s *openapi3.Schema) map[string]string {
	always := func(text string) func(int) string { return func(int) string { return text } }
	key := func(i int) string { return fmt.Sprintf(`"k%d":0`, i) }
	deep := min(size/2-10, 9_000) // encoding/json reads 10,000 levels
	out := map[string]string{
		"unknown fields": filled(size, "{", "}", key),
		"a long name":    `{"` + strings.Repeat("pAss9", size/5-5) + `":0}`,
		"deep nesting":   `{"k":` + strings.Repeat("[", deep) + strings.Repeat("]", deep) + "}",
	}
	for name := range s.Properties {
		at := fmt.Sprintf(`{%q:`, name)
		out["a long list in "+name] = filled(size, at+"[", "]}", always("0"))
		out["empty objects in "+name] = filled(size, at+"[", "]}", always("{}"))
		out["a long text in "+name] = at + `"` + strings.Repeat("pAss9", (size-len(at))/5-5) + `"}`
		out["unknown fields in "+name] = filled(size, at+"{", "}}", key)
	}
	return out
}

// TestHostileBodiesCostLittle: no body costs much more than reading its JSON, however much of
// it is wrong, and its answer is short.
func TestHostileBodiesCostLittle(t *testing.T) {
	t.Parallel()
	const (
		most    = 25                    // times the CPU of reading the body
		spared  = 20 * time.Millisecond // that any request may take
		answers = 16 << 10              // bytes
		largest = 1 << 20               // a mebibyte shows what grows faster than the body does
	)
	b := setup(t, nil)
	b.org("acme", "")
	sent := 0
	for path, item := range contract(t).Paths.Map() {
		for method, op := range item.Operations() {
			if op.RequestBody == nil {
				continue
			}
			size := 64 << 10
			if limit, ok := op.Extensions["x-max-body"].(float64); ok {
				size = min(int(limit), largest)
			}
			bodies := oversized(size, op.RequestBody.Value.Content[js].Schema.Value)
			if op.OperationID == "simulatePlacements" {
				for _, list := range []string{"servers", "db_shards", "site_pool"} {
					start := `{"requests":[{"tenant_id":"a","region":"eu","plan":"trial"}],"fleet":{"` + list + `":[`
					bodies["wrong "+list] = filled(size, start, "]}}", func(int) string { return "{}" })
				}
			}
			for what, body := range bodies {
				require.LessOrEqual(t, len(body), size)
				var read any
				reading := cpu(t, func() { require.NoError(t, json.Unmarshal([]byte(body), &read)) })
				req := request(t, "http://api.test", method, sampleOf(path), "operator", js, body)
				answer := httptest.NewRecorder()
				took := cpu(t, func() { b.api.Handler().ServeHTTP(answer, req) })
				require.Less(t, took, most*reading+spared, "%s %s: %s: reading it takes %s", method, path, what, reading)
				require.Less(t, answer.Body.Len(), answers, "%s %s: %s", method, path, what)
				require.Less(t, answer.Code, 500, "%s %s: %s: %s", method, path, what, answer.Body)
				sent++
			}
		}
	}
	require.Greater(t, sent, 500)
}

// TestHostileQueriesAreAnsweredBriefly: of unknown parameters the first are named.
func TestHostileQueriesAreAnsweredBriefly(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	names := filled(30_000, "", "", func(i int) string { return fmt.Sprintf("k%05d", i) })
	resp, body := b.send("GET", "/v1/servers?"+strings.ReplaceAll(names, ",", "&"), "viewer", "", "")
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
