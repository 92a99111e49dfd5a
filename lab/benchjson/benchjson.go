// Package benchjson records the figures that benchmarks measure, one JSON object per
// line, so that runs can be compared by program.
package benchjson

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"
)

// EnvFile names the file for the figures. Without it they are only printed.
const EnvFile = "PREGO_BENCH_JSON"

// Figure is one measured number.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"` // a rate ends in "/s": more is better; less is better otherwise
	// Bare is what the same run measured for the least work that the same hardware,
	// database or Temporal can do for the same purpose; nil if there is no such limit.
	Bare  *float64 `json:"bare"`
	Ratio *float64 `json:"ratio"` // Value / Bare
}

// New returns a figure; a bare of zero means that there is no bare limit.
func New(name string, value float64, unit string, bare float64) Figure {
	f := Figure{Name: name, Value: value, Unit: unit}
	if bare != 0 {
		ratio := value / bare
		f.Bare, f.Ratio = &bare, &ratio
	}
	return f
}

// Record prints a figure as a metric of a benchmark, and appends it to the file that
// EnvFile names. A bare of zero means that there is no bare limit.
func Record(tb testing.TB, name string, value float64, unit string, bare float64) {
	tb.Helper()
	f := New(name, value, unit, bare)
	if math.IsNaN(value) || math.IsInf(value, 0) {
		tb.Fatalf("%s is %v", name, value)
	}
	if b, ok := tb.(*testing.B); ok {
		b.ReportMetric(value, name)
		if f.Ratio != nil {
			b.ReportMetric(*f.Ratio, name+"-ratio")
		}
	}
	if err := f.appendTo(os.Getenv(EnvFile)); err != nil {
		tb.Fatal(err)
	}
}

// appendTo appends the figure as one line, with one write: packages run at the same
// time.
func (f Figure) appendTo(path string) error {
	if path == "" {
		return nil
	}
	line, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("figure %s: %w", f.Name, err)
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("figures: %w", err)
	}
	if _, err := file.Write(append(line, '\n')); err != nil {
		_ = file.Close()
		return fmt.Errorf("figures: %w", err)
	}
	return file.Close()
}
