package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

const (
	sqlUser = `SELECT principal_id FROM principals WHERE kind = 'user' AND issuer = $1 AND subject = $2`
	// A name is the issuer's, so that it follows it.
	sqlEnsureUser = `
INSERT INTO principals AS p (principal_id, kind, issuer, subject, name, created_by) VALUES ($1, 'user', $2, $3, $4, $4)
ON CONFLICT (kind, issuer, subject) WHERE kind <> 'service_account'
DO UPDATE SET name = CASE WHEN p.disabled_at IS NULL THEN excluded.name ELSE p.name END
RETURNING p.principal_id, p.disabled_at IS NOT NULL AS disabled`
	// Only groups that have grants are known.
	sqlGroups = `
SELECT principal_id FROM principals WHERE kind = 'group' AND issuer = $1 AND subject = ANY ($2) AND disabled_at IS NULL ORDER BY 1`
)

// UserID is the id of an issuer's user, "" for one who has never logged in.
func (s *Store) UserID(ctx context.Context, who access.Identity) (string, error) {
	id, err := value[string](ctx, s.pool, sqlUser, who.Issuer, who.Subject)
	return id, failed("user", ifNoRows(err, nil))
}

// LogIn logs in a person whom an issuer vouches for: as the user with the identity's issuer and subject, who gets the
// id of c.PrincipalID if new, and with the grants of the groups that the issuer names. CodeForbidden if the user is
// disabled.
func (s *Store) LogIn(ctx context.Context, who access.Identity, c Credential) (access.Principal, error) {
	err := s.inTx(ctx, "log in", func(tx *txn) error {
		u := oneIn[struct {
			PrincipalID string
			Disabled    bool
		}](ctx, tx, sqlEnsureUser, c.PrincipalID, who.Issuer, who.Subject, who.Name)
		if u.Disabled {
			return prego.Errorf(prego.CodeForbidden, "this user is disabled: an operator can enable the user %s", u.PrincipalID)
		}
		c.PrincipalID, c.CreatedBy = u.PrincipalID, who.Name
		c.GroupIDs = valuesIn[string](ctx, tx, sqlGroups, who.Issuer, who.Groups)
		if tx.err != nil {
			return tx.err
		}
		_, err := createCredential(ctx, tx, c)
		return err
	})
	if err != nil {
		return access.Principal{}, err
	}
	return s.Authenticate(ctx, c.Hash)
}

const (
	sqlTrust = `
SELECT t.issuer, t.audience, t.claims FROM token_trusts t JOIN principals p USING (principal_id)
WHERE principal_id = $1 AND p.kind = 'service_account' AND p.disabled_at IS NULL`
	sqlPutTrust = `
INSERT INTO token_trusts AS t (principal_id, issuer, audience, claims, updated_by) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (principal_id) DO UPDATE
SET issuer = excluded.issuer, audience = excluded.audience, claims = excluded.claims, updated_by = excluded.updated_by, updated_at = now()
WHERE (t.issuer, t.audience, t.claims) IS DISTINCT FROM (excluded.issuer, excluded.audience, excluded.claims)`
	sqlDeleteTrust   = `DELETE FROM token_trusts WHERE principal_id = $1`
	sqlAccountGrants = `
SELECT g.grant_id, g.access_role AS role, COALESCE(r.capabilities, '{}') AS custom, COALESCE(g.org_id, '') AS org_id,
    array_remove(ARRAY[g.org_id], NULL) AS orgs
FROM access_grants g LEFT JOIN access_roles r ON r.name = g.access_role WHERE g.principal_id = $1 ORDER BY g.grant_id`
	sqlHoldTrusting = `
SELECT name FROM principals WHERE principal_id = $1 AND kind = 'service_account' AND disabled_at IS NULL FOR NO KEY UPDATE`
	sqlExchangedBefore = `SELECT count(*) FROM credentials WHERE principal_id = $1 AND name = $2`
)

func noSuchTrust(account string) error {
	return prego.Errorf(prego.CodeNotFound, "the service account %q trusts no issuer, or is disabled", account)
}

// Trust is which tokens of an issuer are exchanged for one of a service account; CodeNotFound if none are.
func (s *Store) Trust(ctx context.Context, account string) (access.Trust, error) {
	return get[access.Trust](ctx, s.pool, noSuchTrust(account), sqlTrust, account)
}

// PutTrust sets which tokens of an issuer are exchanged for one of a service account. may decides with the grants of
// the account, because who sets it can get such a token.
func (s *Store) PutTrust(ctx context.Context, account string, t access.Trust, by string, may func([]access.Grant) error) error {
	return s.inTx(ctx, "trust of "+account, func(tx *txn) error {
		if _, err := value[string](ctx, tx, sqlHoldTrusting, account); err != nil {
			return ifNoRows(err, noSuchAccount(account))
		}
		grants := manyIn[access.Grant](ctx, tx, sqlAccountGrants, account)
		if tx.err != nil {
			return tx.err
		}
		if err := may(grants); err != nil {
			return err
		}
		tx.run(ctx, sqlPutTrust, account, t.Issuer, t.Audience, t.Claims, by)
		return nil
	})
}

// DeleteTrust makes no further tokens be exchanged. Those that were end by themselves, within minutes.
func (s *Store) DeleteTrust(ctx context.Context, account string) error {
	return s.exec(ctx, "trust of "+account, sqlDeleteTrust, account)
}

// Exchange creates the token of a service account that an external token is exchanged for. before counts the tokens
// that the same external token, which names them, was exchanged for.
func (s *Store) Exchange(ctx context.Context, c Credential) (p access.Principal, before int, err error) {
	err = s.inTx(ctx, "exchange a token", func(tx *txn) error {
		name, err := value[string](ctx, tx, sqlHoldTrusting, c.PrincipalID)
		if err != nil {
			return ifNoRows(err, noSuchTrust(c.PrincipalID))
		}
		c.CreatedBy = name
		before = valueIn[int](ctx, tx, sqlExchangedBefore, c.PrincipalID, c.Name)
		if tx.err != nil {
			return tx.err
		}
		_, err = createCredential(ctx, tx, c)
		return err
	})
	if err != nil {
		return p, before, err
	}
	p, err = s.Authenticate(ctx, c.Hash)
	return p, before, err
}
