package store

import (
	"context"

	"github.com/prego/prego"
)

const (
	sqlAssignGroup = `SELECT assign_placement_group($1, $2, $3, $4, $5)`
	sqlLeaveGroup  = `DELETE FROM placement_group_members WHERE server_id = $1`
)

// AssignPlacementGroup gives a server a place in the first group named
// "<prefix>-<n>", n ≤ groups, that has fewer than size members, leaving out the
// excluded ones. A server keeps the place it has. "" means that every group is
// full.
func (s *Store) AssignPlacementGroup(ctx context.Context, serverID prego.ServerID, prefix string, size, groups int, exclude []string) (string, error) {
	name, err := value[string](ctx, s.pool, sqlAssignGroup, serverID, prefix, size, groups, filled(exclude))
	return name, failed(string("placement group for "+serverID), err)
}
