package sim

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// Primary IPs. IPs created with a server go with it, others outlive their server.

func (s *Sim) primaryIPs() *kind[schema.PrimaryIP] {
	return &kind[schema.PrimaryIP]{
		sim: s, one: "primary_ip", many: "primary_ips", title: "primary IP", all: s.st.PrimaryIPs,
		show: func(p *schema.PrimaryIP) item {
			return item{
				id: p.ID, name: p.Name, labels: p.Labels, created: p.Created,
				filters: map[string]string{"ip": p.IP}, body: p,
			}
		},
		name:      func(p *schema.PrimaryIP) *string { return &p.Name },
		labels:    func(p *schema.PrimaryIP) *map[string]string { return &p.Labels },
		protected: func(p *schema.PrimaryIP) *bool { return &p.Protection.Delete },
		create:    s.createIP, remove: s.removeIP,
		update: func(p *schema.PrimaryIP, c changes) error {
			if valueOf(c.AutoDelete) && p.Protection.Delete {
				return invalid("a protected primary IP can't be deleted with its server", "auto_delete")
			}
			replace(&p.AutoDelete, c.AutoDelete)
			return nil
		},
		actions: map[string]action[schema.PrimaryIP]{
			"assign": s.assignIP, "unassign": s.unassignIP, "change_dns_ptr": s.pointIP,
			"change_protection": s.protectIP,
		},
	}
}

func primaryRef(id int64) schema.ActionResourceReference {
	return schema.ActionResourceReference{ID: id, Type: "primary_ip"}
}

func notStopped() error {
	return refused("server_not_stopped", "the action requires a stopped server")
}

func (s *Sim) createIP(r *http.Request) (any, error) {
	var req schema.PrimaryIPCreateRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	switch {
	case req.Type != "ipv4" && req.Type != "ipv6":
		return nil, invalid("type must be ipv4 or ipv6", "type")
	case req.AssigneeType != "" && req.AssigneeType != "server":
		return nil, invalid("assignee_type must be server", "assignee_type")
	}
	if err := s.primaryIPs().free(req.Name, 0); err != nil {
		return nil, err
	}
	l, ok := findLocation(req.Location)
	var srv *server
	if req.AssigneeID != nil {
		if srv = s.st.Servers[*req.AssigneeID]; srv == nil {
			return nil, notFound("server", *req.AssigneeID)
		}
		if err := assignable(srv, req.Type); err != nil {
			return nil, err
		}
		l, ok = srv.Location, true
	}
	if !ok {
		return nil, invalid("location not found", "location")
	}
	loose := 0
	for _, p := range s.st.PrimaryIPs {
		if !p.AutoDelete {
			loose++
		}
	}
	if loose >= s.cfg.Limits.PrimaryIPs {
		return nil, &apiError{status: 403, code: "resource_limit_exceeded", message: "Primary IP limit exceeded"}
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return nil, err
	}
	p := s.newIP(req.Type, "", l)
	s.st.rename("primary_ip", p.ID, req.Name)
	p.Name, p.Labels, p.AutoDelete = req.Name, labels, valueOf(req.AutoDelete)
	s.st.relabel("primary_ip", p.ID, labels)
	body := map[string]any{"primary_ip": p, "action": nil}
	if srv != nil {
		s.give(p, srv)
		body["action"] = s.act("assign_primary_ip", s.cfg.Profile.Action/4, nil, primaryRef(p.ID), serverRef(srv.ID))
	}
	return body, nil
}

