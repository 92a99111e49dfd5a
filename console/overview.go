package console

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego/cost"
)

// figure is a number of the first page.
type figure struct {
	Name, Text, About string
	Href              string
	Tone              string
	Line              string // the path of its line over time, "" without two points
	Span              string // of the line
}

// A figure's line is in a box of this size, in the units of its SVG.
const lineWidth, lineHeight = 120, 28

// overviewOf are the figures of the first page, in the order in which they are read.
func overviewOf(o object, now time.Time) []figure {
	months, hours, days := o.objects("tenants.months"), o.objects("servers.hours"), o.objects("costs.days")
	of := func(rows []object, field string) (out []float64) {
		for _, r := range rows {
			if r.at(field) != nil {
				out = append(out, r.number(field))
			}
		}
		return out
	}
	up, down := o.number("sites.up"), o.number("sites.down")
	tenants := figure{
		Name: "Tenants", Text: o.text("tenants.total"), About: o.text("tenants.active") + " active",
		Href: "/console/tenants", Line: sparkline(of(months, "sites")), Span: "sites by month",
	}
	sites := figure{
		Name: "Sites up", Text: fmt.Sprintf("%.0f of %.0f", up, up+down),
		Href: "/console/tenants?state=active", Line: sparkline(of(months, "uptime_pct")), Span: "uptime by month",
	}
	if n := len(months); n > 0 && months[n-1].at("uptime_pct") != nil {
		share := math.Floor(100*months[n-1].number("uptime_pct")) / 100 // 100 % only if it was never down
		sites.About = strconv.FormatFloat(share, 'f', -1, 64) + " % uptime this month"
	}
	switch {
	case down > 0:
		sites.Tone = "bad"
	case up == 0:
		sites.Text, sites.About = "–", "no edge probes a site now"
	}
	servers := figure{
		Name: "Servers", Text: o.text("servers.active"), About: "all active",
		Href: "/console/servers", Line: sparkline(of(hours, "servers")), Span: "last day",
	}
	if not := o.number("servers.total") - o.number("servers.active"); not > 0 {
		servers.About = fmt.Sprintf("active, %.0f not", not)
	}
	if silent := o.text("servers.silent"); silent != "0" {
		servers.About, servers.Tone = silent+" silent", "bad"
	}
	full := figure{
		Name: "Memory used", Text: "–", About: "mean of servers",
		Href: "/console/map", Line: sparkline(of(hours, "memory_pct")), Span: "last day",
	}
	if o.at("servers.memory_pct") != nil {
		f := o.number("servers.memory_pct")
		full.Text = strconv.FormatFloat(f, 'f', 0, 64) + " %"
		if f >= 90 {
			full.Tone = "bad"
		}
	}
	waiting := figure{Name: "Waiting", Text: o.text("waiting.count"), About: "for a place", Href: "/console/queue"}
	if since := shown("since", o.at("waiting.since"), now); !since.None {
		waiting.Tone, waiting.About = "busy", "the longest for "+strings.TrimSuffix(since.Text, " ago")
	}
	costs := figure{
		Name: "This month", About: "nothing billed yet", Text: cost.Rounded(o.text("costs.total")) + " " + o.text("costs.currency"),
		Href: "/console/costs", Line: sparkline(of(days, "cost")), Span: "by day",
	}
	var kinds []string
	for _, k := range o.objects("costs.kinds")[:min(2, len(o.objects("costs.kinds")))] {
		kinds = append(kinds, words(k.text("kind"))+" "+cost.Rounded(k.text("cost")))
	}
	if len(kinds) > 0 {
		costs.About = strings.Join(kinds, ", ")
	}
	return []figure{tenants, sites, servers, full, waiting, costs}
}

// sparkline is the path of a line through values from left to right, "" if there are fewer than two.
func sparkline(values []float64) string {
	if len(values) < 2 {
		return ""
	}
	least, most := values[0], values[0]
	for _, v := range values {
		least, most = min(least, v), max(most, v)
	}
	var b strings.Builder
	for i, v := range values {
		y := float64(lineHeight) / 2 // of what does not change
		if most > least {
			y = 2 + (lineHeight-4)*(1-(v-least)/(most-least))
		}
		x := float64(lineWidth) * float64(i) / float64(len(values)-1)
		fmt.Fprintf(&b, "%s%.4g %.4g", map[bool]string{true: "M", false: "L"}[i == 0], x, y)
	}
	return b.String()
}
