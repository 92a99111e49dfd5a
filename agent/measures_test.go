package agent

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

func write(t testing.TB, h *Host, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(h.path(path)), 0o755))
	require.NoError(t, os.WriteFile(h.path(path), []byte(content), 0o600))
}

// TestCPUIsAnAverage: of the host's own control group, of either version, since the
// reading before, and with a memory of some minutes.
func TestCPUIsAnAverage(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]func(h *Host, d time.Duration){
		"version 2": func(h *Host, d time.Duration) {
			write(t, h, "/sys/fs/cgroup/cpu.stat", fmt.Sprintf("usage_usec %d\nuser_usec 1\n", d.Microseconds()))
		},
		"version 1": func(h *Host, d time.Duration) {
			write(t, h, "/sys/fs/cgroup/cpuacct/cpuacct.usage", fmt.Sprintln(d.Nanoseconds()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &Host{Root: t.TempDir()}
			now := time.Unix(1_000_000, 0)
			m := &meter{host: h, executor: executorClient(h), now: func() time.Time { return now }}
			total := time.Hour
			beat := func(share float64) *float64 {
				var out wire.HeartbeatRequest
				total += time.Duration(share * 30 * float64(time.Second) * float64(runtime.NumCPU()))
				busy(h, total)
				m.measure(t.Context(), &out)
				now = now.Add(30 * time.Second)
				return out.CPUPct
			}
			require.Nil(t, beat(1), "nothing to compare with")
			require.InDelta(t, 20, *beat(0.2), 0.11)
			require.InDelta(t, 20+80*0.0952, *beat(1), 0.11, "30 s count for 1 - e^(-30/300)")
			for range 60 {
				beat(1)
			}
			require.InDelta(t, 100, *beat(1), 1)
			total = 0
			require.Nil(t, beat(0), "it was booted anew")
			require.Less(t, *beat(0), 95.0)
		})
	}
}

// TestWhatCantBeMeasuredIsLeftOut: on a host where nothing of it is.
func TestWhatCantBeMeasuredIsLeftOut(t *testing.T) {
	t.Parallel()
	h := &Host{Root: t.TempDir(), Config: wire.HostConfig{Role: "node"}}
	m := &meter{host: h, executor: executorClient(h), now: time.Now}
	var out wire.HeartbeatRequest
	for range 2 {
		m.measure(t.Context(), &out)
	}
	require.Equal(t, wire.HeartbeatRequest{}, out)
	for _, content := range []string{"", "usage_usec many\n", "user_usec 1\n"} {
		write(t, h, "/sys/fs/cgroup/cpu.stat", content)
		m.measure(t.Context(), &out)
		require.Nil(t, out.CPUPct)
	}
}

func TestTheDatabasesDisk(t *testing.T) {
	t.Parallel()
	for role, has := range map[string]bool{"node": true, "app": true, "db-shard": true, "redis-pool": false} {
		h := &Host{Root: t.TempDir(), Config: wire.HostConfig{Role: role}}
		require.NoError(t, os.MkdirAll(h.path(dockerRoot), 0o755))
		m := &meter{host: h, executor: executorClient(h), now: time.Now}
		var out wire.HeartbeatRequest
		m.measure(t.Context(), &out)
		require.Equal(t, has, out.DBDiskPct != nil, role)
		if has {
			require.Positive(t, *out.DBDiskPct)
			require.LessOrEqual(t, *out.DBDiskPct, 100.0)
		}
	}
}

// redisSays sends lines to a real server as its administrator.
func redisSays(t testing.TB, h *Host, lines ...string) {
	t.Helper()
	password, err := os.ReadFile(h.path(wire.SecretsDir + "/redis-app"))
	require.NoError(t, err)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", h.path(wire.RedisSocket))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for _, l := range append([]string{"AUTH default " + strings.TrimSpace(string(password))}, lines...) {
		_, err := fmt.Fprintf(conn, "%s\r\n", l)
		require.NoError(t, err)
		answer, err := in.ReadString('\n')
		require.NoError(t, err)
		require.NotEqual(t, byte('-'), answer[0], "%s: %s", l, answer)
	}
}

// TestMeasuresOfRealServices asks a real Redis with RQ's workers in it, through the
// process that may.
func TestMeasuresOfRealServices(t *testing.T) {
	t.Parallel()
	h := realRedis(t)
	e, err := NewExecutor(h, "", quiet())
	require.NoError(t, err)
	l, err := h.Listen(wire.ExecSocket)
	require.NoError(t, err)
	run(t, func(ctx context.Context) error { return e.Run(ctx, l) })
	now := time.Unix(1_000_000, 0)
	m := &meter{host: h, executor: executorClient(h), now: func() time.Time { return now }}
	measure := func() (out wire.HeartbeatRequest) {
		m.measure(t.Context(), &out)
		return out
	}
	out := measure()
	require.Nil(t, out.RedisMemoryPct, "it has no limit")
	require.Nil(t, out.WorkerSlotsPct, "and no workers")

	redisSays(t, h, "CONFIG SET maxmemory 4mb", "SETRANGE a 1048575 x",
		"SADD rq:workers rq:worker:a rq:worker:b rq:worker:c rq:worker:gone", "HSET rq:worker:a state busy", "HSET rq:worker:b state idle", "HSET rq:worker:c state started")
	out = measure()
	require.InDelta(t, 100.0/3, *out.WorkerSlotsPct, 0.1, "one that left no state is gone")
	require.Greater(t, *out.RedisMemoryPct, 25.0)
	require.Less(t, *out.RedisMemoryPct, 100.0)
	redisSays(t, h, "HSET rq:worker:b state busy", "HSET rq:worker:c state busy")
	now = now.Add(30 * time.Second)
	require.InDelta(t, 33.3+66.7*0.0952, *measure().WorkerSlotsPct, 0.2)

	// Who asks reads no other key.
	redisSays(t, h, "HSET tenant state secret-value", "SADD sites secret-value")
	s, err := h.services()
	require.NoError(t, err)
	for _, args := range [][]string{{"hget", "tenant", "state"}, {"smembers", "sites"}, {"hget", "rq:workers", "state"}, {"hgetall", "rq:worker:a"}} {
		var said strings.Builder
		err := h.redis(t.Context(), s.Redis, &call{in: wire.ExecRequest{Args: args}, verb: args[0]}, &said)
		require.ErrorContains(t, err, "NOPERM", "%v: %s", args, said.String())
	}
	// Nor does a caller of the host get there with a command.
	_, refused := commandsOf(t, h)(wire.KindRedisCLI, "hget", "rq:worker:a", "state")
	require.Equal(t, http.StatusUnprocessableEntity, refused.status)
}
