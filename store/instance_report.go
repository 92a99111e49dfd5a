package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/workload"
)

// One statement for a whole batch, with at most one report per server. Only the key bound to the server counts.
// Reports already written are skipped, as are reports of a stream that did not begin here: their server sends a full
// report again. Groups are locked in the order of their ids, before their instances, as plans do.
//
// A failing check does not fail a booting instance: it has until healthy_by. An instance missing from a full report
// has ended, unless it started so recently that the report may be older.
const sqlReportInstances = `
WITH incoming AS (
    SELECT i.* FROM unnest($1::text[], $2::bytea[], $3::text[], $4::bigint[], $5::bool[]) AS i(server_id, key, stream, seq, "full")
    JOIN servers s ON s.server_id = i.server_id WHERE s.agent_key_sha256 = i.key AND s.identity_revoked_at IS NULL AND s.status <> 'terminated'
), known AS (
    SELECT i.*, i."full" OR COALESCE(r.stream = i.stream, false) AS follows FROM incoming i LEFT JOIN container_reports r ON r.server_id = i.server_id
), accepted AS (
    INSERT INTO container_reports AS r (server_id, stream, seq) SELECT server_id, stream, seq FROM known WHERE follows ORDER BY server_id
    ON CONFLICT (server_id) DO UPDATE SET stream = EXCLUDED.stream, seq = EXCLUDED.seq, reported_at = now() WHERE r.stream <> EXCLUDED.stream OR r.seq < EXCLUDED.seq
    RETURNING server_id
), seen AS (
    SELECT c.* FROM unnest($6::text[], $7::text[], $8::bool[], $9::text[], $10::text[]) AS c(server_id, instance_id, ended, health, detail)
    JOIN accepted a ON a.server_id = c.server_id WHERE c.ended OR c.health <> 'starting'
    UNION ALL
    SELECT i.server_id, i.instance_id, true, '', 'its container is gone'
    FROM accepted a JOIN incoming n ON n.server_id = a.server_id JOIN instances i ON i.server_id = a.server_id
    WHERE n."full" AND i.state IN ('booting', 'running') AND COALESCE(i.running_at, i.started_at) < now() - interval '1 minute' AND i.instance_id <> ALL ($7)
), held AS (
    SELECT i.instance_id, s.ended, s.health, s.detail
    FROM seen s JOIN instances i ON i.instance_id = s.instance_id AND i.server_id = s.server_id JOIN process_groups g ON g.group_id = i.group_id
    WHERE i.state = 'booting' OR i.state = 'running' AND (s.ended OR s.health = 'unhealthy')
    ORDER BY g.group_id FOR NO KEY UPDATE OF g
), changed AS (
    UPDATE instances i SET
        state = CASE WHEN h.ended OR i.state = 'running' AND h.health = 'unhealthy' THEN 'failed' WHEN h.health = 'healthy' THEN 'running' ELSE i.state END,
        healthy = NOT h.ended AND h.health = 'healthy',
        message = CASE WHEN h.ended OR h.health = 'healthy' OR i.state = 'booting' THEN h.detail ELSE 'its health check fails: ' || h.detail END,
        running_at = CASE WHEN NOT h.ended AND h.health = 'healthy' THEN COALESCE(i.running_at, now()) ELSE i.running_at END,
        started_at = CASE WHEN NOT h.ended AND h.health = 'healthy' THEN COALESCE(i.started_at, now()) ELSE i.started_at END,
        restarts = CASE WHEN i.running_at < now() - $12::interval AND (h.ended OR h.health = 'unhealthy') THEN 0 ELSE i.restarts END,
        retry_at = CASE WHEN h.ended OR i.state = 'running' AND h.health = 'unhealthy'
            THEN now() + LEAST(make_interval(secs => 2 ^ CASE WHEN i.running_at < now() - $12::interval THEN 0 ELSE LEAST(i.restarts, 20) END), $11::interval) END
    FROM held h WHERE i.instance_id = h.instance_id AND i.state IN ('booting', 'running')
    RETURNING i.group_id, i.org_id, i.state, i.message, i.release, i.restarts
), sums AS (
    SELECT c.group_id, c.org_id, count(*) FILTER (WHERE c.state = 'failed')::int AS failed, count(*) FILTER (WHERE c.state = 'running')::int AS ran,
        count(*) FILTER (WHERE c.state = 'failed' AND c.release = g.release) AS failures, bool_or(c.state = 'failed' AND c.restarts + 1 >= $13) AS loops,
        bool_or(c.state = 'running' AND c.release = g.release) AS progress,
        COALESCE(NULLIF(max(c.message) FILTER (WHERE c.state = 'failed'), ''), 'an instance failed') AS message
    FROM changed c JOIN process_groups g ON g.group_id = c.group_id WHERE c.state <> 'booting' GROUP BY 1, 2
), groups AS (
    UPDATE process_groups g SET updated_at = now(), converged = false,
        failures = g.failures + u.failures, progress_at = CASE WHEN u.progress THEN now() ELSE g.progress_at END,
        refused_usage = CASE WHEN u.failed > 0 THEN NULL ELSE g.refused_usage END,
        status_reason = CASE WHEN u.loops THEN 'crash_loop' WHEN u.failed > 0 THEN 'instance_failed' WHEN g.status_reason = 'instance_failed' THEN '' ELSE g.status_reason END,
        status_message = CASE WHEN u.failed > 0 THEN u.message WHEN g.status_reason = 'instance_failed' THEN '' ELSE g.status_message END
    FROM sums u WHERE g.group_id = u.group_id
    RETURNING g.group_id, g.org_id, u.failed, u.ran
)
SELECT '' AS server_id, group_id, org_id, failed, ran FROM groups
UNION ALL SELECT server_id, '', '', 0, 0 FROM known WHERE NOT follows`

