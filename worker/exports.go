package worker

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/cost"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// Exporter creates collectors of what a scrape reads from the database. Every worker exports the same values.
type Exporter struct {
	Log *zap.Logger
	Now func() time.Time
}

// gauge describes one metric of a collector.
type gauge struct {
	name, help string
	labels     []string
}

// export is a collector of the gauges that write makes of what read returns, and when; a zero time is never. However many scrape, it reads at most
// every so often. A read that fails is logged, and the last value stays.
type export[T any] struct {
	Exporter
	every   time.Duration
	read    func(context.Context) (T, error)
	failing string // logged then
	gauges  map[string]*prometheus.Desc
	write   func(put put, v T, at time.Time)

	mu    sync.Mutex
	tried time.Time
	at    time.Time // of the last read that succeeded
	value T
}

// put exports a value of a gauge.
type put func(gauge string, value float64, labels ...string)

// readPatience bounds one read of a scrape.
const readPatience = 20 * time.Second

func newExport[T any](e Exporter, every time.Duration, failing string, read func(context.Context) (T, error), gauges []gauge, write func(put put, v T, at time.Time)) prometheus.Collector {
	out := &export[T]{Exporter: e, every: every, read: read, failing: failing, gauges: map[string]*prometheus.Desc{}, write: write}
	for _, g := range gauges {
		out.gauges[g.name] = prometheus.NewDesc(g.name, g.help, g.labels, nil)
	}
	return out
}

// Describe implements prometheus.Collector.
func (e *export[T]) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range e.gauges {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (e *export[T]) Collect(ch chan<- prometheus.Metric) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := e.Now(); e.tried.IsZero() || now.Sub(e.tried) >= e.every {
		e.tried = now
		ctx, cancel := context.WithTimeout(context.Background(), readPatience)
		defer cancel()
		if value, err := e.read(ctx); err != nil {
			e.Log.Warn(e.failing, zap.String("error", prego.Redact(err.Error())))
		} else {
			e.value, e.at = value, now
		}
	}
	e.write(func(name string, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(e.gauges[name], prometheus.GaugeValue, value, labels...)
	}, e.value, e.at)
}

// AgentVersions exports how many active servers run each version of the agent.
func (e Exporter) AgentVersions(read func(context.Context) ([]server.AgentVersionCount, error)) prometheus.Collector {
	const agents = "prego_agents"
	return newExport(e, 30*time.Second, "versions of agents are not counted", read,
		[]gauge{{agents, "Active servers, by the version of their agent.", []string{"version"}}},
		func(put put, counts []server.AgentVersionCount, _ time.Time) {
			for _, n := range counts {
				put(agents, float64(n.N), n.Version)
			}
		})
}

// CatalogAge exports the age of a provider's catalog, and how many configured things it does not sell.
func (e Exporter) CatalogAge(provider prego.InfraProviderID, configured server.Catalog, read func(context.Context, prego.InfraProviderID) (server.CatalogState, error)) prometheus.Collector {
	return newExport(e, time.Minute, "the stored catalog was not read", func(ctx context.Context) (server.CatalogState, error) { return read(ctx, provider) },
		[]gauge{
			{prego.MetricCatalogRefreshed, "When the provider last reported what it sells; 0 for never.", []string{"provider"}},
			{prego.MetricCatalogProblems, "Configured machine types, locations and images that the provider can't deliver, by kind.", []string{"provider", "kind"}},
		},
		func(put put, state server.CatalogState, _ time.Time) {
			at := 0.0
			if state.Known() {
				at = float64(state.RefreshedAt.Unix())
			}
			put(prego.MetricCatalogRefreshed, at, string(provider))
			count := map[string]int{"server_type": 0, "location": 0, "image": 0}
			for _, p := range state.Problems(configured, e.Now()) {
				count[p.Kind]++
			}
			for kind, n := range count {
				put(prego.MetricCatalogProblems, float64(n), string(provider), kind)
			}
		})
}

