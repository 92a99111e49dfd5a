package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/tenant"
)

// Whose turn is longest ago is first; taking the turn is part of the statement. Each site
// has a row from its activation on, so that only the first entries of an index are
// read. Of these, sites can be measured of tenants whose state is in effect, on a host that
// answers, and in no restore, which goes through maintenance itself. The others' turn passes.
// Arrays, not joins: the rows read must not depend on the plan's estimates.
const sqlTakeSitesToMeasure = `
WITH next AS MATERIALIZED (
    SELECT tenant_id, tried_at FROM site_usage WHERE tried_at < now() - make_interval(secs => $1) ORDER BY tried_at, tenant_id LIMIT $2
), due AS MATERIALIZED (
    SELECT t.tenant_id, a.app_server_id
    FROM tenants t
    JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
    JOIN servers s ON s.server_id = a.app_server_id AND s.status = 'active' AND s.agent_status = 'connected' AND s.host IS NOT NULL
    WHERE t.tenant_id = ANY (ARRAY(SELECT tenant_id FROM next)) AND t.site <> '' AND has_site(t.state) AND t.converged_state = t.state
      AND NOT EXISTS (SELECT FROM restore_jobs j WHERE j.tenant_id = t.tenant_id AND j.status IN ('queued', 'running'))
), taken AS (
    UPDATE site_usage SET tried_at = now() WHERE tenant_id = ANY (ARRAY(SELECT tenant_id FROM next)))
SELECT tenant_id, app_server_id AS server_id FROM due ORDER BY app_server_id, tenant_id`

// TakeSitesToMeasure are the sites to measure now, at most so many, each at most once in
// every.
func (s *Store) TakeSitesToMeasure(ctx context.Context, every time.Duration, limit int) ([]tenant.SiteToMeasure, error) {
	return collect[tenant.SiteToMeasure](ctx, s, "storage turns", sqlTakeSitesToMeasure, every.Seconds(), limit)
}

const siteUsageColumns = `u.tenant_id, u.database_bytes, u.files_bytes, u.backups_bytes, u.users, u.measured_at, u.tried_at, u.level, u.over_since, u.read_only, u.quota_gb, u.message`

const sqlSiteUsage = `SELECT ` + siteUsageColumns + ` FROM site_usage u WHERE u.tenant_id = $1`

// SiteUsage is the storage of a tenant's site, nil while it was never measured.
func (s *Store) SiteUsage(ctx context.Context, tenantID prego.TenantID) (*tenant.SiteUsage, error) {
	u, err := find[tenant.SiteUsage](ctx, s.pool, sqlSiteUsage, tenantID)
	if err != nil || u == nil || u.MeasuredAt == nil {
		return nil, err
	}
	return u, nil
}

const sqlHoldSiteUsage = `
SELECT u.level, u.over_since, now(), t.storage_quota_gb FROM site_usage u JOIN tenants t USING (tenant_id)
WHERE u.tenant_id = $1 FOR NO KEY UPDATE OF u`

const sqlKeepSiteUsage = `
UPDATE site_usage SET database_bytes = $2, files_bytes = $3, backups_bytes = $4, users = $5, measured_at = $6, level = $7, over_since = $8, message = ''
WHERE tenant_id = $1`

// KeepSiteUsage keeps a measurement and returns the resulting level of the site. A change of
// level is on the tenant's timeline.
func (s *Store) KeepSiteUsage(ctx context.Context, tenantID prego.TenantID, size tenant.SiteSize, rules tenant.StorageRules) (level tenant.StorageLevel, err error) {
	err = s.inTx(ctx, string("usage of tenant "+tenantID), func(tx *txn) error {
		var was tenant.StorageLevel
		var since *time.Time
		var now time.Time
		var gb int64
		tx.check(tx.QueryRow(ctx, sqlHoldSiteUsage, tenantID).Scan(&was, &since, &now, &gb))
		total := gb * tenant.BytesPerGB
		switch {
		case size.Used() < total:
			since = nil
		case since == nil:
			since = &now
		}
		var over time.Duration
		if since != nil {
			over = now.Sub(*since)
		}
		level = rules.Level(size.Used(), total, over)
		tx.run(ctx, sqlKeepSiteUsage, tenantID, size.DatabaseBytes, size.FilesBytes, size.BackupsBytes, size.Users, now, level, since)
		if level == was {
			return nil
		}
		return tenantEvent(ctx, tx, tenant.Event{
			TenantID: tenantID, Step: tenant.StepStorage, Reason: "storage_" + string(level), Actor: string(prego.ActorSystem),
			Message: fmt.Sprintf("%.2f of %d GB are used (%.0f %%)", float64(size.Used())/tenant.BytesPerGB, gb, 100*float64(size.Used())/float64(max(total, 1))),
		}, "")
	})
	return level, err
}

const sqlSiteUsageFailed = `UPDATE site_usage SET message = $2 WHERE tenant_id = $1`

// SiteUsageFailed keeps why a site could not be measured.
func (s *Store) SiteUsageFailed(ctx context.Context, tenantID prego.TenantID, why string) error {
	return s.exec(ctx, string("usage of tenant "+tenantID), sqlSiteUsageFailed, tenantID, prego.Redact(why))
}

const sqlSiteReadOnly = `UPDATE site_usage SET read_only = $2 WHERE tenant_id = $1`

// SiteReadOnly records that a host makes a site read-only: before the command to do so,
// and after the command to undo it.
func (s *Store) SiteReadOnly(ctx context.Context, tenantID prego.TenantID, on bool) error {
	return s.exec(ctx, string("usage of tenant "+tenantID), sqlSiteReadOnly, tenantID, on)
}

