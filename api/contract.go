package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops/impact"
)

// contract is openapi.yaml, prepared for checking requests.
type contract struct {
	doc *openapi3.T
	ops map[string]*operation // by method and echo's form of the path
	ids map[string]*operation // by operationId
}

// operation is one method of one path.
type operation struct {
	*openapi3.Operation
	parameters []*openapi3.Parameter
	body       *openapi3.Schema // nil for operations without one
	optional   bool             // the body is optional
	maxBody    int64            // bytes
	// idempotency is how a request repeated with its key is handled.
	idempotency string
	long        bool // it may take minutes
	// changesNothing is that of a question that is no GET (x-changes: nothing): viewers may ask it,
	// and the audit has no entry for it.
	changesNothing bool
	// bound is the worst that it may do (x-impact); "" for a GET.
	bound impact.Class
	// capability is what it requires (x-capability); "" if it is open, or about the caller.
	capability access.Capability
	// orgOf is where the orgs of its objects are found (x-org-of), as inReach reads it.
	orgOf      []string
	tokenInURL bool // it takes a token as a parameter
	// operators are the fields of its body that only operators may set (x-operators).
	operators []string
}

// maxBody is the maximum body size, in bytes, unless the contract sets another
// (x-max-body).
const maxBody = 64 << 10

// mostErrors is how many invalid fields an answer lists. Thousands of invalid fields have one
// cause, and reporting a field costs much more than reading it.
const mostErrors = 20

var pathParameter = regexp.MustCompile(`\{([^}]+)\}`)

// embedded is the contract of this build. Reading it costs 100 ms of CPU, and it is never
// changed.
var embedded = sync.OnceValue(func() *contract {
	k, err := loadContract(spec)
	if err != nil {
		panic("api: " + err.Error())
	}
	return k
})

// loadContract reads the contract, which is embedded and therefore valid.
func loadContract(spec []byte) (*contract, error) {
	doc, err := openapi3.NewLoader().LoadFromData(spec)
	if err != nil {
		return nil, fmt.Errorf("contract: %w", err)
	}
	out := &contract{doc: doc, ops: map[string]*operation{}, ids: map[string]*operation{}}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			o := &operation{Operation: op, maxBody: maxBody}
			for _, p := range append(slices.Clone(item.Parameters), op.Parameters...) {
				o.parameters = append(o.parameters, p.Value)
				o.tokenInURL = o.tokenInURL || p.Value.Name == tokenInURL
			}
			if b := op.RequestBody; b != nil {
				o.body, o.optional = b.Value.Content["application/json"].Schema.Value, !b.Value.Required
			}
			o.idempotency, _ = op.Extensions["x-idempotency"].(string)
			o.long, _ = op.Extensions["x-long"].(bool)
			o.changesNothing = op.Extensions["x-changes"] == "nothing"
			bound, _ := op.Extensions["x-impact"].(string)
			o.bound = impact.Class(bound)
			capability, _ := op.Extensions["x-capability"].(string)
			o.capability = access.Capability(capability)
			o.orgOf, o.operators = words(op.Extensions["x-org-of"]), words(op.Extensions["x-operators"])
			if most, ok := op.Extensions["x-max-body"].(float64); ok {
				o.maxBody = int64(most)
			}
			out.ops[method+" "+pathParameter.ReplaceAllString(path, ":$1")], out.ids[op.OperationID] = o, o
		}
	}
	return out, nil
}

// words are those of an extension that is one word or a list.
func words(extension any) (out []string) {
	switch x := extension.(type) {
	case string:
		return []string{x}
	case []any:
		for _, word := range x {
			out = append(out, fmt.Sprint(word))
		}
	}
	return out
}

// operation returns the operation that a request was routed to, nil if the contract has
// none.
func (k *contract) operation(c echo.Context) *operation {
	return k.ops[c.Request().Method+" "+c.Path()]
}

