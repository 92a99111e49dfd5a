package api

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/ops"
)

// ListProgress shows what takes a while, with how far it is.
func (a *API) ListProgress(c echo.Context, p ListProgressParams) error {
	limit := 50
	if p.Limit != nil {
		limit = *p.Limit
	}
	all, err := a.d.Store.Progress(c.Request().Context(), deref(p.Id), limit)
	now := time.Now().UTC()
	return answer(c, http.StatusOK, all, err, func(all []ops.Progress) ProgressList {
		return ProgressList{AsOf: now, Progress: views(all, func(p ops.Progress) Progress {
			out := viewOf[Progress](p)
			out.Subject = ProgressSubject{Kind: p.SubjectKind, Id: p.ID, Name: p.Name}
			out.Message, out.ExpectedAt = p.Message(), p.ExpectedAt(now)
			return out
		})}
	})
}
