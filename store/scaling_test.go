package store

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// TestRequestedServerRecordsItsPurpose lets the step die right after the row is
// there, as it can at any moment: repeated, it still records it.
func TestRequestedServerRecordsItsPurpose(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	f := server.Wanted{
		ServerID: "n-t-1-g1", Role: prego.RoleNode, Region: prego.RegionEU, Provider: prego.ProviderHetzner, DedicatedFor: "t-1", PlanTierLock: prego.PlanBusiness,
	}
	// Whatever is written after the row is lost with the process.
	exec(t, s, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the process is gone'; END $$`)
	exec(t, s, `CREATE TRIGGER die BEFORE UPDATE ON servers FOR EACH ROW EXECUTE FUNCTION die()`)
	_, _ = s.RequestFleetServer(ctx, f, "tenant/t-1")
	exec(t, s, `DROP TRIGGER die ON servers`)
	_, err := s.RequestFleetServer(ctx, f, "tenant/t-1")
	require.NoError(t, err)
	own, err := s.OwnServers(ctx, "t-1")
	require.NoError(t, err)
	require.Equal(t, []string{"n-t-1-g1"}, own)
	require.Equal(t, 1, count(t, s, `servers WHERE plan_tier_lock = 'business'`))
	// Requested again when it is dedicated to another tenant, it stays so.
	exec(t, s, `UPDATE servers SET dedicated_for_tenant_id = 't-2'`)
	_, err = s.RequestFleetServer(ctx, f, "tenant/t-1")
	require.NoError(t, err)
	require.Equal(t, 1, count(t, s, `servers WHERE dedicated_for_tenant_id = 't-2'`))
}

// TestAWarmPoolThatOnlyFailsOrdersNoMore: servers that never lived count as broken
// for a while, also after they were taken down.
func TestAWarmPoolThatOnlyFailsOrdersNoMore(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	require.NoError(t, s.PutWarmPool(ctx, prego.RegionEU, prego.PlanStarter, 2, "test"))
	for _, id := range []string{"w-1", "w-2", "w-3"} {
		_, err := s.RequestFleetServer(ctx, server.Wanted{ServerID: prego.ServerID(id), Role: prego.RoleNode, Region: prego.RegionEU, Provider: prego.ProviderHetzner, WarmPlan: prego.PlanStarter}, "test")
		require.NoError(t, err)
	}
	exec(t, s, `UPDATE servers SET status = 'draining' WHERE server_id IN ('w-1', 'w-3')`)
	exec(t, s, `UPDATE servers SET status = 'terminated' WHERE server_id = 'w-2'`)
	exec(t, s, `UPDATE servers SET active_at = now() WHERE server_id = 'w-3'`) // it lived, and was taken down for another reason
	w, err := s.WarmPool(ctx, prego.RegionEU, prego.PlanStarter, "")
	require.NoError(t, err)
	require.Equal(t, 2, w.Broken)
	exec(t, s, `UPDATE servers SET created_at = now() - interval '2 hours'`)
	w, err = s.WarmPool(ctx, prego.RegionEU, prego.PlanStarter, "")
	require.NoError(t, err)
	require.Zero(t, w.Broken, "it is tried again")
}

// TestAPlacedTenantWaitsForNothing records a wait that was decided on before
// another process placed the tenant.
func TestAPlacedTenantWaitsForNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	_, _, err := s.CreateTenant(ctx, tenantRequest(t, "one", prego.PlanStarter), "t-1", tenant.ModeShared, "", "someone")
	require.NoError(t, err)
	placeOnNode(t, s, "t-1", "n-1")
	err = s.AwaitTenant(ctx, tenant.Ref{TenantID: "t-1", Generation: 1}, prego.ReasonAwaitingCapacity, "", []prego.Role{prego.RoleApp}, "", true)
	require.ErrorIs(t, err, ErrPlaced)
	require.Zero(t, count(t, s, `tenants WHERE waiting_since IS NOT NULL OR status_reason <> ''`))
}

