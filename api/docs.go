package api

import (
	"bytes"
	_ "embed" // the page's template
	"fmt"
	"html/template"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

//go:embed docs.html
var docsTemplate string

// The parts of an OpenAPI document that the page shows. Nodes keep the order of
// the file.
type docSchema struct {
	Ref         string     `yaml:"$ref"`
	Type        string     `yaml:"type"`
	Format      string     `yaml:"format"`
	Description string     `yaml:"description"`
	Enum        []string   `yaml:"enum"`
	Required    []string   `yaml:"required"`
	Properties  yaml.Node  `yaml:"properties"`
	Items       *docSchema `yaml:"items"`
}

type docContent map[string]struct {
	Schema docSchema `yaml:"schema"`
}

type docOperation struct {
	Summary     string                        `yaml:"summary"`
	Description string                        `yaml:"description"`
	Security    *[]any                        `yaml:"security"`
	Parameters  []docParam                    `yaml:"parameters"`
	RequestBody *struct{ Content docContent } `yaml:"requestBody"`
	Responses   yaml.Node                     `yaml:"responses"`
}

type docParam struct {
	Name, In, Description string
	Ref                   string `yaml:"$ref"`
	Schema                docSchema
}

type docFile struct {
	Info       struct{ Title, Description string }
	Paths      yaml.Node
	Components struct {
		Schemas yaml.Node
	}
}

type pageField struct {
	Name, In, Type, Description string
	Required                    bool
}

type pageOperation struct {
	Method, Path, Summary, Description, Body string
	Open                                     bool
	Parameters                               []pageField
	Answers                                  []struct{ Status, Description, Schema string }
}

type pageSchema struct {
	Name, Type string
	Fields     []pageField
}

// renderDocs makes the documentation page of a contract: plain HTML, with nothing
// fetched from anywhere.
func renderDocs(contract []byte) ([]byte, error) {
	var f docFile
	if err := yaml.Unmarshal(contract, &f); err != nil {
		return nil, fmt.Errorf("contract: %w", err)
	}
	page := struct {
		Title, About string
		Operations   []pageOperation
		Schemas      []pageSchema
	}{Title: f.Info.Title, About: f.Info.Description}
	err := pairs(f.Paths, func(path string, item *yaml.Node) error {
		return pairs(*item, func(method string, node *yaml.Node) error {
			if method == "parameters" {
				return nil
			}
			o, err := operation(method, path, node)
			page.Operations = append(page.Operations, o)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	err = pairs(f.Components.Schemas, func(name string, node *yaml.Node) error {
		var s docSchema
		if err := node.Decode(&s); err != nil {
			return err
		}
		ps := pageSchema{Name: name, Type: typeOf(s)}
		err := pairs(s.Properties, func(field string, node *yaml.Node) error {
			var p docSchema
			if err := node.Decode(&p); err != nil {
				return err
			}
			ps.Fields = append(ps.Fields, pageField{Name: field, Type: typeOf(p), Description: p.Description, Required: slices.Contains(s.Required, field)})
			return nil
		})
		page.Schemas = append(page.Schemas, ps)
		return err
	})
	if err != nil {
		return nil, err
	}
	t, err := template.New("docs").Parse(docsTemplate)
	if err != nil {
		return nil, fmt.Errorf("docs template: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, page); err != nil {
		return nil, fmt.Errorf("docs: %w", err)
	}
	return b.Bytes(), nil
}

func operation(method, path string, node *yaml.Node) (pageOperation, error) {
	var d docOperation
	if err := node.Decode(&d); err != nil {
		return pageOperation{}, fmt.Errorf("%s %s: %w", method, path, err)
	}
	o := pageOperation{Method: method, Path: path, Summary: d.Summary, Description: d.Description, Open: d.Security != nil && len(*d.Security) == 0}
	for _, p := range d.Parameters {
		o.Parameters = append(o.Parameters, pageField{Name: p.Name, In: p.In, Type: typeOf(p.Schema), Description: p.Description})
	}
	if d.RequestBody != nil {
		o.Body = schemaOf(d.RequestBody.Content)
	}
	err := pairs(d.Responses, func(status string, node *yaml.Node) error {
		var r struct {
			Ref         string `yaml:"$ref"`
			Description string
			Content     docContent
		}
		if err := node.Decode(&r); err != nil {
			return err
		}
		if r.Ref != "" {
			r.Description, status = "A refusal, as a problem document", "4xx, 5xx"
		}
		schema := schemaOf(r.Content)
		if r.Ref != "" {
			schema = lastPart(r.Ref)
		}
		o.Answers = append(o.Answers, struct{ Status, Description, Schema string }{status, r.Description, schema})
		return nil
	})
	return o, err
}

// pairs walks a mapping in the order of the file.
func pairs(n yaml.Node, f func(key string, value *yaml.Node) error) error {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if err := f(n.Content[i].Value, n.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func schemaOf(c docContent) string {
	for _, v := range c {
		return lastPart(v.Schema.Ref)
	}
	return ""
}

func lastPart(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

func typeOf(s docSchema) string {
	switch {
	case s.Ref != "":
		return lastPart(s.Ref)
	case len(s.Enum) > 0:
		return strings.Join(s.Enum, " | ")
	case s.Items != nil:
		return "list of " + typeOf(*s.Items)
	case s.Format != "":
		return s.Format
	}
	return s.Type
}
