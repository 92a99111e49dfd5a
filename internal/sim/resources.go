package sim

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

func labelsOf(l *map[string]string) (map[string]string, error) {
	if l == nil {
		return map[string]string{}, nil
	}
	return *l, checkLabels(*l)
}

// Volumes.

func (s *Sim) listVolumes(r *http.Request) (int, any, error) {
	var items []item
	for _, v := range s.st.Volumes {
		items = append(items, item{id: v.ID, name: v.Name, status: v.Status, labels: v.Labels, created: v.Created, body: v})
	}
	return list(r, "volumes", items)
}

func (s *Sim) getVolume(r *http.Request) (int, any, error) {
	v, ok := s.st.Volumes[pathID(r)]
	if !ok {
		return 0, nil, notFound("volume", pathID(r))
	}
	return 200, map[string]any{"volume": v}, nil
}

func (s *Sim) createVolume(r *http.Request) (int, any, error) {
	var req schema.VolumeCreateRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	if req.Size < 10 || req.Size > 10240 {
		return 0, nil, invalid("size must be between 10 and 10240", "size")
	}
	if req.Location == nil {
		return 0, nil, invalid("location is required", "location")
	}
	l, ok := findLocation(idOrName(*req.Location))
	if !ok {
		return 0, nil, invalid("location not found", "location")
	}
	for _, v := range s.st.Volumes {
		if v.Name == req.Name {
			return 0, nil, unique("volume")
		}
	}
	if len(s.st.Volumes) >= s.cfg.Limits.Volumes {
		return 0, nil, &apiError{status: 403, code: "resource_limit_exceeded", message: "volume limit exceeded"}
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return 0, nil, err
	}
	v := &schema.Volume{ID: s.st.id(), Name: req.Name, Status: "creating", Location: l, Size: req.Size, Format: req.Format, Labels: labels, Created: time.Now().UTC()}
	v.LinuxDevice = fmt.Sprintf("/dev/disk/by-id/scsi-0HC_Volume_%d", v.ID)
	if s.net != nil {
		if err := makeDisk(s.volumeFile(v.ID), v.Size, valueOf(v.Format)); err != nil {
			return 0, nil, err
		}
	}
	s.st.Volumes[v.ID] = v
	s.st.open(LedgerEntry{Kind: "volume", ID: v.ID, Name: v.Name, Location: l.Name, Labels: labels, Monthly: 0.044 * float64(v.Size)})
	a := s.act("create_volume", s.cfg.Profile.Action/4, func() *schema.ActionError { v.Status = "available"; return nil }, schema.ActionResourceReference{ID: v.ID, Type: "volume"})
	return 201, schema.VolumeCreateResponse{Volume: *v, Action: &a, NextActions: []schema.Action{}}, nil
}

func (s *Sim) updateVolume(r *http.Request) (int, any, error) {
	return update(r, "volume", s.st.Volumes, func(v *schema.Volume, req schema.VolumeUpdateRequest) error {
		return relabel(&v.Labels, req.Labels)
	})
}

func (s *Sim) deleteVolume(r *http.Request) (int, any, error) {
	v, ok := s.st.Volumes[pathID(r)]
	switch {
	case !ok:
		return 0, nil, notFound("volume", pathID(r))
	case v.Server != nil:
		return 0, nil, &apiError{status: 422, code: "resource_in_use", message: "volume is still attached to a server"}
	}
	delete(s.st.Volumes, v.ID)
	_ = os.Remove(s.volumeFile(v.ID))
	_ = os.RemoveAll(strings.TrimSuffix(s.volumeFile(v.ID), ".img"))
	s.st.close("volume", v.ID)
	return 204, nil, nil
}