// placeOnNode reserves a dedicated node for a tenant.
func placeOnNode(t testing.TB, s *Store, tenantID prego.TenantID, server string) {
	t.Helper()
	warmNode(t, s, prego.ServerID(server))
	out, err := s.Reserve(context.Background(), tenant.Reservation{
		TenantID: tenantID, Generation: 1, AppServerID: prego.ServerID(server), DBShardID: prego.ShardID(server), RedisPoolID: prego.RedisPoolID(server), Mode: tenant.ModeOneTenantOneServer,
		MemoryPctMax: 70, MaxTenants: 20, Decision: []byte(`{}`), Policy: []byte(`{}`), Dedicates: true,
	})
	require.NoError(t, err)
	require.Equal(t, tenant.ReservePlaced, out.Outcome)
}

// TestALostRunIsFoundInTheQueue: that the queue is looked through again and again is
// no sign of life of the runs that wait in it.
func TestALostRunIsFoundInTheQueue(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	_, _, err := s.CreateTenant(ctx, tenantRequest(t, "one", prego.PlanStarter), "t-1", tenant.ModeShared, "", "someone")
	require.NoError(t, err)
	ref := tenant.Ref{TenantID: "t-1", Generation: 1}
	require.NoError(t, s.AwaitTenant(ctx, ref, prego.ReasonAwaitingCapacity, "", []prego.Role{prego.RoleApp}, "", true))
	exec(t, s, `UPDATE tenants SET updated_at = now() - interval '2 minutes'`)
	require.NoError(t, s.AwaitTenant(ctx, ref, prego.ReasonAwaitingCapacity, "again", []prego.Role{prego.RoleDBShard}, "", true))
	require.Equal(t, 1, count(t, s, `tenants WHERE waiting_roles = '{db-shard}' AND status_message = 'again'`))
	w, _, err := s.FindTenantWork(ctx, 60e9, 60e9)
	require.NoError(t, err)
	require.Empty(t, w.Provisions, "it waits without a run")
	require.Equal(t, []prego.Region{prego.RegionEU}, w.Regions)
	exec(t, s, `UPDATE tenants SET cancel_requested_at = now()`)
	w, _, err = s.FindTenantWork(ctx, 60e9, 60e9)
	require.NoError(t, err)
	require.Len(t, w.Provisions, 1, "a run that was about to end may have missed this")
	exec(t, s, `UPDATE tenants SET cancel_requested_at = NULL, waiting_since = NULL`)
	w, _, err = s.FindTenantWork(ctx, 60e9, 60e9)
	require.NoError(t, err)
	require.Len(t, w.Provisions, 1, "it has its place")
}

// TestAZoneNamesItsProvidersOrAllowsAll: an empty list would be every cloud to the
// decision and none to the reservation, which would never agree.
func TestAZoneNamesItsProvidersOrAllowsAll(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	_, err := s.pool.Exec(context.Background(), `UPDATE residency_zones SET providers = '{}' WHERE country = 'DE'`)
	require.ErrorContains(t, err, "providers")
	exec(t, s, `UPDATE residency_zones SET providers = NULL WHERE country = 'DE'`)
	exec(t, s, `UPDATE residency_zones SET providers = '{hetzner}' WHERE country = 'DE'`)
}

// TestServersThatMeasureAsFullAreNotBoughtForEver: servers that are empty and measure as full
// help no tenant. A few may be broken; after three, buying more of their kind would be useless.
func TestServersThatMeasureAsFullAreNotBoughtForEver(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	room := func() map[prego.Plan]int {
		o, err := s.ShortOf(context.Background(), prego.RegionEU, prego.RoleDBShard, 20, 80, tenant.MeasuredLimits{CPUPctMax: 80, WorkerSlotsPctMax: 80, DBDiskPctMax: 80, RedisMemoryPctMax: 80})
		require.NoError(t, err)
		return o.Room
	}
	for i := range 3 {
		require.Empty(t, room(), "%d are no reason to stop", i)
		id := prego.ServerID(fmt.Sprintf("db-%d", i))
		exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, active_at)
			VALUES ($1, '', 'db-shard', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', now())`, id)
		exec(t, s, `INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity) VALUES ($1, $1, 'eu', 10)`, id)
		exec(t, s, `UPDATE servers SET db_disk_pct = 93 WHERE server_id = $1`, id)
	}
	require.Len(t, room(), 1, "what they could take counts as room, so nothing is made")
	exec(t, s, `UPDATE db_shards SET current_tenant_count = 1 WHERE server_id = 'db-1'`)
	require.Empty(t, room(), "a server in use is really full")
}
