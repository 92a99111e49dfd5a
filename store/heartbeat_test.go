package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
)

// agentServer is a server whose agent "key-<id>" last reported some time ago.
func agentServer(t testing.TB, s *Store, id, status string, agent server.AgentStatus, silent time.Duration) {
	t.Helper()
	insertServer(t, s, id, status)
	exec(t, s, `
UPDATE servers SET attempt = 1, agent_key_sha256 = $2, agent_status = $3, agent_first_heartbeat_at = now() - make_interval(secs => $4),
    agent_last_heartbeat_at = now() - make_interval(secs => $4) WHERE server_id = $1`, id, hash("key-"+id), agent, silent.Seconds())
}

func heartbeatOf(id prego.ServerID) server.Heartbeat {
	return server.Heartbeat{ServerID: id, Key: hash(string("key-" + id)), BootID: "b", AgentVersion: "v2", Load1: 0.5, MemoryPct: 10, DiskPct: 20, DockerState: "running"}
}

type agentRow struct {
	Status      server.Status
	Reason      prego.Reason
	AgentStatus server.AgentStatus
	HeardJust   bool
}

func agentRowOf(t testing.TB, s *Store, id string) agentRow {
	t.Helper()
	rows, err := s.pool.Query(context.Background(), `
SELECT status, status_reason, agent_status, COALESCE(agent_last_heartbeat_at > now() - interval '30 s', false) FROM servers WHERE server_id = $1`, id)
	require.NoError(t, err)
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[agentRow])
	require.NoError(t, err)
	return row
}

func stepsOf(t testing.TB, s *Store, id string) []string {
	t.Helper()
	rows, err := s.pool.Query(context.Background(), `SELECT step FROM server_events WHERE server_id = $1 ORDER BY event_id`, id)
	require.NoError(t, err)
	steps, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return steps
}

func TestHeartbeats(t *testing.T) {
	t.Parallel()
	const long = 10 * time.Minute
	s := New(pgtest.Pool(t))
	for name, tc := range map[string]struct {
		status  string
		agent   server.AgentStatus
		arrange string // SQL on the row
		key     string
		counts  bool
		want    agentRow
		events  []string
	}{
		"first": {
			status: "provisioning", agent: server.AgentUnknown, arrange: `agent_first_heartbeat_at = NULL, agent_last_heartbeat_at = NULL`,
			counts: true, want: agentRow{server.Provisioning, "", server.AgentConnected, true}, events: []string{"first_heartbeat"},
		},
		"another":               {status: "active", agent: server.AgentConnected, counts: true, want: agentRow{server.Active, "", server.AgentConnected, true}},
		"after a short silence": {status: "active", agent: server.AgentDegraded, counts: true, want: agentRow{server.Active, "", server.AgentConnected, true}, events: []string{"agent_connected"}},
		"after a long silence": {
			status: "failed", agent: server.AgentDisconnected, arrange: `status_reason = 'heartbeat_lost', status_message = 'x'`,
			counts: true, want: agentRow{server.Active, "", server.AgentConnected, true}, events: []string{"agent_connected"},
		},
		"a server that failed otherwise stays failed": {
			status: "failed", agent: server.AgentConnected, arrange: `status_reason = 'failed_container'`,
			counts: true, want: agentRow{server.Failed, "failed_container", server.AgentConnected, true},
		},
		"draining":      {status: "draining", agent: server.AgentDegraded, counts: true, want: agentRow{server.Decommissioning, "", server.AgentConnected, true}, events: []string{"agent_connected"}},
		"another key":   {status: "active", agent: server.AgentDegraded, key: "key-x", want: agentRow{server.Active, "", server.AgentDegraded, false}},
		"not bound yet": {status: "provisioning", agent: server.AgentUnknown, arrange: `agent_key_sha256 = NULL`, want: agentRow{server.Provisioning, "", server.AgentUnknown, false}},
		"revoked":       {status: "draining", agent: server.AgentDisconnected, arrange: `identity_revoked_at = now()`, want: agentRow{server.Decommissioning, "", server.AgentDisconnected, false}},
		"terminated":    {status: "terminated", agent: server.AgentDisconnected, want: agentRow{server.Terminated, "", server.AgentDisconnected, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := "s-" + fmt.Sprintf("%x", hash(name))[:12]
			agentServer(t, s, id, tc.status, tc.agent, long)
			if tc.arrange != "" {
				exec(t, s, `UPDATE servers SET `+tc.arrange+` WHERE server_id = $1`, id)
			}
			beat := heartbeatOf(prego.ServerID(id))
			if tc.key != "" {
				beat.Key = hash(tc.key)
			}
			for range 2 { // the second one changes nothing more and is no event
				out, err := s.FlushHeartbeats(context.Background(), []server.Heartbeat{beat, heartbeatOf("nobody"), beat})
				require.NoError(t, err)
				if tc.counts {
					require.Equal(t, []server.HeartbeatOutcome{{ServerID: prego.ServerID(id), Status: tc.want.Status, Attempt: 1}}, out)
				} else {
					require.Empty(t, out)
				}
			}
			require.Equal(t, tc.want, agentRowOf(t, s, id))
			require.Equal(t, append([]string{}, tc.events...), append([]string{}, stepsOf(t, s, id)...))
		})
	}
}

