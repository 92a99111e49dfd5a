package online

import (
	"context"
	"math"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// meter measures what placement considers besides memory. Only the heartbeat loop uses
// it. What can't be measured is left out.
type meter struct {
	host     *host.Host
	executor *http.Client
	now      func() time.Time

	cpu, workers average
	busy         time.Duration // of all CPUs together, at that time
	at           time.Time
}

// smoothing is the time constant of the averages: a job or a build of a minute must not
// keep tenants away, a busy hour must.
const smoothing = 5 * time.Minute

// average weighs a new measurement by the time since the last one.
type average struct {
	value float64
	at    time.Time
}

func (a *average) add(v float64, now time.Time) float64 {
	if a.at.IsZero() {
		a.value = v
	} else {
		a.value += (v - a.value) * (1 - math.Exp(-now.Sub(a.at).Seconds()/smoothing.Seconds()))
	}
	a.at = now
	return a.value
}

// measure fills in what can be measured now. CPU usage is known from the second call on.
func (m *meter) measure(ctx context.Context, out *wire.HeartbeatRequest) {
	now := m.now()
	if busy, ok := cpuTime(m.host); ok {
		if span := now.Sub(m.at); !m.at.IsZero() && span > 0 && busy >= m.busy {
			out.CPUPct = percent(m.cpu.add(float64(busy-m.busy)/float64(span)/float64(runtime.NumCPU()), now))
		}
		m.busy, m.at = busy, now
	}
	if slices.Contains(host.RoleServices[m.host.Config.Role], "mariadb") {
		out.DBDiskPct = diskPct(m.host, dockerRoot)
	}
	var s host.Measures
	if askExecutor(ctx, m.executor, host.PathMeasures, host.MeasureTime, &s) != nil {
		return
	}
	if s.WorkerSlots > 0 {
		out.WorkerSlotsPct = percent(m.workers.add(float64(s.WorkersBusy)/float64(s.WorkerSlots), now))
	}
	if s.RedisLimit > 0 {
		out.RedisMemoryPct = percent(float64(s.RedisUsed) / float64(s.RedisLimit))
	}
}

// percent is a fraction as 0–100, rounded to a tenth.
func percent(share float64) *float64 {
	v := math.Round(min(max(share, 0), 1)*1000) / 10
	return &v
}

// dockerRoot is where Docker keeps the volumes with the databases.
const dockerRoot = "/var/lib/docker"

func diskPct(h *host.Host, dir string) *float64 {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(h.Path(dir), &fs); err != nil || fs.Blocks == 0 {
		return nil
	}
	return percent(usedOf(fs))
}

// cpuTime is how long the host's CPUs have worked since some moment. The control group
// counts this host alone, even if it is a container among others.
func cpuTime(h *host.Host) (time.Duration, bool) {
	if b, err := os.ReadFile(h.Path("/sys/fs/cgroup/cpu.stat")); err == nil {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "usage_usec "); ok {
				n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
				return time.Duration(n) * time.Microsecond, err == nil
			}
		}
	}
	if b, err := os.ReadFile(h.Path("/sys/fs/cgroup/cpuacct/cpuacct.usage")); err == nil {
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		return time.Duration(n), err == nil
	}
	return 0, false
}
