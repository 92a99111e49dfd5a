package api_test

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/tenant"
)

// areaTypes are types of areas that the contract's schemas show as they are. A view adds the fields that are named.
var areaTypes = map[string]struct {
	of    any
	added string
}{
	"Tenant":     {tenant.Tenant{}, "site_url site_health uptime storage last_restorable last_drill cost backup_due_since loss certificate allocation decision workflow_id run_url timeline"},
	"TenantMail": {tenant.MailSettings{}, ""},
}

// hidden are words of fields that no answer may have: they hold secrets, or what only the control plane knows.
var hidden = []string{"password", "secret", "token", "sealed", "private_key", "request_hash"}

type jsonField struct {
	optional bool
	of       reflect.Type
}

// fieldsOf are the fields that a struct has on the wire.
func fieldsOf(t *testing.T, typ reflect.Type) map[string]jsonField {
	t.Helper()
	out := map[string]jsonField{}
	for f := range typ.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			maps.Copy(out, fieldsOf(t, f.Type))
		case name == "-" || !f.IsExported():
		default:
			require.NotEmpty(t, name, "%s.%s has no name on the wire", typ, f.Name)
			out[name] = jsonField{strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero"), f.Type}
		}
	}
	return out
}

func jsonType(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[time.Time]() {
		return "string"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		return "array"
	}
	return "object"
}

// differences compares a type with a schema in both directions.
func differences(t *testing.T, typ reflect.Type, schema *openapi3.Schema, added []string) (out []string) {
	t.Helper()
	fields := fieldsOf(t, typ)
	for name, f := range fields {
		p := schema.Properties[name]
		if p == nil {
			out = append(out, name+" is not in the contract")
			continue
		}
		if required := slices.Contains(schema.Required, name); required == f.optional {
			out = append(out, name+" is required in one of both")
		}
		if of := jsonType(f.of); p.Value.Type != nil && !p.Value.Type.Is(of) {
			out = append(out, name+" is "+of+" in Go")
		}
		if slices.ContainsFunc(hidden, func(word string) bool { return strings.Contains(name, word) }) {
			out = append(out, name+" must be hidden")
		}
	}
	for name := range schema.Properties {
		if _, ok := fields[name]; !ok && !slices.Contains(added, name) {
			out = append(out, name+" is not in the type")
		}
	}
	slices.Sort(out)
	return out
}

func TestAreaTypesAreTheContracts(t *testing.T) {
	t.Parallel()
	schemas := contract(t).Components.Schemas
	for name, a := range areaTypes {
		require.NotNil(t, schemas[name], name)
		require.Empty(t, differences(t, reflect.TypeOf(a.of), schemas[name].Value, strings.Fields(a.added)), name)
	}
}

// TestDifferencesOfAreaTypesAreFound has a type that differs from a schema in each way.
func TestDifferencesOfAreaTypesAreFound(t *testing.T) {
	t.Parallel()
	type wrong struct {
		Server   int     `json:"server"`
		Port     int     `json:"port,omitempty"`
		TLS      bool    `json:"-"`
		Login    *string `json:"login,omitempty"`
		Password string  `json:"password"`
		Sender   string  `json:"sender"`
	}
	require.Equal(t, []string{
		"password is not in the contract", "port is required in one of both", "sender_name is not in the type", "server is integer in Go", "tls is not in the type",
	}, differences(t, reflect.TypeFor[wrong](), contract(t).Components.Schemas["TenantMail"].Value, nil))
	require.Contains(t, differences(t, reflect.TypeFor[wrong](), &openapi3.Schema{Properties: openapi3.Schemas{"password": contract(t).Components.Schemas["OrgID"]}}, nil), "password must be hidden")
}
