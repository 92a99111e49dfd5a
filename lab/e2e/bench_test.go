package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/online"
	"github.com/prego/prego/agent/rooted"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

func noop(context.Context) error { return nil }

const bareSignal = "there"

// comesUp does nothing, and has its calling run signalled, like a host that comes up immediately.
func comesUp(ctx context.Context) error {
	id := activity.GetInfo(ctx).WorkflowExecution.ID
	ctx = context.WithoutCancel(ctx)
	go func() { _ = temporalClient.SignalWorkflow(ctx, id, "", bareSignal, nil) }()
	return nil
}

// bareWorkflow does what a server's run does, with steps that do nothing: it reads its row
// (a local activity), makes the server (an activity), waits for its agent (a signal, with a
// timer as deadline), looks at the row (a local activity), and starts containers and makes
// the server active (an activity).
func bareWorkflow(ctx workflow.Context) error {
	local := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
	remote := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	if err := workflow.ExecuteLocalActivity(local, noop).Get(ctx, nil); err != nil {
		return err
	}
	if err := workflow.ExecuteActivity(remote, comesUp).Get(ctx, nil); err != nil {
		return err
	}
	timerCtx, stop := workflow.WithCancel(ctx)
	s := workflow.NewSelector(ctx)
	s.AddFuture(workflow.NewTimer(timerCtx, time.Minute), func(workflow.Future) {})
	s.AddReceive(workflow.GetSignalChannel(ctx, bareSignal), func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil) })
	s.Select(ctx)
	stop()
	if err := workflow.ExecuteLocalActivity(local, noop).Get(ctx, nil); err != nil {
		return err
	}
	return workflow.ExecuteActivity(remote, noop).Get(ctx, nil)
}

// runAgent runs the agent of a host where nothing is executed, in this process. Starting
// processes for it would be most of what a benchmark measures, and on a real host they
// take another machine's time.
func runAgent(ctx context.Context, verb, root, addr string) error {
	log := slog.New(slog.DiscardHandler)
	h, err := host.OpenHost(root)
	if err != nil {
		return err
	}
	switch verb {
	case "bootstrap":
		return rooted.Bootstrap(ctx, h, addr, "bench", log)
	case "run":
		a, err := online.New(h, addr, "bench", log)
		if err != nil {
			return err
		}
		return a.Run(ctx)
	default:
		<-ctx.Done()
		return nil
	}
}

// zeroDelayHosts are hosts that come up immediately: their agents are in this process, and their disks in memory.
func zeroDelayHosts(b *testing.B) func(*sim.Config) {
	b.Helper()
	disks, err := os.MkdirTemp("/dev/shm", "prego-bench-")
	require.NoError(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(disks) })
	return func(cfg *sim.Config) {
		cfg.Limits.Servers, cfg.StateDir = 1000, disks
		cfg.RunAgent = func(string) func(context.Context, string, string, string) error { return runAgent }
	}
}

