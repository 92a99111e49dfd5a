package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
)

const serverColumns = `server_id, role, region, infra_provider, spec, tags, status, status_reason, status_message, managed_by,
    COALESCE(provider_server_id, '') AS provider_server_id, server_type, location, image, host, ipv6,
    COALESCE(network_id, '') AS network_id, COALESCE(host(private_address), '') AS private_address, COALESCE(host(agent_private_address), '') AS agent_private_address, workflow_id, generation, attempt,
    agent_status, agent_version, agent_boot_id, agent_first_seen_at, agent_last_heartbeat_at, load1, memory_pct, disk_pct, docker_state, agent_tags,
    cpu_pct, worker_slots_pct, db_disk_pct, redis_memory_pct, clock_ahead_seconds, clock_skewed,
    imported_from_pulumi_at, identity_revoked_at, decommission_requested_at, created_by, created_at, updated_at, active_at, terminated_at,
    COALESCE(fleet_id, '') AS fleet_id, cordoned_at, COALESCE(cordoned_by, '') AS cordoned_by, COALESCE(cordon_reason, '') AS cordon_reason,
    patch_state, patches, patches_at, patches_since,
    accepts_trial, COALESCE(plan_tier_lock, '') AS plan_tier_lock, tenant_capacity`

const unknownProvider = "is not a provider that is known here"

const sqlProvider = `SELECT enabled, $2 = ANY (regions) FROM infra_providers WHERE id = $1`

// checkProvider refuses providers that are unknown, disabled, or not in the
// region.
func checkProvider(ctx context.Context, tx *txn, id prego.InfraProviderID, region prego.Region) error {
	var enabled, serves bool
	err := tx.QueryRow(ctx, sqlProvider, id, region).Scan(&enabled, &serves)
	switch {
	case isNoRows(err):
		return &prego.Error{Code: prego.CodeProviderUnknown, Field: "infra_provider", Message: unknownProvider}
	case err != nil:
		return fmt.Errorf("infra provider: %w", err)
	case !enabled:
		return &prego.Error{Code: prego.CodeProviderDisabled, Field: "infra_provider", Message: "is disabled"}
	case !serves:
		return &prego.Error{Code: prego.CodeRegionNotServed, Field: "region", Message: fmt.Sprintf("is not served by provider %s", id)}
	}
	return nil
}

const sqlCreateServer = `
INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, tags, status, workflow_id, created_by,
    managed_by, purpose, provider_server_id, imported_from_pulumi_at, attempt, network_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'provisioning', $8, $9, $10, $11, NULLIF($12, ''), CASE WHEN $10 = 'pulumi' THEN now() END,
    CASE WHEN $12 = '' THEN 0 ELSE 1 END, NULLIF($13, ''))
ON CONFLICT (server_id) DO NOTHING
RETURNING ` + serverColumns

const sqlServerAndHash = `SELECT request_hash, ` + serverColumns + ` FROM servers WHERE server_id = $1`

// CreateServer accepts a request: the row and its first event, in one
// transaction. Repeating the request returns its row; another
// request of that id is CodeServerIDConflict, and an id whose server is terminated
// CodeServerTerminated.
func (s *Store) CreateServer(
	ctx context.Context, r server.CreateRequest, by string, first ...server.Candidate,
) (srv server.Server, created bool, err error) {
	hash := r.Hash()
	return s.insertServer(ctx, newServer{
		first: first, id: string(r.ServerID), hash: hash[:], role: r.Role, region: r.Region,
		provider: r.InfraProvider, spec: r.Spec, by: by,
		managedBy: prego.ManagedByWorkerDirect, purpose: server.PurposeAgentBootstrap, step: server.StepRequested,
	})
}

// ImportServer accepts the take-over of a server that exists at the provider.
func (s *Store) ImportServer(ctx context.Context, r server.ImportRequest, by string) (srv server.Server, created bool, err error) {
	hash := r.Hash()
	return s.insertServer(ctx, newServer{
		id: string(r.ServerID), hash: hash[:], role: r.Role, region: r.Region, provider: r.InfraProvider, spec: server.Spec{Tags: r.Tags}, by: by,
		managedBy: r.ManagedBy, purpose: server.PurposeImportExisting, providerID: r.ProviderServerID, step: server.StepImportRequested,
	})
}

