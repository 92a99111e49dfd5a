package sim

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
	"go.uber.org/zap"
)

// maxUserData is the provider's limit, in bytes.
const maxUserData = 32768

var hostnamePattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)

func (s *Sim) view(srv *server) schema.Server {
	out := srv.Server
	if m, ok := findMachine(srv.ServerType.Name); ok {
		out.ServerType = s.serverType(m)
	}
	return out
}

func (s *Sim) listServers(r *http.Request) (int, any, error) {
	var items []item
	for _, srv := range s.st.Servers {
		items = append(items, item{id: srv.ID, name: srv.Name, status: srv.Status, labels: srv.Labels, created: srv.Created, body: s.view(srv)})
	}
	return list(r, "servers", items)
}

func (s *Sim) getServer(r *http.Request) (int, any, error) {
	srv, ok := s.st.Servers[pathID(r)]
	if !ok {
		return 0, nil, notFound("server", pathID(r))
	}
	return 200, map[string]any{"server": s.view(srv)}, nil
}

func idOrName(v schema.IDOrName) string {
	if v.Name != "" {
		return v.Name
	}
	return fmt.Sprint(v.ID)
}

// order is a create request after it was checked.
type order struct {
	req      schema.ServerCreateRequest
	machine  machine
	location schema.Location
	image    schema.Image
	group    *schema.PlacementGroup
	private  []schema.ServerPrivateNet
}

func (s *Sim) checkOrder(req schema.ServerCreateRequest) (order, error) {
	o := order{req: req}
	var ok bool
	if !hostnamePattern.MatchString(req.Name) {
		return o, invalid("invalid input in field 'name'", "name")
	}
	if len(req.UserData) > maxUserData {
		return o, invalid("user_data must be at most 32768 bytes", "user_data")
	}
	if o.machine, ok = findMachine(idOrName(req.ServerType)); !ok {
		return o, invalid("server type not found", "server_type")
	}
	if o.image, ok = s.findImage(idOrName(req.Image)); !ok {
		return o, invalid("image not found", "image")
	}
	if o.location, ok = findLocation(req.Location); !ok {
		return o, invalid("location not found", "location")
	}
	if req.Labels != nil {
		if err := checkLabels(*req.Labels); err != nil {
			return o, err
		}
	}
	for _, srv := range s.st.Servers {
		if srv.Name == req.Name {
			return o, unique("server")
		}
	}
	if len(s.st.Servers) >= s.cfg.Limits.Servers {
		return o, &apiError{status: 403, code: "resource_limit_exceeded", message: "server limit exceeded"}
	}
	if !o.machine.soldIn(o.location.Name) {
		return o, &apiError{status: 422, code: "invalid_server_type", message: "unsupported location for server type"}
	}
	if d, ok := s.retiring(o.machine.name, o.location.Name); ok && !time.Now().Before(d.UnavailableAfter) {
		return o, invalid("server type is deprecated", "server_type")
	}
	if !s.inStock(o.machine.name, o.location.Name) {
		return o, &apiError{status: 412, code: "resource_unavailable", message: "error during placement"}
	}
	return o, s.checkAttachments(&o)
}

func (s *Sim) checkAttachments(o *order) error {
	if id := o.req.PlacementGroup; id != 0 {
		g, ok := s.st.Groups[id]
		if !ok {
			return notFound("placement_group", id)
		}
		if len(g.Servers) >= 10 {
			return &apiError{status: 422, code: "placement_error", message: "placement group holds 10 servers already"}
		}
		o.group = g
	}
	for _, f := range o.req.Firewalls {
		if _, ok := s.st.Firewalls[f.Firewall]; !ok {
			return notFound("firewall", f.Firewall)
		}
	}
	for _, id := range o.req.Volumes {
		v, ok := s.st.Volumes[id]
		switch {
		case !ok:
			return notFound("volume", id)
		case v.Server != nil:
			return &apiError{status: 422, code: "volume_already_attached", message: "volume is already attached"}
		case v.Location.Name != o.location.Name:
			return invalid("volume is in another location", "volumes")
		}
	}
	var err error
	o.private, err = s.placeAll(o.location, o.req.Networks)
	return err
}

