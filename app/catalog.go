package app

import (
	"context"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workflows"
)

// staleReadings is the number of missed readings after which a catalog is stale.
const staleReadings = 3

// newCatalogDeps is what the API checks requests for machines against.
func newCatalogDeps(p *Process, configured server.Catalog, stack server.Stack) api.CatalogDeps {
	return api.CatalogDeps{Configured: configured, Stack: stack, StaleAfter: staleReadings * p.cfg.Worker.CatalogEvery}
}

// newCatalogs creates the step that reads the providers' catalogs.
func newCatalogs(p *Process, servers *activities.Servers) *activities.Catalogs {
	sellers := make(map[prego.InfraProviderID]activities.CatalogInfra)
	for id, i := range servers.Infra {
		if c, ok := i.(activities.CatalogInfra); ok {
			sellers[id] = c
		}
	}
	return &activities.Catalogs{Store: p.db, Infra: sellers, Catalog: servers.Catalog, Runs: servers.Runs, Log: p.log.Named("catalog")}
}

// watchCatalog starts a reading of the catalog.
func watchCatalog(ctx context.Context, p *Process, runs *workflows.Client) {
	if _, err := runs.StartCatalogRefresh(ctx); err != nil {
		p.log.Warn("the provider's catalog is read by schedule only", zap.Error(err))
	}
}

// attentionLimits are the limits of workers that attention reports by.
func (p *Process) attentionLimits() attention.Limits {
	w, b := p.cfg.Worker, p.cfg.Backups
	return attention.Limits{
		DegradedAfter: w.DegradedAfter, FailedAfter: w.FailedAfter, FreezePct: freezePct, FreezeMin: freezeMin,
		CatalogStale: staleReadings * w.CatalogEvery, BackupLate: backupLate, DrillOverdue: activities.DrillSettings{Every: b.DrillEvery}.Overdue(),
	}
}
