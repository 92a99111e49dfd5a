package worker

// These looks do their work with statements alone.

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego/cost"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/workflows"
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
func LookAtAge(ctx context.Context, a *Pruning) (ops.LookResult, error) {
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

// Attention remembers since when things need attention.
type Attention struct {
	Store  *store.Store
	Limits attention.Limits
}

// LookAtAttention records what needs attention now, so that its start is known at the next failed attempt too.
func LookAtAttention(ctx context.Context, a *Attention) (ops.LookResult, error) {
	return ops.LookResult{}, a.Store.KeepAttention(ctx, a.Limits)
}

// LookAtSamples keeps what agents reported of their hosts, a sample of each in every span of server.SampleEvery: it takes
// the missing samples of the current span, with one statement. Looking several times in a span also finds agents that
// were silent at first.
func LookAtSamples(ctx context.Context, db *store.Store) (ops.LookResult, error) {
	n, err := db.TakeSamples(ctx, server.SampleEvery)
	return ops.LookResult{Found: n > 0}, err
}

// CostCounting counts billed resources, hour by hour.
type CostCounting struct {
	Store *store.Store
	// StoragePrice is the price of backups in object storage, per GB and month, "" if it is
	// unknown; StorageCurrency is its currency.
	StoragePrice, StorageCurrency string
	Now                           func() time.Time
}

// LookAtCosts counts the hours since the last time.
func LookAtCosts(ctx context.Context, a *CostCounting) (ops.LookResult, error) {
	var extra []cost.Price
	if p, ok := cost.StoragePrice(a.StoragePrice, a.StorageCurrency); ok {
		extra = append(extra, p)
	}
	_, err := a.Store.CountCosts(ctx, a.Now(), extra)
	return ops.LookResult{}, err
}

// Audit adds entries to the audit's chain.
type Audit struct {
	Store *store.Store
	Log   *zap.Logger
}

// sealAtOnce is how many entries one transaction seals.
const sealAtOnce = 1000

// Schedules are the periodic runs of Temporal.
type Schedules struct {
	Runs     *workflows.Client
	Settings workflows.ScheduleSettings
	Now      func() time.Time
	Log      *zap.Logger
}

// LookAtSchedules creates schedules again that start nothing.
func LookAtSchedules(ctx context.Context, a *Schedules) (ops.LookResult, error) {
	found, err := a.Runs.RearmSchedules(ctx, a.Settings, a.Now())
	for _, what := range found {
		a.Log.Error("a schedule of Temporal was created again: " + what)
	}
	return ops.LookResult{Found: len(found) > 0}, err
}

// LookAtCommands ends the audit's rows of commands whose process died.
func LookAtCommands(ctx context.Context, db *store.Store) (ops.LookResult, error) {
	n, err := db.EndLostCommands(ctx)
	return ops.LookResult{Found: n > 0}, err
}

// LookAtAudit seals new entries, without a workflow. The head goes to the log, which is outside the database:
// verification compares with it.
func LookAtAudit(ctx context.Context, a *Audit) (ops.LookResult, error) {
	var r ops.LookResult
	for {
		n, head, err := a.Store.SealAudit(ctx, sealAtOnce)
		if err != nil {
			return r, err
		}
		if r.Found = r.Found || n > 0; n == sealAtOnce {
			continue
		}
		if r.Found {
			a.Log.Info("the audit is sealed", zap.Int64("seq", head.Seq), zap.Stringer("hash", head.Hash))
		}
		return r, nil
	}
}

// AgentReleases rolls releases of the agent out. Agents fetch them: the only decision is which server is offered one.
type AgentReleases struct {
	Store  *store.Store
	Limits server.AgentReleaseLimits
}

// LookAtAgentReleases continues the release of the agent that is being rolled out.
func LookAtAgentReleases(ctx context.Context, a *AgentReleases) (ops.LookResult, error) {
	changed, err := a.Store.StepAgentRelease(ctx, a.Limits)
	return ops.LookResult{Found: changed}, err
}
