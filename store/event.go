package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// An event with a dedup key is written once, however often its step repeats. The statement reads the status from the
// row, unless one is given.
const (
	sqlAddEvent = `
INSERT INTO events (kind, id, step, attempt, status, reason, message, actor, dedup_key)
SELECT 'server', s.server_id, $2, $3, COALESCE(NULLIF($4, ''), s.status), $5, $6, $7, NULLIF($8, '')
FROM servers s WHERE s.server_id = $1 ` + onceByKey

	onceByKey = `ON CONFLICT (kind, id, dedup_key) WHERE dedup_key IS NOT NULL DO NOTHING`
)

// AddEvent appends a line to a server's timeline. With dedupKey "" each call adds another line.
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
	note := func(tx *txn) error { return addEvent(ctx, tx, e, dedupKey) }
	return s.changeThen(ctx, fmt.Sprintf("%s of server %s", e.Step, e.ServerID), none, note, sql, args...)
}

func attemptKey(step server.Step, attempt int) string { return fmt.Sprintf("%s/%d", step, attempt) }

const sqlTenantEvent = `
INSERT INTO events (kind, id, org_id, from_status, status, step, actor, reason, message, dedup_key)
SELECT 'tenant', tenant_id, org_id, CASE WHEN $2 = '' AND $3 = '' THEN state ELSE $2 END, COALESCE(NULLIF($3, ''), state), $4, $5, $6, $7, NULLIF($8, '')
FROM tenants WHERE tenant_id = $1 ` + onceByKey

// AddTenantEvent appends a line to a tenant's timeline; with a dedup key it is written once, however often its step
// repeats.
func (s *Store) AddTenantEvent(ctx context.Context, e tenant.Event, dedupKey string) error {
	return tenantEvent(ctx, s.pool, e, dedupKey)
}

// tenantEvent reads the states from the tenant's row unless they are given.
func tenantEvent(ctx context.Context, q querier, e tenant.Event, dedupKey string) error {
	if e.Actor == "" {
		e.Actor = string(prego.ActorWorkflow)
	}
	_, err := q.Exec(ctx, sqlTenantEvent, e.TenantID, string(e.FromState), string(e.ToState), e.Step, e.Actor, e.Reason, prego.Redact(e.Message), dedupKey)
	return failed(fmt.Sprintf("add event %s of tenant %s", e.Step, e.TenantID), err)
}

// The feed omits what it reports with the lifecycle or the state of the object.
const sqlOrgEvent = `
INSERT INTO events (xid, kind, id, org_id, about, step, actor, reason, payload)
SELECT CASE WHEN $2::text <> ALL ('{backup.create,backup.stored,backup.failed,move.create,restore.create,snapshot.create,snapshot.delete}')
        THEN pg_current_xact_id() END,
    split_part($2, '.', 1), CASE WHEN $2 ^@ 'org.' THEN $1 ELSE $3 END, $1, CASE WHEN $2 ^@ 'org.' AND $3 <> $1 THEN ARRAY[$3] ELSE '{}' END,
    substr($2, strpos($2, '.') + 1), $4, $5, $6`

// orgEvent records an event of an org's resources. Payload becomes JSON.
func orgEvent(ctx context.Context, tx *txn, e org.Event, payload any) error {
	b, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("event %s: %w", e.Type, err)
	}
	_, err = tx.Exec(ctx, sqlOrgEvent, e.OrgID, e.Type, e.Subject, e.Actor, prego.Redact(e.Reason), []byte(prego.Redact(string(b))))
	return failed(fmt.Sprintf("event %s of org %s", e.Type, e.OrgID), err)
}
