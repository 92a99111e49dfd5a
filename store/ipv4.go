package store

import (
	"context"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

const ipv4Columns = `COALESCE(a.server_id, '') AS server_id, a.served_at IS NOT NULL AS served, a.allocation_id, a.org_id, a.env_id, a.provider, a.name, a.location, COALESCE(a.provider_id, '') AS provider_id, a.address, a.status, a.reason, a.message, a.created_by, a.created_at, a.deleted_at`

const sqlEnvIPv4 = `SELECT ` + ipv4Columns + ` FROM ipv4_allocations a WHERE a.env_id = $1 AND a.deleted_at IS NULL`

// GetIPv4 reads the IPv4 add-on of an env, or CodeIPv4NotFound.
func (s *Store) GetIPv4(ctx context.Context, envID prego.EnvID) (workload.IPv4Allocation, error) {
	if err := s.envExists(ctx, envID); err != nil {
		return workload.IPv4Allocation{}, err
	}
	return get[workload.IPv4Allocation](ctx, s.pool, noIPv4(envID), sqlEnvIPv4, envID)
}

// IPv4s is the list of the IPv4 addresses of envs, without released ones.
var IPv4s = Listing[workload.IPv4Allocation]{
	what: "IPv4 addresses", from: `SELECT ` + ipv4Columns + ` FROM ipv4_allocations a`,
	live:    `a.deleted_at IS NULL`,
	filters: map[string]string{"org_id": "a.org_id", "env_id": "a.env_id", "address": "a.address", "server_id": "a.server_id", "status": "a.status"},
	sorts:   map[string]string{"created_at": "a.created_at"},
	id:      "a.allocation_id",
}

func noIPv4(envID prego.EnvID) error {
	return prego.Errorf(prego.CodeIPv4NotFound, "env %q has no dedicated IPv4 address", envID)
}

const sqlHoldEnvIPv4 = sqlEnvIPv4 + ` FOR UPDATE`

const sqlProviderOf = `SELECT id FROM infra_providers WHERE enabled AND $1 = ANY (regions) ORDER BY id LIMIT 1`

// providerOf returns the cloud provider for an org's resource in a region.
func providerOf(ctx context.Context, tx *txn, region prego.Region) (id prego.InfraProviderID, err error) {
	err = tx.QueryRow(ctx, sqlProviderOf, region).Scan(&id)
	return id, ifNoRows(err, &prego.Error{Code: prego.CodeRegionNotServed, Field: "region", Message: "is not served by any provider that is enabled"})
}

const sqlCreateIPv4 = `
INSERT INTO ipv4_allocations AS a (allocation_id, org_id, env_id, provider, name, location, status, created_by)
VALUES ($1, $2, $3, $4, $5, $6, 'pending', $7) RETURNING ` + ipv4Columns

const sqlIPv4Status = `
UPDATE ipv4_allocations a SET status = $2, reason = '', message = '', updated_at = now() WHERE a.allocation_id = $1 AND a.deleted_at IS NULL RETURNING ` + ipv4Columns

// EnableIPv4 requests an address for an env: the row is the intent, and the address is created later. Repeating the
// request returns the existing row, and retries a failed one. location chooses where in a region addresses are
// created.
func (s *Store) EnableIPv4(ctx context.Context, envID prego.EnvID, id, environment string, location func(prego.Region) string, by string) (out workload.IPv4Allocation, err error) {
	err = s.inEnv(ctx, "enable ipv4", envID, func(tx *txn, orgID prego.OrgID, region prego.Region) error {
		out, err = one[workload.IPv4Allocation](ctx, tx, sqlHoldEnvIPv4, envID)
		if err == nil {
			tx.harmless(ctx)
			switch out.Status {
			case workload.ResourceReleasing:
				return prego.Errorf(prego.CodeInvalidTransition, "the env's previous address is still being released; try again")
			case workload.ResourceFailed:
				out, err = one[workload.IPv4Allocation](ctx, tx, sqlIPv4Status, out.AllocationID, workload.ResourcePending)
			case workload.ResourcePending, workload.ResourceReady:
			}
			return err
		}
		if !isNoRows(err) {
			return err
		}
		provider := got(providerOf(ctx, tx, region)).in(tx)
		tx.check(s.takeQuota(ctx, tx, orgID, quota.Delta{Dimension: quota.MaxIPv4Allocations, By: 1},
			quota.Cents(tx.addressPrice(ctx, provider, location(region)).Cents)))
		out = oneIn[workload.IPv4Allocation](ctx, tx, sqlCreateIPv4, id, orgID, envID, provider, workload.ResourceName(environment, id), location(region), by)
		tx.costsAddress(ctx, out)
		return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "ipv4.enable", Subject: id, Actor: by}, map[string]any{"env_id": envID})
	})
	return out, err
}

