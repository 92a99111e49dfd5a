package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
)

// Members are the servers that are active, that are on their way, and that an action is
// about to request; draining servers are leaving already. Of a replacement only the
// round that is next counts: the others' servers come when as many have gone.
const selectFleets = `
SELECT f.fleet_id, f.role, COALESCE(f.region, '') AS region, f.infra_provider, f.min_size, f.max_size, f.desired_capacity, f.spec,
    jsonb_build_object('require', f.require_tags, 'disallow', f.disallow_tags) AS "constraint", f.serves_tenants AS serves, f.serves_workloads, f.workload_memory_bytes AS workload_memory, f.workload_cpus, f.workload_disk_bytes AS workload_disk, jsonb_build_object('schedule', f.patch_schedule, 'seconds', f.patch_seconds) AS patch_window, f.profile, f.created_by, f.created_at, f.updated_at,
    r.size, r.regions
FROM fleets f CROSS JOIN LATERAL (
    SELECT COALESCE(jsonb_object_agg(region, n), '{}') AS regions, COALESCE(sum(n), 0)::bigint AS size FROM (SELECT region, count(*) AS n FROM (
        SELECT region FROM servers s WHERE s.fleet_id = f.fleet_id AND s.status NOT IN ('draining', 'terminated')
        UNION ALL SELECT st.region FROM fleet_actions a JOIN fleet_action_steps st ON st.fleet_id = a.fleet_id AND st.seq = a.seq
        WHERE a.fleet_id = f.fleet_id AND a.status = 'running' AND st.op = 'create' AND st.state = 'planned'
          AND (a.action <> 'CLUSTER_REPLACE' OR st.round = (SELECT min(x.round) FROM fleet_action_steps x
              WHERE x.fleet_id = a.fleet_id AND x.seq = a.seq AND x.state = 'planned'))
          AND NOT EXISTS (SELECT FROM servers s WHERE s.server_id = st.server_id)) m GROUP BY region) n) r`

const sqlCreateFleet = `
INSERT INTO fleets (fleet_id, request_hash, role, region, infra_provider, min_size, max_size, spec, require_tags, disallow_tags, serves_tenants, created_by, workload_memory_bytes, workload_cpus, serves_workloads, workload_disk_bytes, patch_schedule, patch_seconds)
VALUES ($1, $2, $3, NULLIF($4, ''), $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18) ON CONFLICT (fleet_id) DO NOTHING`

const sqlFleetHash = `SELECT request_hash FROM fleets WHERE fleet_id = $1`

const sqlProviderKnown = `SELECT enabled FROM infra_providers WHERE id = $1`

// CreateFleet creates an empty fleet. Repeating the request returns it; another fleet of
// that id is CodeFleetConflict.
func (s *Store) CreateFleet(ctx context.Context, r server.CreateFleetRequest, by string) (f server.Fleet, created bool, err error) {
	hash, spec, err := fleetHash(r)
	if err != nil {
		return f, false, err
	}
	err = s.inTx(ctx, "create fleet", func(tx *txn) error {
		created, err = changed(ctx, tx, sqlCreateFleet, r.FleetID, hash, r.Role, r.Region, r.InfraProvider, r.MinSize, *r.MaxSize, spec,
			filled(r.Constraint.Require), filled(r.Constraint.Disallow), r.Serves, by, r.WorkloadMemory, r.WorkloadCPUs, r.ServesWorkloads, r.WorkloadDisk, deref(r.PatchWindow).Schedule, deref(r.PatchWindow).Seconds)
		if err != nil {
			return err
		}
		f = got(getFleet(ctx, tx, string(r.FleetID))).in(tx)
		if !created {
			kept, err := value[[]byte](ctx, tx, sqlFleetHash, r.FleetID)
			if err == nil && !bytes.Equal(kept, hash) {
				return &prego.Error{Code: prego.CodeFleetConflict, Field: "fleet_id", Message: "belongs to a fleet that was made with another body"}
			}
			return err
		}
		if r.Region != "" {
			return checkProvider(ctx, tx, r.InfraProvider, r.Region)
		}
		enabled, err := value[bool](ctx, tx, sqlProviderKnown, r.InfraProvider)
		if err == nil && !enabled {
			return &prego.Error{Code: prego.CodeProviderDisabled, Field: "infra_provider", Message: "is disabled"}
		}
		return err
	})
	if isViolation(err, "fleets_infra_provider_fkey") {
		err = &prego.Error{Code: prego.CodeProviderUnknown, Field: "infra_provider", Message: unknownProvider}
	}
	return f, created, err
}

