package cli

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
)

var moveTable = Table[api.Move]{
	ID: "move_id", Columns: "move_id: move, created_at: at, from, to, state, downtime, reason, message", Spare: "downtime, at",
	More: "tenant_id, why, maintenance_of, requested_by: by, copied_bytes: copied, delta_bytes: delta, frozen_at, switched_at, opened_at, finished_at",
	Computed: map[string]func(api.Move) any{
		"from": func(m api.Move) any { return movedBetween(&m.FromServerId, m.FromShardId, m.FromPoolId) },
		"to":   func(m api.Move) any { return movedBetween(m.ToServerId, m.ToShardId, m.ToPoolId) },
		"downtime": func(m api.Move) any {
			if m.DowntimeMs == nil {
				return ""
			}
			return fmt.Sprintf("%d ms", *m.DowntimeMs)
		},
	},
}

// movedBetween names a place by the servers that a tenant is on, or is to be on.
func movedBetween(ids ...*string) string {
	var out []string
	for _, id := range ids {
		if id != nil && *id != "" && !slices.Contains(out, *id) {
			out = append(out, *id)
		}
	}
	return strings.Join(out, ", ")
}

var watchMove = Watch[api.Move]{
	Path: "/v1/tenants/{tenant}/moves/{move}", Again: "prego tenant move-show {tenant} {move} --watch",
	Lines: func(m api.Move) []line {
		text := fmt.Sprintf("%-22s %s  %s", m.MoveId, m.State, deref(m.Message))
		return []line{{key: text, at: time.Now(), text: text}}
	},
	Doing: func(m api.Move) string { return fmt.Sprintf("the move of %s is %s", m.TenantId, m.State) },
	// It is done for the tenant once it is open; the server before is cleared later.
	Rests: func(m api.Move) bool { return m.State.Ended() || m.OpenedAt != nil },
	Outcome: func(_ *call, m api.Move) error {
		if m.OpenedAt == nil {
			return fmt.Errorf("the move of tenant %s is %s%s", m.TenantId, m.State, reasons(m.Reason, m.Message))
		}
		return nil
	},
	Done: func(_ *call, m api.Move) string {
		text := fmt.Sprintf("tenant %s moved from %s to %s", m.TenantId, movedBetween(&m.FromServerId, m.FromShardId, m.FromPoolId), movedBetween(m.ToServerId, m.ToShardId, m.ToPoolId))
		if m.DowntimeMs != nil {
			text += fmt.Sprintf("; it could not be written to for %d ms", *m.DowntimeMs)
		}
		return text
	},
}

// tenantMoves are the verbs of moves.
func tenantMoves(c *CLI) []*cobra.Command {
	const path = "/v1/tenants/{tenant}/moves"
	var to, shard, pool, region, reason string
	return []*cobra.Command{
		Action[api.Move]{
			Use: "move TENANT", Short: "Move a tenant to another app server, DB shard, Redis pool or region; its site is read-only for some seconds", Path: path, Table: moveTable, Watch: watchMove,
			Example: "  prego tenant move acme-eu --watch\n  prego tenant move acme-eu --to app-eu-7 --reason \"disk errors\"\n  prego tenant move acme-eu --shard any --pool redis-eu-2\n  prego tenant move acme-eu --region us",
			Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&to, "to", "", "app server or node to move to, or any (default: any, unless another part is named)")
				f.StringVar(&shard, "shard", "", "DB shard to move the database to, or any (default: it stays)")
				f.StringVar(&pool, "pool", "", "Redis pool to move the cache to, or any (default: it stays)")
				f.StringVar(&region, "region", "", "region to move all of the tenant to")
				f.StringVar(&reason, "reason", "", "reason for the record")
			},
			Body: func(*call) (any, error) {
				in := api.CreateMove{}
				for _, set := range []struct {
					value string
					into  **string
				}{{to, &in.ToServerId}, {shard, &in.ToShardId}, {pool, &in.ToPoolId}, {reason, &in.Reason}} {
					if set.value != "" {
						*set.into = &set.value
					}
				}
				if region != "" {
					r := prego.Region(region)
					in.Region = &r
				}
				return in, nil
			},
			Say: func(_ *call, m api.Move) string {
				return fmt.Sprintf("accepted: move %s of tenant %s from %s", m.MoveId, m.TenantId, m.FromServerId)
			},
		}.command(c),
		List[api.Move]{Use: "moves TENANT", Short: "List the moves of a tenant, newest first", Path: path, Items: "moves", Filters: "state", Sorts: "created_at", Table: moveTable}.command(c),
		Show[api.Move]{Use: "move-show TENANT MOVE…", Short: "Show moves of a tenant", Path: path + "/{move}", Table: moveTable, Watch: watchMove}.command(c),
		Action[api.Move]{
			Use: "move-cancel TENANT MOVE", Short: "Cancel a move that has not switched; the tenant stays where it is", Method: http.MethodDelete, Path: path + "/{move}", Table: moveTable,
			Say: func(_ *call, m api.Move) string {
				return fmt.Sprintf("cancelled: move %s of tenant %s", m.MoveId, m.TenantId)
			},
		}.command(c),
	}
}
