package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
)

const (
	// An org whose quota is being taken has its changes counted by that transaction.
	sqlUsageChanged = `SELECT DISTINCT org_id FROM org_usage_changes ORDER BY org_id`
	sqlFoldUsage    = `SELECT fold_org_usage($1)`
)

// foldUsage adds the changes of orgs that took nothing since to their counters, each org in a
// separate transaction.
func (s *Store) foldUsage(ctx context.Context) error {
	orgs, err := values[prego.OrgID](ctx, s.pool, sqlUsageChanged)
	if err != nil {
		return failed("orgs whose usage changed", err)
	}
	for _, id := range orgs {
		if err := s.exec(ctx, string("usage of org "+id), sqlFoldUsage, id); err != nil {
			return err
		}
	}
	return nil
}

// Orgs with usage are compared with their limits; only the ones nearest to one are returned
// one by one, with all their dimensions. The limits of the others are added up by tier, and
// what their own limits differ from it.
const (
	usedByOrgs = `
    SELECT org_id, dimension, used::float8 AS usage FROM org_counters WHERE used > 0
    UNION ALL SELECT org_id, 'max_snapshots_per_volume', max(n) FROM (
        SELECT org_id, tenant_id, count(*) AS n FROM snapshots WHERE status IN ('queued', 'running') GROUP BY org_id, tenant_id) s GROUP BY org_id
    UNION ALL SELECT org_id, CASE kind WHEN 'logs' THEN 'max_log_streams' ELSE 'max_exec_sessions' END, count(*)
        FROM org_sessions WHERE closed_at IS NULL AND lease_until > now() GROUP BY org_id, kind
    UNION ALL SELECT org_id, 'max_exec_sessions_per_hour', count(*) FROM org_sessions WHERE kind = 'exec' AND opened_at > now() - interval '1 hour' GROUP BY org_id
    UNION ALL SELECT org_id, 'max_servers', count(*) FROM counted_tenants WHERE policy = 'one_tenant_one_server' GROUP BY org_id
    UNION ALL SELECT org_id, 'max_monthly_euros', org_open(org_id, 'max_monthly_euros') FROM org_counters WHERE used > 0 AND dimension IN
        ('max_instances', 'max_volumes', 'max_ipv4_allocations') GROUP BY org_id`
	limitsOfTiers = `tiers AS MATERIALIZED (
    SELECT t.key AS tier, d.dimension, COALESCE((t.value ->> d.dimension)::float8, 0) AS limit_value FROM jsonb_each($1::jsonb) t CROSS JOIN unnest($3::text[]) d (dimension)
)`
)

const sqlUsageNearLimits = `
WITH used AS MATERIALIZED (` + usedByOrgs + `
), ` + limitsOfTiers + `, nearest AS MATERIALIZED (
    SELECT u.org_id FROM used u JOIN orgs o ON o.org_id = u.org_id LEFT JOIN org_quotas q ON q.org_id = u.org_id AND q.dimension = u.dimension
    LEFT JOIN tiers t ON t.tier = o.tier AND t.dimension = u.dimension
    CROSS JOIN LATERAL (SELECT COALESCE(q.limit_value, t.limit_value, 0) AS limit_value) l
    GROUP BY u.org_id ORDER BY max(CASE WHEN l.limit_value = 0 THEN 'Infinity' ELSE u.usage / l.limit_value END) DESC, u.org_id LIMIT $2
), rest AS (
    SELECT dimension, sum(usage) AS usage, sum(limit_value) AS limit_value FROM (
        SELECT dimension, usage, 0::float8 AS limit_value FROM used WHERE org_id NOT IN (SELECT org_id FROM nearest)
        UNION ALL SELECT t.dimension, 0, o.n * t.limit_value FROM (
            SELECT tier, count(*) AS n FROM orgs WHERE org_id NOT IN (SELECT org_id FROM nearest) GROUP BY tier) o JOIN tiers t ON t.tier = o.tier
        UNION ALL SELECT q.dimension, 0, q.limit_value - COALESCE(t.limit_value, 0) FROM org_quotas q JOIN orgs o ON o.org_id = q.org_id
            LEFT JOIN tiers t ON t.tier = o.tier AND t.dimension = q.dimension WHERE q.org_id NOT IN (SELECT org_id FROM nearest)) r
    GROUP BY dimension
)
SELECT n.org_id, d.dimension, COALESCE(u.usage, 0) AS usage, COALESCE(q.limit_value, t.limit_value, 0) AS "limit"
FROM nearest n JOIN orgs o ON o.org_id = n.org_id CROSS JOIN unnest($3::text[]) d (dimension) LEFT JOIN tiers t ON t.tier = o.tier AND t.dimension = d.dimension
LEFT JOIN used u ON u.org_id = n.org_id AND u.dimension = d.dimension LEFT JOIN org_quotas q ON q.org_id = n.org_id AND q.dimension = d.dimension
UNION ALL SELECT '', d.dimension, COALESCE(r.usage, 0), COALESCE(r.limit_value, 0) FROM unnest($3::text[]) d (dimension) LEFT JOIN rest r ON r.dimension = d.dimension
ORDER BY 1, 2`

