package worker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// CatalogSource returns a provider's last known catalog.
type CatalogSource interface {
	ProviderCatalog(ctx context.Context, provider prego.InfraProviderID) (server.CatalogState, error)
}

// CatalogAge exports the age of the provider's catalog, and how many configured things
// it does not sell. Every worker exports the same values, since it reads the row.
type CatalogAge struct {
	catalog    lastRead[server.CatalogState]
	provider   prego.InfraProviderID
	configured server.Catalog
	now        func() time.Time

	refreshed, problems *prometheus.Desc
}

// NewCatalogAge creates the collector. It reads the row when it is scraped, at most
// once a minute.
func NewCatalogAge(source CatalogSource, provider prego.InfraProviderID, configured server.Catalog, log *zap.Logger, now func() time.Time) *CatalogAge {
	return &CatalogAge{
		catalog: lastRead[server.CatalogState]{
			every: time.Minute, failing: "the stored catalog was not read", log: log, now: now,
			read: func(ctx context.Context) (server.CatalogState, error) { return source.ProviderCatalog(ctx, provider) },
		},
		provider: provider, configured: configured, now: now,
		refreshed: prometheus.NewDesc("prego_catalog_refreshed_timestamp_seconds", "When the provider last said what it sells; 0 for never.", []string{"provider"}, nil),
		problems:  prometheus.NewDesc("prego_catalog_problems", "Configured machine types, locations and images that the provider can't deliver, by kind.", []string{"provider", "kind"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *CatalogAge) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.refreshed
	ch <- c.problems
}

// Collect implements prometheus.Collector.
func (c *CatalogAge) Collect(ch chan<- prometheus.Metric) {
	state, _ := c.catalog.get()
	at := 0.0
	if state.Known() {
		at = float64(state.RefreshedAt.Unix())
	}
	ch <- prometheus.MustNewConstMetric(c.refreshed, prometheus.GaugeValue, at, string(c.provider))
	count := map[string]int{"server_type": 0, "location": 0, "image": 0}
	for _, p := range state.Problems(c.configured, c.now()) {
		count[p.Kind]++
	}
	for kind, n := range count {
		ch <- prometheus.MustNewConstMetric(c.problems, prometheus.GaugeValue, float64(n), string(c.provider), kind)
	}
}
