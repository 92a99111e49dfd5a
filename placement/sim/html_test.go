package sim_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/placement"
	"github.com/prego/prego/placement/sim"
	"github.com/prego/prego/tenant"
)

var (
	tag       = regexp.MustCompile(`<(/?)([a-zA-Z][a-zA-Z0-9]*)((?:\s+[a-zA-Z][a-zA-Z0-9:-]*(?:="[^"<]*")?)*)\s*(/?)>`)
	attribute = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9:-]*)="([^"]*)"`)
	style     = regexp.MustCompile(`(?s)<style>.*?</style>`)
)

// wellFormed checks an HTML5 page: every element that needs an end has it, in order; ids are unique, and every label
// refers to one.
func wellFormed(t *testing.T, page string) {
	t.Helper()
	require.True(t, strings.HasPrefix(page, "<!DOCTYPE html>\n<html lang=\"en\">"))
	page = style.ReplaceAllString(strings.TrimPrefix(page, "<!DOCTYPE html>"), "<style></style>")
	rest := tag.ReplaceAllString(page, "")
	if at := strings.IndexByte(rest, '<'); at >= 0 {
		require.Fail(t, "this looks like a tag and is none", rest[at:min(len(rest), at+80)])
	}
	var open []string
	ids, labels := map[string]bool{}, []string{}
	for _, m := range tag.FindAllStringSubmatch(page, -1) {
		name := m[2]
		if m[1] == "/" {
			require.NotEmpty(t, open, "</%s>", name)
			require.Equal(t, open[len(open)-1], name)
			open = open[:len(open)-1]
			continue
		}
		for _, a := range attribute.FindAllStringSubmatch(m[3], -1) {
			switch a[1] {
			case "id":
				require.False(t, ids[a[2]], "id %s is there twice", a[2])
				ids[a[2]] = true
			case "aria-labelledby":
				labels = append(labels, strings.Fields(a[2])...)
			case "src", "href", "style", "onload":
				require.Fail(t, "the page stands alone", m[0])
			}
		}
		if void := name == "meta"; void || m[4] == "/" {
			require.True(t, void || slices.Contains([]string{"line", "polyline"}, name), "only a void or an SVG element closes itself: %s", name)
			continue
		}
		open = append(open, name)
	}
	require.Empty(t, open)
	require.NotEmpty(t, labels)
	for _, l := range labels {
		require.True(t, ids[l], "label %s", l)
	}
	require.Equal(t, strings.Count(page, "<svg "), strings.Count(page, `role="img" aria-labelledby=`))
}

func TestPage(t *testing.T) {
	t.Parallel()
	everyPolicy(t, func(t *testing.T, mode tenant.PlacementMode, a placement.Algorithm) {
		r := play(t, config(900, mode, a), 11)
		_, html, _ := rendered(t, r)
		wellFormed(t, html)
		require.True(t, strings.Contains(html, "prefers-color-scheme: dark"))
		require.False(t, strings.Contains(html, "http"))
		require.False(t, strings.Contains(html, "ZgotmplZ"))
		require.Less(t, len(html), 1<<20)
		require.True(t, strings.Contains(html, `id="heat-sg-t"`))
		require.True(t, strings.Contains(html, "data_residency_violation"))
	})
}

func TestPageEscapes(t *testing.T) {
	t.Parallel()
	r := sim.Report{
		Algorithm: `"><script>alert(1)</script>`, Rejected: []sim.Reason{{Name: `<b title="x">&`, Count: 1}},
		Violations: []string{`</main><img src=x onerror=alert(1)>`}, Heat: []sim.RegionHeat{{Region: "eu", MemoryPct: []float64{1, 2}}},
	}
	_, html, _ := rendered(t, r)
	wellFormed(t, html)
	require.False(t, strings.Contains(html, "<script"))
	require.False(t, strings.Contains(html, "<img"))
	require.True(t, strings.Contains(html, "1 violated"))
}
