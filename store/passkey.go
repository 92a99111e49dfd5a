package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

// Passkeys are of users that this installation itself vouches for. Another issuer's users log in there, and end there.
const (
	IssuerPrego = "prego"
	// IssuerHost vouches for who is at the control plane's host. Its only user has no passkeys: see BreakGlass.
	IssuerHost = "host"
)

// Passkey is a public key that a user logs in with.
type Passkey struct {
	PasskeyID   string
	PrincipalID string
	KeyID       []byte          // the authenticator's name for it
	Record      json.RawMessage // what signatures are checked with
	Name        string
	CreatedAt   time.Time
	LastUsedAt  *time.Time
}

// Purpose is what a challenge is for: a signature for one is none for another.
type Purpose string

// The purposes of challenges.
const (
	PurposeLogin Purpose = "login"
	PurposeAgain Purpose = "again" // make a login fresh
	PurposeJoin  Purpose = "join"  // register the passkey of a link
	PurposeAdd   Purpose = "add"   // register another one
)

const (
	// The oldest expired ones go with each new one, so that no challenge stays that was never answered.
	sqlBeginCeremony = `
WITH gone AS (
    DELETE FROM passkey_ceremonies WHERE hash IN (
        SELECT hash FROM passkey_ceremonies WHERE expires_at < now() ORDER BY expires_at LIMIT 20 FOR UPDATE SKIP LOCKED)
)
INSERT INTO passkey_ceremonies (hash, purpose, about, session, expires_at)
VALUES ($1, $2, $3, $4, now() + make_interval(secs => $5))`
	sqlEndCeremony = `
DELETE FROM passkey_ceremonies WHERE hash = $1 AND purpose = $2 AND about = $3 AND expires_at > now() RETURNING session`
)

// BeginCeremony keeps what a challenge's answer is checked with, for the browser that has the secret of a hash.
func (s *Store) BeginCeremony(ctx context.Context, hash []byte, of Purpose, about string, session []byte, within time.Duration) error {
	return s.exec(ctx, "begin a ceremony", sqlBeginCeremony, hash, of, about, json.RawMessage(session), within.Seconds())
}

// EndCeremony returns what a challenge's answer is checked with, once; CodeUnauthenticated if it was answered, has
// expired or is for something else.
func (s *Store) EndCeremony(ctx context.Context, hash []byte, of Purpose, about string) ([]byte, error) {
	session, err := value[json.RawMessage](ctx, s.pool, sqlEndCeremony, hash, of, about)
	return session, failed("end a ceremony", ifNoRows(err, prego.Errorf(prego.CodeUnauthenticated, "this took too long, or was sent twice: try again")))
}

const (
	joinColumns = `l.link_id, COALESCE(l.principal_id, '') AS principal_id, COALESCE(NULLIF(l.name, ''), p.name, '') AS name,
    COALESCE(l.access_role, '') AS access_role, COALESCE(l.org_id, '') AS org_id, l.created_by, l.created_at, l.expires_at`
	openLinks = `l.kind = 'join' AND l.used_at IS NULL AND l.expires_at > now()`

	sqlJoinLink = `
SELECT ` + joinColumns + `, COALESCE(p.subject, '') AS handle
FROM login_links l LEFT JOIN principals p USING (principal_id)
WHERE l.hash = $1 AND ` + openLinks + ` AND (l.principal_id IS NULL OR p.disabled_at IS NULL AND p.issuer = 'prego')`
	sqlUseJoinLink = `
UPDATE login_links l SET used_at = now() WHERE l.hash = $1 AND ` + openLinks
	sqlInvitations = `
SELECT ` + joinColumns + ` FROM login_links l LEFT JOIN principals p USING (principal_id) WHERE ` + openLinks + ` ORDER BY l.created_at, l.link_id`
	sqlOrgOfInvitation  = `SELECT COALESCE(org_id, '') FROM login_links WHERE kind = 'join' AND link_id = $1`
	sqlDeleteInvitation = `DELETE FROM login_links l WHERE l.link_id = $1 AND ` + openLinks
)

// Invitation is an open link to join, as it is listed.
type Invitation struct {
	LinkID      string
	PrincipalID string // of a known user; "" for a new one
	Name        string
	AccessRole  string
	OrgID       prego.OrgID
	CreatedBy   string
	CreatedAt   time.Time
	ExpiresAt   time.Time
}

// JoinLink is a link to join, as who opens it needs it.
type JoinLink struct {
	Invitation

	Handle string // of a known user
}

var errJoinLink = prego.Errorf(prego.CodeUnauthenticated, "the link was already used, was revoked or has expired: ask who sent it for another")

