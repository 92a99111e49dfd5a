package sim

import (
	"net/http"
	"slices"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

func (s *Sim) firewalls() *kind[schema.Firewall] {
	return &kind[schema.Firewall]{
		sim: s, one: "firewall", many: "firewalls", title: "firewall", all: s.st.Firewalls,
		show: func(f *schema.Firewall) item {
			return item{id: f.ID, name: f.Name, labels: f.Labels, created: f.Created, body: s.firewallView(f)}
		},
		name:   func(f *schema.Firewall) *string { return &f.Name },
		labels: func(f *schema.Firewall) *map[string]string { return &f.Labels },
		create: s.createFirewall, remove: s.removeFirewall,
		actions: map[string]action[schema.Firewall]{
			"set_rules": s.setRules, "apply_to_resources": s.applyFirewall, "remove_from_resources": s.unapplyFirewall,
		},
	}
}

func firewallRef(id int64) schema.ActionResourceReference {
	return schema.ActionResourceReference{ID: id, Type: "firewall"}
}

// firewallView is a firewall with the servers that its label selectors select now.
func (s *Sim) firewallView(f *schema.Firewall) schema.Firewall {
	out := *f
	out.AppliedTo = slices.Clone(f.AppliedTo)
	for i, a := range out.AppliedTo {
		if a.LabelSelector == nil {
			continue
		}
		out.AppliedTo[i].AppliedToResources = []schema.FirewallResource{}
		for _, id := range s.selected(a.LabelSelector.Selector) {
			out.AppliedTo[i].AppliedToResources = append(out.AppliedTo[i].AppliedToResources,
				schema.FirewallResource{Type: "server", Server: &schema.FirewallResourceServer{ID: id}})
		}
	}
	return out
}

// selected are the servers that a label selector selects, by id.
func (s *Sim) selected(selector string) []int64 {
	match, err := parseSelector(selector)
	if err != nil {
		return nil // it was checked
	}
	var out []int64
	for id, srv := range s.st.Servers {
		if match(srv.Labels) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// firewallsOf are a server's firewalls, including those by label selectors.
func (s *Sim) firewallsOf(srv *server) []schema.ServerFirewall {
	out := slices.Clone(srv.PublicNet.Firewalls)
	for id, f := range s.st.Firewalls {
		for _, a := range f.AppliedTo {
			if a.LabelSelector == nil ||
				slices.ContainsFunc(out, func(o schema.ServerFirewall) bool { return o.ID == id }) {
				continue
			}
			if match, err := parseSelector(a.LabelSelector.Selector); err == nil && match(srv.Labels) {
				out = append(out, schema.ServerFirewall{ID: id, Status: "applied"})
			}
		}
	}
	if out == nil {
		out = []schema.ServerFirewall{}
	}
	return out
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

func (s *Sim) createFirewall(r *http.Request) (any, error) {
	var req schema.FirewallCreateRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if err := s.firewalls().free(req.Name, 0); err != nil {
		return nil, err
	}
	if len(s.st.Firewalls) >= s.cfg.Limits.Firewalls {
		return nil, &apiError{status: 403, code: "resource_limit_exceeded", message: "firewall limit exceeded"}
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return nil, err
	}
	rules, err := firewallRules(req.Rules)
	if err != nil {
		return nil, err
	}
	f := &schema.Firewall{
		Name: req.Name, Labels: labels, Created: time.Now().UTC(), Rules: rules,
		AppliedTo: []schema.FirewallResource{},
	}
	if err := s.appliable(f, req.ApplyTo); err != nil {
		return nil, err
	}
	f.ID = s.st.id()
	s.st.Firewalls[f.ID] = f
	return schema.FirewallCreateResponse{Actions: s.apply(f, req.ApplyTo), Firewall: s.firewallView(f)}, nil
}

func (s *Sim) removeFirewall(f *schema.Firewall) (any, error) {
	if len(f.AppliedTo) > 0 {
		return nil, refused("resource_in_use", "firewall with ID '"+number(f.ID)+"' is still in use")
	}
	delete(s.st.Firewalls, f.ID)
	return nil, nil
}

func (s *Sim) setRules(r *http.Request, f *schema.Firewall) (any, error) {
	var req schema.FirewallActionSetRulesRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	rules, err := firewallRules(req.Rules)
	if err != nil {
		return nil, err
	}
	f.Rules = rules
	return map[string]any{"actions": []schema.Action{s.act("set_firewall_rules", s.cfg.Profile.Action/4, nil,
		firewallRef(f.ID))}}, nil
}

// sameResource is whether two entries apply a firewall to the same.
func sameResource(a, b schema.FirewallResource) bool {
	switch {
	case a.Server != nil && b.Server != nil:
		return a.Server.ID == b.Server.ID
	case a.LabelSelector != nil && b.LabelSelector != nil:
		return a.LabelSelector.Selector == b.LabelSelector.Selector
	}
	return false
}

func (s *Sim) appliable(f *schema.Firewall, to []schema.FirewallResource) error {
	for _, a := range to {
		switch {
		case a.Type == "server" && a.Server != nil:
			srv, ok := s.st.Servers[a.Server.ID]
			switch {
			case !ok:
				return &apiError{
					status: 404, code: "firewall_resource_not_found",
					message: "server with ID '" + number(a.Server.ID) + "' not found",
				}
			case srv.PublicNet.IPv4.ID == 0 && srv.PublicNet.IPv6.ID == 0:
				return refused("private_net_only_server", "the server has no public interface")
			}
		case a.Type == "label_selector" && a.LabelSelector != nil:
			if _, err := parseSelector(a.LabelSelector.Selector); err != nil || a.LabelSelector.Selector == "" {
				return invalid("invalid label selector", "apply_to")
			}
		default:
			return invalid("type must be server or label_selector", "apply_to")
		}
		if slices.ContainsFunc(f.AppliedTo, func(b schema.FirewallResource) bool { return sameResource(a, b) }) {
			return refused("firewall_already_applied", "firewall is already applied to the resource")
		}
	}
	return nil
}

// apply applies a firewall to what it can be applied to.
func (s *Sim) apply(f *schema.Firewall, to []schema.FirewallResource) []schema.Action {
	actions := []schema.Action{}
	for _, a := range to {
		refs := []schema.ActionResourceReference{firewallRef(f.ID)}
		if a.Server != nil {
			srv := s.st.Servers[a.Server.ID]
			srv.PublicNet.Firewalls = append(srv.PublicNet.Firewalls,
				schema.ServerFirewall{ID: f.ID, Status: "applied"})
			refs = append(refs, serverRef(srv.ID))
		}
		f.AppliedTo = append(f.AppliedTo,
			schema.FirewallResource{Type: a.Type, Server: a.Server, LabelSelector: a.LabelSelector})
		actions = append(actions, s.act("apply_firewall", s.cfg.Profile.Action/4, nil, refs...))
	}
	return actions
}

func (s *Sim) applyFirewall(r *http.Request, f *schema.Firewall) (any, error) {
	var req schema.FirewallActionApplyToResourcesRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if err := s.appliable(f, req.ApplyTo); err != nil {
		return nil, err
	}
	return map[string]any{"actions": s.apply(f, req.ApplyTo)}, nil
}

func (s *Sim) unapplyFirewall(r *http.Request, f *schema.Firewall) (any, error) {
	var req schema.FirewallActionRemoveFromResourcesRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	for _, rm := range req.RemoveFrom {
		if slices.ContainsFunc(f.AppliedTo, func(a schema.FirewallResource) bool { return sameResource(a, rm) }) {
			continue
		}
		if rm.Server != nil && slices.ContainsFunc(s.firewallView(f).AppliedTo, func(a schema.FirewallResource) bool {
			return slices.ContainsFunc(a.AppliedToResources,
				func(b schema.FirewallResource) bool { return sameResource(b, rm) })
		}) {
			return nil, refused("firewall_managed_by_label_selector",
				"firewall is applied via a label selector and cannot be removed manually")
		}
		return nil, &apiError{
			status: 404, code: "firewall_resource_not_found",
			message: "the firewall is not applied to the resource",
		}
	}
	actions := []schema.Action{}
	for _, rm := range req.RemoveFrom {
		f.AppliedTo = slices.DeleteFunc(f.AppliedTo,
			func(a schema.FirewallResource) bool { return sameResource(a, rm) })
		if rm.Server != nil {
			if srv, ok := s.st.Servers[rm.Server.ID]; ok {
				srv.PublicNet.Firewalls = slices.DeleteFunc(srv.PublicNet.Firewalls,
					func(o schema.ServerFirewall) bool { return o.ID == f.ID })
			}
		}
		actions = append(actions, s.act("remove_firewall", s.cfg.Profile.Action/4, nil, firewallRef(f.ID)))
	}
	return map[string]any{"actions": actions}, nil
}
