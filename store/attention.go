package store

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/tenant"
)

// One statement reads each kind of attention. A statement names its subject (subject, id, name, owner, org), reason
// and start, and a group to sum by: more than attention.Many findings of a group with the same reason become one row,
// the oldest, with their count.
const (
	attFrom = `f (subject, id, name, owner, org_id, reason, message, since, "by", by_id) AS (`
	attEnd  = `)
SELECT subject, id, name, owner, org_id, reason, message, since, "by", by_id, count`
	// Edges that request their documents.
	attEdgeLives = `e.asked_at > now() - interval '40 seconds' AND o.status IN ('active', 'draining')`
	// With a row is what customers are harmed by (sqlAffected), of a sum that of all its findings m. It is what they
	// are about, unless a statement has other things between attHarming and attHarmed.
	attTo       = attEnd + attHarms
	attHarms    = attHarming + `SELECT ` + attSubjects + attHarmed
	attSubjects = `m.subject, m.id, m.name, m.owner, m.org_id`
	attHarming  = `, (SELECT jsonb_agg(to_jsonb(h)) FROM f m CROSS JOIN LATERAL (`
	attHarmed   = `) h
    WHERE (m."by", m.by_id, m.reason) = (x."by", x.by_id, x.reason) AND (x.count > 5 OR m.id = x.id)) AS harms
FROM (
    SELECT f.*, (count(*) OVER w)::int AS count, row_number() OVER (w ORDER BY since, id) AS nth
    FROM f WINDOW w AS (PARTITION BY "by", by_id, reason)) x
WHERE count <= 5 OR nth = 1 ORDER BY since, id LIMIT 500`
	// For servers, also whether they hold no data. A machine that prego did not create may have
	// data without rows, and so may a server whose agent has fallen silent: leftovers of a failed or unfinished
	// deletion are for the provider.
	attEmpty = `, EXISTS (SELECT FROM servers s, server_use(s.server_id) u WHERE s.server_id = x.id
    AND u.tenants + u.instances + u.volumes = 0
    AND s.purpose <> 'import_existing_server'
    AND (s.status = 'draining' OR s.provider_server_id IS NULL OR s.agent_first_heartbeat_at IS NULL
        OR s.agent_status = 'connected')) AS empty`
	attToServer = attEnd + attEmpty + attHarms
	// Whether the host of any place of tenant t is restarted, or was two minutes ago.
	attPlaceRestarts = `EXISTS (SELECT FROM tenant_places w JOIN server_maintenances m ON m.server_id = w.server_id
    WHERE w.tenant_id = t.tenant_id AND m.kind IN ('reboot', 'resize', 'patch')
    AND (m.finished_at IS NULL AND m.status = 'finishing'
        OR m.status = 'done' AND m.finished_at > now() - interval '2 minutes'))`
	// A server is dead if a reset since its last heartbeat did not bring its host back, every site with files or data
	// on it is probed, and none answers: what no edge probes is not known to be down.
	attDead = `, x.reason = 'heartbeat_lost' AND EXISTS (
        SELECT FROM server_maintenances m JOIN servers s ON s.server_id = m.server_id
        WHERE m.server_id = x.id AND m.status = 'failed' AND m.reason = 'reboot_timeout'
            AND m.reset_at > COALESCE(s.agent_last_heartbeat_at, s.created_at))
    AND NOT EXISTS (SELECT FROM ` + attSitesOn + ` WHERE t.state = 'active'
            AND COALESCE((SELECT bool_or(h.up) FROM ` + probedNow + ` WHERE h.tenant_id = t.tenant_id), true)) AS dead,
    COALESCE((SELECT string_agg(text, ', ' ORDER BY n) FILTER (WHERE n <= 5)
            || CASE WHEN count(*) > 5 THEN ' and ' || count(*) - 5 || ' more' ELSE '' END
        FROM (SELECT t.slug || CASE WHEN b.at IS NULL THEN ' everything, without a backup' ELSE ' ' || ceil(GREATEST(0,
                extract(epoch FROM COALESCE(s.agent_last_heartbeat_at, now()) - b.at)) / 60)::int || ' min' END AS text,
                row_number() OVER (ORDER BY b.at NULLS FIRST, t.slug) AS n
            FROM ` + attSitesOn + ` JOIN servers s ON s.server_id = x.id
            CROSS JOIN LATERAL (SELECT ` + newestTaken + ` AS at) b) l), '') AS losses`
	attSitesOn = `tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id AND a.released_at IS NULL
        AND has_site(t.state) AND (a.app_server_id = x.id
            OR a.on_shard AND a.db_shard_id IN (SELECT d.shard_id FROM db_shards d WHERE d.server_id = x.id))`
	// A single failure that no state records is reported for a week.
	attRecent = ` > now() - interval '7 days'`
	// No step of creating or deleting takes this long, and no step that copies data takes as long as the second.
	attStuck     = ` < now() - interval '1 hour'`
	attStuckLong = ` < now() - interval '6 hours'`
	attRepeated  = ` < now() - interval '3 minutes'` // a step's error that passes is gone by then
)

