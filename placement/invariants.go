package placement

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// CheckInvariants checks placement-policy §6, independently of the filters: what must hold for any placement,
// including an operator's override. It includes the filters that an override keeps (§8). The error names the invariant.
func (f *Snapshot) CheckInvariants(r Request, d Decision) error {
	srv, ok := f.Server(d.AppServerID)
	if !ok {
		return prego.Errorf(prego.CodeServerUnknown, "there is no app server %q", d.AppServerID)
	}
	shard, ok := f.shards.get(string(d.DBShardID))
	if !ok {
		return prego.Errorf(prego.CodeShardUnknown, "there is no DB shard %q", d.DBShardID)
	}
	pool, ok := f.pools.get(string(d.RedisPoolID))
	if !ok {
		return prego.Errorf(prego.CodePoolUnknown, "there is no Redis pool %q", d.RedisPoolID)
	}
	who := "" // needs a dedicated server, shard and pool
	switch {
	case r.Plan == prego.PlanEnterprise:
		who = "an enterprise tenant"
	case d.Mode == tenant.ModeOneTenantOneServer && r.Override == nil:
		who = "a tenant in one_tenant_one_server mode"
	}
	broken := func(format string, args ...any) error {
		return prego.Errorf(prego.CodeInvariantViolation, format, args...)
	}
	switch {
	case srv.Status != server.Active:
		return broken("app server %s is %s, not active", srv.ServerID, srv.Status)
	case shard.Status != server.Active:
		return broken("DB shard %s is %s, not active", shard.ShardID, shard.Status)
	case pool.Status != server.Active:
		return broken("Redis pool %s is %s, not active", pool.PoolID, pool.Status)
	case srv.Cordoned:
		return broken("app server %s is cordoned: it takes no new tenants", srv.ServerID)
	case shard.Cordoned:
		return broken("DB shard %s takes no new tenants: its server is cordoned", shard.ShardID)
	case pool.Cordoned:
		return broken("Redis pool %s takes no new tenants: its server is cordoned", pool.PoolID)
	case srv.Region != shard.Region || srv.Region != pool.Region:
		return broken("app server, DB shard and Redis pool are in regions %s, %s and %s",
			srv.Region, shard.Region, pool.Region)
	case srv.Role != prego.RoleNode && (srv.NetworkID != shard.NetworkID || srv.NetworkID != pool.NetworkID):
		return broken("app server %s is in %s, DB shard %s in %s and Redis pool %s in %s: "+
			"the networks are not connected (network_zone_mismatch)", srv.ServerID, networkName(srv.NetworkID),
			shard.ShardID, networkName(shard.NetworkID), pool.PoolID, networkName(pool.NetworkID))
	case !r.Constraint.SatisfiedBy(srv.Tags) && (r.Override == nil || !r.Override.IgnoreConstraint):
		return prego.Errorf(prego.CodeCellMismatch,
			"app server %s does not satisfy the constraint (%s)", srv.ServerID, r.Constraint)
	case srv.Region != r.Region:
		return broken("app server %s is in region %s, not %s", srv.ServerID, srv.Region, r.Region)
	case !shard.AnyPlan && !TierLockAllows(r.Plan, shard.PlanTierLock):
		return broken("DB shard %s is locked to %s, which plan %s may not use",
			shard.ShardID, lockName(shard.PlanTierLock), r.Plan)
	case (who != "" || d.Dedicates) && srv.TenantCount > 0:
		return broken("%s needs an empty server, and %s has %d tenants",
			cmp.Or(who, "a dedicating placement"), srv.ServerID, srv.TenantCount)
	case (who != "" || d.Dedicates) && srv.RunsInstances:
		return broken("%s needs an empty server, and %s runs instances of process groups",
			cmp.Or(who, "a dedicating placement"), srv.ServerID)
	case who != "" && shard.Tenants > 0:
		return broken("%s needs an empty DB shard, and %s has %d tenants", who, shard.ShardID, shard.Tenants)
	case who != "" && shard.RunsInstances:
		return broken("%s needs a dedicated DB shard, and the server of %s runs instances of process groups",
			who, shard.ShardID)
	case who != "" && pool.Tenants > 0:
		return broken("%s needs an empty Redis pool, and %s has %d tenants", who, pool.PoolID, pool.Tenants)
	case r.DedicatedRedis && pool.Tenants > 0:
		return broken("a dedicated Redis pool must be empty, and %s has %d tenants", pool.PoolID, pool.Tenants)
	case (who != "" || r.DedicatedRedis) && pool.RunsInstances:
		return broken("a dedicated Redis pool needs a dedicated server, and that of %s runs instances", pool.PoolID)
	case dedicatedToOther(srv.DedicatedFor, r), dedicatedToOther(shard.DedicatedFor, r),
		dedicatedToOther(pool.DedicatedFor, r):
		return broken("%s, %s or %s is dedicated to another tenant", srv.ServerID, shard.ShardID, pool.PoolID)
	case srv.Role == prego.RoleNode && (shard.HostServerID != srv.ServerID || pool.HostServerID != srv.ServerID):
		return broken("node %s is a whole stack: it uses only its own DB shard and Redis pool", srv.ServerID)
	case shard.HostServerID != "" && shard.HostServerID != srv.ServerID:
		return broken("DB shard %s is part of node %s", shard.ShardID, shard.HostServerID)
	case pool.HostServerID != "" && pool.HostServerID != srv.ServerID:
		return broken("Redis pool %s is part of node %s", pool.PoolID, pool.HostServerID)
	}
	if err := f.checkKept(r, &srv); err != nil {
		return err
	}
	if r.DataResidency != "" {
		zone, known := f.residency[r.DataResidency]
		if !known || !zone.Allows(srv.Region, srv.InfraProvider) {
			return broken("data of residents of %s may not be on %s in region %s", r.DataResidency, srv.InfraProvider, srv.Region)
		}
	}
	if d.PoolSiteID != "" && !f.hasSite(d) {
		return broken("site %s is not available on %s with shard %s", d.PoolSiteID, d.AppServerID, d.DBShardID)
	}
	return nil
}

// checkKept checks the filters of servers that an override keeps: it skips capacity and ranking only
// (placement-policy §2.2, §2.3, §8).
func (f *Snapshot) checkKept(r Request, srv *Server) error {
	switch {
	case f.badProvider(srv):
		return prego.Errorf(prego.CodeInvariantViolation,
			"provider %s of app server %s is disabled, or does not serve region %s",
			srv.InfraProvider, srv.ServerID, srv.Region)
	case srv.RefusesTrials && r.Plan == prego.PlanTrial:
		return prego.Errorf(prego.CodeInvariantViolation, "app server %s accepts no trial tenants", srv.ServerID)
	}
	return nil
}

func dedicatedToOther(dedicatedFor prego.TenantID, r Request) bool {
	return dedicatedFor != "" && dedicatedFor != r.TenantID
}

func lockName(p prego.Plan) string {
	if p == "" {
		return "no plan"
	}
	return fmt.Sprintf("plan %s", p)
}

func (f *Snapshot) hasSite(d Decision) bool {
	i, ok := f.find(d.AppServerID)
	if !ok {
		return false
	}
	return slices.ContainsFunc(f.servers[i].groups, func(g siteGroup) bool {
		return f.shards.items[g.shard].ShardID == d.DBShardID && slices.Contains(g.ids, d.PoolSiteID)
	})
}
