package api

import (
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// TestEveryPatternHasWords: a refusal never shows a regular expression, and the words for a pattern are used.
func TestEveryPatternHasWords(t *testing.T) {
	t.Parallel()
	var doc any
	require.NoError(t, yaml.Unmarshal(spec, &doc))
	used := map[string]bool{}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if p, ok := v["pattern"].(string); ok && v["x-message"] == nil {
				used[p] = true
				require.NotContains(t, inWords(p), p)
			}
			for _, e := range v {
				walk(e)
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(doc)
	require.NotEmpty(t, used)
	for p := range patterns {
		require.True(t, used[p], "no pattern of the contract is %s", p)
	}
	require.Equal(t, "must be an id like grp-0123456789ab", inWords(`^grp-[0-9a-f]{12}$`))
}

func TestSizesAreShownWithUnits(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		10_000_000_000: "10 GB", 10_000_000_000_000: "10 TB", 6 << 20: "6 MiB", 64 << 30: "64 GiB", 64 << 10: "64 KiB",
		1: "1 bytes", 0: "0 bytes", 1536 << 20: "1536 MiB", 12345: "12345 bytes",
	} {
		require.Equal(t, want, sizeText(n))
	}
	s := openapi3.NewIntegerSchema().WithMin(1e10).WithMax(1e13)
	require.Equal(t, "10 GB to 10 TB", figures("size_bytes", s))
	require.Equal(t, "10000000000 to 10000000000000", figures("size", s))
}
