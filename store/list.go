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
	"github.com/prego/prego/access"
)

// Listing describes how things of one kind are listed in pages. Paging by a column that
// never changes returns everything that existed at the start exactly once, regardless of objects
// created in the meantime.
type Listing[T any] struct {
	what   string   // for errors
	from   string   // SELECT … FROM …
	always string   // a condition, "" for none
	live   string   // the condition that leaves out ended objects, "" where nothing stays
	state  string   // the filter for states by name, including ended states
	states []string // the states that live lets through, if state is a dimension
	// filters are columns by field; a text with $? is a condition on the list of values,
	// a text with $each is a condition on each of them, and one must hold.
	filters map[string]string
	// sorts are columns by field, which are never NULL and are scanned into strings,
	// integers or times.
	sorts map[string]string
	order string // of a query that names none; -created_at when empty
	id    string // the column that breaks ties
	// table, with its alias, and dimensions make a list's filters fast; see spread.
	table      string
	dimensions []dimension
	narrow     []string // filters that have their own indexes
}

// A dimension is a filter by a column that is a prefix of the indexes that lists are read
// from. all are the values that the column may have; without them the filter is one only
// of the queries that name it.
type dimension struct {
	filter string
	all    []string
}

// position is where a page ended.
type position struct {
	Sort  string          `json:"s"`
	Value json.RawMessage `json:"v"`
	ID    json.RawMessage `json:"i"`
}

var errCursor = prego.Invalid("cursor", "must be the next_cursor of an earlier answer, with the same sort")

