package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

const sqlTenantRecord = `
SELECT t.*, now() AS now,
       COALESCE(a.allocation_id, 0) AS allocation_id, COALESCE(a.app_server_id, '') AS app_server_id, COALESCE(a.db_shard_id, '') AS db_shard_id,
       COALESCE(a.redis_pool_id, '') AS redis_pool_id, COALESCE(a.pool_site_id, '') AS pool_site_id, COALESCE(a.site_name, '') AS site_name,
       COALESCE(a.database_name, '') AS database_name, COALESCE(a.infra_provider, '') AS infra_provider, COALESCE(a.algorithm, '') AS algorithm, COALESCE(a.dedicated, false) AS dedicated,
       COALESCE(a.on_shard, false) AS on_shard, COALESCE(a.on_pool, false) AS on_pool, COALESCE(a.password_version, 0) AS password_version,
       COALESCE(host(s.private_address), '') AS app_server_address,
       COALESCE(dh.server_id, '') AS shard_server_id, COALESCE(dh.host, '') AS shard_host, COALESCE(host(dh.private_address), '') AS shard_address, COALESCE(dh.status, '') AS shard_status,
       COALESCE(rh.server_id, '') AS pool_server_id, COALESCE(rh.host, '') AS pool_host, COALESCE(host(rh.private_address), '') AS pool_address, COALESCE(rh.status, '') AS pool_status,
       COALESCE(a.on_pool AND EXISTS (SELECT FROM tenant_allocations k JOIN tenants kt ON kt.tenant_id = k.tenant_id AND kt.state = 'active'
           WHERE k.app_server_id = a.app_server_id AND k.redis_pool_id = a.redis_pool_id AND k.on_pool AND k.released_at IS NULL AND k.allocation_id <> a.allocation_id), false) AS pool_known,
       COALESCE(s.host, '') AS app_server_host, COALESCE(s.status, '') AS app_server_status, COALESCE(u.level, 'ok') AS storage_level, COALESCE(u.read_only, false) AS read_only,
       ` + offlineForRelease + ` AS updating,
       COALESCE(o.server_id, '') AS own_server_id, COALESCE(o.status, '') AS own_server_status, COALESCE(o.status_reason, '') AS own_server_reason,
       EXISTS (SELECT FROM tenant_moves m WHERE m.tenant_id = t.tenant_id AND m.allocation_id = a.allocation_id AND (m.state = 'frozen' OR m.state = 'switched' AND m.opened_at IS NULL)) AS held,
       EXISTS (SELECT FROM tenant_moves m WHERE m.tenant_id = t.tenant_id AND m.finished_at IS NULL) AS moving,
       EXISTS (SELECT FROM ` + liveEdges + ` WHERE e.network = COALESCE(s.network_id, s.region)) AS edge_lives,
       EXISTS (SELECT FROM tenants q WHERE q.region = t.region AND q.waiting_since IS NOT NULL AND q.tenant_id <> t.tenant_id AND q.policy = t.policy AND q.status_reason <> 'cell_mismatch') AS queued,
       COALESCE((SELECT jsonb_agg(jsonb_build_object('name', p.name, 'require', p.require_tags, 'disallow', p.disallow_tags) ORDER BY p.pool_id) FROM placement_pools_of(t.org_id) p), '[]') AS pools
FROM (SELECT ` + tenantColumns + `, COALESCE(waiting_network, '') AS waiting_network
    FROM tenants WHERE tenant_id = $1) t
LEFT JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
LEFT JOIN servers s ON s.server_id = a.app_server_id
LEFT JOIN db_shards d ON d.shard_id = a.db_shard_id
LEFT JOIN servers dh ON dh.server_id = d.server_id
LEFT JOIN redis_pools r ON r.pool_id = a.redis_pool_id
LEFT JOIN servers rh ON rh.server_id = r.server_id
LEFT JOIN site_usage u ON u.tenant_id = t.tenant_id
LEFT JOIN LATERAL (SELECT server_id, status, status_reason FROM servers WHERE dedicated_for_tenant_id = t.tenant_id AND role = 'node'
    AND status <> 'terminated' AND server_id IS DISTINCT FROM a.app_server_id ORDER BY created_at DESC LIMIT 1) o ON true`

