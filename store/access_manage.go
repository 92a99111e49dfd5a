package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

// What decides who has access is read and changed as a whole here: each function refuses what is outside of the reach
// of the request, and a principal of the installation is seen by the orgs that granted it something.

// reachOf is the reach of a request; the control plane's own work reaches everything.
func reachOf(ctx context.Context) access.Reach {
	if r, ok := access.ReachOf(ctx); ok {
		return r
	}
	return access.Reach{Everywhere: true}
}

// inReach reads a list whose filter in_reach, which no caller can give, is the reach of the request.
func inReach[T any](l Listing[T], s *Store) func(context.Context, prego.ListQuery) ([]T, string, error) {
	return func(ctx context.Context, q prego.ListQuery) ([]T, string, error) {
		if r := reachOf(ctx); !r.Everywhere {
			q = q.Of("in_reach", "")
			q.Filters["in_reach"] = prego.Strings(r.Orgs)
		}
		return l.page(ctx, s, q)
	}
}

func noSuchAccount(id string) error {
	return prego.Errorf(prego.CodeNotFound, "there is no service account %q", id)
}

func noSuchToken(id string) error {
	return prego.Errorf(prego.CodeNotFound, "there is no token %q", id)
}

func noSuchLogin(id string) error {
	return prego.Errorf(prego.CodeNotFound, "there is no login %q", id)
}

func noSuchGrant(id string) error {
	return prego.Errorf(prego.CodeNotFound, "there is no grant %q", id)
}

func noSuchUser(id string) error {
	return prego.Errorf(prego.CodeNotFound, "there is no user %q", id)
}

const serviceColumns = `p.principal_id, p.name, COALESCE(p.org_id, '') AS org_id, p.created_by, p.created_at, p.disabled_at`

const (
	sqlCreateAccount = `
INSERT INTO principals AS p (principal_id, kind, name, org_id, created_by) VALUES ($1, 'service_account', $2, NULLIF($3, ''), $4)
ON CONFLICT (COALESCE(org_id, ''), name) WHERE kind = 'service_account' AND disabled_at IS NULL DO NOTHING RETURNING ` + serviceColumns
	sqlAccountNamed = `
SELECT ` + serviceColumns + ` FROM principals p
WHERE p.kind = 'service_account' AND COALESCE(p.org_id, '') = $1 AND p.name = $2 AND p.disabled_at IS NULL`
	sqlGetService = `SELECT ` + serviceColumns + ` FROM principals p WHERE p.principal_id = $1 AND p.kind = 'service_account'`
)

// CreateAccount creates a service account. Repeating it returns the enabled one of that name.
func (s *Store) CreateAccount(ctx context.Context, n access.Account) (out access.Account, created bool, err error) {
	err = s.inTx(ctx, "service account", func(tx *txn) error {
		if n.OrgID != "" {
			tx.check(lockNamedOrg(ctx, tx, n.OrgID))
		}
		if made := findIn[access.Account](ctx, tx, sqlCreateAccount, n.PrincipalID, n.Name, n.OrgID, n.CreatedBy); made != nil {
			out, created = *made, true
			return nil
		}
		out = oneIn[access.Account](ctx, tx, sqlAccountNamed, n.OrgID, n.Name)
		return nil
	})
	return out, created, err
}

// GetAccount reads a service account, or CodeNotFound.
func (s *Store) GetAccount(ctx context.Context, id string) (access.Account, error) {
	return get[access.Account](ctx, s.pool, noSuchAccount(id), sqlGetService, id)
}

var accounts = Listing[access.Account]{
	what: "service accounts", from: `SELECT ` + serviceColumns + ` FROM principals p`,
	always: `p.kind = 'service_account'`, live: `p.disabled_at IS NULL`,
	filters: map[string]string{"org_id": "p.org_id", "name": "p.name", "in_reach": "p.org_id"},
	sorts:   map[string]string{"created_at": "p.created_at", "name": "p.name"},
	id:      "p.principal_id",
}

// ListAccounts lists service accounts.
func (s *Store) ListAccounts(ctx context.Context, q prego.ListQuery) ([]access.Account, string, error) {
	return inReach(accounts, s)(ctx, q)
}

