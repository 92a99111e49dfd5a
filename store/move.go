package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

const moveColumns = `m.move_id, m.org_id, m.tenant_id, m.state, m.reason, m.message, m.why, m.wanted, m.wanted_shard, m.wanted_pool, m.moves_server, m.moves_shard, m.moves_pool, COALESCE(m.maintenance_of, '') AS maintenance_of, m.requested_by, m.site,
    m.from_server_id, COALESCE(m.to_server_id, '') AS to_server_id, COALESCE(m.from_shard_id, '') AS from_shard_id, COALESCE(m.to_shard_id, '') AS to_shard_id,
    COALESCE(m.from_pool_id, '') AS from_pool_id, COALESCE(m.to_pool_id, '') AS to_pool_id, m.from_region, m.to_region, m.copied_bytes, m.delta_bytes, (EXTRACT(EPOCH FROM m.opened_at - m.frozen_at) * 1000)::bigint AS downtime_ms,
    m.cancel_requested_at, m.created_at, m.started_at, m.frozen_at, m.switched_at, m.opened_at, m.finished_at`

const sqlOpenMove = `SELECT ` + moveColumns + ` FROM tenant_moves m WHERE m.tenant_id = $1 AND m.finished_at IS NULL`

const sqlRequestMove = `
INSERT INTO tenant_moves AS m (move_id, org_id, tenant_id, allocation_id, why, wanted, maintenance_of, requested_by, site, database_name, from_server_id,
    moves_server, moves_shard, moves_pool, wanted_shard, wanted_pool, from_region, to_region, from_shard_id, from_pool_id)
SELECT $1, t.org_id, t.tenant_id, a.allocation_id, $3, $4, NULLIF($5, ''), $6, t.site, a.database_name, a.app_server_id,
    $7, $8, $9, $10, $11, t.region, $12, a.db_shard_id, a.redis_pool_id
FROM tenants t JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL WHERE t.tenant_id = $2 RETURNING ` + moveColumns

// edgesLost: visitors reach the site on server s through the edges of its network, and could not on server w.
const edgesLost = `COALESCE(w.network_id, w.region) <> COALESCE(s.network_id, s.region)
    AND EXISTS (SELECT FROM servers e WHERE e.role = 'edge' AND e.status <> 'terminated' AND COALESCE(e.network_id, e.region) = COALESCE(s.network_id, s.region))
    AND NOT EXISTS (SELECT FROM servers e WHERE e.role = 'edge' AND e.status = 'active' AND COALESCE(e.network_id, e.region) = COALESCE(w.network_id, w.region))`

const sqlMovable = `
SELECT a.on_shard, s.role, t.region, a.app_server_id, a.db_shard_id, a.redis_pool_id,
    COALESCE((SELECT role FROM servers w WHERE w.server_id = $2), '') AS to_role,
    $5 <> '' AND NOT EXISTS (SELECT FROM db_shards d WHERE d.shard_id = $5) AS no_shard,
    $6 <> '' AND NOT EXISTS (SELECT FROM redis_pools r WHERE r.pool_id = $6) AS no_pool,
    a.app_server_id = $3 AS leaves_server, EXISTS (SELECT FROM db_shards d WHERE d.shard_id = a.db_shard_id AND d.server_id = $3) AS leaves_shard,
    EXISTS (SELECT FROM redis_pools r WHERE r.pool_id = a.redis_pool_id AND r.server_id = $3) AS leaves_pool,
    EXISTS (SELECT FROM servers w WHERE w.server_id = $2 AND ` + edgesLost + `) AS unserved_server,
    $4 NOT IN ('', t.region) AND EXISTS (SELECT FROM servers e WHERE e.role = 'edge' AND e.status <> 'terminated' AND COALESCE(e.network_id, e.region) = COALESCE(s.network_id, s.region))
        AND NOT EXISTS (SELECT FROM servers e WHERE e.role = 'edge' AND e.status = 'active' AND e.region = $4) AS unserved_region
FROM tenants t JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL JOIN servers s ON s.server_id = a.app_server_id WHERE t.tenant_id = $1`

// movable is where a tenant is, and the parts that must leave there.
type movable struct {
	OnShard                               bool
	Role, ToRole                          prego.Role
	Region                                prego.Region
	AppServerID                           prego.ServerID
	DBShardID                             prego.ShardID
	RedisPoolID                           prego.RedisPoolID
	LeavesServer, LeavesShard, LeavesPool bool
	UnservedServer, UnservedRegion        bool // visitors reach it where it is, and could not there
	NoShard, NoPool                       bool // there is none of the requested name
}

// parts are what moves: the requested parts, or the parts on a server that is being emptied. A node has
// all of a tenant or nothing.
func (at movable) parts(a tenant.MoveAsked) (app, shard, pool bool) {
	if at.Role != prego.RoleApp || at.ToRole == prego.RoleNode || a.Region != "" {
		return true, true, true
	}
	if a.MaintenanceOf != "" {
		return at.LeavesServer, at.LeavesShard, at.LeavesPool
	}
	return a.To != "" || a.Shard == "" && a.Pool == "", a.Shard != "", a.Pool != ""
}

