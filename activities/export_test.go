package activities

import (
	"context"
	"fmt"

	"github.com/prego/prego/tenant"
)

// MakeSite promotes the reserved pool site to the tenant's, or creates the site on
// demand, and configures it: the first part of BuildTenant.
func (a *Tenants) MakeSite(ctx context.Context, ref tenant.Ref) (site string, err error) {
	t, err := a.placed(ctx, ref)
	if err != nil {
		return "", err
	}
	a.hook("site/start")
	return a.makeSite(ctx, ref, t)
}

// OpenSite enables a site's scheduler, which is off in pool sites, and creates its
// first user. The user has no password: they request one by mail, or an operator sets
// one.
func (a *Tenants) OpenSite(ctx context.Context, ref tenant.Ref) error {
	t, err := a.placed(ctx, ref)
	if err != nil {
		return err
	}
	if _, err := a.inTurn(ctx, a.opening(t)...); err != nil {
		return err
	}
	a.hook("site/opened")
	for _, e := range opened(t) {
		if err := a.Store.AddTenantEvent(ctx, e, fmt.Sprintf("first_user/a%d", t.Allocation.AllocationID)); err != nil {
			return fromStore(err)
		}
	}
	return nil
}

// placed reads a tenant whose server accepts commands, with its allocation.
func (a *Tenants) placed(ctx context.Context, ref tenant.Ref) (tenant.Record, error) {
	t, err := a.Store.TenantRecord(ctx, ref.TenantID)
	if err != nil {
		return t, fromStore(err)
	}
	return asPlaced(t, ref)
}

// RefusedCreate is what follows the provider's refusal to create a server.
var RefusedCreate = (*Servers).refused

// CandidateAttempt is an attempt at one of its candidates.
type CandidateAttempt = candidateAttempt
