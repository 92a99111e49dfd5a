package store

import (
	"context"
	"slices"

	"github.com/prego/prego"
)

// A row's xmin differs after each change of it. An org without its own limit
// has its tier's.
const (
	sqlOrgVersion            = `SELECT xmin::text FROM orgs WHERE org_id = $1`
	sqlPlacementPoolVersion  = `SELECT xmin::text FROM placement_pools WHERE pool_id = lower($1)`
	sqlPolicyVersion         = `SELECT xmin::text FROM policies WHERE policy_id = $1`
	sqlRegistryVersion       = `SELECT xmin::text FROM registries WHERE org_id = $1 AND host = $2`
	sqlSitePoolPolicyVersion = `SELECT xmin::text FROM site_pool_policies WHERE plan = $1`
	sqlWarmPoolVersion       = `SELECT xmin::text FROM warm_pools WHERE region = $1 AND plan = $2`
	sqlQuotaVersion          = `
SELECT COALESCE((SELECT q.xmin::text FROM org_quotas q WHERE q.org_id = o.org_id AND q.dimension = $2), o.tier) FROM orgs o WHERE o.org_id = $1`
)

var sqlVersions = map[prego.Replaceable]string{
	prego.ReplaceableOrg: sqlOrgVersion, prego.ReplaceablePlacementPool: sqlPlacementPoolVersion, prego.ReplaceablePolicy: sqlPolicyVersion,
	prego.ReplaceableRegistry: sqlRegistryVersion, prego.ReplaceableSitePoolPolicy: sqlSitePoolPolicyVersion, prego.ReplaceableWarmPool: sqlWarmPoolVersion,
	prego.ReplaceableQuota: sqlQuotaVersion,
}

// Version is what a replacement can be made to depend on, "" where there is nothing.
func (s *Store) Version(ctx context.Context, what prego.Replaceable, key ...any) (string, error) {
	return version(ctx, s.pool, sqlVersions[what], key)
}

func version(ctx context.Context, q querier, sql string, key []any) (string, error) {
	v, err := value[string](ctx, q, sql, key...)
	return v, failed("version", ifNoRows(err, nil))
}

// holdVersion refuses a replacement of another version than those in match, where "*"
// is any, with CodePreconditionFailed. Until the transaction ends no other transaction changes the
// row. An empty match refuses nothing.
func holdVersion(ctx context.Context, tx *txn, match []string, what prego.Replaceable, key ...any) error {
	if len(match) == 0 {
		return nil
	}
	v, err := version(ctx, tx, sqlVersions[what]+" FOR NO KEY UPDATE", key)
	if err == nil && (v == "" || !slices.Contains(match, v) && !slices.Contains(match, "*")) {
		err = &prego.Error{Code: prego.CodePreconditionFailed, Field: "If-Match", Message: "the object has changed since it was read, or does not exist; read it again"}
	}
	return err
}

// replacing runs a write that match allows.
func (s *Store) replacing(ctx context.Context, match []string, what prego.Replaceable, key []any, write func(tx *txn) error) error {
	return s.inTx(ctx, "replace "+string(what), func(tx *txn) error {
		tx.check(holdVersion(ctx, tx, match, what, key...))
		return write(tx)
	})
}
