package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// BackupPolicyStore is the part of Postgres that says when tenants are backed up, and how much
// their backups may occupy.
type BackupPolicyStore interface {
	PlanBackupPolicy(ctx context.Context, plan prego.Plan) (tenant.BackupPolicy, error)
	BackupPolicy(ctx context.Context, tenantID prego.TenantID) (tenant.BackupPolicy, error)
	ListBackupPolicies(ctx context.Context, q prego.ListQuery) (page []tenant.BackupPolicy, next string, err error)
	PutBackupPolicy(ctx context.Context, p tenant.BackupPolicy, by string) error
	DeleteBackupPolicy(ctx context.Context, tenantID prego.TenantID, by string) error
	BackupPolicyChanges(ctx context.Context, policyID string, most int) ([]tenant.BackupPolicyChange, error)
	BackupHold(ctx context.Context, tenantID prego.TenantID) (*tenant.BackupHold, error)
	HoldBackups(ctx context.Context, tenantID prego.TenantID, reason, by string) error
	ReleaseBackups(ctx context.Context, tenantID prego.TenantID, by string) error

	BackupSpace(ctx context.Context, orgID prego.OrgID, most int) (tenant.BackupSpace, error)
	SetBackupLimit(ctx context.Context, orgID prego.OrgID, limit *int64, reason, by string) error
}

const (
	shownTurns   = 5  // of a policy
	shownChanges = 20 // of a policy
	shownTenants = 20 // whose backups occupy most
)

// policyOwner is whose policy is meant: a plan's, or else a tenant's.
func policyOwner(owner string) (plan prego.Plan, tenantID prego.TenantID) {
	if p := prego.Plan(owner); p.Valid() {
		return p, ""
	}
	return "", prego.TenantID(owner)
}

func backupPolicyView(p tenant.BackupPolicy) BackupPolicy {
	out := BackupPolicy{
		Owner: string(p.TenantID), Source: "tenant", TenantId: optional(string(p.TenantID)), Schedule: p.Schedule, SpreadSeconds: int(p.Spread.Seconds()),
		KeepDaily: p.Retention.Daily, KeepWeekly: p.Retention.Weekly, KeepMonthly: p.Retention.Monthly, UpdatedBy: p.UpdatedBy, UpdatedAt: p.UpdatedAt.UTC(),
	}
	if p.Plan != "" {
		out.Owner, out.Source, out.Plan = string(p.Plan), "plan", &p.Plan
	}
	return out
}

// ListBackupPolicies shows a page of the policies of plans and of tenants with their own.
func (a *API) ListBackupPolicies(c echo.Context, _ ListBackupPoliciesParams) error {
	return list(c, "backup_policies", a.d.Resources.Store.ListBackupPolicies, backupPolicyView)
}

// GetBackupPolicy shows what applies to a plan or a tenant, and its next turns.
func (a *API) GetBackupPolicy(c echo.Context, owner BackupPolicyOwner) error {
	return a.showBackupPolicy(c, owner, nil)
}

// showBackupPolicy shows a policy; instead of the one that applies, one that is tried.
func (a *API) showBackupPolicy(c echo.Context, owner string, tried *tenant.BackupPolicy) error {
	ctx, store := c.Request().Context(), a.d.Resources.Store
	plan, tenantID := policyOwner(owner)
	read := func() (tenant.BackupPolicy, error) { return store.PlanBackupPolicy(ctx, plan) }
	if plan == "" {
		read = func() (tenant.BackupPolicy, error) { return store.BackupPolicy(ctx, tenantID) }
	}
	p, err := read() // a tenant that is not there has none to try, either
	if err != nil {
		return err
	}
	if tried != nil {
		p = *tried
	}
	out := backupPolicyView(p)
	out.Owner, out.TenantId = owner, optional(string(tenantID))
	if next := p.Turns(tenantID, time.Now(), shownTurns); len(next) > 0 {
		out.Next = &next
	}
	changes, err := store.BackupPolicyChanges(ctx, tenant.BackupPolicyID(plan, tenantID), shownChanges)
	if err != nil {
		return err
	}
	if len(changes) > 0 {
		shown := views(changes, policyChangeView)
		out.Changes = &shown
	}
	if tenantID != "" {
		hold, err := store.BackupHold(ctx, tenantID)
		if err != nil {
			return err
		}
		if hold != nil {
			out.Hold = &BackupHold{Reason: hold.Reason, HeldBy: hold.HeldBy, HeldAt: hold.HeldAt.UTC()}
		}
	}
	return c.JSON(http.StatusOK, out)
}

func policyChangeView(v tenant.BackupPolicyChange) BackupPolicyChange {
	out := BackupPolicyChange{ChangedAt: v.ChangedAt.UTC(), By: v.ChangedBy}
	if p := v.Policy; p != nil {
		spread := int(p.Spread.Seconds())
		out.Schedule, out.SpreadSeconds, out.KeepDaily, out.KeepWeekly, out.KeepMonthly = &p.Schedule, &spread, &p.Retention.Daily, &p.Retention.Weekly, &p.Retention.Monthly
	}
	return out
}

