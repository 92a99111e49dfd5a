package agentgw

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/edge"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

const (
	// followEdges is how often the feed of changes is read while an edge waits.
	followEdges = 100 * time.Millisecond
	// edgesIdle is how long after the last request the feed is followed.
	edgesIdle = 2 * time.Minute
	// rereadEdges is how often everything is read, because the feed does not report everything: a certificate expires
	// without a change.
	rereadEdges = 5 * time.Minute
	edgeTimeout = 30 * time.Second
)

// edges builds the documents of the networks whose edges request one from this process. It follows the feed of
// changes while there are such edges.
type edges struct {
	store    *store.Store
	settings edge.Settings
	log      *zap.Logger
	every    time.Duration // between two reads of the feed

	mu       sync.Mutex
	networks map[string]*edgeNetwork
	asked    time.Time
	due      chan struct{}
	done     chan struct{} // closed by stop, when this process ends, which ends all waiting
	stop     func()
}

// edgeNetwork is what the edges of a network get. Its fields are replaced, never changed.
type edgeNetwork struct {
	newest *edgeDocument // for the first edge of turn
	turn   edge.Turn
	// released is for the others, and tried will be: an edge was given it. Both are the newest that this process has,
	// nil without one.
	released, tried *edgeDocument
	changed         chan struct{} // closed with the next change
}

// edgeDocument is a network's document.
type edgeDocument struct {
	version  int64 // 0 while there is none
	snapshot string
	digest   [sha256.Size]byte
	plain    []byte // JSON
	packed   []byte // the same, gzipped
	names    []string
	owners   map[edgeOwner]bool
	certs    map[string]tenant.ServedCertificate
}

// of is what an edge may have; nil for none.
func (n *edgeNetwork) of(id prego.ServerID) *edgeDocument {
	if n.newest.version != 0 && (!n.held() || id == n.turn.First) {
		return n.newest
	}
	return n.released
}

// held reports whether not all edges may have the newest document.
func (n *edgeNetwork) held() bool { return n.newest.version > n.turn.Released }

// take sets whose turn it is, and so the documents for others than the first.
func (n *edgeNetwork) take(t edge.Turn) {
	all := []*edgeDocument{n.newest, n.tried, n.released}
	upTo := func(version int64) (out *edgeDocument) {
		for _, d := range all {
			if d != nil && d.version != 0 && d.version <= version && (out == nil || d.version > out.version) {
				out = d
			}
		}
		return out
	}
	tried := t.Tried
	if n.tried != nil { // which may not be recorded yet
		tried = max(tried, n.tried.version)
	}
	n.turn, n.tried, n.released = t, upTo(tried), upTo(t.Released)
}

func newEdges(store *store.Store, s edge.Settings, every time.Duration, log *zap.Logger) *edges {
	done := make(chan struct{})
	return &edges{
		store: store, settings: s, log: log, every: cmp.Or(every, followEdges),
		networks: map[string]*edgeNetwork{}, due: make(chan struct{}, 1), done: done,
		stop: sync.OnceFunc(func() { close(done) }),
	}
}

// current returns a network's document, which is empty until it has been built.
func (e *edges) current(network string) *edgeNetwork {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.networks[network]
	if n == nil {
		n = &edgeNetwork{newest: &edgeDocument{}, changed: make(chan struct{})}
		e.networks[network] = n
	}
	e.asked = time.Now()
	select {
	case e.due <- struct{}{}:
	default:
	}
	return n
}

// replace sets what the edges of a network get, and ends their waiting.
func (e *edges) replace(network string, change func(n *edgeNetwork)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.networks[network]
	if n == nil {
		return // unused since
	}
	next := *n
	change(&next)
	next.changed = make(chan struct{})
	e.networks[network] = &next
	close(n.changed)
}

// wait returns a network's document for an edge once it is newer than the edge's, or the current one when patience
// ends; nil without one.
func (e *edges) wait(
	ctx context.Context, network string, id prego.ServerID, version int64, patience time.Duration,
) *edgeDocument {
	t := time.NewTimer(patience)
	defer t.Stop()
	for {
		n := e.current(network)
		d := n.of(id)
		if d != nil && d.version > version {
			if n.held() && d == n.newest {
				e.replace(network, func(n *edgeNetwork) { n.tried = d })
			}
			return d
		}
		select {
		case <-n.changed:
		case <-t.C:
			return d
		case <-e.done:
			return d
		case <-ctx.Done():
			return d
		}
	}
}

// turns reads which edges get the newest documents, while there are some that not all may have.
func (e *edges) turns(ctx context.Context) error {
	e.mu.Lock()
	was := map[string]edge.Turn{}
	for name, n := range e.networks {
		if n.held() {
			was[name] = n.turn
		}
	}
	e.mu.Unlock()
	if len(was) == 0 {
		return nil
	}
	list, err := e.store.EdgeTurns(ctx, slices.Sorted(maps.Keys(was)))
	for _, t := range list {
		if t != was[t.Network] {
			e.replace(t.Network, func(n *edgeNetwork) { n.take(t) })
		}
	}
	return err
}

