package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops"
)

// prunedTables are all of them, with how a row becomes so many days old. It is a row that may be
// pruned; others are made by FillLarge.
func prunedTables() map[ops.PrunedTable]string {
	return map[ops.PrunedTable]string{
		ops.PrunedEvents:       `UPDATE org_events SET at = now() - make_interval(days => %d) WHERE event_id %% 2 = 0`,
		ops.PrunedFeed:         `UPDATE events SET at = now() - make_interval(days => %d) WHERE kind IN ('instance', 'server') AND seq %% 100 <= 60`,
		ops.PrunedSessions:     `UPDATE org_sessions SET opened_at = now() - make_interval(days => %d) WHERE session_id LIKE '%%2'`,
		ops.PrunedInstances:    `UPDATE instances SET stopped_at = now() - make_interval(days => %d) WHERE number %% 2 = 1`,
		ops.PrunedCommands:     `UPDATE agent_command_audit SET requested_at = now() - make_interval(days => %d) WHERE audit_id LIKE '%%2'`,
		ops.PrunedDecisions:    `UPDATE decision_inputs SET created_at = now() - make_interval(days => %d) WHERE first %% 2 = 0`,
		ops.PrunedSamples:      `UPDATE server_samples SET at = at - make_interval(days => %d) WHERE server_id LIKE '%%2'`,
		ops.PrunedRates:        `UPDATE rate_budgets SET at = now() - make_interval(days => %d) WHERE budget LIKE '%%2'`,
		ops.PrunedKeys:         `UPDATE request_keys SET created_at = now() - make_interval(days => %d) WHERE created_id IS NULL AND key LIKE '%%2'`,
		ops.PrunedCreationKeys: `UPDATE request_keys SET created_at = now() - make_interval(days => %d) WHERE created_id IS NOT NULL AND key LIKE '%%2'`,
		ops.PrunedLinks:        `UPDATE login_links SET expires_at = now() - make_interval(days => %d) WHERE link_id LIKE '%%2'`,
		ops.PrunedCredentials:  `UPDATE credentials SET expires_at = now() - make_interval(days => %d) WHERE credential_id LIKE '%%2'`,
	}
}

