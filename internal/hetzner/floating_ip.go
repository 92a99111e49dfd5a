package hetzner

import (
	"context"

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
	find := p.read.FloatingIP.GetByName
	ip, id, err := ensure(ctx, p, "floating IP", in.Name, in.Environment, find, func() (*hcloud.FloatingIP, error) {
		r, _, err := p.write.FloatingIP.Create(ctx, hcloud.FloatingIPCreateOpts{
			Type: hcloud.FloatingIPTypeIPv4, HomeLocation: &hcloud.Location{Name: in.Location}, Name: &in.Name, Labels: labels,
		})
		made = actionIDs(r.Action, nil)
		return r.FloatingIP, err
	})
	if err != nil {
		return "", "", err
	}
	return id, ip.IP.String(), p.actions.wait(ctx, made)
}

// AssignFloatingIP routes an address to one server only. The provider refuses to assign an assigned address
// (floating_ip_assigned).
func (p *Provider) AssignFloatingIP(ctx context.Context, addressID string, serverID prego.ServerID) error {
	srv, err := parseID(string(serverID))
	if err != nil {
		return err
	}
	ip, err := get(ctx, p, addressID, p.read.FloatingIP.GetByID, "floating IP %s does not exist")
	switch {
	case err != nil:
		return err
	case ip.Server != nil && ip.Server.ID == srv:
		return nil
	case ip.Server != nil:
		if err := p.unassign(ctx, ip); err != nil {
			return err
		}
	}
	return raced(p.done(ctx)(p.write.FloatingIP.Assign(ctx, ip, &hcloud.Server{ID: srv})), "floating_ip_assigned")
}

func (p *Provider) unassign(ctx context.Context, ip *hcloud.FloatingIP) error {
	return p.done(ctx)(p.write.FloatingIP.Unassign(ctx, ip))
}

// deleteFloatingIP unassigns first: an assigned address can't be deleted (must_be_unassigned).
func (p *Provider) deleteFloatingIP(ctx context.Context, id int64) error {
	ip, _, err := p.read.FloatingIP.GetByID(ctx, id)
	if err != nil || ip == nil {
		return err
	}
	if ip.Server != nil {
		if err := p.gone(p.unassign(ctx, ip)); err != nil {
			return err
		}
	}
	_, err = p.write.FloatingIP.Delete(ctx, ip)
	return err
}
