package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// crashes ends instances' containers one after the other, each once the previous one was replaced, and returns the
// longest time until the API showed each. Only the agent reports it: the sweep does not come in that time.
func (c *cell) crashes(spec map[string]any, times int, end func(i api.Instance)) (worst time.Duration) {
	c.t.Helper()
	env := c.workloads("acme", "paid")
	c.nodes("n", 1, 4096*mb)
	eventually(c.t, func() bool { return c.number(`SELECT count(*) FROM container_reports`) == 1 }, patience, 10*time.Millisecond)
	g := c.group(env, "web", 1, spec)
	for range times {
		c.settledGroup(g.GroupId)
		i := c.instances(g.GroupId)[0]
		require.True(c.t, i.Healthy)
		end(i)
		began := time.Now()
		eventually(c.t, func() bool {
			var got api.Instance
			c.send("GET", "/v1/instances/"+i.InstanceId, nil, 200, &got)
			return got.State != "running" && !got.Healthy
		}, patience, 5*time.Millisecond)
		worst = max(worst, time.Since(began))
		c.awaitGroup(g.GroupId, "healed", func(p api.ProcessGroup) bool {
			list := c.instances(g.GroupId)
			return p.Converged && len(list) == 1 && list[0].State == "running" && list[0].InstanceId != i.InstanceId
		})
	}
	require.Zero(c.t, c.number(`SELECT count(*) FROM instances WHERE running_at < started_at`))
	return worst
}

// rareSweeps keeps the sweep of groups from finding changes that agents should report.
func rareSweeps() map[string]string {
	return groupVars(map[string]string{"PREGO_GROUP_RETRY": "10m"})
}

func neverSweep(cfg *config.Config) { cfg.Workloads.SweepEvery = time.Hour }

// TestCrashIsReportedWithinSeconds: within 2 s, without polling the host.
func TestCrashIsReportedWithinSeconds(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: rareSweeps(), set: neverSweep})
	worst := c.crashes(spec("web:1", 64), 3, func(i api.Instance) {
		require.NoError(t, c.engineAt(prego.ServerID(i.ServerId)).Stop(t.Context(), i.InstanceId))
	})
	require.Less(t, worst, 2*time.Second)
	benchjson.Record(t, "crash_known", worst.Seconds(), "s", 2)
}

// TestCrashOfARealProcessIsReportedWithinSeconds kills the process of a container of a real dockerd.
func TestCrashOfARealProcessIsReportedWithinSeconds(t *testing.T) {
	t.Parallel()
	need.Program(t, "dockerd")
	need.Root(t, "it runs dockerd")
	stack := server.Stack{}
	for _, role := range prego.Roles() {
		stack[role] = []server.ContainerSpec{{Name: "first", Image: sim.StandIn, Command: []string{sim.StandInProgram, "stand-in", "first"}, Network: "none", MemoryMB: 64}}
	}
	vars := rareSweeps()
	vars["PREGO_STACK_FILE"] = writeStack(t, stack)
	c := newCell(t, options{vars: vars, set: neverSweep, sim: func(cfg *sim.Config) { cfg.RealDocker, cfg.StandIn = true, filepath.Join(bins, "prego-lab") }})
	mark := c.id("crashes")
	run := map[string]any{"image": sim.StandIn, "command": []string{sim.StandInProgram, "stand-in", mark}, "memory_limit_bytes": 64 * mb, "cpu_request": 0.25}
	worst := c.crashes(run, 1, func(api.Instance) {
		killed := 0
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		require.NoError(t, err)
		for _, name := range all {
			if line, _ := os.ReadFile(name); bytes.HasPrefix(line, []byte(sim.StandInProgram+"\x00")) && bytes.Contains(line, []byte(mark)) {
				pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
				require.NoError(t, err)
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				killed++
			}
		}
		require.Equal(t, 1, killed)
	})
	require.Less(t, worst, 2*time.Second)
}
