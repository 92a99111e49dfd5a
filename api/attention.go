package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/ops/attention"
)

// ListAttention shows what needs attention now.
func (a *API) ListAttention(c echo.Context, p ListAttentionParams) error {
	found, at, err := a.d.Store.Attention(c.Request().Context(), a.d.Attention)
	if err != nil {
		return err
	}
	items := attention.List(found)
	counts := attention.Counts(items)
	limit := 100
	if p.Limit != nil {
		limit = *p.Limit
	}
	return c.JSON(http.StatusOK, AttentionList{
		Items:  views(attention.Only(items, deref(p.Severity), deref(p.Kind), limit), attentionView),
		Counts: AttentionCounts{Critical: counts[attention.Critical], Warning: counts[attention.Warning], Info: counts[attention.Info]},
		AsOf:   at.UTC(),
	})
}

func attentionView(i attention.Item) Attention {
	return Attention{
		Id: i.ID, Severity: i.Severity, Kind: i.Kind, Subject: AttentionSubject{Kind: i.Subject.Kind, Id: i.Subject.ID, Name: i.Subject.Name}, OrgId: optional(string(i.OrgID)),
		Reason: i.Reason, Message: i.Message, Since: i.Since.UTC(), Todo: i.Todo, Docs: i.Docs, Count: i.Count,
		Actions: views(i.Actions, func(x attention.Action) AttentionAction {
			v := AttentionAction{Label: x.Label, Method: AttentionActionMethod(x.Method), Path: x.Path, Cli: x.CLI}
			if x.Body != nil {
				v.Body = &x.Body
			}
			return v
		}),
	}
}