// named is a target that is requested by name, or "".
func named[T ~string](target T) T {
	if target == tenant.AnyTarget {
		return ""
	}
	return target
}

// unserved refuses a place at which visitors would reach nothing.
func unserved(field string, id prego.TenantID, where string, region prego.Region) error {
	return &prego.Error{Code: prego.CodeNetworkWithoutEdges, Field: field, Message: fmt.Sprintf(
		"visitors reach tenant %s through edges, and %s has none that is active: make some first, as with prego fleet create edge-%s --role edge --region %s --min 2", id, where, region, region)}
}

// unknownTarget refuses a target that does not exist.
func unknownTarget(code prego.Code, field, what, id string) error {
	return &prego.Error{Code: code, Field: field, Message: fmt.Sprintf("there is no %s %q", what, id)}
}

// RequestMove accepts that a tenant moves, or parts of it. Repeating the request returns
// the move in progress, and another one is CodeMoveUnderWay. A tenant whose database is on its app server,
// because that is in no private network, is CodeTenantsCannotMove. A place without edges is
// CodeNetworkWithoutEdges for a tenant that has edges.
func (s *Store) RequestMove(ctx context.Context, a tenant.MoveAsked) (out tenant.Move, err error) {
	err = s.inTenant(ctx, "move tenant "+string(a.TenantID), a.TenantID, func(tx *txn, t tenantSite) error {
		out = got(requestMove(ctx, tx, a, t)).in(tx)
		return nil
	})
	return out, err
}

func requestMove(ctx context.Context, tx *txn, a tenant.MoveAsked, t tenantSite) (out tenant.Move, err error) {
	open := findIn[tenant.Move](ctx, tx, sqlOpenMove, a.TenantID)
	if !t.state.HasSite() && open == nil {
		return out, prego.Errorf(prego.CodeInvalidTransition, "tenant %s is %s: only a tenant with a site in use can be moved", a.TenantID, t.state)
	}
	to, toShard, toPool := named(a.To), named(a.Shard), named(a.Pool)
	at := oneIn[movable](ctx, tx, sqlMovable, a.TenantID, to, a.MaintenanceOf, a.Region, toShard, toPool)
	app, shard, pool := at.parts(a)
	where := &prego.Error{Code: prego.CodeInvalidField, Message: "is where the tenant is"}
	switch {
	case open != nil && open.Wanted == to && open.WantedShard == toShard && open.WantedPool == toPool && open.ToRegion == a.Region &&
		open.MovesServer == app && open.MovesShard == shard && open.MovesPool == pool && open.CancelRequestedAt == nil && open.State.Undoable():
		return *open, nil
	case open != nil:
		return out, prego.Errorf(prego.CodeMoveUnderWay, "tenant %s is moved from %s to %s already: move %s is %s", a.TenantID, open.FromServerID, open.ToServerID, open.MoveID, open.State)
	case to != "" && at.ToRole != prego.RoleApp && at.ToRole != prego.RoleNode:
		return out, unknownTarget(prego.CodeServerUnknown, "to_server_id", "app server", string(to))
	case at.NoShard:
		return out, unknownTarget(prego.CodeShardUnknown, "to_shard_id", "DB shard", string(toShard))
	case at.NoPool:
		return out, unknownTarget(prego.CodePoolUnknown, "to_pool_id", "Redis pool", string(toPool))
	case to != "" && to == at.AppServerID:
		where.Field = "to_server_id"
		return out, where
	case toShard != "" && toShard == at.DBShardID:
		where.Field = "to_shard_id"
		return out, where
	case toPool != "" && toPool == at.RedisPoolID:
		where.Field = "to_pool_id"
		return out, where
	case a.Region != "" && a.Region == at.Region:
		where.Field = "region"
		return out, where
	case at.UnservedRegion:
		return out, unserved("region", a.TenantID, "region "+string(a.Region), a.Region)
	case at.UnservedServer:
		return out, unserved("to_server_id", a.TenantID, "the network of server "+string(to), cmp.Or(a.Region, at.Region))
	case !at.OnShard && at.Role == prego.RoleApp:
		return out, prego.Errorf(prego.CodeTenantsCannotMove, "the database of tenant %s is on its app server %s, which is in no private network: restore it elsewhere from a backup", a.TenantID, t.server)
	case !app && !shard && !pool:
		return out, prego.Errorf(prego.CodeInvalidTransition, "tenant %s has nothing on server %s", a.TenantID, a.MaintenanceOf)
	}
	i := impact.Impact{Undo: "cancel it, or move it back", Seconds: tx.lasted(ctx, "move")}
	tx.demandsAs(ctx, i, string(a.TenantID), sqlOfTenant, impact.Moves)
	out = oneIn[tenant.Move](ctx, tx, sqlRequestMove, a.ID, a.TenantID, a.Why, to, a.MaintenanceOf, a.By, app, shard, pool, toShard, toPool, a.Region)
	tx.check(tenantEvent(ctx, tx, tenant.Event{TenantID: a.TenantID, Step: tenant.StepMoveRequested, Actor: a.By, Message: fmt.Sprintf("%s: from %s", a.ID, t.server)}, "move/"+string(a.ID)))
	asked := map[string]any{"tenant_id": a.TenantID, "to_server_id": to, "to_shard_id": toShard, "to_pool_id": toPool, "region": a.Region}
	return out, orgEvent(ctx, tx, org.Event{OrgID: t.org, Type: "move.create", Subject: string(a.ID), Actor: a.By}, asked)
}

