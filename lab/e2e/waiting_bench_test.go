package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/pgtest"
)

const (
	waitingTenants = 10_000
	watchedFor     = time.Minute
)

// BenchmarkWaitingTenants prints how much more of a core all processes take together, with Temporal and Postgres, while
// 10,000 tenants of one org wait for capacity, than the same stack without; and how long after the last of 101 requests
// they have all ended: 100 that cancel one of them each, and one that cancels the others.
func BenchmarkWaitingTenants(b *testing.B) {
	vars := sharedVars()
	vars["PREGO_PACE"], vars["PREGO_LOG_LEVEL"], vars["PREGO_AGENTGW_HEARTBEAT"] = "1", "info", "30s"
	c := newCell(b, options{vars: vars, processes: true})
	c.org("acme", "")
	c.sim.SetStock("*", "*", false)
	time.Sleep(20 * time.Second) // what a worker does when it starts
	for b.Loop() {               // once: what it cancelled stays
		none := coreTaken(b)
		c.manyWait(prego.PlanStarter)
		waiting := coreTaken(b)
		b.Logf("%.2f %% of a core with none waiting, %.2f %% with %d", none, waiting, waitingTenants)
		benchjson.Record(b, "waiting_core_pct", waiting-none, "%", 0)

		for n := 1; n <= 100; n++ {
			c.post(fmt.Sprintf("/v1/tenants/t-%012d/cancel", n), nil, http.StatusAccepted, nil)
		}
		last := time.Now()
		c.post("/v1/orgs/acme/queue/cancel", nil, http.StatusOK, nil)
		eventually(b, func() bool {
			return c.number(`SELECT count(*) FROM tenants WHERE state <> 'failed'`) == 0
		}, patience, 50*time.Millisecond)
		benchjson.Record(b, "waiting_cancelled_seconds", time.Since(last).Seconds(), "s", 0)
	}
}

// TestCoreTakenHasPostgres: what sessions of Postgres take counts for BenchmarkWaitingTenants and BenchmarkIdle, while
// they live and after they have ended.
func TestCoreTakenHasPostgres(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), pgtest.URL(t))
	require.NoError(t, err)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	pid := int(conn.Conn().PgConn().PID())
	before := cpuBelow(t, os.Getpid())
	const busy = 500 * time.Millisecond
	for own := time.Duration(0); own < busy; {
		_, err = conn.Exec(t.Context(), `SELECT count(md5(n::text)) FROM generate_series(1, 100000) n`)
		require.NoError(t, err)
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(t, err)
		_, own, _ = taken(t, stat)
	}
	require.GreaterOrEqual(t, cpuBelow(t, os.Getpid())-before, busy)
	conn.Release()
	pool.Close()
	eventually(t, func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		return os.IsNotExist(err)
	}, patience, 10*time.Millisecond)
	require.GreaterOrEqual(t, cpuBelow(t, os.Getpid())-before, busy)
}

// manyWait has 10,000 tenants of acme wait for capacity: one that was requested, and copies of its row. Then the
// servers are requested that they need.
func (c *cell) manyWait(plan prego.Plan) {
	c.t.Helper()
	id := c.tenant("alpha", plan, nil)
	c.awaitTenant(id, "waiting", func(t api.Tenant) bool { return deref(t.StatusReason) == "awaiting_capacity" })
	c.exec(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy,
			request_hash, state, status_reason, status_message, waiting_since, waiting_roles, waiting_network,
			created_by)
		SELECT 't-' || lpad(n::text, 12, '0'), 'w' || n, org_id, region, plan, expected_users, storage_quota_gb, policy,
			request_hash, state, status_reason, status_message, now(), waiting_roles, waiting_network, created_by
		FROM tenants, generate_series(1, $1) n WHERE tenant_id = $2`, waitingTenants-1, id)
	time.Sleep(30 * time.Second)
}

// coreTaken is the part of a core, in percent, that all programs that this one has started take.
func coreTaken(tb testing.TB) float64 {
	tb.Helper()
	began, busy := time.Now(), cpuBelow(tb, os.Getpid())
	time.Sleep(watchedFor)
	return 100 * (cpuBelow(tb, os.Getpid()) - busy).Seconds() / time.Since(began).Seconds()
}

// cpuBelow is the time of a core that the living descendants of a process have taken, and their dead children.
func cpuBelow(tb testing.TB, root int) (took time.Duration) {
	tb.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(tb, err)
	parents, times := map[int]int{}, map[int]time.Duration{}
	for _, path := range list {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		require.NoError(tb, err)
		parents[pid], _, times[pid] = taken(tb, stat)
	}
	for pid := range parents {
		for up := parents[pid]; up > 0; up = parents[up] {
			if up == root {
				took += times[pid]
				break
			}
		}
	}
	return took
}

// taken reads /proc/PID/stat: the parent, and the time of a core that the process has taken itself, and with children
// that it waited for.
func taken(tb testing.TB, stat []byte) (parent int, own, all time.Duration) {
	tb.Helper()
	const tick = 10 * time.Millisecond // USER_HZ is 100 wherever Linux runs Go
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	parent, err := strconv.Atoi(fields[1])
	require.NoError(tb, err)
	for i, f := range fields[11:15] { // user and system, its own and of children
		n, err := strconv.Atoi(f)
		require.NoError(tb, err)
		all += time.Duration(n) * tick
		if i == 1 {
			own = all
		}
	}
	return parent, own, all
}
