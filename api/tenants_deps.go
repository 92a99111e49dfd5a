package api

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// TenantStore is the part of Postgres that tenants, pools and orgs use.
type TenantStore interface {
	CreateTenant(ctx context.Context, r tenant.CreateRequest, tenantID prego.TenantID, mode tenant.PlacementMode, idempotencyKey, by string) (t tenant.Tenant, created bool, err error)
	ChangeTenant(ctx context.Context, id prego.TenantID, action tenant.Action, periods tenant.LifecyclePeriods, by, reason string) (tenant.Tenant, error)
	GetTenant(ctx context.Context, id string) (tenant.Tenant, error)
	ListTenants(ctx context.Context, q prego.ListQuery) (page []tenant.Tenant, next string, err error)
	TenantEvents(ctx context.Context, id prego.TenantID) ([]tenant.Event, error)
	LiveAllocation(ctx context.Context, id prego.TenantID) (*tenant.Allocation, error)
	LastDecision(ctx context.Context, id prego.TenantID) (*tenant.DecisionRecord, error)
	ListDecisions(ctx context.Context, id prego.TenantID) ([]tenant.DecisionRecord, error)
	GetDecision(ctx context.Context, id int64) (tenant.Decision, error)
	ListAllDecisions(ctx context.Context, q prego.ListQuery) (page []tenant.Decision, next string, err error)

	AddTenantEvent(ctx context.Context, e tenant.Event, dedupKey string) error
	SiteUsage(ctx context.Context, tenantID prego.TenantID) (*tenant.SiteUsage, error)
	CloneTenant(ctx context.Context, of prego.TenantID, r tenant.CloneRequest, id prego.TenantID, jobID, by string) (tenant.Tenant, error)
	UnmuteTenant(ctx context.Context, id prego.TenantID, by string) error
	TenantLoss(ctx context.Context, id prego.TenantID) (*tenant.Loss, error)
	Restorable(ctx context.Context, tenantID prego.TenantID) (*tenant.Restorable, error)
	BackupDue(ctx context.Context, tenantID prego.TenantID) (*time.Time, error)
	SetStorageQuota(ctx context.Context, tenantID prego.TenantID, gb int, by string) (tenant.Tenant, error)
	SetMail(ctx context.Context, tenantID prego.TenantID, m *tenant.MailSettings, by string) error

	PutOrg(ctx context.Context, id prego.OrgID, r tenant.PutOrgRequest, by string, match ...string) (org.Org, error)
	GetOrg(ctx context.Context, id prego.OrgID) (org.Org, error)
	ListOrgs(ctx context.Context, q prego.ListQuery) (page []org.Org, next string, err error)

	CreatePlacementPool(ctx context.Context, name string, c prego.Constraint, by string) (p prego.PlacementPool, created bool, err error)
	GetPlacementPool(ctx context.Context, name string) (prego.PlacementPool, error)
	PlacementPoolOrgs(ctx context.Context, name string, limit int) ([]string, error)
	ListPlacementPools(ctx context.Context, q prego.ListQuery) (page []prego.PlacementPool, next string, err error)
	PutPlacementPool(ctx context.Context, name string, c prego.Constraint, by string, match ...string) (prego.PlacementPool, error)
	SetDefaultPool(ctx context.Context, name string, on bool, by string) (prego.PlacementPool, error)
	DeletePlacementPool(ctx context.Context, name string) error
	AssociatePool(ctx context.Context, orgID prego.OrgID, name, by string) error
	DissociatePool(ctx context.Context, orgID prego.OrgID, name string) error
	OrgPlacementPools(ctx context.Context, orgID prego.OrgID) ([]prego.PlacementPool, error)

	ListSitePools(ctx context.Context, region prego.Region) ([]tenant.SitePool, error)
	SitePoolPolicies(ctx context.Context) ([]tenant.SitePoolPolicy, error)
	PutSitePoolPolicy(ctx context.Context, p tenant.SitePoolPolicy, match ...string) error
	ListWarmPools(ctx context.Context) ([]tenant.WarmPool, error)
	PutWarmPool(ctx context.Context, region prego.Region, plan prego.Plan, target int, by string, match ...string) error
	ListScalingEvents(ctx context.Context, q prego.ListQuery) (page []tenant.ScalingEvent, next string, err error)
}

// TenantRuns starts the runs of tenants and pools. If a start fails, the periodic sweep
// repeats it: the row is what counts.
type TenantRuns interface {
	StartTenantProvision(ctx context.Context, t tenant.Tenant) error
	CancelTenantProvision(ctx context.Context, tenantID prego.TenantID) error
	StartTenantChange(ctx context.Context, tenantID prego.TenantID) error
	StartRefill(ctx context.Context, appServerID prego.ServerID) (workflowID string, err error)
	StartWarmPool(ctx context.Context, region prego.Region, plan prego.Plan) (workflowID string, err error)
}

// Placer decides over the live fleet.
type Placer interface {
	// Simulate decides on each request after the one before; nothing is written.
	Simulate(ctx context.Context, requests []placement.Request) ([]placement.Decision, error)
	// Override decides, reserves, wakes the tenant's run, and records the request for
	// audit, even if it is refused; a refusal is a coded *prego.Error.
	Override(ctx context.Context, o tenant.PlacementOverride, by string) (placement.Decision, error)
	// Explain shows what a decision was made on, and how; it is CodeInputNotKept if that is not
	// stored.
	Explain(ctx context.Context, d tenant.DecisionRecord) (placement.Kept, placement.Funnel, error)
	// Replay decides again on what a decision was made on.
	Replay(ctx context.Context, d tenant.DecisionRecord) (placement.Kept, placement.Replay, error)
	// WhatIf decides on a request, or on one like a tenant's, as it is and with what is otherwise;
	// nothing is written.
	WhatIf(ctx context.Context, of prego.TenantID, r placement.Request, w placement.WhatIf) ([2]placement.Answer, error)
}

// newTenantID makes a tenant id.
func newTenantID() string { return newID("t-") }