const (
	sqlAttRecovering = `WITH ` + attFrom + `
SELECT 'installation', 'prego', 'database', '', '', 'restored', recovering, recovering_since, 'installation', 'prego'
FROM redo WHERE recovering_since IS NOT NULL` + attTo

	// Its link and the login from it end together.
	sqlAttBreakGlass = `WITH ` + attFrom + `
SELECT 'installation', 'prego', 'break-glass', '', '', 'break_glass',
    string_agg(DISTINCT l.created_by, ', ') || ' has an operator''s login from the control plane''s host until '
        || to_char(max(l.expires_at) AT TIME ZONE 'UTC', 'HH24:MI') || ' UTC', min(l.created_at), 'installation', 'prego'
FROM login_links l JOIN principals p USING (principal_id)
WHERE p.kind = 'user' AND p.issuer = 'host' AND l.expires_at > now() AND (l.used_at IS NULL OR EXISTS (
    SELECT FROM credentials c WHERE c.principal_id = p.principal_id AND c.revoked_at IS NULL AND c.expires_at > now()))
GROUP BY p.principal_id` + attTo

	sqlAttFreeze = `WITH ` + attFrom + `
SELECT 'installation', 'prego', 'deletions', '', '', CASE frozen_by WHEN 'prego' THEN 'breaker' ELSE 'operator' END,
    frozen_by || ' has frozen all deletions: ' || reason, since, 'installation', 'prego'
FROM freezes WHERE ended_at IS NULL` + attTo

	// What asks for a deletion repeats at least every few minutes.
	sqlAttRefused = `WITH ` + attFrom + `
SELECT d.kind, d.id, COALESCE(t.slug, v.name, d.id), '', COALESCE(t.org_id, v.org_id, a.org_id, ''), 'holds_data',
    d.message, d.refused_since, 'kind', d.kind
FROM destructions d LEFT JOIN tenants t ON d.kind = 'tenant' AND t.tenant_id = d.id
LEFT JOIN volumes v ON d.kind = 'volume' AND v.volume_id = d.id
LEFT JOIN ipv4_allocations a ON d.kind = 'ipv4' AND a.allocation_id = d.id
WHERE d.refused_at > now() - interval '1 hour'` + attTo

	sqlAttBreaker = `WITH ` + attFrom + `
SELECT 'installation', 'prego', 'reconciliation', '', '', 'breaker_hit',
    'nothing is deleted at the provider: ' || COALESCE(r.findings ->> 'orphans', 'many') || ' of its ' || COALESCE(r.findings ->> 'owned', '') || ' resources of ours have no row here',
    (SELECT min(b.started_at) FROM reconcile_runs b WHERE b.run_id > COALESCE(
        (SELECT g.run_id FROM reconcile_runs g WHERE g.findings ->> 'breaker_hit' = 'false' ORDER BY g.run_id DESC LIMIT 1), 0)),
    'installation', 'prego'
FROM (SELECT * FROM reconcile_runs WHERE finished_at IS NOT NULL ORDER BY run_id DESC LIMIT 1) r WHERE r.findings ->> 'breaker_hit' = 'true'` + attTo

	sqlAttFrozen = `
WITH fleet AS (` + fleetHeard + `
), silent AS (` + silentServers + `
), ` + attFrom + `
SELECT 'installation', 'prego', 'agents', '', '', 'mass_silence',
    (SELECT count(*) FROM silent WHERE NOT restarts) || ' of ' || (SELECT n FROM fleet)
        || ' agents are silent at once, and none is marked',
    (SELECT min(agent_last_heartbeat_at) FROM silent WHERE NOT restarts), 'installation', 'prego'
WHERE ` + isFrozen + attEnd + attHarming + `
    SELECT 'server' AS subject, server_id AS id FROM silent WHERE NOT restarts` + attHarmed

	sqlAttDNSBreaker = `WITH ` + attFrom + `
SELECT 'zone', zone, zone, '', '', 'breaker_hit', orphans || ' of its ' || owned || ' records of ours have no row here, and none is deleted', breaker_since, 'installation', 'prego'
FROM dns_comparisons WHERE breaker_since IS NOT NULL` + attTo

	sqlAttProcessDown = `WITH ` + attFrom + `
SELECT 'process', l.look, l.look, '', '', CASE WHEN ` + processSilent + ` THEN 'no_' || l.look ELSE 'not_ready' END,
    CASE WHEN NOT ` + processSilent + ` THEN 'it is not ready: ' || l.error
        WHEN l.look = 'worker' THEN 'no worker runs: requests are accepted, and nothing is done; the last one was on '
        ELSE 'no agent gateway runs: nothing is heard of hosts, and edges open no site; the last one was on ' END
        || CASE WHEN ` + processSilent + ` THEN split_part(l.holder, '/', 1) ELSE '' END,
    CASE WHEN ` + processSilent + ` THEN GREATEST(l.began_at, l.looked_at) ELSE COALESCE(l.looked_at, l.began_at) END,
    'installation', 'prego'
FROM looks l WHERE l.look IN (` + processes + `) AND (` + processSilent + ` OR l.error <> '')` + attTo

	// Without a worker every look is late, and that is reported instead.
	sqlAttLookLate = `WITH ` + attFrom + `
SELECT 'look', look, look, '', '', 'look_late', '', COALESCE(looked_at, began_at), 'installation', 'prego'
FROM looks WHERE COALESCE(looked_at, began_at) < now() - make_interval(secs => 60 + 3 * GREATEST(every_seconds, pause_seconds))
    AND look NOT IN (` + processes + `)
    AND NOT EXISTS (SELECT FROM looks l WHERE l.look = 'worker' AND ` + processSilent + `)` + attTo

	sqlAttLookFailing = `WITH ` + attFrom + `
SELECT 'look', look, look, '', '', 'look_failing', error, COALESCE(looked_at, began_at), 'installation', 'prego'
FROM looks WHERE error <> '' AND look NOT IN (` + processes + `)
UNION ALL SELECT 'look', batch, batch, '', '', 'rows_rejected',
    'the database rejects ' || string_agg(name || ': ' || reason, '; ' ORDER BY name) FILTER (WHERE n <= 5)
        || CASE WHEN count(*) > 5 THEN '; and ' || count(*) - 5 || ' more' ELSE '' END,
    min(since), 'installation', 'prego'
FROM (SELECT *, row_number() OVER (PARTITION BY batch ORDER BY name) AS n FROM rejected_rows
    WHERE seen_at > now() - interval '10 minutes') r GROUP BY batch` + attTo

	sqlAttProviderBlocked = `WITH ` + attFrom + `
SELECT 'provider', project, project, '', '', 'rate_limited', 'the provider limits requests until ' || to_char(blocked_until AT TIME ZONE 'UTC', 'HH24:MI:SS') || ' UTC', LEAST(refilled_at, now()), 'installation', 'prego'
FROM provider_budgets WHERE blocked_until > now()
UNION ALL SELECT 'provider', bucket, bucket, '', '', 'rate_limited', 'the certificate authority allows no more until ' || to_char(blocked_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC', LEAST(refilled_at, now()), 'installation', 'prego'
FROM acme_budgets WHERE blocked_until > now()` + attTo

	sqlAttCatalogStale = `WITH ` + attFrom + `
SELECT 'provider', provider, provider, '', '', 'catalog_stale', failure, COALESCE(refreshed_at, attempted_at), 'installation', 'prego'
FROM provider_catalogs WHERE COALESCE(refreshed_at, attempted_at) < now() - make_interval(secs => $1)` + attTo

	sqlAttServerFailed = `WITH ` + attFrom + `
SELECT 'server', server_id, server_id, '', '', status_reason, status_message, updated_at, 'region', region
FROM servers s WHERE status = 'failed' AND NOT (status_reason = 'heartbeat_lost' AND ` + hostRestarts + `)` +
		attEnd + attEmpty + attDead + attHarms

	sqlAttServerStuck = `WITH ` + attFrom + `
SELECT 'server', server_id, server_id, '', '', 'provisioning', 'it has been provisioning without progress for more than an hour', updated_at, 'region', region
FROM servers WHERE status = 'provisioning' AND status_reason <> 'awaiting_capacity' AND updated_at` + attStuck + `
UNION ALL SELECT 'server', server_id, server_id, '', '', 'decommission_requested', 'it was to be deleted more than an hour ago, and is not gone', decommission_requested_at, 'region', region
FROM servers WHERE status = 'draining' AND decommission_requested_at` + attStuck + ` AND status_message = ''
  AND NOT EXISTS (SELECT FROM lost_data l WHERE l.lost_with = servers.server_id)
UNION ALL SELECT 'server', server_id, server_id, '', '', 'provider_refused', status_message, decommission_requested_at,
    'region', region
FROM servers
WHERE status = 'draining' AND status_reason = 'decommission_requested' AND status_message <> ''` + attToServer

	sqlAttServerAwaitingStock = `WITH ` + attFrom + `
SELECT 'server', s.server_id, s.server_id, '', '', s.status_reason,
    COALESCE('the own server of ' || t.slug || ' (' || t.plan || ')', 'it')
        || ' waits for the provider''s stock or quota: ' || s.status_message, s.created_at, 'region', s.region
FROM servers s LEFT JOIN tenants t ON t.tenant_id = s.dedicated_for_tenant_id
WHERE s.status = 'provisioning' AND s.status_reason = 'awaiting_capacity'` + attToServer

	// A server that failed because of it is reported as failed, and a server being deleted needs no agent.
	sqlAttAgentSilent = `WITH ` + attFrom + `
SELECT 'server', server_id, server_id, '', '', 'agent_' || agent_status, '', COALESCE(agent_last_heartbeat_at, updated_at), 'region', region
FROM servers s WHERE status = 'active' AND agent_status IN ('degraded', 'disconnected') AND NOT ` + hostRestarts + attToServer

	sqlAttClockSkewed = `WITH ` + attFrom + `
SELECT 'server', server_id, server_id, '', '', 'clock_skew', 'its clock is ' || round(abs(clock_ahead_seconds)::numeric, 1) || CASE WHEN clock_ahead_seconds < 0 THEN ' s behind' ELSE ' s ahead' END,
    COALESCE(agent_last_heartbeat_at, updated_at), 'region', region
FROM servers WHERE status IN ('active', 'failed', 'draining') AND clock_skewed AND agent_status = 'connected'` + attTo

	sqlAttDockerStopped = `WITH ` + attFrom + `
SELECT 'server', server_id, server_id, '', '', 'docker_stopped', '', COALESCE(agent_last_heartbeat_at, updated_at), 'region', region
FROM servers s WHERE status = 'active' AND docker_state = 'stopped' AND agent_status = 'connected'
    AND NOT ` + hostRestarts + attToServer

	sqlAttTenantLost = `WITH ` + attFrom + `
SELECT 'tenant', t.tenant_id, t.slug, '', t.org_id, COALESCE(NULLIF(t.status_reason, ''), 'server_lost'), t.status_message, t.lost_at, 'region', t.region FROM tenants t WHERE ` + isLost + attTo

	// What its caller cancelled is no fault.
	sqlAttTenantFailed = `WITH ` + attFrom + `
SELECT 'tenant', tenant_id, slug, '', org_id, status_reason, status_message, updated_at, 'region', region FROM tenants WHERE state = 'failed' AND lost_at IS NULL AND status_reason <> 'cancelled'` + attTo

	sqlAttTenantStuck = `WITH ` + attFrom + `
SELECT 'tenant', tenant_id, slug, '', org_id, 'not_' || state, '', updated_at, 'region', region
FROM tenants WHERE (converged_state <> state) IS TRUE AND state NOT IN ('trial', 'provisioning', 'failed') AND updated_at` + attStuck + `
UNION ALL SELECT 'tenant', tenant_id, slug, '', org_id, 'timer_held', status_message, deadline_at, 'region', region
FROM tenants WHERE deadline_at` + attStuck + `
UNION ALL SELECT 'tenant', tenant_id, slug, '', org_id, 'provisioning', 'it has been provisioning without progress for more than an hour', updated_at, 'region', region
FROM tenants WHERE state IN ('trial', 'provisioning') AND waiting_since IS NULL AND status_reason <> 'building_server' AND updated_at` + attStuck + attTo

	// Within two minutes a scale-out gives a place to most.
	sqlAttTenantsWaiting = `WITH ` + attFrom + `
SELECT 'tenant', w.tenant_id, t.slug, '', t.org_id, t.status_reason, t.status_message, t.waiting_since, 'region', t.region
FROM (` + tenantTurns + `) w JOIN tenants t ON t.tenant_id = w.tenant_id
WHERE w.waiting_since < now() - interval '2 minutes'` + attTo

	attUnschedulable = `'group', group_id, name, '', org_id, status_reason, status_message, status_since, 'region', region
FROM process_groups WHERE status = 'unschedulable' AND deleted_at IS NULL AND `
	sqlAttGroupUnschedulable = `WITH ` + attFrom + `SELECT ` + attUnschedulable + `NOT starts_with(status_reason, 'org_quota_exceeded:')` + attTo
	sqlAttGroupOverQuota     = `WITH ` + attFrom + `SELECT ` + attUnschedulable + `starts_with(status_reason, 'org_quota_exceeded:')` + attTo

	sqlAttRolloutFailed = `WITH ` + attFrom + `
SELECT 'group', group_id, name, '', org_id, COALESCE(NULLIF(deploy_reason, ''), 'rollout_failed'), deploy_message, updated_at, 'region', region
FROM process_groups WHERE deploy_status = 'failed' AND deleted_at IS NULL` + attTo

	sqlAttWarmPoolLow = `WITH ` + attFrom + `
SELECT 'warm_pool', region || '/' || plan, region || '/' || plan, '', '', 'below_target', claimable || ' of ' || target || ' servers are ready, and ' || building || ' on their way', updated_at, 'region', region
FROM (` + sqlListWarmPools + `) w WHERE claimable + building < target` + attTo

	sqlAttSitePoolLow = `WITH ` + attFrom + `
SELECT 'server', s.server_id, s.server_id, '', '', x.reason, '', x.since, 'region', s.region
FROM (SELECT p.app_server_id, CASE WHEN bool_or(p.state = 'failed') THEN 'site_failed' ELSE 'site_late' END AS reason, min(p.created_at) AS since` + beyondSLO + ` GROUP BY 1) x
JOIN servers s ON s.server_id = x.app_server_id AND s.status <> 'terminated'` + attEnd + attHarming + `
    SELECT 'tenant' AS subject, t.tenant_id AS id FROM tenant_allocations a JOIN tenants t ON t.tenant_id = a.tenant_id
    WHERE a.app_server_id = m.id AND a.released_at IS NULL
        AND t.state IN ('trial', 'provisioning') AND t.status_reason = 'awaiting_site'` + attHarmed

	sqlAttFleetActionFailed = `WITH ` + attFrom + `
SELECT 'fleet', f.fleet_id, f.fleet_id, a.seq::text, '', COALESCE(NULLIF(a.reason, ''), 'action_failed'), a.action || ': ' || a.message, a.finished_at, 'installation', 'prego'
FROM fleets f CROSS JOIN LATERAL (SELECT * FROM fleet_actions a WHERE a.fleet_id = f.fleet_id ORDER BY a.seq DESC LIMIT 1) a
WHERE a.status = 'failed' AND a.finished_at` + attRecent + attTo

	sqlAttMaintenanceFailed = `WITH ` + attFrom + `
SELECT 'server', s.server_id, s.server_id, '', '', COALESCE(NULLIF(d.reason, ''), 'maintenance_failed'), d.kind || ': ' || d.message, d.finished_at, 'region', s.region
FROM server_maintenances d JOIN servers s ON s.server_id = d.server_id
WHERE d.status = 'failed' AND s.status <> 'terminated' AND (s.cordoned_at IS NOT NULL OR d.finished_at > now() - interval '1 day')
  AND NOT EXISTS (SELECT FROM server_maintenances n
    WHERE n.server_id = d.server_id AND n.number > d.number)` + attToServer

	sqlAttMaintenanceStuck = `WITH ` + attFrom + `
SELECT 'server', s.server_id, s.server_id, '', '', COALESCE(NULLIF(d.reason, ''), 'maintenance_late'), d.kind || ': ' || d.message, d.created_at, 'region', s.region
FROM server_maintenances d JOIN servers s ON s.server_id = d.server_id
WHERE d.finished_at IS NULL AND ` + maintenanceIsStuck + attToServer

	sqlAttMoveFailed = `WITH ` + attFrom + `
SELECT 'tenant', t.tenant_id, t.slug, m.move_id, t.org_id, COALESCE(NULLIF(m.reason, ''), 'move_failed'), m.message, m.finished_at, 'region', t.region
FROM tenant_moves m JOIN tenants t ON t.tenant_id = m.tenant_id
WHERE m.state = 'failed' AND m.finished_at` + attRecent + ` AND has_site(t.state)
  AND NOT EXISTS (SELECT FROM tenant_moves n WHERE n.tenant_id = m.tenant_id AND n.created_at > m.created_at)` + attTo

	sqlAttRebalanceStopped = `WITH ` + attFrom + `
SELECT 'rebalance', rebalance_id, rebalance_id, '', '', COALESCE(NULLIF(reason, ''), 'stopped'), message, finished_at, 'installation', 'prego'
FROM (SELECT * FROM rebalances ORDER BY created_at DESC, rebalance_id DESC LIMIT 1) r WHERE state = 'stopped' AND finished_at` + attRecent + attTo

	sqlAttReleaseStopped = `WITH ` + attFrom + `
SELECT 'release', name, name, '', '', COALESCE(NULLIF(reason, ''), 'stopped'), message, updated_at,
    'installation', 'prego' FROM stack_releases WHERE status = 'stopped'` + attEnd + attHarming + `
    SELECT 'tenant' AS subject, t.tenant_id AS id FROM tenants t WHERE ` + offlineForRelease + attHarmed

	sqlAttAgentReleaseStopped = `WITH ` + attFrom + `
SELECT 'agent_release', version, version, '', '', COALESCE(NULLIF(reason, ''), 'stopped'), message, updated_at, 'installation', 'prego' FROM agent_releases WHERE status = 'stopped'` + attTo

	sqlAttImageFailed = `WITH ` + attFrom + `
SELECT 'image', image_id, image_id, '', '', COALESCE(NULLIF(reason, ''), 'failed'), message, updated_at, 'installation', 'prego'
FROM (SELECT DISTINCT ON (provider, base_image, architecture) * FROM golden_images ORDER BY provider, base_image, architecture, created_at DESC, image_id DESC) i
WHERE status = 'failed' AND reason <> 'build_cancelled'` + attTo

	sqlAttBackupLate = `WITH ` + attFrom + `
SELECT 'tenant', t.tenant_id, t.slug, '', t.org_id, 'backup_late', '', b.due_at, 'region', t.region` + lateBackups + `
UNION ALL SELECT 'volume', v.volume_id, v.name, '', v.org_id, 'backup_late', '', b.due_at, 'region', v.region FROM volumes v JOIN (
    SELECT b.volume_id, b.due_at` + lateVolumeBackups + `) b ON b.volume_id = v.volume_id WHERE v.deleted_at IS NULL` + attTo

	sqlAttBackupMissing = `WITH ` + attFrom + `
SELECT 'tenant', t.tenant_id, t.slug, b.backup_id, t.org_id, 'backup_missing', '', b.missing_at, 'region', t.region
FROM backups b JOIN tenants t ON t.tenant_id = b.tenant_id WHERE b.missing_at IS NOT NULL AND b.state = 'stored'
UNION ALL SELECT 'volume', v.volume_id, v.name, b.backup_id, v.org_id, 'backup_missing', '', b.missing_at, 'region', v.region
FROM backups b JOIN volumes v ON v.volume_id = b.volume_id WHERE b.missing_at IS NOT NULL AND b.state = 'stored'` + attTo

	sqlAttBackupFailed = `WITH ` + attFrom + `
SELECT 'tenant', t.tenant_id, t.slug, b.backup_id, t.org_id, COALESCE(NULLIF(b.reason, ''), 'backup_failed'), b.message, b.finished_at, 'region', t.region
FROM backups b JOIN tenants t ON t.tenant_id = b.tenant_id
WHERE b.state = 'failed' AND b.reason <> 'superseded' AND b.finished_at` + attRecent + ` AND t.state IN ('active', 'suspended')
  AND NOT EXISTS (SELECT FROM backups n WHERE n.tenant_id = b.tenant_id AND n.created_at > b.created_at AND n.state IN ('stored', 'failed', 'deleting', 'deleted'))
UNION ALL SELECT 'volume', v.volume_id, v.name, b.backup_id, v.org_id, COALESCE(NULLIF(b.reason, ''), 'backup_failed'), b.message, b.finished_at, 'region', v.region
FROM backups b JOIN volumes v ON v.volume_id = b.volume_id
WHERE b.state = 'failed' AND b.finished_at` + attRecent + ` AND v.status = 'ready' AND v.deleted_at IS NULL
  AND NOT EXISTS (SELECT FROM backups n WHERE n.volume_id = b.volume_id AND n.created_at > b.created_at AND n.state IN ('stored', 'failed', 'deleting', 'deleted'))` + attTo

	sqlAttBackupLimit = `
WITH used AS MATERIALIZED (` + backupsOfOrgs + `), ` + attFrom + `
SELECT 'org', u.org_id, u.org_id, '', u.org_id, 'backup_limit', '', COALESCE((SELECT max(e.at) FROM org_events e WHERE e.org_id = u.org_id AND e.type = 'backup.limit_reached'), now()), 'installation', 'prego'
FROM ` + withLimits + ` WHERE ` + areOver + attTo

	sqlAttRestoreFailed = `WITH ` + attFrom + `
SELECT 'tenant', t.tenant_id, t.slug, r.job_id, t.org_id, 'restore_failed', r.message, r.finished_at, 'region', t.region
FROM restore_jobs r JOIN tenants t ON t.tenant_id = r.tenant_id
WHERE r.status = 'failed' AND r.finished_at` + attRecent + ` AND t.state <> 'data_purged' AND NOT EXISTS (SELECT FROM restore_jobs n WHERE n.tenant_id = r.tenant_id AND n.created_at > r.created_at)
UNION ALL SELECT 'volume', v.volume_id, v.name, r.restore_id, v.org_id, COALESCE(NULLIF(r.reason, ''), 'restore_failed'), r.message, r.finished_at, 'region', v.region
FROM volume_restores r JOIN volumes v ON v.volume_id = r.volume_id
WHERE r.status = 'failed' AND r.finished_at` + attRecent + ` AND v.deleted_at IS NULL AND NOT EXISTS (SELECT FROM volume_restores n WHERE n.volume_id = r.volume_id AND n.created_at > r.created_at)` + attTo

	sqlAttDrillFailed = `WITH ` + attFrom + `
SELECT 'tenant', x.id, x.name, '', x.org_id, COALESCE(NULLIF(d.reason, ''), 'drill_failed'), COALESCE(d.message, ''), COALESCE(d.finished_at, now()), 'region', x.region
FROM (SELECT t.tenant_id AS id, t.slug AS name, t.org_id, t.region` + drillsFailed + `) x
LEFT JOIN LATERAL (SELECT * FROM drills d WHERE d.tenant_id = x.id AND d.state = 'failed' ORDER BY d.created_at DESC LIMIT 1) d ON true
UNION ALL SELECT 'volume', x.id, x.name, '', x.org_id, COALESCE(NULLIF(d.reason, ''), 'drill_failed'), COALESCE(d.message, ''), COALESCE(d.finished_at, now()), 'region', x.region
FROM (SELECT v.volume_id AS id, v.name, v.org_id, v.region` + volumeDrillsFailed + `) x
LEFT JOIN LATERAL (SELECT * FROM drills d WHERE d.volume_id = x.id AND d.state = 'failed' ORDER BY d.created_at DESC LIMIT 1) d ON true` + attTo

	sqlAttBackupUnverified = `WITH ` + attFrom + `
SELECT 'tenant', t.tenant_id, t.slug, '', t.org_id, 'drill_late', '', COALESCE(u.drilled_at, t.active_at), 'region', t.region` + drillsOverdue + `
UNION ALL SELECT 'volume', v.volume_id, v.name, '', v.org_id, 'drill_late', '', COALESCE(u.drilled_at, v.created_at), 'region', v.region` + volumeDrillsOverdue + attTo

	// An ending certificate is not also reported as failing.
	sqlAttCertificateEnding = `WITH ` + attFrom + `
SELECT 'certificate', certificate_id, names[1], '', COALESCE(org_id, ''),
    CASE WHEN not_after < now() + interval '3 days' THEN 'ends_in_days'
        ELSE COALESCE(NULLIF(reason, ''), 'not_renewed') END,
    concat_ws(': ', CASE WHEN not_after < now() THEN 'it ended on ' ELSE 'it ends on ' END
        || to_char(not_after AT TIME ZONE 'UTC', 'YYYY-MM-DD'), NULLIF(reason, ''), NULLIF(message, '')), not_after - interval '14 days', 'installation', 'prego'
FROM certificates WHERE status = 'active' AND renews AND not_after < now() + interval '14 days'` + attTo

	sqlAttCertificateFailing = `WITH ` + attFrom + `
SELECT 'certificate', certificate_id, names[1], '', COALESCE(org_id, ''), COALESCE(NULLIF(reason, ''), 'failed'), message, updated_at, 'installation', 'prego'
FROM certificates WHERE status = 'failed'
UNION ALL SELECT 'certificate', certificate_id, names[1], '', COALESCE(org_id, ''), COALESCE(NULLIF(reason, ''), 'failing'), message, updated_at, 'installation', 'prego'
FROM certificates WHERE status = 'active' AND failures > 0 AND NOT (renews AND not_after < now() + interval '14 days')` + attTo

	sqlAttDomainFailing = `WITH ` + attFrom + `
SELECT 'domain', domain_id, name, COALESCE(tenant_id, ''), org_id, COALESCE(NULLIF(reason, ''), status), message,
    COALESCE(missing_since, elsewhere_since, updated_at), 'installation', 'prego'
FROM domains WHERE deleted_at IS NULL AND (status = 'lost' OR status = 'verified'
    AND (missing_since IS NOT NULL OR elsewhere_since < now() - interval '1 hour'))` + attTo

	sqlAttVolumeFailed = `WITH ` + attFrom + `
SELECT 'volume', volume_id, name, '', org_id, COALESCE(NULLIF(reason, ''), 'failed'), message, updated_at,
    'region', region FROM volumes WHERE deleted_at IS NULL AND (status = 'failed'
        OR status = 'ready' AND reason = 'not_attached' OR reason = 'change_refused')` + attTo

	sqlAttAddressFailed = `WITH ` + attFrom + `
SELECT 'env', a.env_id, e.name, a.allocation_id, a.org_id, COALESCE(NULLIF(a.reason, ''), 'failed'), a.message, a.updated_at, 'region', e.region
FROM ipv4_allocations a JOIN envs e ON e.env_id = a.env_id WHERE a.deleted_at IS NULL
    AND (a.status = 'failed' OR a.reason = 'change_refused')` + attTo

	attSites = `'tenant', t.tenant_id, t.slug, '', t.org_id, 'storage_' || u.level, u.message, COALESCE(u.over_since, u.measured_at, now()), 'region', t.region
FROM site_usage u JOIN tenants t ON t.tenant_id = u.tenant_id WHERE u.level <> 'ok' AND t.state IN ('active', 'suspended') AND u.level = `
	sqlAttSiteReadOnly  = `WITH ` + attFrom + `SELECT ` + attSites + `'read_only'` + attTo
	sqlAttSiteOverQuota = `WITH ` + attFrom + `SELECT ` + attSites + `'over'` + attTo

	// The part of a limit that an org uses, above $4 and up to $5. Its start is not recorded.
	sqlAttOrgQuota = `
WITH used AS MATERIALIZED (` + usedByOrgs + `
), ` + limitsOfTiers + `, ` + attFrom + `
SELECT 'org', u.org_id, u.org_id, '', u.org_id, u.dimension, 'it uses ' || trim_scale(round((u.usage / l.unit)::numeric, 2)) || ' of ' ||
    trim_scale(round((l.limit_value / l.unit)::numeric, 2)) || l.named || ' (' || u.dimension || ')', now(), 'installation', 'prego'
FROM used u JOIN orgs o ON o.org_id = u.org_id LEFT JOIN org_quotas q ON q.org_id = u.org_id AND q.dimension = u.dimension
LEFT JOIN tiers t ON t.tier = o.tier AND t.dimension = u.dimension CROSS JOIN LATERAL (SELECT COALESCE(q.limit_value, t.limit_value, 0) AS limit_value,
    CASE WHEN u.dimension LIKE '%memory_bytes' THEN 1073741824 WHEN u.dimension LIKE '%_bytes' THEN 1000000000 ELSE 1 END AS unit,
    CASE WHEN u.dimension LIKE '%memory_bytes' THEN ' GiB' WHEN u.dimension LIKE '%_bytes' THEN ' GB' ELSE '' END AS named) l
WHERE $2 > 0 AND u.usage > 0 AND u.usage > $4::float8 * l.limit_value AND u.usage <= $5::float8 * l.limit_value` + attTo

	sqlAttLimitRequested = `WITH ` + attFrom + `
SELECT 'org', org_id, org_id, '', org_id, dimension, created_by || ' requests a higher limit: ' || reason, created_at, 'installation', 'prego'
FROM limit_requests WHERE state = 'open'` + attTo

	sqlAttPatchesMissing = `WITH ` + attFrom + `
SELECT 'server', s.server_id, s.server_id, '', '', s.patch_state, '', s.patches_since, 'region', s.region FROM servers s WHERE s.status IN ('active', 'failed') AND ` + lackPatches + attTo

	sqlAttOperationStuck = `WITH ` + attFrom + `
SELECT 'backup', backup_id, backup_id, COALESCE(tenant_id, volume_id, ''), org_id, state, message, created_at, 'operation', 'backup' FROM backups WHERE state IN ('queued', 'making', 'uploading') AND created_at` + attStuckLong + `
UNION ALL SELECT 'snapshot', snapshot_id, snapshot_id, tenant_id, org_id, status, message, created_at, 'operation', 'snapshot' FROM snapshots WHERE status IN ('queued', 'running') AND created_at` + attStuckLong + `
UNION ALL SELECT 'restore', job_id, job_id, tenant_id, org_id, status, message, created_at, 'operation', 'restore' FROM restore_jobs WHERE status IN ('queued', 'running') AND created_at` + attStuckLong + `
UNION ALL SELECT 'volume_restore', restore_id, restore_id, volume_id, org_id, status, message, created_at, 'operation', 'volume_restore' FROM volume_restores WHERE finished_at IS NULL AND created_at` + attStuckLong + `
UNION ALL SELECT 'move', move_id, move_id, tenant_id, org_id, state, message, created_at, 'operation', 'move' FROM tenant_moves WHERE finished_at IS NULL AND created_at` + attStuckLong + `
UNION ALL SELECT 'drill', drill_id, drill_id, COALESCE(tenant_id, volume_id, ''), org_id, state, message, created_at, 'operation', 'drill' FROM drills WHERE cleared_at IS NULL AND created_at` + attStuckLong + `
UNION ALL SELECT 'fleet', a.fleet_id, a.fleet_id || '/' || a.seq, '', '', a.status, a.message, a.created_at, 'operation', 'fleet' FROM fleet_actions a WHERE a.status IN ('queued', 'running') AND a.created_at` + attStuckLong + `
    AND NOT EXISTS (SELECT FROM fleet_actions o WHERE o.fleet_id = a.fleet_id AND o.status IN ('queued', 'running') AND o.seq < a.seq)
UNION ALL SELECT 'volume', volume_id, name, '', org_id, status, message, updated_at, 'operation', 'volume' FROM volumes WHERE status IN ('pending', 'releasing') AND deleted_at IS NULL
    AND GREATEST(updated_at, CASE WHEN reason = '' THEN kept_until END)` + attStuck + `
UNION ALL SELECT 'address', allocation_id, allocation_id, env_id, org_id, status, message, updated_at, 'operation', 'address' FROM ipv4_allocations WHERE status IN ('pending', 'releasing') AND deleted_at IS NULL AND updated_at` + attStuck + `
UNION ALL SELECT 'image', image_id, image_id, '', '', status, message, updated_at, 'operation', 'image' FROM golden_images WHERE status IN ('building', 'verifying', 'deleting') AND updated_at` + attStuck + `
UNION ALL SELECT 'certificate', certificate_id, names[1], '', COALESCE(org_id, ''), status, message, due_at, 'operation', 'certificate' FROM certificates WHERE status = 'pending' AND due_at` + attStuck + `
UNION ALL SELECT DISTINCT ON (g.group_id) 'group', g.group_id, g.name, '', g.org_id, 'instance_not_started', i.message, i.created_at, 'operation', 'group'
FROM instances i JOIN process_groups g ON g.group_id = i.group_id
WHERE i.state = 'booting' AND i.started_at IS NULL AND i.message LIKE 'not started yet: %' AND i.created_at` + attRepeated + `
UNION ALL SELECT 'release', v.release, v.release, '', '', 'step_repeated', 'server ' || v.server_id || ', ' || v.phase || ': ' || v.message, v.started_at, 'operation', 'release'
FROM stack_release_servers v WHERE v.status = 'updating' AND NOT v.undoing AND v.message <> '' AND v.started_at` + attRepeated + attEnd + attHarming + `
    SELECT ` + attSubjects + `
    UNION SELECT 'tenant', z.tenant_id, '', '', '' FROM stack_release_sites z WHERE m.subject = 'release'
        AND z.release = m.id AND z.tenant_id <> '' AND z.offline_at IS NOT NULL AND z.opened_at IS NULL` + attHarmed

	sqlAttQuotaDrifted = `WITH ` + attFrom + `
SELECT 'org', org_id, org_id, '', org_id, 'usage_drifted', '', found_at, 'installation', 'prego' FROM org_usage_drifts` + attTo

	sqlAttPeersBehind = `WITH ` + attFrom + `
SELECT 'server', s.server_id, s.server_id, '', '',
    CASE WHEN p.refused = '' THEN 'not_applied' WHEN p.applied_version = p.version THEN 'left_out' ELSE 'refused' END,
    p.refused, COALESCE(p.changed_at, now()), 'region', s.region
FROM ` + peersBehind + ` AND s.status IN ('active', 'draining') AND s.agent_status = 'connected' AND (p.refused <> '' OR p.changed_at < now() - interval '5 minutes')` + attTo

	sqlAttEdgeBehind = `WITH ` + attFrom + `
SELECT 'server', s.server_id, s.server_id, '', '',
    CASE WHEN EXISTS (SELECT FROM edges e JOIN servers o ON o.server_id = e.server_id
        WHERE e.network = b.network AND e.refused_version <= e.version AND ` + attEdgeLives + `)
    THEN 'document_refused' ELSE 'no_edge_opens' END,
    b.refused_reason, COALESCE(b.refused_since, b.applied_at, b.asked_at, now()), 'region', s.region
FROM edges b JOIN servers s ON s.server_id = b.server_id
WHERE b.refused_version > b.version AND s.status IN ('active', 'draining')
UNION ALL SELECT 'server', e.server_id, e.server_id, '', '', 'document_held',
    'it alone has document ' || e.version || ', which closes ' || c.n || ' of ' || ` + sitesProbed + `
        || ' sites that answer: ' || c.names || CASE WHEN c.n > 5 THEN ' and ' || c.n - 5 || ' more' ELSE '' END
        || '. The other edges keep document ' || d.released,
    d.held_since, 'region', s.region
FROM edges e JOIN edge_documents d ON d.network = e.network AND e.version > d.released AND e.version <= e.offered
JOIN servers s ON s.server_id = e.server_id AND s.status IN ('active', 'draining')
CROSS JOIN LATERAL (SELECT count(*) AS n, (SELECT string_agg(v.name, ', ' ORDER BY v.name) FROM (
        SELECT COALESCE(m.slug, m.tenant_id) AS name FROM ` + sitesClosed + ` m ORDER BY 1 LIMIT 5) v) AS names
    FROM ` + sitesClosed + ` k) c WHERE c.n > 0` + attEnd + attHarming + `
    SELECT 'tenant' AS subject, t.tenant_id AS id FROM edges e
        JOIN servers s ON COALESCE(s.network_id, s.region) = e.network
        JOIN tenant_allocations a ON a.app_server_id = s.server_id AND a.released_at IS NULL
        JOIN tenants t ON t.tenant_id = a.tenant_id
        WHERE e.server_id = m.id AND m.reason = 'no_edge_opens' AND t.state IN ('trial', 'provisioning', 'active')
            AND t.created_at >= x.since
    UNION SELECT 'tenant', k.tenant_id FROM edges e CROSS JOIN LATERAL ` + sitesClosed + ` k
        WHERE e.server_id = m.id AND m.reason = 'document_held'` + attHarmed

	// One finding for each name, however many edges leave it out and for however many purposes.
	sqlAttEdgeRejectedName = `WITH x AS (
    SELECT o.name, max(o.kind) AS kind, max(o.tenant_id) AS tenant_id, max(o.route_id) AS route_id, min(o.since) AS since, min(o.reason) AS reason,
        min(s.server_id) AS server_id, min(s.region) AS region
    FROM edge_left_out o JOIN servers s ON s.server_id = o.server_id WHERE s.status IN ('active', 'draining') GROUP BY o.name), ` + attFrom + `
SELECT CASE WHEN d.domain_id IS NOT NULL THEN 'domain' WHEN t.tenant_id IS NOT NULL THEN 'tenant' WHEN r.group_id IS NOT NULL THEN 'group'
        WHEN c.certificate_id IS NOT NULL THEN 'certificate' ELSE 'server' END,
    COALESCE(d.domain_id, t.tenant_id, r.group_id, c.certificate_id, x.server_id), COALESCE(d.name, t.slug, g.name, c.names[1], x.server_id), COALESCE(d.tenant_id, ''),
    COALESCE(d.org_id, t.org_id, r.org_id, c.org_id, ''), x.kind || '_refused',
    x.kind || ' ' || x.name || ' is not served' || COALESCE(' for tenant ' || n.slug, '') || COALESCE(' of org ' || COALESCE(d.org_id, t.org_id, r.org_id, c.org_id), '') || ': ' || x.reason,
    x.since, 'region', x.region
FROM x
LEFT JOIN domains d ON d.name = x.name AND d.deleted_at IS NULL AND x.kind IN ('host', 'challenge')
LEFT JOIN tenants t ON t.tenant_id = x.tenant_id
LEFT JOIN tenants n ON n.tenant_id = COALESCE(NULLIF(x.tenant_id, ''), d.tenant_id)
LEFT JOIN routes r ON r.route_id = x.route_id
LEFT JOIN process_groups g ON g.group_id = r.group_id
LEFT JOIN LATERAL (SELECT c.certificate_id, c.names, c.org_id FROM certificates c
    WHERE c.certificate_id = x.name OR x.kind = 'challenge' AND x.name = ANY (c.names) ORDER BY c.certificate_id LIMIT 1) c ON x.kind IN ('certificate', 'challenge')` + attTo

	// One finding for each site, or one for the region if they are many, or most of its sites. What prego itself stops
	// for a while is no finding.
	sqlAttSiteDown = `WITH v AS MATERIALIZED (
    SELECT h.tenant_id, min(h.since) FILTER (WHERE NOT h.up) AS since,
        (array_agg(h.cause ORDER BY h.since) FILTER (WHERE NOT h.up))[1] AS cause,
        count(*) AS edges, count(*) FILTER (WHERE NOT h.up) AS down,
        string_agg(h.server_id, ', ' ORDER BY h.server_id) FILTER (WHERE NOT h.up) AS down_at
    FROM ` + probedNow + ` WHERE h.tenant_id IN (SELECT d.tenant_id FROM site_health d WHERE NOT d.up)
    GROUP BY h.tenant_id HAVING NOT bool_and(h.up)
), x AS MATERIALIZED (
    SELECT v.*, t.slug, t.org_id, s.region, s.server_id, count(*) OVER r AS n,
        row_number() OVER (r ORDER BY v.since, v.tenant_id) AS nth
    FROM v JOIN tenants t ON t.tenant_id = v.tenant_id
    JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
    JOIN servers s ON s.server_id = a.app_server_id
    WHERE ` + siteOpen + ` AND NOT ` + attPlaceRestarts + `
    WINDOW r AS (PARTITION BY s.region)
), causes AS (
    SELECT region, string_agg(cause || ' ' || n, ', ' ORDER BY n DESC, cause) AS text
    FROM (SELECT region, cause, count(*) AS n FROM x GROUP BY region, cause) c GROUP BY region
), places AS (
    SELECT region, string_agg(server_id || ' ' || n, ', ' ORDER BY n DESC, server_id) AS text
    FROM (SELECT region, server_id, count(*) AS n, row_number() OVER (PARTITION BY region ORDER BY count(*) DESC) AS nth
        FROM x GROUP BY region, server_id) c WHERE nth <= 3 GROUP BY region
), regions AS (
    SELECT x.region, x.n, min(x.since) AS since, bool_and(x.down = x.edges) AS everywhere,
        string_agg(x.slug, ', ' ORDER BY x.nth) FILTER (WHERE x.nth <= 5) AS slugs,
        (SELECT count(DISTINCT h.tenant_id) FROM ` + probedNow + `
            JOIN servers i ON i.server_id = e.server_id WHERE i.region = x.region) AS probed
    FROM x WHERE x.n > 1 GROUP BY x.region, x.n
), many AS (SELECT * FROM regions WHERE n > 5 OR 2 * n > probed), dark AS (
    SELECT e.network, min(i.region) AS region, max(e.asked_at) AS since,
        string_agg(i.server_id, ', ' ORDER BY i.server_id) AS edges
    FROM edges e JOIN servers i ON i.server_id = e.server_id AND i.status NOT IN ('provisioning', 'terminated')
    WHERE e.network NOT IN (SELECT e.network FROM ` + liveEdges + `) GROUP BY e.network
), unreached AS (
    SELECT d.network, d.region, d.since, d.edges, count(*) AS sites
    FROM dark d JOIN servers s ON COALESCE(s.network_id, s.region) = d.network
    JOIN tenant_allocations a ON a.app_server_id = s.server_id AND a.released_at IS NULL
    JOIN tenants t ON t.tenant_id = a.tenant_id AND t.state = 'active' GROUP BY d.network, d.region, d.since, d.edges
), ` + attFrom + `
SELECT 'region', m.region, m.region, '', '', 'region_down',
    m.n || ' of ' || GREATEST(m.n, m.probed) || ' sites do not answer'
        || CASE WHEN m.everywhere THEN '' ELSE ' at some edges' END
        || ': ' || m.slugs || CASE WHEN m.n > 5 THEN ' and ' || m.n - 5 || ' more' ELSE '' END
        || ' (' || c.text || '; on ' || p.text || ')',
    m.since, 'region', m.region
FROM many m JOIN causes c USING (region) JOIN places p USING (region)
UNION ALL SELECT 'tenant', tenant_id, slug, '', org_id, cause,
    'the site of ' || slug || ' on ' || server_id || ' does not answer: '
        || CASE cause WHEN 'refused' THEN 'connections are refused' WHEN 'timeout' THEN 'no answer in 10 s'
            WHEN 'error' THEN 'it answers with an error' WHEN 'maintenance' THEN 'it is in maintenance mode'
            ELSE 'its server does not have it' END
        || CASE WHEN down < edges THEN ', at edge ' || down_at || ' and not at ' || edges - down || ' more'
            WHEN edges > 1 THEN ', at all ' || edges || ' edges' ELSE '' END,
    since, 'region', region
FROM x WHERE region NOT IN (SELECT region FROM many)
UNION ALL SELECT 'tenant', tenant_id, slug, '', org_id, 'not_open',
    'the site of ' || slug || ' is built and not open: ' || status_message,
    opening_since, 'region', region
FROM tenants WHERE state IN ('trial', 'provisioning') AND opening_since IS NOT NULL AND status_reason = 'awaiting_edge'
UNION ALL SELECT 'region', region, region, network, '', 'no_edge',
    'no edge of network ' || network || ' is alive (' || edges || '): visitors do not reach its ' || sites
        || ' sites, and new tenants become active without being open',
    since, 'region', region FROM unreached` + attEnd + attHarming + `SELECT ` + attSubjects + `
    UNION SELECT 'tenant', v.tenant_id, '', '', '' FROM x v WHERE v.region = m.id AND m.reason = 'region_down'
    UNION SELECT 'tenant', t.tenant_id, '', '', '' FROM servers s
        JOIN tenant_allocations a ON a.app_server_id = s.server_id AND a.released_at IS NULL
        JOIN tenants t ON t.tenant_id = a.tenant_id AND t.state = 'active'
        WHERE COALESCE(s.network_id, s.region) = m.owner AND m.reason = 'no_edge'` + attHarmed

	sqlAttDNSRecordFailing = `WITH ` + attFrom + `
SELECT 'dns_record', name || '.' || zone || '/' || type, name || '.' || zone, '', '', 'record_failing', error, COALESCE(changed_at, now()), 'installation', 'prego'
FROM dns_records WHERE state IN ('intended', 'releasing') AND tries >= 3 AND error <> ''` + attTo

	sqlAttProviderUntracked = `WITH ` + attFrom + `
SELECT 'provider_resource', provider || '/' || kind || '/' || provider_id, COALESCE(NULLIF(name, ''), provider_id), '', '',
    CASE WHEN protected THEN 'protected' ELSE 'untracked' END, kind || ' ' || provider_id || ' was seen ' || sightings || ' times', first_seen_at, 'provider', provider
FROM orphan_sightings WHERE destroyed_at IS NULL AND sightings >= 2` + attTo
)

