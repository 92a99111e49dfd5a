package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/cost"
)

const (
	sqlCountLock   = `SELECT pg_advisory_xact_lock(hashtextextended('costs', 0))`
	sqlCountBegins = `INSERT INTO cost_progress (counted_to, began_at) VALUES ($1, $1) ON CONFLICT DO NOTHING`
	sqlCountState  = `SELECT counted_to, began_at FROM cost_progress`
	sqlCountEnds   = `UPDATE cost_progress SET counted_to = GREATEST(counted_to, $1)`
)

// Resources to count: the current ones, those gone since the last count, and those not counted to their end. Of
// several rows of a resource the live one counts.
const billedRows = `
SELECT DISTINCT ON (x.provider, x.kind, x.provider_id) x.* FROM (` + ledgerRows + ` UNION ALL ` + untrackedRows + `) x
WHERE x.provider_id <> '' AND x.kind NOT IN ` + freeKinds + `
  AND (x.state <> 'released' OR x.until >= $1 OR EXISTS (
      SELECT FROM cost_meters m WHERE m.provider = x.provider AND m.kind = x.kind AND m.provider_id = x.provider_id AND NOT m.closed))
  AND EXISTS (SELECT FROM provider_prices p WHERE p.provider = x.provider)
ORDER BY x.provider, x.kind, x.provider_id, x.until DESC NULLS FIRST, x.since`

// What decides whose a billed resource b is.
const (
	billedFacts = `b.type, b.location, round(b.size_gb::numeric * 1e9)::bigint AS bytes,
    b.owner_kind, b.owner_id, b.org_id, b.owner_kind = 'none' AS untracked, COALESCE(b.server_id, '') AS server_id, COALESCE(s.role, '') AS role, COALESCE(s.region, '') AS region,
    CASE WHEN s.tenant_count = 0 AND d.tenant_id IS NULL THEN COALESCE(s.warm_plan, '') ELSE '' END AS warm_plan, COALESCE(d.tenant_id, '') AS dedicated_to, COALESCE(t.org_id, '') AS dedicated_org,
    COALESCE(s.server_type, '') AS server_type, CASE WHEN f.serves_workloads AND NOT f.serves_tenants THEN f.workload_memory_bytes ELSE 0 END AS workload_memory,
    COALESCE(CASE s.role WHEN 'db-shard' THEN h.capacity WHEN 'redis-pool' THEN p.capacity END, 0) AS slots, COALESCE(CASE s.role WHEN 'db-shard' THEN h.id WHEN 'redis-pool' THEN p.id END, '') AS pool_id`
	billedJoins = `LEFT JOIN servers s ON s.server_id = b.server_id
LEFT JOIN fleets f ON f.fleet_id = s.fleet_id
LEFT JOIN LATERAL (SELECT sum(x.tenant_capacity)::bigint AS capacity, min(x.shard_id) AS id, min(x.dedicated_for_tenant_id) AS dedicated FROM db_shards x WHERE x.server_id = s.server_id AND s.role = 'db-shard') h ON true
LEFT JOIN LATERAL (SELECT sum(x.tenant_capacity)::bigint AS capacity, min(x.pool_id) AS id, min(x.dedicated_for_tenant_id) AS dedicated FROM redis_pools x WHERE x.server_id = s.server_id AND s.role = 'redis-pool') p ON true
LEFT JOIN LATERAL (SELECT COALESCE(s.dedicated_for_tenant_id, h.dedicated, p.dedicated) AS tenant_id) d ON true
LEFT JOIN tenants t ON t.tenant_id = d.tenant_id`
)

