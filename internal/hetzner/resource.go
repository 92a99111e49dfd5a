package hetzner

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

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

// ensure finds ours of a name or creates it, as findOrCreate does, and returns its provider's id too.
func ensure[T any](
	ctx context.Context, p *Provider, kind, name, environment string, find byName[T], create func() (*T, error),
) (v *T, id string, err error) {
	v, err = findOrCreate(p, func() (*T, error) {
		v, _, err := find(ctx, name)
		return v, err
	}, create)
	if err != nil {
		return nil, "", err
	}
	o := owned(v)
	return v, o.ProviderID, checkOwner(kind, name, o.Labels, environment)
}

type (
	byName[T any] = func(ctx context.Context, name string) (*T, *hcloud.Response, error)
	byID[T any]   = func(ctx context.Context, id int64) (*T, *hcloud.Response, error)
)

// get reads what has an id; missing names it in the error if there is none.
func get[T any](ctx context.Context, p *Provider, id string, read byID[T], missing string) (*T, error) {
	n, err := parseID(id)
	if err != nil {
		return nil, err
	}
	v, _, err := read(ctx, n)
	if err == nil && v == nil {
		err = infraError(server.InfraNotFound, "not_found", missing, id)
	}
	return v, p.classify(err)
}

// EnsureFirewall finds or creates the environment's firewall, and corrects its rules if they differ.
func (p *Provider) EnsureFirewall(ctx context.Context, f server.FirewallParams) (string, error) {
	rules, err := firewallRules(f)
	if err != nil {
		return "", err
	}
	find := p.read.Firewall.GetByName
	fw, id, err := ensure(ctx, p, "firewall", f.Name, f.Environment, find, func() (*hcloud.Firewall, error) {
		r, _, err := p.write.Firewall.Create(ctx, hcloud.FirewallCreateOpts{
			Name: f.Name, Labels: ownerLabels(f.Environment), Rules: rules,
		})
		return r.Firewall, err
	})
	if err != nil {
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
	return id, nil
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
		slices.Sort(out)
		return out
	}
	return slices.Equal(flat(a), flat(b))
}

// EnsurePlacementGroup finds or creates a spread group.
func (p *Provider) EnsurePlacementGroup(ctx context.Context, environment, name string, role prego.Role) (string, error) {
	labels := ownerLabels(environment)
	labels[server.LabelRole] = string(role)
	find := p.read.PlacementGroup.GetByName
	_, id, err := ensure(ctx, p, "placement group", name, environment, find, func() (*hcloud.PlacementGroup, error) {
		r, _, err := p.write.PlacementGroup.Create(ctx, hcloud.PlacementGroupCreateOpts{
			Name: name, Labels: labels, Type: hcloud.PlacementGroupTypeSpread,
		})
		return r.PlacementGroup, err
	})
	return id, err
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
	find := p.read.Volume.GetByName
	vol, id, err := ensure(ctx, p, "volume", v.Name, v.Environment, find, func() (*hcloud.Volume, error) {
		r, _, err := p.write.Volume.Create(ctx, hcloud.VolumeCreateOpts{
			Name: v.Name, Size: v.GB, Location: &hcloud.Location{Name: v.Location}, Labels: labels, Format: new("ext4"),
		})
		made = actionIDs(r.Action, r.NextActions)
		return r.Volume, err
	})
	if err != nil {
		return "", err
	}
	if err := p.actions.wait(ctx, made); err != nil {
		return "", err
	}
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
		if err := prego.Sleep(ctx, p.poll); err != nil {
			return err
		}
	}
	return nil
}

// ListOwned lists everything that carries the environment's labels.
func (p *Provider) ListOwned(ctx context.Context) ([]server.OwnedResource, error) {
	list := hcloud.ListOpts{LabelSelector: server.OwnerSelector(p.environment), PerPage: 50}
	snapshots := hcloud.ImageListOpts{ListOpts: list, Type: []hcloud.ImageType{hcloud.ImageTypeSnapshot}}
	var out []server.OwnedResource
	for _, more := range []func(context.Context) ([]server.OwnedResource, error){
		listed(p.read.Server.AllWithOpts, hcloud.ServerListOpts{ListOpts: list}),
		listed(p.read.Volume.AllWithOpts, hcloud.VolumeListOpts{ListOpts: list}),
		listed(p.read.PrimaryIP.AllWithOpts, hcloud.PrimaryIPListOpts{ListOpts: list}),
		listed(p.read.FloatingIP.AllWithOpts, hcloud.FloatingIPListOpts{ListOpts: list}),
		listed(p.read.PlacementGroup.AllWithOpts, hcloud.PlacementGroupListOpts{ListOpts: list}),
		listed(p.read.Image.AllWithOpts, snapshots),
		listed(p.read.Firewall.AllWithOpts, hcloud.FirewallListOpts{ListOpts: list}),
		listed(p.read.Network.AllWithOpts, hcloud.NetworkListOpts{ListOpts: list}),
	} {
		found, err := more(ctx)
		if err != nil {
			return nil, p.classify(err)
		}
		out = append(out, found...)
	}
	return out, nil
}

