package api

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

const (
	shownTurns   = 5  // of a policy
	shownChanges = 20 // of a policy
	shownTenants = 20 // whose backups occupy most
)

// policyOwner is whose policy is meant: a plan's, of volumes that of all, of an org's or of one, or
// else a tenant's.
func policyOwner(owner string) tenant.BackupPolicy {
	if p := prego.Plan(owner); p.Valid() {
		return tenant.BackupPolicy{Plan: p}
	}
	if id, ok := strings.CutPrefix(owner, orgsVolumes); ok {
		return tenant.BackupPolicy{OrgID: prego.OrgID(id)}
	}
	switch {
	case owner == tenant.AllVolumes:
		return tenant.BackupPolicy{}
	case strings.HasPrefix(owner, "vol-"):
		return tenant.BackupPolicy{VolumeID: prego.VolumeID(owner)}
	}
	return tenant.BackupPolicy{TenantID: prego.TenantID(owner)}
}

// orgsVolumes begins the owner of the policy of an org's volumes.
const orgsVolumes = "org:"

func backupPolicyView(p tenant.BackupPolicy) BackupPolicy {
	out := viewOf[BackupPolicy](p)
	out.Owner, out.Source, out.SpreadSeconds = string(p.TenantID), "tenant", int(p.Spread.Seconds())
	out.KeepDaily, out.KeepWeekly, out.KeepMonthly = p.Retention.Daily, p.Retention.Weekly, p.Retention.Monthly
	switch {
	case p.Plan != "":
		out.Owner, out.Source = string(p.Plan), "plan"
	case p.OrgID != "":
		out.Owner, out.Source = orgsVolumes+string(p.OrgID), "org"
	case p.VolumeID != "":
		out.Owner, out.Source = string(p.VolumeID), "volume"
	case p.TenantID == "":
		out.Owner, out.Source = tenant.AllVolumes, "volumes"
	}
	return out
}

// ListBackupPolicies shows a page of the policies of plans and of tenants with their own.
func (a *API) ListBackupPolicies(c echo.Context, _ ListBackupPoliciesParams) error {
	return list(c, "backup_policies", a.d.Store.ListBackupPolicies, backupPolicyView)
}

// GetBackupPolicy shows what applies to a plan or a tenant, and its next turns.
func (a *API) GetBackupPolicy(c echo.Context, owner BackupPolicyOwner) error {
	return a.showBackupPolicy(c, owner)
}

