package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

// A credential with what its requests may do: the row, those that it was narrowed from, its principal, and the grants
// of the principal and, for a login, of its groups, each with the orgs that it covers. It is read for each request and
// never kept, so that what is revoked ends immediately.
const sqlAuthenticate = `
WITH RECURSIVE chain AS ` + chainOf + `c.hash = $1` + principalsOf

// The same of the credentials of open streams.
const sqlPrincipals = `
WITH RECURSIVE chain AS ` + chainOf + `c.credential_id = ANY ($1)` + principalsOf

const (
	chainOf = `(
    SELECT c.credential_id AS root, c.*, 0 AS above FROM credentials c WHERE `
	principalsOf = `
    UNION ALL SELECT c.root, p.*, c.above + 1 FROM credentials p JOIN chain c ON p.credential_id = c.parent_id
), holders AS (
    SELECT c.root, c.principal_id FROM chain c WHERE c.above = 0
    UNION SELECT c.root, unnest(c.group_ids) FROM chain c
), given AS (
    SELECT h.root AS credential_id, g.grant_id, g.access_role, g.org_id, r.capabilities
    FROM holders h JOIN access_grants g USING (principal_id) LEFT JOIN access_roles r ON r.name = g.access_role
), below AS (
    SELECT g.org_id AS root, g.org_id FROM given g WHERE g.org_id IS NOT NULL
    UNION SELECT b.root, o.org_id FROM orgs o JOIN below b ON o.parent_org_id = b.org_id
)
SELECT c.credential_id, c.kind = 'login' AS login,
    EXISTS (SELECT FROM chain a WHERE a.root = c.root AND a.kind = 'token' AND a.parent_id IS NOT NULL) AS narrowed, c.fresh_at, c.name AS credential_name,
    p.principal_id, p.kind, p.issuer, p.subject, p.name,
    (SELECT min(a.expires_at) FROM chain a WHERE a.root = c.root) AS expires,
    (SELECT min(a.expires_at) FROM chain a WHERE a.root = c.root) <= now() AS expired,
    (SELECT bool_or(a.revoked_at IS NOT NULL) FROM chain a WHERE a.root = c.root) OR p.disabled_at IS NOT NULL AS revoked,
    c.last_used_at IS NULL OR c.last_used_at < now() - interval '1 minute' AS use_is_news,
    COALESCE((SELECT jsonb_agg(a.caveats ORDER BY a.above) FROM chain a WHERE a.root = c.root AND a.caveats <> '{}'), '[]') AS caveats,
    COALESCE((SELECT jsonb_agg(jsonb_build_object('GrantID', g.grant_id, 'Role', g.access_role, 'Custom', g.capabilities,
            'OrgID', COALESCE(g.org_id, ''),
            'Orgs', COALESCE((SELECT jsonb_agg(b.org_id) FROM below b WHERE b.root = g.org_id), '[]')) ORDER BY g.grant_id)
        FROM given g WHERE g.credential_id = c.root), '[]') AS grants
FROM chain c JOIN principals p USING (principal_id) WHERE c.above = 0`
)

const sqlNoteUse = `
UPDATE credentials SET last_used_at = now()
WHERE credential_id = $1 AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')`

// LoginFresh is how long after users proved who they are their destructive operations need no new proof.
const LoginFresh = 15 * time.Minute

// Authenticate returns the principal of a secret, given its hash; CodeUnauthenticated, or CodeTokenExpired.
func (s *Store) Authenticate(ctx context.Context, hash []byte) (access.Principal, error) {
	rows, err := s.authenticated(ctx, sqlAuthenticate, hash)
	if err != nil {
		return access.Principal{}, err
	}
	if len(rows) == 0 {
		return access.Principal{}, prego.Errorf(prego.CodeUnauthenticated, "the token is not valid here")
	}
	r := rows[0]
	switch {
	case r.Revoked:
		return access.Principal{}, prego.Errorf(prego.CodeUnauthenticated, "the token is not valid here: it was revoked")
	case r.Expired:
		return access.Principal{}, prego.Errorf(prego.CodeTokenExpired, "the token expired at %s", r.Expires.UTC().Format(time.RFC3339))
	}
	p, err := r.principal()
	if err == nil && r.UseIsNews {
		// Whether it is noted makes no difference to the request.
		_ = s.exec(ctx, "use of a credential", sqlNoteUse, p.CredentialID)
	}
	return p, err
}

