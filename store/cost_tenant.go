package store

import (
	"context"
	"slices"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/cost"
)

const (
	sqlServersOfTenant = `
SELECT a.app_server_id FROM tenant_allocations a WHERE a.tenant_id = $1 AND a.released_at IS NULL
UNION SELECT d.server_id FROM tenant_allocations a JOIN db_shards d ON d.shard_id = a.db_shard_id
WHERE a.tenant_id = $1 AND a.released_at IS NULL
UNION SELECT p.server_id FROM tenant_allocations a JOIN redis_pools p ON p.pool_id = a.redis_pool_id
WHERE a.tenant_id = $1 AND a.released_at IS NULL`

	// What is billed of a tenant's servers $2, and of its backups.
	sqlBilledOfTenant = `
SELECT b.provider, b.kind, b.price_month, b.currency, ` + billedFacts + `
FROM (SELECT x.*, ` + priceNow + ` FROM (` + ledgerRows + ` WHERE r.resource_id = ANY (ARRAY(
        SELECT o.resource_id FROM resources o WHERE o.server_id = ANY ($2) AND o.state <> 'released'
        UNION SELECT o.resource_id FROM backups k JOIN resources o ON o.kind = 'backup' AND o.name = k.object_key
        WHERE k.tenant_id = $1 AND k.state = 'stored' AND o.state <> 'released'))) x
    ` + joinPriceNow + `) b
` + billedJoins

	sqlUsesOfServers = `SELECT u.* FROM (` + sqlServerUses + `) u WHERE u.server_id = ANY ($1)`
)

// TenantCost returns what a tenant costs a month by current prices: its share of its servers, divided as the month's
// costs are, and its backups. It is nil while it has nothing.
func (s *Store) TenantCost(ctx context.Context, id prego.TenantID) (out *cost.PerMonth, err error) {
	type pricedThing struct {
		billedThing
		PriceMonth cost.Micro
		Currency   string
	}
	if access.OfCustomer(ctx) {
		// The parts of shared servers depend on who else is there.
		if _, err := s.GetTenant(ctx, string(id)); err != nil {
			return nil, err
		}
		ctx = whole(ctx)
	}
	err = s.inView(ctx, "cost of tenant", func(tx *txn) error {
		tx.run(ctx, `SET LOCAL jit = off`) // compiling takes longer than reading
		servers := valuesIn[prego.ServerID](ctx, tx, sqlServersOfTenant, id)
		things := manyIn[pricedThing](ctx, tx, sqlBilledOfTenant, id, servers)
		of := usesOf(manyIn[serverUse](ctx, tx, sqlUsesOfServers, servers))
		memory := memoryOf(manyIn[machineMemory](ctx, tx, sqlMachineMemory))
		if tx.err != nil || len(things) == 0 {
			return tx.err
		}
		sum := cost.PerMonth{}
		for _, t := range things {
			if t.PriceMonth < 0 {
				sum.Unpriced++
				continue
			}
			if t.Currency != "" {
				sum.Currency = t.Currency
			}
			for _, e := range t.thing(memory, of).Holding().Attribute(t.PriceMonth) {
				if e.Owner.Kind == cost.OfTenant && e.Owner.ID == string(id) {
					sum.Add(string(t.ServerID), e.Amount)
				}
			}
		}
		slices.SortStableFunc(sum.Parts, func(a, b cost.PartPerMonth) int { return int(b.Cost - a.Cost) })
		out = &sum
		return nil
	})
	return out, err
}