// showBackupPolicy shows the policy that applies.
func (a *API) showBackupPolicy(c echo.Context, owner string) error {
	ctx, store := c.Request().Context(), a.d.Store
	of := policyOwner(owner)
	var p tenant.BackupPolicy
	var err error
	switch {
	case of.Plan != "":
		p, err = store.PlanBackupPolicy(ctx, of.Plan)
	case of.TenantID != "":
		p, err = store.BackupPolicy(ctx, of.TenantID)
	case of.VolumeID != "":
		p, err = store.VolumeBackupPolicy(ctx, of.VolumeID)
	default:
		p, err = store.OrgVolumesBackupPolicy(ctx, of.OrgID)
	}
	if err != nil {
		return err
	}
	out := backupPolicyView(p)
	out.Owner, out.TenantId = owner, optional(string(of.TenantID))
	if next := p.Turns(cmp.Or(string(of.TenantID), string(of.VolumeID)), time.Now(), shownTurns); len(next) > 0 {
		out.Next = &next
	}
	changes, err := store.BackupPolicyChanges(ctx, of.ID(), shownChanges)
	if err != nil {
		return err
	}
	if len(changes) > 0 {
		shown := views(changes, policyChangeView)
		out.Changes = &shown
	}
	if whose := (tenant.BackupOwner{TenantID: of.TenantID, VolumeID: of.VolumeID}); whose.String() != "" {
		hold, err := store.BackupHold(ctx, whose)
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

// defaultSpread is over how many seconds backups are spread by default.
const defaultSpread = 21600

// PutBackupPolicy sets a policy, or shows what it would be like.
func (a *API) PutBackupPolicy(c echo.Context, owner BackupPolicyOwner, _ PutBackupPolicyParams) error {
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
		Schedule: strings.Join(strings.Fields(in.Schedule), " "), Spread: time.Duration(in.SpreadSeconds) * time.Second, UpdatedBy: caller(c).By(), UpdatedAt: time.Now(),
		Retention: tenant.Retention{Daily: in.KeepDaily, Weekly: in.KeepWeekly, Monthly: in.KeepMonthly},
	}
	if err := p.Validate(); err != nil {
		return err
	}
	of := policyOwner(owner)
	p.Plan, p.TenantID, p.OrgID, p.VolumeID = of.Plan, of.TenantID, of.OrgID, of.VolumeID
	if err := a.d.Store.PutBackupPolicy(c.Request().Context(), p, caller(c).By()); err != nil {
		return err
	}
	return a.showBackupPolicy(c, owner)
}

// holdable refuses a hold on anything but the backups of one tenant or volume.
func holdable(owner string) (of tenant.BackupOwner, err error) {
	p := policyOwner(owner)
	if of = (tenant.BackupOwner{TenantID: p.TenantID, VolumeID: p.VolumeID}); of.String() == "" {
		err = prego.Invalid("owner", "must be a tenant or a volume")
	}
	return of, err
}

// DeleteBackupPolicy returns a tenant to its plan's policy, a volume to its org's, and the volumes of
// an org to that of all.
func (a *API) DeleteBackupPolicy(c echo.Context, owner BackupPolicyOwner, _ DeleteBackupPolicyParams) error {
	of := policyOwner(owner)
	if of.Default() {
		return prego.Invalid("owner", "must be a tenant, an org or a volume: plans, and all volumes, always have a policy. An empty schedule stops backups")
	}
	if err := a.d.Store.DeleteBackupPolicy(c.Request().Context(), of, caller(c).By()); err != nil {
		return err
	}
	return a.showBackupPolicy(c, owner)
}

// HoldBackups keeps all backups of a tenant or of a volume.
func (a *API) HoldBackups(c echo.Context, owner BackupPolicyOwner, _ HoldBackupsParams) error {
	var in struct {
		Reason string `json:"reason"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	of, err := holdable(owner)
	if err == nil {
		err = a.d.Store.HoldBackups(c.Request().Context(), of, in.Reason, caller(c).By())
	}
	if err != nil {
		return err
	}
	return a.showBackupPolicy(c, owner)
}

// ReleaseBackups ends a hold.
func (a *API) ReleaseBackups(c echo.Context, owner BackupPolicyOwner, _ ReleaseBackupsParams) error {
	of, err := holdable(owner)
	if err == nil {
		err = a.d.Store.ReleaseBackups(c.Request().Context(), of, caller(c).By())
	}
	if err != nil {
		return err
	}
	return a.showBackupPolicy(c, owner)
}

// GetBackupSpace shows what an org's backups occupy.
func (a *API) GetBackupSpace(c echo.Context, id OrgID) error {
	s, err := a.d.Store.BackupSpace(c.Request().Context(), id, shownTenants)
	return answer(c, http.StatusOK, s, err, backupSpaceView)
}

func backupSpaceView(s tenant.BackupSpace) BackupSpace {
	out := viewOf[BackupSpace](s)
	out.Source, out.Over = "quota", s.Over()
	if s.Own {
		out.Source = "override"
	}
	return out
}

// SetBackupLimit gives an org its own limit.
func (a *API) SetBackupLimit(c echo.Context, id OrgID, _ SetBackupLimitParams) error {
	var in struct {
		LimitBytes int64  `json:"limit_bytes"`
		Reason     string `json:"reason"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := a.d.Store.SetBackupLimit(c.Request().Context(), id, &in.LimitBytes, in.Reason, caller(c).By()); err != nil {
		return err
	}
	return a.GetBackupSpace(c, id)
}

// UnsetBackupLimit takes it away.
func (a *API) UnsetBackupLimit(c echo.Context, id OrgID, _ UnsetBackupLimitParams) error {
	if err := a.d.Store.SetBackupLimit(c.Request().Context(), id, nil, "", caller(c).By()); err != nil {
		return err
	}
	return a.GetBackupSpace(c, id)
}
