package workflows

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// EnsureBackup starts the run that makes a backup unless it is running.
func (c *Client) EnsureBackup(ctx context.Context, id prego.BackupID) (bool, error) {
	return c.start(ctx, tenant.BackupWorkflowID(id), string("Backup "+id), BackupTenant, BackupInput{BackupID: id})
}

// EnsureBackupDelete starts the run that deletes a backup's objects unless it is running.
func (c *Client) EnsureBackupDelete(ctx context.Context, id prego.BackupID) (bool, error) {
	return c.start(ctx, tenant.BackupDeleteWorkflowID(id), string("Delete backup "+id), DeleteBackup, BackupInput{BackupID: id})
}

// EnsureVolumeRestore starts the run that restores a volume unless it is running.
func (c *Client) EnsureVolumeRestore(ctx context.Context, id string) (bool, error) {
	return c.start(ctx, workload.VolumeRestoreWorkflowID(id), "Restore volume "+id, RestoreVolume, VolumeRestoreInput{RestoreID: id})
}

// StartVolumeRestore does the same for an org.
func (c *Client) StartVolumeRestore(ctx context.Context, org, id string) error {
	return c.startForOrg(ctx, org, workload.VolumeRestoreWorkflowID(id), "Restore volume "+id, RestoreVolume, VolumeRestoreInput{RestoreID: id})
}

// shortHash is 16 characters that differ if any of the texts differs.
func shortHash(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:8])
}