func listed[T, O any](
	all func(context.Context, O) ([]*T, error), opts O,
) func(context.Context) ([]server.OwnedResource, error) {
	return func(ctx context.Context) (out []server.OwnedResource, err error) {
		found, err := all(ctx, opts)
		for _, v := range found {
			out = append(out, owned(v))
		}
		return out, err
	}
}

// owned describes a resource of any kind.
func owned(v any) (o server.OwnedResource) {
	is := func(kind server.ResourceKind, id int64, name string, labels map[string]string, created time.Time) {
		o.Kind, o.ProviderID, o.Name, o.Labels, o.CreatedAt = kind, strconv.FormatInt(id, 10), name, labels, created
	}
	switch v := v.(type) {
	case *hcloud.Server:
		is(server.ResourceServer, v.ID, v.Name, v.Labels, v.Created)
		o.Type, o.Location, o.Protected = typeName(v.ServerType), locationName(v.Location), v.Protection.Delete
	case *hcloud.Volume:
		is(server.ResourceVolume, v.ID, v.Name, v.Labels, v.Created)
		o.Attached, o.Location, o.SizeGB = v.Server != nil, locationName(v.Location), float64(v.Size)
		o.Protected = v.Protection.Delete
		if v.Server != nil {
			o.AttachedTo = strconv.FormatInt(v.Server.ID, 10)
		}
	case *hcloud.PrimaryIP:
		is(server.ResourcePrimaryIP, v.ID, v.Name, v.Labels, v.Created)
		o.Attached, o.Type, o.Location = v.AssigneeID != 0, string(v.Type), locationName(v.Location)
	case *hcloud.FloatingIP:
		is(server.ResourceFloatingIP, v.ID, v.Name, v.Labels, v.Created)
		o.Attached, o.Type, o.Location = v.Server != nil, string(v.Type), locationName(v.HomeLocation)
	case *hcloud.PlacementGroup:
		is(server.ResourcePlacementGroup, v.ID, v.Name, v.Labels, v.Created)
		o.Attached = len(v.Servers) > 0
	case *hcloud.Image:
		is(server.ResourceImage, v.ID, v.Description, v.Labels, v.Created)
		o.SizeGB = float64(v.ImageSize)
	case *hcloud.Firewall:
		is(server.ResourceFirewall, v.ID, v.Name, v.Labels, v.Created)
		o.Attached = len(v.AppliedTo) > 0
	case *hcloud.Network:
		is(server.ResourceNetwork, v.ID, v.Name, v.Labels, v.Created)
		o.Attached = len(v.Servers) > 0
	}
	return o
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
	if err := p.mayDelete(ctx, kind, string(providerID)); err != nil {
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
	return p.gone(err)
}

// Protect sets whether the provider refuses to delete a server or a volume, whoever asks. DestroyServer and
// DeleteResource then fail with the code "protected".
func (p *Provider) Protect(ctx context.Context, kind server.ResourceKind, providerID string, on bool) error {
	id, err := parseID(providerID)
	if err != nil {
		return err
	}
	if !on {
		ctx = WithLane(ctx, LaneDelete)
	}
	var action *hcloud.Action
	switch kind {
	case server.ResourceServer:
		action, _, err = p.write.Server.ChangeProtection(ctx, &hcloud.Server{ID: id},
			hcloud.ServerChangeProtectionOpts{Delete: &on, Rebuild: &on})
	case server.ResourceVolume:
		action, _, err = p.write.Volume.ChangeProtection(ctx, &hcloud.Volume{ID: id},
			hcloud.VolumeChangeProtectionOpts{Delete: &on})
	default:
		return infraError(server.InfraPermanent, "invalid_input", "a %s is not protected", kind)
	}
	if err == nil && !on && action.Status != hcloud.ActionStatusSuccess { // its deletion comes next
		err = p.actions.wait(ctx, actionIDs(action, nil))
	}
	return p.classify(err)
}

// deleteVolume detaches first: deleting a server leaves its volumes, and an attached one can't be deleted.
func (p *Provider) deleteVolume(ctx context.Context, id int64) error {
	v, _, err := p.read.Volume.GetByID(ctx, id)
	if err != nil || v == nil {
		return err
	}
	if v.Protection.Delete {
		return infraError(server.InfraPermanent, server.InfraProtected, "volume %d is protected from deletion", id)
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
	if isNotFound(err) || infraOf(err).Code == "volume_not_attached" {
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
