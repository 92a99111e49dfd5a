package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
)

// Rows whose number grows with use and not with the objects are deleted when they were kept for as long
// as the settings allow: some rows at a time, each batch in a separate transaction. A row that
// is being changed is left for the next time. No transaction waits: nothing refers to these
// rows, and deleting takes no lock that a writer or a reader of others needs.

// The oldest are looked at by their number, which grows with time: asked by time without an
// dedicated index, Postgres would read all of them whenever none is due.
const sqlPruneEvents = `
WITH gone AS (
    DELETE FROM events WHERE payload IS NOT NULL AND seq IN (
        SELECT event_id FROM (SELECT event_id, at FROM org_events ORDER BY event_id LIMIT $2) oldest WHERE at < now() - make_interval(secs => $1))
    RETURNING seq AS event_id
), noted AS (
    INSERT INTO pruned AS p (what, through, rows) SELECT 'org_events', max(event_id), count(*) FROM gone HAVING count(*) > 0
    ON CONFLICT (what) DO UPDATE SET through = GREATEST(p.through, EXCLUDED.through), rows = p.rows + EXCLUDED.rows, at = now()
)
SELECT count(*) FROM gone`

// onlyInFeed are events that appear neither in a timeline nor in an org's events.
const onlyInFeed = `payload IS NULL AND kind NOT IN ('server', 'tenant')`

// The oldest that only the feed has, by its order. A transaction that is not over may yet write something before
// them; an id from a cluster that the database was copied from is none of ours, and may be given again: the
// feed does not have its events.
const sqlPruneFeed = `
WITH foreign_rows AS (
    DELETE FROM events WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()) AND ` + onlyInFeed + `
), foreign_lines AS (
    UPDATE events SET xid = NULL WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()) AND NOT (` + onlyInFeed + `)
), gone AS (
    DELETE FROM events e USING (
        SELECT xid, seq, at FROM events WHERE xid < pg_snapshot_xmin(pg_current_snapshot()) AND ` + onlyInFeed + ` ORDER BY xid, seq LIMIT $2) oldest
    WHERE e.xid = oldest.xid AND e.seq = oldest.seq AND oldest.at < now() - make_interval(secs => $1)
    RETURNING e.xid, e.seq
), noted AS (
    INSERT INTO pruned AS p (what, through_xid, through, rows) SELECT 'events', xid, seq, (SELECT count(*) FROM gone) FROM gone ORDER BY xid DESC, seq DESC LIMIT 1
    ON CONFLICT (what) DO UPDATE SET through_xid = CASE WHEN (EXCLUDED.through_xid, EXCLUDED.through) > (p.through_xid, p.through) OR p.through_xid >= pg_snapshot_xmax(pg_current_snapshot()) THEN EXCLUDED.through_xid ELSE p.through_xid END,
        through = CASE WHEN (EXCLUDED.through_xid, EXCLUDED.through) > (p.through_xid, p.through) OR p.through_xid >= pg_snapshot_xmax(pg_current_snapshot()) THEN EXCLUDED.through ELSE p.through END,
        rows = p.rows + EXCLUDED.rows, at = now()
)
SELECT count(*) FROM gone`

