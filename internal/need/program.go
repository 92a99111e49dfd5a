// Package need finds the programs that tests run for real.
package need

import (
	"os"
	"os/exec"
	"testing"
)

// Program finds a program, including server programs outside of PATH. Without it the
// test is skipped, or fails (Missing).
func Program(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{"", "/usr/sbin/", "/usr/bin/"} {
		if p, err := exec.LookPath(dir + name); err == nil {
			return p
		}
	}
	Missing(t, name+" is not installed; make test installs what the tests need")
	return ""
}

// Root skips a test that takes root for a reason, or fails it (Missing).
func Root(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "this is not root: "+why)
	}
}

// Missing says what a test lacks: the test is skipped on a developer's machine, and
// fails in CI.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") != "" || os.Getenv("PREGO_TEST_REAL") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}