// bodyKey is where a checked body is stored in the context.
const bodyKey = "api.body"

// check rejects requests that violate the contract, with their first errors, before any
// handler sees them.
func (a *API) check(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		op := a.contract.operation(c)
		if op == nil {
			return next(c)
		}
		op.joinLists(c)
		wrong := op.checkParameters(c)
		if op.body != nil && (len(wrong) == 0 || wrong[0].Field != "query") {
			body, err := op.readBody(c)
			if err != nil && len(wrong) == 0 {
				return err
			}
			if err := c.Request().Context().Err(); err != nil {
				return err // the caller has gone, and a large body takes long to check
			}
			if err == nil {
				wrong = append(wrong, op.checkBody(body)...)
			}
			c.Set(bodyKey, body)
		}
		if op.body == nil && hasBody(c.Request()) {
			// Who sends one expects something of it.
			wrong = append(wrong, &prego.Error{Code: prego.CodeUnknownField, Field: "body", Message: "is not part of this request"})
		}
		if len(wrong) > 0 {
			return &fieldErrors{all: wrong[:min(len(wrong), mostErrors)]}
		}
		return next(c)
	}
}

// joinLists accepts a list that repeats its parameter, as many clients send it, like one with commas.
func (o *operation) joinLists(c echo.Context) {
	query, joined := c.QueryParams(), false
	for _, p := range o.parameters {
		given := query[p.Name]
		if len(given) > 1 && p.In == openapi3.ParameterInQuery && p.Schema.Value.Type.Is(openapi3.TypeArray) {
			query[p.Name], joined = []string{strings.Join(given, ",")}, true
		}
	}
	if joined {
		c.Request().URL.RawQuery = query.Encode()
	}
}

// fieldErrors are the errors in a request's fields; as a *prego.Error it is the first.
type fieldErrors struct{ all []*prego.Error }

func (e *fieldErrors) Error() string { return e.all[0].Error() }
func (e *fieldErrors) Unwrap() error { return e.all[0] }

// checkParameters checks path, query and headers. Unknown query parameters are
// rejected, so that a misspelt filter does not look like a full answer.
func (o *operation) checkParameters(c echo.Context) (wrong []*prego.Error) {
	query, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return []*prego.Error{prego.Invalid("query", "is not valid")}
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if len(wrong) == mostErrors {
			break
		}
		if !slices.ContainsFunc(o.parameters, func(p *openapi3.Parameter) bool { return p.In == openapi3.ParameterInQuery && p.Name == name }) {
			wrong = append(wrong, &prego.Error{Code: prego.CodeUnknownField, Field: shown(name), Message: "is not a parameter of this request"})
		}
	}
	in := &openapi3filter.RequestValidationInput{
		Request: c.Request(), PathParams: map[string]string{}, QueryParams: query,
		Options: &openapi3filter.Options{SkipSettingDefaults: true},
	}
	for i, name := range c.ParamNames() {
		value, err := url.PathUnescape(c.ParamValues()[i])
		if err != nil {
			value = c.ParamValues()[i]
		}
		in.PathParams[name] = value
	}
	for _, p := range o.parameters {
		given := 1
		switch p.In {
		case openapi3.ParameterInQuery:
			given = len(query[p.Name])
		case openapi3.ParameterInHeader:
			given = len(c.Request().Header.Values(p.Name))
		}
		switch err := openapi3filter.ValidateParameter(context.Background(), in, p); {
		case p.In == openapi3.ParameterInQuery && strings.ContainsFunc(query.Get(p.Name), noText):
			wrong = append(wrong, prego.Invalid(p.Name, "must be text in UTF-8 without NUL"))
		case given > 1:
			wrong = append(wrong, prego.Invalid(p.Name, "is given twice"))
		case err != nil:
			e := prego.Invalid(p.Name, "is not a valid value for this parameter")
			if all := schemaErrors(err); len(all) > 0 {
				e.Message = describe(all[0])
			}
			wrong = append(wrong, e)
		}
	}
	return inOrder(wrong)
}

