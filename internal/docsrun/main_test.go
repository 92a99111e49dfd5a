package docsrun

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs more documents at once than there are processors: they mostly wait for
// servers to boot.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "5"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
