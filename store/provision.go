package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

const sqlProvisionState = `
SELECT server_id, role, region, infra_provider AS provider, spec, tags, request_hash, status, purpose, generation, attempt, image,
       COALESCE(provider_server_id, '') AS provider_server_id, host, server_type, location, COALESCE(network_id, '') AS network_id, COALESCE(host(private_address), '') AS private_address, agent_status, running_at, agent_first_seen_at AS handshake_at, agent_first_heartbeat_at AS first_heartbeat_at,
       identity_revoked_at AS revoked_at, fleet_id IS NOT NULL AS member,
       dedicated_for_tenant_id IS NULL AND EXISTS (SELECT FROM fleet_policies p WHERE p.fleet_id = s.fleet_id AND p.type = 'region_placement' AND p.enabled) AS spread,
       EXISTS (SELECT FROM server_events e WHERE e.server_id = s.server_id AND e.step = 'handshake_refused'
               AND e.attempt = s.attempt AND e.reason = 'failed_bootstrap') AS bootstrap_refused,
       COALESCE(failure.reason, '') AS boot_failed, COALESCE(failure.message, '') AS boot_failure,
       COALESCE(sign.reason, '') AS boot_sign_reason, COALESCE(sign.message, '') AS boot_sign, sign.at AS boot_sign_at, s.created_at, now() AS now
FROM servers s LEFT JOIN LATERAL (
    SELECT e.reason, e.message FROM server_events e WHERE e.server_id = s.server_id AND e.step = 'boot_stage'
    AND e.attempt = s.attempt AND e.reason <> '' ORDER BY e.event_id DESC LIMIT 1
) failure ON true LEFT JOIN LATERAL (
    SELECT e.reason, e.message, e.at FROM server_events e WHERE e.server_id = s.server_id AND e.step IN ('boot_stage', 'handshake_refused')
    AND e.attempt = s.attempt ORDER BY e.event_id DESC LIMIT 1
) sign ON true
WHERE s.server_id = $1`

// ProvisionState reads the row of one server, or CodeServerNotFound.
func (s *Store) ProvisionState(ctx context.Context, serverID prego.ServerID) (server.ProvisionState, error) {
	p, err := get[server.ProvisionState](ctx, s.pool, prego.Errorf(prego.CodeServerNotFound, "no server %s", serverID), sqlProvisionState, serverID)
	p.BootFailure = strings.TrimPrefix(p.BootFailure, server.BootStageFailed+": ")
	return p, err
}

// A server chooses its location when its first attempt starts. Among servers without a location,
// the ones with lower ids choose before it.
const sqlFleetLocations = `
SELECT m.location, count(*)::int AS n FROM servers s JOIN servers m ON m.fleet_id = s.fleet_id AND m.region = s.region AND m.infra_provider = s.infra_provider
WHERE s.server_id = $1 AND m.server_id <> $1 AND (m.status = 'active' OR m.status = 'provisioning' AND (m.location <> '' OR m.server_id < $1)) GROUP BY m.location`

// FleetLocations counts the other members of a server's fleet in its region by location,
// and the servers without one that choose before it.
func (s *Store) FleetLocations(ctx context.Context, serverID prego.ServerID) (members map[string]int, ahead int, err error) {
	type row struct {
		Location string
		N        int
	}
	rows, err := collect[row](ctx, s, string("locations of the fleet of "+serverID), sqlFleetLocations, serverID)
	members = map[string]int{}
	for _, r := range rows {
		if r.Location == "" {
			ahead = r.N
			continue
		}
		members[r.Location] = r.N
	}
	return members, ahead, err
}

