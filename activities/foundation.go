package activities

import (
	"context"
	"fmt"
	"github.com/prego/prego"

	"github.com/prego/prego/server"
)

// Limits of the provider on placement groups (FACTS: spread group ≤ 10 servers,
// 50 groups per project). Each role keeps to its share of the groups.
const (
	placementGroupSize = 10
	placementGroups    = 12
)

// FoundationInput asks for what a server of some role is built on.
type FoundationInput struct {
	ServerID prego.ServerID `json:"server_id"`
	// FullGroups are placement groups that the provider refused.
	FullGroups []string `json:"full_groups,omitempty"`
}

// Foundation is what a server is built on. GroupID is "" when every placement
// group is full: the server is made without one.
type Foundation struct {
	FirewallID       string `json:"firewall_id"`
	PlacementGroupID string `json:"group_id,omitempty"`
	GroupName        string `json:"group_name,omitempty"`
}

// PrepareFoundation makes sure of the environment's firewall and finds a spread
// placement group with a free place for the server.
func (a *Servers) PrepareFoundation(ctx context.Context, in FoundationInput) (Foundation, error) {
	stop := keepAlive(ctx)
	defer stop()
	st, err := a.Store.ProvisionState(ctx, in.ServerID)
	if err != nil {
		return Foundation{}, fromStore(err)
	}
	infra, err := a.infra(st.Provider)
	if err != nil {
		return Foundation{}, err
	}
	var f Foundation
	f.FirewallID, err = a.shared(ctx, infra, server.ResourceFirewall, FirewallName(a.Settings.Environment), func(name string) (string, error) {
		return infra.EnsureFirewall(ctx, a.firewall(name))
	})
	if err != nil {
		return Foundation{}, fromInfra(err)
	}
	prefix := fmt.Sprintf("prego-%s-%s", a.Settings.Environment, st.Role)
	f.GroupName, err = a.Store.AssignPlacementGroup(ctx, in.ServerID, prefix, placementGroupSize, placementGroups, in.FullGroups)
	if err != nil || f.GroupName == "" {
		return f, err
	}
	f.PlacementGroupID, err = a.shared(ctx, infra, server.ResourcePlacementGroup, f.GroupName, func(name string) (string, error) {
		return infra.EnsurePlacementGroup(ctx, a.Settings.Environment, name, st.Role)
	})
	return f, fromInfra(err)
}

// FirewallName is the name of an environment's firewall.
func FirewallName(environment string) string { return "prego-" + environment }

func (a *Servers) firewall(name string) server.FirewallParams {
	return server.FirewallParams{Environment: a.Settings.Environment, Name: name, CIDRs: a.Settings.EgressCIDRs, Ports: a.Settings.Ports}
}

// shared returns the provider's id of something that the whole environment
// shares, making it when the ledger does not know it yet.
func (a *Servers) shared(ctx context.Context, infra Infra, kind server.ResourceKind, name string, ensure func(name string) (string, error)) (string, error) {
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
	id, err := ensure(name)
	if err != nil {
		return "", err
	}
	return id, a.Store.ConfirmCreated(ctx, infra.ID(), "", 0, kind, name, id)
}
