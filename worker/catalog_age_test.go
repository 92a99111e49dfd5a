package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/worker"
)

type storedCatalog struct{ server.CatalogState }

func (s *storedCatalog) ProviderCatalog(context.Context, prego.InfraProviderID) (server.CatalogState, error) {
	return s.CatalogState, nil
}

func TestCatalogAge(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	source := &storedCatalog{}
	reg := prometheus.NewRegistry()
	reg.MustRegister(worker.Exporter{Log: zap.NewNop(), Now: func() time.Time { return now }}.CatalogAge(prego.ProviderHetzner, server.DefaultCatalog(), source.ProviderCatalog))
	values := func() map[string]float64 {
		families, err := reg.Gather()
		require.NoError(t, err)
		out := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				key := f.GetName()
				for _, l := range m.Label {
					if l.GetName() == "kind" {
						key += "/" + l.GetValue()
					}
				}
				out[key] = m.Gauge.GetValue()
			}
		}
		return out
	}
	never := map[string]float64{
		"prego_catalog_refreshed_timestamp_seconds": 0, "prego_catalog_problems/image": 0, "prego_catalog_problems/location": 0, "prego_catalog_problems/server_type": 0,
	}
	require.Equal(t, never, values(), "never is as old as can be, and nothing is known to be wrong")
	source.RefreshedAt = now
	require.Equal(t, never, values(), "it reads once a minute")
	now = now.Add(time.Minute)
	require.Equal(t, map[string]float64{
		"prego_catalog_refreshed_timestamp_seconds": 1.8e9, "prego_catalog_problems/image": 1, "prego_catalog_problems/location": 6, "prego_catalog_problems/server_type": 7,
	}, values())
}