// A later attempt forgets the agent and the machine of the earlier one; the same
// attempt repeating keeps the known values.
const sqlBeginCreate = `
WITH begun AS (
    UPDATE servers SET
        server_type = $4, location = $5, image = $6, status_reason = '', status_message = '', updated_at = now(),
        provider_server_id       = CASE WHEN attempt = $3 THEN provider_server_id END,
        host                     = CASE WHEN attempt = $3 THEN host ELSE '' END,
        ipv6                     = CASE WHEN attempt = $3 THEN ipv6 ELSE '' END,
        private_address          = CASE WHEN attempt = $3 THEN private_address END,
        agent_private_address    = CASE WHEN attempt = $3 THEN agent_private_address END,
        running_at               = CASE WHEN attempt = $3 THEN running_at END,
        agent_status             = CASE WHEN attempt = $3 THEN agent_status ELSE 'unknown' END,
        agent_key_sha256         = CASE WHEN attempt = $3 THEN agent_key_sha256 END,
        agent_first_seen_at      = CASE WHEN attempt = $3 THEN agent_first_seen_at END,
        agent_first_heartbeat_at = CASE WHEN attempt = $3 THEN agent_first_heartbeat_at END,
        agent_last_heartbeat_at  = CASE WHEN attempt = $3 THEN agent_last_heartbeat_at END,
        identity_revoked_at      = CASE WHEN attempt = $3 THEN identity_revoked_at END,
        attempt = $3
    WHERE server_id = $1 AND generation = $2 AND status = 'provisioning' AND attempt <= $3
    RETURNING server_id, infra_provider, workflow_id
), intended AS (
    INSERT INTO resources (provider, kind, name, server_id, attempt, state)
    SELECT b.infra_provider, r.kind, r.name, b.server_id, $3, 'intended' FROM begun b, unnest($7::text[], $8::text[]) r (kind, name)
    ` + onRepeatedIntent + `
), issued AS (
    INSERT INTO server_bootstrap_tokens (token_id, server_id, attempt, token_hash, purpose, expires_at)
    SELECT $9, server_id, $3, $10, $11, now() + make_interval(secs => $12) FROM begun
    ON CONFLICT (server_id, attempt) DO NOTHING
    RETURNING token_id, issued_at, expires_at
), audited AS (
    INSERT INTO agent_command_audit (audit_id, server_id, workflow_id, command_kind, args_redacted, actor, started_at, finished_at, exit_code, duration_ms)
    SELECT $13, b.server_id, b.workflow_id, 'bootstrap', $14, 'workflow', now(), now(), 0, 0 FROM begun b, issued
), noted AS (
    INSERT INTO events (kind, id, step, attempt, status, message, actor, dedup_key)
    SELECT 'server', server_id, e.step, $3, 'provisioning', e.message, 'workflow', e.key FROM begun, unnest($15::text[], $16::text[], $17::text[]) WITH ORDINALITY e (step, message, key, n) ORDER BY e.n
    ` + onceByKey + `
)
SELECT COALESCE(i.token_id, t.token_id, '') AS token_id, COALESCE(i.issued_at, t.issued_at, now()) AS issued_at, COALESCE(i.expires_at, t.expires_at, now()) AS expires_at
FROM begun LEFT JOIN issued i ON true LEFT JOIN server_bootstrap_tokens t ON t.server_id = $1 AND t.attempt = $3`

// BeginCreate writes, in one statement, that an attempt is about to call the provider:
// its number and candidate, an intent row for everything that it may make, its bootstrap
// token, and the events. Repeating it returns the token that there is. ErrSuperseded if
// the row has moved on.
//
// Tokens of earlier attempts stay valid until this one is consumed or their servers are
// confirmed deleted: a create request that arrives late would otherwise produce a server
// with a dead token.
func (s *Store) BeginCreate(ctx context.Context, a server.AttemptStart, t server.TokenIssue) (server.TokenIssued, error) {
	kinds, names := make([]string, len(a.Resources)), make([]string, len(a.Resources))
	for i, r := range a.Resources {
		kinds[i], names[i] = string(r.Kind), r.Name
	}
	steps := []string{string(server.StepCreateIntended), string(server.StepTokenIssued)}
	messages := []string{fmt.Sprintf("%s, image %s", a.Candidate, a.Image), ""}
	keys := []string{fmt.Sprintf("%s/%d/%s/%s", server.StepCreateIntended, a.Attempt, a.Candidate.ServerType, a.Candidate.Location), attemptKey(server.StepTokenIssued, a.Attempt)}
	out, err := one[server.TokenIssued](ctx, s.pool, sqlBeginCreate, a.ServerID, a.Generation, a.Attempt, a.Candidate.ServerType, a.Candidate.Location, a.Image,
		kinds, names, t.TokenID, t.Hash, t.Purpose, t.TTL.Seconds(), uuid.NewString(), issueArgs(t), steps, messages, keys)
	switch {
	case isNoRows(err):
		return out, server.ErrSuperseded
	case err == nil && out.TokenID == "":
		err = errTokenUnseen
	}
	return out, failed(fmt.Sprintf("begin attempt %d of %s", a.Attempt, a.ServerID), err)
}

// errTokenUnseen: the same attempt issued its token while this statement ran, which
// therefore can't see it. A repeated one does.
var errTokenUnseen = errors.New("the attempt's token was issued meanwhile")