// aged is a store with rows in all tables that are pruned; some are ten days old.
func aged(t *testing.T) *Store {
	t.Helper()
	url := pgtest.URL(t)
	pgtest.FillLarge(t, url, 40,
		`INSERT INTO org_sessions (session_id, org_id, kind, subject, actor, lease_until, closed_at) SELECT 's-' || i, 'o-0', 'exec', '', '', now(), now() FROM generate_series(1, 50) i`,
		`INSERT INTO org_sessions (session_id, org_id, kind, subject, actor, lease_until) VALUES ('open-2', 'o-0', 'logs', '', '', now() + interval '1 minute')`,
		`INSERT INTO request_keys (subject, key, request_hash, leased_until, status) SELECT 'a', 'k-' || i, '', now() - interval '1 minute', 200 FROM generate_series(1, 50) i`,
		`INSERT INTO request_keys (subject, key, request_hash, leased_until) VALUES ('a', 'under-way-2', '', now() + interval '1 minute')`,
		`INSERT INTO request_keys (subject, key, request_hash, created_id) SELECT 'a', 'made-' || i, '', 'a-1' FROM generate_series(1, 50) i`,
		`INSERT INTO decision_inputs (journal, first, events, body) SELECT 'j', i, 1, '' FROM generate_series(0, 50) i`,
		`INSERT INTO rate_budgets (budget, rest, leased, at) SELECT 'token ' || i, 1, 1, now() FROM generate_series(1, 50) i`,
		`INSERT INTO principals (principal_id, kind, name, created_by) VALUES ('p-1', 'service_account', 'robot', '')`,
		`INSERT INTO credentials (credential_id, kind, hash, prefix, principal_id, parent_id, name, created_by, expires_at)
			SELECT 'c-' || i, 'token', sha256(i::text::bytea), '', 'p-1', CASE WHEN i % 10 = 2 AND i > 10 THEN 'c-2' END, '', '', now() FROM generate_series(1, 50) i`,
		`INSERT INTO login_links (link_id, hash, principal_id, parent_id, created_by, expires_at) SELECT 'l-' || i, sha256(i::text::bytea), 'p-1', 'c-1', '', now() FROM generate_series(1, 50) i`,
		`INSERT INTO server_samples (at, server_id, load1) SELECT now(), 's-' || i, 1 FROM generate_series(1, 50) i`,
		`INSERT INTO events (kind, id, step) SELECT CASE WHEN i % 10 = 0 THEN 'server' ELSE 'instance' END, 's-' || i, 'x' FROM generate_series(1, 99) i`,
		`UPDATE instances SET state = 'stopped', stopped_at = now() WHERE number % 3 = 0`)
	pool, err := Open(t.Context(), url, 8, nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := New(pool)
	for _, sql := range prunedTables() {
		exec(t, s, fmt.Sprintf(sql, 10))
	}
	return s
}

// from are the rows of a table that is pruned, on a condition.
func from(table ops.PrunedTable, condition string) string {
	switch table {
	case ops.PrunedKeys:
		condition = "created_id IS NULL AND " + condition
	case ops.PrunedCreationKeys:
		table, condition = "request_keys", "created_id IS NOT NULL AND "+condition
	}
	return string(table) + " WHERE " + condition
}

func rowsOf(t *testing.T, s *Store, table ops.PrunedTable) (n int) {
	t.Helper()
	return count(t, s, from(table, "true"))
}

func TestOldRowsArePruned(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := aged(t)
	conditions := map[ops.PrunedTable]string{
		ops.PrunedLinks: `expires_at < now() - interval '9 days'`, ops.PrunedCredentials: `expires_at < now() - interval '9 days'`,
		ops.PrunedEvents: `at < now() - interval '9 days'`, ops.PrunedFeed: `at < now() - interval '9 days' AND payload IS NULL AND kind <> 'server'`, ops.PrunedSessions: `opened_at < now() - interval '9 days' AND closed_at IS NOT NULL`,
		ops.PrunedInstances: `stopped_at < now() - interval '9 days' AND state = 'stopped'`, ops.PrunedCommands: `requested_at < now() - interval '9 days'`,
		ops.PrunedDecisions: `created_at < now() - interval '9 days'`, ops.PrunedSamples: `at < now() - interval '9 days'`, ops.PrunedRates: `at < now() - interval '9 days'`,
		ops.PrunedKeys: `created_at < now() - interval '9 days' AND leased_until < now()`, ops.PrunedCreationKeys: `created_at < now() - interval '9 days'`,
	}
	for table, due := range conditions {
		before, old := rowsOf(t, s, table), count(t, s, from(table, due))
		require.Positive(t, old, table)
		require.Less(t, old, before, table)
		n, err := s.Prune(ctx, table, 11*24*time.Hour, 1000)
		require.NoError(t, err)
		require.Zero(t, n, "%s: none is that old", table)
		gone := 0
		for {
			n, err := s.Prune(ctx, table, 9*24*time.Hour, 7)
			require.NoError(t, err)
			require.LessOrEqual(t, n, 7, table)
			if gone += n; n == 0 {
				break
			}
		}
		if table == ops.PrunedEvents { // the oldest by their number are looked at, and every other one is old
			n, err := s.Prune(ctx, table, 9*24*time.Hour, before)
			require.NoError(t, err)
			gone += n
		}
		require.Equal(t, old, gone, table)
		require.Equal(t, before-old, rowsOf(t, s, table), table)
	}
	require.Equal(t, 1, count(t, s, `org_sessions WHERE session_id = 'open-2'`), "an open session is kept")
	require.Equal(t, 1, count(t, s, `request_keys WHERE key = 'under-way-2'`), "so is the key of a request that runs")
	require.Zero(t, count(t, s, `org_usage_changes`), "pruned rows no longer counted")
}

// TestExpiredAccessIsPrunedWithoutAnEntry: what names a credential goes before it, and the audit, which has when it
// expired, does not grow.
func TestExpiredAccessIsPrunedWithoutAnEntry(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	exec(t, s, `INSERT INTO principals (principal_id, kind, name, created_by) VALUES ('p-1', 'service_account', 'robot', '')`)
	exec(t, s, `INSERT INTO credentials (credential_id, kind, hash, prefix, principal_id, parent_id, name, created_by, expires_at)
		SELECT id, 'token', sha256(id::bytea), '', 'p-1', parent, '', '', now() - age FROM (VALUES ('old', NULL, interval '31 days'),
			('narrowed', 'old', '31 days'), ('recent', NULL, '29 days'), ('live', NULL, '-1 day')) c (id, parent, age)`)
	exec(t, s, `INSERT INTO login_links (link_id, hash, principal_id, parent_id, created_by, expires_at, used_at)
		VALUES ('l', sha256('l'), 'p-1', 'narrowed', '', now() - interval '31 days', now() - interval '31 days')`)
	const deletions = `audit_entries WHERE kind IN ('credential', 'login_link') AND verb = 'delete'`
	for _, step := range []struct {
		table ops.PrunedTable
		want  int
	}{
		{ops.PrunedCredentials, 0}, {ops.PrunedLinks, 1}, {ops.PrunedCredentials, 1}, {ops.PrunedCredentials, 1}, {ops.PrunedCredentials, 0},
	} {
		n, err := s.Prune(t.Context(), step.table, 30*24*time.Hour, 100)
		require.NoError(t, err)
		require.Equal(t, step.want, n, step.table)
	}
	require.Zero(t, count(t, s, deletions))
	exec(t, s, `DELETE FROM credentials WHERE credential_id = 'live'`)
	require.Equal(t, 1, count(t, s, deletions), "of what was still good")
	require.Equal(t, 1, count(t, s, `credentials`))
}

// TestPruningStopsNoWriter lets writers insert into and update the tables, and one
// transaction hold rows that are due, while everything is pruned.
func TestPruningStopsNoWriter(t *testing.T) {
	t.Parallel()
	s := aged(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	held, err := s.pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = held.Rollback(context.Background()) }()
	for _, sql := range []string{
		`UPDATE org_sessions SET actor = 'x' WHERE session_id = 's-2'`, `UPDATE request_keys SET status = 201 WHERE key = 'k-2'`,
		`SELECT FROM agent_command_audit WHERE audit_id = 'c-2' FOR UPDATE`, `SELECT FROM instances WHERE number = 3 FOR UPDATE`,
	} {
		_, err := held.Exec(ctx, sql)
		require.NoError(t, err)
	}
	var wg sync.WaitGroup
	var wrote [3]int
	for i, sql := range []string{
		`INSERT INTO events (kind, org_id, step, id, actor, payload) VALUES ('app', 'o-0', 'x', $1, 'w', '{}')`,
		`INSERT INTO request_keys (subject, key, request_hash, leased_until) VALUES ('w', $1, '', now())`,
		`INSERT INTO agent_command_audit (audit_id, server_id, command_kind, args_redacted, actor) VALUES ('w-' || $1, 's-2', 'bench', '', 'system')`,
	} {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				short, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				_, err := s.pool.Exec(short, sql, fmt.Sprint(n))
				cancel()
				if err != nil {
					t.Errorf("a writer was stopped: %v", err)
					return
				}
				wrote[i]++
			}
		})
	}
	gone := map[ops.PrunedTable]int{}
	for range 20 {
		for table := range prunedTables() {
			n, err := s.Prune(ctx, table, 9*24*time.Hour, 40)
			require.NoError(t, err)
			gone[table] += n
		}
	}
	stop()
	wg.Wait()
	for table := range prunedTables() {
		require.Positive(t, gone[table], table)
	}
	for i := range wrote {
		require.Positive(t, wrote[i])
	}
	require.Equal(t, wrote[0], count(t, s, `org_events WHERE actor = 'w'`), "nothing new is pruned")
	require.Equal(t, 1, count(t, s, `org_sessions WHERE session_id = 's-2'`), "a row that is being changed is left for the next time")
	require.Equal(t, 1, count(t, s, `request_keys WHERE key = 'k-2'`))
	require.NoError(t, held.Rollback(context.Background()))
	n, err := s.Prune(t.Context(), ops.PrunedSessions, 9*24*time.Hour, 40)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// TestACursorBehindWhichEventsArePrunedIsRefused follows an org's events, oldest first.