// TenantRecord reads a tenant with its allocation and its own server, or
// CodeTenantNotFound.
func (s *Store) TenantRecord(ctx context.Context, id prego.TenantID) (tenant.Record, error) {
	type row struct {
		tenant.Record
		AllocationID                       int64
		AppServerID                        prego.ServerID
		DBShardID                          prego.ShardID
		RedisPoolID                        prego.RedisPoolID
		PoolSiteID, SiteName, DatabaseName string
		InfraProvider                      prego.InfraProviderID
		Algorithm                          string
		Dedicated                          bool
		OnShard, OnPool                    bool
		PasswordVersion                    int

		ShardServerID, PoolServerID prego.ServerID
		ShardHost, ShardAddress     string
		ShardStatus, PoolStatus     server.Status
		PoolHost, PoolAddress       string
	}
	r, err := get[row](ctx, s.pool, noSuchTenant(string(id)), sqlTenantRecord, id)
	if r.AllocationID != 0 {
		r.Allocation = &tenant.Allocation{
			AllocationID: r.AllocationID, TenantID: r.TenantID, AppServerID: r.AppServerID, DBShardID: r.DBShardID, RedisPoolID: r.RedisPoolID, PoolSiteID: r.PoolSiteID,
			SiteName: r.SiteName, DatabaseName: r.DatabaseName, InfraProvider: r.InfraProvider, Algorithm: r.Algorithm, Dedicated: r.Dedicated,
			OnShard: r.OnShard, OnPool: r.OnPool, PasswordVersion: r.PasswordVersion,
		}
	}
	r.Shard = tenant.DataHost{ServerID: r.ShardServerID, Host: r.ShardHost, Address: r.ShardAddress, Status: r.ShardStatus}
	r.Pool = tenant.DataHost{ServerID: r.PoolServerID, Host: r.PoolHost, Address: r.PoolAddress, Status: r.PoolStatus}
	r.Waiting, r.CancelRequested = r.WaitingSince != nil, r.CancelRequestedAt != nil
	return r.Record, err
}

// tenantStep runs an UPDATE of a tenant's row and adds an event to its timeline; if no row
// matched it returns none.
func (s *Store) tenantStep(ctx context.Context, e tenant.Event, dedupKey string, none error, sql string, args ...any) error {
	note := func(tx *txn) error { return tenantEvent(ctx, tx, e, dedupKey) }
	return s.changeThen(ctx, fmt.Sprintf("%s of tenant %s", e.Step, e.TenantID), none, note, sql, args...)
}

// A tenant that starts to wait is provisioning (placement-policy §3), from any
// state. from is the previous state. Continued waiting is no sign of a run: the sweep
// goes by updated_at when it looks for lost runs.
const sqlAwaitTenant = `
UPDATE tenants n SET state = 'provisioning', status_reason = $3, status_message = $4, waiting_roles = $5, waiting_network = NULLIF($7, ''),
    updated_at = CASE WHEN $6 AND n.waiting_since IS NOT NULL THEN n.updated_at ELSE now() END,
    waiting_since = CASE WHEN $6 THEN COALESCE(n.waiting_since, now()) END
FROM (SELECT tenant_id, state FROM tenants WHERE tenant_id = $1 FOR NO KEY UPDATE) o
WHERE n.tenant_id = o.tenant_id AND n.generation = $2 AND n.state IN ('trial', 'provisioning') AND n.cancel_requested_at IS NULL
RETURNING o.state`

// Read with the tenant's row held: a reservation also holds it.
const sqlIsPlaced = `SELECT EXISTS (SELECT FROM tenant_allocations WHERE tenant_id = $1 AND released_at IS NULL)`

// ErrPlaced is that a tenant which should wait was placed meanwhile.
var ErrPlaced = errors.New("the tenant is placed")

