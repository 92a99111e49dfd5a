package agentgw

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// peersDocument notes which document a host applies, and answers with the wanted one if it is newer. A lost host that
// returned gets the one that lets in nothing but the control plane; what it applies counts no more.
func (g *Gateway) peersDocument(ctx context.Context, who caller, in wire.PeersRequest) (any, error) {
	if in.Applied < 0 || len(in.Refused) > wire.MaxPeersRefused || len(in.Keys) > maxPeersKeys {
		return nil, prego.Invalid("applied", "must not be negative; refused and keys are limited")
	}
	refused := strings.ToValidUTF8(strings.ReplaceAll(in.Refused, "\x00", ""), "")
	var wanted server.PeersWanted
	var err error
	if who.revoked {
		wanted, err = g.store.PeersOfLost(ctx, who.serverID)
	} else {
		wanted, err = g.store.AckPeers(ctx, who.serverID, in.Applied, prego.Redact(refused))
	}
	if err != nil {
		return nil, err
	}
	out := wire.PeersResponse{Version: wanted.Version}
	known := slices.Sorted(slices.Values(in.Keys))
	sameKeys := slices.Equal(known, slices.Sorted(maps.Keys(g.signer.Keys())))
	if wanted.Version > in.Applied || wanted.Version == in.Applied && in.Applied > 0 && !sameKeys {
		signed, err := g.signer.Sign(peersDocumentOf(g.settings.Environment, who.serverID, wanted))
		if err != nil {
			return nil, err
		}
		out.Signed = &signed
	}
	if !who.revoked {
		g.peers.note(who.serverID, wanted.Version)
	}
	return out, nil
}

// maxPeersKeys bounds the keys that a host trusts.
const maxPeersKeys = 16

func peersDocumentOf(environment string, id prego.ServerID, w server.PeersWanted) wire.PeersDocument {
	doc := wire.PeersDocument{
		Environment: environment, ServerID: string(id), Version: w.Version, Address: w.Rule.Address,
		Control: wire.PeersControl{CIDRs: w.Rule.Control.CIDRs, Ports: w.Rule.Control.Ports},
	}
	for _, a := range w.Rule.Access {
		doc.Access = append(doc.Access, wire.PeersAccess{Ports: a.Ports, From: a.From})
	}
	return doc
}

// perServer is a number for each server, so that a heartbeat is answered without a statement: the version of its peers
// document, or the serial of the release of the agent that it should try now.
type perServer struct {
	mu   sync.RWMutex
	byID map[prego.ServerID]int64
}

// of returns a server's number, 0 if unknown.
func (p *perServer) of(id prego.ServerID) int64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.byID[id]
}

// note remembers a higher number that was just read.
func (p *perServer) note(id prego.ServerID, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID != nil && n > p.byID[id] {
		p.byID[id] = n
	}
}

// take applies changes; full replaces all.
func (p *perServer) take(changes map[prego.ServerID]int64, full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if full || p.byID == nil {
		p.byID = changes
		return
	}
	for id, n := range changes {
		p.byID[id] = max(n, p.byID[id])
	}
}

// followPeers reads once a second which documents have changed.
func (g *Gateway) followPeers(ctx context.Context) {
	since := ""
	g.follow(ctx, time.Second, "changes of peers", func() error {
		v, err := g.store.PeersVersions(ctx, since)
		if err != nil {
			return err
		}
		changes := make(map[prego.ServerID]int64, len(v.Versions))
		for _, one := range v.Versions {
			changes[one.ServerID] = max(one.Version, changes[one.ServerID])
		}
		g.peers.take(changes, v.Full)
		since = v.Since
		return nil
	})
}
