package activities

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/prego/prego/server"
)

// NameMetrics count what goes wrong with DNS records.
type NameMetrics struct {
	Failures *prometheus.CounterVec
	Drifted  prometheus.Gauge
	Orphans  prometheus.Gauge
	Breaker  prometheus.Gauge
}

// NewNameMetrics registers them, unless reg is nil.
func NewNameMetrics(reg prometheus.Registerer) *NameMetrics {
	m := &NameMetrics{
		Failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_dns_record_failures_total", Help: "Tries to write or delete a DNS record that failed, by what it is for."}, []string{"owner"}),
		Drifted:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "prego_dns_records_drifted", Help: "DNS records that the last comparison found otherwise at the provider."}),
		Orphans:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "prego_dns_records_orphaned", Help: "DNS records of ours that the last comparison found without a row."}),
		Breaker:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "prego_dns_breaker_tripped", Help: "1 while orphaned DNS records are left alone because there are too many."}),
	}
	if reg != nil {
		reg.MustRegister(m.Failures, m.Drifted, m.Orphans, m.Breaker)
	}
	return m
}

func (m *NameMetrics) failed(owner server.RecordOwner) {
	if m != nil {
		m.Failures.WithLabelValues(string(owner)).Inc()
	}
}

// Compared shows what a comparison found.
func (m *NameMetrics) Compared(c RecordsCompared) {
	if m != nil {
		m.Drifted.Set(float64(c.Drifted))
		m.Orphans.Set(float64(c.Orphans))
		m.Breaker.Set(map[bool]float64{true: 1}[c.BreakerHit])
	}
}
