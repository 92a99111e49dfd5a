package soak

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Tally counts verdicts.
type Tally struct {
	Flat int // including bounded and settled ones
	Grew int
}

// CountVerdicts counts the verdicts of results. Results too short to be judged are neither.
func CountVerdicts(results []Result) (t Tally) {
	for _, r := range results {
		switch r.Verdict {
		case Grew:
			t.Grew++
		case Flat, Bounded, Settled:
			t.Flat++
		case Short:
		}
	}
	return t
}

// Report is a line per series, under a heading.
func Report(results []Result) string {
	rows := [][]string{{"series", "start", "end", "slope per hour", "[interval]", "verdict"}}
	for _, r := range results {
		u := r.Series.Unit
		if r.Verdict == Short {
			rows = append(rows, []string{
				r.Series.Name, "", "", "", "",
				fmt.Sprintf("%s: %d samples", r.Verdict, len(r.Series.Points)),
			})
			continue
		}
		rows = append(rows, []string{
			r.Series.Name, u.format(r.Start), u.format(r.End), u.signed(r.PerHour),
			"[" + u.signed(r.Low) + ", " + u.signed(r.High) + "]", verdict(r),
		})
	}
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-len([]rune(cell)))
			if i == 0 || i == len(row)-1 {
				line.WriteString(cell + pad + "  ")
			} else {
				line.WriteString(pad + cell + "  ")
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// verdict is with the limit that it was measured by.
func verdict(r Result) string {
	l, u := r.Series.Limit, r.Series.Unit
	if l.Per != "" {
		return fmt.Sprintf("%s: %s per %s, limit %s", r.Verdict, u.signed(r.PerUnit), l.Per, u.format(l.Slope))
	}
	if r.Verdict == Flat {
		return string(Flat)
	}
	return fmt.Sprintf("%s: limit %s per hour", r.Verdict, u.format(l.Slope))
}

// Summary is the last line of a run.
func Summary(took time.Duration, tenants, servers int, t Tally) string {
	return fmt.Sprintf("soak %s: %d tenants, %d servers, %d series flat, %d grew", took, tenants, servers, t.Flat,
		t.Grew)
}

func (u Unit) signed(v float64) string {
	s := u.format(v)
	if v <= 0 || s == "0" {
		return s
	}
	return "+" + s
}

func (u Unit) format(v float64) string {
	switch u {
	case Bytes:
		for _, s := range []struct {
			name string
			size float64
		}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
			if math.Abs(v) >= s.size {
				return fmt.Sprintf("%.1f %s", v/s.size, s.name)
			}
		}
		return fmt.Sprintf("%.0f B", v)
	case Seconds:
		return fmt.Sprintf("%.2f s", v)
	case Number:
	}
	if math.Abs(v) < 0.05 {
		return "0"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
}