func TestSweepMarksSilence(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	params := server.SweepParams{DegradedAfter: time.Minute, FailedAfter: 5 * time.Minute, FreezePct: 20, FreezeMin: 100}
	fleet := map[string]struct {
		status string
		agent  server.AgentStatus
		silent time.Duration
		want   agentRow
		events []string
	}{
		"heard":        {"active", server.AgentConnected, 55 * time.Second, agentRow{server.Active, "", server.AgentConnected, false}, nil},
		"silent":       {"active", server.AgentConnected, 65 * time.Second, agentRow{server.Active, "", server.AgentDegraded, false}, []string{"agent_degraded"}},
		"still-silent": {"active", server.AgentDegraded, 4 * time.Minute, agentRow{server.Active, "", server.AgentDegraded, false}, nil},
		"lost":         {"active", server.AgentDegraded, 6 * time.Minute, agentRow{server.Failed, "heartbeat_lost", server.AgentDisconnected, false}, []string{"agent_disconnected"}},
		"lost-unseen":  {"active", server.AgentConnected, 6 * time.Minute, agentRow{server.Failed, "heartbeat_lost", server.AgentDisconnected, false}, []string{"agent_disconnected"}},
		"failed":       {"failed", server.AgentConnected, 6 * time.Minute, agentRow{server.Failed, "failed_container", server.AgentDisconnected, false}, []string{"agent_disconnected"}},
		"draining":     {"draining", server.AgentConnected, 6 * time.Minute, agentRow{server.Decommissioning, "", server.AgentConnected, false}, nil},
		"provisioning": {"provisioning", server.AgentConnected, 6 * time.Minute, agentRow{server.Provisioning, "", server.AgentConnected, false}, nil},
		"terminated":   {"terminated", server.AgentDisconnected, 6 * time.Minute, agentRow{server.Terminated, "", server.AgentDisconnected, false}, nil},
	}
	for id, r := range fleet {
		agentServer(t, s, id, r.status, r.agent, r.silent)
		if r.status == "failed" {
			exec(t, s, `UPDATE servers SET status_reason = 'failed_container' WHERE server_id = $1`, id)
		}
	}
	got, err := s.SweepSilent(context.Background(), params)
	require.NoError(t, err)
	require.Equal(t, server.SweepResult{Fleet: 6, Silent: 5, Degraded: 1, Failed: 3}, got)
	again, err := s.SweepSilent(context.Background(), params)
	require.NoError(t, err)
	require.Equal(t, server.SweepResult{Fleet: 6, Silent: 2}, again, "nothing is marked twice")
	for id, r := range fleet {
		require.Equal(t, r.want, agentRowOf(t, s, id), id)
		require.Equal(t, append([]string{}, r.events...), append([]string{}, stepsOf(t, s, id)...), id)
	}
}

