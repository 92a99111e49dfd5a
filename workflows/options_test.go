package workflows

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
)

// TestAReasonIsACode: the SDK takes the name of its Go type for an error that no activity gave a code.
func TestAReasonIsACode(t *testing.T) {
	t.Parallel()
	for errType, want := range map[string]prego.Reason{
		"disk_full": "disk_full", "joinError": "move_failed", "wrapError": "move_failed", "PgError": "move_failed", "": "move_failed",
	} {
		require.Equal(t, want, reasonOf(temporal.NewApplicationError("it failed", errType), "move_failed"), errType)
	}
	require.Equal(t, prego.Reason("move_failed"), reasonOf(errors.New("not an activity's"), "move_failed"))
}
