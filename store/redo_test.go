package store

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops"
)

// redoLog makes entries until nothing is due, as a worker does.
func redoLog(t *testing.T, s *Store, log []ops.RedoEntry) []ops.RedoEntry {
	t.Helper()
	ctx := context.Background()
	for {
		number, body, err := s.NextRedo(ctx, func(e ops.RedoEntry) ([]byte, error) { return json.Marshal(e) })
		require.NoError(t, err)
		if body == nil {
			return log
		}
		var e ops.RedoEntry
		require.NoError(t, json.Unmarshal(body, &e))
		log = append(log, e)
		require.NoError(t, s.RedoSaved(ctx, number))
	}
}

// logged are all rows of the tables in the redo log, without what an entry does not carry.
func logged(t *testing.T, s *Store) map[string][]string {
	t.Helper()
	tables, err := values[string](context.Background(), s.pool,
		`SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'redo_' || tgrelid::regclass::text`)
	require.NoError(t, err)
	require.Greater(t, len(tables), 50)
	out := map[string][]string{}
	for _, name := range tables {
		rows, err := values[string](context.Background(), s.pool, fmt.Sprintf(
			`SELECT (to_jsonb(r) - '{changed_xid,agent_last_heartbeat_at,memory_pct}'::text[])::text
			FROM %s r ORDER BY 1`, name))
		require.NoError(t, err)
		out[name] = rows
	}
	return out
}

// TestARestoredDatabaseIsCompletedFromTheRedoLog: whatever has happened since the base backup is in the database
// afterwards, names that were given again, deletions and references in a circle included, and the counts are right.
func TestARestoredDatabaseIsCompletedFromTheRedoLog(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	live, restored := backupTenants(t, 4), New(pgtest.Pool(t))
	exec(t, live, `INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by)
		VALUES ('acme', 'max_apps', 7, 'test')`)
	exec(t, live, `UPDATE servers SET agent_last_heartbeat_at = now() - interval '1 day'`)
	for _, s := range []*Store{live, restored} {
		exec(t, s, `INSERT INTO placement_pools (pool_id, name, is_default, created_by, updated_by)
			VALUES ('a', 'a', false, 'test', 'test'), ('b', 'b', true, 'test', 'test'), ('c', 'c', false, 'test', 'test')`)
	}
	log := redoLog(t, live, nil)
	counted(t, live)
	storedBackup(t, live, "bak-1", "t-0", 0)
	for _, sql := range []string{
		`UPDATE tenants SET restore_from = 'bak-1' WHERE tenant_id = 't-0'`, // which refers to the tenant
		`UPDATE tenants SET state = 'data_purged', site = '' WHERE tenant_id = 't-1'`,
		`UPDATE tenants SET slug = (SELECT slug FROM tenants WHERE tenant_id = 't-1') WHERE tenant_id = 't-2'`,
		`UPDATE tenant_allocations SET app_server_id = 'n-1' WHERE tenant_id = 't-3'`,
		`UPDATE servers SET cordoned_at = now(), closing = true WHERE server_id = 'n-1'`,
		`DELETE FROM org_quotas`,
		`DELETE FROM placement_pools WHERE pool_id = 'c'`,
		// A unique value changes hands, which is in the way of rows that are handled in the wrong order.
		`UPDATE placement_pools SET is_default = false WHERE pool_id = 'b'`,
		`UPDATE placement_pools SET is_default = true WHERE pool_id = 'a'`,
		`INSERT INTO site_usage (tenant_id, quota_gb) SELECT tenant_id, 5 FROM tenants WHERE tenant_id = 't-0'`,
		`UPDATE servers SET memory_pct = 50, agent_last_heartbeat_at = now() - interval '2 days'`,
	} {
		exec(t, live, sql)
		log = redoLog(t, live, log)
	}
	entries := len(log)
	require.Equal(t, 11, entries, "the last change notes only when a host was seen")

	changes, err := restored.Redo(ctx, 0, 10, log, true)
	require.NoError(t, err)
	tenants, err := value[int](ctx, restored.pool, `SELECT count(*) FROM tenants`)
	require.NoError(t, err)
	require.Zero(t, tenants, "a dry run")
	var said []string
	for _, c := range changes {
		if c.Name != "" {
			said = append(said, c.Table+" "+c.Name+" "+c.Is)
		}
	}
	require.Contains(t, strings.Join(said, "\n"), "tenants t-0")

	_, err = restored.Redo(ctx, 0, 10, log, false)
	require.NoError(t, err)
	_, err = restored.Redo(ctx, 0, 10, log, false)
	require.ErrorContains(t, err, "was completed meanwhile", "twice")
	want, got := logged(t, live), logged(t, restored)
	for name, rows := range want {
		require.Equal(t, rows, got[name], name)
	}
	for _, s := range []*Store{live, restored} {
		drift, err := s.usageDrift(ctx, s.pool, "acme")
		require.NoError(t, err)
		require.Empty(t, drift)
	}
	state, err := restored.RedoState(ctx)
	require.NoError(t, err)
	require.Equal(t, []any{int64(10), ""}, []any{state.Number, state.Unverified()})
	grace, err := value[bool](ctx, restored.pool,
		`SELECT min(agent_last_heartbeat_at) > now() - interval '1 minute' FROM servers`)
	require.NoError(t, err)
	require.True(t, grace, "no host counts as silent for the time when nobody listened")

	// The rules hold again, and what changes is logged.
	exec(t, restored, `UPDATE tenants SET muted = true WHERE tenant_id = 't-0'`)
	next := redoLog(t, restored, nil)
	require.Equal(t, int64(11), next[len(next)-1].Number)
	_, err = restored.pool.Exec(ctx, `UPDATE tenants SET require_tags = '{x}'`)
	require.Error(t, err)
	_, err = restored.pool.Exec(ctx, `INSERT INTO site_usage (tenant_id, quota_gb) VALUES ('t-none', 1)`)
	require.Error(t, err)
}

