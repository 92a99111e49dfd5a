package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prego/prego"
)

// listing describes how things of one kind are listed in pages. Paging by a column that
// never changes returns everything that existed at the start exactly once, whatever is
// created in the meantime.
type listing[T any] struct {
	what   string // for errors
	from   string // SELECT … FROM …
	always string // a condition, "" for none
	live   string // the condition that leaves out what has ended, "" where nothing stays
	state  string // the filter that asks for states by name, also for those that have ended
	// filters are columns by field; a text with $? is a condition on the list of values.
	filters map[string]string
	// sorts are columns by field, which are never NULL and are scanned into strings,
	// integers or times.
	sorts map[string]string
	order string // of a query that names none; -created_at when empty
	id    string // the column that breaks ties
}

// position is where a page ended.
type position struct {
	Sort  string          `json:"s"`
	Value json.RawMessage `json:"v"`
	ID    json.RawMessage `json:"i"`
}

var errCursor = prego.Invalid("cursor", "must be the next_cursor of an earlier answer, with the same sort")

// statement is the SQL of a page, and its arguments without the filters' values.
func (l listing[T]) statement(q prego.ListQuery) (sql string, args []any, by string, err error) {
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
		where = append(where, fmt.Sprintf("(%s, %s) %s ($%d, $%d)", by, l.id, compare, len(args)-1, len(args)))
	}
	sql = l.from
	if len(where) > 0 {
		sql += " WHERE " + strings.Join(where, " AND ")
	}
	args = append(args, q.Limit+1)
	return fmt.Sprintf("%s ORDER BY %s%s, %s%s LIMIT $%d", sql, by, direction, l.id, direction, len(args)), args, by, nil
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
func (l listing[T]) read(q prego.ListQuery, by string) (value, id any, err error) {
	var p position
	b, err := base64.RawURLEncoding.DecodeString(q.Cursor)
	if err != nil || json.Unmarshal(b, &p) != nil || p.Sort != l.sort(q) {
		return nil, nil, errCursor
	}
	var zero T
	if value, err = readAs(fieldOf(zero, by), p.Value); err != nil {
		return nil, nil, err
	}
	id, err = readAs(fieldOf(zero, l.id), p.ID)
	return value, id, err
}

// fieldOf is the field of a row that a column is scanned into.
func fieldOf(row any, column string) any {
	name := strings.ReplaceAll(column[strings.LastIndexByte(column, '.')+1:], "_", "")
	v := reflect.ValueOf(row).FieldByNameFunc(func(field string) bool { return strings.EqualFold(field, name) })
	switch {
	case v.Kind() == reflect.String:
		return v.String()
	case v.CanInt():
		return v.Int()
	}
	return v.Interface().(time.Time)
}

// readAs reads a value of a column's type.
func readAs(column any, raw json.RawMessage) (any, error) {
	var err error
	switch column.(type) {
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
	page, err = collect[T](ctx, s, "list "+l.what, sql, args...)
	if err != nil || len(page) <= q.Limit {
		return page, "", err
	}
	page = page[:q.Limit]
	last := page[q.Limit-1]
	next, err = newCursor(l.sort(q), fieldOf(last, by), fieldOf(last, l.id))
	return page, next, err
}

func newCursor(sort string, value, id any) (string, error) {
	b, err := json.Marshal(map[string]any{"s": sort, "v": value, "i": id})
	if err != nil {
		return "", fmt.Errorf("cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(b), nil
}
