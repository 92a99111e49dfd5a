package store

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/tenant"
)

// ada returns a context with a caller.
func ada(ctx context.Context, request string) context.Context {
	return ops.WithAuditSource(ctx, ops.AuditSource{Actor: "ada", Role: "operator", From: "10.0.0.7", RequestID: request, Operation: "putOrg"})
}

// audited has n sealed entries.
func audited(t *testing.T, n int) *Store {
	t.Helper()
	s := New(pgtest.Pool(t))
	for i := range n {
		exec(t, s, fmt.Sprintf(`INSERT INTO orgs (org_id, created_by, tier) VALUES ('org-%d', 'ann', 'free')`, i))
	}
	sealed, head, err := s.SealAudit(t.Context(), 1000)
	require.NoError(t, err)
	require.Equal(t, n, sealed)
	require.EqualValues(t, n, head.Seq)
	return s
}

func verify(t *testing.T, s *Store, c ops.AuditCheck) ops.AuditVerification {
	t.Helper()
	if c.Limit == 0 {
		c.Limit = 1000
	}
	v, err := s.VerifyAudit(t.Context(), c)
	require.NoError(t, err)
	return v
}

// TestVerifyFindsDamage of each kind, even if the owner of the tables causes it with the triggers turned off.
func TestVerifyFindsDamage(t *testing.T) {
	t.Parallel()
	const rehash = `UPDATE audit_chain SET hash = sha256(prev_hash || convert_to(audit_encoding((SELECT e FROM audit_entries e WHERE e.entry_id = audit_chain.entry_id)), 'UTF8')) WHERE seq = `
	for name, c := range map[string]struct {
		damage []string
		want   []ops.AuditDamage
		at     int64 // in the chain
		head   bool  // is needed
	}{
		"nothing":             {},
		"a changed value":     {damage: []string{`UPDATE audit_entries SET new = new || '{"tier": "paid"}' WHERE id = 'org-4'`}, want: []ops.AuditDamage{ops.AuditChanged}, at: 5},
		"a changed actor":     {damage: []string{`UPDATE audit_entries SET actor = 'eve' WHERE id = 'org-0'`}, want: []ops.AuditDamage{ops.AuditChanged}, at: 1},
		"a changed time":      {damage: []string{`UPDATE audit_entries SET at = at + interval '1 microsecond' WHERE id = 'org-9'`}, want: []ops.AuditDamage{ops.AuditChanged}, at: 10},
		"changed, and hashed": {damage: []string{`UPDATE audit_entries SET actor = 'eve' WHERE id = 'org-4'`, rehash + `5`}, want: []ops.AuditDamage{ops.AuditLinkBroken}, at: 6},
		"a removed entry":     {damage: []string{`DELETE FROM audit_entries WHERE id = 'org-4'`}, want: []ops.AuditDamage{ops.AuditRemoved}, at: 5},
		"removed with its link": {
			damage: []string{`DELETE FROM audit_entries WHERE id = 'org-4'`, `DELETE FROM audit_chain WHERE seq = 5`}, want: []ops.AuditDamage{ops.AuditLinkMissing}, at: 5,
		},
		"removed and closed up": {
			damage: []string{`DELETE FROM audit_entries WHERE id = 'org-4'`, `DELETE FROM audit_chain WHERE seq = 5`, `UPDATE audit_chain SET seq = -seq WHERE seq > 5`, `UPDATE audit_chain SET seq = -seq - 1 WHERE seq < 0`},
			want:   []ops.AuditDamage{ops.AuditLinkBroken}, at: 5,
		},
		"a removed beginning": {
			damage: []string{`DELETE FROM audit_entries WHERE id IN ('org-0', 'org-1')`, `DELETE FROM audit_chain WHERE seq < 3`}, want: []ops.AuditDamage{ops.AuditBeginningMissing}, at: 3,
		},
		"a removed beginning with a checkpoint": {
			damage: []string{
				`INSERT INTO audit_checkpoints (seq, hash, entries) SELECT seq, hash, 2 FROM audit_chain WHERE seq = 2`,
				`DELETE FROM audit_entries WHERE id IN ('org-0', 'org-1')`, `DELETE FROM audit_chain WHERE seq < 3`,
			},
			want: []ops.AuditDamage{ops.AuditCheckpointUnsigned}, at: 2,
		},
		"a removed end": {
			damage: []string{`DELETE FROM audit_entries WHERE id IN ('org-8', 'org-9')`, `DELETE FROM audit_chain WHERE seq > 8`}, want: []ops.AuditDamage{ops.AuditEndMissing}, at: 8, head: true,
		},
		"rewritten": {
			damage: []string{
				`UPDATE audit_entries SET actor = 'eve' WHERE id = 'org-4'`, `DELETE FROM audit_chain`, `INSERT INTO audit_unsealed SELECT entry_id FROM audit_entries`, `SELECT seal_audit(1000)`,
			},
			want: []ops.AuditDamage{ops.AuditHeadDiffers}, at: 10, head: true,
		},
		"all removed": {damage: []string{`TRUNCATE audit_entries`, `TRUNCATE audit_chain`}, want: []ops.AuditDamage{ops.AuditEndMissing}, head: true},
		"an inserted link": {
			damage: []string{
				`UPDATE audit_chain SET seq = -seq WHERE seq > 5`, `UPDATE audit_chain SET seq = 1 - seq WHERE seq < 0`,
				`INSERT INTO audit_entries (actor, role, kind, id, verb) VALUES ('ada', 'operator', 'fleet', 'web', 'delete')`,
				`INSERT INTO audit_chain SELECT 6, e.entry_id, c.hash, sha256(c.hash || convert_to(audit_encoding(e), 'UTF8')) FROM audit_entries e, audit_chain c WHERE e.id = 'web' AND c.seq = 5`,
			},
			want: []ops.AuditDamage{ops.AuditLinkBroken}, at: 7,
		},
		"reordered": {
			damage: []string{`UPDATE audit_chain SET seq = -1 WHERE seq = 5`, `UPDATE audit_chain SET seq = 5 WHERE seq = 6`, `UPDATE audit_chain SET seq = 6 WHERE seq = -1`},
			want:   []ops.AuditDamage{ops.AuditLinkBroken, ops.AuditLinkBroken, ops.AuditLinkBroken}, at: 5,
		},
		"exchanged": {
			damage: []string{
				`UPDATE audit_chain SET entry_id = -1 WHERE seq = 5`, `UPDATE audit_chain SET entry_id = (SELECT entry_id FROM audit_entries WHERE id = 'org-4') WHERE seq = 6`,
				`UPDATE audit_chain SET entry_id = (SELECT entry_id FROM audit_entries WHERE id = 'org-5') WHERE seq = 5`,
			},
			want: []ops.AuditDamage{ops.AuditChanged, ops.AuditChanged}, at: 5,
		},
		"never sealed": {
			damage: []string{`INSERT INTO audit_entries (at, actor, role, kind, id, verb) VALUES (now() - interval '6 minutes', 'ada', 'operator', 'fleet', 'web', 'delete')`},
			want:   []ops.AuditDamage{ops.AuditUnsealed},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := audited(t, 10)
			head, err := s.AuditHead(t.Context())
			require.NoError(t, err)
			tx, err := s.pool.Pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), `SET LOCAL session_replication_role = 'replica'`)
			require.NoError(t, err)
			for _, sql := range c.damage {
				_, err = tx.Exec(t.Context(), sql)
				require.NoError(t, err, sql)
			}
			require.NoError(t, tx.Commit(t.Context()))
			v := verify(t, s, ops.AuditCheck{Head: &head})
			var got []ops.AuditDamage
			for _, p := range v.Problems {
				got = append(got, p.Problem)
				require.NotEmpty(t, p.Message)
			}
			if name == "removed and closed up" { // and the end is not where it was
				require.Equal(t, ops.AuditEndMissing, got[len(got)-1])
				got = got[:len(got)-1]
			}
			if name == "an inserted link" || name == "removed with its link" {
				got = slices.DeleteFunc(got, func(d ops.AuditDamage) bool { return d == ops.AuditHeadDiffers })
			}
			require.Equal(t, c.want, got, "%+v", v.Problems)
			if len(c.want) > 0 {
				require.Equal(t, c.at, v.Problems[0].Seq, "%+v", v.Problems)
			}
			if c.head {
				require.Empty(t, verify(t, s, ops.AuditCheck{}).Problems, "only the kept head shows it")
			}
		})
	}
}

