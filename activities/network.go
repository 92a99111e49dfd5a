package activities

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// networkTries is how many full networks one server tries.
const networkTries = 3

// network assigns a server to a private network of the zone, and creates that for the zone's first
// server. The network is empty if the worker has no range for networks, or the zone of the location
// is unknown. Once the network exists it takes one statement and no call.
//
// Networks have lines in the ledger although they cost nothing: the provider limits their number,
// and the reconciler deletes networks without an owner.
func (a *Servers) network(ctx context.Context, infra Infra, serverID prego.ServerID, zone string, refused []prego.NetworkID) (server.Network, error) {
	if a.Settings.NetworkRange == "" || zone == "" {
		return server.Network{}, nil
	}
	n, ok, err := a.Store.AssignNetwork(ctx, serverID, zone, a.Settings.NetworkRange, refused)
	if err != nil {
		return n, err
	}
	if !ok {
		return n, permanentError(ErrTypePermanent, fmt.Sprintf("no range is left in %s for another network: give PREGO_NETWORK_RANGE a larger one", a.Settings.NetworkRange), nil)
	}
	if n.ProviderNetworkID != "" {
		return n, nil
	}
	name := server.NetworkName(a.Settings.Environment, n.Zone, n.Ordinal)
	_, err = a.shared(ctx, infra, server.ResourceNetwork, name, func(ctx context.Context, infra Infra, name string) (string, error) {
		var err error
		n.ProviderNetworkID, n.IPRange, err = infra.EnsureNetwork(ctx, server.NetworkParams{Environment: a.Settings.Environment, Name: name, Zone: n.Zone, IPRange: n.IPRange})
		return n.ProviderNetworkID, err
	})
	if err != nil {
		return n, fromInfra(err)
	}
	a.hook("network/made")
	if n.ProviderNetworkID == "" { // the ledger has it from a call that died before the network's row had
		if n.ProviderNetworkID, n.IPRange, err = infra.EnsureNetwork(ctx, server.NetworkParams{Environment: a.Settings.Environment, Name: name, Zone: n.Zone, IPRange: n.IPRange}); err != nil {
			return n, fromInfra(err)
		}
	}
	return n, a.Store.NetworkMade(ctx, n.NetworkID, n.ProviderNetworkID, n.IPRange)
}

// inZone returns the candidates in the zone of a server's network, or all if it may be in any
// network.
func (a *Servers) inZone(ctx context.Context, st server.ProvisionState, candidates []server.Candidate, offer server.CatalogState) ([]server.Candidate, error) {
	if st.Spec.Network == "" {
		return candidates, nil
	}
	n, err := a.Store.Network(ctx, st.Spec.Network)
	if err != nil {
		return nil, err
	}
	there := offer.InZone(candidates, n.Zone)
	if len(there) == 0 {
		return nil, permanentError(ErrTypePermanent, fmt.Sprintf("no candidate is in zone %s, where network %s is: %v", n.Zone, n.NetworkID, candidates), nil)
	}
	return there, nil
}

// OpenNetwork is the network for new servers of all roles, made for unplaced tenants of a region.
func (a *Servers) OpenNetwork(ctx context.Context, region prego.Region, provider prego.InfraProviderID) (prego.NetworkID, error) {
	offer, err := a.Store.ProviderCatalog(ctx, provider)
	if err != nil {
		return "", err
	}
	zones := offer.ZonesOf(a.Catalog.Locations[region])
	if len(zones) == 0 {
		return "", nil
	}
	return a.Store.OpenNetwork(ctx, provider, zones, a.Settings.NetworkRange)
}

// withoutNetwork decides about a create or attachment that was refused because of its network:
// again reports whether to assign another one, with the refused ones excluded.
func (a *Servers) withoutNetwork(ctx context.Context, provider prego.InfraProviderID, n server.Network, refused []prego.NetworkID, cause error) (_ []prego.NetworkID, again bool, err error) {
	var ie *server.InfraError
	if n.NetworkID == "" || !errors.As(cause, &ie) {
		return refused, false, nil
	}
	switch ie.Code {
	case server.InfraNetworkFull:
		refused = append(refused, n.NetworkID)
		return refused, len(refused) < networkTries, nil
	case server.InfraNetworkGone:
		a.Log.Error("the provider does not have a network; creating it again", zap.String("network_id", string(n.NetworkID)), zap.String("provider_network_id", n.ProviderNetworkID))
		return refused, true, a.Store.NetworkGone(ctx, provider, n.ProviderNetworkID)
	}
	return refused, false, nil
}