// AwaitTenant records what a tenant waits for. queued puts it into the queue of
// tenants short of capacity, at the place that it had if it was there; servers of
// these roles in this private network, or in any if that is "", would give it a place. A
// tenant that was placed meanwhile waits for nothing: that is ErrPlaced.
func (s *Store) AwaitTenant(ctx context.Context, ref tenant.Ref, reason prego.Reason, message string, roles []prego.Role, network prego.NetworkID, queued bool) error {
	return s.inTx(ctx, fmt.Sprintf("tenant %s waits", ref.TenantID), func(tx *txn) error {
		from := valueOr[tenant.State](ctx, tx, server.ErrSuperseded, sqlAwaitTenant, ref.TenantID, ref.Generation, reason, message, filled(roles), queued, network)
		if valueIn[bool](ctx, tx, sqlIsPlaced, ref.TenantID) {
			return ErrPlaced
		}
		step := tenant.Step(reason)
		if reason == prego.ReasonBuildingServer {
			step = tenant.StepServerRequested
		}
		return tenantEvent(ctx, tx, tenant.Event{TenantID: ref.TenantID, FromState: from, Step: step, Reason: string(reason), Message: message},
			fmt.Sprintf("%s/g%d", step, ref.Generation))
	})
}

const sqlSiteReady = `UPDATE tenants SET site = $3, updated_at = now() WHERE tenant_id = $1 AND generation = $2 AND state = 'provisioning'`

// SiteReady records the tenant's site, promoted from a pool or made on demand.
func (s *Store) SiteReady(ctx context.Context, ref tenant.Ref, site string, step tenant.Step) error {
	return s.tenantStep(ctx, tenant.Event{TenantID: ref.TenantID, Step: step, Message: site}, fmt.Sprintf("%s/g%d", step, ref.Generation),
		server.ErrSuperseded, sqlSiteReady, ref.TenantID, ref.Generation, site)
}

// SiteRestored records where a tenant's site stands, restored and compared with its backup. Until it has the tenant's
// name it is under another one, and what the tenant has lost is where it was.
func (s *Store) SiteRestored(ctx context.Context, ref tenant.Ref, site string, e tenant.Event) error {
	return s.tenantStep(ctx, e, fmt.Sprintf("%s/g%d", e.Step, ref.Generation), server.ErrSuperseded, sqlSiteReady, ref.TenantID, ref.Generation, site)
}

// siteOpens is whether the site of tenant t is open: a live edge of its network found it up since it was built, by a
// document that the others get. Without a live edge there is nothing to wait for. After a failover the clock may be
// behind by moments, and no earlier site was found up that late.
const siteOpens = `EXISTS (SELECT FROM ` + probedNow + `
        WHERE h.tenant_id = t.tenant_id AND h.up AND h.since > t.opening_since - interval '3 seconds'
            AND NOT ` + edgeHolds + `)
    OR NOT EXISTS (SELECT FROM tenant_allocations a JOIN servers s ON s.server_id = a.app_server_id
        JOIN (` + liveEdges + `) ON e.network = COALESCE(s.network_id, s.region)
        WHERE a.tenant_id = t.tenant_id AND a.released_at IS NULL)`

