package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/cost"
	"github.com/prego/prego/server"
)

// Entries are grouped by these. Keys are as recorded; names are current.
const (
	costLines = `
FROM cost_entries e JOIN cost_meters m ON m.meter_id = e.meter_id`
	costMonth = ` WHERE e.day >= $1::date AND e.day < ($1::date + interval '1 month') `
	costSum   = ` e.part, CASE WHEN count(DISTINCT e.basis) = 1 THEN min(e.basis) ELSE 'mixed' END AS basis, sum(e.amount)::bigint AS amount`

	sqlCostsByTenant = `SELECT x.*, COALESCE(t.slug, '') AS name FROM (
SELECT CASE e.owner_kind WHEN 'tenant' THEN e.owner_id ELSE '' END AS key, CASE e.owner_kind WHEN 'tenant' THEN e.org_id ELSE '' END AS org_id,` + costSum + costLines + costMonth + `GROUP BY 1, 2, e.part
) x LEFT JOIN tenants t ON t.tenant_id = x.key ORDER BY x.key, x.org_id, x.part`
	costsBy = `, '' AS name, ` + costSum + costLines + costMonth + `GROUP BY 1, e.part ORDER BY 1, e.part`

	sqlCostsByOrg    = `SELECT e.org_id AS key, '' AS org_id` + costsBy
	sqlCostsByServer = `SELECT COALESCE(m.server_id, '') AS key, '' AS org_id` + costsBy
	sqlCostsByPool   = `SELECT e.pool AS key, '' AS org_id` + costsBy
	sqlCostsByFleet  = `SELECT COALESCE(m.fleet_id, '') AS key, '' AS org_id` + costsBy
	sqlCostsByRegion = `SELECT m.region AS key, '' AS org_id` + costsBy
	sqlCostsByKind   = `SELECT m.kind AS key, '' AS org_id` + costsBy

	sqlCostDays = `
SELECT e.day::timestamptz AS day, sum(e.amount)::bigint AS cost, COALESCE(sum(e.amount) FILTER (WHERE e.part = 'idle'), 0)::bigint AS idle
FROM cost_entries e` + costMonth + `GROUP BY e.day ORDER BY e.day`

	sqlCostState = `
SELECT COALESCE((SELECT e.currency FROM cost_entries e` + costMonth + `LIMIT 1), (SELECT currency FROM provider_prices WHERE valid_to IS NULL ORDER BY provider LIMIT 1), '') AS currency,
    (SELECT count(*)::int FROM cost_meters m WHERE NOT m.priced AND m.started_at < $1::date + interval '1 month' AND (m.ended_at IS NULL OR m.ended_at > $1::date)
        AND m.started_at + make_interval(hours => m.hours::int) < $1::date + interval '1 month') AS unpriced,
    (SELECT counted_to FROM cost_progress) AS as_of, (SELECT began_at FROM cost_progress) AS began_at`
)

// Backups are not counted while their price is unknown.
const sqlUnpricedBackups = `
SELECT count(*)::int FROM resources r WHERE r.kind = 'backup' AND r.provider_id IS NOT NULL AND r.created_at < $1::date + interval '1 month' AND (r.released_at IS NULL OR r.released_at >= $1::date)
  AND NOT EXISTS (SELECT FROM provider_prices p WHERE p.provider = r.provider AND p.kind = r.kind)`

const (
	sqlCostKinds = `
SELECT m.kind, e.currency, sum(e.amount)::bigint AS cost, COALESCE(sum(e.amount) FILTER (WHERE e.part = 'idle'), 0)::bigint AS idle` + costLines + costMonth + `GROUP BY 1, 2 ORDER BY 1, 2`
	sqlUntrackedKinds = `
SELECT k.kind, (SELECT count(*)::int FROM (` + untrackedRows + `) u WHERE u.kind = k.kind AND u.state = 'untracked') AS n
FROM unnest($1::text[]) k (kind) ORDER BY k.kind`
)

// CostNumbers sums up the month that begins at month.
func (s *Store) CostNumbers(ctx context.Context, month time.Time) (out cost.Numbers, err error) {
	if out.Kinds, err = collect[cost.KindCost](ctx, s, "costs by kind", sqlCostKinds, month); err != nil {
		return out, err
	}
	var kinds []string
	for _, k := range server.ResourceKinds() {
		kinds = append(kinds, string(k))
	}
	if out.Untracked, err = collect[cost.KindCount](ctx, s, "untracked things", sqlUntrackedKinds, kinds); err != nil {
		return out, err
	}
	state, err := one[costState](ctx, s.pool, sqlCostState, month)
	if err != nil {
		return out, failed("state of costs", err)
	}
	backups, err := value[int](ctx, s.pool, sqlUnpricedBackups, month)
	out.Unpriced, out.AsOf = state.Unpriced+backups, state.AsOf
	return out, failed("unpriced backups", err)
}

type costState struct {
	Currency      string
	Unpriced      int
	AsOf, BeganAt *time.Time
}

// Costs returns the recorded costs of the calendar month that begins at month.
func (s *Store) Costs(ctx context.Context, by cost.By, month time.Time) (out cost.Month, err error) {
	sql := map[cost.By]string{
		cost.ByTenant: sqlCostsByTenant, cost.ByOrg: sqlCostsByOrg, cost.ByServer: sqlCostsByServer, cost.ByPool: sqlCostsByPool,
		cost.ByFleet: sqlCostsByFleet, cost.ByRegion: sqlCostsByRegion, cost.ByKind: sqlCostsByKind,
	}[by]
	if sql == "" {
		return out, prego.Invalid("by", "is nothing that costs are shown by")
	}
	customers := access.OfCustomer(ctx)
	if customers && (by == cost.ByServer || by == cost.ByPool || by == cost.ByFleet) {
		return out, prego.Invalid("by", "must be tenant, org, region or kind: other orgs share the rest")
	}
	// In one snapshot, so that rows and days have the same sum while counting continues.
	err = s.inView(ctx, "costs of "+month.Format("2006-01"), func(tx *txn) error {
		out.Lines = manyIn[cost.Line](ctx, tx, sql, month)
		out.Days = manyIn[cost.Day](ctx, tx, sqlCostDays, month)
		state := oneIn[costState](ctx, tx, sqlCostState, month)
		if !customers { // of any org
			out.Unpriced = state.Unpriced + valueIn[int](ctx, tx, sqlUnpricedBackups, month)
		}
		out.Currency, out.AsOf, out.BeganAt = state.Currency, state.AsOf, state.BeganAt
		return nil
	})
	return out, err
}
