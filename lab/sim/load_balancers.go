package sim

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// Load balancers: what they are configured to do is kept, checked and shown, and they are
// billed. No traffic passes through them. Services and targets are in
// load_balancer_parts.go.

// balancerTypes are the provider's, with its limits and monthly prices.
var balancerTypes = []balancerType{
	{1, "lb11", 10_000, 5, 25, 10, 5.39},
	{2, "lb21", 20_000, 15, 75, 25, 16.40},
	{3, "lb31", 40_000, 30, 150, 50, 32.90},
}

type balancerType struct {
	id                                          int64
	name                                        string
	connections, services, targets, certificate int
	monthly                                     float64
}

func findBalancerType(idOrName string) (balancerType, bool) {
	for _, t := range balancerTypes {
		if t.name == idOrName || number(t.id) == idOrName {
			return t, true
		}
	}
	return balancerType{}, false
}

func (t balancerType) schema() schema.LoadBalancerType {
	out := schema.LoadBalancerType{
		ID: t.id, Name: t.name, Description: t.name, MaxConnections: t.connections, MaxServices: t.services, MaxTargets: t.targets, MaxAssignedCertificates: t.certificate,
	}
	for _, l := range locations {
		out.Prices = append(out.Prices, schema.PricingLoadBalancerTypePrice{
			Location: l.Name, PriceHourly: price(t.monthly / 624), PriceMonthly: price(t.monthly), IncludedTraffic: 20 << 40, PricePerTBTraffic: price(1),
		})
	}
	return out
}

func (s *Sim) balancerTypes() *kind[schema.LoadBalancerType] {
	all := make([]schema.LoadBalancerType, 0, len(balancerTypes))
	for _, t := range balancerTypes {
		all = append(all, t.schema())
	}
	return &kind[schema.LoadBalancerType]{
		sim: s, one: "load_balancer_type", many: "load_balancer_types", fixed: all,
		show: func(t *schema.LoadBalancerType) item { return item{id: t.ID, name: t.Name, body: t} },
	}
}

func (s *Sim) loadBalancers() *kind[schema.LoadBalancer] {
	return &kind[schema.LoadBalancer]{
		sim: s, one: "load_balancer", many: "load_balancers", title: "load balancer", all: s.st.LoadBalancers,
		show: func(b *schema.LoadBalancer) item {
			return item{id: b.ID, name: b.Name, labels: b.Labels, created: b.Created, body: s.balancerView(b)}
		},
		name:      func(b *schema.LoadBalancer) *string { return &b.Name },
		labels:    func(b *schema.LoadBalancer) *map[string]string { return &b.Labels },
		protected: func(b *schema.LoadBalancer) *bool { return &b.Protection.Delete },
		create:    s.createBalancer,
		remove: func(b *schema.LoadBalancer) (any, error) {
			delete(s.st.LoadBalancers, b.ID)
			s.st.close("load_balancer", b.ID)
			return nil, nil
		},
		actions: map[string]action[schema.LoadBalancer]{
			"add_service": s.addService, "update_service": s.updateService, "delete_service": s.deleteService,
			"add_target": s.addTarget, "remove_target": s.removeTarget, "change_algorithm": s.changeAlgorithm, "change_type": s.changeBalancerType,
			"attach_to_network": s.attachBalancer, "detach_from_network": s.detachBalancer, "change_dns_ptr": s.pointBalancer,
			"enable_public_interface": s.publishBalancer, "disable_public_interface": s.hideBalancer,
		},
	}
}

func balancerRef(id int64) schema.ActionResourceReference {
	return schema.ActionResourceReference{ID: id, Type: "load_balancer"}
}

