package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/prego/prego/ops/impact"
)

// pages are what /docs shows, computed from the contract.
type pages struct {
	groups     []docsGroup
	operations map[string]*docsOperation
	errors     map[string]*docsCode
}

// docsGroup is a section of the index.
type docsGroup struct {
	Name, Title string
	Entries     []docsEntry
	Shown       bool
}

// docsEntry is a line of the index; Method and Command are "" for what has none.
type docsEntry struct {
	ID, Href, Method, Name, Text, Command string
	Shown                                 bool
}

// docsOperation is the page of an operation.
type docsOperation struct {
	ID, Tag, Method, Path, Summary string
	About, Facts                   []template.HTML
	Curl                           string
	Commands                       []string
	Parameters, Body               docsTable
	Answers                        []docsAnswer
	Errors                         []docsError
}

// docsTable is a table of parameters or of properties.
type docsTable struct {
	Head   string
	Answer bool // it is of what comes back
	Fields []docsField
}

type docsField struct {
	Name, Note string // required, of what is sent, and optional, of what comes back
	Value      string
	About      template.HTML
}

type docsAnswer struct {
	Status, Kind, Example string
	About                 template.HTML
	Body                  docsTable
}

type docsError struct{ Status, Code, Example string }

// docsCode is the page of a code.
type docsCode struct {
	Code, Title, Example string
	Status               int
	Means, Do            template.HTML
	Retry                bool // the same request can succeed later
	Fields               docsTable
	Operations           []string
	Of                   string // in place of the operations
}

// reference is made when the first page is asked for.
var reference = sync.OnceValue(func() *pages {
	doc := embedded().doc
	out := &pages{operations: map[string]*docsOperation{}}
	byTag := map[string]*docsGroup{}
	for _, t := range doc.Tags {
		out.groups = append(out.groups, docsGroup{Name: t.Name, Title: t.Name + ": " + t.Description})
	}
	for i := range out.groups {
		byTag[out.groups[i].Name] = &out.groups[i]
	}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths.Map())) {
		item := doc.Paths.Value(path)
		for _, method := range slices.Sorted(maps.Keys(item.Operations())) {
			op := item.Operations()[method]
			o := operationPage(method, path, item, op)
			out.operations[o.ID] = o
			g := byTag[o.Tag]
			g.Entries = append(g.Entries, docsEntry{
				ID: o.ID, Href: "/docs/operations/" + o.ID, Method: method, Name: path, Text: o.Summary,
				Command: commandLine(o.ID),
			})
		}
	}
	out.groups = append(out.groups, out.codes(doc))
	return out
})

// codes makes a page for each code, and their group of the index.
func (p *pages) codes(doc *openapi3.T) docsGroup {
	group := docsGroup{Name: "errors", Title: "errors: What refusals mean, and what to do."}
	of := map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(p.operations)) {
		for _, e := range p.operations[id].Errors {
			of[e.Code] = append(of[e.Code], id)
		}
	}
	problem := doc.Components.Schemas["Problem"].Value
	about, _ := problem.Properties["code"].Value.Extensions["x-codes"].(map[string]any)
	p.errors = map[string]*docsCode{}
	for code, status := range statuses {
		words, _ := about[string(code)].(map[string]any)
		means, _ := words["means"].(string)
		do, _ := words["do"].(string)
		c := &docsCode{
			Code: string(code), Status: status, Title: http.StatusText(status), Means: prose(means), Do: prose(do),
			Retry: words["retry"] == true, Operations: of[string(code)], Fields: docsTable{Head: "field", Answer: true},
		}
		switch n := len(c.Operations); {
		case n == 0:
			c.Of = "Of no single operation: the request never reaches one."
		case n > mostListed:
			c.Of, c.Operations = fmt.Sprintf("%d of the %d operations have it.", n, len(p.operations)), nil
		}
		example := problem.Example
		if ref := doc.Components.Examples[string(code)]; ref != nil {
			example = ref.Value.Value
		}
		c.Example = pretty(example)
		fields, _ := example.(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if ref := problem.Properties[name]; ref != nil {
				c.Fields.property("", name, &openapi3.SchemaRef{Value: shallow(ref.Value)}, true, nil)
			}
		}
		p.errors[c.Code] = c
	}
	for _, code := range slices.Sorted(maps.Keys(p.errors)) {
		c := p.errors[code]
		words, _ := about[code].(map[string]any)
		text, _ := words["means"].(string)
		group.Entries = append(group.Entries, docsEntry{
			ID: code, Href: errorPages + code, Method: strconv.Itoa(c.Status), Name: code, Text: text,
		})
	}
	return group
}

