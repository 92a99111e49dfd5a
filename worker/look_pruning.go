package worker

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
)

// Pruning deletes rows after their retention.
type Pruning struct {
	Store *store.Store
	Keep  map[ops.PrunedTable]time.Duration // of 0: forever
	Batch int                               // rows in one transaction
	Rows  *prometheus.CounterVec            // by table
}

// pruneBatches bounds a look: the next one continues. Samples of 100,000 servers are 20,000 a
// minute, and more after a pause.
const pruneBatches = 50

// NewPrunedRows counts rows that were deleted by age.
func NewPrunedRows(reg prometheus.Registerer) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_pruned_rows_total", Help: "Rows deleted by age, by table."}, []string{"table"})
	reg.MustRegister(c)
	return c
}

// LookAtAge deletes old rows, without a workflow.
func LookAtAge(a *Pruning) func(context.Context) (ops.LookResult, error) {
	return func(ctx context.Context) (ops.LookResult, error) {
		var r ops.LookResult
		for _, table := range slices.Sorted(maps.Keys(a.Keep)) { // in one order, so that plays repeat
			keep := a.Keep[table]
			if keep == 0 {
				continue
			}
			for range pruneBatches {
				n, err := a.Store.Prune(ctx, table, keep, a.Batch)
				if err != nil {
					return r, err
				}
				a.Rows.WithLabelValues(string(table)).Add(float64(n))
				r.Found = r.Found || n > 0
				if n < a.Batch {
					break
				}
			}
		}
		return r, nil
	}
}