// Of two changes at the same time that each leave the other one's owner, neither would see the other. Statements after
// this one see what changes before it did.
const sqlHoldOwners = `SELECT pg_advisory_xact_lock(hashtextextended('prego/access/owners', 0))`

const (
	sqlDisablePrincipal = `UPDATE principals SET disabled_at = now() WHERE principal_id = $1 AND kind = $2 AND disabled_at IS NULL`
	sqlEnablePrincipal  = `UPDATE principals SET disabled_at = NULL WHERE principal_id = $1 AND kind = $2 AND disabled_at IS NOT NULL`
	sqlHasPrincipal     = `SELECT EXISTS (SELECT FROM principals WHERE principal_id = $1 AND kind = $2)`

	// Of a principal whose grants no longer count: what is left without an owner, the installation first. A group may
	// have no members.
	sqlWithoutOwner = `
SELECT COALESCE(g.org_id, '') FROM access_grants g
WHERE g.principal_id = $1 AND g.access_role = CASE WHEN g.org_id IS NULL THEN 'operator' ELSE 'org_owner' END
    AND NOT EXISTS (SELECT FROM access_grants o JOIN principals p ON p.principal_id = o.principal_id
        WHERE o.access_role = g.access_role AND o.org_id IS NOT DISTINCT FROM g.org_id AND p.disabled_at IS NULL AND p.kind <> 'group' AND p.issuer <> 'host')
ORDER BY 1 LIMIT 1`
	sqlHasOwner = `
SELECT EXISTS (SELECT FROM access_grants o JOIN principals p ON p.principal_id = o.principal_id
    WHERE o.access_role = $1 AND o.org_id IS NOT DISTINCT FROM NULLIF($2, '') AND p.disabled_at IS NULL AND p.kind <> 'group' AND p.issuer <> 'host')`
)

func lastOwner(org prego.OrgID) error {
	of := "the installation"
	if org != "" {
		of = "the org " + string(org)
	}
	return prego.Errorf(prego.CodeLastOwner, "this is the last enabled %s of %s: grant it to another user or service account first", access.OwnerRole(org), of)
}

// DisablePrincipal makes nothing of a user or service account be accepted any more; CodeLastOwner if nobody could
// grant anything then. Repeating it changes nothing.
func (s *Store) DisablePrincipal(ctx context.Context, id string, kind access.PrincipalKind) error {
	return s.inTx(ctx, "disable "+id, func(tx *txn) error {
		tx.run(ctx, sqlHoldOwners)
		if !tx.run(ctx, sqlDisablePrincipal, id, kind) {
			return doneBefore(ctx, tx, noSuchPrincipal(id, kind), sqlHasPrincipal, id, kind)
		}
		return refuseWithoutOwner(ctx, tx, id)
	})
}

func refuseWithoutOwner(ctx context.Context, tx *txn, id string) error {
	switch org, err := value[prego.OrgID](ctx, tx, sqlWithoutOwner, id); {
	case isNoRows(err):
		return nil
	case err != nil:
		return err
	default:
		return lastOwner(org)
	}
}

// EnablePrincipal undoes DisablePrincipal. What was revoked stays revoked.
func (s *Store) EnablePrincipal(ctx context.Context, id string, kind access.PrincipalKind) error {
	return s.inTx(ctx, "enable "+id, func(tx *txn) error {
		if !tx.run(ctx, sqlEnablePrincipal, id, kind) {
			return doneBefore(ctx, tx, noSuchPrincipal(id, kind), sqlHasPrincipal, id, kind)
		}
		return nil
	})
}

func noSuchPrincipal(id string, kind access.PrincipalKind) error {
	if kind == access.ServiceAccount {
		return noSuchAccount(id)
	}
	return noSuchUser(id)
}

// What is known of a token or a login. Its secret's hash stays here.
const issuedColumns = `id, name, prefix, principal_id, principal_name, org_id, parent_id, caveats, address, created_by, created_at, expires_at, last_used_at, revoked_at, revoked_by`