// mostListed is how many operations the page of a code lists. Codes that more have are those of requests in general.
const mostListed = 60

// shallow is a schema without its parts and choices, which the example shows.
func shallow(s *openapi3.Schema) *openapi3.Schema {
	return &openapi3.Schema{Type: s.Type, Description: s.Description, Format: s.Format, Items: s.Items}
}

// commandLine is the command of an operation, "" if there is none.
func commandLine(operation string) string {
	if verbs := VerbsOf(operation); len(verbs) > 0 {
		return "prego " + verbs[0].Use
	}
	return ""
}

// find marks the entries of the index that have all words of a query, as docs/search.js does.
func (p *pages) find(q string) (groups []docsGroup, found bool) {
	words := strings.Fields(strings.ToLower(q))
	groups = slices.Clone(p.groups)
	for i := range groups {
		g := &groups[i]
		g.Entries = slices.Clone(g.Entries)
		for j := range g.Entries {
			e := &g.Entries[j]
			text := strings.ToLower(strings.Join([]string{e.ID, e.Method, e.Name, e.Text, e.Command}, " "))
			e.Shown = !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
			g.Shown = g.Shown || e.Shown
		}
		found = found || g.Shown
	}
	return groups, found
}

var code = regexp.MustCompile("`([^`]+)`")

// prose is a sentence of the contract, with its code.
func prose(text string) template.HTML {
	text = code.ReplaceAllString(template.HTMLEscapeString(text), "<code>$1</code>")
	return template.HTML(text) //nolint:gosec // escaped
}

// paragraphs are a description of the contract.
func paragraphs(text string) (out []template.HTML) {
	for p := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if p != "" {
			out = append(out, prose(strings.Join(strings.Fields(p), " ")))
		}
	}
	return out
}

func operationPage(method, path string, item *openapi3.PathItem, op *openapi3.Operation) *docsOperation {
	o := &docsOperation{
		ID: op.OperationID, Tag: op.Tags[0], Method: method, Path: path, Summary: op.Summary,
		About:      paragraphs(op.Description),
		Parameters: docsTable{Head: "parameter"}, Body: docsTable{Head: "field"},
	}
	var given any // what the answer's example has
	for _, status := range slices.Sorted(maps.Keys(op.Responses.Map())) {
		r := op.Responses.Value(status).Value
		if status[0] > '3' {
			o.refusals(status, r)
			continue
		}
		for _, kind := range slices.Sorted(maps.Keys(r.Content)) {
			media := r.Content[kind]
			example := exampleIn(media)
			a := docsAnswer{Status: status, Kind: kind, Example: pretty(example), About: prose(*r.Description)}
			a.Body = docsTable{Head: "field", Answer: true}
			if kind == "application/json" {
				given = cmp.Or(given, example)
			}
			if kind != impactType && media.Schema != nil { // an impact's example shows enough
				a.Body.properties("", media.Schema, nil)
			}
			o.Answers = append(o.Answers, a)
		}
		if len(r.Content) == 0 {
			o.Answers = append(o.Answers, docsAnswer{Status: status, About: prose(*r.Description)})
		}
	}
	slices.SortStableFunc(o.Answers, func(x, y docsAnswer) int { // the impact of a dry run comes last
		return strings.Compare(strconv.FormatBool(x.Kind == impactType), strconv.FormatBool(y.Kind == impactType))
	})
	var query []string
	curl := path
	for _, ref := range slices.Concat(item.Parameters, op.Parameters) {
		p := ref.Value
		s := p.Schema.Value
		o.Parameters.Fields = append(o.Parameters.Fields, docsField{
			Name: p.Name, Note: o.Parameters.note(p.Required), Value: p.In + "; " + requirements(p.Name, s),
			About: prose(cmp.Or(p.Description, s.Description)),
		})
		switch {
		case p.In == openapi3.ParameterInPath:
			curl = strings.Replace(curl, "{"+p.Name+"}", url.PathEscape(exampleOf(p, given)), 1)
		case p.In == openapi3.ParameterInQuery && p.Required:
			query = append(query, p.Name+"="+url.QueryEscape(exampleOf(p, given)))
		}
	}
	if len(query) > 0 {
		curl += "?" + strings.Join(query, "&")
	}
	o.Curl = `curl -H "Authorization: Bearer $TOKEN"`
	if method != "GET" {
		o.Curl += " -X " + method
	}
	if op.RequestBody != nil {
		if media := op.RequestBody.Value.Content["application/json"]; media != nil {
			o.Body.properties("", media.Schema, nil)
			body, _ := json.Marshal(sample(media.Schema.Value, 0)) //nolint:errchkjson // it came from YAML
			quoted := strings.ReplaceAll(string(body), "'", `'\''`)
			o.Curl += " \\\n  -H 'Content-Type: application/json' -d '" + quoted + "'"
		}
	}
	o.Curl += ` "$API` + curl + `"`
	for _, v := range VerbsOf(o.ID) {
		example := strings.ReplaceAll(strings.TrimPrefix(v.Example, "  "), "\n  ", "\n")
		o.Commands = append(o.Commands, cmp.Or(example, "prego "+v.Use))
	}
	o.facts(method, op)
	return o
}

