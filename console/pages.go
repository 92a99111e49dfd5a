package console

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/prego/prego/ops/impact"
)

// listing is a page with a list of the API's. Filters and sorts are the contract's.
type listing struct {
	Page    string // below /console, with the parameters that API needs
	Title   string
	Section string
	About   string
	Empty   string // what such a thing is, and where it comes from, for a list without rows
	Op      *operation
	Items   string // the field of the answer with the rows
	Columns string // fields as "a, b.c: header"; the first one links to Row
	Row     string // the page of a row below /console, filled from its fields
	Kinds   string // of events that concern it
	Do      string // operations that make rows
	CSV     bool   // the API also answers with text/csv
}

// thing is a page about one thing. What neither its facts nor its parts show stands below them. With a head, the facts
// have their own tab: the first one has what matters.
type thing struct {
	Page    string // below /console, with the contract's parameters
	Kind    string // as events name it
	Noun    string
	Name    string // the field with its name; its id if empty
	Section string
	Op      *operation
	States  string // fields with states, for the head of the page
	Head    string // fields with what matters, as "a.b: name"; "a.b: name | none" also shows that there is none
	Facts   string
	Parts   []part
	Do      string // operations on it, in the order of the buttons
}

// details is the tab with a thing's facts, where it has a head.
const details = "Details"

// tabs are the names of a page's tabs, the first one without a name; nil if it has none.
func (t thing) tabs() []string {
	out := []string{""}
	for _, p := range t.Parts {
		if !slices.Contains(out, p.Tab) {
			out = append(out, p.Tab)
		}
	}
	if t.Head != "" && !slices.Contains(out, details) {
		out = append(out, details)
	}
	if len(out) == 1 {
		return nil
	}
	return out
}

// part is a part of such a page: a field with a list of objects, an object, or another list.
type part struct {
	Title   string
	Field   string
	Columns string // of a list of objects; without them a field is shown as facts
	Style   string // timeline, boot, quotas, samples, total, decision, funnel, difference, later for a page that takes its time, or "" for a table
	List    string // the page of a listing, perhaps with filters; this page shows the newest
	Tab     string // that it is on, "" for the first one
	Most    string // how many of a list are shown, "" for a few
}

// described are the pages that the contract describes (x-page): one with a noun is about one thing.
var described = sync.OnceValues(func() (listings []listing, things []thing) {
	for _, id := range slices.Sorted(maps.Keys(operations())) {
		op := operations()[id]
		x, ok := op.Extensions["x-page"].(map[string]any)
		if !ok {
			continue
		}
		page := strings.TrimPrefix(op.Path, "/v1/")
		if x["noun"] != nil {
			t := thing{Page: page, Op: op}
			read(x, &t)
			things = append(things, t)
			continue
		}
		l := listing{Page: page, Op: op, Items: op.items()}
		read(x, &l)
		listings = append(listings, l)
	}
	return listings, things
})

// read decodes an extension of the contract, which is embedded and tested.
func read(x, to any) {
	b, err := json.Marshal(x)
	if err == nil {
		err = json.Unmarshal(b, to)
	}
	if err != nil {
		panic("console: " + err.Error())
	}
}

// items is the field of an answer that lists objects.
func (o *operation) items() string {
	r := o.Responses.Value("200")
	if r == nil || r.Value.Content["application/json"] == nil {
		return ""
	}
	for name, p := range r.Value.Content["application/json"].Schema.Value.Properties {
		if p.Value.Type.Is(openapi3.TypeArray) && p.Value.Items.Value.Type.Is(openapi3.TypeObject) {
			return name
		}
	}
	return ""
}

// label is the short name of an operation for its button (x-button) on a thing, nil on a list; others have their
// summary.
func (o *operation) label(thing object) string {
	b := o.button()
	if thing == nil && b.List != "" {
		return b.List
	}
	return cmp.Or(b.Label, o.Summary)
}

// buttonText is the contract's text for an operation's button.
type buttonText struct {
	Label  string
	List   string // on a list, if it is not Label there
	When   string // conditions: "field", "!field", "field=a|b"
	Danger bool   // it ends something or loses data, although its impact may be harmless
	Impact string // what it does to others, in words; {holds} is what is on a server
}

func (o *operation) button() (b buttonText) {
	switch x := o.Extensions["x-button"].(type) {
	case string:
		b.Label = x
	case map[string]any:
		read(x, &b)
	}
	return b
}

// can reports whether an operation can do anything to a thing as it is.
func (o *operation) can(thing object) bool {
	for condition := range strings.SplitSeq(o.button().When, ",") {
		field, not := strings.CutPrefix(strings.TrimSpace(condition), "!")
		field, texts, equals := strings.Cut(field, "=")
		v := thing.at(field)
		holds := v != nil && v != false
		if equals {
			holds = slices.Contains(strings.Split(texts, "|"), thing.text(field))
		}
		if field != "" && holds == not {
			return false
		}
	}
	return true
}

// dangerous reports whether an operation ends something or loses data.
func (o *operation) dangerous() bool {
	return o.button().Danger || o.accepts && o.Extensions["x-impact"] == string(impact.Destroys)
}

// reading finds the operation that reads a path of the contract.
func reading(path string) *operation {
	for _, op := range operations() {
		if op.Path == path && op.Method == http.MethodGet {
			return op
		}
	}
	return nil
}