type newServer struct {
	id, by, providerID string
	hash               []byte
	role               prego.Role
	region             prego.Region
	provider           prego.InfraProviderID
	spec               server.Spec
	managedBy          prego.ManagedBy
	purpose            server.TokenPurpose
	step               server.Step
	traits             *server.Wanted // the purpose of a server that was not requested by hand
	first              []server.Candidate
}

func (s *Store) insertServer(ctx context.Context, n newServer) (srv server.Server, created bool, err error) {
	err = s.inTx(ctx, "create server", func(tx *txn) error {
		srv, created, err = insertServerIn(ctx, tx, n)
		switch {
		case err == nil && created && len(n.first) > 0:
			tx.costsServer(ctx, srv, n.first[0])
		case err == nil && !created:
			tx.harmless(ctx)
		}
		return err
	})
	if isViolation(err, "servers_provider_id") {
		// Of two concurrent equal imports the second can meet this index before the row's
		// own; then that row is there now.
		created = false
		srv, err = sameRequest(ctx, s.pool, n.id, n.hash)
		if isNoRows(err) {
			err = &prego.Error{Code: prego.CodeProviderServerUsed, Field: "provider_server_id", Message: "belongs to another server that is known here"}
		}
	}
	if isViolation(err, "servers_network_id_fkey") {
		err = &prego.Error{Code: prego.CodeNetworkUnknown, Field: "spec.network", Message: "is not a network that is known here"}
	}
	if isViolation(err, "servers_infra_provider_fkey") {
		err = &prego.Error{Code: prego.CodeProviderUnknown, Field: "infra_provider", Message: unknownProvider}
	}
	return srv, created, failed("create server", err)
}

// insertServerIn writes the row and its first event, or meets the row that is there.
func insertServerIn(ctx context.Context, tx *txn, n newServer) (srv server.Server, created bool, err error) {
	spec, err := json.Marshal(n.spec)
	if err != nil {
		return srv, false, fmt.Errorf("spec: %w", err)
	}
	srv, err = one[server.Server](ctx, tx, sqlCreateServer, n.id, n.hash, n.role, n.region, n.provider, spec, filled(n.spec.Tags),
		server.ProvisionWorkflowID(prego.ServerID(n.id)), n.by, n.managedBy, n.purpose, n.providerID, n.spec.Network)
	if isNoRows(err) {
		srv, err = sameRequest(ctx, tx, n.id, n.hash)
		return srv, false, err
	}
	if err != nil {
		return srv, false, err
	}
	if f := n.traits; f != nil {
		tx.run(ctx, sqlFleetServerTraits, n.id, f.DedicatedFor, f.WarmPlan, f.PlanTierLock, f.FleetID, f.FleetProfile)
	}
	// Only now: repeating an accepted request returns its row, even if the
	// provider is gone since.
	tx.check(checkProvider(ctx, tx, n.provider, n.region))
	return srv, true, addEvent(ctx, tx, server.Event{
		ServerID: prego.ServerID(n.id), Step: n.step, Message: fmt.Sprintf("%s in %s at %s, by %s", n.role, n.region, n.provider, n.by), Actor: prego.ActorOperator,
	}, string(n.step))
}

func sameRequest(ctx context.Context, q querier, id string, hash []byte) (server.Server, error) {
	type hashed struct {
		RequestHash []byte
		server.Server
	}
	h, err := one[hashed](ctx, q, sqlServerAndHash, id)
	switch {
	case err != nil:
		return server.Server{}, err
	case h.Status == server.Terminated:
		return server.Server{}, &prego.Error{Code: prego.CodeServerTerminated, Field: "server_id", Message: "belongs to a server that is terminated; choose a new one"}
	case string(h.RequestHash) != string(hash):
		return server.Server{}, &prego.Error{Code: prego.CodeServerIDConflict, Field: "server_id", Message: "belongs to a server that was requested with another body"}
	}
	return h.Server, nil
}

const sqlGetServer = `SELECT ` + serverColumns + ` FROM servers WHERE server_id = $1`

