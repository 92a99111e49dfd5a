package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// A live row of the same name is the same intent repeated, or a later attempt taking over the name. What an earlier
// attempt created with it, whose run was lost, is deleted by the creation.
const onRepeatedIntent = `ON CONFLICT (provider, kind, name) WHERE state <> 'released'
DO UPDATE SET attempt = EXCLUDED.attempt,
    intended_at = CASE WHEN resources.attempt < EXCLUDED.attempt THEN now() ELSE resources.intended_at END,
    state = CASE WHEN resources.state = 'releasing' OR resources.attempt < EXCLUDED.attempt THEN 'intended'
        ELSE resources.state END`

const sqlIntend = `
INSERT INTO resources (provider, kind, name, server_id, attempt, state)
VALUES ($1, $2, $3, NULLIF($4, ''), $5, 'intended')
` + onRepeatedIntent

func intend(ctx context.Context, q querier, provider prego.InfraProviderID, serverID prego.ServerID, attempt int, r server.ResourceIntent) error {
	if _, err := q.Exec(ctx, sqlIntend, provider, r.Kind, r.Name, serverID, attempt); err != nil {
		return fmt.Errorf("intend %s %s: %w", r.Kind, r.Name, err)
	}
	return nil
}

// Intend writes the intent to create something, before the call that creates it.
// serverID "" makes the environment its owner.
func (s *Store) Intend(ctx context.Context, provider prego.InfraProviderID, serverID prego.ServerID, attempt int, r server.ResourceIntent) error {
	return intend(ctx, s.pool, provider, serverID, attempt, r)
}

const onRepeatedCreate = `ON CONFLICT (provider, kind, name) WHERE state <> 'released'
DO UPDATE SET provider_id = EXCLUDED.provider_id, attempt = EXCLUDED.attempt, state = 'created', created_at = now(), details = resources.details || EXCLUDED.details`

const sqlConfirmCreated = `
INSERT INTO resources (provider, kind, name, server_id, attempt, state, provider_id, created_at)
VALUES ($1, $2, $3, NULLIF($4, ''), $5, 'created', $6, now())
` + onRepeatedCreate

func confirmCreated(ctx context.Context, q querier, provider prego.InfraProviderID, serverID prego.ServerID, attempt int, kind server.ResourceKind, name, providerID string) error {
	if _, err := q.Exec(ctx, sqlConfirmCreated, provider, kind, name, serverID, attempt, providerID); err != nil {
		return fmt.Errorf("confirm %s %s: %w", kind, name, err)
	}
	return nil
}

// ConfirmCreated records the provider's id of something that was intended.
func (s *Store) ConfirmCreated(ctx context.Context, provider prego.InfraProviderID, serverID prego.ServerID, attempt int, kind server.ResourceKind, name, providerID string) error {
	return confirmCreated(ctx, s.pool, provider, serverID, attempt, kind, name, providerID)
}

const sqlIntentRefused = `
UPDATE resources SET state = 'released', released_at = now(), details = details || $3::jsonb
WHERE server_id = $1 AND attempt = $2 AND provider_id IS NULL AND state IN ('intended', 'releasing')`

// IntentRefused closes the intents of an attempt after the provider's definite
// refusal: nothing was created. It also puts the refusal on the timeline, each text of a
// candidate once per generation.
func (s *Store) IntentRefused(
	ctx context.Context, serverID prego.ServerID, generation, attempt int, c server.Candidate, refusal *server.InfraError,
) error {
	details, err := json.Marshal(map[string]string{"refused": refusal.Code})
	if err != nil {
		return fmt.Errorf("refusal details: %w", err)
	}
	return s.inTx(ctx, fmt.Sprintf("close intents of %s", serverID), func(tx *txn) error {
		tx.run(ctx, sqlIntentRefused, serverID, attempt, details)
		return addEvent(ctx, tx, server.Event{
			ServerID: serverID, Step: server.StepCreateRefused, Attempt: attempt, Reason: prego.Reason(refusal.Code),
			Message: fmt.Sprintf("%s: %s", c, refusal.Message),
		}, fmt.Sprintf("%s/g%d/%s/%s: %s", server.StepCreateRefused, generation, c, refusal.Code, refusal.Message))
	})
}

const sqlResourceColumns = `resource_id, provider, kind, name, COALESCE(provider_id, '') AS provider_id, COALESCE(server_id, '') AS server_id, attempt, state, intended_at, now() - intended_at AS age`

const sqlLiveResources = `SELECT ` + sqlResourceColumns + ` FROM resources WHERE server_id = $1 AND state <> 'released' ORDER BY resource_id`

const sqlAllLiveResources = `SELECT ` + sqlResourceColumns + ` FROM resources WHERE provider = $1 AND state <> 'released' ORDER BY resource_id`

