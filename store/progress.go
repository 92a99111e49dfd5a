package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/prego/prego/access"
	"github.com/prego/prego/ops"
)

const (
	// The tenants that leave a server now. A move is over for its tenant once the site is open at its new place; what
	// it has at the old one is kept for a while, and the server is empty only afterwards.
	progressLeaving = `(SELECT jsonb_agg(jsonb_build_object('Kind', 'tenant', 'ID', x.tenant_id, 'Name', x.slug,
        'State', x.state) ORDER BY x.started_at)
    FROM (SELECT m.tenant_id, t.slug, m.state, m.started_at FROM tenant_moves m
        JOIN tenants t ON t.tenant_id = m.tenant_id
        WHERE m.from_server_id = d.server_id AND m.opened_at IS NULL AND m.finished_at IS NULL AND m.state <> 'queued'
        ORDER BY m.started_at LIMIT 3) x)`

	progressMaintenances = `
SELECT d.kind, 'server' AS subject_kind, d.server_id AS id, d.server_id AS name, d.status AS state,
    CASE WHEN d.total = 0 THEN 'tenants moved' WHEN d.tenants_total = 0 THEN 'instances moved'
        ELSE 'tenants and instances moved' END AS unit,
    d.total + d.tenants_total - d.left_now - d.tenants_left AS done, d.total + d.tenants_total AS total,
    d.status = 'moving' AS running, COALESCE(d.started_at, d.created_at) AS since, ` + progressLeaving + ` AS current
FROM server_maintenances d
WHERE d.finished_at IS NULL AND CASE WHEN $1::text[] IS NULL THEN d.wave_id IS NULL ELSE d.server_id = ANY ($1) END`

	progressWaves = `
SELECT 'wave', 'patch_wave', w.wave_id, w.wave_id, 'running', 'servers', w.ended::int, w.servers::int, w.moving > 0,
    w.since, (SELECT jsonb_agg(jsonb_build_object('Kind', 'server', 'ID', x.server_id, 'Name', x.server_id,
        'State', x.status) ORDER BY x.server_id)
    FROM (SELECT server_id, status FROM server_maintenances
        WHERE wave_id = w.wave_id AND status IN ('moving', 'finishing') ORDER BY server_id LIMIT 3) x)
FROM (SELECT d.wave_id, count(*) AS servers, count(d.finished_at) AS ended,
        count(*) FILTER (WHERE d.status IN ('moving', 'finishing')) AS moving,
        COALESCE(min(d.started_at), min(d.created_at)) AS since
    FROM server_maintenances d
    WHERE d.wave_id IN (SELECT wave_id FROM server_maintenances WHERE finished_at IS NULL)
    GROUP BY d.wave_id) w
WHERE $1::text[] IS NULL OR w.wave_id = ANY ($1)`

	// A server that is emptied and a packing plan show their moves themselves.
	progressMoves = `
SELECT 'move', 'tenant', m.tenant_id, t.slug, m.state, 'steps',
    array_position('{queued,copying,frozen,switched}', m.state) - 1, 4, true, COALESCE(m.started_at, m.created_at), NULL
FROM tenant_moves m JOIN tenants t ON t.tenant_id = m.tenant_id
WHERE m.finished_at IS NULL AND m.opened_at IS NULL AND CASE WHEN $1::text[] IS NULL
    THEN m.maintenance_of IS NULL AND NOT EXISTS (SELECT FROM rebalance_moves r
        JOIN rebalances b ON b.rebalance_id = r.rebalance_id AND b.state = 'running'
        WHERE r.tenant_id = m.tenant_id AND r.state IN ('waiting', 'moving'))
    ELSE m.tenant_id = ANY ($1) END`

	progressRestores = `
SELECT 'restore', 'tenant', j.tenant_id, t.slug, j.status, '', 0, 0, j.status = 'running', j.created_at, NULL
FROM restore_jobs j JOIN tenants t ON t.tenant_id = j.tenant_id
WHERE j.status IN ('queued', 'running') AND ($1::text[] IS NULL OR j.tenant_id = ANY ($1))
UNION ALL
SELECT 'restore', 'volume', r.volume_id, v.name, r.status, '', 0, 0, r.status = 'running', r.created_at, NULL
FROM volume_restores r JOIN volumes v ON v.volume_id = r.volume_id
WHERE r.finished_at IS NULL AND ($1::text[] IS NULL OR r.volume_id = ANY ($1))`

	progressReleases = `
SELECT 'release', 'release', s.name, s.name, s.status, 'servers', x.ended::int, x.servers::int, s.status = 'rolling',
    COALESCE(s.started_at, s.created_at),
    (SELECT jsonb_agg(jsonb_build_object('Kind', 'server', 'ID', u.server_id, 'Name', u.server_id, 'State', u.phase)
        ORDER BY u.server_id)
    FROM (SELECT server_id, phase FROM stack_release_servers WHERE release = s.name AND status = 'updating'
        ORDER BY server_id LIMIT 3) u)
FROM stack_releases s CROSS JOIN LATERAL (
    SELECT count(*) AS servers, count(*) FILTER (WHERE status NOT IN ('pending', 'updating')) AS ended
    FROM stack_release_servers WHERE release = s.name) x
WHERE s.status IN ('rolling', 'paused', 'stopped') AND ($1::text[] IS NULL OR s.name = ANY ($1))
UNION ALL
SELECT 'agent_release', 'agent_release', r.version, r.version, r.status, 'servers', x.ended::int, x.servers::int,
    r.status = 'rolling', COALESCE(r.started_at, r.created_at),
    (SELECT jsonb_agg(jsonb_build_object('Kind', 'server', 'ID', u.server_id, 'Name', u.server_id,
        'State', u.status) ORDER BY u.server_id)
    FROM (SELECT server_id, status FROM agent_release_servers WHERE version = r.version AND status = 'offered'
        ORDER BY server_id LIMIT 3) u)
FROM agent_releases r CROSS JOIN LATERAL (
    SELECT count(*) AS servers, count(*) FILTER (WHERE status NOT IN ('pending', 'offered')) AS ended
    FROM agent_release_servers WHERE version = r.version) x
WHERE r.status IN ('rolling', 'paused', 'stopped') AND ($1::text[] IS NULL OR r.version = ANY ($1))`

	progressRollouts = `
SELECT 'rollout', 'group', g.group_id, g.name, CASE WHEN g.paused_at IS NULL THEN g.deploy_status ELSE 'paused' END,
    'instances', LEAST(x.healthy, g.replicas)::int, g.replicas, g.paused_at IS NULL, r.created_at, NULL
FROM process_groups g JOIN rollouts r ON r.group_id = g.group_id AND r.number = g.last_rollout
CROSS JOIN LATERAL (SELECT count(*) AS healthy FROM instances i
    WHERE i.group_id = g.group_id AND i.release = g.release AND i.state = 'running' AND i.healthy) x
WHERE NOT g.converged AND g.deleted_at IS NULL AND g.replicas > 0
    AND g.deploy_status IN ('rolling', 'draining_first', 'stopping_first')
    AND ($1::text[] IS NULL OR g.group_id = ANY ($1))`

	progressRebalances = `
SELECT 'rebalance', 'rebalance', b.rebalance_id, b.rebalance_id, b.state, 'tenants moved', x.ended::int, x.moves::int,
    true, b.created_at,
    (SELECT jsonb_agg(jsonb_build_object('Kind', 'tenant', 'ID', u.tenant_id, 'Name', u.slug, 'State', u.state)
        ORDER BY u.seq)
    FROM (SELECT m.seq, m.tenant_id, t.slug, v.state FROM rebalance_moves m
        JOIN tenants t ON t.tenant_id = m.tenant_id
        LEFT JOIN tenant_moves v ON v.tenant_id = m.tenant_id AND v.finished_at IS NULL
        WHERE m.rebalance_id = b.rebalance_id AND m.state = 'moving' ORDER BY m.seq LIMIT 3) u)
FROM rebalances b CROSS JOIN LATERAL (
    SELECT count(*) AS moves, count(*) FILTER (WHERE state NOT IN ('waiting', 'moving')) AS ended
    FROM rebalance_moves WHERE rebalance_id = b.rebalance_id) x
WHERE b.state = 'running' AND ($1::text[] IS NULL OR b.rebalance_id = ANY ($1))`

	// What a customer sees of its moves does not depend on why the installation made them.
	progressOwnMoves = `
SELECT 'move' AS kind, 'tenant' AS subject_kind, m.tenant_id AS id, t.slug AS name, m.state, 'steps' AS unit,
    array_position('{queued,copying,frozen,switched}', m.state) - 1 AS done, 4 AS total, true AS running,
    COALESCE(m.started_at, m.created_at) AS since, NULL::jsonb AS current
FROM tenant_moves m JOIN tenants t ON t.tenant_id = m.tenant_id
WHERE m.finished_at IS NULL AND m.opened_at IS NULL AND ($1::text[] IS NULL OR m.tenant_id = ANY ($1))`

	sqlProgressOfOrgs = progressOwnMoves + ` UNION ALL ` + progressRestores + ` UNION ALL ` + progressRollouts +
		` ORDER BY since, kind, id LIMIT $2`

	sqlProgress = progressMaintenances + ` UNION ALL ` + progressWaves + ` UNION ALL ` + progressMoves +
		` UNION ALL ` + progressRestores + ` UNION ALL ` + progressReleases + ` UNION ALL ` + progressRollouts +
		` UNION ALL ` + progressRebalances + ` ORDER BY since, kind, id LIMIT $2`
)

