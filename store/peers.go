package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Rows are locked in the order of their ids, and the input of a rule is read after that:
// of two concurrent writers of a server's rule, the second sees all that the first saw.
const (
	sqlNewPeers = `
INSERT INTO server_peers (server_id) SELECT server_id FROM servers WHERE server_id = ANY ($1) AND status <> 'terminated' ORDER BY server_id ON CONFLICT DO NOTHING`
	sqlForgetPeers = `DELETE FROM server_peers p USING servers s WHERE p.server_id = ANY ($1) AND s.server_id = p.server_id AND s.status = 'terminated'`
	sqlLockPeers   = `SELECT server_id FROM server_peers WHERE server_id = ANY ($1) ORDER BY server_id FOR UPDATE`
)

// The input of the rules of some servers. One whose identity was revoked, because it is lost or goes, has no users.
const sqlPeersInput = `
SELECT jsonb_build_object('server_id', s.server_id, 'role', s.role, 'address', COALESCE(host(s.private_address), ''), 'network', COALESCE(s.network_id, '')) AS server,
    CASE s.role
    WHEN 'db-shard' THEN (
        SELECT jsonb_agg(jsonb_build_object('server_id', u.server_id, 'role', u.role, 'address', host(u.private_address), 'network', u.network_id))
        FROM (SELECT a.app_server_id AS id FROM db_shards d JOIN tenant_allocations a ON a.db_shard_id = d.shard_id AND a.released_at IS NULL WHERE d.server_id = s.server_id
              UNION SELECT p.app_server_id FROM db_shards d JOIN site_pool p ON p.db_shard_id = d.shard_id AND p.dropped_at IS NULL WHERE d.server_id = s.server_id
              UNION SELECT v.server_id FROM db_shards d JOIN tenant_moves m ON m.finished_at IS NULL AND (m.from_shard_id = d.shard_id OR m.to_shard_id = d.shard_id)
                  CROSS JOIN LATERAL (VALUES (m.from_server_id), (m.to_server_id)) v (server_id) WHERE d.server_id = s.server_id) x
        JOIN servers u ON u.server_id = x.id WHERE u.status <> 'terminated' AND u.private_address IS NOT NULL AND u.network_id = s.network_id AND s.identity_revoked_at IS NULL)
    WHEN 'redis-pool' THEN (
        SELECT jsonb_agg(jsonb_build_object('server_id', u.server_id, 'role', u.role, 'address', host(u.private_address), 'network', u.network_id))
        FROM (SELECT DISTINCT a.app_server_id AS id FROM redis_pools r JOIN tenant_allocations a ON a.redis_pool_id = r.pool_id AND a.released_at IS NULL WHERE r.server_id = s.server_id
              UNION SELECT v.server_id FROM redis_pools r JOIN tenant_moves m ON m.finished_at IS NULL AND (m.from_pool_id = r.pool_id OR m.to_pool_id = r.pool_id)
                  CROSS JOIN LATERAL (VALUES (m.from_server_id), (m.to_server_id)) v (server_id) WHERE r.server_id = s.server_id) x
        JOIN servers u ON u.server_id = x.id WHERE u.status <> 'terminated' AND u.private_address IS NOT NULL AND u.network_id = s.network_id AND s.identity_revoked_at IS NULL)
    END AS users,
    CASE WHEN s.role IN ('app', 'node') THEN (
        SELECT jsonb_agg(jsonb_build_object('server_id', e.server_id, 'role', e.role, 'address', host(e.private_address), 'network', e.network_id))
        FROM servers e WHERE e.network_id = s.network_id AND e.role = 'edge' AND e.status <> 'terminated' AND e.private_address IS NOT NULL AND s.identity_revoked_at IS NULL)
    END AS edges,
    ARRAY(SELECT DISTINCT (p ->> 'host_port')::int FROM instances i CROSS JOIN LATERAL jsonb_array_elements(i.ports) p
          WHERE i.server_id = s.server_id AND i.state <> 'stopped' AND p ->> 'host_port' IS NOT NULL) AS instance_ports,
    CASE WHEN s.role = 'edge' THEN ARRAY(
        SELECT DISTINCT t.listen_port FROM routes t JOIN envs v ON v.env_id = t.env_id WHERE t.deleted_at IS NULL AND t.listen_port NOT IN (80, 443) AND v.region = s.region)
    END AS public_ports
FROM servers s WHERE s.server_id = ANY ($1) AND s.status <> 'terminated'`

const sqlEgress = `SELECT epoch, cidrs, leaving FROM egress`

