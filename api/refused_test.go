package api

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
)

// TestRefusalsAreCountedInTheAudit: 1,000 refused requests are one entry, and those of the rest of the minute one more,
// however many there are, and also after the database was away.
func TestRefusalsAreCountedInTheAudit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ending, end := context.WithCancel(t.Context())
		defer end()
		var written []int
		tries, away := 0, true
		r := &refusals{log: zap.NewNop(), ending: ending, of: map[refusalKey]*counted{}, write: func(_ context.Context, one ops.Refusal) error {
			if tries++; away {
				return prego.Errorf(prego.CodeNotReady, "away")
			}
			written = append(written, one.Count)
			return nil
		}}
		refuse := func(operation string, n int) {
			for range n {
				r.add(ops.Refusal{Source: ops.AuditSource{Actor: "ada", Operation: operation}, Code: prego.CodeForbidden})
			}
		}
		pass := func(d time.Duration) {
			time.Sleep(d) // of the bubble's clock
			synctest.Wait()
		}
		refuse("deleteServer", 1000)
		pass(3 * time.Second)
		require.Empty(t, written)
		require.Equal(t, 3, tries, "one try a second")
		away = false
		pass(time.Second)
		require.Equal(t, []int{1000}, written)
		refuse("deleteServer", 500)
		pass(50 * time.Second)
		require.Equal(t, []int{1000}, written)
		refuse("listServers", 1)
		pass(10 * time.Second)
		require.ElementsMatch(t, []int{1000, 500, 1}, written)
		pass(2 * time.Minute)
		require.Empty(t, r.of)
		require.False(t, r.running)
		refuse("deleteServer", 2)
		r.flush(t.Context(), true)
		require.Equal(t, 2, written[3], "the end of a process loses none")
	})
}
