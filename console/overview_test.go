package console

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"
)

const overviewJSON = `{
	"tenants": {"total": 42, "active": 40, "months": [
		{"month": "2026-10", "sites": 30, "uptime_pct": 99.5}, {"month": "2026-11", "sites": 41, "uptime_pct": 99.998}]},
	"sites": {"up": 39, "down": 1},
	"servers": {"total": 9, "active": 8, "silent": 0, "memory_pct": 61.4,
		"hours": [{"at": "2026-11-24T12:00:00Z", "servers": 8, "memory_pct": 60}]},
	"waiting": {"count": 3, "since": "2026-11-24T11:52:30Z"},
	"costs": {"month": "2026-11", "currency": "EUR", "total": "118.203", "days": [],
		"kinds": [{"kind": "server", "cost": "110.00"}, {"kind": "primary_ip", "cost": "8.203"},
			{"kind": "volume", "cost": "0.01"}]}
}`

func TestFiguresOfTheFirstPage(t *testing.T) {
	t.Parallel()
	o, err := decoded([]byte(overviewJSON))
	require.NoError(t, err)
	require.Equal(t, []figure{
		{
			Name: "Tenants", Text: "42", About: "40 active",
			Href: "/console/tenants", Line: "M0 26L120 2", Span: "sites by month",
		},
		{
			Name: "Sites up", Text: "39 of 40", About: "99.99 % uptime this month", Tone: "bad",
			Href: "/console/tenants?state=active", Line: "M0 26L120 2", Span: "uptime by month",
		},
		{Name: "Servers", Text: "8", About: "active, 1 not", Href: "/console/servers", Span: "last day"},
		{Name: "Memory used", Text: "61 %", About: "mean of servers", Href: "/console/map", Span: "last day"},
		{Name: "Waiting", Text: "3", About: "the longest for 10 min", Href: "/console/queue", Tone: "busy"},
		{
			Name: "This month", Text: "118.20 EUR", About: "server 110.00, primary ip 8.20",
			Href: "/console/costs", Span: "by day",
		},
	}, overviewOf(o, noon))
	o, err = decoded([]byte(`{"sites": {"up": 0, "down": 0},
		"servers": {"total": 9, "active": 9, "silent": 7}, "costs": {"total": "0.00"}}`))
	require.NoError(t, err)
	alone := overviewOf(o, noon)
	require.Equal(t, "–", alone[1].Text, "without an edge it is unknown whether sites are up")
	require.Equal(t, "7 silent", alone[2].About)
	require.Equal(t, "M0 14L60 14L120 14", sparkline([]float64{7, 7, 7}), "what does not change is in the middle")
	require.Empty(t, sparkline([]float64{7}), "one point is no line")
}

// TestAttentionIsShownWithoutNumbers: the first page is there when its numbers are refused.
func TestAttentionIsShownWithoutNumbers(t *testing.T) {
	t.Parallel()
	for status, figures := range map[int]bool{http.StatusOK: true, http.StatusServiceUnavailable: false} {
		b := setupLive(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
			switch {
			case r.URL.Path != "/v1/overview":
				_, _ = w.Write([]byte(`{"items": [{"severity": "critical",
					"kind": "server_failed", "message": "run ` + "`prego x`" + `"}], "counts": {}}`))
			case status == http.StatusOK:
				_, _ = w.Write([]byte(overviewJSON))
			default:
				w.WriteHeader(status)
				_, _ = w.Write([]byte(`{"code": "unavailable", "title": "Unavailable", "status": 503}`))
			}
		})
		w, done := b.open(t.Context(), "/console")
		<-done
		require.Equal(t, http.StatusOK, w.Code)
		require.Contains(t, w.Body.String(), "run <code>prego x</code>")
		if figures {
			require.Contains(t, w.Body.String(), "39 of 40")
		} else {
			require.NotContains(t, w.Body.String(), "figures")
		}
	}
}
