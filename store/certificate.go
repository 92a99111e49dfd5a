package store

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// Edge documents are built from the results of these two statements.

const sqlServedCertificates = `
SELECT certificate_id, version, names, chain_pem AS chain, sealed_key, key_id, digest, not_after
FROM certificates WHERE status = 'active' AND not_after > now() AND names && $1 ORDER BY certificate_id`

// ServedCertificates returns the certificates for host names, with their sealed keys. A wildcard certificate is
// included if any of the names is below it. Names without a certificate are left out.
func (s *Store) ServedCertificates(ctx context.Context, hostNames []string) ([]tenant.ServedCertificate, error) {
	under := make([]string, 0, 2*len(hostNames))
	for _, name := range hostNames {
		under = append(under, tenant.CoveredBy(name)...)
	}
	return collect[tenant.ServedCertificate](ctx, s, "certificates that are served", sqlServedCertificates, under)
}

const sqlServedChallenges = `
SELECT name, token, answer FROM acme_challenges WHERE kind = 'http-01' AND removed_at IS NULL ORDER BY name, token`

// ServedChallenges returns the answers that edges give to authorities now, over HTTP.
func (s *Store) ServedChallenges(ctx context.Context) ([]tenant.ServedChallenge, error) {
	return collect[tenant.ServedChallenge](ctx, s, "challenges that are served", sqlServedChallenges)
}

const certificateColumns = `c.certificate_id, c.names, c.challenge, c.org_id, c.tenant_id, c.status, c.reason, c.message, c.renews, c.failures, c.due_at, c.version, c.directory,
	c.serial, c.issuer, c.not_before, c.not_after, c.ari_url, c.issued_at, c.retired_at, c.created_by, c.created_at, c.updated_at`

const sqlGetCertificate = `SELECT ` + certificateColumns + ` FROM certificates c WHERE c.certificate_id = $1`

func noCertificate(id prego.CertificateID) error {
	return prego.Errorf(prego.CodeCertificateNotFound, "there is no certificate %q", id)
}

// GetCertificate reads a certificate, or CodeCertificateNotFound.
func (s *Store) GetCertificate(ctx context.Context, id prego.CertificateID) (tenant.Certificate, error) {
	return get[tenant.Certificate](ctx, s.pool, noCertificate(id), sqlGetCertificate, id)
}

// The exact name goes before a wildcard, as in edges.
const sqlCertificateFor = `
SELECT ` + certificateColumns + ` FROM certificates c WHERE c.status <> 'retired' AND c.names && $1
ORDER BY (c.names && $2) DESC, c.certificate_id LIMIT 1`

// CertificateFor returns the certificate that is or will be served for a host name; nil if there is none.
func (s *Store) CertificateFor(ctx context.Context, hostName string) (*tenant.Certificate, error) {
	return find[tenant.Certificate](ctx, s.pool, sqlCertificateFor, tenant.CoveredBy(hostName), []string{hostName})
}

// A retired certificate starts over; a certificate whose names were lost is renewed again.
const sqlWantCertificate = `
INSERT INTO certificates AS c (certificate_id, names, challenge, org_id, tenant_id, created_by, due_at) VALUES ($1, $2, $3, $4, $5, $6, now())
ON CONFLICT (certificate_id) DO UPDATE SET
    status = CASE c.status WHEN 'retired' THEN 'pending' ELSE c.status END, retired_at = NULL, renews = true,
    due_at = CASE WHEN c.status = 'retired' OR NOT c.renews THEN now() ELSE c.due_at END,
    failures = CASE c.status WHEN 'retired' THEN 0 ELSE c.failures END, challenge = $3, org_id = $4, tenant_id = $5, updated_at = now(), changed = nextval('certificate_changes')
WHERE c.status = 'retired' OR NOT c.renews OR c.challenge <> $3 OR c.org_id IS DISTINCT FROM $4 OR c.tenant_id IS DISTINCT FROM $5`

// WantCertificates creates the missing rows of wanted certificates, and returns how many it created or changed.
func (s *Store) WantCertificates(ctx context.Context, wants []tenant.CertificateWant, by string) (n int, err error) {
	b := &pgx.Batch{}
	for _, w := range wants {
		if err := tenant.CheckCertificateNames(w); err != nil {
			return 0, err
		}
		b.Queue(sqlWantCertificate, tenant.CertificateID(w.Names), w.Names, w.Challenge, w.OrgID, w.TenantID, by).Exec(func(tag pgconn.CommandTag) error {
			n += int(tag.RowsAffected())
			return nil
		})
	}
	err = s.inTx(ctx, "certificates that are needed", func(tx *txn) error { return tx.SendBatch(ctx, b).Close() })
	return n, err
}

const sqlLoseCertificates = `
UPDATE certificates SET renews = false, due_at = NULL, ari_at = NULL, updated_at = now()
WHERE certificate_id = ANY ($1) AND renews AND status <> 'retired'`

const sqlRetireCertificates = `
UPDATE certificates SET status = 'retired', retired_at = now(), due_at = NULL, ari_at = NULL, sealed_key = NULL, key_id = '', updated_at = now(), changed = nextval('certificate_changes')
WHERE certificate_id = ANY ($1) AND status <> 'retired'`

const sqlRenewCertificate = `
UPDATE certificates c SET due_at = now(), failures = 0, updated_at = now() WHERE c.certificate_id = $1 AND c.status <> 'retired' RETURNING ` + certificateColumns

// RenewCertificate makes a certificate due now, regardless of its end and its failures.
func (s *Store) RenewCertificate(ctx context.Context, id prego.CertificateID) (tenant.Certificate, error) {
	return get[tenant.Certificate](ctx, s.pool, noCertificate(id), sqlRenewCertificate, id)
}

// Certificates is the list of certificates, without retired ones.
var Certificates = Listing[tenant.Certificate]{
	what: "certificates", from: `SELECT ` + certificateColumns + ` FROM certificates c`,
	live: `c.status <> 'retired'`, state: "status",
	filters: map[string]string{"status": "c.status", "reason": "c.reason", "org_id": "c.org_id", "tenant_id": "c.tenant_id"},
	sorts:   map[string]string{"created_at": "c.created_at"},
	id:      "certificate_id",
}
