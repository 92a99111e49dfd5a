package activities

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// CatalogInfra is a cloud that can list what it sells.
type CatalogInfra interface {
	Catalog(ctx context.Context) (server.ProviderCatalog, error)
}

// Catalogs is the step that reads the providers' catalogs.
type Catalogs struct {
	Store   *store.Store
	Infra   map[prego.InfraProviderID]CatalogInfra
	Catalog server.Catalog // as configured
	Runs    Runs
	Log     *zap.Logger
}

// CatalogRefresh is the result of one reading.
type CatalogRefresh struct {
	ServerTypes int `json:"server_types"`
	Locations   int `json:"locations"`
	Images      int `json:"images"`
	Problems    int `json:"problems"` // configured things that are not sold
}

// wakeWaiting has servers that wait for stock try again. Those that are not reached do so by themselves.
func (a *Catalogs) wakeWaiting(ctx context.Context) {
	ids, err := a.Store.ServersAwaitingCapacity(ctx)
	for _, id := range ids {
		err = errors.Join(err, a.Runs.WakeProvision(ctx, id))
	}
	if err != nil {
		a.Log.Warn("servers that wait for stock are not woken; they try again by themselves", zap.Error(err))
	}
}

// RefreshCatalog reads each provider's catalog and warns of configured things that are
// not sold. Servers that wait for stock try again if it sells something else. If a provider does not answer, its last good catalog is kept.
func (a *Catalogs) RefreshCatalog(ctx context.Context) (CatalogRefresh, error) {
	var out CatalogRefresh
	var failed error
	for id, infra := range a.Infra {
		before, err := a.Store.ProviderCatalog(ctx, id)
		if err != nil {
			return out, err
		}
		c, err := infra.Catalog(ctx)
		if err == nil {
			err = a.Store.SaveProviderCatalog(ctx, id, c)
			if !reflect.DeepEqual(before.ServerTypes, c.ServerTypes) {
				a.wakeWaiting(ctx)
			}
		} else if noteErr := a.Store.CatalogNotRead(ctx, id, prego.Redact(err.Error())); noteErr != nil {
			err = errors.Join(err, noteErr)
		}
		if err != nil {
			failed = fmt.Errorf("catalog of %s: %w", id, err)
			a.Log.Warn("the provider's catalog was not read", zap.String("provider", string(id)), zap.String("error", prego.Redact(err.Error())))
		}
		state, err := a.Store.ProviderCatalog(ctx, id)
		if err != nil {
			return out, err
		}
		out.ServerTypes += len(state.ServerTypes)
		out.Locations += len(state.Locations)
		out.Images += len(state.Images)
		for _, p := range state.Problems(a.Catalog, time.Now()) {
			a.Log.Warn("configured, but the provider can't deliver it", zap.String("provider", string(id)), zap.String("problem", p.String()))
			out.Problems++
		}
	}
	return out, failed
}