// newIP is an unassigned primary IP, with the given address or any.
func (s *Sim) newIP(typ, ip string, l schema.Location) *schema.PrimaryIP {
	p := &schema.PrimaryIP{
		ID: s.st.id(), IP: ip, Labels: map[string]string{}, Type: typ, DNSPtr: []schema.PrimaryIPDNSPTR{},
		AssigneeType: "server", Created: time.Now().UTC(), Location: l,
	}
	p.Name = fmt.Sprintf("primary_ip-%d", p.ID)
	monthly := 0.5
	if typ == "ipv6" {
		monthly = 0
		if ip == "" {
			p.IP = fmt.Sprintf("2001:db8:%x:%x::/64", p.ID>>16&0xffff, p.ID&0xffff)
		}
	} else {
		if ip == "" {
			p.IP = s.freeAddress(nil)
		}
		p.DNSPtr = append(p.DNSPtr, schema.PrimaryIPDNSPTR{IP: p.IP, DNSPtr: pointerOf(p.IP)})
	}
	s.st.PrimaryIPs[p.ID] = p
	s.st.open(LedgerEntry{
		Kind: "primary_ip", ID: p.ID, Name: p.Name, Type: typ, Location: l.Name, Labels: p.Labels,
		Monthly: monthly,
	})
	return p
}

// pointerOf is the name that an IPv4 address has until it is given another.
func pointerOf(ip string) string {
	return fmt.Sprintf("static.%s.clients.example", strings.ReplaceAll(ip, ".", "-"))
}

func (s *Sim) removeIP(p *schema.PrimaryIP) (any, error) {
	if p.AssigneeID != nil {
		return nil, refused("resource_in_use", "primary IP is still assigned")
	}
	delete(s.st.PrimaryIPs, p.ID)
	s.st.close("primary_ip", p.ID)
	return nil, nil
}

// assignable refuses a server that can't take a primary IP now.
func assignable(srv *server, typ string) error {
	switch {
	case srv.Status != "off":
		return notStopped()
	case typ == "ipv4" && srv.PublicNet.IPv4.ID != 0:
		return refused("server_has_ipv4", "the server already has an IPv4 address")
	case typ == "ipv6" && srv.PublicNet.IPv6.ID != 0:
		return refused("server_has_ipv6", "the server already has an IPv6 address")
	}
	return nil
}

// give assigns a primary IP to a server that has none of its type.
func (s *Sim) give(p *schema.PrimaryIP, srv *server) {
	p.AssigneeID = &srv.ID
	if p.Type == "ipv4" {
		srv.PublicNet.IPv4 = schema.ServerPublicNetIPv4{ID: p.ID, IP: p.IP}
	} else {
		srv.PublicNet.IPv6 = schema.ServerPublicNetIPv6{ID: p.ID, IP: p.IP}
	}
	s.showPointers(p)
}

// showPointers copies an address's reverse names to the server that has it.
func (s *Sim) showPointers(p *schema.PrimaryIP) {
	if p.AssigneeID == nil {
		return
	}
	srv, ok := s.st.Servers[*p.AssigneeID]
	if !ok {
		return
	}
	if p.Type == "ipv4" {
		srv.PublicNet.IPv4.DNSPtr = p.DNSPtr[0].DNSPtr
		return
	}
	srv.PublicNet.IPv6.DNSPtr = []schema.ServerPublicNetIPv6DNSPtr{}
	for _, ptr := range p.DNSPtr {
		srv.PublicNet.IPv6.DNSPtr = append(srv.PublicNet.IPv6.DNSPtr,
			schema.ServerPublicNetIPv6DNSPtr{IP: ptr.IP, DNSPtr: ptr.DNSPtr})
	}
}

func (s *Sim) assignIP(r *http.Request, p *schema.PrimaryIP) (any, error) {
	var req schema.PrimaryIPActionAssignRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	srv, ok := s.st.Servers[req.AssigneeID]
	switch {
	case !ok:
		return nil, notFound("server", req.AssigneeID)
	case p.AssigneeID != nil:
		return nil, refused("primary_ip_already_assigned", "primary IP is already assigned to a different server")
	case srv.Location.Name != p.Location.Name:
		return nil, invalid("server is in another location", "assignee_id")
	}
	if err := assignable(srv, p.Type); err != nil {
		return nil, err
	}
	s.give(p, srv)
	return s.did("assign_primary_ip", nil, primaryRef(p.ID), serverRef(srv.ID)), nil
}

