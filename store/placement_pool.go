package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/prego/prego"
)

const poolColumns = `p.pool_id, p.name, jsonb_build_object('require', p.require_tags, 'disallow', p.disallow_tags) AS "constraint", p.is_default AS "default", (SELECT count(*) FROM org_placement_pools o WHERE o.pool_id = p.pool_id) AS orgs,
    p.created_by, p.created_at, p.updated_by, p.updated_at`

// poolID is the key of a pool: case does not matter in its name.
func poolID(name string) string { return strings.ToLower(name) }

func noSuchPool(name string) error {
	return prego.Errorf(prego.CodePlacementPoolNotFound, "there is no placement pool %q", name)
}

// onePool runs a statement that answers the pool of a name, or CodePlacementPoolNotFound.
func onePool(ctx context.Context, q querier, name, sql string, args ...any) (prego.PlacementPool, error) {
	return get[prego.PlacementPool](ctx, q, noSuchPool(name), sql, append([]any{poolID(name)}, args...)...)
}

const sqlCreatePool = `
INSERT INTO placement_pools AS p (pool_id, name, require_tags, disallow_tags, created_by, updated_by) VALUES ($1, $2, $3, $4, $5, $5)
ON CONFLICT (pool_id) DO NOTHING RETURNING ` + poolColumns

// CreatePlacementPool creates a pool. Repeating it returns the existing
// pool; another of its name is CodePlacementPoolExists.
func (s *Store) CreatePlacementPool(ctx context.Context, name string, c prego.Constraint, by string) (p prego.PlacementPool, created bool, err error) {
	err = s.inTx(ctx, "create placement pool", func(tx *txn) error {
		p, err = onePool(ctx, tx, name, sqlCreatePool, name, filled(c.Require), filled(c.Disallow), by)
		if prego.CodeOf(err) != prego.CodePlacementPoolNotFound {
			created = err == nil
			return err
		}
		p = got(onePool(ctx, tx, name, sqlGetPool)).in(tx)
		if !p.Constraint.Equal(c) {
			return &prego.Error{Code: prego.CodePlacementPoolExists, Field: "name", Message: "belongs to a placement pool with another constraint"}
		}
		return nil
	})
	return p, created, err
}

const sqlGetPool = `SELECT ` + poolColumns + ` FROM placement_pools p WHERE p.pool_id = $1`

// GetPlacementPool reads one pool, or CodePlacementPoolNotFound.
func (s *Store) GetPlacementPool(ctx context.Context, name string) (prego.PlacementPool, error) {
	return onePool(ctx, s.pool, name, sqlGetPool)
}

// PlacementPools is the list of placement pools.
var PlacementPools = Listing[prego.PlacementPool]{
	what: "placement pools", from: `SELECT ` + poolColumns + ` FROM placement_pools p`,
	filters: map[string]string{"name": "p.pool_id = ANY (SELECT lower(n) FROM unnest($?::text[]) n)"},
	sorts:   map[string]string{"created_at": "p.created_at", "name": "p.pool_id"},
	id:      "p.pool_id",
}

const sqlPutPool = `
UPDATE placement_pools p SET require_tags = $2, disallow_tags = $3, updated_by = $4, updated_at = now() WHERE pool_id = $1
RETURNING ` + poolColumns

// PutPlacementPool gives a pool another constraint. Tenants that have a place keep it;
// every placement from now on goes by the new one. With match, see holdVersion.
func (s *Store) PutPlacementPool(ctx context.Context, name string, c prego.Constraint, by string, match ...string) (p prego.PlacementPool, err error) {
	err = s.replacing(ctx, match, prego.ReplaceablePlacementPool, []any{name}, func(tx *txn) error {
		p = got(onePool(ctx, tx, name, sqlPutPool, filled(c.Require), filled(c.Disallow), by)).in(tx)
		return nil
	})
	return p, err
}

// Of two transactions that concurrently set the default, neither would see the other's pool.
const sqlLockDefault = `SELECT pg_advisory_xact_lock(hashtextextended('prego/placement-pools/default', 0))`