// Who is affected by the findings n, of which $1 lists what customers are harmed by. Tenants and groups are found by
// what a finding is about; of a server they are all on it, and of the last live edge of a network all tenants there.
// Laterals, not joins: only the rows of these are read, whatever the planner expects of them.
const sqlAffected = `
WITH these AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset($1) r (n int, subject text, id text, name text, owner text, org_id text)
), closed AS MATERIALIZED (
    SELECT DISTINCT v.n, COALESCE(c.network_id, c.region) AS network
    FROM these v JOIN servers c ON c.server_id = v.id AND c.role = 'edge'
    WHERE v.subject = 'server' AND NOT EXISTS (SELECT FROM edges e JOIN servers o ON o.server_id = e.server_id
        WHERE e.network = COALESCE(c.network_id, c.region) AND ` + attEdgeLives + `
            AND NOT EXISTS (SELECT FROM these w WHERE w.n = v.n AND w.subject = 'server' AND w.id = e.server_id))
), hosts AS MATERIALIZED (
    SELECT h.n, unnest(c.names) AS name FROM these h JOIN certificates c ON c.certificate_id = h.id
    WHERE h.subject = 'certificate'
    UNION SELECT n, name FROM these WHERE subject = 'dns_record'
), of_groups AS (
    SELECT n, id AS group_id FROM these WHERE subject = 'group'
    UNION SELECT v.n, a.group_id FROM these v JOIN volume_attachments a ON a.deleted_at IS NULL
        AND a.volume_id = CASE v.subject WHEN 'volume' THEN v.id ELSE v.owner END
        WHERE v.subject IN ('volume', 'volume_restore', 'backup', 'drill')
    UNION SELECT e.n, g.group_id FROM these e LEFT JOIN ipv4_allocations a ON a.allocation_id = e.id
        JOIN process_groups g ON g.deleted_at IS NULL
        AND g.env_id = CASE e.subject WHEN 'env' THEN e.id WHEN 'address' THEN e.owner ELSE a.env_id END
        WHERE e.subject IN ('env', 'address', 'ipv4')
    UNION SELECT h.n, r.group_id FROM hosts h JOIN routes r ON r.hostname = h.name AND r.deleted_at IS NULL
        WHERE h.name <> ''
), of_tenants AS (
    SELECT n, id AS tenant_id, false AS there FROM these WHERE subject = 'tenant'
    UNION SELECT n, owner, false FROM these
        WHERE subject IN ('backup', 'snapshot', 'restore', 'move', 'drill', 'domain')
    UNION SELECT h.n, d.tenant_id, false FROM hosts h JOIN domains d ON d.name = h.name AND d.deleted_at IS NULL
    UNION SELECT h.n, t.tenant_id, true FROM hosts h CROSS JOIN LATERAL (
        SELECT tenant_id FROM tenants WHERE site = h.name OFFSET 0) t
    UNION SELECT h.n, a.tenant_id, false FROM hosts h JOIN tenant_allocations a ON a.released_at IS NULL
        AND h.name = '*' || substr(a.site_name, strpos(a.site_name, '.'))
    UNION SELECT v.n, p.tenant_id, true FROM these v CROSS JOIN LATERAL (
        SELECT w.tenant_id FROM tenant_places w WHERE w.server_id = v.id OFFSET 0) p WHERE v.subject = 'server'
    UNION SELECT c.n, a.tenant_id, true FROM closed c JOIN servers s ON COALESCE(s.network_id, s.region) = c.network
        JOIN tenant_allocations a ON a.app_server_id = s.server_id AND a.released_at IS NULL
), t AS MATERIALIZED (
    SELECT DISTINCT x.n, t.* FROM of_tenants x CROSS JOIN LATERAL (
        SELECT t.tenant_id, t.slug, t.org_id, t.plan FROM tenants t WHERE t.tenant_id = x.tenant_id
            AND (NOT x.there OR t.state NOT IN ('terminated', 'data_purged')) OFFSET 0) t
), i AS MATERIALIZED (
    SELECT x.n, i.* FROM of_groups x CROSS JOIN LATERAL (
        SELECT i.instance_id, i.org_id, i.group_id FROM instances i
        WHERE i.group_id = x.group_id AND i.state <> 'stopped' OFFSET 0) i
    UNION SELECT v.n, i.* FROM these v CROSS JOIN LATERAL (
        SELECT i.instance_id, i.org_id, i.group_id FROM instances i
        WHERE i.server_id = v.id AND i.state <> 'stopped' OFFSET 0) i WHERE v.subject = 'server'
), o AS (
    SELECT n, org_id FROM t UNION SELECT n, org_id FROM i UNION SELECT n, org_id FROM these WHERE org_id <> ''
)
SELECT n, jsonb_build_object(
    'tenant_count', COALESCE(t.count, 0), 'tenants', COALESCE(t.list, '{}'),
    'instance_count', COALESCE(i.count, 0), 'instances', COALESCE(i.list, '{}'),
    'org_count', o.count, 'orgs', o.list) AS affected
FROM (SELECT n, count(*), (array_agg(org_id ORDER BY org_id))[:20] AS list FROM o GROUP BY n) o
LEFT JOIN (SELECT n, count(*), (array_agg(jsonb_build_object('id', tenant_id, 'name', slug, 'org_id', org_id)
        ORDER BY array_position('{enterprise,business,starter,trial}', plan), slug))[:20] AS list
    FROM t GROUP BY n) t USING (n)
LEFT JOIN (SELECT i.n, count(*), (array_agg(jsonb_build_object('id', instance_id, 'name', g.name, 'org_id', i.org_id)
        ORDER BY i.org_id, g.name, instance_id))[:20] AS list
    FROM i JOIN process_groups g USING (group_id) GROUP BY n) i USING (n)`

