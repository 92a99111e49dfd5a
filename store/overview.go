package store

import (
	"context"
	"slices"
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
FROM site_uptime WHERE month >= $1::date GROUP BY site_uptime.month ORDER BY site_uptime.month`

	sqlOverviewServers = `
SELECT count(*)::int AS total, count(*) FILTER (WHERE status = 'active')::int AS active,
    count(*) FILTER (WHERE status = 'active' AND agent_status IN ('disconnected', 'unknown'))::int AS silent,
    round((avg(memory_pct) FILTER (WHERE status = 'active'))::numeric, 1)::float8 AS memory_pct
FROM servers WHERE status <> 'terminated'`

	// One of the samples of each hour, each hour by its key: a day of a thousand servers has 288,000.
	sqlOverviewHours = `
SELECT h.at, count(s.server_id)::int AS servers, avg(s.memory_pct)::float8 AS memory_pct
FROM generate_series($1::timestamptz, $2, interval '1 hour') h (at)
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
FROM cost_entries e WHERE e.day >= $1::date GROUP BY e.day ORDER BY e.day`

	sqlOverviewCurrency = `
SELECT COALESCE((SELECT currency FROM provider_prices WHERE valid_to IS NULL ORDER BY provider LIMIT 1), '')`
)

// overviewPast is how numbers went: months, hours and days, the oldest first. Those that have ended are read once a
// day by each process, since a table of 10,000 tenants has 60,000 rows of them; the others once a minute.
type overviewPast struct {
	at, whole time.Time // when it was read, and when all of it was
	months    []ops.OverviewMonth
	hours     []ops.OverviewHour
	days      []cost.Day
}

const (
	// pastDays and the like are how long ago a first page's lines begin.
	pastMonths, pastHours, pastDays = 6, 24, 7
	// pastSettles is how long after its end a month, hour or day may still be counted.
	pastSettles = 3 * time.Hour
)

// from are the first month, hour and day to read at a time: after what is known, if that is some.
func (p *overviewPast) from(at time.Time) (month, hour, day time.Time) {
	at = at.UTC()
	month, hour = cost.MonthOf(at).AddDate(0, 1-pastMonths, 0), at.Truncate(time.Hour).Add((1-pastHours)*time.Hour)
	day = at.Truncate(24*time.Hour).AddDate(0, 0, 1-pastDays)
	if p == nil {
		return month, hour, day
	}
	open := p.at.Add(-pastSettles)
	later := func(a, b time.Time) time.Time {
		if b.After(a) {
			return b
		}
		return a
	}
	return later(month, cost.MonthOf(open)), later(hour, open.UTC().Truncate(time.Hour)),
		later(day, open.UTC().Truncate(24*time.Hour))
}

// continued are the known rows that are not too old and before those that were read, and these.
func continued[T any](known, read []T, at func(T) time.Time, first, from time.Time) []T {
	kept := slices.DeleteFunc(slices.Clone(known), func(v T) bool { return at(v).Before(first) || !at(v).Before(from) })
	return append(kept, read...)
}

// readPast reads how numbers went.
func readPast(ctx context.Context, tx *txn, known *overviewPast, at time.Time) *overviewPast {
	if known != nil && at.Sub(known.whole) >= 24*time.Hour {
		known = nil
	}
	month, hour, day := known.from(at)
	out := &overviewPast{
		at: at, whole: at,
		months: manyIn[ops.OverviewMonth](ctx, tx, sqlOverviewMonths, month),
		hours:  manyIn[ops.OverviewHour](ctx, tx, sqlOverviewHours, hour, at),
		days:   manyIn[cost.Day](ctx, tx, sqlOverviewDays, day),
	}
	if known == nil {
		return out
	}
	firstMonth, firstHour, firstDay := (*overviewPast)(nil).from(at)
	out.whole = known.whole
	out.months = continued(known.months, out.months, func(m ops.OverviewMonth) time.Time {
		t, _ := time.Parse("2006-01", m.Month) // the statement wrote it
		return t
	}, firstMonth, month)
	out.hours = continued(known.hours, out.hours, func(h ops.OverviewHour) time.Time { return h.At }, firstHour, hour)
	out.days = continued(known.days, out.days, func(d cost.Day) time.Time { return d.Day }, firstDay, day)
	return out
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
			past = readPast(ctx, tx, past, at)
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
