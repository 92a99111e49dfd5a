package console

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
)

// fact is a named value.
type fact struct {
	Name string
	value
}

// Width is the class of a fact by the room that it needs: all of a line, two columns, or "".
func (f fact) Width() string {
	n := len(f.Text)
	for _, e := range f.Items {
		n += len(e.Lead) + len(e.Text) + 2
	}
	switch {
	case n > 60:
		return "long"
	case n > 32:
		return "wide"
	}
	return ""
}

// section is a part of a page about one thing.
type section struct {
	Title string
	Style string
	Facts []fact
	Table *table
	More  []*table // the further lists of an object, by name
	All   string   // the page with the whole list
	Wrong string   // why it can't be shown now
	Later string   // the page that it is loaded from once the rest is there
	Body  any
}

// newest is how many rows of another list a page about one thing shows.
const newest = "8"

// thing shows a page about one thing.
func (c *Console) thing(t thing) echo.HandlerFunc {
	return func(ec echo.Context) error {
		params := paramsOf(ec)
		path := fill(t.Op.Path, from(params))
		o, err := c.get(ec, path, nil)
		if err != nil {
			return err
		}
		id := last(t.Page, params)
		name := id
		if t.Name != "" && o.text(t.Name) != "" {
			name = o.text(t.Name)
		}
		now := c.d.Now()
		tab, tabs := tabsOf(t, ec.QueryParam("tab"), ec.Request().URL.EscapedPath())
		body := map[string]any{
			"Log": logOf(t, id), "States": statesOf(o, names(t.States), now), "Tabs": tabs,
			"Do": c.menu(ec, t.Do, params, o),
		}
		var head []fact
		if tab == "" {
			head = headOf(t.Head, o, now)
		}
		if body["Progress"], err = c.progress(ec, t.Kind, params); err != nil {
			return err
		}
		var sections []section
		for _, p := range t.Parts {
			if p.Tab != tab {
				continue
			}
			s, err := c.section(ec, p, o, params)
			if refusedWith(err, http.StatusForbidden) { // it is not the user's
				continue
			}
			var refused *Refusal
			if errors.As(err, &refused) { // the rest of the page can be
				s, err = &section{Title: p.Title, Wrong: refused.Error()}, nil
			}
			if err != nil {
				return err
			}
			if s != nil && p.Style == "total" && s.Wrong == "" {
				head = append(head, s.Facts...)
			} else if s != nil {
				sections = append(sections, *s)
			}
		}
		if body["Head"] = head; t.Head == "" || tab == details {
			facts, rest := t.facts(o, now)
			if body["Facts"] = facts; len(facts) == 0 {
				body["Facts"] = rest
			} else if len(rest) > 0 {
				sections = append(sections, section{Title: "More", Facts: rest})
			}
		}
		body["Sections"] = sections
		p := &page{
			Title: t.Noun + " " + name, Tab: name + " · " + lower(t.Noun), Section: t.Section, Crumbs: above(t.Page, params), Template: "thing", Body: body,
			Commands: c.readCommands(ec, t.Op, nil, params),
		}
		for _, v := range params { // events of its parents also concern it
			p.IDs = append(p.IDs, v)
		}
		if id := o.text("target.id"); id != "" {
			p.IDs = append(p.IDs, id)
		}
		slices.Sort(p.IDs)
		return c.show(ec, http.StatusOK, p)
	}
}

// tabLink leads to a tab of a page.
type tabLink struct {
	Text, Href string
	Here       bool
}

// tabsOf returns the tab that a page shows, "" for the first one, and the links to all of them. An unknown tab is the
// first one: links outlive their tabs.
func tabsOf(t thing, asked, path string) (tab string, links []tabLink) {
	all := t.tabs()
	for _, name := range all {
		if name != "" && asked == strings.ToLower(name) {
			tab = name
		}
	}
	for _, name := range all {
		l := tabLink{Text: cmp.Or(name, "Overview"), Href: path, Here: name == tab}
		if name != "" {
			l.Href += "?" + url.Values{"tab": {strings.ToLower(name)}}.Encode()
		}
		links = append(links, l)
	}
	return tab, links
}

// facts are a thing's facts, and the rest, which no part of its page shows: nothing that the API returns is hidden.
func (t thing) facts(o object, now time.Time) (own, rest []fact) {
	used := map[string]bool{}
	for _, f := range names(t.States) {
		used[f] = true
	}
	for _, p := range t.Parts {
		if p.Field != "" {
			used[p.Field], used[strings.SplitN(p.Field, ".", 2)[0]] = true, true
		}
		if p.Style == "difference" {
			used["old"], used["new"] = true, true
		}
	}
	own = facts(o, names(t.Facts), used, now)
	var others []string
	for _, k := range slices.Sorted(maps.Keys(o)) {
		if !used[k] && !slices.ContainsFunc(slices.Collect(maps.Keys(used)), func(u string) bool { return strings.HasPrefix(u, k+".") }) {
			others = append(others, k)
		}
	}
	return own, facts(o, others, used, now)
}

