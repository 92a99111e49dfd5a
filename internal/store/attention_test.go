package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/attention"
)

var attentionLimits = attention.Limits{
	DegradedAfter: time.Minute, FailedAfter: 5 * time.Minute, FreezePct: 20, FreezeMin: 10, CatalogStale: 3 * time.Hour, BackupLate: 2 * time.Hour, DrillOverdue: 24 * time.Hour,
}

func TestNothingNeedsAttentionWhereNothingIs(t *testing.T) {
	t.Parallel()
	found, at, err := tenantStore(t).Attention(t.Context(), attentionLimits)
	require.NoError(t, err)
	require.Empty(t, found)
	require.NotZero(t, at)
}