// facts are what the contract's annotations mean for callers.
func (o *docsOperation) facts(method string, op *openapi3.Operation) {
	add := func(format string, args ...any) { o.Facts = append(o.Facts, prose(fmt.Sprintf(format, args...))) }
	k := embedded().ops[method+" "+pathParameter.ReplaceAllString(o.Path, ":$1")]
	switch {
	case op.Security != nil && len(*op.Security) == 0:
		add("It needs no token.")
	case method == "GET" || k.changesNothing:
		add("It needs the role `viewer` or `operator`, and changes nothing.")
	default:
		add("It needs the role `operator`.")
	}
	if k.bound == impact.Interrupts || k.bound == impact.Destroys {
		add("Its impact may be `%s`: what it interrupts or destroys must be accepted with `Impact-Accepted`.", k.bound)
	}
	if why, _ := op.Extensions["x-dry-run"].(string); why != "" {
		add("It has no dry run: %s.", why)
	}
	if k.body != nil && k.maxBody != maxBody {
		add("Its body may have %s.", sizeText(k.maxBody))
	}
	if k.long {
		add("It may take minutes.")
	}
}

// refusals lists an answer's codes.
func (o *docsOperation) refusals(status string, r *openapi3.Response) {
	media := r.Content["application/problem+json"]
	if media == nil {
		return
	}
	for _, code := range slices.Sorted(maps.Keys(media.Examples)) {
		problem, _ := media.Examples[code].Value.Value.(map[string]any)
		detail, _ := problem["detail"].(string)
		if field, _ := problem["field"].(string); field != "" {
			detail = field + " " + detail
		}
		o.Errors = append(o.Errors, docsError{Status: status, Code: code, Example: detail})
	}
}

// deepest is how many levels of a body a table has: below, an example shows more than names do.
const deepest = 4

// properties adds a row for each property of a schema, and those of its parts below them.
func (t *docsTable) properties(prefix string, ref *openapi3.SchemaRef, above []string) {
	s := plainSchema(ref)
	if s.Type.Is(openapi3.TypeArray) {
		t.properties(prefix+"[]", s.Items, above)
		return
	}
	if len(above) == deepest || ref.Ref != "" && slices.Contains(above, ref.Ref) {
		return
	}
	above = append(slices.Clone(above), ref.Ref)
	if extra := s.AdditionalProperties.Schema; extra != nil {
		t.property(prefix, "*", extra, false, above)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		t.property(prefix, name, s.Properties[name], slices.Contains(s.Required, name), above)
	}
}

// note marks what is not as usual: inputs are optional, and parts of answers are there.
func (t *docsTable) note(required bool) string {
	switch {
	case t.Answer && !required:
		return "optional"
	case !t.Answer && required:
		return "required"
	}
	return ""
}

func (t *docsTable) property(prefix, name string, ref *openapi3.SchemaRef, required bool, above []string) {
	if prefix != "" {
		name = prefix + "." + name
	}
	about := ref.Value.Description
	s := plainSchema(ref)
	t.Fields = append(t.Fields, docsField{
		Name: name, Note: t.note(required), Value: requirements(name, s), About: prose(cmp.Or(about, s.Description)),
	})
	t.properties(name, ref, above)
}