// headOf is what matters of a thing, in one look.
func headOf(fields string, o object, now time.Time) []fact {
	var out []fact
	for _, col := range columnsOf(fields) {
		name, none, said := strings.Cut(col.Header, "|")
		v := shown(col.Field, o.at(col.Field), now)
		if v.None && said {
			v = value{Text: strings.TrimSpace(none)}
		}
		if !v.None {
			out = append(out, fact{Name: strings.TrimSpace(name), value: v})
		}
	}
	return out
}

// statesOf are a thing's states for the head of its page. The first is its own; others have a name, and are left out
// if they are the same.
func statesOf(o object, fields []string, now time.Time) []fact {
	var out []fact
	for _, f := range fields {
		v := shown(f, o.at(f), now)
		if v.None || len(out) > 0 && v.Text == out[0].Text {
			continue
		}
		s := fact{value: v}
		s.Title = words(f)
		if len(out) > 0 {
			s.Name = strings.TrimSuffix(words(f), " state")
			if i := strings.IndexByte(f, '.'); i > 0 {
				s.Name = f[:i]
			}
		}
		out = append(out, s)
	}
	return out
}

// facts are some fields of an object; empty ones are left out.
func facts(o object, fields []string, used map[string]bool, now time.Time) []fact {
	var out []fact
	for _, f := range fields {
		used[f] = true
		v := shown(f, o.at(f), now)
		if f == "id" {
			v.Href = pageOf(o.text("kind"), o.text("id"))
		}
		if !v.None {
			out = append(out, fact{Name: words(f), value: v})
		}
	}
	return out
}

// section makes a part of a page, nil if there is nothing to show.
func (c *Console) section(ec echo.Context, p part, o object, params map[string]string) (*section, error) {
	s := &section{Title: p.Title, Style: p.Style}
	if p.Style == "later" {
		s.Later = "/console/" + fill(p.List, from(params))
		return s, nil
	}
	if p.List != "" {
		return c.beside(ec, p, params, s)
	}
	switch p.Style {
	case "timeline":
		s.Body = timeline(o.objects(p.Field), c.d.Now())
	case "boot":
		w := boot(o.objects(p.Field))
		if w == nil {
			return nil, nil
		}
		s.Body = w
	case "decision":
		m, _ := o.at(p.Field).(map[string]any)
		if m == nil {
			return nil, nil
		}
		s.Body = decisionOf(m, o.text("decision.id"))
	case "funnel":
		s.Body = funnels(o, p.Field)
	case "difference":
		s.Body = difference(o.at("old"), o.at("new"), c.d.Now())
	default:
		v := o.at(p.Field)
		if v == nil {
			return nil, nil
		}
		if m, ok := v.(map[string]any); ok {
			// Why has its own part.
			fields := slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(k string) bool { return k == "decision" })
			if s.Facts = facts(m, fields, map[string]bool{}, c.d.Now()); len(s.Facts) == 0 {
				return nil, nil
			}
			return s, nil
		}
		rows := o.objects(p.Field)
		if len(rows) == 0 {
			return nil, nil
		}
		fields := map[string]any{}
		for _, row := range rows {
			maps.Copy(fields, row)
		}
		columns := cmp.Or(p.Columns, strings.Join(slices.Sorted(maps.Keys(fields)), ","))
		s.Table = tableOf(p.Title, columns, rows, nil, c.d.Now())
	}
	return s, nil
}