var (
	labelKey   = regexp.MustCompile(`^([a-z0-9A-Z]([a-z0-9A-Z.-]{0,251}[a-z0-9A-Z])?/)?[a-z0-9A-Z]([\w.-]{0,61}[a-z0-9A-Z])?$`)
	labelValue = regexp.MustCompile(`^([a-z0-9A-Z]([\w.-]{0,61}[a-z0-9A-Z])?)?$`)
)

func checkLabels(labels map[string]string) error {
	for k, v := range labels {
		if !labelKey.MatchString(k) || !labelValue.MatchString(v) {
			return invalid("invalid label", "labels")
		}
	}
	return nil
}

func (s *Sim) createServer(r *http.Request) (int, any, error) {
	var req schema.ServerCreateRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	if late, ok := s.hostFault("land_late", req.Name); ok {
		// The caller gets no answer, and the server is created when nobody expects it
		// any more, unless the name was taken meanwhile.
		s.after(time.Duration(late.DelayMS)*time.Millisecond, func() {
			if o, err := s.checkOrder(req); err == nil {
				s.make(o)
				s.changed()
			}
		})
		return 0, nil, &apiError{status: 504, code: "timeout", message: "the request could not be answered in time, please retry"}
	}
	o, err := s.checkOrder(req)
	if err != nil {
		return 0, nil, err
	}
	srv, action, next := s.make(o)
	body := schema.ServerCreateResponse{Server: s.view(srv), Action: action, NextActions: next}
	if len(req.SSHKeys) == 0 {
		body.RootPassword = new(rootPassword(srv.ID))
	}
	return 201, body, nil
}

// make creates a server and boots it.
func (s *Sim) make(o order) (*server, schema.Action, []schema.Action) {
	now := time.Now().UTC()
	addr := s.freeAddress(nil)
	srv := &server{UserData: o.req.UserData, From: snapshotID(o.image), Server: schema.Server{
		ID: s.st.id(), Name: o.req.Name, Status: "initializing", Created: now, PrivateNet: []schema.ServerPrivateNet{},
		ServerType: schema.ServerType{ID: o.machine.id, Name: o.machine.name}, Location: o.location, Image: new(o.image), Labels: map[string]string{},
		IncludedTraffic: 20 << 40, IngoingTraffic: new(uint64(0)), OutgoingTraffic: new(uint64(0)),
		Volumes: []int64{}, LoadBalancers: []int64{}, PrimaryDiskSize: o.machine.disk,
		PublicNet: schema.ServerPublicNet{FloatingIPs: []int64{}, Firewalls: []schema.ServerFirewall{}},
	}}
	if o.req.Labels != nil {
		srv.Labels = *o.req.Labels
	}
	s.st.Servers[srv.ID] = srv
	s.st.open(LedgerEntry{Kind: "server", ID: srv.ID, Name: srv.Name, Type: o.machine.name, Location: o.location.Name, Labels: srv.Labels, Monthly: o.machine.monthly})
	v4 := s.newIP("ipv4", addr, srv, o.location)
	srv.PublicNet.IPv4 = schema.ServerPublicNetIPv4{ID: v4.ID, IP: addr, DNSPtr: fmt.Sprintf("static.%s.clients.example", strings.ReplaceAll(addr, ".", "-"))}
	// Where edges are real, nobody must be led to an address that is nowhere: loopback has one
	// IPv6 address only.
	if s.cfg.Machines != "" || len(s.cfg.Programs) == 0 {
		v6 := s.newIP("ipv6", fmt.Sprintf("2001:db8:%x:%x::/64", srv.ID>>16&0xffff, srv.ID&0xffff), srv, o.location)
		srv.PublicNet.IPv6 = schema.ServerPublicNetIPv6{ID: v6.ID, IP: v6.IP, DNSPtr: []schema.ServerPublicNetIPv6DNSPtr{}}
	}
	if o.group != nil {
		o.group.Servers = append(o.group.Servers, srv.ID)
		srv.PlacementGroup = o.group
	}
	for _, f := range o.req.Firewalls {
		fw := s.st.Firewalls[f.Firewall]
		fw.AppliedTo = append(fw.AppliedTo, schema.FirewallResource{Type: "server", Server: &schema.FirewallResourceServer{ID: srv.ID}})
		srv.PublicNet.Firewalls = append(srv.PublicNet.Firewalls, schema.ServerFirewall{ID: f.Firewall, Status: "applied"})
	}
	for _, id := range o.req.Volumes {
		s.st.Volumes[id].Server = &srv.ID
		srv.Volumes = append(srv.Volumes, id)
	}
	for _, p := range o.private {
		_ = s.join(srv, p) // it is off
	}
	delay := s.cfg.Profile.Action
	if f, ok := s.hostFault("slow_boot", srv.Name); ok {
		delay = time.Duration(f.DelayMS) * time.Millisecond
	}
	_, never := s.hostFault("never_boot", srv.Name)
	create := s.act("create_server", delay/2, func() *schema.ActionError {
		if f, ok := s.hostFault("create_action_fails", srv.Name); ok {
			return &schema.ActionError{Code: f.code("action_failed"), Message: "creating the server failed"}
		}
		if !never && srv.Status == "initializing" {
			srv.Status = "starting"
		}
		return nil
	}, serverRef(srv.ID))
	start := s.act("start_server", delay, func() *schema.ActionError {
		if _, alive := s.st.Servers[srv.ID]; alive && !never {
			srv.Status = "running"
			s.boot(srv)
		}
		return nil
	}, serverRef(srv.ID))
	return srv, create, []schema.Action{start}
}

