package store

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops"
)

// operationKind is how operations of one kind are looked up.
type operationKind struct {
	target string
	// sql answers status, reason and message of what follows the kind in the id, no row
	// where there is no such operation.
	sql string
	// timed operations of one workflow are distinguished by when they were requested, which
	// is the second argument.
	timed bool
}

const (
	sqlServerProvisioning = `
SELECT CASE status WHEN 'provisioning' THEN 'running' WHEN 'failed' THEN 'failed' ELSE CASE WHEN active_at IS NULL THEN 'failed' ELSE 'succeeded' END END,
    status_reason, status_message FROM servers WHERE server_id = $1`
	sqlServerDecommissioning = `
SELECT CASE status WHEN 'terminated' THEN 'succeeded' ELSE 'running' END, status_reason, status_message
FROM servers WHERE server_id = $1 AND decommission_requested_at IS NOT NULL`
	sqlMaintenanceOperation = `
SELECT CASE WHEN finished_at IS NULL THEN 'running' WHEN status = 'done' THEN 'succeeded' ELSE 'failed' END, CASE WHEN status = 'cancelled' AND reason = '' THEN 'cancelled' ELSE reason END, message
FROM server_maintenances WHERE server_id = $1 ORDER BY number DESC LIMIT 1`
	sqlRollingOut = `
SELECT CASE WHEN status IN ('created', 'rolling', 'paused') THEN 'running' WHEN status = 'done' THEN 'succeeded' ELSE 'failed' END,
    CASE WHEN status = 'cancelled' THEN 'cancelled' ELSE reason END, message FROM stack_releases WHERE name = $1`
	sqlTenantProvisioning = `
SELECT CASE WHEN state IN ('trial', 'provisioning') THEN 'running' WHEN state = 'failed' OR active_at IS NULL THEN 'failed' ELSE 'succeeded' END,
    status_reason, status_message FROM tenants WHERE tenant_id = $1`
	sqlTenantChanging = `
SELECT CASE WHEN state = 'failed' THEN 'failed' WHEN converged_state = state THEN 'succeeded' ELSE 'running' END, status_reason, status_message
FROM tenants WHERE tenant_id = $1`
	sqlRefilling = `
SELECT CASE WHEN EXISTS (SELECT FROM site_pool p WHERE p.app_server_id = s.server_id AND p.state = 'reserved' AND p.tenant_id IS NULL) THEN 'running' ELSE 'succeeded' END, '', ''
FROM servers s WHERE s.server_id = $1`
	sqlWarming = `
SELECT CASE WHEN count(n.server_id) >= w.target THEN 'succeeded' ELSE 'running' END, '', ''
FROM warm_pools w LEFT JOIN servers n ON n.status = 'active' AND n.cordoned_at IS NULL AND n.agent_status = 'connected' AND n.region = w.region AND n.role = 'node' AND n.warm_plan = w.plan
    AND n.tenant_count = 0 AND n.dedicated_for_tenant_id IS NULL AND EXISTS (SELECT FROM site_pool p WHERE p.app_server_id = n.server_id AND p.state = 'available')
WHERE w.region = split_part($1, '/', 2) AND w.plan = split_part($1, '/', 3) GROUP BY w.region, w.plan, w.target`
	sqlImageBuilding = `
SELECT CASE WHEN status IN ('building', 'verifying') THEN 'running' WHEN verified_at IS NULL THEN 'failed' ELSE 'succeeded' END, reason, message
FROM golden_images WHERE image_id = $1`
	sqlImageDeleting = `
SELECT CASE status WHEN 'deleted' THEN 'succeeded' WHEN 'failed' THEN 'succeeded' ELSE 'running' END, reason, message FROM golden_images WHERE image_id = $1`
	sqlCertificateIssuing = `
SELECT CASE WHEN due_at <= now() THEN 'running' WHEN failures > 0 OR status = 'retired' THEN 'failed' ELSE 'succeeded' END, reason, message
FROM certificates WHERE certificate_id = $1`
	sqlSnapshotMaking = `
SELECT CASE WHEN status IN ('queued', 'running') THEN 'running' WHEN status = 'failed' THEN 'failed' ELSE 'succeeded' END, '', message FROM snapshots WHERE snapshot_id = $1`
	sqlSnapshotErasing = `
SELECT CASE WHEN s.erased_at IS NULL AND NOT ` + isKeptSnapshot + ` THEN 'running' ELSE 'succeeded' END, '', s.message
FROM snapshots s WHERE s.snapshot_id = $1 AND s.status = 'deleted'`
	sqlBackingUp = `
SELECT CASE WHEN state IN ('queued', 'making', 'uploading') THEN 'running' WHEN state = 'failed' THEN 'failed' ELSE 'succeeded' END, reason, message FROM backups WHERE backup_id = $1`
	sqlBackupDeleting = `
SELECT CASE WHEN state = 'deleting' AND NOT ` + isKept + ` THEN 'running' ELSE 'succeeded' END, '', message
FROM backups WHERE backup_id = $1 AND state IN ('deleting', 'deleted')`
	sqlRestoring = `
SELECT CASE WHEN status IN ('queued', 'running') THEN 'running' ELSE status END, '', message FROM restore_jobs WHERE job_id = $1`
	sqlVolumeRestoring = `
SELECT CASE WHEN status IN ('queued', 'running') THEN 'running' ELSE status END, reason, message FROM volume_restores WHERE restore_id = $1`
	sqlMoving = `
SELECT CASE WHEN finished_at IS NULL THEN 'running' WHEN state = 'done' THEN 'succeeded' ELSE 'failed' END, CASE WHEN state = 'cancelled' THEN 'cancelled' ELSE reason END, message
FROM tenant_moves WHERE move_id = $1`
	sqlAddressing = `
SELECT CASE WHEN deleted_at IS NOT NULL OR status = 'ready' THEN 'succeeded' WHEN status = 'failed' THEN 'failed' ELSE 'running' END, reason, message
FROM ipv4_allocations WHERE allocation_id = $1`
	sqlVolumeMaking = `
SELECT CASE WHEN deleted_at IS NULL AND status = 'ready' AND made_bytes BETWEEN 1 AND size_bytes - 1 THEN 'running'
    WHEN deleted_at IS NOT NULL OR status = 'ready' OR ` + isKept + ` THEN 'succeeded'
    WHEN status = 'failed' THEN 'failed' ELSE 'running' END, reason, message
FROM volumes WHERE volume_id = $1`
	sqlGroupReconciling = `
SELECT CASE WHEN deploy_status = 'failed' THEN 'failed' WHEN NOT converged THEN 'running' WHEN deploy_status = 'rolled_back' THEN 'failed' ELSE 'succeeded' END,
    CASE WHEN deploy_status = 'failed' OR converged AND deploy_status = 'rolled_back' THEN deploy_reason ELSE status_reason END,
    CASE WHEN deploy_status IN ('failed', 'rolled_back') THEN deploy_message ELSE status_message END FROM process_groups WHERE group_id = $1`
	sqlFleetActing = `
SELECT CASE WHEN status IN ('queued', 'running') THEN 'running' WHEN status = 'cancelled' THEN 'failed' ELSE status END,
    CASE WHEN status = 'cancelled' THEN 'cancelled' ELSE reason END, message
FROM fleet_actions WHERE fleet_id = split_part($1, '/', 2) AND seq::text = split_part($1, '/', 3)`
	sqlReconciling = `
SELECT CASE WHEN EXISTS (SELECT FROM reconcile_runs WHERE finished_at >= $2) THEN 'succeeded' ELSE 'running' END, '', '' WHERE $1 <> ''`
	sqlCatalogReading = `
SELECT CASE WHEN attempted_at < $2 THEN 'running' WHEN failure <> '' THEN 'failed' ELSE 'succeeded' END, '', failure
FROM provider_catalogs WHERE provider = 'hetzner'
UNION ALL SELECT 'running', '', '' WHERE $1 <> '' AND NOT EXISTS (SELECT FROM provider_catalogs WHERE provider = 'hetzner')`
)

