package agentgw

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// peersDocument notes which document a host applies, and answers with the wanted one if it differs.
func (g *Gateway) peersDocument(c echo.Context) error {
	var in wire.PeersRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	if in.Applied < 0 || len(in.Refused) > wire.MaxPeersRefused || len(in.Keys) > maxPeersKeys {
		return prego.Invalid("applied", "must not be negative; refused and keys are limited")
	}
	refused := strings.ToValidUTF8(strings.ReplaceAll(in.Refused, "\x00", ""), "")
	who := callerOf(c)
	wanted, err := g.store.AckPeers(c.Request().Context(), who.serverID, in.Applied, prego.Redact(refused))
	if err != nil {
		return err
	}
	out := wire.PeersResponse{Version: wanted.Version}
	known := slices.Sorted(slices.Values(in.Keys))
	sameKeys := slices.Equal(known, slices.Sorted(maps.Keys(g.signer.Keys())))
	if wanted.Version > 0 && (wanted.Version != in.Applied || !sameKeys) {
		signed, err := g.signer.Sign(peersDocumentOf(g.settings.Environment, who.serverID, wanted))
		if err != nil {
			return err
		}
		out.Signed = &signed
	}
	g.peers.note(who.serverID, wanted.Version)
	return c.JSON(http.StatusOK, out)
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

// peersVersions are the versions of all servers' documents, so that a heartbeat is answered without a statement.
type peersVersions struct {
	mu   sync.RWMutex
	byID map[prego.ServerID]int64
}

// of returns the version of a server's document, 0 if unknown.
func (p *peersVersions) of(id prego.ServerID) int64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.byID[id]
}

// note remembers a version that was just read.
func (p *peersVersions) note(id prego.ServerID, version int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID != nil && version > p.byID[id] {
		p.byID[id] = version
	}
}

// take applies changes; full replaces all.
func (p *peersVersions) take(v server.PeersVersions) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.Full || p.byID == nil {
		p.byID = make(map[prego.ServerID]int64, len(v.Versions))
	}
	for _, one := range v.Versions {
		p.byID[one.ServerID] = max(one.Version, p.byID[one.ServerID])
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
		g.peers.take(v)
		since = v.Since
		return nil
	})
}