// Versions count up. A host may have one that the row did not give it, because the database was restored from a backup:
// it keeps that document, and the next one is above it. A document of the same rule is above it only when a process
// waits for the host ($5).
const sqlWritePeers = `
WITH new AS (
    SELECT n.*, p.rule_sha256 IS DISTINCT FROM n.rule_sha256 OR $5 AND a.ahead >= p.version AS next, a.ahead
    FROM unnest($1::text[], $2::jsonb[], $3::bytea[]) AS n (server_id, rule, rule_sha256)
    JOIN server_peers p USING (server_id)
    CROSS JOIN LATERAL (SELECT CASE WHEN p.applied_version > p.offered
        AND p.applied_version < p.version + ` + versionLeap + ` THEN p.applied_version ELSE -1 END AS ahead) a
), written AS (
    UPDATE server_peers p SET rule = n.rule, rule_sha256 = n.rule_sha256, egress_epoch = $4,
        version = CASE WHEN n.next THEN GREATEST(p.version, n.ahead) + 1 ELSE p.version END,
        changed_at = CASE WHEN n.next THEN now() ELSE p.changed_at END,
        -- An epoch that changes nothing for a host is in force there with what is.
        applied_epoch = CASE WHEN NOT n.next AND p.applied_version = p.version AND p.applied_version <= p.offered
            THEN $4 ELSE p.applied_epoch END
    FROM new n WHERE p.server_id = n.server_id AND (n.next OR p.egress_epoch <> $4)
    RETURNING p.server_id
)
INSERT INTO changes (kind, id) SELECT 'server_peers', server_id FROM written`

const sqlPeersVersions = `SELECT server_id, version FROM server_peers WHERE server_id = ANY ($1)`

// MakePeers rebuilds the rules of some servers, for a process that waits until their hosts have them, and returns their
// versions. Terminated or unknown servers have none. ports are the ports of the agent and of Docker on the
// servers of a role.
func (s *Store) MakePeers(ctx context.Context, ids []prego.ServerID, ports func(prego.Role) (agent, docker int)) (versions map[prego.ServerID]int64, err error) {
	err = s.inTx(ctx, "make peers", func(tx *txn) error {
		versions = got(makePeers(ctx, tx, ids, ports, true)).in(tx)
		return nil
	})
	return versions, err
}

const sqlPublicPorts = `SELECT DISTINCT listen_port FROM routes WHERE deleted_at IS NULL AND listen_port NOT IN (80, 443) ORDER BY 1`

// PublicPorts are those, besides 80 and 443, that routes listen on at edges.
func (s *Store) PublicPorts(ctx context.Context) ([]int, error) {
	return collectValues[int](ctx, s, "public ports", sqlPublicPorts)
}

func makePeers(
	ctx context.Context, tx *txn, ids []prego.ServerID, ports func(prego.Role) (agent, docker int), awaited bool,
) (map[prego.ServerID]int64, error) {
	tx.run(ctx, sqlNewPeers, ids)
	tx.run(ctx, sqlLockPeers, ids)
	tx.run(ctx, sqlForgetPeers, ids)
	egress := oneIn[server.Egress](ctx, tx, sqlEgress)
	inputs := manyIn[struct {
		Server        server.PeerHost
		Users, Edges  []server.PeerHost
		InstancePorts []int
		PublicPorts   []int
	}](ctx, tx, sqlPeersInput, ids)
	made, rules, sums := make([]string, 0, len(inputs)), make([][]byte, 0, len(inputs)), make([][]byte, 0, len(inputs))
	for _, in := range inputs {
		agent, docker := ports(in.Server.Role)
		rule, err := json.Marshal(server.Peers(server.PeersInput{
			Server: in.Server, Egress: egress.CIDRs, AgentPort: agent, DockerPort: docker,
			Users: in.Users, Edges: in.Edges, InstancePorts: in.InstancePorts, PublicPorts: in.PublicPorts,
		}))
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(rule)
		made, rules, sums = append(made, string(in.Server.ServerID)), append(rules, rule), append(sums, sum[:])
	}
	if len(egress.CIDRs) > 0 { // until they are known a rule would shut the control plane out
		tx.run(ctx, sqlWritePeers, made, rules, sums, egress.Epoch, awaited)
	}
	versions, err := many[server.PeersVersion](ctx, tx, sqlPeersVersions, ids)
	out := make(map[prego.ServerID]int64, len(versions))
	for _, v := range versions {
		out[v.ServerID] = v.Version
	}
	return out, err
}

const sqlPeersAreDue = `SELECT EXISTS (SELECT FROM peers_due)`

