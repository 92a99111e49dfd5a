package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// priced is a store with a fleet of nodes, and prices: € 16.49 for a node, 4.4 cents for a GB, € 3.57 for an address.
func priced(t *testing.T) *Store {
	t.Helper()
	s := tenantStore(t)
	exec(t, s, `UPDATE fleets SET serves_tenants = false`)
	exec(t, s, `INSERT INTO fleets (fleet_id, request_hash, role, region, infra_provider, min_size, max_size, spec, created_by, serves_tenants)
		VALUES ('nodes', '', 'node', 'eu', 'hetzner', 0, -1, '{}', 'test', true)`)
	exec(t, s, `INSERT INTO provider_prices (provider, kind, type, location, per_gb, monthly, currency)
		VALUES ('hetzner', 'server', 'cx43', 'fsn1', false, 16490000, 'EUR'), ('hetzner', 'server', 'ccx23', 'fsn1', false, 30000000, 'EUR'),
			('hetzner', 'volume', '', '', true, 44000, 'EUR'), ('hetzner', 'floating_ip', 'ipv4', 'fsn1', false, 3570000, 'EUR')`)
	return s
}

func limit(t *testing.T, s *Store, d quota.Dimension, v float64) {
	t.Helper()
	_, err := s.SetQuota(context.Background(), "acme", d, v, "test", "test")
	require.NoError(t, err)
}

func alone(t *testing.T, s *Store, i int) error {
	t.Helper()
	_, _, err := s.CreateTenant(context.Background(), tenantRequest(t, fmt.Sprintf("s%d", i), prego.PlanStarter), prego.TenantID(fmt.Sprintf("t-%d", i)),
		tenant.ModeOneTenantOneServer, "", "test")
	return err
}

// TestParallelRequestsNeverExceedServersOrMoney: of requests at the same time as many are accepted as the limits allow.
func TestParallelRequestsNeverExceedServersOrMoney(t *testing.T) {
	t.Parallel()
	const many = 12
	volume := func(s *Store, i int) error {
		_, err := s.CreateVolume(context.Background(), workload.Volume{
			VolumeID: prego.VolumeID(fmt.Sprintf("vol-%d", i)), OrgID: "acme", Region: prego.RegionEU, Location: "fsn1", Name: fmt.Sprintf("v%d", i), SizeBytes: 100e9,
		}, "test", "test")
		return err
	}
	for name, tc := range map[string]struct {
		d        quota.Dimension
		limit    float64
		create   func(t *testing.T, s *Store, i int) error
		accepted int
		used     float64
	}{
		"servers":          {quota.MaxServers, 5, alone, 5, 5},
		"servers by money": {quota.MaxMonthlyEuros, 50, alone, 3, 49.47},
		"volumes by money": {quota.MaxMonthlyEuros, 17.60, func(_ *testing.T, s *Store, i int) error { return volume(s, i) }, 4, 17.60},
		"both by money": {quota.MaxMonthlyEuros, 16.49 + 4.40, func(t *testing.T, s *Store, i int) error {
			t.Helper()
			return errors.Join(alone(t, s, i), volume(s, i))
		}, -1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := priced(t)
			limit(t, s, tc.d, tc.limit)
			var wg sync.WaitGroup
			errs := make([]error, many)
			for i := range many {
				wg.Go(func() { errs[i] = tc.create(t, s, i) })
			}
			wg.Wait()
			ok := 0
			for _, err := range errs {
				if err == nil {
					ok++
					continue
				}
				var over *org.QuotaExceeded
				require.ErrorAs(t, err, &over)
				require.Equal(t, string(tc.d), over.Dimension)
			}
			used := usedOf(t, s, "acme", tc.d)
			require.LessOrEqual(t, used, tc.limit+1e-9)
			if tc.accepted >= 0 {
				require.Equal(t, tc.accepted, ok)
				require.InDelta(t, tc.used, used, 1e-9)
			}
		})
	}
}

// TestAPriceChangeStopsNothing that runs or was accepted: it refuses more, and a server's replacement is no more.
func TestAPriceChangeStopsNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := priced(t)
	limit(t, s, quota.MaxMonthlyEuros, 20)
	require.NoError(t, alone(t, s, 1))
	order := func(id string) error {
		_, err := s.RequestFleetMember(ctx, server.Wanted{
			ServerID: prego.ServerID("n-" + id), Role: prego.RoleNode, Region: prego.RegionEU, DedicatedFor: "t-1",
		}, prego.Constraint{}, "tenant/t-1", scale.Plan)
		return err
	}
	exec(t, s, `UPDATE provider_prices SET monthly = 25000000 WHERE type = 'cx43'`)
	var over *org.QuotaExceeded
	require.ErrorAs(t, order("1"), &over, "its first server costs more than was accepted, and than the limit")
	require.Equal(t, &org.QuotaExceeded{Dimension: "max_monthly_euros", Limit: 20, RequestedDelta: 25}, over)
	exec(t, s, `UPDATE provider_prices SET monthly = 19000000 WHERE type = 'cx43'`)
	require.NoError(t, order("1"))
	require.InDelta(t, 19, usedOf(t, s, "acme", quota.MaxMonthlyEuros), 1e-9, "the price of what was ordered")

	exec(t, s, `UPDATE provider_prices SET monthly = 99000000 WHERE type = 'cx43'`)
	require.InDelta(t, 19, usedOf(t, s, "acme", quota.MaxMonthlyEuros), 1e-9)
	limit(t, s, quota.MaxServers, 0)
	exec(t, s, `UPDATE tenants SET state = 'active', active_at = now()`)
	require.NoError(t, order("2"), "a replacement needs no free quota")
	require.InDelta(t, 19, usedOf(t, s, "acme", quota.MaxMonthlyEuros), 1e-9)
	require.InDelta(t, 1, usedOf(t, s, "acme", quota.MaxServers), 0, "while both servers stand")
	require.ErrorAs(t, alone(t, s, 2), &over)
	exec(t, s, `UPDATE servers SET status = 'terminated'`)
	exec(t, s, `UPDATE tenants SET state = 'data_purged', converged_state = 'data_purged'`)
	require.Zero(t, usedOf(t, s, "acme", quota.MaxMonthlyEuros))
	require.Zero(t, usedOf(t, s, "acme", quota.MaxServers))
}

// TestSharedTenantsTakeNoServers, and what has no price costs nothing.
func TestSharedTenantsTakeNoServers(t *testing.T) {
	t.Parallel()
	s := priced(t)
	limit(t, s, quota.MaxServers, 0)
	limit(t, s, quota.MaxMonthlyEuros, 0)
	_, _, err := s.CreateTenant(t.Context(), tenantRequest(t, "shared", prego.PlanStarter), "t-1", tenant.ModeShared, "", "test")
	require.NoError(t, err)
	limit(t, s, quota.MaxServers, 1)
	exec(t, s, `DELETE FROM provider_prices`)
	require.NoError(t, alone(t, s, 2))
	require.InDelta(t, 1, usedOf(t, s, "acme", quota.MaxServers), 0)
}
