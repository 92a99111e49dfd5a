package sim

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// Floating IPs, as in the provider's specification: on one server at a time, which has to be
// unassigned before the address is assigned to another one or deleted. On machines the
// address is routed to its server, which has to configure it; process hosts have every
// address of the loopback network, so that theirs is one.

// floatingMonthly are the prices in euros.
var floatingMonthly = map[string]float64{"ipv4": 3, "ipv6": 1}

func (s *Sim) floatingIPs() *kind[schema.FloatingIP] {
	return &kind[schema.FloatingIP]{
		sim: s, one: "floating_ip", many: "floating_ips", title: "floating IP", all: s.st.FloatingIPs,
		show: func(f *schema.FloatingIP) item {
			return item{id: f.ID, name: f.Name, labels: f.Labels, created: f.Created, body: f}
		},
		name:      func(f *schema.FloatingIP) *string { return &f.Name },
		labels:    func(f *schema.FloatingIP) *map[string]string { return &f.Labels },
		protected: func(f *schema.FloatingIP) *bool { return &f.Protection.Delete },
		create:    s.createFloating, remove: s.removeFloating,
		update: func(f *schema.FloatingIP, c changes) error {
			if c.Description != nil {
				f.Description = c.Description
			}
			return nil
		},
		actions: map[string]action[schema.FloatingIP]{
			"assign": s.assignFloating, "unassign": s.unassignFloating,
			"change_dns_ptr": s.pointFloating,
		},
	}
}

func (s *Sim) createFloating(r *http.Request) (any, error) {
	var req schema.FloatingIPCreateRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	switch {
	case req.Type != "ipv4" && req.Type != "ipv6":
		return nil, invalid("type must be ipv4 or ipv6", "type")
	case req.HomeLocation != nil && req.Server != nil:
		return nil, invalid("home_location and server are mutually exclusive", "home_location")
	case req.HomeLocation == nil && req.Server == nil:
		return nil, invalid("home_location or server is required", "home_location")
	}
	var home schema.Location
	if req.Server != nil {
		srv, ok := s.st.Servers[*req.Server]
		if !ok {
			return nil, notFound("server", *req.Server)
		}
		home = srv.Location
	} else {
		l, ok := findLocation(*req.HomeLocation)
		if !ok {
			return nil, invalid("location not found", "home_location")
		}
		home = l
	}
	if req.Name != nil {
		if err := s.floatingIPs().free(*req.Name, 0); err != nil {
			return nil, err
		}
	}
	if len(s.st.FloatingIPs) >= s.cfg.Limits.FloatingIPs {
		return nil, &apiError{status: 403, code: "resource_limit_exceeded", message: "floating IP limit exceeded"}
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return nil, err
	}
	ip, ok := "", true
	if req.Type == "ipv4" {
		ip, ok = s.freeFloating()
	}
	if !ok {
		return nil, &apiError{status: 412, code: "resource_unavailable", message: "no floating IP is available"}
	}
	f := &schema.FloatingIP{
		ID: s.st.id(), Description: req.Description, Created: time.Now().UTC(), IP: ip, Type: req.Type,
		DNSPtr: []schema.FloatingIPDNSPtr{}, HomeLocation: home, Labels: labels, Name: valueOf(req.Name),
	}
	if f.Type == "ipv6" {
		f.IP = fmt.Sprintf("2001:db8:%x:%x::/64", f.ID>>16&0xffff, f.ID&0xffff)
	}
	if f.Name == "" {
		f.Name = fmt.Sprintf("floating-ip-%d", f.ID)
	}
	s.st.FloatingIPs[f.ID] = f
	s.st.open(LedgerEntry{
		Kind: "floating_ip", ID: f.ID, Name: f.Name, Type: f.Type, Location: home.Name,
		Labels: labels, Monthly: floatingMonthly[f.Type],
	})
	body := map[string]any{"floating_ip": f, "action": nil}
	if req.Server != nil {
		if err := s.routeFloating(f, *req.Server); err != nil {
			return nil, err
		}
		body["action"] = s.floatingAct("assign_floating_ip", f)
	}
	return body, nil
}

func (s *Sim) removeFloating(f *schema.FloatingIP) (any, error) {
	if f.Server != nil {
		return nil, refused("must_be_unassigned", "floating IP must be unassigned")
	}
	delete(s.st.FloatingIPs, f.ID)
	s.st.close("floating_ip", f.ID)
	return nil, nil
}

func (s *Sim) assignFloating(r *http.Request, f *schema.FloatingIP) (any, error) {
	var req schema.FloatingIPActionAssignRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if _, ok := s.st.Servers[req.Server]; !ok {
		return nil, notFound("server", req.Server)
	}
	if f.Server != nil {
		return nil, refused("floating_ip_assigned", "floating IP is already assigned")
	}
	if err := s.routeFloating(f, req.Server); err != nil {
		return nil, err
	}
	return map[string]any{"action": s.floatingAct("assign_floating_ip", f)}, nil
}

func (s *Sim) unassignFloating(_ *http.Request, f *schema.FloatingIP) (any, error) {
	if err := s.unrouteFloating(f); err != nil {
		return nil, err
	}
	return map[string]any{"action": s.floatingAct("unassign_floating_ip", f)}, nil
}

func (s *Sim) pointFloating(r *http.Request, f *schema.FloatingIP) (any, error) {
	var req pointer
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if !has(f.IP, req.IP) {
		return nil, &apiError{status: 404, code: "not_found", message: "IP '" + req.IP + "' not found"}
	}
	f.DNSPtr = slices.DeleteFunc(slices.Clone(f.DNSPtr),
		func(d schema.FloatingIPDNSPtr) bool { return sameAddress(d.IP, req.IP) })
	if valueOf(req.DNSPtr) != "" {
		f.DNSPtr = append(f.DNSPtr, schema.FloatingIPDNSPtr{IP: req.IP, DNSPtr: *req.DNSPtr})
	}
	return map[string]any{"action": s.floatingAct("change_dns_ptr", f)}, nil
}

func (s *Sim) floatingAct(command string, f *schema.FloatingIP) any {
	return s.act(command, s.cfg.Profile.Action/4, nil, schema.ActionResourceReference{ID: f.ID, Type: "floating_ip"})
}

// routeFloating routes an address to a server; for machines as the provider does: only its assigned server gets its
// packets.
func (s *Sim) routeFloating(f *schema.FloatingIP, server int64) error {
	srv := s.st.Servers[server]
	if s.net != nil && f.Type == "ipv4" {
		if err := run("ip", "route", "replace", f.IP+"/32", "via", s.address(srv), "dev", s.net.bridge()); err != nil {
			return err
		}
	}
	f.Server = &server
	if !slices.Contains(srv.PublicNet.FloatingIPs, f.ID) {
		srv.PublicNet.FloatingIPs = append(srv.PublicNet.FloatingIPs, f.ID)
	}
	return nil
}

func (s *Sim) unrouteFloating(f *schema.FloatingIP) error {
	if s.net != nil && f.Server != nil && f.Type == "ipv4" {
		if err := run("ip", "route", "delete", f.IP+"/32", "dev", s.net.bridge()); err != nil {
			return err
		}
	}
	if f.Server != nil {
		if srv, ok := s.st.Servers[*f.Server]; ok {
			srv.PublicNet.FloatingIPs = slices.DeleteFunc(srv.PublicNet.FloatingIPs,
				func(id int64) bool { return id == f.ID })
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

// freeFloating is a free address. On machines it comes from a separate range, so that it is routed and never resolved
// on the bridge.
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