// TestAuditIsAppendOnly: triggers stop the owner and missing privileges stop a separate role. That role needs
// none: its changes have entries, and these are sealed and pruned as usual.
func TestAuditIsAppendOnly(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := audited(t, 3)
	changes := []string{
		`UPDATE audit_entries SET actor = 'eve'`, `DELETE FROM audit_entries`, `TRUNCATE audit_entries`, `UPDATE audit_chain SET hash = ''`, `DELETE FROM audit_chain`, `TRUNCATE audit_chain`,
	}
	for _, sql := range changes {
		_, err := s.pool.Exec(ctx, sql)
		require.ErrorContains(t, err, "only appended to", sql)
	}
	// The role of docs/production.md, in this database.
	role := strings.ToLower(fmt.Sprintf("app_%d", time.Now().UnixNano()))
	text, err := os.ReadFile("../deploy/postgres/application.sql")
	require.NoError(t, err)
	exec(t, s, "CREATE ROLE "+role+" BYPASSRLS")
	exec(t, s, strings.ReplaceAll(string(text), "prego_app", role))
	t.Cleanup(func() {
		_, _ = s.pool.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role)
	})
	cfg := s.pool.Config()
	cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SET SESSION AUTHORIZATION "+role)
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	app := New(pool)
	for _, sql := range append(changes, `INSERT INTO audit_entries (actor, role, kind, id, verb) VALUES ('ada', 'operator', 'fleet', 'web', 'delete')`, `DELETE FROM audit_unsealed`,
		`INSERT INTO audit_checkpoints (seq, hash, entries) VALUES (3, '', 3)`, `ALTER TABLE audit_entries DISABLE TRIGGER ALL`, `ALTER TABLE orgs DISABLE TRIGGER ALL`, `SET session_replication_role = 'replica'`,
		`SELECT write_audit('fleet', 'web', '', 'delete', NULL, NULL)`) {
		_, err := app.pool.Exec(ctx, sql)
		var pg *pgconn.PgError
		require.ErrorAs(t, err, &pg, sql)
		require.Equal(t, "42501", pg.Code, sql)
		require.NotContains(t, pg.Message, "only appended to", "it lacks even the privilege")
	}
	// Shadowing the audit's tables does not help.
	conn, err := app.pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	if _, err := conn.Exec(ctx, `CREATE TEMP TABLE audit_entries (LIKE public.audit_entries INCLUDING ALL)`); err == nil {
		_, err = conn.Exec(ctx, `UPDATE orgs SET tier = 'paid' WHERE org_id = 'org-2'`)
		require.NoError(t, err)
		require.Equal(t, 1, count(t, s, `audit_entries WHERE verb = 'update' AND id = 'org-2'`))
	}
	_, err = app.PutOrg(ada(ctx, "r-1"), "new", tenant.PutOrgRequest{Tier: prego.TierFree}, "ada")
	require.NoError(t, err)
	_, err = app.GetOrg(reading(ctx, "new"), "new")
	require.NoError(t, err, "it may become prego_customer")
	page, _, err := AuditEntries.In(app)(ctx, prego.ListQuery{Limit: 10, Filters: map[string][]string{"id": {"new"}}})
	require.NoError(t, err)
	require.Len(t, page, 1)
	require.Equal(t, []string{"ada", "operator", "10.0.0.7", "r-1", "putOrg"}, []string{page[0].Actor, page[0].Role, page[0].Address, page[0].RequestID, page[0].Operation})
	_, err = app.pool.Exec(ctx, `UPDATE orgs SET tier = 'paid' WHERE org_id = 'new'`)
	require.NoError(t, err)
	require.Equal(t, 1, count(t, s, `audit_entries WHERE actor = '`+role+`' AND role = 'database' AND id = 'new'`), "the role, and not the owner of the function")
	_, _, err = app.SealAudit(ctx, 100)
	require.NoError(t, err)
	require.Empty(t, verify(t, app, ops.AuditCheck{}).Problems)
	_, err = app.Prune(ctx, ops.PrunedAudit, time.Hour, 100)
	require.NoError(t, err)
	require.Equal(t, 3, count(t, s, `audit_entries WHERE id LIKE 'org-%' AND verb = 'create'`), "thirty days are kept for every caller")
}