// GetServer reads one server, or CodeServerNotFound.
func (s *Store) GetServer(ctx context.Context, id prego.ServerID) (server.Server, error) {
	return serverIn(ctx, s.pool, id)
}

func serverIn(ctx context.Context, q querier, id prego.ServerID) (server.Server, error) {
	return get[server.Server](ctx, q, prego.Errorf(prego.CodeServerNotFound, "there is no server %q", id), sqlGetServer, id)
}

// maxTimeline bounds a timeline: an agent that comes and goes for years adds to
// it for years.
const maxTimeline = 1000

const sqlServerEvents = `
SELECT event_id, server_id, at, step, attempt, status, reason, message, actor FROM (
    SELECT * FROM server_events WHERE server_id = $1 ORDER BY event_id DESC LIMIT $2) latest
ORDER BY event_id`

// ServerEvents is the last part of a server's timeline, oldest first.
func (s *Store) ServerEvents(ctx context.Context, id prego.ServerID) ([]server.Event, error) {
	return collect[server.Event](ctx, s, "server events", sqlServerEvents, id, maxTimeline)
}

var servers = Listing[server.Server]{
	what: "servers", from: `SELECT ` + serverColumns + ` FROM servers`,
	live: `status <> 'terminated'`, state: "status", states: without(prego.Strings(server.Statuses()), "terminated"),
	filters: map[string]string{"server_id": "server_id", "role": "role", "region": "region", "infra_provider": "infra_provider", "status": "status", "agent_status": "agent_status", "fleet_id": "fleet_id", "patch_state": "patch_state", "tag": "tags @> $?"},
	sorts:   map[string]string{"created_at": "created_at", "server_id": "server_id"},
	id:      "server_id",
	table:   "servers",
	narrow:  []string{"server_id", "tag"},
	dimensions: []dimension{
		{filter: "fleet_id"},
		{"infra_provider", prego.Strings(prego.InfraProviders())},
		{"region", prego.Strings(prego.Regions())},
		{"role", prego.Strings(prego.Roles())},
		{"status", prego.Strings(server.Statuses())},
		{"agent_status", prego.Strings(server.AgentStatuses())},
	},
}

// ListServers is a page of servers, without terminated ones.
func (s *Store) ListServers(ctx context.Context, q prego.ListQuery) (page []server.Server, next string, err error) {
	if tags, ok := q.Filters["tag"]; ok {
		q.Filters, tags = maps.Clone(q.Filters), slices.Clone(tags)
		for i, t := range tags {
			tags[i] = strings.ToLower(t)
		}
		q.Filters["tag"] = tags
	}
	return servers.page(ctx, s, q)
}

// A retry creates another machine in place of the present one. Only the retry of an import keeps it: it takes the
// same machine over again, and is the way back for a server whose agent has lost its identity.
const sqlRetry = `
UPDATE servers SET status = 'provisioning', status_reason = '', status_message = '', generation = generation + 1, updated_at = now()
WHERE server_id = $1 AND status = 'failed' AND (purpose = 'import_existing_server' OR ` + unused + `) RETURNING ` + serverColumns

// An import whose agent never came has one token, and its time is over: the next
// attempt gets its own and forgets the outcome of the earlier one.
const sqlRetryImport = `
UPDATE servers SET attempt = attempt + 1, agent_status = 'unknown', agent_key_sha256 = NULL, agent_first_seen_at = NULL,
    agent_first_heartbeat_at = NULL, agent_last_heartbeat_at = NULL, identity_revoked_at = NULL
WHERE server_id = $1 AND purpose = 'import_existing_server'
  AND NOT (agent_first_heartbeat_at IS NOT NULL AND agent_status = 'connected' AND identity_revoked_at IS NULL)`

// The sites of pools that were on the machine, or had their database there, are gone with it. They keep the time of
// their last change: a failure of now would delay the pool's next site.
const sqlRetrySites = `
UPDATE site_pool p SET state = 'failed', reserved_until = NULL, reason = 'its server is provisioned again',
    dropped_at = CASE WHEN p.app_server_id = $1 AND (NOT p.on_shard OR d.server_id = $1) THEN now() END
FROM db_shards d, servers s
WHERE d.shard_id = p.db_shard_id AND s.server_id = $1 AND s.purpose <> 'import_existing_server' AND p.dropped_at IS NULL
  AND (p.state = 'available' OR p.state = 'reserved' AND p.tenant_id IS NULL)
  AND (p.app_server_id = $1 OR p.on_shard AND d.server_id = $1)`

