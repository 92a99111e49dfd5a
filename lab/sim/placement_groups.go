package sim

import (
	"net/http"
	"slices"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// maxGroupServers is how many servers a spread group holds (the provider's documentation).
const maxGroupServers = 10

func (s *Sim) groups() *kind[schema.PlacementGroup] {
	return &kind[schema.PlacementGroup]{
		sim: s, one: "placement_group", many: "placement_groups", title: "placement group", all: s.st.Groups,
		show: func(g *schema.PlacementGroup) item {
			return item{id: g.ID, name: g.Name, labels: g.Labels, created: g.Created, body: g}
		},
		name:   func(g *schema.PlacementGroup) *string { return &g.Name },
		labels: func(g *schema.PlacementGroup) *map[string]string { return &g.Labels },
		create: s.createGroup, remove: s.removeGroup,
	}
}

func (s *Sim) createGroup(r *http.Request) (any, error) {
	var req schema.PlacementGroupCreateRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if req.Type != "spread" {
		return nil, invalid("type must be spread", "type")
	}
	if err := s.groups().free(req.Name, 0); err != nil {
		return nil, err
	}
	if len(s.st.Groups) >= s.cfg.Limits.PlacementGroups {
		return nil, &apiError{status: 403, code: "resource_limit_exceeded", message: "placement group limit exceeded"}
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return nil, err
	}
	g := &schema.PlacementGroup{
		ID: s.st.id(), Name: req.Name, Labels: labels, Created: time.Now().UTC(),
		Servers: []int64{}, Type: req.Type,
	}
	s.st.Groups[g.ID] = g
	return map[string]any{"placement_group": g, "action": nil}, nil
}

func (s *Sim) removeGroup(g *schema.PlacementGroup) (any, error) {
	for _, id := range g.Servers {
		if srv, ok := s.st.Servers[id]; ok {
			srv.PlacementGroup = nil
		}
	}
	delete(s.st.Groups, g.ID)
	return nil, nil
}

// group finds a placement group that has room for a server.
func (s *Sim) group(id int64) (*schema.PlacementGroup, error) {
	g, ok := s.st.Groups[id]
	if !ok {
		return nil, notFound("placement_group", id)
	}
	if len(g.Servers) >= maxGroupServers {
		return nil, refused("placement_error", "placement group holds 10 servers already")
	}
	return g, nil
}

func (s *Sim) joinGroup(r *http.Request, srv *server) (any, error) {
	var req schema.ServerActionAddToPlacementGroupRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	switch {
	case srv.PlacementGroup != nil:
		return nil, refused("already_in_placement_group", "the server is already part of a placement group")
	case srv.Status != "off":
		return nil, notStopped()
	}
	g, err := s.group(req.PlacementGroup)
	if err != nil {
		return nil, err
	}
	g.Servers = append(g.Servers, srv.ID)
	srv.PlacementGroup = g
	return s.did("add_to_placement_group", nil, serverRef(srv.ID)), nil
}

func (s *Sim) leaveGroup(_ *http.Request, srv *server) (any, error) {
	if srv.PlacementGroup == nil {
		return nil, &apiError{status: 404, code: "not_found", message: "the server is in no placement group"}
	}
	if g, ok := s.st.Groups[srv.PlacementGroup.ID]; ok {
		g.Servers = slices.DeleteFunc(g.Servers, func(id int64) bool { return id == srv.ID })
	}
	srv.PlacementGroup = nil
	return s.did("remove_from_placement_group", nil, serverRef(srv.ID)), nil
}
