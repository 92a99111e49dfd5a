package api

import (
	"cmp"
	"context"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
)

// viewOf is an area's value in the type of the contract that shows it. A field of the contract's type is filled from
// the field with that name on the wire, or else with that name (org_id from OrgID), and workflow_id from the method
// WorkflowID. Times are in UTC, lists and maps are never null, and an optional field is left out if the area's value is
// zero; a pointer is left out only if it is nil. Fields without a counterpart of a like type stay empty for the caller
// to fill: a test lists them.
func viewOf[V, T any](v T) (out V) {
	fill(reflect.ValueOf(&out).Elem(), reflect.ValueOf(v))
	return out
}

// fill reports whether the two are of like types.
func fill(to, from reflect.Value) bool {
	switch {
	case to.Kind() == reflect.Pointer && from.Kind() != reflect.Pointer && empty(from),
		from.Kind() == reflect.Pointer && from.IsNil():
	case to.Kind() == reflect.Pointer:
		value := reflect.New(to.Type().Elem())
		if !fill(value.Elem(), reflect.Indirect(from)) {
			return false
		}
		to.Set(value)
	case from.Kind() == reflect.Pointer:
		return fill(to, from.Elem())
	case to.Type() == reflect.TypeFor[time.Time]() && from.Type() == to.Type():
		to.Set(reflect.ValueOf(from.Interface().(time.Time).UTC()))
	case to.Kind() == reflect.Slice && from.Kind() == reflect.Slice && to.Type().Elem().Kind() != reflect.Uint8:
		to.Set(reflect.MakeSlice(to.Type(), from.Len(), from.Len()))
		for i := range from.Len() {
			fill(to.Index(i), from.Index(i))
		}
	case to.Kind() == reflect.Map && from.Kind() == reflect.Map:
		to.Set(reflect.MakeMapWithSize(to.Type(), from.Len()))
		for k, v := range from.Seq2() {
			value := reflect.New(to.Type().Elem()).Elem()
			fill(value, v)
			to.SetMapIndex(k.Convert(to.Type().Key()), value)
		}
	case from.Type().AssignableTo(to.Type()):
		to.Set(from)
	case to.Kind() == reflect.Struct && from.Kind() == reflect.Struct:
		fields := fieldsByName(from.Type())
		for name, at := range fieldsByName(to.Type()) {
			if source, ok := fields[name]; ok {
				fill(to.FieldByIndex(at), from.FieldByIndex(source))
			}
		}
		if run, ok := from.Interface().(interface{ WorkflowID() string }); ok {
			if id := to.FieldByName("WorkflowId"); id.IsValid() {
				id.SetString(run.WorkflowID())
			}
		}
	case to.Kind() == from.Kind() && from.CanConvert(to.Type()), to.CanInt() && from.CanInt(), to.CanFloat() && from.CanFloat():
		to.Set(from.Convert(to.Type()))
	default:
		return false
	}
	return true
}

func empty(v reflect.Value) bool {
	return v.IsZero() || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0
}

var fieldNames sync.Map // of types that were shown: what fieldsByName found

// fieldsByName are the indexes of a struct's fields, with those of embedded structs, by the letters of their names.
func fieldsByName(t reflect.Type) map[string][]int {
	if known, ok := fieldNames.Load(t); ok {
		return known.(map[string][]int)
	}
	out := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && !f.Anonymous && name != "-" {
			out[strings.ToLower(strings.ReplaceAll(cmp.Or(name, f.Name), "_", ""))] = f.Index
		}
	}
	fieldNames.Store(t, out)
	return out
}

// started begins the run of an accepted request. If that fails, the request stays accepted: a look, a sweep or the
// reconciliation begins the run later.
func (a *API) started(c echo.Context, workflowID string, start func(ctx context.Context) error) {
	ctx, cancel := startContext(c)
	defer cancel()
	if err := start(ctx); err != nil {
		a.notStarted(c, workflowID, err)
	}
}

// accepted answers with an object of an accepted request, and with its operation: the contract's type has a field for
// that, and for the id of the run.
func accepted[T, V any](a *API, c echo.Context, v T, view func(T) V) error {
	out := view(v)
	shown := reflect.ValueOf(&out).Elem()
	fill(shown.FieldByName("Operation"), reflect.ValueOf(a.operation(c, shown.FieldByName("WorkflowId").String())))
	return c.JSON(http.StatusAccepted, out)
}
