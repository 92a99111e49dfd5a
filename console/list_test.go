package console

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStatesAreTheSecondColumn(t *testing.T) {
	t.Parallel()
	fields := func(text string) (out []string) {
		for _, c := range columnsOf(text) {
			out = append(out, c.Field)
		}
		return out
	}
	require.Equal(t, []string{"slug", "state", "tenant_id", "converged_state"},
		fields("slug, tenant_id: id, state, converged_state"))
	require.Equal(t, []string{"name", "require"}, fields("name, require"))
	require.Equal(t, []string{"status", "a"}, fields("status, a"))
}

// TestAuditShowsWhatChanged: an operator sees the values without opening the entry.
func TestAuditShowsWhatChanged(t *testing.T) {
	t.Parallel()
	for row, want := range map[string]string{
		`{"old": {"limit_value": 2, "reason": "demo", "updated_by": "a"},
			"new": {"limit_value": 5, "reason": "more room", "updated_by": "b"}}`: "limit value 2 → 5, reason demo → more room",
		`{"old": {"memory_bytes": 1073741824}, "new": {"memory_bytes": 4294967296}}`: "memory 1 GiB → 4 GiB",
		`{"old": {"reason": "a"}, "new": {}}`:                                        "reason a → –",
		`{"new": {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1}}`:          "a, b, c, d, e, f and 1 more",
	} {
		o, err := decoded([]byte(row))
		require.NoError(t, err)
		require.Equal(t, want, changedText(o).Text)
	}
	html, err := rendered("value", value{Text: "now", Time: "2026-11-24T12:00:00Z", Href: "/console/audit/7"})
	require.NoError(t, err)
	require.Contains(t, html, `<a href="/console/audit/7"><time`)
}

func TestPricesHaveTheirCurrency(t *testing.T) {
	t.Parallel()
	o, err := decoded([]byte(`{"name": "ip", "price_month": "0.60", "currency": "EUR"}`))
	require.NoError(t, err)
	require.Equal(t, "0.60 EUR", cells(columnsOf("name, price_month"), o, "", noon)[1].Text)
}
