package worker_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"

	"github.com/prego/prego/internal/telemetry"
	"github.com/prego/prego/worker"
)

// TestHistoriesReplayWithTraces: whoever turns traces on, or off, while runs are under way.
func TestHistoriesReplayWithTraces(t *testing.T) {
	t.Parallel()
	traces, err := telemetry.NewTraces(t.Context(), telemetry.TraceConfig{Endpoint: "http://127.0.0.1:1", Ratio: 1, Process: "worker"})
	require.NoError(t, err)
	made, err := traces.Interceptors()
	require.NoError(t, err)
	require.Len(t, made, 1)
	both, ok := made[0].(interceptor.WorkerInterceptor)
	require.True(t, ok, "it is a worker's, too")
	files, err := filepath.Glob("../workflows/testdata/histories/*.json")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 80)
	for _, f := range files {
		r, err := worker.Replayer(both)
		require.NoError(t, err)
		require.NoError(t, r.ReplayWorkflowHistoryFromJSONFile(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)), f), f)
	}
}