// statement is the SQL of a page, and its arguments without the filters' values.
func (l Listing[T]) statement(q prego.ListQuery) (sql string, args []any, by string, err error) {
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
	ranges := l.ranges(q)
	for _, name := range slices.Sorted(maps.Keys(q.Filters)) {
		column, ok := l.filters[name]
		if !ok {
			return "", nil, by, &prego.Error{Code: prego.CodeUnknownField, Field: name, Message: "is not a field that this list can be filtered by"}
		}
		if slices.ContainsFunc(ranges, func(r dimension) bool { return r.filter == name }) {
			continue
		}
		if strings.Contains(column, "$each") {
			var alternatives []string
			for _, v := range q.Filters[name] {
				args = append(args, v)
				alternatives = append(alternatives, strings.ReplaceAll(column, "$each", fmt.Sprintf("$%d", len(args))))
			}
			where = append(where, "("+strings.Join(alternatives, " OR ")+")")
			continue
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
	order := fmt.Sprintf(" ORDER BY %s%s, %s%s", by, direction, l.id, direction)
	args = append(args, q.Limit+1)
	limit := fmt.Sprintf(" LIMIT $%d", len(args))
	if len(ranges) > 0 {
		spread, args := l.spread(ranges, by, direction, where, order, limit, args)
		return l.from + " WHERE " + l.id + " = ANY (ARRAY(" + spread + "))" + order, args, by, nil
	}
	sql = l.from
	if len(where) > 0 {
		sql += " WHERE " + strings.Join(where, " AND ")
	}
	return sql + order + limit, args, by, nil
}

// without returns the values but these.
func without(values []string, these ...string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(v string) bool { return slices.Contains(these, v) })
}

// maxRanges bounds how many ranges of an index one page is read from.
const maxRanges = 4000

// ranges are the dimensions of a query with the requested values, nil if the
// query is not to be spread: an index has just what a query for all that is live lists, in
// its order.
func (l Listing[T]) ranges(q prego.ListQuery) (out []dimension) {
	n, named := 1, q.All
	for _, name := range l.narrow {
		if _, ok := q.Filters[name]; ok {
			return nil
		}
	}
	for _, d := range l.dimensions {
		values, ok := q.Filters[d.filter]
		named = named || ok
		switch {
		case ok:
			values = slices.Compact(slices.Sorted(slices.Values(values)))
		case d.all == nil:
			continue
		case d.filter == l.state && !q.All:
			values = l.states
		default:
			values = d.all
		}
		n *= len(values)
		out = append(out, dimension{filter: d.filter, all: values})
	}
	if !named || n > maxRanges {
		return nil
	}
	return out
}

// onlyRanges reports whether each filter of a query is a dimension that the query is spread by.
func (l Listing[T]) onlyRanges(q prego.ListQuery) bool {
	ranges := l.ranges(q)
	for name := range q.Filters {
		if !slices.ContainsFunc(ranges, func(r dimension) bool { return r.filter == name }) {
			return false
		}
	}
	return len(ranges) > 0
}

// spread is a statement for the ids of a page. A filter by a column with few values is slow
// when its rows are far from where the page begins: an index in the list's order is read
// until enough of them were met, perhaps to its end. In an index that begins with every
// such column each combination of values is a range in the list's order. The page is read
// from the beginning of each, and merged. So its cost depends on the number of
// combinations, and not on the number of rows or where they are.
func (l Listing[T]) spread(ranges []dimension, by, direction string, where []string, order, limit string, args []any) (string, []any) {
	from := []string{"(SELECT) one"}
	where = slices.Clone(where)
	for i, r := range ranges {
		value := fmt.Sprintf("d%d.v", i)
		if len(r.all) == 1 { // how many rows have it is known
			args = append(args, r.all[0])
			value = fmt.Sprintf("$%d", len(args))
		} else {
			args = append(args, r.all)
			from = append(from, fmt.Sprintf("unnest($%d::text[]) AS d%d (v)", len(args), i))
		}
		where = append(where, l.filters[r.filter]+" = "+value)
	}
	return fmt.Sprintf("SELECT k.id FROM %s CROSS JOIN LATERAL (SELECT %s AS by, %s AS id FROM %s WHERE %s%s%s) k ORDER BY k.by%s, k.id%s%s",
		strings.Join(from, " CROSS JOIN "), by, l.id, l.table, strings.Join(where, " AND "), order, limit, direction, direction, limit), args
}

func (l Listing[T]) sort(q prego.ListQuery) string {
	switch {
	case q.Sort != "":
		return q.Sort
	case l.order != "":
		return l.order
	}
	return "-created_at"
}

// read reads a cursor of the same order.
func (l Listing[T]) read(q prego.ListQuery, by string) (value, id any, err error) {
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

// In reads pages of the list from a store.
func (l Listing[T]) In(s *Store) func(context.Context, prego.ListQuery) (page []T, next string, err error) {
	return func(ctx context.Context, q prego.ListQuery) ([]T, string, error) { return l.page(ctx, s, q) }
}

// page reads a page, and the cursor of the next one, "" when there is none.
func (l Listing[T]) page(ctx context.Context, s *Store, q prego.ListQuery) (page []T, next string, err error) {
	reached := l.reached(ctx, q)
	sql, args, by, err := l.statement(reached)
	if err != nil {
		return nil, "", err
	}
	// The plan depends on the values: one for any of them may read everything. A customer's page that is read from
	// ranges alone has one plan, which is kept: with the policies, planning is a third of the work.
	option := planAnew
	if access.OfCustomer(ctx) && l.onlyRanges(reached) {
		option = keepPlan
	}
	page, err = collect[T](ctx, s, "list "+l.what, sql, append([]any{option}, args...)...)
	if err != nil || len(page) <= q.Limit {
		return page, "", err
	}
	page = page[:q.Limit]
	last := page[q.Limit-1]
	next, err = newCursor(l.sort(q), fieldOf(last, by), fieldOf(last, l.id))
	return page, next, err
}

// reached is the query of a request, for a customer's one with the orgs in its reach, so that the page is read from
// their ranges of an index: by the policies alone everybody's rows would be read in the list's order.
func (l Listing[T]) reached(ctx context.Context, q prego.ListQuery) prego.ListQuery {
	_, named := q.Filters["org_id"]
	byOrg := slices.ContainsFunc(l.dimensions, func(d dimension) bool { return d.filter == "org_id" })
	if named || !byOrg || !access.OfCustomer(ctx) {
		return q
	}
	q = q.Of("org_id", "")
	q.Filters["org_id"] = prego.Strings(reachOf(ctx).Orgs)
	return q
}

func newCursor(sort string, value, id any) (string, error) {
	b, err := json.Marshal(map[string]any{"s": sort, "v": value, "i": id})
	if err != nil {
		return "", fmt.Errorf("cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(b), nil
}