func fleetHash(r server.CreateFleetRequest) (hash, spec []byte, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, nil, fmt.Errorf("fleet: %w", err)
	}
	spec, err = json.Marshal(r.Spec)
	if err != nil {
		return nil, nil, fmt.Errorf("spec: %w", err)
	}
	sum := sha256.Sum256(body)
	return sum[:], spec, nil
}

const sqlGetFleet = selectFleets + ` WHERE f.fleet_id = $1`

const sqlLockFleet = `SELECT FROM fleets WHERE fleet_id = $1 FOR NO KEY UPDATE`

// lockFleet is getFleet for a decision. The lock is a separate statement:
// a statement that had to wait for it would count members as they were before.
func lockFleet(ctx context.Context, tx *txn, id prego.FleetID) (server.Fleet, error) {
	if _, err := tx.Exec(ctx, sqlLockFleet, id); err != nil {
		return server.Fleet{}, err
	}
	return getFleet(ctx, tx, string(id))
}

const sqlAttached = `
SELECT p.policy_id, p.type, p.spec, p.created_by, p.created_at, p.updated_at, a.position, a.enabled, a.last_used_at
FROM fleet_policies a JOIN policies p ON p.policy_id = a.policy_id WHERE a.fleet_id = $1 ORDER BY a.position, p.policy_id`

// getFleet reads a fleet with its policies, or CodeFleetNotFound.
func getFleet(ctx context.Context, q querier, id string) (f server.Fleet, err error) {
	f, err = get[server.Fleet](ctx, q, prego.Errorf(prego.CodeFleetNotFound, "there is no fleet %q", id), sqlGetFleet, id)
	if err != nil {
		return f, err
	}
	f.Policies, err = many[server.Attachment](ctx, q, sqlAttached, id)
	return f, err
}

// GetFleet reads a fleet with its policies, or CodeFleetNotFound.
func (s *Store) GetFleet(ctx context.Context, id prego.FleetID) (server.Fleet, error) {
	return getFleet(ctx, s.pool, string(id))
}

// Fleets is the list of fleets, without their policies.
var Fleets = Listing[server.Fleet]{
	what: "fleets", from: selectFleets,
	filters: map[string]string{"fleet_id": "f.fleet_id", "role": "f.role", "region": "f.region"},
	sorts:   map[string]string{"created_at": "f.created_at", "fleet_id": "f.fleet_id"},
	id:      "f.fleet_id",
}

const sqlUpdateFleet = `
UPDATE fleets SET min_size = $2, max_size = $3, spec = $4, serves_tenants = $5, profile = $6, workload_memory_bytes = $7, workload_cpus = $8, serves_workloads = $9, workload_disk_bytes = $10, patch_schedule = $11, patch_seconds = $12, updated_at = now() WHERE fleet_id = $1`

const sqlServersOfFleet = `SELECT server_id FROM servers WHERE fleet_id = $1 AND status <> 'terminated' ORDER BY 1`

