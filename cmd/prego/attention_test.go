package main

import (
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/attention"
)

var placeholder = regexp.MustCompile(`\{[a-z_]+\}`)

// TestActionsOfAttentionAreThere: each command is one of the program's, and each request one of
// the contract's; and the contract knows each kind.
func TestActionsOfAttentionAreThere(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../api/openapi.yaml")
	require.NoError(t, err)
	doc, err := openapi3.NewLoader().LoadFromData(text)
	require.NoError(t, err)
	require.Equal(t, enum(doc, "AttentionKind"), sorted(prego.Strings(attention.Kinds())))
	require.Equal(t, enum(doc, "Severity"), sorted(prego.Strings(attention.Severities())))

	operation := func(a attention.Action) *openapi3.Operation {
		path, _, _ := strings.Cut(a.Path, "?")
		path = placeholder.ReplaceAllString(path, "{}")
		if strings.HasPrefix(path, "/v1/operations/") {
			path = "/v1/operations/{}"
		}
		for _, template := range doc.Paths.InMatchingOrder() {
			if placeholder.ReplaceAllString(template, "{}") == path {
				return doc.Paths.Value(template).GetOperation(a.Method)
			}
		}
		return nil
	}
	for kind, actions := range attention.AllActions() {
		for _, a := range actions {
			o := operation(a)
			require.NotNil(t, o, "%s: the contract has no %s %s", kind, a.Method, a.Path)
			if a.Body == nil {
				require.False(t, o.RequestBody != nil && o.RequestBody.Value.Required, "%s: body of %s %s", kind, a.Method, a.Path)
			} else {
				require.NotNil(t, o.RequestBody, "%s: body of %s %s", kind, a.Method, a.Path)
				require.NoError(t, o.RequestBody.Value.Content.Get("application/json").Schema.Value.VisitJSON(a.Body), "%s: body of %s %s", kind, a.Method, a.Path)
			}
			u, err := url.Parse(strings.NewReplacer("{by}", "eu").Replace(a.Path))
			require.NoError(t, err)
			for name, values := range u.Query() {
				p := o.Parameters.GetByInAndName("query", name)
				require.NotNil(t, p, "%s: %s has no parameter %s", kind, a.Path, name)
				for v := range strings.SplitSeq(values[0], ",") {
					schema := p.Schema.Value
					if schema.Items != nil {
						schema = schema.Items.Value
					}
					if len(schema.Enum) > 0 {
						require.Contains(t, schema.Enum, any(v), "%s: %s", kind, a.Path)
					}
				}
			}

			words := strings.Fields(strings.NewReplacer("{id}", "x-1", "{by}", "eu", "{org}", "acme", "{owner}", "y").Replace(a.CLI))
			require.Equal(t, "prego", words[0], a.CLI)
			cmd, rest, err := newRoot().Find(words[1:])
			require.NoError(t, err, a.CLI)
			require.True(t, cmd.Runnable(), a.CLI)
			require.NoError(t, cmd.ParseFlags(rest), a.CLI)
			require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), a.CLI)
		}
	}
}

func enum(doc *openapi3.T, schema string) []string {
	var out []string
	for _, v := range doc.Components.Schemas[schema].Value.Enum {
		out = append(out, v.(string))
	}
	return sorted(out)
}

func sorted(values []string) []string { return slices.Sorted(slices.Values(values)) }
