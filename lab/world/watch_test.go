package world

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// numberOf is the number of an invariant.
func numberOf(t *testing.T, name string) int {
	t.Helper()
	n := slices.IndexFunc(watched(), func(inv invariant) bool { return inv.name == name })
	require.NotEqual(t, -1, n, name)
	return n
}

// TestInvariantsAreNotifiedOfTheirTables: the tables of its plan, and the tables that Postgres read when it ran,
// which include functions' tables.
func TestInvariantsAreNotifiedOfTheirTables(t *testing.T) {
	at := takePlace(t)
	t.Cleanup(at.giveBack)
	ctx := context.Background()
	c, err := pgx.Connect(ctx, at.url)
	require.NoError(t, err)
	defer func() { _ = c.Close(ctx) }()
	_, err = c.Exec(ctx, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'free', 'test'); INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ('acme', 'max_instances', 1, 'test')`)
	require.NoError(t, err)
	told := map[string][]string{}
	var table string
	var args []byte
	rows, err := c.Query(ctx, `SELECT tgrelid::regclass::text, tgargs FROM pg_trigger WHERE tgname = 'world_tells'`)
	require.NoError(t, err)
	_, err = pgx.ForEachRow(rows, []any{&table, &args}, func() error {
		told[table] = strings.Split(strings.TrimRight(string(args), "\x00"), ",")
		return nil
	})
	require.NoError(t, err)
	for n, inv := range watched() {
		tables := planned(t, c, inv.sql)
		require.NotEmpty(t, tables, inv.name)
		fresh, err := pgx.Connect(ctx, at.url) // else it has looked at more
		require.NoError(t, err)
		require.NoError(t, pgx.BeginFunc(ctx, fresh, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, fmt.Sprintf("SELECT * FROM world_asks.i%d", n)); err != nil {
				return err
			}
			rows, err := tx.Query(ctx, `SELECT relname::text FROM pg_stat_xact_user_tables WHERE schemaname = 'public' AND COALESCE(seq_scan, 0) + COALESCE(idx_scan, 0) > 0`)
			if err != nil {
				return err
			}
			looked, err := pgx.CollectRows(rows, pgx.RowTo[string])
			tables = append(tables, looked...)
			return err
		}))
		require.NoError(t, fresh.Close(ctx))
		for _, table := range tables {
			require.Contains(t, told[table], strconv.Itoa(n), "%s reads %s", inv.name, table)
		}
	}
	usage := strconv.Itoa(numberOf(t, "I3 usage is exact"))
	for _, table := range []string{"tenants", "instances", "org_counters", "org_usage_changes", "process_groups"} {
		require.Contains(t, told[table], usage, "by way of functions and views")
	}
}

// planned are the tables in the plan of a statement.
func planned(t *testing.T, c *pgx.Conn, sql string) (tables []string) {
	t.Helper()
	var raw []byte
	require.NoError(t, c.QueryRow(context.Background(), "EXPLAIN (FORMAT JSON) "+sql).Scan(&raw))
	var plan any
	require.NoError(t, json.Unmarshal(raw, &plan))
	var look func(v any)
	look = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				look(e)
			}
		case map[string]any:
			if name, ok := v["Relation Name"].(string); ok {
				tables = append(tables, name)
			}
			for _, e := range v {
				look(e)
			}
		}
	}
	look(plan)
	return tables
}

// TestInvariantsAreAskedAfterACommit: the ones that read its columns, and not earlier. A column without a reader causes
// no notice.
func TestInvariantsAreAskedAfterACommit(t *testing.T) {
	bare(t, func(w *World) {
		l := quietLife(t, w)
		defer l.Pool.Close()
		ctx := context.Background()
		w.Schedule.Free()
		w.bridge.written()
		_, err := l.Pool.Exec(ctx, `INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'free', 'test')`)
		require.NoError(t, err)
		limit := numberOf(t, "I3 no org is above its limit")
		require.ElementsMatch(t, []int{limit, numberOf(t, "I3 usage is exact")}, w.broken())
		_, err = l.Pool.Exec(ctx, `UPDATE orgs SET tier = 'paid'`)
		require.NoError(t, err)
		require.Empty(t, w.broken(), "no invariant reads it")
		tx, err := l.Pool.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, `INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ('acme', 'max_instances', 1, 'test')`)
		require.NoError(t, err)
		require.Empty(t, w.broken(), "it is under way")
		require.NoError(t, tx.Commit(ctx))
		require.Contains(t, w.broken(), limit)
		require.Empty(t, w.broken(), "they have been asked")
		_, err = l.Pool.Exec(ctx, `UPDATE org_quotas SET limit_value = limit_value`)
		require.NoError(t, err)
		require.Empty(t, w.broken(), "it is as it was")
		_, err = l.Pool.Exec(ctx, `UPDATE org_quotas SET limit_value = 2`)
		require.NoError(t, err)
		require.Contains(t, w.broken(), limit)
		w.provided.Store(true)
		require.Equal(t, []int{watchBills()}, w.broken(), "the provider did something")
	})
}
