package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/edge"
)

// Changes for edges since a cursor; as for placement (ADR 20). A domain belongs to a tenant's site, or to the routes
// of its org with its name.
const sqlEdgeFeed = `
WITH c AS MATERIALIZED (SELECT DISTINCT kind, id FROM changes WHERE xid >= $1::text::xid8 AND kind IN ('servers', 'tenants', 'groups', 'routes', 'domains', 'edges'))
SELECT ` + feedCursor + `, pg_current_snapshot()::text AS snapshot,
    ARRAY(SELECT id FROM c WHERE kind = 'edges' ORDER BY id) AS barriers,
    ARRAY(SELECT id FROM c WHERE kind = 'servers' ORDER BY id) AS servers,
    ARRAY(SELECT id FROM c WHERE kind = 'tenants'
          UNION SELECT d.tenant_id FROM c JOIN domains d ON d.domain_id = c.id WHERE c.kind = 'domains' AND d.tenant_id IS NOT NULL) AS tenants,
    ARRAY(SELECT id FROM c WHERE kind = 'groups'
          UNION SELECT r.group_id FROM c JOIN routes r ON r.route_id = c.id WHERE c.kind = 'routes'
          UNION SELECT r.group_id FROM c JOIN domains d ON d.domain_id = c.id JOIN routes r ON r.hostname = d.name AND r.deleted_at IS NULL WHERE c.kind = 'domains') AS groups,
    GREATEST((SELECT changed FROM certificates ORDER BY changed DESC LIMIT 1), (SELECT changed FROM acme_challenges ORDER BY changed DESC LIMIT 1), 0) AS certificates`

// Edges in no network reach a server that is in none at its host.
const sqlEdgeServers = `
SELECT server_id, region, COALESCE(network_id, region) AS network,
    COALESCE(host(private_address), CASE WHEN network_id IS NULL THEN host END, '') AS address,
    CASE WHEN role = 'edge' AND status = 'active' THEN host ELSE '' END AS public
FROM servers WHERE status <> 'terminated'`

// offlineForRelease is whether a release keeps the site of tenant t offline in its current place.
const offlineForRelease = `EXISTS (SELECT FROM stack_release_sites u
    WHERE u.tenant_id = t.tenant_id AND u.offline_at IS NOT NULL AND u.opened_at IS NULL AND has_place_on(u.tenant_id, u.server_id))`

const sqlEdgeSites = `
SELECT t.tenant_id, a.app_server_id AS server_id, t.site AS name,
    ARRAY(SELECT d.name FROM domains d WHERE d.tenant_id = t.tenant_id AND d.status = 'verified' AND d.deleted_at IS NULL ORDER BY d.name) AS names,
    t.state = 'suspended' OR EXISTS (SELECT FROM restore_jobs j WHERE j.tenant_id = t.tenant_id AND j.status = 'running')
        OR ` + offlineForRelease + ` AS maintenance,
    COALESCE(l.network, '') AS left_network, COALESCE(l.address, '') AS left_address, l.opened_at IS NOT NULL AS open
FROM tenants t JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
LEFT JOIN LATERAL (SELECT COALESCE(f.network_id, f.region) AS network, COALESCE(host(f.private_address), '') AS address, m.opened_at
    FROM tenant_moves m JOIN servers f ON f.server_id = m.from_server_id JOIN servers g ON g.server_id = m.to_server_id
    WHERE m.tenant_id = t.tenant_id AND m.allocation_id = a.allocation_id AND m.finished_at IS NULL AND m.state = 'switched' AND COALESCE(f.network_id, f.region) <> COALESCE(g.network_id, g.region)) l ON true
WHERE (has_site(t.state) OR t.opening_since IS NOT NULL) AND t.site <> ''`

