package tenant

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStorageLevels(t *testing.T) {
	t.Parallel()
	r := StorageRules{WarnPct: 90, HardPct: 120, Grace: time.Hour}
	for _, tc := range []struct {
		used, quota int64
		over        time.Duration
		want        StorageLevel
	}{
		{0, 1000, 0, StorageOK},
		{899, 1000, 0, StorageOK},
		{900, 1000, 0, StorageWarned},
		{999, 1000, 5 * time.Hour, StorageWarned},
		{1000, 1000, 0, StorageOver},
		{1199, 1000, time.Hour - 1, StorageOver},
		{1000, 1000, time.Hour, StorageReadOnly},
		{1200, 1000, 0, StorageReadOnly},
		{2, 0, 0, StorageReadOnly},
	} {
		require.Equal(t, tc.want, r.Level(tc.used, tc.quota, tc.over), "%+v", tc)
	}
	require.Equal(t, StorageReadOnly, StorageRules{WarnPct: 90, HardPct: 120}.Level(1000, 1000, 0), "without grace it is immediate")
}
