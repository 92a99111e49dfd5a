package activities

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// ImportedBackup is the result for one backup in the storage.
type ImportedBackup struct {
	TenantID prego.TenantID // or
	VolumeID prego.VolumeID
	BackupID prego.BackupID
	Slug     string
	Outcome  tenant.ImportOutcome
	Message  string // of what can't be imported
}

// ImportBackups lists the bucket and writes the rows that the database lacks, after it was lost or restored
// to an earlier time: of backups, and of tenants and volumes that have no other trace. It trusts a manifest
// only if our key verifies its code and opens its identity. Without apply it only returns the changes.
// Existing rows stay unchanged.
func (a *Backups) ImportBackups(ctx context.Context, to *store.Store, apply bool) ([]ImportedBackup, error) {
	if a.Objects == nil {
		return nil, because(true, tenant.ReasonNoStorage, "no object storage is configured (PREGO_BACKUP_ENDPOINT)")
	}
	type found struct {
		m         tenant.Manifest
		key, etag string
		sha256    string
	}
	var good []found
	var out []ImportedBackup
	prefix := a.Settings.Environment + "/"
	for after := ""; ; {
		page, err := a.Objects.List(ctx, prefix, after, listPage)
		if err != nil {
			return nil, ofStorage(err)
		}
		for _, o := range page {
			after = o.Key
			if !strings.HasSuffix(o.Key, "/manifest.json") {
				continue
			}
			tenantID, id, ok := tenant.BackupOfKey(a.Settings.Environment, o.Key)
			volumeID, idOfVolume, okVolume := tenant.VolumeBackupOfKey(a.Settings.Environment, o.Key)
			if !ok && !okVolume {
				continue
			}
			if okVolume {
				id = idOfVolume
			}
			m, sum, etag, err := a.readManifest(ctx, o.Key, tenantID, volumeID, id)
			if err != nil {
				out = append(out, ImportedBackup{TenantID: tenantID, VolumeID: volumeID, BackupID: id, Outcome: tenant.ImportRefused, Message: err.Error()})
				continue
			}
			good = append(good, found{m: m, key: o.Key, sha256: sum, etag: etag})
		}
		if len(page) < listPage {
			break
		}
	}
	// The newest first: a tenant's row is made from its latest state.
	slices.SortFunc(good, func(x, y found) int { return y.m.TakenAt.Compare(x.m.TakenAt) })
	for _, f := range good {
		b := ImportedBackup{TenantID: f.m.TenantID, BackupID: f.m.BackupID, Slug: f.m.Slug}
		if v := f.m.Volume; v != nil {
			b.VolumeID, b.Slug = v.VolumeID, v.Name
		}
		var err error
		if b.Outcome, err = to.ImportBackup(ctx, f.m, f.key, f.sha256, f.etag, apply); err != nil {
			if prego.CodeOf(err) == prego.CodeInternal {
				return out, err
			}
			b.Outcome, b.Message = tenant.ImportRefused, err.Error()
		}
		out = append(out, b)
	}
	return out, nil
}

// listPage is how many objects one request lists.
const listPage = 1000

// readManifest reads a manifest and believes it only if everything about it is right.
func (a *Backups) readManifest(ctx context.Context, key string, tenantID prego.TenantID, volumeID prego.VolumeID, id prego.BackupID) (m tenant.Manifest, sum, etag string, err error) {
	text, err := a.Objects.Get(ctx, key, maxManifest)
	if err != nil {
		return m, "", "", ofStorage(err)
	}
	if json.Unmarshal(text, &m) != nil || m.Format != 1 {
		return m, "", "", fmt.Errorf("%s is no manifest of format 1", key)
	}
	if m.Environment != a.Settings.Environment || m.TenantID != tenantID || m.BackupID != id {
		return m, "", "", fmt.Errorf("%s is of backup %s of tenant %s in %s", key, m.BackupID, m.TenantID, m.Environment)
	}
	if (m.Volume == nil) != (volumeID == "") || m.Volume != nil && m.Volume.VolumeID != volumeID {
		return m, "", "", fmt.Errorf("%s is not of volume %q", key, volumeID)
	}
	code := m.MAC
	m.MAC = nil
	plain, err := json.Marshal(m)
	if err != nil {
		return m, "", "", err
	}
	want, err := a.Vault.MAC(m.KeyID, plain)
	if err != nil {
		return m, "", "", fmt.Errorf("key %s of %s is not among PREGO_KEYS_DIR/backup", m.KeyID, key)
	}
	if subtle.ConstantTimeCompare(code, want) != 1 {
		return m, "", "", fmt.Errorf("the code of %s is wrong: it was not written with our key", key)
	}
	if _, err := a.Vault.Open(tenant.BackupKeyFor(id), m.KeyID, m.SealedIdentity); err != nil {
		return m, "", "", fmt.Errorf("the identity in %s can't be opened", key)
	}
	o, ok, err := a.Objects.Head(ctx, m.Object)
	switch {
	case err != nil:
		return m, "", "", ofStorage(err)
	case !ok:
		return m, "", "", fmt.Errorf("object %s is not there", m.Object)
	case o.Bytes != m.Bytes:
		return m, "", "", fmt.Errorf("object %s has %d bytes instead of %d", m.Object, o.Bytes, m.Bytes)
	}
	digest := sha256.Sum256(text)
	return m, hex.EncodeToString(digest[:]), o.ETag, nil
}
