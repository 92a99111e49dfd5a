package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
)

// defaultLimit is the page size if none is requested.
const defaultLimit = 50

// listQuery is the requested page, already checked against the contract: a parameter
// that not every list has filters by the field of its name.
func listQuery(c echo.Context) prego.ListQuery {
	q := prego.ListQuery{Limit: defaultLimit, Filters: map[string][]string{}}
	for name, values := range c.QueryParams() {
		value := values[0]
		switch name {
		case "limit":
			q.Limit, _ = strconv.Atoi(value)
		case "cursor":
			q.Cursor = value
		case "sort":
			q.Sort = value
		case "all":
			q.All, _ = strconv.ParseBool(value)
		default:
			q.Filters[name] = strings.Split(value, ",")
		}
	}
	return q
}

// lister reads a page of a list, and the next page's cursor, "" at the end.
type lister[T any] func(ctx context.Context, q prego.ListQuery) (page []T, next string, err error)

// list answers with a page. If the list belongs to one thing, of is the field that
// names it, and its id.
func list[T, V any](c echo.Context, name string, read lister[T], view func(T) V, of ...string) error {
	q := listQuery(c)
	if len(of) == 2 {
		q = q.Of(of[0], of[1])
	}
	items, next, err := read(c.Request().Context(), q)
	if err != nil {
		return err
	}
	out := map[string]any{name: views(items, view)}
	if next != "" {
		out["next_cursor"] = next
	}
	return c.JSON(http.StatusOK, out)
}

// named reads a list that is filtered by host names, in any spelling.
func named[T any](field string, read lister[T]) lister[T] {
	return func(ctx context.Context, q prego.ListQuery) ([]T, string, error) {
		for i, name := range q.Filters[field] {
			q.Filters[field][i] = prego.SpellHostname(name)
		}
		return read(ctx, q)
	}
}

// within is list for what belongs to something that must exist.
func within[I ~string, O, T, V any](c echo.Context, owner func(ctx context.Context, id I) (O, error), name string, read lister[T], view func(T) V, field string, id I) error {
	return list(c, name, func(ctx context.Context, q prego.ListQuery) (page []T, next string, err error) {
		if page, next, err = read(ctx, q); err == nil && len(page) == 0 { // or the owner does not exist
			_, err = owner(ctx, id)
		}
		return page, next, err
	}, view, field, string(id))
}

// every answers with a list without pages.
func every[T, V any](c echo.Context, name string, read func(ctx context.Context) ([]T, error), view func(T) V) error {
	items, err := read(c.Request().Context())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{name: views(items, view)})
}

func views[T, V any](items []T, view func(T) V) []V {
	out := make([]V, len(items))
	for i, item := range items {
		out[i] = view(item)
	}
	return out
}

// show answers with one object.
func show[I ~string, T, V any](c echo.Context, read func(ctx context.Context, id I) (T, error), id I, view func(T) V) error {
	v, err := read(c.Request().Context(), id)
	return answer(c, http.StatusOK, v, err, view)
}

// answer answers with an object, or refuses with an error.
func answer[T, V any](c echo.Context, status int, v T, err error, view func(T) V) error {
	if err != nil {
		return err
	}
	return c.JSON(status, view(v))
}

// remove answers a deletion.
func remove(c echo.Context, do func(ctx context.Context, id, by string) error, id string) error {
	return noContent(c, do(c.Request().Context(), id, caller(c).By()))
}

func noContent(c echo.Context, err error) error {
	if err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// deref returns what p points to, or the zero value for nil.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
