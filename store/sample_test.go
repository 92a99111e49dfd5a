package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
)

// century is a span that does not end in the middle of a test; it began in 1970.
const century = 100 * 365 * 24 * time.Hour

func takeSamples(t *testing.T, s *Store, every time.Duration) int {
	t.Helper()
	n, err := s.TakeSamples(t.Context(), every)
	require.NoError(t, err)
	return n
}

// TestASpanHasOneSampleOfEachServerThatReported, however often it is read.
func TestASpanHasOneSampleOfEachServerThatReported(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	began := time.Unix(0, 0)
	for id, x := range map[string]struct {
		status string
		heard  time.Time
		load   float64
	}{
		"app-1": {"active", time.Now(), 0.43}, "app-2": {"draining", began, 1}, "silent": {"active", began.Add(-time.Millisecond), 2}, "gone": {"terminated", time.Now(), 3},
	} {
		insertServer(t, s, id, x.status)
		exec(t, s, `UPDATE servers SET agent_last_heartbeat_at = $2, load1 = $3 WHERE server_id = $1`, id, x.heard, x.load)
	}
	insertServer(t, s, "never-heard", "provisioning")
	samples := func() map[string]float64 {
		type row struct {
			ServerID string
			Load1    float64
		}
		rows, err := many[row](t.Context(), s.pool, `SELECT server_id, load1::numeric::float8 AS load1 FROM server_samples WHERE at = $1`, began)
		require.NoError(t, err)
		out := map[string]float64{}
		for _, r := range rows {
			out[r.ServerID] = r.Load1
		}
		return out
	}

	require.Equal(t, 2, takeSamples(t, s, century))
	exec(t, s, `UPDATE servers SET load1 = 9, agent_last_heartbeat_at = now() WHERE server_id = 'app-1'`)
	require.Zero(t, takeSamples(t, s, century), "the span has them")
	require.Equal(t, map[string]float64{"app-1": 0.43, "app-2": 1}, samples())
	exec(t, s, `UPDATE servers SET agent_last_heartbeat_at = now() WHERE server_id = 'silent'`)
	require.Equal(t, 1, takeSamples(t, s, century), "a server that reports again in the span")
	require.Equal(t, map[string]float64{"app-1": 0.43, "app-2": 1, "silent": 2}, samples())

	exec(t, s, `UPDATE server_samples SET at = at - interval '5 minutes'`) // the next span
	require.Equal(t, 3, takeSamples(t, s, century))
	require.Zero(t, takeSamples(t, s, century))
	require.Equal(t, map[string]float64{"app-1": 9, "app-2": 1, "silent": 2}, samples())
	require.Equal(t, 6, count(t, s, `server_samples`))
}

// TestConcurrentWorkersTakeOneSample of each server.
func TestConcurrentWorkersTakeOneSample(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	for i := range 20 {
		agentServer(t, s, fmt.Sprintf("app-%d", i), "active", server.AgentConnected, 0)
	}
	type result struct {
		n   int
		err error
	}
	taken := make(chan result)
	for range 4 {
		go func() {
			n, err := s.TakeSamples(t.Context(), century)
			taken <- result{n, err}
		}()
	}
	sum := 0
	for range 4 {
		r := <-taken
		require.NoError(t, r.err)
		sum += r.n
	}
	require.Equal(t, 20, sum)
	require.Equal(t, 20, count(t, s, `server_samples`))
}

// TestADayOfSamples is read by server and time.
func TestADayOfSamples(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	read := func(id prego.ServerID, since time.Time) []server.Sample {
		got, err := s.ServerSamples(t.Context(), id, since)
		require.NoError(t, err)
		return got
	}
	agentServer(t, s, "now", "active", server.AgentConnected, 0)
	for takeSamples(t, s, server.SampleEvery) == 0 { // the span ended in between
		exec(t, s, `UPDATE servers SET agent_last_heartbeat_at = now() WHERE server_id = 'now'`)
	}
	require.Len(t, read("now", time.Time{}), 1, "a taken sample is read")

	began, err := value[time.Time](t.Context(), s.pool, `SELECT date_bin('5 minutes', now(), 'epoch')`)
	require.NoError(t, err)
	exec(t, s, `
INSERT INTO server_samples (at, server_id, load1, memory_pct)
SELECT $1::timestamptz - make_interval(mins => 5 * i), 'app-' || k, i + 0.43, 41.26 FROM generate_series(0, 299) i, generate_series(1, 3) k WHERE i NOT BETWEEN 10 AND 19`, began)
	day := read("app-2", time.Time{})
	require.InDelta(t, 289-10, len(day), 1, "older samples are not returned")
	for i, x := range day[1:] {
		require.True(t, x.At.After(day[i].At), "the oldest first")
	}
	recent := read("app-2", began.Add(-25*time.Minute))
	require.Len(t, recent, 6)
	load, memory := 5.43, 41.3
	require.True(t, recent[0].At.Equal(began.Add(-25*time.Minute)))
	require.Equal(t, server.Sample{At: recent[0].At, Load1: &load, MemoryPct: &memory}, recent[0], "without the noise of four bytes; an unknown value is absent")
	require.Len(t, read("app-2", began.Add(-27*time.Minute)), 7, "the span that it is in begins before")
	require.Len(t, read("app-2", began.Add(-19*server.SampleEvery)), 10, "a silence is a gap")
	require.Empty(t, read("app-2", began.Add(time.Hour)))
	require.Empty(t, read("app-4", time.Time{}))
}