// UsageNearLimits is the usage of the n orgs nearest to one of their limits,
// and the sum of all others. It reads the counters of all orgs, and is not for every request.
func (s *Store) UsageNearLimits(ctx context.Context, n int) ([]org.Usage, error) {
	if err := s.foldUsage(ctx); err != nil {
		return nil, err
	}
	return collect[org.Usage](ctx, s, "usage of orgs", sqlUsageNearLimits, s.tierLimits, n, quota.Dimensions())
}

const (
	sqlUsageSweep  = `SELECT org_id FROM orgs WHERE org_id > (SELECT last_id FROM org_usage_sweep) ORDER BY org_id LIMIT $1`
	sqlUsageSwept  = `UPDATE org_usage_sweep SET last_id = $1`
	sqlUsageDrift  = `SELECT jsonb_agg(d ORDER BY d.dimension) FROM org_usage_drift($1, $2) d`
	sqlUsageAgrees = `DELETE FROM org_usage_drifts WHERE org_id = $1`
	sqlUsageDrifts = `
INSERT INTO org_usage_drifts (org_id, drift) VALUES ($1, $2) ON CONFLICT (org_id) DO UPDATE SET found_at = now(), drift = EXCLUDED.drift`
	sqlRecountUsage = `SELECT recount_org_usage($1)`
	sqlDriftedOrgs  = `SELECT count(*) FROM org_usage_drifts`
)

// CheckUsage counts the next orgs from their rows, at most page of them and no more when
// patience is over, and compares that with their counters. An org whose counters are wrong is
// counted again with its row held. Drifted is how many orgs were wrong when they were last
// looked at, on all pages.
func (s *Store) CheckUsage(ctx context.Context, page int, patience time.Duration) (c org.UsageCheck, err error) {
	if err := s.foldUsage(ctx); err != nil {
		return c, err
	}
	began := time.Now()
	orgs, err := values[prego.OrgID](ctx, s.pool, sqlUsageSweep, page)
	if err != nil {
		return c, failed("orgs to count", err)
	}
	var last prego.OrgID // after the last page the first one comes again
	for _, id := range orgs {
		if err := s.checkUsage(ctx, id, &c); err != nil {
			return c, err
		}
		c.Checked++
		if time.Since(began) > patience {
			last = id
			break
		}
	}
	if len(orgs) == page {
		last = orgs[c.Checked-1]
	}
	if err := s.exec(ctx, "usage sweep", sqlUsageSwept, last); err != nil {
		return c, err
	}
	c.Drifted, err = value[int](ctx, s.pool, sqlDriftedOrgs)
	return c, failed("orgs whose usage was wrong", err)
}

func (s *Store) checkUsage(ctx context.Context, id prego.OrgID, c *org.UsageCheck) error {
	drift, err := s.usageDrift(ctx, s.pool, id)
	if err != nil {
		return err
	}
	if drift == nil {
		return s.exec(ctx, string("usage of org "+id), sqlUsageAgrees, id)
	}
	c.Repaired = append(c.Repaired, org.UsageDrift{OrgID: id, Drift: drift})
	return s.inTx(ctx, string("count org "+id), func(tx *txn) error {
		tx.run(ctx, sqlRecountUsage, id)
		tx.run(ctx, sqlUsageDrifts, id, drift)
		return nil
	})
}

// usageDrift is where an org's counters differ from its rows, as of one moment; nil for
// nowhere.
func (s *Store) usageDrift(ctx context.Context, q querier, id prego.OrgID) (json.RawMessage, error) {
	drift, err := value[json.RawMessage](ctx, q, sqlUsageDrift, id, quota.Dimensions())
	return drift, failed(string("usage of org "+id), err)
}