const (
	sqlGetMove    = `SELECT ` + moveColumns + ` FROM tenant_moves m WHERE m.move_id = $1`
	sqlTenantMove = sqlGetMove + ` AND m.tenant_id = $2`
)

func noSuchMove(id prego.MoveID) error {
	return prego.Errorf(prego.CodeMoveNotFound, "there is no move %q of this tenant", id)
}

// GetMove reads one move of a tenant, or CodeMoveNotFound.
func (s *Store) GetMove(ctx context.Context, tenantID prego.TenantID, id prego.MoveID) (tenant.Move, error) {
	m, err := find[tenant.Move](ctx, s.pool, sqlTenantMove, id, tenantID)
	if err != nil || m != nil {
		return deref(m), failed("move "+string(id), err)
	}
	if err := s.tenantExists(ctx, tenantID); err != nil {
		return tenant.Move{}, err
	}
	return tenant.Move{}, noSuchMove(id)
}

// Moves is the list of moves.
var Moves = Listing[tenant.Move]{
	what: "moves", from: `SELECT ` + moveColumns + ` FROM tenant_moves m`,
	filters: map[string]string{"tenant_id": "m.tenant_id", "org_id": "m.org_id", "state": "m.state"},
	sorts:   map[string]string{"created_at": "m.created_at"},
	id:      "m.move_id",
}

const sqlCancelMove = `
UPDATE tenant_moves m SET cancel_requested_at = COALESCE(cancel_requested_at, now()), updated_at = now()
WHERE move_id = $1 AND tenant_id = $2 AND state IN ('queued', 'copying', 'frozen') RETURNING ` + moveColumns

// CancelMove requests that a move is undone. A move that has switched is CodeInvalidTransition: the
// way back is another move.
func (s *Store) CancelMove(ctx context.Context, tenantID prego.TenantID, id prego.MoveID) (m tenant.Move, err error) {
	err = s.inTx(ctx, "cancel move "+string(id), func(tx *txn) error {
		// A move that is accepted after this is not there: otherwise only the last statement would see it.
		tx.must(ctx, noSuchMove(id), sqlHoldMove, id)
		if asked := findIn[tenant.Move](ctx, tx, sqlCancelMove, id, tenantID); asked != nil {
			m = *asked
			return nil
		}
		if m = getIn[tenant.Move](ctx, tx, noSuchMove(id), sqlTenantMove, id, tenantID); m.State == tenant.MoveCancelled {
			return nil
		}
		return prego.Errorf(prego.CodeInvalidTransition, "move %s is %s: the way back is another move", id, m.State)
	})
	return m, err
}

