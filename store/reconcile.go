package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

const sqlFleetRows = `
SELECT server_id, status, status_reason AS reason, generation, attempt, COALESCE(provider_server_id, '') AS provider_server_id,
       now() - updated_at AS idle
FROM servers WHERE infra_provider = $1 AND (status <> 'terminated' OR server_id = ANY (ARRAY(
    SELECT r.server_id FROM resources r JOIN servers x ON x.server_id = r.server_id WHERE r.provider = $1 AND r.state <> 'released' AND x.status = 'terminated'))) ORDER BY server_id`

// FleetRows lists the servers of a provider; terminated ones only if they left
// resources. Resources of other owners are not theirs.
func (s *Store) FleetRows(ctx context.Context, provider prego.InfraProviderID) ([]server.ReconcileRow, error) {
	return collect[server.ReconcileRow](ctx, s, "fleet rows", sqlFleetRows, provider)
}

// The run of a server that must be created writes a resource first.
const sqlServersWithoutRun = `
SELECT server_id, status, status_reason AS reason, generation, attempt, COALESCE(provider_server_id, '') AS provider_server_id,
       now() - updated_at AS idle
FROM servers s WHERE status IN ('provisioning', 'draining') AND updated_at < now() - make_interval(secs => $1)
    AND (status = 'draining' OR NOT EXISTS (SELECT FROM resources r WHERE r.server_id = s.server_id AND r.state <> 'released'))
ORDER BY md5(server_id || now()) LIMIT 200`

// ServersWithoutRun lists servers whose run has done nothing yet that can be
// seen: it may never have been started.
func (s *Store) ServersWithoutRun(ctx context.Context, quiet time.Duration) ([]server.ReconcileRow, error) {
	return collect[server.ReconcileRow](ctx, s, "servers without a run", sqlServersWithoutRun, quiet.Seconds())
}

const sqlMarkMissing = `
UPDATE servers SET status = 'failed', status_reason = 'server_missing', status_message = $3, updated_at = now(),
    agent_status = 'disconnected', identity_revoked_at = COALESCE(identity_revoked_at, now()),
    provider_server_id = NULL, host = '', ipv6 = '', private_address = NULL
WHERE server_id = $1 AND provider_server_id = $2 AND status IN ('active', 'failed')
RETURNING attempt`

const sqlReleaseMissing = `
UPDATE resources SET state = 'released', released_at = now()
WHERE server_id = $1 AND kind = 'server' AND provider_id = $2 AND state <> 'released'`

// errNotMissing undoes the changes to a row that now describes another server.
var errNotMissing = errors.New("the row is not of that server any more")

// MarkMissing fails a server whose machine the provider no longer has, and the tenants that it
// had.
func (s *Store) MarkMissing(ctx context.Context, serverID prego.ServerID, providerServerID string) (bool, error) {
	message := fmt.Sprintf("the provider no longer has server %s", providerServerID)
	err := s.inTx(ctx, fmt.Sprintf("mark %s missing", serverID), func(tx *txn) error {
		// Before the server's row is held, as a transaction that frees a place does.
		s.loseTenants(ctx, tx, serverID, prego.ActorSystem)
		attempt := valueOr[int](ctx, tx, errNotMissing, sqlMarkMissing, serverID, providerServerID, message)
		tx.run(ctx, sqlReleaseMissing, serverID, providerServerID)
		return addEvent(ctx, tx, server.Event{
			ServerID: serverID, Step: server.StepReconciled, Attempt: attempt, Reason: prego.ReasonServerMissing,
			Message: message, Actor: prego.ActorSystem,
		}, "missing/"+providerServerID)
	})
	if errors.Is(err, errNotMissing) {
		return false, nil
	}
	return err == nil, err
}

const sqlSightOrphan = `
INSERT INTO orphan_sightings (provider, kind, provider_id, name, type, location, size_gb, made_at, protected)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (provider, kind, provider_id)
DO UPDATE SET sightings = orphan_sightings.sightings + 1, last_seen_at = now(), type = EXCLUDED.type, location = EXCLUDED.location,
    size_gb = EXCLUDED.size_gb, made_at = EXCLUDED.made_at, protected = EXCLUDED.protected
RETURNING sightings, now() - first_seen_at AS first_seen`

// SightOrphan counts a sighting.
func (s *Store) SightOrphan(ctx context.Context, provider prego.InfraProviderID, o server.OwnedResource) (server.Sighting, error) {
	var made *time.Time
	if !o.CreatedAt.IsZero() {
		made = &o.CreatedAt
	}
	seen, err := one[server.Sighting](ctx, s.pool, sqlSightOrphan,
		provider, o.Kind, o.ProviderID, o.Name, o.Type, o.Location, o.SizeGB, made, o.Protected)
	return seen, failed(fmt.Sprintf("sight orphan %s %s", o.Kind, o.ProviderID), err)
}

const sqlForgetSightings = `
DELETE FROM orphan_sightings WHERE provider = $1 AND destroyed_at IS NULL AND NOT (kind || '/' || provider_id = ANY($2::text[]))`

// ForgetSightings drops the sightings of resources that are no orphans any more; still holds
// "<kind>/<provider id>" of the orphans.
func (s *Store) ForgetSightings(ctx context.Context, provider prego.InfraProviderID, still []string) error {
	return s.exec(ctx, "forget sightings", sqlForgetSightings, provider, filled(still))
}

const sqlOrphanDestroyed = `
UPDATE orphan_sightings SET destroyed_at = now() WHERE provider = $1 AND kind = $2 AND provider_id = $3`

// OrphanDestroyed records that an orphan is gone, on the timeline too when its
// label names a server that we know.
func (s *Store) OrphanDestroyed(ctx context.Context, provider prego.InfraProviderID, kind server.ResourceKind, providerID string, serverID prego.ServerID) error {
	return s.inTx(ctx, "orphan destroyed", func(tx *txn) error {
		tx.run(ctx, sqlOrphanDestroyed, provider, kind, providerID)
		return addEvent(ctx, tx, server.Event{
			ServerID: serverID, Step: server.StepReconciled, Actor: prego.ActorSystem,
			Message: fmt.Sprintf("orphaned %s %s destroyed", kind, providerID),
		}, fmt.Sprintf("orphan/%s/%s", kind, providerID))
	})
}

const (
	sqlBeginReconcile = `INSERT INTO reconcile_runs DEFAULT VALUES RETURNING run_id`
	sqlEndReconcile   = `UPDATE reconcile_runs SET finished_at = now(), findings = $2 WHERE run_id = $1`
)

// BeginReconcile opens the record of one reconciliation.
func (s *Store) BeginReconcile(ctx context.Context) (int64, error) {
	id, err := value[int64](ctx, s.pool, sqlBeginReconcile)
	return id, failed("begin reconcile", err)
}

// EndReconcile closes it with its findings and actions.
func (s *Store) EndReconcile(ctx context.Context, runID int64, findings any) error {
	b, err := json.Marshal(findings)
	if err != nil {
		return fmt.Errorf("reconcile findings: %w", err)
	}
	return s.exec(ctx, "end reconcile", sqlEndReconcile, runID, b)
}