// Attention returns the findings that need an operator now, at most attention.Most of each kind, and the time of the
// check. Everything is read in one snapshot.
func (s *Store) Attention(ctx context.Context, l attention.Limits) (found []attention.Finding, at time.Time, err error) {
	err = s.inView(ctx, "what needs attention", func(tx *txn) error {
		found, at, err = s.attentionIn(ctx, tx, l)
		return err
	})
	return found, at, err
}

const (
	sqlAttentionSince = `SELECT id, since FROM attention_since`

	sqlKeepAttention = `
WITH n AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::timestamptz[]) u (id, since)),
gone AS (DELETE FROM attention_since a WHERE NOT EXISTS (SELECT FROM n WHERE n.id = a.id))
INSERT INTO attention_since AS a SELECT id, since FROM n ON CONFLICT (id) DO UPDATE SET since = excluded.since
WHERE excluded.since < a.since`
)

// AttentionItems returns what needs an operator now, each with its first start since it was last well.
func (s *Store) AttentionItems(ctx context.Context, l attention.Limits) (items []attention.Item, at time.Time, err error) {
	found, at, err := s.Attention(ctx, l)
	if err != nil {
		return nil, at, err
	}
	known, err := collect[struct {
		ID    string
		Since time.Time
	}](ctx, s, "since when things need attention", sqlAttentionSince)
	earlier := make(map[string]time.Time, len(known))
	for _, k := range known {
		earlier[k.ID] = k.Since
	}
	return attention.Since(attention.List(found), earlier), at, err
}

