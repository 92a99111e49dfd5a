package api

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
)

// TenantStore is the part of Postgres that tenants, pools and orgs use.
type TenantStore interface {
	CreateTenant(ctx context.Context, r prego.CreateTenantRequest, tenantID string, mode prego.PlacementMode, idempotencyKey, by string) (t prego.Tenant, created bool, err error)
	ChangeTenant(ctx context.Context, id string, action prego.TenantAction, periods prego.LifecyclePeriods, by, reason string) (prego.Tenant, error)
	GetTenant(ctx context.Context, id string) (prego.Tenant, error)
	ListTenants(ctx context.Context, f prego.TenantFilter) (page []prego.Tenant, next string, err error)
	TenantEvents(ctx context.Context, id string) ([]prego.TenantEvent, error)
	LiveAllocation(ctx context.Context, id string) (*prego.Allocation, error)
	LastDecision(ctx context.Context, id string) (*prego.DecisionRecord, error)
	ListDecisions(ctx context.Context, id string) ([]prego.DecisionRecord, error)

	AddTenantEvent(ctx context.Context, e prego.TenantEvent, dedupKey string) error
	SiteUsage(ctx context.Context, tenantID string) (*prego.SiteUsage, error)
	SetStorageQuota(ctx context.Context, tenantID string, gb int, by string) (prego.Tenant, error)
	SetMail(ctx context.Context, tenantID string, m *prego.MailSettings, by string) error

	PutOrg(ctx context.Context, o prego.Org, by string) (prego.Org, error)
	GetOrg(ctx context.Context, id string) (prego.Org, error)
	ListOrgs(ctx context.Context, after string, limit int) (page []prego.Org, more bool, err error)

	CreatePlacementPool(ctx context.Context, name string, c prego.Constraint, by string) (p prego.PlacementPool, created bool, err error)
	GetPlacementPool(ctx context.Context, name string) (prego.PlacementPool, error)
	PlacementPoolOrgs(ctx context.Context, name string, limit int) ([]string, error)
	ListPlacementPools(ctx context.Context, after string, limit int) (page []prego.PlacementPool, more bool, err error)
	PutPlacementPool(ctx context.Context, name string, c prego.Constraint, by string) (prego.PlacementPool, error)
	SetDefaultPool(ctx context.Context, name string, on bool, by string) (prego.PlacementPool, error)
	DeletePlacementPool(ctx context.Context, name string) error
	AssociatePool(ctx context.Context, orgID, name, by string) error
	DissociatePool(ctx context.Context, orgID, name string) error
	OrgPlacementPools(ctx context.Context, orgID string) ([]prego.PlacementPool, error)

	ListSitePools(ctx context.Context, region prego.Region) ([]prego.SitePool, error)
	SitePoolPolicies(ctx context.Context) ([]prego.SitePoolPolicy, error)
	PutSitePoolPolicy(ctx context.Context, p prego.SitePoolPolicy) error
	ListWarmPools(ctx context.Context) ([]prego.WarmPool, error)
	PutWarmPool(ctx context.Context, region prego.Region, plan prego.Plan, target int, by string) error
	ListScalingEvents(ctx context.Context, region prego.Region, limit int) ([]prego.ScalingEvent, error)
}

// TenantRuns starts the runs of tenants and pools. A start that fails is made up
// for by the periodic sweep: the row is what counts.
type TenantRuns interface {
	StartTenantProvision(ctx context.Context, t prego.Tenant) error
	CancelTenantProvision(ctx context.Context, tenantID string) error
	StartTenantChange(ctx context.Context, tenantID string) error
	StartRefill(ctx context.Context, appServerID string) (workflowID string, err error)
	StartWarmPool(ctx context.Context, region prego.Region, plan prego.Plan) (workflowID string, err error)
}

// Placer decides over the live fleet.
type Placer interface {
	// Simulate decides each request after the one before; nothing is written.
	Simulate(ctx context.Context, requests []placement.Request) ([]placement.Decision, error)
	// Override decides, reserves, wakes the tenant's run, and keeps what was asked for
	// audit, also when it is refused; a refusal is a coded *prego.Error.
	Override(ctx context.Context, o prego.PlacementOverride, by string) (placement.Decision, error)
}

// newTenantID makes the id of a tenant.
func newTenantID() string { return newID("t-") }