// TestPruningLeavesACheckpoint with an entry, and verification of the chain starts there.
func TestPruningLeavesACheckpoint(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := New(pgtest.Pool(t))
	old := func(days, n int) {
		for i := range n {
			exec(t, s, fmt.Sprintf(`INSERT INTO audit_entries (at, actor, role, kind, id, verb) VALUES (now() - make_interval(days => %d), 'ada', 'operator', 'fleet', 'f-%d', 'update')`, days, i))
		}
		_, _, err := s.SealAudit(ctx, 1000)
		require.NoError(t, err)
	}
	old(100, 7)
	noted, err := s.AuditHead(ctx)
	require.NoError(t, err)
	old(10, 3)
	n, err := s.Prune(ctx, ops.PrunedAudit, 50*24*time.Hour, 5)
	require.NoError(t, err)
	require.Equal(t, 5, n)
	n, err = s.Prune(ctx, ops.PrunedAudit, 50*24*time.Hour, 5)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, err = s.Prune(ctx, ops.PrunedAudit, 50*24*time.Hour, 5)
	require.NoError(t, err)
	require.Zero(t, n)
	_, head, err := s.SealAudit(ctx, 1000)
	require.NoError(t, err)
	require.EqualValues(t, 12, head.Seq, "two checkpoints have entries")
	v := verify(t, s, ops.AuditCheck{Head: &noted})
	require.Empty(t, v.Problems, "the noted head is the checkpoint")
	require.Equal(t, []int64{8, 8, 12}, []int64{v.FirstSeq, v.CheckedFrom, v.CheckedThrough})
	require.Empty(t, verify(t, s, ops.AuditCheck{From: 10, Head: &head}).Problems)

	// Damaged entries are not pruned.
	exec(t, s, `BEGIN; SET LOCAL session_replication_role = 'replica'; DELETE FROM audit_entries WHERE entry_id = (SELECT entry_id FROM audit_chain WHERE seq = 9); UPDATE audit_entries SET at = at - interval '100 days'; COMMIT`)
	n, err = s.Prune(ctx, ops.PrunedAudit, 50*24*time.Hour, 100)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// TestGoAndSQLHashTheSame entry, and no two entries have the same encoding.
func TestGoAndSQLHashTheSame(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	ctx := t.Context()
	text := rapid.OneOf(rapid.StringMatching(`[a-z0-9:,-]{0,8}`), rapid.StringOfN(rapid.Rune().Filter(func(r rune) bool { return r != 0 && r != 0xFFFD }), 0, 8, -1))
	object := rapid.Custom(func(t *rapid.T) *string {
		if rapid.Bool().Draw(t, "none") {
			return nil
		}
		out := `{"a": ` + fmt.Sprint(rapid.Float64Range(-1e6, 1e6).Draw(t, "n")) + `, "z": "` + rapid.StringMatching(`[a-zé,: ]{0,6}`).Draw(t, "v") + `"}`
		return &out
	})
	seen := map[string]ops.AuditEntry{}
	deep.Check(t, 40, func(t *rapid.T) {
		var id int64
		at := time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "at"))
		require.NoError(t, s.pool.QueryRow(ctx, `INSERT INTO audit_entries (at, actor, role, address, request_id, operation, kind, id, org_id, verb, old, new)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'update', $10, $11) RETURNING entry_id`, at, text.Draw(t, "actor"), text.Draw(t, "role"), text.Draw(t, "address"), text.Draw(t, "request"),
			text.Draw(t, "operation"), text.Draw(t, "kind"), text.Draw(t, "id"), text.Draw(t, "org"), object.Draw(t, "old"), object.Draw(t, "new")).Scan(&id))
		_, _, err := s.SealAudit(ctx, 10)
		require.NoError(t, err)
		e, err := s.GetAuditEntry(ctx, id)
		require.NoError(t, err)
		var inSQL string
		require.NoError(t, s.pool.QueryRow(ctx, `SELECT audit_encoding(e) FROM audit_entries e WHERE entry_id = $1`, id).Scan(&inSQL))
		require.Equal(t, inSQL, e.Encoding())
		var before ops.AuditHash
		copy(before[:], e.PrevHash)
		sum := e.Sealed(before)
		require.Equal(t, e.Hash, sum[:])
		// Moving a byte from a field to the next changes the encoding.
		e.EntryID, e.At = 0, time.Time{}
		other, met := seen[e.Encoding()]
		if met {
			other.Seq, other.PrevHash, other.Hash = e.Seq, e.PrevHash, e.Hash
			require.Equal(t, e, other)
		}
		seen[e.Encoding()] = e
		moved := e
		moved.Kind, moved.ID = e.Kind+e.ID, ""
		require.Equal(t, moved.Kind == e.Kind, moved.Encoding() == e.Encoding())
	})
	require.Empty(t, verify(t, s, ops.AuditCheck{}).Problems)
}