// KeepAttention records since when things need attention, and forgets those that don't any more.
func (s *Store) KeepAttention(ctx context.Context, l attention.Limits) error {
	var found []attention.Finding
	err := s.inView(ctx, "what needs attention", func(tx *txn) (err error) {
		found, _, _, err = s.findings(ctx, tx, l)
		return err
	})
	if err != nil {
		return err
	}
	var ids []string
	var since []time.Time
	for _, i := range attention.List(found) {
		ids, since = append(ids, i.ID), append(since, i.Since)
	}
	return s.exec(ctx, "keep since when things need attention", sqlKeepAttention, ids, since)
}

// attentionRead reads the findings of a kind.
type attentionRead struct {
	kind attention.Kind
	sql  string
	args []any
}

// harmed is something that a finding harms customers by.
type harmed struct {
	N       int         `json:"n"` // of the finding
	Subject string      `json:"subject"`
	ID      string      `json:"id"`
	Name    string      `json:"name"`
	Owner   string      `json:"owner"`
	OrgID   prego.OrgID `json:"org_id"`
}

// attentionIn returns the findings with who is affected.
func (s *Store) attentionIn(
	ctx context.Context, tx *txn, l attention.Limits,
) (found []attention.Finding, at time.Time, err error) {
	found, harms, at, err := s.findings(ctx, tx, l)
	if err != nil || len(harms) == 0 {
		return found, at, err
	}
	for _, a := range manyIn[struct {
		N        int
		Affected attention.Affected
	}](ctx, tx, sqlAffected, harms) {
		found[a.N].Affected = a.Affected
	}
	return found, at, tx.err
}

