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
		used := map[string]bool{}
		states := statesOf(o, names(t.States), now)
		for _, f := range names(t.States) {
			used[f] = true
		}
		body := map[string]any{"Log": logOf(t, id), "States": states, "Do": c.buttons(ec, t.Do, params, o)}
		body["Facts"] = facts(o, names(t.Facts), used, c.d.Now())
		if body["Progress"], err = c.progress(ec, t.Kind, params); err != nil {
			return err
		}
		var sections []section
		for _, p := range t.Parts {
			s, err := c.section(ec, p, o, params)
			var refused *Refusal
			if errors.As(err, &refused) { // the rest of the page can be
				s, err = &section{Title: p.Title, Wrong: refused.Error()}, nil
			}
			if err != nil {
				return err
			}
			if p.Field != "" {
				used[p.Field], used[strings.SplitN(p.Field, ".", 2)[0]] = true, true
			}
			if p.Style == "difference" {
				used["old"], used["new"] = true, true
			}
			if s != nil {
				sections = append(sections, *s)
			}
		}
		// The rest: nothing that the API returns is hidden.
		var rest []string
		for _, k := range slices.Sorted(maps.Keys(o)) {
			if !used[k] && !slices.ContainsFunc(slices.Collect(maps.Keys(used)), func(u string) bool { return strings.HasPrefix(u, k+".") }) {
				rest = append(rest, k)
			}
		}
		if more := facts(o, rest, used, c.d.Now()); len(more) > 0 {
			if t.Facts == "" {
				body["Facts"] = more
			} else {
				sections = append(sections, section{Title: "More", Facts: more})
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
	listings, _ := described()
	for _, l := range listings {
		if l.Page != p.List {
			continue
		}
		given := url.Values{}
		if op := l.Op; op.parameter("limit") != nil {
			given.Set("limit", newest)
			if op.parameter("all") != nil {
				given.Set("all", "true")
			}
		}
		t, _, err := c.table(ec, l, params, given)
		if err != nil {
			return nil, err
		}
		s.All = "/console/" + fill(l.Page, from(params))
		if s.Table = t; len(t.Rows) == 0 {
			return nil, nil
		}
		for i := range t.Heads { // it is sorted there
			t.Heads[i].Href, t.Heads[i].Arrow = "", ""
		}
		t.Filters, t.Next, t.CSV = nil, "", ""
		return s, nil
	}
	o, err := c.get(ec, fill("/v1/"+p.List, from(params)), nil)
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
	if p.Style == "quotas" {
		s.Body = bars(o.objects("quotas"), params["org_id"], c.d.Now())
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
