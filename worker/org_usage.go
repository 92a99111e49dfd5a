package worker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
)

// UsageSource returns the orgs' usage: the n orgs nearest to a limit individually, and
// all others summed up.
type UsageSource interface {
	UsageNearLimits(ctx context.Context, n int) ([]org.Usage, error)
}

const (
	usageEvery = time.Minute // the source reads every org
	// restOfOrgs stands for all orgs without metrics of their own. It is not a valid
	// org id: those contain no underscore.
	restOfOrgs = "_rest"
)

// OrgUsage exports the orgs' usage as metrics. There are at most (n+1) times the number
// of dimensions of each, however many orgs there are.
type OrgUsage struct {
	orgs lastRead[[]org.Usage]
	now  func() time.Time

	usage, limit, ratio, age *prometheus.Desc
}

// NewOrgUsage creates the collector. It reads the source when it is scraped, at most
// once a minute.
func NewOrgUsage(source UsageSource, n int, log *zap.Logger, now func() time.Time) *OrgUsage {
	labels := []string{"org", "dimension"}
	return &OrgUsage{
		orgs: lastRead[[]org.Usage]{
			every: usageEvery, failing: "usage of orgs not read", log: log, now: now,
			read: func(ctx context.Context) ([]org.Usage, error) { return source.UsageNearLimits(ctx, n) },
		},
		now:   now,
		usage: prometheus.NewDesc(prego.MetricOrgQuotaUsage, "What an org uses of a dimension; of org _rest what all others use together.", labels, nil),
		limit: prometheus.NewDesc(prego.MetricOrgQuotaLimit, "An org's limit of a dimension; of org _rest the sum of the others'.", labels, nil),
		ratio: prometheus.NewDesc(prego.MetricOrgQuotaRatio, "The part of a limit that an org uses, of the orgs that are nearest to one of theirs.", labels, nil),
		age:   prometheus.NewDesc(prego.MetricOrgQuotaReadAge, "Seconds since the usage of orgs was read.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *OrgUsage) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.usage
	ch <- c.limit
	ch <- c.ratio
	ch <- c.age
}

// Collect implements prometheus.Collector. If the source can't be read, the last values
// are exported, with their age.
func (c *OrgUsage) Collect(ch chan<- prometheus.Metric) {
	usage, read := c.orgs.get()
	if read.IsZero() {
		return
	}
	ch <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, c.now().Sub(read).Seconds())
	for _, u := range usage {
		org := u.OrgID
		if org == "" {
			org = restOfOrgs
		} else {
			ch <- prometheus.MustNewConstMetric(c.ratio, prometheus.GaugeValue, u.Ratio(), string(org), u.Dimension)
		}
		ch <- prometheus.MustNewConstMetric(c.usage, prometheus.GaugeValue, u.Usage, string(org), u.Dimension)
		ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, u.Limit, string(org), u.Dimension)
	}
}
