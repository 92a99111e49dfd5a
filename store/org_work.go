package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
)

// defaultWorkLimit is how many long steps of an org run concurrently, unless
// LimitWork was called.
const defaultWorkLimit = 32

const (
	// workLease is how long started work counts if its end is not reported, and
	// askLease how long waiting work keeps its turn without another request.
	workLease = time.Hour
	askLease  = 10 * time.Minute
)

// LimitWork sets how many long steps of an org run concurrently.
func (s *Store) LimitWork(n int) { s.workLimit = n }

const sqlHoldWork = `SELECT pg_advisory_xact_lock(hashtextextended('prego/org-work/' || $1, 0))`

const sqlForgetWork = `DELETE FROM org_work WHERE org_id = $1 AND until < now()`

const sqlAskWork = `
INSERT INTO org_work (work_id, org_id, kind, run, until) SELECT id, $1, $2, $3, now() + make_interval(secs => $5) FROM unnest($4::text[]) WITH ORDINALITY AS w(id, n) ORDER BY n
ON CONFLICT (work_id) DO UPDATE SET until = GREATEST(org_work.until, EXCLUDED.until)`

const sqlBeginWork = `
UPDATE org_work SET begun_at = now(), until = now() + make_interval(secs => $3) WHERE work_id IN (
    SELECT work_id FROM org_work WHERE org_id = $1 AND begun_at IS NULL ORDER BY seq LIMIT (
        SELECT GREATEST(0, $2 - count(*)) FROM org_work WHERE org_id = $1 AND begun_at IS NOT NULL))
RETURNING run`

const sqlBegunWork = `SELECT work_id FROM org_work WHERE work_id = ANY ($1) AND begun_at IS NOT NULL ORDER BY seq`

const sqlEndWork = `DELETE FROM org_work WHERE work_id = $1 RETURNING org_id`

// beginWork requests the turns of an org's work, in its order, and reports which of it may be
// under way now. Others' turns may come by that: their runs are in wake. Asking again
// changes nothing.
func (s *Store) beginWork(ctx context.Context, tx *txn, ask org.LongWork) (t org.Turn, err error) {
	b := &pgx.Batch{}
	b.Queue(sqlHoldWork, ask.OrgID)
	b.Queue(sqlForgetWork, ask.OrgID)
	b.Queue(sqlAskWork, ask.OrgID, ask.Kind, ask.Run, ask.IDs, askLease.Seconds())
	queueValues(b, &t.Wake, sqlBeginWork, ask.OrgID, s.workLimit, workLease.Seconds())
	queueValues(b, &t.Begun, sqlBegunWork, ask.IDs)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return t, fmt.Errorf("turns of %s: %w", ask.OrgID, err)
	}
	t.Wake, t.Most = others(t.Wake, ask.Run), s.workLimit
	return t, nil
}

// others are the runs but one, each once.
func others(runs []string, own string) (out []string) {
	for _, r := range runs {
		if r != own && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// endWork gives a turn to the next, whose run is returned.
func (s *Store) endWork(ctx context.Context, tx *txn, id string) (wake []string, err error) {
	orgID, err := value[prego.OrgID](ctx, tx, sqlEndWork, id)
	if isNoRows(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b := &pgx.Batch{}
	b.Queue(sqlHoldWork, orgID)
	b.Queue(sqlForgetWork, orgID)
	queueValues(b, &wake, sqlBeginWork, orgID, s.workLimit, workLease.Seconds())
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("the turn after %s: %w", id, err)
	}
	return others(wake, ""), nil
}

// BeginWork requests the turns of an org's work, and reports which of it may start.
func (s *Store) BeginWork(ctx context.Context, ask org.LongWork) (t org.Turn, err error) {
	err = s.inTx(ctx, string("turns of "+ask.OrgID), func(tx *txn) error {
		t = got(s.beginWork(ctx, tx, ask)).in(tx)
		return nil
	})
	return t, err
}

// EndWork records that work has ended, or is not wanted any more, and returns the runs whose
// turn has come.
func (s *Store) EndWork(ctx context.Context, id string) (wake []string, err error) {
	err = s.inTx(ctx, "end of "+id, func(tx *txn) error {
		wake = got(s.endWork(ctx, tx, id)).in(tx)
		return nil
	})
	return wake, err
}