// JoinLink reads an open link to join; CodeUnauthenticated if there is none. It does not use it.
func (s *Store) JoinLink(ctx context.Context, hash []byte) (JoinLink, error) {
	return get[JoinLink](ctx, s.pool, errJoinLink, sqlJoinLink, hash)
}

// Invitations are the open links to join in reach, the oldest first.
func (s *Store) Invitations(ctx context.Context) ([]Invitation, error) {
	return collect[Invitation](ctx, s, "invitations", sqlInvitations)
}

func noSuchInvitation(id string) error {
	return prego.Errorf(prego.CodeInvitationNotFound, "there is no open invitation %q", id)
}

// DeleteInvitation ends an open link to join, or CodeInvitationNotFound.
func (s *Store) DeleteInvitation(ctx context.Context, id string) error {
	return s.inTx(ctx, "delete an invitation", func(tx *txn) error {
		tx.must(ctx, noSuchInvitation(id), sqlDeleteInvitation, id)
		return nil
	})
}

const sqlAccessRole = `SELECT name, capabilities FROM access_roles WHERE name = $1`

// AccessRole is a built-in or custom access role, or CodeInvalidField.
func (s *Store) AccessRole(ctx context.Context, field, name string) (access.Role, error) {
	if r, ok := access.BuiltIn(name); ok {
		return r, nil
	}
	r, err := get[struct {
		Name         string
		Capabilities []string
	}](ctx, s.pool, prego.Invalid(field, "is no access role"), sqlAccessRole, name)
	return access.Role{Name: r.Name, Patterns: r.Capabilities}, err
}

const sqlCreatePasskey = `
INSERT INTO passkeys (passkey_id, principal_id, key_id, record, name) VALUES ($1, $2, $3, $4, $5)`

func createPasskey(ctx context.Context, tx *txn, p Passkey) error {
	_, err := changed(ctx, tx, sqlCreatePasskey, p.PasskeyID, p.PrincipalID, p.KeyID, p.Record, p.Name)
	if isViolation(err, "passkeys_key_id_key") {
		err = prego.Errorf(prego.CodeForbidden, "this passkey is registered already")
	}
	return err
}

// Joining is who accepts a link to join.
type Joining struct {
	IDs     [2]string // of the principal and the grant, if they are new
	Handle  string    // of a new user: the passkey names its user by it
	Name    string    // of a new user
	Passkey Passkey
	Login   Credential
}

// Join accepts a link to join, once: the user with its grant, unless it is known, the passkey and a login are one
// transaction. CodeUnauthenticated if the link is not open any more.
func (s *Store) Join(ctx context.Context, hash []byte, j Joining) (access.Principal, error) {
	err := s.inTx(ctx, "join", func(tx *txn) error {
		l := getIn[JoinLink](ctx, tx, errJoinLink, sqlJoinLink, hash)
		tx.must(ctx, errJoinLink, sqlUseJoinLink, hash)
		id := l.PrincipalID
		if id == "" {
			id = j.IDs[0]
			tx.run(ctx, sqlEnsurePrincipal, id, access.User, IssuerPrego, j.Handle, j.Name, "", l.CreatedBy)
			tx.run(ctx, sqlEnsureGrant, j.IDs[1], id, l.AccessRole, l.OrgID, l.CreatedBy)
		}
		if tx.err != nil {
			return tx.err
		}
		j.Passkey.PrincipalID, j.Login.PrincipalID, j.Login.CreatedBy = id, id, l.CreatedBy
		if err := createPasskey(ctx, tx, j.Passkey); err != nil {
			return err
		}
		_, err := createCredential(ctx, tx, j.Login)
		return err
	})
	if err != nil {
		return access.Principal{}, err
	}
	return s.Authenticate(ctx, j.Login.Hash)
}

const (
	sqlPasskeyOf = `
SELECT k.passkey_id, k.principal_id, k.key_id, k.record, k.name, k.created_at, k.last_used_at
FROM passkeys k JOIN principals p USING (principal_id)
WHERE k.key_id = $1 AND p.issuer = 'prego' AND p.subject = $2 AND p.disabled_at IS NULL FOR UPDATE OF k`
	sqlUsePasskey = `UPDATE passkeys SET record = $2, last_used_at = now() WHERE passkey_id = $1`
)

// PasskeyUse is a passkey's answer to a challenge.
type PasskeyUse struct {
	Handle string // whose it claims to be
	KeyID  []byte
	// Check verifies the answer with the passkey's record, and returns the record with the new counter.
	Check func(record json.RawMessage) (json.RawMessage, error)
}

