package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
	"go.uber.org/zap"
)

// maxUserData is the provider's limit, in bytes.
const maxUserData = 32768

var hostnamePattern = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)

func (s *Sim) servers() *kind[server] {
	return &kind[server]{
		sim: s, one: "server", many: "servers", title: "server", all: s.st.Servers,
		show: func(srv *server) item {
			return item{
				id: srv.ID, name: srv.Name, status: srv.Status, labels: srv.Labels, created: srv.Created,
				body: serverBody{s.view(srv)},
			}
		},
		name:      func(srv *server) *string { return &srv.Name },
		labels:    func(srv *server) *map[string]string { return &srv.Labels },
		protected: func(srv *server) *bool { return &srv.Protection.Delete },
		create:    s.createServer,
		update: func(_ *server, c changes) error {
			if c.Name != nil && !hostnamePattern.MatchString(*c.Name) {
				return invalid("invalid input in field 'name'", "name")
			}
			return nil
		},
		remove: func(srv *server) (any, error) {
			s.remove(srv)
			return s.did("delete_server", nil, serverRef(srv.ID)), nil
		},
		actions: map[string]action[server]{
			"poweron": s.powerOn, "poweroff": s.powerOff, "reset": s.resetServer, "shutdown": s.shutdownServer,
			"reboot": s.rebootServer, "change_type": s.changeType, "rebuild": s.rebuildServer,
			"create_image": s.createImage, "change_protection": s.protectServer, "enable_backup": s.enableBackup,
			"disable_backup": s.disableBackup, "enable_rescue": s.enableRescue, "disable_rescue": s.disableRescue,
			"reset_password": s.resetPassword, "request_console": s.requestConsole, "attach_iso": s.attachISO,
			"detach_iso": s.detachISO, "add_to_placement_group": s.joinGroup,
			"remove_from_placement_group": s.leaveGroup, "change_dns_ptr": s.pointServer,
			"attach_to_network": s.serverNetworkAction, "detach_from_network": s.serverNetworkAction,
			"change_alias_ips": s.serverNetworkAction,
		},
	}
}

// view is a server as the API shows it.
func (s *Sim) view(srv *server) schema.Server {
	out := srv.Server
	if m, ok := findMachine(srv.ServerType.Name); ok {
		out.ServerType = s.serverType(m)
	}
	if srv.PlacementGroup != nil {
		out.PlacementGroup = s.st.Groups[srv.PlacementGroup.ID]
	}
	out.PublicNet.Firewalls = s.firewallsOf(srv)
	return out
}

// serverBody writes null for a server's missing public addresses, which the library's type cannot express.
type serverBody struct{ schema.Server }

// MarshalJSON implements json.Marshaler.
func (b serverBody) MarshalJSON() ([]byte, error) {
	raw, err := json.Marshal(b.Server)
	if err != nil || b.PublicNet.IPv4.ID != 0 && b.PublicNet.IPv6.ID != 0 {
		return raw, err
	}
	out := plain(b.Server).(map[string]any)
	public := out["public_net"].(map[string]any)
	if b.PublicNet.IPv4.ID == 0 {
		public["ipv4"] = nil
	}
	if b.PublicNet.IPv6.ID == 0 {
		public["ipv6"] = nil
	}
	return json.Marshal(out)
}