// TestSweepAwaitsIntendedRestarts: a host that prego restarts is degraded and not failed, until its restart has taken a
// quarter of an hour or has ended; and many of them are no outage.
func TestSweepAwaitsIntendedRestarts(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	params := server.SweepParams{DegradedAfter: time.Minute, FailedAfter: 5 * time.Minute, FreezePct: 20, FreezeMin: 3}
	for _, kind := range []string{"reboot", "resize", "patch"} {
		agentServer(t, s, kind, "active", server.AgentConnected, 14*time.Minute)
		exec(t, s, `INSERT INTO server_maintenances (server_id, number, kind, requested_by, was_open, status, acted_at)
			VALUES ($1, 1, $1, 'test', true, 'finishing', now() - interval '14 minutes')`, kind)
	}
	got, err := s.SweepSilent(t.Context(), params)
	require.NoError(t, err)
	require.Equal(t, server.SweepResult{Fleet: 3, Silent: 3, Degraded: 3}, got)
	require.Equal(t, agentRow{server.Active, "", server.AgentDegraded, false}, agentRowOf(t, s, "reboot"))
	exec(t, s, `UPDATE server_maintenances SET acted_at = now() - interval '16 minutes' WHERE server_id = 'reboot'`)
	params.FreezeMin = 9
	got, err = s.SweepSilent(t.Context(), params)
	require.NoError(t, err)
	require.Equal(t, server.SweepResult{Fleet: 3, Silent: 3, Failed: 1}, got)
	lost := agentRow{server.Failed, "heartbeat_lost", server.AgentDisconnected, false}
	require.Equal(t, lost, agentRowOf(t, s, "reboot"))
	exec(t, s, `UPDATE server_maintenances SET status = 'failed', finished_at = now() WHERE server_id = 'resize'`)
	got, err = s.SweepSilent(t.Context(), params)
	require.NoError(t, err)
	require.Equal(t, 1, got.Failed, "it ended")
	require.Equal(t, lost, agentRowOf(t, s, "resize"))
}

func TestSweepFreezesWhenManyFallSilent(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	params := server.SweepParams{DegradedAfter: time.Minute, FailedAfter: 5 * time.Minute, FreezePct: 20, FreezeMin: 10}
	for name, tc := range map[string]struct {
		fleet, silent int
		frozen        bool
	}{
		"a fifth":           {20, 4, false},
		"more than a fifth": {20, 5, true},
		"all":               {20, 20, true},
		"a small fleet":     {9, 9, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := New(pgtest.Pool(t))
			for i := range tc.fleet {
				silent := 5 * time.Second
				if i < tc.silent {
					silent = 10 * time.Minute
				}
				agentServer(t, s, fmt.Sprintf("s-%02d", i), "active", server.AgentConnected, silent)
			}
			got, err := s.SweepSilent(ctx, params)
			require.NoError(t, err)
			require.Equal(t, tc.frozen, got.Frozen, "%+v", got)
			require.Equal(t, tc.silent, got.Silent)
			if !tc.frozen {
				require.Equal(t, tc.silent, got.Failed)
				return
			}
			require.Zero(t, got.Failed+got.Degraded)
			require.Equal(t, agentRow{server.Active, "", server.AgentConnected, false}, agentRowOf(t, s, "s-00"))
			for i := range tc.fleet { // the gateway is back: the next sweep has nothing to freeze for
				_, err := s.FlushHeartbeats(ctx, []server.Heartbeat{heartbeatOf(prego.ServerID(fmt.Sprintf("s-%02d", i)))})
				require.NoError(t, err)
			}
			got, err = s.SweepSilent(ctx, params)
			require.NoError(t, err)
			require.Equal(t, server.SweepResult{Fleet: tc.fleet}, got)
		})
	}
}

