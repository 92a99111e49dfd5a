package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/prego/prego/ops"
)

// conns is a pool that passes the caller in the context, if any, to Postgres: every statement then has the setting
// prego.request in its transaction. The audit's triggers read it. The setting ends with the transaction, so that no
// connection keeps it and a pooler in front may share connections.
type conns struct{ *pgxpool.Pool }

const sqlSetRequest = `SELECT set_config('prego.request', $1, true)`

// requestSetting returns the setting's value, "" without a caller. It is base64: it may stand between quotes.
func requestSetting(ctx context.Context) string {
	s, ok := ops.AuditSourceOf(ctx)
	if !ok {
		return ""
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic("store: strings always marshal: " + err.Error())
	}
	return base64.StdEncoding.EncodeToString(b)
}

// tryKey is the key of the transaction that a dry run happens in.
type tryKey struct{}

// tryingIn returns the transaction of a dry run, nil outside of one.
func tryingIn(ctx context.Context) pgx.Tx {
	tx, _ := ctx.Value(tryKey{}).(pgx.Tx)
	return tx
}

// Try calls f with a context in which all statements of the store run in one transaction, and rolls that back.
// Transactions are savepoints in it. Only views (inView) read outside of it: what they read may be kept in a cache,
// and must have been committed.
func (s *Store) Try(ctx context.Context, f func(context.Context) error) error {
	select {
	case s.tries <- struct{}{}:
		defer func() { <-s.tries }()
	case <-ctx.Done():
		return failed("dry run", ctx.Err())
	}
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return failed("dry run", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := f(context.WithValue(ctx, tryKey{}, tx)); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `SET CONSTRAINTS ALL IMMEDIATE`) // as the commit would check them
	return failed("dry run", err)
}

// Begin begins a transaction. Passing the caller needs no separate message.
func (c conns) Begin(ctx context.Context) (pgx.Tx, error) {
	if tx := tryingIn(ctx); tx != nil {
		return tx.Begin(ctx)
	}
	return c.BeginTx(ctx, pgx.TxOptions{})
}

// BeginTx is Begin with options, which a dry run's transaction does not have.
func (c conns) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	if by := requestSetting(ctx); by != "" && o.BeginQuery == "" {
		begin := "BEGIN"
		if o.IsoLevel != "" {
			begin += " ISOLATION LEVEL " + string(o.IsoLevel)
		}
		if o.AccessMode != "" {
			begin += " " + string(o.AccessMode)
		}
		o = pgx.TxOptions{BeginQuery: begin + `; SELECT set_config('prego.request', '` + by + `', true)`, CommitQuery: o.CommitQuery}
	}
	return c.Pool.BeginTx(ctx, o)
}

// asked sends a statement behind the setting, in one message and one transaction.
func (c conns) asked(ctx context.Context, by, sql string, args []any) pgx.BatchResults {
	b := &pgx.Batch{}
	b.Queue(sqlSetRequest, by)
	b.Queue(sql, args...)
	return c.Pool.SendBatch(ctx, b)
}

// plain reports whether there is no caller to pass. Pages are read with an option, which a batch can't have; they
// change nothing.
func plain(by string, args []any) bool {
	if by == "" {
		return true
	}
	if len(args) > 0 {
		_, option := args[0].(pgx.QueryExecMode)
		return option
	}
	return false
}

// Exec runs a statement.
func (c conns) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if tx := tryingIn(ctx); tx != nil {
		return tx.Exec(ctx, sql, args...)
	}
	by := requestSetting(ctx)
	if plain(by, args) {
		return c.Pool.Exec(ctx, sql, args...)
	}
	r := c.asked(ctx, by, sql, args)
	if _, err := r.Exec(); err != nil {
		_ = r.Close()
		return pgconn.CommandTag{}, err
	}
	tag, err := r.Exec()
	if end := r.Close(); err == nil {
		err = end
	}
	return tag, err
}

// Query reads rows.
func (c conns) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if tx := tryingIn(ctx); tx != nil {
		return tx.Query(ctx, sql, args...)
	}
	by := requestSetting(ctx)
	if plain(by, args) {
		return c.Pool.Query(ctx, sql, args...)
	}
	r := c.asked(ctx, by, sql, args)
	if _, err := r.Exec(); err != nil {
		_ = r.Close()
		return nil, err
	}
	rows, err := r.Query()
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	return &askedRows{Rows: rows, batch: r}, nil
}

// QueryRow reads a row.
func (c conns) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if tx := tryingIn(ctx); tx != nil {
		return tx.QueryRow(ctx, sql, args...)
	}
	by := requestSetting(ctx)
	if plain(by, args) {
		return c.Pool.QueryRow(ctx, sql, args...)
	}
	rows, err := c.Query(ctx, sql, args...)
	return askedRow{rows, err}
}

// SendBatch runs statements in one transaction.
func (c conns) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if tx := tryingIn(ctx); tx != nil {
		return tx.SendBatch(ctx, b)
	}
	by := requestSetting(ctx)
	if by == "" {
		return c.Pool.SendBatch(ctx, b)
	}
	with := &pgx.Batch{}
	with.Queue(sqlSetRequest, by)
	with.QueuedQueries = append(with.QueuedQueries, b.QueuedQueries...)
	r := c.Pool.SendBatch(ctx, with)
	if _, err := r.Exec(); err != nil {
		return failedBatch{r, err}
	}
	return r
}

// failedBatch is a batch whose first statement failed.
type failedBatch struct {
	pgx.BatchResults
	err error
}

func (b failedBatch) Close() error {
	_ = b.BatchResults.Close()
	return b.err
}

// askedRows are the rows of a batch; closing them closes the batch.
type askedRows struct {
	pgx.Rows
	batch pgx.BatchResults
	err   error
	ended bool
}

// Next implements pgx.Rows. The transaction is over when it has returned false.
func (r *askedRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Close implements pgx.Rows.
func (r *askedRows) Close() {
	r.Rows.Close()
	if !r.ended {
		r.ended = true
		r.err = r.batch.Close()
	}
}

// Err implements pgx.Rows.
func (r *askedRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// askedRow is the first of some rows.
type askedRow struct {
	rows pgx.Rows
	err  error
}

// Scan implements pgx.Row.
func (r askedRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return fmt.Errorf("scan: %w", err)
	}
	r.rows.Close()
	return r.rows.Err()
}
