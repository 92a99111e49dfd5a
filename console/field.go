package console

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
)

// field is an input of a form, made from a property of the contract.
type field struct {
	Name, About string
	Kind        string   // text, number, memory, disk, choice, yesno, duration, list, json or secret
	Values      []string // of a choice
	Default     string   // of the API, "" if it has none or there is a value already
	List        *choices // known values, which others may join; nil for none
	Required    bool
	Value       string // as it stands in the form
	Wrong       string // the API's message about it
	Pattern     string
	Most        uint64 // characters, 0 for no limit
	In          holder // what it is a property of
}

// holder is an object within a body with its own inputs; the body itself has no name.
type holder struct {
	Name, About string
	Optional    bool
}

// fieldGroup is the inputs of one object.
type fieldGroup struct {
	holder
	Legend string
	Fields []field
	Folded bool // nothing has to be in it, and nothing is
}

// grouped puts the inputs of each object together: the body's first, and an object's before those
// within it.
func grouped(fields []field) []fieldGroup {
	var out []fieldGroup
	for _, f := range fields {
		i := slices.IndexFunc(out, func(g fieldGroup) bool { return g.Name == f.In.Name })
		if i < 0 {
			i = len(out)
			parts := strings.Split(f.In.Name, ".")
			for n, name := range parts {
				parts[n] = words(name)
			}
			out = append(out, fieldGroup{holder: f.In, Legend: strings.Join(parts, ": "), Folded: f.In.Optional})
		}
		out[i].Fields = append(out[i].Fields, f)
		out[i].Folded = out[i].Folded && f.Value == "" && f.Wrong == ""
	}
	slices.SortStableFunc(out, func(a, b fieldGroup) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// fields are the inputs for an operation's body. Inputs of an object within it have its name
// before theirs, like spec.server_type.
func (o *operation) fields() []field {
	if o.body == nil {
		return nil
	}
	out := fieldsOf(o.body, holder{}, 0)
	for i := range out {
		switch f := &out[i]; {
		case f.Kind == "number" && strings.HasSuffix(f.Name, "_bytes"):
			f.size(f.Name)
		case f.Kind == "number" && strings.HasSuffix(f.Name, "_seconds"):
			f.Kind = "duration"
		}
		if n, err := strconv.ParseInt(out[i].Default, 10, 64); err == nil && sizes[out[i].Kind].text != nil {
			out[i].Default = sizes[out[i].Kind].text(n)
		}
	}
	return out
}

// without are the fields but some properties of the body.
func without(fields []field, properties []string) []field {
	return slices.DeleteFunc(fields, func(f field) bool {
		property, _, _ := strings.Cut(f.Name, ".")
		return slices.Contains(properties, property)
	})
}

// size makes a field that of a number of bytes, in the units of what it is called.
func (f *field) size(name string) {
	f.Kind = "disk"
	if strings.Contains(name, "memory") {
		f.Kind = "memory"
	}
}

// sizes are how numbers with a unit are read and written, by the kind of their fields.
var sizes = map[string]struct {
	read func(string) (int64, error)
	text func(int64) string
}{"memory": {api.ParseMemory, api.MemoryText}, "disk": {api.ParseDisk, api.DiskText}, "duration": {parseSeconds, secondsText}}

// parseSeconds reads a duration, or a number of seconds.
func parseSeconds(s string) (int64, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 32)
		return n * 24 * 60 * 60, err
	}
	d, err := time.ParseDuration(s)
	return int64(d / time.Second), err
}