func (s *Sim) createBalancer(r *http.Request) (any, error) {
	var req schema.LoadBalancerCreateRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if err := s.loadBalancers().free(req.Name, 0); err != nil {
		return nil, err
	}
	typ, ok := findBalancerType(idOrName(req.LoadBalancerType))
	if !ok {
		return nil, invalid("load balancer type not found", "load_balancer_type")
	}
	l, err := balancerLocation(req)
	if err != nil {
		return nil, err
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return nil, err
	}
	if len(s.st.LoadBalancers) >= s.cfg.Limits.LoadBalancers {
		return nil, &apiError{status: 403, code: "resource_limit_exceeded", message: "load balancer limit exceeded"}
	}
	b := &schema.LoadBalancer{
		Name: req.Name, Location: l, LoadBalancerType: typ.schema(), Labels: labels, Created: time.Now().UTC(),
		PrivateNet: []schema.LoadBalancerPrivateNet{}, Services: []schema.LoadBalancerService{}, Targets: []schema.LoadBalancerTarget{},
		Algorithm: schema.LoadBalancerAlgorithm{Type: "round_robin"}, IncludedTraffic: 20 << 40, OutgoingTraffic: new(uint64(0)), IngoingTraffic: new(uint64(0)),
	}
	b.PublicNet.Enabled = req.PublicInterface == nil || *req.PublicInterface
	if req.Algorithm != nil {
		if err := setAlgorithm(b, req.Algorithm.Type); err != nil {
			return nil, err
		}
	}
	if req.Network != nil {
		if err := s.placeBalancer(b, schema.LoadBalancerActionAttachToNetworkRequest{Network: *req.Network}); err != nil {
			return nil, err
		}
	}
	for _, v := range req.Services {
		if err := s.listen(b, serviceRequest(v)); err != nil {
			return nil, err
		}
	}
	for _, t := range req.Targets {
		if err := s.target(b, t); err != nil {
			return nil, err
		}
	}
	b.ID = s.st.id()
	b.PublicNet.IPv4.IP = fmt.Sprintf("198.51.%d.%d", 100+b.ID>>8&0x3f, b.ID&0xff)
	b.PublicNet.IPv6.IP = fmt.Sprintf("2001:db8:1:%x::1", b.ID&0xffff)
	b.PublicNet.IPv4.DNSPtr = pointerOf(b.PublicNet.IPv4.IP)
	s.st.LoadBalancers[b.ID] = b
	s.st.open(LedgerEntry{Kind: "load_balancer", ID: b.ID, Name: b.Name, Type: typ.name, Location: l.Name, Labels: labels, Monthly: typ.monthly})
	return map[string]any{"load_balancer": s.balancerView(b), "action": s.act("create_load_balancer", s.cfg.Profile.Action/4, nil, balancerRef(b.ID))}, nil
}

func balancerLocation(req schema.LoadBalancerCreateRequest) (schema.Location, error) {
	switch {
	case (req.Location == nil) == (req.NetworkZone == nil):
		return schema.Location{}, invalid("either location or network_zone is required", "location")
	case req.Location != nil:
		if l, ok := findLocation(*req.Location); ok {
			return l, nil
		}
		return schema.Location{}, invalid("location not found", "location")
	}
	for _, l := range locations {
		if l.NetworkZone == *req.NetworkZone {
			return l, nil
		}
	}
	return schema.Location{}, invalid("network zone not found", "network_zone")
}

func setAlgorithm(b *schema.LoadBalancer, typ string) error {
	if typ != "round_robin" && typ != "least_connections" {
		return invalid("type must be round_robin or least_connections", "type")
	}
	b.Algorithm.Type = typ
	return nil
}

func (s *Sim) changeAlgorithm(r *http.Request, b *schema.LoadBalancer) (any, error) {
	var req schema.LoadBalancerActionChangeAlgorithmRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if err := setAlgorithm(b, req.Type); err != nil {
		return nil, err
	}
	return s.did("change_algorithm", nil, balancerRef(b.ID)), nil
}

func (s *Sim) changeBalancerType(r *http.Request, b *schema.LoadBalancer) (any, error) {
	var req schema.LoadBalancerActionChangeTypeRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	typ, ok := findBalancerType(idOrName(req.LoadBalancerType))
	switch {
	case !ok:
		return nil, invalid("load balancer type not found", "load_balancer_type")
	case len(b.Services) > typ.services, len(b.Targets) > typ.targets, typ.name == b.LoadBalancerType.Name:
		return nil, refused("invalid_load_balancer_type", "the load balancer type does not fit for the given load balancer")
	}
	b.LoadBalancerType = typ.schema()
	s.st.reprice("load_balancer", b.ID, typ.name, typ.monthly)
	return s.did("change_load_balancer_type", nil, balancerRef(b.ID)), nil
}