// BenchmarkProvisioning prints how long the control plane takes for one server on
// a cloud where nothing takes time, beside a bare workflow of the same shape whose
// activities do nothing; and how many servers per second become active with 32 in
// flight, beside bare workflows with as many in flight. Temporal is set as in production
// for both, and both are waited for in the same way.
func BenchmarkProvisioning(b *testing.B) {
	c := newCell(b, options{vars: map[string]string{"PREGO_LOG_LEVEL": "warn", "PREGO_API_RATE_PER_SECOND": "100000"}, sim: zeroDelayHosts(b)})
	w := worker.New(temporalClient, "bench-bare", worker.Options{})
	w.RegisterWorkflow(bareWorkflow)
	w.RegisterActivity(noop)
	w.RegisterActivity(comesUp)
	require.NoError(b, w.Start())
	b.Cleanup(w.Stop)
	bare := func(id string) {
		run, err := temporalClient.ExecuteWorkflow(context.Background(), client.StartWorkflowOptions{ID: id, TaskQueue: "bench-bare"}, bareWorkflow)
		require.NoError(b, err)
		require.NoError(b, run.Get(context.Background(), nil))
	}
	provision := func(name string) {
		c.create(name, prego.RoleRedisPool, server.Spec{})
		run := temporalClient.GetWorkflow(context.Background(), server.ProvisionWorkflowID(prego.ServerID(c.id(name))), "")
		require.NoError(b, run.Get(context.Background(), nil))
	}
	inFlight := func(prefix string, n int, f func(string)) float64 {
		began := time.Now()
		var wg sync.WaitGroup
		for i := range n {
			wg.Add(1)
			go func() { defer wg.Done(); f(fmt.Sprintf("%s-%d", prefix, i)) }()
		}
		wg.Wait()
		return float64(n) / time.Since(began).Seconds()
	}
	round := 0
	for b.Loop() {
		round++
		syscall.Sync() // what the build of the programs left to be written
		provision(fmt.Sprintf("warm%d", round))
		bare(fmt.Sprintf("warm%d", round))
		const alone = 5
		began := time.Now()
		for i := range alone {
			provision(fmt.Sprintf("one%d-%d", round, i))
		}
		one := time.Since(began) / alone
		began = time.Now()
		for i := range alone {
			bare(fmt.Sprintf("one%d-%d", round, i))
		}
		limit := time.Since(began) / alone
		b.ReportMetric(0, "ns/op")
		benchjson.Record(b, "server_alone", one.Seconds()*1000, "ms", limit.Seconds()*1000)
		got := inFlight(fmt.Sprintf("many%d", round), 32, provision)
		require.Equal(b, 1+alone+32, c.number(`SELECT count(*) FROM servers WHERE status = 'active' AND server_id ~ $1`, fmt.Sprintf("^(warm|one|many)%d(-|$)", round)))
		bareRate := inFlight(fmt.Sprintf("many%d", round), 32, bare)
		benchjson.Record(b, "server_32", got, "/s", bareRate)
	}
}

// BenchmarkAgentMemory prints the resident memory of a running agent.
func BenchmarkAgentMemory(b *testing.B) {
	c := newCell(b, options{})
	c.create("fat", prego.RoleRedisPool, server.Spec{})
	eventually(b, func() bool { return c.get("fat").Status == "active" }, patience, 20*time.Millisecond)
	for b.Loop() {
		info := c.sim.Hosts()[0]
		b.ReportMetric(rss(b, info.AgentPID), "MiB")
	}
	runtime.KeepAlive(c)
}

func rss(t testing.TB, pid int) float64 {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "status"))
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			var n float64
			_, err := fmt.Sscanf(strings.TrimSpace(kb), "%f kB", &n)
			require.NoError(t, err)
			return n / 1024
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// TestAgentIsSmall holds the agent to its size: under 20 MiB as a file, under
// 30 MiB in memory.
func TestAgentIsSmall(t *testing.T) {
	t.Parallel()
	info, err := os.Stat(filepath.Join(bins, "prego-agent"))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(20<<20))
	c := newCell(t, options{})
	c.create("small", prego.RoleRedisPool, server.Spec{})
	c.awaitStatus("small", server.Active)
	require.Less(t, rss(t, c.sim.Hosts()[0].AgentPID), 30.0)
}

// BenchmarkConnectedAgents prints the memory that the gateway takes for 10,000 agents
// that keep their connections.
func BenchmarkConnectedAgents(b *testing.B) {
	const agents = 10_000
	c := newCell(b, options{vars: map[string]string{"PREGO_LOG_LEVEL": "warn"}})
	clients := c.agentClients()
	for b.Loop() {
		before := rss(b, c.procs["agentgw"].PID())
		for i := range agents {
			a := clients.make(prego.ServerID(fmt.Sprintf("agent-%d", i)))
			b.Cleanup(a.close)
			require.NoError(b, a.beat())
		}
		time.Sleep(10 * time.Second) // a third of an agent's interval: then they are idle, as they nearly always are
		b.ReportMetric(before, "MiB-before")
		benchjson.Record(b, "agents_10000_mib", rss(b, c.procs["agentgw"].PID())-before, "MiB", 0)
	}
}
