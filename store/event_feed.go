package store

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops"
)

// maxEventsSearched bounds how many events are searched for a page of a filtered feed.
const maxEventsSearched = 10_000

// The feed is read up to the oldest transaction still running: events of that and later transactions may come before
// those already written.
const (
	eventColumns = `e.xid::text AS xid, e.seq, e.at, e.kind, e.id, COALESCE(e.org_id, '') AS org_id, e.about, e.step, e.status, e.reason, e.message, e.actor`

	settledEvents = `e.xid < pg_snapshot_xmin(pg_current_snapshot())`

	eventsPruned = `
p AS (SELECT COALESCE(g.through_xid, '0') AS xid, COALESCE(g.through, 0) AS seq
    FROM (SELECT) one LEFT JOIN pruned g ON g.what = 'events' AND g.through_xid < pg_snapshot_xmin(pg_current_snapshot()))`

	eventMatches = `(cardinality($3::text[]) = 0 OR e.kind = ANY ($3)) AND (cardinality($4::text[]) = 0 OR e.id = ANY ($4) OR e.about && $4) AND (cardinality($5::text[]) = 0 OR e.org_id = ANY ($5))`
)

// One row for each event of the page, and a last row about the search: the last event, how many there were, and
// whether the cursor is valid. A valid cursor names an existing event or the last pruned one. Any other cursor is
// older or of another database: one that was restored, or a primary that was lost along with its last transactions.
const sqlEventsSince = `
WITH` + eventsPruned + `, w AS MATERIALIZED (
    SELECT e.* FROM events e WHERE (e.xid, e.seq) > ($1::text::xid8, $2::bigint) AND ` + settledEvents + ` ORDER BY e.xid, e.seq LIMIT $6
), m AS (
    SELECT e.* FROM w e WHERE ` + eventMatches + ` ORDER BY e.xid, e.seq LIMIT $7
)
SELECT true AS hit, 0::bigint AS looked, true AS kept, ` + eventColumns + ` FROM m e
UNION ALL
SELECT false, (SELECT count(*) FROM w), (p.xid, p.seq) = ($1::text::xid8, $2::bigint) OR (p.xid, p.seq) < ($1::text::xid8, $2::bigint)
        AND EXISTS (SELECT FROM events e WHERE e.xid = $1::text::xid8 AND e.seq = $2::bigint AND ` + settledEvents + `),
    COALESCE(l.xid::text, $1::text), COALESCE(l.seq, $2::bigint), now(), '', '', '', '{}', '', '', '', '', ''
FROM p LEFT JOIN (SELECT e.xid, e.seq FROM w e ORDER BY e.xid DESC, e.seq DESC LIMIT 1) l ON true`

// The newest, and the end of the feed.
const sqlEventsTail = `
WITH` + eventsPruned + `, w AS MATERIALIZED (
    SELECT e.* FROM events e WHERE ` + settledEvents + ` ORDER BY e.xid DESC, e.seq DESC LIMIT GREATEST($1::int, 1)
), m AS (
    SELECT e.* FROM w e WHERE ` + eventMatches + ` ORDER BY e.xid DESC, e.seq DESC LIMIT $2
)
SELECT true AS hit, 0::bigint AS looked, true AS kept, ` + eventColumns + ` FROM m e
UNION ALL
(SELECT false, 0::bigint, true, l.xid::text, l.seq, now(), '', '', '', '{}'::text[], '', '', '', '', ''
FROM (SELECT p.xid, p.seq FROM p UNION ALL SELECT e.xid, e.seq FROM w e) l ORDER BY l.xid DESC, l.seq DESC LIMIT 1)`

type eventRow struct {
	Hit    bool
	Looked int64
	Kept   bool
	Xid    string
	Seq    int64
	At     time.Time
	Kind   string
	ID     string
	OrgID  prego.OrgID
	About  []string
	Step   string
	Status string
	Reason string
	Message,
	Actor string
}

func (r eventRow) place() ops.EventCursor {
	p, _ := ops.ParseEventCursor(r.Xid + "-0") // as Postgres writes it
	p.Seq = r.Seq
	return p
}

func (r eventRow) event() ops.Event {
	return ops.Event{
		Cursor: r.place().String(), At: r.At, Kind: r.Kind, ID: r.ID, OrgID: r.OrgID, About: r.About, Step: r.Step, Status: r.Status, Reason: r.Reason, Message: r.Message, Actor: r.Actor,
	}
}

// Events returns a page of the feed of events. Nothing is missed or repeated, regardless of the order of commits.
// A cursor that may have gaps behind it is refused with CodeEventsGone.
func (s *Store) Events(ctx context.Context, q ops.EventQuery) (out ops.EventPage, err error) {
	kinds, ids := given(q.Kinds), given(q.IDs)
	ctx, orgs := orgsInReach(ctx, q.Orgs)
	q.Orgs = orgs // a reach is also a filter, which decides how many events are searched
	if q.Since == "" {
		window := q.Tail
		if window > 0 && !q.Empty() {
			window = maxEventsSearched
		}
		rows, end, err := s.eventRows(ctx, sqlEventsTail, window, q.Tail, kinds, ids, orgs)
		for _, r := range rows {
			out.Events = append(out.Events, r.event())
		}
		out.Next = end.place().String()
		return out, err
	}
	since, err := ops.ParseEventCursor(q.Since)
	if err != nil {
		return out, err
	}
	window := q.Limit + 1
	if !q.Empty() {
		window = maxEventsSearched
	}
	rows, end, err := s.eventRows(ctx, sqlEventsSince, strconv.FormatUint(since.Xid, 10), since.Seq, kinds, ids, orgs, window, q.Limit+1)
	if err != nil {
		return out, err
	}
	if !end.Kept {
		return out, &prego.Error{Code: prego.CodeEventsGone, Field: "since", Message: "is older than the oldest kept event, or from another database. Read the current state, and follow the feed from its end, without a cursor"}
	}
	out.Next, out.More = end.place().String(), end.Looked == int64(window)
	if len(rows) > q.Limit {
		rows = rows[:q.Limit]
		out.Next, out.More = rows[q.Limit-1].place().String(), true
	}
	for _, r := range rows {
		out.Events = append(out.Events, r.event())
	}
	return out, nil
}

// eventRows reads the events of a page, oldest first, and the row about the search.
func (s *Store) eventRows(ctx context.Context, sql string, args ...any) (hits []eventRow, end eventRow, err error) {
	rows, err := collect[eventRow](ctx, s, "events", sql, args...)
	for _, r := range rows {
		if r.Hit {
			hits = append(hits, r)
		} else {
			end = r
		}
	}
	slices.SortFunc(hits, func(a, b eventRow) int { return a.place().Compare(b.place()) })
	return hits, end, err
}

// noOrg is no org's id.
const noOrg = "/"

// orgsInReach narrows a filter of orgs to the reach of a request, and returns a context that reads everything: the feed
// is one for all, and its cursors are also events of others.
func orgsInReach(ctx context.Context, wanted []string) (context.Context, []string) {
	reach, ok := access.ReachOf(ctx)
	if !ok || reach.Everywhere {
		return ctx, given(wanted)
	}
	orgs := []string{}
	for _, org := range reach.Orgs {
		if len(wanted) == 0 || slices.Contains(wanted, string(org)) {
			orgs = append(orgs, string(org))
		}
	}
	if len(orgs) == 0 {
		orgs = []string{noOrg}
	}
	return access.WithReach(ctx, access.Reach{Everywhere: true, ReadOnly: true}), orgs
}

// given returns a filter's values; no values are an empty array instead of NULL.
func given(values []string) []string { return append([]string{}, values...) }
