package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/prego/prego"
)

// maxBody is the largest body that is read, in bytes.
const maxBody = 64 << 10

// decodeBody reads one JSON object into v and refuses everything that a lenient
// decoder would let pass: fields that are unknown, given twice (at any depth), or
// spelled in another case, wrong types, and anything after the object.
func decodeBody(w http.ResponseWriter, r *http.Request, v any) error {
	mt, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mt != "application/json" {
		return prego.Errorf(prego.CodeUnsupportedMedia, "the body must be application/json")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return prego.Errorf(prego.CodeBodyTooLarge, "the body may hold at most %d bytes", maxBody)
	}
	if err != nil {
		return prego.Errorf(prego.CodeInvalidJSON, "the body could not be read")
	}
	return decodeStrict(body, v)
}

func decodeStrict(body []byte, v any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return prego.Errorf(prego.CodeInvalidJSON, "a JSON body is required")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if err := noDuplicates(dec, ""); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return prego.Errorf(prego.CodeInvalidJSON, "the body holds more than one JSON document")
	}
	if bytes.TrimSpace(body)[0] != '{' {
		return prego.Errorf(prego.CodeInvalidJSON, "the body must be a JSON object")
	}
	strict := json.NewDecoder(bytes.NewReader(body))
	strict.DisallowUnknownFields()
	err := strict.Decode(v)
	var wrongType *json.UnmarshalTypeError
	switch {
	case err == nil:
		return exactNames(body, v)
	case errors.As(err, &wrongType):
		return prego.Invalid(wrongType.Field, fmt.Sprintf("must be %s, not a JSON %s", kindName(wrongType.Type.Kind().String()), wrongType.Value))
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		if unquoted, err := strconv.Unquote(name); err == nil {
			name = unquoted
		}
		return &prego.Error{Code: prego.CodeUnknownField, Field: name, Message: "is not a field of this request"}
	}
	return prego.Errorf(prego.CodeInvalidJSON, "the body is not valid JSON")
}

// exactNames refuses fields that were matched although their case differs: the
// standard decoder folds it, and then two spellings could be one field.
func exactNames(body []byte, v any) error {
	canonical, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	var sent, known map[string]any
	if err := errors.Join(json.Unmarshal(body, &sent), json.Unmarshal(canonical, &known)); err != nil {
		return prego.Errorf(prego.CodeInvalidJSON, "the body must be a JSON object")
	}
	return compareNames(sent, known, "")
}

func compareNames(sent, known map[string]any, path string) error {
	for name, value := range sent {
		if _, ok := known[name]; !ok {
			for k := range known {
				if strings.EqualFold(k, name) {
					return &prego.Error{Code: prego.CodeUnknownField, Field: join(path, name), Message: fmt.Sprintf("is not a field of this request; did you mean %s?", k)}
				}
			}
			continue // known, and left out of the canonical form because it is empty
		}
		a, okA := value.(map[string]any)
		b, okB := known[name].(map[string]any)
		if okA && okB {
			if err := compareNames(a, b, join(path, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func kindName(kind string) string {
	switch kind {
	case "struct", "map":
		return "an object"
	case "slice":
		return "a list"
	case "int":
		return "a whole number"
	}
	return "a " + kind
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// maxDepth bounds nesting: no request needs more than a few levels.
const maxDepth = 32

// noDuplicates walks one value and refuses an object that names a field twice.
func noDuplicates(dec *json.Decoder, path string) error {
	return walk(dec, path, 0)
}

func walk(dec *json.Decoder, path string, depth int) error {
	if depth > maxDepth {
		return prego.Errorf(prego.CodeInvalidJSON, "the body is nested too deeply")
	}
	t, err := dec.Token()
	if err != nil {
		return prego.Errorf(prego.CodeInvalidJSON, "the body is not valid JSON")
	}
	switch t {
	case json.Delim('{'):
		seen := make(map[string]bool)
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return prego.Errorf(prego.CodeInvalidJSON, "the body is not valid JSON")
			}
			name, _ := key.(string)
			if seen[name] {
				return &prego.Error{Code: prego.CodeDuplicateField, Field: join(path, name), Message: "is given twice"}
			}
			seen[name] = true
			if err := walk(dec, join(path, name), depth+1); err != nil {
				return err
			}
		}
	case json.Delim('['):
		for i := 0; dec.More(); i++ {
			if err := walk(dec, fmt.Sprintf("%s[%d]", path, i), depth+1); err != nil {
				return err
			}
		}
	default:
		return nil
	}
	if _, err := dec.Token(); err != nil { // the closing bracket
		return prego.Errorf(prego.CodeInvalidJSON, "the body is not valid JSON")
	}
	return nil
}