const sqlIssued = `
SELECT ` + issuedColumns + ` FROM (SELECT c.credential_id AS id, c.kind, c.name, c.prefix, c.principal_id, p.name AS principal_name, COALESCE(p.org_id, '') AS org_id,
    p.org_id AS of_org, p.disabled_at, COALESCE(c.parent_id, '') AS parent_id, c.caveats, c.address, c.created_by, c.created_at, c.expires_at, c.last_used_at, c.revoked_at,
    COALESCE(c.revoked_by, '') AS revoked_by
    FROM credentials c JOIN principals p ON p.principal_id = c.principal_id) c`

const liveCredential = `c.revoked_at IS NULL AND c.expires_at > now() AND c.disabled_at IS NULL`

var tokens = Listing[access.Issued]{
	what: "tokens", from: sqlIssued, always: `c.kind = 'token'`, live: liveCredential,
	filters: map[string]string{
		"principal_id": "c.principal_id", "org_id": "c.of_org", "name": "c.name", "prefix": "c.prefix", "in_reach": "c.of_org", "token_id": "c.id",
	},
	sorts: map[string]string{"created_at": "c.created_at", "expires_at": "c.expires_at"},
	id:    "c.id",
}

var logins = Listing[access.Issued]{
	what: "logins", from: sqlIssued, always: `c.kind = 'login'`, live: liveCredential,
	filters: map[string]string{"principal_id": "c.principal_id"},
	sorts:   map[string]string{"created_at": "c.created_at", "expires_at": "c.expires_at"},
	id:      "c.id",
}

// ListTokens lists tokens.
func (s *Store) ListTokens(ctx context.Context, q prego.ListQuery) ([]access.Issued, string, error) {
	return inReach(tokens, s)(ctx, q)
}

const sqlTokensBelow = `
WITH RECURSIVE below AS (
    SELECT credential_id, kind FROM credentials WHERE parent_id = $1
    UNION SELECT c.credential_id, c.kind FROM credentials c JOIN below b ON c.parent_id = b.credential_id
) SELECT credential_id FROM below WHERE kind = 'token' ORDER BY 1`

// TokensBelow are the tokens that were narrowed from a credential, or from what comes from it.
func (s *Store) TokensBelow(ctx context.Context, credential string) ([]string, error) {
	ids, err := values[string](whole(ctx), s.pool, sqlTokensBelow, credential) // the caller's own
	return ids, failed("narrowed tokens", err)
}

// ListTokensBelow lists them.
func (s *Store) ListTokensBelow(
	ctx context.Context, credential string, q prego.ListQuery,
) ([]access.Issued, string, error) {
	ids, err := s.TokensBelow(ctx, credential)
	if err != nil || len(ids) == 0 {
		return nil, "", err
	}
	q = q.Of("token_id", "")
	q.Filters["token_id"] = ids
	return tokens.page(whole(ctx), s, q)
}

// ListLogins lists logins, whose principals are of the installation: the caller narrows the list to its own.
func (s *Store) ListLogins(ctx context.Context, q prego.ListQuery) ([]access.Issued, string, error) {
	return logins.page(whole(ctx), s, q)
}

const (
	sqlGetToken    = sqlIssued + ` WHERE c.id = $1 AND c.kind = 'token'`
	sqlLoginOf     = `SELECT principal_id FROM credentials WHERE credential_id = $1 AND kind = 'login'`
	sqlHoldAccount = `SELECT ` + serviceColumns + ` FROM principals p WHERE p.principal_id = $1 AND p.kind = 'service_account' FOR SHARE`
	sqlGrantsOf    = `
SELECT g.grant_id, g.access_role AS role, r.capabilities AS custom, COALESCE(g.org_id, '') AS org_id, '{}'::text[] AS orgs
FROM access_grants g LEFT JOIN access_roles r ON r.name = g.access_role WHERE g.principal_id = $1 ORDER BY g.grant_id`
)

// GetToken reads a token, or CodeNotFound.
func (s *Store) GetToken(ctx context.Context, id string) (access.Issued, error) {
	return get[access.Issued](ctx, s.pool, noSuchToken(id), sqlGetToken, id)
}

// LoginOf is whose login it is, or CodeNotFound.
func (s *Store) LoginOf(ctx context.Context, id string) (principalID string, err error) {
	principalID, err = value[string](whole(ctx), s.pool, sqlLoginOf, id)
	return principalID, failed("login", ifNoRows(err, noSuchLogin(id)))
}

