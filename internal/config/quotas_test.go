package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/org/quota"
)

func TestTiersComeFromAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tiers.json")
	write := func(v any) {
		b, err := json.Marshal(v)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, b, 0o600))
	}
	cfg, err := From(nil)
	require.NoError(t, err)
	require.Equal(t, prego.TierFree, cfg.Quotas.DefaultTier)
	tiers, err := cfg.Quotas.Tiers()
	require.NoError(t, err)
	require.Equal(t, quota.DefaultTiers(), tiers)

	cfg, err = From(map[string]string{"PREGO_TIERS_FILE": file, "PREGO_DEFAULT_TIER": "paid"})
	require.NoError(t, err)
	_, err = cfg.Quotas.Tiers()
	require.ErrorContains(t, err, "PREGO_TIERS_FILE")
	tiers[prego.TierFree][quota.MaxApps] = 7
	write(tiers)
	read, err := cfg.Quotas.Tiers()
	require.NoError(t, err)
	require.Equal(t, tiers, read)
	delete(tiers[prego.TierFree], quota.MaxApps)
	write(tiers)
	_, err = cfg.Quotas.Tiers()
	require.ErrorContains(t, err, "tier free has no max_apps")

	_, err = From(map[string]string{"PREGO_DEFAULT_TIER": "gold"})
	require.ErrorContains(t, err, "PREGO_DEFAULT_TIER must be ")
}