// RequestRetry puts a failed server back into provisioning, as a new generation. While anything is on it that the
// machine's end would take along, that is CodeServerHasTenants.
func (s *Store) RequestRetry(ctx context.Context, id prego.ServerID, by string) (server.Server, error) {
	return s.transition(ctx, id, server.Event{
		ServerID: id, Step: server.StepRetryRequested, Message: "by " + by, Actor: prego.ActorOperator,
	}, func(now server.Server, use server.Use) error {
		if now.Status != server.Failed {
			return prego.Errorf(prego.CodeInvalidTransition, "only a failed server can be retried; this one is %s", now.Status)
		}
		return prego.Errorf(prego.CodeServerHasTenants, "server %s has %s, and a retry would replace its machine by an empty one. "+
			"Show the server to see why it failed, and reboot its host at the provider: it is active again with its next heartbeat. "+
			"If the host cannot be brought back, declare the server lost: its tenants are restored elsewhere", id, use)
	}, sqlRetry, sqlRetryImport, sqlRetrySites)
}

const decommissionServer = `
UPDATE servers SET status = 'draining', status_reason = 'decommission_requested', status_message = '',
    decommission_requested_at = now(), updated_at = now()
WHERE server_id = $1 AND status NOT IN ('draining', 'terminated')`

// What keeps a server: see migrations/functions/server_use.sql. Both are conditions of statements about the server $1
// that run once holdUsed has its rows, so that of a placement and such a statement one sees the other.
const (
	unused = `NOT EXISTS (SELECT FROM server_use($1) u WHERE u.tenants + u.instances + u.volumes > 0)`
	// An emptied server's last volume is detached after its last instance has stopped; fleets do not wait for that.
	emptied = `NOT EXISTS (SELECT FROM server_use($1) u WHERE u.tenants + u.instances > 0)`
)

const (
	sqlServerUse  = `SELECT tenants, instances, volumes FROM server_use($1)`
	sqlServerHeld = `
SELECT u.tenants, u.instances, u.volumes, COALESCE((SELECT m.kind FROM server_maintenances m
    WHERE m.server_id = $1 AND m.finished_at IS NULL), '') AS maintenance
FROM server_use($1) u`
)

// ServerUse counts what would be lost or detached with a server's machine, and returns what empties it, "" for nothing.
func (s *Store) ServerUse(ctx context.Context, id prego.ServerID) (server.Use, server.MaintenanceKind, error) {
	type row struct {
		server.Use
		Maintenance server.MaintenanceKind
	}
	r, err := get[row](ctx, s.pool, prego.Errorf(prego.CodeServerNotFound, "there is no server %q", id), sqlServerHeld, id)
	return r.Use, r.Maintenance, err
}

const (
	sqlHoldShardsOf = `SELECT FROM db_shards WHERE server_id = $1 FOR NO KEY UPDATE`
	sqlHoldPoolsOf  = `SELECT FROM redis_pools WHERE server_id = $1 FOR NO KEY UPDATE`
)

// holdUsed holds the rows that a placement of a tenant or an instance on a server holds: its row, its shard's and
// its pool's. An UPDATE would also wait for them, but having waited it does not see rows added meanwhile.
func holdUsed(ctx context.Context, tx *txn, id prego.ServerID) error {
	b := &pgx.Batch{}
	for _, sql := range []string{sqlHoldServer, sqlHoldShardsOf, sqlHoldPoolsOf} {
		b.Queue(sql, id)
	}
	return tx.SendBatch(ctx, b).Close()
}

const (
	sqlDecommission       = decommissionServer + ` RETURNING ` + serverColumns
	sqlDecommissionUnused = decommissionServer + ` AND ` + unused + ` RETURNING ` + serverColumns
	sqlDecommissionMember = decommissionServer + ` AND ` + emptied + ` AND dedicated_for_tenant_id IS NULL RETURNING ` + serverColumns
)