// From its activation on a site is measured. Until an edge has opened it, it is only in the edges' documents, and each
// look is a sign of the run. A tenant that is suspended again has no site to open.
// The site is the tenant's name if it was not recorded before.
const sqlActivateTenant = `
WITH was AS (
    SELECT b.backup_id, b.taken_at, l.loss_id, COALESCE(l.state, 'active') AS state, l.deadline_at,
        l.state IS NOT DISTINCT FROM 'suspended' OR ` + siteOpens + ` AS opens
    FROM tenants t LEFT JOIN tenant_losses l ON l.tenant_id = t.tenant_id AND l.restored_at IS NULL LEFT JOIN backups b ON b.backup_id = t.restore_from WHERE t.tenant_id = $1
), active AS (
    UPDATE tenants t SET state = was.state, converged_state = CASE was.state WHEN 'suspended' THEN '' ELSE was.state END, status_reason = '', status_message = '',
        active_at = COALESCE(active_at, now()), waiting_since = NULL, waiting_roles = '{}', updated_at = now(), lost_at = NULL, restore_from = NULL,
        deadline_at = COALESCE(was.deadline_at, CASE WHEN plan = 'trial' AND $3 > 0 THEN now() + make_interval(secs => $3) END),
        site = COALESCE(NULLIF($4, ''), site), opening_since = NULL
    FROM was
    WHERE was.opens AND ` + mayOpen + `
    RETURNING tenant_id, org_id, site, storage_quota_gb, t.state, EXTRACT(EPOCH FROM now() - created_at)::float8 AS seconds
), opening AS (
    UPDATE tenants t SET opening_since = COALESCE(opening_since, now()), updated_at = now(),
        site = COALESCE(NULLIF($4, ''), site)
    FROM was
    WHERE NOT was.opens AND ` + mayOpen + `
    RETURNING tenant_id, org_id, site
), built AS (
    SELECT tenant_id, org_id, site, state FROM active UNION ALL SELECT tenant_id, org_id, site, '' FROM opening
), measured AS ( -- the site's turn to be measured comes at once
    INSERT INTO site_usage (tenant_id, quota_gb, tried_at) SELECT tenant_id, storage_quota_gb, 'epoch' FROM active ON CONFLICT (tenant_id) DO NOTHING
), assigned AS (
    UPDATE site_pool p SET state = 'assigned', site_name = a.site, reserved_until = NULL, updated_at = now()
    FROM built a WHERE p.tenant_id = a.tenant_id AND p.state = 'reserved'
), back AS (
    UPDATE tenant_losses l SET restored_at = now(), backup_id = was.backup_id, taken_at = was.taken_at FROM was, active WHERE l.loss_id = was.loss_id
), job AS (
    UPDATE restore_jobs j SET status = 'succeeded', finished_at = now() FROM built a
    WHERE j.tenant_id = a.tenant_id AND j.elsewhere AND j.status IN ('queued', 'running')
), noted AS (
    INSERT INTO events (kind, id, org_id, from_status, status, step, actor, message, dedup_key)
    SELECT 'tenant', tenant_id, org_id, 'provisioning', CASE e.state WHEN 'active' THEN b.state ELSE e.state END,
        e.step, 'workflow', e.message, e.key
    FROM built b,
        unnest($5::text[], $6::text[], $7::text[], $8::text[]) WITH ORDINALITY e (step, state, message, key, n)
    WHERE e.state <> 'active' OR b.state <> '' ORDER BY e.n
    ` + onceByKey + `
)
SELECT seconds, true AS open FROM active UNION ALL SELECT 0, false FROM opening`

const mayOpen = `tenant_id = $1 AND generation = $2 AND t.state = 'provisioning' AND cancel_requested_at IS NULL
        AND (lost_at IS NULL OR restore_from IS NOT NULL)`

const sqlTenantIsActive = `SELECT EXISTS (SELECT FROM tenants WHERE tenant_id = $1 AND generation = $2 AND has_site(state))`

// ErrNotOpen means that a tenant's site is built, and no edge has opened it yet.
var ErrNotOpen = errors.New("no edge has opened the site yet")

// ActivateTenant is the final transition of a tenant's provisioning, with one UPDATE. done
// are the steps that it completes, for the timeline; a step that names the origin of
// its site names the site. It returns the seconds since the request; a repeated call is the
// same success. With ErrNotOpen, edges serve the site from now on, and the call is repeated
// when one has found it up.
func (s *Store) ActivateTenant(ctx context.Context, ref tenant.Ref, trial time.Duration, done ...tenant.Event) (seconds float64, err error) {
	var site string
	var steps, states, messages, keys []string
	add := func(step tenant.Step, state tenant.State, message, key string) {
		steps, states, messages = append(steps, string(step)), append(states, string(state)), append(messages, prego.Redact(message))
		keys = append(keys, fmt.Sprintf("%s/g%d", key, ref.Generation))
	}
	for _, e := range done {
		if e.Step == tenant.StepSitePromoted || e.Step == tenant.StepSiteCreated {
			site = e.Message
		}
		add(e.Step, tenant.Provisioning, e.Message, string(e.Step))
	}
	add(tenant.StepChanged, tenant.Active, "", "active")
	now, err := one[activation](ctx, s.pool, sqlActivateTenant,
		ref.TenantID, ref.Generation, trial.Seconds(), site, steps, states, messages, keys)
	switch {
	case isNoRows(err):
		// Looked up by a separate statement, which sees a concurrent commit.
		err = doneBefore(ctx, s.pool, server.ErrSuperseded, sqlTenantIsActive, ref.TenantID, ref.Generation)
	case err == nil && !now.Open:
		err = ErrNotOpen
	}
	return now.Seconds, failed(fmt.Sprintf("activate tenant %s", ref.TenantID), err)
}

type activation struct {
	Seconds float64
	Open    bool
}

