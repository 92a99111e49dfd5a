package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tapped is another pool on the database of one. Each statement waits for tap before it is sent, and fails with the
// error that tap returns.
func Tapped(t testing.TB, of *pgxpool.Pool, tap func(sql string, args []any) error) *pgxpool.Pool {
	t.Helper()
	cfg := of.Config().Copy()
	cfg.ConnConfig.Tracer = tapped(tap)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

type tapped func(sql string, args []any) error

func (f tapped) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if err := f(q.SQL, q.Args); err != nil {
		return failed{ctx, err}
	}
	return ctx
}

func (tapped) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (f tapped) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		if err := f(q.SQL, q.Arguments); err != nil {
			return failed{ctx, err}
		}
	}
	return ctx
}

func (tapped) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (tapped) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// failed is a context that has ended with an error of a test, so that nothing is sent.
type failed struct {
	context.Context
	err error
}

func (f failed) Err() error { return f.err }

func (failed) Done() <-chan struct{} { return ended }

var ended = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