// mayActFor refuses to issue a token of a disabled service account, or of one that may do more than the caller: may
// decides on each of its grants, wherever they are. none is for a principal that is no service account: those of users
// also have the grants of groups.
func mayActFor(ctx context.Context, tx *txn, id string, none error, may func(access.Grant) error) {
	account := getIn[access.Account](ctx, tx, none, sqlHoldAccount, id)
	if account.DisabledAt != nil {
		tx.check(prego.Errorf(prego.CodeInvalidTransition, "the service account %s is disabled: nothing of it is accepted", account.Name))
	}
	for _, g := range manyIn[access.Grant](whole(ctx), tx, sqlGrantsOf, id) {
		tx.check(may(g))
	}
}

// CreateToken writes a token of a service account, if may allows what its grants give.
func (s *Store) CreateToken(ctx context.Context, c Credential, may func(access.Grant) error) (out access.Issued, err error) {
	err = s.inTx(ctx, "token", func(tx *txn) error {
		mayActFor(ctx, tx, c.PrincipalID, noSuchAccount(c.PrincipalID), may)
		got(createCredential(ctx, tx, c)).in(tx)
		out = oneIn[access.Issued](ctx, tx, sqlGetToken, c.CredentialID)
		return nil
	})
	return out, err
}

const (
	// mostNarrowed bounds how many credentials a request reads.
	mostNarrowed = 8
	sqlChain     = `
WITH RECURSIVE chain AS (
    SELECT credential_id, parent_id FROM credentials WHERE credential_id = $1
    UNION ALL SELECT p.credential_id, p.parent_id FROM credentials p JOIN chain c ON p.credential_id = c.parent_id
) SELECT count(*) FROM chain`
)

// NarrowToken writes a token below the caller's own credential: it ends with that, and has its caveats as well.
func (s *Store) NarrowToken(ctx context.Context, c Credential) (out access.Issued, err error) {
	ctx = whole(ctx) // the caller's own
	err = s.inTx(ctx, "narrowed token", func(tx *txn) error {
		if valueIn[int](ctx, tx, sqlChain, c.ParentID) >= mostNarrowed {
			return prego.Errorf(prego.CodeInvalidTransition, "this token was narrowed %d times already: narrow an earlier one", mostNarrowed-1)
		}
		got(createCredential(ctx, tx, c)).in(tx)
		out = oneIn[access.Issued](ctx, tx, sqlGetToken, c.CredentialID)
		return nil
	})
	return out, err
}

const (
	sqlHoldToken = `
SELECT credential_id, kind, ''::bytea AS hash, prefix, principal_id, COALESCE(parent_id, '') AS parent_id, name, caveats, group_ids, address, created_by, expires_at
FROM credentials WHERE credential_id = $1 AND kind = 'token' AND revoked_at IS NULL AND expires_at > now() FOR UPDATE`
	sqlEndSooner = `UPDATE credentials SET expires_at = LEAST(expires_at, now() + make_interval(secs => $2)) WHERE credential_id = $1`
)

// RotateToken replaces a token: the new one has the same principal, name, parent and caveats, and the old one ends
// after an overlap at the latest. c has the new one's id, secret, author and end.
func (s *Store) RotateToken(ctx context.Context, id string, c Credential, overlap time.Duration, may func(access.Grant) error) (out access.Issued, err error) {
	err = s.inTx(ctx, "rotate a token", func(tx *txn) error {
		old := findIn[Credential](ctx, tx, sqlHoldToken, id)
		if old == nil {
			return doneOr(ctx, tx, id)
		}
		users := prego.Errorf(prego.CodeInvalidTransition, "this is a token that a user narrowed: its holder can narrow another one")
		mayActFor(ctx, tx, old.PrincipalID, users, may)
		c.Kind, c.PrincipalID, c.ParentID, c.Name, c.Caveats, c.GroupIDs = access.Token, old.PrincipalID, old.ParentID, old.Name, old.Caveats, old.GroupIDs
		got(createCredential(ctx, tx, c)).in(tx)
		tx.run(ctx, sqlEndSooner, id, overlap.Seconds())
		out = oneIn[access.Issued](ctx, tx, sqlGetToken, c.CredentialID)
		return nil
	})
	return out, err
}