const sqlIPv4Routes = `SELECT count(*) FROM routes WHERE env_id = $1 AND listener_scope = 'env_v4' AND deleted_at IS NULL`

// DisableIPv4 requests the release of the address.
func (s *Store) DisableIPv4(ctx context.Context, envID prego.EnvID, by string) (out workload.IPv4Allocation, err error) {
	err = s.inEnv(ctx, "disable ipv4", envID, func(tx *txn, orgID prego.OrgID, _ prego.Region) error {
		out, err = one[workload.IPv4Allocation](ctx, tx, sqlHoldEnvIPv4, envID)
		switch {
		case isNoRows(err):
			return noIPv4(envID)
		case err != nil || out.Status == workload.ResourceReleasing:
			return err
		}
		routes := valueIn[int](ctx, tx, sqlIPv4Routes, envID)
		if routes > 0 {
			return prego.Errorf(prego.CodeIPv4InUse, "%d routes listen on the address: delete them first", routes)
		}
		tx.demandsAs(ctx, tx.saves(ctx, nil, out.Name).of(impact.Impact{}), out.AllocationID, sqlOfAddress)
		out = oneIn[workload.IPv4Allocation](ctx, tx, sqlIPv4Status, out.AllocationID, workload.ResourceReleasing)
		return orgEvent(ctx, tx, org.Event{OrgID: orgID, Type: "ipv4.disable", Subject: out.AllocationID, Actor: by}, map[string]any{"env_id": envID, "address": out.Address})
	})
	return out, err
}

const sqlIPv4Record = `SELECT ` + ipv4Columns + ` FROM ipv4_allocations a WHERE a.allocation_id = $1 AND a.deleted_at IS NULL`

// IPv4Record reads an existing or requested address; ok is false once it is gone.
func (s *Store) IPv4Record(ctx context.Context, id string) (a workload.IPv4Allocation, ok bool, err error) {
	p, err := find[workload.IPv4Allocation](ctx, s.pool, sqlIPv4Record, id)
	if err != nil || p == nil {
		return a, false, err
	}
	return *p, true, nil
}

// If release was requested in the meantime, it stays requested, and the id is recorded.
const sqlIPv4Made = `
UPDATE ipv4_allocations SET provider_id = $2, address = $3, status = CASE status WHEN 'pending' THEN 'ready' ELSE status END, reason = '', message = ''
WHERE allocation_id = $1 AND deleted_at IS NULL`

// IPv4Made records that the address is there, in the row and in the ledger.
func (s *Store) IPv4Made(ctx context.Context, a workload.IPv4Allocation, providerID, address string) error {
	return s.inTx(ctx, fmt.Sprintf("ipv4 %s is made", a.AllocationID), func(tx *txn) error {
		tx.check(confirmCreated(ctx, tx, a.Provider, "", 0, server.ResourceFloatingIP, a.Name, providerID))
		tx.run(ctx, sqlIPv4Made, a.AllocationID, providerID, address)
		return nil
	})
}

