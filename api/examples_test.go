package api_test

import (
	"strconv"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
)

// TestEveryOperationHasExamples: an example of each success with a body, and at least one refusal;
// each matches its schema, and a refusal has the schema of its code and
// status.
func TestEveryOperationHasExamples(t *testing.T) {
	t.Parallel()
	for path, item := range contract(t).Paths.Map() {
		for method, op := range item.Operations() {
			refusals := 0
			for status, r := range op.Responses.Map() {
				for kind, media := range r.Value.Content {
					name := method + " " + path + " " + status + " " + kind
					if media.Example != nil {
						require.NoError(t, media.Schema.Value.VisitJSON(media.Example, openapi3.VisitAsResponse()), name)
					}
					for code, e := range media.Examples {
						require.NoError(t, media.Schema.Value.VisitJSON(e.Value.Value, openapi3.VisitAsResponse()), "%s %s", name, code)
						if kind != "application/problem+json" {
							continue
						}
						problem := e.Value.Value.(map[string]any)
						require.Equal(t, code, problem["code"], name)
						require.Equal(t, status, strconv.Itoa(int(problem["status"].(float64))), "%s %s", name, code)
						refusals++
					}
					require.True(t, media.Example != nil || len(media.Examples) > 0, "%s has no example", name)
				}
			}
			if path != "/healthz" && path != "/readyz" { // they refuse nothing but too many requests
				require.Positive(t, refusals, "%s %s has no example of a refusal", method, path)
			}
			if b := op.RequestBody; b != nil {
				for kind, media := range b.Value.Content {
					if example := media.Schema.Value.Example; example != nil {
						require.NoError(t, media.Schema.Value.VisitJSON(example, openapi3.VisitAsRequest()), "%s %s %s", method, path, kind)
					}
				}
			}
		}
	}
}
