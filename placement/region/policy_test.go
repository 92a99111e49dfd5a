package region_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/region"
)

func refused(t require.TestingT, err error, code prego.Code, field string) {
	var e *prego.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, code, e.Code, e.Error())
	require.Equal(t, field, e.Field, e.Error())
}

func TestPolicyRefusals(t *testing.T) {
	t.Parallel()
	ok := region.Region{Name: "a", Weight: 100, Cap: -1}
	for name, c := range map[string]struct {
		regions []region.Region
		field   string
	}{
		"no region":         {nil, "p.regions"},
		"too many":          {make([]region.Region, 1001), "p.regions"},
		"empty name":        {[]region.Region{ok, {Weight: 1, Cap: -1}}, "p.regions[1].name"},
		"space":             {[]region.Region{{Name: "a b", Weight: 1}}, "p.regions[0].name"},
		"control character": {[]region.Region{{Name: "a\x00", Weight: 1}}, "p.regions[0].name"},
		"not UTF-8":         {[]region.Region{{Name: "\xff", Weight: 1}}, "p.regions[0].name"},
		"long name":         {[]region.Region{{Name: strings.Repeat("a", 256), Weight: 1}}, "p.regions[0].name"},
		"twice":             {[]region.Region{ok, ok}, "p.regions[1].name"},
		"negative weight":   {[]region.Region{{Name: "a", Weight: -1}}, "p.regions[0].weight"},
		"large weight":      {[]region.Region{{Name: "a", Weight: 1e9 + 1}}, "p.regions[0].weight"},
		"all weights 0":     {[]region.Region{{Name: "a"}, {Name: "b"}}, "p.regions"},
		"cap -2":            {[]region.Region{ok, {Name: "b", Weight: 1, Cap: -2}}, "p.regions[1].cap"},
		"large cap":         {[]region.Region{{Name: "a", Weight: 1, Cap: 1e9 + 1}}, "p.regions[0].cap"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, region.Policy{Regions: c.regions}.Validate("p"), prego.CodeInvalidField, c.field)
		})
	}
	require.EqualError(t, region.Policy{}.Validate("p"), "invalid_field: p.regions must name at least one region")
	require.NoError(t, region.Policy{Regions: []region.Region{ok, {Name: "b"}}}.Validate("p"))
	largest := region.Policy{Regions: []region.Region{{Name: strings.Repeat("a", 255), Weight: 1e9, Cap: 1e9}}}
	for i := range 999 {
		largest.Regions = append(largest.Regions, region.Region{Name: strconv.Itoa(i)})
	}
	require.NoError(t, largest.Validate("p"))
}
