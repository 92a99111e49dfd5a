package console

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// noon is between two spans of five minutes.
var noon = time.Date(2026, 11, 24, 12, 2, 30, 0, time.UTC)

// sampleAt is a sample so many spans before the current one.
func sampleAt(spans int, fields string) string {
	return fmt.Sprintf(`{"at": %q%s}`, noon.Truncate(5*time.Minute).Add(-time.Duration(spans)*5*time.Minute).Format(time.RFC3339), fields)
}

func dayFrom(t testing.TB, samples ...string) *sampledDay {
	t.Helper()
	o, err := decoded([]byte(`{"every_seconds": 300, "samples": [` + strings.Join(samples, ",") + `]}`))
	require.NoError(t, err)
	return dayOf(o, noon)
}

func TestADayIsDrawn(t *testing.T) {
	t.Parallel()
	d := dayFrom(
		t,
		sampleAt(500, `, "load1": 99`), // of another day
		sampleAt(288, `, "load1": 0.5, "memory_pct": 0`),
		sampleAt(287, `, "load1": 2, "memory_pct": 100`),
		sampleAt(286, `, "load1": 1, "memory_pct": 41.26`),
		sampleAt(100, `, "load1": 0, "memory_pct": 41.26`), // alone
		sampleAt(2, `, "load1": 1, "memory_pct": 20, "disk_pct": 7`),
		sampleAt(1, `, "load1": 1.5, "disk_pct": 7`),
	)
	require.Equal(t, "5 min", d.Every)
	require.Equal(t, "23 h 30 min", d.Silent, "282 of the 288 spans since the first of that day")
	grid := "M0 30H288M72 0V60M144 0V60M216 0V60"
	require.Equal(t, []chart{
		{Name: "Load", Text: "now 1.50, lowest 0.00, highest 2.00", Path: "M0 45 1 0 2 30M188 60h1M286 30 287 15", Grid: grid, Width: 288, Height: 60},
		{Name: "Memory", Text: "12 min ago 20 %, lowest 0 %, highest 100 %", Path: "M0 60 1 0 2 35.2M188 35.2h1M286 48h1", Grid: grid, Width: 288, Height: 60},
		{Name: "Disk", Text: "now 7 %, lowest 7 %, highest 7 %", Path: "M286 55.8 287 55.8", Grid: grid, Width: 288, Height: 60},
	}, d.Charts)
}

func TestADayOfLittle(t *testing.T) {
	t.Parallel()
	require.Nil(t, dayFrom(t))
	require.Nil(t, dayFrom(t, sampleAt(289, `, "load1": 1`)), "of before")
	require.Nil(t, dayOf(object{}, noon))
	for spans, silent := range map[int]string{0: "", 1: "", 2: "5 min", 3: "10 min", 13: "1 h", 288: "23 h 55 min"} {
		d := dayFrom(t, sampleAt(spans, `, "load1": 0.25`))
		require.Equal(t, silent, d.Silent, "%d spans ago", spans)
		require.Equal(t, fmt.Sprintf("M%d 45h1", 288-spans), d.Charts[0].Path, "a load below 1 does not look high")
	}
	d := dayFrom(t, sampleAt(1, ``))
	require.Empty(t, d.Charts, "nothing is known of it")
}

// TestWhatIsDrawn: the line in the SVG has each sample, and a gap where there is none.
func TestWhatIsDrawn(t *testing.T) {
	t.Parallel()
	pieces, dots := regexp.MustCompile(`M[^M]+`), regexp.MustCompile(`(\d+) ([\d.]+)`)
	rapid.Check(t, func(rt *rapid.T) {
		every := time.Duration(rapid.SampledFrom([]int{1, 5, 15}).Draw(rt, "minutes")) * time.Minute
		from := noon.Add(-24 * time.Hour).Truncate(every)
		top := rapid.SampledFrom([]float64{1, 7.5, 100}).Draw(rt, "top")
		var points []point
		for x := 0; x <= int(24*time.Hour/every); x += rapid.SampledFrom([]int{1, 1, 1, 2, 40}).Draw(rt, "step") {
			points = append(points, point{from.Add(time.Duration(x) * every), rapid.Float64Range(0, 2*top).Draw(rt, "value")})
		}
		path := drawn(points, from, every, top)
		n := 0
		for _, piece := range pieces.FindAllString(path, -1) {
			found := dots.FindAllStringSubmatch(piece, -1)
			require.Equal(rt, strings.HasSuffix(piece, "h1"), len(found) == 1, piece)
			for i, dot := range found {
				x, err := strconv.Atoi(dot[1])
				require.NoError(rt, err)
				y, err := strconv.ParseFloat(dot[2], 64)
				require.NoError(rt, err)
				require.True(rt, points[n].at.Equal(from.Add(time.Duration(x)*every)), "%s: %d", path, n)
				require.InDelta(rt, chartHeight*(1-min(1, points[n].value/top)), y, 0.051)
				if i == 0 && n > 0 {
					require.Greater(rt, points[n].at.Sub(points[n-1].at), every, "a line is not interrupted without a gap")
				}
				if i > 0 {
					require.Equal(rt, every, points[n].at.Sub(points[n-1].at), "nor drawn over one")
				}
				n++
			}
		}
		require.Len(rt, points, n)
		require.LessOrEqual(rt, len(path), 11*len(points))
	})
}

// TestAFullDayIsSmall: a page has at most 100 KB.
func TestAFullDayIsSmall(t *testing.T) {
	t.Parallel()
	var samples []string
	for i := 288; i >= 0; i-- {
		s := map[string]any{"at": noon.Truncate(5 * time.Minute).Add(-time.Duration(i) * 5 * time.Minute).Format(time.RFC3339)}
		for k, f := range figures {
			s[f.field] = float64((i*37+k*11)%1000) / 10
		}
		b, err := json.Marshal(s)
		require.NoError(t, err)
		samples = append(samples, string(b))
	}
	d := dayFrom(t, samples...)
	require.Empty(t, d.Silent)
	require.Len(t, d.Charts, len(figures))
	html, err := rendered("samples", d)
	require.NoError(t, err)
	require.Less(t, len(html), 24<<10)
	require.NotContains(t, html, "style=")
	require.Equal(t, len(figures), strings.Count(string(html), `role="img" aria-label="`))
	require.Contains(t, html, `aria-label="Memory over the last day: now `)
}