// beside shows what the API returns at another path: the newest of a list, or an object.
func (c *Console) beside(ec echo.Context, p part, params map[string]string, s *section) (*section, error) {
	at, filters, _ := strings.Cut(p.List, "?")
	listings, _ := described()
	for _, l := range listings {
		if l.Page != at {
			continue
		}
		given := filtersOf(filters, params)
		if s.All = "/console/" + fill(l.Page, from(params)); len(given) > 0 {
			s.All += "?" + given.Encode()
		}
		if op := l.Op; op.parameter("limit") != nil {
			given.Set("limit", cmp.Or(p.Most, newest))
			if op.parameter("all") != nil && filters == "" {
				given.Set("all", "true")
			}
		}
		l.Columns = cmp.Or(p.Columns, l.Columns)
		t, _, err := c.table(ec, l, params, given)
		if err != nil {
			return nil, err
		}
		if filters != "" { // they are no choice of the user
			t.Empty = "None."
		}
		if s.Table = t; len(t.Rows) == 0 && filters == "" {
			return nil, nil
		}
		for i := range t.Heads { // it is sorted there
			t.Heads[i].Href, t.Heads[i].Arrow = "", ""
		}
		t.Filters, t.Next, t.CSV = nil, "", ""
		return s, nil
	}
	given := filtersOf(filters, params)
	o, err := c.get(ec, fill("/v1/"+at, from(params)), given)
	if refusedWith(err, http.StatusNotFound) || refusedWith(err, http.StatusConflict) { // there is none, or it can't be asked now
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if p.Style == "samples" {
		d := dayOf(o, c.d.Now())
		if d == nil {
			return nil, nil
		}
		s.Body = d
		return s, nil
	}
	if p.Style == "total" {
		sum := totalOf(o)
		sum.Name, sum.Href = p.Title, "/console/"+at+"?"+given.Encode()
		s.Facts = []fact{sum}
		return s, nil
	}
	if p.Style == "quotas" {
		change := "/console/do/setOrgQuota?org_id=" + url.QueryEscape(params["org_id"]) + "&dimension="
		if v, _ := ec.Get(visitorKey).(*visitor); !v.may(operations()["setOrgQuota"], nil) {
			if change = ""; v.may(operations()["createLimitRequest"], object{"org_id": params["org_id"]}) {
				change = "/console/do/createLimitRequest?f.org_id=" + url.QueryEscape(params["org_id"]) + "&f.dimension="
			}
		}
		s.Body = bars(o.objects("quotas"), change)
		return s, nil
	}
	for _, k := range slices.Sorted(maps.Keys(o)) {
		if rows := o.objects(k); len(rows) > 0 {
			sub, err := c.section(ec, part{Title: p.Title, Field: k, Columns: p.Columns}, o, params)
			if err != nil || sub == nil {
				return nil, err
			}
			if sub.Table.Name = words(k); s.Table == nil {
				s.Table = sub.Table
			} else {
				s.More = append(s.More, sub.Table)
			}
			delete(o, k)
		}
	}
	if s.Facts = facts(o, slices.Sorted(maps.Keys(o)), map[string]bool{}, c.d.Now()); len(s.Facts) == 0 && s.Table == nil {
		return nil, nil
	}
	return s, nil
}

// filtersOf are the filters of a part's list, like "org_id={org_id}".
func filtersOf(text string, params map[string]string) url.Values {
	out := url.Values{}
	for f := range strings.SplitSeq(text, "&") {
		if name, v, ok := strings.Cut(f, "="); ok {
			if given, ok := params[strings.Trim(v, "{}")]; ok {
				v = given
			}
			out.Set(name, v)
		}
	}
	return out
}

// totalOf is the sum of a month's costs.
func totalOf(o object) fact {
	if len(o.objects("rows")) == 0 {
		return fact{value: value{Text: "nothing billed yet"}}
	}
	return fact{value: value{Text: money(o.text("total"), o.text("currency")), Title: "without tax"}}
}

// logOf is the page of a thing's log, "" if it has none.
func logOf(t thing, id string) string {
	if t.Noun != "Instance" {
		return ""
	}
	return "/console/instances/" + url.PathEscape(id) + "/logs"
}

// containers shows what runs on a host, which is asked for it: that takes as long as the host takes.
func (c *Console) containers(ec echo.Context) error {
	params := paramsOf(ec)
	path := fill("/v1/servers/{server_id}/containers", from(params))
	o, err := c.get(ec, path, nil)
	var refused *Refusal
	body := map[string]any{}
	switch {
	case errors.As(err, &refused) && refused.Status != http.StatusNotFound:
		body["Wrong"] = refused.Error()
	case err != nil:
		return err
	}
	t := tableOf("Containers", "name, image, state, health, restarts, started_at: started, exit_code: exit", o.objects("containers"),
		func(row object) string {
			return "/console/servers/" + url.PathEscape(params["server_id"]) + "/logs/" + url.PathEscape(row.text("name"))
		}, c.d.Now())
	t.Empty = "No container runs there."
	body["Table"] = t
	return c.show(ec, http.StatusOK, &page{
		Title: "Containers of " + params["server_id"], Section: "servers", Crumbs: above("servers/{server_id}/containers", params), Template: "containers", Body: body,
		Commands: c.readCommands(ec, operations()["listContainers"], nil, params), IDs: []string{params["server_id"]},
	})
}