const sqlIPv4Waits = `
UPDATE ipv4_allocations SET status = CASE WHEN $4 THEN 'failed' ELSE status END, reason = $2, message = $3
WHERE allocation_id = $1 AND deleted_at IS NULL AND status = 'pending'`

// IPv4Waits records why the address is not there yet or, if failed, never will be.
func (s *Store) IPv4Waits(ctx context.Context, id string, reason prego.Reason, message string, failed bool) error {
	return s.exec(ctx, fmt.Sprintf("ipv4 %s waits", id), sqlIPv4Waits, id, reason, prego.Redact(message), failed)
}

const sqlIPv4Refused = `
UPDATE ipv4_allocations SET reason = 'change_refused', message = $2, updated_at = CASE reason WHEN 'change_refused'
    THEN updated_at ELSE now() END
WHERE allocation_id = $1 AND deleted_at IS NULL AND status IN ('ready', 'releasing')
    AND (reason, message) IS DISTINCT FROM ('change_refused', $2)`

// IPv4Refused records why the provider does not move an address to its edge, or delete it.
func (s *Store) IPv4Refused(ctx context.Context, id, message string) error {
	return s.exec(ctx, fmt.Sprintf("ipv4 %s is refused", id), sqlIPv4Refused, id, prego.Redact(message))
}

const (
	sqlReleasingNamed = `UPDATE resources SET state = 'releasing', releasing_at = COALESCE(releasing_at, now()) WHERE provider = $1 AND kind = $2 AND name = $3 AND state IN ('intended', 'created')`
	sqlReleasedNamed  = `UPDATE resources SET state = 'released', released_at = now() WHERE provider = $1 AND kind = $2 AND name = $3 AND state <> 'released'`
	sqlIPv4Gone       = `UPDATE ipv4_allocations SET deleted_at = now() WHERE allocation_id = $1 AND deleted_at IS NULL`
)

// ReleasingNamed records in the ledger that a resource is about to be deleted.
func (s *Store) ReleasingNamed(ctx context.Context, provider prego.InfraProviderID, kind server.ResourceKind, name string) error {
	return s.exec(ctx, fmt.Sprintf("release %s %s", kind, name), sqlReleasingNamed, provider, kind, name)
}

// recordGone records in a row and the ledger that the provider no longer has a resource.
func (s *Store) recordGone(ctx context.Context, provider prego.InfraProviderID, kind server.ResourceKind, name, sql, id string) error {
	return s.inTx(ctx, fmt.Sprintf("released %s %s", kind, name), func(tx *txn) error {
		tx.run(ctx, sqlReleasedNamed, provider, kind, name)
		tx.run(ctx, sql, id)
		return nil
	})
}

// IPv4Gone ends an address.
func (s *Store) IPv4Gone(ctx context.Context, a workload.IPv4Allocation) error {
	return s.recordGone(ctx, a.Provider, server.ResourceFloatingIP, a.Name, sqlIPv4Gone, a.AllocationID)
}

const sqlIntentWithdrawn = `UPDATE resources SET state = 'released', released_at = now() WHERE provider = $1 AND kind = $2 AND name = $3 AND provider_id IS NULL AND state = 'intended'`

// IntentWithdrawn closes an intent after the provider's definite refusal.
func (s *Store) IntentWithdrawn(ctx context.Context, provider prego.InfraProviderID, kind server.ResourceKind, name string) error {
	return s.exec(ctx, fmt.Sprintf("withdraw %s %s", kind, name), sqlIntentWithdrawn, provider, kind, name)
}

// The edge that should have an address: its current edge while that is in use, otherwise an edge of its region that
// answers, preferably at the address's location, with the fewest addresses.
const addressWanted = `
    (SELECT s.server_id FROM servers s JOIN envs e ON e.env_id = a.env_id
     WHERE s.role = 'edge' AND s.region = e.region AND s.infra_provider = a.provider AND s.status = 'active' AND s.cordoned_at IS NULL
       AND (s.agent_status = 'connected' OR s.agent_status = 'degraded' AND s.server_id = a.server_id)
     ORDER BY s.server_id IS NOT DISTINCT FROM a.server_id DESC, s.location = a.location DESC,
         (SELECT count(*) FROM ipv4_allocations b WHERE b.server_id = s.server_id AND b.deleted_at IS NULL), s.server_id LIMIT 1)`

