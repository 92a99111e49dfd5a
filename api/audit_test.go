package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/need"
)

func (b *bundle) audit(query string) []api.AuditEntry {
	b.t.Helper()
	resp, body := b.do("GET", "/v1/audit?limit=200&sort=at"+query, "viewer", "", "")
	require.Equal(b.t, 200, resp.StatusCode, "%s", body)
	return as[api.AuditPage](b.t, body).Entries
}

// TestEveryMutationIsInTheAudit: every accepted operation has an entry; refused requests and reads
// have none.
func TestEveryMutationIsInTheAudit(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	srv := httptest.NewServer(b.api.Accepting())
	t.Cleanup(srv.Close)
	n, only, viewers := 0, 0, 0
	for path, item := range contract(t).Paths.Map() {
		for method, op := range item.Operations() {
			if op.OperationID == "exchangeToken" || op.OperationID == "endOwnCredential" { // whose callers are whoever they are
				continue
			}
			at := strings.NewReplacer("{entry_id}", "1", "{seq}", "1").Replace(path)
			for strings.Contains(at, "{") {
				begin, end := strings.Index(at, "{"), strings.Index(at, "}")
				at = at[:begin] + "x-1" + at[end+1:]
			}
			resp, err := need.HTTP.Do(request(t, srv.URL, method, at, "operator", "", ""))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusNoContent, resp.StatusCode, "%s %s", method, path)
			asks := method == http.MethodGet || op.Extensions["x-changes"] == "nothing"
			viewed, err := need.HTTP.Do(request(t, srv.URL, method, at, "viewer", "", ""))
			require.NoError(t, err)
			require.NoError(t, viewed.Body.Close())
			required, _ := op.Extensions["x-capability"].(string)
			support, _ := access.BuiltIn("support")
			may := required == "" || op.Extensions["x-org-of"] == "handler" || support.Includes(access.Capability(required))
			require.Equal(t, may, viewed.StatusCode == http.StatusNoContent, "%s %s as a viewer: %d", method, path, viewed.StatusCode)
			require.Equal(t, !may, viewed.StatusCode == http.StatusForbidden, "%s %s as a viewer: %d", method, path, viewed.StatusCode)
			got := b.audit("&operation=" + op.OperationID)
			if asks {
				require.Empty(t, got, "%s changes nothing", op.OperationID)
				if only++; method != http.MethodGet {
					t.Logf("not audited: %s", op.OperationID)
				}
				continue
			}
			n++
			accepted := 1
			if may {
				accepted++ // the viewer's
				viewers++
			}
			require.Len(t, got, accepted, "%s is accepted without an entry", op.OperationID)
			e := got[0]
			require.Equal(t, []string{"operator", "operator", "127.0.0.1", resp.Header.Get("X-Request-Id"), "request"}, []string{e.Actor, e.Role, *e.From, *e.RequestId, string(e.Verb)})
			if strings.Contains(path, "{") {
				require.NotEqual(t, "request", e.Kind)
				require.Contains(t, []string{"x-1", "1"}, e.Id, op.OperationID)
			}
		}
	}
	require.Greater(t, n, 100)
	require.Greater(t, only, 50)
	require.Len(t, b.audit("&actor=viewer"), viewers)
	require.LessOrEqual(t, viewers, 6, "what is about the caller")
}

// TestTheAuditShowsWhatChanged from a request, with who asked it, and without secrets.
func TestTheAuditShowsWhatChanged(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	put := func(path, body string) {
		t.Helper()
		resp, answer := b.do("PUT", path, "operator", js, body)
		require.Less(t, resp.StatusCode, 300, "%s", answer)
	}
	put("/v1/orgs/acme", `{"tier":"free"}`)
	put("/v1/orgs/acme", `{"tier":"paid"}`)
	all := b.audit("&kind=org&id=acme")
	require.Len(t, all, 2)
	require.Equal(t, []string{"create", "update"}, []string{string(all[0].Verb), string(all[1].Verb)})
	require.Equal(t, "paid", (*all[1].New)["tier"])
	require.Equal(t, map[string]any{"tier": "free"}, *all[1].Old, "only what changed")
	require.Equal(t, []string{"operator", "operator", "127.0.0.1", "putOrg", "acme"}, []string{all[1].Actor, all[1].Role, *all[1].From, *all[1].Operation, *all[1].OrgId})

	put("/v1/orgs/acme", `{"tier":"paid"}`)
	all = b.audit("&kind=org&id=acme&verb=request")
	require.Len(t, all, 1, "a request that changed nothing")
	require.Nil(t, all[0].New)

	for _, password := range []string{"hunter2hunter2", "hunter3hunter3"} {
		put("/v1/registries/ghcr.io", fmt.Sprintf(`{"username":"bot","password":%q}`, password))
	}
	all = b.audit("&kind=registry")
	require.Len(t, all, 2)
	require.Equal(t, "bot", (*all[0].New)["username"])
	require.Equal(t, "[redacted]", (*all[1].New)["sealed"], "the change is recorded")
	require.Equal(t, "[redacted]", (*all[1].Old)["sealed"])
	var sealed string
	require.NoError(t, b.pool.QueryRow(context.Background(), `SELECT encode(sealed, 'hex') FROM registries`).Scan(&sealed))
	var text string
	require.NoError(t, b.pool.QueryRow(context.Background(), `SELECT string_agg(e::text, '') FROM audit_entries e`).Scan(&text))
	require.NotContains(t, text, "hunter")
	require.NotContains(t, text, sealed)

	// The actor belongs to the request alone: another request on the same connections has none.
	_, err := b.pool.Exec(context.Background(), `UPDATE orgs SET tier = 'free' WHERE org_id = 'acme'`)
	require.NoError(t, err)
	all = b.audit("&kind=org&id=acme&verb=update")
	last := all[len(all)-1]
	require.Equal(t, "database", last.Role, "configuration that psql changes is seen")
	require.Nil(t, last.RequestId)
	require.NotEqual(t, "operator", last.Actor)
}