// Principals returns the principals of credentials as they are now, without those that have ended.
func (s *Store) Principals(ctx context.Context, credentials []string) (map[string]access.Principal, error) {
	rows, err := s.authenticated(ctx, sqlPrincipals, credentials)
	if err != nil {
		return nil, err
	}
	out := make(map[string]access.Principal, len(rows))
	for _, r := range rows {
		if !r.Revoked && !r.Expired {
			if out[r.CredentialID], err = r.principal(); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// Recursion is estimated as costly, and compiling the statement takes a hundred times as long as running it.
const sqlWithoutJIT = `SELECT set_config('jit', 'off', true)`

// authenticated runs a statement of principalsOf, in one message and without compiling it.
func (s *Store) authenticated(ctx context.Context, sql string, arg any) ([]authenticated, error) {
	b := &pgx.Batch{}
	b.Queue(sqlWithoutJIT)
	b.Queue(sql, arg)
	r := s.pool.SendBatch(ctx, b)
	_, err := r.Exec()
	var rows []authenticated
	if err == nil {
		var found pgx.Rows
		if found, err = r.Query(); err == nil {
			rows, err = pgx.CollectRows(found, pgx.RowToStructByName[authenticated])
		}
	}
	if end := r.Close(); err == nil {
		err = end
	}
	return rows, failed("read principals", err)
}

// authenticated is a row of principalsOf.
type authenticated struct {
	CredentialID, CredentialName, PrincipalID, Issuer, Subject, Name string

	Kind                                         access.PrincipalKind
	Login, Narrowed, Expired, Revoked, UseIsNews bool
	FreshAt, Expires                             time.Time
	Caveats, Grants                              json.RawMessage
}

func (r authenticated) principal() (access.Principal, error) {
	p := access.Principal{
		PrincipalID: r.PrincipalID, Kind: r.Kind, Issuer: r.Issuer, Subject: r.Subject, Name: r.Name,
		CredentialID: r.CredentialID, CredentialName: r.CredentialName, Login: r.Login, Narrowed: r.Narrowed, Expires: r.Expires,
	}
	if p.Login {
		p.FreshUntil = r.FreshAt.Add(LoginFresh)
	}
	if err := json.Unmarshal(r.Grants, &p.Grants); err != nil {
		return access.Principal{}, failed("grants", err)
	}
	if err := json.Unmarshal(r.Caveats, &p.Caveats); err != nil {
		return access.Principal{}, failed("caveats", err)
	}
	return p, nil
}

// Credential is a token or a login, as it is created.
type Credential struct {
	CredentialID string
	Kind         access.CredentialKind
	Hash         []byte
	Prefix       string
	PrincipalID  string
	ParentID     string
	Name         string
	Caveats      access.Caveats
	GroupIDs     []string
	Address      string
	CreatedBy    string
	ExpiresAt    time.Time
	FreshAt      time.Time `db:"-"` // of a login: when its user proved who they are; zero is now
}

// A credential never lasts longer than its parent, and a login that another one made proves nothing about its user.
const sqlCreateCredential = `
INSERT INTO credentials (credential_id, kind, hash, prefix, principal_id, parent_id, name, caveats, group_ids, address, created_by,
    expires_at, fresh_at)
SELECT $1, $2, $3, $4, $5, NULLIF($6, ''), $7, $8, $9, $10, $11,
    LEAST($12, (SELECT p.expires_at FROM credentials p WHERE p.credential_id = $6)),
    COALESCE((SELECT p.fresh_at FROM credentials p WHERE p.credential_id = $6 AND p.kind = 'login'), LEAST($13, now()))
RETURNING expires_at`

// CreateCredential writes a token or a login, and returns when it ends.
func (s *Store) CreateCredential(ctx context.Context, c Credential) (time.Time, error) {
	at, err := createCredential(ctx, s.pool, c)
	return at, failed("create a credential", err)
}

func createCredential(ctx context.Context, q querier, c Credential) (time.Time, error) {
	if c.GroupIDs == nil {
		c.GroupIDs = []string{}
	}
	if c.Caveats.ProgressOf != "" && time.Until(c.ExpiresAt) > access.MostShared {
		return time.Time{}, prego.Invalid("expires_in_seconds", fmt.Sprintf("must be at most %.0f with the caveat progress_of", access.MostShared.Seconds()))
	}
	var fresh *time.Time // LEAST ignores NULL
	if !c.FreshAt.IsZero() {
		fresh = &c.FreshAt
	}
	return value[time.Time](ctx, q, sqlCreateCredential, c.CredentialID, c.Kind, c.Hash, c.Prefix, c.PrincipalID, c.ParentID,
		c.Name, c.Caveats, c.GroupIDs, c.Address, c.CreatedBy, c.ExpiresAt, fresh)
}

// Those that were narrowed from it are revoked for lists: Authenticate refuses them in any case.
const sqlRevokeCredential = `
WITH RECURSIVE below AS (
    SELECT credential_id FROM credentials WHERE credential_id = $1
    UNION SELECT c.credential_id FROM credentials c JOIN below b ON c.parent_id = b.credential_id
)
UPDATE credentials SET revoked_at = now(), revoked_by = $2
WHERE credential_id IN (SELECT credential_id FROM below) AND revoked_at IS NULL`

// EndCredential revokes a credential and, with it, all that were narrowed from it. Repeating it changes nothing.
func (s *Store) EndCredential(ctx context.Context, id, by string) error {
	return s.exec(ctx, "revoke a credential", sqlRevokeCredential, id, by)
}

const (
	sqlCreateLink = `
INSERT INTO login_links (link_id, hash, principal_id, parent_id, name, access_role, org_id, created_by, expires_at, kind)
VALUES ($1, $2, NULLIF($3, ''), NULLIF($4, ''), $5, NULLIF($6, ''), NULLIF($7, ''), $8, now() + make_interval(secs => $9), $10)
RETURNING expires_at`
	sqlUseLink = `
UPDATE login_links SET used_at = now() WHERE hash = $1 AND kind = 'login' AND used_at IS NULL AND expires_at > now()
RETURNING link_id, kind, COALESCE(principal_id, '') AS principal_id, COALESCE(parent_id, '') AS parent_id, name,
    COALESCE(access_role, '') AS access_role, COALESCE(org_id, '') AS org_id, created_by, created_at, expires_at`
)

// LinkKind is what a link is good for.
type LinkKind string

// The kinds of links.
const (
	LinkLogin LinkKind = "login" // a known principal
	LinkJoin  LinkKind = "join"  // a new user, who is granted an access role, or one who needs another passkey: see Join
)

// LoginLink logs in, once.
type LoginLink struct {
	LinkID      string
	Kind        LinkKind
	PrincipalID string // "" for a new user
	ParentID    string // the credential that the login ends with
	Name        string
	AccessRole  string
	OrgID       prego.OrgID
	CreatedBy   string
	CreatedAt   time.Time
	ExpiresAt   time.Time
}

// CreateLoginLink writes a link, and returns when it ends.
func (s *Store) CreateLoginLink(ctx context.Context, l LoginLink, hash []byte, within time.Duration) (time.Time, error) {
	at, err := createLink(ctx, s.pool, l, hash, within)
	if isViolation(err, "login_links_org_id_fkey") {
		err = OrgUnknown("org_id")
	}
	return at, failed("login link", err)
}

func createLink(ctx context.Context, q querier, l LoginLink, hash []byte, within time.Duration) (time.Time, error) {
	return value[time.Time](ctx, q, sqlCreateLink, l.LinkID, hash, l.PrincipalID, l.ParentID, l.Name, l.AccessRole, l.OrgID, l.CreatedBy, within.Seconds(), l.Kind)
}

// UseLoginLink logs in with a link of a known principal, once: the login is c with the link's principal and parent.
// CodeUnauthenticated if the link was used or has expired.
func (s *Store) UseLoginLink(ctx context.Context, hash []byte, c Credential) (access.Principal, error) {
	err := s.inTx(ctx, "use a login link", func(tx *txn) error {
		l, err := one[LoginLink](ctx, tx, sqlUseLink, hash)
		used := prego.Errorf(prego.CodeUnauthenticated, "the link was already used or has expired: request another with prego console")
		if err != nil {
			return ifNoRows(err, used)
		}
		if l.ParentID == "" && l.ExpiresAt.Before(c.ExpiresAt) { // it ends with what it comes from: see BreakGlass
			c.ExpiresAt = l.ExpiresAt
		}
		c.PrincipalID, c.ParentID, c.CreatedBy = l.PrincipalID, l.ParentID, l.CreatedBy
		_, err = createCredential(ctx, tx, c)
		return err
	})
	if err != nil {
		return access.Principal{}, err
	}
	return s.Authenticate(ctx, c.Hash)
}

const (
	sqlEnsurePrincipal = `
INSERT INTO principals (principal_id, kind, issuer, subject, name, org_id, created_by) VALUES ($1, $2, $3, $4, $5, NULLIF($6, ''), $7)
ON CONFLICT DO NOTHING`
	sqlServiceAccount = `
SELECT principal_id FROM principals WHERE kind = 'service_account' AND COALESCE(org_id, '') = $1 AND name = $2 AND disabled_at IS NULL`
	sqlEnsureGrant = `
INSERT INTO access_grants (grant_id, principal_id, access_role, org_id, created_by) VALUES ($1, $2, $3, NULLIF($4, ''), $5)
ON CONFLICT DO NOTHING`
)

// NewAccount is a service account of the installation with a grant there and a token, as the control plane's host makes
// it.
type NewAccount struct {
	Name       string
	AccessRole string
	OrgID      prego.OrgID // what the grant is on; "" is the installation
	Token      Credential  // without principal
	IDs        [2]string   // of the account and the grant, if they are new
}

// EnsureAccount creates an installation's service account with a grant, unless it has it, and a token for it.
func (s *Store) EnsureAccount(ctx context.Context, n NewAccount) (expires time.Time, err error) {
	if _, ok := access.BuiltIn(n.AccessRole); !ok {
		return expires, prego.Invalid("role", "must be one of "+strings.Join(access.RoleNames(), ", "))
	}
	err = s.inTx(ctx, "service account", func(tx *txn) error {
		tx.run(ctx, sqlEnsurePrincipal, n.IDs[0], access.ServiceAccount, "", "", n.Name, "", n.Token.CreatedBy)
		n.Token.PrincipalID = valueIn[string](ctx, tx, sqlServiceAccount, "", n.Name)
		tx.run(ctx, sqlEnsureGrant, n.IDs[1], n.Token.PrincipalID, n.AccessRole, n.OrgID, n.Token.CreatedBy)
		if tx.err != nil {
			return tx.err
		}
		expires, err = createCredential(ctx, tx, n.Token)
		return err
	})
	return expires, err
}
