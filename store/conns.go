package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops"
)

// conns is a pool that passes the caller in the context, if any, to Postgres: every statement then has the setting
// prego.request in its transaction, which the audit's triggers read. For a customer's request it also has prego.orgs,
// the orgs in its reach: what changes a row of another org is refused by a trigger (refuse_foreign). A request that
// changes nothing moreover has the role prego_customer, to which row-level security shows only rows of these orgs.
// All of it ends with the transaction, so that no connection keeps it and a pooler in front may share connections.
type conns struct{ *pgxpool.Pool }

// passed is what a statement's transaction is told about its request.
type passed struct {
	request  string // base64: it may stand between quotes
	orgs     string // a literal of text[], "" for a caller whose reach is everything
	readOnly bool
	plans    string // plan_cache_mode of a page, "" otherwise
}

// passedIn is what is to be passed for a context, nil for the control plane's own work.
func passedIn(ctx context.Context) *passed {
	p := passed{request: requestSetting(ctx)}
	if r, ok := access.ReachOf(ctx); ok && !r.Everywhere {
		p.orgs, p.readOnly = arrayLiteral(r.Orgs), r.ReadOnly
	}
	if p == (passed{}) {
		return nil
	}
	return &p
}

// whole returns a context whose statements see everything, although a customer's request has them: each use says why
// and discloses nothing of other orgs in its answer.
func whole(ctx context.Context) context.Context {
	return access.WithReach(ctx, access.Reach{Everywhere: true})
}

// recording returns a context whose statements may write, for what the control plane notes about a request that
// changes nothing: a session, a command. Only rows of orgs in reach are written.
func recording(ctx context.Context) context.Context {
	r, ok := access.ReachOf(ctx)
	if !ok {
		return ctx
	}
	r.ReadOnly = false
	return access.WithReach(ctx, r)
}

const (
	sqlSetRequest = `SELECT set_config('prego.request', $1, true)`
	sqlSetOrgs    = `SELECT set_config('prego.request', $1, true), set_config('prego.orgs', $2, true)`
	// A reader changes nothing, so that the audit needs no caller.
	sqlSetReader = `SELECT set_config('prego.orgs', $1, true), set_config('role', 'prego_customer', true),
    set_config('transaction_read_only', 'on', true)`
	sqlSetPager = sqlSetReader + `, set_config('plan_cache_mode', $2, true)`
)

// reader reports whether the statements run as prego_customer.
func (p *passed) reader() bool { return p != nil && p.orgs != "" && p.readOnly }

// queue adds the statement that passes it to a batch.
func (p *passed) queue(b *pgx.Batch) {
	switch {
	case p.reader() && p.plans != "":
		b.Queue(sqlSetPager, p.orgs, p.plans)
	case p.reader():
		b.Queue(sqlSetReader, p.orgs)
	case p.orgs != "":
		b.Queue(sqlSetOrgs, p.request, p.orgs)
	default:
		b.Queue(sqlSetRequest, p.request)
	}
}

// text is the statement that passes it, for a message without arguments.
func (p *passed) text() string {
	sql := `SELECT set_config('prego.request', '` + p.request + `', true)`
	if p.orgs != "" {
		orgs := base64.StdEncoding.EncodeToString([]byte(p.orgs))
		sql += `, set_config('prego.orgs', convert_from(decode('` + orgs + `', 'base64'), 'UTF8'), true)`
	}
	if p.reader() {
		sql += `, set_config('role', 'prego_customer', true), set_config('transaction_read_only', 'on', true)`
	}
	return sql
}

// statement is the text of a statement. That of a reader is another one, so that a connection prepares it apart: a
// statement is planned again whenever the role changes that it runs as.
func (p *passed) statement(sql string) string {
	if p.reader() {
		return sql + "\n-- prego_customer"
	}
	return sql
}

// arrayLiteral is a text[] as Postgres reads it.
func arrayLiteral(orgs []prego.OrgID) string {
	quoted := make([]string, len(orgs))
	for i, org := range orgs {
		quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(string(org)) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

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
	p := passedIn(ctx)
	if p == nil || o.BeginQuery != "" {
		return c.Pool.BeginTx(ctx, o)
	}
	begin := "BEGIN"
	if o.IsoLevel != "" {
		begin += " ISOLATION LEVEL " + string(o.IsoLevel)
	}
	if o.AccessMode != "" {
		begin += " " + string(o.AccessMode)
	}
	tx, err := c.Pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: begin + "; " + p.text(), CommitQuery: o.CommitQuery})
	if err != nil || !p.reader() {
		return tx, err
	}
	return readerTx{tx, p}, nil
}

// readerTx is a transaction as prego_customer.
type readerTx struct {
	pgx.Tx

	p *passed
}

func (t readerTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.Tx.Exec(ctx, t.p.statement(sql), args...)
}

func (t readerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.Tx.Query(ctx, t.p.statement(sql), args...)
}

func (t readerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.Tx.QueryRow(ctx, t.p.statement(sql), args...)
}

func (t readerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.Tx.SendBatch(ctx, t.p.append(&pgx.Batch{}, b))
}

func (t readerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := t.Tx.Begin(ctx)
	return readerTx{tx, t.p}, err
}

// append appends the statements of a batch to another one.
func (p *passed) append(to, b *pgx.Batch) *pgx.Batch {
	for _, q := range b.QueuedQueries {
		to.QueuedQueries = append(to.QueuedQueries, &pgx.QueuedQuery{SQL: p.statement(q.SQL), Arguments: q.Arguments, Fn: q.Fn})
	}
	return to
}

// asked sends a statement behind the setting, in one message and one transaction.
func (c conns) asked(ctx context.Context, p *passed, sql string, args []any) pgx.BatchResults {
	if hasOption(args) {
		p.plans = "force_custom_plan"
		if args[0] == keepPlan {
			p.plans = "force_generic_plan"
		}
		args = args[1:]
	}
	b := &pgx.Batch{}
	p.queue(b)
	b.Queue(p.statement(sql), args...)
	return c.Pool.SendBatch(ctx, b)
}

// The options of pages' statements: plan for the values, or keep a plan for any values.
const (
	planAnew = pgx.QueryExecModeCacheDescribe
	keepPlan = pgx.QueryExecModeCacheStatement
)

// plain reports whether there is nothing to pass. Pages are read with an option, which a batch can't have. They
// change nothing: the audit needs no caller. A customer's have a setting instead.
func (p *passed) plain(args []any) bool {
	return p == nil || p.orgs == "" && hasOption(args)
}

func hasOption(args []any) bool {
	if len(args) == 0 {
		return false
	}
	_, option := args[0].(pgx.QueryExecMode)
	return option
}

// Exec runs a statement.
func (c conns) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if tx := tryingIn(ctx); tx != nil {
		return tx.Exec(ctx, sql, args...)
	}
	p := passedIn(ctx)
	if p.plain(args) {
		return c.Pool.Exec(ctx, sql, args...)
	}
	r := c.asked(ctx, p, sql, args)
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
	p := passedIn(ctx)
	if p.plain(args) {
		return c.Pool.Query(ctx, sql, args...)
	}
	r := c.asked(ctx, p, sql, args)
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
	if passedIn(ctx).plain(args) {
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
	p := passedIn(ctx)
	if p == nil {
		return c.Pool.SendBatch(ctx, b)
	}
	with := &pgx.Batch{}
	p.queue(with)
	r := c.Pool.SendBatch(ctx, p.append(with, b))
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