// The others are read by time, with an index. Locked rows are left out.
const (
	longAgo  = ` < now() - make_interval(secs => $1) `
	someRows = ` LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING 1) SELECT count(*) FROM gone`

	sqlPruneSessions = `WITH gone AS (DELETE FROM org_sessions WHERE session_id IN (
    SELECT session_id FROM org_sessions WHERE opened_at` + longAgo + `AND (closed_at IS NOT NULL OR lease_until < now()) ORDER BY opened_at` + someRows
	sqlPruneInstances = `WITH gone AS (DELETE FROM instances WHERE instance_id IN (
    SELECT instance_id FROM instances WHERE state = 'stopped' AND stopped_at` + longAgo + `ORDER BY stopped_at` + someRows
	sqlPruneCommands = `WITH gone AS (DELETE FROM agent_command_audit WHERE audit_id IN (
    SELECT audit_id FROM agent_command_audit WHERE requested_at` + longAgo + `ORDER BY requested_at` + someRows
	sqlPruneDecisions = `WITH gone AS (DELETE FROM decision_inputs WHERE (journal, first) IN (
    SELECT journal, first FROM decision_inputs WHERE created_at` + longAgo + `ORDER BY created_at` + someRows
	sqlPruneSamples = `WITH gone AS (DELETE FROM server_samples WHERE (at, server_id) IN (
    SELECT at, server_id FROM server_samples WHERE at` + longAgo + `ORDER BY at` + someRows
	sqlPruneRates = `WITH gone AS (DELETE FROM rate_budgets WHERE budget IN (
    SELECT budget FROM rate_budgets WHERE at` + longAgo + `ORDER BY at` + someRows
	sqlPruneKeys = `WITH gone AS (DELETE FROM request_keys WHERE (subject, key) IN (
    SELECT subject, key FROM request_keys WHERE created_id IS NULL AND created_at` + longAgo + `AND leased_until < now() ORDER BY created_at` + someRows
	sqlPruneCreationKeys = `WITH gone AS (DELETE FROM request_keys WHERE (subject, key) IN (
    SELECT subject, key FROM request_keys WHERE created_id IS NOT NULL AND created_at` + longAgo + `ORDER BY created_at` + someRows
	sqlPruneLinks = `WITH gone AS (DELETE FROM login_links WHERE link_id IN (
    SELECT link_id FROM login_links WHERE expires_at` + longAgo + `ORDER BY expires_at` + someRows
	// What was narrowed from a credential, or logs in by it, goes before it.
	sqlPruneCredentials = `WITH gone AS (DELETE FROM credentials WHERE credential_id IN (
    SELECT credential_id FROM credentials c WHERE expires_at` + longAgo + `
        AND NOT EXISTS (SELECT FROM credentials n WHERE n.parent_id = c.credential_id)
        AND NOT EXISTS (SELECT FROM login_links l WHERE l.parent_id = c.credential_id) ORDER BY expires_at` + someRows
)

// Prune deletes at most so many rows of a table that were kept for long enough, and returns how
// many; it may be called until it returns less than limit.
func (s *Store) Prune(ctx context.Context, table ops.PrunedTable, keep time.Duration, limit int) (int, error) {
	sql := map[ops.PrunedTable]string{
		ops.PrunedEvents: sqlPruneEvents, ops.PrunedFeed: sqlPruneFeed, ops.PrunedSessions: sqlPruneSessions, ops.PrunedInstances: sqlPruneInstances, ops.PrunedCommands: sqlPruneCommands,
		ops.PrunedKeys: sqlPruneKeys, ops.PrunedCreationKeys: sqlPruneCreationKeys,
		ops.PrunedDecisions: sqlPruneDecisions, ops.PrunedSamples: sqlPruneSamples,
		ops.PrunedAudit: sqlPruneAudit, ops.PrunedRates: sqlPruneRates, ops.PrunedCredentials: sqlPruneCredentials, ops.PrunedLinks: sqlPruneLinks,
	}[table]
	n, err := value[int](ctx, s.pool, sql, keep.Seconds(), limit)
	return n, failed("prune "+string(table), err)
}

const sqlEventsGone = `SELECT COALESCE((SELECT through FROM pruned WHERE what = 'org_events'), 0)`

// eventsGone refuses a page of events that continues after an event behind which some were
// pruned since: it would seem to be the next one.
func (s *Store) eventsGone(ctx context.Context, after int64) error {
	through, err := value[int64](ctx, s.pool, sqlEventsGone)
	if err != nil || after >= through {
		return failed("pruned events", err)
	}
	return &prego.Error{Code: prego.CodeEventsGone, Field: "cursor", Message: "is older than the oldest kept event. Read the current state, then list the events without a cursor, from the oldest that is kept"}
}