// Certificates exports when the first certificate ends, and how many are in which state.
func (e Exporter) Certificates(read func(context.Context) (tenant.CertificateCounts, error)) prometheus.Collector {
	return newExport(e, 30*time.Second, "certificates are not counted", read,
		[]gauge{
			{prego.MetricCertificateEnds, "How long until the first certificate ends that is renewed; negative once it has. Absent without any.", nil},
			{prego.MetricCertificates, "Certificates by state; failing are active ones whose renewal failed.", []string{"state"}},
		},
		func(put put, n tenant.CertificateCounts, at time.Time) {
			if at.IsZero() {
				return
			}
			if n.FirstEnd != 0 {
				put(prego.MetricCertificateEnds, n.FirstEnd-float64(e.Now().UnixMilli())/1000)
			}
			for state, value := range map[string]int{"active": n.Active, "pending": n.Pending, "failed": n.Failed, "failing": n.Failing} {
				put(prego.MetricCertificates, float64(value), state)
			}
		})
}

// Cordoned exports how many servers are closed to new tenants and instances: each is paid for, and has room that
// nothing uses.
func (e Exporter) Cordoned(read func(context.Context) ([]server.Count, error)) prometheus.Collector {
	const cordoned = "prego_servers_cordoned"
	return newExport(e, 30*time.Second, "cordoned servers are not counted", read,
		[]gauge{{cordoned, "Servers that take no new tenants and instances, by region and role.", []string{"region", "role"}}},
		func(put put, counts []server.Count, _ time.Time) {
			for _, n := range counts {
				put(cordoned, float64(n.N), string(n.Region), string(n.Role))
			}
		})
}

// Maintenances exports what empties servers.
func (e Exporter) Maintenances(read func(context.Context) ([]server.MaintenanceCount, error)) prometheus.Collector {
	const maintenances = "prego_server_maintenances"
	labels := []string{"kind", "status"}
	return newExport(e, 30*time.Second, "maintenances are not counted", read,
		[]gauge{
			{maintenances, "Maintenances of servers that are under way, by kind and status.", labels},
			{prego.MetricMaintenancesStuck, "Maintenances of servers that are stuck, or were requested more than 6 hours ago, by kind and status.", labels},
		},
		func(put put, counts []server.MaintenanceCount, _ time.Time) {
			for _, n := range counts {
				put(maintenances, float64(n.N), string(n.Kind), string(n.Status))
				put(prego.MetricMaintenancesStuck, float64(n.Stuck), string(n.Kind), string(n.Status))
			}
		})
}

// Patches exports which servers lack security updates.
func (e Exporter) Patches(read func(context.Context) ([]server.PatchCount, error)) prometheus.Collector {
	const patches = "prego_servers_patches"
	return newExport(e, 30*time.Second, "security updates are not counted", read,
		[]gauge{
			{patches, "Servers by the state of their security updates: current, pending, reboot (needed), unknown.", []string{"region", "role", "state"}},
			{prego.MetricUnpatched, "Servers that have lacked security updates, or a reboot, for more than 14 days.", []string{"region", "role"}},
		},
		func(put put, counts []server.PatchCount, _ time.Time) {
			late := map[[2]string]int{}
			for _, n := range counts {
				put(patches, float64(n.N), n.Region, n.Role, string(n.State))
				late[[2]string{n.Region, n.Role}] += n.Late
			}
			for of, n := range late {
				put(prego.MetricUnpatched, float64(n), of[0], of[1])
			}
		})
}

