//go:build machines

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// Tests whose names begin with TestMachine run the control plane against machines: real
// Debians with their own systemd, cloud-init and dockerd. They need root and what make
// machines builds, and fail where they can't have it: make test-machines.

// slowly are timeouts for machines that boot beside others.
var slowly = server.BootTimeouts{Running: prego.Duration(2 * time.Minute), Handshake: prego.Duration(4 * time.Minute), Heartbeat: prego.Duration(2 * time.Minute)}

// machineRoots is where make machines built.
func machineRoots() string {
	if dir := os.Getenv("PREGO_MACHINES"); dir != "" {
		return dir
	}
	return filepath.Join(repo, ".prego", "machines", "current")
}

// machineImages is what make images built, for machines to pull.
func machineImages() string {
	if dir := os.Getenv("PREGO_IMAGES"); dir != "" {
		return dir
	}
	return filepath.Join(repo, ".prego", "images", "current", "registry")
}

// declaredStack is the built-in one for machines with this machine's processors: an engine
// refuses containers that may use more than there are.
func declaredStack(t *testing.T) string {
	t.Helper()
	stack, err := config.Worker{}.Stack()
	require.NoError(t, err)
	for _, specs := range stack {
		for i := range specs {
			specs[i].CPUs = min(specs[i].CPUs, float64(runtime.NumCPU()))
		}
	}
	return writeStack(t, stack)
}

// declared is the value of PREGO_STACK_FILE for the built-in stack.
const declared = "declared"

// machineCell is a cell whose servers are machines. Without a given stack, each role runs two stand-ins.
func machineCell(t *testing.T, o options) *cell {
	t.Helper()
	require.Zero(t, os.Getuid(), "machines need root")
	require.DirExists(t, filepath.Join(machineRoots(), "debian-12"), "make machines builds what machines boot from")
	if o.timeouts.Running == 0 {
		o.timeouts = slowly
	}
	change := o.sim
	o.sim = func(cfg *sim.Config) {
		cfg.Machines, cfg.StandIn, cfg.Images = machineRoots(), filepath.Join(bins, "prego-lab"), machineImages()
		if change != nil {
			change(cfg)
		}
	}
	vars := map[string]string{"PREGO_CONTAINER_TIMEOUT": "2m", "PREGO_AGENTGW_HEARTBEAT": "1s"}
	switch o.vars["PREGO_STACK_FILE"] {
	case "":
		vars["PREGO_STACK_FILE"] = lightStack(t)
	case declared:
		require.DirExists(t, machineImages(), "make images builds what the stack pulls")
		vars["PREGO_STACK_FILE"] = declaredStack(t)
	}
	for k, v := range o.vars {
		if v != declared {
			vars[k] = v
		}
	}
	o.vars = vars
	o.processes = o.set == nil
	return newCell(t, o)
}

// run runs a shell command on the machine, as root, and returns what it prints.
func (m *machine) run(script string) string {
	m.t.Helper()
	out, err := m.try(script)
	require.NoError(m.t, err, "%s", out)
	return out
}

func (m *machine) try(script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := m.sim.HostExec(ctx, m.host().ID, nil, "sh", "-c", script)
	return strings.TrimSpace(string(out)), err
}

// awaitRun repeats a command until it succeeds, for example while the machine boots.
func (m *machine) awaitRun(script string) {
	m.t.Helper()
	eventually(m.t, func() bool { _, err := m.try(script); return err == nil }, 2*time.Minute, 100*time.Millisecond, "%s", script)
}