// A lost server no longer answers: the steps of a move there count as done, as on a
// terminated.
const sqlMoveRecord = `
SELECT ` + moveColumns + `, m.allocation_id, m.database_name, m.data_archives, f.host AS from_host, COALESCE(host(f.private_address), '') AS from_address, CASE WHEN f.status_reason IN ('server_missing', 'server_lost') THEN 'terminated' ELSE f.status END AS from_status, f.role AS from_role,
    COALESCE(g.host, '') AS to_host, COALESCE(host(g.private_address), '') AS to_address, CASE WHEN g.status_reason IN ('server_missing', 'server_lost') THEN 'terminated' ELSE COALESCE(g.status, '') END AS to_status, COALESCE(g.role, '') AS to_role,
    COALESCE(COALESCE(f.network_id, f.region) <> COALESCE(g.network_id, g.region), false) AS crosses, m.returned_at IS NOT NULL AS returned,
    g.cordoned_at IS NOT NULL AND m.moves_server OR m.moves_shard AND COALESCE(tsh.cordoned_at IS NOT NULL OR tsh.status <> 'active', false)
        OR m.moves_pool AND COALESCE(tph.cordoned_at IS NOT NULL OR tph.status <> 'active', false) AS to_closed, t.state AS tenant_state,
    COALESCE(a.app_server_id, '') AS allocation_server, COALESCE(a.db_shard_id, '') AS allocation_shard, COALESCE(a.redis_pool_id, '') AS allocation_pool,
    COALESCE(b.on_shard AND m.switched_at IS NULL OR m.switched_at IS NOT NULL AND f.role = 'app', false) AS from_on_shard,
    COALESCE(b.on_pool AND m.switched_at IS NULL OR m.switched_at IS NOT NULL AND f.role = 'app' AND m.from_pool_id IS NOT NULL, false) AS from_on_pool,
    COALESCE(fsh.server_id, '') AS from_shard_server, COALESCE(fsh.host, '') AS from_shard_host, COALESCE(host(fsh.private_address), '') AS from_shard_address, CASE WHEN fsh.status_reason IN ('server_missing', 'server_lost') THEN 'terminated' ELSE COALESCE(fsh.status, '') END AS from_shard_status,
    COALESCE(tsh.server_id, '') AS to_shard_server, COALESCE(tsh.host, '') AS to_shard_host, COALESCE(host(tsh.private_address), '') AS to_shard_address, CASE WHEN tsh.status_reason IN ('server_missing', 'server_lost') THEN 'terminated' ELSE COALESCE(tsh.status, '') END AS to_shard_status,
    COALESCE(fph.server_id, '') AS from_pool_server, COALESCE(fph.host, '') AS from_pool_host, COALESCE(host(fph.private_address), '') AS from_pool_address, CASE WHEN fph.status_reason IN ('server_missing', 'server_lost') THEN 'terminated' ELSE COALESCE(fph.status, '') END AS from_pool_status,
    COALESCE(tph.server_id, '') AS to_pool_server, COALESCE(tph.host, '') AS to_pool_host, COALESCE(host(tph.private_address), '') AS to_pool_address, CASE WHEN tph.status_reason IN ('server_missing', 'server_lost') THEN 'terminated' ELSE COALESCE(tph.status, '') END AS to_pool_status
FROM tenant_moves m JOIN servers f ON f.server_id = m.from_server_id LEFT JOIN servers g ON g.server_id = m.to_server_id JOIN tenants t ON t.tenant_id = m.tenant_id
LEFT JOIN tenant_allocations b ON b.allocation_id = m.allocation_id LEFT JOIN tenant_allocations a ON a.allocation_id = m.allocation_id AND a.released_at IS NULL
LEFT JOIN db_shards fs ON fs.shard_id = COALESCE(m.from_shard_id, b.db_shard_id) LEFT JOIN servers fsh ON fsh.server_id = fs.server_id
LEFT JOIN db_shards ts ON ts.shard_id = m.to_shard_id LEFT JOIN servers tsh ON tsh.server_id = ts.server_id
LEFT JOIN redis_pools fp ON fp.pool_id = COALESCE(m.from_pool_id, b.redis_pool_id) LEFT JOIN servers fph ON fph.server_id = fp.server_id
LEFT JOIN redis_pools tp ON tp.pool_id = m.to_pool_id LEFT JOIN servers tph ON tph.server_id = tp.server_id
WHERE m.move_id = $1`

// MoveRecord reads a move for its run, or CodeMoveNotFound.
func (s *Store) MoveRecord(ctx context.Context, id prego.MoveID) (tenant.MoveRecord, error) {
	type row struct {
		tenant.MoveRecord
		FromShardServer, ToShardServer, FromPoolServer, ToPoolServer     prego.ServerID
		FromShardHost, ToShardHost, FromPoolHost, ToPoolHost             string
		FromShardAddress, ToShardAddress, FromPoolAddress, ToPoolAddress string
		FromShardStatus, ToShardStatus, FromPoolStatus, ToPoolStatus     server.Status
	}
	r, err := get[row](ctx, s.pool, noSuchMove(id), sqlMoveRecord, id)
	m := r.MoveRecord
	m.FromShard = tenant.DataHost{ServerID: r.FromShardServer, Host: r.FromShardHost, Address: r.FromShardAddress, Status: r.FromShardStatus}
	m.ToShard = tenant.DataHost{ServerID: r.ToShardServer, Host: r.ToShardHost, Address: r.ToShardAddress, Status: r.ToShardStatus}
	m.FromPool = tenant.DataHost{ServerID: r.FromPoolServer, Host: r.FromPoolHost, Address: r.FromPoolAddress, Status: r.FromPoolStatus}
	m.ToPool = tenant.DataHost{ServerID: r.ToPoolServer, Host: r.ToPoolHost, Address: r.ToPoolAddress, Status: r.ToPoolStatus}
	return m, err
}

// Held before a move is changed in some of its states only: an UPDATE that changes nothing waits for no other
// transaction, and a later read that explains this could see a newer state.
const sqlHoldMove = `SELECT state, cancel_requested_at IS NOT NULL AS cancelled, moves_server, moves_shard, moves_pool FROM tenant_moves WHERE move_id = $1 FOR NO KEY UPDATE`

