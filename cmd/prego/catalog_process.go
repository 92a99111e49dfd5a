package main

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
	"github.com/prego/prego/worker"
	"github.com/prego/prego/workflows"
)

// staleReadings is after how many missed readings a catalog is called stale.
const staleReadings = 3

// newCatalogDeps is what the API checks requests for machines against.
func newCatalogDeps(p *process, runs *workflows.Client, configured server.Catalog) api.CatalogDeps {
	return api.CatalogDeps{Store: p.db, Runs: runs, Configured: configured, StaleAfter: staleReadings * p.cfg.Worker.CatalogEvery}
}

// newCatalogs makes the step that reads what the providers sell.
func newCatalogs(p *process, servers *activities.Servers) *activities.Catalogs {
	sellers := make(map[prego.InfraProviderID]activities.CatalogInfra)
	for id, i := range servers.Infra {
		if c, ok := i.(activities.CatalogInfra); ok {
			sellers[id] = c
		}
	}
	return &activities.Catalogs{Store: p.db, Infra: sellers, Catalog: servers.Catalog, Log: p.log.Named("catalog")}
}

// watchCatalog has the catalog read now, and tells how old it is.
func watchCatalog(ctx context.Context, p *process, runs *workflows.Client, catalogs *activities.Catalogs) {
	if _, err := runs.StartCatalogRefresh(ctx); err != nil {
		p.log.Warn("the provider's catalog is read by schedule only", zap.Error(err))
	}
	p.reg.MustRegister(worker.NewCatalogAge(p.db, prego.ProviderHetzner, catalogs.Catalog, p.log, time.Now))
}
