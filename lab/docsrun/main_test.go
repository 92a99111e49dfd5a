package docsrun

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// scratch holds the programs and the directories of sessions.
var scratch string

// TestMain runs more documents concurrently than there are processors: they mostly wait for servers to boot.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	err := flag.Set("test.parallel", "5")
	if err == nil {
		scratch, err = os.MkdirTemp("/var/tmp", "prego-docs-") // no devstack.Scratch: sessions have a separate /dev/shm
	}
	if err == nil {
		err = os.Chmod(scratch, 0o755) // Postgres is another user
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	return m.Run()
}

// build makes the programs as `make build` does, once, and returns where they are.
var build = sync.OnceValues(func() (bins string, err error) {
	bins = filepath.Join(scratch, "bin")
	for _, name := range []string{"prego", "prego-agent", "prego-lab"} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(bins, name), "./cmd/"+name)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return bins, nil
})
