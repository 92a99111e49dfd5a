package online

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/prego/prego/agent/edge"
	"github.com/prego/prego/agent/gateway"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// roleEdge is the role of hosts that answer the public.
const roleEdge = "edge"

// edgeSettings are how the servers of this host listen.
func (a *Agent) edgeSettings() edge.Settings {
	s := edge.Settings{RunDir: a.host.Path(wire.EdgeRunDir), Own: ownAddress}
	if ip, err := netip.ParseAddr(a.addr); err == nil {
		s.Listen = []netip.Addr{ip}
	}
	return s
}

// ownAddress reports whether an address is configured on this host.
func ownAddress(address string) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	ip := net.ParseIP(address)
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
			return true
		}
	}
	return false
}

// serveEdge keeps the servers of an edge at the control plane's document, and reports how many requests there were.
// It returns immediately on hosts of other roles.
func (a *Agent) serveEdge(ctx context.Context, log *slog.Logger) error {
	if a.host.Config.Role != roleEdge {
		return nil
	}
	e, err := edge.Open(a.host.Path(wire.EdgeDir), a.edgeSettings())
	if err != nil {
		return err
	}
	counter := edge.NewCounter(a.host.Path(wire.EdgeRunDir))
	counter.Follow(e.Document())
	prober := edge.NewProber()
	prober.Follow(e.Served())
	var reporting sync.WaitGroup
	defer reporting.Wait()
	go counter.Run(ctx)
	reporting.Go(func() { a.reportUsage(ctx, counter, log) })
	reporting.Go(func() { prober.Run(ctx) })
	reporting.Go(func() { a.reportProbes(ctx, prober, log) })

	f := &edgeFollower{agent: a, edge: e, counter: counter, prober: prober, log: log, seen: e.Document().Version}
	wait := gateway.Backoff{Base: 200 * time.Millisecond, Cap: 10 * time.Second}
	for {
		err := f.step(ctx)
		var pause time.Duration
		switch {
		case ctx.Err() != nil:
			return nil // asked to stop
		case err == nil:
			wait.Reset()
			// Each document costs the servers as much as it does: the last of several is enough.
			pause = min(3*e.Took(), 2*time.Second)
		default:
			pause = wait.Next(100 * time.Millisecond)
			log.Warn("edge not up to date", "version", e.Document().Version, "again_in", pause.String(), "error", err.Error())
		}
		if host.Sleep(ctx, pause) != nil {
			return nil // asked to stop
		}
	}
}

// edgeFollower follows the control plane's documents.
type edgeFollower struct {
	agent   *Agent
	edge    *edge.Edge
	counter *edge.Counter
	prober  *edge.Prober
	log     *slog.Logger
	seen    int64 // the version that was fetched last, served or refused
	ack     wire.EdgeApplied
	told    wire.EdgeApplied // that the gateway knows of
}

// step brings the servers to the document on disk, or else waits for the next document and serves it. The gateway
// learns the served version before the next request for a document.
func (f *edgeFollower) step(ctx context.Context) error {
	if !f.edge.Applied() && f.ack.Refused == 0 {
		// Caddy and HAProxy start by themselves with the last good files. That they run them is
		// known once they have taken them again, which changes nothing.
		if err := f.serve(ctx, f.edge.Document(), nil); err != nil {
			return err
		}
	}
	s := f.agent.current.Load()
	if !reflect.DeepEqual(f.ack, f.told) {
		var released wire.EdgeReleased
		if err := s.Gateway.PostJSON(ctx, wire.PathEdgeApplied, s.ID.Token, f.ack, &released); err != nil {
			return err
		}
		f.told = f.ack
		if released.Version >= f.ack.Version {
			f.edge.Release()
		}
	}
	var d wire.EdgeDocument
	changed, err := s.Gateway.Poll(ctx, wire.PathEdge+"?"+url.Values{"version": {strconv.FormatInt(f.seen, 10)}}.Encode(), s.ID.Token, &d)
	if err != nil {
		return err
	}
	if !changed {
		if f.ack.Refused != 0 {
			return nil
		}
		// An address may have come to this host, or gone, and a key that was not to be had.
		d = f.edge.Document()
	}
	var fetched []wire.EdgeCertificate
	missing := f.edge.Missing(d)
	for len(missing) > 0 {
		n := min(len(missing), wire.MaxEdgeCertificates)
		var got wire.EdgeCertificates
		if err := s.Gateway.PostJSON(ctx, wire.PathEdgeCertificates, s.ID.Token, wire.EdgeCertificatesRequest{IDs: missing[:n]}, &got); err != nil {
			return err
		}
		fetched, missing = append(fetched, got.Certificates...), missing[n:]
	}
	return f.serve(ctx, d, fetched)
}

func (f *edgeFollower) serve(ctx context.Context, d wire.EdgeDocument, fetched []wire.EdgeCertificate) error {
	err := f.edge.Apply(ctx, d, fetched)
	var refused *edge.RefusedError
	switch {
	case errors.As(err, &refused):
		f.log.Error("the edge's servers rejected a document and keep the previous one",
			"version", d.Version, "reason", refused.Reason)
		f.ack = wire.EdgeApplied{
			Version: f.edge.Document().Version, Closed: f.edge.Closed(),
			Refused: d.Version, Reason: refused.Reason[:min(len(refused.Reason), wire.MaxEdgeReason)],
		}
	case err != nil:
		return err
	default:
		f.counter.Follow(d)
		f.prober.Follow(f.edge.Served())
		f.ack = wire.EdgeApplied{Version: d.Version, LeftOut: f.edge.LeftOut(), Closed: f.edge.Closed()}
	}
	f.seen = d.Version
	return nil
}

// usageEvery is how often requests are reported.
const usageEvery = 15 * time.Second

func (a *Agent) reportUsage(ctx context.Context, counter *edge.Counter, log *slog.Logger) {
	for a.host.Pause(ctx, usageEvery) == nil {
		for {
			counts := counter.Take(wire.MaxEdgeCounts)
			if len(counts) == 0 {
				break
			}
			s := a.current.Load()
			if err := s.Gateway.PostJSON(ctx, wire.PathEdgeUsage, s.ID.Token, wire.EdgeUsage{Counts: counts}, nil); err != nil {
				counter.Return(counts)
				if ctx.Err() == nil {
					log.Warn("requests not reported", "error", err.Error())
				}
				break
			}
		}
	}
}

const (
	// probesEvery is how often an edge reports that it probes its sites. Changes are reported immediately, but those
	// of a moment together.
	probesEvery  = 15 * time.Second
	probesSettle = 200 * time.Millisecond
)

func (a *Agent) reportProbes(ctx context.Context, p *edge.Prober, log *slog.Logger) {
	wait := gateway.Backoff{Base: 200 * time.Millisecond, Cap: 10 * time.Second}
	for ctx.Err() == nil {
		s, report := a.current.Load(), p.Report()
		pause, changed := probesEvery, p.Changed()
		var answer wire.EdgeProbesAnswer
		switch err := s.Gateway.PostJSON(ctx, wire.PathEdgeProbes, s.ID.Token, report, &answer); {
		case ctx.Err() != nil:
			return
		case err != nil:
			pause, changed = wait.Next(100*time.Millisecond), nil
			log.Warn("probes of sites not reported", "again_in", pause.String(), "error", err.Error())
		case answer.Restate:
			p.Restate()
			pause = probesSettle
		default:
			wait.Reset()
			if p.Reported(report) {
				pause = probesSettle
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
			_ = host.Sleep(ctx, probesSettle)
		case <-time.After(pause):
		}
	}
}
