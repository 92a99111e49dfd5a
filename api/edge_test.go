package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
)

func TestEveryWrongFieldIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	_, body := b.do("POST", create, "operator", js, `{"server_id":"A","role":"king","infra_provider":"hetzner","spec":{"volume_gb":"x","tags":["a b"]}}`)
	p := as[api.Problem](t, body)
	var fields []string
	for _, e := range *p.Errors {
		require.Equal(t, "invalid_field", e.Code)
		fields = append(fields, e.Field+" "+e.Message)
	}
	require.Equal(t, []string{
		"region is required", "role must be one of app, db-shard, redis-pool, node, edge", "server_id must be lower-case letters, digits and hyphens, with a letter or digit at both ends",
		"spec.tags[0] must be printable ASCII without spaces", "spec.volume_gb must be a whole number, not a string",
	}, fields)
	require.Equal(t, "region", deref(p.Field))
	_, body = b.do("GET", "/v1/servers?limit=0&role=king,app&rol=app", "viewer", "", "")
	p = as[api.Problem](t, body)
	require.Equal(t, "unknown_field", p.Code, "what can't be read comes first")
	require.Len(t, *p.Errors, 3)
}

func TestHeadAndOptions(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for path, allow := range map[string]string{"/v1/servers": "OPTIONS, GET, HEAD", "/v1/tenants/t-1/suspend": "OPTIONS, POST", "/healthz": "OPTIONS, GET, HEAD"} {
		resp, body := b.send("OPTIONS", path, "viewer", "", "")
		require.Equal(t, http.StatusNoContent, resp.StatusCode, "%s", body)
		require.ElementsMatch(t, strings.Split(allow, ", "), strings.Split(resp.Header.Get("Allow"), ", "), path)
	}
	got, _ := b.send("GET", "/v1/servers", "viewer", "", "")
	head, body := b.send("HEAD", "/v1/servers", "viewer", "", "")
	require.Equal(t, http.StatusOK, head.StatusCode)
	require.Empty(t, body)
	require.Equal(t, got.Header.Get("Content-Type"), head.Header.Get("Content-Type"))
	head, _ = b.send("HEAD", "/v1/servers/nope", "viewer", "", "")
	require.Equal(t, http.StatusNotFound, head.StatusCode)
	head, _ = b.send("HEAD", "/v1/servers/nope/retry", "operator", "", "")
	require.Equal(t, http.StatusMethodNotAllowed, head.StatusCode)
	for _, r := range []*http.Response{got, head} {
		require.Equal(t, `"token";q=10000;w=1, "principal";q=20000;w=1`, r.Header.Get("RateLimit-Policy"))
		require.Regexp(t, `^"token";r=(99\d\d|10000);t=[01]$`, r.Header.Get("RateLimit"))
	}
}

func TestEveryPostTakesAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	for path, item := range contract(t).Paths.Map() {
		if item.Post == nil || path == "/v1/token-exchange" { // whose caller is unknown
			continue
		}
		found := item.Post.Parameters.GetByInAndName("header", "Idempotency-Key")
		require.NotNil(t, found, path)
	}
}

func TestARepeatedKeyIsAnsweredAsBefore(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	const path, body = "/v1/volumes", `{"org_id":"acme","region":"eu","name":"data","size_bytes":10000000000}`
	var wg sync.WaitGroup
	answers := make([]string, 4)
	for i := range answers {
		wg.Go(func() {
			resp, answer := b.sendWith("POST", path, body, "Idempotency-Key", "k")
			answers[i] = fmt.Sprint(resp.StatusCode, " ", string(answer))
		})
	}
	wg.Wait()
	for _, a := range answers {
		require.Contains(t, a, "202 ")
		require.Equal(t, answers[0], a)
	}
	require.Len(t, as[api.VolumePage](t, b.ok(200, "GET", path, "")).Volumes, 1)
	resp, answer := b.sendWith("POST", path, strings.Replace(body, "data", "more", 1), "Idempotency-Key", "k")
	require.Equal(t, 409, resp.StatusCode)
	require.Equal(t, "idempotency_key_conflict", as[api.Problem](t, answer).Code)
	// A refusal gives its key back.
	resp, answer = b.sendWith("POST", path, body, "Idempotency-Key", "other")
	require.Equal(t, "volume_name_taken", as[api.Problem](t, answer).Code, "%d", resp.StatusCode)
	resp, answer = b.sendWith("POST", path, strings.Replace(body, "data", "more", 1), "Idempotency-Key", "other")
	require.Equal(t, 202, resp.StatusCode, "%s", answer)
	// A process that died leaves a key whose lease ends.
	_, err := b.pool.Exec(t.Context(), `UPDATE request_keys SET status = NULL, body = NULL, leased_until = now() WHERE created_at = (SELECT max(created_at) FROM request_keys)`)
	require.NoError(t, err)
	resp, answer = b.sendWith("POST", path, strings.Replace(body, "data", "more", 1), "Idempotency-Key", "other")
	require.Equal(t, "volume_name_taken", as[api.Problem](t, answer).Code, "%d: it runs again", resp.StatusCode)
}

func TestBodiesAsTheContractSays(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	refused := func(resp *http.Response, body []byte, status int, code prego.Code, field string) {
		t.Helper()
		require.Equal(t, status, resp.StatusCode, "%s", body)
		p := as[api.Problem](t, body)
		require.Equal(t, string(code), p.Code)
		require.Contains(t, string(body), field)
	}
	const volume = `{"org_id":"acme","region":"eu","name":"data","size_bytes":10000000000}`
	resp, body := b.sendWith("POST", "/v1/volumes", volume, "Content-Encoding", "gzip")
	refused(resp, body, http.StatusUnsupportedMediaType, prego.CodeUnsupportedMedia, "gzip")
	resp, body = b.sendWith("POST", "/v1/volumes", volume, "Content-Encoding", "identity")
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", body)
	resp, body = b.send("GET", "/v1/servers", "operator", js, `{}`)
	refused(resp, body, http.StatusBadRequest, prego.CodeUnknownField, `"body"`)
	for name, text := range map[string]string{
		"name": `{"org_id":"acme","region":"eu","name":null,"size_bytes":10000000000}`, "size_bytes": `{"org_id":"acme","region":"eu","name":"b","size_bytes":null}`,
		"location": `{"org_id":"acme","region":"eu","name":"b","size_bytes":10000000000,"location":null}`,
	} {
		resp, body = b.send("POST", "/v1/volumes", "operator", js, text)
		refused(resp, body, http.StatusUnprocessableEntity, prego.CodeInvalidField, name)
	}
	for _, text := range []string{"null", "[]", `"x"`} {
		resp, body = b.send("POST", "/v1/volumes", "operator", js, text)
		refused(resp, body, http.StatusBadRequest, prego.CodeInvalidJSON, "JSON")
	}
	for _, path := range []string{"/v1/servers/nope/drain", "/v1/servers/nope/cordon"} { // its body may be absent, and is an object
		resp, body = b.send("POST", path, "operator", js, "null")
		refused(resp, body, http.StatusBadRequest, prego.CodeInvalidJSON, "JSON")
	}
}
