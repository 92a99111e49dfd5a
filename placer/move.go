package placer

import (
	"cmp"
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// PlaceMove decides where a tenant moves to. Nothing is reserved. An error with a placement's code explains why there
// is no place.
func (p *Placer) PlaceMove(ctx context.Context, t tenant.Record, m tenant.Move) (tenant.MovePlace, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refresh(ctx, nil); err != nil {
		return tenant.MovePlace{}, err
	}
	r := RequestOf(t)
	r.Region = cmp.Or(m.ToRegion, r.Region)
	d := p.fleet.DecideMove(placement.Move{
		Request: r, From: m.FromServerID, ShardID: cmp.Or(m.FromShardID, t.Allocation.DBShardID), PoolID: cmp.Or(m.FromPoolID, t.Allocation.RedisPoolID),
		Server: m.MovesServer, Shard: m.MovesShard, Pool: m.MovesPool, To: m.Wanted, ToShard: m.WantedShard, ToPool: m.WantedPool,
	})
	if !d.PlacesTenant() {
		return tenant.MovePlace{}, prego.Errorf(d.Code, "%s", d.SelectionReason)
	}
	decision, policy, err := p.logs(d)
	alone := placement.MustBeAlone(r.Plan, d.Mode, false)
	out := tenant.MovePlace{
		ServerID: d.AppServerID, ShardID: d.DBShardID, PoolID: d.RedisPoolID, Override: m.Wanted != "" || m.WantedShard != "" || m.WantedPool != "", Dedicates: d.Dedicates,
		MaxTenants: p.Policy.MaxTenantsPerNode, MemoryMax: p.Policy.MemoryPctMax, DBDiskMax: p.Policy.DBDiskPctMax, RedisMax: p.Policy.RedisMemoryPctMax,
		Alone: alone, OwnPool: alone || r.DedicatedRedis, Decision: decision, Policy: policy, Algorithm: placement.AuditName(d.Mode, d.Algorithm),
	}
	return out, err
}
