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

// inTx runs f in one transaction, which is committed when f returns nil. Errors without a
// code are wrapped with what, the operation that failed.
func (s *Store) inTx(ctx context.Context, what string, f func(*txn) error) error {
	return failed(what, pgx.BeginFunc(ctx, s.pool, sticky(func(tx *txn) error {
		if err := f(tx); err != nil {
			return err
		}
		return tx.spend(ctx)
	})))
}

// inView is inTx for reads, which all see the same moment.
func (s *Store) inView(ctx context.Context, what string, f func(*txn) error) error {
	o := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return failed(what, pgx.BeginTxFunc(ctx, s.pool, o, sticky(f)))
}

// txn is a transaction. The first statement that fails ends it, as it does in Postgres: the statements after it do
// nothing and read zero values, and the transaction returns its error, whatever is made of these zero values. So
// only refusals need an early return.
type txn struct {
	pgx.Tx

	err error
	// What its changes cost a month and how long they take something out of service, in hundredths and seconds.
	cents, seconds int64
}

// sticky is f in a transaction that keeps the first error.
func sticky(f func(*txn) error) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		t := &txn{Tx: tx}
		err := f(t)
		return cmp.Or(t.err, err)
	}
}

// Exec runs a statement.
func (t *txn) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.err != nil {
		return pgconn.CommandTag{}, t.err
	}
	return t.Tx.Exec(ctx, sql, args...)
}

// Query reads rows.
func (t *txn) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.err != nil {
		return nil, t.err
	}
	return t.Tx.Query(ctx, sql, args...)
}

// QueryRow reads a row.
func (t *txn) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.err != nil {
		return askedRow{err: t.err}
	}
	return t.Tx.QueryRow(ctx, sql, args...)
}

// check ends the transaction with an error, if there is one.
func (t *txn) check(err error) { t.err = cmp.Or(t.err, err) }

// run runs a statement and reports whether it changed a row.
func (t *txn) run(ctx context.Context, sql string, args ...any) (ok bool) {
	return checked(t, func() (bool, error) { return changed(ctx, t, sql, args...) })
}

// must runs a statement, and ends the transaction with none if it changed no row.
func (t *txn) must(ctx context.Context, none error, sql string, args ...any) {
	if !t.run(ctx, sql, args...) {
		t.check(none)
	}
}

// sendBatch runs statements together.
func (t *txn) sendBatch(ctx context.Context, b *pgx.Batch) {
	checked(t, func() (any, error) { return nil, t.SendBatch(ctx, b).Close() })
}

// checked is what read returns. Its error ends the transaction; after an error it is not called.
func checked[T any](t *txn, read func() (T, error)) (v T) {
	if t.err == nil {
		v, t.err = read()
	}
	return v
}

// result is what a function returned.
type result[T any] struct {
	v   T
	err error
}

func got[T any](v T, err error) result[T] { return result[T]{v, err} }

// in is the value. An error ends the transaction.
func (r result[T]) in(t *txn) T {
	t.check(r.err)
	return r.v
}

// oneIn is one in a transaction.
func oneIn[T any](ctx context.Context, t *txn, sql string, args ...any) T {
	return checked(t, func() (T, error) { return one[T](ctx, t, sql, args...) })
}

// getIn is get in a transaction, which ends with none if there is no row.
func getIn[T any](ctx context.Context, t *txn, none error, sql string, args ...any) T {
	return checked(t, func() (T, error) { return get[T](ctx, t, none, sql, args...) })
}

// findIn is find in a transaction.
func findIn[T any](ctx context.Context, t *txn, sql string, args ...any) *T {
	return checked(t, func() (*T, error) { return find[T](ctx, t, sql, args...) })
}

// manyIn is many in a transaction.
func manyIn[T any](ctx context.Context, t *txn, sql string, args ...any) []T {
	return checked(t, func() ([]T, error) { return many[T](ctx, t, sql, args...) })
}

// valueIn is value in a transaction.
func valueIn[T any](ctx context.Context, t *txn, sql string, args ...any) T {
	return checked(t, func() (T, error) { return value[T](ctx, t, sql, args...) })
}

// valueOr is valueIn in a transaction that ends with none if there is no row.
func valueOr[T any](ctx context.Context, t *txn, none error, sql string, args ...any) T {
	return checked(t, func() (T, error) {
		v, err := value[T](ctx, t, sql, args...)
		return v, ifNoRows(err, none)
	})
}

