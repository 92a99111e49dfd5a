// Package e2e runs the whole control plane as its users do: a real Postgres, a real Temporal, the simulated cloud with
// real agents, and all requests over HTTP. Tests with a dying process run the real binaries; elsewhere the control
// plane's processes are goroutines of the test, wired by package app.
package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"

	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/workflows"
)

// What all tests of this package share.
var (
	repo     string // root of the repository
	bins     string // prego, prego-agent and prego-lab
	temporal temporalServer
	// temporalClient looks at runs as an operator does.
	temporalClient client.Client
	scratch        string
	buildTags      = "-trimpath"
	// A soak looks at programs with symbols.
	strip = "-s -w "
)

// temporalServer is where the runs of all cells are kept.
type temporalServer interface {
	Address() string
	Stop(wait time.Duration)
}

// rareGC is GOGC of this process and of Temporal, which are the two that take most of the tests' CPU. Memory is
// cheaper.
const rareGC = 400

// existing is a server that others started, and stop (tools/test-production.sh). Its
// namespace default knows our search attributes.
type existing string

func (e existing) Address() string  { return string(e) }
func (existing) Stop(time.Duration) {}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	debug.SetGCPercent(rareGC)
	var err error
	if scratch, err = devstack.Scratch("prego-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	if err := setup(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer pgtest.Stop()
	defer temporal.Stop(5 * time.Second)
	return m.Run()
}

func setup() error {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	repo = strings.TrimSpace(string(out))
	bins = filepath.Join(scratch, "bin")
	for _, cmd := range []string{"prego", "prego-agent", "prego-lab"} {
		build := exec.Command("go", "build", buildTags, "-trimpath", "-ldflags", strip+"-X main.version=e2e -X main.releaseKeys="+agentReleaseKeys(), "-o", filepath.Join(bins, cmd), "./cmd/"+cmd)
		build.Dir, build.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", cmd, err, out)
		}
	}
	if temporal, err = startTemporal(); err != nil {
		return err
	}
	temporalClient, err = client.Dial(client.Options{HostPort: temporal.Address(), Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler))})
	return err
}

func startTemporal() (temporalServer, error) {
	if addr := os.Getenv("PREGO_TEST_TEMPORAL_ADDRESS"); addr != "" {
		return existing(addr), nil
	}
	binary, err := devstack.FindTemporal(filepath.Join(repo, ".prego", "bin"))
	if err != nil {
		return nil, err
	}
	return devstack.StartTemporal(context.Background(), devstack.TemporalConfig{
		Binary: binary, Dir: scratch, NoSync: true, LogFile: filepath.Join(scratch, "temporal.log"), Keywords: workflows.SearchAttributes(),
		Env: []string{fmt.Sprintf("GOGC=%d", rareGC)},
	})
}
