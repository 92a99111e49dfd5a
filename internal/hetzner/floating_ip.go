package hetzner

import (
	"context"
	"errors"
	"strconv"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// EnsureFloatingIP finds or creates a floating IPv4 address that is on no server, and returns the provider's id and
// the address.
func (p *Provider) EnsureFloatingIP(ctx context.Context, in server.FloatingIPParams) (id, address string, err error) {
	labels := ownerLabels(in.Environment)
	labels[server.LabelOrgID] = string(in.OrgID)
	var made []int64
	ip, err := findOrCreate(p, func() (*hcloud.FloatingIP, error) {
		ip, _, err := p.read.FloatingIP.GetByName(ctx, in.Name)
		return ip, err
	}, func() (*hcloud.FloatingIP, error) {
		r, _, err := p.write.FloatingIP.Create(ctx, hcloud.FloatingIPCreateOpts{
			Type: hcloud.FloatingIPTypeIPv4, HomeLocation: &hcloud.Location{Name: in.Location}, Name: &in.Name, Labels: labels,
		})
		if err != nil {
			return nil, err
		}
		made = actionIDs(r.Action, nil)
		return r.FloatingIP, nil
	})
	if err != nil {
		return "", "", err
	}
	if err := checkOwner("floating IP", in.Name, ip.Labels, in.Environment); err != nil {
		return "", "", err
	}
	return strconv.FormatInt(ip.ID, 10), ip.IP.String(), p.actions.wait(ctx, made)
}

// AssignFloatingIP routes an address to one server only. The provider refuses to assign an assigned address
// (floating_ip_assigned).
func (p *Provider) AssignFloatingIP(ctx context.Context, addressID string, serverID prego.ServerID) error {
	id, err := parseID(addressID)
	if err != nil {
		return err
	}
	srv, err := parseID(string(serverID))
	if err != nil {
		return err
	}
	ip, _, err := p.read.FloatingIP.GetByID(ctx, id)
	switch {
	case err != nil:
		return p.classify(err)
	case ip == nil:
		return infraError(server.InfraNotFound, "not_found", "floating IP %s does not exist", addressID)
	case ip.Server != nil && ip.Server.ID == srv:
		return nil
	case ip.Server != nil:
		if err := p.unassign(ctx, ip); err != nil {
			return err
		}
	}
	action, _, err := p.write.FloatingIP.Assign(ctx, ip, &hcloud.Server{ID: srv})
	if err != nil {
		err = p.classify(err)
		var ie *server.InfraError
		if errors.As(err, &ie) && ie.Code == "floating_ip_assigned" {
			ie.Class = server.InfraRetry // a concurrent call assigned it: the next attempt reads where
		}
		return err
	}
	return p.actions.wait(ctx, actionIDs(action, nil))
}

func (p *Provider) unassign(ctx context.Context, ip *hcloud.FloatingIP) error {
	return p.classify(p.done(ctx)(p.write.FloatingIP.Unassign(ctx, ip)))
}

// deleteFloatingIP unassigns first: an assigned address can't be deleted (must_be_unassigned).
func (p *Provider) deleteFloatingIP(ctx context.Context, id int64) error {
	ip, _, err := p.read.FloatingIP.GetByID(ctx, id)
	if err != nil || ip == nil {
		return err
	}
	if ip.Server != nil {
		if err := p.unassign(ctx, ip); err != nil && !isNotFound(err) {
			return err
		}
	}
	_, err = p.write.FloatingIP.Delete(ctx, ip)
	return err
}
