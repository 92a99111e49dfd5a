package worker

import (
	"context"
	"time"

	"github.com/prego/prego/cost"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
)

// CostCounting counts billed resources, hour by hour.
type CostCounting struct {
	Store *store.Store
	// StoragePrice is the price of backups in object storage, per GB and month, "" if it is
	// unknown; StorageCurrency is its currency.
	StoragePrice, StorageCurrency string
	Now                           func() time.Time
}

// LookAtCosts counts the hours since the last time.
func LookAtCosts(a *CostCounting) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		var extra []cost.Price
		if p, ok := cost.StoragePrice(a.StoragePrice, a.StorageCurrency); ok {
			extra = append(extra, p)
		}
		_, err := a.Store.CountCosts(ctx, a.Now(), extra)
		return ops.LookResult{}, err
	}
}