const sqlOtherDefault = `UPDATE placement_pools SET is_default = false, updated_by = $2, updated_at = now() WHERE is_default AND pool_id <> $1`

const sqlSetDefault = `
UPDATE placement_pools p SET is_default = $2, updated_by = CASE WHEN is_default = $2 THEN updated_by ELSE $3 END,
    updated_at = CASE WHEN is_default = $2 THEN updated_at ELSE now() END
WHERE pool_id = $1 RETURNING ` + poolColumns

// SetDefaultPool makes a pool the default one, in place of the present one, or no
// longer the default.
func (s *Store) SetDefaultPool(ctx context.Context, name string, on bool, by string) (p prego.PlacementPool, err error) {
	err = s.inTx(ctx, "default placement pool", func(tx *txn) error {
		tx.run(ctx, sqlLockDefault)
		if on {
			tx.run(ctx, sqlOtherDefault, poolID(name), by)
		}
		p = got(onePool(ctx, tx, name, sqlSetDefault, on, by)).in(tx)
		return nil
	})
	return p, err
}

// An association holds the pool's key while it is created.
const sqlLockPool = `SELECT ` + poolColumns + ` FROM placement_pools p WHERE p.pool_id = $1 FOR UPDATE`

const sqlPoolOrgs = `SELECT org_id FROM org_placement_pools WHERE pool_id = $1 ORDER BY org_id LIMIT $2`

const sqlDeletePool = `DELETE FROM placement_pools WHERE pool_id = $1`

// namedOrgs is how many of a pool's users a refusal names.
const namedOrgs = 5

// DeletePlacementPool deletes a pool that nothing uses; CodePlacementPoolInUse names
// its users.
func (s *Store) DeletePlacementPool(ctx context.Context, name string) error {
	return s.inTx(ctx, fmt.Sprintf("orgs of placement pool %s", name), func(tx *txn) error {
		// Two statements: pools associated before the lock came also count.
		got(onePool(ctx, tx, name, sqlLockPool)).in(tx)
		p := got(onePool(ctx, tx, name, sqlGetPool)).in(tx)
		var users []string
		if p.Default {
			users = append(users, "it is the default pool")
		}
		if p.Orgs > 0 {
			orgs := valuesIn[string](ctx, tx, sqlPoolOrgs, poolID(name), namedOrgs)
			text := "orgs are associated with it: " + strings.Join(orgs, ", ")
			if more := p.Orgs - len(orgs); more > 0 {
				text += fmt.Sprintf(" and %d more", more)
			}
			users = append(users, text)
		}
		if len(users) > 0 {
			return prego.Errorf(prego.CodePlacementPoolInUse, "placement pool %q is in use: %s", p.Name, strings.Join(users, "; "))
		}
		tx.run(ctx, sqlDeletePool, poolID(name))
		return nil
	})
}

// PlacementPoolOrgs are the first of the orgs that are associated with a pool, by id.
func (s *Store) PlacementPoolOrgs(ctx context.Context, name string, limit int) ([]string, error) {
	return collectValues[string](ctx, s, "orgs of placement pool "+name, sqlPoolOrgs, poolID(name), limit)
}

// Held, so that two concurrent associations don't both see room for one more.
const sqlLockOrg = `SELECT org_id FROM orgs WHERE org_id = $1 FOR NO KEY UPDATE`

// Held, so that the pool is not deleted meanwhile.
const sqlHoldPool = `SELECT ` + poolColumns + ` FROM placement_pools p WHERE p.pool_id = $1 FOR KEY SHARE`

const sqlAssociatePool = `
INSERT INTO org_placement_pools (org_id, pool_id, created_by) SELECT $2, pool_id, $3 FROM placement_pools WHERE pool_id = $1
ON CONFLICT DO NOTHING`

const sqlCountOrgPools = `SELECT count(*) FROM org_placement_pools WHERE org_id = $1`

