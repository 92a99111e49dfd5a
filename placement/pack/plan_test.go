package pack

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

func TestPlanCountsWhatTenantsTake(t *testing.T) {
	t.Parallel()
	pct := func(v float64) *float64 { return &v }
	monthly := func(v string) server.PeriodPrice { return server.PeriodPrice{Monthly: server.Price{Net: v}} }
	catalog := server.CatalogState{}
	catalog.Currency = "EUR"
	catalog.ServerTypes = []server.OfferedType{{Name: "cx32", MemoryGB: 8, DiskGB: 80, At: []server.OfferedAt{{Location: "fsn1", PeriodPrice: monthly("6.80")}}}}
	catalog.IPv4 = map[string]server.PeriodPrice{"fsn1": monthly("0.50")}
	app := func(id string, memory float64) server.PackedServer {
		return server.PackedServer{
			ServerID: prego.ServerID(id), Region: "eu", NetworkID: "net-1", InfraProvider: "hetzner", ServerType: "cx32", Location: "fsn1",
			MemoryPct: pct(memory), DiskPct: pct(20), Takes: true, Leaves: true,
		}
	}
	f := server.PackedFleet{
		// An empty one uses 30 %, so two tenants that make it 50 take 10 % each.
		Servers: []server.PackedServer{app("app-1", 50), app("app-2", 40), app("idle", 30), app("silent", 0), app("tagged", 40)},
		Tenants: []server.PackedTenant{
			{TenantID: "t-1", ServerID: "app-1", Bytes: 1e9},
			{TenantID: "t-2", ServerID: "app-1", Bytes: 1e9},
			{TenantID: "t-3", ServerID: "app-2", Bytes: 2e9},
			{TenantID: "t-4", ServerID: "silent"},
			{TenantID: "t-5", ServerID: "tagged", Bytes: 1},
		},
	}
	f.Servers[3].MemoryPct = nil
	f.Servers[4].Tags = []string{"gdpr"}
	now := time.Unix(1e9, 0)
	plan := func(memory float64, r server.PackingRequest) server.PackingPlan {
		p, err := Plan(f, map[prego.InfraProviderID]server.CatalogState{"hetzner": catalog}, Usable{MemoryPct: memory, DiskPct: 80}, r, now)
		require.NoError(t, err)
		if len(p.Moves) > 0 {
			require.NoError(t, p.Validate(), "the plan can be submitted")
		}
		return p
	}
	got := plan(70, server.PackingRequest{})
	require.Equal(t, server.PackingPlan{
		MadeAt: now, Servers: 3, Needed: 2, Bytes: 2e9, Monthly: 7.3, Currency: "EUR", Unknown: []prego.ServerID{"silent"},
		Moves: []server.PlannedMove{{TenantID: "t-3", From: "app-2", To: "app-1", Bytes: 2e9}},
		Frees: []server.FreedServer{{ServerID: "app-2", Monthly: 7.3, Moves: 1, Bytes: 2e9}},
	}, got, "as many bytes either way, in fewer moves")
	require.Empty(t, plan(55, server.PackingRequest{}).Moves, "60 % would be too much")
	require.Empty(t, plan(70, server.PackingRequest{MaxBytes: 1e9}).Moves)
	full, err := Plan(f, map[prego.InfraProviderID]server.CatalogState{"hetzner": catalog}, Usable{MemoryPct: 70, DiskPct: 80, Tenants: 2}, server.PackingRequest{}, now)
	require.NoError(t, err)
	require.Empty(t, full.Moves, "no tenant moves to a full server")
	require.Equal(t, 3, full.Needed)
	anyhow, err := Plan(f, map[prego.InfraProviderID]server.CatalogState{"hetzner": catalog}, Usable{MemoryPct: 70}, server.PackingRequest{}, now)
	require.NoError(t, err)
	require.Equal(t, got.Moves, anyhow.Moves, "files take room that is not looked at")
	f.Servers[0].FleetID = "web"
	require.Equal(t, prego.ServerID("app-1"), plan(70, server.PackingRequest{FleetID: "web"}).Frees[0].ServerID)
	require.Empty(t, plan(70, server.PackingRequest{FleetID: "other"}).Moves)
}

func TestTenantsBelow(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		most      int
		threshold float64
		want      int
	}{{20, 70, 13}, {20, 71, 14}, {20, 0, 20}, {20, 100, 19}, {1, 70, 1}, {2, 70, 1}, {8, 70, 5}, {10, 70, 6}} {
		got := TenantsBelow(v.most, v.threshold)
		require.Equal(t, v.want, got, "%d, %v %%", v.most, v.threshold)
		require.True(t, got == 1 || v.threshold == 0 || float64(got)/float64(v.most)*100 < v.threshold)
	}
}
