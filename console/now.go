package console

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"
)

// item is something that needs attention.
type item struct {
	Severity, Kind, Reason, Message, Todo string
	Tone                                  string
	Count, Affected                       string
	Subject, Since                        value
	Do                                    []button
	CLI                                   []string
}

// now shows what needs attention, the most urgent first.
func (c *Console) now(ec echo.Context) error {
	q := url.Values{}
	for _, name := range []string{"severity", "kind"} {
		if v := ec.QueryParam(name); v != "" {
			q.Set(name, v)
		}
	}
	o, err := c.get(ec, "/v1/attention", q)
	if err != nil {
		return err
	}
	numbers, err := c.get(ec, "/v1/overview", nil)
	var refused *Refusal
	if err != nil && !errors.As(err, &refused) { // what needs attention is shown without them
		return err
	}
	progress, err := c.progress(ec, "", nil)
	if err != nil {
		return err
	}
	v := ec.Get(visitorKey).(*visitor)
	now := c.d.Now()
	var figures []figure
	if numbers != nil {
		figures = overviewOf(numbers, now)
	}
	var items []item
	for _, e := range o.objects("items") {
		i := item{
			Severity: e.text("severity"), Kind: strings.ReplaceAll(e.text("kind"), "_", " "), Reason: e.text("reason"), Message: e.text("message"), Todo: e.text("todo"),
			Affected: e.text("affected.summary"),
			Count:    e.text("count"), Subject: shown("subject", e.at("subject"), now), Since: shown("since", e.at("since"), now), Tone: map[string]string{"critical": "bad", "warning": "busy", "info": "idle"}[e.text("severity")],
		}
		if i.Count == "1" || i.Count == "0" {
			i.Count = ""
		}
		for _, a := range e.objects("actions") {
			if cli := a.text("cli"); cli != "" {
				i.CLI = append(i.CLI, cli)
			}
			if b := doing(v, a); b != nil {
				i.Do = append(i.Do, *b)
			}
		}
		items = append(items, i)
	}
	counts, _ := o.at("counts").(map[string]any)
	return c.show(ec, http.StatusOK, &page{
		Title: "Now", Section: "now", Template: "now", Kinds: []string{"server", "tenant", "group", "instance", "fleet", "backup", "certificate", "move", "volume", "org", "release", "rebalance", "image", "domain"},
		Body: map[string]any{"Figures": figures, "Progress": progress, "Items": items, "Counts": object(counts), "Chosen": ec.QueryParam("severity"), "Do": c.buttons(ec, general, nil, nil)}, Commands: c.readCommands(ec, operations()["listAttention"], q, nil),
	})
}

// doing is the button of an action that the API proposes, nil if it is none of the contract.
func doing(v *visitor, a object) *button {
	method, path := a.text("method"), a.text("path")
	for id, op := range operations() {
		if op.Method != method || method == http.MethodGet || !v.may(op, nil) {
			continue
		}
		params, ok := match(op.Path, path)
		if !ok {
			continue
		}
		q := url.Values{}
		for name, value := range params {
			q.Set(name, value)
		}
		if body, ok := a.at("body").(map[string]any); ok {
			for _, f := range op.fields() {
				if v := object(body).at(f.Name); v != nil {
					q.Set(fieldOf+f.Name, f.written(v))
				}
			}
		}
		return &button{Label: a.text("label"), Href: "/console/do/" + id + "?" + q.Encode(), About: op.Summary, Danger: op.dangerous()}
	}
	return nil
}

// match finds the values of a path's parameters.
func match(pattern, path string) (map[string]string, bool) {
	want, got := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(want) != len(got) {
		return nil, false
	}
	out := map[string]string{}
	for i, w := range want {
		if strings.HasPrefix(w, "{") {
			v, err := url.PathUnescape(got[i])
			if err != nil || v == "" {
				return nil, false
			}
			out[strings.Trim(w, "{}")] = v
		} else if w != got[i] {
			return nil, false
		}
	}
	return out, true
}

// found is a result of a search.
type found struct {
	Kind, Field, Value, Status string
	Tone                       string
	Gone                       bool
	Thing, Org                 value
}

// search shows things by id, name, address or host name. Text typed on another page
// gets the list alone.
func (c *Console) search(ec echo.Context) error {
	q := strings.TrimSpace(ec.QueryParam("q"))
	var results []found
	var wrong string
	if len(q) >= 2 {
		results = ec.Get(visitorKey).(*visitor).pagesNamed(q)
		o, err := c.get(ec, "/v1/search", url.Values{"q": {q}})
		switch {
		case refusedWith(err, http.StatusUnprocessableEntity), refusedWith(err, http.StatusBadRequest):
			wrong = err.Error()
		case err != nil:
			return err
		}
		for _, r := range o.objects("results") {
			name := r.text("name")
			if name == "" {
				name = r.text("id")
			}
			href := pageOf(r.text("kind"), r.text("id"))
			if href == "" {
				href = pageFor(r.text("href"))
			}
			results = append(results, found{
				Kind: strings.ReplaceAll(r.text("kind"), "_", " "), Field: strings.ReplaceAll(r.text("field"), "_", " "), Value: r.text("value"), Status: r.text("status"), Tone: tones[r.text("status")], Gone: r.at("gone") == true,
				Thing: value{Text: name, Href: href, Title: r.text("id")}, Org: shown("org_id", r.at("org_id"), c.d.Now()),
			})
		}
	}
	body := map[string]any{"Q": q, "Results": results, "Wrong": wrong}
	if ec.Request().Header.Get("Hx-Target") == "found" {
		return c.fragment(ec, "found", body)
	}
	return c.show(ec, http.StatusOK, &page{Title: "Search", Template: "search", Body: body, Commands: c.readCommands(ec, operations()["search"], url.Values{"q": {q}}, nil)})
}

// pagesNamed are the pages of the navigation with a text in their names.
func (v *visitor) pagesNamed(q string) (out []found) {
	for _, g := range v.offered(navigation("")) {
		for _, i := range g.Items {
			if strings.Contains(strings.ToLower(i.Text), strings.ToLower(q)) {
				out = append(out, found{Kind: "page", Thing: value{Text: i.Text, Href: i.Href}})
			}
		}
	}
	return out
}

// pageFor is the page of what the API has at a path, "" if there is none.
func pageFor(path string) string {
	_, things := described()
	for _, t := range things {
		if params, ok := match(t.Op.Path, path); ok {
			return "/console/" + fill(t.Page, from(params))
		}
	}
	return ""
}