// DeleteServer is RequestDecommission of a caller who may accept what is lost with the server: the sites, databases and
// instances there (impact.NotAccepted).
func (s *Store) DeleteServer(ctx context.Context, id prego.ServerID, by string) (srv server.Server, err error) {
	err = s.inTx(ctx, string("delete server "+id), func(tx *txn) error {
		tx.check(holdUsed(ctx, tx, id))
		now := got(serverIn(ctx, tx, id)).in(tx)
		if now.Status != server.Decommissioning && now.Status != server.Terminated {
			gone := []prego.ServerID{id}
			tx.demandsOf(ctx, tx.saves(ctx, gone, "").of(impact.Impact{}), string(id), gone, impact.Destroys)
		} else {
			tx.harmless(ctx)
		}
		srv, err = transitionIn(ctx, tx, id, decommissioned(id, "by "+by, prego.ActorOperator), asItIs, sqlDecommission)
		return err
	})
	return srv, err
}

func asItIs(server.Server, server.Use) error { return nil }

func decommissioned(id prego.ServerID, message string, actor prego.Actor) server.Event {
	return server.Event{
		ServerID: id, Step: server.StepDecommissionAsked, Reason: prego.ReasonDecommission, Message: message,
		Actor: actor,
	}
}

// RequestDecommission marks a server as draining in any state, unless tenants live on it, on its shard or its pool, or
// instances of process groups run on it, or volumes are attached to it (CodeServerHasTenants).
// A server that is draining or terminated already is returned as it is.
func (s *Store) RequestDecommission(ctx context.Context, id prego.ServerID, by string) (server.Server, error) {
	return s.decommission(ctx, id, sqlDecommissionUnused, "by "+by, prego.ActorOperator,
		"server %s has %s: drain it, or purge the tenants first")
}

// DecommissionMember starts to take down a server without tenants, present or planned, and
// without instances, else CodeServerHasTenants. A server that is going or gone is returned as it is.
func (s *Store) DecommissionMember(ctx context.Context, id prego.ServerID, by string) (server.Server, error) {
	return s.decommission(ctx, id, sqlDecommissionMember, "by "+by, prego.ActorWorkflow,
		"server %s is in use, or dedicated to a tenant: it has %s")
}

func (s *Store) decommission(ctx context.Context, id prego.ServerID, update, message string, actor prego.Actor, used string) (server.Server, error) {
	return s.transition(ctx, id, decommissioned(id, message, actor), func(now server.Server, use server.Use) error {
		if now.Status == server.Decommissioning || now.Status == server.Terminated {
			return nil
		}
		return prego.Errorf(prego.CodeServerHasTenants, used, id, use)
	}, update)
}

// transition runs a conditional UPDATE, the statements that may follow from it, and writes its event. When the UPDATE
// met no row, refuse explains why from the row and the server's use, as the same transaction sees them; nil returns the
// server as it is.
func (s *Store) transition(ctx context.Context, id prego.ServerID, event server.Event, refuse func(server.Server, server.Use) error,
	update string, more ...string,
) (srv server.Server, err error) {
	err = s.inTx(ctx, string("change server "+id), func(tx *txn) error {
		tx.check(holdUsed(ctx, tx, id))
		srv, err = transitionIn(ctx, tx, id, event, refuse, update, more...)
		return err
	})
	return srv, err
}

// transitionIn is transition in a transaction that holds what a placement on the server holds (holdUsed).
func transitionIn(
	ctx context.Context, tx *txn, id prego.ServerID, event server.Event,
	refuse func(server.Server, server.Use) error, update string, more ...string,
) (server.Server, error) {
	found := findIn[server.Server](ctx, tx, update, id)
	if found == nil {
		srv := got(serverIn(ctx, tx, id)).in(tx)
		use := oneIn[server.Use](ctx, tx, sqlServerUse, id)
		if err := refuse(srv, use); err != nil {
			return server.Server{}, err
		}
		return srv, nil
	}
	srv := *found
	for _, sql := range more {
		tx.run(ctx, sql, id)
	}
	if len(more) > 0 {
		srv = got(serverIn(ctx, tx, id)).in(tx)
	}
	return srv, addEvent(ctx, tx, event, "")
}
