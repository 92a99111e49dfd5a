package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// sharingBundle is a server of each role, in fleets that serve tenants and offer room to
// instances, and orgs with environments.
func sharingBundle(t *testing.T) *Store {
	t.Helper()
	s := groupBundle(t)
	exec(t, s, `UPDATE orgs SET tier = 'enterprise'`)
	exec(t, s, `UPDATE servers SET status = 'draining' WHERE server_id = 'node-1'`)
	for _, role := range []string{"app", "db-shard", "redis-pool", "node"} {
		exec(t, s, `INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by, workload_memory_bytes, workload_cpus, serves_tenants)
		            VALUES ($1, '', $1, 'hetzner', 0, -1, '{}', 'test', 10000::bigint * 1048576, 8, true)`, role)
		exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, fleet_id, location)
		            VALUES ($1 || '-0', '', $1, 'eu', 'hetzner', '{}', 'provisioning', 'connected', 'w', 'test', $1, 'fsn1')`, role)
	}
	exec(t, s, `UPDATE servers SET status = 'active', active_at = now() WHERE status = 'provisioning'`)
	return s
}

// lonely is a reservation of a tenant that gets three dedicated servers.
func lonely(tenantID prego.TenantID) tenant.Reservation {
	return tenant.Reservation{
		TenantID: tenantID, Generation: 1, AppServerID: "app-0", DBShardID: "db-shard-0", RedisPoolID: "redis-pool-0", SiteName: string(tenantID + ".test"), DatabaseName: string(tenantID),
		Mode: tenant.ModeOneTenantOneServer, Algorithm: "best_fit", AuditAs: "best_fit", MemoryPctMax: 70, MaxTenants: 20, ReserveFor: time.Minute,
		Decision: []byte(`{}`), Policy: []byte(`{}`), Actor: "test", Dedicates: true,
	}
}

func (s *Store) testTenant(t *testing.T, id prego.TenantID, plan prego.Plan, change func(*tenant.CreateRequest)) {
	t.Helper()
	r := tenantRequest(t, string(id), plan)
	if change != nil {
		change(&r)
	}
	_, _, err := s.CreateTenant(context.Background(), r, id, tenant.ModeShared, "", "test")
	require.NoError(t, err)
}

// wanting is a group that wants n instances.
func (s *Store) wanting(t *testing.T, n, replicas int) string {
	t.Helper()
	id, err := s.testGroup(t, n, "other", replicas, specOf(16))
	require.NoError(t, err)
	_, err = s.PlanGroup(context.Background(), prego.GroupID(id), time.Second)
	require.NoError(t, err)
	return id
}

const sqlSharedAlone = `(
	SELECT FROM tenant_allocations a
	JOIN servers s ON s.server_id = a.app_server_id JOIN db_shards d ON d.shard_id = a.db_shard_id JOIN redis_pools r ON r.pool_id = a.redis_pool_id
	WHERE a.released_at IS NULL AND EXISTS (SELECT FROM instances i WHERE i.state <> 'stopped' AND (
		i.server_id = s.server_id AND s.dedicated_for_tenant_id = a.tenant_id OR i.server_id = d.server_id AND d.dedicated_for_tenant_id = a.tenant_id
		OR i.server_id = r.server_id AND r.dedicated_for_tenant_id = a.tenant_id))) x`

// TestDedicatedTenantAndInstancesRace lets a tenant that needs dedicated servers and an instance take the same servers
// at the same moment: at most one of them gets them.
func TestDedicatedTenantAndInstancesRace(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := sharingBundle(t)
	group := s.wanting(t, 1, 1)
	servers := []string{"app-0", "db-shard-0", "redis-pool-0"}
	tenants, instances := 0, 0
	for i := range 120 {
		tenantID := fmt.Sprintf("t%d", i)
		s.testTenant(t, prego.TenantID(tenantID), prego.PlanStarter, nil)
		var wg sync.WaitGroup
		start := make(chan struct{})
		var reserved tenant.ReserveResult
		var allocated workload.InstanceAllocation
		var errs [2]error
		wg.Go(func() {
			<-start
			time.Sleep(time.Duration(i%7) * 150 * time.Microsecond)
			reserved, errs[0] = s.Reserve(ctx, lonely(prego.TenantID(tenantID)))
		})
		wg.Go(func() {
			<-start
			time.Sleep(time.Duration(i%5) * 150 * time.Microsecond)
			allocated, errs[1] = s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(group), ServerID: prego.ServerID(servers[i%3])}, time.Second)
		})
		close(start)
		wg.Wait()
		require.NoError(t, errs[0])
		require.NoError(t, errs[1])
		require.Zero(t, count(t, s, sqlSharedAlone), "%v and %v", reserved, allocated)
		if reserved.Outcome == tenant.ReservePlaced {
			tenants++
			require.Equal(t, 1, count(t, s, `db_shards WHERE dedicated_for_tenant_id = '`+tenantID+`'`))
			require.Equal(t, 1, count(t, s, `redis_pools WHERE dedicated_for_tenant_id = '`+tenantID+`'`))
			require.NoError(t, s.FreePlace(ctx, prego.TenantID(tenantID), "left", "", tenant.SiteUntouched, nil))
			require.Zero(t, count(t, s, `db_shards WHERE dedicated_for_tenant_id IS NOT NULL`))
		}
		if allocated.Outcome == workload.Allocated {
			instances++
			exec(t, s, `UPDATE instances SET state = 'stopped'`)
			exec(t, s, `UPDATE process_groups SET wanted = 1`)
		}
	}
	require.Positive(t, tenants)
	require.Positive(t, instances)
}

// TestDedicatedServersAreNotShared tries each way to take a dedicated server.
func TestDedicatedServersAreNotShared(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, tc := range map[string]struct {
		plan    prego.Plan
		request func(*tenant.CreateRequest)
		change  func(*tenant.Reservation)
		alone   []string // servers dedicated to the tenant from then on
		setUp   string
	}{
		"one tenant, one server": {plan: prego.PlanStarter, alone: []string{"app-0", "db-shard-0", "redis-pool-0"}},
		"enterprise, shared": {
			plan: prego.PlanEnterprise, alone: []string{"app-0", "db-shard-0", "redis-pool-0"},
			change: func(r *tenant.Reservation) { r.Mode, r.Dedicates = tenant.ModeShared, false },
		},
		"a node": {
			plan: prego.PlanStarter, alone: []string{"node-0"},
			change: func(r *tenant.Reservation) { r.AppServerID, r.DBShardID, r.RedisPoolID = "node-0", "node-0", "node-0" },
		},
		"a Redis pool by contract": {
			plan: prego.PlanBusiness, request: func(r *tenant.CreateRequest) { r.DedicatedRedis = true }, alone: []string{"redis-pool-0"},
			setUp: `UPDATE db_shards SET plan_tier_lock = 'business'`, change: func(r *tenant.Reservation) { r.Mode, r.Dedicates = tenant.ModeShared, false },
		},
		"an override of empty ones": {plan: prego.PlanStarter, alone: []string{"app-0", "db-shard-0", "redis-pool-0"}, change: func(r *tenant.Reservation) { r.Override = true }},
		"an override onto a shard that others use": {
			plan: prego.PlanStarter, alone: []string{"app-0", "redis-pool-0"}, change: func(r *tenant.Reservation) { r.Override = true },
			setUp: `UPDATE db_shards SET current_tenant_count = 3`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sharingBundle(t)
			if tc.setUp != "" {
				exec(t, s, tc.setUp)
			}
			s.testTenant(t, "t-1", tc.plan, tc.request)
			r := lonely("t-1")
			if tc.change != nil {
				tc.change(&r)
			}
			out, err := s.Reserve(ctx, r)
			require.NoError(t, err)
			require.Equal(t, tenant.ReservePlaced, out.Outcome, "%v", out)
			servers, err := s.InstanceServers(ctx, prego.RegionEU, nil)
			require.NoError(t, err)
			kept := []string{}
			for _, v := range servers {
				if v.Kept {
					kept = append(kept, string(v.ServerID))
				}
			}
			require.Equal(t, tc.alone, kept)
			group := s.wanting(t, 1, 4)
			for _, id := range []string{"app-0", "db-shard-0", "node-0", "redis-pool-0"} {
				want := workload.Allocated
				for _, alone := range tc.alone {
					if alone == id {
						want = workload.AllocationLost
					}
				}
				got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(group), ServerID: prego.ServerID(id)}, time.Second)
				require.NoError(t, err)
				require.Equal(t, want, got.Outcome, id)
			}
			// Nor by another tenant, in any mode, override or not.
			for i, mode := range []tenant.PlacementMode{tenant.ModeShared, tenant.ModeOneTenantOneServer} {
				for j, override := range []bool{false, true} {
					id := fmt.Sprintf("u-%d%d", i, j)
					s.testTenant(t, prego.TenantID(id), tc.plan, nil)
					o := r
					o.TenantID, o.Mode, o.Override, o.Dedicates = prego.TenantID(id), mode, override, false
					out, err := s.Reserve(ctx, o)
					require.NoError(t, err)
					require.Equal(t, tenant.ReserveLost, out.Outcome, "%s, override %t", mode, override)
				}
			}
		})
	}
}

// TestDedicationNeedsEmptyServers: servers with other tenants, or with an instance that runs, drains or failed, do not
// qualify.
func TestDedicationNeedsEmptyServers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := sharingBundle(t)
	group := s.wanting(t, 1, 1)
	s.testTenant(t, "t-1", prego.PlanStarter, nil)
	s.testTenant(t, "e-1", prego.PlanEnterprise, nil)
	refused := func(lost string) {
		t.Helper()
		for _, id := range []string{"t-1", "e-1"} {
			for _, override := range []bool{false, true} {
				if override && id == "t-1" {
					continue // may live with others
				}
				r := lonely(prego.TenantID(id))
				r.Override, r.Dedicates = override, false
				out, err := s.Reserve(ctx, r)
				require.NoError(t, err)
				require.Equal(t, tenant.ReserveLost, out.Outcome)
				require.Equal(t, lost, out.Lost)
			}
		}
	}
	for server, lost := range map[string]string{"app-0": "app_server", "db-shard-0": "db_shard", "redis-pool-0": "redis_pool"} {
		got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(group), ServerID: prego.ServerID(server)}, time.Second)
		require.NoError(t, err)
		require.Equal(t, workload.Allocated, got.Outcome)
		for _, state := range []string{"booting", "running", "draining", "failed"} {
			exec(t, s, `UPDATE instances SET state = $1 WHERE instance_id = $2`, state, got.InstanceID)
			refused(lost)
		}
		exec(t, s, `UPDATE instances SET state = 'stopped' WHERE instance_id = $1`, got.InstanceID)
		exec(t, s, `UPDATE process_groups SET wanted = 1`)
	}
	for table, lost := range map[string]string{"db_shards SET current_tenant_count": "db_shard", "redis_pools SET current_tenants": "redis_pool", "servers SET tenant_count": "app_server"} {
		exec(t, s, `UPDATE `+table+` = 1`)
		refused(lost)
		exec(t, s, `UPDATE `+table+` = 0`)
	}
	// An override that would dedicate a server finds it in use since it was decided on.
	got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(group), ServerID: "app-0"}, time.Second)
	require.NoError(t, err)
	require.Equal(t, workload.Allocated, got.Outcome)
	r := lonely("t-1")
	r.Override = true
	out, err := s.Reserve(ctx, r)
	require.NoError(t, err)
	require.Equal(t, "app_server", out.Lost)
	r.Dedicates = false // and shares it, as it may
	out, err = s.Reserve(ctx, r)
	require.NoError(t, err)
	require.Equal(t, tenant.ReservePlaced, out.Outcome)
	require.Zero(t, count(t, s, `servers WHERE dedicated_for_tenant_id IS NOT NULL`)+count(t, s, `db_shards WHERE dedicated_for_tenant_id IS NOT NULL`))
}

// TestInstancesLeaveDedicatedServers that they were placed on before dedication kept them off.
func TestInstancesLeaveDedicatedServers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := sharingBundle(t)
	group := s.wanting(t, 1, 1)
	got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(group), ServerID: "db-shard-0"}, time.Second)
	require.NoError(t, err)
	_, err = s.InstanceRunning(ctx, string(got.InstanceID))
	require.NoError(t, err)
	p, err := s.PlanGroup(ctx, prego.GroupID(group), time.Second)
	require.NoError(t, err)
	require.True(t, p.Settled)
	exec(t, s, `UPDATE db_shards SET dedicated_for_tenant_id = 't-1' WHERE shard_id = 'db-shard-0'`)
	_, err = s.PlanGroup(ctx, prego.GroupID(group), time.Second)
	require.NoError(t, err)
	require.Equal(t, 1, count(t, s, `process_groups WHERE wanted = 1`), "another comes in its place")
}

// TestSnapshotFollowsInstances: the first and the last instance of a server change what the server is to a
// tenant that needs a dedicated one, as do those of a shard's server.
func TestSnapshotFollowsInstances(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := sharingBundle(t)
	group := s.wanting(t, 1, 3)
	full, err := s.PlacementChanges(ctx, "", nil)
	require.NoError(t, err)
	fleet := placement.SnapshotOf(placement.DefaultPolicy(), full)
	since := full.Since
	seen := func() (app, shard, pool bool) {
		c, err := s.PlacementChanges(ctx, since, nil)
		require.NoError(t, err)
		since = c.Since
		fleet.Update(c)
		a, _ := fleet.Server("app-0")
		d, _ := fleet.Shard("db-shard-0")
		r, _ := fleet.Pool("redis-pool-0")
		return a.RunsInstances, d.RunsInstances, r.RunsInstances
	}
	var ids []string
	for i, server := range []string{"app-0", "db-shard-0", "redis-pool-0"} {
		got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(group), ServerID: prego.ServerID(server)}, time.Second)
		require.NoError(t, err)
		ids = append(ids, string(got.InstanceID))
		a, d, r := seen()
		require.Equal(t, []bool{true, i >= 1, i >= 2}, []bool{a, d, r})
	}
	for i, id := range ids {
		exec(t, s, `UPDATE instances SET state = 'draining' WHERE instance_id = $1`, id)
		_, err := s.InstanceStopped(ctx, id)
		require.NoError(t, err)
		a, d, r := seen()
		require.Equal(t, []bool{false, i < 1, i < 2}, []bool{a, d, r})
	}
}

// TestNonServingFleetGetsNoTenants in the snapshot, in the reservation and in the room for waiting tenants.
func TestNonServingFleetGetsNoTenants(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := sharingBundle(t)
	s.testTenant(t, "t-1", prego.PlanStarter, nil)
	full, err := s.PlacementChanges(ctx, "", nil)
	require.NoError(t, err)
	fleet := placement.SnapshotOf(placement.DefaultPolicy(), full)
	r := lonely("t-1")
	r.Mode, r.Dedicates = tenant.ModeShared, false
	off := false
	for _, tc := range []struct {
		fleet, lost string
		role        prego.Role
		refuses     func() bool
	}{
		{"app", "app_server", prego.RoleApp, func() bool { v, _ := fleet.Server("app-0"); return v.NotServing }},
		{"db-shard", "db_shard", prego.RoleDBShard, func() bool { v, _ := fleet.Shard("db-shard-0"); return v.NotServing }},
		{"redis-pool", "redis_pool", prego.RoleRedisPool, func() bool { v, _ := fleet.Pool("redis-pool-0"); return v.NotServing }},
	} {
		room := func() (n int) {
			o, err := s.ShortOf(ctx, prego.RegionEU, tc.role, 20, 70, tenant.MeasuredLimits{})
			require.NoError(t, err)
			for _, v := range o.Room {
				n += v
			}
			return n
		}
		require.Positive(t, room())
		serves := !off
		_, err := s.UpdateFleet(ctx, prego.FleetID(tc.fleet), server.UpdateFleetRequest{Serves: &off})
		require.NoError(t, err)
		c, err := s.PlacementChanges(ctx, full.Since, nil)
		require.NoError(t, err)
		fleet.Update(c)
		require.True(t, tc.refuses(), "the snapshot follows")
		out, err := s.Reserve(ctx, r)
		require.NoError(t, err)
		require.Equal(t, tc.lost, out.Lost)
		require.Zero(t, room())
		_, err = s.UpdateFleet(ctx, prego.FleetID(tc.fleet), server.UpdateFleetRequest{Serves: &serves})
		require.NoError(t, err)
	}
	// Servers set aside for the tenant stay dedicated to it, regardless of later changes to the fleet.
	_, err = s.UpdateFleet(ctx, "app", server.UpdateFleetRequest{Serves: &off})
	require.NoError(t, err)
	exec(t, s, `UPDATE servers SET dedicated_for_tenant_id = 't-1' WHERE server_id = 'app-0'`)
	out, err := s.Reserve(ctx, r)
	require.NoError(t, err)
	require.Equal(t, tenant.ReservePlaced, out.Outcome)
}

// TestReserveChecksMeasuresAgain: a reservation checks what agents reported since its decision. Missing values refuse
// no tenant, and neither does a limit of 0.
func TestReserveChecksMeasuresAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := sharingBundle(t)
	s.testTenant(t, "t-1", prego.PlanStarter, nil)
	s.testTenant(t, "t-2", prego.PlanStarter, nil)
	r := lonely("t-1")
	r.Mode, r.Dedicates = tenant.ModeShared, false
	limits := tenant.MeasuredLimits{CPUPctMax: 85, WorkerSlotsPctMax: 90, DBDiskPctMax: 80, RedisMemoryPctMax: 95}
	r.MeasuredLimits = limits
	for _, tc := range []struct {
		column, server, lost string
		most                 float64
		role                 prego.Role
		busy                 bool // with its own start, in an empty server
	}{
		{"cpu_pct", "app-0", "app_server", 85, prego.RoleApp, true},
		{"worker_slots_pct", "app-0", "app_server", 90, prego.RoleApp, true},
		{"db_disk_pct", "db-shard-0", "db_shard", 80, prego.RoleDBShard, false},
		{"redis_memory_pct", "redis-pool-0", "redis_pool", 95, prego.RoleRedisPool, false},
	} {
		room := func(m tenant.MeasuredLimits) int {
			o, err := s.ShortOf(ctx, prego.RegionEU, tc.role, 20, 70, m)
			require.NoError(t, err)
			return o.Room[""]
		}
		require.Positive(t, room(limits), "unknown")
		exec(t, s, `UPDATE servers SET `+tc.column+` = $2 WHERE server_id = $1`, tc.server, tc.most-0.1)
		require.Positive(t, room(limits))
		exec(t, s, `UPDATE servers SET `+tc.column+` = $2 WHERE server_id = $1`, tc.server, tc.most)
		require.Zero(t, room(limits))
		require.Positive(t, room(tenant.MeasuredLimits{}), "not checked")
		out, err := s.Reserve(ctx, r)
		require.NoError(t, err)
		require.Equal(t, tc.lost, out.Lost, tc.column)
		alone := lonely("t-1")
		alone.MeasuredLimits = limits
		alone.TenantID = "t-2"
		if !tc.busy {
			out, err = s.Reserve(ctx, alone)
			require.NoError(t, err)
			require.Equal(t, tc.lost, out.Lost, tc.column)
		}
		exec(t, s, `UPDATE servers SET `+tc.column+` = NULL WHERE server_id = $1`, tc.server)
	}
	exec(t, s, `UPDATE servers SET cpu_pct = 100, worker_slots_pct = 100`)
	alone := lonely("t-2")
	alone.MeasuredLimits = limits
	out, err := s.Reserve(ctx, alone)
	require.NoError(t, err)
	require.Equal(t, tenant.ReservePlaced, out.Outcome)
	require.NoError(t, s.FreePlace(ctx, "t-2", "left", "", tenant.SiteUntouched, nil))
	exec(t, s, `UPDATE servers SET db_disk_pct = 100, redis_memory_pct = 100`)
	r.MeasuredLimits = tenant.MeasuredLimits{}
	out, err = s.Reserve(ctx, r)
	require.NoError(t, err)
	require.Equal(t, tenant.ReservePlaced, out.Outcome)
}