// doneOr is why a token can't be rotated.
func doneOr(ctx context.Context, tx *txn, id string) error {
	getIn[access.Issued](ctx, tx, noSuchToken(id), sqlGetToken, id)
	return prego.Errorf(prego.CodeInvalidTransition, "the token has ended: create another one")
}

const grantedColumns = `g.grant_id, g.principal_id, p.kind, p.issuer, p.subject, p.name, g.access_role, COALESCE(g.org_id, '') AS org_id, g.created_by, g.created_at`

var grants = Listing[access.Granted]{
	what: "grants", from: `SELECT ` + grantedColumns + ` FROM access_grants g JOIN principals p ON p.principal_id = g.principal_id`,
	filters: map[string]string{"org_id": "g.org_id", "principal_id": "g.principal_id", "access_role": "g.access_role", "in_reach": "g.org_id"},
	sorts:   map[string]string{"created_at": "g.created_at"},
	id:      "g.grant_id",
}

// ListGrants lists grants.
func (s *Store) ListGrants(ctx context.Context, q prego.ListQuery) ([]access.Granted, string, error) {
	return inReach(grants, s)(ctx, q)
}

// NewGrant is a grant to a principal with an id, or to a user or group that is created unless it is known.
type NewGrant struct {
	GrantID     string
	PrincipalID string
	Kind        access.PrincipalKind // of a user or group
	Issuer      string
	Subject     string
	Name        string
	AccessRole  string
	OrgID       prego.OrgID
	By          string
}

const (
	sqlHoldRole = `SELECT capabilities FROM access_roles WHERE name = $1 FOR SHARE`
	// Whom the caller may know: service accounts of orgs in reach, and who has a grant there.
	sqlKnownPrincipal = `
SELECT p.principal_id FROM principals p WHERE p.principal_id = $1 AND p.disabled_at IS NULL
    AND ($2 OR p.org_id = ANY ($3) OR EXISTS (SELECT FROM access_grants g WHERE g.principal_id = p.principal_id AND g.org_id = ANY ($3)))`
	sqlIssuedPrincipal = `SELECT principal_id, disabled_at IS NOT NULL FROM principals WHERE kind = $1 AND issuer = $2 AND subject = $3`
	sqlGrantOf         = `
SELECT ` + grantedColumns + ` FROM access_grants g JOIN principals p ON p.principal_id = g.principal_id
WHERE g.principal_id = $1 AND g.access_role = $2 AND COALESCE(g.org_id, '') = $3`
	sqlOneGrant = `
SELECT ` + grantedColumns + ` FROM access_grants g JOIN principals p ON p.principal_id = g.principal_id WHERE g.grant_id = $1`
	sqlDeleteGrant = `DELETE FROM access_grants WHERE grant_id = $1`
	sqlCounts      = `SELECT EXISTS (SELECT FROM principals WHERE principal_id = $1 AND disabled_at IS NULL AND kind <> 'group')`
)

// CreateGrant gives an access role to a principal, if may allows it. Repeating it returns the grant that is there.
func (s *Store) CreateGrant(ctx context.Context, n NewGrant, may func(access.Grant) error) (out access.Granted, created bool, err error) {
	reach := reachOf(ctx)
	ctx = whole(ctx)
	err = s.inTx(ctx, "grant", func(tx *txn) error {
		if n.OrgID != "" {
			tx.check(lockNamedOrg(ctx, tx, n.OrgID))
		}
		g := access.Grant{Role: n.AccessRole, OrgID: n.OrgID}
		if _, ok := access.BuiltIn(n.AccessRole); !ok {
			g.Custom = valueOr[[]string](ctx, tx, prego.Invalid("access_role", "is no access role: GET /v1/access-roles lists them"), sqlHoldRole, n.AccessRole)
		}
		if tx.err != nil {
			return tx.err
		}
		tx.check(may(g))
		id := n.principal(ctx, tx, reach)
		created = tx.run(ctx, sqlEnsureGrant, n.GrantID, id, n.AccessRole, n.OrgID, n.By)
		out = oneIn[access.Granted](ctx, tx, sqlGrantOf, id, n.AccessRole, n.OrgID)
		return nil
	})
	return out, created, err
}