// Progress returns what is being done that takes a while, the oldest first: of everything, or of some subjects by
// their ids.
func (s *Store) Progress(ctx context.Context, ids []string, limit int) (out []ops.Progress, err error) {
	type row struct {
		Kind, SubjectKind, ID, Name, State, Unit string
		Done, Total                              int
		Running                                  bool
		Since                                    time.Time
		Current                                  []byte
	}
	var subjects any // NULL for all
	if len(ids) > 0 {
		subjects = ids
	}
	sql := sqlProgress
	if access.OfCustomer(ctx) {
		sql = sqlProgressOfOrgs
	}
	rows, err := many[row](ctx, s.pool, sql, subjects, limit)
	if err != nil {
		return nil, failed("progress", err)
	}
	for _, r := range rows {
		p := ops.Progress{
			Kind: r.Kind, SubjectKind: r.SubjectKind, ID: r.ID, Name: r.Name, State: r.State, Unit: r.Unit,
			Done: r.Done, Total: r.Total, Running: r.Running, Since: r.Since,
		}
		if len(r.Current) > 0 {
			if err := json.Unmarshal(r.Current, &p.Current); err != nil {
				return nil, fmt.Errorf("progress of %s %s: %w", r.Kind, r.ID, err)
			}
		}
		out = append(out, p)
	}
	return out, nil
}
