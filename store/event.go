package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// An event with a dedup key is written once, however often its step repeats.
// The status is the row's own, read by the statement, unless one is given.
const sqlAddEvent = `
INSERT INTO server_events (server_id, step, attempt, status, reason, message, actor, dedup_key)
SELECT s.server_id, $2, $3, COALESCE(NULLIF($4, ''), s.status), $5, $6, $7, NULLIF($8, '')
FROM servers s WHERE s.server_id = $1
ON CONFLICT (server_id, dedup_key) DO NOTHING`

// AddEvent puts one line on a server's timeline. dedupKey "" makes each call a
// line of its own.
func (s *Store) AddEvent(ctx context.Context, e server.Event, dedupKey string) error {
	return addEvent(ctx, s.pool, e, dedupKey)
}

func addEvent(ctx context.Context, q querier, e server.Event, dedupKey string) error {
	actor := e.Actor
	if actor == "" {
		actor = prego.ActorWorkflow
	}
	_, err := q.Exec(ctx, sqlAddEvent, e.ServerID, e.Step, e.Attempt, string(e.Status), e.Reason, e.Message, actor, dedupKey)
	return failed(fmt.Sprintf("add event %s of server %s", e.Step, e.ServerID), err)
}

// step runs an UPDATE of a server's row and adds an event to its timeline; if no row
// matched it returns none.
func (s *Store) step(ctx context.Context, e server.Event, dedupKey string, none error, sql string, args ...any) error {
	note := func(tx pgx.Tx) error { return addEvent(ctx, tx, e, dedupKey) }
	return s.changeThen(ctx, fmt.Sprintf("%s of server %s", e.Step, e.ServerID), none, note, sql, args...)
}

func attemptKey(step server.Step, attempt int) string { return fmt.Sprintf("%s/%d", step, attempt) }
