package store

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/tenant"
)

// unpoliced removes what customers' requests are limited by.
const unpoliced = `DO $$ DECLARE c record; BEGIN
    FOR c IN SELECT tablename AS t, policyname AS p FROM pg_policies LOOP
        EXECUTE format('DROP POLICY %I ON %I', c.p, c.t); EXECUTE format('ALTER TABLE %I DISABLE ROW LEVEL SECURITY', c.t);
    END LOOP;
    FOR c IN SELECT tgrelid::regclass AS t, tgname AS p FROM pg_trigger WHERE tgname LIKE '%\_foreign' AND NOT tgisinternal LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', c.p, c.t);
    END LOOP;
END $$`

// alternately runs both of a pair many times, and returns the median of each in milliseconds.
func alternately(b *testing.B, runs int, ours, bare func(i int)) (float64, float64) {
	b.Helper()
	var of [2][]float64
	for i := range runs {
		for j := range 2 { // in turns first
			which := (i + j) % 2
			began := time.Now()
			[]func(int){ours, bare}[which](i)
			of[which] = append(of[which], time.Since(began).Seconds()*1000)
		}
	}
	return median(of[0]), median(of[1])
}

// BenchmarkCustomers measures what row-level security costs: the page of 100 tenants and a tenant that a customer
// reads, beside the same for an operator, and the page beside the customer's own in a database without policies; and a
// reservation, beside one in a database without policies and guards.
func BenchmarkCustomers(b *testing.B) {
	const orgs, each, placed = 50, 200, 2000
	fill := slices.Concat(fleetOf(benchApps, benchApps, benchApps), placedBefore(orgs*each), tenantsOf(placed, benchApps, benchApps), []string{
		`INSERT INTO orgs (org_id, created_by) SELECT 'org-' || i, 'bench' FROM generate_series(0, 49) i`,
		`UPDATE tenants SET org_id = 'org-' || (substr(tenant_id, 5)::int % 50) WHERE tenant_id LIKE 'old-%'`, `VACUUM ANALYZE`,
	})
	var stores [2]*Store
	for i := range stores {
		pool := pgtest.Pool(b)
		for _, sql := range fill {
			_, err := pool.Exec(b.Context(), sql)
			require.NoError(b, err)
		}
		stores[i] = New(pool)
	}
	_, err := stores[1].pool.Exec(b.Context(), unpoliced)
	require.NoError(b, err)

	// Every request passes who sent it.
	system := ops.WithAuditSource(b.Context(), ops.AuditSource{Actor: "p-1", ActorName: "ann", From: "192.0.2.1", RequestID: "r-1"})
	s, customer := stores[0], reading(system, "org-7")
	page := func(ctx context.Context, s *Store, filters map[string][]string) func(int) {
		return func(int) {
			got, _, err := Tenants.In(s)(ctx, prego.ListQuery{Limit: 100, Filters: filters})
			require.NoError(b, err)
			require.Len(b, got, 100)
		}
	}
	one := func(ctx context.Context) func(int) {
		return func(int) {
			_, err := s.GetTenant(ctx, "old-7")
			require.NoError(b, err)
		}
	}
	reserve := func(s *Store) func(int) {
		return func(i int) {
			out, err := s.Reserve(b.Context(), benchReservation(i, i%benchApps))
			require.NoError(b, err)
			require.Equal(b, tenant.ReservePlaced, out.Outcome)
		}
	}
	ofOrg := map[string][]string{"org_id": {"org-7"}}
	for name, pair := range map[string][2]func(int){
		"list_100":          {page(customer, s, nil), page(system, s, ofOrg)},
		"list_100_policies": {page(customer, s, nil), page(customer, stores[1], nil)},
		"get":               {one(customer), one(system)},
		"reserve":           {reserve(stores[0]), reserve(stores[1])},
	} {
		b.Run(name, func(b *testing.B) {
			var ours, bare float64
			for b.Loop() {
				ours, bare = alternately(b, placed/4, pair[0], pair[1])
			}
			b.ReportMetric(0, "ns/op")
			benchjson.Record(b, fmt.Sprintf("customers_%s", name), ours, "ms", bare)
		})
	}
}
