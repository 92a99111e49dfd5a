package quota

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

func TestTiersMustBeWhole(t *testing.T) {
	t.Parallel()
	change := func(f func(t Tiers)) []byte {
		tiers := DefaultTiers()
		f(tiers)
		b, err := json.Marshal(tiers)
		require.NoError(t, err)
		return b
	}
	_, err := ParseTiers(change(func(Tiers) {}))
	require.NoError(t, err)
	for name, text := range map[string][]byte{
		"not JSON":        []byte("{"),
		"a tier lacks":    change(func(t Tiers) { delete(t, prego.TierPaid) }),
		"a limit lacks":   change(func(t Tiers) { delete(t[prego.TierFree], MaxApps) }),
		"unknown tier":    change(func(t Tiers) { t["gold"] = t[prego.TierPaid] }),
		"unknown limit":   change(func(t Tiers) { t[prego.TierFree]["max_fun"] = 1 }),
		"negative":        change(func(t Tiers) { t[prego.TierFree][MaxApps] = -1 }),
		"half an app":     change(func(t Tiers) { t[prego.TierFree][MaxApps] = 0.5 }),
		"more than whole": change(func(t Tiers) { t[prego.TierFree][MaxApps] = 1 << 60 }),
		"a string":        []byte(`{"free":{"max_apps":"1"}}`),
	} {
		_, err := ParseTiers(text)
		require.Error(t, err, name)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	require.NoError(t, ValidateLimit(MaxTotalCPURequest, 0.25))
	require.NoError(t, ValidateLimit(MaxApps, 0))
	require.NoError(t, ValidateLimit(MaxApps, maxLimit))
	for _, v := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1), 0.5, maxLimit + 2} {
		require.Error(t, ValidateLimit(MaxApps, v), v)
	}
	require.Error(t, ValidateLimit("max_fun", 1))
	tiers := DefaultTiers()
	require.Equal(t, Limit{Value: 2}, tiers.Effective(prego.TierFree, nil, MaxApps))
	require.Equal(t, Limit{Value: 0, Override: true}, tiers.Effective(prego.TierFree, map[Dimension]float64{MaxApps: 0}, MaxApps))
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	limit := func(Dimension) float64 { return 2 }
	used := map[Dimension]float64{MaxApps: 1, MaxEnvs: 3}
	require.Nil(t, Check([]Delta{{MaxApps, 1}}, used, limit))
	require.Nil(t, Check([]Delta{{MaxEnvs, 0}, {MaxEnvs, -1}}, used, limit), "above the limit, but nothing is taken")
	require.Equal(t, &prego.QuotaExceeded{Dimension: "max_apps", Limit: 2, CurrentUsage: 1, RequestedDelta: 2},
		Check([]Delta{{MaxRoutes, 1}, {MaxApps, 2}, {MaxEnvs, 1}}, used, limit), "the first")
	sum := 0.0
	for range 19 {
		sum += 0.1
	}
	require.Nil(t, Check([]Delta{{MaxTotalCPURequest, 0.1}}, map[Dimension]float64{MaxTotalCPURequest: sum}, limit), "sums of fractions are a hair off")
	require.NotNil(t, Check([]Delta{{MaxTotalCPURequest, 0.1001}}, map[Dimension]float64{MaxTotalCPURequest: sum}, limit))
}