var operationKinds = map[string]operationKind{
	"server-provision":    {target: "server", sql: sqlServerProvisioning},
	"server-decommission": {target: "server", sql: sqlServerDecommissioning},
	"server-maintenance":  {target: "server", sql: sqlMaintenanceOperation},
	"release":             {target: "release", sql: sqlRollingOut},
	"tenant-provision":    {target: "tenant", sql: sqlTenantProvisioning},
	"tenant-change":       {target: "tenant", sql: sqlTenantChanging},
	"site-pool-refill":    {target: "server", sql: sqlRefilling},
	"warm-pool":           {target: "warm_pool", sql: sqlWarming},
	"image-build":         {target: "image", sql: sqlImageBuilding},
	"image-delete":        {target: "image", sql: sqlImageDeleting},
	"certificate":         {target: "certificate", sql: sqlCertificateIssuing},
	"snapshot":            {target: "snapshot", sql: sqlSnapshotMaking},
	"snapshot-erase":      {target: "snapshot", sql: sqlSnapshotErasing},
	"backup":              {target: "backup", sql: sqlBackingUp},
	"backup-delete":       {target: "backup", sql: sqlBackupDeleting},
	"restore":             {target: "restore", sql: sqlRestoring},
	"volume-restore":      {target: "restore", sql: sqlVolumeRestoring},
	"tenant-move":         {target: "move", sql: sqlMoving},
	"address":             {target: "ipv4", sql: sqlAddressing},
	"volume":              {target: "volume", sql: sqlVolumeMaking},
	"group-reconcile":     {target: "group", sql: sqlGroupReconciling},
	"fleet-scale":         {target: "fleet_action", sql: sqlFleetActing},
	"reconcile":           {target: "environment", sql: sqlReconciling, timed: true},
	"refresh-catalog":     {target: "environment", sql: sqlCatalogReading, timed: true},
}

