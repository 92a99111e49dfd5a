package activities

import (
	"context"
	"errors"
	"slices"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/workload"
)

// short is an instance that found no place, and why.
type short struct {
	request  instance.Request
	decision instance.Decision
}

// grow makes fleets grow for all unplaced instances of a region, and records the outcome on their
// groups. It runs under the region's lock.
func (a *Groups) grow(ctx context.Context, region prego.Region, all []short, refused []prego.GroupID) error {
	if len(all) == 0 {
		return nil
	}
	tried := len(all)
	others, err := a.backingOff(ctx, region, refused)
	if err != nil {
		return err
	}
	all = append(all, others...)
	offers, err := a.Store.InstanceOffers(ctx, region)
	if err != nil || len(offers) == 0 {
		return err
	}
	servers, err := a.Store.InstanceServers(ctx, region, nil)
	if err != nil {
		return err
	}
	var coming []instance.Server
	for _, s := range servers {
		if s.Coming {
			coming = append(coming, s)
		}
	}
	requests, decisions := make([]instance.Request, len(all)), map[prego.GroupID]instance.Decision{}
	for i, s := range all {
		requests[i] = s.request
		if _, ok := decisions[s.request.GroupID]; !ok && i < tried {
			decisions[s.request.GroupID] = s.decision
		}
	}
	growths, says := instance.Grow(requests, coming, offers)
	var errs []error
	for _, g := range growths {
		if err := a.Store.GrowForInstances(ctx, region, g); err != nil {
			errs = append(errs, err)
			continue
		}
		a.hook("group/growth_queued")
		a.Log.Info("a fleet grows for instances that wait", zap.String("fleet_id", string(g.FleetID)), zap.String("region", string(region)), zap.Int64("servers", g.Servers))
		if err := a.Runs.EnsureScaleFleet(ctx, g.FleetID); err != nil {
			a.Log.Warn("could not signal the fleet to grow; the sweep will retry", zap.String("fleet_id", string(g.FleetID)), zap.Error(err))
		}
	}
	for id, w := range says {
		d, ok := decisions[id]
		if !ok { // it was signalled when it was tried
			continue
		}
		code, text := d.Code, d.SelectionReason
		if w.Code != "" {
			code = w.Code
		}
		if w.Text != "" {
			text += "; " + w.Text
		}
		errs = append(errs, a.Store.ExplainNoPlace(ctx, id, code, text))
	}
	return errors.Join(errs...)
}

// backingOff are the instances that were tried earlier and not in this round: fleets also grow for
// them.
func (a *Groups) backingOff(ctx context.Context, region prego.Region, except []prego.GroupID) (out []short, err error) {
	waiting, err := a.Store.InstancesBackingOff(ctx, region, except)
	if err != nil || len(waiting) == 0 {
		return nil, err
	}
	ids := make([]prego.OrgID, len(waiting))
	for i, d := range waiting {
		ids[i] = d.OrgID
	}
	pools, err := a.Store.PoolsOf(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, d := range waiting {
		if len(d.Missing) == 0 {
			out = append(out, slices.Repeat([]short{{request: requestOf(d, pools[string(d.OrgID)])}}, min(d.Wanted, serveAtOnce))...)
		}
	}
	return out, nil
}

func requestOf(d workload.InstanceDemand, pools []prego.AppliedPool) instance.Request {
	return instance.Request{
		GroupID: d.GroupID, MemoryBytes: d.MemoryBytes, CPURequest: d.CPURequest, DiskBytes: d.DiskBytes, Constraint: prego.EffectiveConstraint(d.Constraint, pools), Locations: d.Locations, Volumes: d.Volumes,
	}
}
