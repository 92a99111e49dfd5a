package hetzner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// EnsureNetwork finds or creates a private network with one subnet, which is all of it, in
// its network zone. One of ours that lacks the subnet, because somebody deleted it, gets it
// again. It returns the provider's id and the range that it has.
func (p *Provider) EnsureNetwork(ctx context.Context, n server.NetworkParams) (id, ipRange string, err error) {
	prefix, err := netip.ParsePrefix(n.IPRange)
	if err != nil {
		return "", "", &server.InfraError{Class: server.InfraPermanent, Code: "invalid_input", Message: fmt.Sprintf("%q is not a range", n.IPRange)}
	}
	whole := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
	subnet := func(r *net.IPNet) hcloud.NetworkSubnet {
		return hcloud.NetworkSubnet{Type: hcloud.NetworkSubnetTypeCloud, IPRange: r, NetworkZone: hcloud.NetworkZone(n.Zone)}
	}
	found, err := findOrCreate(p, func() (*hcloud.Network, error) {
		found, _, err := p.read.Network.GetByName(ctx, n.Name)
		return found, err
	}, func() (*hcloud.Network, error) {
		made, _, err := p.write.Network.Create(ctx, hcloud.NetworkCreateOpts{
			Name: n.Name, IPRange: whole, Subnets: []hcloud.NetworkSubnet{subnet(whole)}, Labels: ownerLabels(n.Environment),
		})
		return made, err
	})
	if err != nil {
		return "", "", err
	}
	if err := checkOwner("network", n.Name, found.Labels, n.Environment); err != nil {
		return "", "", err
	}
	if i := slices.IndexFunc(found.Subnets, func(s hcloud.NetworkSubnet) bool { return string(s.NetworkZone) != n.Zone }); i >= 0 {
		return "", "", &server.InfraError{
			Class: server.InfraForeign, Code: "uniqueness_error",
			Message: fmt.Sprintf("the network %s has a subnet in zone %s instead of %s", n.Name, found.Subnets[i].NetworkZone, n.Zone),
		}
	}
	if len(found.Subnets) == 0 {
		action, _, err := p.write.Network.AddSubnet(ctx, found, hcloud.NetworkAddSubnetOpts{Subnet: subnet(found.IPRange)})
		if err != nil {
			return "", "", p.classify(err)
		}
		if err := p.actions.wait(ctx, actionIDs(action, nil)); err != nil {
			return "", "", err
		}
	}
	return strconv.FormatInt(found.ID, 10), found.IPRange.String(), nil
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
	action, _, err := p.write.Server.AttachToNetwork(ctx, &hcloud.Server{ID: id}, hcloud.ServerAttachToNetworkOpts{Network: &hcloud.Network{ID: network}})
	// An earlier call may have done it although its answer was lost: the server says.
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
	return "", &server.InfraError{Class: server.InfraRetry, Code: "no_private_address", Message: fmt.Sprintf("server %d has no address in network %d yet", id, network)}
}

func isAttached(err error) bool {
	var ie *server.InfraError
	return errors.As(err, &ie) && ie.Code == string(hcloud.ErrorCodeServerAlreadyAttached)
}

// deleteNetwork deletes a network without servers. The provider would detach those that
// are in it.
func (p *Provider) deleteNetwork(ctx context.Context, id int64) error {
	n, _, err := p.read.Network.GetByID(ctx, id)
	if err != nil || n == nil {
		return err
	}
	if len(n.Servers) > 0 {
		return &server.InfraError{Class: server.InfraRetry, Code: "resource_in_use", Message: fmt.Sprintf("network %s has %d servers", n.Name, len(n.Servers))}
	}
	_, err = p.write.Network.Delete(ctx, n)
	return err
}

func (p *Provider) ownedNetworks(ctx context.Context, list hcloud.ListOpts) ([]server.OwnedResource, error) {
	networks, err := p.read.Network.AllWithOpts(ctx, hcloud.NetworkListOpts{ListOpts: list})
	if err != nil {
		return nil, p.classify(err)
	}
	out := make([]server.OwnedResource, 0, len(networks))
	for _, n := range networks {
		out = append(out, server.OwnedResource{Kind: server.ResourceNetwork, ProviderID: strconv.FormatInt(n.ID, 10), Name: n.Name, Labels: n.Labels, CreatedAt: n.Created, Attached: len(n.Servers) > 0})
	}
	return out, nil
}

// isNetworkFull reports whether a refusal is about a network that takes no more servers.
// The provider has one code for all limits, and one for addresses and subnets.
func isNetworkFull(code hcloud.ErrorCode, message string) bool {
	switch code {
	case hcloud.ErrorCodeNoSubnetAvailable:
		return true
	case hcloud.ErrorCodeResourceLimitExceeded:
		return strings.Contains(strings.ToLower(message), "network")
	}
	return false
}

// isNetworkGone reports whether a refusal is about a network that does not exist.
func isNetworkGone(code hcloud.ErrorCode, message string) bool {
	return code == "network_not_found" || code == hcloud.ErrorCodeNotFound && strings.Contains(strings.ToLower(message), "network")
}
