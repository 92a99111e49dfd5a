package agentgw

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/edge"
)

// edgeProbes takes the changes of the health of an edge's sites, and signals the runs that wait for one to be up. An
// edge can report only the sites of its network.
func (g *Gateway) edgeProbes(ctx context.Context, who caller, in wire.EdgeProbes) (any, error) {
	const oldest = 10 * 365 * 24 * 3600 * 1000 // ms
	if in.Watch == "" || len(in.Watch) > wire.MaxEdgePartName ||
		in.SinceMS < 0 || in.SinceMS > oldest || in.UntilMS < 0 || in.After < 0 {
		return nil, prego.Invalid("watch", "must be a name of at most 300 bytes, since 10 years at most")
	}
	if len(in.Changes) > wire.MaxEdgeProbes {
		return nil, prego.Invalid("changes", "must be at most 2000")
	}
	in.Watch, in.UntilMS = printable(in.Watch), min(in.UntilMS, in.SinceMS)
	for i := range in.Changes {
		c := &in.Changes[i]
		known := c.State == wire.EdgeProbeUp || c.State == wire.EdgeProbeGone || c.State == wire.EdgeProbeDown
		down := slices.Contains(wire.EdgeProbeCauses(), c.Cause)
		if !known || down != (c.State == wire.EdgeProbeDown) || len(c.Tenant) > wire.MaxEdgePartName || c.AgeMS < 0 {
			return nil, prego.Invalid("changes", "must be tenants that are up, gone, or down with a cause")
		}
		// A watch can begin a moment after a change that it reports.
		c.Tenant, c.AgeMS = printable(c.Tenant), min(c.AgeMS, in.SinceMS)
	}
	known, opened, err := g.store.EdgeProbed(ctx, edge.Probed{ServerID: who.serverID, EdgeProbes: in})
	late := time.Now().Add(batchSlotTimeout)
	for _, id := range opened {
		g.send(ctx, time.Until(late), "site_up", zap.String("tenant_id", string(id)), func(ctx context.Context) error {
			return g.runs.WakeTenant(ctx, id)
		})
	}
	return wire.EdgeProbesAnswer{Restate: !known}, err
}