// principal is the id of whom the grant is for.
func (n NewGrant) principal(ctx context.Context, tx *txn, reach access.Reach) (id string) {
	unknown := prego.Invalid("principal_id", "is not a principal that is known here")
	if n.Subject == "" {
		return valueOr[string](ctx, tx, unknown, sqlKnownPrincipal, n.PrincipalID, reach.Everywhere, filled(reach.Orgs))
	}
	tx.run(ctx, sqlEnsurePrincipal, n.PrincipalID, n.Kind, n.Issuer, n.Subject, n.Name, "", n.By)
	if tx.err != nil {
		return ""
	}
	var disabled bool
	tx.check(tx.QueryRow(ctx, sqlIssuedPrincipal, n.Kind, n.Issuer, n.Subject).Scan(&id, &disabled))
	if disabled && tx.err == nil {
		tx.check(prego.Invalid("subject", "belongs to a disabled user"))
	}
	return id
}

// DeleteGrant takes a grant; CodeLastOwner if nobody could grant anything on its org or the installation then.
func (s *Store) DeleteGrant(ctx context.Context, id string) error {
	return s.inTx(ctx, "delete grant", func(tx *txn) error {
		tx.run(ctx, sqlHoldOwners)
		g := getIn[access.Granted](ctx, tx, noSuchGrant(id), sqlOneGrant, id)
		tx.must(ctx, noSuchGrant(id), sqlDeleteGrant, id)
		if g.AccessRole == access.OwnerRole(g.OrgID) && valueIn[bool](ctx, tx, sqlCounts, g.PrincipalID) &&
			!valueIn[bool](ctx, tx, sqlHasOwner, g.AccessRole, g.OrgID) {
			return lastOwner(g.OrgID)
		}
		return nil
	})
}

const (
	customRoleColumns = `name, description, capabilities, updated_by, updated_at`
	sqlCustomRoles    = `SELECT ` + customRoleColumns + ` FROM access_roles ORDER BY name`
	sqlPutCustomRole  = `
INSERT INTO access_roles AS r (name, description, capabilities, updated_by) VALUES ($1, $2, $3, $4)
ON CONFLICT (name) DO UPDATE SET description = EXCLUDED.description, capabilities = EXCLUDED.capabilities, updated_by = EXCLUDED.updated_by, updated_at = now()
RETURNING ` + customRoleColumns
	sqlHoldRoleToDelete = `SELECT name FROM access_roles WHERE name = $1 FOR UPDATE`
	sqlRoleGranted      = `
SELECT (SELECT count(*) FROM access_grants WHERE access_role = $1)
    + (SELECT count(*) FROM login_links WHERE access_role = $1 AND used_at IS NULL AND expires_at > now())`
	sqlDeleteCustomRole = `DELETE FROM access_roles WHERE name = $1`
)

// CustomRoles are the access roles that operators made, by name.
func (s *Store) CustomRoles(ctx context.Context) ([]access.CustomRole, error) {
	return collect[access.CustomRole](ctx, s, "access roles", sqlCustomRoles)
}

// PutCustomRole creates or replaces an access role, for all grants of it from now on.
func (s *Store) PutCustomRole(ctx context.Context, r access.CustomRole) (out access.CustomRole, err error) {
	err = s.inTx(ctx, "access role", func(tx *txn) error {
		out = oneIn[access.CustomRole](ctx, tx, sqlPutCustomRole, r.Name, r.Description, r.Capabilities, r.UpdatedBy)
		return nil
	})
	return out, err
}

// DeleteCustomRole deletes an access role that is granted to nobody.
func (s *Store) DeleteCustomRole(ctx context.Context, name string) error {
	return s.inTx(ctx, "delete access role", func(tx *txn) error {
		valueOr[string](ctx, tx, prego.Errorf(prego.CodeNotFound, "there is no custom access role %q", name), sqlHoldRoleToDelete, name)
		if n := valueIn[int](ctx, tx, sqlRoleGranted, name); n > 0 {
			return prego.Errorf(prego.CodeAccessRoleInUse, "the access role %s is in %d grants and invitations: delete them first", name, n)
		}
		tx.run(ctx, sqlDeleteCustomRole, name)
		return nil
	})
}

