package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

// TestAMoveWhoseNewPlaceIsLost: after the switch the tenant goes back to what the old place still has, or is lost
// like any other if a backup is newer, or nothing is there any more.
func TestAMoveWhoseNewPlaceIsLost(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	place := somewhere
	place.ShardID, place.PoolID, place.DBDiskMax, place.RedisMax = "db-2", "redis-2", 90, 90
	all := tenant.MoveAsked{To: "any", Shard: "any", Pool: "any"}
	for name, tc := range map[string]struct {
		ask    tenant.MoveAsked
		lost   prego.ServerID
		before string // a statement
		back   bool
		kept   bool // where it is
		mins   int
	}{
		"its app server":              {tenant.MoveAsked{To: "app-2"}, "app-2", ``, true, false, 0},
		"its shard":                   {tenant.MoveAsked{Shard: "any"}, "db-2", ``, true, false, 30},
		"its pool":                    {tenant.MoveAsked{Pool: "any"}, "redis-2", ``, true, false, 0},
		"the shard of three parts":    {all, "db-2", ``, true, false, 30},
		"the server of three parts":   {all, "app-2", ``, true, false, 30},
		"the pool of three parts":     {all, "redis-2", ``, false, true, 0},
		"a backup is older":           {all, "db-2", backupFrom("2 hours"), true, false, 30},
		"a backup is newer":           {all, "db-2", backupFrom("5 minutes"), false, false, 0},
		"a newer backup is missing":   {all, "db-2", backupFrom("5 minutes") + `; UPDATE backups SET missing_at = now()`, true, false, 30},
		"the old shard is lost":       {all, "db-2", `UPDATE servers SET status = 'failed', status_reason = 'server_missing' WHERE server_id = 'db'`, false, false, 0},
		"the old place is cleared":    {all, "db-2", `UPDATE tenant_moves SET clearing_at = now()`, false, false, 0},
		"the old place is lost":       {all, "app-1", ``, false, true, 0},
		"what did not move":           {tenant.MoveAsked{To: "app-2"}, "db", ``, false, false, 0},
		"a tenant that is terminated": {all, "db-2", `UPDATE tenants SET state = 'terminated', deadline_at = now()`, false, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := dataMoveSetup(t)
			tc.ask.ID, tc.ask.TenantID, tc.ask.By = "mov-1", "t-1", "ann"
			p := place
			m, err := b.s.RequestMove(ctx, tc.ask)
			require.NoError(t, err)
			if !m.MovesServer {
				p.ServerID = "app-1"
			}
			ok, err := b.s.ReserveMove(ctx, "mov-1", p)
			require.NoError(t, err)
			require.True(t, ok)
			_, err = b.s.FreezeMove(ctx, "mov-1")
			require.NoError(t, err)
			before := b.place1()
			require.NoError(t, b.s.SwitchMove(ctx, "mov-1", 0))
			after := b.place1()
			require.NotEqual(t, before, after)
			b.exec(`UPDATE tenant_moves SET frozen_at = now() - interval '29 minutes 30 seconds'`)
			if tc.before != "" {
				b.exec(tc.before)
			}
			_, err = b.s.LoseServer(impact.By(ctx, "test"), tc.lost, "its disk died", "ann")
			require.NoError(t, err)
			quiet, err := b.s.QuietMoves(ctx, time.Hour)
			require.NoError(t, err)
			run, err := b.s.MoveRecord(ctx, "mov-1")
			require.NoError(t, err)
			require.Equal(t, tc.back, run.Returned)
			require.Equal(t, !tc.kept, len(quiet) == 1 && quiet[0].Lost, "its run is woken")
			loss, err := b.s.TenantLoss(ctx, "t-1")
			require.NoError(t, err)
			switch {
			case tc.kept:
				require.Equal(t, after, b.place1())
				return
			case !tc.back:
				require.Empty(t, b.place1(), "it has no place, and is restored from a backup")
				ok, err := b.s.ClearingMove(ctx, "mov-1")
				require.NoError(t, err)
				require.True(t, ok)
				_, err = b.s.FinishMove(ctx, "mov-1", tenant.MoveDone, "", "")
				require.NoError(t, err)
				return
			}
			require.Equal(t, before, b.place1())
			require.Equal(t, tc.mins, tenant.LostMinutes(*loss.TakenAt, loss.LostAt))
			require.NotNil(t, loss.RestoredAt)
			require.True(t, run.Here())
			require.Equal(t, tenant.MoveFrozen, run.State, "others keep away until it is undone")
			ok, err = b.s.ClearingMove(ctx, "mov-1")
			require.NoError(t, err)
			require.False(t, ok, "nothing is cleared where it lives")
			require.NoError(t, b.s.SwitchMove(ctx, "mov-1", 0), "a repeated step")
			require.Equal(t, before, b.place1())
			_, err = b.s.FinishMove(ctx, "mov-1", tenant.MoveDone, "", "")
			require.NoError(t, err)
			done, err := b.s.FinishMove(ctx, "mov-1", tenant.MoveFailed, tenant.ReasonMoveTarget, "")
			require.NoError(t, err)
			require.Equal(t, tenant.MoveFailed, done.State)
			require.Contains(t, done.Message, "server "+string(tc.lost)+" is gone, where the tenant had moved to. It is on app-1 again; ")
			require.Equal(t, []int{1, 0, 1, 0, 1, 0}, b.dataCounts())
		})
	}
}

// backupFrom stores a backup that is so old.
func backupFrom(age string) string {
	return `INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, state, created_by, taken_at, sealed_identity, bytes, sha256, plain_sha256, manifest_sha256)
		SELECT 'bak-1', org_id, tenant_id, 'app-1', site, 'scheduled', 'stored', 'ann', now() - interval '` + age + `', '\x00', 1, 'a', 'b', 'c' FROM tenants WHERE tenant_id = 't-1'`
}

// place1 is where the tenant lives.
func (b *peersBundle) place1() []string {
	b.t.Helper()
	out, err := values[string](context.Background(), b.s.pool, `SELECT unnest(ARRAY[app_server_id, db_shard_id, redis_pool_id]) FROM tenant_allocations WHERE tenant_id = 't-1' AND released_at IS NULL`)
	require.NoError(b.t, err)
	return out
}
