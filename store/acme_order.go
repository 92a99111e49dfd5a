package store

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/org"
	"github.com/prego/prego/tenant"
)

const accountColumns = `account_id, directory, name, contact, location, orders_url, sealed_key, key_id`

const sqlPutAccount = `
INSERT INTO acme_accounts (account_id, directory, name, contact, sealed_key, key_id) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (account_id) DO NOTHING`

const sqlGetAccount = `SELECT ` + accountColumns + ` FROM acme_accounts WHERE account_id = $1`

// IssuerAccount reads an account at an authority; nil if there is none yet.
func (s *Store) IssuerAccount(ctx context.Context, id string) (*tenant.IssuerAccount, error) {
	return find[tenant.IssuerAccount](ctx, s.pool, sqlGetAccount, id)
}

// PutIssuerAccount stores an account's key before the authority knows it, and returns the stored account: the first
// key stays.
func (s *Store) PutIssuerAccount(ctx context.Context, a tenant.IssuerAccount) (tenant.IssuerAccount, error) {
	if err := s.exec(ctx, "keep the account "+a.AccountID, sqlPutAccount, a.AccountID, a.Directory, a.Name, a.Contact, a.SealedKey, a.KeyID); err != nil {
		return a, err
	}
	kept, err := s.IssuerAccount(ctx, a.AccountID)
	if err == nil && kept == nil {
		return a, fmt.Errorf("the account %s was not kept", a.AccountID)
	}
	if err != nil {
		return a, err
	}
	return *kept, nil
}

const sqlAccountRegistered = `UPDATE acme_accounts SET location = $2, orders_url = $3, contact = $4, updated_at = now() WHERE account_id = $1`

// IssuerAccountRegistered records the authority's URL of an account; "" when the authority lost the account.
func (s *Store) IssuerAccountRegistered(ctx context.Context, id, location, ordersURL, contact string) error {
	return s.exec(ctx, "registration of "+id, sqlAccountRegistered, id, location, ordersURL, contact)
}

const sqlResealAccount = `UPDATE acme_accounts SET sealed_key = $4, key_id = $5, updated_at = now() WHERE account_id = $1 AND key_id = $2 AND sealed_key = $3`

// ResealIssuerAccount replaces an account's sealed key with the same key under another seal.
func (s *Store) ResealIssuerAccount(ctx context.Context, was, now tenant.IssuerAccount) error {
	return s.exec(ctx, "seal the key of "+was.AccountID, sqlResealAccount, was.AccountID, was.KeyID, was.SealedKey, now.SealedKey, now.KeyID)
}

const orderColumns = `order_id, certificate_id, account_id, state, location, finalize_url, replaces, csr, sealed_key, key_id, reason, message, expires_at, created_at, ended_at`

const sqlOpenOrder = `SELECT ` + orderColumns + ` FROM acme_orders WHERE certificate_id = $1 AND ended_at IS NULL`

// OpenOrder returns a certificate's order that has not ended; nil if there is none.
func (s *Store) OpenOrder(ctx context.Context, id prego.CertificateID) (*tenant.CertificateOrder, error) {
	return find[tenant.CertificateOrder](ctx, s.pool, sqlOpenOrder, id)
}

const sqlGetOrder = `SELECT ` + orderColumns + ` FROM acme_orders WHERE order_id = $1`

// GetCertificateOrder reads an order.
func (s *Store) GetCertificateOrder(ctx context.Context, orderID string) (tenant.CertificateOrder, error) {
	return get[tenant.CertificateOrder](ctx, s.pool, prego.Errorf(prego.CodeCertificateNotFound, "there is no order %s", orderID), sqlGetOrder, orderID)
}

const sqlListOrders = `SELECT ` + orderColumns + ` FROM acme_orders WHERE certificate_id = $1 ORDER BY created_at DESC LIMIT 20`

// CertificateOrders returns the last orders of a certificate, newest first.
func (s *Store) CertificateOrders(ctx context.Context, id prego.CertificateID) ([]tenant.CertificateOrder, error) {
	if access.OfCustomer(ctx) {
		return nil, nil // they are about the installation's account
	}
	return collect[tenant.CertificateOrder](ctx, s, "orders", sqlListOrders, id)
}

