package console

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// shownPage loads a page from an API with these answers; it returns the page, and what the API was asked.
func shownPage(t *testing.T, page string, answers map[string]string) (html string, asked []string) {
	t.Helper()
	var mu sync.Mutex
	b := setupLive(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.RequestURI())
		mu.Unlock()
		w.Header().Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
		for path, answer := range answers {
			if r.URL.Path == path {
				_, _ = w.Write([]byte(answer))
				return
			}
		}
		_, _ = w.Write([]byte(`{}`))
	})
	w, done := b.open(t.Context(), page)
	<-done
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	return w.Body.String(), asked
}

// inOrder reports whether texts follow each other in a page.
func inOrder(t *testing.T, html string, texts ...string) {
	t.Helper()
	at := 0
	for _, text := range texts {
		i := strings.Index(html[at:], text)
		require.GreaterOrEqual(t, i, 0, "%s is not behind the others in %s", text, html[strings.Index(html, "<main"):])
		at += i + len(text)
	}
}

// TestAServersPageBeginsWithWhoIsOnIt: its tenants with their sites, before anything about the machine.
func TestAServersPageBeginsWithWhoIsOnIt(t *testing.T) {
	t.Parallel()
	html, asked := shownPage(t, "/console/servers/app-1", map[string]string{
		"/v1/servers/app-1": `{"server_id": "app-1", "role": "app", "region": "eu", "status": "active",
			"agent": {"status": "connected", "memory_pct": 41.2},
			"cost": {"currency": "EUR", "monthly": {"net": "16.4900"}, "parts": ["cx43", "IPv4 address"]},
			"holds": {"tenants": 2, "instances": 0, "volumes": 0}, "timeline": []}`,
		"/v1/tenants": `{"tenants": [
			{"tenant_id": "t-1", "slug": "shop", "org_id": "acme", "plan": "starter", "state": "active", "site_up": true,
				"memory_bytes": 1073741824},
			{"tenant_id": "t-2", "slug": "erp", "org_id": "corp", "plan": "business", "state": "active", "site_up": false,
				"memory_bytes": 2147483648}]}`,
	})
	inOrder(
		t, html, "41 %", "€ 16.49 a month (cx43 + IPv4)", "<h2>Tenants", `href="/console/tenants/t-1">shop`, `class="state good">up`,
		`href="/console/orgs/acme"`, "starter", "1 GiB", `href="/console/tenants/t-2">erp`, `class="state bad">down`, "2 GiB",
		"<h2>Instances",
	)
	require.Contains(t, asked, "/v1/tenants?limit=20&server_id=app-1")
	for _, at := range []string{"/v1/servers/app-1/containers", "/v1/servers/app-1/commands", "/v1/backups", "/v1/instances"} {
		require.False(t, slices.ContainsFunc(asked, func(s string) bool { return strings.HasPrefix(s, at) }), at)
	}
}

// TestATenantsPageHasWhatMattersFirst: state, site, uptime, backup, drill, cost, place and reason, before any section.
func TestATenantsPageHasWhatMattersFirst(t *testing.T) {
	t.Parallel()
	html, _ := shownPage(t, "/console/tenants/t-1", map[string]string{"/v1/tenants/t-1": `{
		"tenant_id": "t-1", "slug": "shop", "org_id": "acme", "plan": "starter", "state": "active", "converged_state": "active",
		"site_url": "https://shop.example.com", "site_health": {"up": true, "since": "2026-11-24T09:02:30Z"},
		"uptime": [{"month": "2026-11", "uptime_pct": 99.9999}, {"month": "2026-10", "uptime_pct": 100}],
		"last_restorable": {"at": "2026-11-24T10:02:30Z", "verified": true},
		"cost": {"currency": "EUR", "monthly": "4.123", "unpriced": 1, "parts": [{"server_id": "app-1", "cost": "4.123"}]},
		"allocation": {"app_server_id": "app-1"},
		"decision": {"id": 7, "decision_log": {"selection_reason": "best_fit: app-1 is the only one"}}}`})
	inOrder(
		t, html, "Tenant shop", `title="state">active`, `<dl class="facts head">`, `class="state good">up`, "since ", "99.99 %", "100 %",
		"last backup", `class="state good">verified`, "last drill", "none yet", "€ 4.12 a month and 1 unpriced",
		`href="/console/servers/app-1"`, `href="https://shop.example.com">shop.example.com<`,
		`href="/console/decisions/7">best_fit: app-1 is the only one</a>`, "</dl>", `<div class="parts">`,
	)
}

