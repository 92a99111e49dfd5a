package sim

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// The services and targets of load balancers.

// serviceRequest is a service as it is asked for; what is left out has a default.
type serviceRequest struct {
	Protocol        string         `json:"protocol"`
	ListenPort      *int           `json:"listen_port"`
	DestinationPort *int           `json:"destination_port"`
	Proxyprotocol   *bool          `json:"proxyprotocol"`
	HTTP            *httpRequest   `json:"http"`
	HealthCheck     *healthRequest `json:"health_check"`
}

type (
	httpRequest       = schema.LoadBalancerCreateRequestServiceHTTP
	healthRequest     = schema.LoadBalancerCreateRequestServiceHealthCheck
	healthHTTPRequest = schema.LoadBalancerCreateRequestServiceHealthCheckHTTP
	targetRequest     = schema.LoadBalancerCreateRequestTarget
)

// change applies a request to a service.
func (s *Sim) change(v *schema.LoadBalancerService, req serviceRequest) error {
	if req.Protocol != "" && req.Protocol != v.Protocol {
		if !slices.Contains([]string{"tcp", "http", "https"}, req.Protocol) {
			return invalid("protocol must be tcp, http or https", "protocol")
		}
		v.Protocol = req.Protocol
	}
	replace(&v.DestinationPort, req.DestinationPort)
	replace(&v.Proxyprotocol, req.Proxyprotocol)
	if v.Protocol == "tcp" {
		v.HTTP = nil
	} else {
		if v.HTTP == nil {
			v.HTTP = &schema.LoadBalancerServiceHTTP{CookieName: "HCLBSTICKY", CookieLifetime: 300, TimeoutIdle: 60, Certificates: []int64{}}
		}
		if err := s.changeHTTP(v, valueOf(req.HTTP)); err != nil {
			return err
		}
	}
	if v.HealthCheck == nil {
		v.HealthCheck = &schema.LoadBalancerServiceHealthCheck{Protocol: "tcp", Port: v.DestinationPort, Interval: 15, Timeout: 10, Retries: 3}
	}
	h := valueOf(req.HealthCheck)
	if h.Protocol != "" {
		v.HealthCheck.Protocol = h.Protocol
	}
	replace(&v.HealthCheck.Port, h.Port)
	replace(&v.HealthCheck.Interval, h.Interval)
	replace(&v.HealthCheck.Timeout, h.Timeout)
	replace(&v.HealthCheck.Retries, h.Retries)
	if v.HealthCheck.Protocol != "http" {
		v.HealthCheck.HTTP = nil
		return nil
	}
	if v.HealthCheck.HTTP == nil {
		v.HealthCheck.HTTP = &schema.LoadBalancerServiceHealthCheckHTTP{Path: "/", StatusCodes: []string{"2??", "3??"}}
	}
	changeHealth(v.HealthCheck.HTTP, valueOf(h.HTTP))
	return nil
}

func (s *Sim) changeHTTP(v *schema.LoadBalancerService, req httpRequest) error {
	replace(&v.HTTP.CookieName, req.CookieName)
	replace(&v.HTTP.CookieLifetime, req.CookieLifetime)
	replace(&v.HTTP.Certificates, req.Certificates)
	replace(&v.HTTP.RedirectHTTP, req.RedirectHTTP)
	replace(&v.HTTP.StickySessions, req.StickySessions)
	replace(&v.HTTP.TimeoutIdle, req.TimeoutIdle)
	for _, id := range v.HTTP.Certificates {
		if _, ok := s.st.Certificates[id]; !ok {
			return invalid("certificate not found", "certificates")
		}
	}
	if v.Protocol == "https" && len(v.HTTP.Certificates) == 0 {
		return invalid("https needs a certificate", "certificates")
	}
	return nil
}

func changeHealth(v *schema.LoadBalancerServiceHealthCheckHTTP, req healthHTTPRequest) {
	replace(&v.Domain, req.Domain)
	replace(&v.Path, req.Path)
	replace(&v.Response, req.Response)
	replace(&v.StatusCodes, req.StatusCodes)
	replace(&v.TLS, req.TLS)
}

// listen adds a service.
func (s *Sim) listen(b *schema.LoadBalancer, req serviceRequest) error {
	if len(b.Services) >= b.LoadBalancerType.MaxServices {
		return limitExceeded("services of a load balancer")
	}
	standard := map[string]int{"http": 80, "https": 443}[req.Protocol]
	listen := standard
	replace(&listen, req.ListenPort)
	v := schema.LoadBalancerService{ListenPort: listen, DestinationPort: standard}
	if req.Protocol == "https" {
		v.DestinationPort = 80 // TLS ends here
	}
	switch {
	case req.Protocol == "":
		return invalid("protocol is required", "protocol")
	case listen < 1 || listen > 65535:
		return invalid("listen_port is required", "listen_port")
	case v.DestinationPort == 0 && req.DestinationPort == nil:
		return invalid("destination_port is required", "destination_port")
	case slices.ContainsFunc(b.Services, func(o schema.LoadBalancerService) bool { return o.ListenPort == listen }):
		return &apiError{status: http.StatusPreconditionFailed, code: "source_port_already_used", message: "the source port is already in use"}
	}
	if err := s.change(&v, req); err != nil {
		return err
	}
	b.Services = append(b.Services, v)
	return nil
}