// What a run is about: its org, a name that people know it by, what it is, and who requested it.
const (
	sqlAboutTenant = `SELECT org_id, slug, concat(plan, ' in ', region), created_by FROM tenants WHERE tenant_id = $1`
	sqlAboutMove   = `SELECT m.org_id, t.slug, concat('a move of ', t.plan, ' in ', t.region), m.requested_by
FROM tenant_moves m JOIN tenants t USING (tenant_id) WHERE m.move_id = $1`
	sqlAboutCertificate = `SELECT COALESCE(org_id, ''), names[1], 'a certificate', created_by FROM certificates WHERE certificate_id = $1`
	sqlAboutSnapshot    = `SELECT s.org_id, t.slug, 'a snapshot', s.created_by FROM snapshots s JOIN tenants t USING (tenant_id) WHERE s.snapshot_id = $1`
	sqlAboutBackup      = `SELECT b.org_id, COALESCE(t.slug, v.name, b.backup_id), concat('a backup, ', b.kind), b.created_by
FROM backups b LEFT JOIN tenants t USING (tenant_id) LEFT JOIN volumes v USING (volume_id) WHERE b.backup_id = $1`
	sqlAboutDrill = `SELECT d.org_id, COALESCE(t.slug, v.name, d.drill_id), 'a drill', d.created_by
FROM drills d LEFT JOIN tenants t USING (tenant_id) LEFT JOIN volumes v USING (volume_id) WHERE d.drill_id = $1`
	sqlAboutRestore       = `SELECT r.org_id, t.slug, 'a restore', r.created_by FROM restore_jobs r JOIN tenants t USING (tenant_id) WHERE r.job_id = $1`
	sqlAboutVolumeRestore = `SELECT r.org_id, v.name, 'a restore of a volume', r.created_by FROM volume_restores r JOIN volumes v USING (volume_id) WHERE r.restore_id = $1`
	sqlAboutAddress       = `SELECT org_id, name, 'an IPv4 address', created_by FROM ipv4_allocations WHERE allocation_id = $1`
	sqlAboutVolume        = `SELECT org_id, name, concat('a volume in ', region), created_by FROM volumes WHERE volume_id = $1`
	sqlAboutGroup         = `SELECT org_id, name, concat('a process group in ', region), created_by FROM process_groups WHERE group_id = $1`
	sqlAboutServer        = `SELECT '', server_id, concat(role, ' in ', region), created_by FROM servers WHERE server_id = $1`
)

