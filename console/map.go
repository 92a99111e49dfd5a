package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
)

// mapRegion is a region of the fleet map.
type mapRegion struct {
	Region string
	Fleets []mapFleet
}

// mapFleet is a fleet's servers in one region with one role.
type mapFleet struct {
	Name, Role, Total string
	Href              string
	Tiles             []tile
	Width, Height     int
	Expand            string
	More              int    // servers that have no tile
	All               string // the list of its servers
}

// tile is a server, or many of them that are alike.
type tile struct {
	X, Y, Side, Filled, FilledY float64
	Tone, Title, Href, Text     string
	Cordoned                    bool
}

// mapWidth is how wide the tiles of a fleet are together, in the units of an SVG.
const mapWidth = 760

// mapTiles is how many servers of a fleet have their own tiles: more would make the page too large.
const mapTiles = 200

// fleetMap shows all servers: sized by memory, filled by use, coloured by state.
func (c *Console) fleetMap(ec echo.Context) error {
	q := url.Values{}
	if e := ec.QueryParam("expand"); e != "" {
		q.Set("expand", e)
	}
	o, err := c.get(ec, "/v1/fleet-map", q)
	if err != nil {
		return err
	}
	var regions []mapRegion
	for _, r := range o.objects("regions") {
		reg := mapRegion{Region: r.text("region")}
		for _, f := range r.objects("fleets") {
			reg.Fleets = append(reg.Fleets, tiles(f, r.text("region")))
		}
		regions = append(regions, reg)
	}
	return c.show(ec, http.StatusOK, &page{
		Title: "Fleet map", Section: "map", Template: "map", Kinds: []string{"server", "fleet"}, Body: map[string]any{"Regions": regions, "Expanded": ec.QueryParam("expand")},
		Commands: c.readCommands(ec, operations()["getFleetMap"], q, nil),
	})
}

// tiles lays out a fleet's servers, or groups of them.
func tiles(f object, region string) mapFleet {
	id := f.text("fleet_id")
	m := mapFleet{Name: id, Role: f.text("role"), Total: f.text("servers_total")}
	if id != "" {
		m.Href = pageOf("fleet", id)
	} else {
		m.Name = "outside fleets"
	}
	x, y, row := 0.0, 0.0, 0.0
	add := func(t tile) {
		if x+t.Side > mapWidth {
			x, y, row = 0, y+row+6, 0
		}
		t.X, t.Y = x, y
		t.Filled = math.Max(0, math.Min(1, t.Filled)) * t.Side
		t.FilledY = t.Y + t.Side - t.Filled
		x, row = x+t.Side+6, math.Max(row, t.Side)
		m.Tiles = append(m.Tiles, t)
	}
	servers := f.objects("servers")
	all := url.Values{"region": {region}, "role": {m.Role}}
	if id != "" {
		all.Set("fleet_id", id)
	}
	m.All, m.More = "/console/servers?"+all.Encode(), max(0, len(servers)-mapTiles)
	for _, s := range servers[:len(servers)-m.More] {
		status := s.text("status")
		t := tile{Side: side(s.number("memory_mb")), Filled: s.number("memory_pct") / 100, Tone: tones[status], Href: pageOf("server", s.text("server_id")), Cordoned: s.at("cordoned") == true}
		if s.text("agent_status") == "disconnected" || s.text("alarm") != "" {
			t.Tone = "bad"
		}
		t.Title = fmt.Sprintf("%s: %s, agent %s, %s %s, memory %s of %s, %s tenants, %s instances", s.text("server_id"), status, s.text("agent_status"), s.text("server_type"), s.text("location"),
			percent(s.at("memory_pct") != nil, s.number("memory_pct")), size(s.number("memory_mb")*(1<<20)), orZero(s.text("tenants")), orZero(s.text("instances")))
		if t.Cordoned {
			t.Title += ", cordoned"
		}
		if s.at("memory_pct") != nil && t.Side > 40 {
			t.Text = strconv.FormatFloat(s.number("memory_pct"), 'f', 0, 64) + "%"
		}
		add(t)
	}
	for _, g := range f.objects("groups") {
		n := g.number("servers")
		fill := g.number("memory_pct")
		t := tile{Side: 40 + math.Min(40, 4*math.Sqrt(n)), Filled: fill / 100, Tone: tones[g.text("state")], Text: g.text("servers")}
		if g.text("alarm") != "" {
			t.Tone = "bad"
		}
		q := maps.Clone(all)
		switch state := g.text("state"); state {
		case "silent":
			q.Set("agent_status", "disconnected")
		case "cordoned":
			q.Set("status", "active")
		default:
			q.Set("status", state)
		}
		t.Href = "/console/servers?" + q.Encode()
		t.Title = fmt.Sprintf("%s servers that are %s, memory about %s, %s tenants", g.text("servers"), g.text("state"), percent(g.at("memory_pct") != nil, fill), orZero(g.text("tenants")))
		add(t)
		m.Expand = region + "/" + id
	}
	m.Width, m.Height = mapWidth, int(y+row)+2
	return m
}