// ReportInstances writes what agents reported on the containers of instances, at most one report per server.
func (s *Store) ReportInstances(
	ctx context.Context, batch []workload.InstanceReport,
) (out workload.ReportOutcome, err error) {
	name := func(r workload.InstanceReport) string { return string(r.ServerID) }
	bad, err := siftNoted(ctx, s, batchContainers, batch, name, func(part []workload.InstanceReport) error {
		return s.reportInstances(ctx, part, &out)
	})
	for _, r := range bad {
		out.Rejected = append(out.Rejected, r.ServerID)
	}
	return out, err
}

func (s *Store) reportInstances(
	ctx context.Context, batch []workload.InstanceReport, out *workload.ReportOutcome,
) error {
	n := len(batch)
	servers, keys, streams, seqs, full := make([]string, 0, n), make([][]byte, 0, n), make([]string, 0, n), make([]int64, 0, n), make([]bool, 0, n)
	of, ids, health, details := []string{}, []string{}, []string{}, []string{}
	ended := []bool{}
	for _, r := range batch {
		servers, keys, streams, seqs, full = append(servers, string(r.ServerID)), append(keys, r.Key), append(streams, r.Stream), append(seqs, r.Seq), append(full, r.Full)
		for _, c := range r.Seen {
			of, ids, ended, health, details = append(of, string(r.ServerID)), append(ids, string(c.InstanceID)), append(ended, c.Ended), append(health, string(c.Health)), append(details, prego.Redact(c.Detail))
		}
	}
	type row struct {
		ServerID    prego.ServerID
		GroupID     prego.GroupID
		OrgID       prego.OrgID
		Failed, Ran int
	}
	rows, err := collect[row](ctx, s, "report instances", sqlReportInstances, servers, keys, streams, seqs, full, of, ids, ended, health, details, maxBackoff, crashesForgotten, crashLoop)
	for _, r := range rows {
		if r.ServerID != "" {
			out.Resync = append(out.Resync, r.ServerID)
			continue
		}
		out.Groups = append(out.Groups, workload.GroupRef{GroupID: r.GroupID, OrgID: r.OrgID})
		out.Failed += r.Failed
		out.Ran += r.Ran
	}
	return err
}