// Why each live edge has not opened a tenant's site.
const sqlNotOpen = `
UPDATE tenants t SET status_reason = $3, status_message = w.message
FROM (SELECT COALESCE(string_agg('edge ' || e.server_id || CASE
            WHEN o.reason IS NOT NULL THEN ' refuses its name: ' || o.reason
            WHEN e.refused_version > e.version THEN ' refuses its document: ' || e.refused_reason
            WHEN ` + edgeHolds + ` THEN ' alone has a document that closes sites which answer'
            WHEN NOT h.up THEN ' gets no answer from it: ' || h.cause
            ELSE ' has not found it up yet' END, '; ' ORDER BY e.server_id), '') AS message
    FROM tenants n JOIN tenant_allocations a ON a.tenant_id = n.tenant_id AND a.released_at IS NULL
    JOIN servers s ON s.server_id = a.app_server_id
    JOIN (` + liveEdges + `) ON e.network = COALESCE(s.network_id, s.region)
    LEFT JOIN edge_left_out o ON o.server_id = e.server_id AND o.kind = 'host' AND o.name = n.site
        AND o.tenant_id = n.tenant_id
    LEFT JOIN site_health h ON h.server_id = e.server_id AND h.tenant_id = n.tenant_id AND h.since >= n.opening_since
    WHERE n.tenant_id = $1) w
WHERE t.tenant_id = $1 AND t.generation = $2 AND t.opening_since IS NOT NULL
  AND (t.status_reason, t.status_message) <> ($3, w.message)
RETURNING t.status_message`

// NotOpen records why no edge has opened a tenant's site, on its timeline once.
func (s *Store) NotOpen(ctx context.Context, ref tenant.Ref) error {
	return s.inTx(ctx, fmt.Sprintf("tenant %s is not open", ref.TenantID), func(tx *txn) error {
		why, err := value[string](ctx, tx, sqlNotOpen, ref.TenantID, ref.Generation, prego.ReasonAwaitingEdge)
		if err != nil {
			return ifNoRows(err, nil)
		}
		return tenantEvent(ctx, tx, tenant.Event{
			TenantID: ref.TenantID, Step: tenant.StepAwaitingEdge, Reason: string(prego.ReasonAwaitingEdge), Message: why,
		}, fmt.Sprintf("%s/g%d", tenant.StepAwaitingEdge, ref.Generation))
	})
}

const (
	// What a tenant's row has after its provisioning failed, besides the reason.
	setFailed = `state = 'failed', converged_state = 'failed', waiting_since = NULL, waiting_roles = '{}',
    site = '', opening_since = NULL, deadline_at = NULL, updated_at = now()`

	sqlFailTenant = `
UPDATE tenants n SET status_reason = $3, status_message = $4, ` + setFailed + `
FROM (SELECT tenant_id, state FROM tenants WHERE tenant_id = $1 FOR NO KEY UPDATE) o
WHERE n.tenant_id = o.tenant_id AND n.generation = $2 AND n.state IN ('trial', 'provisioning')
RETURNING o.state`
)

// FailTenant ends a tenant's provisioning; it changes nothing when the row has
// moved on.
func (s *Store) FailTenant(ctx context.Context, ref tenant.Ref, reason prego.Reason, message string) error {
	return s.inTx(ctx, fmt.Sprintf("fail tenant %s", ref.TenantID), func(tx *txn) error {
		return failTenant(ctx, tx, ref, reason, message)
	})
}

func failTenant(ctx context.Context, tx *txn, ref tenant.Ref, reason prego.Reason, message string) error {
	from, err := value[tenant.State](ctx, tx, sqlFailTenant, ref.TenantID, ref.Generation, reason,
		prego.Redact(message))
	if err != nil {
		return ifNoRows(err, nil)
	}
	tx.run(ctx, sqlEndRestores, []prego.TenantID{ref.TenantID}, prego.Redact(message))
	if from == tenant.Trial { // there is no edge from trial to failed
		began := tenant.Event{
			TenantID: ref.TenantID, FromState: tenant.Trial, ToState: tenant.Provisioning, Step: tenant.StepChanged, Reason: string(reason),
		}
		tx.check(tenantEvent(ctx, tx, began, fmt.Sprintf("began/g%d", ref.Generation)))
	}
	return tenantEvent(ctx, tx, tenant.Event{
		TenantID: ref.TenantID, FromState: tenant.Provisioning, Step: tenant.StepChanged, Reason: string(reason), Message: message,
	}, fmt.Sprintf("failed/g%d", ref.Generation))
}

