package world

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/prego/prego/agent/wire"
)

// edgeServer is what an edge serves and keeps on its disk (agent/edge.Edge): the last good document, with its
// certificates and their keys.
type edgeServer struct {
	document wire.EdgeDocument
	certs    map[string]wire.EdgeCertificate
	closed   map[string]bool // tenants that documents closed since the last released one, and whose sites answered
	applied  bool            // it is known that it is served: false after a start
	seen     int64
	ack      wire.EdgeApplied
	told     wire.EdgeApplied // that the gateway knows of
}

// serveEdge keeps an edge at the control plane's document (agent.serveEdge), until its power goes off.
func (hs *hosts) serveEdge(ctx context.Context, h *host) {
	h.mu.Lock()
	if h.edge == nil {
		h.edge = &edgeServer{certs: map[string]wire.EdgeCertificate{}, closed: map[string]bool{}}
	}
	e := h.edge
	e.applied, e.seen, e.ack, e.told = false, e.document.Version, wire.EdgeApplied{}, wire.EdgeApplied{}
	h.mu.Unlock()
	probing := make(chan struct{})
	go func() { defer close(probing); hs.probeSites(ctx, h, e) }()
	defer func() { <-probing }()
	for wait := 200 * time.Millisecond; ; {
		if hs.stepEdge(ctx, h, e) {
			wait = 200 * time.Millisecond
			continue
		}
		if pause(ctx, wait) != nil {
			return
		}
		wait = min(2*wait, 10*time.Second)
	}
}

// stepEdge is one step of agent.edgeFollower; false is a failure.
func (hs *hosts) stepEdge(ctx context.Context, h *host, e *edgeServer) bool {
	if ctx.Err() != nil {
		return false
	}
	if !e.applied {
		hs.applied(h, e, e.document, nil)
	}
	post := func(path string, in, out any) bool {
		status, body, err := hs.ask(ctx, h, http.MethodPost, path, h.token(), in)
		return err == nil && status/100 == 2 && (out == nil || json.Unmarshal(body, out) == nil)
	}
	if !reflect.DeepEqual(e.ack, e.told) {
		var released wire.EdgeReleased
		if !post(wire.PathEdgeApplied, e.ack, &released) {
			return false
		}
		e.told = e.ack
		if released.Version >= e.ack.Version {
			clear(e.closed)
		}
	}
	limited, cancel := context.WithTimeout(ctx, wire.EdgeWait+20*time.Second)
	defer cancel()
	status, body, err := hs.ask(limited, h, http.MethodGet,
		wire.PathEdge+"?"+url.Values{"version": {strconv.FormatInt(e.seen, 10)}}.Encode(), h.token(), nil)
	switch {
	case err != nil:
		return false
	case status == http.StatusNotModified:
		return true
	case status != http.StatusOK:
		return false
	}
	var d wire.EdgeDocument
	if err := json.Unmarshal(body, &d); err != nil || d.Version < e.document.Version {
		return false
	}
	var missing []string
	for _, ref := range d.Certificates { // agent/edge.Edge.Missing
		if c, ok := e.certs[ref.ID]; !ok || c.SHA256 != ref.SHA256 {
			missing = append(missing, ref.ID)
		}
	}
	var got wire.EdgeCertificates
	if len(missing) > 0 && !post(wire.PathEdgeCertificates, wire.EdgeCertificatesRequest{IDs: missing}, &got) {
		return false
	}
	hs.applied(h, e, d, got.Certificates)
	return true
}

// applied has a document served (agent/edge.Edge.Apply). A certificate with another one's key is left out.
func (hs *hosts) applied(h *host, e *edgeServer, d wire.EdgeDocument, fetched []wire.EdgeCertificate) {
	certs, leftOut := map[string]wire.EdgeCertificate{}, []wire.EdgeLeftOut(nil)
	for _, ref := range d.Certificates {
		if c, ok := e.certs[ref.ID]; ok && c.SHA256 == ref.SHA256 {
			certs[ref.ID] = c
		}
	}
	for _, c := range fetched {
		if c.Refused != "" {
			leftOut = append(leftOut, wire.EdgeLeftOut{Kind: wire.EdgeCertificatePart, Name: c.ID, Reason: c.Refused})
			continue
		}
		if _, err := tls.X509KeyPair([]byte(c.Chain), []byte(c.Key)); err != nil {
			hs.w.violationf("I9 edge %s gets a certificate that its key is for: %v: %v", h.guest.Name, c.Names, err)
			leftOut = append(leftOut, wire.EdgeLeftOut{Kind: wire.EdgeCertificatePart, Name: c.ID, Reason: "key"})
			continue
		}
		certs[c.ID] = c
	}
	// agent/edge.Edge.closing; a site that is served somewhere else counts as open.
	for id, probe := range hs.answers(h, e) {
		if probe.State == wire.EdgeProbeUp {
			e.closed[id] = true
		}
	}
	for _, name := range d.Hosts {
		if name.State == wire.EdgeServing {
			delete(e.closed, name.Tenant)
		}
	}
	h.mu.Lock()
	e.document, e.certs, e.applied = d, certs, true
	h.mu.Unlock()
	e.seen, e.ack = d.Version, wire.EdgeApplied{Version: d.Version, LeftOut: leftOut}
	e.ack.Closed = slices.Sorted(maps.Keys(e.closed))
	if len(d.Hosts) > 0 {
		hs.w.Met("an edge served a site")
	}
}

