package console

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/labstack/echo/v4"
)

// column is a column of a table: a field of its rows, and its header.
type column struct{ Field, Header string }

// columnsOf reads "a, b.c: header". The first state is the second column, so that narrow screens show it.
func columnsOf(text string) []column {
	var out []column
	for c := range strings.SplitSeq(text, ",") {
		path, header, ok := strings.Cut(strings.TrimSpace(c), ":")
		if !ok {
			header = words(path)
		}
		if path != "" {
			out = append(out, column{Field: path, Header: strings.TrimSpace(header)})
		}
	}
	if i := slices.IndexFunc(out, func(c column) bool { return isState(c.Field) }); i > 1 {
		state := out[i]
		out = slices.Insert(slices.Delete(out, i, i+1), 1, state)
	}
	return out
}

// names are the words of a list like "a, b".
func names(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// table is a list as a page shows it.
type table struct {
	Name    string // what it lists, for who can't see it
	Heads   []head
	Rows    [][]value
	Filters []filter
	Next    string // the next page, "" at the end
	First   string // the first page, "" on it
	Clear   string // the page without filters, "" if there are none
	Empty   string
	CSV     string
	Sort    string
}

// head is a column's header, and where a click on it leads.
type head struct {
	Text, Href string
	Arrow      string // of the column that the table is sorted by
	Sorted     string // the value of aria-sort
}

// filter is an input above a table.
type filter struct {
	Name, About, Value string
	Values             []string
	Flag               bool
}

// list shows a list of the API's.
func (c *Console) list(l listing) echo.HandlerFunc {
	return func(ec echo.Context) error {
		params := paramsOf(ec)
		t, commands, err := c.table(ec, l, params, ec.QueryParams())
		if err != nil {
			return err
		}
		p := &page{
			Title: l.Title, Section: l.Section, Crumbs: above(l.Page, params), Template: "list", Commands: commands, Kinds: names(l.Kinds),
			Body: map[string]any{"Table": t, "About": l.About, "Do": c.buttons(ec, l.Do, params, nil)},
		}
		if len(params) > 0 {
			p.Title += " of " + last(l.Page, params)
		}
		return c.show(ec, http.StatusOK, p)
	}
}

// paramsOf are the parameters of a request's path.
func paramsOf(ec echo.Context) map[string]string {
	out := map[string]string{}
	for i, name := range ec.ParamNames() {
		v := ec.ParamValues()[i]
		if u, err := url.PathUnescape(v); err == nil {
			v = u
		}
		out[name] = v
	}
	return out
}

// from reads a value from a map.
func from(m map[string]string) func(string) string {
	return func(name string) string { return m[name] }
}

// table reads a page of a list. given is the query; parameters that the contract
// does not know are left out.
func (c *Console) table(ec echo.Context, l listing, params map[string]string, given url.Values) (*table, []command, error) {
	op := l.Op
	asked := url.Values{}
	for _, p := range op.query {
		if v := strings.TrimSpace(given.Get(p.Name)); v != "" {
			asked.Set(p.Name, v)
		}
	}
	answer, err := c.get(ec, fill(op.Path, from(params)), asked)
	if err != nil {
		return nil, nil, err
	}
	self := "/console/" + fill(l.Page, from(params))
	to := func(change func(url.Values)) string {
		q := url.Values{}
		maps.Copy(q, asked)
		q.Del("cursor")
		change(q)
		if len(q) == 0 {
			return self
		}
		return self + "?" + q.Encode()
	}
	t := &table{Name: l.Title, Empty: cmp.Or(l.Empty, "No "+lower(l.Title)+" yet.")}
	sorts, sort := op.sorts()
	if s := asked.Get("sort"); s != "" {
		sort = s
	}
	columns := columnsOf(l.Columns)
	for _, col := range columns {
		h := head{Text: col.Header, Sorted: "none"}
		if slices.Contains(sorts, col.Field) {
			next := col.Field
			switch sort {
			case col.Field:
				next, h.Arrow, h.Sorted = "-"+col.Field, "↑", "ascending"
			case "-" + col.Field:
				h.Arrow, h.Sorted = "↓", "descending"
			}
			h.Href = to(func(q url.Values) { q.Set("sort", next) })
		}
		t.Heads = append(t.Heads, h)
	}
	now := c.d.Now()
	for _, row := range answer.objects(l.Items) {
		t.Rows = append(t.Rows, cells(columns, row, l.rowPage(row, params), now))
	}
	for _, p := range op.query {
		if hidden(p) {
			continue
		}
		s := p.Schema.Value
		f := filter{Name: p.Name, About: p.Description, Value: asked.Get(p.Name), Values: values(s), Flag: s.Type.Is("boolean")}
		if len(f.Values) > 0 && f.Value != "" && !slices.Contains(f.Values, f.Value) { // several of them
			f.Values = append(f.Values, f.Value)
		}
		t.Filters = append(t.Filters, f)
		if asked.Get(p.Name) != "" {
			t.Clear, t.Empty = self, "Nothing matches these filters."
			if h := ec.Request().Header; h.Get("Hx-Request") != "" && h.Get("Hx-Target") == "" { // a part of a page
				t.Empty = "None."
			}
		}
	}
	if next := answer.text("next_cursor"); next != "" {
		t.Next = to(func(q url.Values) { q.Set("cursor", next) })
	}
	if asked.Get("cursor") != "" {
		t.First = to(func(url.Values) {})
	}
	if l.CSV {
		t.CSV = to(func(url.Values) {})
		t.CSV = self + ".csv" + strings.TrimPrefix(t.CSV, self)
	}
	t.Sort = asked.Get("sort")
	return t, c.readCommands(ec, op, asked, params), nil
}

// hidden reports whether a parameter of a list is no filter: it belongs to pages.
func hidden(p *openapi3.Parameter) bool {
	return slices.Contains([]string{"sort", "cursor", "limit"}, p.Name)
}

// rowPage is the page of a row, "" if it has none.
func (l listing) rowPage(row object, params map[string]string) string {
	if l.Row == "" {
		return ""
	}
	missing := false
	page := fill(l.Row, func(name string) string {
		v := row.text(name)
		if v == "" {
			v = params[name]
		}
		missing = missing || v == ""
		return v
	})
	if missing {
		return ""
	}
	return "/console/" + page
}

// tableOf shows rows under columns; page is where a row leads, nil for nowhere.
func tableOf(name, columns string, rows []object, page func(object) string, now time.Time) *table {
	t, cols := &table{Name: name}, columnsOf(columns)
	for _, col := range cols {
		t.Heads = append(t.Heads, head{Text: col.Header, Sorted: "none"})
	}
	for _, row := range rows {
		href := ""
		if page != nil {
			href = page(row)
		}
		t.Rows = append(t.Rows, cells(cols, row, href, now))
	}
	return t
}

// cells are a row's values; the first one leads to the row's page.
func cells(columns []column, row object, page string, now time.Time) []value {
	out := make([]value, len(columns))
	for i, col := range columns {
		out[i] = shown(col.Field, row.at(col.Field), now)
		if col.Field == "new" && (row.at("old") != nil || row.at("new") != nil) { // of an entry of the audit, whose page has the values
			out[i] = changedText(row)
		}
		if currency := row.text("currency"); amounts()[col.Field] && currency != "" && !out[i].None {
			out[i].Text += " " + currency
		}
		if col.Field == "id" && (i > 0 || page == "") {
			out[i].Href = pageOf(row.text("kind"), row.text("id"))
		}
	}
	if len(out) > 0 && page != "" {
		if out[0].None {
			out[0] = value{Text: page[strings.LastIndexByte(page, '/')+1:]}
		}
		out[0].Href = page
	}
	return out
}

// changedText is what an entry of the audit changed: a few values, or else the names of the fields.
func changedText(row object) value {
	var names, values []string
	for _, c := range difference(row.at("old"), row.at("new"), time.Time{}) {
		if strings.HasSuffix(c.Name, "_at") || strings.HasSuffix(c.Name, "_by") { // columns of the entry have them
			continue
		}
		names = append(names, words(c.Name))
		after := cmp.Or(beginning(c.New), "–")
		if before := beginning(c.Old); before != "" {
			after = before + " → " + after
		}
		values = append(values, words(c.Name)+" "+after)
	}
	const most, few = 6, 4
	switch {
	case len(values) <= few:
		return value{Text: strings.Join(values, ", "), None: len(values) == 0}
	case len(names) > most:
		return value{Text: strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)}
	}
	return value{Text: strings.Join(names, ", ")}
}