const sqlHoldCertificate = `SELECT ` + certificateColumns + ` FROM certificates c
WHERE c.certificate_id = $1 AND c.status <> 'retired' AND c.due_at IS NOT NULL FOR UPDATE`

const sqlIntendOrder = `
INSERT INTO acme_orders (order_id, certificate_id, account_id, replaces, csr, sealed_key, key_id) VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING ` + orderColumns

// BeginOrder writes the intent to order, and takes the cost out of the authority's budget. If an order is open
// already, it is returned and nothing is taken. An order beyond the budget is a *tenant.IssueError of class
// IssueBudget.
func (s *Store) BeginOrder(ctx context.Context, o tenant.CertificateOrder, charges []tenant.IssueCharge) (out tenant.CertificateOrder, err error) {
	err = s.inTx(ctx, string("order for "+o.CertificateID), func(tx *txn) error {
		if _, err := get[tenant.Certificate](ctx, tx, noCertificate(o.CertificateID), sqlHoldCertificate, o.CertificateID); err != nil {
			return err
		}
		out, err = one[tenant.CertificateOrder](ctx, tx, sqlOpenOrder, o.CertificateID)
		if err == nil || !isNoRows(err) {
			return err
		}
		if wait, bucket := takeIssue(ctx, tx, charges); wait > 0 {
			return &tenant.IssueError{Class: tenant.IssueBudget, RetryAfter: wait, Message: fmt.Sprintf("the authority allows no more orders now (%s): the next one can be placed in %s", bucket, wait.Round(time.Second))}
		}
		out = oneIn[tenant.CertificateOrder](ctx, tx, sqlIntendOrder, o.OrderID, o.CertificateID, o.AccountID, o.Replaces, o.CSR, o.SealedKey, o.KeyID)
		return nil
	})
	return out, err
}

const sqlOrderPlaced = `
UPDATE acme_orders SET location = $2, finalize_url = $3, state = $4, expires_at = $5 WHERE order_id = $1 AND ended_at IS NULL`

// A resumed order shows its challenges again.
const sqlPutChallenge = `
INSERT INTO acme_challenges AS c (order_id, authz_url, url, kind, name, token, answer) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (order_id, authz_url) DO UPDATE SET url = $3, kind = $4, token = $6, answer = $7, removed_at = NULL, changed = nextval('certificate_changes'),
    served_at = CASE WHEN c.removed_at IS NULL AND c.token = $6 THEN c.served_at END, accepted_at = CASE WHEN c.token = $6 THEN c.accepted_at END`

// OrderPlaced records the authority's view of an order and the challenges to show. Challenges that are no longer
// among them stay as they are.
func (s *Store) OrderPlaced(ctx context.Context, o tenant.CertificateOrder, challenges []tenant.CertificateChallenge) error {
	return s.inTx(ctx, "order "+o.OrderID, func(tx *txn) error {
		tx.must(ctx, orderEnded(o.OrderID), sqlOrderPlaced, o.OrderID, o.Location, o.FinalizeURL, o.State, o.ExpiresAt)
		for _, c := range challenges {
			tx.run(ctx, sqlPutChallenge, o.OrderID, c.AuthzURL, c.URL, c.Kind, c.Name, c.Token, c.Answer)
		}
		return nil
	})
}

const challengeColumns = `order_id, authz_url, url, kind, name, token, answer, served_at, accepted_at, removed_at, created_at`

const challengeColumnsOf = `h.order_id, h.authz_url, h.url, h.kind, h.name, h.token, h.answer, h.served_at, h.accepted_at, h.removed_at, h.created_at`

const sqlLiveChallenges = `SELECT ` + challengeColumns + ` FROM acme_challenges WHERE order_id = $1 AND removed_at IS NULL ORDER BY authz_url`

const sqlOrderIsOpen = `SELECT EXISTS (SELECT FROM acme_orders WHERE order_id = $1 AND ended_at IS NULL)`

func orderEnded(orderID string) error {
	return prego.Errorf(prego.CodeCertificateNotFound, "the order %s has ended", orderID)
}

