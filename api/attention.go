package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/ops/attention"
)

// ListAttention shows what needs attention now.
func (a *API) ListAttention(c echo.Context, p ListAttentionParams) error {
	items, at, err := a.d.Store.AttentionItems(c.Request().Context(), a.d.Attention)
	if err != nil {
		return err
	}
	counts := attention.Counts(items)
	limit := 100
	if p.Limit != nil {
		limit = *p.Limit
	}
	return c.JSON(http.StatusOK, AttentionList{
		Items:  views(attention.Only(items, deref(p.Severity), deref(p.Kind), limit), viewOf[Attention]),
		Counts: AttentionCounts{Critical: counts[attention.Critical], Warning: counts[attention.Warning], Info: counts[attention.Info]},
		AsOf:   at.UTC(),
	})
}