// UpdateFleet changes a fleet as asked; its servers stay as they are until an action
// brings them up to it. A new patch window empties and restarts each of them: that is its impact.
func (s *Store) UpdateFleet(ctx context.Context, id prego.FleetID, r server.UpdateFleetRequest) (f server.Fleet, err error) {
	err = s.inTx(ctx, "update fleet", func(tx *txn) error {
		f = got(lockFleet(ctx, tx, id)).in(tx)
		before := f.PatchWindow
		if err := r.Apply(&f); err != nil {
			return err
		}
		if f.PatchWindow != before && f.PatchWindow.Schedule != "" {
			i := impact.Impact{Undo: "remove the patch window: whatever has moved stays where it is", Seconds: tx.lasted(ctx, "move")}
			tx.demandsOf(ctx, i, string(id), valuesIn[prego.ServerID](ctx, tx, sqlServersOfFleet, id), impact.Moves)
		}
		spec, err := json.Marshal(f.Spec)
		if err != nil {
			return err
		}
		tx.run(ctx, sqlUpdateFleet, id, f.MinSize, f.MaxSize, spec, f.Serves, f.Profile, f.WorkloadMemory, f.WorkloadCPUs, f.ServesWorkloads, f.WorkloadDisk, f.PatchWindow.Schedule, f.PatchWindow.Seconds)
		f = got(getFleet(ctx, tx, string(id))).in(tx)
		return nil
	})
	return f, err
}

const sqlFleetOpen = `SELECT EXISTS (SELECT FROM fleet_actions WHERE fleet_id = $1 AND status IN ('queued', 'running'))`

const sqlLeaveFleet = `UPDATE servers SET fleet_id = NULL WHERE fleet_id = $1`

const sqlDeleteFleet = `DELETE FROM fleets WHERE fleet_id = $1`

// DeleteFleet forgets a fleet that has no members and no action under way, with its
// actions; a fleet that has is CodeFleetNotEmpty or CodeFleetBusy.
func (s *Store) DeleteFleet(ctx context.Context, id prego.FleetID) error {
	err := s.inTx(ctx, "delete fleet", func(tx *txn) error {
		f := got(lockFleet(ctx, tx, id)).in(tx)
		if f.Size > 0 {
			return prego.Errorf(prego.CodeFleetNotEmpty, "fleet %s has %d servers: resize it to 0 first", id, f.Size)
		}
		if valueIn[bool](ctx, tx, sqlFleetOpen, id) {
			return prego.Errorf(prego.CodeFleetBusy, "fleet %s has actions that are not finished: wait for them or cancel them", id)
		}
		if _, err := tx.Exec(ctx, sqlLeaveFleet, id); err != nil { // terminated ones
			return err
		}
		tx.run(ctx, sqlDeleteFleet, id)
		return nil
	})
	return err
}

const policyColumns = `policy_id, type, spec, created_by, created_at, updated_at`

const sqlCreatePolicy = `INSERT INTO policies (policy_id, type, spec, created_by) VALUES ($1, $2, $3, $4) ON CONFLICT (policy_id) DO NOTHING RETURNING ` + policyColumns

const sqlGetPolicy = `SELECT ` + policyColumns + ` FROM policies WHERE policy_id = $1`

const sqlPolicyRepeated = `SELECT EXISTS (SELECT FROM policies WHERE policy_id = $1 AND type = $2 AND spec = $3)`

// CreatePolicy creates a policy whose spec is checked. Repeating it returns the policy.
func (s *Store) CreatePolicy(ctx context.Context, p server.FleetPolicy) (policy server.FleetPolicy, created bool, err error) {
	made, err := find[server.FleetPolicy](ctx, s.pool, sqlCreatePolicy, p.PolicyID, p.Type, p.Spec, p.CreatedBy)
	if err != nil {
		return server.FleetPolicy{}, false, err
	}
	if made != nil {
		return *made, true, nil
	}
	same, err := value[bool](ctx, s.pool, sqlPolicyRepeated, p.PolicyID, p.Type, p.Spec)
	if err != nil {
		return server.FleetPolicy{}, false, fmt.Errorf("create policy: %w", err)
	}
	if !same {
		return server.FleetPolicy{}, false, &prego.Error{Code: prego.CodePolicyConflict, Field: "policy_id", Message: "belongs to another policy: change that one, or choose another id"}
	}
	policy, err = s.GetPolicy(ctx, p.PolicyID)
	return policy, false, err
}

// GetPolicy reads a policy, or CodePolicyNotFound.
func (s *Store) GetPolicy(ctx context.Context, id prego.PolicyID) (server.FleetPolicy, error) {
	return get[server.FleetPolicy](ctx, s.pool, prego.Errorf(prego.CodePolicyNotFound, "there is no policy %q", id), sqlGetPolicy, id)
}

