package quota

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
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
	for name, tc := range map[string]struct {
		text []byte
		want string
	}{
		"not JSON":        {[]byte("{"), "unexpected end of JSON input"},
		"a tier lacks":    {change(func(t Tiers) { delete(t, prego.TierPaid) }), "tier paid has no max_"},
		"a limit lacks":   {change(func(t Tiers) { delete(t[prego.TierFree], MaxApps) }), "tier free has no max_apps"},
		"unknown tier":    {change(func(t Tiers) { t["gold"] = t[prego.TierPaid] }), `"gold" is not a tier`},
		"unknown limit":   {change(func(t Tiers) { t[prego.TierFree]["max_fun"] = 1 }), `tier free: "max_fun" is not a dimension`},
		"negative":        {change(func(t Tiers) { t[prego.TierFree][MaxApps] = -1 }), "tier free: invalid_field: limit must not be negative"},
		"half an app":     {change(func(t Tiers) { t[prego.TierFree][MaxApps] = 0.5 }), "tier free: invalid_field: limit must be a whole number for max_apps"},
		"more than whole": {change(func(t Tiers) { t[prego.TierFree][MaxApps] = 1 << 60 }), "tier free: invalid_field: limit must be at most 9007199254740991"},
		"a string":        {[]byte(`{"free":{"max_apps":"1"}}`), "cannot unmarshal string"},
	} {
		_, err := ParseTiers(tc.text)
		require.ErrorContains(t, err, tc.want, name)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	require.NoError(t, ValidateLimit(MaxTotalCPURequest, 0.25))
	require.NoError(t, ValidateLimit(MaxApps, 0))
	require.NoError(t, ValidateLimit(MaxApps, maxLimit))
	for _, tc := range []struct {
		dimension Dimension
		limit     float64
		want      string
	}{
		{MaxApps, -1, "limit must not be negative"},
		{MaxTotalCPURequest, -0.25, "limit must not be negative"},
		{MaxApps, math.NaN(), "limit must not be negative"},
		{MaxApps, math.Inf(-1), "limit must not be negative"},
		{MaxApps, math.Inf(1), "limit must be at most 9007199254740991"},
		{MaxApps, maxLimit + 2, "limit must be at most 9007199254740991"},
		{MaxTotalCPURequest, maxLimit + 2, "limit must be at most 9007199254740991"},
		{MaxApps, 0.5, "limit must be a whole number for max_apps"},
		{"max_fun", 1, "dimension must be one of the dimensions of GET /v1/orgs/{id}/quotas"},
	} {
		require.EqualError(t, ValidateLimit(tc.dimension, tc.limit), "invalid_field: "+tc.want, "%s %v", tc.dimension, tc.limit)
	}
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
	require.Equal(t, &org.QuotaExceeded{Dimension: "max_apps", Limit: 2, CurrentUsage: 1, RequestedDelta: 2},
		Check([]Delta{{MaxRoutes, 1}, {MaxApps, 2}, {MaxEnvs, 1}}, used, limit), "the first")
	two, hair := 2.0, 1e-6
	require.False(t, Above(0, two+hair, two), "the tolerance itself")
	sum := 0.0
	for range 19 {
		sum += 0.1
	}
	require.Nil(t, Check([]Delta{{MaxTotalCPURequest, 0.1}}, map[Dimension]float64{MaxTotalCPURequest: sum}, limit), "sums of fractions are a hair off")
	require.NotNil(t, Check([]Delta{{MaxTotalCPURequest, 0.1001}}, map[Dimension]float64{MaxTotalCPURequest: sum}, limit))
}