func (s *Sim) volumeAction(r *http.Request) (int, any, error) {
	v, ok := s.st.Volumes[pathID(r)]
	if !ok {
		return 0, nil, notFound("volume", pathID(r))
	}
	switch r.PathValue("verb") {
	case "detach":
		if v.Server == nil {
			return 0, nil, &apiError{status: 422, code: "volume_not_attached", message: "volume is not attached"}
		}
		if srv, ok := s.st.Servers[*v.Server]; ok {
			srv.Volumes = slices.DeleteFunc(srv.Volumes, func(id int64) bool { return id == v.ID })
			if h, on := s.hosts[srv.ID]; on {
				if err := h.detach(v.ID); err != nil {
					return 0, nil, err
				}
			}
		}
		v.Server = nil
	case "attach":
		var req struct {
			Server int64 `json:"server"`
		}
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		srv, ok := s.st.Servers[req.Server]
		if !ok {
			return 0, nil, notFound("server", req.Server)
		}
		if v.Server != nil {
			return 0, nil, &apiError{status: 422, code: "volume_already_attached", message: "volume is already attached"}
		}
		if len(srv.Volumes) >= maxServerVolumes {
			return 0, nil, &apiError{status: 403, code: "resource_limit_exceeded", message: "server has reached its limit of 16 volumes"}
		}
		if srv.Location.Name != v.Location.Name {
			return 0, nil, invalid("server is in another location", "server")
		}
		if h, on := s.hosts[srv.ID]; on {
			if err := h.attach(v.ID, s.volumeFile(v.ID)); err != nil {
				return 0, nil, err
			}
		}
		v.Server = &srv.ID
		srv.Volumes = append(srv.Volumes, v.ID)
	case "resize":
		var req struct {
			Size int `json:"size"`
		}
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		if req.Size <= v.Size || req.Size > 10240 {
			return 0, nil, invalid("size must be larger than the current one", "size")
		}
		if s.net != nil {
			if err := os.Truncate(s.volumeFile(v.ID), int64(req.Size)<<30); err != nil {
				return 0, nil, err
			}
			// A running machine learns of it, as the provider's does.
			if err := growLoops(s.volumeFile(v.ID)); err != nil {
				return 0, nil, err
			}
		}
		v.Size = req.Size
	default:
		return 0, nil, &apiError{status: 404, code: "not_found", message: "api route not found"}
	}
	return 201, map[string]any{"action": s.act(r.PathValue("verb")+"_volume", s.cfg.Profile.Action/4, nil, schema.ActionResourceReference{ID: v.ID, Type: "volume"})}, nil
}

// maxServerVolumes is the provider's limit (github.com/hetznercloud/csi-driver/issues/197).
const maxServerVolumes = 16

// Firewalls.

func (s *Sim) listFirewalls(r *http.Request) (int, any, error) {
	var items []item
	for _, f := range s.st.Firewalls {
		items = append(items, item{id: f.ID, name: f.Name, labels: f.Labels, created: f.Created, body: f})
	}
	return list(r, "firewalls", items)
}

func (s *Sim) getFirewall(r *http.Request) (int, any, error) {
	f, ok := s.st.Firewalls[pathID(r)]
	if !ok {
		return 0, nil, notFound("firewall", pathID(r))
	}
	return 200, map[string]any{"firewall": f}, nil
}

func firewallRules(in []schema.FirewallRuleRequest) ([]schema.FirewallRule, error) {
	if len(in) > 50 {
		return nil, invalid("at most 50 rules", "rules")
	}
	out := []schema.FirewallRule{}
	for _, r := range in {
		if (r.Protocol == "tcp" || r.Protocol == "udp") && r.Port == nil {
			return nil, invalid("port is required", "rules")
		}
		if r.SourceIPs == nil {
			r.SourceIPs = []string{}
		}
		if r.DestinationIPs == nil {
			r.DestinationIPs = []string{}
		}
		out = append(out, schema.FirewallRule(r))
	}
	return out, nil
}

func (s *Sim) createFirewall(r *http.Request) (int, any, error) {
	var req schema.FirewallCreateRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	for _, f := range s.st.Firewalls {
		if f.Name == req.Name {
			return 0, nil, unique("firewall")
		}
	}
	if len(s.st.Firewalls) >= s.cfg.Limits.Firewalls {
		return 0, nil, &apiError{status: 403, code: "resource_limit_exceeded", message: "firewall limit exceeded"}
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return 0, nil, err
	}
	rules, err := firewallRules(req.Rules)
	if err != nil {
		return 0, nil, err
	}
	f := &schema.Firewall{ID: s.st.id(), Name: req.Name, Labels: labels, Created: time.Now().UTC(), Rules: rules, AppliedTo: []schema.FirewallResource{}}
	s.st.Firewalls[f.ID] = f
	return 201, schema.FirewallCreateResponse{Firewall: *f, Actions: []schema.Action{}}, nil
}

func (s *Sim) updateFirewall(r *http.Request) (int, any, error) {
	return update(r, "firewall", s.st.Firewalls, func(f *schema.Firewall, req schema.FirewallUpdateRequest) error {
		return relabel(&f.Labels, req.Labels)
	})
}