// AssociatePool makes a pool apply to an org's tenants from their next placement on.
// Repeated, it changes nothing.
func (s *Store) AssociatePool(ctx context.Context, orgID prego.OrgID, name, by string) error {
	return s.inTx(ctx, fmt.Sprintf("associate org %s with placement pool %s", orgID, name), func(tx *txn) error {
		tx.check(lockOrg(ctx, tx, orgID))
		got(onePool(ctx, tx, name, sqlHoldPool)).in(tx)
		tx.run(ctx, sqlAssociatePool, poolID(name), orgID, by)
		n := valueIn[int](ctx, tx, sqlCountOrgPools, orgID)
		if n > prego.MaxOrgPools {
			return prego.Invalid("pool", fmt.Sprintf("is one too many: an org is associated with at most %d placement pools", prego.MaxOrgPools))
		}
		return nil
	})
}

const sqlDissociatePool = `DELETE FROM org_placement_pools WHERE pool_id = $1 AND org_id = $2`

// DissociatePool ends an association. Repeated, it changes nothing.
func (s *Store) DissociatePool(ctx context.Context, orgID prego.OrgID, name string) error {
	return s.inTx(ctx, fmt.Sprintf("dissociate org %s from placement pool %s", orgID, name), func(tx *txn) error {
		tx.check(lockOrg(ctx, tx, orgID))
		got(onePool(ctx, tx, name, sqlGetPool)).in(tx)
		tx.run(ctx, sqlDissociatePool, poolID(name), orgID)
		return nil
	})
}

// lockOrg holds an org's row until the transaction ends, as takeQuota does, or answers
// CodeNotFound.
func lockOrg(ctx context.Context, tx *txn, orgID prego.OrgID) error {
	_, err := value[string](ctx, tx, sqlLockOrg, orgID)
	return failed(string("org "+orgID), ifNoRows(err, noSuchOrg(orgID)))
}

// lockNamedOrg is lockOrg for the org that a request names, or answers CodeOrgUnknown.
func lockNamedOrg(ctx context.Context, tx *txn, orgID prego.OrgID) error {
	err := lockOrg(ctx, tx, orgID)
	if prego.CodeOf(err) == prego.CodeNotFound {
		return OrgUnknown("org_id")
	}
	return err
}

// lockOwner is lockOrg for the org of something, which sql reads, or answers none.
func lockOwner(ctx context.Context, tx *txn, none error, sql string, id any) (orgID prego.OrgID, err error) {
	if orgID, err = value[prego.OrgID](ctx, tx, sql, id); err != nil {
		return orgID, ifNoRows(err, none)
	}
	return orgID, lockOrg(ctx, tx, orgID)
}

const sqlOrgPools = `SELECT ` + poolColumns + ` FROM placement_pools_of($1) p ORDER BY p.pool_id`

// OrgPlacementPools are the pools that apply to an org's tenants: the pools that it is
// associated with, or else the default one.
func (s *Store) OrgPlacementPools(ctx context.Context, orgID prego.OrgID) ([]prego.PlacementPool, error) {
	if _, err := s.GetOrg(ctx, orgID); err != nil {
		return nil, err
	}
	return collect[prego.PlacementPool](ctx, s, string("placement pools of org "+orgID), sqlOrgPools, orgID)
}

const sqlPoolsOf = `
SELECT o.org_id AS org, p.name, p.require_tags AS require, p.disallow_tags AS disallow
FROM (SELECT DISTINCT org_id FROM unnest($1::text[]) u(org_id)) o, LATERAL placement_pools_of(o.org_id) p ORDER BY o.org_id, p.pool_id`

// PoolsOf are the pools that apply to the tenants of each of these orgs, by name.
func (s *Store) PoolsOf(ctx context.Context, orgIDs []prego.OrgID) (map[string][]prego.AppliedPool, error) {
	type applied struct {
		Org               string
		Name              string
		Require, Disallow []string
	}
	all, err := collect[applied](ctx, s, "placement pools of orgs", sqlPoolsOf, orgIDs)
	if err != nil {
		return nil, err
	}
	out := map[string][]prego.AppliedPool{}
	for _, a := range all {
		out[a.Org] = append(out[a.Org], prego.AppliedPool{Name: a.Name, Require: a.Require, Disallow: a.Disallow})
	}
	return out, nil
}