const (
	// Tenant t waits for capacity and has nothing that a run would undo: no place, server or site. With its row held it
	// gets none.
	hasNothing = `t.waiting_since IS NOT NULL AND t.state = 'provisioning'
    AND NOT EXISTS (SELECT FROM tenant_allocations a WHERE a.tenant_id = t.tenant_id AND a.released_at IS NULL)
    AND NOT EXISTS (SELECT FROM servers s
        WHERE s.dedicated_for_tenant_id = t.tenant_id AND s.status <> 'terminated')
    AND NOT EXISTS (SELECT FROM site_pool p WHERE p.tenant_id = t.tenant_id)`

	sqlHoldQueued = `
SELECT ` + hasNothing + ` FROM tenants t WHERE t.tenant_id = $1 AND t.generation = $2 FOR NO KEY UPDATE`
)

// FailQueued is FailTenant for a tenant that waits for capacity without a run, since it has nothing that a run would
// undo. It changes nothing if the tenant has something by now.
func (s *Store) FailQueued(ctx context.Context, ref tenant.Ref, reason prego.Reason, message string) (ended bool,
	err error,
) {
	err = s.inTx(ctx, fmt.Sprintf("end waiting tenant %s", ref.TenantID), func(tx *txn) error {
		ended, err = failQueued(ctx, tx, ref, reason, message)
		return err
	})
	return ended && err == nil, err
}

func failQueued(ctx context.Context, tx *txn, ref tenant.Ref, reason prego.Reason, message string) (bool, error) {
	queued, err := value[bool](ctx, tx, sqlHoldQueued, ref.TenantID, ref.Generation)
	if err != nil || !queued {
		return false, ifNoRows(err, nil)
	}
	return true, failTenant(ctx, tx, ref, reason, message)
}

const sqlReleaseAllocation = `
UPDATE tenant_allocations SET released_at = now(), release_reason = $2 WHERE tenant_id = $1 AND released_at IS NULL
RETURNING app_server_id, db_shard_id, redis_pool_id, COALESCE(pool_site_id, '')`

const sqlReleaseServer = `
UPDATE servers SET tenant_count = tenant_count - 1, updated_at = now(),
    dedicated_for_tenant_id = CASE WHEN dedicated_for_tenant_id = $2 AND NOT $3 THEN NULL ELSE dedicated_for_tenant_id END
WHERE server_id = $1`

// A tenant that has its place there again, after it was lost where it had moved to, keeps the shard to itself, and the
// pool.
const sqlReleaseShard = `
UPDATE db_shards SET current_tenant_count = current_tenant_count - 1,
    dedicated_for_tenant_id = CASE WHEN EXISTS (SELECT FROM tenant_allocations WHERE db_shard_id = $1 AND tenant_id = $2 AND released_at IS NULL)
        THEN dedicated_for_tenant_id ELSE NULLIF(dedicated_for_tenant_id, $2) END WHERE shard_id = $1`

const sqlReleasePool = `
UPDATE redis_pools SET current_tenants = current_tenants - 1,
    dedicated_for_tenant_id = CASE WHEN EXISTS (SELECT FROM tenant_allocations WHERE redis_pool_id = $1 AND tenant_id = $2 AND released_at IS NULL)
        THEN dedicated_for_tenant_id ELSE NULLIF(dedicated_for_tenant_id, $2) END WHERE pool_id = $1`

const sqlDeleteSite = `DELETE FROM site_pool WHERE pool_site_id = $1`

const sqlReturnSite = `
UPDATE site_pool SET state = 'available', tenant_id = NULL, reserved_until = NULL, available_at = now(), updated_at = now()
WHERE pool_site_id = $1 AND state = 'reserved'`

const sqlKeepFailedSite = `
UPDATE site_pool SET state = 'failed', tenant_id = NULL, reserved_until = NULL, updated_at = now(), reason = 'what is left of it could not be dropped'
WHERE pool_site_id = $1`

const sqlClearSite = `UPDATE tenants SET site = '', opening_since = NULL WHERE tenant_id = $1 AND NOT has_site(state)`