// Policies is the list of policies.
var Policies = Listing[server.FleetPolicy]{
	what: "policies", from: `SELECT ` + policyColumns + ` FROM policies`,
	filters: map[string]string{"policy_id": "policy_id", "type": "type"},
	sorts:   map[string]string{"created_at": "created_at", "policy_id": "policy_id"},
	id:      "policy_id",
}

const sqlUpdatePolicy = `UPDATE policies SET spec = $3, updated_at = now() WHERE policy_id = $1 AND type = $2 RETURNING ` + policyColumns

// UpdatePolicy changes a policy's spec, which must be of its type, for actions that are
// planned later. With match, see holdVersion.
func (s *Store) UpdatePolicy(ctx context.Context, id prego.PolicyID, of server.PolicyType, spec json.RawMessage, match ...string) (p server.FleetPolicy, err error) {
	err = s.replacing(ctx, match, prego.ReplaceablePolicy, []any{id}, func(tx *txn) error {
		p = getIn[server.FleetPolicy](ctx, tx, prego.Errorf(prego.CodePolicyNotFound, "there is no policy %q of type %s", id, of), sqlUpdatePolicy, id, of, spec)
		return nil
	})
	return p, err
}

const sqlDeletePolicy = `DELETE FROM policies WHERE policy_id = $1`

// DeletePolicy deletes a policy that no fleet has, else CodePolicyInUse.
func (s *Store) DeletePolicy(ctx context.Context, id prego.PolicyID) error {
	tag, err := s.pool.Exec(ctx, sqlDeletePolicy, id)
	switch {
	case isViolation(err, "fleet_policies_policy_id_fkey"):
		return prego.Errorf(prego.CodePolicyInUse, "policy %s is attached to fleets: detach it first", id)
	case err != nil:
		return fmt.Errorf("delete policy: %w", err)
	case tag.RowsAffected() == 0:
		return prego.Errorf(prego.CodePolicyNotFound, "there is no policy %q", id)
	}
	return nil
}

const sqlAttachPolicy = `
INSERT INTO fleet_policies (fleet_id, policy_id, type, position, enabled)
SELECT $1, policy_id, type, COALESCE($3, (SELECT COALESCE(max(position), 0) + 10 FROM fleet_policies WHERE fleet_id = $1)), $4
FROM policies WHERE policy_id = $2
ON CONFLICT (fleet_id, policy_id) DO UPDATE SET position = COALESCE($3, fleet_policies.position), enabled = $4`

// AttachPolicy gives a fleet a policy, last in order when position is nil, or
// changes the order and whether it is enabled. A second policy of a type that decides
// alone is CodePolicyTypeAttached.
func (s *Store) AttachPolicy(ctx context.Context, fleetID prego.FleetID, policyID prego.PolicyID, position *int, enabled bool) (f server.Fleet, err error) {
	err = s.inTx(ctx, "attach policy", func(tx *txn) error {
		got(lockFleet(ctx, tx, fleetID)).in(tx)
		tx.must(ctx, prego.Errorf(prego.CodePolicyNotFound, "there is no policy %q", policyID), sqlAttachPolicy, fleetID, policyID, position, enabled)
		f = got(getFleet(ctx, tx, string(fleetID))).in(tx)
		return nil
	})
	if isViolation(err, "fleet_policies_one") {
		err = prego.Errorf(prego.CodePolicyTypeAttached, "fleet %s has a policy of this type already: detach that one first", fleetID)
	}
	return f, err
}

const sqlDetachPolicy = `DELETE FROM fleet_policies WHERE fleet_id = $1 AND policy_id = $2`

// DetachPolicy takes a policy from a fleet; without the policy it succeeds as well.
func (s *Store) DetachPolicy(ctx context.Context, fleetID prego.FleetID, policyID prego.PolicyID) error {
	if _, err := s.GetFleet(ctx, fleetID); err != nil {
		return err
	}
	return s.exec(ctx, "detach policy", sqlDetachPolicy, fleetID, policyID)
}