// TestEveryTableIsInTheRedoLog or left out for a reason, and each of its columns makes an entry or only notes when
// something was seen: a migration that adds one makes the triggers again.
func TestEveryTableIsInTheRedoLog(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	schema, err := os.ReadFile("../migrations/00001_schema.sql")
	require.NoError(t, err)
	listed := func(name string) map[string]bool {
		list := regexp.MustCompile(`(?s)    ` + name + ` constant text\[\] := string_to_array\((.*?), ' '\);`).FindSubmatch(schema)
		require.NotNil(t, list, name)
		out := map[string]bool{}
		for w := range strings.FieldsSeq(strings.NewReplacer("'", "", "\n", " ").Replace(string(list[1]))) {
			out[w] = true
		}
		return out
	}
	leftOut, seen := listed("left_out"), listed("seen")
	type column struct{ Tbl, Name, Trigger string }
	columns, err := many[column](t.Context(), s.pool, `
SELECT c.relname AS tbl, a.attname AS name, COALESCE((SELECT pg_get_triggerdef(g.oid) FROM pg_trigger g
    WHERE g.tgrelid = c.oid AND g.tgname = 'redo_' || c.relname || '_changed'), '') AS trigger
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
  AND a.atttypid <> ALL ('{xid8,pg_snapshot}'::regtype[])`)
	require.NoError(t, err)
	require.Greater(t, len(columns), 800)
	for _, c := range columns {
		require.NotEqual(t, c.Trigger == "", !leftOut[c.Tbl], "%s: it is in the log, or left out for a reason", c.Tbl)
		if c.Trigger != "" && !seen[c.Name] && !seen[c.Tbl+"."+c.Name] {
			require.Regexp(t, `old\."?`+c.Name+`"?\)?(::[a-z]+)? IS DISTINCT`, c.Trigger, "%s.%s makes no entry", c.Tbl, c.Name)
		}
	}
}

// TestARestoredDatabaseIsNotTrusted: on another timeline, or with entries in the storage that it lacks.
func TestARestoredDatabaseIsNotTrusted(t *testing.T) {
	t.Parallel()
	s, ctx := New(pgtest.Pool(t)), context.Background()
	why := func() string {
		state, err := s.RedoState(ctx)
		require.NoError(t, err)
		return state.Unverified()
	}
	require.Empty(t, why(), "a new one")
	require.NoError(t, s.RedoVerified(ctx, 0))
	require.Empty(t, why())
	exec(t, s, `UPDATE redo SET lineage = '1/00000001'`)
	require.Contains(t, why(), "a worker compares")
	require.NoError(t, s.RedoVerified(ctx, 0))
	require.Empty(t, why())
	require.NoError(t, s.Recovering(ctx, "entries are missing"))
	require.Equal(t, "entries are missing", why())
	require.NoError(t, s.RedoVerified(ctx, 0))
	require.Equal(t, "entries are missing", why(), "until it is completed")
	_, body, err := s.NextRedo(ctx, nil)
	require.NoError(t, err)
	require.Nil(t, body, "nothing is added to the log meanwhile")
}