const sqlRecordCreated = `
WITH recorded AS (
    UPDATE servers s SET provider_server_id = $4, host = $5, ipv6 = $6, server_type = $7, location = $8, updated_at = now(),
        private_address = COALESCE((SELECT p.ip::inet FROM networks n JOIN unnest($16::text[], $17::text[]) p (network, ip) ON p.network = n.provider_network_id
            WHERE n.network_id = s.network_id), s.private_address)
    WHERE server_id = $1 AND generation = $2 AND attempt = $3 AND status = 'provisioning'
    RETURNING server_id
), confirmed AS (
    INSERT INTO resources (provider, kind, name, server_id, attempt, state, provider_id, created_at, details)
    SELECT $9, r.kind, r.name, $1, $3, 'created', r.id, now(), jsonb_build_object('type', $7::text, 'location', $8::text) FROM unnest($10::text[], $11::text[], $12::text[]) r (kind, name, id)
    ` + onRepeatedCreate + `
), noted AS (
    INSERT INTO events (kind, id, step, attempt, status, message, actor, dedup_key)
    SELECT 'server', server_id, $13, $3, status, $14, 'workflow', $15 FROM servers WHERE server_id = $1
    ` + onceByKey + `
)
SELECT EXISTS (SELECT FROM recorded)`

// RecordCreated writes the server that the provider created for an attempt, in one statement. When the
// row has moved on meanwhile the resources are recorded all the same, since they exist
// and are billed, and ErrSuperseded is returned.
func (s *Store) RecordCreated(ctx context.Context, serverID prego.ServerID, generation int, h server.Handle, provider prego.InfraProviderID) error {
	kinds, names, ids := []string{string(server.ResourceServer)}, []string{h.Name}, []string{h.ProviderServerID}
	for i, id := range h.PrimaryIPIDs {
		kinds, names, ids = append(kinds, string(server.ResourcePrimaryIP)), append(names, server.PrimaryIPName(h.Name, i)), append(ids, id)
	}
	step := server.StepServerCreated
	if h.Adopted {
		step = server.StepServerAdopted
	}
	networks, private := privateAddresses(h)
	recorded, err := value[bool](ctx, s.pool, sqlRecordCreated, serverID, generation, h.Attempt, h.ProviderServerID, h.IPv4, h.IPv6, h.ServerType, h.Location,
		provider, kinds, names, ids, step, fmt.Sprintf("provider server %s, %s in %s, %s", h.ProviderServerID, h.ServerType, h.Location, h.IPv4),
		fmt.Sprintf("%s/%d/%s", server.StepServerCreated, h.Attempt, h.ProviderServerID), networks, private)
	if err == nil && !recorded {
		return server.ErrSuperseded
	}
	return failed(fmt.Sprintf("record server %s of %s", h.ProviderServerID, serverID), err)
}

// privateAddresses are a server's addresses by the provider's ids of their networks.
func privateAddresses(h server.Handle) (networks, addresses []string) {
	networks, addresses = make([]string, 0, len(h.Private)), make([]string, 0, len(h.Private))
	for _, p := range h.Private {
		networks, addresses = append(networks, p.ProviderNetworkID), append(addresses, p.IP)
	}
	return networks, addresses
}

const sqlMarkRunning = `
UPDATE servers SET running_at = COALESCE(running_at, now()), updated_at = now()
WHERE server_id = $1 AND attempt = $2 AND status = 'provisioning'`

// MarkRunning records that the provider reports the attempt's server as running.
func (s *Store) MarkRunning(ctx context.Context, serverID prego.ServerID, attempt int) error {
	return s.step(ctx, server.Event{ServerID: serverID, Step: server.StepServerRunning, Attempt: attempt}, attemptKey(server.StepServerRunning, attempt),
		server.ErrSuperseded, sqlMarkRunning, serverID, attempt)
}

const sqlActivate = `
WITH done AS (
    UPDATE servers SET status = 'active', status_reason = '', status_message = '', active_at = now(), updated_at = now()
    WHERE server_id = $1 AND generation = $2 AND status = 'provisioning' AND agent_first_heartbeat_at IS NOT NULL
    RETURNING server_id, EXTRACT(EPOCH FROM now() - created_at)::float8 AS seconds, location, image
), noted AS (
    INSERT INTO events (kind, id, step, attempt, status, actor, dedup_key)
    SELECT 'server', server_id, e.step, $3, e.status, 'workflow', e.key FROM done, unnest($4::text[], $5::text[], $6::text[]) WITH ORDINALITY e (step, status, key, n) ORDER BY e.n
    ` + onceByKey + `
)
SELECT seconds, location, image FROM done`

const sqlIsActive = `SELECT EXISTS (SELECT FROM servers WHERE server_id = $1 AND generation = $2 AND status = 'active')`

