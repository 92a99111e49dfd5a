package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/prego/prego"
)

// querier is the pool or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// inTx runs f in one transaction, committed when f returns nil. what is what failed of
// errors without a code.
func (s *Store) inTx(ctx context.Context, what string, f func(pgx.Tx) error) error {
	return failed(what, pgx.BeginFunc(ctx, s.pool, f))
}

// exec runs one statement that answers nothing.
func (s *Store) exec(ctx context.Context, what, sql string, args ...any) error {
	_, err := s.pool.Exec(ctx, sql, args...)
	return failed(what, err)
}

// change runs a statement that must change a row, else the answer is none.
func change(ctx context.Context, q querier, none error, sql string, args ...any) error {
	tag, err := q.Exec(ctx, sql, args...)
	if err == nil && tag.RowsAffected() == 0 {
		return none
	}
	return err
}

// changed runs a statement and tells whether it changed a row.
func changed(ctx context.Context, q querier, sql string, args ...any) (bool, error) {
	tag, err := q.Exec(ctx, sql, args...)
	return tag.RowsAffected() > 0, err
}

// changeThen is change and what follows from it, in one transaction.
func (s *Store) changeThen(ctx context.Context, what string, none error, then func(pgx.Tx) error, sql string, args ...any) error {
	return s.inTx(ctx, what, func(tx pgx.Tx) error {
		if ok, err := changed(ctx, tx, sql, args...); err != nil || !ok {
			return cmp.Or(err, none)
		}
		return then(tx)
	})
}

// doneBefore asks whether a step that met nothing was done before; if not, the answer is none.
func doneBefore(ctx context.Context, q querier, none error, sql string, args ...any) error {
	if ok, err := value[bool](ctx, q, sql, args...); err != nil || ok {
		return err
	}
	return none
}

// one reads the only row of a statement, whose columns are named as the fields of T,
// pgx.ErrNoRows when there is none.
func one[T any](ctx context.Context, q querier, sql string, args ...any) (T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[T])
}

// get is one that answers none when there is no row.
func get[T any](ctx context.Context, q querier, none error, sql string, args ...any) (T, error) {
	v, err := one[T](ctx, q, sql, args...)
	return v, failed(fmt.Sprintf("read a %T", v), ifNoRows(err, none))
}

// find is one that answers nil when there is no row.
func find[T any](ctx context.Context, q querier, sql string, args ...any) (*T, error) {
	v, err := one[T](ctx, q, sql, args...)
	if err != nil {
		return nil, failed(fmt.Sprintf("find a %T", v), ifNoRows(err, nil))
	}
	return &v, nil
}

// many reads all rows of a statement, whose columns are named as the fields of T.
func many[T any](ctx context.Context, q querier, sql string, args ...any) ([]T, error) {
	return rowsBy(ctx, q, pgx.RowToStructByName[T], sql, args...)
}

// value reads the only row of a statement with one column.
func value[T any](ctx context.Context, q querier, sql string, args ...any) (v T, err error) {
	err = q.QueryRow(ctx, sql, args...).Scan(&v)
	return v, err
}

// values reads all rows of a statement with one column.
func values[T any](ctx context.Context, q querier, sql string, args ...any) ([]T, error) {
	return rowsBy(ctx, q, pgx.RowTo[T], sql, args...)
}

func rowsBy[T any](ctx context.Context, q querier, by pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, by)
}

// collect is many of the pool; an error says what was read.
func collect[T any](ctx context.Context, s *Store, what, sql string, args ...any) ([]T, error) {
	out, err := many[T](ctx, s.pool, sql, args...)
	return out, failed(what, err)
}

// collectValues is values of the pool; an error says what was read.
func collectValues[T any](ctx context.Context, s *Store, what, sql string, args ...any) ([]T, error) {
	out, err := values[T](ctx, s.pool, sql, args...)
	return out, failed(what, err)
}

// queueRows has a batch add the rows of a statement to a list.
func queueRows[T any](b *pgx.Batch, to *[]T, sql string, args ...any) {
	queueBy(b, pgx.RowToStructByName[T], to, sql, args...)
}

// queueValues is queueRows of a statement with one column.
func queueValues[T any](b *pgx.Batch, to *[]T, sql string, args ...any) {
	queueBy(b, pgx.RowTo[T], to, sql, args...)
}

func queueBy[T any](b *pgx.Batch, by pgx.RowToFunc[T], to *[]T, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, by)
		*to = append(*to, found...)
		return err
	})
}

func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// ifNoRows is instead when there was no row, and another error as it is.
func ifNoRows(err, instead error) error {
	if isNoRows(err) {
		return instead
	}
	return err
}

// failed says what failed; coded errors stay as they are.
func failed(what string, err error) error {
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

// exclusively runs f while nobody else runs something under the same key; done is false when
// somebody does already.
func (s *Store) exclusively(ctx context.Context, key string, f func(context.Context) error) (done bool, err error) {
	err = s.inTx(ctx, "serve "+key, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, sqlTryLock, key).Scan(&done); err != nil || !done {
			return err
		}
		return f(ctx)
	})
	return done, err
}