func (s *Sim) unassignIP(_ *http.Request, p *schema.PrimaryIP) (any, error) {
	if p.AssigneeID == nil {
		return nil, invalid("primary IP is not assigned", "id")
	}
	refs := []schema.ActionResourceReference{primaryRef(p.ID)}
	if srv, ok := s.st.Servers[*p.AssigneeID]; ok {
		if srv.Status != "off" {
			return nil, notStopped()
		}
		if p.Type == "ipv4" {
			srv.PublicNet.IPv4 = schema.ServerPublicNetIPv4{}
		} else {
			srv.PublicNet.IPv6 = schema.ServerPublicNetIPv6{DNSPtr: []schema.ServerPublicNetIPv6DNSPtr{}}
		}
		refs = append(refs, serverRef(srv.ID))
	}
	p.AssigneeID = nil
	return s.did("unassign_primary_ip", nil, refs...), nil
}

func (s *Sim) protectIP(r *http.Request, p *schema.PrimaryIP) (any, error) {
	var req schema.PrimaryIPActionChangeProtectionRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	// The specification: only while auto_delete is false.
	if req.Delete && p.AutoDelete {
		return nil, invalid("a primary IP that is deleted with its server can't be protected", "delete")
	}
	p.Protection.Delete = req.Delete
	return s.did("change_protection", nil, primaryRef(p.ID)), nil
}

// pointer is a request for a reverse name.
type pointer struct {
	IP     string  `json:"ip"`
	DNSPtr *string `json:"dns_ptr"`
}

func (s *Sim) pointIP(r *http.Request, p *schema.PrimaryIP) (any, error) {
	var req pointer
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if err := s.point(p, req); err != nil {
		return nil, err
	}
	return s.did("change_dns_ptr", nil, primaryRef(p.ID)), nil
}

// point changes the reverse name of an address of a primary IP; without a name it is reset.
func (s *Sim) point(p *schema.PrimaryIP, req pointer) error {
	if !has(p.IP, req.IP) {
		return &apiError{status: 404, code: "not_found", message: "IP '" + req.IP + "' not found"}
	}
	p.DNSPtr = slices.DeleteFunc(slices.Clone(p.DNSPtr),
		func(d schema.PrimaryIPDNSPTR) bool { return sameAddress(d.IP, req.IP) })
	switch {
	case valueOf(req.DNSPtr) != "":
		p.DNSPtr = append(p.DNSPtr, schema.PrimaryIPDNSPTR{IP: req.IP, DNSPtr: *req.DNSPtr})
	case p.Type == "ipv4":
		p.DNSPtr = append(p.DNSPtr, schema.PrimaryIPDNSPTR{IP: req.IP, DNSPtr: pointerOf(req.IP)})
	}
	s.showPointers(p)
	return nil
}

// has is whether an address is the given one, or in the given network.
func has(ipOrNetwork, ip string) bool {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return false
	}
	if n, err := netip.ParsePrefix(ipOrNetwork); err == nil {
		return n.Contains(a)
	}
	return sameAddress(ipOrNetwork, ip)
}

func sameAddress(a, b string) bool {
	x, err := netip.ParseAddr(a)
	y, err2 := netip.ParseAddr(b)
	return err == nil && err2 == nil && x == y
}

// pointServer is change_dns_ptr of a server: of a primary IP that it has.
func (s *Sim) pointServer(r *http.Request, srv *server) (any, error) {
	var req pointer
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	for _, id := range []int64{srv.PublicNet.IPv4.ID, srv.PublicNet.IPv6.ID} {
		if p, ok := s.st.PrimaryIPs[id]; ok && has(p.IP, req.IP) {
			return s.did("change_dns_ptr", nil, serverRef(srv.ID)), s.point(p, req)
		}
	}
	return nil, &apiError{status: 404, code: "not_found", message: "IP '" + req.IP + "' not found"}
}
