package placer

import (
	"context"
	"encoding/json"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// FunnelMost limits the candidates that a funnel lists for each filter, and the remaining ones.
const FunnelMost = 50

// Explain returns a decision's input, and how it was made with the policy of that time.
func (p *Placer) Explain(ctx context.Context, d tenant.DecisionRecord) (placement.Kept, placement.Funnel, error) {
	k, _, err := p.kept(ctx, d)
	if err != nil {
		return k, placement.Funnel{}, err
	}
	f, err := k.Snapshot(k.State.Policy)
	if err != nil {
		return k, placement.Funnel{}, err
	}
	_, funnel := f.Funnel(k.Decision.Request, FunnelMost)
	return k, funnel, nil
}

// Replay decides again on what a decision was made on.
func (p *Placer) Replay(ctx context.Context, d tenant.DecisionRecord) (placement.Kept, placement.Replay, error) {
	k, recorded, err := p.kept(ctx, d)
	if err != nil {
		return k, placement.Replay{}, err
	}
	r, err := k.Replay(p.Policy, p.Version, recorded, FunnelMost)
	return k, r, err
}

func (p *Placer) kept(ctx context.Context, d tenant.DecisionRecord) (k placement.Kept, recorded placement.Explanation, err error) {
	if err := json.Unmarshal(d.Decision, &recorded); err != nil {
		return k, recorded, err
	}
	state, events, err := p.Store.DecisionInput(ctx, recorded.Input)
	if err != nil {
		return k, recorded, err
	}
	k, err = placement.ReadKept(state, events)
	return k, recorded, err
}

// WhatIf decides on a request over live data, first as it is and then with the changes of w. For an existing tenant it
// uses the tenant's own request. Nothing is written.
func (p *Placer) WhatIf(
	ctx context.Context, id prego.TenantID, r placement.Request, w placement.WhatIf,
) (out [2]placement.Answer, err error) {
	var pools []prego.AppliedPool
	if id != "" {
		t, err := p.Store.TenantRecord(ctx, id)
		if err != nil {
			return out, err
		}
		r = RequestOf(t)
		r.TenantID = placement.AnotherTenant // the tenant itself may have a place
		pools = t.Pools
	} else {
		of, err := p.Store.PoolsOf(ctx, []prego.OrgID{r.OrgID})
		if err != nil {
			return out, err
		}
		pools = of[string(r.OrgID)]
		r = withPools(r, pools)
	}
	if w.Constraint != nil {
		c := prego.EffectiveConstraint(*w.Constraint, pools)
		w.Constraint = &c
	}
	c, err := p.Store.PlacementChanges(ctx, "", nil)
	if err != nil {
		return out, err
	}
	f := placement.SnapshotOf(p.Policy, c)
	out[0] = f.Answer(r, FunnelMost)
	changed, err := w.Apply(f, r)
	if err != nil {
		return out, err
	}
	out[1] = f.Answer(changed, FunnelMost)
	return out, nil
}
