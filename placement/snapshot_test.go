package placement_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
)

func ownNode(id prego.ServerID, status server.Status) placement.Server {
	return placement.Server{ServerID: id, Role: prego.RoleNode, Region: "eu", InfraProvider: "hetzner", Status: status, DedicatedFor: "t"}
}

// TestAnOldServerOfATenantHidesNotItsNewOne retries a tenant: the server of the
// generation before is on its way out while the new one comes to life.
func TestAnOldServerOfATenantHidesNotItsNewOne(t *testing.T) {
	t.Parallel()
	p := placement.DefaultPolicy() // one tenant, one server
	for name, follow := range map[string]func(f *placement.Snapshot, providers []placement.Provider){
		"the old one is gone": func(f *placement.Snapshot, pr []placement.Provider) {
			f.Update(placement.Change{Providers: pr, Servers: []placement.Server{ownNode("n-t-g1", server.Terminated)}})
		},
		"the old one drains": func(f *placement.Snapshot, pr []placement.Provider) {
			f.Update(placement.Change{Providers: pr, Servers: []placement.Server{ownNode("n-t-g1", server.Decommissioning)}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := fleet()
			d.Servers = []placement.Server{ownNode("n-t-g1", server.Decommissioning), ownNode("n-t-g2", server.Active)}
			f := placement.NewSnapshot(p, d)
			require.Equal(t, "n-t-g2", string(f.Decide(request(nil)).AppServerID))
			follow(f, d.Providers)
			got := f.Decide(request(nil))
			require.Equal(t, placement.OnDemandSite, got.Outcome, "%+v", got)
			require.Equal(t, "n-t-g2", string(got.AppServerID))
		})
	}
}

// TestATenantDoesNotWaitForTheServerItMovesTo: its other server was lost during the move, whose end waits until the
// tenant is restored.
func TestATenantDoesNotWaitForTheServerItMovesTo(t *testing.T) {
	t.Parallel()
	d := fleet()
	to := ownNode("spare", server.Active)
	to.TenantCount = 1
	d.Servers = append(d.Servers, to)
	got := placement.NewSnapshot(shared(), d).Decide(request(nil))
	require.Equal(t, "app-2", string(got.AppServerID), "%+v", got)

	d.Servers[len(d.Servers)-1].TenantCount = 0
	got = placement.NewSnapshot(shared(), d).Decide(request(nil))
	require.Equal(t, "spare", string(got.AppServerID), "%+v", got)
}

// TestTheFleetFollowsItsProviders: a server's cloud is also checked again when the cloud changes.
func TestTheFleetFollowsItsProviders(t *testing.T) {
	t.Parallel()
	d := fleet()
	aws := placement.Provider{ID: "aws", Enabled: true, Regions: []prego.Region{"eu"}}
	d.Servers[1].InfraProvider = "aws"
	d.Providers = append(d.Providers, aws)
	f := placement.NewSnapshot(shared(), d)
	require.Equal(t, "app-2", string(f.Decide(request(nil)).AppServerID))
	off := aws
	off.Enabled = false
	f.Update(placement.Change{Providers: []placement.Provider{d.Providers[0], off}, Residency: d.Residency})
	require.Equal(t, "app-1", string(f.Decide(request(nil)).AppServerID))
	f.Update(placement.Change{Providers: []placement.Provider{d.Providers[0], aws}, Residency: d.Residency})
	require.Equal(t, "app-2", string(f.Decide(request(nil)).AppServerID))
}

// TestNoOverrideSharesADedicatedRedis: the transaction takes none either, however
// often it is asked.
func TestNoOverrideSharesADedicatedRedis(t *testing.T) {
	t.Parallel()
	d := fleet()
	d.Servers = append(d.Servers, placement.Server{ServerID: "node", Role: prego.RoleNode, Region: "eu", InfraProvider: "hetzner", Status: "active", TenantCount: 1})
	got := placement.NewSnapshot(shared(), d).Decide(request(func(r *placement.Request) {
		r.Plan, r.DedicatedRedis = prego.PlanBusiness, true
		r.Override = &placement.Override{AppServerID: "node", Reason: "r"}
	}))
	require.Equal(t, placement.Refused, got.Outcome)
	require.Equal(t, prego.CodeInvariantViolation, got.Code)
}

// TestEveryServerOfAFamilyIsKin: among them the ranking decides.
func TestEveryServerOfAFamilyIsKin(t *testing.T) {
	t.Parallel()
	d := fleet()
	d.Servers[0].MemoryPct = 10
	for i := range d.Servers {
		d.Servers[i].ParentOrgs = map[string]int{"p": 1}
	}
	kin := request(func(r *placement.Request) { r.ParentOrgID = "p" })
	f := placement.NewSnapshot(shared(), d)
	require.Equal(t, "app-1", string(f.Decide(kin).AppServerID))
	d.Servers[0].ParentOrgs = nil
	f.Update(placement.Change{Providers: d.Providers, Servers: d.Servers[:1]})
	require.Equal(t, "app-2", string(f.Decide(kin).AppServerID), "a server that they left does not count")
}

// TestSitesAreCountedOnce, by shard, and in the order of shards.
func TestSitesAreCountedOnce(t *testing.T) {
	t.Parallel()
	d := fleet()
	d.Servers, d.Sites = d.Servers[:1], nil
	d.Shards = append(d.Shards, d.Shards[0])
	d.Shards[1].ShardID = "db-0"
	f := placement.NewSnapshot(shared(), d)
	for _, s := range [][2]string{{"s-1", "db-1"}, {"s-1", "db-1"}, {"s-2", "db-1"}, {"s-0", "db-0"}} {
		f.AddSite(placement.PoolSite{PoolSiteID: s[0], AppServerID: "app-1", DBShardID: prego.ShardID(s[1])})
	}
	require.Equal(t, 3, f.Sites("app-1"))
	got := f.Decide(request(func(r *placement.Request) { r.Algorithm = placement.FirstFit }))
	require.Equal(t, []string{"db-0", "s-0"}, []string{string(got.DBShardID), got.PoolSiteID})
	f.RemoveSite("app-9", "s-1")
	f.RemoveSite("app-1", "s-9")
	require.Equal(t, 3, f.Sites("app-1"))
	f.RemoveSite("app-1", "s-1")
	f.RemoveSite("app-1", "s-2")
	f.RemoveSite("app-1", "s-0")
	require.Zero(t, f.Sites("app-1"))
	require.Equal(t, placement.OnDemandSite, f.Decide(request(nil)).Outcome)
}

// TestApplyingCountsATenant: on its server, shard and pool, once.
func TestApplyingCountsATenant(t *testing.T) {
	t.Parallel()
	f := placement.NewSnapshot(shared(), fleet())
	r := request(func(r *placement.Request) { r.ParentOrgID = "p" })
	for range 2 {
		f.Apply(r, f.Decide(r))
	}
	server, _ := f.Server("app-2")
	shard, _ := f.Shard("db-1")
	pool, _ := f.Pool("redis-1")
	require.Equal(t, []int{3, 6, 6}, []int{server.TenantCount, shard.Tenants, pool.Tenants})
	require.Equal(t, []int{1, 2}, []int{server.ParentOrgs["p"], shard.ParentOrgs["p"]})
	require.Zero(t, f.Sites("app-1")+f.Sites("app-2"))

	// A place of a journal whose parts are gone.
	place := placement.KeptPlace{Outcome: "placed", AppServerID: "app-9", DBShardID: "db-9", RedisPoolID: "redis-9"}
	f.Apply(r, placement.Decision{KeptPlace: place})
	_, there := f.Server("app-9")
	_, shardThere := f.Shard("db-9")
	_, poolThere := f.Pool("redis-9")
	_, poolUnnamed := f.Pool("")
	_, shardUnnamed := f.Shard("")
	require.Equal(t, [5]bool{}, [5]bool{there, shardThere, poolThere, poolUnnamed, shardUnnamed})
}