// A separate statement also holds the servers of shard and pool. A transaction that places an instance or starts a
// release there holds them: it either came earlier and is seen, or sees the move.
const sqlHoldMoveServers = `
SELECT FROM servers WHERE server_id IN (SELECT from_server_id FROM tenant_moves WHERE move_id = $1 UNION SELECT $2
    UNION SELECT server_id FROM db_shards WHERE shard_id = $3 UNION SELECT server_id FROM redis_pools WHERE pool_id = $4) ORDER BY server_id FOR NO KEY UPDATE`

// The target is checked again, and a refusal here decides again. A server in no private network reaches nothing but
// itself.
const sqlReserveMove = `
UPDATE servers s SET tenant_count = s.tenant_count + 1, updated_at = now(),
    dedicated_for_tenant_id = CASE WHEN $3 THEN t.tenant_id ELSE s.dedicated_for_tenant_id END
FROM tenant_moves m JOIN tenants t ON t.tenant_id = m.tenant_id JOIN tenant_allocations a ON a.allocation_id = m.allocation_id AND a.released_at IS NULL
JOIN db_shards d ON d.shard_id = a.db_shard_id JOIN servers h ON h.server_id = d.server_id
WHERE m.move_id = $1 AND s.server_id = $2 AND s.server_id <> m.from_server_id AND a.app_server_id = m.from_server_id
  AND s.status = 'active' AND s.cordoned_at IS NULL AND s.region = COALESCE(NULLIF(m.to_region, ''), t.region)
  AND (s.role = 'app' AND s.private_address IS NOT NULL OR s.role = 'node' AND m.moves_shard AND m.moves_pool)
  AND (s.dedicated_for_tenant_id IS NULL OR s.dedicated_for_tenant_id = t.tenant_id)
  AND (s.tenant_count = 0 AND NOT runs_instances(s.server_id) OR NOT $3)
  AND ($4 OR s.tenant_count < $5 AND COALESCE(s.memory_pct, 0) < $6)
  AND s.bench_image = (SELECT f.bench_image FROM servers f WHERE f.server_id = m.from_server_id) -- what a newer image migrated opens with no older one
  AND NOT EXISTS (SELECT FROM stack_release_servers u WHERE u.server_id IN (s.server_id, m.from_server_id) AND u.status IN ('updating', 'broken'))
  AND (m.moves_shard OR network_of(s.network_id, s.private_address) IS NOT DISTINCT FROM network_of(h.network_id, h.private_address))
  AND NOT EXISTS (SELECT FROM (SELECT v.network_id, v.region FROM servers v WHERE v.server_id = $2) w, (SELECT v.network_id, v.region FROM servers v WHERE v.server_id = m.from_server_id) s WHERE ` + edgesLost + `)
  AND residency_allows(t.data_residency, s.region, s.infra_provider)
  AND tags_satisfy(s.tags, t.require_tags, t.disallow_tags)
  AND NOT EXISTS (SELECT FROM placement_pools_of(t.org_id) p WHERE NOT tags_satisfy(s.tags, p.require_tags, p.disallow_tags))`

// $3 is the app server that the tenant will be on.
const (
	sqlReserveMoveShard = `
UPDATE db_shards d SET current_tenant_count = d.current_tenant_count + 1, dedicated_for_tenant_id = CASE WHEN $4 THEN t.tenant_id ELSE d.dedicated_for_tenant_id END
FROM tenant_moves m JOIN tenants t ON t.tenant_id = m.tenant_id, servers s, servers h
WHERE m.move_id = $1 AND d.shard_id = $2 AND d.shard_id <> m.from_shard_id AND s.server_id = $3 AND h.server_id = d.server_id
  AND d.status = 'active' AND h.cordoned_at IS NULL AND d.region = s.region AND tier_lock_allows(t.plan, d.plan_tier_lock)
  AND (d.dedicated_for_tenant_id IS NULL OR d.dedicated_for_tenant_id = t.tenant_id) AND (d.current_tenant_count = 0 AND NOT runs_instances(h.server_id) OR NOT $4)
  AND ($5 OR d.current_tenant_count < d.tenant_capacity AND NOT has_reached(h.db_disk_pct, $6))
  AND (s.role = 'node') = d.on_node AND (NOT d.on_node OR d.server_id = s.server_id)
  AND (d.on_node OR h.private_address IS NOT NULL AND h.network_id = s.network_id)`
	sqlReserveMovePool = `
UPDATE redis_pools r SET current_tenants = r.current_tenants + 1, dedicated_for_tenant_id = CASE WHEN $4 THEN t.tenant_id ELSE r.dedicated_for_tenant_id END
FROM tenant_moves m JOIN tenants t ON t.tenant_id = m.tenant_id, servers s, servers h
WHERE m.move_id = $1 AND r.pool_id = $2 AND r.pool_id <> m.from_pool_id AND s.server_id = $3 AND h.server_id = r.server_id
  AND r.status = 'active' AND h.cordoned_at IS NULL AND r.region = s.region
  AND (r.dedicated_for_tenant_id IS NULL OR r.dedicated_for_tenant_id = t.tenant_id) AND (r.current_tenants = 0 AND NOT runs_instances(h.server_id) OR NOT $4)
  AND ($5 OR r.current_tenants < r.tenant_capacity AND NOT has_reached(h.redis_memory_pct, $6))
  AND (s.role = 'node') = r.on_node AND (NOT r.on_node OR r.server_id = s.server_id)
  AND (r.on_node OR h.private_address IS NOT NULL AND h.network_id = s.network_id)`
)

