package hetzner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sort"
	"strconv"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

func ownerLabels(environment string) map[string]string {
	return map[string]string{server.LabelManagedBy: server.ManagedByPrego, server.LabelEnvironment: environment}
}

func checkOwner(kind, name string, labels map[string]string, environment string) error {
	if labels[server.LabelManagedBy] == server.ManagedByPrego && labels[server.LabelEnvironment] == environment {
		return nil
	}
	return infraError(server.InfraForeign, "uniqueness_error",
		"the %s name %s belongs to another owner's resource", kind, name)
}

// findOrCreate runs find, then create if nothing was found, then find again if the create lost a race or its outcome
// is unknown.
func findOrCreate[T any](p *Provider, find func() (*T, error), create func() (*T, error)) (*T, error) {
	v, err := find()
	if err != nil || v != nil {
		return v, p.classify(err)
	}
	v, createErr := create()
	if createErr == nil {
		return v, nil
	}
	createErr = p.classify(createErr)
	if !mayExist(createErr) {
		return nil, createErr
	}
	v, err = find()
	if err != nil {
		return nil, p.classify(err)
	}
	if v == nil {
		return nil, ambiguous(createErr, nil)
	}
	return v, nil
}

// EnsureFirewall finds or creates the environment's firewall, and corrects its rules if they differ.
func (p *Provider) EnsureFirewall(ctx context.Context, f server.FirewallParams) (string, error) {
	rules, err := firewallRules(f)
	if err != nil {
		return "", err
	}
	fw, err := findOrCreate(p, func() (*hcloud.Firewall, error) {
		fw, _, err := p.read.Firewall.GetByName(ctx, f.Name)
		return fw, err
	}, func() (*hcloud.Firewall, error) {
		r, _, err := p.write.Firewall.Create(ctx, hcloud.FirewallCreateOpts{
			Name: f.Name, Labels: ownerLabels(f.Environment), Rules: rules,
		})
		return r.Firewall, err
	})
	if err != nil {
		return "", err
	}
	if err := checkOwner("firewall", f.Name, fw.Labels, f.Environment); err != nil {
		return "", err
	}
	if !sameRules(fw.Rules, rules) {
		actions, _, err := p.write.Firewall.SetRules(ctx, fw, hcloud.FirewallSetRulesOpts{Rules: rules})
		if err != nil {
			return "", p.classify(err)
		}
		if err := p.actions.wait(ctx, actionIDs(nil, actions)); err != nil {
			return "", err
		}
	}
	return strconv.FormatInt(fw.ID, 10), nil
}

func firewallRules(f server.FirewallParams) ([]hcloud.FirewallRule, error) {
	var sources []net.IPNet
	for _, cidr := range f.CIDRs {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, infraError(server.InfraPermanent, "invalid_input", "%q is not a CIDR", cidr)
		}
		prefix = prefix.Masked()
		source := net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
		if !slices.ContainsFunc(sources, func(s net.IPNet) bool { return s.String() == source.String() }) {
			sources = append(sources, source)
		}
	}
	if len(sources) == 0 && len(f.Ports) > 0 {
		return nil, infraError(server.InfraPermanent, "invalid_input",
			"a firewall needs the control plane's egress addresses: set PREGO_EGRESS_CIDRS")
	}
	var rules []hcloud.FirewallRule
	for _, port := range f.Ports {
		rules = append(rules, hcloud.FirewallRule{
			Direction: hcloud.FirewallRuleDirectionIn, Protocol: hcloud.FirewallRuleProtocolTCP, SourceIPs: sources,
			Port: new(strconv.Itoa(port)), Description: new("control plane"),
		})
	}
	for _, ports := range ranges(f.Everyone, maxFirewallRules-len(rules)) {
		rules = append(rules, hcloud.FirewallRule{
			Direction: hcloud.FirewallRuleDirectionIn, Protocol: hcloud.FirewallRuleProtocolTCP, SourceIPs: everyone,
			Port: new(ports), Description: new("everyone"),
		})
	}
	return rules, nil
}