// FreePlace frees a tenant's place: counts, dedications and its site. A server among those to destroy stays
// dedicated, so that no tenant lands on it meanwhile. Without a live allocation it changes nothing.
func (s *Store) FreePlace(ctx context.Context, tenantID prego.TenantID, reason, message string, fate tenant.SiteFate, destroy []string) error {
	return s.inTx(ctx, fmt.Sprintf("release tenant %s", tenantID), func(tx *txn) error {
		return freePlace(ctx, tx, tenantID, reason, message, fate, destroy)
	})
}

const sqlHoldEnded = `SELECT state IN ('failed', 'data_purged') FROM tenants WHERE tenant_id = $1 FOR NO KEY UPDATE`

// FreeLeftover is FreePlace for a place without a run. released is false for a tenant that provisions again:
// it was retried since it was found, and its run continues with the place that it has.
func (s *Store) FreeLeftover(ctx context.Context, tenantID prego.TenantID, reason string, fate tenant.SiteFate, destroy []string) (released bool, err error) {
	err = s.inTx(ctx, fmt.Sprintf("release the leftover of tenant %s", tenantID), func(tx *txn) error {
		if released, err = value[bool](ctx, tx, sqlHoldEnded, tenantID); err != nil || !released {
			return err
		}
		return freePlace(ctx, tx, tenantID, reason, "", fate, destroy)
	})
	return released && err == nil, err
}

func freePlace(ctx context.Context, tx *txn, tenantID prego.TenantID, reason, message string, fate tenant.SiteFate, destroy []string) error {
	var app, shard, pool, site string
	if err := tx.QueryRow(ctx, sqlReleaseAllocation, tenantID, reason).Scan(&app, &shard, &pool, &site); err != nil {
		return ifNoRows(err, nil)
	}
	// The same order as a reservation.
	type step struct {
		sql  string
		args []any
	}
	var steps []step
	if site != "" {
		sql := map[tenant.SiteFate]string{tenant.SiteUntouched: sqlReturnSite, tenant.SiteDropped: sqlDeleteSite, tenant.SiteLeft: sqlKeepFailedSite}[fate]
		steps = append(steps, step{sql, []any{site}})
	}
	steps = append(steps, step{sqlReleaseServer, []any{app, tenantID, slices.Contains(destroy, app)}}, step{sqlReleaseShard, []any{shard, tenantID}},
		step{sqlReleasePool, []any{pool, tenantID}}, step{sqlClearSite, []any{tenantID}})
	for _, st := range steps {
		tx.run(ctx, st.sql, st.args...)
	}
	return tenantEvent(ctx, tx, tenant.Event{
		TenantID: tenantID, Step: tenant.StepReleased, Reason: reason, Message: strings.TrimPrefix(message+": ", ": ") + fmt.Sprintf("%s, %s, %s", app, shard, pool),
	}, "")
}

const sqlConverged = `UPDATE tenants SET converged_state = state, updated_at = now() WHERE tenant_id = $1 AND state = $2 AND converged_state <> state`

// TenantConverged records that a state's effects are in place, unless the tenant
// has moved on.
func (s *Store) TenantConverged(ctx context.Context, tenantID prego.TenantID, state tenant.State) error {
	return s.tenantStep(ctx, tenant.Event{TenantID: tenantID, Step: tenant.StepConverged, Message: string(state)}, "", nil, sqlConverged, tenantID, state)
}

// The server is kept when others live on it, which only an override can bring
// about.
const sqlOwnServers = `
SELECT server_id FROM servers WHERE dedicated_for_tenant_id = $1 AND status NOT IN ('draining', 'terminated')
  AND NOT EXISTS (SELECT FROM tenant_allocations a WHERE a.app_server_id = server_id AND a.released_at IS NULL AND a.tenant_id <> $1)
  AND NOT EXISTS (SELECT FROM tenant_moves m WHERE m.finished_at IS NULL AND server_id IN (m.from_server_id, m.to_server_id))`

// OwnServers are the servers that are dedicated for a tenant, still stand, and end with its place. The ends of an open
// move are none: either may hold the newest data of a lost tenant, and they are given back.
func (s *Store) OwnServers(ctx context.Context, tenantID prego.TenantID) ([]string, error) {
	return collectValues[string](ctx, s, fmt.Sprintf("servers of tenant %s", tenantID), sqlOwnServers, tenantID)
}
