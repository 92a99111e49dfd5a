package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
)

// An advisory lock per prefix makes callers choose a group one at a time.
const (
	sqlLockGroups  = `SELECT pg_advisory_xact_lock(hashtextextended('placement-groups/' || $1, 0))`
	sqlChooseGroup = `
SELECT COALESCE((SELECT group_name FROM placement_group_members WHERE server_id = $5 AND group_name <> ALL($4::text[])),
    (SELECT g.name FROM (SELECT $1 || '-' || n AS name, n FROM generate_series(1, $3) n) g
     LEFT JOIN placement_group_members m ON m.group_name = g.name
     WHERE g.name <> ALL($4::text[])
     GROUP BY g.name, g.n HAVING count(m.server_id) < $2
     ORDER BY g.n LIMIT 1), '')`
	sqlJoinGroup = `
INSERT INTO placement_group_members (server_id, group_name) VALUES ($1, $2)
ON CONFLICT (server_id) DO UPDATE SET group_name = EXCLUDED.group_name`
	sqlLeaveGroup = `DELETE FROM placement_group_members WHERE server_id = $1`
)

// AssignPlacementGroup gives a server a place in the first group named
// "<prefix>-<n>", n ≤ groups, that has fewer than size members, leaving out the
// excluded ones. A server keeps the place it has. "" means that every group is
// full.
func (s *Store) AssignPlacementGroup(ctx context.Context, serverID prego.ServerID, prefix string, size, groups int, exclude []string) (string, error) {
	var name string
	err := s.inTx(ctx, string("placement group for "+serverID), func(tx pgx.Tx) (err error) {
		if _, err := tx.Exec(ctx, sqlLockGroups, prefix); err != nil {
			return err
		}
		if name, err = value[string](ctx, tx, sqlChooseGroup, prefix, size, groups, filled(exclude), serverID); err != nil {
			return err
		}
		if name == "" {
			_, err = tx.Exec(ctx, sqlLeaveGroup, serverID)
			return err
		}
		_, err = tx.Exec(ctx, sqlJoinGroup, serverID, name)
		return err
	})
	return name, err
}