// side is how wide a server's tile is: its area grows with its memory.
func side(mb float64) float64 {
	if mb <= 0 {
		return 34
	}
	return math.Max(28, math.Min(110, 13*math.Sqrt(mb/1024)))
}

func percent(known bool, f float64) string {
	if !known {
		return "unknown"
	}
	return strconv.FormatFloat(f, 'f', 0, 64) + "%"
}

func orZero(s string) string {
	if s == "" {
		return "0"
	}
	return s
}

// packing shows servers as they are beside what a packing plan would make of them.
func (c *Console) packing(ec echo.Context) error {
	o, err := c.get(ec, "/v1/fleet-map/packing", nil)
	if err != nil {
		return err
	}
	now := c.d.Now()
	t := tableOf("Servers", "server_id, region, fleet_id, memory_pct_now: memory now, memory_pct_after: memory planned, "+
		"tenants_now: tenants now, tenants_after: tenants planned, freed", o.objects("servers"),
		func(s object) string { return pageOf("server", s.text("server_id")) }, now)
	t.Empty = "No move would free a server."
	sums := facts(o, []string{"servers_now", "servers_after", "plan.needed", "plan.monthly", "plan.currency", "plan.bytes", "plan.made_at"}, map[string]bool{}, now)
	moves := tableOf("Moves", "tenant_id, from, to, bytes: size", o.objects("plan.moves"), nil, now)
	plan := ""
	if v := ec.Get(visitorKey).(*visitor); v.may(operations()["createRebalance"], nil) && len(o.objects("plan.moves")) > 0 {
		b, err := json.Marshal(o["plan"])
		if err != nil {
			return err
		}
		plan = string(b)
	}
	return c.show(ec, http.StatusOK, &page{
		Title: "Packing", Section: "map", Template: "packing", Crumbs: []crumb{{Text: "map", Href: "/console/map"}}, Body: map[string]any{"Table": t, "Sums": sums, "Plan": plan, "Moves": moves},
		Commands: []command{{Name: "prego", Line: "prego rebalance plan"}, {Name: "curl", Line: "curl -H \"Authorization: Bearer $PREGO_TOKEN\" " + quoted(origin(ec.Request())+"/v1/fleet-map/packing")}},
	})
}

// completeness is whether a month's costs are all there, and what is missing.
func completeness(o object, now time.Time) value {
	if o.at("complete") == true {
		return value{Text: "yes"}
	}
	var missing []string
	if n := o.number("unpriced"); n > 0 {
		missing = append(missing, fmt.Sprintf("the price of %.0f billed resources is unknown", n))
	}
	switch upTo := shown("as_of", o.at("as_of"), now); {
	case upTo.None:
		missing = append(missing, "no costs are recorded yet")
	case len(missing) == 0:
		missing = append(missing, "costs are recorded until "+upTo.Title)
	}
	return value{Text: "no: " + strings.Join(missing, "; ")}
}

// costs shows what things cost in a month, idle capacity apart.
func (c *Console) costs(ec echo.Context) error {
	op := operations()["getCosts"]
	if op == nil {
		return echo.ErrNotFound
	}
	q := url.Values{}
	for _, p := range op.query {
		if v := strings.TrimSpace(ec.QueryParam(p.Name)); v != "" {
			q.Set(p.Name, v)
		}
	}
	o, err := c.get(ec, op.Path, q)
	if err != nil {
		return err
	}
	now := c.d.Now()
	by := o.text("by")
	t := tableOf("Costs", "id, kind, name, org_id, cost, of_which_idle: of that idle, share, basis", o.objects("rows"),
		func(r object) string { return pageOf(r.text("kind"), r.text("id")) }, now)
	t.Empty = "Nothing was billed in this month."
	t.CSV = "/console/costs.csv?" + q.Encode()
	var sums []fact
	for _, f := range []string{"month", "total", "idle", "shared", "untracked"} {
		v := shown(f, o.at(f), now)
		if f != "month" && !v.None && o.text("currency") != "" {
			v.Text += " " + o.text("currency")
		}
		if !v.None {
			sums = append(sums, fact{Name: words(f), value: v})
		}
	}
	sums = append(sums, fact{Name: "complete", value: completeness(o, now)})
	choices := []string{}
	if p := op.parameter("by"); p != nil {
		choices = values(p.Schema.Value)
	}
	return c.show(ec, http.StatusOK, &page{
		Title: "Costs", Section: "costs", Template: "costs", Kinds: []string{"server"}, Body: map[string]any{"Table": t, "Sums": sums, "By": by, "Choices": choices, "Month": o.text("month")},
		Commands: c.readCommands(ec, op, q, nil),
	})
}
