package store

import (
	"context"
	"time"

	"github.com/prego/prego/cost"
	"github.com/prego/prego/ops"
)

const (
	sqlOverviewTenants = `
SELECT count(*)::int AS total, count(*) FILTER (WHERE state = 'active')::int AS active
FROM tenants WHERE state NOT IN ('terminated', 'data_purged')`

	sqlOverviewSites = `
SELECT count(*) FILTER (WHERE v.up)::int AS up, count(*) FILTER (WHERE NOT v.up)::int AS down
FROM (SELECT h.tenant_id, bool_and(h.up) AS up FROM ` + probedNow + ` GROUP BY h.tenant_id) v
JOIN tenants t ON t.tenant_id = v.tenant_id
JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL
JOIN servers s ON s.server_id = a.app_server_id
WHERE v.up OR ` + siteOpen

	sqlOverviewMonths = `
SELECT to_char(month, 'YYYY-MM') AS month, count(*)::int AS sites,
    100 * sum(up_seconds) / NULLIF(sum(up_seconds) + sum(down_seconds), 0) AS uptime_pct
FROM site_uptime WHERE month > now() - interval '6 months' GROUP BY site_uptime.month ORDER BY site_uptime.month`

	sqlOverviewServers = `
SELECT count(*)::int AS total, count(*) FILTER (WHERE status = 'active')::int AS active,
    count(*) FILTER (WHERE status = 'active' AND agent_status IN ('disconnected', 'unknown'))::int AS silent,
    avg(memory_pct) FILTER (WHERE status = 'active') AS memory_pct
FROM servers WHERE status <> 'terminated'`

	// One of the samples of each hour, each hour by its key: a day of a thousand servers has 288,000.
	sqlOverviewHours = `
SELECT h.at, count(s.server_id)::int AS servers, avg(s.memory_pct)::float8 AS memory_pct
FROM generate_series(date_trunc('hour', now()) - interval '23 hours', now(), interval '1 hour') h (at)
JOIN server_samples s ON s.at = h.at GROUP BY h.at ORDER BY h.at`

	sqlOverviewWaiting = `
SELECT count(*)::int AS count, min(since) AS since FROM (
    SELECT w.waiting_since AS since FROM (` + tenantTurns + `) w
    UNION ALL SELECT q.waiting_since FROM (` + sqlQueuedForStock + `) q
    UNION ALL SELECT q.since FROM (` + sqlQueuedGroups + `) q
) w`

	// What each meter billed in its month, which is the sum of its entries.
	sqlOverviewKinds = `
SELECT kind, sum(billed)::bigint AS cost FROM cost_meters
WHERE month = $1::date GROUP BY kind HAVING sum(billed) > 0 ORDER BY cost DESC, kind`

	sqlOverviewDays = `
SELECT e.day::timestamptz AS day, sum(e.amount)::bigint AS cost,
    COALESCE(sum(e.amount) FILTER (WHERE e.part = 'idle'), 0)::bigint AS idle
FROM cost_entries e WHERE e.day > $1::timestamptz::date - 7 GROUP BY e.day ORDER BY e.day`

	sqlOverviewCurrency = `
SELECT COALESCE((SELECT currency FROM provider_prices WHERE valid_to IS NULL ORDER BY provider LIMIT 1), '')`
)

// overviewPast is how numbers went, which changes each hour at most. Reading it takes several times longer than the
// numbers of now, so it is kept for a minute.
type overviewPast struct {
	at     time.Time // when it was read
	months []ops.OverviewMonth
	hours  []ops.OverviewHour
	days   []cost.Day
}

// Overview returns how the installation is in a few numbers, read in one snapshot.
func (s *Store) Overview(ctx context.Context, at time.Time) (out ops.Overview, err error) {
	month, past := cost.MonthOf(at), s.past.Load()
	kept := past != nil && at.Sub(past.at).Abs() < time.Minute
	err = s.inView(ctx, "overview", func(tx *txn) (err error) {
		tx.run(ctx, `SET LOCAL jit = off`) // compiling takes longer than reading
		out.Tenants = oneIn[ops.OverviewTenants](ctx, tx, sqlOverviewTenants)
		out.Sites = oneIn[ops.OverviewSites](ctx, tx, sqlOverviewSites)
		out.Servers = oneIn[ops.OverviewServers](ctx, tx, sqlOverviewServers)
		out.Waiting = oneIn[ops.OverviewWaiting](ctx, tx, sqlOverviewWaiting)
		out.Costs.Kinds = manyIn[cost.KindTotal](ctx, tx, sqlOverviewKinds, month)
		if !kept {
			past = &overviewPast{
				at:     at,
				months: manyIn[ops.OverviewMonth](ctx, tx, sqlOverviewMonths),
				hours:  manyIn[ops.OverviewHour](ctx, tx, sqlOverviewHours),
				days:   manyIn[cost.Day](ctx, tx, sqlOverviewDays, at),
			}
		}
		out.Costs.Currency, err = value[string](ctx, tx, sqlOverviewCurrency)
		return err
	})
	if err != nil {
		return out, err
	}
	if !kept {
		s.past.Store(past)
	}
	for _, k := range out.Costs.Kinds {
		out.Costs.Total += k.Cost
	}
	out.Tenants.Months, out.Servers.Hours, out.Costs.Days = past.months, past.hours, past.days
	out.Costs.Month, out.AsOf = month, at
	return out, nil
}
