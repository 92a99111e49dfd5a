package store

import (
	"context"
	"fmt"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/cost"
	"github.com/prego/prego/server"
)

const sqlProviderCatalog = `
SELECT COALESCE(document, '{}'), refreshed_at, attempted_at, failure FROM provider_catalogs WHERE provider = $1`

// ProviderCatalog reads a provider's last catalog. A provider that was never
// asked, or never answered, has a state that is not Known; that is no error.
func (s *Store) ProviderCatalog(ctx context.Context, provider prego.InfraProviderID) (server.CatalogState, error) {
	out := server.CatalogState{Provider: provider}
	var refreshed *time.Time
	err := s.pool.QueryRow(ctx, sqlProviderCatalog, provider).Scan(&out.ProviderCatalog, &refreshed, &out.AttemptedAt, &out.Failure)
	if isNoRows(err) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("catalog of %s: %w", provider, err)
	}
	if refreshed != nil {
		out.RefreshedAt = *refreshed
	}
	return out, nil
}

const sqlSaveCatalog = `
INSERT INTO provider_catalogs (provider, document, refreshed_at) VALUES ($1, $2, now())
ON CONFLICT (provider) DO UPDATE SET document = excluded.document, refreshed_at = now(), attempted_at = now(), failure = ''`

// SaveProviderCatalog keeps a catalog that was read just now, and the prices in it.
func (s *Store) SaveProviderCatalog(ctx context.Context, provider prego.InfraProviderID, c server.ProviderCatalog) error {
	return s.inTx(ctx, "save the catalog of "+string(provider), func(tx *txn) error {
		tx.run(ctx, sqlSaveCatalog, provider, c)
		return savePrices(ctx, tx, cost.Prices(provider, c))
	})
}

const sqlCatalogFailed = `
INSERT INTO provider_catalogs (provider, failure) VALUES ($1, $2)
ON CONFLICT (provider) DO UPDATE SET attempted_at = now(), failure = excluded.failure`

// CatalogNotRead notes why the catalog could not be read. The last good one stays.
func (s *Store) CatalogNotRead(ctx context.Context, provider prego.InfraProviderID, why string) error {
	return s.exec(ctx, fmt.Sprintf("catalog of %s not read", provider), sqlCatalogFailed, provider, why)
}