// A row may be there several times; all of them are taken.
const (
	sqlTakePeersDue = `
WITH due AS (SELECT due_id FROM peers_due ORDER BY due_id LIMIT $1 FOR UPDATE SKIP LOCKED)
DELETE FROM peers_due p USING due WHERE p.due_id = due.due_id RETURNING p.server_id`
	sqlPeersDue    = `SELECT server_id FROM peers_due ORDER BY due_id LIMIT $1`
	sqlTakePeersOf = `
WITH due AS (SELECT due_id FROM peers_due WHERE server_id = ANY ($1) ORDER BY due_id FOR UPDATE SKIP LOCKED)
DELETE FROM peers_due p USING due WHERE p.due_id = due.due_id RETURNING p.server_id`
)

// MakeDuePeers rebuilds rules that may have changed, at most limit of them, and returns
// how many it has made. A rule that the database rejects stays due.
func (s *Store) MakeDuePeers(
	ctx context.Context, limit int, ports func(prego.Role) (agent, docker int),
) (n int, err error) {
	// Called every second, and mostly with nothing due.
	if due, err := value[bool](ctx, s.pool, sqlPeersAreDue); err != nil || !due {
		return 0, err
	}
	rebuild := func(take string, which any) error {
		var taken []prego.ServerID
		err := s.inTx(ctx, "make due peers", func(tx *txn) error {
			taken = got(values[prego.ServerID](ctx, tx, take, which)).in(tx)
			if len(taken) > 0 {
				got(makePeers(ctx, tx, distinct(taken), ports, false)).in(tx)
			}
			return nil
		})
		if err == nil {
			n += len(taken)
		}
		return err
	}
	if err = rebuild(sqlTakePeersDue, limit); err == nil || !rejects(err) {
		return n, err
	}
	due, err := collectValues[prego.ServerID](ctx, s, "peers due", sqlPeersDue, limit)
	if err != nil {
		return 0, err
	}
	name := func(id prego.ServerID) string { return string(id) }
	_, err = siftNoted(ctx, s, batchPeers, distinct(due), name, func(part []prego.ServerID) error {
		return rebuild(sqlTakePeersOf, part)
	})
	return n, err
}

func distinct[T comparable](in []T) []T {
	seen, out := make(map[T]bool, len(in)), make([]T, 0, len(in))
	for _, v := range in {
		if !seen[v] {
			seen[v] = true
			out = append(out, v)
		}
	}
	return out
}

// A host's report about its document, written only if it is news. The answer has the row's document if it is newer.
const sqlAckPeers = `
UPDATE server_peers SET applied_version = $2, refused = $3,
    applied_at = CASE WHEN applied_version <> $2 THEN now() ELSE applied_at END,
    applied_epoch = CASE WHEN $2 = version AND $2 <= offered THEN egress_epoch WHEN $2 = 0 THEN 0
        ELSE applied_epoch END,
    offered = CASE WHEN version > $2 THEN version ELSE offered END
WHERE server_id = $1 AND (applied_version <> $2 OR refused <> $3 OR version > $2 AND offered <> version
    OR (applied_version = version AND $2 <= offered AND applied_epoch <> egress_epoch))`

const sqlPeersOf = `SELECT version, COALESCE(rule, '{}') AS rule FROM server_peers WHERE server_id = $1`

// AckPeers records the version that a host reports as active, and returns what should be; version 0 if
// there is nothing yet.
func (s *Store) AckPeers(ctx context.Context, id prego.ServerID, applied int64, refused string) (server.PeersWanted, error) {
	if _, err := s.pool.Exec(ctx, sqlAckPeers, id, applied, refused); err != nil {
		return server.PeersWanted{}, fmt.Errorf("acknowledge peers of %s: %w", id, err)
	}
	w, err := find[server.PeersWanted](ctx, s.pool, sqlPeersOf, id)
	if err != nil || w == nil {
		return server.PeersWanted{}, err
	}
	return *w, nil
}

const sqlPeersOfLost = `
SELECT p.version, COALESCE(p.rule, '{}') AS rule FROM server_peers p JOIN servers s USING (server_id)
WHERE server_id = $1 AND s.identity_revoked_at IS NOT NULL`

// PeersOfLost is what a host applies whose identity was revoked. A predecessor of a server that has a host has none.
func (s *Store) PeersOfLost(ctx context.Context, id prego.ServerID) (server.PeersWanted, error) {
	return get[server.PeersWanted](ctx, s.pool,
		prego.Errorf(prego.CodeIdentityRevoked, "the identity of server %s was revoked", id), sqlPeersOfLost, id)
}

// The versions that changed since a cursor, and the next cursor: see PlacementChanges.
const (
	sqlPeersChanges = `
SELECT ` + feedCursor + `,
    ARRAY(SELECT DISTINCT id FROM changes WHERE xid >= $1::text::xid8 AND kind = 'server_peers') AS ids`
	sqlAllPeersVersions = `SELECT server_id, version FROM server_peers WHERE version > 0`
)