func TestACursorBehindWhichEventsArePrunedIsRefused(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := aged(t)
	exec(t, s, `UPDATE org_events SET at = now() - interval '10 days' WHERE event_id <= 100`)
	follow := func(cursor, sort string) (first int64, next string, err error) {
		page, next, err := s.ListOrgEvents(ctx, prego.ListQuery{Filters: map[string][]string{"org_id": {"o-0"}}, Sort: sort, Cursor: cursor, Limit: 2})
		if err != nil {
			return 0, "", err
		}
		return page[0].EventID, next, nil
	}
	_, early, err := follow("", "at")
	require.NoError(t, err)
	_, back, err := follow("", "-at")
	require.NoError(t, err)
	_, _, err = follow(early, "at")
	require.NoError(t, err)

	_, err = s.Prune(ctx, ops.PrunedEvents, 9*24*time.Hour, 100)
	require.NoError(t, err)
	_, _, err = follow(early, "at")
	require.Equal(t, prego.CodeEventsGone, prego.CodeOf(err))
	_, _, err = follow(back, "-at")
	require.NoError(t, err, "who reads backwards misses nothing in between")

	// As the refusal advises.
	first, next, err := follow("", "at")
	require.NoError(t, err)
	require.Greater(t, first, int64(100))
	_, _, err = follow(next, "at")
	require.NoError(t, err)
}