// zoneOf is the network zone of a location, by the catalog if one has been read.
func (a *Servers) zoneOf(ctx context.Context, provider prego.InfraProviderID, location string) (string, error) {
	offer, err := a.Store.ProviderCatalog(ctx, provider)
	return offer.ZoneOf(location), err
}

// attach makes sure that a server has an address in a private network, which it returns: it may
// have been created without one, or imported. A server with an address needs no call.
func (a *Servers) attach(ctx context.Context, infra Infra, st server.ProvisionState) (string, error) {
	if st.PrivateAddress != "" || st.ProviderServerID == "" || a.Settings.NetworkRange == "" {
		return st.PrivateAddress, nil
	}
	zone, err := a.zoneOf(ctx, st.Provider, st.Location)
	if err != nil {
		return "", err
	}
	var refused []prego.NetworkID
	for try := 1; ; try++ {
		n, err := a.network(ctx, infra, st.ServerID, zone, refused)
		if err != nil || n.NetworkID == "" {
			return "", err
		}
		address, err := infra.AttachServer(ctx, st.ProviderServerID, n.ProviderNetworkID)
		if err == nil {
			a.hook("network/attached")
			return address, a.Store.Attached(ctx, st.ServerID, n.NetworkID, address)
		}
		var again bool
		var noteErr error
		if refused, again, noteErr = a.withoutNetwork(ctx, st.Provider, n, refused, err); noteErr != nil || !again || try == networkTries {
			return "", cmp.Or(noteErr, err)
		}
	}
}

// attached is attach for a server that is about to become active. That the provider refuses to have
// a server in its network fails a server of ours; an imported one may have its own networks, so it
// stays without.
func (a *Servers) attached(ctx context.Context, st server.ProvisionState) (string, error) {
	if st.PrivateAddress != "" {
		return st.PrivateAddress, nil
	}
	infra, err := a.infra(st.Provider)
	if err != nil {
		return "", err
	}
	address, err := a.attach(ctx, infra, st)
	var ie *server.InfraError
	if !errors.As(err, &ie) || ie.Class == server.InfraRetry || ie.Class == server.InfraThrottled || ie.Class == server.InfraAmbiguous {
		return address, fromInfra(err)
	}
	if st.Purpose != server.PurposeImportExisting {
		return "", permanentError(ErrTypePermanent, "its private network: "+ie.Error(), nil)
	}
	return "", a.Store.AddEvent(ctx, server.Event{ServerID: st.ServerID, Step: server.StepNetworkRefused, Attempt: st.Attempt, Reason: prego.Reason(ie.Code), Message: ie.Message},
		fmt.Sprintf("%s/%d/%s", server.StepNetworkRefused, st.Attempt, ie.Code))
}

// AttachNetwork puts a server that has no private address into a network, and returns the
// address. A server that has one is left as it is.
func (a *Servers) AttachNetwork(ctx context.Context, serverID prego.ServerID) (string, error) {
	st, err := a.Store.ProvisionState(ctx, serverID)
	if err != nil {
		return "", err
	}
	switch {
	case st.PrivateAddress != "":
		return st.PrivateAddress, nil
	case st.Status != server.Active && st.Status != server.Failed, st.ProviderServerID == "":
		return "", prego.Errorf(prego.CodeInvalidTransition, "cannot attach the server to a network: it is %s", st.Status)
	case a.Settings.NetworkRange == "":
		return "", prego.Errorf(prego.CodeNotImplemented, "this worker has no PREGO_NETWORK_RANGE")
	}
	infra, err := a.infra(st.Provider)
	if err != nil {
		return "", err
	}
	address, err := a.attach(ctx, infra, st)
	if err == nil && address == "" {
		return "", prego.Errorf(prego.CodeNotImplemented, "unknown network zone of location %q", st.Location)
	}
	return address, err
}

// attachAtOnce bounds how many servers one look attaches.
const attachAtOnce = 20

// AttachUnattached attaches servers that should be in a network and are not. A server that can't be
// attached keeps no other from it, and is tried again the next time.
func (a *Servers) AttachUnattached(ctx context.Context) (found bool, err error) {
	if a.Settings.NetworkRange == "" {
		return false, nil
	}
	ids, err := a.Store.Unattached(ctx, attachAtOnce)
	for _, id := range ids {
		if _, err := a.AttachNetwork(ctx, id); err != nil {
			if ctx.Err() != nil {
				return true, ctx.Err()
			}
			a.Log.Warn("a server is in no private network", zap.String("server_id", string(id)), zap.String("error", prego.Redact(err.Error())))
		}
	}
	return len(ids) > 0, err
}
