// Command bench-compare compares the figures of a run of make bench with the last recorded run: ratios to the bare
// limit where there is one, else values, each with its noise. With fewer than four rounds on either side it reports
// that a change cannot be distinguished from noise.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"golang.org/x/perf/benchmath"

	"github.com/prego/prego/lab/benchjson"
)

func main() {
	recorded := flag.String("recorded", "docs/performance/bench.json", "the figures of the last recorded run")
	now := flag.String("now", "bench.json", "the figures to compare")
	flag.Parse()
	if err := run(os.Stdout, *recorded, *now); err != nil {
		fmt.Fprintln(os.Stderr, "bench-compare:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, recordedPath, nowPath string) error {
	recorded, _, err := read(recordedPath)
	if err != nil {
		return err
	}
	now, order, err := read(nowPath)
	if err != nil {
		return err
	}
	for name := range recorded {
		if _, ok := now[name]; !ok {
			order = append(order, name)
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "FIGURE\tMEASURED IN\tRECORDED\tNOW\tCHANGE")
	for _, name := range order {
		_, _ = fmt.Fprintln(t, row(name, recorded[name], now[name]))
	}
	return t.Flush()
}

// series are the measurements of one figure.
type series struct {
	unit   string
	values []float64 // of a run's rounds: ratios if the figure has a bare limit
}

func (s series) String() string {
	if len(s.values) == 0 {
		return "-"
	}
	sum := benchmath.AssumeNothing.Summary(s.sample(), 0.95)
	if len(s.values) == 1 {
		return fmt.Sprintf("%.4g (1 round)", sum.Center)
	}
	return fmt.Sprintf("%.4g %s", sum.Center, sum.PctRangeString())
}

func (s series) sample() *benchmath.Sample {
	return benchmath.NewSample(s.values, &benchmath.DefaultThresholds)
}

func row(name string, recorded, now series) string {
	unit := now.unit
	if unit == "" {
		unit = recorded.unit
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", name, unit, recorded, now, change(recorded, now))
}

// change states a figure's change, or that the noise would explain it.
func change(recorded, now series) string {
	switch {
	case len(now.values) == 0:
		return "not measured"
	case len(recorded.values) == 0:
		return "new"
	case recorded.unit != now.unit:
		return "another unit: " + recorded.unit
	}
	a, b := recorded.sample(), now.sample()
	before, after := benchmath.AssumeNothing.Summary(a, 0.95).Center, benchmath.AssumeNothing.Summary(b, 0.95).Center
	c := benchmath.AssumeNothing.Compare(a, b)
	delta := fmt.Sprintf("%+.1f%%", (after/before-1)*100)
	if before == 0 {
		delta = fmt.Sprintf("%+.4g", after)
	}
	if after == before {
		return "none"
	}
	if len(a.Values) < 4 || len(b.Values) < 4 {
		return delta + ", too few rounds to exclude noise"
	}
	if c.P > c.Alpha {
		return fmt.Sprintf("%s, within noise (p=%.2f)", delta, c.P)
	}
	return fmt.Sprintf("%s (p=%.2f)", delta, c.P)
}

// read reads figures by name, and the names in their order.
func read(path string) (map[string]series, []string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("figures: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	figures := make(map[string]series)
	var order []string
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		var f benchjson.Figure
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			return nil, nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		s, seen := figures[f.Name]
		if !seen {
			order = append(order, f.Name)
		}
		value := f.Value
		s.unit = f.Unit
		if f.Ratio != nil {
			value, s.unit = *f.Ratio, "× bare"
		}
		s.values = append(s.values, value)
		figures[f.Name] = s
	}
	if err := lines.Err(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return figures, order, nil
}
