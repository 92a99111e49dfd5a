package store

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/migrations"
)

// scaleDatabase spares making the rows again while one works on a statement.
var scaleDatabase = flag.String("scale-database", "", "URL of a database for BenchmarkAtScale, which is migrated and filled if it is empty, and kept")

// large is a database that pgtest.FillLarge filled.
func large(tb testing.TB, n int) *pgxpool.Pool {
	tb.Helper()
	began := time.Now()
	pool := scalePool(tb)
	if filled, err := value[bool](context.Background(), pool, `SELECT EXISTS (SELECT FROM tenants)`); err != nil || filled {
		require.NoError(tb, err)
		return pool
	}
	pgtest.FillLarge(tb, pool.Config().ConnString(), n)
	tb.Logf("a database with %d servers and %d tenants was made in %s", n, 10*n, time.Since(began).Round(time.Second))
	return pool
}

func scalePool(tb testing.TB) *pgxpool.Pool {
	tb.Helper()
	if *scaleDatabase == "" {
		return pgtest.Pool(tb)
	}
	require.NoError(tb, migrations.Up(context.Background(), *scaleDatabase))
	pool, err := pgxpool.New(context.Background(), *scaleDatabase)
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}
