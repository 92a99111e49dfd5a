package online

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// TestNoSessionOutlivesItsCommand: setsid does not lead out of a command.
func TestNoSessionOutlivesItsCommand(t *testing.T) {
	t.Parallel()
	me, err := os.Executable()
	require.NoError(t, err)
	mark := fmt.Sprintf("bench-%d", time.Now().UnixNano())
	_, call := withBench(t, fmt.Sprintf("%s unruly orphan %s & %s unruly session %s & sleep 1; echo done", me, mark, me, mark))
	out := call(wire.ExecRequest{})
	require.Equal(t, "done\n", strings.ReplaceAll(out.result.StdoutTruncated, "up\n", ""))
	require.Empty(t, agenttest.Marked(mark))
}
