package sim

import (
	"fmt"
	"net/http"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// Floating IPs, as in the provider's specification: on one server at a time, which has to be
// unassigned before the address is assigned to another one or deleted. On machines the
// address is routed to its server, which has to configure it; process hosts have every
// address of the loopback network, so that theirs is one.

// floatingMonthly is the price of an IPv4 address in euros.
const floatingMonthly = 3.0

func (s *Sim) listFloating(r *http.Request) (int, any, error) {
	var items []item
	for _, f := range s.st.FloatingIPs {
		items = append(items, item{id: f.ID, name: f.Name, labels: f.Labels, created: f.Created, body: f})
	}
	return list(r, "floating_ips", items)
}

func (s *Sim) getFloating(r *http.Request) (int, any, error) {
	f, ok := s.st.FloatingIPs[pathID(r)]
	if !ok {
		return 0, nil, notFound("floating_ip", pathID(r))
	}
	return 200, map[string]any{"floating_ip": f}, nil
}

func (s *Sim) createFloating(r *http.Request) (int, any, error) {
	var req schema.FloatingIPCreateRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	switch {
	case req.Type != "ipv4":
		return 0, nil, invalid("type must be ipv4 here", "type")
	case req.HomeLocation != nil && req.Server != nil:
		return 0, nil, invalid("home_location and server are mutually exclusive", "home_location")
	case req.HomeLocation == nil && req.Server == nil:
		return 0, nil, invalid("home_location or server is required", "home_location")
	}
	var home schema.Location
	if req.Server != nil {
		srv, ok := s.st.Servers[*req.Server]
		if !ok {
			return 0, nil, notFound("server", *req.Server)
		}
		home = srv.Location
	} else {
		l, ok := findLocation(*req.HomeLocation)
		if !ok {
			return 0, nil, invalid("location not found", "home_location")
		}
		home = l
	}
	for _, f := range s.st.FloatingIPs {
		if req.Name != nil && f.Name == *req.Name {
			return 0, nil, unique("floating IP")
		}
	}
	if len(s.st.FloatingIPs) >= s.cfg.Limits.FloatingIPs {
		return 0, nil, &apiError{status: 403, code: "resource_limit_exceeded", message: "floating IP limit exceeded"}
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return 0, nil, err
	}
	ip, ok := s.freeFloating()
	if !ok {
		return 0, nil, &apiError{status: 412, code: "resource_unavailable", message: "no floating IP is available"}
	}
	f := &schema.FloatingIP{
		ID: s.st.id(), Description: req.Description, Created: time.Now().UTC(), IP: ip, Type: req.Type, DNSPtr: []schema.FloatingIPDNSPtr{}, HomeLocation: home,
		Labels: labels, Name: valueOf(req.Name),
	}
	if f.Name == "" {
		f.Name = fmt.Sprintf("floating-ip-%d", f.ID)
	}
	s.st.FloatingIPs[f.ID] = f
	s.st.open(LedgerEntry{Kind: "floating_ip", ID: f.ID, Name: f.Name, Type: f.Type, Location: home.Name, Labels: labels, Monthly: floatingMonthly})
	body := map[string]any{"floating_ip": f, "action": nil}
	if req.Server != nil {
		if err := s.routeFloating(f, *req.Server); err != nil {
			return 0, nil, err
		}
		body["action"] = s.floatingAct("assign_floating_ip", f)
	}
	return 201, body, nil
}

func (s *Sim) updateFloating(r *http.Request) (int, any, error) {
	return update(r, "floating_ip", s.st.FloatingIPs, func(f *schema.FloatingIP, req schema.FloatingIPUpdateRequest) error {
		if req.Name != "" {
			for _, other := range s.st.FloatingIPs {
				if other.ID != f.ID && other.Name == req.Name {
					return unique("floating IP")
				}
			}
			f.Name = req.Name
		}
		if req.Description != "" {
			f.Description = &req.Description
		}
		return relabel(&f.Labels, req.Labels)
	})
}

func (s *Sim) deleteFloating(r *http.Request) (int, any, error) {
	f, ok := s.st.FloatingIPs[pathID(r)]
	switch {
	case !ok:
		return 0, nil, notFound("floating_ip", pathID(r))
	case f.Protection.Delete:
		return 0, nil, &apiError{status: 423, code: "protected", message: "floating IP deletion is protected"}
	case f.Server != nil:
		return 0, nil, &apiError{status: 422, code: "must_be_unassigned", message: "floating IP must be unassigned"}
	}
	delete(s.st.FloatingIPs, f.ID)
	s.st.close("floating_ip", f.ID)
	return 204, nil, nil
}

func (s *Sim) floatingAction(r *http.Request) (int, any, error) {
	f, ok := s.st.FloatingIPs[pathID(r)]
	if !ok {
		return 0, nil, notFound("floating_ip", pathID(r))
	}
	switch r.PathValue("verb") {
	case "assign":
		var req schema.FloatingIPActionAssignRequest
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		if _, ok := s.st.Servers[req.Server]; !ok {
			return 0, nil, notFound("server", req.Server)
		}
		if f.Server != nil {
			return 0, nil, &apiError{status: 422, code: "floating_ip_assigned", message: "floating IP is already assigned"}
		}
		if err := s.routeFloating(f, req.Server); err != nil {
			return 0, nil, err
		}
	case "unassign":
		if err := s.unrouteFloating(f); err != nil {
			return 0, nil, err
		}
	case "change_protection":
		var req schema.FloatingIPActionChangeProtectionRequest
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		replace(&f.Protection.Delete, req.Delete)
		return 201, map[string]any{"action": s.floatingAct("change_protection", f)}, nil
	default:
		return 0, nil, &apiError{status: 404, code: "not_found", message: "api route not found"}
	}
	return 201, map[string]any{"action": s.floatingAct(r.PathValue("verb")+"_floating_ip", f)}, nil
}

func (s *Sim) floatingAct(command string, f *schema.FloatingIP) any {
	return s.act(command, s.cfg.Profile.Action/4, nil, schema.ActionResourceReference{ID: f.ID, Type: "floating_ip"})
}

// routeFloating routes an address to a server, machines' as the provider does: only the one
// that it is assigned to gets what is sent to it.
func (s *Sim) routeFloating(f *schema.FloatingIP, server int64) error {
	if s.net != nil {
		srv := s.st.Servers[server]
		if err := run("ip", "route", "replace", f.IP+"/32", "via", srv.PublicNet.IPv4.IP, "dev", s.net.bridge()); err != nil {
			return err
		}
	}
	f.Server = &server
	return nil
}

func (s *Sim) unrouteFloating(f *schema.FloatingIP) error {
	if s.net != nil && f.Server != nil {
		if err := run("ip", "route", "delete", f.IP+"/32", "dev", s.net.bridge()); err != nil {
			return err
		}
	}
	f.Server = nil
	return nil
}

// routeAllFloating restores the routes when the cloud starts again.
func (s *Sim) routeAllFloating() error {
	for _, f := range s.st.FloatingIPs {
		if f.Server == nil {
			continue
		}
		if err := s.routeFloating(f, *f.Server); err != nil {
			return err
		}
	}
	return nil
}

// freeFloating is an address that nobody has. On machines it is of a range of its own, so
// that it is routed and never asked for on the bridge.
func (s *Sim) freeFloating() (string, bool) {
	used := make(map[string]bool, len(s.st.FloatingIPs))
	for _, f := range s.st.FloatingIPs {
		used[f.IP] = true
	}
	if s.net == nil {
		for range 250 {
			if ip := s.freeAddress(used); !used[ip] {
				return ip, true
			}
		}
		return "", false
	}
	for k := 1; k < 255; k++ {
		if ip := fmt.Sprintf("10.98.%d.%d", s.net.n, k); !used[ip] {
			return ip, true
		}
	}
	return "", false
}
