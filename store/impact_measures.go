package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// How long the newest moves, restores, maintenances and releases took something out of service: 9 of 10 took at most as
// long.
const sqlLasted = `
SELECT COALESCE(ceil(percentile_cont(0.9) WITHIN GROUP (ORDER BY extract(epoch FROM lasted))), 0)::int FROM (
    SELECT lasted FROM (
        SELECT 'move' AS kind, opened_at - frozen_at AS lasted, opened_at AS at FROM tenant_moves
        UNION ALL SELECT 'restore', finished_at - begun_at, finished_at FROM restore_jobs WHERE status = 'succeeded'
        UNION ALL SELECT kind, finished_at - COALESCE(patching_at, acted_at), finished_at
            FROM server_maintenances WHERE status = 'done'
        UNION ALL SELECT 'release', opened_at - offline_at, opened_at FROM stack_release_sites
    ) x WHERE kind = $1 AND lasted > interval '0' ORDER BY at DESC LIMIT 20) newest`

// lasted is for how many seconds changes of a kind took something out of service; 0 if none was measured.
func (t *txn) lasted(ctx context.Context, kind string) int {
	return valueIn[int](ctx, t, sqlLasted, kind)
}

// monthly is an amount of money a month.
type monthly struct {
	Cents    int64
	Currency string
}

func (m monthly) of(i impact.Impact) impact.Impact {
	if i.MonthlyCents = m.Cents; m.Cents != 0 {
		i.Currency = m.Currency
	}
	return i
}

const (
	currentPrice = `p.provider = x.provider AND p.kind = x.kind AND p.type = x.type AND p.location IN ('', x.location)
    AND p.valid_to IS NULL`

	sqlSaved = `
SELECT COALESCE(-round(sum(CASE WHEN p.per_gb THEN p.monthly * x.size_gb::numeric ELSE p.monthly END) / 10000),
    0)::bigint AS cents, COALESCE(min(p.currency), '') AS currency
FROM (` + ledgerRows + `) x JOIN provider_prices p ON ` + currentPrice + `
WHERE x.state <> 'released' AND x.kind NOT IN ` + freeKinds + ` AND (x.server_id = ANY ($1) OR x.name = $2)`

	sqlPriced = `
SELECT COALESCE(round(min(CASE WHEN p.per_gb THEN p.monthly * $5::numeric ELSE p.monthly END) / 10000),
    0)::bigint AS cents, COALESCE(min(p.currency), '') AS currency
FROM provider_prices p, (SELECT $1::text AS provider, $2::text AS kind, $3::text AS type, $4::text AS location) x
WHERE ` + currentPrice
)

// saves is what is no longer paid once servers, or the resource of a name, are gone.
func (t *txn) saves(ctx context.Context, servers []prego.ServerID, name string) monthly {
	return oneIn[monthly](ctx, t, sqlSaved, filled(servers), name)
}

const bytesPerGB = 1e9

// costs states what a change costs that affects nothing.
func (t *txn) costs(ctx context.Context, id string, m monthly) {
	t.demand(ctx, id, m.of(impact.Impact{Affected: []impact.Thing{}, Destroyed: []impact.Loss{}}))
}

func (t *txn) volumePrice(ctx context.Context, at prego.InfraProviderID, location string, gb float64) monthly {
	return oneIn[monthly](ctx, t, sqlPriced, at, server.ResourceVolume, "", location, gb)
}

func (t *txn) addressPrice(ctx context.Context, at prego.InfraProviderID, location string) monthly {
	return oneIn[monthly](ctx, t, sqlPriced, at, server.ResourceFloatingIP, "ipv4", location, 0.0)
}

func (t *txn) serverPrice(ctx context.Context, at prego.InfraProviderID, location, serverType string) monthly {
	return oneIn[monthly](ctx, t, sqlPriced, at, server.ResourceServer, serverType, location, 0.0)
}

// costsVolume states what a volume costs, or its growth.
func (t *txn) costsVolume(ctx context.Context, v workload.Volume, bytes int64) {
	t.costs(ctx, string(v.VolumeID), t.volumePrice(ctx, v.Provider, v.Location, float64(bytes)/bytesPerGB))
}

// costsAddress states what an address costs.
func (t *txn) costsAddress(ctx context.Context, a workload.IPv4Allocation) {
	t.costs(ctx, a.AllocationID, t.addressPrice(ctx, a.Provider, a.Location))
}

// costsServer states what a server costs, with its volume, if it becomes what is ordered first.
func (t *txn) costsServer(ctx context.Context, s server.Server, first server.Candidate) {
	m := t.serverPrice(ctx, s.InfraProvider, first.Location, first.ServerType)
	if gb := s.Spec.VolumeGB; gb > 0 && m.Cents > 0 {
		m.Cents += t.volumePrice(ctx, s.InfraProvider, first.Location, float64(gb)).Cents
	}
	t.costs(ctx, string(s.ServerID), m)
}

// costsResize is what another type of a server costs more; nothing if a price is unknown.
func (t *txn) costsResize(ctx context.Context, s server.Server, to string) monthly {
	was := t.serverPrice(ctx, s.InfraProvider, s.Location, s.ServerType)
	m := t.serverPrice(ctx, s.InfraProvider, s.Location, to)
	if was.Cents == 0 || m.Cents == 0 {
		return monthly{}
	}
	m.Cents -= was.Cents
	return m
}
