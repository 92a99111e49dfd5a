package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
)

// decode reads a request's checked body into v; if it is absent, v stays as it is.
func decode(c echo.Context, v any) error {
	body, _ := c.Get(bodyKey).([]byte)
	if body == nil {
		return nil
	}
	return DecodeStrict(body, v)
}

// checkJSON rejects anything but one JSON object.
func checkJSON(body []byte) error {
	switch trimmed := bytes.TrimSpace(body); {
	case len(trimmed) == 0:
		return prego.Errorf(prego.CodeInvalidJSON, "a JSON body is required")
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
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if err := conforms(dec, reflect.TypeOf(v).Elem()); err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return prego.Errorf(prego.CodeInvalidJSON, "the body cannot be read as this request")
	}
	return nil
}

// under moves an error in a value to the field that holds the value. Paths are built on the way back from an
// error: to build one for each value of a valid body would cost more than reading it.
func under(field string, err error) error {
	var e *prego.Error
	if !errors.As(err, &e) || e.Code == prego.CodeInvalidJSON {
		return err
	}
	switch {
	case e.Field == "":
		e.Field = field
	case e.Field[0] == '[':
		e.Field = field + e.Field
	default:
		e.Field = field + "." + e.Field
	}
	return err
}

// conforms reads one value from dec and checks it against its Go type, which bounds the
// depth.
func conforms(dec *json.Decoder, want reflect.Type) error {
	t, err := dec.Token()
	if err != nil {
		return prego.Errorf(prego.CodeInvalidJSON, "the body is not one valid JSON document")
	}
	if want.Kind() == reflect.Pointer {
		if t == nil {
			return nil // a field that may be null
		}
		want = want.Elem()
	}
	if want == anyObject {
		if t != json.Delim('{') {
			return prego.Invalid("", "must be an object, not "+tokenKind(t))
		}
		return wellFormed(dec, 0)
	}
	if _, nested := t.(json.Delim); !nested && t != nil && reflect.PointerTo(want).Implements(readsItself) {
		return readByItself(t, want)
	}
	switch v := t.(type) {
	case json.Delim:
		if v == '{' && want.Kind() == reflect.Struct {
			return conformsToStruct(dec, want)
		}
		if v == '{' && want.Kind() == reflect.Map {
			return conformsToMap(dec, want.Elem())
		}
		if v == '[' && want.Kind() == reflect.Slice {
			for i := 0; dec.More(); i++ {
				if err := conforms(dec, want.Elem()); err != nil {
					return under(index(i), err)
				}
			}
			_, err := dec.Token() // the closing bracket
			return err
		}
	case string:
		if want.Kind() == reflect.String {
			return nil
		}
	case bool:
		if want.Kind() == reflect.Bool {
			return nil
		}
	case json.Number:
		if want.Kind() == reflect.Float64 {
			if f, err := v.Float64(); err == nil && !math.IsInf(f, 0) {
				return nil
			}
		}
		if want.Kind() == reflect.Int64 {
			if _, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
				return nil
			}
		}
		if want.Kind() == reflect.Int {
			if _, err := strconv.Atoi(v.String()); err == nil {
				return nil
			}
		}
	}
	return prego.Invalid("", fmt.Sprintf("must be %s, not %s", kindOf(want), tokenKind(t)))
}

// readsItself is a type that knows which numbers and texts it accepts.
var readsItself = reflect.TypeFor[json.Unmarshaler]()

func readByItself(t json.Token, want reflect.Type) error {
	b, err := json.Marshal(t)
	if err == nil {
		err = json.Unmarshal(b, reflect.New(want).Interface())
	}
	if err != nil {
		return prego.Invalid("", "cannot be read: "+err.Error())
	}
	return nil
}

// anyObject is an object whose fields are checked elsewhere.
var anyObject = reflect.TypeFor[json.RawMessage]()

// wellFormed reads the rest of an object, and rejects duplicate fields and null at any
// depth.
func wellFormed(dec *json.Decoder, depth int) error {
	if depth > 16 {
		return prego.Invalid("", "is nested too deep")
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		name, _ := t.(string)
		if err != nil {
			return prego.Errorf(prego.CodeInvalidJSON, "the body is not one valid JSON document")
		}
		if seen[name] {
			return givenTwice(name)
		}
		seen[name] = true
		if err := wellFormedValue(dec, depth); err != nil {
			return under(shown(name), err)
		}
	}
	_, err := dec.Token() // the closing brace
	return err
}

func wellFormedValue(dec *json.Decoder, depth int) error {
	t, err := dec.Token()
	switch {
	case err != nil:
		return prego.Errorf(prego.CodeInvalidJSON, "the body is not one valid JSON document")
	case t == nil:
		return prego.Invalid("", "must not be null")
	case t == json.Delim('{'):
		return wellFormed(dec, depth+1)
	case t == json.Delim('['):
		if depth > 16 {
			return prego.Invalid("", "is nested too deep")
		}
		for i := 0; dec.More(); i++ {
			if err := wellFormedValue(dec, depth+1); err != nil {
				return under(index(i), err)
			}
		}
		_, err := dec.Token() // the closing bracket
		return err
	}
	return nil
}

func conformsToStruct(dec *json.Decoder, want reflect.Type) error {
	fields := make(map[string]reflect.Type, want.NumField())
	for f := range want.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields[name] = f.Type
	}
	seen := make(map[string]bool, len(fields))
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return prego.Errorf(prego.CodeInvalidJSON, "the body is not one valid JSON document")
		}
		name, _ := key.(string) // keys of valid JSON are strings
		field, known := fields[name]
		switch {
		case !known:
			return &prego.Error{Code: prego.CodeUnknownField, Field: shown(name), Message: "is not a field of this request" + suggestion(fields, name)}
		case seen[name]:
			return givenTwice(name)
		}
		seen[name] = true
		if err := conforms(dec, field); err != nil {
			return under(shown(name), err)
		}
	}
	_, err := dec.Token() // the closing brace
	return err
}

func conformsToMap(dec *json.Decoder, want reflect.Type) error {
	seen := make(map[string]bool)
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return prego.Errorf(prego.CodeInvalidJSON, "the body is not one valid JSON document")
		}
		name, _ := key.(string)
		if seen[name] {
			return givenTwice(name)
		}
		seen[name] = true
		if err := conforms(dec, want); err != nil {
			return under(shown(name), err)
		}
	}
	_, err := dec.Token() // the closing brace
	return err
}

func givenTwice(name string) error {
	return &prego.Error{Code: prego.CodeDuplicateField, Field: shown(name), Message: "is given twice"}
}

func index(i int) string { return "[" + strconv.Itoa(i) + "]" }

// suggestion names the field that only differs in case.
func suggestion(fields map[string]reflect.Type, name string) string {
	for known := range fields {
		if strings.EqualFold(known, name) {
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

func tokenKind(t json.Token) string {
	switch v := t.(type) {
	case json.Delim:
		if v == '{' {
			return "an object"
		}
		return "a list"
	case json.Number:
		return "the number " + shown(v.String())
	case string:
		return "a string"
	case bool:
		return "a boolean"
	}
	return "null"
}

func joinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