func (s *Sim) updateServer(r *http.Request) (int, any, error) {
	srv, ok := s.st.Servers[pathID(r)]
	if !ok {
		return 0, nil, notFound("server", pathID(r))
	}
	var req schema.ServerUpdateRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	if req.Name != "" && req.Name != srv.Name {
		for _, other := range s.st.Servers {
			if other.Name == req.Name {
				return 0, nil, unique("server")
			}
		}
		srv.Name = req.Name
	}
	if req.Labels != nil {
		if err := checkLabels(*req.Labels); err != nil {
			return 0, nil, err
		}
		srv.Labels = *req.Labels
	}
	return 200, map[string]any{"server": s.view(srv)}, nil
}

func (s *Sim) deleteServer(r *http.Request) (int, any, error) {
	srv, ok := s.st.Servers[pathID(r)]
	switch {
	case !ok:
		return 0, nil, notFound("server", pathID(r))
	case srv.Protection.Delete:
		return 0, nil, &apiError{status: 423, code: "protected", message: "server deletion is protected"}
	}
	s.remove(srv)
	return 200, map[string]any{"action": s.act("delete_server", s.cfg.Profile.Action/4, nil, serverRef(srv.ID))}, nil
}

// remove deletes a server with its own addresses. Volumes are only detached, as at the
// provider.
func (s *Sim) remove(srv *server) {
	delete(s.st.Servers, srv.ID)
	s.st.close("server", srv.ID)
	for _, f := range s.st.FloatingIPs {
		if f.Server != nil && *f.Server == srv.ID {
			if err := s.unrouteFloating(f); err != nil {
				s.log.Warn("floating IP not unrouted", zap.Error(err))
			}
		}
	}
	for id, ip := range s.st.PrimaryIPs {
		if ip.AssigneeID != nil && *ip.AssigneeID == srv.ID {
			if ip.AutoDelete {
				delete(s.st.PrimaryIPs, id)
				s.st.close("primary_ip", id)
			} else {
				ip.AssigneeID = nil
			}
		}
	}
	for _, v := range s.st.Volumes {
		if v.Server != nil && *v.Server == srv.ID {
			v.Server = nil
		}
	}
	for _, g := range s.st.Groups {
		g.Servers = slices.DeleteFunc(g.Servers, func(id int64) bool { return id == srv.ID })
	}
	for _, f := range s.st.Firewalls {
		f.AppliedTo = slices.DeleteFunc(f.AppliedTo, func(a schema.FirewallResource) bool { return a.Server != nil && a.Server.ID == srv.ID })
	}
	s.scrap(srv, nil)
}