// A name is served only for the org that showed that it owns it.
const sqlEdgeGroups = `
SELECT g.group_id, g.env_id, e.region,
    (SELECT jsonb_agg(jsonb_build_object('route_id', r.route_id, 'hostname', r.hostname, 'listener', r.listener_scope, 'listen_port', r.listen_port,
         'protocol', r.protocol, 'target_port', r.target_port) ORDER BY r.route_id)
     FROM routes r WHERE r.group_id = g.group_id AND r.deleted_at IS NULL AND (r.hostname = ''
         OR EXISTS (SELECT FROM domains d WHERE d.name = r.hostname AND d.org_id = r.org_id AND d.status = 'verified' AND d.deleted_at IS NULL))) AS routes,
    (SELECT jsonb_agg(jsonb_build_object('server_id', i.server_id, 'ports', i.ports) ORDER BY i.instance_id)
     FROM instances i WHERE i.group_id = g.group_id AND i.state = 'running' AND i.healthy) AS instances
FROM process_groups g JOIN envs e ON e.env_id = g.env_id`

const (
	sqlAllEdgeServers = sqlEdgeServers
	sqlAllEdgeSites   = sqlEdgeSites
	sqlAllEdgeGroups  = sqlEdgeGroups + ` WHERE g.group_id IN (SELECT group_id FROM routes WHERE deleted_at IS NULL)`

	sqlChangedEdgeServers = sqlEdgeServers + ` AND server_id = ANY ($1)`
	sqlChangedEdgeSites   = sqlEdgeSites + ` AND t.tenant_id = ANY ($1)`
	sqlChangedEdgeGroups  = sqlEdgeGroups + ` WHERE g.group_id = ANY ($1)`
)

const sqlEdgeAddresses = `SELECT env_id, address, server_id FROM edge_addresses()`

// edgeFeed lists the ids of the feed after a cursor.
type edgeFeed struct {
	Since, Snapshot                    string
	Kept                               bool
	Barriers, Servers, Tenants, Groups []string
	Certificates                       int64
}

// EdgeChanges reads the changes for edges since an earlier answer's cursor. Since "" reads everything, as does a
// cursor that is older than the feed, or from before the database server was started or another took its place. All of
// it is of one moment.
func (s *Store) EdgeChanges(ctx context.Context, since string) (edge.Change, error) {
	var c edge.Change
	err := s.inView(ctx, "changes of edges", func(tx *txn) error {
		xid, started := cut(since)
		f := oneIn[edgeFeed](ctx, tx, sqlEdgeFeed, xid, started)
		c = edge.Change{Since: f.Since, Snapshot: f.Snapshot, Full: since == "" || !f.Kept, Barriers: f.Barriers, Certificates: f.Certificates}
		b := &pgx.Batch{}
		if c.Full {
			queueRows(b, &c.Servers, sqlAllEdgeServers)
			queueRows(b, &c.Sites, sqlAllEdgeSites)
			queueRows(b, &c.Groups, sqlAllEdgeGroups)
		} else {
			c.ServerIDs, c.TenantIDs, c.GroupIDs = prego.IDs[prego.ServerID](f.Servers), prego.IDs[prego.TenantID](f.Tenants), prego.IDs[prego.GroupID](f.Groups)
			if len(f.Servers) > 0 {
				queueRows(b, &c.Servers, sqlChangedEdgeServers, f.Servers)
			}
			if len(f.Tenants) > 0 {
				queueRows(b, &c.Sites, sqlChangedEdgeSites, f.Tenants)
			}
			if len(f.Groups) > 0 {
				queueRows(b, &c.Groups, sqlChangedEdgeGroups, f.Groups)
			}
		}
		queueRows(b, &c.Addresses, sqlEdgeAddresses)
		return tx.SendBatch(ctx, b).Close()
	})
	return c, err
}