// LiveResources lists a server's resources that are not confirmed as gone.
func (s *Store) LiveResources(ctx context.Context, serverID prego.ServerID) ([]server.ProviderResource, error) {
	return s.resources(ctx, sqlLiveResources, serverID)
}

// AllLiveResources lists everything owned at a provider.
func (s *Store) AllLiveResources(ctx context.Context, provider prego.InfraProviderID) ([]server.ProviderResource, error) {
	return s.resources(ctx, sqlAllLiveResources, provider)
}

func (s *Store) resources(ctx context.Context, sql string, arg any) ([]server.ProviderResource, error) {
	return collect[server.ProviderResource](ctx, s, "list resources", sql, arg)
}

const sqlFindResource = `SELECT ` + sqlResourceColumns + ` FROM resources WHERE provider = $1 AND kind = $2 AND name = $3 AND state <> 'released'`

// FindResource looks up a live resource by name; ok is false if there is none.
func (s *Store) FindResource(ctx context.Context, provider prego.InfraProviderID, kind server.ResourceKind, name string) (r server.ProviderResource, ok bool, err error) {
	r, err = one[server.ProviderResource](ctx, s.pool, sqlFindResource, provider, kind, name)
	if isNoRows(err) {
		return r, false, nil
	}
	return r, true, failed("find resource", err)
}

const sqlReleasing = `
UPDATE resources SET state = 'releasing', releasing_at = COALESCE(releasing_at, now())
WHERE server_id = $1 AND attempt <= $2 AND state IN ('intended', 'created')`

const sqlRevokeTokens = `
UPDATE server_bootstrap_tokens SET superseded_at = now()
WHERE server_id = $1 AND attempt <= $2 AND superseded_at IS NULL`

const sqlRevokeIdentity = `
UPDATE servers SET identity_revoked_at = COALESCE(identity_revoked_at, now()), agent_status = 'disconnected', updated_at = now()
WHERE server_id = $1 AND attempt <= $2 AND agent_first_seen_at IS NOT NULL`

// BeginRelease writes, before anything is deleted at the provider, that all of a
// server's attempts up to the given one are given up: tokens and identity are
// revoked and the resources must be released.
func (s *Store) BeginRelease(ctx context.Context, serverID prego.ServerID, attempt int) error {
	return s.inTx(ctx, fmt.Sprintf("begin release of %s", serverID), func(tx *txn) error {
		for _, sql := range []string{sqlReleasing, sqlRevokeTokens, sqlRevokeIdentity} {
			tx.run(ctx, sql, serverID, attempt)
		}
		return nil
	})
}

const sqlReleased = `
UPDATE resources SET state = 'released', released_at = now() WHERE resource_id = $1 AND state <> 'released'`

// Released confirms that the provider no longer has a resource.
func (s *Store) Released(ctx context.Context, resourceID int64) error {
	return s.exec(ctx, fmt.Sprintf("release resource %d", resourceID), sqlReleased, resourceID)
}

const (
	sqlNoteProtection  = `UPDATE resources SET protected = true WHERE provider = $1 AND kind = $2 AND provider_id = $3 AND state <> 'released'`
	sqlNotedProtection = `SELECT EXISTS (SELECT FROM resources WHERE provider = $1 AND kind = $2 AND provider_id = $3 AND protected)`
)

// NoteProtection notes in the ledger that a resource is protected from deletion at its provider; false if the ledger
// has no open line of it.
func (s *Store) NoteProtection(
	ctx context.Context, provider prego.InfraProviderID, kind server.ResourceKind, id string,
) (bool, error) {
	noted, err := changed(ctx, s.pool, sqlNoteProtection, provider, kind, id)
	return noted, failed(fmt.Sprintf("protect %s %s", kind, id), err)
}

// NotedProtection reports whether the ledger knows that a resource was protected.
func (s *Store) NotedProtection(
	ctx context.Context, provider prego.InfraProviderID, kind server.ResourceKind, id string,
) (bool, error) {
	noted, err := value[bool](ctx, s.pool, sqlNotedProtection, provider, kind, id)
	return noted, failed(fmt.Sprintf("protection of %s %s", kind, id), err)
}

const sqlForgetMachine = `
UPDATE servers SET provider_server_id = NULL, host = '', ipv6 = '', private_address = NULL, updated_at = now()
WHERE server_id = $1 AND attempt <= $2`

// FinishRelease notes on the row and the timeline that an attempt's machine is
// gone.
func (s *Store) FinishRelease(ctx context.Context, serverID prego.ServerID, attempt int, reason prego.Reason, message string) error {
	return s.inTx(ctx, fmt.Sprintf("finish release of %s", serverID), func(tx *txn) error {
		tx.run(ctx, sqlForgetMachine, serverID, attempt)
		return addEvent(ctx, tx, server.Event{
			ServerID: serverID, Step: server.StepAttemptDestroyed, Attempt: attempt, Reason: reason, Message: message,
		}, attemptKey(server.StepAttemptDestroyed, attempt))
	})
}