// maxFirewallRules is how many rules a firewall may have (docs.hetzner.com/cloud/firewalls/faq).
const maxFirewallRules = 50

// everyone is all addresses.
var everyone = []net.IPNet{
	{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
}

// ranges returns ports as rules name them, neighbours together. If there are more than most, the narrowest gaps
// between them are also open: the hosts' own firewall has each port.
func ranges(ports []int, most int) (out []string) {
	type span struct{ from, to int }
	var spans []span
	for _, p := range slices.Compact(slices.Sorted(slices.Values(ports))) {
		if n := len(spans); n > 0 && spans[n-1].to == p-1 {
			spans[n-1].to = p
			continue
		}
		spans = append(spans, span{p, p})
	}
	for len(spans) > most {
		narrowest := 1
		for i := 2; i < len(spans); i++ {
			if spans[i].from-spans[i-1].to < spans[narrowest].from-spans[narrowest-1].to {
				narrowest = i
			}
		}
		spans[narrowest-1].to = spans[narrowest].to
		spans = slices.Delete(spans, narrowest, narrowest+1)
	}
	for _, s := range spans {
		if s.from == s.to {
			out = append(out, strconv.Itoa(s.from))
		} else {
			out = append(out, fmt.Sprintf("%d-%d", s.from, s.to))
		}
	}
	return out
}

func sameRules(a, b []hcloud.FirewallRule) bool {
	flat := func(rules []hcloud.FirewallRule) []string {
		var out []string
		for _, r := range rules {
			port := ""
			if r.Port != nil {
				port = *r.Port
			}
			for _, s := range slices.Concat(r.SourceIPs, r.DestinationIPs) {
				out = append(out, fmt.Sprint(r.Direction, r.Protocol, port, s.String()))
			}
		}
		sort.Strings(out)
		return out
	}
	return reflect.DeepEqual(flat(a), flat(b))
}

// EnsurePlacementGroup finds or creates a spread group.
func (p *Provider) EnsurePlacementGroup(ctx context.Context, environment, name string, role prego.Role) (string, error) {
	labels := ownerLabels(environment)
	labels[server.LabelRole] = string(role)
	g, err := findOrCreate(p, func() (*hcloud.PlacementGroup, error) {
		g, _, err := p.read.PlacementGroup.GetByName(ctx, name)
		return g, err
	}, func() (*hcloud.PlacementGroup, error) {
		r, _, err := p.write.PlacementGroup.Create(ctx, hcloud.PlacementGroupCreateOpts{
			Name: name, Labels: labels, Type: hcloud.PlacementGroupTypeSpread,
		})
		return r.PlacementGroup, err
	})
	if err != nil {
		return "", err
	}
	if err := checkOwner("placement group", name, g.Labels, environment); err != nil {
		return "", err
	}
	return strconv.FormatInt(g.ID, 10), nil
}

// EnsureVolume finds or creates a volume.
func (p *Provider) EnsureVolume(ctx context.Context, v server.VolumeParams) (string, error) {
	labels := ownerLabels(v.Environment)
	if v.OrgID != "" {
		labels[server.LabelOrgID] = string(v.OrgID)
	} else {
		labels[server.LabelServerID] = string(v.ServerID)
	}
	var made []int64
	vol, err := findOrCreate(p, func() (*hcloud.Volume, error) {
		vol, _, err := p.read.Volume.GetByName(ctx, v.Name)
		return vol, err
	}, func() (*hcloud.Volume, error) {
		r, _, err := p.write.Volume.Create(ctx, hcloud.VolumeCreateOpts{
			Name: v.Name, Size: v.GB, Location: &hcloud.Location{Name: v.Location}, Labels: labels, Format: new("ext4"),
		})
		made = actionIDs(r.Action, r.NextActions)
		return r.Volume, err
	})
	if err != nil {
		return "", err
	}
	if err := checkOwner("volume", v.Name, vol.Labels, v.Environment); err != nil {
		return "", err
	}
	if err := p.actions.wait(ctx, made); err != nil {
		return "", err
	}
	id := strconv.FormatInt(vol.ID, 10)
	return id, p.awaitVolume(ctx, vol)
}

// awaitVolume waits until a volume can be attached: an earlier call may have returned while it was being created.
func (p *Provider) awaitVolume(ctx context.Context, vol *hcloud.Volume) error {
	id := vol.ID
	for vol.Status == hcloud.VolumeStatusCreating {
		var err error
		if vol, _, err = p.read.Volume.GetByID(ctx, id); err != nil {
			return p.classify(err)
		}
		if vol == nil {
			return infraError(server.InfraRetry, "not_found", "volume %d disappeared during its creation", id)
		}
		if vol.Status != hcloud.VolumeStatusCreating {
			return nil
		}
		if err := sleep(ctx, p.poll); err != nil {
			return err
		}
	}
	return nil
}

// ListOwned lists everything that carries the environment's labels.
func (p *Provider) ListOwned(ctx context.Context) ([]server.OwnedResource, error) {
	list := hcloud.ListOpts{LabelSelector: server.OwnerSelector(p.environment), PerPage: 50}
	var out []server.OwnedResource
	servers, err := p.read.Server.AllWithOpts(ctx, hcloud.ServerListOpts{ListOpts: list})
	if err != nil {
		return nil, p.classify(err)
	}
	for _, s := range servers {
		out = append(out, server.OwnedResource{
			Kind: server.ResourceServer, ProviderID: strconv.FormatInt(s.ID, 10), Name: s.Name, Labels: s.Labels,
			CreatedAt: s.Created, Type: typeName(s.ServerType), Location: locationName(s.Location),
		})
	}
	volumes, err := p.read.Volume.AllWithOpts(ctx, hcloud.VolumeListOpts{ListOpts: list})
	if err != nil {
		return nil, p.classify(err)
	}
	for _, v := range volumes {
		out = append(out, server.OwnedResource{
			Kind: server.ResourceVolume, ProviderID: strconv.FormatInt(v.ID, 10), Name: v.Name, Labels: v.Labels,
			CreatedAt: v.Created, Attached: v.Server != nil,
			Location: locationName(v.Location), SizeGB: float64(v.Size),
		})
	}
	ips, err := p.read.PrimaryIP.AllWithOpts(ctx, hcloud.PrimaryIPListOpts{ListOpts: list})
	if err != nil {
		return nil, p.classify(err)
	}
	for _, ip := range ips {
		out = append(out, server.OwnedResource{
			Kind: server.ResourcePrimaryIP, ProviderID: strconv.FormatInt(ip.ID, 10), Name: ip.Name, Labels: ip.Labels,
			CreatedAt: ip.Created, Attached: ip.AssigneeID != 0,
			Type: string(ip.Type), Location: locationName(ip.Location),
		})
	}
	floating, err := p.read.FloatingIP.AllWithOpts(ctx, hcloud.FloatingIPListOpts{ListOpts: list})
	if err != nil {
		return nil, p.classify(err)
	}
	for _, ip := range floating {
		out = append(out, server.OwnedResource{
			Kind: server.ResourceFloatingIP, ProviderID: strconv.FormatInt(ip.ID, 10), Name: ip.Name, Labels: ip.Labels,
			CreatedAt: ip.Created, Attached: ip.Server != nil,
			Type: string(ip.Type), Location: locationName(ip.HomeLocation),
		})
	}
	groups, err := p.read.PlacementGroup.AllWithOpts(ctx, hcloud.PlacementGroupListOpts{ListOpts: list})
	if err != nil {
		return nil, p.classify(err)
	}
	for _, g := range groups {
		out = append(out, server.OwnedResource{
			Kind: server.ResourcePlacementGroup, ProviderID: strconv.FormatInt(g.ID, 10), Name: g.Name,
			Labels: g.Labels, CreatedAt: g.Created, Attached: len(g.Servers) > 0,
		})
	}
	firewalls, err := p.read.Firewall.AllWithOpts(ctx, hcloud.FirewallListOpts{ListOpts: list})
	if err != nil {
		return nil, p.classify(err)
	}
	snapshots := hcloud.ImageListOpts{ListOpts: list, Type: []hcloud.ImageType{hcloud.ImageTypeSnapshot}}
	images, err := p.read.Image.AllWithOpts(ctx, snapshots)
	if err != nil {
		return nil, p.classify(err)
	}
	for _, i := range images {
		out = append(out, server.OwnedResource{
			Kind: server.ResourceImage, ProviderID: strconv.FormatInt(i.ID, 10), Name: i.Description, Labels: i.Labels,
			CreatedAt: i.Created, SizeGB: float64(i.ImageSize),
		})
	}
	for _, f := range firewalls {
		out = append(out, server.OwnedResource{
			Kind: server.ResourceFirewall, ProviderID: strconv.FormatInt(f.ID, 10), Name: f.Name, Labels: f.Labels,
			CreatedAt: f.Created, Attached: len(f.AppliedTo) > 0,
		})
	}
	networks, err := p.ownedNetworks(ctx, list)
	return append(out, networks...), err
}

// DeleteResource deletes one resource of any kind and waits for it; a missing one is success.
func (p *Provider) DeleteResource(ctx context.Context, kind server.ResourceKind, providerID prego.ServerID) error {
	if kind == server.ResourceServer {
		return p.DestroyServer(ctx, providerID)
	}
	id, err := parseID(string(providerID))
	if err != nil {
		return err
	}
	ctx = WithLane(ctx, LaneDelete)
	switch kind {
	case server.ResourceVolume:
		err = p.deleteVolume(ctx, id)
	case server.ResourcePrimaryIP:
		_, err = p.write.PrimaryIP.Delete(ctx, &hcloud.PrimaryIP{ID: id})
	case server.ResourceFloatingIP:
		err = p.deleteFloatingIP(ctx, id)
	case server.ResourceFirewall:
		_, err = p.write.Firewall.Delete(ctx, &hcloud.Firewall{ID: id})
	case server.ResourcePlacementGroup:
		_, err = p.write.PlacementGroup.Delete(ctx, &hcloud.PlacementGroup{ID: id})
	case server.ResourceImage:
		_, err = p.write.Image.Delete(ctx, &hcloud.Image{ID: id})
	case server.ResourceNetwork:
		err = p.deleteNetwork(ctx, id)
	case server.ResourceServer:
	default:
		return infraError(server.InfraPermanent, "invalid_input", "unknown kind %s", kind)
	}
	if err = p.classify(err); isNotFound(err) {
		return nil
	}
	return err
}

// deleteVolume detaches first: deleting a server leaves its volumes, and an attached one can't be deleted.
func (p *Provider) deleteVolume(ctx context.Context, id int64) error {
	v, _, err := p.read.Volume.GetByID(ctx, id)
	if err != nil || v == nil {
		return err
	}
	if v.Server != nil {
		if err := p.detach(ctx, v); err != nil {
			return err
		}
	}
	_, err = p.write.Volume.Delete(ctx, v)
	return err
}

func (p *Provider) detach(ctx context.Context, v *hcloud.Volume) error {
	action, _, err := p.write.Volume.Detach(ctx, v)
	if err == nil {
		err = p.deletions.wait(ctx, actionIDs(action, nil))
	}
	// Its server may have been deleted meanwhile; the volume was not.
	err = p.classify(err)
	var ie *server.InfraError
	if isNotFound(err) || (errors.As(err, &ie) && ie.Code == "volume_not_attached") {
		return nil
	}
	return err
}

func typeName(t *hcloud.ServerType) string {
	if t == nil {
		return ""
	}
	return t.Name
}

func locationName(l *hcloud.Location) string {
	if l == nil {
		return ""
	}
	return l.Name
}