const (
	// A resource that was counted to its end and exists again starts over.
	sqlOpenMeters = `
INSERT INTO cost_meters AS m (provider, kind, provider_id, name, region, server_id, fleet_id, started_at, ended_at)
SELECT b.provider, b.kind, b.provider_id, b.name, b.region, b.server_id, s.fleet_id, b.since, b.until
FROM (` + billedRows + `) b LEFT JOIN servers s ON s.server_id = b.server_id
ON CONFLICT (provider, kind, provider_id) DO UPDATE SET name = EXCLUDED.name, region = EXCLUDED.region, server_id = EXCLUDED.server_id, fleet_id = EXCLUDED.fleet_id, ended_at = EXCLUDED.ended_at,
    started_at = CASE WHEN m.closed AND EXCLUDED.started_at >= m.ended_at THEN EXCLUDED.started_at ELSE m.started_at END,
    hours = CASE WHEN m.closed AND EXCLUDED.started_at >= m.ended_at THEN 0 ELSE m.hours END, closed = false`

	// A resource that is found nowhere went unseen.
	sqlLoseMeters = `
UPDATE cost_meters m SET ended_at = COALESCE(m.ended_at, $1), closed = true
WHERE NOT m.closed AND NOT EXISTS (SELECT FROM resources r WHERE r.provider = m.provider AND r.kind = m.kind AND r.provider_id = m.provider_id)
  AND NOT EXISTS (SELECT FROM orphan_sightings o WHERE o.provider = m.provider AND o.kind = m.kind AND o.provider_id = m.provider_id)`

	sqlBilled = `
SELECT m.meter_id, m.provider, m.kind, m.started_at, m.ended_at, m.hours, m.month, m.billed, ` + billedFacts + `
FROM (` + billedRows + `) b
JOIN cost_meters m ON m.provider = b.provider AND m.kind = b.kind AND m.provider_id = b.provider_id AND NOT m.closed
` + billedJoins + `
ORDER BY m.meter_id`

	// The users of a server: tenants with a part of their place there, once each and by the memory of their plan, and
	// orgs by the memory promised to their instances.
	sqlServerUses = `
SELECT u.server_id, 'tenant' AS kind, u.tenant_id AS id, t.org_id, z.memory_bytes AS weight
FROM (SELECT a.app_server_id AS server_id, a.tenant_id FROM tenant_allocations a WHERE a.released_at IS NULL
    UNION SELECT d.server_id, a.tenant_id FROM tenant_allocations a JOIN db_shards d ON d.shard_id = a.db_shard_id WHERE a.released_at IS NULL
    UNION SELECT p.server_id, a.tenant_id FROM tenant_allocations a JOIN redis_pools p ON p.pool_id = a.redis_pool_id WHERE a.released_at IS NULL) u
JOIN tenants t ON t.tenant_id = u.tenant_id JOIN tenant_sizes z ON z.plan = t.plan
UNION ALL
SELECT i.server_id, 'org', i.org_id, i.org_id, sum(i.memory_limit_bytes + w.overhead_bytes_per_instance)::bigint
FROM instances i CROSS JOIN workload_settings w WHERE i.state <> 'stopped' GROUP BY i.server_id, i.org_id
ORDER BY 1, 2, 3`

	sqlMachineMemory = `
SELECT c.provider, y ->> 'name' AS name, ((y ->> 'memory_gb')::float8 * 1073741824)::bigint AS bytes FROM provider_catalogs c, jsonb_array_elements(c.document -> 'server_types') y`

	sqlCounted = `
UPDATE cost_meters m SET hours = c.hours, month = c.month, billed = c.billed, priced = c.priced, closed = c.closed
FROM unnest($1::bigint[], $2::bigint[], $3::date[], $4::bigint[], $5::bool[], $6::bool[]) c (meter_id, hours, month, billed, priced, closed) WHERE m.meter_id = c.meter_id`

	sqlCostEntries = `
INSERT INTO cost_entries AS e (day, meter_id, part, owner_kind, owner_id, org_id, pool, basis, amount, currency)
SELECT c.day, c.meter_id, c.part, c.owner_kind, c.owner_id, c.org_id, c.pool, c.basis, sum(c.amount), min(c.currency)
FROM unnest($1::date[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bigint[], $10::text[]) c (day, meter_id, part, owner_kind, owner_id, org_id, pool, basis, amount, currency)
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
ON CONFLICT (day, meter_id, part, owner_kind, owner_id, org_id, pool, basis) DO UPDATE SET amount = e.amount + EXCLUDED.amount`
)

// billed is a resource to count, with how far it was counted.
type billed struct {
	MeterID   int64
	StartedAt time.Time
	EndedAt   *time.Time
	Hours     int64
	Month     *time.Time
	Billed    cost.Micro
	billedThing
}

// billedThing is a resource with what decides whose it is.
type billedThing struct {
	Provider, Kind string
	Type, Location string
	Bytes          int64
	OwnerKind      cost.OwnerKind
	OwnerID        string
	OrgID          prego.OrgID
	Untracked      bool
	ServerID       prego.ServerID
	Role           prego.Role
	Region         prego.Region
	WarmPlan       string
	DedicatedTo    prego.TenantID
	DedicatedOrg   prego.OrgID
	ServerType     string
	WorkloadMemory int64
	Slots          int64
	PoolID         string
}