// Activate is the final transition, a single UPDATE (direct-provisioning §2,
// step 9); before are the steps that it completes, for the timeline. It returns how it
// went, which is empty for a repeated call: that is the same success. Any other state is
// ErrSuperseded.
func (s *Store) Activate(ctx context.Context, serverID prego.ServerID, generation, attempt int, before ...server.Step) (server.Activation, error) {
	var steps, statuses, keys []string
	for _, step := range before {
		steps, statuses, keys = append(steps, string(step)), append(statuses, string(server.Provisioning)), append(keys, fmt.Sprintf("%s/g%d", step, generation))
	}
	steps, statuses = append(steps, string(server.StepActive)), append(statuses, string(server.Active))
	keys = append(keys, fmt.Sprintf("%s/g%d", server.StepActive, generation))
	out, err := one[server.Activation](ctx, s.pool, sqlActivate, serverID, generation, attempt, steps, statuses, keys)
	if isNoRows(err) {
		// Looked up by a separate statement, which sees a concurrent commit.
		err = doneBefore(ctx, s.pool, server.ErrSuperseded, sqlIsActive, serverID, generation)
	}
	return out, failed(fmt.Sprintf("activate %s", serverID), err)
}

// Imports are created elsewhere, and a retried server also waited for its retry.
const (
	activated = `SELECT region, role, location, image, EXTRACT(EPOCH FROM active_at - created_at)::float8 AS seconds FROM servers
      WHERE active_at > now() - make_interval(secs => $1) AND generation = 1 AND imported_from_pulumi_at IS NULL AND purpose = 'agent_bootstrap'`
	sqlActivationStats = `
SELECT role, location, image, servers, p[1] AS p50, p[2] AS p95, p[3] AS p99, max, in_time FROM (
SELECT role, location, image, count(*) AS servers, percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY seconds) AS p, max(seconds) AS max,
    count(*) FILTER (WHERE seconds <= $2) AS in_time
FROM (` + activated + `) s
GROUP BY 1, 2, 3) g ORDER BY 1, 2, 3`
)

// ActivationStats is how long servers that became active within a span took from their
// request, by role, location and image, even if they are gone now.
func (s *Store) ActivationStats(ctx context.Context, within time.Duration) ([]server.ActivationStats, error) {
	return collect[server.ActivationStats](ctx, s, "activation stats", sqlActivationStats, within.Seconds(), server.ActivationTarget.Seconds())
}

const sqlFail = `
UPDATE servers SET status = 'failed', status_reason = $3, status_message = $4, updated_at = now()
WHERE server_id = $1 AND generation = $2 AND status = 'provisioning'`

// Fail ends a provisioning with a reason; it changes nothing when the row has
// moved on.
func (s *Store) Fail(ctx context.Context, serverID prego.ServerID, generation, attempt int, reason prego.Reason, message string) error {
	e := server.Event{ServerID: serverID, Step: server.StepFailed, Attempt: attempt, Reason: reason, Message: message}
	return s.step(ctx, e, fmt.Sprintf("%s/g%d", e.Step, generation), nil, sqlFail, serverID, generation, reason, message)
}

const sqlAwait = `
UPDATE servers SET status_reason = $3, status_message = $4, updated_at = now()
WHERE server_id = $1 AND generation = $2 AND status = 'provisioning'`

// AwaitCapacity notes that no candidate has stock or quota right now. Each text is on
// the timeline once per generation, however long the server waits.
func (s *Store) AwaitCapacity(ctx context.Context, serverID prego.ServerID, generation, attempt int, message string) error {
	e := server.Event{ServerID: serverID, Step: server.StepAwaitingCapacity, Attempt: attempt, Reason: prego.ReasonAwaitingCapacity, Message: message}
	return s.step(ctx, e, fmt.Sprintf("%s/g%d/%s", e.Step, generation, message), server.ErrSuperseded, sqlAwait, serverID, generation, e.Reason, message)
}

const sqlAwaitingCapacity = `
SELECT server_id FROM servers WHERE status = 'provisioning' AND status_reason = 'awaiting_capacity' ORDER BY 1`

// ServersAwaitingCapacity are those that wait for the provider's stock or quota.
func (s *Store) ServersAwaitingCapacity(ctx context.Context) ([]prego.ServerID, error) {
	return collectValues[prego.ServerID](ctx, s, "servers awaiting capacity", sqlAwaitingCapacity)
}

