package activities

import (
	"context"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// Limits of the provider on placement groups: 10 servers per spread group, 50 groups
// per project. Each role keeps to its share of the groups.
const (
	placementGroupSize = 10
	placementGroups    = 12
)

// foundation holds the shared resources of a server.
type foundation struct {
	FirewallID       string
	PublicFirewallID string // of an edge
	PlacementGroupID string // "" if every placement group is full: the server is then created without one
	GroupName        string
}

// prepareFoundation makes sure that the environment's firewall exists and finds a placement group with room.
func (a *Servers) prepareFoundation(ctx context.Context, infra Infra, st server.ProvisionState, full []string) (f foundation, err error) {
	env := a.Settings.Environment
	f.FirewallID, err = a.shared(ctx, infra, server.ResourceFirewall, FirewallName(env), a.ensureFirewall)
	if err != nil {
		return f, fromInfra(err)
	}
	if st.Role == prego.RoleEdge {
		public := ensurePublicFirewall(a.Store, env, a.Settings.Ports)
		f.PublicFirewallID, err = a.shared(ctx, infra, server.ResourceFirewall, PublicFirewallName(env), public)
		if err != nil {
			return f, fromInfra(err)
		}
	}
	a.hook("foundation/firewall")
	prefix := fmt.Sprintf("prego-%s-%s", env, st.Role)
	f.GroupName, err = a.Store.AssignPlacementGroup(ctx, st.ServerID, prefix, placementGroupSize, placementGroups, full)
	if err != nil || f.GroupName == "" {
		return f, err
	}
	group := func(ctx context.Context, infra Infra, name string) (string, error) {
		return infra.EnsurePlacementGroup(ctx, env, name, st.Role)
	}
	f.PlacementGroupID, err = a.shared(ctx, infra, server.ResourcePlacementGroup, f.GroupName, group)
	a.hook("foundation/group")
	return f, fromInfra(err)
}

// FirewallName is the name of an environment's firewall, which lets in the control plane.
func FirewallName(environment string) string { return "prego-" + environment }

// PublicFirewallName is the name of the firewall of an environment's edges, which lets
// everyone in.
func PublicFirewallName(environment string) string { return FirewallName(environment) + "-edge" }

// ensurePublicFirewall lets everyone in at the ports of edges, and at none of the control plane's own.
func ensurePublicFirewall(store *store.Store, environment string, own []int) ensure {
	return func(ctx context.Context, infra Infra, name string) (string, error) {
		ports, err := store.PublicPorts(ctx)
		if err != nil {
			return "", err
		}
		return infra.EnsureFirewall(ctx, server.FirewallParams{
			Environment: environment, Name: name, Everyone: server.EdgePorts(ports, own),
		})
	}
}

// ensureFirewall lets in the addresses that this process calls from, and the addresses that hosts
// still let in.
func (a *Servers) ensureFirewall(ctx context.Context, infra Infra, name string) (string, error) {
	cidrs, err := allEgress(ctx, a.Egress, a.Settings.EgressCIDRs)
	if err != nil {
		return "", err
	}
	return infra.EnsureFirewall(ctx, server.FirewallParams{Environment: a.Settings.Environment, Name: name, CIDRs: cidrs, Ports: a.Settings.Ports})
}

// ensure makes or finds something of a name at a provider, and returns its id there.
type ensure = func(ctx context.Context, infra Infra, name string) (string, error)

// shared returns the provider's id of something that the whole environment shares, and
// creates it if the ledger does not have it yet.
func (a *Servers) shared(
	ctx context.Context, infra Infra, kind server.ResourceKind, name string, ensure ensure,
) (string, error) {
	r, ok, err := a.Store.FindResource(ctx, infra.ID(), kind, name)
	if err != nil {
		return "", err
	}
	if ok && r.ProviderID != "" {
		return r.ProviderID, nil
	}
	if err := a.Store.Intend(ctx, infra.ID(), "", 0, server.ResourceIntent{Kind: kind, Name: name}); err != nil {
		return "", err
	}
	id, err := ensure(ctx, infra, name)
	if err != nil {
		return "", err
	}
	return id, a.Store.ConfirmCreated(ctx, infra.ID(), "", 0, kind, name, id)
}