const sqlSiteKnowsQuota = `UPDATE site_usage SET quota_gb = $2 WHERE tenant_id = $1`

// SiteKnowsQuota records the quota that a site has received.
func (s *Store) SiteKnowsQuota(ctx context.Context, tenantID prego.TenantID, gb int) error {
	return s.exec(ctx, string("usage of tenant "+tenantID), sqlSiteKnowsQuota, tenantID, gb)
}

// Sites at another level than ok are few; the others are counted, not looked at.
const sqlStorageLevels = `
SELECT u.level, count(*) AS n FROM site_usage u JOIN tenants t USING (tenant_id)
WHERE u.level <> 'ok' AND has_site(t.state) AND u.measured_at IS NOT NULL GROUP BY u.level
UNION ALL
SELECT 'ok', count(*) FROM site_usage WHERE level = 'ok' AND measured_at IS NOT NULL`

// StorageLevels counts the sites of each level; sites that are kept after their tenant's
// end also count as ok.
func (s *Store) StorageLevels(ctx context.Context) (map[tenant.StorageLevel]int, error) {
	type line struct {
		Level tenant.StorageLevel
		N     int
	}
	lines, err := collect[line](ctx, s, "storage levels", sqlStorageLevels)
	out := map[tenant.StorageLevel]int{}
	for _, l := range lines {
		out[l.Level] = l.N
	}
	return out, err
}

const sqlHoldTenant = `SELECT ` + tenantColumns + ` FROM tenants WHERE tenant_id = $1 FOR NO KEY UPDATE`

const sqlSetStorageQuota = `UPDATE tenants SET storage_quota_gb = $2, updated_at = now() WHERE tenant_id = $1 AND state NOT IN ('terminated', 'data_purged') RETURNING ` + tenantColumns

// The next measurement is due immediately: it lifts the effects of the previous quota.
const sqlMeasureNext = `UPDATE site_usage SET tried_at = 'epoch' WHERE tenant_id = $1`

// SetStorageQuota gives a tenant another storage quota, within its org's.
func (s *Store) SetStorageQuota(ctx context.Context, tenantID prego.TenantID, gb int, by string) (t tenant.Tenant, err error) {
	err = s.inTx(ctx, "storage quota", func(tx *txn) error {
		orgID := got(lockOwner(ctx, tx, noSuchTenant(string(tenantID)), sqlTenantOrg, tenantID)).in(tx)
		was := oneIn[tenant.Tenant](ctx, tx, sqlHoldTenant, tenantID)
		tx.demands(ctx, "raise the quota again", string(tenantID), sqlOfFullSite, gb)
		before := got(sizeOf(ctx, tx, was.Plan, was.StorageQuotaGB)).in(tx)
		after := got(sizeOf(ctx, tx, was.Plan, gb)).in(tx)
		tx.check(s.takeQuota(ctx, tx, orgID, quota.Delta{Dimension: quota.MaxTotalVolumeBytes, By: after.Storage - before.Storage}))
		t, err = one[tenant.Tenant](ctx, tx, sqlSetStorageQuota, tenantID, gb)
		if isNoRows(err) {
			return prego.Errorf(prego.CodeInvalidTransition, "tenant %s has ended", tenantID)
		}
		if err != nil || was.StorageQuotaGB == gb {
			return err
		}
		tx.run(ctx, sqlMeasureNext, tenantID)
		tx.check(tenantEvent(ctx, tx, tenant.Event{
			TenantID: tenantID, Step: tenant.StepStorage, Reason: "quota_changed", Actor: by, Message: fmt.Sprintf("from %d to %d GB", was.StorageQuotaGB, gb),
		}, ""))
		return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "tenant.storage_quota", Subject: string(tenantID), Actor: by}, map[string]any{"from_gb": was.StorageQuotaGB, "to_gb": gb})
	})
	return t, err
}

const (
	sqlForgetSiteUsage    = `DELETE FROM site_usage WHERE tenant_id = $1`
	sqlSnapshotsWithSite  = `UPDATE snapshots SET status = 'deleted', erased_at = now() WHERE tenant_id = $1 AND status IN ('succeeded', 'failed', 'deleted') AND erased_at IS NULL`
	sqlForgetMailSettings = `UPDATE tenants SET mail = NULL WHERE tenant_id = $1 AND mail IS NOT NULL`
)

// SiteErased forgets the records of a site that is gone: its usage, its snapshots, its
// mail settings.
func (s *Store) SiteErased(ctx context.Context, tenantID prego.TenantID) error {
	return s.inTx(ctx, fmt.Sprintf("records of the site of tenant %s", tenantID), func(tx *txn) error {
		for _, sql := range []string{sqlForgetSiteUsage, sqlSnapshotsWithSite, sqlForgetMailSettings} {
			tx.run(ctx, sql, tenantID)
		}
		return nil
	})
}

const sqlSetMail = `UPDATE tenants SET mail = $2, updated_at = now() WHERE tenant_id = $1`

// SetMail keeps the mail settings that a site received, nil for nothing; the password is not
// kept.
func (s *Store) SetMail(ctx context.Context, tenantID prego.TenantID, m *tenant.MailSettings, by string) error {
	message := "none"
	if m != nil {
		message = fmt.Sprintf("%s by %s:%d", m.Sender, m.Server, m.Port)
	}
	return s.tenantStep(ctx, tenant.Event{TenantID: tenantID, Step: tenant.StepMailSet, Actor: by, Message: message}, "", pgx.ErrNoRows, sqlSetMail, tenantID, m)
}