func (s *Sim) addService(r *http.Request, b *schema.LoadBalancer) (any, error) {
	var req serviceRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if err := s.listen(b, req); err != nil {
		return nil, err
	}
	return s.did("add_service", nil, balancerRef(b.ID)), nil
}

// serviceAt is where among a load balancer's services the one of a port is.
func serviceAt(b *schema.LoadBalancer, port int) (int, error) {
	i := slices.IndexFunc(b.Services, func(v schema.LoadBalancerService) bool { return v.ListenPort == port })
	if i < 0 {
		return i, &apiError{status: 404, code: "not_found", message: "service not found"}
	}
	return i, nil
}

func (s *Sim) updateService(r *http.Request, b *schema.LoadBalancer) (any, error) {
	var req serviceRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	i, err := serviceAt(b, valueOf(req.ListenPort))
	if err != nil {
		return nil, err
	}
	v := copied(b.Services[i])
	if err := s.change(&v, req); err != nil {
		return nil, err
	}
	b.Services[i] = v
	return s.did("update_service", nil, balancerRef(b.ID)), nil
}

// copied is a service that can be changed without the one it was copied from.
func copied(v schema.LoadBalancerService) schema.LoadBalancerService {
	if v.HTTP != nil {
		v.HTTP = new(*v.HTTP)
	}
	if v.HealthCheck != nil {
		v.HealthCheck = new(*v.HealthCheck)
		if v.HealthCheck.HTTP != nil {
			v.HealthCheck.HTTP = new(*v.HealthCheck.HTTP)
		}
	}
	return v
}

func (s *Sim) deleteService(r *http.Request, b *schema.LoadBalancer) (any, error) {
	var req schema.LoadBalancerDeleteServiceRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	i, err := serviceAt(b, req.ListenPort)
	if err != nil {
		return nil, err
	}
	b.Services = slices.Delete(b.Services, i, i+1)
	return s.did("delete_service", nil, balancerRef(b.ID)), nil
}

func sameTarget(a, b schema.LoadBalancerTarget) bool {
	switch {
	case a.Server != nil && b.Server != nil:
		return *a.Server == *b.Server
	case a.LabelSelector != nil && b.LabelSelector != nil:
		return *a.LabelSelector == *b.LabelSelector
	case a.IP != nil && b.IP != nil:
		return *a.IP == *b.IP
	}
	return false
}

func targetOf(req targetRequest) schema.LoadBalancerTarget {
	t := schema.LoadBalancerTarget{Type: req.Type, UsePrivateIP: valueOf(req.UsePrivateIP)}
	switch {
	case req.Type == "server" && req.Server != nil:
		t.Server = &schema.LoadBalancerTargetServer{ID: req.Server.ID}
	case req.Type == "label_selector" && req.LabelSelector != nil:
		t.LabelSelector = &schema.LoadBalancerTargetLabelSelector{Selector: req.LabelSelector.Selector}
	case req.Type == "ip" && req.IP != nil:
		t.IP = &schema.LoadBalancerTargetIP{IP: req.IP.IP}
	}
	return t
}

// target adds a target.
func (s *Sim) target(b *schema.LoadBalancer, req targetRequest) error {
	t := targetOf(req)
	switch {
	case t.Server == nil && t.LabelSelector == nil && t.IP == nil:
		return invalid("type must be server, label_selector or ip", "type")
	case slices.ContainsFunc(b.Targets, func(o schema.LoadBalancerTarget) bool { return sameTarget(o, t) }):
		return refused("target_already_defined", "the load balancer target is already defined")
	case len(b.Targets) >= b.LoadBalancerType.MaxTargets:
		return limitExceeded("targets of a load balancer")
	case t.UsePrivateIP && len(b.PrivateNet) == 0:
		return refused("load_balancer_not_attached_to_network", "the load balancer is not attached to a network")
	case t.Type != "ip" && !t.UsePrivateIP && !b.PublicNet.Enabled:
		return refused("load_balancer_public_interface_disabled", "the load balancer's public network interface is disabled")
	}
	switch {
	case t.Server != nil:
		srv, ok := s.st.Servers[t.Server.ID]
		switch {
		case !ok:
			return notFound("server", t.Server.ID)
		case t.UsePrivateIP && membership(srv, b.PrivateNet[0].Network) < 0:
			return refused("resolve_cloud_private_targets_error", "the server is not attached to the same network as the load balancer")
		case !t.UsePrivateIP && srv.PublicNet.IPv4.ID == 0:
			return refused("resolve_cloud_public_targets_error", "the server does not have a public IPv4 address")
		}
	case t.LabelSelector != nil:
		if _, err := parseSelector(t.LabelSelector.Selector); err != nil || t.LabelSelector.Selector == "" {
			return invalid("invalid label selector", "label_selector")
		}
	default:
		// The provider takes those of its customer's dedicated servers; all are, that no other
		// project can have.
		if a, err := netip.ParseAddr(t.IP.IP); err != nil || !a.IsGlobalUnicast() || a.IsPrivate() {
			return refused("ip_not_owned", "the IP is not owned by the project owner")
		}
	}
	b.Targets = append(b.Targets, t)
	return nil
}

