package api

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/cost"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

func tenantSummary(t tenant.Tenant) TenantSummary { return listedTenant(tenant.Listed{Tenant: t}) }

func listedTenant(t tenant.Listed) TenantSummary {
	out := viewOf[TenantSummary](t)
	out.SiteUrl = siteURL(t.Tenant)
	return out
}

func siteURL(t tenant.Tenant) *string {
	if t.Site == "" {
		return nil
	}
	return optional("https://" + t.Site)
}

// tenantView is everything shown of a tenant; its allocation and decision are nil if
// there are none.
func (a *API) tenantView(ctx context.Context, t tenant.Tenant, events []tenant.Event, allocation *tenant.Allocation, decision *tenant.DecisionRecord) (Tenant, error) {
	run := lastRun(t, events)
	out := viewOf[Tenant](t)
	out.SiteUrl, out.WorkflowId, out.RunUrl, out.Timeline = siteURL(t), run, optional(a.d.Runs.RunURL(run)), views(redactEvents(ctx, events), viewOf[TenantEvent])
	if access.OfCustomer(ctx) {
		out.RunUrl = nil // Temporal's UI is operators'
	}
	if decision != nil {
		d, err := decisionView(*decision)
		if err != nil {
			return out, err
		}
		redactDecision(ctx, &d)
		out.Decision = &d
	}
	if allocation != nil {
		out.Allocation = viewOf[*Allocation](*allocation)
		if decision != nil && decision.AllocationID != nil && *decision.AllocationID == allocation.AllocationID {
			out.Allocation.Decision = &out.Decision.DecisionLog
		}
	}
	return out, nil
}

func tenantCostView(c *cost.PerMonth) *TenantCost {
	if c == nil {
		return nil
	}
	out := TenantCost{Currency: c.Currency, Monthly: c.Total.String(), Unpriced: optional(c.Unpriced), Parts: []TenantCostPart{}}
	for _, p := range c.Parts {
		out.Parts = append(out.Parts, TenantCostPart{ServerId: optional(p.ServerID), Cost: p.Cost.String()})
	}
	return &out
}

// addHealth adds whether a tenant's site answers, and its uptime.
func (a *API) addHealth(ctx context.Context, out *Tenant, id prego.TenantID) error {
	health, err := a.d.Store.SiteHealth(ctx, id)
	if err != nil {
		return err
	}
	months, err := a.d.Store.Uptime(ctx, id)
	if err != nil {
		return err
	}
	out.SiteHealth = viewOf[*SiteHealth](health)
	if len(months) == 0 {
		return nil
	}
	all := make([]Uptime, 0, len(months))
	for _, m := range months {
		v := viewOf[Uptime](m)
		v.UptimePct = m.Pct()
		all = append(all, v)
	}
	out.Uptime = &all
	return nil
}

// lastRun is the current or last run of a tenant: its provisioning, until its
// state is changed.
func lastRun(t tenant.Tenant, events []tenant.Event) string {
	for i := len(events) - 1; i >= 0; i-- {
		e := events[i]
		if e.Step != tenant.StepChanged {
			continue
		}
		if e.ToState == tenant.Provisioning || e.FromState == tenant.Provisioning {
			break // asked to retry or to cancel, or the run's own end
		}
		return tenant.ChangeWorkflowID(t.TenantID)
	}
	return tenant.ProvisionWorkflowID(t.TenantID)
}

func decisionView(r tenant.DecisionRecord) (Decision, error) {
	out := viewOf[Decision](r)
	if err := json.Unmarshal(r.Decision, &out.DecisionLog); err != nil {
		return out, fmt.Errorf("decision %d: %w", r.SnapshotID, err)
	}
	if err := json.Unmarshal(r.Policy, &out.Policy); err != nil {
		return out, fmt.Errorf("policy of decision %d: %w", r.SnapshotID, err)
	}
	if out.DecisionLog.Rejected == nil {
		out.DecisionLog.Rejected = []placement.Rejection{}
	}
	if out.DecisionLog.RejectedCounts == nil {
		out.DecisionLog.RejectedCounts = map[string]int{}
	}
	return out, nil
}
