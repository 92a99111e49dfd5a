package activities

import (
	"context"
	"errors"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// MoveAddress brings a floating address to its planned edge: edges stop serving it, the edge that
// had it gives it up if it still answers, the provider routes it, its new edge configures it, and
// edges serve it again. Each step can be repeated. The target is recorded before the provider is
// called.
func (a *OrgResources) MoveAddress(ctx context.Context, id string) (err error) {
	defer func() { a.refused(ctx, OrgResourceRef{Kind: server.ResourceFloatingIP, ID: id}, err) }()
	v, ok, err := a.Store.IPv4Record(ctx, id)
	if err != nil || !ok || v.Status != workload.ResourceReady {
		return err
	}
	home, err := a.Store.AddressHome(ctx, id)
	if err != nil || !home.Moves() {
		return err
	}
	infra, err := a.infra(v.Provider)
	if err != nil {
		return err
	}
	a.hook("address/start")
	if home.ServerID != "" && home.ServerID != home.Wanted {
		if err := a.Store.AddressLeaves(ctx, id); err != nil {
			return err
		}
		if err := a.leaveEdge(ctx, home.ServerID, v); err != nil {
			return err
		}
	}
	a.hook("address/left")
	if err := a.Store.AddressBound(ctx, id, home.Wanted); err != nil {
		return err
	}
	edge, err := a.Store.GetServer(ctx, home.Wanted)
	if err != nil {
		return fromStore(err)
	}
	if err := infra.AssignFloatingIP(ctx, v.ProviderID, prego.ServerID(edge.ProviderServerID)); err != nil {
		return fromInfra(err)
	}
	a.hook("address/assigned")
	if a.Hosts != nil {
		if _, err := onHost(ctx, a.Hosts, edge, wire.KindAddress, "add", v.Address); err != nil {
			return err
		}
	}
	a.hook("address/configured")
	return a.Store.AddressServed(ctx, id, home.Wanted)
}

// leaveEdge removes an address from an edge. An edge that does not answer keeps it, which does no
// harm: the provider routes it elsewhere.
func (a *OrgResources) leaveEdge(ctx context.Context, serverID prego.ServerID, v workload.IPv4Allocation) error {
	if a.Hosts == nil || v.Address == "" {
		return nil
	}
	srv, err := a.Store.GetServer(ctx, serverID)
	if err != nil || srv.Status == server.Terminated {
		return fromStore(err)
	}
	asking, cancel := context.WithTimeout(ctx, lastContact)
	defer cancel()
	_, err = onHost(asking, a.Hosts, srv, wire.KindAddress, "remove", v.Address)
	if _, ok := errors.AsType[*server.CommandError](err); ctx.Err() == nil && (asking.Err() != nil || ok) {
		return nil
	}
	return err
}
