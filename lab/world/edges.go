package world

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"time"

	"github.com/prego/prego/agent/wire"
)

// edgeServer is what an edge serves and keeps on its disk (agent/edge.Edge): the last good document, with its
// certificates and their keys.
type edgeServer struct {
	document wire.EdgeDocument
	certs    map[string]wire.EdgeCertificate
	applied  bool // it is known that it is served: false after a start
	seen     int64
	ack      wire.EdgeApplied
	told     wire.EdgeApplied // that the gateway knows of
}

// serveEdge keeps an edge at the control plane's document (agent.serveEdge), until its power goes off.
func (hs *hosts) serveEdge(ctx context.Context, h *host) {
	h.mu.Lock()
	if h.edge == nil {
		h.edge = &edgeServer{certs: map[string]wire.EdgeCertificate{}}
	}
	e := h.edge
	e.applied, e.seen, e.ack, e.told = false, e.document.Version, wire.EdgeApplied{}, wire.EdgeApplied{}
	h.mu.Unlock()
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
		if !post(wire.PathEdgeApplied, e.ack, nil) {
			return false
		}
		e.told = e.ack
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
	if err := json.Unmarshal(body, &d); err != nil {
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
		if _, err := tls.X509KeyPair([]byte(c.Chain), []byte(c.Key)); err != nil {
			hs.w.violationf("I9 edge %s gets a certificate that its key is for: %v: %v", h.guest.Name, c.Names, err)
			leftOut = append(leftOut, wire.EdgeLeftOut{Kind: wire.EdgeCertificatePart, Name: c.ID, Reason: "key"})
			continue
		}
		certs[c.ID] = c
	}
	h.mu.Lock()
	e.document, e.certs, e.applied = d, certs, true
	h.mu.Unlock()
	e.seen, e.ack = d.Version, wire.EdgeApplied{Version: d.Version, LeftOut: leftOut}
	if len(d.Hosts) > 0 {
		hs.w.Met("an edge served a site")
	}
}

// token is what a host proves itself with.
func (h *host) token() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.identity.Token
}
