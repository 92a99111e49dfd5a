package api_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

func TestBadInputIsRefusedAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	with := func(old, replaced string) string {
		require.Contains(t, valid, old)
		return strings.Replace(valid, old, replaced, 1)
	}
	importing := func(old, replaced string) string {
		require.Contains(t, taken, old)
		return strings.Replace(taken, old, replaced, 1)
	}
	cursor := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	imp := "/v1/servers/import"
	for name, tc := range map[string]struct {
		method, path, token, contentType, body string
		status                                 int
		code, field                            string
	}{
		"no token":               {"POST", create, "", js, valid, 401, "unauthenticated", ""},
		"wrong token":            {"POST", create, "nonsense", js, valid, 401, "unauthenticated", ""},
		"wrong token, bad body":  {"POST", create, "nonsense", js, "{", 401, "unauthenticated", ""},
		"expired token":          {"GET", "/v1/servers", "expired", "", "", 401, "token_expired", ""},
		"subject with NUL":       {"POST", create, "nul", js, valid, 401, "unauthenticated", ""},
		"no subject":             {"POST", create, "ghost", js, valid, 401, "unauthenticated", ""},
		"viewer creates":         {"POST", create, "viewer", js, valid, 403, "forbidden", ""},
		"viewer, bad body":       {"POST", create, "viewer", js, "{", 403, "forbidden", ""},
		"viewer imports":         {"POST", imp, "viewer", js, taken, 403, "forbidden", ""},
		"viewer retries":         {"POST", "/v1/servers/app-1/retry", "viewer", "", "", 403, "forbidden", ""},
		"viewer cordons":         {"POST", "/v1/servers/app-1/cordon", "viewer", "", "", 403, "forbidden", ""},
		"viewer uncordons":       {"POST", "/v1/servers/app-1/uncordon", "viewer", "", "", 403, "forbidden", ""},
		"viewer loses":           {"POST", "/v1/servers/app-1/lost", "viewer", "", "", 403, "forbidden", ""},
		"loss of unknown":        {"POST", "/v1/servers/nope/lost", "operator", "", "", 404, "server_not_found", ""},
		"loss for too long":      {"POST", "/v1/servers/nope/lost", "operator", js, `{"reason":"` + strings.Repeat("x", 501) + `"}`, 422, "invalid_field", "reason"},
		"cordon of unknown":      {"POST", "/v1/servers/nope/cordon", "operator", "", "", 404, "server_not_found", ""},
		"cordon for too long":    {"POST", "/v1/servers/nope/cordon", "operator", js, `{"reason":"` + strings.Repeat("x", 501) + `"}`, 422, "invalid_field", "reason"},
		"uncordon of unknown":    {"POST", "/v1/servers/nope/uncordon", "operator", "", "", 404, "server_not_found", ""},
		"viewer drains":          {"POST", "/v1/servers/app-1/drain", "viewer", "", "", 403, "forbidden", ""},
		"viewer reboots":         {"POST", "/v1/servers/app-1/reboot", "viewer", "", "", 403, "forbidden", ""},
		"viewer replaces":        {"POST", "/v1/servers/app-1/replace", "viewer", "", "", 403, "forbidden", ""},
		"viewer cancels":         {"DELETE", "/v1/servers/app-1/maintenance", "viewer", "", "", 403, "forbidden", ""},
		"drain of unknown":       {"POST", "/v1/servers/nope/drain", "operator", "", "", 404, "server_not_found", ""},
		"drain for too long":     {"POST", "/v1/servers/nope/drain", "operator", js, `{"timeout_seconds":604801}`, 422, "invalid_field", "timeout_seconds"},
		"unknown maintenance":    {"GET", "/v1/servers/nope/maintenance", "viewer", "", "", 404, "server_not_found", ""},
		"cancel of unknown":      {"DELETE", "/v1/servers/nope/maintenance", "operator", "", "", 404, "server_not_found", ""},
		"viewer deletes":         {"DELETE", "/v1/servers/app-1", "viewer", "", "", 403, "forbidden", ""},
		"viewer reconciles":      {"POST", "/internal/reconcile", "viewer", "", "", 403, "forbidden", ""},
		"no body":                {"POST", create, "operator", js, "", 400, "invalid_json", ""},
		"blanks":                 {"POST", create, "operator", js, " \n", 400, "invalid_json", ""},
		"not JSON":               {"POST", create, "operator", js, "{", 400, "invalid_json", ""},
		"an array":               {"POST", create, "operator", js, "[]", 400, "invalid_json", ""},
		"null":                   {"POST", create, "operator", js, "null", 400, "invalid_json", ""},
		"a string":               {"POST", create, "operator", js, `"app-1"`, 400, "invalid_json", ""},
		"two documents":          {"POST", create, "operator", js, valid + valid, 400, "invalid_json", ""},
		"trailing text":          {"POST", create, "operator", js, valid + "x", 400, "invalid_json", ""},
		"byte order mark":        {"POST", create, "operator", js, "\ufeff" + valid, 400, "invalid_json", ""},
		"not UTF-8":              {"POST", create, "operator", js, with(`app-1`, "app\xff"), 400, "invalid_json", ""},
		"deep nesting":           {"POST", create, "operator", js, strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000), 400, "unknown_field", "a"},
		"deep lists":             {"POST", create, "operator", js, with(`{}`, `{"tags":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`}`), 422, "invalid_field", "spec.tags[0]"},
		"form":                   {"POST", create, "operator", "application/x-www-form-urlencoded", "a=b", 415, "unsupported_media_type", ""},
		"no content type":        {"POST", create, "operator", "", valid, 415, "unsupported_media_type", ""},
		"other charset":          {"POST", create, "operator", js + "; charset=latin1", valid, 415, "unsupported_media_type", ""},
		"bad content type":       {"POST", create, "operator", "application/json; charset", valid, 415, "unsupported_media_type", ""},
		"unknown field":          {"POST", create, "operator", js, with(`"spec"`, `"sepc":1,"spec"`), 400, "unknown_field", "sepc"},
		"unknown nested field":   {"POST", create, "operator", js, with(`{}`, `{"disk":1}`), 400, "unknown_field", "spec.disk"},
		"long unknown field":     {"POST", create, "operator", js, with(`{}`, `{"`+strings.Repeat("x", 9000)+`":1}`), 400, "unknown_field", "spec." + strings.Repeat("x", 64) + "…"},
		"other case":             {"POST", create, "operator", js, with(`"role"`, `"Role"`), 400, "unknown_field", "Role"},
		"other case nested":      {"POST", create, "operator", js, with(`{}`, `{"Image":"debian-12"}`), 400, "unknown_field", "spec.Image"},
		"duplicate field":        {"POST", create, "operator", js, with(`"role":"app"`, `"role":"app","role":"node"`), 400, "duplicate_field", "role"},
		"duplicate, escaped":     {"POST", create, "operator", js, with(`"role":"app"`, `"role":"app","r\u006fle":"node"`), 400, "duplicate_field", "role"},
		"nested duplicate":       {"POST", create, "operator", js, with(`{}`, `{"image":"a","image":"b"}`), 400, "duplicate_field", "spec.image"},
		"wrong type":             {"POST", create, "operator", js, with(`"app-1"`, `7`), 422, "invalid_field", "server_id"},
		"boolean":                {"POST", create, "operator", js, with(`"app-1"`, `true`), 422, "invalid_field", "server_id"},
		"null field":             {"POST", create, "operator", js, with(`"app-1"`, `null`), 422, "invalid_field", "server_id"},
		"null spec":              {"POST", create, "operator", js, with(`{}`, `null`), 422, "invalid_field", "spec"},
		"spec as a list":         {"POST", create, "operator", js, with(`{}`, `[]`), 422, "invalid_field", "spec"},
		"spec as a string":       {"POST", create, "operator", js, with(`{}`, `"x"`), 422, "invalid_field", "spec"},
		"wrong nested type":      {"POST", create, "operator", js, with(`{}`, `{"volume_gb":"ten"}`), 422, "invalid_field", "spec.volume_gb"},
		"fraction":               {"POST", create, "operator", js, with(`{}`, `{"volume_gb":10.5}`), 422, "invalid_field", "spec.volume_gb"},
		"exponent":               {"POST", create, "operator", js, with(`{}`, `{"volume_gb":1e2}`), 422, "invalid_field", "spec.volume_gb"},
		"overflow":               {"POST", create, "operator", js, with(`{}`, `{"volume_gb":99999999999999999999}`), 422, "invalid_field", "spec.volume_gb"},
		"wrong role":             {"POST", create, "operator", js, with(`"app"`, `"king"`), 422, "invalid_field", "role"},
		"no role":                {"POST", create, "operator", js, with(`"role":"app",`, ``), 422, "invalid_field", "role"},
		"wrong region":           {"POST", create, "operator", js, with(`"eu"`, `"mars"`), 422, "invalid_field", "region"},
		"unknown provider":       {"POST", create, "operator", js, with(`hetzner`, `acme`), 422, "infra_provider_unknown", "infra_provider"},
		"disabled provider":      {"POST", create, "operator", js, with(`hetzner`, `aws`), 422, "infra_provider_disabled", "infra_provider"},
		"no provider":            {"POST", create, "operator", js, with(`"hetzner"`, `""`), 422, "invalid_field", "infra_provider"},
		"provider with NUL":      {"POST", create, "operator", js, with(`hetzner`, `het\u0000zner`), 422, "invalid_field", "infra_provider"},
		"no id":                  {"POST", create, "operator", js, with(`"app-1"`, `""`), 422, "invalid_field", "server_id"},
		"id missing":             {"POST", create, "operator", js, with(`"server_id":"app-1",`, ``), 422, "invalid_field", "server_id"},
		"id with a slash":        {"POST", create, "operator", js, with(`app-1`, `../../etc`), 422, "invalid_field", "server_id"},
		"id with YAML":           {"POST", create, "operator", js, with(`app-1`, `a: {b}\n- c`), 422, "invalid_field", "server_id"},
		"id with a newline":      {"POST", create, "operator", js, with(`app-1`, `app-1\n`), 422, "invalid_field", "server_id"},
		"id with NUL":            {"POST", create, "operator", js, with(`app-1`, `app\u0000`), 422, "invalid_field", "server_id"},
		"id half a surrogate":    {"POST", create, "operator", js, with(`app-1`, `app\ud800`), 422, "invalid_field", "server_id"},
		"id with capitals":       {"POST", create, "operator", js, with(`app-1`, `App`), 422, "invalid_field", "server_id"},
		"id with outer hyphen":   {"POST", create, "operator", js, with(`app-1`, `app-`), 422, "invalid_field", "server_id"},
		"id too long":            {"POST", create, "operator", js, with(`app-1`, strings.Repeat("a", 49)), 422, "invalid_field", "server_id"},
		"volume too small":       {"POST", create, "operator", js, with(`{}`, `{"volume_gb":9}`), 422, "invalid_field", "spec.volume_gb"},
		"volume too large":       {"POST", create, "operator", js, with(`{}`, `{"volume_gb":10001}`), 422, "invalid_field", "spec.volume_gb"},
		"volume negative":        {"POST", create, "operator", js, with(`{}`, `{"volume_gb":-1}`), 422, "invalid_field", "spec.volume_gb"},
		"empty tag":              {"POST", create, "operator", js, with(`{}`, `{"tags":[""]}`), 422, "invalid_field", "spec.tags[0]"},
		"tag not a string":       {"POST", create, "operator", js, with(`{}`, `{"tags":["a",{}]}`), 422, "invalid_field", "spec.tags[1]"},
		"tag of 64":              {"POST", create, "operator", js, with(`{}`, `{"tags":["`+strings.Repeat("a", 64)+`"]}`), 422, "invalid_field", "spec.tags[0]"},
		"tag with a space":       {"POST", create, "operator", js, with(`{}`, `{"tags":["a b"]}`), 422, "invalid_field", "spec.tags[0]"},
		"33 tags":                {"POST", create, "operator", js, with(`{}`, `{"tags":["a"`+strings.Repeat(`,"a"`, 32)+`]}`), 422, "invalid_field", "spec.tags"},
		"hostile image":          {"POST", create, "operator", js, with(`{}`, `{"image":"a\n- b"}`), 422, "invalid_field", "spec.image"},
		"hostile type":           {"POST", create, "operator", js, with(`{}`, `{"server_type":"$(reboot)"}`), 422, "invalid_field", "spec.server_type"},
		"hostile location":       {"POST", create, "operator", js, with(`{}`, `{"location":"fsn1/.."}`), 422, "invalid_field", "spec.location"},
		"too large":              {"POST", create, "operator", js, `{"server_id":"` + strings.Repeat("a", 70_000) + `"}`, 413, "body_too_large", ""},
		"query on create":        {"POST", create + "?dry=1", "operator", js, valid, 400, "unknown_field", "dry"},
		"query not decodable":    {"POST", create + "?a=%zz", "operator", js, valid, 422, "invalid_field", "query"},
		"unknown path":           {"GET", "/v2/servers", "operator", "", "", 404, "not_found", ""},
		"unknown path, no token": {"GET", "/v2/servers", "", "", "", 401, "unauthenticated", ""},
		"wrong method":           {"PUT", "/v1/servers", "operator", js, "{}", 405, "method_not_allowed", ""},
		"made-up method":         {"BREW", "/v1/servers", "operator", js, "{}", 405, "method_not_allowed", ""},
		"wrong method, open":     {"POST", "/healthz", "", "", "", 405, "method_not_allowed", ""},
		"unknown server":         {"GET", "/v1/servers/nope", "viewer", "", "", 404, "server_not_found", ""},
		"bad id in path":         {"GET", "/v1/servers/NOPE", "viewer", "", "", 422, "invalid_field", "server_id"},
		"slash in path":          {"GET", "/v1/servers/a%2Fb", "viewer", "", "", 422, "invalid_field", "server_id"},
		"NUL in path":            {"DELETE", "/v1/servers/a%00b", "operator", "", "", 422, "invalid_field", "server_id"},
		"query on show":          {"GET", "/v1/servers/app-1?full=1", "viewer", "", "", 400, "unknown_field", "full"},
		"retry of unknown":       {"POST", "/v1/servers/nope/retry", "operator", "", "", 404, "server_not_found", ""},
		"delete of unknown":      {"DELETE", "/v1/servers/nope", "operator", "", "", 404, "server_not_found", ""},
		"filter misspelt":        {"GET", "/v1/servers?rol=app", "viewer", "", "", 400, "unknown_field", "rol"},
		"samples of unknown":     {"GET", "/v1/servers/nope/samples", "viewer", "", "", 404, "server_not_found", ""},
		"samples since a day":    {"GET", "/v1/servers/app-1/samples?since=24h", "viewer", "", "", 422, "invalid_field", "since"},
		"samples misspelt":       {"GET", "/v1/servers/app-1/samples?from=2026-11-01T00:00:00Z", "viewer", "", "", 400, "unknown_field", "from"},
		"stats of 0 days":        {"GET", "/v1/server-stats?days=0", "viewer", "", "", 422, "invalid_field", "days"},
		"stats of ages":          {"GET", "/v1/server-stats?days=367", "viewer", "", "", 422, "invalid_field", "days"},
		"stats misspelt":         {"GET", "/v1/server-stats?day=1", "viewer", "", "", 400, "unknown_field", "day"},
		"limit twice":            {"GET", "/v1/servers?limit=1&limit=2", "viewer", "", "", 422, "invalid_field", "limit"},
		"filter unknown value":   {"GET", "/v1/servers?role=king", "viewer", "", "", 422, "invalid_field", "role"},
		"filter empty":           {"GET", "/v1/servers?status=", "viewer", "", "", 422, "invalid_field", "status"},
		"filter region":          {"GET", "/v1/servers?region=EU", "viewer", "", "", 422, "invalid_field", "region"},
		"filter tag NUL":         {"GET", "/v1/servers?tag=%00", "viewer", "", "", 422, "invalid_field", "tag"},
		"filter tag not UTF-8":   {"GET", "/v1/servers?tag=%ff", "viewer", "", "", 422, "invalid_field", "tag"},
		"filter tag of 64":       {"GET", "/v1/servers?tag=" + strings.Repeat("a", 64), "viewer", "", "", 422, "invalid_field", "tag"},
		"limit 0":                {"GET", "/v1/servers?limit=0", "viewer", "", "", 422, "invalid_field", "limit"},
		"limit 201":              {"GET", "/v1/servers?limit=201", "viewer", "", "", 422, "invalid_field", "limit"},
		"limit not a number":     {"GET", "/v1/servers?limit=ten", "viewer", "", "", 422, "invalid_field", "limit"},
		"limit overflowing":      {"GET", "/v1/servers?limit=99999999999999999999", "viewer", "", "", 422, "invalid_field", "limit"},
		"bad cursor":             {"GET", "/v1/servers?cursor=x", "viewer", "", "", 422, "invalid_field", "cursor"},
		"empty cursor":           {"GET", "/v1/servers?cursor=", "viewer", "", "", 422, "invalid_field", "cursor"},
		"cursor of nothing":      {"GET", "/v1/servers?cursor=" + cursor(`{}`), "viewer", "", "", 422, "invalid_field", "cursor"},
		"cursor with NUL":        {"GET", "/v1/servers?cursor=" + cursor(`{"t":"2026-01-01T00:00:00Z","i":"a\u0000"}`), "viewer", "", "", 422, "invalid_field", "cursor"},
		"cursor without time":    {"GET", "/v1/servers?cursor=" + cursor(`{"i":"a"}`), "viewer", "", "", 422, "invalid_field", "cursor"},
		"cursor too long":        {"GET", "/v1/servers?cursor=" + strings.Repeat("a", 300), "viewer", "", "", 422, "invalid_field", "cursor"},
		"import bad provider id": {"POST", imp, "operator", js, importing(`"4711"`, `"x1"`), 422, "invalid_field", "provider_server_id"},
		"import of number":       {"POST", imp, "operator", js, importing(`"4711"`, `4711`), 422, "invalid_field", "provider_server_id"},
		"import of 0":            {"POST", imp, "operator", js, importing(`"4711"`, `"0"`), 422, "invalid_field", "provider_server_id"},
		"import of 21 digits":    {"POST", imp, "operator", js, importing(`4711`, strings.Repeat("1", 21)), 422, "invalid_field", "provider_server_id"},
		"import without":         {"POST", imp, "operator", js, importing(`,"provider_server_id":"4711"`, ``), 422, "invalid_field", "provider_server_id"},
		"import managed by":      {"POST", imp, "operator", js, importing(`pulumi`, `me`), 422, "invalid_field", "managed_by"},
		"import bad tag":         {"POST", imp, "operator", js, importing(`"managed_by"`, `"tags":["a b"],"managed_by"`), 422, "invalid_field", "tags[0]"},
		"import with spec":       {"POST", imp, "operator", js, importing(`"managed_by"`, `"spec":{},"managed_by"`), 400, "unknown_field", "spec"},
		"import unknown cloud":   {"POST", imp, "operator", js, importing(`hetzner`, `acme`), 422, "infra_provider_unknown", "infra_provider"},
	} {
		resp, body := b.do(tc.method, tc.path, tc.token, tc.contentType, tc.body)
		require.Equal(t, tc.status, resp.StatusCode, "%s: %s", name, body)
		require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"), name)
		p := as[api.Problem](t, body)
		require.Equal(t, tc.code, p.Code, "%s: %s", name, body)
		require.Equal(t, tc.field, deref(p.Field), "%s: %s", name, body)
		require.NotEmpty(t, deref(p.Detail), name)
		require.Equal(t, tc.status, p.Status, name)
		require.Equal(t, resp.Header.Get("X-Request-Id"), deref(p.RequestId), name)
		switch tc.status {
		case 401:
			require.Contains(t, resp.Header.Get("WWW-Authenticate"), "Bearer", name)
		case 405:
			allowed := strings.Split(resp.Header.Get("Allow"), ", ")
			require.Subset(t, []string{"OPTIONS", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}, allowed, name)
			require.NotContains(t, allowed, tc.method, name)
			require.Greater(t, len(allowed), 1, "%s: OPTIONS and what the path takes", name)
		case 422:
			// Whatever the contract can express, it does: a client that checks against it gets
			// the same errors. It can't express these.
			beyond := []string{"unknown provider", "disabled provider", "import unknown cloud", "volume too small", "exponent"}
			if tc.body != "" && !strings.Contains(tc.path, "?") && !slices.Contains(beyond, name) {
				require.True(t, b.contractRefuses(tc.method, tc.path, tc.contentType, tc.body), "%s: the contract lets it pass", name)
			}
		}
	}
	require.Zero(t, b.rows(), "a refused request writes nothing")
	require.Empty(t, b.runs.asked())
}

func FuzzStrictJSON(f *testing.F) {
	for _, seed := range []string{
		valid, taken, `{"role":"app","role":"node"}`, `{"spec":{"tags":["a","b"],"volume_gb":10}}`, `{"a":[{"b":{"c":1,"c":2}}]}`,
		`{"spec":{"tags":[null]}}`, `{"ROLE":"app"}`, `{"r\u006fle":"app"}`, `{"spec":{"volume_gb":-0}}`, `{"":1}`, `{"-":1}`, "{}{}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var in server.CreateRequest
		if err := api.DecodeStrict([]byte(body), &in); err != nil {
			var coded *prego.Error
			require.ErrorAs(t, err, &coded, "refusals are coded")
			require.NotEqual(t, prego.CodeInternal, coded.Code)
			return
		}
		// An accepted body means the same to every reader: it is one object of known names,
		// and written out again it decodes to the same request.
		var sent map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(body), &sent))
		for name := range sent {
			require.Contains(t, []string{"server_id", "role", "region", "infra_provider", "spec"}, name)
		}
		out, err := json.Marshal(in)
		require.NoError(t, err)
		var again server.CreateRequest
		require.NoError(t, api.DecodeStrict(out, &again))
		require.Equal(t, in.Hash(), again.Hash())
	})
}

func TestPanicsAndFaultsAreToldWithoutDetails(t *testing.T) {
	t.Parallel()
	for name, get := range map[string]func() error{
		"panic": func() error { panic("at the disco: password=hunter2") },
		"error": func() error { return errors.New("at the disco: password=hunter2") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(d *api.Deps) {
				d.Auth = func(context.Context, string) (access.Principal, error) { return access.Principal{}, get() }
			})
			resp, body := b.do("GET", "/v1/servers/app-1", "viewer", "", "")
			require.Equal(t, http.StatusInternalServerError, resp.StatusCode)
			require.NotContains(t, string(body), "disco")
			p := as[api.Problem](t, body)
			require.Equal(t, "internal", p.Code)
			entries := b.logs.FilterMessage("request failed").All()
			require.Len(t, entries, 1)
			fields := entries[0].ContextMap()
			require.Equal(t, deref(p.RequestId), fields["request_id"])
			require.Contains(t, fields["error"], "at the disco")
			require.NotContains(t, fields["error"], "hunter2")
			if name == "panic" {
				require.Contains(t, fields["stack"], "refusals_test.go", "the log has the place")
			}
			resp, _ = b.do("GET", "/healthz", "", "", "")
			require.Equal(t, http.StatusOK, resp.StatusCode, "the server keeps running")
		})
	}
}

func TestAnUnreachableDatabaseIsAskedForLater(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(context.Background(), "postgres://ghost@127.0.0.1:1/none")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	away := store.New(pool)
	b := setup(t, func(d *api.Deps) {
		d.Store, d.Checks = away, []api.Check{{Name: "database", Run: away.Ping}}
	})
	for _, r := range [][4]string{{"GET", "/v1/servers", "", ""}, {"POST", create, js, valid}, {"DELETE", "/v1/servers/app-1", "", ""}} {
		resp, body := b.do(r[0], r[1], "operator", r[2], r[3])
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, "%s", body)
		require.Equal(t, "not_ready", as[api.Problem](t, body).Code)
		after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		require.NoError(t, err)
		require.Positive(t, after)
	}
	resp, body := b.do("GET", "/readyz", "", "", "")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.JSONEq(t, `{"ready":false,"checks":{"database":"does not answer"}}`, string(body), "the connection is not disclosed")
}

func TestEveryCodeIsInTheContract(t *testing.T) {
	t.Parallel()
	var inContract, known []string
	for _, c := range contract(t).Components.Schemas["Problem"].Value.Properties["code"].Value.Enum {
		inContract = append(inContract, c.(string))
	}
	for _, c := range api.Codes() {
		known = append(known, string(c))
	}
	require.ElementsMatch(t, known, inContract)
}

// TestOperationsDeclareTheirOwnCodes: each code that an operation declares stands under
// its HTTP status, and has its own example.
func TestOperationsDeclareTheirOwnCodes(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{"method_not_allowed": true} // of no operation
	for path, item := range contract(t).Paths.Map() {
		for method, op := range item.Operations() {
			for status, r := range op.Responses.Map() {
				problem := r.Value.Content["application/problem+json"]
				if problem == nil {
					continue
				}
				require.NotEmpty(t, problem.Examples, "%s %s %s", method, path, status)
				for code, e := range problem.Examples {
					declared[code] = true
					value := e.Value.Value.(map[string]any)
					require.Equal(t, code, value["code"], "%s %s", method, path)
					require.Equal(t, status, strconv.Itoa(api.Status(prego.Code(code))), "%s %s %s", method, path, code)
					require.InDelta(t, value["status"], api.Status(prego.Code(code)), 0, code)
				}
			}
		}
	}
	for _, code := range api.Codes() {
		require.True(t, declared[string(code)], "no operation declares %s", code)
	}
}
