package store

import (
	"cmp"
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/tenant"
)

const orgColumns = `org_id, COALESCE(parent_org_id, '') AS parent_org_id, tier, created_by, created_at`

// Only one parent may change at a time: two changes could form a cycle that neither sees.
// Creating tenants is not blocked.
const sqlLockOrgs = `LOCK TABLE orgs IN SHARE ROW EXCLUSIVE MODE`

// A writer of an org announces it before holding its row: a change of parents, which
// excludes writers, may want that row next.
const sqlWriteOrgs = `LOCK TABLE orgs IN ROW EXCLUSIVE MODE`

// The parent and all above it.
const sqlOrgsAbove = `
WITH RECURSIVE above AS (
    SELECT org_id, parent_org_id FROM orgs WHERE org_id = $2
    UNION SELECT o.org_id, o.parent_org_id FROM orgs o JOIN above a ON o.org_id = a.parent_org_id)
SELECT count(*) > 0, COALESCE(bool_or(org_id = $1), false) FROM above`

const sqlNewOrg = `
INSERT INTO orgs (org_id, parent_org_id, tier, created_by) VALUES ($1, NULLIF($2, ''), $3, $4) ON CONFLICT (org_id) DO NOTHING
RETURNING ` + orgColumns

// The row is held, so that the old tier that is written down is the previous one. No
// change takes quota meanwhile.
const sqlHeldOrg = `SELECT ` + orgColumns + ` FROM orgs WHERE org_id = $1 FOR NO KEY UPDATE`

const sqlChangeOrg = `
UPDATE orgs SET parent_org_id = NULLIF(COALESCE($2, parent_org_id), ''), tier = COALESCE(NULLIF($3, ''), tier) WHERE org_id = $1
RETURNING ` + orgColumns

// PutOrg creates an org, or changes the given fields of an existing one: omitted
// fields stay. Tenants keep the parent under which they were created. With match, see
// holdVersion.
func (s *Store) PutOrg(ctx context.Context, id prego.OrgID, r tenant.PutOrgRequest, by string, match ...string) (o org.Org, err error) {
	return s.PutOrgIf(ctx, id, r, func(*org.Org) error { return nil }, nil, by, match...)
}

// PutOrgIf is PutOrg if the caller may: may decides from the org as it was, whose row is held, nil for none. An org
// that the caller can't see has only its id. heirs are grants that a new org is created with.
func (s *Store) PutOrgIf(
	ctx context.Context, id prego.OrgID, r tenant.PutOrgRequest, may func(old *org.Org) error, heirs []NewGrant, by string, match ...string,
) (o org.Org, err error) {
	var parent string
	if r.ParentOrgID != nil {
		parent = string(*r.ParentOrgID)
	}
	if prego.OrgID(parent) == id {
		return o, prego.Invalid("parent_org_id", "must be another org")
	}
	ctx = whole(ctx) // may decides; a new org is in no reach yet
	err = s.inTx(ctx, "put org", func(tx *txn) error {
		tx.check(checkParent(ctx, tx, id, parent))
		tx.run(ctx, sqlWriteOrgs)
		tx.check(holdVersion(ctx, tx, match, prego.ReplaceableOrg, id))
		o, err = one[org.Org](ctx, tx, sqlNewOrg, id, parent, cmp.Or(r.Tier, s.newOrgs), by)
		if err == nil {
			tx.check(may(nil))
			for _, g := range heirs {
				tx.run(ctx, sqlEnsureGrant, g.GrantID, g.PrincipalID, g.AccessRole, id, by)
			}
			return orgEvent(ctx, tx, org.Event{OrgID: id, Type: "org.create", Subject: string(id), Actor: by}, map[string]any{"tier": o.Tier})
		}
		if !isNoRows(err) {
			return err
		}
		old := org.Org{OrgID: id}
		if held := findIn[org.Org](ctx, tx, sqlHeldOrg, id); held != nil {
			old = *held
		}
		tx.check(may(&old))
		if o, err = one[org.Org](ctx, tx, sqlChangeOrg, id, r.ParentOrgID, r.Tier); err != nil || o.Tier == old.Tier {
			return err
		}
		return orgEvent(ctx, tx, org.Event{OrgID: id, Type: "org.tier_set", Subject: string(id), Actor: by}, map[string]any{"old": old.Tier, "new": o.Tier})
	})
	return o, err
}

// checkParent refuses a parent that is unknown, or below the org. Until the end of the
// transaction no other transaction changes parents.
func checkParent(ctx context.Context, tx *txn, org prego.OrgID, parent string) error {
	if parent == "" {
		return nil
	}
	tx.run(ctx, sqlLockOrgs)
	var known, circle bool
	tx.check(tx.QueryRow(ctx, sqlOrgsAbove, org, parent).Scan(&known, &circle))
	if !known {
		return OrgUnknown("parent_org_id")
	}
	if circle {
		return prego.Invalid("parent_org_id", string("must not be an org that is below "+org))
	}
	return nil
}

// OrgUnknown is the refusal of a field that names an org which does not exist.
func OrgUnknown(field string) error {
	return &prego.Error{Code: prego.CodeOrgUnknown, Field: field, Message: "is not an org that is known here"}
}

func noSuchOrg(id prego.OrgID) error {
	return prego.Errorf(prego.CodeNotFound, "there is no org %q", id)
}

const sqlGetOrg = `SELECT ` + orgColumns + ` FROM orgs WHERE org_id = $1`

// GetOrg reads one org, or CodeNotFound.
func (s *Store) GetOrg(ctx context.Context, id prego.OrgID) (org.Org, error) {
	return get[org.Org](ctx, s.pool, noSuchOrg(id), sqlGetOrg, id)
}

// Orgs is the list of orgs.
var Orgs = Listing[org.Org]{
	what: "orgs", from: `SELECT ` + orgColumns + ` FROM orgs`,
	filters: map[string]string{"org_id": "org_id", "parent_org_id": "parent_org_id", "tier": "tier"},
	sorts:   map[string]string{"created_at": "created_at", "org_id": "org_id"},
	id:      "org_id",
}