func (s *Sim) addTarget(r *http.Request, b *schema.LoadBalancer) (any, error) {
	var req targetRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if err := s.target(b, req); err != nil {
		return nil, err
	}
	return s.did("add_target", nil, balancerRef(b.ID)), nil
}

func (s *Sim) removeTarget(r *http.Request, b *schema.LoadBalancer) (any, error) {
	var req targetRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(b.Targets, func(o schema.LoadBalancerTarget) bool { return sameTarget(o, targetOf(req)) })
	if i < 0 {
		return nil, &apiError{status: 404, code: "not_found", message: "load balancer target not found"}
	}
	b.Targets = slices.Delete(b.Targets, i, i+1)
	return s.did("remove_target", nil, balancerRef(b.ID)), nil
}

// balancerView is a load balancer as the API shows it. The types of the provider's library
// write null where its specification has nothing, and lack the addresses of targets.
func (s *Sim) balancerView(b *schema.LoadBalancer) map[string]any {
	out := plain(b).(map[string]any)
	out["services"] = withoutNulls(plain(b.Services))
	targets := []any{}
	for _, t := range b.Targets {
		targets = append(targets, s.targetView(b, t))
	}
	out["targets"] = targets
	return out
}

func (s *Sim) targetView(b *schema.LoadBalancer, t schema.LoadBalancerTarget) map[string]any {
	switch {
	case t.Server != nil:
		return s.serverTarget(b, t.Server.ID, t.UsePrivateIP)
	case t.LabelSelector != nil:
		members := []any{}
		for _, id := range s.selected(t.LabelSelector.Selector) {
			members = append(members, s.serverTarget(b, id, t.UsePrivateIP))
		}
		return map[string]any{"type": t.Type, "label_selector": t.LabelSelector, "targets": members, "use_private_ip": t.UsePrivateIP}
	}
	return map[string]any{"type": t.Type, "ip": t.IP, "health_status": health(b, "unknown")}
}

func (s *Sim) serverTarget(b *schema.LoadBalancer, id int64, private bool) map[string]any {
	server, status := map[string]any{"id": id, "ip": ""}, "unhealthy"
	if srv, ok := s.st.Servers[id]; ok {
		server["ip"] = srv.PublicNet.IPv4.IP
		if private && len(b.PrivateNet) > 0 {
			if i := membership(srv, b.PrivateNet[0].Network); i >= 0 {
				server["ip"] = srv.PrivateNet[i].IP
			}
		}
		if srv.Status == "running" {
			status = "healthy"
		}
	}
	return map[string]any{"type": "server", "server": server, "health_status": health(b, status), "use_private_ip": private}
}

func health(b *schema.LoadBalancer, status string) []any {
	out := []any{}
	for _, v := range b.Services {
		out = append(out, map[string]any{"listen_port": v.ListenPort, "status": status})
	}
	return out
}

// plain is a value as its JSON says it.
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

func withoutNulls(v any) any {
	switch t := v.(type) {
	case map[string]any:
		for k, e := range t {
			if e == nil {
				delete(t, k)
			} else {
				t[k] = withoutNulls(e)
			}
		}
	case []any:
		for i, e := range t {
			t[i] = withoutNulls(e)
		}
	}
	return v
}

// dropFromBalancers takes a server that is gone out of all load balancers.
func (s *Sim) dropFromBalancers(id int64) {
	for _, b := range s.st.LoadBalancers {
		b.Targets = slices.DeleteFunc(b.Targets, func(t schema.LoadBalancerTarget) bool { return t.Server != nil && t.Server.ID == id })
	}
}

// balancersOf are those that a server is a target of.
func (s *Sim) balancersOf(srv *server) []int64 {
	out := []int64{}
	for id, b := range s.st.LoadBalancers {
		if slices.ContainsFunc(b.Targets, func(t schema.LoadBalancerTarget) bool {
			if t.LabelSelector != nil {
				match, err := parseSelector(t.LabelSelector.Selector)
				return err == nil && match(srv.Labels)
			}
			return t.Server != nil && t.Server.ID == srv.ID
		}) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}