// probes is what an edge has found of its sites (agent/edge.Prober).
type probes struct {
	watch   string
	began   time.Time
	sent    int
	found   map[string]wire.EdgeProbe // by tenant
	changes []wire.EdgeProbe
	since   []time.Time // of changes
}

func (p *probes) note(c wire.EdgeProbe, at time.Time) {
	p.changes, p.since = append(p.changes, c), append(p.since, at)
}

// probeSites probes an edge's sites and reports changes until its power goes off. One look stands for three probes.
func (hs *hosts) probeSites(ctx context.Context, h *host, e *edgeServer) {
	p := &probes{watch: fmt.Sprintf("%s-%d", h.guest.Name, h.boots), began: time.Now(), found: map[string]wire.EdgeProbe{}}
	for restated := 0; pause(ctx, 20*time.Second) == nil; {
		p.look(hs.answers(h, e), time.Now())
		r := wire.EdgeProbes{Watch: p.watch, SinceMS: time.Since(p.began).Milliseconds(), After: p.sent}
		for i, c := range p.changes {
			c.AgeMS = time.Since(p.since[i]).Milliseconds()
			r.Changes = append(r.Changes, c)
		}
		status, body, err := hs.ask(ctx, h, http.MethodPost, wire.PathEdgeProbes, h.token(), r)
		var answer wire.EdgeProbesAnswer
		switch {
		case err != nil || status != http.StatusOK || json.Unmarshal(body, &answer) != nil:
		case answer.Restate:
			hs.w.Met("an edge stated the health of its sites again")
			restated++
			p.watch = fmt.Sprintf("%s-%d-%d", h.guest.Name, h.boots, restated)
			p.sent, p.changes, p.since, p.found = 0, nil, nil, map[string]wire.EdgeProbe{}
		default:
			p.sent, p.changes, p.since = p.sent+len(r.Changes), nil, nil
		}
		if len(r.Changes) > 0 {
			hs.w.Met("an edge reported a site's health")
		}
	}
}

// look notes how what the sites answer now differs from the last look.
func (p *probes) look(now map[string]wire.EdgeProbe, at time.Time) {
	for _, id := range slices.Sorted(maps.Keys(p.found)) {
		if _, ok := now[id]; !ok {
			p.note(wire.EdgeProbe{Tenant: id, State: wire.EdgeProbeGone}, at)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(now)) {
		if p.found[id] != now[id] {
			p.note(now[id], at)
		}
	}
	p.found = now
}

// answers is how the sites that an edge serves answer it. Where a document leads is not looked at here (lacks).
func (hs *hosts) answers(h *host, e *edgeServer) map[string]wire.EdgeProbe {
	h.mu.Lock()
	served := e.document.Hosts
	h.mu.Unlock()
	all, out := hs.all(), map[string]wire.EdgeProbe{}
	for _, name := range served {
		if name.Tenant == "" || name.State != wire.EdgeServing {
			continue
		}
		probe := wire.EdgeProbe{Tenant: name.Tenant, State: wire.EdgeProbeDown, Cause: wire.EdgeProbeMissing}
		for _, addr := range slices.Sorted(maps.Keys(all)) {
			switch s := all[addr].site(name.Site); {
			case s == nil || s.Arriving && !s.settled:
			case s.Offline:
				probe.Cause = wire.EdgeProbeMaintenance
			default:
				probe = wire.EdgeProbe{Tenant: name.Tenant, State: wire.EdgeProbeUp}
			}
			if probe.State == wire.EdgeProbeUp {
				break
			}
		}
		out[name.Tenant] = probe
	}
	return out
}

// site is a copy of a site's state on a host that is up, nil without one.
func (h *host) site(name string) *site {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.sites[name]; s != nil && h.up {
		seen := site{Arriving: s.Arriving, settled: s.settled, Offline: s.Offline}
		return &seen
	}
	return nil
}

// token is what a host proves itself with.
func (h *host) token() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.identity.Token
}