// Costs exports what the month has cost so far, and what no row owns.
func (e Exporter) Costs(read func(ctx context.Context, month time.Time) (cost.Numbers, error)) prometheus.Collector {
	labels := []string{"kind", "currency"}
	return newExport(e, 5*time.Minute, "costs are not read", func(ctx context.Context) (cost.Numbers, error) { return read(ctx, cost.MonthOf(e.Now())) },
		[]gauge{
			{prego.MetricCostMonth, "What this calendar month (UTC) has cost so far, net, by kind of resource and currency.", labels},
			{prego.MetricCostMonthIdle, "The part of it for capacity that was not used.", labels},
			{prego.MetricUntracked, "Resources at the provider that no row owns, by kind.", []string{"kind"}},
			{prego.MetricUnpriced, "Billed resources whose price is not known; costs lack them.", nil},
			{prego.MetricCostsCounted, "Until when what is billed has been counted; 0 for never.", nil},
		},
		func(put put, n cost.Numbers, at time.Time) {
			if at.IsZero() {
				return
			}
			for _, k := range n.Kinds {
				put(prego.MetricCostMonth, k.Cost.Float(), k.Kind, k.Currency)
				put(prego.MetricCostMonthIdle, k.Idle.Float(), k.Kind, k.Currency)
			}
			for _, u := range n.Untracked {
				put(prego.MetricUntracked, float64(u.N), u.Kind)
			}
			counted := 0.0
			if n.AsOf != nil {
				counted = float64(n.AsOf.Unix())
			}
			put(prego.MetricUnpriced, float64(n.Unpriced))
			put(prego.MetricCostsCounted, counted)
		})
}

// LookAge exports when each look last happened.
func (e Exporter) LookAge(read func(context.Context) ([]ops.LookState, error)) prometheus.Collector {
	const found, took = "prego_look_found_timestamp_seconds", "prego_look_duration_seconds"
	labels := []string{"look"}
	return newExport(e, 5*time.Second, "the ages of looks are not read", read,
		[]gauge{
			{prego.MetricLookedAt, "When a worker last looked whether there is something to do; 0 for never.", labels},
			{found, "When a look last found something to do; 0 for never.", labels},
			{prego.MetricLookInterval, "How long from the beginning of one look to that of the next.", labels},
			{took, "How long the last look took.", labels},
			{prego.MetricLookFailing, "Whether the last look failed.", labels},
		},
		func(put put, looks []ops.LookState, _ time.Time) {
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
				put(prego.MetricLookedAt, at(l.LookedAt), l.Look)
				put(found, at(l.FoundAt), l.Look)
				put(prego.MetricLookInterval, l.EverySeconds, l.Look)
				put(took, l.TookSeconds, l.Look)
				put(prego.MetricLookFailing, failing, l.Look)
			}
		})
}

const (
	usageEvery = time.Minute // the source reads every org
	// restOfOrgs stands for all orgs without metrics by name. It is not a valid org id: those contain no underscore.
	restOfOrgs = "_rest"
)

// OrgUsage exports the usage of the n orgs nearest to a limit, and the sum of all others: at most (n+1) times the
// number of dimensions of each metric, however many orgs there are.
func (e Exporter) OrgUsage(n int, read func(ctx context.Context, n int) ([]org.Usage, error)) prometheus.Collector {
	labels := []string{"org", "dimension"}
	return newExport(e, usageEvery, "usage of orgs not read", func(ctx context.Context) ([]org.Usage, error) { return read(ctx, n) },
		[]gauge{
			{prego.MetricOrgQuotaUsage, "What an org uses of a dimension; of org _rest what all others use together.", labels},
			{prego.MetricOrgQuotaLimit, "An org's limit of a dimension; of org _rest the sum of the others'.", labels},
			{prego.MetricOrgQuotaRatio, "The part of a limit that an org uses, of the orgs that are nearest to one of theirs.", labels},
			{prego.MetricOrgQuotaReadAge, "Seconds since the usage of orgs was read.", nil},
		},
		func(put put, usage []org.Usage, read time.Time) {
			if read.IsZero() {
				return
			}
			put(prego.MetricOrgQuotaReadAge, e.Now().Sub(read).Seconds())
			for _, u := range usage {
				org := u.OrgID
				if org == "" {
					org = restOfOrgs
				} else {
					put(prego.MetricOrgQuotaRatio, u.Ratio(), string(org), u.Dimension)
				}
				put(prego.MetricOrgQuotaUsage, u.Usage, string(org), u.Dimension)
				put(prego.MetricOrgQuotaLimit, u.Limit, string(org), u.Dimension)
			}
		})
}