// hasBody reports whether a request has a body; it reads a body of unknown length.
func hasBody(r *http.Request) bool {
	if r.ContentLength >= 0 {
		return r.ContentLength > 0
	}
	n, _ := r.Body.Read(make([]byte, 1))
	return n > 0
}

// noText finds what Postgres cannot store as text. Invalid UTF-8 is read as
// utf8.RuneError.
func noText(r rune) bool { return r == 0 || r == utf8.RuneError }

// readBody reads a JSON body of limited size, nil if it is absent and optional.
func (o *operation) readBody(c echo.Context) ([]byte, error) {
	r := c.Request()
	if o.optional && r.ContentLength == 0 {
		return nil, nil
	}
	if e := r.Header.Get(echo.HeaderContentEncoding); e != "" && !strings.EqualFold(e, "identity") {
		return nil, prego.Errorf(prego.CodeUnsupportedMedia, "the body must not be compressed: Content-Encoding %q is not supported", shown(e))
	}
	mt, params, err := mime.ParseMediaType(r.Header.Get(echo.HeaderContentType))
	if charset := params["charset"]; err != nil || mt != echo.MIMEApplicationJSON || (charset != "" && !strings.EqualFold(charset, "utf-8")) {
		return nil, prego.Errorf(prego.CodeUnsupportedMedia, "the body must be application/json in UTF-8")
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), r.Body, o.maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, prego.Errorf(prego.CodeBodyTooLarge, "the body may hold at most %s", sizeText(o.maxBody))
	}
	if err != nil {
		return nil, prego.Errorf(prego.CodeInvalidJSON, "the body could not be read to its end")
	}
	return body, checkJSON(body)
}

// mostChecked is how many values a body may hold that is checked for all its errors. Others are checked up to their
// first error, since the validator collects all errors before it returns.
const mostChecked = 2_000

// checkBody checks a body against its schema.
func (o *operation) checkBody(body []byte) (wrong []*prego.Error) {
	var v any
	if body == nil || json.Unmarshal(body, &v) != nil {
		return nil
	}
	// An error is not printed with its value, which for one that nests deep takes the square of its length.
	options := []openapi3.SchemaValidationOption{openapi3.VisitAsRequest(), openapi3.DisableSchemaErrorDetails()}
	if valuesIn(body) <= mostChecked {
		options = append(options, openapi3.MultiErrors())
	}
	seen := map[string]bool{} // one error per field is enough
	for _, e := range schemaErrors(o.body.VisitJSON(v, options...)) {
		if len(wrong) == mostErrors {
			break
		}
		if found := fieldError(e); !seen[found.Field] {
			seen[found.Field] = true
			wrong = append(wrong, found)
		}
	}
	return inOrder(wrong)
}

// inOrder sorts errors: first the request as a whole, then by field.
func inOrder(wrong []*prego.Error) []*prego.Error {
	slices.SortStableFunc(wrong, func(x, y *prego.Error) int {
		if d := statusOf(x) - statusOf(y); d != 0 {
			return d
		}
		return strings.Compare(x.Field, y.Field)
	})
	return wrong
}

// schemaErrors returns the individual errors in the validator's error.
func schemaErrors(err error) (out []*openapi3.SchemaError) {
	var many openapi3.MultiError
	var one *openapi3.SchemaError
	switch {
	case errors.As(err, &many):
		for _, e := range many {
			out = append(out, schemaErrors(e)...)
		}
	case errors.As(err, &one):
		out = append(out, one)
	}
	return out
}