// findings returns the findings, and what they harm customers by.
func (s *Store) findings(
	ctx context.Context, tx *txn, l attention.Limits,
) (found []attention.Finding, harms []harmed, at time.Time, err error) {
	b := &pgx.Batch{}
	b.Queue(`SET LOCAL jit = off`) // compiling these statements takes seconds, reading what they find milliseconds
	b.Queue(`SELECT now()`).QueryRow(func(row pgx.Row) error { return row.Scan(&at) })
	for _, r := range s.attentionReads(l) {
		b.Queue(r.sql, r.args...).Query(func(rows pgx.Rows) error {
			these, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[struct {
				attention.Finding
				Harms []harmed
			}])
			for _, f := range these {
				for _, h := range f.Harms {
					h.N = len(found)
					harms = append(harms, h)
				}
				f.Kind = r.kind
				found = append(found, f.Finding)
			}
			return err
		})
	}
	err = tx.SendBatch(ctx, b).Close()
	return found, harms, at, err
}

func (s *Store) attentionReads(l attention.Limits) (reads []attentionRead) {
	read := func(kind attention.Kind, sql string, args ...any) {
		reads = append(reads, attentionRead{kind, sql, args})
	}
	for _, q := range []struct {
		kind attention.Kind
		sql  string
	}{
		{attention.Recovering, sqlAttRecovering},
		{attention.BreakGlass, sqlAttBreakGlass},
		{attention.DeletionsFrozen, sqlAttFreeze},
		{attention.DeletionRefused, sqlAttRefused},
		{attention.ReconcileBreaker, sqlAttBreaker},
		{attention.DNSBreaker, sqlAttDNSBreaker},
		{attention.ProcessDown, sqlAttProcessDown},
		{attention.LookLate, sqlAttLookLate},
		{attention.LookFailing, sqlAttLookFailing},
		{attention.ProviderBlocked, sqlAttProviderBlocked},
		{attention.ServerFailed, sqlAttServerFailed},
		{attention.ServerStuck, sqlAttServerStuck},
		{attention.ServerAwaitingStock, sqlAttServerAwaitingStock},
		{attention.AgentSilent, sqlAttAgentSilent},
		{attention.ClockSkewed, sqlAttClockSkewed},
		{attention.DockerStopped, sqlAttDockerStopped},
		{attention.TenantLost, sqlAttTenantLost},
		{attention.TenantFailed, sqlAttTenantFailed},
		{attention.TenantStuck, sqlAttTenantStuck},
		{attention.TenantsWaiting, sqlAttTenantsWaiting},
		{attention.GroupUnschedulable, sqlAttGroupUnschedulable},
		{attention.GroupOverQuota, sqlAttGroupOverQuota},
		{attention.RolloutFailed, sqlAttRolloutFailed},
		{attention.WarmPoolLow, sqlAttWarmPoolLow},
		{attention.SitePoolLow, sqlAttSitePoolLow},
		{attention.FleetActionFailed, sqlAttFleetActionFailed},
		{attention.MaintenanceFailed, sqlAttMaintenanceFailed},
		{attention.MaintenanceStuck, sqlAttMaintenanceStuck},
		{attention.MoveFailed, sqlAttMoveFailed},
		{attention.RebalanceStopped, sqlAttRebalanceStopped},
		{attention.ReleaseStopped, sqlAttReleaseStopped},
		{attention.AgentReleaseStopped, sqlAttAgentReleaseStopped},
		{attention.ImageFailed, sqlAttImageFailed},
		{attention.BackupMissing, sqlAttBackupMissing},
		{attention.BackupFailed, sqlAttBackupFailed},
		{attention.RestoreFailed, sqlAttRestoreFailed},
		{attention.DrillFailed, sqlAttDrillFailed},
		{attention.CertificateEnding, sqlAttCertificateEnding},
		{attention.CertificateFailing, sqlAttCertificateFailing},
		{attention.DomainFailing, sqlAttDomainFailing},
		{attention.VolumeFailed, sqlAttVolumeFailed},
		{attention.AddressFailed, sqlAttAddressFailed},
		{attention.SiteReadOnly, sqlAttSiteReadOnly},
		{attention.SiteOverQuota, sqlAttSiteOverQuota},
		{attention.OperationStuck, sqlAttOperationStuck},
		{attention.QuotaDrifted, sqlAttQuotaDrifted},
		{attention.LimitRequested, sqlAttLimitRequested},
		{attention.PeersBehind, sqlAttPeersBehind},
		{attention.SiteDown, sqlAttSiteDown},
		{attention.EdgeBehind, sqlAttEdgeBehind},
		{attention.EdgeRejectedName, sqlAttEdgeRejectedName},
		{attention.DNSRecordFailing, sqlAttDNSRecordFailing},
		{attention.ProviderUntracked, sqlAttProviderUntracked},
	} {
		read(q.kind, q.sql)
	}
	read(attention.PatchesMissing, sqlAttPatchesMissing, PatchesLate)
	read(attention.BackupLimit, sqlAttBackupLimit, tenant.BackupSpaceFactor, storageDimension, s.tierLimits)
	read(attention.OrgAtQuota, sqlAttOrgQuota, s.tierLimits, 1, quota.Dimensions(), attention.AtQuota, math.Inf(1))
	read(attention.OrgNearQuota, sqlAttOrgQuota, s.tierLimits, 1, quota.Dimensions(), attention.NearQuota, attention.AtQuota)
	if l.DegradedAfter > 0 {
		read(attention.SweepFrozen, sqlAttFrozen, l.DegradedAfter.Seconds(), l.FailedAfter.Seconds(), l.FreezePct, l.FreezeMin)
	}
	if l.CatalogStale > 0 {
		read(attention.CatalogStale, sqlAttCatalogStale, l.CatalogStale.Seconds())
	}
	if l.BackupLate > 0 {
		read(attention.BackupLate, sqlAttBackupLate, l.BackupLate.Seconds())
	}
	if l.DrillOverdue > 0 {
		read(attention.BackupUnverified, sqlAttBackupUnverified, l.DrillOverdue.Seconds())
	}
	return reads
}