// TestEntriesAreSealedOnceInOrder with concurrent sealers. An entry whose transaction commits late is sealed later
// and not lost.
func TestEntriesAreSealedOnceInOrder(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := New(pgtest.Pool(t))
	late, err := s.pool.Begin(ada(ctx, "late"))
	require.NoError(t, err)
	_, err = late.Exec(ctx, `INSERT INTO orgs (org_id, created_by, tier) VALUES ('late', 'ada', 'free')`)
	require.NoError(t, err)
	done := make(chan error)
	for w := range 4 {
		go func() {
			var err error
			for i := 0; i < 20 && err == nil; i++ {
				_, err = s.pool.Exec(ctx, `INSERT INTO orgs (org_id, created_by, tier) VALUES ($1, 'ann', 'free')`, fmt.Sprintf("org-%d-%d", w, i))
				if err == nil {
					_, _, err = s.SealAudit(ctx, 3)
				}
			}
			done <- err
		}()
	}
	for range 4 {
		require.NoError(t, <-done)
	}
	require.NoError(t, late.Commit(ctx))
	_, head, err := s.SealAudit(ctx, 1000)
	require.NoError(t, err)
	require.EqualValues(t, 81, head.Seq)
	v := verify(t, s, ops.AuditCheck{})
	require.Empty(t, v.Problems)
	require.Zero(t, v.Unsealed)
	last, _, err := AuditEntries.In(s)(ctx, prego.ListQuery{Limit: 1, Filters: map[string][]string{"id": {"late"}}})
	require.NoError(t, err)
	require.Equal(t, "ada", last[0].Actor)
	require.EqualValues(t, 81, *last[0].Seq)
}