// usePasskey verifies an answer, and returns whose passkey it is. The row is locked meanwhile, so that a counter never
// goes back.
func usePasskey(ctx context.Context, tx *txn, u PasskeyUse) (principal string, err error) {
	k := getIn[Passkey](ctx, tx, prego.Errorf(prego.CodeUnauthenticated, "this passkey is not known here: it was removed, or is of another installation"),
		sqlPasskeyOf, u.KeyID, u.Handle)
	if tx.err != nil {
		return "", tx.err
	}
	record, err := u.Check(k.Record)
	if err != nil {
		return "", err
	}
	tx.run(ctx, sqlUsePasskey, k.PasskeyID, record)
	return k.PrincipalID, tx.err
}

// LoginByPasskey logs in who has a passkey.
func (s *Store) LoginByPasskey(ctx context.Context, u PasskeyUse, login Credential) (access.Principal, error) {
	err := s.inTx(ctx, "log in by passkey", func(tx *txn) error {
		id, err := usePasskey(ctx, tx, u)
		if err != nil {
			return err
		}
		login.PrincipalID, login.CreatedBy = id, id
		_, err = createCredential(ctx, tx, login)
		return err
	})
	if err != nil {
		return access.Principal{}, err
	}
	return s.Authenticate(ctx, login.Hash)
}

const (
	liveLogin       = `kind = 'login' AND revoked_at IS NULL AND expires_at > now()`
	sqlRefreshLogin = `
UPDATE credentials SET fresh_at = now()
WHERE credential_id = $1 AND principal_id = $2 AND ($3 = '' OR parent_id = $3) AND ` + liveLogin
)

var errOtherUser = prego.Errorf(prego.CodeForbidden, "this is not what the present login was made with: log out, and log in with it")

// RefreshByPasskey makes a login of a principal fresh.
func (s *Store) RefreshByPasskey(ctx context.Context, login, principal string, u PasskeyUse) error {
	return s.inTx(ctx, "refresh a login", func(tx *txn) error {
		id, err := usePasskey(ctx, tx, u)
		switch {
		case err != nil:
			return err
		case id != principal:
			return errOtherUser
		}
		tx.must(ctx, errOtherUser, sqlRefreshLogin, login, principal, "")
		return nil
	})
}

// RefreshLogin makes a login of a principal fresh, who has proved again who they are: with the token that the login was
// made with or, without one, to their issuer.
func (s *Store) RefreshLogin(ctx context.Context, login, principal, token string) error {
	return failed("refresh a login", change(ctx, s.pool, errOtherUser, sqlRefreshLogin, login, principal, token))
}

// A login that comes from a token registers nothing that would outlive the token.
const sqlMayAddPasskey = `
SELECT EXISTS (SELECT FROM credentials c JOIN principals p USING (principal_id)
    WHERE c.credential_id = $1 AND c.parent_id IS NULL AND p.principal_id = $2 AND p.issuer = 'prego' AND p.disabled_at IS NULL
        AND c.kind = 'login' AND c.revoked_at IS NULL AND c.expires_at > now())`

// MayAddPasskey reports whether a login may register passkeys of its principal.
func (s *Store) MayAddPasskey(ctx context.Context, login, principal string) (bool, error) {
	ok, err := value[bool](ctx, s.pool, sqlMayAddPasskey, login, principal)
	return ok, failed("passkeys", err)
}

// AddPasskey registers another passkey of a login's principal.
func (s *Store) AddPasskey(ctx context.Context, login string, p Passkey) error {
	return s.inTx(ctx, "add a passkey", func(tx *txn) error {
		if !valueIn[bool](ctx, tx, sqlMayAddPasskey, login, p.PrincipalID) {
			return prego.Errorf(prego.CodeForbidden, "this login may not register passkeys: log in with a passkey")
		}
		return createPasskey(ctx, tx, p)
	})
}

const (
	sqlPasskeys = `
SELECT passkey_id, principal_id, key_id, record, name, created_at, last_used_at FROM passkeys WHERE principal_id = $1 ORDER BY created_at, passkey_id`
	// Locked, so that of two removals the second sees the first.
	sqlLockPrincipal = `SELECT principal_id FROM principals WHERE principal_id = $1 FOR UPDATE`
	sqlRemovePasskey = `DELETE FROM passkeys WHERE principal_id = $1 AND passkey_id = $2`
)

// Passkeys are those of a principal, the oldest first.
func (s *Store) Passkeys(ctx context.Context, principal string) ([]Passkey, error) {
	return collect[Passkey](ctx, s, "passkeys", sqlPasskeys, principal)
}

