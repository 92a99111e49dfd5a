// Package need finds the programs that tests run for real.
package need

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Program finds a program, including server programs outside of PATH. What the Makefile installs is preferred to the
// system's: it has the version that is shipped. Without it the test is skipped, or fails (Missing).
func Program(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{tools(), "", "/usr/sbin/", "/usr/bin/"} {
		if p, err := exec.LookPath(dir + name); err == nil {
			return p
		}
	}
	Missing(t, name+" is not installed; make test installs what the tests need")
	return ""
}

// Module is the directory of the module, above that of the test that asks.
func Module() string {
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// tools is where the Makefile installs what Debian does not have, with a slash at the end.
func tools() string { return filepath.Join(Module(), ".prego", "bin") + "/" }

// Root skips a test that takes root for a reason, or fails it (Missing).
func Root(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "this is not root: "+why)
	}
}

// Missing names a test's missing program: the test is skipped on a developer's machine, and fails in CI.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") != "" || os.Getenv("PREGO_TEST_REAL") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}
