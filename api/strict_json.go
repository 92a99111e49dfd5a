package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
)

// decode reads a request's checked body into v, and has v validate itself if it can; if the body is absent, v stays as
// it is.
func decode(c echo.Context, v any) error {
	if body, _ := c.Get(bodyKey).([]byte); body != nil {
		if err := DecodeStrict(body, v); err != nil {
			return err
		}
	}
	if in, ok := v.(interface{ Validate() error }); ok {
		return in.Validate()
	}
	return nil
}

// maxValues bounds the members of objects and items of lists in a body: what a value costs in memory does not depend on
// its length, so it is bounded before the body is parsed.
const maxValues = 200_000

// valuesIn is how many members and items a JSON document holds, empty ones of lists and objects included.
func valuesIn(body []byte) (values int) {
	quoted := false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '{' || c == '[' || c == ','):
			values++
		}
	}
	return values
}

// checkJSON rejects anything but one JSON object.
func checkJSON(body []byte) error {
	switch trimmed := bytes.TrimSpace(body); {
	case len(trimmed) == 0:
		return prego.Errorf(prego.CodeInvalidJSON, "a JSON body is required")
	case valuesIn(body) > maxValues:
		return prego.Errorf(prego.CodeInvalidJSON, "the body holds more than %d values", maxValues)
	case !utf8.Valid(body):
		return prego.Errorf(prego.CodeInvalidJSON, "the body is not valid UTF-8")
	case !json.Valid(body):
		return prego.Errorf(prego.CodeInvalidJSON, "the body is not one valid JSON document")
	case trimmed[0] != '{':
		return prego.Errorf(prego.CodeInvalidJSON, "the body must be a JSON object")
	}
	return nil
}

// DecodeStrict reads one JSON object into v, a pointer to a struct. It rejects, at any
// depth and with the field's path: unknown fields, fields given twice or spelled in
// another case, wrong types, null for a field that is no pointer, and anything after
// the object.
func DecodeStrict(body []byte, v any) error {
	if err := checkJSON(body); err != nil {
		return err
	}
	err := jsonv2.Unmarshal(body, v, strict)
	var syntax *jsontext.SyntacticError
	var wrong *jsonv2.SemanticError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
		return &prego.Error{Code: prego.CodeDuplicateField, Field: member(syntax.JSONPointer), Message: "is given twice"}
	case !errors.As(err, &wrong):
		return prego.Errorf(prego.CodeInvalidJSON, "the body cannot be read as this request")
	case errors.Is(err, jsonv2.ErrUnknownName):
		message := "is not a field of this request" + suggestion(wrong.GoType, wrong.JSONPointer.LastToken())
		return &prego.Error{Code: prego.CodeUnknownField, Field: member(wrong.JSONPointer), Message: message}
	case wrong.Err != nil && !errors.Is(err, strconv.ErrRange) && !errors.Is(err, strconv.ErrSyntax):
		return prego.Invalid(fieldPath(wrong.JSONPointer.Tokens()), "cannot be read: "+wrong.Err.Error())
	case wrong.JSONKind == 'n':
		return prego.Invalid(fieldPath(wrong.JSONPointer.Tokens()), "must not be null")
	}
	return prego.Invalid(fieldPath(wrong.JSONPointer.Tokens()), "must be "+kindOf(wrong.GoType)+", not "+foundKind(wrong))
}

// maxDepth is how deep the values of an object may nest whose fields are checked elsewhere.
const maxDepth = 16

var (
	// noNull leaves null to pointers; other types would read it as nothing.
	noNull = jsonv2.UnmarshalFromFunc(func(dec *jsontext.Decoder, v any) error {
		t := reflect.TypeOf(v).Elem()
		switch {
		case dec.PeekKind() == 'n' && t.Kind() != reflect.Pointer:
			return &jsonv2.SemanticError{JSONKind: 'n', GoType: t}
		case dec.StackDepth() > maxDepth:
			return errors.New("it is nested too deep")
		}
		return jsonv2.SkipFunc
	})
	// anyObject is an object whose fields are checked elsewhere.
	anyObject = jsonv2.UnmarshalFunc(func(raw []byte, v *json.RawMessage) error {
		*v = slices.Clone(raw)
		return jsonv2.Unmarshal(raw, new(map[string]any), exact)
	})
	// Half a surrogate becomes a replacement character, as encoding/json reads it.
	exact  = jsonv2.JoinOptions(jsonv2.RejectUnknownMembers(true), jsontext.AllowInvalidUTF8(true), jsonv2.WithUnmarshalers(noNull))
	strict = jsonv2.JoinOptions(exact, jsonv2.WithUnmarshalers(jsonv2.JoinUnmarshalers(noNull, anyObject)))
)

// member is the path of an object's member, whose name may be anything.
func member(p jsontext.Pointer) string {
	return joinPath(fieldPath(p.Parent().Tokens()), shown(p.LastToken()))
}

// fieldPath is a path as problems show it: dotted, with list indexes in brackets.
func fieldPath(tokens iter.Seq[string]) (path string) {
	for token := range tokens {
		if _, err := strconv.Atoi(token); err == nil {
			path += "[" + token + "]"
		} else {
			path = joinPath(path, shown(token))
		}
	}
	return path
}

// suggestion names the field that only differs in case.
func suggestion(of reflect.Type, name string) string {
	for _, f := range reflect.VisibleFields(of) {
		if known, _, _ := strings.Cut(f.Tag.Get("json"), ","); strings.EqualFold(known, name) {
			return "; did you mean " + known + "?"
		}
	}
	return ""
}

// shown is a name from a request, short and free of secrets, for an answer or a log. It is
// cut before secrets are looked for, which takes time by the length; they are found by how
// they begin.
func shown(name string) string {
	const most = 64
	return clipped(prego.Redact(clipped(name, 16*most)), most)
}

// clipped is the beginning of a text, most runes at most.
func clipped(text string, most int) string {
	for i := range text {
		if most--; most < 0 {
			return text[:i] + "…"
		}
	}
	return text
}

func kindOf(t reflect.Type) string {
	if t == reflect.TypeFor[time.Time]() {
		return "a time"
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		return "a list"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "a boolean"
	case reflect.Pointer:
		return kindOf(t.Elem())
	default:
		return "a " + t.Kind().String()
	}
}

func foundKind(e *jsonv2.SemanticError) string {
	switch e.JSONKind {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	}
	if e.JSONValue == nil {
		return "a number"
	}
	return "the number " + shown(e.JSONValue.String())
}

func joinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