// TestTabsAreLinks: each tab has an address, shows its own parts, and asks the API for nothing else.
func TestTabsAreLinks(t *testing.T) {
	t.Parallel()
	org := map[string]string{
		"/v1/orgs/acme":        `{"org_id": "acme", "tier": "paid", "created_by": "ann", "created_at": "2026-11-24T09:02:30Z"}`,
		"/v1/orgs/acme/quotas": `{"quotas": [{"dimension": "max_apps", "limit": 10, "usage": 10, "reserved": 0}]}`,
		"/v1/costs":            `{"currency": "EUR", "total": "12.3", "rows": [{"kind": "org", "id": "acme", "cost": "12.3"}]}`,
	}
	first, asked := shownPage(t, "/console/orgs/acme", org)
	inOrder(
		t, first, `<a href="/console/orgs/acme" aria-current="page">Overview</a>`, `<a href="/console/orgs/acme?tab=quotas">Quotas</a>`,
		`<a href="/console/orgs/acme?tab=history">History</a>`, `<a href="/console/orgs/acme?tab=details">Details</a>`,
		"Cost this month", "€ 12.30", "<h2>Tenants", "<h2>Apps", "<h2>Domains",
	)
	require.NotContains(t, asked, "/v1/orgs/acme/quotas")
	require.Contains(t, asked, "/v1/domains?limit=8&org_id=acme")
	quotas, asked := shownPage(t, "/console/orgs/acme?tab=quotas", org)
	inOrder(t, quotas, `<a href="/console/orgs/acme?tab=quotas" aria-current="page">Quotas</a>`, `class="quota full"`)
	require.NotContains(t, quotas, "tenants?org_id=acme")
	require.NotContains(t, strings.Join(asked, " "), "/v1/tenants")
	unknown, _ := shownPage(t, "/console/orgs/acme?tab=gone", org)
	require.Contains(t, unknown, `<a href="/console/orgs/acme" aria-current="page">Overview</a>`)
	all, _ := shownPage(t, "/console/orgs/acme?tab=details", org)
	inOrder(t, all, "tier", "paid", "created by", "ann")
}

// offered are the operations that a page offers for a thing as it is.
func offered(t *testing.T, page string, o object) menu {
	t.Helper()
	_, things := described()
	i := slices.IndexFunc(things, func(th thing) bool { return th.Page == page })
	ec := echo.New().NewContext(httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder())
	ec.Set(visitorKey, operator)
	return (&Console{}).menu(ec, things[i].Do, map[string]string{"tenant_id": "t-1", "server_id": "app-1"}, o)
}

func (c menu) labels() (out []string) {
	for _, b := range slices.Concat(c.First, c.More, c.Last) {
		out = append(out, b.Label)
	}
	return out
}

// TestChangesOfATenantAreOfferedWhereTheyAreAccepted: in each state exactly those that its rules allow.
func TestChangesOfATenantAreOfferedWhereTheyAreAccepted(t *testing.T) {
	t.Parallel()
	for _, state := range tenant.States() {
		o := object{"state": string(state)}
		if state.HasSite() {
			o["allocation"] = map[string]any{"app_server_id": "app-1"}
		}
		labels := offered(t, "tenants/{tenant_id}", o).labels()
		for label, action := range map[string]tenant.Action{
			"Suspend": tenant.ActionSuspend, "Resume": tenant.ActionResume, "Cancel": tenant.ActionCancel,
			"Reactivate": tenant.ActionReactivate, "Terminate": tenant.ActionTerminate, "Retry": tenant.ActionRetry,
		} {
			_, err := action.Apply(state)
			require.Equal(t, err == nil, slices.Contains(labels, label), "%s of a tenant that is %s", label, state)
		}
		for _, label := range []string{"Back up", "Move", "Reset password", "Add a user"} {
			require.Equal(t, state.HasSite(), slices.Contains(labels, label), "%s of a tenant that is %s", label, state)
		}
		require.Equal(t, state == tenant.Active, slices.Contains(labels, "Restore"), state)
	}
}

