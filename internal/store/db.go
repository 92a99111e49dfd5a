package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/prego/prego"
)

// querier is the pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// inTx runs f in one transaction, committed when f returns nil.
func (s *Store) inTx(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.pool, f)
}

// exec runs one statement that answers nothing.
func (s *Store) exec(ctx context.Context, what, sql string, args ...any) error {
	_, err := s.pool.Exec(ctx, sql, args...)
	return failed(what, err)
}

// one reads the only row of a statement, pgx.ErrNoRows when there is none.
func one[T any](ctx context.Context, q querier, by pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(rows, by)
}

// many reads all rows of a statement.
func many[T any](ctx context.Context, q querier, by pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, by)
}

// collect reads rows whose columns are the fields of T, in order.
func collect[T any](ctx context.Context, s *Store, what, sql string, args ...any) ([]T, error) {
	return collectBy(ctx, s, what, pgx.RowToStructByPos[T], sql, args...)
}

// collectBy is many of the pool, with what was read in its error.
func collectBy[T any](ctx context.Context, s *Store, what string, by pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	out, err := many(ctx, s.pool, by, sql, args...)
	return out, failed(what, err)
}

// first is the only row of a collection that holds at most one.
func first[T any](rows []T, err error) (*T, error) {
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// orNotFound is notFound when there was no row, and says what failed of another error.
func orNotFound(what string, err, notFound error) error {
	if isNoRows(err) {
		return notFound
	}
	return failed(what, err)
}

// noneIs is none when there was no row, and another error as it is.
func noneIs(err, none error) error {
	if isNoRows(err) {
		return none
	}
	return err
}

func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// failed says what failed; nil stays nil.
func failed(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// asCoded keeps coded errors as they are and says what failed of the others.
func asCoded(what string, err error) error {
	if err == nil || prego.CodeOf(err) != prego.CodeInternal {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// isViolation tells whether err is the refusal of this constraint.
func isViolation(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.ConstraintName == constraint
}

const sqlTryLock = `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))`

// alone runs f while nobody else runs something under the same key; done is false when
// somebody does already.
func (s *Store) alone(ctx context.Context, key string, f func(context.Context) error) (done bool, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, sqlTryLock, key).Scan(&done); err != nil || !done {
			return err
		}
		return f(ctx)
	})
	return done, failed("serve "+key, err)
}
