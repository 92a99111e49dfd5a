package cli

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// daySamples is the answer about a host whose load rose over a day until it fell silent for two hours.
func daySamples() string {
	out := api.ServerSampleList{EverySeconds: 300}
	now := born.Add(36 * time.Hour)
	for i := 288; i > 0; i-- {
		if i > 96 && i <= 120 {
			continue
		}
		load, disk := math.Round(float64(288-i))/100, 23.1
		out.Samples = append(out.Samples, api.ServerSample{At: now.Add(-time.Duration(i) * 5 * time.Minute), Load1: &load, DiskPct: &disk})
	}
	b, err := json.Marshal(out)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestTrends(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	until := from.Add(48 * time.Hour) // a character is an hour
	at := func(h float64, load float64) api.ServerSample {
		return api.ServerSample{At: from.Add(time.Duration(h * float64(time.Hour))), Load1: &load}
	}
	got := trends([]api.ServerSample{at(-0.1, 0), at(1, 0.5), at(1.5, 4), at(1.9, 1), at(47, 2), at(48, 1)}, from, until)
	require.Equal(t, []trend{{Figure: "load", Last: "1", Least: "0", Most: "4", Course: "▁█" + strings.Repeat("·", 45) + "▅"}}, got,
		"the highest of each hour, below the highest of all; unknown figures have no line")
	full := 100.0
	got = trends([]api.ServerSample{{At: from, DiskPct: &full}}, from, until)
	require.Equal(t, []trend{{Figure: "disk", Last: "100 %", Least: "100 %", Most: "100 %", Course: "█" + strings.Repeat("·", 47)}}, got)
	got = trends([]api.ServerSample{at(3, 0.3)}, from, until)
	require.Equal(t, "···▃"+strings.Repeat("·", 44), got[0].Course, "a load below 1 does not look high")
	require.Empty(t, trends(nil, from, until))
}

func TestSamplesOfSomeHours(t *testing.T) {
	t.Parallel()
	answer := always(map[string]any{"GET /v1/servers/app-7/samples?since=2026-01-03T09%3A04%3A05Z": `{"every_seconds":300,"samples":[]}`})
	r := run(t, around{say: answer}, "server", "samples", "app-7", "--since", "6h")
	require.Zero(t, r.code, r.errs)
	require.Equal(t, "no samples in this time\n", r.out)
	for _, since := range []string{"25h", "0s", "-1h", "yesterday"} {
		r := run(t, around{}, "server", "samples", "app-7", "--since", since)
		require.Equal(t, 1, r.code, since)
		require.Contains(t, r.errs, "since", since)
	}
}

func TestSamplesAsCSV(t *testing.T) {
	t.Parallel()
	answer := always(map[string]any{"GET /v1/servers/app-7/samples": `{"every_seconds":300,"samples":[{"at":"2026-01-02T03:00:00Z","load1":0.5,"disk_pct":23},{"at":"2026-01-02T03:05:00Z","load1":1}]}`})
	r := run(t, around{say: answer}, "server", "samples", "app-7", "-o", "csv")
	require.Zero(t, r.code, r.errs)
	require.Equal(t, "at,load1,cpu_pct,memory_pct,disk_pct,db_disk_pct,redis_memory_pct,worker_slots_pct\r\n2026-01-02T03:00:00Z,0.5,,,23,,,\r\n2026-01-02T03:05:00Z,1,,,,,,\r\n", r.out)
}

// TestPlainValues: as the API writes them, and no formula for a spreadsheet.
func TestPlainValues(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]any{
		"-5": json.Number("-5"), "": nil, "'=1+1": "=1+1", "2026-01-02T03:04:05Z": "2026-01-02T04:04:05.25+01:00", `["a","b"]`: []any{"a", "b"},
		`{"a":"1"}`: map[string]any{"a": "1"}, "a\nb": "a\nb", "1073741824": json.Number("1073741824"), "true": true, `{"x":1}`: map[string]any{"x": json.Number("1")},
	} {
		require.Equal(t, want, plain(v, map[bool]string{true: "time"}[strings.HasPrefix(want, "2026")]))
	}
}

func TestAmountsInTablesAreRounded(t *testing.T) {
	t.Parallel()
	require.Equal(t, "0.91", (&printer{}).cell("0.910022", "money"))
	require.Equal(t, "0.910022", (&printer{}).cell("0.910022", ""))
}