// beginning is the first part of a value's text.
func beginning(v value) string {
	const most = 40
	var items []string
	for _, i := range v.Items {
		items = append(items, i.Text)
	}
	text := []rune(cmp.Or(v.Text, strings.Join(items, " ")))
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}

// subject is a thing that is named by kind and id.
func subject(o object) value {
	id := o.text("id")
	if id == "" {
		return value{None: o.text("kind") == "" || o.text("kind") == "none", Text: o.text("kind")}
	}
	name := o.text("name")
	if name == "" {
		name = id
	}
	return value{Text: name, Href: pageOf(o.text("kind"), id), Title: o.text("kind") + " " + id}
}

// above are the pages that a page is part of.
func above(page string, params map[string]string) []crumb {
	var out []crumb
	parts := strings.Split(page, "/")
	for n := 1; n < len(parts); n++ {
		path := strings.Join(parts[:n], "/")
		if !isPage(path) {
			continue
		}
		filled := fill(path, from(params))
		text := parts[n-1]
		if strings.HasPrefix(text, "{") {
			text = params[strings.Trim(text, "{}")]
		} else {
			text = strings.ReplaceAll(text, "-", " ")
		}
		out = append(out, crumb{Text: text, Href: "/console/" + filled})
	}
	return out
}

func isPage(path string) bool {
	listings, things := described()
	return slices.ContainsFunc(listings, func(l listing) bool { return l.Page == path }) || slices.ContainsFunc(things, func(t thing) bool { return t.Page == path })
}