const personColumns = `p.principal_id, p.issuer, p.subject, p.name, p.created_by, p.created_at, p.disabled_at`

// Persons is the list of users.
var Persons = Listing[access.Person]{
	what: "users", from: `SELECT ` + personColumns + ` FROM principals p`,
	always: `p.kind = 'user'`, live: `p.disabled_at IS NULL`,
	filters: map[string]string{"name": "p.name", "issuer": "p.issuer", "subject": "p.subject"},
	sorts:   map[string]string{"created_at": "p.created_at", "name": "p.name"},
	id:      "p.principal_id",
}

const (
	sqlGetPerson = `SELECT ` + personColumns + ` FROM principals p WHERE p.principal_id = $1 AND p.kind = 'user'`
	sqlAllGrants = `
SELECT ` + grantedColumns + ` FROM access_grants g JOIN principals p ON p.principal_id = g.principal_id WHERE g.principal_id = ANY ($1) ORDER BY g.grant_id`
)

// GetPerson reads a user, or CodeNotFound.
func (s *Store) GetPerson(ctx context.Context, id string) (access.Person, error) {
	return get[access.Person](ctx, s.pool, noSuchUser(id), sqlGetPerson, id)
}

// GrantsOf are the grants of some principals.
func (s *Store) GrantsOf(ctx context.Context, ids []string) ([]access.Granted, error) {
	return collect[access.Granted](ctx, s, "grants", sqlAllGrants, ids)
}

// A principal by its id or its name, if the caller may know it, with its grants as Authenticate reads them. A login may
// have those of groups besides.
const sqlPrincipalLike = `
WITH RECURSIVE found AS (
    SELECT p.* FROM principals p WHERE (p.principal_id = $1 OR p.name = $1)
        AND ($2 OR p.org_id = ANY ($3) OR EXISTS (SELECT FROM access_grants g WHERE g.principal_id = p.principal_id AND g.org_id = ANY ($3)))
    ORDER BY p.principal_id <> $1, p.disabled_at IS NOT NULL, p.created_at LIMIT 1
), given AS (
    SELECT g.grant_id, g.access_role, g.org_id, r.capabilities
    FROM access_grants g JOIN found f ON f.principal_id = g.principal_id LEFT JOIN access_roles r ON r.name = g.access_role
), below AS (
    SELECT g.org_id AS root, g.org_id FROM given g WHERE g.org_id IS NOT NULL
    UNION SELECT b.root, o.org_id FROM orgs o JOIN below b ON o.parent_org_id = b.org_id
)
SELECT p.principal_id, p.kind, p.issuer, p.subject, p.name, p.disabled_at IS NOT NULL AS disabled,
    COALESCE((SELECT jsonb_agg(jsonb_build_object('GrantID', g.grant_id, 'Role', g.access_role, 'Custom', g.capabilities,
            'OrgID', COALESCE(g.org_id, ''),
            'Orgs', COALESCE((SELECT jsonb_agg(b.org_id) FROM below b WHERE b.root = g.org_id), '[]')) ORDER BY g.grant_id)
        FROM given g), '[]') AS grants
FROM found p`

// PrincipalLike reads a principal by its id or its name, and whether it is disabled; CodeNotFound for one that the
// caller may not know.
func (s *Store) PrincipalLike(ctx context.Context, who string) (p access.Principal, disabled bool, err error) {
	reach := reachOf(ctx)
	r, err := get[struct {
		PrincipalID, Issuer, Subject, Name string

		Kind     access.PrincipalKind
		Disabled bool
		Grants   []access.Grant
	}](whole(ctx), s.pool, prego.Errorf(prego.CodeNotFound, "there is no principal %q", who), sqlPrincipalLike, who, reach.Everywhere, filled(reach.Orgs))
	return access.Principal{PrincipalID: r.PrincipalID, Kind: r.Kind, Issuer: r.Issuer, Subject: r.Subject, Name: r.Name, Grants: r.Grants}, r.Disabled, err
}