// Publishing from an outdated snapshot returns no row. Of two snapshots the later one has the higher end, or fewer of
// the earlier transactions under way.
//
// Versions count up. An edge may have one that the row did not give it, because the database was restored from a
// backup: it keeps that document, and the next published one is above it. A document of the same content is published
// above it only when a process waits for edges ($4).
const sqlPublishEdges = `
WITH w AS (SELECT COALESCE(max(e.version), 0) AS ahead FROM edges e WHERE e.network = $1 AND e.version > e.offered
    AND e.version < COALESCE((SELECT version FROM edge_documents WHERE network = $1), 0) + ` + versionLeap + `)
INSERT INTO edge_documents AS d (network, version, digest, seen)
SELECT $1, 1 + CASE WHEN $4 THEN w.ahead ELSE 0 END, $2, $3::text::pg_snapshot FROM w
ON CONFLICT (network) DO UPDATE SET
    version = CASE WHEN d.digest <> excluded.digest OR $4 AND (SELECT ahead FROM w) >= d.version
        THEN GREATEST(d.version, (SELECT ahead FROM w)) + 1 ELSE d.version END, seen = excluded.seen,
    changed_at = CASE WHEN d.digest <> excluded.digest THEN now() ELSE d.changed_at END, digest = excluded.digest,
    held_since = CASE WHEN d.held_since IS NULL AND (d.digest <> excluded.digest
        OR $4 AND (SELECT ahead FROM w) >= d.version) THEN now() ELSE d.held_since END
WHERE (pg_snapshot_xmax(excluded.seen), -(SELECT count(*) FROM pg_snapshot_xip(excluded.seen)))
   >= (pg_snapshot_xmax(d.seen), -(SELECT count(*) FROM pg_snapshot_xip(d.seen)))
RETURNING version`

// versionLeap is by how much the version that a host reports may be ahead of its row's. A host can't use the numbers
// up.
const versionLeap = `4294967296`

// PublishEdges returns the version of a network's document, by its digest: the current version, or the next. awaited
// means that a process waits until edges have the content. ok is false when the document is already out of date.
func (s *Store) PublishEdges(
	ctx context.Context, network string, digest []byte, snapshot string, awaited bool,
) (version int64, ok bool, err error) {
	version, err = value[int64](ctx, s.pool, sqlPublishEdges, network, digest, snapshot, awaited)
	if isNoRows(err) {
		return 0, false, nil
	}
	return version, err == nil, failed("publish edges' document", err)
}

// An edge's version is what it reports: when it has applied a document, and here if the row never gave it that version.
const sqlEdgeAsks = `
INSERT INTO edges AS e (server_id, network, version)
SELECT server_id, COALESCE(network_id, region), $2 FROM servers WHERE server_id = $1 AND role = 'edge'
ON CONFLICT (server_id) DO UPDATE SET network = excluded.network, asked_at = now(),
    offered = CASE e.network WHEN excluded.network THEN e.offered ELSE 0 END,
    version = CASE WHEN e.network <> excluded.network OR excluded.version > e.offered
        THEN GREATEST(e.version, excluded.version) ELSE e.version END
RETURNING network`

// EdgeAsks records that an edge polled for its document, and returns its network. version is that of the document that
// it fetched last, 0 if the request does not name it.
func (s *Store) EdgeAsks(ctx context.Context, serverID prego.ServerID, version int64) (network string, err error) {
	network, err = value[string](ctx, s.pool, sqlEdgeAsks, serverID, version)
	return network, failed("edge asks", ifNoRows(err, prego.Errorf(prego.CodeScopeMissing, "server %s is not an edge", serverID)))
}

const sqlEdgeOffered = `
UPDATE edges SET offered = $2, seen = $3::text::pg_snapshot WHERE server_id = $1 AND offered <= $2`

// EdgeOffered records that an edge is about to get a document, made as of a snapshot.
func (s *Store) EdgeOffered(ctx context.Context, serverID prego.ServerID, version int64, snapshot string) error {
	return s.exec(ctx, "document for edge", sqlEdgeOffered, serverID, version, snapshot)
}

