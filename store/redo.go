package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
)

// The redo log is in the object storage: every committed change of a row, a few seconds later. Triggers note the keys
// of changed rows, in their transactions; an entry has these rows as they are when it is made. A database that was
// restored to an earlier moment lacks the newest entries, which complete it.

const (
	// lineage tells databases apart: one that was restored by recovery is on another timeline, one in another cluster
	// has another identifier, one that was filled from a dump another oid, and one whose files were replaced was
	// started again.
	lineage = `(SELECT system_identifier::text FROM pg_control_system())
    || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)
    || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())
    || '/' || EXTRACT(EPOCH FROM pg_postmaster_start_time())`
	redoTrust    = `lineage AS verified, ` + lineage + ` AS lineage, recovering_since, recovering, saved_at, epoch FROM redo`
	sqlRedoState = `
SELECT number, unsaved IS NOT NULL OR EXISTS (SELECT FROM redo_due) AS due, ` + redoTrust
	sqlRedoTrust    = `SELECT number, false AS due, ` + redoTrust
	sqlRedoVerified = `
UPDATE redo SET epoch = CASE lineage WHEN ` + lineage + ` THEN epoch ELSE number END, lineage = ` + lineage + `
WHERE recovering_since IS NULL AND number = $1`
	sqlRecovering = `UPDATE redo SET recovering_since = COALESCE(recovering_since, now()), recovering = $1`
	sqlTakeRedo   = `SELECT tbl, key, val FROM take_redo($1)`
	sqlRedoMore   = `SELECT EXISTS (SELECT FROM redo_due)`
	sqlDropRedo   = `DELETE FROM redo_due`
	sqlRedoNext   = `
SELECT CASE WHEN unsaved IS NULL THEN number + 1 ELSE number END AS number, unsaved,
    EXISTS (SELECT FROM redo_due) AS due
FROM redo WHERE recovering_since IS NULL AND lineage IN ('', ` + lineage + `)`
	sqlRedoMade  = `UPDATE redo SET number = $1, unsaved = $2 WHERE number = $1 - 1 AND unsaved IS NULL`
	sqlRedoSaved = `UPDATE redo SET unsaved = NULL, saved_at = now() WHERE number = $1`
	sqlRedoRows  = `SELECT tbl, key, val FROM redo_rows($1, $2)`
	sqlHoldRedo  = `SELECT number FROM redo FOR UPDATE`
	sqlRedoMode  = `SELECT redo_mode($1)`
	sqlApplyRedo = `SELECT apply_redo($1, $2, $3)`
	sqlRecovered = `
UPDATE redo SET number = $1, epoch = $1, unsaved = CASE WHEN number = $1 THEN unsaved END, lineage = ` + lineage + `,
    recovering_since = NULL, recovering = ''`
)

// redoMost is how many changes an entry has at most; what is left is in the next one.
const redoMost = 20_000

// RedoState reads how far the redo log is, and whether this database is the one that wrote it.
func (s *Store) RedoState(ctx context.Context) (ops.RedoState, error) {
	return get[ops.RedoState](ctx, s.pool, errors.New("the redo log has no row"), sqlRedoState)
}

// RedoTrust is RedoState without whether anything is due, for processes that ask often.
func (s *Store) RedoTrust(ctx context.Context) (ops.RedoState, error) {
	return get[ops.RedoState](ctx, s.pool, errors.New("the redo log has no row"), sqlRedoTrust)
}

// RedoVerified records that the storage has no entry after number: this database lacks nothing.
func (s *Store) RedoVerified(ctx context.Context, number int64) error {
	return s.exec(ctx, "redo log verified", sqlRedoVerified, number)
}

// Recovering stops everything that changes the world, until the database is completed.
func (s *Store) Recovering(ctx context.Context, why string) error {
	return s.exec(ctx, "recovering", sqlRecovering, why)
}

// NextRedo makes the next entry of the redo log and keeps it until it is saved: seal turns its rows into the object. It
// returns the entry that is not saved, which may be an earlier one; body is nil if there is none.
func (s *Store) NextRedo(
	ctx context.Context, seal func(e ops.RedoEntry) ([]byte, error),
) (number int64, body []byte, err error) {
	moment := pgx.TxOptions{IsoLevel: pgx.RepeatableRead}
	err = pgx.BeginTxFunc(ctx, s.pool, moment, sticky(func(tx *txn) error {
		next := findIn[redoNext](ctx, tx, sqlRedoNext)
		if next == nil {
			return nil
		}
		number, body = next.Number, next.Unsaved
		if body != nil || !next.Due {
			return nil
		}
		rows := manyIn[ops.RedoRow](ctx, tx, sqlTakeRedo, redoMost)
		if tx.err != nil {
			return tx.err
		}
		var err error
		body, err = seal(ops.RedoEntry{Number: number, Rows: rows, More: valueIn[bool](ctx, tx, sqlRedoMore)})
		tx.run(ctx, sqlRedoMade, number, body)
		return err
	}))
	return number, body, failed("next entry of the redo log", err)
}

// redoNext is the entry that is not saved, or the next one.
type redoNext struct {
	Number  int64
	Unsaved []byte
	Due     bool
}

// RedoSaved records that the storage has an entry.
func (s *Store) RedoSaved(ctx context.Context, number int64) error {
	return s.exec(ctx, "entry of the redo log saved", sqlRedoSaved, number)
}

// DropRedo forgets the changes of an installation without a storage.
func (s *Store) DropRedo(ctx context.Context) error {
	return s.exec(ctx, "changes dropped", sqlDropRedo)
}

// errDry ends a transaction that was only tried.
var errDry = errors.New("a dry run")

// Redo completes a restored database by the entries that it lacks, and ends the recovery: from is the number of the
// newest entry that it has, and to of the newest in the storage. With dry all of it is done, and rolled back. It
// returns what the entries change.
func (s *Store) Redo(
	ctx context.Context, from, to int64, entries []ops.RedoEntry, dry bool,
) (changes []ops.RedoChange, err error) {
	err = s.inTx(ctx, "complete the database", func(tx *txn) error {
		if n := valueIn[int64](ctx, tx, sqlHoldRedo); tx.err == nil && n != from {
			return prego.Errorf(prego.CodeInvalidTransition, "the database was completed meanwhile: it has entry %d", n)
		}
		var all []ops.RedoRow
		for _, e := range ops.Valid(entries) {
			all = append(all, e.Rows...)
		}
		tables := ops.ByTable(all)
		var before []ops.RedoRow
		for _, t := range tables {
			before = append(before, manyIn[ops.RedoRow](ctx, tx, sqlRedoRows, t.Table, t.Keys)...)
		}
		tx.run(ctx, sqlRedoMode, true)
		for _, t := range tables {
			tx.run(ctx, sqlApplyRedo, t.Table, t.Rows, t.Gone)
		}
		tx.run(ctx, sqlRedoMode, false)
		tx.run(ctx, sqlRecovered, to)
		changes = ops.RedoChanges(before, all)
		if dry && tx.err == nil {
			return errDry
		}
		return nil
	})
	if errors.Is(err, errDry) {
		err = nil
	}
	return changes, err
}
