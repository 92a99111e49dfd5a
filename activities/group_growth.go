package activities

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/instance"
)

// FleetGrower starts the run that carries a fleet's actions out. If the start fails, the
// periodic sweep repeats it: the action is queued.
type FleetGrower interface {
	EnsureScaleFleet(ctx context.Context, fleetID prego.FleetID) error
}

// short is an instance that found no place, and why.
type short struct {
	request  instance.Request
	decision instance.Decision
}

// grow makes fleets grow for all instances that found no place in a region, and says at
// their groups what is done. It runs under the region's lock.
func (a *Groups) grow(ctx context.Context, region prego.Region, all []short) error {
	if len(all) == 0 || a.Fleets == nil {
		return nil
	}
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
		if _, ok := decisions[s.request.GroupID]; !ok {
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
		if err := a.Fleets.EnsureScaleFleet(ctx, g.FleetID); err != nil {
			a.Log.Warn("fleet not told to grow; the sweep will", zap.String("fleet_id", string(g.FleetID)), zap.Error(err))
		}
	}
	for id, w := range says {
		d := decisions[id]
		code, text := d.Code, d.SelectionReason
		if w.Code != "" {
			code = w.Code
		}
		if w.Text != "" {
			text += "; " + w.Text
		}
		errs = append(errs, a.Store.NoPlace(ctx, id, code, text, nil))
	}
	return errors.Join(errs...)
}
