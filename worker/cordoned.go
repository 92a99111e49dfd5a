package worker

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// CordonSource counts the servers that are closed to newcomers, those that are being emptied, and all by
// how they stand to security updates.
type CordonSource interface {
	CordonedServers(ctx context.Context) ([]server.Count, error)
	OpenMaintenances(ctx context.Context) ([]server.MaintenanceCount, error)
	PatchCounts(ctx context.Context) ([]server.PatchCount, error)
}

// cordonedEvery bounds how often the source is read, however many scrape.
const cordonedEvery = 30 * time.Second

// Cordoned exports how many servers are closed to newcomers: each is paid for, and has room
// that nobody gets. It also exports what empties servers, and which lack security updates. Every worker exports the same values, since it reads the
// rows.
type Cordoned struct {
	counts       lastRead[[]server.Count]
	maintenances lastRead[[]server.MaintenanceCount]
	patch        lastRead[[]server.PatchCount]

	number, under, stuck, patches, unpatched *prometheus.Desc
}

// NewCordoned creates the collector.
func NewCordoned(source CordonSource, log *zap.Logger, now func() time.Time) *Cordoned {
	return &Cordoned{
		counts:       lastRead[[]server.Count]{every: cordonedEvery, read: source.CordonedServers, failing: "cordoned servers are not counted", log: log, now: now},
		maintenances: lastRead[[]server.MaintenanceCount]{every: cordonedEvery, read: source.OpenMaintenances, failing: "maintenances are not counted", log: log, now: now},
		patch:        lastRead[[]server.PatchCount]{every: cordonedEvery, read: source.PatchCounts, failing: "security updates are not counted", log: log, now: now},
		number:       prometheus.NewDesc("prego_servers_cordoned", "Servers that take no new tenants and instances, by region and role.", []string{"region", "role"}, nil),
		under:        prometheus.NewDesc("prego_server_maintenances", "Maintenances, reboots and replacements of servers that are under way, by kind and status.", []string{"kind", "status"}, nil),
		stuck:        prometheus.NewDesc(prego.MetricMaintenancesStuck, "Maintenances, reboots and replacements of servers that something but their turn keeps, or that were asked for more than 6 hours ago, by kind and status.", []string{"kind", "status"}, nil),
		patches:      prometheus.NewDesc("prego_servers_patches", "Servers by how they stand to security updates: current, pending, reboot (needed), unknown.", []string{"region", "role", "state"}, nil),
		unpatched:    prometheus.NewDesc(prego.MetricUnpatched, "Servers that have lacked security updates, or a reboot, for more than 14 days.", []string{"region", "role"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Cordoned) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.number
	ch <- c.under
	ch <- c.stuck
	ch <- c.patches
	ch <- c.unpatched
}

// Collect implements prometheus.Collector. If the rows can't be read, the last values are
// exported.
func (c *Cordoned) Collect(ch chan<- prometheus.Metric) {
	counts, _ := c.counts.get()
	for _, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.number, prometheus.GaugeValue, float64(n.N), string(n.Region), string(n.Role))
	}
	maintenances, _ := c.maintenances.get()
	for _, n := range maintenances {
		ch <- prometheus.MustNewConstMetric(c.under, prometheus.GaugeValue, float64(n.N), string(n.Kind), string(n.Status))
		ch <- prometheus.MustNewConstMetric(c.stuck, prometheus.GaugeValue, float64(n.Stuck), string(n.Kind), string(n.Status))
	}
	patch, _ := c.patch.get()
	late := map[[2]string]int{}
	for _, n := range patch {
		ch <- prometheus.MustNewConstMetric(c.patches, prometheus.GaugeValue, float64(n.N), n.Region, n.Role, string(n.State))
		late[[2]string{n.Region, n.Role}] += n.Late
	}
	for of, n := range late {
		ch <- prometheus.MustNewConstMetric(c.unpatched, prometheus.GaugeValue, float64(n), of[0], of[1])
	}
}
