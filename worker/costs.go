package worker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/cost"
)

// CostSource sums up what is billed.
type CostSource interface {
	CostNumbers(ctx context.Context, month time.Time) (cost.Numbers, error)
}

// Costs exports what the month has cost so far, and what no row owns. Every worker exports the
// same values, since it reads the rows.
type Costs struct {
	numbers                                 lastRead[cost.Numbers]
	month, idle, untracked, unpriced, until *prometheus.Desc
}

const costsEvery = 5 * time.Minute

// NewCosts creates the collector.
func NewCosts(source CostSource, log *zap.Logger, now func() time.Time) *Costs {
	return &Costs{
		numbers: lastRead[cost.Numbers]{
			every: costsEvery, failing: "costs are not read", log: log, now: now,
			read: func(ctx context.Context) (cost.Numbers, error) { return source.CostNumbers(ctx, cost.MonthOf(now())) },
		},
		month:     prometheus.NewDesc(prego.MetricCostMonth, "What this calendar month (UTC) has cost so far, net, by kind of thing and currency.", []string{"kind", "currency"}, nil),
		idle:      prometheus.NewDesc(prego.MetricCostMonthIdle, "Of that, what was capacity that nobody used.", []string{"kind", "currency"}, nil),
		untracked: prometheus.NewDesc(prego.MetricUntracked, "Things at the provider that no row owns, by kind.", []string{"kind"}, nil),
		unpriced:  prometheus.NewDesc(prego.MetricUnpriced, "Things that are billed at a price that is not known; costs lack them.", nil, nil),
		until:     prometheus.NewDesc(prego.MetricCostsCounted, "Until when what is billed has been counted; 0 for never.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Costs) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.month, c.idle, c.untracked, c.unpriced, c.until} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. If the rows can't be read, the last values are
// exported, and none before they were read once.
func (c *Costs) Collect(ch chan<- prometheus.Metric) {
	n, at := c.numbers.get()
	if at.IsZero() {
		return
	}
	for _, k := range n.Kinds {
		ch <- prometheus.MustNewConstMetric(c.month, prometheus.GaugeValue, k.Cost.Float(), k.Kind, k.Currency)
		ch <- prometheus.MustNewConstMetric(c.idle, prometheus.GaugeValue, k.Idle.Float(), k.Kind, k.Currency)
	}
	for _, u := range n.Untracked {
		ch <- prometheus.MustNewConstMetric(c.untracked, prometheus.GaugeValue, float64(u.N), u.Kind)
	}
	counted := 0.0
	if n.AsOf != nil {
		counted = float64(n.AsOf.Unix())
	}
	ch <- prometheus.MustNewConstMetric(c.unpriced, prometheus.GaugeValue, float64(n.Unpriced))
	ch <- prometheus.MustNewConstMetric(c.until, prometheus.GaugeValue, counted)
}