// How what a run is about is found, by the first part of the run's id. Other kinds are about the platform, or all of
// it.
var abouts = map[string]string{
	"tenant-provision":    sqlAboutTenant,
	"tenant-change":       sqlAboutTenant,
	"tenant-move":         sqlAboutMove,
	"certificate":         sqlAboutCertificate,
	"snapshot":            sqlAboutSnapshot,
	"snapshot-erase":      sqlAboutSnapshot,
	"backup":              sqlAboutBackup,
	"backup-delete":       sqlAboutBackup,
	"drill":               sqlAboutDrill,
	"restore":             sqlAboutRestore,
	"volume-restore":      sqlAboutVolumeRestore,
	"address":             sqlAboutAddress,
	"volume":              sqlAboutVolume,
	"group-reconcile":     sqlAboutGroup,
	"server-provision":    sqlAboutServer,
	"server-decommission": sqlAboutServer,
	"server-maintenance":  sqlAboutServer,
}

// AboutRun is what a run is about, with the org whose row it makes true; nothing if no row is there.
func (s *Store) AboutRun(ctx context.Context, workflowID string) (a ops.About, err error) {
	kind, id, _ := strings.Cut(workflowID, "/")
	sql, known := abouts[kind]
	if !known {
		return a, nil
	}
	err = s.pool.QueryRow(ctx, sql, id).Scan(&a.OrgID, &a.Name, &a.What, &a.By)
	return a, failed("what run "+workflowID+" is about", ifNoRows(err, nil))
}

func noSuchOperation(id string) error {
	return prego.Errorf(prego.CodeOperationNotFound, "there is no operation %q", id)
}

// operatorsTargets are what belongs to no org.
var operatorsTargets = []string{"server", "release", "warm_pool", "image", "fleet_action", "environment"}

// Operation reads how an operation stands from the rows of its target, or
// CodeOperationNotFound.
func (s *Store) Operation(ctx context.Context, id string) (ops.Operation, error) {
	none := noSuchOperation(id)
	kind, rest, _ := strings.Cut(id, "/")
	k, ok := operationKinds[kind]
	if !ok || rest == "" || access.OfCustomer(ctx) && slices.Contains(operatorsTargets, k.target) {
		return ops.Operation{}, none
	}
	args := []any{rest}
	target := rest
	if k.timed {
		name, at, _ := strings.Cut(rest, "@")
		ms, err := strconv.ParseInt(at, 10, 64)
		if err != nil || ms < 0 || ms > time.Now().UnixMilli() {
			return ops.Operation{}, none
		}
		args, target = []any{name, time.UnixMilli(ms)}, name
	} else if _, id, ok := strings.Cut(rest, "/"); ok { // after the environment
		target = id
	}
	op := ops.Operation{ID: id, Kind: kind, TargetKind: k.target, TargetID: target}
	err := s.pool.QueryRow(ctx, k.sql, args...).Scan(&op.Status, &op.Reason, &op.Message)
	if isNoRows(err) {
		return ops.Operation{}, none
	}
	return op, failed("operation "+id, err)
}