const sqlMovePlaced = `
UPDATE tenant_moves m SET state = 'copying', to_server_id = $2, started_at = now(), updated_at = now(), message = '',
    from_shard_id = COALESCE(m.from_shard_id, a.db_shard_id), from_pool_id = COALESCE(m.from_pool_id, a.redis_pool_id),
    to_shard_id = COALESCE(NULLIF($3, ''), a.db_shard_id), to_pool_id = COALESCE(NULLIF($4, ''), a.redis_pool_id)
FROM tenant_allocations a WHERE m.move_id = $1 AND m.state = 'queued' AND m.cancel_requested_at IS NULL AND a.allocation_id = m.allocation_id`

const sqlMoveDecision = `
INSERT INTO allocation_snapshots (tenant_id, allocation_id, outcome, algorithm, decision_log, policy_json, actor)
SELECT tenant_id, allocation_id, 'moved', $2, $3, $4, requested_by FROM tenant_moves WHERE move_id = $1`

// errLostPlace undoes the reservation of a place that is no longer fit.
var errLostPlace = errors.New("the place is taken")

// ReserveMove gives a move the place that was chosen for it. ok is false if a part of it is not
// fit any more: then another one is chosen. Repeated, it finds its place.
func (s *Store) ReserveMove(ctx context.Context, id prego.MoveID, p tenant.MovePlace) (ok bool, err error) {
	err = s.inTx(ctx, "reserve a place for move "+string(id), func(tx *txn) error {
		at, err := one[struct {
			State                              tenant.MoveState
			Cancelled                          bool
			MovesServer, MovesShard, MovesPool bool
		}](ctx, tx, sqlHoldMove, id)
		switch {
		case err != nil:
			return ifNoRows(err, noSuchMove(id))
		case at.State != tenant.MoveQueued:
			ok = true
			return nil
		case at.Cancelled:
			return server.ErrSuperseded
		}
		tx.run(ctx, sqlHoldMoveServers, id, p.ServerID, p.ShardID, p.PoolID)
		// The same order as a reservation.
		for _, part := range []struct {
			moves bool
			sql   string
			args  []any
		}{
			{at.MovesServer, sqlReserveMove, []any{id, p.ServerID, p.Dedicates, p.Override, p.MaxTenants, p.MemoryMax}},
			{at.MovesShard, sqlReserveMoveShard, []any{id, p.ShardID, p.ServerID, p.Alone, p.Override, p.DBDiskMax}},
			{at.MovesPool, sqlReserveMovePool, []any{id, p.PoolID, p.ServerID, p.OwnPool, p.Override, p.RedisMax}},
		} {
			if part.moves {
				tx.must(ctx, errLostPlace, part.sql, part.args...)
			}
		}
		shard, pool := p.ShardID, p.PoolID
		if !at.MovesShard {
			shard = ""
		}
		if !at.MovesPool {
			pool = ""
		}
		tx.run(ctx, sqlMovePlaced, id, p.ServerID, shard, pool)
		ok = true
		tx.run(ctx, sqlMoveDecision, id, p.Algorithm, json.RawMessage(p.Decision), json.RawMessage(p.Policy))
		return nil
	})
	if errors.Is(err, errLostPlace) {
		return false, nil
	}
	return ok, err
}

const sqlMoveCopied = `UPDATE tenant_moves SET copied_bytes = $2, data_archives = $3, updated_at = now() WHERE move_id = $1`

// MoveCopied records how much was copied while the site served, and in how many archives of its
// database.
func (s *Store) MoveCopied(ctx context.Context, id prego.MoveID, bytes int64, archives int) error {
	return s.exec(ctx, "move "+string(id), sqlMoveCopied, id, bytes, archives)
}