// TestCallerReachesEveryStatement on its way through the pool, and no other statement.
func TestCallerReachesEveryStatement(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	ctx := ada(t.Context(), "r-1")
	const asked = `SELECT COALESCE(NULLIF(convert_from(decode(current_setting('prego.request', true), 'base64'), 'UTF8'), '')::json ->> 'request_id', '')`
	const note = `INSERT INTO orgs (org_id, created_by, tier) VALUES ($1, 'ann', 'free')`
	one := func(ctx context.Context, want string) {
		t.Helper()
		got, err := value[string](ctx, s.pool, asked)
		require.NoError(t, err)
		require.Equal(t, want, got)
		all, err := values[string](ctx, s.pool, asked)
		require.NoError(t, err)
		require.Equal(t, []string{want}, all)
		require.NoError(t, s.inTx(ctx, "test", func(tx *txn) error {
			got, err := value[string](ctx, tx, asked)
			require.Equal(t, want, got)
			return err
		}))
		require.NoError(t, pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			got, err := value[string](ctx, tx, asked)
			require.Equal(t, want, got)
			level, err2 := value[string](ctx, tx, `SELECT current_setting('transaction_isolation') || current_setting('transaction_read_only')`)
			require.NoError(t, err2)
			require.Equal(t, "repeatable readon", level)
			return err
		}))
		b := &pgx.Batch{}
		var batched []string
		queueValues(b, &batched, asked)
		require.NoError(t, s.pool.SendBatch(ctx, b).Close())
		require.Equal(t, []string{want}, batched)
	}
	one(ctx, "r-1")
	one(t.Context(), "")
	_, err := s.pool.Exec(ctx, note, "a")
	require.NoError(t, err)
	one(t.Context(), "")
	_, err = s.pool.Exec(ctx, note, "a")
	require.True(t, isViolation(err, "orgs_pkey"), "%v", err)
	_, err = value[string](ctx, s.pool, note+` RETURNING org_id`, "a")
	require.True(t, isViolation(err, "orgs_pkey"), "%v", err)
	_, err = value[string](ctx, s.pool, `SELECT org_id FROM orgs WHERE org_id = 'none'`)
	require.ErrorIs(t, err, pgx.ErrNoRows)
	id, err := value[string](ctx, s.pool, note+` RETURNING org_id`, "b")
	require.NoError(t, err)
	require.Equal(t, "b", id)
	require.Equal(t, 2, count(t, s, `audit_entries WHERE request_id = 'r-1'`))
	for range 20 { // no connection is lost, and none keeps it
		one(ctx, "r-1")
		one(t.Context(), "")
	}
}

