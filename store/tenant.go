package store

import (
	"context"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

const tenantColumns = `tenant_id, slug, org_id, COALESCE(parent_org_id, '') AS parent_org_id, region, plan, expected_users, storage_quota_gb,
    COALESCE(data_residency, '') AS data_residency, jsonb_build_object('require', require_tags, 'disallow', disallow_tags) AS "constraint", dedicated_redis, apps, policy, admin_email, admin_name, external_ref, mail, state, status_reason, status_message,
    generation, converged_state, site, deadline_at AS deadline, waiting_since, waiting_roles, cancel_requested_at, created_by, created_at, updated_at, active_at,
    opening_since, lost_at, COALESCE(restore_from, '') AS restore_from, muted`

const sqlGetTenant = `SELECT ` + tenantColumns + ` FROM tenants WHERE tenant_id = $1`

func noSuchTenant(id string) error {
	return prego.Errorf(prego.CodeTenantNotFound, "there is no tenant %q", id)
}

// GetTenant reads one tenant, or CodeTenantNotFound.
func (s *Store) GetTenant(ctx context.Context, id string) (tenant.Tenant, error) {
	return get[tenant.Tenant](ctx, s.pool, noSuchTenant(id), sqlGetTenant, id)
}

// onServers are the tenants that are on one of some servers.
const onServers = `ARRAY(SELECT w.tenant_id FROM tenant_places w WHERE w.server_id = ANY ($?))`

// placedOn are the servers of a tenant in tenant_places, by its id: it reads each table once, where the view would be
// planned and run as ten joins.
const placedOn = `ARRAY(SELECT DISTINCT s.id FROM (
        SELECT a.app_server_id, a.db_shard_id, a.redis_pool_id FROM tenant_allocations a
            WHERE a.tenant_id = tenants.tenant_id AND a.released_at IS NULL
        UNION ALL SELECT m.from_server_id, m.from_shard_id, m.from_pool_id FROM tenant_moves m
            WHERE m.tenant_id = tenants.tenant_id AND m.finished_at IS NULL
        UNION ALL SELECT m.to_server_id, m.to_shard_id, m.to_pool_id FROM tenant_moves m
            WHERE m.tenant_id = tenants.tenant_id AND m.finished_at IS NULL
        UNION ALL SELECT b.server_id, NULL, NULL FROM servers b
            WHERE b.dedicated_for_tenant_id = tenants.tenant_id AND b.status = 'provisioning') o (server, shard, pool)
    CROSS JOIN LATERAL (VALUES (o.server), ((SELECT d.server_id FROM db_shards d WHERE d.shard_id = o.shard)),
        ((SELECT r.server_id FROM redis_pools r WHERE r.pool_id = o.pool))) s (id)
    WHERE s.id IS NOT NULL ORDER BY 1)`

// Tenants is the list of tenants, without terminated ones.
var Tenants = Listing[tenant.Listed]{
	what: "tenants", from: `SELECT ` + tenantColumns + `,
    ` + placedOn + ` AS server_ids,
    (SELECT bool_and(h.up) FROM ` + probedNow + ` WHERE h.tenant_id = tenants.tenant_id) AS site_up,
    (SELECT z.memory_bytes FROM tenant_sizes z WHERE z.plan = tenants.plan) AS memory_bytes
FROM tenants`,
	live: `state NOT IN ('terminated', 'data_purged')`, state: "state", states: without(prego.Strings(tenant.States()), "terminated", "data_purged"),
	filters: map[string]string{
		"tenant_id": "tenant_id", "slug": "slug", "org_id": "org_id", "parent_org_id": "parent_org_id",
		"region": "region", "plan": "plan", "state": "state", "external_ref": "external_ref",
		"server_id": "tenant_id = ANY (" + onServers + ")",
	},
	sorts:  map[string]string{"created_at": "created_at", "slug": "slug"},
	id:     "tenant_id",
	table:  "tenants",
	narrow: []string{"tenant_id", "external_ref", "server_id"},
	dimensions: []dimension{
		{filter: "org_id"},
		{filter: "parent_org_id"},
		{"region", prego.Strings(prego.Regions())},
		{"plan", prego.Strings(prego.Plans())},
		{"state", prego.Strings(tenant.States())},
	},
}

var searchedTenants = searched{
	kind: "tenant", table: "tenants", id: "o.tenant_id", name: "o.slug", status: "o.state",
	gone: `o.state IN ('terminated', 'data_purged')`, org: "o.org_id", newest: "o.created_at",
	fields: []searchField{
		{name: "id", column: "o.tenant_id"},
		{name: "name", column: "o.slug"},
		{name: "hostname", column: "o.site"},
		{name: "external_ref", column: "lower(o.external_ref)"},
	},
}

const sqlCreateTenant = `
WITH made AS (
    INSERT INTO tenants (tenant_id, slug, org_id, parent_org_id, region, plan, expected_users, storage_quota_gb, data_residency,
        require_tags, disallow_tags, dedicated_redis, apps, policy, request_hash, state, created_by, admin_email, admin_name, external_ref,
        own_server_cents)
    VALUES ($1, $2, $3, NULLIF($4, ''), $5, $6, $7, $8, NULLIF($9, ''), $10, $11, $12, $13, $14, $15,
        CASE $6 WHEN 'trial' THEN 'trial' ELSE 'provisioning' END, $16, $17, $18, $22, $23)
    ON CONFLICT (slug) WHERE state <> 'data_purged' DO NOTHING
    RETURNING *
), noted AS (
    INSERT INTO events (kind, id, org_id, status, step, actor, message)
    SELECT 'tenant', tenant_id, org_id, state, $19, created_by, $20 FROM made
), told AS (
    INSERT INTO events (xid, kind, id, org_id, step, actor, payload) SELECT NULL, 'tenant', tenant_id, org_id, 'create', created_by, $21 FROM made
)
SELECT ` + tenantColumns + ` FROM made`

func insertTenant(
	ctx context.Context, tx *txn, id prego.TenantID, r tenant.CreateRequest, mode tenant.PlacementMode, hash []byte, by string, payload []byte,
	ownServerCents int64,
) (tenant.Tenant, error) {
	return one[tenant.Tenant](ctx, tx, sqlCreateTenant, id, r.Slug, r.OrgID, r.ParentOrgID, r.Region, r.Plan, r.ExpectedUsers, r.StorageQuotaGB, r.DataResidency,
		filled(r.Constraint.Require), filled(r.Constraint.Disallow), r.DedicatedRedis, filled(r.Apps), mode, hash, by, r.AdminEmail, r.AdminName,
		tenant.StepRequested, fmt.Sprintf("%s for org %s in %s", r.Plan, r.OrgID, r.Region), payload, r.ExternalRef, ownServerCents)
}

const sqlTenantEvents = `
SELECT event_id, tenant_id, at, from_state, to_state, step, actor, reason, message FROM (
    SELECT * FROM tenant_lifecycle_events WHERE tenant_id = $1 ORDER BY event_id DESC LIMIT $2) latest
ORDER BY event_id`

// TenantEvents is the last part of a tenant's timeline, oldest first.
func (s *Store) TenantEvents(ctx context.Context, id prego.TenantID) ([]tenant.Event, error) {
	return collect[tenant.Event](ctx, s, "tenant events", sqlTenantEvents, id, maxTimeline)
}

const sqlLiveAllocation = `
SELECT allocation_id, tenant_id, app_server_id, db_shard_id, redis_pool_id, COALESCE(pool_site_id, '') AS pool_site_id, site_name, database_name,
    infra_provider, algorithm, dedicated, on_shard, on_pool, password_version, created_at, released_at, release_reason
FROM tenant_allocations WHERE tenant_id = $1 AND released_at IS NULL`

// LiveAllocation is where a tenant lives, nil while it has no place.
func (s *Store) LiveAllocation(ctx context.Context, id prego.TenantID) (*tenant.Allocation, error) {
	return find[tenant.Allocation](ctx, s.pool, sqlLiveAllocation, id)
}

// maxDecisions bounds a tenant's history of decisions: a waiting tenant is decided
// again and again.
const maxDecisions = 50

const sqlDecisions = `
SELECT snapshot_id, tenant_id, allocation_id, outcome, code, algorithm, decision_log AS decision, policy_json AS policy, actor, created_at
FROM allocation_snapshots WHERE tenant_id = $1 ORDER BY snapshot_id DESC LIMIT $2`

// While a tenant has a place, the decision that gave it counts, even when a decision of the
// same time that placed no tenant is recorded later.
const sqlLastDecision = `
SELECT d.snapshot_id, d.tenant_id, d.allocation_id, d.outcome, d.code, d.algorithm, d.decision_log AS decision, d.policy_json AS policy, d.actor, d.created_at
FROM allocation_snapshots d LEFT JOIN tenant_allocations a ON a.allocation_id = d.allocation_id AND a.released_at IS NULL
WHERE d.tenant_id = $1 ORDER BY a.allocation_id IS NOT NULL DESC, d.snapshot_id DESC LIMIT 1`

// LastDecision is the decision that gave a tenant its place, or else the newest, nil
// when there was none yet.
func (s *Store) LastDecision(ctx context.Context, id prego.TenantID) (*tenant.DecisionRecord, error) {
	return find[tenant.DecisionRecord](ctx, s.pool, sqlLastDecision, id)
}

// ListDecisions are the newest decisions on a tenant's place, newest first.
func (s *Store) ListDecisions(ctx context.Context, id prego.TenantID) ([]tenant.DecisionRecord, error) {
	return collect[tenant.DecisionRecord](ctx, s, "list decisions", sqlDecisions, id, maxDecisions)
}