// Other work on the site has to end first, and later work waits (TenantRecord, held). A release that has
// not started waits for the move (sqlBenchWaits): so one of them goes first.
const sqlMoveWaitsFor = `
SELECT CASE WHEN t.state <> t.converged_state THEN 'its state is being changed'
    WHEN EXISTS (SELECT FROM restore_jobs j WHERE j.tenant_id = t.tenant_id AND j.status = 'running') THEN 'it is being restored'
    WHEN EXISTS (SELECT FROM snapshots j WHERE j.tenant_id = t.tenant_id AND j.status = 'running' AND has_place_on(j.tenant_id, j.server_id)) THEN 'a snapshot of it is being made'
    WHEN EXISTS (SELECT FROM stack_release_servers u WHERE u.server_id IN (m.from_server_id, m.to_server_id) AND (u.status = 'broken' OR u.status = 'updating' AND u.phase <> 'waiting')) THEN 'a release is being installed there'
    WHEN EXISTS (SELECT FROM backups b WHERE b.tenant_id = t.tenant_id AND b.state = 'making' AND has_place_on(b.tenant_id, b.server_id)) THEN 'a backup of it is being made' ELSE '' END
FROM tenant_moves m JOIN tenants t ON t.tenant_id = m.tenant_id WHERE m.move_id = $1`

const sqlFreezeMove = `
UPDATE tenant_moves m SET state = 'frozen', frozen_at = COALESCE(frozen_at, clock_timestamp()), updated_at = now() FROM tenants t, tenant_allocations a
WHERE m.move_id = $1 AND m.state IN ('copying', 'frozen') AND m.cancel_requested_at IS NULL AND t.tenant_id = m.tenant_id AND has_site(t.state)
  AND a.allocation_id = m.allocation_id AND a.released_at IS NULL AND a.app_server_id = m.from_server_id
  AND (m.from_shard_id IS NULL OR a.db_shard_id = m.from_shard_id AND a.redis_pool_id = m.from_pool_id)`

// FreezeMove records that the tenant's site is held from now on. waits names the work that has to end first,
// "" for nothing. server.ErrSuperseded: the tenant has no site there, or the move was cancelled.
func (s *Store) FreezeMove(ctx context.Context, id prego.MoveID) (waits string, err error) {
	err = s.inTx(ctx, "freeze for move "+string(id), func(tx *txn) error {
		// Held first: what began while this waited is seen, and what begins after sees that the site is held.
		tx.run(ctx, sqlHoldMoved, id)
		if waits = valueOr[string](ctx, tx, noSuchMove(id), sqlMoveWaitsFor, id); waits == "" {
			tx.must(ctx, server.ErrSuperseded, sqlFreezeMove, id)
		}
		return nil
	})
	return waits, err
}

// Held before the move, in the order of loseTenants. A transaction that accepted work for the site's place also
// holds the tenant, and its row is there or names the new server.
const sqlHoldMoved = `SELECT FROM tenants WHERE tenant_id = (SELECT tenant_id FROM tenant_moves WHERE move_id = $1) FOR NO KEY UPDATE`

const (
	sqlSwitchMove = `
UPDATE tenant_moves SET state = 'switched', switched_at = now(), updated_at = now(), delta_bytes = $2
WHERE move_id = $1 AND state = 'frozen' AND cancel_requested_at IS NULL AND returned_at IS NULL`
	sqlSwitchAllocation = `
UPDATE tenant_allocations a SET app_server_id = m.to_server_id, pool_site_id = NULL, infra_provider = s.infra_provider,
    db_shard_id = COALESCE(m.to_shard_id, a.db_shard_id), redis_pool_id = COALESCE(m.to_pool_id, a.redis_pool_id),
    on_shard = CASE WHEN m.moves_shard THEN s.role = 'app' ELSE a.on_shard END, on_pool = CASE WHEN m.moves_pool THEN s.role = 'app' ELSE a.on_pool END
FROM tenant_moves m JOIN servers s ON s.server_id = m.to_server_id
WHERE m.move_id = $1 AND a.allocation_id = m.allocation_id AND a.released_at IS NULL AND a.app_server_id = m.from_server_id
  AND (m.from_shard_id IS NULL OR a.db_shard_id = m.from_shard_id AND a.redis_pool_id = m.from_pool_id)`
	sqlSwitchRegion = `UPDATE tenants t SET region = m.to_region, updated_at = now() FROM tenant_moves m WHERE m.move_id = $1 AND t.tenant_id = m.tenant_id AND m.to_region <> ''`
	// A site of the pool leaves it; its name and its database now belong to the tenant.
	sqlForgetMovedSite = `DELETE FROM site_pool p USING tenant_moves m WHERE m.move_id = $1 AND p.tenant_id = m.tenant_id AND p.app_server_id = m.from_server_id`
	// Snapshots are in the site's directory, and came along.
	sqlMoveSnapshots = `
UPDATE snapshots n SET server_id = m.to_server_id FROM tenant_moves m WHERE m.move_id = $1 AND n.tenant_id = m.tenant_id AND n.server_id = m.from_server_id AND n.erased_at IS NULL`
	sqlHasSwitched = `SELECT EXISTS (SELECT FROM tenant_moves WHERE move_id = $1 AND switched_at IS NOT NULL)`
)