// notAudited are the tables without a trigger of the audit, and why.
var notAudited = map[string]string{
	"made by workflows only": `acme_accounts acme_budgets acme_challenges acme_orders agent_release_servers allocation_snapshots attention_since container_reports db_shards redis_pools destructions dns_comparisons dns_departures dns_records
		edge_documents edge_left_out edges egress fleet_action_steps instances networks orphan_sightings placement_group_members provider_budgets provider_catalogs rebalance_moves reconcile_runs resources
		scaling_events server_bootstrap_tokens server_peers site_health site_pool site_uptime stack_release_servers stack_release_sites tenant_allocations tenant_losses backup_schedules volume_backup_schedules`,
	"bookkeeping":                      `cost_progress certificate_names_due credential_spending changes changes_pruned goose_db_version looks org_counters org_sessions org_usage_changes org_usage_drifts org_usage_parts org_usage_sweep org_work passkey_ceremonies peers_due pruned rate_budgets redo redo_due region_room rejected_rows request_keys boot_artifacts`,
	"a separate record, only appended": `events cost_entries cost_meters decision_inputs server_samples provider_prices backup_policy_changes`,
	"the audit itself":                 `audit_entries audit_chain audit_unsealed audit_checkpoints`,
}

// TestEveryTableIsAuditedOrNot for a reason, and no column that seems to hold a secret is shown.
func TestEveryTableIsAuditedOrNot(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	known := map[string]bool{}
	for _, names := range notAudited {
		for n := range strings.FieldsSeq(names) {
			known[n] = true
		}
	}
	type column struct{ Name, Columns, Args string }
	tables, err := many[column](t.Context(), s.pool, `
SELECT c.relname AS name, (SELECT string_agg(a.attname, ' ') FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
    COALESCE((SELECT encode(g.tgargs, 'escape') FROM pg_trigger g WHERE g.tgrelid = c.oid AND g.tgname = c.relname || '_audit'), '') AS args
FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace`)
	require.NoError(t, err)
	secret := regexp.MustCompile(`(?i)passw|secret|token|sealed|private_key|api_key|credential|hash|signature`)
	harmless := map[string]bool{"tenant_allocations.password_version": true, "credentials.credential_id": true}
	n := 0
	for _, c := range tables {
		require.NotEqual(t, c.Args == "", !known[c.Name], "%s: audit it, or give the reason in notAudited", c.Name)
		if c.Args == "" {
			continue
		}
		n++
		args := strings.Split(c.Args, `\000`)
		require.Len(t, args, 6, c.Args)
		hidden := strings.Fields(args[3] + " " + args[4])
		all := strings.Fields(c.Columns)
		for _, named := range append(slices.Concat(strings.Fields(args[1]), strings.Fields(args[2])), hidden...) {
			require.Contains(t, all, named, c.Name)
		}
		for _, name := range all {
			if secret.MatchString(name) && !harmless[c.Name+"."+name] {
				require.Contains(t, hidden, name, "%s.%s: is it a secret? Then the audit must not show it", c.Name, name)
			}
		}
	}
	require.Greater(t, n, 40)
}

// TestSecretsInDocumentsAreRedacted even if no column is named for them.
func TestSecretsInDocumentsAreRedacted(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	for in, want := range map[string]string{
		`{"spec": {"env": {"DB_PASSWORD": "a\"b", "HOST": "h"}}}`:      `{"spec": {"env": {"HOST": "h", "DB_PASSWORD": "[redacted]"}}}`,
		`{"url": "postgres://u:p%40@h/db", "mail": {"password": "x"}}`: `{"url": "postgres://u:[redacted]@h/db", "mail": {"password": "[redacted]"}}`,
		`{"token": null, "tokens": 3, "api_key": ""}`:                  `{"token": null, "tokens": 3, "api_key": "[redacted]"}`,
		`{"spec": {"image": "a", "command": ["x", "--pw=y"]}}`:         `{"spec": {"image": "a", "command": "[redacted]"}}`,
		`{"spec": "a", "command": "b"}`:                                `{"spec": "a", "command": "b"}`,
		`{"sealed": "\\x00", "a": "\\"}`:                               `{"a": "\\", "sealed": "[redacted]"}`,
		`{"text": "say \"password\": \"x\" to me", "a": "b"}`:          `{"a": "b", "text": "say \"password\": \"x\" to me"}`,
	} {
		got, err := value[string](t.Context(), s.pool, `SELECT redact_audit($1::text::jsonb, '{sealed}')::text`, in)
		require.NoError(t, err, in)
		require.JSONEq(t, want, got)
	}
}