// plain is a value as in its JSON.
func plain(v any) any {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("sim: " + err.Error())
	}
	var out any
	if err := json.Unmarshal(raw, &out); err != nil {
		panic("sim: " + err.Error())
	}
	return out
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
	// v4 and v6 are its primary IPs; nil to create them.
	v4, v6 *schema.PrimaryIP
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
	if o.machine.cpu == "dedicated" && s.dedicatedCores()+o.machine.cores > s.cfg.Limits.DedicatedCores {
		return o, &apiError{status: 403, code: "resource_limit_exceeded", message: "dedicated core limit exceeded"}
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

// dedicatedCores are those of all servers, which have a limit besides that of servers.
func (s *Sim) dedicatedCores() (n int) {
	for _, srv := range s.st.Servers {
		if m, ok := findMachine(srv.ServerType.Name); ok && m.cpu == "dedicated" {
			n += m.cores
		}
	}
	return n
}

func (s *Sim) checkAttachments(o *order) error {
	if id := o.req.PlacementGroup; id != 0 {
		g, err := s.group(id)
		if err != nil {
			return err
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
	if len(o.req.SSHKeys) > 0 {
		return errNoSSHKeys
	}
	if err := s.checkAddresses(o); err != nil {
		return err
	}
	var err error
	o.private, err = s.placeAll(o.location, o.req.Networks)
	return err
}

// errNoSSHKeys refuses what names an SSH key: the project has none.
var errNoSSHKeys = invalid("SSH key not found", "ssh_keys")

// checkAddresses finds the primary IPs of a new server.
func (s *Sim) checkAddresses(o *order) error {
	net := o.req.PublicNet
	if net == nil {
		return nil
	}
	if !net.EnableIPv4 && !net.EnableIPv6 && len(o.req.Networks) == 0 {
		return invalid("a server needs a public address or a network", "public_net")
	}
	for _, want := range []struct {
		id  int64
		typ string
		ip  **schema.PrimaryIP
	}{{net.IPv4ID, "ipv4", &o.v4}, {net.IPv6ID, "ipv6", &o.v6}} {
		p, ok := s.st.PrimaryIPs[want.id]
		switch {
		case want.id == 0:
		case !ok:
			return notFound("primary_ip", want.id)
		case p.AssigneeID != nil:
			return refused("primary_ip_already_assigned", "primary IP is already assigned to a different server")
		case p.Type != want.typ, p.Location.Name != o.location.Name:
			return invalid("primary IP is of another type, or in another location", "public_net")
		default:
			*want.ip = p
		}
	}
	return nil
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

func (s *Sim) createServer(r *http.Request) (any, error) {
	var req schema.ServerCreateRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if late, ok := s.hostFault("land_late", req.Name); ok {
		// The caller gets no answer, and the server is created unexpectedly late, unless the name was taken meanwhile.
		s.after(time.Duration(late.DelayMS)*time.Millisecond, func() {
			if o, err := s.checkOrder(req); err == nil {
				s.make(o)
				s.changed()
			}
		})
		return nil, &apiError{
			status: 504, code: "timeout",
			message: "the request could not be answered in time, please retry",
		}
	}
	o, err := s.checkOrder(req)
	if err != nil {
		return nil, err
	}
	srv, action, next := s.make(o)
	return map[string]any{
		"server": serverBody{s.view(srv)}, "action": action, "next_actions": next,
		"root_password": rootPassword(srv.ID),
	}, nil
}

// make creates a server and boots it.
func (s *Sim) make(o order) (*server, schema.Action, []schema.Action) {
	now := time.Now().UTC()
	srv := &server{UserData: o.req.UserData, From: snapshotID(o.image), Server: schema.Server{
		ID: s.st.id(), Name: o.req.Name, Status: "initializing", Created: now, PrivateNet: []schema.ServerPrivateNet{},
		ServerType: schema.ServerType{ID: o.machine.id, Name: o.machine.name}, Location: o.location,
		Image: new(o.image), Labels: map[string]string{}, IncludedTraffic: 20 << 40, IngoingTraffic: new(uint64(0)),
		OutgoingTraffic: new(uint64(0)), Volumes: []int64{}, LoadBalancers: []int64{}, PrimaryDiskSize: o.machine.disk,
		PublicNet: schema.ServerPublicNet{FloatingIPs: []int64{}, Firewalls: []schema.ServerFirewall{}},
	}}
	if o.req.Labels != nil {
		srv.Labels = *o.req.Labels
	}
	s.st.Servers[srv.ID] = srv
	s.st.open(LedgerEntry{
		Kind: "server", ID: srv.ID, Name: srv.Name, Type: o.machine.name, Location: o.location.Name,
		Labels: srv.Labels, Monthly: o.machine.monthly,
	})
	s.address4(srv, o)
	s.address6(srv, o)
	if o.group != nil {
		o.group.Servers = append(o.group.Servers, srv.ID)
		srv.PlacementGroup = o.group
	}
	for _, f := range o.req.Firewalls {
		fw := s.st.Firewalls[f.Firewall]
		fw.AppliedTo = append(fw.AppliedTo,
			schema.FirewallResource{Type: "server", Server: &schema.FirewallResourceServer{ID: srv.ID}})
		srv.PublicNet.Firewalls = append(srv.PublicNet.Firewalls,
			schema.ServerFirewall{ID: f.Firewall, Status: "applied"})
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
	start := valueOr(o.req.StartAfterCreate, true)
	create := s.act("create_server", delay/2, func() *schema.ActionError {
		if f, ok := s.hostFault("create_action_fails", srv.Name); ok {
			return &schema.ActionError{Code: f.code("action_failed"), Message: "creating the server failed"}
		}
		if !never && srv.Status == "initializing" {
			srv.Status = "starting"
			if !start {
				srv.Status = "off"
			}
		}
		return nil
	}, serverRef(srv.ID))
	if !start {
		return srv, create, []schema.Action{}
	}
	started := s.act("start_server", delay, func() *schema.ActionError {
		if _, alive := s.st.Servers[srv.ID]; alive && !never {
			srv.Status = "running"
			s.boot(srv)
		}
		return nil
	}, serverRef(srv.ID))
	return srv, create, []schema.Action{started}
}

// address4 gives a new server its IPv4 address, which goes with it if it was made for it.
func (s *Sim) address4(srv *server, o order) {
	if o.req.PublicNet != nil && !o.req.PublicNet.EnableIPv4 {
		return
	}
	if o.v4 == nil {
		o.v4 = s.newIP("ipv4", "", o.location)
		o.v4.AutoDelete = true
	}
	s.give(o.v4, srv)
}

// address6 does the same with its IPv6 network. Where edges are real, no client may be led to an unused address:
// loopback has one IPv6 address only.
func (s *Sim) address6(srv *server, o order) {
	if o.req.PublicNet != nil && !o.req.PublicNet.EnableIPv6 || s.cfg.Machines == "" && len(s.cfg.Programs) > 0 {
		return
	}
	if o.v6 == nil {
		o.v6 = s.newIP("ipv6", fmt.Sprintf("2001:db8:%x:%x::/64", srv.ID>>16&0xffff, srv.ID&0xffff), o.location)
		o.v6.AutoDelete = true
	}
	s.give(o.v6, srv)
}

func valueOr[T any](p *T, otherwise T) T {
	if p != nil {
		return *p
	}
	return otherwise
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
		f.AppliedTo = slices.DeleteFunc(f.AppliedTo, func(a schema.FirewallResource) bool {
			return a.Server != nil && a.Server.ID == srv.ID
		})
	}
	s.dropBackups(srv.ID, 0)
	s.scrap(srv, nil)
}

func (s *Sim) powerOn(_ *http.Request, srv *server) (any, error) {
	return s.did("start_server", func() *schema.ActionError {
		srv.Status, srv.RescueEnabled = "running", false
		s.boot(srv)
		return nil
	}, serverRef(srv.ID)), nil
}

func (s *Sim) powerOff(_ *http.Request, srv *server) (any, error) {
	return s.did("stop_server", func() *schema.ActionError { srv.Status = "off"; s.halt(srv); return nil },
		serverRef(srv.ID)), nil
}

func (s *Sim) resetServer(_ *http.Request, srv *server) (any, error) {
	return s.did("reset_server", func() *schema.ActionError {
		srv.RescueEnabled = false
		s.halt(srv)
		s.boot(srv)
		return nil
	}, serverRef(srv.ID)), nil
}

// What runs on the host may take its time when it is asked to shut down or reboot, or not
// listen.

func (s *Sim) shutdownServer(_ *http.Request, srv *server) (any, error) {
	return s.did("shutdown_server", func() *schema.ActionError { s.press(srv, false); return nil }, serverRef(srv.ID)),
		nil
}

func (s *Sim) rebootServer(_ *http.Request, srv *server) (any, error) {
	return s.did("reboot_server", func() *schema.ActionError {
		srv.RescueEnabled = false
		s.press(srv, true)
		return nil
	}, serverRef(srv.ID)), nil
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

// changeType gives a server that is off another type. The provider's description states which disks fit, and that the
// disk is upgraded only on request.
func (s *Sim) changeType(r *http.Request, srv *server) (any, error) {
	var req schema.ServerActionChangeTypeRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	m, ok := findMachine(idOrName(req.ServerType))
	switch {
	case !ok:
		return nil, invalid("server type not found", "server_type")
	case srv.Status != "off":
		return nil, notStopped()
	case m.disk < srv.PrimaryDiskSize, !m.soldIn(srv.Location.Name), m.name == srv.ServerType.Name:
		return nil, &apiError{
			status: 422, code: "invalid_server_type",
			message: "the server type does not fit for the given server",
		}
	case !s.inStock(m.name, srv.Location.Name):
		return nil, &apiError{status: 412, code: "resource_unavailable", message: "error during placement"}
	}
	return s.did("change_server_type", func() *schema.ActionError {
		srv.ServerType = s.serverType(m)
		if req.UpgradeDisk {
			srv.PrimaryDiskSize = m.disk
		}
		s.bill(srv)
		return nil
	}, serverRef(srv.ID)), nil
}

// rebuildServer rewrites a server's disk from an image; its user_data runs again.
func (s *Sim) rebuildServer(r *http.Request, srv *server) (any, error) {
	var req schema.ServerActionRebuildRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	image, ok := s.findImage(idOrName(req.Image))
	if !ok {
		return nil, invalid("image not found", "image")
	}
	if srv.Protection.Rebuild {
		return nil, &apiError{status: 423, code: "protected", message: "server rebuild is protected"}
	}
	if req.UserData != nil {
		if len(*req.UserData) > maxUserData {
			return nil, invalid("user_data must be at most 32768 bytes", "user_data")
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
	return schema.ServerActionRebuildResponse{Action: action, RootPassword: new(rootPassword(srv.ID))}, nil
}

// rootPassword is what the provider sets if no key is given.
func rootPassword(id int64) string { return fmt.Sprintf("sim-root-%d-YItygq1v3GYjjMomLaKc", id) }
