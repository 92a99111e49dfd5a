package placer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placer"
	"github.com/prego/prego/tenant"
)

type adviser func(ctx context.Context, ask placement.AdviceRequest) (placement.Advice, error)

func (a adviser) Advise(ctx context.Context, ask placement.AdviceRequest) (placement.Advice, error) {
	return a(ctx, ask)
}

// TestAnAdviserProposes: an allowed proposal is taken and recorded as a proposal. Any other behaviour of the adviser
// costs at most its time.
func TestAnAdviserProposes(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 8)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("app-1", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	p.Exec(`UPDATE servers SET memory_pct = 60 WHERE server_id = 'app-1'`)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for name, tc := range map[string]struct {
		adviser placer.Adviser
		server  string
		counted string
	}{
		"none": {server: "app-0"},
		"a proposal": {server: "app-1", counted: "taken", adviser: adviser(func(_ context.Context, ask placement.AdviceRequest) (placement.Advice, error) {
			return placement.Advice{AppServerID: ask.Candidates[len(ask.Candidates)-1].AppServerID, Reason: "because"}, nil
		})},
		"garbage": {server: "app-0", counted: "ignored", adviser: adviser(func(context.Context, placement.AdviceRequest) (placement.Advice, error) {
			return placement.Advice{AppServerID: "app-1'; DROP TABLE tenants", DBShardID: "\x00"}, nil
		})},
		"an error": {server: "app-0", counted: "failed", adviser: adviser(func(context.Context, placement.AdviceRequest) (placement.Advice, error) {
			return placement.Advice{AppServerID: "app-1"}, errors.New("no")
		})},
		"a panic": {server: "app-0", counted: "failed", adviser: adviser(func(context.Context, placement.AdviceRequest) (placement.Advice, error) {
			panic("no")
		})},
		"silence that heeds no context": {server: "app-0", counted: "late", adviser: adviser(func(context.Context, placement.AdviceRequest) (placement.Advice, error) {
			<-release
			return placement.Advice{AppServerID: "app-1"}, nil
		})},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: they share the fleet
			pl := p.Placer(nil)
			reg := prometheus.NewRegistry()
			pl.Metrics = placer.NewMetrics(reg)
			pl.Adviser, pl.AdviceWithin = tc.adviser, 300*time.Millisecond
			tn := p.Tenant(prego.PlanStarter, nil)
			d, err := pl.Place(context.Background(), tenant.Record{Tenant: tn}, nil, "test")
			require.NoError(t, err)
			require.Equal(t, tc.server, string(d.AppServerID))
			want := "best_fit"
			if tc.counted == "taken" {
				want = "ai_recommended"
			}
			var algorithm, audited string
			require.NoError(t, p.Pool.QueryRow(context.Background(), `SELECT a.algorithm, s.algorithm FROM tenant_allocations a JOIN allocation_snapshots s USING (allocation_id) WHERE a.tenant_id = $1`, tn.TenantID).Scan(&algorithm, &audited))
			require.Equal(t, []string{want, want}, []string{algorithm, audited})
			counted := map[string]float64{}
			families, err := reg.Gather()
			require.NoError(t, err)
			for _, f := range families {
				for _, m := range f.GetMetric() {
					if f.GetName() == "prego_placement_advice_total" {
						counted[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
					}
				}
			}
			asked := map[string]float64{}
			if tc.counted != "" {
				asked[tc.counted] = 1
			}
			require.Equal(t, asked, counted)
			require.NoError(t, p.Store.FreePlace(context.Background(), tn.TenantID, "left", "", tenant.SiteUntouched, nil))
		})
	}
	// An operator's override and a single candidate need no adviser.
	pl := p.Placer(nil)
	pl.Adviser = adviser(func(context.Context, placement.AdviceRequest) (placement.Advice, error) {
		t.Error("asked")
		return placement.Advice{}, nil
	})
	pl.AdviceWithin = time.Second
	d, err := pl.Place(context.Background(), tenant.Record{Tenant: p.Tenant(prego.PlanBusiness, nil)}, nil, "test")
	require.NoError(t, err)
	require.Equal(t, placement.AwaitingCapacity, d.Outcome)
	d, err = pl.Place(context.Background(), tenant.Record{Tenant: p.Tenant(prego.PlanStarter, nil)}, &placement.Override{AppServerID: "app-0", Reason: "x"}, "test")
	require.NoError(t, err)
	require.Equal(t, placement.Manual, d.Algorithm)
}

// TestAnAdviserLosesToWhatChanged: what passed when it was asked is held against the
// rows, as any decision is.
func TestAnAdviserLosesToWhatChanged(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 8)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("app-1", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	pl := p.Placer(nil)
	pl.AdviceWithin = time.Minute
	pl.Adviser = adviser(func(context.Context, placement.AdviceRequest) (placement.Advice, error) {
		p.Exec(`UPDATE servers SET dedicated_for_tenant_id = 'another' WHERE server_id = 'app-1'`)
		return placement.Advice{AppServerID: "app-1"}, nil
	})
	d, err := pl.Place(context.Background(), tenant.Record{Tenant: p.Tenant(prego.PlanStarter, nil)}, nil, "test")
	require.NoError(t, err)
	require.Equal(t, "app-0", string(d.AppServerID))
	require.Equal(t, placement.BestFit, d.Algorithm)
}
