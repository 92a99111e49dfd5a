package api

import (
	"bytes"
	"encoding/json"
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
	if err := conforms(dec, reflect.TypeOf(v).Elem(), ""); err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return prego.Errorf(prego.CodeInvalidJSON, "the body cannot be read as this request")
	}
	return nil
}

// conforms reads one value from dec and checks it against its Go type, which bounds the
// depth.
func conforms(dec *json.Decoder, want reflect.Type, path string) error {
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
			return prego.Invalid(path, "must be an object, not "+tokenKind(t))
		}
		return wellFormed(dec, path, 0)
	}
	if _, nested := t.(json.Delim); !nested && t != nil && reflect.PointerTo(want).Implements(readsItself) {
		return readByItself(t, want, path)
	}
	switch v := t.(type) {
	case json.Delim:
		if v == '{' && want.Kind() == reflect.Struct {
			return conformsToStruct(dec, want, path)
		}
		if v == '{' && want.Kind() == reflect.Map {
			return conformsToMap(dec, want.Elem(), path)
		}
		if v == '[' && want.Kind() == reflect.Slice {
			for i := 0; dec.More(); i++ {
				if err := conforms(dec, want.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
					return err
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
		if want.Kind() == reflect.Int64 {
			if _, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
				return nil
			}
		}
	}
	return prego.Invalid(path, fmt.Sprintf("must be %s, not %s", kindOf(want), tokenKind(t)))
}

// readsItself is a type that knows which numbers and texts it accepts.
var readsItself = reflect.TypeFor[json.Unmarshaler]()

func readByItself(t json.Token, want reflect.Type, path string) error {
	b, err := json.Marshal(t)
	if err == nil {
		err = json.Unmarshal(b, reflect.New(want).Interface())
	}
	if err != nil {
		return prego.Invalid(path, "cannot be read: "+err.Error())
	}
	return nil
}

// anyObject is an object whose fields are checked elsewhere.
var anyObject = reflect.TypeFor[json.RawMessage]()

// wellFormed reads the rest of an object, and rejects duplicate fields and null at any
// depth.
func wellFormed(dec *json.Decoder, path string, depth int) error {
	if depth > 16 {
		return prego.Invalid(path, "is nested too deep")
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		name, _ := t.(string)
		if err != nil {
			return prego.Errorf(prego.CodeInvalidJSON, "the body is not one valid JSON document")
		}
		at := joinPath(path, shown(name))
		if seen[name] {
			return &prego.Error{Code: prego.CodeDuplicateField, Field: at, Message: "is given twice"}
		}
		seen[name] = true
		if err := wellFormedValue(dec, at, depth); err != nil {
			return err
		}
	}
	_, err := dec.Token() // the closing brace
	return err
}

func wellFormedValue(dec *json.Decoder, path string, depth int) error {
	t, err := dec.Token()
	switch {
	case err != nil:
		return prego.Errorf(prego.CodeInvalidJSON, "the body is not one valid JSON document")
	case t == nil:
		return prego.Invalid(path, "must not be null")
	case t == json.Delim('{'):
		return wellFormed(dec, path, depth+1)
	case t == json.Delim('['):
		if depth > 16 {
			return prego.Invalid(path, "is nested too deep")
		}
		for i := 0; dec.More(); i++ {
			if err := wellFormedValue(dec, fmt.Sprintf("%s[%d]", path, i), depth+1); err != nil {
				return err
			}
		}
		_, err := dec.Token() // the closing bracket
		return err
	}
	return nil
}

func conformsToStruct(dec *json.Decoder, want reflect.Type, path string) error {
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
		at := joinPath(path, shown(name))
		switch {
		case !known:
			return &prego.Error{Code: prego.CodeUnknownField, Field: at, Message: "is not a field of this request" + suggestion(fields, name)}
		case seen[name]:
			return &prego.Error{Code: prego.CodeDuplicateField, Field: at, Message: "is given twice"}
		}
		seen[name] = true
		if err := conforms(dec, field, at); err != nil {
			return err
		}
	}
	_, err := dec.Token() // the closing brace
	return err
}

func conformsToMap(dec *json.Decoder, want reflect.Type, path string) error {
	seen := make(map[string]bool)
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return prego.Errorf(prego.CodeInvalidJSON, "the body is not one valid JSON document")
		}
		name, _ := key.(string)
		at := joinPath(path, shown(name))
		if seen[name] {
			return &prego.Error{Code: prego.CodeDuplicateField, Field: at, Message: "is given twice"}
		}
		seen[name] = true
		if err := conforms(dec, want, at); err != nil {
			return err
		}
	}
	_, err := dec.Token() // the closing brace
	return err
}

// suggestion names the field that only differs in case.
func suggestion(fields map[string]reflect.Type, name string) string {
	for known := range fields {
		if strings.EqualFold(known, name) {
			return "; did you mean " + known + "?"
		}
	}
	return ""
}

// shown is a name from a request, short and free of secrets, for an answer or a log.
func shown(name string) string {
	const most = 64
	name = prego.Redact(name)
	if utf8.RuneCountInString(name) > most {
		return string([]rune(name)[:most]) + "…"
	}
	return name
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
