package activities_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
)

// TestGroupsAreMeasuredByTheNamesThatAlertsWatch, with their labels.
func TestGroupsAreMeasuredByTheNamesThatAlertsWatch(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := activities.NewGroupMetrics(reg)
	m.Unschedulable.WithLabelValues("no_capacity_memory").Set(2)
	m.Schedule.Observe(1)
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string][]string{}
	for _, f := range families {
		labels := []string{}
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		got[f.GetName()] = labels
	}
	for _, name := range []string{prego.MetricGroupsUnscheduled, prego.MetricInstanceSchedule} {
		require.Contains(t, got, name)
		require.ElementsMatch(t, prego.Metrics()[name], got[name], name)
	}
}

// TestWhatIsAlertedOnBeginsAtZero: Prometheus sees no increase in a series that begins with 1,
// so the first of what an alert watches would be missed.
func TestWhatIsAlertedOnBeginsAtZero(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	activities.NewMetrics(reg)
	activities.NewImageMetrics(reg)
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string][]string{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				require.Zero(t, m.GetCounter().GetValue())
				got[f.GetName()] = append(got[f.GetName()], l.GetValue())
			}
		}
	}
	// Each reason of a failed provisioning, by role: two labels a series.
	require.Len(t, got["prego_provisionings_total"], 2*9*5)
	delete(got, "prego_provisionings_total")
	require.Equal(t, map[string][]string{
		"prego_agents_silent_total":     {"degraded", "disconnected"},
		"prego_image_builds_total":      {"build_cancelled", "build_timeout", "builder_lost", "builder_not_made", "failed_internal", "snapshot_failed", "verification_failed"},
		"prego_orphans_destroyed_total": {"firewall", "floating_ip", "image", "network", "placement_group", "primary_ip", "server", "volume"},
	}, got)
}
