package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

// retained is a stored backup with the policy that it is kept by.
type retained struct {
	Owner     string
	Scheduled bool // others follow, unless its policy has no schedule
	backupPolicyRow
	tenant.Retained
}

// The stored backups of an owner, or of all with a policy; of all for "".
const sqlRetainedBy = `
SELECT t.tenant_id AS owner, t.state IN ('active', 'suspended') AS scheduled,
    ` + backupPolicyColumns + `, ` + retainedColumns + `
FROM tenants t ` + backupPolicyOf + ` JOIN backups b ON b.tenant_id = t.tenant_id AND b.state = 'stored'
WHERE $1 IN ('', t.tenant_id, 'tenant/' || t.tenant_id, 'plan/' || t.plan)
UNION ALL SELECT v.volume_id, EXISTS (SELECT FROM volume_attachments a
    WHERE a.volume_id = v.volume_id AND a.deleted_at IS NULL AND a.server_id IS NOT NULL),
    ` + backupPolicyColumns + `, ` + retainedColumns + `
FROM volumes v ` + volumePolicyOf + ` JOIN backups b ON b.volume_id = v.volume_id AND b.state = 'stored'
WHERE $1 IN ('', v.volume_id, 'volume/' || v.volume_id, 'org/' || v.org_id, 'volumes')
ORDER BY owner`

// byOwner groups what retention looks at.
func byOwner(all []retained) map[string][]tenant.Retained {
	out := map[string][]tenant.Retained{}
	for _, b := range all {
		out[b.Owner] = append(out[b.Owner], b.Retained)
	}
	return out
}

// surplus is what is deleted of the backups of an owner, or of a policy's owners: by retention with their next backups,
// and as soon as their own time is over.
func surplus(ctx context.Context, tx *txn, of string) map[prego.BackupID]bool {
	all := manyIn[retained](ctx, tx, sqlRetainedBy, of)
	rules := map[string]tenant.Retention{}
	for _, b := range all {
		rules[b.Owner] = b.policy().Retention
	}
	out := map[prego.BackupID]bool{}
	now := time.Now()
	for owner, backups := range byOwner(all) {
		for _, id := range tenant.Surplus(backups, rules[owner], now) {
			out[id] = true
		}
		for _, b := range backups {
			if !b.Held && b.ExpiresAt != nil && b.ExpiresAt.Before(now) {
				out[b.BackupID] = true
			}
		}
	}
	return out
}

// demandsSurplus makes a change of what is kept of an owner's or a policy's backups, and demands the acceptance of what
// retention deletes because of it.
func (t *txn) demandsSurplus(ctx context.Context, undo, id, of string, change func()) {
	before, lost := surplus(ctx, t, of), []prego.BackupID{}
	change()
	for id := range surplus(ctx, t, of) {
		if !before[id] {
			lost = append(lost, id)
		}
	}
	t.demandsBackups(ctx, undo, id, lost...)
}

// demandsBackups demands the acceptance of the loss of backups.
func (t *txn) demandsBackups(ctx context.Context, undo, id string, lost ...prego.BackupID) {
	t.demand(ctx, id, impactOf(ctx, t, impact.Impact{Undo: undo}, sqlOfBackups, lost))
}
