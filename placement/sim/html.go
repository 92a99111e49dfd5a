package sim

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"

	"github.com/prego/prego"
)

//go:embed report.html
var page string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"seconds": seconds, "percent": percent, "one": one, "two": two,
	"euro": func(count, cents int) string { return two(euro(count * cents)) },
}).Parse(page))

// The drawing area of a chart, in SVG units, and the part of it left of and below the axes.
const (
	chartWidth, chartHeight = 720.0, 200.0
	marginLeft, marginFoot  = 64.0, 24.0
	marginHead, marginRight = 12.0, 8.0
	plotWidth               = chartWidth - marginLeft - marginRight
	plotHeight              = chartHeight - marginHead - marginFoot
	// maxCells bounds a strip: above it a cell is the mean of several servers.
	maxCells = 240
	// maxColumns bounds the columns of a chart over time.
	maxColumns = 120
)

// chart is one SVG.
type chart struct {
	ID, Title, Desc string
	Width, Height   string
	Grid            []line
	Rects           []rect
	Points          string // of a line
	Labels          []label
}

type line struct{ X1, Y1, X2, Y2 string }

type rect struct{ X, Y, W, H, Opacity, Title string }

type label struct{ X, Y, Anchor, Text string }

type strip struct {
	Region prego.Region
	chart
}

// WriteHTML draws the report as one page without any other resource.
func (r Report) WriteHTML(out io.Writer) error {
	data := struct {
		Report
		CostChart                 chart
		Facts                     []fact
		Invariants                string
		Strips                    []strip
		Bands, Booted             chart
		RejectedChart, TurnedDown chart
		TenantsChart              chart
	}{
		Report: r, Facts: r.facts(), Invariants: r.invariants(), Strips: r.strips(), Bands: r.bands(),
		RejectedChart: bars("rejected", "Tenants rejected, by reason", r.Rejected), TurnedDown: bars("turned-down", "Candidates turned down, by the first filter that they failed", r.TurnedBy),
	}
	booted, cost, tenants := make([]float64, len(r.Daily)), make([]float64, len(r.Samples)), make([]float64, len(r.Samples))
	for i, d := range r.Daily {
		booted[i] = float64(d.Booted)
	}
	for i, x := range r.Samples {
		cost[i], tenants[i] = x.CostPerMonth, float64(x.Tenants)
	}
	data.Booted = columns("scale-outs", "Servers ordered by scale-outs, per day", booted)
	data.CostChart = r.curve("cost-over-time", "Cost per month, in euro, over time", cost)
	data.TenantsChart = r.curve("tenants-over-time", "Living tenants over time", tenants)
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, data); err != nil {
		return err
	}
	_, err := out.Write(b.Bytes())
	return err
}

// strips are a row of cells per region, a cell per server, the fullest first.
func (r Report) strips() []strip {
	const height = 36.0
	out := make([]strip, 0, len(r.Heat))
	for _, h := range r.Heat {
		s := strip{Region: h.Region, chart: chart{
			ID: "heat-" + string(h.Region), Title: fmt.Sprintf("Memory per server in %s", h.Region), Width: num(chartWidth), Height: num(height),
			Desc: fmt.Sprintf("The fullest of %s first; the darker the cell, the more memory is used.", servers(len(h.MemoryPct))),
		}}
		per := max(1, int(math.Ceil(float64(len(h.MemoryPct))/maxCells)))
		if per > 1 {
			s.Desc += fmt.Sprintf(" A cell is the mean of %d servers.", per)
		}
		cells := (len(h.MemoryPct) + per - 1) / per
		for i := range cells {
			part := h.MemoryPct[i*per : min((i+1)*per, len(h.MemoryPct))]
			sum := 0.0
			for _, v := range part {
				sum += v
			}
			mean, w := sum/float64(len(part)), chartWidth/float64(cells)
			s.Rects = append(s.Rects, rect{X: num(float64(i) * w), Y: "0", W: num(w * 0.92), H: num(height), Opacity: opacity(mean / 100), Title: one(mean) + " % of memory"})
		}
		out = append(out, s)
	}
	return out
}

// bands is how many servers use how much memory, over time.
func (r Report) bands() chart {
	c := r.frame("memory-over-time", "Servers by memory used, over time", "A row per tenth of memory, a column per moment; the darker the cell, the more servers.")
	for i := 0; i <= 100; i += 20 {
		c.Labels = append(c.Labels, label{X: num(marginLeft - 6), Y: num(marginHead + plotHeight*(1-float64(i)/100) + 4), Anchor: "end", Text: fmt.Sprintf("%d %%", i)})
	}
	most := 0
	for _, x := range r.Samples {
		for _, n := range x.Bands {
			most = max(most, n)
		}
	}
	step := max(1, (len(r.Samples)+maxColumns-1)/maxColumns)
	n := (len(r.Samples) + step - 1) / step
	for i := range n {
		x := r.Samples[i*step]
		for band, count := range x.Bands {
			if count > 0 {
				// The root lets a few servers be seen beside many.
				c.Rects = append(c.Rects, rect{
					X: num(marginLeft + plotWidth*float64(i)/float64(n)), Y: num(marginHead + plotHeight*float64(9-band)/10),
					W: num(plotWidth / float64(n) * 0.96), H: num(plotHeight / 10 * 0.92), Opacity: opacity(math.Sqrt(float64(count) / float64(most))),
					Title: fmt.Sprintf("day %.0f: %s at %d to %d %%", x.Hours/24, servers(count), band*10, band*10+10),
				})
			}
		}
	}
	return c
}