// PeersVersions returns the versions that changed since an earlier answer's cursor, or all
// if since is "", older than the feed, or from before the database server was started or another took its place.
func (s *Store) PeersVersions(ctx context.Context, since string) (server.PeersVersions, error) {
	out := server.PeersVersions{Full: since == ""}
	xid, started := cut(since)
	c, err := one[struct {
		Since string
		Kept  bool
		IDs   []string
	}](ctx, s.pool, sqlPeersChanges, xid, started)
	if err != nil {
		return out, fmt.Errorf("versions of peers: %w", err)
	}
	out.Since = c.Since
	switch {
	case out.Full || !c.Kept:
		out.Full = true
		out.Versions, err = collect[server.PeersVersion](ctx, s, "versions of peers", sqlAllPeersVersions)
	case len(c.IDs) > 0:
		out.Versions, err = collect[server.PeersVersion](ctx, s, "versions of peers", sqlPeersVersions, c.IDs)
	}
	return out, err
}

const sqlPeersState = `
SELECT s.server_id, s.role, s.host, s.status, s.agent_status, COALESCE(p.version, 0) AS version, COALESCE(p.applied_version, 0) AS applied_version,
    p.applied_at, p.changed_at, COALESCE(p.refused, '') AS refused, COALESCE(p.applied_epoch, 0) AS applied_epoch
FROM servers s LEFT JOIN server_peers p ON p.server_id = s.server_id WHERE s.server_id = $1`

// PeersState is how far a server's document is active.
func (s *Store) PeersState(ctx context.Context, id prego.ServerID) (server.PeersState, error) {
	return get[server.PeersState](ctx, s.pool, prego.Errorf(prego.CodeNotFound, "no server %s", id), sqlPeersState, id)
}

const peersBehind = `server_peers p JOIN servers s ON s.server_id = p.server_id WHERE (p.applied_version <> p.version
    OR p.applied_version > p.offered OR p.refused <> '') AND s.status <> 'terminated'`

const sqlPeersBehind = `
SELECT s.server_id, s.role, s.host, s.status, s.agent_status, p.version, p.applied_version, p.applied_at, p.changed_at, p.refused, p.applied_epoch
FROM ` + peersBehind + ` ORDER BY p.server_id LIMIT $1`

// PeersBehind are servers whose host has not reported its newest document as active, or leaves parts of it out, by id,
// at most limit.
func (s *Store) PeersBehind(ctx context.Context, limit int) ([]server.PeersState, error) {
	return collect[server.PeersState](ctx, s, "peers behind", sqlPeersBehind, limit)
}

// A host that is not connected gets its document when it returns: no caller waits for it.
const sqlPeersBehindEgress = `
SELECT EXISTS (SELECT FROM server_peers p JOIN servers s ON s.server_id = p.server_id
    WHERE p.applied_epoch < $1 AND s.status IN ('active', 'draining', 'failed', 'provisioning') AND s.agent_status IN ('connected', 'degraded'))`

const (
	sqlLockEgress  = `SELECT epoch, cidrs, leaving, EXTRACT(EPOCH FROM now() - changed_at)::float8 AS age_seconds FROM egress FOR UPDATE`
	sqlWriteEgress = `UPDATE egress SET epoch = $1, cidrs = $2, leaving = $3, changed_at = now()`
	sqlAllPeersDue = `INSERT INTO peers_due (server_id) SELECT server_id FROM servers WHERE status <> 'terminated'`
)

// SetEgress brings the addresses that the control plane calls from to the given ones.
// New ones are let in immediately. Removed ones leave when, for at least grace,
// they were not set again, and every host that is connected has the new ones. It returns
// all that hosts let in, and whether that changed.
func (s *Store) SetEgress(ctx context.Context, set []string, grace time.Duration) (e server.Egress, changed bool, err error) {
	err = s.inTx(ctx, "set egress", func(tx *txn) error {
		was := oneIn[struct {
			server.Egress
			AgeSeconds float64
		}](ctx, tx, sqlLockEgress)
		behind := true
		if len(was.Leaving) > 0 && was.AgeSeconds >= grace.Seconds() {
			behind = valueIn[bool](ctx, tx, sqlPeersBehindEgress, was.Epoch)
		}
		e = was.Next(set, !behind)
		if e.Equal(was.Egress) {
			return nil
		}
		tx.run(ctx, sqlWriteEgress, e.Epoch, e.CIDRs, e.Leaving)
		if changed = e.Epoch != was.Epoch; changed {
			_, err = tx.Exec(ctx, sqlAllPeersDue)
		}
		return err
	})
	return e, changed, err
}

// Egress is where the control plane calls from.
func (s *Store) Egress(ctx context.Context) (server.Egress, error) {
	e, err := one[server.Egress](ctx, s.pool, sqlEgress)
	return e, failed("egress", err)
}
