package activities_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	fleet "github.com/prego/prego/lab/placing"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placer"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// placing is a fleet on a real database, with what steps need of it.
type placing struct {
	f     *fleet.Fleet
	t     testing.TB
	pool  *pgxpool.Pool
	store *store.Store
}

func newPlacing(t testing.TB, conns int32) *placing {
	f := fleet.New(t, conns)
	return &placing{f: f, t: t, pool: f.Pool, store: f.Store}
}

func (p *placing) exec(sql string, args ...any)       { p.t.Helper(); p.f.Exec(sql, args...) }
func (p *placing) number(sql string, args ...any) int { p.t.Helper(); return p.f.Number(sql, args...) }
func (p *placing) text(sql string) string             { p.t.Helper(); return p.f.Text(sql) }
func (p *placing) sites(server, shard string, n int)  { p.t.Helper(); p.f.Sites(server, shard, n) }

func (p *placing) tagged(id prego.ServerID, tags ...string) { p.t.Helper(); p.f.Tagged(id, tags...) }
func (p *placing) run(id prego.TenantID) tenant.Run         { p.t.Helper(); return p.f.Run(id) }
func (p *placing) recount()                                 { p.t.Helper(); p.f.Recount() }

func (p *placing) server(id prego.ServerID, role prego.Role, lock prego.Plan) {
	p.t.Helper()
	p.f.Server(id, role, lock)
}

func (p *placing) orgPool(org, name string, c prego.Constraint) {
	p.t.Helper()
	p.f.OrgPool(org, name, c)
}

func (p *placing) tenant(plan prego.Plan, change func(*tenant.CreateRequest)) tenant.Tenant {
	p.t.Helper()
	return p.f.Tenant(plan, change)
}

func (p *placing) placer(change func(*placement.Policy)) *placer.Placer {
	policy := placement.DefaultPolicy()
	policy.Mode = tenant.ModeShared
	if change != nil {
		change(&policy)
	}
	return &placer.Placer{
		Store: p.store, Policy: policy, SiteDomain: "sites.test", ReserveFor: time.Minute,
		Metrics: placer.NewMetrics(prometheus.NewRegistry()),
	}
}