func TestAtMostFiveButtonsAreShown(t *testing.T) {
	t.Parallel()
	_, things := described()
	for _, th := range things {
		c := offered(t, th.Page, object{})
		require.LessOrEqual(t, len(c.First), 5, th.Page)
		for _, b := range slices.Concat(c.First, c.More) {
			require.False(t, b.Danger, "%s of %s", b.Label, th.Page)
		}
		for _, b := range c.Last {
			require.NotEmpty(t, b.Impact, "%s of %s", b.Label, th.Page)
		}
	}
	c := offered(t, "servers/{server_id}", object{
		"status": string(server.Active), "managed_by": "worker_direct",
		"holds": map[string]any{"tenants": 3.0, "instances": 1.0, "volumes": 0.0},
	})
	require.Len(t, c.First, 5)
	require.Equal(t, "Cordon", c.First[0].Label)
	require.NotContains(t, c.labels(), "Cancel maintenance")
	require.NotContains(t, c.labels(), "Retry")
	require.Equal(t, "Delete", c.Last[len(c.Last)-1].Label)
	drained := offered(t, "servers/{server_id}", object{"status": "active", "cordoned_by": "ann", "maintenance": "drain"}).labels()
	require.Contains(t, drained, "Cancel maintenance")
	for _, not := range []string{"Drain", "Reboot", "Replace", "Resize", "Cordon", "Uncordon"} {
		require.NotContains(t, drained, not)
	}
}

func TestDestructiveButtonsNameWhatIsLost(t *testing.T) {
	t.Parallel()
	impact := func(given string) string {
		o, err := decoded([]byte(given))
		require.NoError(t, err)
		return operations()["deleteServer"].impactOn(o)
	}
	require.Equal(t, "The server is destroyed; nothing is on it", impact(`{}`))
	require.Equal(t, "The server is destroyed, with the data of 1 tenant", impact(`{"holds": {"tenants": 1, "instances": 0, "volumes": 0}}`))
	require.Equal(
		t, "The server is destroyed, with the data of 3 tenants, 1 instance and the use of 2 volumes",
		impact(`{"holds": {"tenants": 3, "instances": 1, "volumes": 2}}`),
	)
	html, _ := shownPage(t, "/console/servers/app-1", map[string]string{
		"/v1/servers/app-1": `{"server_id": "app-1", "status": "active", "agent": {"status": "connected"}}`,
	})
	inOrder(t, html, "<summary", "More", "Ends something, or loses data", `class="button danger"`, "nothing is on it", "</details>")
}

func TestMovesHaveColours(t *testing.T) {
	t.Parallel()
	for _, state := range []tenant.MoveState{
		tenant.MoveQueued, tenant.MoveCopying, tenant.MoveFrozen, tenant.MoveSwitched, tenant.MoveDone, tenant.MoveFailed, tenant.MoveCancelled,
	} {
		require.NotEmpty(t, tones[string(state)], state)
	}
}

func TestUptimeIsRoundedDown(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	of := func(given string) string {
		o, err := decoded([]byte(`{"uptime": ` + given + `}`))
		require.NoError(t, err)
		return shown("uptime", o.at("uptime"), at).Text
	}
	require.Equal(t, "100 % this month", of(`[{"month": "2026-11", "uptime_pct": 100}]`))
	require.Equal(t, "99.99 % this month, 98.5 % in October", of(`[{"month": "2026-11", "uptime_pct": 99.99999}, {"month": "2026-10", "uptime_pct": 98.5}, {"month": "2026-09", "uptime_pct": 1}]`))
	require.Equal(t, "50 % in October", of(`[{"month": "2026-11"}, {"month": "2026-10", "uptime_pct": 50}]`))
	require.True(t, shown("uptime", []any{}, at).None)
}
