package console

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// sampledDay is what a host reported over the last day.
type sampledDay struct {
	Charts []chart
	Every  string // how much time a sample stands for
	Silent string // for how long the agent was silent in all, "" if it was not
}

// chart is how a figure went: an SVG that is one wide for each sample of a day.
type chart struct {
	Name, Text    string
	Path, Grid    string
	Width, Height int
}

// figures are what samples have, in the order of their charts. Top is the value at the upper edge of a
// chart; 0 stands for the highest there was, which is 1 at least.
var figures = []struct {
	field, name, unit string
	top               float64
}{
	{"load1", "Load", "", 0},
	{"cpu_pct", "CPU", " %", 100},
	{"memory_pct", "Memory", " %", 100},
	{"disk_pct", "Disk", " %", 100},
	{"worker_slots_pct", "Background workers", " %", 100},
	{"db_disk_pct", "Database disk", " %", 100},
	{"redis_memory_pct", "Redis memory", " %", 100},
}

// chartHeight is that of an SVG, in its units.
const chartHeight = 60

// point is a value at a time.
type point struct {
	at    time.Time
	value float64
}

// dayOf draws the samples of the day before now, nil if there are none.
func dayOf(o object, now time.Time) *sampledDay {
	every := time.Duration(o.number("every_seconds") * float64(time.Second))
	if every <= 0 {
		return nil
	}
	from := now.Add(-24 * time.Hour).Truncate(every)
	var times []time.Time
	values := make([][]point, len(figures))
	for _, s := range o.objects("samples") {
		at, err := time.Parse(time.RFC3339, s.text("at"))
		if err != nil || at.Before(from) {
			continue
		}
		times = append(times, at)
		for i, f := range figures {
			if s.at(f.field) != nil {
				values[i] = append(values[i], point{at, s.number(f.field)})
			}
		}
	}
	if len(times) == 0 {
		return nil
	}
	d := &sampledDay{Every: minutes(every)}
	if silent := silence(times, now, every); silent > 0 {
		d.Silent = minutes(silent)
	}
	for i, f := range figures {
		if len(values[i]) > 0 {
			d.Charts = append(d.Charts, chartOf(f.name, f.unit, f.top, values[i], from, now, every))
		}
	}
	return d
}

// chartOf draws a figure.
func chartOf(name, unit string, top float64, points []point, from, now time.Time, every time.Duration) chart {
	least, most := points[0].value, points[0].value
	for _, p := range points {
		least, most = min(least, p.value), max(most, p.value)
	}
	if top == 0 {
		top = max(1, most)
	}
	newest, when := points[len(points)-1], "now"
	if silent := now.Sub(newest.at); silent >= 2*every {
		when = ago(silent)
	}
	shown := func(f float64) string {
		if unit == "" {
			return strconv.FormatFloat(f, 'f', 2, 64)
		}
		return strconv.FormatFloat(f, 'f', 0, 64) + unit
	}
	width := int(24 * time.Hour / every)
	grid := fmt.Sprintf("M0 %dH%d", chartHeight/2, width)
	for quarter := 1; quarter < 4; quarter++ {
		grid += fmt.Sprintf("M%d 0V%d", quarter*width/4, chartHeight)
	}
	return chart{
		Name: name, Text: fmt.Sprintf("%s %s, lowest %s, highest %s", when, shown(newest.value), shown(least), shown(most)),
		Path: drawn(points, from, every, top), Grid: grid, Width: width, Height: chartHeight,
	}
}

// drawn is the path of a line through points in the order of their times. It is one wide for each span
// of time from the left edge on, and interrupted where there is no point.
func drawn(points []point, from time.Time, every time.Duration, top float64) string {
	column := func(i int) int { return int(points[i].at.Sub(from) / every) }
	var b strings.Builder
	for i, p := range points {
		y := chartHeight * (1 - max(0, min(1, p.value/top)))
		place := fmt.Sprintf("%d %s", column(i), strconv.FormatFloat(math.Round(10*y)/10, 'f', -1, 64))
		switch {
		case i > 0 && column(i) == column(i-1)+1:
			b.WriteString(" " + place)
		case i+1 < len(points) && column(i+1) == column(i)+1:
			b.WriteString("M" + place)
		default: // one alone is a dash
			b.WriteString("M" + place + "h1")
		}
	}
	return b.String()
}

// silence is for how long there is no sample between the first of some and now, in whole spans. That of
// the current one may be yet to come.
func silence(times []time.Time, now time.Time, every time.Duration) (sum time.Duration) {
	for i, at := range times {
		next := now.Truncate(every)
		if i+1 < len(times) {
			next = times[i+1]
		}
		sum += max(0, next.Sub(at)-every)
	}
	return sum
}

// minutes is a span of whole minutes.
func minutes(d time.Duration) string {
	return strings.TrimSuffix(strings.TrimSuffix(span(d), " 0 s"), " 0 min")
}