// run builds documents until ctx ends.
func (e *edges) run(ctx context.Context) {
	defer e.stop()
	var f edgeFollower
	t := time.NewTicker(e.every)
	defer t.Stop()
	for {
		e.mu.Lock()
		idle := time.Since(e.asked) > edgesIdle
		if idle {
			f = edgeFollower{} // unused: release the memory
			clear(e.networks)
		}
		e.mu.Unlock()
		if idle {
			select {
			case <-ctx.Done():
				return
			case <-e.due:
			}
		}
		if err := e.follow(ctx, &f); err != nil && ctx.Err() == nil {
			e.log.Warn("edges' documents not made", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// edgeFollower is how far this process has read.
type edgeFollower struct {
	model        *edge.Model
	since        string
	read         time.Time // of the last complete read
	certificates int64
	barriers     []string
	behind       bool // a network's document must be built again
	challenges   []wire.EdgeChallenge
}

// follow reads the changes and rebuilds the documents that they affect.
func (e *edges) follow(ctx context.Context, f *edgeFollower) error {
	ctx, cancel := context.WithTimeout(ctx, edgeTimeout)
	defer cancel()
	if f.model == nil || time.Since(f.read) > rereadEdges {
		*f = edgeFollower{model: edge.NewModel(e.settings), read: time.Now(), behind: true}
	}
	// A document that an edge was given is kept for the others, before a newer one takes its place.
	if err := e.turns(ctx); err != nil {
		return err
	}
	c, err := e.store.EdgeChanges(ctx, f.since)
	if err != nil {
		return err
	}
	f.model.Apply(c)
	certificates := c.Full || c.Certificates != f.certificates
	if certificates {
		list, err := e.store.ServedChallenges(ctx)
		if err != nil {
			return err
		}
		f.challenges = f.challenges[:0:0]
		for _, ch := range list {
			f.challenges = append(f.challenges, wire.EdgeChallenge{Host: ch.Name, Token: ch.Token, KeyAuthorization: ch.Answer})
		}
	}
	// While an old transaction runs, the same successors appear in each read.
	barrier := slices.ContainsFunc(c.Barriers, func(id string) bool { return !slices.Contains(f.barriers, id) })
	e.mu.Lock()
	networks, fresh := make(map[string]*edgeNetwork, len(e.networks)), false
	for name, n := range e.networks {
		networks[name] = n
		fresh = fresh || n.newest.version == 0
	}
	e.mu.Unlock()
	changed := certificates || f.behind || len(c.ServerIDs)+len(c.TenantIDs)+len(c.GroupIDs) > 0
	f.since, f.certificates, f.behind = c.Since, c.Certificates, false
	if !changed && !barrier && !fresh {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		ok, err := e.build(ctx, f, name, networks[name].newest, c.Snapshot, certificates, barrier)
		f.behind = f.behind || !ok
		if err != nil {
			f.behind = true
			return err
		}
	}
	if !f.behind {
		f.barriers = c.Barriers
	}
	return e.turns(ctx)
}

// build makes a network's document. It publishes a changed document, or with publish any, for processes that wait until
// the edges have seen the current state. ok is false if the document is out of date.
func (e *edges) build(
	ctx context.Context, f *edgeFollower, network string, before *edgeDocument, snapshot string,
	certificates, publish bool,
) (ok bool, err error) {
	d := f.model.Document(network)
	n := &edgeDocument{
		snapshot: snapshot, names: edge.Names(d), certs: before.certs, owners: map[edgeOwner]bool{},
	}
	if certificates || before.version == 0 || !slices.Equal(n.names, before.names) {
		list, err := e.store.ServedCertificates(ctx, n.names)
		if err != nil {
			return false, err
		}
		n.certs = make(map[string]tenant.ServedCertificate, len(list))
		for _, c := range list {
			n.certs[string(c.CertificateID)] = c
		}
	}
	for id, c := range n.certs {
		d.Certificates = append(d.Certificates, wire.EdgeCertificateRef{ID: id, Names: c.Names, SHA256: c.Digest})
	}
	slices.SortFunc(d.Certificates, func(a, b wire.EdgeCertificateRef) int { return strings.Compare(a.ID, b.ID) })
	d.Challenges = f.challenges
	unversioned, err := json.Marshal(d)
	if err != nil {
		return false, err
	}
	n.digest = sha256.Sum256(unversioned)
	if before.version != 0 && n.digest == before.digest && !publish {
		return true, nil
	}
	version, ok, err := e.store.PublishEdges(ctx, network, n.digest[:], snapshot, publish)
	if err != nil || !ok {
		return false, err
	}
	if version == before.version && n.digest == before.digest {
		return true, nil
	}
	d.Version, n.version = version, version
	if n.plain, err = json.Marshal(d); err != nil {
		return false, err
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return false, err
	}
	if _, err := w.Write(n.plain); err != nil {
		return false, err
	}
	if err := w.Close(); err != nil {
		return false, err
	}
	n.packed = packed.Bytes()
	for _, h := range d.Hosts {
		n.owners[edgeOwner{h.Tenant, h.Route}] = true
	}
	e.replace(network, func(w *edgeNetwork) {
		w.take(w.turn)
		w.newest = n
	})
	return true, nil
}

// edgeDocument answers an edge once there is a newer document than the one that it has.
func (g *Gateway) edgeDocument(c echo.Context) error {
	version, err := strconv.ParseInt(c.QueryParam("version"), 10, 64)
	if err != nil || version < 0 {
		return prego.Invalid("version", "must be a number that is not negative")
	}
	ctx := c.Request().Context()
	network, err := g.store.EdgeAsks(ctx, callerOf(c).serverID, version)
	if err != nil {
		return err
	}
	id := callerOf(c).serverID
	d := g.edges.wait(ctx, network, id, version, wire.EdgeWait)
	switch {
	case d == nil && version == 0:
		return prego.Errorf(prego.CodeNotReady, "there is no document yet")
	case d == nil || d.version <= version:
		return c.NoContent(http.StatusNotModified)
	}
	if err := g.store.EdgeOffered(ctx, id, d.version, d.snapshot); err != nil {
		return err
	}
	if strings.Contains(c.Request().Header.Get(echo.HeaderAcceptEncoding), "gzip") {
		c.Response().Header().Set(echo.HeaderContentEncoding, "gzip")
		return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, d.packed)
	}
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, d.plain)
}

// edgeCertificates answers with the requested certificates and keys, as far as the edge's network serves them.
func (g *Gateway) edgeCertificates(ctx context.Context, who caller, in wire.EdgeCertificatesRequest) (any, error) {
	if len(in.IDs) > wire.MaxEdgeCertificates {
		return nil, prego.Invalid("ids", "must be at most 100")
	}
	network, err := g.store.EdgeAsks(ctx, who.serverID, 0)
	if err != nil {
		return nil, err
	}
	n := g.edges.current(network)
	served := n.newest.certs
	if d := n.of(who.serverID); d != nil {
		served = d.certs
	}
	out := wire.EdgeCertificates{Certificates: []wire.EdgeCertificate{}}
	for _, id := range in.IDs {
		cert, ok := served[id]
		if !ok || g.openKey == nil {
			continue
		}
		c := wire.EdgeCertificate{
			EdgeCertificateRef: wire.EdgeCertificateRef{ID: id, Names: cert.Names, SHA256: cert.Digest},
		}
		key, err := g.openKey(cert)
		if err != nil {
			g.log.Error("a certificate's key can't be opened", zap.String("certificate_id", id), zap.Error(err))
			reason := "no gateway can open its key: " + printable(err.Error())
			c.Refused = reason[:min(len(reason), wire.MaxEdgePartReason)]
		} else {
			c.Chain, c.Key = cert.Chain, string(key)
		}
		out.Certificates = append(out.Certificates, c)
	}
	return out, nil
}

// edgeApplied records what an edge serves.
func (g *Gateway) edgeApplied(ctx context.Context, who caller, in wire.EdgeApplied) (any, error) {
	if in.Version < 0 || in.Refused < 0 || len(in.Reason) > wire.MaxEdgeReason {
		return nil, prego.Invalid("version", "must not be negative, and the reason at most 1024 bytes")
	}
	if len(in.Closed) > wire.MaxEdgeClosed {
		return nil, prego.Invalid("closed", "must be at most 500")
	}
	for i := range in.Closed {
		in.Closed[i] = printable(in.Closed[i])
	}
	if len(in.LeftOut) > wire.MaxEdgeLeftOut {
		return nil, prego.Invalid("left_out", "must be at most 500")
	}
	for i := range in.LeftOut {
		p := &in.LeftOut[i]
		names := max(len(p.Name), len(p.Tenant), len(p.Route))
		if !slices.Contains(wire.EdgeParts(), p.Kind) || names > wire.MaxEdgePartName ||
			len(p.Reason) > wire.MaxEdgePartReason {
			return nil, prego.Invalid("left_out",
				"must be parts of a document, with names of at most 300 and reasons of at most 512 bytes")
		}
		p.Name, p.Tenant = printable(p.Name), printable(p.Tenant)
		p.Route, p.Reason = printable(p.Route), printable(p.Reason)
	}
	if in.Refused != 0 {
		g.metrics.edgeRefusals.Inc()
		g.log.Error("an edge's servers rejected its document", zap.String("server_id", string(who.serverID)),
			zap.Int64("version", in.Refused), zap.String("reason", printable(in.Reason)))
	}
	for _, p := range in.LeftOut {
		g.log.Warn("an edge serves its document without a part that its servers reject",
			zap.String("server_id", string(who.serverID)), zap.String("kind", string(p.Kind)),
			zap.String("name", p.Name), zap.String("tenant_id", p.Tenant), zap.String("route_id", p.Route),
			zap.String("reason", p.Reason))
	}
	released, err := g.store.EdgeApplied(ctx, edge.Applied{
		ServerID: who.serverID, Version: in.Version, RefusedVersion: in.Refused,
		RefusedReason: printable(in.Reason), LeftOut: in.LeftOut, Closed: in.Closed,
	})
	return wire.EdgeReleased{Version: released}, err
}
