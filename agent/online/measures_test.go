package online

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

func write(t testing.TB, h *host.Host, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(h.Path(path)), 0o755))
	require.NoError(t, os.WriteFile(h.Path(path), []byte(content), 0o600))
}

// TestCPUIsAnAverage: of the host's own control group, of either version, since the
// reading before, and with a memory of some minutes.
func TestCPUIsAnAverage(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]func(h *host.Host, d time.Duration){
		"version 2": func(h *host.Host, d time.Duration) {
			write(t, h, "/sys/fs/cgroup/cpu.stat", fmt.Sprintf("usage_usec %d\nuser_usec 1\n", d.Microseconds()))
		},
		"version 1": func(h *host.Host, d time.Duration) {
			write(t, h, "/sys/fs/cgroup/cpuacct/cpuacct.usage", fmt.Sprintln(d.Nanoseconds()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &host.Host{Root: t.TempDir()}
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
			require.Nil(t, beat(0), "it was rebooted")
			require.Less(t, *beat(0), 95.0)
		})
	}
}

// TestWhatCantBeMeasuredIsLeftOut: on a host where nothing of it is.
func TestWhatCantBeMeasuredIsLeftOut(t *testing.T) {
	t.Parallel()
	h := &host.Host{Root: t.TempDir(), Config: wire.HostConfig{Role: "node"}}
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
		h := &host.Host{Root: t.TempDir(), Config: wire.HostConfig{Role: role}}
		require.NoError(t, os.MkdirAll(h.Path(dockerRoot), 0o755))
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

// TestServicesAreMeasured through the process that may ask them.
func TestServicesAreMeasured(t *testing.T) {
	t.Parallel()
	h := &host.Host{Root: t.TempDir()}
	said := host.Measures{}
	l, err := h.Listen(wire.ExecSocket)
	require.NoError(t, err)
	executor := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == host.PathMeasures {
			_ = json.NewEncoder(w).Encode(said)
		}
	}))
	executor.Listener = l
	executor.Start()
	t.Cleanup(executor.Close)
	now := time.Unix(1_000_000, 0)
	m := &meter{host: h, executor: executorClient(h), now: func() time.Time { return now }}
	measure := func() (out wire.HeartbeatRequest) {
		m.measure(t.Context(), &out)
		return out
	}
	require.Equal(t, wire.HeartbeatRequest{}, measure(), "no limit, and no workers")
	said = host.Measures{WorkerSlots: 3, WorkersBusy: 1, RedisUsed: 1 << 20, RedisLimit: 4 << 20}
	out := measure()
	require.InDelta(t, 100.0/3, *out.WorkerSlotsPct, 0.1)
	require.InDelta(t, 25, *out.RedisMemoryPct, 0.1)
	said.WorkersBusy = 3
	now = now.Add(30 * time.Second)
	require.InDelta(t, 33.3+66.7*0.0952, *measure().WorkerSlotsPct, 0.2)
}
