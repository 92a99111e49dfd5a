package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
)

const orgColumns = `org_id, COALESCE(parent_org_id, ''), created_by, created_at`

// Changes of parents exclude each other: two of them could close a circle that
// neither sees. Tenants are created all the same.
const sqlLockOrgs = `LOCK TABLE orgs IN SHARE ROW EXCLUSIVE MODE`

// The parent and all above it.
const sqlOrgsAbove = `
WITH RECURSIVE above AS (
    SELECT org_id, parent_org_id FROM orgs WHERE org_id = $2
    UNION SELECT o.org_id, o.parent_org_id FROM orgs o JOIN above a ON o.org_id = a.parent_org_id)
SELECT count(*) > 0, COALESCE(bool_or(org_id = $1), false) FROM above`

const sqlPutOrg = `
INSERT INTO orgs (org_id, parent_org_id, created_by) VALUES ($1, NULLIF($2, ''), $3)
ON CONFLICT (org_id) DO UPDATE SET parent_org_id = EXCLUDED.parent_org_id
RETURNING ` + orgColumns

// PutOrg makes an org, or gives one that is there another parent or none. Tenants
// keep the parent under which they were created.
func (s *Store) PutOrg(ctx context.Context, o prego.Org, by string) (org prego.Org, err error) {
	if o.ParentOrgID == o.OrgID {
		return org, prego.Invalid("parent_org_id", "must be another org")
	}
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if o.ParentOrgID != "" {
			if _, err := tx.Exec(ctx, sqlLockOrgs); err != nil {
				return err
			}
			var known, circle bool
			if err := tx.QueryRow(ctx, sqlOrgsAbove, o.OrgID, o.ParentOrgID).Scan(&known, &circle); err != nil {
				return err
			}
			if !known {
				return &prego.Error{Code: prego.CodeOrgUnknown, Field: "parent_org_id", Message: "is not an org that is known here"}
			}
			if circle {
				return prego.Invalid("parent_org_id", "must not be an org that is below "+o.OrgID)
			}
		}
		rows, err := tx.Query(ctx, sqlPutOrg, o.OrgID, o.ParentOrgID, by)
		if err != nil {
			return err
		}
		org, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[prego.Org])
		return err
	})
	if err != nil {
		return prego.Org{}, asCoded("put org", err)
	}
	return org, nil
}

const sqlGetOrg = `SELECT ` + orgColumns + ` FROM orgs WHERE org_id = $1`

// GetOrg reads one org, or CodeNotFound.
func (s *Store) GetOrg(ctx context.Context, id string) (prego.Org, error) {
	org, err := first(collect[prego.Org](ctx, s, "get org", sqlGetOrg, id))
	if err != nil {
		return prego.Org{}, err
	}
	if org == nil {
		return prego.Org{}, prego.Errorf(prego.CodeNotFound, "there is no org %q", id)
	}
	return *org, nil
}

const sqlListOrgs = `SELECT ` + orgColumns + ` FROM orgs WHERE org_id > $1 ORDER BY org_id LIMIT $2`

// ListOrgs is a page of orgs by id, those after the one given, and whether there
// are more.
func (s *Store) ListOrgs(ctx context.Context, after string, limit int) (page []prego.Org, more bool, err error) {
	page, err = collect[prego.Org](ctx, s, "list orgs", sqlListOrgs, after, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list orgs: %w", err)
	}
	if len(page) > limit {
		return page[:limit], true, nil
	}
	return page, false, nil
}
