package activities

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

func TestEachServerHasItsTurn(t *testing.T) {
	t.Parallel()
	var ids []string
	for i := range 21 {
		ids = append(ids, fmt.Sprintf("s-%02d", 20-i))
	}
	seen := map[string]int{}
	for run := int64(7); run < 7+3; run++ {
		turn := Turn(ids, run, 8)
		require.LessOrEqual(t, len(turn), 8)
		for _, id := range turn {
			seen[id]++
		}
	}
	require.Len(t, seen, 21)
	for id, n := range seen {
		require.Equal(t, 1, n, id)
	}
	require.Len(t, Turn(ids[:5], 3, 8), 5, "all, when they are few")
	require.Empty(t, Turn(ids, 3, 0))
	require.Empty(t, Turn(nil, 3, 8))
}

func TestAReconciliationLooksAtAFewHostsAtOnce(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int32
	f := &Reconciler{DriftHosts: 8, Log: zap.NewNop(), Check: func(_ context.Context, id prego.ServerID) (ContainerReport, error) {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		time.Sleep(20 * time.Millisecond)
		switch id {
		case "away":
			return ContainerReport{ServerID: id}, errors.New("no answer")
		case "draining":
			return ContainerReport{ServerID: id, Skipped: "the server is draining"}, nil
		case "b-changed", "a-changed":
			return ContainerReport{ServerID: id, Drift: []server.ContainerDrift{{Container: "bench", Kind: server.DriftMissing}}}, nil
		}
		return ContainerReport{ServerID: id}, nil
	}}
	var result ReconcileResult
	f.checkContainers(t.Context(), []string{"ok", "away", "draining", "b-changed", "a-changed", "fine"}, &result)
	require.Equal(t, 5, result.ContainersChecked)
	require.Equal(t, 1, result.ContainersUnknown)
	require.Len(t, result.Drift, 2)
	require.Equal(t, "a-changed", string(result.Drift[0].ServerID))
	require.LessOrEqual(t, most.Load(), int32(driftParallel))
}