// frame is an empty chart over the days of the simulation.
func (r Report) frame(id, title, desc string) chart {
	c := chart{ID: id, Title: title, Desc: desc, Width: num(chartWidth), Height: num(chartHeight)}
	c.days(r.Days)
	return c
}

// days labels the axis of time.
func (c *chart) days(total float64) {
	if total <= 0 {
		return
	}
	step := nice(total / 6)
	for d := 0.0; d <= total; d += step {
		c.Labels = append(c.Labels, label{X: num(marginLeft + plotWidth*d/total), Y: num(chartHeight - 6), Anchor: "middle", Text: "day " + whole(d)})
	}
}

// scale labels the axis of values, and returns how high the plot reaches.
func (c *chart) scale(most float64) float64 {
	step := nice(most / 4)
	top := max(step, step*math.Ceil(most/step))
	for v := 0.0; v <= top; v += step {
		y := num(marginHead + plotHeight*(1-v/top))
		c.Grid = append(c.Grid, line{X1: num(marginLeft), Y1: y, X2: num(chartWidth - marginRight), Y2: y})
		c.Labels = append(c.Labels, label{X: num(marginLeft - 6), Y: num(marginHead + plotHeight*(1-v/top) + 4), Anchor: "end", Text: whole(v)})
	}
	return top
}

func (r Report) curve(id, title string, values []float64) chart {
	last := 0.0
	if len(values) > 0 {
		last = values[len(values)-1]
	}
	c := r.frame(id, title, fmt.Sprintf("At the end %s, at most %s.", whole(last), whole(highest(values))))
	top := c.scale(highest(values))
	points := make([]string, 0, len(values))
	for i, v := range values {
		x := marginLeft
		if r.Days > 0 {
			x += plotWidth * r.Samples[i].Hours / 24 / r.Days
		}
		points = append(points, num(x)+","+num(marginHead+plotHeight*(1-v/top)))
	}
	c.Points = strings.Join(points, " ")
	return c
}

func columns(id, title string, values []float64) chart {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	c := chart{ID: id, Title: title, Desc: fmt.Sprintf("%s in all, at most %s in a day.", whole(sum), whole(highest(values))), Width: num(chartWidth), Height: num(chartHeight)}
	c.days(float64(len(values)))
	top := c.scale(highest(values))
	w := plotWidth / float64(max(1, len(values)))
	for i, v := range values {
		h := plotHeight * v / top
		c.Rects = append(c.Rects, rect{X: num(marginLeft + float64(i)*w), Y: num(marginHead + plotHeight - h), W: num(w * 0.8), H: num(h), Opacity: "1", Title: fmt.Sprintf("day %d: %s", i+1, whole(v))})
	}
	return c
}

// bars lie: a row per reason.
func bars(id, title string, reasons []Reason) chart {
	const row, names = 24.0, 250.0
	c := chart{ID: id, Title: title, Desc: list(reasons), Width: num(chartWidth), Height: num(max(row, row*float64(len(reasons))))}
	if len(reasons) == 0 {
		c.Desc = "None."
		c.Labels = []label{{X: "0", Y: "16", Anchor: "start", Text: "none"}}
	}
	most := 1
	for _, x := range reasons {
		most = max(most, x.Count)
	}
	for i, x := range reasons {
		y, w := row*float64(i), (chartWidth-names-90)*float64(x.Count)/float64(most)
		c.Rects = append(c.Rects, rect{X: num(names), Y: num(y + 3), W: num(max(1, w)), H: num(row - 6), Opacity: "1", Title: fmt.Sprintf("%s: %d", x.Name, x.Count)})
		c.Labels = append(c.Labels, label{X: num(names - 8), Y: num(y + 16), Anchor: "end", Text: x.Name}, label{X: num(names + w + 6), Y: num(y + 16), Anchor: "start", Text: fmt.Sprint(x.Count)})
	}
	return c
}

func highest(values []float64) float64 {
	most := 0.0
	for _, v := range values {
		most = max(most, v)
	}
	return most
}

// nice is the next of 1, 2 or 5 by a power of ten.
func nice(v float64) float64 {
	if v <= 1 {
		return 1
	}
	p := math.Pow10(int(math.Floor(math.Log10(v))))
	for _, f := range []float64{1, 2, 5} {
		if v <= f*p {
			return f * p
		}
	}
	return 10 * p
}

func servers(n int) string {
	if n == 1 {
		return "1 server"
	}
	return fmt.Sprintf("%d servers", n)
}

func opacity(v float64) string { return fmt.Sprintf("%.2f", 0.08+0.92*min(1, max(0, v))) }

func num(v float64) string { return fmt.Sprintf("%.1f", v) }

func whole(v float64) string { return fmt.Sprintf("%.0f", v) }
