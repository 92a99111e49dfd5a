package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
)

// listing is how things of one kind are listed, a page at a time. A walk in the order
// of something that never changes meets everything that was there when it began
// exactly once, whatever is made meanwhile.
type listing[T any] struct {
	what   string // for errors
	from   string // SELECT … FROM …
	always string // a condition, "" for none
	live   string // the condition that leaves out what has ended, "" where nothing stays
	state  string // the filter that asks for states by name, also for those that have ended
	// filters are columns by field; a text with $? is a condition on the list of values.
	filters map[string]string
	sorts   map[string]sorting[T]
	order   string     // of a query that names none; -created_at when empty
	id      sorting[T] // breaks ties
	scan    pgx.RowToFunc[T]
}

// sorting is a column that is never NULL, and its value in Go: a string, an int64 or a
// time.Time.
type sorting[T any] struct {
	column string
	of     func(T) any
}

// position is where a page ended.
type position struct {
	Sort  string          `json:"s"`
	Value json.RawMessage `json:"v"`
	ID    json.RawMessage `json:"i"`
}

var errCursor = prego.Invalid("cursor", "must be the next_cursor of an earlier answer, with the same sort")

// statement is the SQL of a page, and its arguments without the filters' values.
func (l listing[T]) statement(q prego.ListQuery) (sql string, args []any, by sorting[T], err error) {
	field, descending := strings.CutPrefix(l.sort(q), "-")
	by, ok := l.sorts[field]
	if !ok {
		return "", nil, by, prego.Invalid("sort", "must be a field that this list can be sorted by")
	}
	var where []string
	if l.always != "" {
		where = append(where, l.always)
	}
	if _, named := q.Filters[l.state]; l.live != "" && !q.All && !named {
		where = append(where, l.live)
	}
	for _, name := range slices.Sorted(maps.Keys(q.Filters)) {
		column, ok := l.filters[name]
		if !ok {
			return "", nil, by, &prego.Error{Code: prego.CodeUnknownField, Field: name, Message: "is not a field that this list can be filtered by"}
		}
		args = append(args, q.Filters[name])
		if !strings.Contains(column, "$?") {
			column += " = ANY ($?)"
		}
		where = append(where, strings.ReplaceAll(column, "$?", fmt.Sprintf("$%d", len(args))))
	}
	direction, compare := "", ">"
	if descending {
		direction, compare = " DESC", "<"
	}
	if q.Cursor != "" {
		value, id, err := l.read(q, by)
		if err != nil {
			return "", nil, by, err
		}
		args = append(args, value, id)
		where = append(where, fmt.Sprintf("(%s, %s) %s ($%d, $%d)", by.column, l.id.column, compare, len(args)-1, len(args)))
	}
	sql = l.from
	if len(where) > 0 {
		sql += " WHERE " + strings.Join(where, " AND ")
	}
	args = append(args, q.Limit+1)
	return fmt.Sprintf("%s ORDER BY %s%s, %s%s LIMIT $%d", sql, by.column, direction, l.id.column, direction, len(args)), args, by, nil
}

func (l listing[T]) sort(q prego.ListQuery) string {
	switch {
	case q.Sort != "":
		return q.Sort
	case l.order != "":
		return l.order
	}
	return "-created_at"
}

// read reads a cursor of the same order.
func (l listing[T]) read(q prego.ListQuery, by sorting[T]) (value, id any, err error) {
	var p position
	b, err := base64.RawURLEncoding.DecodeString(q.Cursor)
	if err != nil || json.Unmarshal(b, &p) != nil || p.Sort != l.sort(q) {
		return nil, nil, errCursor
	}
	if value, err = by.value(p.Value); err != nil {
		return nil, nil, err
	}
	id, err = l.id.value(p.ID)
	return value, id, err
}

// value reads a value of the column's type.
func (s sorting[T]) value(raw json.RawMessage) (any, error) {
	var zero T
	var err error
	switch s.of(zero).(type) {
	case time.Time:
		var v time.Time
		if err = json.Unmarshal(raw, &v); err == nil && !v.IsZero() {
			return v, nil
		}
	case int64:
		var v int64
		if err = json.Unmarshal(raw, &v); err == nil && len(raw) > 0 {
			return v, nil
		}
	default:
		var v string
		if err = json.Unmarshal(raw, &v); err == nil && utf8.ValidString(v) && !strings.ContainsRune(v, 0) {
			return v, nil
		}
	}
	return nil, errCursor
}

// page reads a page, and the cursor of the next one, "" when there is none.
func (l listing[T]) page(ctx context.Context, s *Store, q prego.ListQuery) (page []T, next string, err error) {
	sql, args, by, err := l.statement(q)
	if err != nil {
		return nil, "", err
	}
	page, err = collectBy(ctx, s, "list "+l.what, l.scan, sql, args...)
	if err != nil || len(page) <= q.Limit {
		return page, "", err
	}
	page = page[:q.Limit]
	last := page[q.Limit-1]
	next, err = newCursor(l.sort(q), by.of(last), l.id.of(last))
	return page, next, err
}

func newCursor(sort string, value, id any) (string, error) {
	b, err := json.Marshal(map[string]any{"s": sort, "v": value, "i": id})
	if err != nil {
		return "", fmt.Errorf("cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(b), nil
}
