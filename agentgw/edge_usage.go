package agentgw

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

// edgeOwner is the tenant or route whose requests are counted; empty for unknown names.
type edgeOwner struct{ tenant, route string }

const (
	// maxEdgeOwners bounds the series, 14 for each owner. Further owners are counted together.
	maxEdgeOwners = 20_000
	// forgetEdgeOwner is the time without requests after which the series of an owner end.
	forgetEdgeOwner = time.Hour
)

// otherEdgeOwners counts the requests of the owners beyond maxEdgeOwners.
var otherEdgeOwners = edgeOwner{tenant: "other", route: "other"}

// edgeUsage adds up what edges report. The edge is no label, because it does not characterise the tenant.
type edgeUsage struct {
	mu     sync.Mutex
	owners map[edgeOwner]*edgeTotal
	now    func() time.Time
}

type edgeTotal struct {
	wire.EdgeCounts
	at time.Time
}

func newEdgeUsage(now func() time.Time) *edgeUsage {
	return &edgeUsage{owners: map[edgeOwner]*edgeTotal{}, now: now}
}

func (u *edgeUsage) add(o edgeOwner, c wire.EdgeCounts) {
	u.mu.Lock()
	defer u.mu.Unlock()
	t := u.owners[o]
	if t == nil && len(u.owners) >= maxEdgeOwners {
		o = otherEdgeOwners
		t = u.owners[o]
	}
	if t == nil {
		t = &edgeTotal{}
		u.owners[o] = t
	}
	for i, n := range c.Statuses {
		t.Statuses[i] += n
	}
	for i, n := range c.Durations {
		t.Durations[i] += n
	}
	t.BytesIn, t.BytesOut = t.BytesIn+c.BytesIn, t.BytesOut+c.BytesOut
	t.Seconds, t.at = t.Seconds+c.Seconds, u.now()
}

var (
	edgeLabels   = []string{"tenant_id", "route_id"}
	edgeRequests = prometheus.NewDesc("prego_edge_requests_total",
		"Requests that edges answered, by class of status.", append(edgeLabels, "status"), nil)
	edgeBytesIn  = prometheus.NewDesc("prego_edge_request_bytes_total", "Bytes of requests' bodies.", edgeLabels, nil)
	edgeBytesOut = prometheus.NewDesc("prego_edge_response_bytes_total", "Bytes of answers' bodies.", edgeLabels, nil)
	edgeDuration = prometheus.NewDesc("prego_edge_request_duration_seconds",
		"Seconds from a request to the end of its answer.", edgeLabels, nil)
)

// Describe implements prometheus.Collector.
func (u *edgeUsage) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{edgeRequests, edgeBytesIn, edgeBytesOut, edgeDuration} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (u *edgeUsage) Collect(ch chan<- prometheus.Metric) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for o, t := range u.owners {
		if u.now().Sub(t.at) > forgetEdgeOwner {
			delete(u.owners, o)
			continue
		}
		total := uint64(0)
		for i, n := range t.Statuses {
			if n > 0 {
				class := string(rune('1'+i)) + "xx"
				ch <- prometheus.MustNewConstMetric(edgeRequests, prometheus.CounterValue, float64(n),
					o.tenant, o.route, class)
			}
			total += uint64(n) //nolint:gosec // checked when it was reported
		}
		ch <- prometheus.MustNewConstMetric(edgeBytesIn, prometheus.CounterValue, float64(t.BytesIn), o.tenant, o.route)
		ch <- prometheus.MustNewConstMetric(edgeBytesOut, prometheus.CounterValue, float64(t.BytesOut), o.tenant, o.route)
		buckets, sum := make(map[float64]uint64, len(wire.EdgeDurations)), uint64(0)
		for i, upper := range wire.EdgeDurations {
			sum += uint64(t.Durations[i]) //nolint:gosec // see above
			buckets[upper] = sum
		}
		ch <- prometheus.MustNewConstHistogram(edgeDuration, total, t.Seconds, buckets, o.tenant, o.route)
	}
}

// edgeUsage takes an edge's counts. An edge can report only the tenants and routes that it serves.
func (g *Gateway) edgeUsage(ctx context.Context, who caller, in wire.EdgeUsage) (any, error) {
	if len(in.Counts) > wire.MaxEdgeCounts {
		return nil, prego.Invalid("counts", "must be at most 5000")
	}
	negative := func(n int64) bool { return n < 0 }
	for _, v := range in.Counts {
		if slices.ContainsFunc(v.Statuses[:], negative) || slices.ContainsFunc(v.Durations[:], negative) ||
			v.BytesIn < 0 || v.BytesOut < 0 || !(v.Seconds >= 0) {
			return nil, prego.Invalid("counts", "must not be negative")
		}
	}
	network, err := g.store.EdgeAsks(ctx, who.serverID, 0)
	if err != nil {
		return nil, err
	}
	owners := g.edges.current(network).newest.owners
	for _, v := range in.Counts {
		o := edgeOwner{tenant: strings.ToValidUTF8(v.Tenant, ""), route: strings.ToValidUTF8(v.Route, "")}
		// Unknown owner: this process does not have the document yet, or the name was removed.
		if !owners[o] {
			o = edgeOwner{}
		}
		g.usage.add(o, v)
	}
	return nothing{}, nil
}
