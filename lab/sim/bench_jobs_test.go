package sim

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// begin starts a long command. It ends with the test.
func (b *bench) begin(line string) *exec.Cmd {
	b.t.Helper()
	var cmd *exec.Cmd
	require.Eventually(b.t, func() bool {
		cmd = b.command("", strings.Fields(line)...)
		return !errors.Is(cmd.Start(), syscall.ETXTBSY) // another test forks while the program is written
	}, 5*time.Second, 10*time.Millisecond)
	b.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

func TestStandInRunsJobs(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	b.newSite(site, db)
	b.newSite("off.example.com", "_off")
	b.run(0, "--site "+site+" enable-scheduler")
	b.run(0, "set-config -gp scheduler_tick_interval 0.2")
	scheduler := b.begin("schedule")
	worker := b.begin("worker --queue short,default")
	jobs := func(database string) string {
		return b.query("SELECT COUNT(*) FROM " + database + ".`tabScheduled Job Log`")[0]
	}
	require.Eventually(t, func() bool { return jobs(db) != "0" }, 20*time.Second, 50*time.Millisecond)
	require.Equal(t, "0", jobs("_off"))
	b.run(0, "schedule") // there is one

	require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
	require.NoError(t, worker.Wait(), "it ends by itself")
	b.host.sim.services.close() // Redis goes away
	require.NoError(t, scheduler.Process.Kill())
	_ = scheduler.Wait()
	require.NotEqual(t, 0, b.input("", "worker --queue long").status)
	require.Equal(t, 1, b.input("", "worker --queue nothing").status)
}
