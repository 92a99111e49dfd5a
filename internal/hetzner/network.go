package hetzner

import (
	"context"
	"net"
	"net/netip"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// EnsureNetwork finds or creates a private network with one subnet, which is all of it, in its network zone. If the
// subnet was deleted, it is created again. It returns the provider's id and the network's range.
func (p *Provider) EnsureNetwork(ctx context.Context, n server.NetworkParams) (id, ipRange string, err error) {
	prefix, err := netip.ParsePrefix(n.IPRange)
	if err != nil {
		return "", "", infraError(server.InfraPermanent, "invalid_input", "%q is not a range", n.IPRange)
	}
	whole := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
	subnet := func(r *net.IPNet) hcloud.NetworkSubnet {
		zone := hcloud.NetworkZone(n.Zone)
		return hcloud.NetworkSubnet{Type: hcloud.NetworkSubnetTypeCloud, IPRange: r, NetworkZone: zone}
	}
	find := p.read.Network.GetByName
	found, id, err := ensure(ctx, p, "network", n.Name, n.Environment, find, func() (*hcloud.Network, error) {
		made, _, err := p.write.Network.Create(ctx, hcloud.NetworkCreateOpts{
			Name: n.Name, IPRange: whole, Subnets: []hcloud.NetworkSubnet{subnet(whole)},
			Labels: ownerLabels(n.Environment),
		})
		return made, err
	})
	if err != nil {
		return "", "", err
	}
	for _, s := range found.Subnets {
		if string(s.NetworkZone) != n.Zone {
			return "", "", infraError(server.InfraForeign, "uniqueness_error",
				"the network %s has a subnet in zone %s instead of %s", n.Name, s.NetworkZone, n.Zone)
		}
	}
	if len(found.Subnets) == 0 {
		added := hcloud.NetworkAddSubnetOpts{Subnet: subnet(found.IPRange)}
		if err := p.done(ctx)(p.write.Network.AddSubnet(ctx, found, added)); err != nil {
			return "", "", err
		}
	}
	return id, found.IPRange.String(), nil
}

// AttachServer puts a server into a network, unless it is there, and returns its address.
func (p *Provider) AttachServer(ctx context.Context, providerServerID, providerNetworkID string) (string, error) {
	id, err := parseID(providerServerID)
	if err != nil {
		return "", err
	}
	network, err := parseID(providerNetworkID)
	if err != nil {
		return "", err
	}
	ctx = WithLane(ctx, LaneCreate)
	now, err := p.GetServer(ctx, prego.ServerID(providerServerID))
	if err != nil {
		return "", err
	}
	if ip := now.PrivateIn(providerNetworkID); ip != "" {
		return ip, nil
	}
	action, _, err := p.write.Server.AttachToNetwork(ctx, &hcloud.Server{ID: id}, hcloud.ServerAttachToNetworkOpts{
		Network: &hcloud.Network{ID: network},
	})
	// An earlier call may have attached it although its answer was lost: the server's state decides.
	if err = p.classify(err); err != nil && !mayExist(err) && !isAttached(err) {
		return "", err
	}
	if err == nil {
		if err := p.actions.wait(ctx, actionIDs(action, nil)); err != nil {
			return "", err
		}
	}
	if now, err := p.GetServer(ctx, prego.ServerID(providerServerID)); err != nil {
		return "", err
	} else if ip := now.PrivateIn(providerNetworkID); ip != "" {
		return ip, nil
	}
	if err != nil && !isAttached(err) {
		return "", ambiguous(err, nil)
	}
	return "", infraError(server.InfraRetry, "no_private_address",
		"server %d has no address in network %d yet", id, network)
}

func isAttached(err error) bool {
	return infraOf(err).Code == string(hcloud.ErrorCodeServerAlreadyAttached)
}

// deleteNetwork deletes a network without servers. The provider would detach the servers in it.
func (p *Provider) deleteNetwork(ctx context.Context, id int64) error {
	n, _, err := p.read.Network.GetByID(ctx, id)
	if err != nil || n == nil {
		return err
	}
	if len(n.Servers) > 0 {
		return infraError(server.InfraRetry, "resource_in_use", "network %s has %d servers", n.Name, len(n.Servers))
	}
	_, err = p.write.Network.Delete(ctx, n)
	return err
}

// isNetworkFull reports whether a refusal means that a network takes no more servers. The provider has one code for
// all limits, and one for addresses and subnets.
func isNetworkFull(code hcloud.ErrorCode, message string) bool {
	switch code {
	case hcloud.ErrorCodeNoSubnetAvailable:
		return true
	case hcloud.ErrorCodeResourceLimitExceeded:
		return strings.Contains(strings.ToLower(message), "network")
	}
	return false
}

// isNetworkGone reports whether a refusal means that a network does not exist.
func isNetworkGone(code hcloud.ErrorCode, message string) bool {
	return code == "network_not_found" || code == hcloud.ErrorCodeNotFound && strings.Contains(strings.ToLower(message), "network")
}
