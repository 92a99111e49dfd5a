package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// TestWhatIsTriedIsRolledBack: the change reads what it wrote, across transactions; nobody else does, and nothing is
// kept. Deferred constraints are checked as the commit would.
func TestWhatIsTriedIsRolledBack(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	ctx := t.Context()
	count := func(ctx context.Context) (n int) {
		require.NoError(t, s.pool.QueryRow(ctx, `SELECT count(*) FROM regions_tried`).Scan(&n))
		return n
	}
	exec(t, s, `CREATE TABLE regions_tried (id int PRIMARY KEY, of int REFERENCES regions_tried DEFERRABLE INITIALLY DEFERRED)`)
	require.NoError(t, s.Try(ctx, func(dry context.Context) error {
		require.NoError(t, s.inTx(dry, "one", func(tx *txn) error {
			tx.run(dry, `INSERT INTO regions_tried VALUES (1, NULL)`)
			return nil
		}))
		refused := errors.New("refused")
		require.ErrorIs(t, s.inTx(dry, "two", func(tx *txn) error {
			tx.run(dry, `INSERT INTO regions_tried VALUES (2, NULL)`)
			return refused
		}), refused)
		require.Equal(t, 1, count(dry), "a refused transaction leaves nothing, and the next ones continue")
		require.Zero(t, count(ctx))
		return s.inView(dry, "view", func(tx *txn) error {
			var n int
			require.NoError(t, tx.QueryRow(dry, `SELECT count(*) FROM regions_tried`).Scan(&n))
			require.Zero(t, n, "a cache may keep what a view reads")
			return nil
		})
	}))
	require.Zero(t, count(ctx))
	require.ErrorContains(t, s.Try(ctx, func(dry context.Context) error {
		_, err := s.pool.Exec(dry, `INSERT INTO regions_tried VALUES (3, 9)`)
		return err
	}), "foreign key")
}

// TestDryRunsLeaveConnectionsForViews: as many dry runs as there are connections do not wait for each other.
func TestDryRunsLeaveConnectionsForViews(t *testing.T) {
	t.Parallel()
	cfg := tenantStore(t).pool.Config()
	cfg.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := New(pool)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var all errgroup.Group
	for range 4 {
		all.Go(func() error {
			return s.Try(ctx, func(dry context.Context) error {
				time.Sleep(50 * time.Millisecond) // until each has its connection
				return s.inView(dry, "view", func(tx *txn) error {
					_, err := tx.Exec(dry, `SELECT 1`)
					return err
				})
			})
		})
	}
	require.NoError(t, all.Wait())
}