// TestFlushesOfOneFleetNeverDeadlock lets gateways write the same servers in different orders while the sweep runs.
// Postgres ends one of two deadlocked transactions with an error; none may occur.
func TestFlushesOfOneFleetNeverDeadlock(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	const fleet, gateways, rounds = 200, 8, 15
	all := make([]server.Heartbeat, fleet)
	for i := range fleet {
		id := fmt.Sprintf("s-%03d", i)
		agentServer(t, s, id, "active", server.AgentConnected, 10*time.Minute)
		all[i] = heartbeatOf(prego.ServerID(id))
	}
	errs := make(chan error, 2*gateways*rounds)
	var swept atomic.Int64
	var wg sync.WaitGroup
	for range gateways {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range rounds {
				batch := append([]server.Heartbeat{}, all...)
				rand.Shuffle(fleet, func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
				out, err := s.FlushHeartbeats(ctx, batch)
				if err == nil && len(out) != fleet {
					err = fmt.Errorf("%d of %d were written", len(out), fleet)
				}
				errs <- err
				found, err := s.SweepSilent(ctx, server.SweepParams{DegradedAfter: time.Microsecond, FailedAfter: time.Hour, FreezePct: 100, FreezeMin: 1})
				swept.Add(int64(found.Degraded))
				errs <- err
			}
		}()
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Positive(t, swept.Load(), "sweeps wrote the same rows meanwhile")
}

func TestRevokedServersAndBindings(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	for _, id := range []string{"good", "revoked", "long-ago"} {
		agentServer(t, s, id, "active", server.AgentConnected, 0)
	}
	exec(t, s, `UPDATE servers SET identity_revoked_at = now() WHERE server_id = 'revoked'`)
	exec(t, s, `UPDATE servers SET identity_revoked_at = now() - interval '3 days' WHERE server_id = 'long-ago'`)
	ids, err := s.RevokedServers(ctx, 24*time.Hour)
	require.NoError(t, err)
	require.Equal(t, []string{"revoked"}, ids, "a certificate of three days ago has expired")
	_, err = s.CheckAgent(ctx, "good", hash("key-good"))
	require.NoError(t, err)
	for id, key := range map[string]string{"good": "key-x", "revoked": "key-revoked", "nobody": "key-x"} {
		_, err = s.CheckAgent(ctx, prego.ServerID(id), hash(key))
		require.Equal(t, prego.CodeIdentityRevoked, prego.CodeOf(err), id)
	}
}

// TestHeartbeatsReportMeasures: a value that a heartbeat leaves out becomes unknown.
func TestHeartbeatsReportMeasures(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	agentServer(t, s, "s-1", "active", server.AgentConnected, 0)
	agentServer(t, s, "s-2", "active", server.AgentConnected, 0)
	one, two, three, four := 1.5, 2.5, 3.5, 4.5
	beat := heartbeatOf("s-1")
	beat.CPUPct, beat.WorkerSlotsPct, beat.DBDiskPct, beat.RedisMemoryPct = &one, &two, &three, &four
	_, err := s.FlushHeartbeats(ctx, []server.Heartbeat{heartbeatOf("s-2"), beat})
	require.NoError(t, err)
	srv, err := s.GetServer(ctx, "s-1")
	require.NoError(t, err)
	require.Equal(t, []*float64{&one, &two, &three, &four}, []*float64{srv.CPUPct, srv.WorkerSlotsPct, srv.DBDiskPct, srv.RedisMemoryPct})
	beat = heartbeatOf("s-1")
	beat.DBDiskPct = &four
	_, err = s.FlushHeartbeats(ctx, []server.Heartbeat{beat})
	require.NoError(t, err)
	srv, err = s.GetServer(ctx, "s-1")
	require.NoError(t, err)
	require.Equal(t, []*float64{nil, nil, &four, nil}, []*float64{srv.CPUPct, srv.WorkerSlotsPct, srv.DBDiskPct, srv.RedisMemoryPct})
	srv, err = s.GetServer(ctx, "s-2")
	require.NoError(t, err)
	require.Nil(t, srv.DBDiskPct)
}

// TestSnapshotFollowsMeasures: a placement's snapshot has the measures of servers, including those of shards and
// pools, and follows them in steps of five points.
func TestSnapshotFollowsMeasures(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := sharingBundle(t)
	full, err := s.PlacementChanges(ctx, "", nil)
	require.NoError(t, err)
	fleet := placement.SnapshotOf(placement.DefaultPolicy(), full)
	since := full.Since
	look := func() []*float64 {
		c, err := s.PlacementChanges(ctx, since, nil)
		require.NoError(t, err)
		since = c.Since
		fleet.Update(c)
		a, _ := fleet.Server("app-0")
		d, _ := fleet.Shard("db-shard-0")
		r, _ := fleet.Pool("redis-pool-0")
		return []*float64{a.CPUPct, a.WorkerSlotsPct, d.DiskPct, r.MemoryPct}
	}
	require.Equal(t, []*float64{nil, nil, nil, nil}, look())
	set := func(sql string) { exec(t, s, sql) }
	v := func(f float64) *float64 { return &f }
	set(`UPDATE servers SET cpu_pct = 11 WHERE server_id = 'app-0'`)
	require.Equal(t, []*float64{v(11), nil, nil, nil}, look())
	set(`UPDATE servers SET worker_slots_pct = 12 WHERE server_id = 'app-0'`)
	require.Equal(t, []*float64{v(11), v(12), nil, nil}, look())
	set(`UPDATE servers SET db_disk_pct = 13 WHERE server_id = 'db-shard-0'`)
	require.Equal(t, []*float64{v(11), v(12), v(13), nil}, look())
	set(`UPDATE servers SET redis_memory_pct = 14 WHERE server_id = 'redis-pool-0'`)
	require.Equal(t, []*float64{v(11), v(12), v(13), v(14)}, look())
	set(`UPDATE servers SET cpu_pct = NULL, worker_slots_pct = NULL, db_disk_pct = NULL, redis_memory_pct = NULL`)
	require.Equal(t, []*float64{nil, nil, nil, nil}, look())
	set(`UPDATE servers SET cpu_pct = 21, worker_slots_pct = 21, db_disk_pct = 21, redis_memory_pct = 21`)
	changed := func() int { return count(t, s, `changes WHERE kind = 'servers' AND id = 'app-0'`) }
	before := changed()
	set(`UPDATE servers SET cpu_pct = 22, worker_slots_pct = 22, db_disk_pct = 22, redis_memory_pct = 22`)
	require.Equal(t, before, changed(), "a single point changes no snapshot")
	for _, column := range []string{"cpu_pct", "worker_slots_pct", "db_disk_pct", "redis_memory_pct"} {
		before = changed()
		set(`UPDATE servers SET ` + column + ` = 26`)
		require.NotEqual(t, before, changed(), column)
	}
}

// flushPlan returns the most rows that any part of the plan has read, in one flush of n heartbeats on a connection
// that has had ten before it.
func flushPlan(t *testing.T, s *Store, sql, mode string, n int) (most float64) {
	t.Helper()
	ctx := context.Background()
	conn, err := s.pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	run := func(sql string) {
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
	run(mode)
	defer run(`RESET ALL`)
	run(`PREPARE beat AS ` + sql)
	var ids, keys []string
	for i := range n {
		id := prego.ServerID(fmt.Sprintf("s-%d", i))
		ids, keys = append(ids, string(id)), append(keys, fmt.Sprintf(`"\\x%x"`, hash(string("key-"+id))))
	}
	all := func(v string) string { return fmt.Sprintf(`array_fill(%s, ARRAY[%d])`, v, n) }
	execute := fmt.Sprintf(`EXECUTE beat('{%s}', '{%s}', %s)`, strings.Join(ids, ","), strings.Join(keys, ","), strings.Join([]string{
		all(`'b'::text`), all(`'v2'::text`), all(`1::float8`), all(`10::float8`), all(`20::float8`), all(`'running'::text`), all(`''::text`),
		all(`NULL::float8`), all(`NULL::float8`), all(`NULL::float8`), all(`NULL::float8`), all(`NULL::float8`), all(`false`), all(`''::text`),
	}, ", "))
	for range 10 {
		run(execute)
	}
	type node struct {
		Rows    float64 `json:"Actual Rows"`
		Loops   float64 `json:"Actual Loops"`
		Removed float64 `json:"Rows Removed by Join Filter"`
		Other   float64 `json:"Rows Removed by Filter"`
		Plans   []node  `json:"Plans"`
	}
	var plans []struct {
		Plan node `json:"Plan"`
	}
	require.NoError(t, conn.QueryRow(ctx, `EXPLAIN (ANALYZE, FORMAT JSON) `+execute).Scan(&plans))
	var walk func(p node)
	walk = func(p node) {
		most = max(most, (p.Rows+p.Removed+p.Other)*p.Loops)
		for _, c := range p.Plans {
			walk(c)
		}
	}
	walk(plans[0].Plan)
	run(`DEALLOCATE beat`)
	return most
}

// TestFlushCostGrowsWithItsServers also with the plan that Postgres keeps from the sixth time on, which knows no row
// counts: each row is read a few times, and not once for each other row.
func TestFlushCostGrowsWithItsServers(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	const n = 500
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, agent_status, agent_key_sha256)
		SELECT 's-' || i, '', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'test', 'connected', sha256(convert_to('key-s-' || i, 'UTF8')) FROM generate_series(0, 4 * $1::int) i`, n)
	exec(t, s, `ANALYZE servers`)
	// Whichever join Postgres chooses, rows are found by an index.
	const generic, worst = `SET plan_cache_mode = force_generic_plan`, `SET plan_cache_mode = force_generic_plan; SET enable_hashjoin = off; SET enable_mergejoin = off`
	for _, mode := range []string{`SET plan_cache_mode = auto`, generic, worst} {
		most := flushPlan(t, s, sqlFlushHeartbeats, mode, n)
		require.GreaterOrEqual(t, most, float64(n), mode)
		require.LessOrEqual(t, most, float64(5*n), mode)
	}
	again := strings.Replace(sqlFlushHeartbeats, `FROM locked l WHERE s.server_id = l.server_id`, `FROM locked l JOIN incoming i ON i.server_id = l.server_id WHERE s.server_id = l.server_id`, 1)
	require.NotEqual(t, sqlFlushHeartbeats, again)
	require.Greater(t, flushPlan(t, s, again, worst, n), float64(n*n/4), "a second look at the batch is noticed")
}

func TestDifferentAddressIsNoted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	agentServer(t, s, "a", "active", server.AgentConnected, time.Second)
	beat := func(addresses ...string) (said string) {
		h := heartbeatOf("a")
		h.PrivateAddresses = addresses
		_, err := s.FlushHeartbeats(ctx, []server.Heartbeat{h})
		require.NoError(t, err)
		srv, err := s.GetServer(ctx, "a")
		require.NoError(t, err)
		return srv.AgentPrivateAddress
	}
	require.Equal(t, "10.64.0.9", beat("10.64.0.9"), "the provider has not reported it yet")
	require.Empty(t, stepsOf(t, s, "a"))
	exec(t, s, `UPDATE servers SET private_address = '10.64.0.2'`)
	require.Equal(t, "10.64.0.2", beat("10.64.0.1", "10.64.0.2"))
	require.Equal(t, []string{"private_address_agrees"}, stepsOf(t, s, "a"))
	require.Equal(t, "10.64.0.2", beat("10.64.0.2"))
	require.Equal(t, "10.64.0.2", beat(), "it does not report one")
	for range 2 {
		require.Equal(t, "10.64.0.3", beat("10.64.0.3"))
	}
	require.Equal(t, []string{"private_address_agrees", "private_address_differs"}, stepsOf(t, s, "a"))
	srv, err := s.GetServer(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "10.64.0.2", srv.PrivateAddress, "the provider's address counts")
}