// placeBalancer gives a load balancer an address in a network.
func (s *Sim) placeBalancer(b *schema.LoadBalancer, req schema.LoadBalancerActionAttachToNetworkRequest) error {
	n, ok := s.st.Networks[req.Network]
	switch {
	case !ok:
		return notFound("network", req.Network)
	case len(b.PrivateNet) > 0:
		return refused("load_balancer_already_attached", "the load balancer is already attached to a network")
	}
	within := subnetsFor(n, b.Location.NetworkZone, valueOf(req.IPRange))
	if len(within) == 0 {
		return refused("no_subnet_available", "no subnet available for the load balancer's location")
	}
	book := &addressBook{network: n, used: s.usedAddresses(n.ID)}
	p := schema.LoadBalancerPrivateNet{Network: n.ID, IP: valueOf(req.IP)}
	var err error
	if req.IP != nil {
		err = book.take(*req.IP, "ip", within)
	} else {
		p.IP, err = book.next(within)
	}
	if err == nil {
		b.PrivateNet = append(b.PrivateNet, p)
	}
	return err
}

func (s *Sim) attachBalancer(r *http.Request, b *schema.LoadBalancer) (any, error) {
	var req schema.LoadBalancerActionAttachToNetworkRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if err := s.placeBalancer(b, req); err != nil {
		return nil, err
	}
	return s.did("attach_to_network", nil, balancerRef(b.ID), networkRef(req.Network)), nil
}

func (s *Sim) detachBalancer(r *http.Request, b *schema.LoadBalancer) (any, error) {
	var req schema.LoadBalancerActionDetachFromNetworkRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if !inNetwork(b, req.Network) {
		return nil, &apiError{status: 404, code: "not_found", message: "load balancer is not attached to the network"}
	}
	b.PrivateNet = []schema.LoadBalancerPrivateNet{}
	return s.did("detach_from_network", nil, balancerRef(b.ID), networkRef(req.Network)), nil
}

func inNetwork(b *schema.LoadBalancer, network int64) bool {
	return slices.ContainsFunc(b.PrivateNet, func(p schema.LoadBalancerPrivateNet) bool { return p.Network == network })
}

func (s *Sim) pointBalancer(r *http.Request, b *schema.LoadBalancer) (any, error) {
	var req pointer
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	switch {
	case sameAddress(req.IP, b.PublicNet.IPv4.IP):
		b.PublicNet.IPv4.DNSPtr = valueOf(req.DNSPtr)
		if b.PublicNet.IPv4.DNSPtr == "" {
			b.PublicNet.IPv4.DNSPtr = pointerOf(req.IP)
		}
	case sameAddress(req.IP, b.PublicNet.IPv6.IP):
		b.PublicNet.IPv6.DNSPtr = valueOf(req.DNSPtr)
	default:
		return nil, &apiError{status: 404, code: "not_found", message: "IP '" + req.IP + "' not found"}
	}
	return s.did("change_dns_ptr", nil, balancerRef(b.ID)), nil
}

func (s *Sim) publishBalancer(_ *http.Request, b *schema.LoadBalancer) (any, error) {
	b.PublicNet.Enabled = true
	return s.did("enable_public_interface", nil, balancerRef(b.ID)), nil
}

func (s *Sim) hideBalancer(_ *http.Request, b *schema.LoadBalancer) (any, error) {
	if len(b.PrivateNet) == 0 {
		return nil, refused("load_balancer_not_attached_to_network", "the load balancer is not attached to a network")
	}
	if slices.ContainsFunc(b.Targets, func(t schema.LoadBalancerTarget) bool { return t.Type != "ip" && !t.UsePrivateIP }) {
		return nil, refused("targets_without_use_private_ip", "the load balancer has targets that use the public IP instead of the private IP")
	}
	b.PublicNet.Enabled = false
	return s.did("disable_public_interface", nil, balancerRef(b.ID)), nil
}
