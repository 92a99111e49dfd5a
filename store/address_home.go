package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/workload"
)

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
  AND (a.served_at IS NULL OR a.server_id IS DISTINCT FROM w.server_id) LIMIT 100`

// AddressesAstray returns the addresses that are not served by the edge that should have them.
func (s *Store) AddressesAstray(ctx context.Context) ([]string, error) {
	return collectValues[string](ctx, s, "addresses astray", sqlAddressesAstray)
}

const sqlNoteEdgeAddresses = `INSERT INTO changes (kind, id) VALUES ('edge_addresses', '')`

// changeAddress changes a row and notifies the edges.
func (s *Store) changeAddress(ctx context.Context, what, sql string, args ...any) error {
	return s.inTx(ctx, what, func(tx pgx.Tx) error {
		ok, err := changed(ctx, tx, sql, args...)
		if err != nil || !ok {
			return err
		}
		_, err = tx.Exec(ctx, sqlNoteEdgeAddresses)
		return err
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
UPDATE ipv4_allocations SET served_at = now() WHERE allocation_id = $1 AND server_id = $2 AND deleted_at IS NULL AND status = 'ready' RETURNING org_id, address`

// AddressServed records that an edge has an address now and may serve it.
func (s *Store) AddressServed(ctx context.Context, id string, serverID prego.ServerID) error {
	return s.inTx(ctx, "address "+id+" is served", func(tx pgx.Tx) error {
		a, err := find[struct {
			OrgID   prego.OrgID
			Address string
		}](ctx, tx, sqlAddressServed, id, serverID)
		if err != nil || a == nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlNoteEdgeAddresses); err != nil {
			return err
		}
		return orgEvent(ctx, tx, org.Event{OrgID: a.OrgID, Type: "ipv4.assign", Subject: id, Actor: string(prego.ActorSystem)}, map[string]any{"server_id": serverID, "address": a.Address})
	})
}