// Which edge of a network gets a document that is not released: the first by id that requests documents, has what is
// released, and has not refused a newer one. If it does not acknowledge in 5 seconds, the next one gets it. An edge
// that has one which closes sites stays the first: it closes them at no other edge.
const sqlEdgeTurns = `
SELECT d.network, d.released, COALESCE(f.first, '') AS first, COALESCE(f.tried, 0) AS tried
FROM edge_documents d LEFT JOIN LATERAL (
    SELECT (array_agg(e.server_id ORDER BY e.holds DESC, e.late, e.server_id))[1 + CASE WHEN bool_or(e.holds) THEN 0
            ELSE floor(GREATEST(0, EXTRACT(EPOCH FROM now() - d.held_since)) / 5)::int % count(*)::int END] AS first,
        max(e.offered) AS tried
    FROM (SELECT e.server_id, e.offered, e.version > d.released AND e.version <= e.offered AS holds,
            p.status NOT IN ('active', 'draining') OR e.version < d.released OR e.refused_version > e.version AS late
        FROM edges e JOIN servers p ON p.server_id = e.server_id AND p.status <> 'terminated'
        WHERE e.network = d.network AND e.asked_at > now() - interval '40 seconds') e) f ON true
WHERE d.network = ANY ($1)`

// EdgeTurns returns which edges get the newest documents of networks.
func (s *Store) EdgeTurns(ctx context.Context, networks []string) ([]edge.Turn, error) {
	return collect[edge.Turn](ctx, s, "turns of edges", sqlEdgeTurns, networks)
}

// sitesClosed are the tenants n that edge e closes by its document and that should be open: those who are active, and
// those of whom there is no row, as after a restore of the database. They are many as in the findings about sites.
const (
	sitesClosed = `(SELECT n.tenant_id, t.slug FROM unnest(e.closed) n (tenant_id)
    LEFT JOIN tenants t ON t.tenant_id = n.tenant_id
    LEFT JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
    LEFT JOIN servers s ON s.server_id = a.app_server_id
    WHERE t.tenant_id IS NULL OR ` + siteOpen + `)`
	sitesProbed = `(SELECT count(DISTINCT h.tenant_id) FROM site_health h JOIN edges o ON o.server_id = h.server_id
    WHERE o.network = e.network)`
	closesMany = `(SELECT count(*) > 5 OR 2 * count(*) > ` + sitesProbed + `
    FROM ` + sitesClosed + ` c HAVING count(*) > 0)`
)

// An edge that is the only one of its network holds back nothing.
const (
	sqlReleaseEdges = `
UPDATE edge_documents d SET released = e.version, held_since = CASE WHEN d.version > e.version THEN now() END
FROM edges e WHERE e.server_id = $1 AND d.network = e.network
  AND e.version > d.released AND e.version <= LEAST(e.offered, d.version)
  AND (` + closesMany + ` IS NOT TRUE OR NOT EXISTS (SELECT FROM edges o
      JOIN servers p ON p.server_id = o.server_id AND p.status IN ('active', 'draining')
      WHERE o.network = e.network AND o.server_id <> e.server_id))`
	sqlReleasedEdges = `
SELECT COALESCE((SELECT d.released FROM edges e JOIN edge_documents d USING (network) WHERE e.server_id = $1), 0)`
)

// edgeHolds is whether edge e serves a document that is not released, because it closes sites.
const edgeHolds = `EXISTS (SELECT FROM edge_documents x WHERE x.network = e.network AND e.version > x.released)`

// A name left out since an earlier report keeps that report's time.
const sqlEdgeApplied = `
WITH e AS (UPDATE edges SET version = $2, closed = $10, refused_version = $3::bigint, refused_reason = $4,
        applied_at = now(), asked_at = now(),
        refused_since = CASE WHEN $3::bigint <> 0 THEN COALESCE(refused_since, now()) END
    WHERE server_id = $1 RETURNING server_id),
l AS (SELECT DISTINCT ON (kind, name, tenant_id, route_id) * FROM unnest($5::text[], $6::text[], $7::text[], $8::text[], $9::text[]) u (kind, name, tenant_id, route_id, reason)),
gone AS (DELETE FROM edge_left_out o USING e WHERE o.server_id = e.server_id
    AND NOT EXISTS (SELECT FROM l WHERE (l.kind, l.name, l.tenant_id, l.route_id) = (o.kind, o.name, o.tenant_id, o.route_id)))
INSERT INTO edge_left_out (server_id, kind, name, tenant_id, route_id, reason) SELECT e.server_id, l.kind, l.name, l.tenant_id, l.route_id, l.reason FROM e, l
ON CONFLICT (server_id, kind, name, tenant_id, route_id) DO UPDATE SET reason = excluded.reason`

