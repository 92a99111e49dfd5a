package main

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// maxPage is the most that the API answers at once.
const maxPage = 200

// walk reads a paged list to its end, or until there are limit.
func walk[P, T any](ctx context.Context, c *apiClient, path string, q url.Values, limit int, open func(P) (items []T, next *string)) ([]T, error) {
	all := []T{}
	for len(all) < limit {
		q.Set("limit", strconv.Itoa(min(maxPage, limit-len(all))))
		var page P
		if err := c.do(ctx, http.MethodGet, path, q, nil, &page); err != nil {
			return nil, err
		}
		items, next := open(page)
		if all = append(all, items...); next == nil {
			break
		}
		q.Set("cursor", *next)
	}
	return all, nil
}

// filters are the query of those that are set.
func filters(named map[string]string) url.Values {
	q := url.Values{}
	for name, v := range named {
		if v != "" {
			q.Set(name, v)
		}
	}
	return q
}

// flagged is what a flag was given, nil for nothing.
func flagged(v string) *string {
	if v == "" {
		return nil
	}
	return &v
}
