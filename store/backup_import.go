package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/tenant"
)

const (
	sqlImportState  = `SELECT state FROM backups WHERE backup_id = $1`
	sqlImportTenant = `SELECT org_id FROM tenants WHERE tenant_id = $1`
	sqlSlugOfOther  = `SELECT EXISTS (SELECT FROM tenants WHERE slug = $1 AND tenant_id <> $2 AND state <> 'data_purged')`
	sqlImportOrg    = `INSERT INTO orgs (org_id, created_by) VALUES ($1, 'import') ON CONFLICT (org_id) DO NOTHING`

	// A server known only from a backup that was made there.
	sqlImportServer = `
INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, status_reason, status_message, workflow_id, created_by, terminated_at)
SELECT $1, '', 'app', $2, (SELECT id FROM infra_providers ORDER BY enabled DESC, id LIMIT 1), '{}', 'terminated', 'server_lost', 'known from backups only', '', 'import', now()
ON CONFLICT (server_id) DO NOTHING`

	sqlImportLost = `
INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, apps, policy, request_hash, state, converged_state, status_reason, status_message, lost_at, created_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'shared', '', 'failed', 'failed', 'imported', 'known from its backups only: restore it elsewhere', now(), 'import')`

	// A volume known only from its backups is a deleted volume: it may be copied.
	sqlImportVolume = `
INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by, deleted_at)
SELECT $1, $2, $3, $4, $5, $6, (SELECT id FROM infra_providers ORDER BY enabled DESC, id LIMIT 1), 'imported-' || $1, 'releasing', 'import', now()
ON CONFLICT (volume_id) DO NOTHING`
	sqlVolumeOrg = `SELECT org_id FROM volumes WHERE volume_id = $1`

	sqlImportBackup = `
INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, state, created_by, created_at, started_at, taken_at, finished_at, recipient, sealed_identity, key_id,
    object_key, manifest_key, part_bytes, parts, plain_bytes, plain_sha256, bytes, sha256, manifest_sha256, volume_id, entries)
VALUES ($1, $2, NULLIF($3, ''), $4, $5, $6, 'stored', 'import', $7, $7, $7, now(), $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, NULLIF($20, ''), $21)`
)

// errTold undoes a dry run.
var errTold = errors.New("nothing is written")

// ImportBackup writes the row of a backup whose manifest was found in the storage. It also writes its tenant if there
// is none, as a tenant of a lost server that is restored only on request, because its site may still exist elsewhere.
// Without apply it only reports what it would do.
func (s *Store) ImportBackup(ctx context.Context, m tenant.Manifest, manifestKey, manifestSHA256, etag string, apply bool) (out tenant.ImportOutcome, err error) {
	err = s.inTx(ctx, string("import backup "+m.BackupID), func(tx *txn) error {
		state, err := find[struct{ State tenant.BackupState }](ctx, tx, sqlImportState, m.BackupID)
		switch {
		case err != nil:
			return err
		case state != nil && (state.State == tenant.BackupDeleting || state.State == tenant.BackupDeleted):
			out = tenant.ImportDeleting
			return nil
		case state != nil:
			out = tenant.ImportKnown
			return nil
		}
		of, volume := importTenant, tenant.VolumeManifest{}
		details := map[string]any{"tenant_id": m.TenantID}
		if m.Volume != nil {
			of, volume, details = importVolume, *m.Volume, map[string]any{"volume_id": m.Volume.VolumeID}
		}
		out = got(of(ctx, tx, m)).in(tx)
		tx.run(ctx, sqlImportServer, m.ServerID, m.Region)
		tx.run(ctx, sqlImportBackup, m.BackupID, m.OrgID, m.TenantID, m.ServerID, m.Site, m.Kind, m.TakenAt, m.Recipient, m.SealedIdentity, m.KeyID,
			m.Object, manifestKey, m.PartBytes, tenant.PartCount(m.Bytes, m.PartBytes), m.PlainBytes, m.PlainSHA256, m.Bytes, m.SHA256, manifestSHA256, volume.VolumeID, volume.Entries)
		tx.check(confirmCreated(ctx, tx, storageProvider, "", 0, "backup", m.Object, m.Object+"@"+etag))
		tx.check(orgEvent(ctx, tx, org.Event{OrgID: m.OrgID, Type: "backup.import", Subject: string(m.BackupID), Actor: string(prego.ActorOperator)}, details))
		if !apply {
			return errTold
		}
		return nil
	})
	if errors.Is(err, errTold) {
		err = nil
	}
	return out, err
}

func importVolume(ctx context.Context, tx *txn, m tenant.Manifest) (tenant.ImportOutcome, error) {
	v := m.Volume
	tx.run(ctx, sqlImportOrg, m.OrgID)
	tag, err := tx.Exec(ctx, sqlImportVolume, v.VolumeID, m.OrgID, m.Region, v.Location, v.Name, v.SizeBytes)
	if err != nil {
		return "", err
	}
	owner, err := value[prego.OrgID](ctx, tx, sqlVolumeOrg, v.VolumeID)
	switch {
	case err != nil:
		return "", err
	case owner != m.OrgID:
		return "", prego.Errorf(prego.CodeInvalidTransition, "volume %s is of org %s, the backup of %s", v.VolumeID, owner, m.OrgID)
	case tag.RowsAffected() > 0:
		return tenant.ImportVolume, nil
	}
	return tenant.ImportBackup, nil
}

func importTenant(ctx context.Context, tx *txn, m tenant.Manifest) (tenant.ImportOutcome, error) {
	owner, err := find[struct{ OrgID prego.OrgID }](ctx, tx, sqlImportTenant, m.TenantID)
	switch {
	case err != nil:
		return "", err
	case owner != nil && owner.OrgID != m.OrgID:
		return "", prego.Errorf(prego.CodeInvalidTransition, "tenant %s is of org %s, the backup of %s", m.TenantID, owner.OrgID, m.OrgID)
	case owner != nil:
		return tenant.ImportBackup, nil
	}
	if valueIn[bool](ctx, tx, sqlSlugOfOther, m.Slug, m.TenantID) {
		return "", prego.Errorf(prego.CodeSlugTaken, "slug %s belongs to another tenant now", m.Slug)
	}
	tx.run(ctx, sqlImportOrg, m.OrgID)
	tx.run(ctx, sqlImportLost, m.TenantID, m.Slug, m.OrgID, m.Region, m.Plan, m.Plan.DefaultUsers(), m.Plan.DefaultStorageGB(), filled(m.Apps))
	return tenant.ImportTenant, tenantEvent(ctx, tx, tenant.Event{
		TenantID: m.TenantID, ToState: tenant.Failed, Step: tenant.StepChanged, Actor: string(prego.ActorOperator), Reason: "imported", Message: fmt.Sprintf("from the manifest of backup %s", m.BackupID),
	}, "")
}
