package api

import (
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/pack"
	"github.com/prego/prego/server"
)

// GetFleetMap shows all servers by region and fleet.
func (a *API) GetFleetMap(c echo.Context, p GetFleetMapParams) error {
	q := server.FleetMapQuery{Region: deref(p.Region)}
	if p.Expand != nil {
		region, fleet, _ := strings.Cut(*p.Expand, "/")
		q.Expand = &server.FleetInRegion{Region: prego.Region(region), FleetID: prego.FleetID(fleet)}
	}
	tiles, err := a.d.Store.FleetMap(c.Request().Context(), q)
	return answer(c, http.StatusOK, tiles, err, fleetMapView)
}

// fleetMapView nests tiles, which are in the order of regions, fleets and roles.
func fleetMapView(tiles []server.FleetTile) FleetMap {
	out := FleetMap{Regions: []FleetMapRegion{}, AsOf: time.Now().UTC()}
	for _, t := range tiles {
		out.AsOf = t.AsOf.UTC()
		if n := len(out.Regions); n == 0 || out.Regions[n-1].Region != t.Region {
			out.Regions = append(out.Regions, FleetMapRegion{Region: t.Region, Fleets: []FleetMapFleet{}})
		}
		r := &out.Regions[len(out.Regions)-1]
		r.ServersTotal += t.Servers
		if n := len(r.Fleets); n == 0 || r.Fleets[n-1].FleetId != string(t.FleetID) || r.Fleets[n-1].Role != t.Role {
			r.Fleets = append(r.Fleets, FleetMapFleet{FleetId: string(t.FleetID), Role: t.Role, ServersTotal: t.Total, Servers: []FleetMapServer{}})
		}
		f := &r.Fleets[len(r.Fleets)-1]
		f.MemoryMb += int(t.MemoryMB)
		f.Tenants += t.Tenants
		f.Instances += t.Instances
		if t.ServerID != "" {
			v := viewOf[FleetMapServer](t)
			v.MemoryPct, v.DiskPct = tenth(t.MemoryPct), tenth(t.DiskPct)
			f.Servers = append(f.Servers, v)
			continue
		}
		if f.Groups == nil {
			f.Groups = new([]FleetMapGroup{})
		}
		g := viewOf[FleetMapGroup](t)
		g.MemoryPct = tenth(t.MemoryPct)
		*f.Groups = append(*f.Groups, g)
	}
	return out
}

// tenth rounds a percentage to one decimal.
func tenth(v *float64) *float64 {
	if v == nil {
		return nil
	}
	return new(math.Round(*v*10) / 10)
}

// GetPackingMap shows app servers as they are and after a packing plan.
func (a *API) GetPackingMap(c echo.Context, p GetPackingMapParams) error {
	in := server.PackingRequest{Region: deref(p.Region), FleetID: deref(p.FleetId)}
	f, catalogs, err := a.packedFleet(c.Request().Context(), in.Region)
	if err != nil {
		return err
	}
	plan, after, err := pack.PlanWithFill(f, catalogs, a.d.Usable, in, time.Now().UTC())
	if err != nil {
		return err
	}
	out := PackingMap{ServersNow: plan.Servers, ServersAfter: plan.Servers - len(plan.Frees), ServersTotal: len(f.Servers), Servers: []PackedServer{}}
	for _, s := range after {
		if len(out.Servers) == maxPackedServers {
			break
		}
		v := viewOf[PackedServer](s)
		v.MemoryPctNow, v.MemoryPctAfter, v.TenantsNow = tenth(s.MemoryPct), tenth(s.MemoryPctAfter), s.Tenants
		out.Servers = append(out.Servers, v)
	}
	return c.JSON(http.StatusOK, struct {
		PackingMap
		Plan server.PackingPlan `json:"plan"`
	}{out, plan})
}

// maxPackedServers bounds the servers of a packing map.
const maxPackedServers = 1000
