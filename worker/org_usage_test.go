package worker

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
)

type usageOf struct {
	reads int
	asked int
	err   error
	rows  []org.Usage
}

func (u *usageOf) UsageNearLimits(_ context.Context, n int) ([]org.Usage, error) {
	u.reads++
	u.asked = n
	return u.rows, u.err
}

// gathered are the metrics by name, org and dimension.
func gathered(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		require.Contains(t, prego.Metrics(), f.GetName())
		for _, m := range f.GetMetric() {
			key := f.GetName()
			var labels []string
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
				labels = append(labels, l.GetName())
			}
			require.ElementsMatch(t, prego.Metrics()[f.GetName()], labels)
			out[key] = m.GetGauge().GetValue()
		}
	}
	return out
}

func TestUsageIsReadOnceAMinuteAndBounded(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	source := &usageOf{rows: []org.Usage{
		{OrgID: "", Dimension: "max_apps", Usage: 7, Limit: 100},
		{OrgID: "acme", Dimension: "max_apps", Usage: 1, Limit: 2},
		{OrgID: "corp", Dimension: "max_apps", Usage: 1, Limit: 0},
		{OrgID: "none", Dimension: "max_apps"},
	}}
	reg := prometheus.NewRegistry()
	reg.MustRegister(Exporter{Log: zap.NewNop(), Now: func() time.Time { return at }}.OrgUsage(3, source.UsageNearLimits))

	source.err = errors.New("away")
	require.Empty(t, gathered(t, reg), "what was never read is not told")
	source.err = nil
	at = at.Add(usageEvery)
	want := map[string]float64{
		"prego_org_quota_read_age_seconds":     0,
		"prego_org_quota_usage max_apps _rest": 7, "prego_org_quota_limit max_apps _rest": 100,
		"prego_org_quota_usage max_apps acme": 1, "prego_org_quota_limit max_apps acme": 2, "prego_org_quota_usage_ratio max_apps acme": 0.5,
		"prego_org_quota_usage max_apps corp": 1, "prego_org_quota_limit max_apps corp": 0, "prego_org_quota_usage_ratio max_apps corp": math.Inf(1),
		"prego_org_quota_usage max_apps none": 0, "prego_org_quota_limit max_apps none": 0, "prego_org_quota_usage_ratio max_apps none": 0,
	}
	require.Equal(t, want, gathered(t, reg))
	require.Equal(t, 3, source.asked)
	at = at.Add(usageEvery - time.Second)
	want["prego_org_quota_read_age_seconds"] = 59
	require.Equal(t, want, gathered(t, reg))
	require.Equal(t, 2, source.reads, "a scrape within the minute reads nothing")

	source.err = errors.New("away")
	at = at.Add(time.Second)
	want["prego_org_quota_read_age_seconds"] = 60
	require.Equal(t, want, gathered(t, reg), "old numbers, with their age")
	require.Equal(t, 3, source.reads)
}
