package store

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

// updated calls a function after each UPDATE of a pool's connections, and after the function that contains one.
type updated func()

type updateKey struct{}

func (updated) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, updateKey{}, strings.HasPrefix(strings.TrimSpace(q.SQL), "UPDATE") ||
		strings.Contains(q.SQL, "consume_bootstrap_token("))
}

func (u updated) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if is, _ := ctx.Value(updateKey{}).(bool); is {
		u()
	}
}

// TestRefusalsAreExplainedByTheStateThatCausedThem: another transaction changes the row at the worst moment, after
// the UPDATE that depends on its state and before the query that explains why nothing was changed. The answer must
// match one of the two orders.
func TestRefusalsAreExplainedByTheStateThatCausedThem(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before, meanwhile string
		do                func(ctx context.Context, s *Store) error
		want              string // a condition of the row after both
	}{
		"a move that switches is finished": {
			meanwhile: `UPDATE tenant_moves SET state = 'switched', switched_at = now() WHERE move_id = 'mov-1'`,
			do: func(ctx context.Context, s *Store) error {
				m, err := s.FinishMove(ctx, "mov-1", tenant.MoveDone, "", "")
				if err == nil && m.State != tenant.MoveDone {
					t.Errorf("it is returned as %s", m.State)
				}
				return err
			},
			want: `tenant_moves WHERE state = 'done'`,
		},
		"a move that returns is cancelled": {
			before:    `UPDATE tenant_moves SET state = 'switched', switched_at = now()`,
			meanwhile: `UPDATE tenant_moves SET state = 'frozen', returned_at = now() WHERE move_id = 'mov-1'`,
			do: func(ctx context.Context, s *Store) error {
				_, err := s.CancelMove(ctx, "t-1", "mov-1")
				return err
			},
			want: `tenant_moves WHERE cancel_requested_at IS NOT NULL`,
		},
		"a server that becomes active is lost": {
			before:    `UPDATE servers SET status = 'provisioning' WHERE server_id = 'app-2'`,
			meanwhile: `UPDATE servers SET status = 'active' WHERE server_id = 'app-2'`,
			do: func(ctx context.Context, s *Store) error {
				_, err := s.LoseServer(impact.By(ctx, "test"), "app-2", "its disk died", "ann")
				return err
			},
			want: `servers WHERE server_id = 'app-2' AND status = 'draining'`,
		},
		"a server that is opened is closed": {
			before:    `UPDATE servers SET cordoned_at = now(), cordoned_by = 'ann', cordon_reason = 'disk' WHERE server_id = 'app-2'`,
			meanwhile: `UPDATE servers SET cordoned_at = NULL, cordoned_by = NULL, cordon_reason = NULL WHERE server_id = 'app-2'`,
			do: func(ctx context.Context, s *Store) error {
				_, err := s.CordonServer(ctx, "app-2", "ann", "disk")
				return err
			},
			want: `servers WHERE server_id = 'app-2' AND cordoned_at IS NOT NULL`,
		},
		"an image whose build fails is deleted": {
			before: `INSERT INTO golden_images (image_id, provider, region, base_image, architecture, created_by, status)
				VALUES ('img-1', 'hetzner', 'eu', 'debian-13', 'x86', 'ann', 'building')`,
			meanwhile: `UPDATE golden_images SET status = 'failed', reason = 'build_timeout' WHERE image_id = 'img-1'`,
			do: func(ctx context.Context, s *Store) error {
				_, err := s.RequestImageDelete(ctx, "img-1", "ann")
				return err
			},
			want: `golden_images WHERE status = 'deleting'`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := moveSetup(t)
			b.freezes("mov-1", tenant.MoveAsked{To: "app-2"}, somewhere)
			if tc.before != "" {
				b.exec(tc.before)
			}
			after, err := played(t, b.s, tc.meanwhile, tc.do)
			require.NoError(t, err)
			require.NoError(t, after)
			require.Equal(t, 1, count(t, b.s, tc.want))
		})
	}
}

// played runs do beside an open transaction that has run meanwhile. It commits when do has run its first UPDATE, or
// waits for it.
func played(t *testing.T, s *Store, meanwhile string, do func(context.Context, *Store) error) (did, committed error) {
	t.Helper()
	ctx := t.Context()
	tx, err := s.pool.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, meanwhile)
	require.NoError(t, err)
	var over atomic.Bool
	commit := sync.OnceValue(func() error {
		defer over.Store(true)
		return tx.Commit(ctx)
	})
	config := s.pool.Config()
	config.ConnConfig.Tracer = updated(func() { _ = commit() })
	pool, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(t, err)
	defer pool.Close()
	result := make(chan error, 1)
	go func() { result <- do(ctx, New(pool)) }()
	require.Eventually(t, func() bool {
		return over.Load() || count(t, s, `pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
	}, 10*time.Second, 5*time.Millisecond)
	committed = commit()
	return <-result, committed
}
