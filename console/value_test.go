package console

import (
	"net/http"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"
)

// shownAs is the text of a field's value in JSON.
func shownAs(t *testing.T, name, given string) value {
	t.Helper()
	o, err := decoded([]byte(`{"v": ` + given + `}`))
	require.NoError(t, err)
	return shown(name, o.at("v"), noon)
}

func TestValuesAreShownForPeople(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, given, want string }{
		{"max_size", `-1`, "no limit"},
		{"exit_code", `-1`, "-1"},
		{"clock_ahead_seconds", `-0.0004`, "0 s"},
		{"clock_ahead_seconds", `-0.0006`, "-1 ms"},
		{"created_at", `"2000-01-01T00:00:00Z"`, "built in"},
		{"created_at", `"2026-11-24T11:02:30Z"`, "1 h ago"},
		{"cost", `"0.910022"`, "0.91"},
		{"total", `"1.056"`, "1.06"},
		{"cost", `"0.026400"`, "0.026"},
		{"idle", `"0.00"`, "0.00"},
		{"total", `7`, "7"},
		{"target", `3`, "3"},
		{"target", `{"kind": "server", "id": "app-1"}`, "app-1"},
		{
			"cost", `{"currency": "EUR", "monthly": {"net": "16.4900", "gross": "19.6231"}, "parts": ["cx43", "IPv4"]}`,
			"€ 16.49 a month (cx43 + IPv4)",
		},
	} {
		require.Equal(t, c.want, shownAs(t, c.name, c.given).Text, "%s %s", c.name, c.given)
	}
	require.Equal(t, "net; 19.62 with tax", shownAs(t, "cost", `{"currency": "EUR", "monthly": {"net": "16.49", "gross": "19.6231"}}`).Title)
}

func TestTextBetweenBackticksIsCode(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, "run <code>prego server lost</code> &lt;b&gt;", code("run `prego server lost` <b>"))
	require.EqualValues(t, "an `open one", code("an `open one"))
	require.Equal(t, "run prego", bare("run `prego`"))
}

func TestStatesHaveNames(t *testing.T) {
	t.Parallel()
	of := func(state, converged string) (out []string) {
		for _, s := range statesOf(object{"state": state, "converged_state": converged}, []string{"state", "converged_state"}, noon) {
			out = append(out, s.Name+":"+s.Text)
		}
		return out
	}
	require.Equal(t, []string{":active"}, of("active", "active"))
	require.Equal(t, []string{":active", "converged:silent"}, of("active", "silent"))
}

// TestEntriesOfTheMenuMarkThemselves: the page that an entry leads to marks that entry, and so do pages below it.
func TestEntriesOfTheMenuMarkThemselves(t *testing.T) {
	t.Parallel()
	marked := func(path, section string) string {
		for _, g := range navigation(sectionOf(path, section)) {
			for _, i := range g.Items {
				if i.Here {
					return i.Href
				}
			}
		}
		return ""
	}
	for _, g := range navigation("") {
		for _, i := range g.Items {
			if i.Href != "/console" {
				require.Equal(t, i.Href, marked(i.Href, "servers"))
			}
		}
	}
	require.Equal(t, "/console", marked("/console", "now"))
	require.Equal(t, "/console/warm-pools", marked("/console/warm-pools/eu/starter", "pools"))
	require.Equal(t, "/console/servers", marked("/console/operations/w", "servers"))
}

// TestEmptyListsExplainThemselves: a list without rows explains what would be in it.
func TestEmptyListsExplainThemselves(t *testing.T) {
	t.Parallel()
	listings, _ := described()
	for _, l := range listings {
		if placeholders.MatchString(l.Page) {
			continue
		}
		require.NotEmpty(t, l.Empty, l.Page)
	}
}

func TestIncompleteCostsNameWhatIsMissing(t *testing.T) {
	t.Parallel()
	of := func(text string) string {
		o, err := decoded([]byte(text))
		require.NoError(t, err)
		return completeness(o, noon).Text
	}
	require.Equal(t, "yes", of(`{"complete": true, "unpriced": 0}`))
	require.Equal(t, "no: the price of 2 billed resources is unknown", of(`{"complete": false, "unpriced": 2, "as_of": "2026-11-24T12:00:00Z"}`))
	require.Equal(t, "no: costs are recorded until 2026-11-24 12:00:00 UTC", of(`{"complete": false, "unpriced": 0, "as_of": "2026-11-24T12:00:00Z"}`))
	require.Equal(t, "no: no costs are recorded yet", of(`{"complete": false, "unpriced": 0}`))
}

// TestTabsNameTheThing: a browser's tab has the thing's own name, whatever part of the page is loaded later.
func TestTabsNameTheThing(t *testing.T) {
	t.Parallel()
	b := setupLive(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
		if r.URL.Path == "/v1/tenants/t-1" {
			_, _ = w.Write([]byte(`{"tenant_id": "t-1", "slug": "acme-eu", "state": "active", "converged_state": "active"}`))
			return
		}
		_, _ = w.Write([]byte(`{}`))
	})
	w, done := b.open(t.Context(), "/console/tenants/t-1?tab=cost")
	<-done
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Body.String(), "<title>acme-eu · tenant · prego</title>")
	later := `hx-select="#part"`
	require.Positive(t, strings.Count(w.Body.String(), later))
	quiet := later + ` hx-swap="innerHTML ignoreTitle:true"`
	require.Equal(t, strings.Count(w.Body.String(), later), strings.Count(w.Body.String(), quiet))
}