// fieldError converts a validator error.
func fieldError(e *openapi3.SchemaError) *prego.Error {
	at := fieldPath(slices.Values(e.JSONPointer()))
	out := prego.Invalid(at, describe(e))
	s := e.Schema
	switch path := e.JSONPointer(); e.SchemaField {
	case "required":
		s = s.Properties[path[len(path)-1]].Value
	case "minProperties":
		out.Field = joinPath(at, slices.Min(slices.Collect(maps.Keys(s.Properties))))
		out.Message = "is required, where nothing else is given"
	case "properties": // an unknown field, which only the reason names
		quoted, _ := strconv.QuotedPrefix(strings.TrimPrefix(e.Reason, "property "))
		name, _ := strconv.Unquote(quoted)
		out.Code, out.Field, out.Message = prego.CodeUnknownField, joinPath(at, shown(name)), "is not a field of this request"
		for known := range s.Properties {
			if strings.EqualFold(known, name) {
				out.Message += "; did you mean " + known + "?"
			}
		}
	}
	if code, ok := s.Extensions["x-code"].(string); ok && (e.SchemaField == "enum" || e.SchemaField == "required") {
		out.Code = prego.Code(code)
	}
	return out
}

// describe continues a field's name: the contract's own words for what a value must be (x-message), or the rule that
// it breaks.
func describe(e *openapi3.SchemaError) string {
	s := e.Schema
	name := ""
	if path := e.JSONPointer(); len(path) > 0 {
		name = path[len(path)-1]
	}
	switch e.SchemaField {
	case "required":
		return "is required"
	case "nullable":
		return "must not be null"
	case "type":
		if own, _ := s.Extensions["x-message"].(string); own == "" || !s.Type.Is(openapi3.TypeInteger) {
			return "must be " + typeName(s) + ", not " + jsonKind(e.Value)
		}
	case "minLength", "maxLength":
		return "must be " + lengthBounds(s)
	case "minItems", "maxItems":
		return "must be " + itemBounds(s)
	case "uniqueItems":
		return "must not hold a value twice"
	case "enum", "minimum", "maximum", "pattern":
	default:
		return e.Reason
	}
	return mustBe(name, s)
}

// mustBe is what a value must be beyond its type.
func mustBe(name string, s *openapi3.Schema) string {
	own, _ := s.Extensions["x-message"].(string)
	switch {
	case own != "":
		return own
	case len(s.Enum) > 0:
		return "must be one of " + strings.Join(choices(s), ", ")
	case s.Pattern != "":
		return inWords(s.Pattern)
	case s.Min != nil || s.Max != nil:
		return "must be " + figures(name, s)
	case s.MinLength > 0 || s.MaxLength != nil:
		return "must be " + lengthBounds(s)
	}
	return ""
}

// choices are the values of an enum, except the empty one.
func choices(s *openapi3.Schema) (out []string) {
	for _, v := range s.Enum {
		if v != "" {
			out = append(out, fmt.Sprint(v))
		}
	}
	return out
}

func lengthBounds(s *openapi3.Schema) string {
	return bounds(new(float64(s.MinLength)), number(s.MaxLength), plainFigure) + " characters"
}

func itemBounds(s *openapi3.Schema) string {
	return bounds(new(float64(s.MinItems)), number(s.MaxItems), plainFigure) + " items"
}

func number(n *uint64) *float64 {
	if n == nil {
		return nil
	}
	return new(float64(*n))
}

func bounds(least, most *float64, text func(float64) string) string {
	switch {
	case least != nil && most != nil:
		return text(*least) + " to " + text(*most)
	case least != nil:
		return "at least " + text(*least)
	case most != nil:
		return "at most " + text(*most)
	}
	return "of another size"
}

var typeNames = map[string]string{"object": "an object", "array": "a list", "integer": "a whole number", "number": "a number", "boolean": "a boolean", "string": "a string"}

func typeName(s *openapi3.Schema) string {
	if t := s.Type.Slice(); len(t) > 0 {
		return typeNames[t[0]]
	}
	return "of another type"
}

func jsonKind(v any) string {
	switch v.(type) {
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case nil:
		return "null"
	}
	return "a number"
}
