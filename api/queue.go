package api

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
)

// ListQueue shows the tenants that wait for capacity, in the order of service. A cursor is
// how many were before the page: the queue moves on meanwhile.
func (a *API) ListQueue(c echo.Context, p ListQueueParams) error {
	limit, from := defaultLimit, 0
	if p.Limit != nil {
		limit = *p.Limit
	}
	if p.Cursor != nil {
		n, err := strconv.Atoi(*p.Cursor)
		if err != nil || n < 1 {
			return prego.Invalid("cursor", "must be the next_cursor of an earlier answer")
		}
		from = n
	}
	q, err := a.d.Store.Queue(c.Request().Context())
	if err != nil {
		return err
	}
	all := slices.DeleteFunc(q.Expect(), func(e placement.Expectation) bool {
		return !wanted(p.Kind, e.Kind) || !wanted(p.Region, e.Region) || !wanted(p.OrgId, e.OrgID)
	})
	page := all[min(from, len(all)):]
	out := QueuePage{}
	if len(page) > limit {
		page, out.NextCursor = page[:limit], new(strconv.Itoa(from+limit))
	}
	out.Entries = views(page, viewOf[QueueEntry])
	return c.JSON(http.StatusOK, out)
}

// wanted reports whether a filter, nil for none, lets a value through.
func wanted[T comparable](filter *[]T, v T) bool { return filter == nil || slices.Contains(*filter, v) }

// CancelQueue cancels the tenants of an org that wait for capacity. Runs of those with servers read their rows
// regularly, so that none is signalled.
func (a *API) CancelQueue(c echo.Context, id OrgID, _ CancelQueueParams) error {
	var in TenantChange
	if err := decode(c, &in); err != nil {
		return err
	}
	reason := strings.TrimSpace(deref(in.Reason))
	out, err := a.d.Store.CancelQueue(c.Request().Context(), id, caller(c).By(), reason)
	return answer(c, http.StatusOK, out, err, viewOf[CancelledQueue])
}