func (s *Sim) deleteFirewall(r *http.Request) (int, any, error) {
	f, ok := s.st.Firewalls[pathID(r)]
	switch {
	case !ok:
		return 0, nil, notFound("firewall", pathID(r))
	case len(f.AppliedTo) > 0:
		return 0, nil, &apiError{status: 422, code: "resource_in_use", message: "firewall with ID '" + strconv.FormatInt(f.ID, 10) + "' is still in use"}
	}
	delete(s.st.Firewalls, f.ID)
	return 204, nil, nil
}

func (s *Sim) firewallAction(r *http.Request) (int, any, error) {
	f, ok := s.st.Firewalls[pathID(r)]
	if !ok {
		return 0, nil, notFound("firewall", pathID(r))
	}
	ref := schema.ActionResourceReference{ID: f.ID, Type: "firewall"}
	switch r.PathValue("verb") {
	case "set_rules":
		var req schema.FirewallActionSetRulesRequest
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		rules, err := firewallRules(req.Rules)
		if err != nil {
			return 0, nil, err
		}
		f.Rules = rules
	case "apply_to_resources":
		var req schema.FirewallActionApplyToResourcesRequest
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		f.AppliedTo = append(f.AppliedTo, req.ApplyTo...)
	case "remove_from_resources":
		var req schema.FirewallActionRemoveFromResourcesRequest
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		for _, rm := range req.RemoveFrom {
			f.AppliedTo = slices.DeleteFunc(f.AppliedTo, func(a schema.FirewallResource) bool {
				return a.Server != nil && rm.Server != nil && a.Server.ID == rm.Server.ID
			})
		}
	default:
		return 0, nil, &apiError{status: 404, code: "not_found", message: "api route not found"}
	}
	return 201, map[string]any{"actions": []schema.Action{s.act("set_firewall_rules", s.cfg.Profile.Action/4, nil, ref)}}, nil
}

// Placement groups.

func (s *Sim) listGroups(r *http.Request) (int, any, error) {
	var items []item
	for _, g := range s.st.Groups {
		items = append(items, item{id: g.ID, name: g.Name, labels: g.Labels, created: g.Created, body: g})
	}
	return list(r, "placement_groups", items)
}

func (s *Sim) getGroup(r *http.Request) (int, any, error) {
	g, ok := s.st.Groups[pathID(r)]
	if !ok {
		return 0, nil, notFound("placement_group", pathID(r))
	}
	return 200, map[string]any{"placement_group": g}, nil
}

func (s *Sim) createGroup(r *http.Request) (int, any, error) {
	var req schema.PlacementGroupCreateRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	if req.Type != "spread" {
		return 0, nil, invalid("type must be spread", "type")
	}
	for _, g := range s.st.Groups {
		if g.Name == req.Name {
			return 0, nil, unique("placement group")
		}
	}
	if len(s.st.Groups) >= s.cfg.Limits.PlacementGroups {
		return 0, nil, &apiError{status: 403, code: "resource_limit_exceeded", message: "placement group limit exceeded"}
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return 0, nil, err
	}
	g := &schema.PlacementGroup{ID: s.st.id(), Name: req.Name, Labels: labels, Created: time.Now().UTC(), Servers: []int64{}, Type: req.Type}
	s.st.Groups[g.ID] = g
	return 201, map[string]any{"placement_group": g, "action": nil}, nil
}

func (s *Sim) updateGroup(r *http.Request) (int, any, error) {
	return update(r, "placement_group", s.st.Groups, func(g *schema.PlacementGroup, req schema.PlacementGroupUpdateRequest) error {
		return relabel(&g.Labels, req.Labels)
	})
}

func (s *Sim) deleteGroup(r *http.Request) (int, any, error) {
	if _, ok := s.st.Groups[pathID(r)]; !ok {
		return 0, nil, notFound("placement_group", pathID(r))
	}
	delete(s.st.Groups, pathID(r))
	return 204, nil, nil
}

// Primary IPs. Those of servers come and go with them.

// freeIP is the next address of the documentation's range that nobody has.
func (s *Sim) freeIP() (string, bool) {
	used := make(map[string]bool, len(s.st.PrimaryIPs))
	for _, p := range s.st.PrimaryIPs {
		used[p.IP] = true
	}
	for i := 1; i < 255; i++ {
		if ip := fmt.Sprintf("203.0.113.%d", i); !used[ip] {
			return ip, true
		}
	}
	return "", false
}