// plainSchema is what a schema refers to with a description beside it.
func plainSchema(ref *openapi3.SchemaRef) *openapi3.Schema {
	s := ref.Value
	for len(s.AllOf) == 1 {
		s = s.AllOf[0].Value
	}
	return s
}

// countedIn are what numbers are counted in, by the ends of their names.
var countedIn = []struct{ end, unit string }{
	{"_bytes", "bytes"},
	{"_gb", "GB (10^9 bytes)"},
	{"_mib", "MiB"},
	{"_mb", "MB"},
	{"_ms", "milliseconds"},
	{"_seconds", "seconds"},
	{"_minutes", "minutes"},
	{"_hours", "hours"},
	{"_days", "days"},
	{"_cents", "hundredths of the currency"},
	{"_percent", "percent"},
}

// requirements are the type of a value, its unit, bounds, choices and default.
func requirements(name string, s *openapi3.Schema) string {
	if s.Type.Is(openapi3.TypeArray) {
		out := "list of " + requirements(name, plainSchema(s.Items))
		if s.MinItems > 0 || s.MaxItems != nil {
			out += "; " + itemBounds(s)
		}
		return out
	}
	_, out, _ := strings.Cut(typeName(s), " ")
	if s.Format != "" && s.Type.Is(openapi3.TypeString) {
		out += ", " + s.Format
	}
	if s.Type.Is(openapi3.TypeInteger) || s.Type.Is(openapi3.TypeNumber) {
		for _, u := range countedIn {
			if strings.HasSuffix(name, u.end) {
				out += ", " + u.unit
				break
			}
		}
	}
	if rule := mustBe(name, s); rule != "" {
		out += "; " + strings.TrimPrefix(rule, "must be ")
	}
	if kinds, _ := s.Extensions["x-kinds"].(map[string]any); kinds != nil {
		out += "; " + strings.Join(slices.Sorted(maps.Keys(kinds)), ", ") + ", or another one to come"
	}
	if s.Default != nil {
		out += fmt.Sprintf("; default %v", s.Default)
	}
	return out
}

// exampleIn is an example of an answer.
func exampleIn(media *openapi3.MediaType) any {
	if media.Example != nil {
		return media.Example
	}
	for _, name := range slices.Sorted(maps.Keys(media.Examples)) {
		return media.Examples[name].Value.Value
	}
	return nil
}

// pretty is JSON for people; a text stays as it is.
func pretty(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	out, _ := json.MarshalIndent(v, "", "  ") //nolint:errchkjson // it came from YAML
	return string(out)
}

// exampleOf is a value of a parameter: its own example, or what an answer calls by its name.
func exampleOf(p *openapi3.Parameter, given any) string {
	for _, v := range []any{p.Example, p.Schema.Value.Example} {
		if v != nil {
			return fmt.Sprint(v)
		}
	}
	if m, ok := given.(map[string]any); ok && m[p.Name] != nil {
		return fmt.Sprint(m[p.Name])
	}
	return fmt.Sprint(sample(p.Schema.Value, 0))
}

// sample is a value that a schema allows: its example, or one made from its required parts.
func sample(s *openapi3.Schema, depth int) any {
	for len(s.AllOf) == 1 && s.Example == nil {
		s = s.AllOf[0].Value
	}
	switch {
	case s.Example != nil:
		return s.Example
	case len(s.Enum) > 0:
		return s.Enum[0]
	case s.Type.Is(openapi3.TypeObject):
		out := map[string]any{}
		for name, p := range s.Properties {
			if slices.Contains(s.Required, name) && depth < deepest {
				out[name] = sample(p.Value, depth+1)
			}
		}
		return out
	case s.Type.Is(openapi3.TypeArray):
		return []any{sample(s.Items.Value, depth+1)}
	case s.Type.Is(openapi3.TypeBoolean):
		return true
	case s.Type.Is(openapi3.TypeInteger), s.Type.Is(openapi3.TypeNumber):
		if s.Min != nil && *s.Min > 0 {
			return *s.Min
		}
		return 1
	}
	return "…"
}
