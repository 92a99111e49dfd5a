package api

import (
	"bytes"
	_ "embed" // the page's template
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

//go:embed docs.html
var docsTemplate string

// The parts of an OpenAPI document that the page shows. Nodes keep the order of
// the file.
type docFile struct {
	Info  struct{ Title, Description string }
	Tags  []struct{ Name, Description string }
	Paths yaml.Node

	Components struct {
		Schemas    yaml.Node
		Responses  map[string]docResponse
		Parameters map[string]docParameter
	}
}

type docOperation struct {
	ID                   string `yaml:"operationId"`
	Tags                 []string
	Summary, Description string
	Security             *[]any
	Parameters           []docParameter
	RequestBody          struct{ Content docContent } `yaml:"requestBody"`
	Responses            yaml.Node
}

type docParameter struct {
	Ref                   string `yaml:"$ref"`
	Name, In, Description string
	Schema                docSchema
}

type docResponse struct {
	Ref         string `yaml:"$ref"`
	Description string
	Content     docContent
}

type docContent map[string]struct{ Schema docSchema }

type docSchema struct {
	Ref                   string `yaml:"$ref"`
	Type, Format, Pattern string
	Description           string
	Enum, Required        []string
	Minimum, Maximum      *int
	MinLength             *int `yaml:"minLength"`
	MaxLength             *int `yaml:"maxLength"`
	MaxItems              *int `yaml:"maxItems"`
	Default, Example      any
	Properties            yaml.Node
	Items                 *docSchema
}

// What the page is made of.
type docPage struct {
	Title, About string
	Sections     []*pageSection
	Schemas      []pageSchema
}

type pageSection struct {
	Name, About string
	Operations  []pageOperation
}

type pageOperation struct {
	ID, Method, Path, Summary, Description, Body, Curl string
	Open                                               bool
	Parameters                                         []pageField
	Answers                                            []pageAnswer
}

type pageAnswer struct{ Status, Description, Schema string }

type pageSchema struct {
	Name, Description string
	Self              pageField // of a schema without fields
	Fields            []pageField
	Example           string
}

type pageField struct {
	Name, In, Type, Ref, Limits, Description string
	Required                                 bool
}

// renderDocs makes the documentation page of a contract: plain HTML, with nothing
// fetched from anywhere.
func renderDocs(contract []byte) ([]byte, error) {
	var f docFile
	if err := yaml.Unmarshal(contract, &f); err != nil {
		return nil, fmt.Errorf("contract: %w", err)
	}
	page := docPage{Title: f.Info.Title, About: f.Info.Description}
	examples := make(map[string]string)
	if err := pairs(f.Components.Schemas, func(name string, s docSchema) error {
		ps, err := schemaPage(name, s)
		page.Schemas = append(page.Schemas, ps)
		examples[name] = ps.Example
		return err
	}); err != nil {
		return nil, err
	}
	for _, t := range f.Tags {
		page.Sections = append(page.Sections, &pageSection{Name: t.Name, About: t.Description})
	}
	if err := pairs(f.Paths, func(path string, item yaml.Node) error {
		var shared struct{ Parameters []docParameter }
		if err := item.Decode(&shared); err != nil {
			return err
		}
		return pairs(item, func(method string, node yaml.Node) error {
			if method == "parameters" {
				return nil
			}
			var d docOperation
			if err := node.Decode(&d); err != nil {
				return err
			}
			d.Parameters = append(slices.Clone(shared.Parameters), d.Parameters...)
			o, err := operationPage(f, method, path, d, examples)
			for _, s := range page.Sections {
				if slices.Contains(d.Tags, s.Name) {
					s.Operations = append(s.Operations, o)
				}
			}
			return err
		})
	}); err != nil {
		return nil, err
	}
	t, err := template.New("docs").Funcs(template.FuncMap{"inline": inline, "prose": prose}).Parse(docsTemplate)
	if err != nil {
		return nil, fmt.Errorf("docs template: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, page); err != nil {
		return nil, fmt.Errorf("docs: %w", err)
	}
	return b.Bytes(), nil
}

func operationPage(f docFile, method, path string, d docOperation, examples map[string]string) (pageOperation, error) {
	o := pageOperation{
		ID: d.ID, Method: method, Path: path, Summary: d.Summary, Description: d.Description,
		Open: d.Security != nil && len(*d.Security) == 0, Body: d.RequestBody.Content.schema(),
	}
	for _, p := range d.Parameters {
		if p.Ref != "" {
			p = f.Components.Parameters[lastPart(p.Ref)]
		}
		field := fieldPage(p.Name, p.Schema)
		field.In, field.Required = p.In, p.In == "path"
		if p.Description != "" {
			field.Description = p.Description
		}
		o.Parameters = append(o.Parameters, field)
	}
	o.Curl = curl(o, examples[o.Body])
	return o, pairs(d.Responses, func(status string, r docResponse) error {
		if r.Ref != "" {
			r = f.Components.Responses[lastPart(r.Ref)]
		}
		o.Answers = append(o.Answers, pageAnswer{Status: status, Description: r.Description, Schema: r.Content.schema()})
		return nil
	})
}

// curl is an operation as a command.
func curl(o pageOperation, example string) string {
	parts := []string{"curl"}
	if !strings.EqualFold(o.Method, http.MethodGet) {
		parts = append(parts, "-X "+strings.ToUpper(o.Method))
	}
	if !o.Open {
		parts = append(parts, `-H "Authorization: Bearer $PREGO_TOKEN"`)
	}
	if o.Body != "" {
		parts = append(parts, "-H 'Content-Type: application/json'", "-d '"+example+"'")
	}
	return strings.Join(append(parts, `"$PREGO_API_URL`+strings.ReplaceAll(o.Path, "{server_id}", "app-sgp-007")+`"`), " \\\n  ")
}

func schemaPage(name string, s docSchema) (pageSchema, error) {
	out := pageSchema{Name: name, Description: s.Description, Self: fieldPage(name, s)}
	if s.Example != nil && s.Type == "object" {
		b, err := json.MarshalIndent(s.Example, "", "  ")
		if err != nil {
			return out, fmt.Errorf("example of %s: %w", name, err)
		}
		out.Example = string(b)
	}
	return out, pairs(s.Properties, func(field string, p docSchema) error {
		pf := fieldPage(field, p)
		pf.Required = slices.Contains(s.Required, field)
		out.Fields = append(out.Fields, pf)
		return nil
	})
}

func fieldPage(name string, s docSchema) pageField {
	f := pageField{Name: name, Description: s.Description, Ref: lastPart(s.Ref), Type: s.Type}
	if s.Format != "" {
		f.Type = s.Format
	}
	if s.Items != nil {
		f.Type, f.Ref = "list of "+s.Items.Type, lastPart(s.Items.Ref)
	}
	var limits []string
	if len(s.Enum) > 0 {
		limits = append(limits, strings.Join(s.Enum, ", "))
	}
	for _, l := range []struct {
		n    *int
		text string
	}{
		{s.Minimum, "from %d"}, {s.Maximum, "to %d"}, {s.MinLength, "at least %d characters"}, {s.MaxLength, "at most %d characters"}, {s.MaxItems, "at most %d"},
	} {
		if l.n != nil {
			limits = append(limits, fmt.Sprintf(l.text, *l.n))
		}
	}
	if s.Pattern != "" {
		limits = append(limits, "matches "+s.Pattern)
	}
	if s.Default != nil {
		limits = append(limits, fmt.Sprintf("%v if left out", s.Default))
	}
	f.Limits = strings.Join(limits, "; ")
	return f
}

// pairs walks a mapping in the order of the file.
func pairs[T any](n yaml.Node, f func(key string, value T) error) error {
	for i := 0; i+1 < len(n.Content); i += 2 {
		var value T
		if err := n.Content[i+1].Decode(&value); err != nil {
			return fmt.Errorf("%s: %w", n.Content[i].Value, err)
		}
		if err := f(n.Content[i].Value, value); err != nil {
			return fmt.Errorf("%s: %w", n.Content[i].Value, err)
		}
	}
	return nil
}

func (c docContent) schema() string {
	for _, v := range c {
		return lastPart(v.Schema.Ref)
	}
	return ""
}

func lastPart(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

var inCode = regexp.MustCompile("`([^`]+)`")

// inline is text with `code`, prose the same with paragraphs.
func inline(text string) template.HTML {
	return template.HTML(inCode.ReplaceAllString(template.HTMLEscapeString(strings.TrimSpace(text)), "<code>$1</code>")) //nolint:gosec // escaped
}

func prose(text string) template.HTML {
	return "<p>" + template.HTML(strings.ReplaceAll(string(inline(text)), "\n\n", "</p><p>")) + "</p>" //nolint:gosec // escaped by inline
}