func (s *Sim) createIP(r *http.Request) (int, any, error) {
	var req schema.PrimaryIPCreateRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	l, ok := findLocation(req.Location)
	switch {
	case req.Name == "":
		return 0, nil, invalid("name is required", "name")
	case req.Type != "ipv4":
		return 0, nil, invalid("type must be ipv4 here", "type")
	case req.AssigneeType != "server":
		return 0, nil, invalid("assignee_type must be server", "assignee_type")
	case req.AssigneeID != nil:
		return 0, nil, invalid("assignee_id is not simulated", "assignee_id")
	case !ok:
		return 0, nil, invalid("location not found", "location")
	}
	loose := 0
	for _, p := range s.st.PrimaryIPs {
		if p.Name == req.Name {
			return 0, nil, unique("primary IP")
		}
		if !p.AutoDelete {
			loose++
		}
	}
	if loose >= s.cfg.Limits.PrimaryIPs {
		return 0, nil, &apiError{status: 403, code: "resource_limit_exceeded", message: "primary IP limit exceeded"}
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return 0, nil, err
	}
	ip, ok := s.freeIP()
	if !ok {
		return 0, nil, &apiError{status: 412, code: "resource_unavailable", message: "no primary IP is available"}
	}
	p := &schema.PrimaryIP{
		ID: s.st.id(), Name: req.Name, IP: ip, Labels: labels, Type: req.Type, DNSPtr: []schema.PrimaryIPDNSPTR{}, AssigneeType: "server",
		AutoDelete: req.AutoDelete != nil && *req.AutoDelete, Created: time.Now().UTC(), Location: l,
	}
	s.st.PrimaryIPs[p.ID] = p
	s.st.open(LedgerEntry{Kind: "primary_ip", ID: p.ID, Name: p.Name, Type: p.Type, Location: l.Name, Labels: labels, Monthly: 0.5})
	return 201, map[string]any{"primary_ip": p, "action": nil}, nil
}

func (s *Sim) newIP(typ, ip string, srv *server, l schema.Location) *schema.PrimaryIP {
	p := &schema.PrimaryIP{
		ID: s.st.id(), IP: ip, Labels: map[string]string{}, Type: typ, DNSPtr: []schema.PrimaryIPDNSPTR{}, AssigneeID: &srv.ID, AssigneeType: "server",
		AutoDelete: true, Created: time.Now().UTC(), Location: l,
	}
	p.Name = fmt.Sprintf("primary_ip-%d", p.ID)
	s.st.PrimaryIPs[p.ID] = p
	monthly := 0.5
	if typ == "ipv6" {
		monthly = 0
	}
	s.st.open(LedgerEntry{Kind: "primary_ip", ID: p.ID, Name: p.Name, Type: typ, Location: l.Name, Labels: p.Labels, Monthly: monthly})
	return p
}

func (s *Sim) listIPs(r *http.Request) (int, any, error) {
	var items []item
	for _, p := range s.st.PrimaryIPs {
		items = append(items, item{id: p.ID, name: p.Name, labels: p.Labels, created: p.Created, body: p})
	}
	return list(r, "primary_ips", items)
}

func (s *Sim) getIP(r *http.Request) (int, any, error) {
	p, ok := s.st.PrimaryIPs[pathID(r)]
	if !ok {
		return 0, nil, notFound("primary_ip", pathID(r))
	}
	return 200, map[string]any{"primary_ip": p}, nil
}

func (s *Sim) updateIP(r *http.Request) (int, any, error) {
	return update(r, "primary_ip", s.st.PrimaryIPs, func(p *schema.PrimaryIP, req schema.PrimaryIPUpdateRequest) error {
		replace(&p.AutoDelete, req.AutoDelete)
		return relabel(&p.Labels, req.Labels)
	})
}

func (s *Sim) deleteIP(r *http.Request) (int, any, error) {
	p, ok := s.st.PrimaryIPs[pathID(r)]
	switch {
	case !ok:
		return 0, nil, notFound("primary_ip", pathID(r))
	case p.AssigneeID != nil:
		return 0, nil, &apiError{status: 422, code: "resource_in_use", message: "primary IP is still assigned"}
	}
	delete(s.st.PrimaryIPs, p.ID)
	s.st.close("primary_ip", p.ID)
	return 204, nil, nil
}

func (s *Sim) listSSHKeys(r *http.Request) (int, any, error) {
	var items []item
	for _, k := range s.st.SSHKeys {
		items = append(items, item{id: k.ID, name: k.Name, labels: k.Labels, created: k.Created, body: k})
	}
	return list(r, "ssh_keys", items)
}