// SwitchMove makes the new server the tenant's: from here on there is no way back but another
// move. Repeated, it is the same success; server.ErrSuperseded if the move was cancelled, or the tenant
// has no place any more.
func (s *Store) SwitchMove(ctx context.Context, id prego.MoveID, delta int64) error {
	return s.inTx(ctx, "switch move "+string(id), func(tx *txn) error {
		tx.run(ctx, sqlHoldMoved, id)
		if !tx.run(ctx, sqlSwitchMove, id, delta) {
			return doneBefore(ctx, tx, server.ErrSuperseded, sqlHasSwitched, id)
		}
		tx.must(ctx, server.ErrSuperseded, sqlSwitchAllocation, id)
		for _, sql := range []string{sqlSwitchRegion, sqlForgetMovedSite, sqlMoveSnapshots} {
			tx.run(ctx, sql, id)
		}
		m := oneIn[tenant.Move](ctx, tx, sqlGetMove, id)
		return tenantEvent(ctx, tx, tenant.Event{TenantID: m.TenantID, Step: tenant.StepMoved, Message: fmt.Sprintf("%s: from %s to %s", id, m.From(), m.To())}, "moved/"+string(id))
	})
}

const sqlMoveOpened = `UPDATE tenant_moves SET opened_at = COALESCE(opened_at, clock_timestamp()), updated_at = now() WHERE move_id = $1 AND state = 'switched'`

// MoveOpened records that the site can be written to at its new place.
func (s *Store) MoveOpened(ctx context.Context, id prego.MoveID) error {
	return s.exec(ctx, "move "+string(id), sqlMoveOpened, id)
}

const (
	sqlFinishMove = `
UPDATE tenant_moves SET state = $2, reason = $3, message = COALESCE(NULLIF($4, ''), message), finished_at = now(), updated_at = now() WHERE move_id = $1 AND finished_at IS NULL
  AND (state = 'switched') = ($2 = 'done') RETURNING tenant_id,
    CASE WHEN NOT moves_server THEN '' WHEN state = 'done' THEN from_server_id ELSE COALESCE(to_server_id, '') END AS server_id,
    CASE WHEN NOT moves_shard THEN '' WHEN state = 'done' THEN from_shard_id ELSE COALESCE(to_shard_id, '') END AS shard_id,
    CASE WHEN NOT moves_pool THEN '' WHEN state = 'done' THEN from_pool_id ELSE COALESCE(to_pool_id, '') END AS pool_id`
	sqlLeaveMoveServer = `
UPDATE servers SET tenant_count = tenant_count - 1, updated_at = now(),
    dedicated_for_tenant_id = CASE WHEN EXISTS (SELECT FROM tenant_allocations WHERE app_server_id = $1 AND tenant_id = $2 AND released_at IS NULL) -- restored there, after the other one was lost
        THEN dedicated_for_tenant_id ELSE NULLIF(dedicated_for_tenant_id, $2) END
WHERE server_id = $1`
)

// FinishMove ends a move: done, and what it had is given back where it was, or failed or
// cancelled, and its reservation is. Repeated, it returns how it ended; so it does with a move that
// can't end like that. CodeMoveNotFound if there is none.
func (s *Store) FinishMove(ctx context.Context, id prego.MoveID, state tenant.MoveState, reason prego.Reason, message string) (out tenant.Move, err error) {
	err = s.inTx(ctx, "finish move "+string(id), func(tx *txn) error {
		tx.must(ctx, noSuchMove(id), sqlHoldMove, id)
		left := findIn[struct {
			ServerID prego.ServerID
			ShardID  prego.ShardID
			PoolID   prego.RedisPoolID
			TenantID prego.TenantID
		}](ctx, tx, sqlFinishMove, id, state, reason, prego.Redact(message))
		if left != nil {
			// Held first: a transaction that gives the tenant its place there again also holds it, and is seen.
			tx.run(ctx, sqlHoldServer, left.ServerID)
			for _, part := range [][2]string{{string(left.ServerID), sqlLeaveMoveServer}, {string(left.ShardID), sqlReleaseShard}, {string(left.PoolID), sqlReleasePool}} {
				if part[0] != "" {
					tx.run(ctx, part[1], part[0], left.TenantID)
				}
			}
		}
		out = getIn[tenant.Move](ctx, tx, noSuchMove(id), sqlGetMove, id)
		if left == nil {
			return nil
		}
		step := map[tenant.MoveState]tenant.Step{tenant.MoveDone: tenant.StepMoveCleared, tenant.MoveFailed: tenant.StepMoveFailed, tenant.MoveCancelled: tenant.StepMoveCancelled}[state]
		return tenantEvent(ctx, tx, tenant.Event{TenantID: left.TenantID, Step: step, Reason: string(reason), Message: fmt.Sprintf("%s: %s", id, out.Message)}, string(step)+"/"+string(id))
	})
	return out, err
}
