package api_test

import (
	"context"
	"encoding/csv"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// TestExportsOfACallerAreLimited: the third one at a time is refused, and another caller's is not.
func TestExportsOfACallerAreLimited(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	leave := b.api.Exporting(granted("viewer", "support"), 2)
	export := func(path, who string) int {
		r := request(t, "http://api.test", "GET", path, who, "", "")
		r.Header.Set("Accept", "text/csv")
		answer := httptest.NewRecorder()
		b.api.Handler().ServeHTTP(answer, r)
		return answer.Code
	}
	for _, path := range []string{"/v1/costs", "/v1/ledger"} {
		require.Equal(t, []int{429, 200}, []int{export(path, "viewer"), export(path, "operator")}, path)
	}
	b.ok(200, "GET", "/v1/costs", "") // the page of an operator is no export
	resp, body := b.do("GET", "/v1/costs", "viewer", "", "")
	require.Equal(t, 200, resp.StatusCode, "%s", body)
	leave()
	require.Equal(t, []int{200, 200}, []int{export("/v1/costs", "viewer"), export("/v1/ledger", "viewer")})
}

// TestCostsAndLedger: billed items and their cost, in both forms; bad input is refused.
func TestCostsAndLedger(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.sells()
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := b.pool.Exec(context.Background(), sql, args...)
		require.NoError(t, err)
	}
	now := time.Now().UTC()
	// Within this month, however short it is.
	born := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	if b := now.Add(-90 * time.Minute); b.After(born) {
		born = b
	}
	hours := 1 + int(now.Sub(born)/time.Hour)
	cents := func(each int) string { return fmt.Sprintf("0.%02d", each*hours) }
	exec(`INSERT INTO resources (provider, kind, name, attempt, state, provider_id, created_at, details) VALUES ('hetzner', 'server', '=cmd|x, "y"', 1, 'created', '7', $1, '{"type": "cx43", "location": "fsn1"}')`, born)
	exec(`INSERT INTO orphan_sightings (provider, kind, provider_id, name, type, location, made_at) VALUES ('hetzner', 'server', '8', 'lost', 'cx43', 'nbg1', $1)`, born)
	get := func(path, accept string) (*http.Response, string) {
		t.Helper()
		if accept == "application/json" {
			resp, answer := b.do("GET", path, "viewer", "", "")
			return resp, string(answer)
		}
		resp, answer := b.sendWith("GET", path, "", "Accept", accept)
		return resp, string(answer)
	}
	resp, answer := get("/v1/costs", "application/json")
	require.Equal(t, http.StatusOK, resp.StatusCode, answer)
	empty := as[api.Costs](t, []byte(answer))
	require.Equal(t, []any{"0.00", false, 0}, []any{empty.Total, empty.Complete, len(empty.Rows)}, "nothing is counted yet")

	for range 2 {
		_, err := b.store.CountCosts(context.Background(), now, nil)
		require.NoError(t, err)
	}
	month := now.Format("2006-01")
	_, answer = get("/v1/costs?by=kind&month="+month, "application/json")
	costs := as[api.Costs](t, []byte(answer))
	require.Equal(t, cents(4), costs.Total, "hours that began, of two servers at 0.02")
	require.Equal(t, []string{cents(2), cents(2), "EUR"}, []string{costs.Shared, costs.Untracked, *costs.Currency})
	require.Len(t, costs.Rows, 1)
	require.True(t, costs.Complete)
	for id, n := range map[string]int{costs.Rows[0].Id: 1, "t-none": 0, "t-none," + costs.Rows[0].Id: 1} {
		_, answer = get("/v1/costs?by=kind&limit=1&id="+id, "application/json")
		one := as[api.Costs](t, []byte(answer))
		require.Len(t, one.Rows, n, answer)
		require.Equal(t, costs.Total, one.Total, "sums cover the month")
	}
	resp, answer = get("/v1/costs?by=tenant", "text/csv")
	require.True(t, strings.HasPrefix(resp.Header.Get("Content-Type"), "text/csv"))
	require.Equal(t, "month,kind,id,name,org_id,cost,of_which_idle,basis,currency\r\n"+month+",shared,shared,shared by all,,"+cents(2)+",0.00,none,EUR\r\n"+month+",untracked,untracked,owned by no row,,"+cents(2)+",0.00,none,EUR\r\n", answer)

	_, answer = get("/v1/ledger?state=untracked", "application/json")
	page := as[api.LedgerPage](t, []byte(answer))
	require.Len(t, page.Resources, 1)
	require.Equal(t, "15.99", *page.Resources[0].PriceMonth)
	require.Equal(t, api.LedgerOwner{Kind: "none"}, page.Resources[0].Owner)
	resp, answer = get("/v1/ledger?sort=name&limit=1", "text/csv, */*")
	rows, err := csv.NewReader(strings.NewReader(answer)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, `'=cmd|x, "y"`, rows[1][3], "no formula")
	next := resp.Header.Get("Link")
	require.Contains(t, next, `rel="next"`)
	resp, answer = get(strings.TrimPrefix(next[:strings.Index(next, ">")], "<"), "text/csv")
	require.Contains(t, answer, "lost")
	require.Empty(t, resp.Header.Get("Link"))

	for path, field := range map[string]string{
		"/v1/costs?by=moon": "by", "/v1/costs?month=2026-13": "month", "/v1/costs?month=now": "month", "/v1/costs?limit=0": "limit", "/v1/costs?tenant=x": "tenant",
		"/v1/ledger?kind=moon": "kind", "/v1/ledger?owner=moon:x": "owner", "/v1/ledger?state=dead": "state", "/v1/ledger?cursor=x": "cursor", "/v1/ledger?sort=kind": "sort",
	} {
		resp, answer := get(path, "text/csv")
		require.Contains(t, []int{http.StatusBadRequest, http.StatusUnprocessableEntity}, resp.StatusCode, path)
		require.Equal(t, field, deref(as[api.Problem](t, []byte(answer)).Field), path)
	}
}