// RemovePasskey removes a passkey of a principal, but never the last one: its user could not log in any more.
func (s *Store) RemovePasskey(ctx context.Context, principal, id string) error {
	return s.inTx(ctx, "remove a passkey", func(tx *txn) error {
		valueIn[string](ctx, tx, sqlLockPrincipal, principal)
		all := manyIn[Passkey](ctx, tx, sqlPasskeys, principal)
		tx.must(ctx, prego.Errorf(prego.CodeNotFound, "there is no such passkey"), sqlRemovePasskey, principal, id)
		if tx.err == nil && len(all) == 1 {
			return prego.Errorf(prego.CodeForbidden, "the last passkey can't be removed: add another one first")
		}
		return nil
	})
}

const (
	sqlLogins = `
SELECT credential_id AS login_id, name, address, created_at, fresh_at, expires_at, last_used_at
FROM credentials WHERE principal_id = $1 AND ` + liveLogin + ` ORDER BY created_at, credential_id LIMIT 200`
	sqlEndLogin = `
UPDATE credentials SET revoked_at = now(), revoked_by = $3 WHERE credential_id = $1 AND principal_id = $2 AND ` + liveLogin
)

// LoginView is a login, as its user sees it.
type LoginView struct {
	LoginID    string
	Name       string
	Address    string
	CreatedAt  time.Time
	FreshAt    time.Time
	ExpiresAt  time.Time
	LastUsedAt *time.Time
}

// Logins are the logins of a principal that have not ended, the oldest first.
func (s *Store) Logins(ctx context.Context, principal string) ([]LoginView, error) {
	return collect[LoginView](ctx, s, "logins", sqlLogins, principal)
}

// EndLogin ends a login of a principal. Repeating it changes nothing.
func (s *Store) EndLogin(ctx context.Context, id, principal, by string) error {
	return s.exec(ctx, "end a login", sqlEndLogin, id, principal, by)
}

const sqlHostUser = `SELECT principal_id FROM principals WHERE kind = 'user' AND issuer = 'host' AND subject = 'break-glass'`

// BreakGlass makes a link to an operator's login that depends on no issuer and no passkey, for who is at the control
// plane's host. Link and login end together. All are logins of one user, who has no other way in.
func (s *Store) BreakGlass(ctx context.Context, l LoginLink, hash []byte, within time.Duration, ids [2]string) (until time.Time, err error) {
	err = s.inTx(ctx, "break glass", func(tx *txn) error {
		tx.run(ctx, sqlEnsurePrincipal, ids[0], access.User, IssuerHost, "break-glass", "break-glass", "", l.CreatedBy)
		l.Kind, l.PrincipalID = LinkLogin, valueIn[string](ctx, tx, sqlHostUser)
		tx.run(ctx, sqlEnsureGrant, ids[1], l.PrincipalID, "operator", "", l.CreatedBy)
		if tx.err == nil {
			until, err = createLink(ctx, tx, l, hash, within)
		}
		return err
	})
	return until, err
}

const (
	sqlEndHostLogins = `
UPDATE credentials c SET revoked_at = now(), revoked_by = $1 FROM principals p
WHERE p.principal_id = c.principal_id AND p.kind = 'user' AND p.issuer = 'host' AND c.revoked_at IS NULL AND c.expires_at > now()`
	sqlEndHostLinks = `
DELETE FROM login_links l USING principals p WHERE p.principal_id = l.principal_id AND p.kind = 'user' AND p.issuer = 'host' AND l.used_at IS NULL`
)

// EndBreakGlass ends all links and logins that BreakGlass made.
func (s *Store) EndBreakGlass(ctx context.Context, by string) error {
	return s.inTx(ctx, "end break-glass", func(tx *txn) error {
		tx.run(ctx, sqlEndHostLinks)
		tx.run(ctx, sqlEndHostLogins, by)
		return nil
	})
}

const sqlUserNamed = `
SELECT principal_id FROM principals WHERE kind = 'user' AND issuer = 'prego' AND disabled_at IS NULL AND (principal_id = $1 OR name = $1) ORDER BY principal_id <> $1 LIMIT 2`

// PasskeyUser finds a user who logs in with passkeys by id or by a name that only one has.
func (s *Store) PasskeyUser(ctx context.Context, who string) (string, error) {
	found, err := collectValues[string](ctx, s, "user", sqlUserNamed, who)
	switch {
	case err != nil:
		return "", err
	case len(found) == 0:
		return "", prego.Invalid("user", "is neither the id nor the name of a user who logs in with passkeys")
	case len(found) > 1 && found[0] != who:
		return "", prego.Invalid("user", "is the name of several users: give the id")
	}
	return found[0], nil
}
