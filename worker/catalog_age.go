package worker

import (
	"context"
	"sync"
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
	source     CatalogSource
	provider   prego.InfraProviderID
	configured server.Catalog
	log        *zap.Logger
	now        func() time.Time

	refreshed, problems *prometheus.Desc

	mu    sync.Mutex
	tried time.Time
	last  server.CatalogState
}

// NewCatalogAge creates the collector. It reads the row when it is scraped, at most
// once a minute.
func NewCatalogAge(source CatalogSource, provider prego.InfraProviderID, configured server.Catalog, log *zap.Logger, now func() time.Time) *CatalogAge {
	return &CatalogAge{
		source: source, provider: provider, configured: configured, log: log, now: now,
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
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.tried.IsZero() || now.Sub(c.tried) >= time.Minute {
		c.tried = now
		ctx, cancel := context.WithTimeout(context.Background(), usagePatience)
		defer cancel()
		state, err := c.source.ProviderCatalog(ctx, c.provider)
		if err != nil {
			c.log.Warn("the stored catalog was not read", zap.String("error", prego.Redact(err.Error())))
		} else {
			c.last = state
		}
	}
	at := 0.0
	if c.last.Known() {
		at = float64(c.last.RefreshedAt.Unix())
	}
	ch <- prometheus.MustNewConstMetric(c.refreshed, prometheus.GaugeValue, at, string(c.provider))
	count := map[string]int{"server_type": 0, "location": 0, "image": 0}
	for _, p := range c.last.Problems(c.configured, now) {
		count[p.Kind]++
	}
	for kind, n := range count {
		ch <- prometheus.MustNewConstMetric(c.problems, prometheus.GaugeValue, float64(n), string(c.provider), kind)
	}
}
