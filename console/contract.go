package console

import (
	"cmp"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/prego/prego/api"
)

// operation is an operation of the contract.
type operation struct {
	*openapi3.Operation
	Method, Path string
	path, query  []*openapi3.Parameter
	body         *openapi3.Schema // nil for none
	optional     bool             // the body is
	DryRun       bool             // it has one
	etag         bool             // it takes If-Match
	accepts      bool             // it takes Impact-Accepted
	keyed        bool             // it takes an Idempotency-Key
}

// operations are the contract's operations by id.
var operations = sync.OnceValue(func() map[string]*operation {
	out := map[string]*operation{}
	for path, item := range api.Contract().Paths.Map() {
		for method, op := range item.Operations() {
			o := &operation{Operation: op, Method: method, Path: path}
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				switch p.Value.In {
				case openapi3.ParameterInPath:
					o.path = append(o.path, p.Value)
				case openapi3.ParameterInQuery:
					if p.Value.Name == "dry_run" { // it has its own button
						o.DryRun = true
						continue
					}
					o.query = append(o.query, p.Value)
				case openapi3.ParameterInHeader:
					o.etag = o.etag || p.Value.Name == "If-Match"
					o.accepts = o.accepts || p.Value.Name == "Impact-Accepted"
					o.keyed = o.keyed || p.Value.Name == "Idempotency-Key"
				}
			}
			if b := op.RequestBody; b != nil {
				if m := b.Value.Content["application/json"]; m != nil {
					o.body, o.optional = m.Schema.Value, !b.Value.Required
				}
			}
			out[op.OperationID] = o
		}
	}
	return out
})

// parameter is the query parameter with a name, nil if there is none.
func (o *operation) parameter(name string) *openapi3.Parameter {
	for _, p := range o.query {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// sorts are the fields that a list can be sorted by, and which it is sorted by otherwise.
func (o *operation) sorts() (fields []string, byDefault string) {
	p := o.parameter("sort")
	if p == nil || p.Schema == nil {
		return nil, ""
	}
	for _, v := range p.Schema.Value.Enum {
		if s, ok := v.(string); ok && !strings.HasPrefix(s, "-") {
			fields = append(fields, s)
		}
	}
	byDefault, _ = p.Schema.Value.Default.(string)
	return fields, byDefault
}

// values is the closed set of a schema's values, nil if it is open.
func values(s *openapi3.Schema) []string {
	if s == nil {
		return nil
	}
	if s.Type.Is(openapi3.TypeArray) && s.Items != nil {
		return values(s.Items.Value)
	}
	var out []string
	for _, v := range s.Enum {
		if t, ok := v.(string); ok {
			out = append(out, t)
		}
	}
	return out
}

// placeholders are the {names} of a path.
var placeholders = regexp.MustCompile(`\{([a-z0-9_]+)\}`)

// fill puts values in the places of their names, escaped.
func fill(path string, value func(name string) string) string {
	return placeholders.ReplaceAllStringFunc(path, func(name string) string { return url.PathEscape(value(strings.Trim(name, "{}"))) })
}

// properties are a schema's properties, required ones first, otherwise in the order of their names:
// reading the contract loses its own order.
func properties(s *openapi3.Schema) []string {
	return slices.SortedFunc(maps.Keys(s.Properties), func(a, b string) int {
		need := func(name string) int {
			if slices.Contains(s.Required, name) {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(need(a), need(b)), cmp.Compare(a, b))
	})
}