// defaultSpread is over how many seconds backups are spread if nobody says otherwise.
const defaultSpread = 21600

// PutBackupPolicy sets a policy, or shows what it would be like.
func (a *API) PutBackupPolicy(c echo.Context, owner BackupPolicyOwner, params PutBackupPolicyParams) error {
	in := struct {
		Schedule      string `json:"schedule"`
		SpreadSeconds int    `json:"spread_seconds"`
		KeepDaily     int    `json:"keep_daily"`
		KeepWeekly    int    `json:"keep_weekly"`
		KeepMonthly   int    `json:"keep_monthly"`
	}{SpreadSeconds: defaultSpread}
	if err := decode(c, &in); err != nil {
		return err
	}
	p := tenant.BackupPolicy{
		Schedule: strings.Join(strings.Fields(in.Schedule), " "), Spread: time.Duration(in.SpreadSeconds) * time.Second, UpdatedBy: caller(c).Subject, UpdatedAt: time.Now(),
		Retention: tenant.Retention{Daily: in.KeepDaily, Weekly: in.KeepWeekly, Monthly: in.KeepMonthly},
	}
	if err := p.Validate(); err != nil {
		return err
	}
	p.Plan, p.TenantID = policyOwner(owner)
	if deref(params.DryRun) {
		return a.showBackupPolicy(c, owner, &p)
	}
	if err := a.d.Resources.Store.PutBackupPolicy(c.Request().Context(), p, caller(c).Subject); err != nil {
		return err
	}
	return a.showBackupPolicy(c, owner, nil)
}

// tenantOnly refuses plans where only a tenant makes sense.
func tenantOnly(owner, why string) (prego.TenantID, error) {
	if prego.Plan(owner).Valid() {
		return "", prego.Invalid("owner", why)
	}
	return prego.TenantID(owner), nil
}

// DeleteBackupPolicy returns a tenant to its plan's policy.
func (a *API) DeleteBackupPolicy(c echo.Context, owner BackupPolicyOwner) error {
	id, err := tenantOnly(owner, "must be a tenant: a plan always has a policy. An empty schedule stops its backups")
	if err == nil {
		err = a.d.Resources.Store.DeleteBackupPolicy(c.Request().Context(), id, caller(c).Subject)
	}
	if err != nil {
		return err
	}
	return a.showBackupPolicy(c, owner, nil)
}

// HoldBackups keeps all backups of a tenant.
func (a *API) HoldBackups(c echo.Context, owner BackupPolicyOwner) error {
	var in struct {
		Reason string `json:"reason"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	id, err := tenantOnly(owner, "must be a tenant")
	if err == nil {
		err = a.d.Resources.Store.HoldBackups(c.Request().Context(), id, in.Reason, caller(c).Subject)
	}
	if err != nil {
		return err
	}
	return a.showBackupPolicy(c, owner, nil)
}

// ReleaseBackups ends a tenant's hold.
func (a *API) ReleaseBackups(c echo.Context, owner BackupPolicyOwner) error {
	id, err := tenantOnly(owner, "must be a tenant")
	if err == nil {
		err = a.d.Resources.Store.ReleaseBackups(c.Request().Context(), id, caller(c).Subject)
	}
	if err != nil {
		return err
	}
	return a.showBackupPolicy(c, owner, nil)
}

// GetBackupSpace shows what an org's backups occupy.
func (a *API) GetBackupSpace(c echo.Context, id OrgID) error {
	s, err := a.d.Resources.Store.BackupSpace(c.Request().Context(), id, shownTenants)
	return answer(c, http.StatusOK, s, err, backupSpaceView)
}

func backupSpaceView(s tenant.BackupSpace) BackupSpace {
	out := BackupSpace{OrgId: string(s.OrgID), UsedBytes: s.UsedBytes, LimitBytes: s.LimitBytes, Source: "quota", Over: s.Over(), Largest: []TenantBackupSpace{}}
	if s.Own {
		out.Source = "override"
	}
	for _, t := range s.Largest {
		out.Largest = append(out.Largest, TenantBackupSpace{TenantId: string(t.TenantID), Backups: t.Backups, Bytes: t.Bytes})
	}
	return out
}

// SetBackupLimit gives an org a limit of its own.
func (a *API) SetBackupLimit(c echo.Context, id OrgID) error {
	var in struct {
		LimitBytes int64  `json:"limit_bytes"`
		Reason     string `json:"reason"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := a.d.Resources.Store.SetBackupLimit(c.Request().Context(), id, &in.LimitBytes, in.Reason, caller(c).Subject); err != nil {
		return err
	}
	return a.GetBackupSpace(c, id)
}

// UnsetBackupLimit takes it away.
func (a *API) UnsetBackupLimit(c echo.Context, id OrgID) error {
	if err := a.d.Resources.Store.SetBackupLimit(c.Request().Context(), id, nil, "", caller(c).Subject); err != nil {
		return err
	}
	return a.GetBackupSpace(c, id)
}
