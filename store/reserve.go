package store

import (
	"context"
	"fmt"

	"github.com/prego/prego/tenant"
)

const sqlReserve = `
SELECT outcome, COALESCE(lost, '') AS lost, COALESCE(lost_id, '') AS lost_id, COALESCE(allocation, 0) AS allocation_id
FROM reserve_placements($1, $2, $3, $4, $5, array_replace($6::text[], '', NULL), $7, $8, $9, $10, $11, $12,
	$13::text[]::jsonb[], $14::text[]::jsonb[], $15, $16, ROW($17, $18, $19, $20, $21, $22)::placement_limits, $23, $24, $25, $26)`

// Reserve places a tenant in one round trip: it claims the site, raises the three counts if
// their guards hold, and writes allocation, decision and event; or it does nothing. It
// never waits for a transaction that has the tenant's server, shard, pool or site.
func (s *Store) Reserve(ctx context.Context, r tenant.Reservation) (tenant.ReserveResult, error) {
	out, err := reserve(ctx, s.pool, false, r)
	if err != nil {
		return tenant.ReserveResult{}, failed(string("reserve for tenant "+r.TenantID), err)
	}
	return out[0], nil
}

// ReserveAll places tenants as Reserve does, all in one round trip and one transaction, and
// answers each. It waits for other batches in the region of the first one. The limits and the time
// that a site is reserved for are taken from the first reservation; none may be an override. An error
// means that no tenant was placed, or that the outcome is unknown.
func (s *Store) ReserveAll(ctx context.Context, rs []tenant.Reservation) ([]tenant.ReserveResult, error) {
	if len(rs) == 0 {
		return nil, nil
	}
	out, err := reserve(ctx, s.pool, true, rs...)
	return out, failed(fmt.Sprintf("reserve for %d tenants", len(rs)), err)
}

// reserve answers each reservation. Values shared by all are taken from the first.
func reserve(ctx context.Context, q querier, inLine bool, rs ...tenant.Reservation) ([]tenant.ReserveResult, error) {
	var generations []int
	var dedicates []bool
	texts := make([][]string, 14)
	for _, r := range rs {
		generations, dedicates = append(generations, r.Generation), append(dedicates, r.Dedicates)
		for i, v := range []string{
			string(r.TenantID), string(r.AppServerID), string(r.DBShardID), string(r.RedisPoolID),
			r.PoolSiteID, r.SiteName, r.DatabaseName, string(r.Mode), r.Algorithm, r.AuditAs, string(r.Decision), string(r.Policy), r.Reason, r.Actor,
		} {
			texts[i] = append(texts[i], v)
		}
	}
	l := rs[0]
	out, err := many[tenant.ReserveResult](ctx, q, sqlReserve,
		texts[0], generations, texts[1], texts[2], texts[3], texts[4], texts[5], texts[6],
		texts[7], texts[8], texts[9], dedicates, texts[10], texts[11], texts[12], texts[13],
		l.MaxTenants, l.MemoryPctMax, l.CPUPctMax, l.WorkerSlotsPctMax, l.DBDiskPctMax, l.RedisMemoryPctMax,
		l.ReserveFor.Seconds(), inLine, l.Override, l.AnyTags)
	if err == nil && len(out) != len(rs) {
		err = fmt.Errorf("%d answers", len(out))
	}
	return out, err
}
