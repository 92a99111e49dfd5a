package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// A span gets at most one sample of each server, however often it is read. Values reported before the
// span began are not in it: a silent agent leaves a gap.
const sqlTakeSamples = `
WITH span AS (SELECT date_bin(make_interval(secs => $1), now(), 'epoch') AS began)
INSERT INTO server_samples (at, server_id, load1, memory_pct, disk_pct, cpu_pct, worker_slots_pct, db_disk_pct, redis_memory_pct)
SELECT began, server_id, load1, memory_pct, disk_pct, cpu_pct, worker_slots_pct, db_disk_pct, redis_memory_pct
FROM servers s, span
WHERE status <> 'terminated' AND agent_last_heartbeat_at >= began
  AND NOT EXISTS (SELECT FROM server_samples x WHERE x.at = began AND x.server_id = s.server_id)
ON CONFLICT DO NOTHING`

// TakeSamples keeps the agents' last reports in the current span of time, and returns the number of
// servers sampled for the first time in it.
func (s *Store) TakeSamples(ctx context.Context, every time.Duration) (int, error) {
	tag, err := s.pool.Exec(ctx, sqlTakeSamples, every.Seconds())
	return int(tag.RowsAffected()), failed("take samples", err)
}

// By the possible keys: the rows of one server are far apart. Figures are stored in four bytes, and
// rounded to that precision.
const sqlServerSamples = `
SELECT x.at, round(load1::numeric, 2)::float8 AS load1, round(memory_pct::numeric, 1)::float8 AS memory_pct, round(disk_pct::numeric, 1)::float8 AS disk_pct,
    round(cpu_pct::numeric, 1)::float8 AS cpu_pct, round(worker_slots_pct::numeric, 1)::float8 AS worker_slots_pct,
    round(db_disk_pct::numeric, 1)::float8 AS db_disk_pct, round(redis_memory_pct::numeric, 1)::float8 AS redis_memory_pct
FROM generate_series(date_bin(make_interval(secs => $3), GREATEST($2::timestamptz, now() - make_interval(secs => $4)), 'epoch'), now(), make_interval(secs => $3)) AS span(began)
JOIN server_samples x ON x.at = span.began AND x.server_id = $1
ORDER BY x.at`

// ServerSamples are a server's samples since a time, which may be SampledFor ago at most, the oldest first.
func (s *Store) ServerSamples(ctx context.Context, id prego.ServerID, since time.Time) ([]server.Sample, error) {
	return collect[server.Sample](ctx, s, "samples of a server", sqlServerSamples, id, since, server.SampleEvery.Seconds(), server.SampledFor.Seconds())
}