// TestTheAuditIsFilteredAndPaged.
func TestTheAuditIsFilteredAndPaged(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for i := range 5 {
		resp, answer := b.do("PUT", fmt.Sprintf("/v1/orgs/org-%d", i), "operator", js, `{"tier":"free"}`)
		require.Equal(t, 200, resp.StatusCode, "%s", answer)
	}
	all := b.audit("")
	require.GreaterOrEqual(t, len(all), 5)
	for query, want := range map[string]int{
		"&org_id=org-3": 1, "&id=org-3,org-4": 2, "&kind=org&verb=create": 5, "&actor=ghost": 0, "&operation=putOrg&kind=org": 5, "&since=2999-01-01T00:00:00Z": 0,
		"&until=2001-01-01T00:00:00Z": 0, "&kind=org&since=2001-01-01T00:00:00Z&until=2999-01-01T00:00:00Z": 5, "&request_id=" + *all[0].RequestId: 1,
	} {
		require.Len(t, b.audit(query), want, query)
	}
	var met []int64
	for cursor := ""; ; {
		resp, body := b.do("GET", "/v1/audit?limit=2&kind=org"+cursor, "viewer", "", "")
		require.Equal(t, 200, resp.StatusCode, "%s", body)
		page := as[api.AuditPage](t, body)
		for _, e := range page.Entries {
			met = append(met, e.EntryId)
		}
		if page.NextCursor == nil {
			break
		}
		cursor = "&cursor=" + *page.NextCursor
	}
	require.Len(t, met, 5)
	require.IsDecreasing(t, met, "the newest first")
	for query, code := range map[string]string{"since=yesterday": "invalid_field", "verb=steal": "invalid_field", "king=org": "unknown_field", "sort=actor": "invalid_field"} {
		_, body := b.do("GET", "/v1/audit?"+query, "viewer", "", "")
		require.Equal(t, code, as[api.Problem](t, body).Code, query)
	}
}

// TestTheChainIsVerifiedOverHTTP also shows that anyone can compute an entry's seal.
func TestTheChainIsVerifiedOverHTTP(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx := context.Background()
	get := func(path string, v any) {
		t.Helper()
		resp, body := b.do("GET", path, "viewer", "", "")
		require.Equal(t, 200, resp.StatusCode, "%s", body)
		switch v := v.(type) {
		case *api.AuditHead:
			*v = as[api.AuditHead](t, body)
		case *api.AuditVerification:
			*v = as[api.AuditVerification](t, body)
		case *api.AuditEntry:
			*v = as[api.AuditEntry](t, body)
		}
	}
	var head api.AuditHead
	get("/v1/audit/head", &head)
	require.Equal(t, api.AuditHead{Hash: strings.Repeat("0", 64)}, head)
	for i := range 7 {
		b.do("PUT", fmt.Sprintf("/v1/orgs/org-%d", i), "operator", js, `{"tier":"free"}`)
	}
	sealed, _, err := b.store.SealAudit(ctx, 1000)
	require.NoError(t, err)
	require.GreaterOrEqual(t, sealed, 7)
	get("/v1/audit/head", &head)
	require.EqualValues(t, sealed, head.Seq)
	var v api.AuditVerification
	get("/v1/audit/verification?limit=3", &v)
	require.True(t, v.Ok, "%+v", v)
	require.Equal(t, []int64{1, 3, 4}, []int64{v.CheckedFrom, v.CheckedThrough, *v.NextFrom})
	get(fmt.Sprintf("/v1/audit/verification?from=4&head=%d:%s", head.Seq, url.QueryEscape(head.Hash)), &v)
	require.True(t, v.Ok, "%+v", v)
	require.Equal(t, []int64{4, head.Seq}, []int64{v.CheckedFrom, v.CheckedThrough})
	get(fmt.Sprintf("/v1/audit/verification?head=%d:%s", head.Seq+1, head.Hash), &v)
	require.False(t, v.Ok)
	require.Equal(t, "end_missing", string(v.Problems[0].Problem))
	entry := b.audit("&kind=org&id=org-3")[0]
	require.NotNil(t, entry.Seq)
	require.Nil(t, entry.Encoding)
	get(fmt.Sprintf("/v1/audit/%d", entry.EntryId), &entry)
	var sum string
	require.NoError(t, b.pool.QueryRow(ctx, `SELECT encode(sha256(decode($1, 'hex') || convert_to($2, 'UTF8')), 'hex')`, *entry.PrevHash, *entry.Encoding).Scan(&sum))
	require.Equal(t, *entry.Hash, sum)
	resp, body := b.do("GET", "/v1/audit/999999", "viewer", "", "")
	require.Equal(t, 404, resp.StatusCode)
	require.Equal(t, "audit_entry_not_found", as[api.Problem](t, body).Code)
	resp, _ = b.do("GET", "/v1/audit/verification?head=3:ab", "viewer", "", "")
	require.Equal(t, 422, resp.StatusCode)
}
