package activities

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// PeersAgents asks a host to fetch its document immediately. It returns when at least version is
// active; a failure is a *server.CommandError, unless ctx ended.
type PeersAgents interface {
	PeersNow(ctx context.Context, serverID prego.ServerID, addr string, version int64) (applied int64, err error)
}

// Peers keeps who may reach which server.
type Peers struct {
	Store  *store.Store
	Agents PeersAgents
	// Ports are those of the agent and of Docker on servers of a role.
	Ports func(prego.Role) (agent, docker int)
	// Egress is where this control plane calls from, CIDRs; Grace is how long others of them,
	// which a worker with the settings of before may still set, are let in at least.
	Egress []string
	Grace  time.Duration
	// Firewalls brings the providers' firewalls to the addresses that hosts let in.
	Firewalls func(ctx context.Context) error
	Log       *zap.Logger
}

// AwaitPeersInput names servers whose rule may just have changed.
type AwaitPeersInput struct {
	ServerIDs []prego.ServerID `json:"server_ids"`
}

// AwaitPeers returns when the rules of some servers, as the rows now define them, are active on
// their hosts. A rule that a host has already reported active costs no call.
func (a *Peers) AwaitPeers(ctx context.Context, in AwaitPeersInput) error {
	versions, err := a.Store.MakePeers(ctx, in.ServerIDs, a.Ports)
	if err != nil {
		return fromStore(err)
	}
	for _, id := range in.ServerIDs {
		st, err := a.Store.PeersState(ctx, id)
		if err != nil {
			return fromStore(err)
		}
		if versions[id] == 0 || st.AppliedVersion >= versions[id] || st.Host == "" {
			continue
		}
		if _, err := a.Agents.PeersNow(ctx, id, st.Host, versions[id]); err != nil {
			return fromCommand(err)
		}
	}
	return nil
}

// Firewalls updates existing firewalls to the control plane's addresses. A missing one is created
// with its first server.
func Firewalls(a *Servers) func(context.Context) error {
	return func(ctx context.Context) error {
		return a.eachFirewall(ctx, FirewallName(a.Settings.Environment), a.ensureFirewall)
	}
}

// eachFirewall updates the firewalls of a name, at the providers that have one.
func (a *Servers) eachFirewall(ctx context.Context, name string, update ensure) error {
	var try Attempts
	for _, infra := range a.Infra {
		r, ok, err := a.Store.FindResource(ctx, infra.ID(), server.ResourceFirewall, name)
		if err == nil && ok && r.ProviderID != "" {
			_, err = update(ctx, infra, name)
		}
		try.OK(err)
	}
	return try.Err()
}

// OpenPublicPorts brings the providers' firewalls of edges that there are to the ports that routes listen on. A missing
// one is made with the first edge.
func (a *Servers) OpenPublicPorts(ctx context.Context) error {
	env := a.Settings.Environment
	return a.eachFirewall(ctx, PublicFirewallName(env), ensurePublicFirewall(a.Store, env, a.Settings.Ports))
}

// allEgress returns the addresses that a firewall must let in: this process's settings, and the
// addresses that hosts still let in.
func allEgress(ctx context.Context, read func(context.Context) (server.Egress, error), set []string) ([]string, error) {
	if read == nil {
		return set, nil
	}
	e, err := read(ctx)
	if err != nil {
		return nil, err
	}
	return e.Next(set, false).CIDRs, nil
}
