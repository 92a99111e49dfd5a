package migrations_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// function is one as Postgres has it.
type function struct {
	Name, Body, Definition string
}

func functions(t *testing.T, db *pgxpool.Pool) map[string]function {
	t.Helper()
	rows, err := db.Query(context.Background(), `
		SELECT proname, prosrc, pg_get_functiondef(oid) FROM pg_proc p
		WHERE pronamespace = 'public'::regnamespace AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[function])
	require.NoError(t, err)
	byName := map[string]function{}
	for _, f := range all {
		require.NotContains(t, byName, f.Name, "%s has two parameter lists: drop the old one in a migration", f.Name)
		byName[f.Name] = f
	}
	return byName
}

// database is a migrated database and how to connect to it.
func database(t *testing.T) (*pgxpool.Pool, string) {
	t.Helper()
	url := pgtest.URL(t)
	db, err := pgxpool.New(context.Background(), url)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return db, url
}

// TestEveryFunctionIsItsFile: the schema has the functions of the files and no others,
// with the same parameters, attributes and text.
func TestEveryFunctionIsItsFile(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db, _ := database(t)
	have := functions(t, db)
	names, err := filepath.Glob("functions/*.sql")
	require.NoError(t, err)
	files := map[string]string{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		files[strings.TrimSuffix(filepath.Base(name), ".sql")] = string(b)
	}
	require.NotEmpty(t, files)
	for name := range have {
		require.Contains(t, files, name, "function %s has no file in functions/", name)
	}
	for name, text := range files {
		require.Contains(t, have, name, "functions/%s.sql makes no function of that name", name)
		require.Contains(t, text, "$$"+have[name].Body+"$$", name)
		_, err := db.Exec(ctx, text) // this time its body is also checked
		require.NoError(t, err, name)
	}
	require.Equal(t, have, functions(t, db))
}

// TestMigratingReplacesFunctions of any previous version.
func TestMigratingReplacesFunctions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db, url := database(t)
	want := functions(t, db)

	require.NoError(t, migrations.Up(ctx, url))
	require.Equal(t, want, functions(t, db), "migrating again changes nothing")

	// A version with an older text, which lacks a function.
	older := []string{
		`CREATE OR REPLACE FUNCTION runs_instances(p_server text) RETURNS boolean LANGUAGE sql STABLE AS $$ SELECT false $$`,
		`DROP FUNCTION org_limits`,
	}
	for _, sql := range older {
		_, err := db.Exec(ctx, sql)
		require.NoError(t, err)
	}
	lacks, err := migrations.Check(ctx, url)
	require.NoError(t, err)
	require.Equal(t, "there are no SQL functions org_limits", lacks)
	require.NoError(t, migrations.Up(ctx, url))
	require.Equal(t, want, functions(t, db))
	lacks, err = migrations.Check(ctx, url)
	require.NoError(t, err)
	require.Empty(t, lacks)

	// A version after this one, whose schema and functions are left as they are.
	_, err = db.Exec(ctx, older[0]+`; INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)`)
	require.NoError(t, err)
	require.NoError(t, migrations.Up(ctx, url))
	require.Contains(t, functions(t, db)["runs_instances"].Body, "SELECT false")
	lacks, err = migrations.Check(ctx, url)
	require.NoError(t, err)
	require.Empty(t, lacks)
}

// TestProcessesThatMigrateTogether build an empty database once.
func TestProcessesThatMigrateTogether(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db, url := database(t)
	want := functions(t, db)
	_, err := db.Exec(ctx, `DROP SCHEMA public CASCADE; CREATE SCHEMA public`)
	require.NoError(t, err)
	lacks, err := migrations.Check(ctx, url)
	require.NoError(t, err)
	require.Contains(t, lacks, "the schema is at 0")

	var wg sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		wg.Go(func() { errs[i] = migrations.Up(ctx, url) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, want, functions(t, db))
}

// TestFunctionsAreReplacedWhileTheyRun: neither prepared statements nor triggers nor functions that call each other
// fail meanwhile, and none of them waits for a table.
func TestFunctionsAreReplacedWhileTheyRun(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(context.Background())
	db, url := database(t)
	_, err := db.Exec(ctx, `INSERT INTO orgs (org_id, created_by) VALUES ('acme', 'test');
		INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by)
		VALUES ('app-1', '', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'test')`)
	require.NoError(t, err)
	var wg sync.WaitGroup
	var errs [4]error
	var calls [4]int
	for i, statement := range []string{
		`SELECT runs_instances('app-1') OR kept_for_tenants('app-1')`,
		`SELECT count(*) > 0 FROM org_usage('acme', '{max_instances,max_apps}')`,
		`SELECT count(*) = 0 FROM take_quota('acme', '{max_apps}', '{0}', '{"free":{"max_apps":3}}')`,
		`UPDATE servers SET status = CASE status WHEN 'active' THEN 'draining' ELSE 'active' END WHERE server_id = 'app-1' RETURNING true`,
	} {
		wg.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				var v bool
				errs[i] = db.QueryRow(context.WithoutCancel(ctx), statement).Scan(&v)
				calls[i]++
			}
		})
	}
	for range 20 {
		require.NoError(t, migrations.Up(context.WithoutCancel(ctx), url))
	}
	stop()
	wg.Wait()
	for i := range errs {
		require.NoError(t, errs[i])
		require.Greater(t, calls[i], 20)
	}
}
