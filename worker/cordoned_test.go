package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego/server"
	"github.com/prego/prego/worker"
)

type closedServers struct{}

func (closedServers) CordonedServers(context.Context) ([]server.Count, error) {
	return []server.Count{{Region: "eu", Role: "app", N: 2}}, nil
}

func (closedServers) OpenMaintenances(context.Context) ([]server.MaintenanceCount, error) {
	return []server.MaintenanceCount{{Kind: server.MaintenanceReboot, Status: server.MaintenanceMoving, N: 1, Stuck: 1}}, nil
}

func (closedServers) PatchCounts(context.Context) ([]server.PatchCount, error) {
	return []server.PatchCount{{Region: "eu", Role: "app", State: server.PatchPending, N: 3, Late: 1}, {Region: "eu", Role: "app", State: server.PatchReboot, N: 1, Late: 1}}, nil
}

func TestCordonedServersAndMaintenancesAreCounted(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	e, closed := worker.Exporter{Log: zap.NewNop(), Now: time.Now}, closedServers{}
	reg.MustRegister(e.Cordoned(closed.CordonedServers), e.Maintenances(closed.OpenMaintenances), e.Patches(closed.PatchCounts))
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			got[key] = m.GetGauge().GetValue()
		}
	}
	require.Equal(t, map[string]float64{
		"prego_servers_cordoned eu app": 2, "prego_server_maintenances reboot moving": 1, "prego_server_maintenances_stuck reboot moving": 1,
		"prego_servers_patches eu app pending": 3, "prego_servers_patches eu app reboot": 1, "prego_servers_unpatched eu app": 2,
	}, got)
}
