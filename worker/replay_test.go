package worker

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRecordedHistoriesReplay replays what runs did when their histories were recorded. A change that would break a
// run under way fails here.
func TestRecordedHistoriesReplay(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../workflows/testdata/histories/*.json")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 70, "record them with go test ./lab/e2e -run 'TestRecord.*Histories' -record")
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".json"), func(t *testing.T) {
			t.Parallel()
			r, err := Replayer()
			require.NoError(t, err)
			require.NoError(t, r.ReplayWorkflowHistoryFromJSONFile(nil, f))
		})
	}
}
