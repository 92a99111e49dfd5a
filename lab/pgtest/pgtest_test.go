package pgtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/prego/prego/lab/devstack"
)

// TestTemplateIsCreatedConcurrently has several begin on one new cluster, as test binaries that share one do.
func TestTemplateIsCreatedConcurrently(t *testing.T) {
	t.Parallel()
	dir, err := devstack.Scratch("prego-pgtest-race-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	pg, err := devstack.StartPostgres(t.Context(), devstack.PostgresConfig{Dir: filepath.Join(dir, "pg"), Volatile: true})
	require.NoError(t, err)
	t.Cleanup(pg.Kill)
	var all errgroup.Group
	for range 6 {
		all.Go(func() error { return ensureTemplate(t.Context(), pg.URL("postgres"), "template_of_all") })
	}
	require.NoError(t, all.Wait())
	var names string
	require.NoError(t, pg.Value(t.Context(), &names, "SELECT string_agg(datname, ' ') FROM pg_database WHERE datname LIKE 'template_of_all%'"))
	require.Equal(t, "template_of_all", names, "it is complete, and nothing is left of the making")
}

func TestTappedStatementsFailAsTheTestSays(t *testing.T) {
	t.Parallel()
	no := errors.New("no")
	pool := Tapped(t, Pool(t), func(sql string, _ []any) error {
		if strings.Contains(sql, "2") {
			return no
		}
		return nil
	})
	ctx := t.Context()
	require.NoError(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT 1")
		return err
	}))
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT 2")
		return err
	})
	require.ErrorIs(t, err, no)
	b := &pgx.Batch{}
	b.Queue("SELECT 1")
	b.Queue("SELECT 2")
	require.ErrorIs(t, pool.SendBatch(ctx, b).Close(), no)
	require.NoError(t, pool.Ping(ctx))
}