type serverUse struct {
	ServerID prego.ServerID
	Kind     cost.OwnerKind
	ID       string
	OrgID    prego.OrgID
	Weight   int64
}

type machineMemory struct {
	Provider, Name string
	Bytes          int64
}

type countState struct{ CountedTo, BeganAt time.Time }

// CountCosts counts what was billed by at and is not counted yet, in one transaction. It may be repeated at any time
// and after any pause; no hour is counted twice. Nothing from before the month of the first count is counted. Extra
// prices are those that no provider reports.
func (s *Store) CountCosts(ctx context.Context, at time.Time, extra []cost.Price) (counted int, err error) {
	err = s.inTx(ctx, "count costs", func(tx *txn) error {
		tx.run(ctx, sqlCountLock)
		tx.check(savePrices(ctx, tx, extra))
		tx.run(ctx, sqlCountBegins, at)
		state := oneIn[countState](ctx, tx, sqlCountState)
		since := cost.MonthOf(state.BeganAt)
		from := state.CountedTo
		if from.Equal(state.BeganAt) { // the first count
			from = since
		}
		tx.run(ctx, sqlLoseMeters, at)
		tx.run(ctx, sqlOpenMeters, from)
		counted = countMeters(ctx, tx, from, since, at)
		tx.run(ctx, sqlCountEnds, at)
		return nil
	})
	return counted, err
}

func usesOf(uses []serverUse) map[prego.ServerID][]cost.Use {
	out := map[prego.ServerID][]cost.Use{}
	for _, u := range uses {
		use := cost.Use{Owner: cost.Owner{Kind: u.Kind, ID: u.ID, OrgID: u.OrgID}, Weight: u.Weight}
		out[u.ServerID] = append(out[u.ServerID], use)
	}
	return out
}

// memoryOf is the memory of machines, by provider and type.
func memoryOf(machines []machineMemory) map[[2]string]int64 {
	out := map[[2]string]int64{}
	for _, m := range machines {
		out[[2]string{m.Provider, m.Name}] = m.Bytes
	}
	return out
}

func countMeters(ctx context.Context, tx *txn, from, since, at time.Time) int {
	things := manyIn[billed](ctx, tx, sqlBilled, from)
	uses := manyIn[serverUse](ctx, tx, sqlServerUses)
	of, memory := usesOf(uses), memoryOf(manyIn[machineMemory](ctx, tx, sqlMachineMemory))
	prices := got(readTariffs(ctx, tx)).in(tx)
	var c costColumns
	for _, b := range things {
		before := cost.Meter{StartedAt: b.StartedAt, EndedAt: b.EndedAt, Hours: b.Hours, Billed: b.Billed}
		if b.Month != nil {
			before.Month = b.Month.UTC()
		}
		after, days := before.Count(prices.of(b.Provider, b.Kind, b.Type, b.Location), b.Bytes, since, at)
		c.meter(b.MeterID, after)
		holding := b.thing(memory, of).Holding()
		for _, d := range days {
			for _, e := range holding.Attribute(d.Amount) {
				c.entry(b.MeterID, d, e)
			}
		}
	}
	tx.run(ctx, sqlCounted, c.meters, c.hours, c.months, c.billed, c.priced, c.closed)
	tx.run(ctx, sqlCostEntries, c.days, c.ofMeter, c.parts, c.ownerKinds, c.ownerIDs, c.orgs, c.pools, c.bases, c.amounts, c.currencies)
	return len(things)
}

func (b billedThing) thing(memory map[[2]string]int64, uses map[prego.ServerID][]cost.Use) cost.Thing {
	return cost.Thing{
		OwnerKind: b.OwnerKind, OwnerID: b.OwnerID, OrgID: b.OrgID, Untracked: b.Untracked, ServerID: b.ServerID, Role: b.Role, Region: b.Region, WarmPlan: b.WarmPlan,
		DedicatedTo: b.DedicatedTo, DedicatedOrg: b.DedicatedOrg, MemoryBytes: memory[[2]string{b.Provider, b.ServerType}], WorkloadMemory: b.WorkloadMemory,
		Slots: b.Slots, PoolID: b.PoolID, Uses: uses[b.ServerID],
	}
}