// AwaitProvider notes that the provider did not answer as it should, and when it is called again: each pause is on the
// timeline.
func (s *Store) AwaitProvider(ctx context.Context, serverID prego.ServerID, generation, attempt int, message string) error {
	message = prego.Redact(message)
	e := server.Event{ServerID: serverID, Step: server.StepAwaitingProvider, Attempt: attempt, Reason: prego.ReasonAwaitingProvider, Message: message}
	return s.step(ctx, e, fmt.Sprintf("%s/%d/%s", e.Step, attempt, message), server.ErrSuperseded, sqlAwait, serverID, generation, e.Reason, message)
}

const sqlDeletionRefused = `
UPDATE servers SET status_message = CASE status_reason WHEN 'decommission_requested' THEN $2 ELSE status_message END
WHERE server_id = $1 AND status = 'draining'`

// DeletionRefused notes why something of a server that is being deleted stays at the provider. Each text is on the
// timeline once.
func (s *Store) DeletionRefused(ctx context.Context, serverID prego.ServerID, message string) error {
	message = prego.Redact(message)
	e := server.Event{
		ServerID: serverID, Step: server.StepDeletionRefused, Reason: prego.ReasonProviderRefused, Message: message,
	}
	return s.step(ctx, e, fmt.Sprintf("%s/%s", e.Step, message), nil, sqlDeletionRefused, serverID, message)
}

const sqlImportHost = `
UPDATE servers SET host = $3, ipv6 = $4, server_type = $5, location = $6, running_at = COALESCE(running_at, now()), updated_at = now()
WHERE server_id = $1 AND generation = $2 AND status = 'provisioning'`

// RecordImported writes the provider's facts about an existing server that is
// being taken over.
func (s *Store) RecordImported(ctx context.Context, serverID prego.ServerID, generation, attempt int, provider prego.InfraProviderID, h server.Handle) error {
	return s.inTx(ctx, "record import of "+string(serverID), func(tx *txn) error {
		tx.must(ctx, server.ErrSuperseded, sqlImportHost, serverID, generation, h.IPv4, h.IPv6, h.ServerType, h.Location)
		tx.check(confirmCreated(ctx, tx, provider, serverID, attempt, server.ResourceServer, h.Name, h.ProviderServerID))
		return addEvent(ctx, tx, server.Event{
			ServerID: serverID, Step: server.StepServerAdopted, Attempt: attempt,
			Message: fmt.Sprintf("existing provider server %s, %s", h.ProviderServerID, h.IPv4),
		}, attemptKey(server.StepServerAdopted, attempt))
	})
}

const (
	sqlPutArtifact = `INSERT INTO boot_artifacts (sha256, content) VALUES ($1, $2) ON CONFLICT (sha256) DO NOTHING`
	sqlGetArtifact = `SELECT content FROM boot_artifacts WHERE sha256 = $1`
)

// PutBootArtifact stores a second boot stage by its digest.
func (s *Store) PutBootArtifact(ctx context.Context, content []byte) (string, error) {
	sum := sha256.Sum256(content)
	if _, err := s.pool.Exec(ctx, sqlPutArtifact, sum[:], content); err != nil {
		return "", fmt.Errorf("store boot artifact: %w", err)
	}
	return hex.EncodeToString(sum[:]), nil
}

// BootArtifact reads a second boot stage by its hex digest; CodeNotFound if there is none.
func (s *Store) BootArtifact(ctx context.Context, sha256Hex string) ([]byte, error) {
	sum, err := hex.DecodeString(sha256Hex)
	if err != nil || len(sum) != sha256.Size {
		return nil, prego.Invalid("sha256", "must be the hex SHA-256 of a boot stage")
	}
	content, err := value[[]byte](ctx, s.pool, sqlGetArtifact, sum)
	return content, failed("boot artifact", ifNoRows(err, prego.Errorf(prego.CodeNotFound, "no boot stage with digest %s", sha256Hex)))
}

const (
	sqlAssignGroup = `SELECT assign_placement_group($1, $2, $3, $4, $5)`
	sqlLeaveGroup  = `DELETE FROM placement_group_members WHERE server_id = $1`
)

// AssignPlacementGroup gives a server a place in the first group named
// "<prefix>-<n>", n ≤ groups, that has fewer than size members, leaving out the
// excluded ones. A server keeps the place it has. "" means that every group is
// full.
func (s *Store) AssignPlacementGroup(ctx context.Context, serverID prego.ServerID, prefix string, size, groups int, exclude []string) (string, error) {
	name, err := value[string](ctx, s.pool, sqlAssignGroup, serverID, prefix, size, groups, filled(exclude))
	return name, failed(string("placement group for "+serverID), err)
}