// last is the last parameter of a page.
func last(page string, params map[string]string) string {
	m := placeholders.FindAllStringSubmatch(page, -1)
	if len(m) == 0 {
		return ""
	}
	return params[m[len(m)-1][1]]
}

// csv answers with a list as the API's CSV, all pages of it.
func (c *Console) csv(path string) echo.HandlerFunc {
	return func(ec echo.Context) error {
		query := url.Values{}
		if op := reading(path); op != nil {
			for _, p := range op.query {
				if v := ec.QueryParam(p.Name); v != "" {
					query.Set(p.Name, v)
				}
			}
		}
		if op := reading(path); op != nil && op.parameter("limit") != nil {
			query.Set("limit", "200")
		}
		var all bytes.Buffer
		for {
			got, err := c.ask(ec, http.MethodGet, path, query, nil, http.Header{echo.HeaderAccept: {"text/csv"}})
			if err != nil {
				return err
			}
			rows := got.body.Bytes()
			if all.Len() > 0 { // the names of the columns are there
				_, rows, _ = bytes.Cut(rows, []byte("\n"))
			}
			all.Write(rows)
			next := nextPage.FindStringSubmatch(got.header.Get("Link"))
			if next == nil {
				ec.Response().Header().Set(echo.HeaderContentDisposition, got.header.Get(echo.HeaderContentDisposition))
				return ec.Blob(http.StatusOK, got.header.Get(echo.HeaderContentType), all.Bytes())
			}
			u, err := url.Parse(next[1])
			if err != nil {
				return fmt.Errorf("console: the API's next page: %w", err)
			}
			query = u.Query()
		}
	}
}

// nextPage is the URL of the next page in a Link (RFC 8288).
var nextPage = regexp.MustCompile(`<([^>]*)>; rel="next"`)