// EdgeApplied records what an edge serves, what it leaves out, and which sites it closes. If these are few, the other
// edges of its network may also have the document: released is the highest such version.
func (s *Store) EdgeApplied(ctx context.Context, a edge.Applied) (released int64, err error) {
	var kinds, names, tenants, routes, reasons []string
	for _, p := range a.LeftOut {
		kinds, names, reasons = append(kinds, string(p.Kind)), append(names, p.Name), append(reasons, p.Reason)
		tenants, routes = append(tenants, p.Tenant), append(routes, p.Route)
	}
	closed := append([]string{}, a.Closed...)
	err = s.inTx(ctx, "edge applied", func(tx *txn) error {
		tx.run(ctx, sqlEdgeApplied, a.ServerID, a.Version, a.RefusedVersion, a.RefusedReason,
			kinds, names, tenants, routes, reasons, closed)
		tx.run(ctx, sqlReleaseEdges, a.ServerID)
		released = valueIn[int64](ctx, tx, sqlReleasedEdges, a.ServerID)
		return nil
	})
	return released, err
}

// liveEdges are the edges e that callers wait for. A silent edge is away after 40 seconds: a poll lasts 25.
const liveEdges = `edges e JOIN servers p ON p.server_id = e.server_id AND p.status IN ('active', 'draining')
    AND e.asked_at > now() - interval '40 seconds'`

const sqlLiveEdges = `
SELECT DISTINCT e.network FROM ` + liveEdges + `
WHERE e.network IN (SELECT COALESCE(network_id, region) FROM servers WHERE server_id = ANY ($1)) ORDER BY 1`

const sqlEdgeBarrier = `INSERT INTO changes (kind, id) VALUES ('edges', gen_random_uuid()::text) RETURNING xid::text`

// EdgeBarrier marks the current commits for the live edges of the servers' networks. Without live edges there is
// nothing to wait for.
func (s *Store) EdgeBarrier(ctx context.Context, servers []prego.ServerID) (networks []string, barrier string, err error) {
	networks, err = values[string](ctx, s.pool, sqlLiveEdges, prego.Strings(servers))
	if err == nil && len(networks) > 0 {
		barrier, err = value[string](ctx, s.pool, sqlEdgeBarrier)
	}
	return networks, barrier, failed("mark for edges", err)
}

// An edge has the newest document, or one that has seen the barrier: documents follow each other faster than edges take
// them. An edge that refused the newest document delays no caller: it reports the refusal, and an operator is needed.
// What an edge serves by a version that it was not given is unknown.
const sqlEdgesBehind = `
SELECT n.network || '/' || COALESCE(e.server_id, '') FROM unnest($1::text[]) n (network)
LEFT JOIN edge_documents d ON d.network = n.network
LEFT JOIN (` + liveEdges + `) ON e.network = n.network AND (e.version < d.version OR e.version > e.offered)
    AND e.refused_version < d.version
    AND (e.version = e.offered AND pg_visible_in_snapshot($2::text::xid8, e.seen)) IS NOT TRUE
WHERE d.network IS NULL OR NOT pg_visible_in_snapshot($2::text::xid8, d.seen) OR e.server_id IS NOT NULL ORDER BY 1`

// EdgesBehind returns the edges, or their networks, that don't serve yet what was committed at the barrier.
func (s *Store) EdgesBehind(ctx context.Context, networks []string, barrier string) ([]string, error) {
	return collectValues[string](ctx, s, "edges that are behind", sqlEdgesBehind, networks, barrier)
}

const sqlServerRole = `SELECT role FROM servers WHERE server_id = $1`

// ServerRole returns the role of a server, which never changes.
func (s *Store) ServerRole(ctx context.Context, serverID prego.ServerID) (prego.Role, error) {
	role, err := value[prego.Role](ctx, s.pool, sqlServerRole, serverID)
	return role, failed("role of server", ifNoRows(err, prego.Errorf(prego.CodeServerNotFound, "there is no server %q", serverID)))
}
