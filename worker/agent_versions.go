package worker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego/server"
)

// AgentVersionSource counts servers by the version of their agent.
type AgentVersionSource interface {
	AgentVersions(ctx context.Context) ([]server.AgentVersionCount, error)
}

// AgentVersions exports how many active servers run each version of the agent. Every worker
// exports the same values, since it reads the rows.
type AgentVersions struct {
	counts lastRead[[]server.AgentVersionCount]
	number *prometheus.Desc
}

// NewAgentVersions creates the collector.
func NewAgentVersions(source AgentVersionSource, log *zap.Logger, now func() time.Time) *AgentVersions {
	return &AgentVersions{
		counts: lastRead[[]server.AgentVersionCount]{every: cordonedEvery, read: source.AgentVersions, failing: "versions of agents are not counted", log: log, now: now},
		number: prometheus.NewDesc("prego_agents", "Active servers, by the version of their agent.", []string{"version"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *AgentVersions) Describe(ch chan<- *prometheus.Desc) { ch <- c.number }

// Collect implements prometheus.Collector. If the rows can't be read, the last values are
// exported.
func (c *AgentVersions) Collect(ch chan<- prometheus.Metric) {
	counts, _ := c.counts.get()
	for _, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.number, prometheus.GaugeValue, float64(n.N), n.Version)
	}
}
