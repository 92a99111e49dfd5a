package worker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
)

// LookSource returns all looks.
type LookSource interface {
	Looks(ctx context.Context) ([]ops.Look, error)
}

// looksEvery bounds how often the source is read, however many scrape.
const looksEvery = 5 * time.Second

// LookAge exports when each look last happened. Every worker exports the same values, since
// it reads the rows.
type LookAge struct {
	looks lastRead[[]ops.Look]

	looked, found, every, took, failing *prometheus.Desc
}

// NewLookAge creates the collector.
func NewLookAge(source LookSource, log *zap.Logger, now func() time.Time) *LookAge {
	of := prego.Metrics()[prego.MetricLookedAt]
	return &LookAge{
		looks:   lastRead[[]ops.Look]{every: looksEvery, read: source.Looks, failing: "when was looked is not read", log: log, now: now},
		looked:  prometheus.NewDesc(prego.MetricLookedAt, "When a worker last looked whether there is something to do; 0 for never.", of, nil),
		found:   prometheus.NewDesc("prego_look_found_timestamp_seconds", "When a look last found something to do; 0 for never.", of, nil),
		every:   prometheus.NewDesc(prego.MetricLookInterval, "How long from the beginning of one look to that of the next.", of, nil),
		took:    prometheus.NewDesc("prego_look_duration_seconds", "How long the last look took.", of, nil),
		failing: prometheus.NewDesc(prego.MetricLookFailing, "Whether the last look failed.", of, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *LookAge) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.looked
	ch <- c.found
	ch <- c.every
	ch <- c.took
	ch <- c.failing
}

// Collect implements prometheus.Collector. If the rows can't be read, the last values are
// exported.
func (c *LookAge) Collect(ch chan<- prometheus.Metric) {
	looks, _ := c.looks.get()
	at := func(t *time.Time) float64 {
		if t == nil {
			return 0
		}
		return float64(t.UnixMilli()) / 1000
	}
	for _, l := range looks {
		failing := 0.0
		if l.Error != "" {
			failing = 1
		}
		ch <- prometheus.MustNewConstMetric(c.looked, prometheus.GaugeValue, at(l.LookedAt), l.Look)
		ch <- prometheus.MustNewConstMetric(c.found, prometheus.GaugeValue, at(l.FoundAt), l.Look)
		ch <- prometheus.MustNewConstMetric(c.every, prometheus.GaugeValue, l.EverySeconds, l.Look)
		ch <- prometheus.MustNewConstMetric(c.took, prometheus.GaugeValue, l.TookSeconds, l.Look)
		ch <- prometheus.MustNewConstMetric(c.failing, prometheus.GaugeValue, failing, l.Look)
	}
}
