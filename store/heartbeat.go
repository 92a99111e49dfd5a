package store

import (
	"context"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// One statement for a whole batch. Rows are locked in the order of their ids, so that two gateways never deadlock.
// Only the key bound to the server counts. An agent that was silent is connected again, as is its server if silence
// was its only failure. Tags that differ from the row's are noted; placement uses the row. They hold no spaces, so
// that a space joins them.
const sqlFlushHeartbeats = `
WITH incoming AS (
    SELECT * FROM unnest($1::text[], $2::bytea[], $3::text[], $4::text[], $5::float8[], $6::float8[], $7::float8[], $8::text[], $9::text[],
            $10::float8[], $11::float8[], $12::float8[], $13::float8[], $14::float8[], $15::bool[], $16::text[])
        AS i(server_id, key, boot_id, agent_version, load1, memory_pct, disk_pct, docker_state, tags, cpu_pct, worker_slots_pct, db_disk_pct, redis_memory_pct, clock_ahead, clock_skewed, private)
), locked AS (
    SELECT s.server_id, s.agent_status AS was, s.agent_first_heartbeat_at IS NULL AS first,
           s.agent_tags AS had, COALESCE(string_to_array(NULLIF(i.tags, ''), ' '), '{}') AS has,
           s.clock_skewed AS clock_was, s.docker_state AS docker_was,
           s.status = 'failed' AND s.status_reason = 'heartbeat_lost' AS returns,
           -- All that is written, too: joining incoming again would compare each with each.
           i.boot_id, i.agent_version, i.load1, i.memory_pct, i.disk_pct, i.docker_state,
           i.cpu_pct, i.worker_slots_pct, i.db_disk_pct, i.redis_memory_pct, i.clock_ahead, i.clock_skewed,
           -- Of several addresses that which the provider gave is meant, if it is there.
           COALESCE((SELECT a FROM unnest(string_to_array(NULLIF(i.private, ''), ' ')) a ORDER BY a = host(s.private_address) DESC NULLS LAST LIMIT 1)::inet, s.agent_private_address) AS private,
           s.agent_private_address AS private_had
    FROM servers s JOIN incoming i ON i.server_id = s.server_id
    WHERE s.agent_key_sha256 = i.key AND s.identity_revoked_at IS NULL AND s.status <> 'terminated'
    ORDER BY s.server_id FOR NO KEY UPDATE OF s
), updated AS (
    UPDATE servers s SET agent_last_heartbeat_at = now(), agent_first_heartbeat_at = COALESCE(s.agent_first_heartbeat_at, now()),
        agent_status = 'connected', agent_boot_id = l.boot_id, agent_version = l.agent_version,
        load1 = l.load1, memory_pct = l.memory_pct, disk_pct = l.disk_pct, docker_state = l.docker_state, agent_tags = l.has,
        cpu_pct = l.cpu_pct, worker_slots_pct = l.worker_slots_pct, db_disk_pct = l.db_disk_pct, redis_memory_pct = l.redis_memory_pct,
        -- Two in a row: a heartbeat that was long on its way looks like a clock that is behind.
        clock_ahead_seconds = l.clock_ahead, clock_skewed = l.clock_skewed AND COALESCE(abs(l.clock_ahead - s.clock_ahead_seconds) < 10, false),
        agent_private_address = l.private,
        status = CASE WHEN l.returns THEN 'active' ELSE s.status END,
        status_reason = CASE WHEN l.returns THEN '' ELSE s.status_reason END,
        status_message = CASE WHEN l.returns THEN '' ELSE s.status_message END
    FROM locked l WHERE s.server_id = l.server_id
    RETURNING s.server_id, s.status, s.attempt, l.was, l.first, s.tags, l.had, l.has,
              s.clock_ahead_seconds AS ahead, s.clock_skewed, l.clock_was, s.docker_state, l.docker_was, s.private_address, l.private, l.private_had
), noted AS (
    INSERT INTO events (kind, id, step, attempt, status, actor, dedup_key)
    SELECT 'server', server_id, CASE WHEN first THEN 'first_heartbeat' ELSE 'agent_connected' END, attempt, status, 'system',
           CASE WHEN first THEN 'first_heartbeat/' || attempt END
    FROM updated WHERE first OR was IN ('degraded', 'disconnected')
    ` + onceByKey + `
), tag_events AS ( -- once an hour: an agent that says something else each time must not fill the timeline
    INSERT INTO events (kind, id, step, attempt, status, message, actor, dedup_key)
    SELECT 'server', server_id, step, attempt, status, 'the agent says ' || COALESCE(NULLIF(array_to_string(has, ', '), ''), 'none')
        || '; the server was asked for with ' || COALESCE(NULLIF(array_to_string(tags, ', '), ''), 'none'),
        'system', step || '/' || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24')
    FROM (SELECT *, CASE WHEN tags @> has AND has @> tags THEN 'agent_tags_agree' ELSE 'agent_tags_differ' END AS step FROM updated) u
    WHERE CASE step WHEN 'agent_tags_differ' THEN had IS DISTINCT FROM has ELSE NOT (tags @> had AND had @> tags) END
    ` + onceByKey + `
), host_events AS ( -- what is wrong with a host, and that it is mended; once an hour, too
    INSERT INTO events (kind, id, step, attempt, status, reason, message, actor, dedup_key)
    SELECT 'server', server_id, step, attempt, status, reason, message, 'system', step || '/' || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24')
    FROM updated u, LATERAL (
        SELECT CASE WHEN u.clock_skewed THEN 'clock_skewed' ELSE 'clock_agrees' END, CASE WHEN u.clock_skewed THEN 'clock_skew' ELSE '' END,
               'the host''s clock is ' || round(abs(u.ahead)) || ' s ' || CASE WHEN u.ahead < 0 THEN 'behind' ELSE 'ahead of' END || ' the control plane''s'
        WHERE u.clock_skewed <> u.clock_was AND u.ahead IS NOT NULL
        UNION ALL
        SELECT CASE u.docker_state WHEN 'running' THEN 'docker_running' ELSE 'docker_stopped' END, '', 'dockerd is ' || u.docker_state
        WHERE (u.docker_was = 'running' AND u.docker_state IN ('stopped', 'unavailable')) OR (u.docker_was = 'stopped' AND u.docker_state = 'running')
        UNION ALL -- the provider's word counts
        SELECT CASE WHEN u.private = u.private_address THEN 'private_address_agrees' ELSE 'private_address_differs' END, '',
               'the agent says ' || host(u.private) || ', the provider ' || host(u.private_address)
        WHERE u.private <> u.private_address AND u.private IS DISTINCT FROM u.private_had OR u.private = u.private_address AND u.private_had <> u.private_address
    ) e(step, reason, message)
    ` + onceByKey + `
)
SELECT server_id, status, attempt FROM updated`

// FlushHeartbeats writes a batch; of several by one server the last counts. Servers missing from the outcomes are
// unknown, revoked, or bound to another key, or the database rejects their heartbeat.
func (s *Store) FlushHeartbeats(
	ctx context.Context, batch []server.Heartbeat,
) (out []server.HeartbeatOutcome, err error) {
	name := func(h server.Heartbeat) string { return string(h.ServerID) }
	_, err = siftNoted(ctx, s, batchHeartbeats, batch, name, func(part []server.Heartbeat) error {
		outcomes, err := s.flushHeartbeats(ctx, part)
		out = append(out, outcomes...)
		return err
	})
	return out, err
}

func (s *Store) flushHeartbeats(ctx context.Context, batch []server.Heartbeat) ([]server.HeartbeatOutcome, error) {
	last := make(map[string]int, len(batch))
	for i, h := range batch {
		last[string(h.ServerID)] = i
	}
	n := len(last)
	ids, keys, boots, versions := make([]string, 0, n), make([][]byte, 0, n), make([]string, 0, n), make([]string, 0, n)
	tags := make([]string, 0, n)
	loads, memory, disk, docker := make([]float64, 0, n), make([]float64, 0, n), make([]float64, 0, n), make([]string, 0, n)
	cpu, workers, dbDisk, redisMemory := make([]*float64, 0, n), make([]*float64, 0, n), make([]*float64, 0, n), make([]*float64, 0, n)
	ahead, skewed, private := make([]*float64, 0, n), make([]bool, 0, n), make([]string, 0, n)
	for i, h := range batch {
		if last[string(h.ServerID)] != i {
			continue
		}
		ids, keys, boots, versions = append(ids, string(h.ServerID)), append(keys, h.Key), append(boots, h.BootID), append(versions, h.AgentVersion)
		loads, memory, disk, docker = append(loads, h.Load1), append(memory, h.MemoryPct), append(disk, h.DiskPct), append(docker, h.DockerState)
		cpu, workers, dbDisk, redisMemory = append(cpu, h.CPUPct), append(workers, h.WorkerSlotsPct), append(dbDisk, h.DBDiskPct), append(redisMemory, h.RedisMemoryPct)
		ahead, skewed = append(ahead, h.ClockAhead), append(skewed, h.ClockSkewed)
		tags, private = append(tags, strings.Join(h.Tags, " ")), append(private, strings.Join(h.PrivateAddresses, " "))
	}
	return collect[server.HeartbeatOutcome](ctx, s, "flush heartbeats", sqlFlushHeartbeats, ids, keys, boots, versions, loads, memory, disk, docker, tags,
		cpu, workers, dbDisk, redisMemory, ahead, skewed, private)
}

// One statement marks all servers that fell silent. silent counts those beyond the first threshold that are not given
// up yet, also if an earlier sweep marked them: heartbeats are spread over their interval, so a gateway's outage
// shows over several sweeps. A server whose host prego restarts is not lost until that has taken its own limit, and is
// no sign of an outage (hostRestarts).
const (
	// Whether prego itself restarts the host of server s now: the provider or apt was asked within the quarter of an
	// hour after which the maintenance gives up.
	hostRestarts = `EXISTS (SELECT FROM server_maintenances m WHERE m.server_id = s.server_id
    AND m.finished_at IS NULL AND m.status = 'finishing' AND m.kind IN ('reboot', 'resize', 'patch')
    AND COALESCE(m.acted_at, m.patching_at, m.updated_at) > now() - interval '15 minutes')`
	fleetHeard = `
    SELECT count(*) AS n FROM servers WHERE status IN ('active', 'failed') AND agent_status IN ('connected', 'degraded', 'disconnected')`
	silentServers = `
    SELECT server_id, agent_status, agent_last_heartbeat_at, status, attempt, r.restarts,
        now() - agent_last_heartbeat_at >= make_interval(secs => $2) AND NOT r.restarts AS lost
    FROM servers s CROSS JOIN LATERAL (SELECT ` + hostRestarts + ` AS restarts OFFSET 0) r
    WHERE status IN ('active', 'failed') AND agent_status IN ('connected', 'degraded')
      AND agent_last_heartbeat_at <= now() - make_interval(secs => $1)`
	isFrozen = `(SELECT n FROM fleet) >= $4 AND (SELECT count(*) FROM silent WHERE NOT restarts) * 100.0
        > $3::float8 * (SELECT n FROM fleet)`
)

const sqlSweepSilent = `
WITH fleet AS (` + fleetHeard + `
), silent AS (` + silentServers + `
    ORDER BY server_id FOR NO KEY UPDATE OF s SKIP LOCKED
), verdict AS (
    SELECT (SELECT n FROM fleet) AS fleet, (SELECT count(*) FROM silent) AS silent,
           ` + isFrozen + ` AS frozen
), changed AS (
    UPDATE servers s SET
        agent_status = CASE WHEN x.lost THEN 'disconnected' ELSE 'degraded' END,
        status = CASE WHEN x.lost THEN 'failed' ELSE s.status END,
        status_reason = CASE WHEN x.lost AND s.status = 'active' THEN 'heartbeat_lost' ELSE s.status_reason END,
        status_message = CASE WHEN x.lost AND s.status = 'active' THEN 'the agent has been silent for too long' ELSE s.status_message END,
        updated_at = now()
    FROM silent x, verdict v
    WHERE NOT v.frozen AND s.server_id = x.server_id AND (x.lost OR x.agent_status = 'connected')
    RETURNING s.server_id, s.attempt, s.status, x.lost
), noted AS (
    INSERT INTO events (kind, id, step, attempt, status, reason, actor)
    SELECT 'server', server_id, CASE WHEN lost THEN 'agent_disconnected' ELSE 'agent_degraded' END, attempt, status,
           CASE WHEN lost THEN 'heartbeat_lost' ELSE '' END, 'system'
    FROM changed
)
SELECT fleet, silent, frozen, (SELECT count(*) FROM changed WHERE NOT lost) AS degraded, (SELECT count(*) FROM changed WHERE lost) AS failed FROM verdict`

// SweepSilent marks agents that fell silent: degraded, then disconnected with
// their server failed (direct-provisioning §3). It marks and never destroys: a
// silent server may hold tenants' data.
func (s *Store) SweepSilent(ctx context.Context, p server.SweepParams) (server.SweepResult, error) {
	r, err := one[server.SweepResult](ctx, s.pool, sqlSweepSilent, p.DegradedAfter.Seconds(), p.FailedAfter.Seconds(), p.FreezePct, p.FreezeMin)
	return r, failed("sweep silent agents", err)
}

const sqlRevoked = `SELECT server_id FROM servers WHERE identity_revoked_at > now() - make_interval(secs => $1)`

// RevokedServers lists the servers whose identity was revoked within a span.
func (s *Store) RevokedServers(ctx context.Context, within time.Duration) ([]string, error) {
	return collectValues[string](ctx, s, "revoked servers", sqlRevoked, within.Seconds())
}

const sqlAgentBinding = `
SELECT host, ipv6, role, COALESCE(host(private_address), '') AS private_address FROM servers
WHERE server_id = $1 AND agent_key_sha256 = $2 AND identity_revoked_at IS NULL AND status IN ('provisioning', 'active', 'failed', 'draining')`

// CheckAgent confirms that a server is bound to a key and not revoked.
func (s *Store) CheckAgent(ctx context.Context, serverID prego.ServerID, key []byte) (server.AgentBinding, error) {
	return get[server.AgentBinding](ctx, s.pool, prego.Errorf(prego.CodeIdentityRevoked, "the identity of server %s was revoked", serverID), sqlAgentBinding, serverID, key)
}