// LiveChallenges returns the challenges of an order that are shown, or are about to be. An order that has ended, as
// that of a deleted domain, is CodeCertificateNotFound.
func (s *Store) LiveChallenges(ctx context.Context, orderID string) ([]tenant.CertificateChallenge, error) {
	if open, err := value[bool](ctx, s.pool, sqlOrderIsOpen, orderID); err != nil || !open {
		return nil, cmp.Or(failed("challenges", err), orderEnded(orderID))
	}
	return collect[tenant.CertificateChallenge](ctx, s, "challenges", sqlLiveChallenges, orderID)
}

const (
	sqlChallengeServed   = `UPDATE acme_challenges SET served_at = now() WHERE order_id = $1 AND authz_url = $2 AND served_at IS NULL`
	sqlChallengeAccepted = `UPDATE acme_challenges SET accepted_at = now() WHERE order_id = $1 AND authz_url = $2 AND accepted_at IS NULL`
	sqlChallengeRemoved  = `UPDATE acme_challenges SET removed_at = now(), changed = nextval('certificate_changes') WHERE order_id = $1 AND authz_url = $2 AND removed_at IS NULL`
)

// ChallengeServed records that an answer was seen where the authority will look for it.
func (s *Store) ChallengeServed(ctx context.Context, c tenant.CertificateChallenge) error {
	return s.exec(ctx, "a challenge is served", sqlChallengeServed, c.OrderID, c.AuthzURL)
}

// ChallengeAccepted records that the authority was asked to check.
func (s *Store) ChallengeAccepted(ctx context.Context, c tenant.CertificateChallenge) error {
	return s.exec(ctx, "a challenge is accepted", sqlChallengeAccepted, c.OrderID, c.AuthzURL)
}

// ChallengeRemoved records that an answer is gone. Edges stop serving it.
func (s *Store) ChallengeRemoved(ctx context.Context, c tenant.CertificateChallenge) error {
	return s.exec(ctx, "a challenge is removed", sqlChallengeRemoved, c.OrderID, c.AuthzURL)
}

const sqlEndOrder = `
UPDATE acme_orders SET state = $2, reason = $3, message = $4, ended_at = now(), sealed_key = NULL WHERE order_id = $1 AND ended_at IS NULL`

const sqlCertificateIssued = `
UPDATE certificates c SET status = 'active', reason = '', message = '', failures = 0, version = version + 1, directory = $3, serial = $4, issuer = $5, not_before = $6, not_after = $7,
    chain_pem = $8, sealed_key = o.sealed_key, key_id = o.key_id, digest = $9, due_at = CASE WHEN renews THEN $10::timestamptz END, ari_at = CASE WHEN renews THEN $11::timestamptz END,
    ari_url = '', issued_at = now(), updated_at = now(), changed = nextval('certificate_changes')
FROM acme_orders o WHERE o.order_id = $1 AND o.ended_at IS NULL AND c.certificate_id = $2 AND o.certificate_id = c.certificate_id AND c.status <> 'retired'
RETURNING ` + certificateColumns

const sqlOrderIssued = `SELECT EXISTS (SELECT FROM acme_orders WHERE order_id = $1 AND state = 'valid')`

// CertificateIssued stores the certificate issued for an order, with the order's key, and ends the order: edges serve
// it instead of its predecessor. renewAt is when it is renewed, askAt when the authority is asked whether to renew
// earlier. Repeating it changes nothing.
func (s *Store) CertificateIssued(ctx context.Context, o tenant.CertificateOrder, directory string, c tenant.IssuedCertificate, renewAt, askAt time.Time) error {
	return s.inTx(ctx, string("store "+o.CertificateID), func(tx *txn) error {
		now, err := one[tenant.Certificate](ctx, tx, sqlCertificateIssued, o.OrderID, o.CertificateID, directory, c.Serial, c.Issuer, c.NotBefore, c.NotAfter, c.Chain, c.Digest, renewAt, askAt)
		if isNoRows(err) {
			return doneBefore(ctx, tx, noCertificate(o.CertificateID), sqlOrderIssued, o.OrderID)
		}
		if err != nil {
			return err
		}
		tx.run(ctx, sqlEndOrder, o.OrderID, tenant.OrderValid, "", "")
		return certificateEvent(ctx, tx, now, "certificate.issued", map[string]any{"names": now.Names, "not_after": c.NotAfter, "version": now.Version})
	})
}

