// Package need finds the programs that tests run for real.
package need

import (
	"os"
	"os/exec"
	"testing"
)

// Program finds a program, of a server too, which PATH may leave out. Without it the test
// is skipped on a developer's machine, and fails where it must run.
func Program(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{"", "/usr/sbin/", "/usr/bin/"} {
		if p, err := exec.LookPath(dir + name); err == nil {
			return p
		}
	}
	if os.Getenv("CI") != "" || os.Getenv("PREGO_TEST_REAL") != "" {
		t.Fatalf("%s is not installed; make test installs what the tests need", name)
	}
	t.Skipf("%s is not installed", name)
	return ""
}