// valuesIn is values in a transaction.
func valuesIn[T any](ctx context.Context, t *txn, sql string, args ...any) []T {
	return checked(t, func() ([]T, error) { return values[T](ctx, t, sql, args...) })
}

// exec runs a statement that returns no rows.
func (s *Store) exec(ctx context.Context, what, sql string, args ...any) error {
	_, err := s.pool.Exec(ctx, sql, args...)
	return failed(what, err)
}

// change runs a statement and returns none if it changed no row.
func change(ctx context.Context, q querier, none error, sql string, args ...any) error {
	tag, err := q.Exec(ctx, sql, args...)
	if err == nil && tag.RowsAffected() == 0 {
		return none
	}
	return err
}

// changed runs a statement and reports whether it changed a row.
func changed(ctx context.Context, q querier, sql string, args ...any) (bool, error) {
	tag, err := q.Exec(ctx, sql, args...)
	return tag.RowsAffected() > 0, err
}

// changeThen runs a statement and, if it changed a row, then, in one transaction; otherwise
// it returns none.
func (s *Store) changeThen(ctx context.Context, what string, none error, then func(*txn) error, sql string, args ...any) error {
	return s.inTx(ctx, what, func(tx *txn) error {
		if !tx.run(ctx, sql, args...) {
			return none // nil where it is no failure
		}
		return then(tx)
	})
}

// doneBefore checks whether a step that changed nothing had been done before; if not, it
// returns none.
func doneBefore(ctx context.Context, q querier, none error, sql string, args ...any) error {
	if ok, err := value[bool](ctx, q, sql, args...); err != nil || ok {
		return err
	}
	return none
}

// one reads the only row of a statement whose columns have the names of T's fields. It
// returns pgx.ErrNoRows if there is none.
func one[T any](ctx context.Context, q querier, sql string, args ...any) (T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[T])
}

// get is like one, but returns none if there is no row.
func get[T any](ctx context.Context, q querier, none error, sql string, args ...any) (T, error) {
	v, err := one[T](ctx, q, sql, args...)
	return v, failed(fmt.Sprintf("read a %T", v), ifNoRows(err, none))
}

// find is like one, but returns nil if there is no row.
func find[T any](ctx context.Context, q querier, sql string, args ...any) (*T, error) {
	v, err := one[T](ctx, q, sql, args...)
	if err != nil {
		return nil, failed(fmt.Sprintf("find a %T", v), ifNoRows(err, nil))
	}
	return &v, nil
}

// many reads all rows of a statement whose columns have the names of T's fields.
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

// collect is many on the pool; errors name what was being read.
func collect[T any](ctx context.Context, s *Store, what, sql string, args ...any) ([]T, error) {
	out, err := many[T](ctx, s.pool, sql, args...)
	return out, failed(what, err)
}

// collectValues is values on the pool; errors name what was being read.
func collectValues[T any](ctx context.Context, s *Store, what, sql string, args ...any) ([]T, error) {
	out, err := values[T](ctx, s.pool, sql, args...)
	return out, failed(what, err)
}

// queueRows queues a statement whose rows are appended to a list.
func queueRows[T any](b *pgx.Batch, to *[]T, sql string, args ...any) {
	queueBy(b, pgx.RowToStructByName[T], to, sql, args...)
}

// queueValues is queueRows for a statement with one column.
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

// ifNoRows replaces pgx.ErrNoRows by instead, and returns other errors unchanged.
func ifNoRows(err, instead error) error {
	if isNoRows(err) {
		return instead
	}
	return err
}

// failed wraps an error with what failed; errors with a code are returned unchanged.
func failed(what string, err error) error {
	if err == nil || prego.CodeOf(err) != prego.CodeInternal {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// isViolation reports whether err is a violation of this constraint.
func isViolation(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.ConstraintName == constraint
}

const sqlTryLock = `SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))`

// exclusively runs f unless another caller is running something under the same key; then
// done is false.
func (s *Store) exclusively(ctx context.Context, key string, f func(context.Context) error) (done bool, err error) {
	err = s.inTx(ctx, "serve "+key, func(tx *txn) error {
		if err := tx.QueryRow(ctx, sqlTryLock, key).Scan(&done); err != nil || !done {
			return err
		}
		return f(ctx)
	})
	return done, err
}

// filled is a list for a column that takes no NULL.
func filled[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