func secondsText(n int64) string {
	text := (time.Duration(n) * time.Second).String()
	for _, rest := range []string{"m0s", "h0m"} { // of 30m0s and 2h0m
		if strings.HasSuffix(text, rest) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// required are the fields that need a value, and all if the others are few: those are optional.
func required(fields []field) (out []field) {
	for _, f := range fields {
		if f.Required || !folds(fields) {
			out = append(out, f)
		}
	}
	return out
}

// optional are the fields that need no value, if there are many of them.
func optional(fields []field) (out fieldGroup) {
	out.Folded = true
	for _, f := range fields {
		if !f.Required && folds(fields) {
			out.Fields = append(out.Fields, f)
			out.Folded = out.Folded && f.Value == "" && f.Wrong == ""
		}
	}
	return out
}

// folds reports whether a form is shorter without the fields that need no value.
func folds(fields []field) bool {
	const few = 3
	may := 0
	for _, f := range fields {
		if !f.Required {
			may++
		}
	}
	return may > few && may < len(fields)
}

// deepest is how many objects within others have their own inputs.
const deepest = 2

func fieldsOf(in *openapi3.Schema, of holder, depth int) []field {
	var out []field
	prefix := ""
	if of.Name != "" {
		prefix = of.Name + "."
	}
	for _, name := range properties(in) {
		s := in.Properties[name].Value
		for len(s.AllOf) == 1 {
			s = s.AllOf[0].Value
		}
		if s.ReadOnly {
			continue
		}
		if s.Type.Is(openapi3.TypeObject) && len(s.Properties) > 0 && depth < deepest && !listsObjects(s) {
			out = append(out, fieldsOf(s, holder{Name: prefix + name, About: s.Description, Optional: of.Optional || !slices.Contains(in.Required, name)}, depth+1)...)
			continue
		}
		f := field{Name: prefix + name, In: of, About: s.Description, Kind: "text", Values: values(s), Required: prefix == "" && slices.Contains(in.Required, name)}
		if s.Default != nil && !s.Type.Is(openapi3.TypeArray) && !s.Type.Is(openapi3.TypeObject) {
			f.Default = fmt.Sprint(s.Default)
		}
		switch {
		case s.Type.Is(openapi3.TypeBoolean):
			f.Kind, f.Values = "yesno", []string{"true", "false"}
		case s.Type.Is(openapi3.TypeInteger), s.Type.Is(openapi3.TypeNumber):
			f.Kind = "number"
		case s.Type.Is(openapi3.TypeArray) && s.Items != nil && s.Items.Value.Type.Is(openapi3.TypeString):
			f.Kind = "list"
		case s.Type.Is(openapi3.TypeString) && len(f.Values) > 0:
			f.Kind = "choice"
		case s.Type.Is(openapi3.TypeString):
			if f.Pattern = s.Pattern; s.MaxLength != nil {
				f.Most = *s.MaxLength
			}
			if s.Format == "password" || name == "password" {
				f.Kind = "secret"
			}
		default:
			f.Kind = "json"
		}
		out = append(out, f)
	}
	return out
}

// listsObjects reports whether an object has lists of objects, which no inputs can hold.
func listsObjects(s *openapi3.Schema) bool {
	for _, p := range s.Properties {
		if p.Value.Type.Is(openapi3.TypeArray) && p.Value.Items != nil && p.Value.Items.Value.Type.Is(openapi3.TypeObject) {
			return true
		}
	}
	return false
}

// fieldOf is the prefix of the names of a body's inputs, to distinguish them from the form's own.
const fieldOf = "f."

// content is the body that a form asks for. Inputs that were left empty are left out.
func (o *operation) content(form url.Values) (object, error) { return contentOf(o.fields(), form) }

// content is that of a form, whose fields may have units.
func (a *asking) content(form url.Values) (object, error) { return contentOf(a.Fields, form) }

func contentOf(fields []field, form url.Values) (object, error) {
	out := object{}
	for _, f := range fields {
		given := strings.TrimSpace(form.Get(fieldOf + f.Name))
		if given == "" {
			continue
		}
		v, err := f.parse(given)
		if err != nil {
			return nil, err
		}
		api.Put(out, f.Name, v)
	}
	// A required object is sent even if empty, so that the API reports what it lacks.
	for _, f := range fields {
		if f.In.Name != "" && !f.In.Optional && out.at(f.In.Name) == nil {
			api.Put(out, f.In.Name, map[string]any{})
		}
	}
	return out, nil
}

// parse reads an input as the contract's type.
func (f field) parse(given string) (any, error) {
	switch f.Kind {
	case "memory", "disk", "duration":
		n, err := sizes[f.Kind].read(given)
		if err != nil && f.Kind == "duration" {
			return nil, prego.Invalid(f.Name, "must be a duration, like 90s, 30m or 90d")
		}
		if err != nil {
			return nil, prego.Invalid(f.Name, "must be a size, like 20 GB or 1.5 GiB")
		}
		return json.Number(strconv.FormatInt(n, 10)), nil
	case "number":
		if _, err := strconv.ParseFloat(given, 64); err != nil {
			return nil, prego.Invalid(f.Name, "must be a number")
		}
		return json.Number(given), nil
	case "yesno":
		return given == "true", nil
	case "list":
		list := []string{}
		for part := range strings.FieldsFuncSeq(given, func(r rune) bool { return r == ',' || r == '\n' }) {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		return list, nil
	case "json":
		var v any
		d := json.NewDecoder(strings.NewReader(given))
		d.UseNumber()
		if err := d.Decode(&v); err != nil || d.More() {
			return nil, prego.Invalid(f.Name, "must be JSON, like the example")
		}
		return v, nil
	}
	return given, nil
}

// written is a value as its input shows it.
func (f field) written(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case json.Number:
		if unit, ok := sizes[f.Kind]; ok {
			n, err := v.Int64()
			text := unit.text(n)
			if again, e := unit.read(text); err == nil && e == nil && again == n { // a size that the text has exactly
				return text
			}
		}
		return v.String()
	case bool:
		return strconv.FormatBool(v)
	case []any:
		if f.Kind == "list" {
			var parts []string
			for _, e := range v {
				if s, ok := e.(string); ok {
					parts = append(parts, s)
				}
			}
			return strings.Join(parts, ", ")
		}
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return ""
	}
	return string(b)
}