const sqlCertificateFailed = `
UPDATE certificates c SET status = CASE status WHEN 'pending' THEN 'failed' ELSE status END, reason = $2, message = $3, failures = failures + 1,
    due_at = CASE WHEN renews THEN now() + make_interval(secs => $4) END, updated_at = now()
WHERE c.certificate_id = $1 AND c.status <> 'retired' AND c.failures = $5 RETURNING ` + certificateColumns

// IssueFailed records why an attempt failed and when the next one starts. It reports whether it did: not twice, and
// not for a certificate whose renewal was requested since.
func (s *Store) IssueFailed(ctx context.Context, f tenant.IssueFailure) (recorded bool, err error) {
	err = s.inTx(ctx, string("failure of "+f.CertificateID), func(tx *txn) error {
		message := prego.Redact(f.Message)
		now := findIn[tenant.Certificate](ctx, tx, sqlCertificateFailed, f.CertificateID, f.Reason, message, f.Again.Seconds(), f.Failures)
		if now == nil {
			return nil
		}
		if f.EndOrder {
			tx.run(ctx, sqlEndOrder, f.OrderID, tenant.OrderFailed, f.Reason, message)
		}
		if c := f.Counted; c != nil {
			takeIssue(ctx, tx, []tenant.IssueCharge{{Bucket: c.Bucket, Limit: c.Limit}})
			tx.run(ctx, sqlTakeIssue, c.Bucket, 1)
		}
		if c := f.Blocked; c != nil {
			tx.run(ctx, sqlBlockIssue, c.Bucket, float64(c.Limit.Most), c.Limit.PerSecond(), f.BlockedFor.Seconds())
		}
		recorded = true
		return certificateEvent(ctx, tx, *now, "certificate.failed", map[string]any{"names": now.Names, "reason": f.Reason, "message": message})
	})
	return recorded && err == nil, err
}

// AbandonOrder ends an order that can't be resumed.
func (s *Store) AbandonOrder(ctx context.Context, orderID string, reason prego.Reason, message string) error {
	return s.exec(ctx, "give up "+orderID, sqlEndOrder, orderID, tenant.OrderFailed, reason, message)
}

const sqlOrderLocations = `
SELECT o.location FROM acme_orders o JOIN certificates c USING (certificate_id) WHERE o.account_id = $1 AND o.location <> '' AND c.certificate_id = $2 ORDER BY o.created_at DESC LIMIT 200`

// OrderLocations returns the known URLs of orders for these names.
func (s *Store) OrderLocations(ctx context.Context, accountID string, names []string) ([]string, error) {
	return collectValues[string](ctx, s, "orders of an account", sqlOrderLocations, accountID, tenant.CertificateID(names))
}

const sqlLeftChallenges = `
SELECT ` + challengeColumnsOf + ` FROM acme_challenges h JOIN acme_orders o USING (order_id)
WHERE o.certificate_id = $1 AND o.ended_at IS NOT NULL AND h.removed_at IS NULL ORDER BY h.order_id, h.authz_url`

// LeftChallenges returns challenges of a certificate's ended orders that may still be shown.
func (s *Store) LeftChallenges(ctx context.Context, id prego.CertificateID) ([]tenant.CertificateChallenge, error) {
	return collect[tenant.CertificateChallenge](ctx, s, "challenges that are left", sqlLeftChallenges, id)
}

// certificateEvent reports a change of a certificate to the org that owns its name.
func certificateEvent(ctx context.Context, tx *txn, c tenant.Certificate, typ string, payload map[string]any) error {
	if c.OrgID == nil {
		return nil
	}
	return orgEvent(ctx, tx, org.Event{OrgID: *c.OrgID, Type: typ, Subject: string(c.CertificateID), Actor: "prego"}, payload)
}