const sqlAddressHome = `
SELECT COALESCE(a.server_id, '') AS server_id, a.served_at IS NOT NULL AS served, COALESCE(` + addressWanted + `, '') AS wanted
FROM ipv4_allocations a WHERE a.allocation_id = $1 AND a.deleted_at IS NULL`

// AddressHome reads where an address is and where it should be; nothing if it is gone.
func (s *Store) AddressHome(ctx context.Context, id string) (workload.AddressHome, error) {
	h, err := find[workload.AddressHome](ctx, s.pool, sqlAddressHome, id)
	if err != nil || h == nil {
		return workload.AddressHome{}, failed("home of address "+id, err)
	}
	return *h, nil
}

const sqlAddressesAstray = `
SELECT a.allocation_id FROM ipv4_allocations a, LATERAL (SELECT ` + addressWanted + ` AS server_id) w
WHERE a.status = 'ready' AND a.deleted_at IS NULL AND w.server_id IS NOT NULL
  AND (a.served_at IS NULL OR a.server_id IS DISTINCT FROM w.server_id) ORDER BY md5(a.allocation_id || now()) LIMIT 100`

// AddressesAstray returns the addresses that are not served by the edge that should have them.
func (s *Store) AddressesAstray(ctx context.Context) ([]string, error) {
	return collectValues[string](ctx, s, "addresses astray", sqlAddressesAstray)
}

const sqlNoteEdgeAddresses = `INSERT INTO changes (kind, id) VALUES ('edge_addresses', '')`

// changeAddress changes a row and notifies the edges.
func (s *Store) changeAddress(ctx context.Context, what, sql string, args ...any) error {
	return s.inTx(ctx, what, func(tx *txn) error {
		if !tx.run(ctx, sql, args...) {
			return nil
		}
		tx.run(ctx, sqlNoteEdgeAddresses)
		return nil
	})
}

const sqlAddressLeaves = `UPDATE ipv4_allocations SET served_at = NULL WHERE allocation_id = $1 AND served_at IS NOT NULL`

// AddressLeaves records that no edge may serve an address any more.
func (s *Store) AddressLeaves(ctx context.Context, id string) error {
	return s.changeAddress(ctx, "address "+id+" leaves", sqlAddressLeaves, id)
}

const sqlAddressBound = `UPDATE ipv4_allocations SET server_id = $2, served_at = NULL WHERE allocation_id = $1 AND deleted_at IS NULL`

// AddressBound records where an address is about to be.
func (s *Store) AddressBound(ctx context.Context, id string, serverID prego.ServerID) error {
	return s.changeAddress(ctx, "address "+id+" is bound", sqlAddressBound, id, serverID)
}

const sqlAddressServed = `
UPDATE ipv4_allocations SET served_at = now(), reason = '', message = ''
WHERE allocation_id = $1 AND server_id = $2 AND deleted_at IS NULL AND status = 'ready' RETURNING org_id, address`

// AddressServed records that an edge has an address now and may serve it.
func (s *Store) AddressServed(ctx context.Context, id string, serverID prego.ServerID) error {
	return s.inTx(ctx, "address "+id+" is served", func(tx *txn) error {
		a, err := find[struct {
			OrgID   prego.OrgID
			Address string
		}](ctx, tx, sqlAddressServed, id, serverID)
		if err != nil || a == nil {
			return err
		}
		tx.run(ctx, sqlNoteEdgeAddresses)
		return orgEvent(ctx, tx, org.Event{OrgID: a.OrgID, Type: "ipv4.assign", Subject: id, Actor: string(prego.ActorSystem)}, map[string]any{"server_id": serverID, "address": a.Address})
	})
}