func (s *Sim) serverAction(r *http.Request) (int, any, error) {
	srv, ok := s.st.Servers[pathID(r)]
	if !ok {
		return 0, nil, notFound("server", pathID(r))
	}
	verb := r.PathValue("verb")
	var done func() *schema.ActionError
	switch verb {
	case "create_image":
		return s.createImage(r, srv)
	case "poweron":
		done = func() *schema.ActionError { srv.Status = "running"; s.boot(srv); return nil }
	case "poweroff":
		done = func() *schema.ActionError { srv.Status = "off"; s.halt(srv); return nil }
	case "reset":
		done = func() *schema.ActionError { s.halt(srv); s.boot(srv); return nil }
	case "shutdown", "reboot": // what runs on the host may take its time, or not listen
		done = func() *schema.ActionError { s.press(srv, verb == "reboot"); return nil }
	case "change_type":
		var err error
		if done, err = s.changeType(r, srv); err != nil {
			return 0, nil, err
		}
	case "rebuild":
		return s.rebuildServer(r, srv)
	case "attach_to_network", "detach_from_network", "change_alias_ips":
		return s.serverNetworkAction(r, srv)
	case "change_protection":
		var req struct {
			Delete *bool `json:"delete"`
		}
		if err := decode(r, &req); err != nil {
			return 0, nil, err
		}
		if req.Delete != nil {
			srv.Protection.Delete, srv.Protection.Rebuild = *req.Delete, *req.Delete
		}
	default:
		return 0, nil, &apiError{status: 404, code: "not_found", message: "api route not found"}
	}
	return 201, map[string]any{"action": s.act(verb+"_server", s.cfg.Profile.Action/4, done, serverRef(srv.ID))}, nil
}

// press asks a server's host to shut down or to restart. Call it with the lock held.
func (s *Sim) press(srv *server, restart bool) {
	h, ok := s.hosts[srv.ID]
	if !ok {
		return
	}
	ask := h.shutdown
	if restart {
		ask = h.restart
	}
	if err := ask(); err != nil {
		s.log.Info("button had no effect", zap.Int64("id", srv.ID), zap.Error(err))
	}
}

// changeType gives a server that is off another type. The provider's description says of it
// which disks fit, and that the disk is upgraded only if asked for.
func (s *Sim) changeType(r *http.Request, srv *server) (func() *schema.ActionError, error) {
	var req schema.ServerActionChangeTypeRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	m, ok := findMachine(idOrName(req.ServerType))
	switch {
	case !ok:
		return nil, invalid("server type not found", "server_type")
	case srv.Status != "off":
		return nil, &apiError{status: 422, code: "server_not_stopped", message: "the action requires a stopped server"}
	case m.disk < srv.PrimaryDiskSize, !m.soldIn(srv.Location.Name), m.name == srv.ServerType.Name:
		return nil, &apiError{status: 422, code: "invalid_server_type", message: "the server type does not fit for the given server"}
	case !s.inStock(m.name, srv.Location.Name):
		return nil, &apiError{status: 412, code: "resource_unavailable", message: "error during placement"}
	}
	return func() *schema.ActionError {
		srv.ServerType = s.serverType(m)
		if req.UpgradeDisk {
			srv.PrimaryDiskSize = m.disk
		}
		return nil
	}, nil
}

// rebuildServer rewrites a server's disk from an image; its user_data runs again.
func (s *Sim) rebuildServer(r *http.Request, srv *server) (int, any, error) {
	var req schema.ServerActionRebuildRequest
	if err := decode(r, &req); err != nil {
		return 0, nil, err
	}
	image, ok := s.findImage(idOrName(req.Image))
	if !ok {
		return 0, nil, invalid("image not found", "image")
	}
	if srv.Protection.Rebuild {
		return 0, nil, &apiError{status: 423, code: "protected", message: "server rebuild is protected"}
	}
	if req.UserData != nil {
		if len(*req.UserData) > maxUserData {
			return 0, nil, invalid("user_data must be at most 32768 bytes", "user_data")
		}
		srv.UserData = *req.UserData
	}
	srv.Image, srv.From, srv.Status, srv.Booted = new(image), snapshotID(image), "rebuilding", false
	action := s.act("rebuild_server", s.cfg.Profile.Action, func() *schema.ActionError {
		s.scrap(srv, func() {
			if _, there := s.st.Servers[srv.ID]; there && s.ctx.Err() == nil {
				srv.Status = "running"
				s.boot(srv)
				s.changed()
			}
		})
		return nil
	}, serverRef(srv.ID))
	return 201, schema.ServerActionRebuildResponse{Action: action, RootPassword: new(rootPassword(srv.ID))}, nil
}

// rootPassword is what the provider sets if no key is given.
func rootPassword(id int64) string { return fmt.Sprintf("sim-root-%d-YItygq1v3GYjjMomLaKc", id) }
