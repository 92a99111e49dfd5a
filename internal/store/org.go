package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
)

const orgColumns = `org_id, COALESCE(parent_org_id, ''), tier, created_by, created_at`

// Changes of parents exclude each other: two of them could close a circle that
// neither sees. Tenants are created all the same.
const sqlLockOrgs = `LOCK TABLE orgs IN SHARE ROW EXCLUSIVE MODE`

// The parent and all above it.
const sqlOrgsAbove = `
WITH RECURSIVE above AS (
    SELECT org_id, parent_org_id FROM orgs WHERE org_id = $2
    UNION SELECT o.org_id, o.parent_org_id FROM orgs o JOIN above a ON o.org_id = a.parent_org_id)
SELECT count(*) > 0, COALESCE(bool_or(org_id = $1), false) FROM above`

const sqlNewOrg = `
INSERT INTO orgs (org_id, parent_org_id, tier, created_by) VALUES ($1, NULLIF($2, ''), $3, $4) ON CONFLICT (org_id) DO NOTHING
RETURNING ` + orgColumns

// The row is held, so that the old tier that is written down is the one before. No
// change takes quota meanwhile.
const sqlHeldOrg = `SELECT ` + orgColumns + ` FROM orgs WHERE org_id = $1 FOR NO KEY UPDATE`

const sqlChangeOrg = `
UPDATE orgs SET parent_org_id = NULLIF($2, ''), tier = COALESCE(NULLIF($3, ''), tier) WHERE org_id = $1
RETURNING ` + orgColumns

// PutOrg makes an org, or gives one that is there another parent or none, and another
// tier if it is given one. Tenants keep the parent under which they were created.
func (s *Store) PutOrg(ctx context.Context, o org.Org, by string) (owner org.Org, err error) {
	if o.ParentOrgID == o.OrgID {
		return owner, prego.Invalid("parent_org_id", "must be another org")
	}
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if err := checkParent(ctx, tx, o); err != nil {
			return err
		}
		owner, err = oneOrg(ctx, tx, sqlNewOrg, o.OrgID, o.ParentOrgID, cmp.Or(o.Tier, s.newOrgs), by)
		if err == nil {
			return orgEvent(ctx, tx, org.Event{OrgID: o.OrgID, Type: "org.create", Subject: o.OrgID, Actor: by}, map[string]any{"tier": owner.Tier})
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		old, err := oneOrg(ctx, tx, sqlHeldOrg, o.OrgID)
		if err != nil {
			return err
		}
		if owner, err = oneOrg(ctx, tx, sqlChangeOrg, o.OrgID, o.ParentOrgID, o.Tier); err != nil || owner.Tier == old.Tier {
			return err
		}
		return orgEvent(ctx, tx, org.Event{OrgID: o.OrgID, Type: "org.tier_set", Subject: o.OrgID, Actor: by}, map[string]any{"old": old.Tier, "new": owner.Tier})
	})
	if err != nil {
		return org.Org{}, asCoded("put org", err)
	}
	return owner, nil
}

// checkParent refuses a parent that is unknown, or below the org. Until the end of the
// transaction nobody else changes parents.
func checkParent(ctx context.Context, tx pgx.Tx, o org.Org) error {
	if o.ParentOrgID == "" {
		return nil
	}
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
	return nil
}

func oneOrg(ctx context.Context, q querier, sql string, args ...any) (org.Org, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return org.Org{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[org.Org])
}

func noSuchOrg(id string) error { return prego.Errorf(prego.CodeNotFound, "there is no org %q", id) }

const sqlGetOrg = `SELECT ` + orgColumns + ` FROM orgs WHERE org_id = $1`

// GetOrg reads one org, or CodeNotFound.
func (s *Store) GetOrg(ctx context.Context, id string) (org.Org, error) {
	o, err := first(collect[org.Org](ctx, s, "get org", sqlGetOrg, id))
	if err != nil {
		return org.Org{}, err
	}
	if o == nil {
		return org.Org{}, noSuchOrg(id)
	}
	return *o, nil
}

const sqlListOrgs = `SELECT ` + orgColumns + ` FROM orgs WHERE org_id > $1 ORDER BY org_id LIMIT $2`

// ListOrgs is a page of orgs by id, those after the one given, and whether there
// are more.
func (s *Store) ListOrgs(ctx context.Context, after string, limit int) (page []org.Org, more bool, err error) {
	page, err = collect[org.Org](ctx, s, "list orgs", sqlListOrgs, after, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list orgs: %w", err)
	}
	if len(page) > limit {
		return page[:limit], true, nil
	}
	return page, false, nil
}
