package production

import (
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(initVariable); spec != "" {
		fmt.Fprintln(os.Stderr, "container:", runInit(spec)) // it is replaced, or comes back
		os.Exit(127)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "this test makes namespaces, users and networks: it needs root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}
