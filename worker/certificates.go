package worker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// CertificateSource counts certificates.
type CertificateSource interface {
	CertificateCounts(ctx context.Context) (tenant.CertificateCounts, error)
}

// certificatesEvery bounds how often the source is read, however many scrape.
const certificatesEvery = 30 * time.Second

// Certificates exports when the first certificate ends, and how many are in which state.
// Every worker exports the same values, since it reads the rows.
type Certificates struct {
	counts lastRead[tenant.CertificateCounts]
	now    func() time.Time

	expires, number *prometheus.Desc
}

// NewCertificates creates the collector.
func NewCertificates(source CertificateSource, log *zap.Logger, now func() time.Time) *Certificates {
	return &Certificates{
		counts:  lastRead[tenant.CertificateCounts]{every: certificatesEvery, read: source.CertificateCounts, failing: "certificates are not counted", log: log, now: now},
		now:     now,
		expires: prometheus.NewDesc(prego.MetricCertificateEnds, "How long until the first certificate ends that is renewed; negative once it has. Absent without any.", nil, nil),
		number:  prometheus.NewDesc(prego.MetricCertificates, "Certificates by state; failing are active ones whose renewal failed.", []string{"state"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Certificates) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.expires
	ch <- c.number
}

// Collect implements prometheus.Collector. If the rows can't be read, the last values are
// exported.
func (c *Certificates) Collect(ch chan<- prometheus.Metric) {
	n, at := c.counts.get()
	if at.IsZero() {
		return
	}
	if n.FirstEnd != 0 {
		ch <- prometheus.MustNewConstMetric(c.expires, prometheus.GaugeValue, n.FirstEnd-float64(c.now().UnixMilli())/1000)
	}
	for state, value := range map[string]int{"active": n.Active, "pending": n.Pending, "failed": n.Failed, "failing": n.Failing} {
		ch <- prometheus.MustNewConstMetric(c.number, prometheus.GaugeValue, float64(value), state)
	}
}