// costColumns are rows as columns, for unnest.
type costColumns struct {
	meters, hours  []int64
	months         []*time.Time
	billed         []cost.Micro
	priced, closed []bool

	days                                                        []time.Time
	ofMeter                                                     []int64
	parts, ownerKinds, ownerIDs, orgs, pools, bases, currencies []string
	amounts                                                     []cost.Micro
}

func (c *costColumns) meter(id int64, m cost.Meter) {
	var month *time.Time
	if !m.Month.IsZero() {
		month = &m.Month
	}
	c.meters, c.hours, c.months, c.billed = append(c.meters, id), append(c.hours, m.Hours), append(c.months, month), append(c.billed, m.Billed)
	c.priced, c.closed = append(c.priced, m.Priced), append(c.closed, m.Closed)
}

func (c *costColumns) entry(meter int64, d cost.DayAmount, e cost.Entry) {
	c.days, c.ofMeter, c.parts = append(c.days, d.Day), append(c.ofMeter, meter), append(c.parts, string(e.Part))
	c.ownerKinds, c.ownerIDs, c.orgs = append(c.ownerKinds, string(e.Owner.Kind)), append(c.ownerIDs, e.Owner.ID), append(c.orgs, string(e.Owner.OrgID))
	c.pools, c.bases, c.amounts, c.currencies = append(c.pools, e.Pool), append(c.bases, string(e.Basis)), append(c.amounts, e.Amount), append(c.currencies, d.Currency)
}

// A price that left the list stays: earlier resources still cost it.
const (
	listedPrices = `unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bool[], $6::bigint[], $7::bigint[], $8::text[]) l (provider, kind, type, location, per_gb, hourly, monthly, currency)`
	samePrice    = `p.provider = l.provider AND p.kind = l.kind AND p.type = l.type AND p.location = l.location AND p.valid_to IS NULL`

	sqlPricesEnded = `
UPDATE provider_prices p SET valid_to = now() FROM ` + listedPrices + ` WHERE ` + samePrice + `
  AND (p.per_gb, p.hourly, p.monthly, p.currency) IS DISTINCT FROM (l.per_gb, l.hourly, l.monthly, l.currency)`
	sqlPricesBegun = `
INSERT INTO provider_prices (provider, kind, type, location, per_gb, hourly, monthly, currency)
SELECT l.* FROM ` + listedPrices + ` WHERE NOT EXISTS (SELECT FROM provider_prices p WHERE ` + samePrice + `)`
)

// savePrices stores the current prices where they differ from the known ones.
func savePrices(ctx context.Context, tx *txn, prices []cost.Price) error {
	var providers, kinds, types, locations, currencies []string
	var perGB []bool
	var hourly []*cost.Micro
	var monthly []cost.Micro
	for _, p := range prices {
		providers, kinds, types, locations = append(providers, string(p.Provider)), append(kinds, string(p.Kind)), append(types, p.Type), append(locations, p.Location)
		perGB, hourly, monthly, currencies = append(perGB, p.PerGB), append(hourly, p.Hourly), append(monthly, p.Monthly), append(currencies, p.Currency)
	}
	for _, sql := range []string{sqlPricesEnded, sqlPricesBegun} {
		tx.run(ctx, sql, filled(providers), filled(kinds), filled(types), filled(locations), perGB, hourly, monthly, filled(currencies))
	}
	return nil
}

const sqlPrices = `
SELECT provider, kind, type, location, per_gb, hourly, monthly, currency, valid_from FROM provider_prices ORDER BY provider, kind, type, location, valid_from`

// tariffs are all prices by their subjects.
type tariffs map[[4]string]cost.Tariff

func readTariffs(ctx context.Context, tx *txn) (tariffs, error) {
	prices, err := many[cost.Price](ctx, tx, sqlPrices)
	out := tariffs{}
	for _, p := range prices {
		key := [4]string{string(p.Provider), string(p.Kind), p.Type, p.Location}
		out[key] = append(out[key], p)
	}
	return out, err
}

// of returns the tariff of a resource, nil if it has none.
func (t tariffs) of(provider, kind, typ, location string) cost.Tariff {
	if found := t[[4]string{provider, kind, typ, location}]; found != nil {
		return found
	}
	return t[[4]string{provider, kind, typ, ""}]
}
