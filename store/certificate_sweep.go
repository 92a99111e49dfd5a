package store

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

const sqlCertificateChain = `SELECT chain_pem FROM certificates WHERE certificate_id = $1`

// CertificateChain returns the stored chain of a certificate, as PEM; "" for none.
func (s *Store) CertificateChain(ctx context.Context, id prego.CertificateID) (string, error) {
	chain, err := value[string](ctx, s.pool, sqlCertificateChain, id)
	return chain, failed("chain of "+string(id), ifNoRows(err, nil))
}

const (
	sqlTakeCertificateNames = `
DELETE FROM certificate_names_due WHERE name IN (
    SELECT name FROM certificate_names_due WHERE name = ANY ($1) ORDER BY name FOR UPDATE SKIP LOCKED) RETURNING name`
	sqlCertificateNamesDue = `SELECT name FROM certificate_names_due ORDER BY name LIMIT $1`
)

// The certificate for a name: an org's verified domain that leads here has one if a tenant uses it, or a route of the
// org on a port with TLS, which is any port but 80. While the domain is lost, its certificate is not renewed, and an
// order under way ends. Without a domain there is none.
const sqlCertificateNames = `
SELECT n.name, d.org_id, d.tenant_id, COALESCE(d.status, '') AS status,
    COALESCE(d.points AND (d.tenant_id IS NOT NULL OR EXISTS (SELECT FROM routes r WHERE r.hostname = n.name AND r.org_id = d.org_id AND r.listen_port <> 80 AND r.deleted_at IS NULL)), false) AS serves
FROM unnest($1::text[]) n(name)
LEFT JOIN LATERAL (SELECT org_id, tenant_id, status, points FROM domains WHERE name = n.name AND deleted_at IS NULL AND status IN ('verified', 'lost')
    ORDER BY status = 'verified' DESC, domain_id LIMIT 1) d ON true`

type certificateName struct {
	Name     string
	OrgID    *prego.OrgID
	TenantID *prego.TenantID
	Status   string
	Serves   bool
}

// SyncCertificateNames makes the rows of certificates follow names whose domain or route changed, and returns how
// many names it handled. A name whose row the database rejects stays due.
func (s *Store) SyncCertificateNames(ctx context.Context, most int) (n int, err error) {
	due, err := collectValues[string](ctx, s, "names of certificates", sqlCertificateNamesDue, most)
	if err != nil {
		return 0, err
	}
	name := func(n string) string { return n }
	_, err = siftNoted(ctx, s, batchCertificateNames, due, name, func(part []string) error {
		handled, err := s.syncCertificateNames(ctx, part)
		n += handled
		return err
	})
	return n, err
}

func (s *Store) syncCertificateNames(ctx context.Context, due []string) (n int, err error) {
	err = s.inTx(ctx, "names of certificates", func(tx *txn) error {
		names, err := values[string](ctx, tx, sqlTakeCertificateNames, due)
		if err != nil || len(names) == 0 {
			return err
		}
		states := manyIn[certificateName](ctx, tx, sqlCertificateNames, names)
		var lost, retired []prego.CertificateID
		b := &pgx.Batch{}
		for _, c := range states {
			want := tenant.HostCertificate(c.Name, c.OrgID, c.TenantID)
			switch {
			case c.Status == "verified" && c.Serves && tenant.CheckCertificateNames(want) == nil:
				b.Queue(sqlWantCertificate, tenant.CertificateID(want.Names), want.Names, want.Challenge, want.OrgID, want.TenantID, "prego")
			case c.Status == "verified":
			case c.Status == "lost":
				lost = append(lost, tenant.CertificateID(want.Names))
			default:
				retired = append(retired, tenant.CertificateID(want.Names))
			}
		}
		b.Queue(sqlLoseCertificates, lost)
		b.Queue(sqlRetireCertificates, retired)
		// No run picks up a certificate that is not due. Last: what holds a certificate may begin an order of it.
		b.Queue(sqlEndOrdersOf, slices.Concat(lost, retired))
		n = len(names)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		n = 0
	}
	return n, err
}

// Their answers over HTTP are rows only, and leave the edges with this statement. TXT records are removed by a run.
const sqlEndOrdersOf = `
WITH ended AS (
    UPDATE acme_orders SET state = 'failed', reason = 'certificate_gone', message = 'its name was lost, or given up', ended_at = now(), sealed_key = NULL
    WHERE certificate_id = ANY ($1) AND ended_at IS NULL RETURNING order_id)
UPDATE acme_challenges h SET removed_at = now(), changed = nextval('certificate_changes')
FROM ended WHERE h.order_id = ended.order_id AND h.kind = 'http-01' AND h.removed_at IS NULL`

// leftAnswers are answers that the run of an ended order had to remove. The sweep waits for that run, unless no run
// will take the order up.
const leftAnswers = `acme_challenges h JOIN acme_orders o USING (order_id)
    WHERE h.removed_at IS NULL AND (o.reason = 'certificate_gone' AND o.ended_at <= $1 OR o.ended_at < $1::timestamptz - interval '10 minutes')`

// The ids of the keys under which something is sealed, each found by one step in the index.
const sealingKeys = `
RECURSIVE k(id) AS (
    (SELECT key_id FROM certificates WHERE status = 'active' ORDER BY key_id LIMIT 1)
    UNION ALL
    SELECT (SELECT c.key_id FROM certificates c WHERE c.status = 'active' AND c.key_id > k.id ORDER BY c.key_id LIMIT 1) FROM k WHERE k.id IS NOT NULL
)`

const sqlCertificatesNeedSweep = `WITH ` + sealingKeys + `
SELECT EXISTS (SELECT FROM certificate_names_due)
    OR EXISTS (SELECT FROM certificates WHERE due_at <= $1)
    OR EXISTS (SELECT FROM certificates WHERE ari_at <= $1)
    OR EXISTS (SELECT FROM k JOIN certificates c ON c.key_id = k.id WHERE NOT k.id = ANY ($2) AND c.status = 'active' AND c.renews AND c.failures = 0 AND c.due_at > $1)
    OR EXISTS (SELECT FROM ` + leftAnswers + `)`

// CertificatesNeedSweep reports whether a sweep has something to do. known are the keys
// under which keys of certificates can be opened.
func (s *Store) CertificatesNeedSweep(ctx context.Context, now time.Time, known []string) (bool, error) {
	found, err := value[bool](ctx, s.pool, sqlCertificatesNeedSweep, now, known)
	return found, failed("look for certificates", err)
}

const sqlCertificatesSealedUnder = `WITH ` + sealingKeys + `
UPDATE certificates SET due_at = $3, updated_at = now() WHERE certificate_id IN (
    SELECT c.certificate_id FROM k JOIN certificates c ON c.key_id = k.id WHERE NOT k.id = ANY ($1) AND c.status = 'active' AND c.renews AND c.failures = 0 AND c.due_at > $3 LIMIT $2)`

// CertificatesSealedUnder makes certificates due whose keys can't be opened any more, and
// returns how many.
func (s *Store) CertificatesSealedUnder(ctx context.Context, known []string, now time.Time, most int) (int, error) {
	tag, err := s.pool.Exec(ctx, sqlCertificatesSealedUnder, known, most, now)
	return int(tag.RowsAffected()), failed("certificates whose keys are lost", err)
}

// Certificates whose challenges are still served are also due: their run removes the answers.
const sqlCertificatesDue = `
(SELECT certificate_id FROM certificates WHERE due_at <= $1 ORDER BY due_at LIMIT $2)
UNION
(SELECT o.certificate_id FROM ` + leftAnswers + ` LIMIT $2)`

// CertificatesDue returns the certificates whose run has something to do now.
func (s *Store) CertificatesDue(ctx context.Context, now time.Time, most int) ([]prego.CertificateID, error) {
	return collectValues[prego.CertificateID](ctx, s, "certificates that are due", sqlCertificatesDue, now, most)
}

const sqlCertificatesToAsk = `
SELECT certificate_id, version, serial, directory, chain_pem AS chain, not_before, not_after FROM certificates WHERE ari_at <= $1 ORDER BY ari_at LIMIT $2`

// CertificatesToAsk returns the certificates whose authority is asked now when to renew them.
func (s *Store) CertificatesToAsk(ctx context.Context, now time.Time, most int) ([]tenant.CertificateToAsk, error) {
	return collect[tenant.CertificateToAsk](ctx, s, "certificates to ask about", sqlCertificatesToAsk, now, most)
}

// A failed attempt keeps the time of the next one, as does an earlier time.
const sqlCertificateAsked = `
UPDATE certificates SET ari_at = $4, ari_url = $5, due_at = CASE WHEN failures = 0 AND renews THEN COALESCE($3::timestamptz, due_at) ELSE due_at END
WHERE certificate_id = $1 AND version = $2 AND ari_at IS NOT NULL`

// CertificateAsked records when an authority wants a certificate renewed, nil if it gave no time, and when it is
// asked again.
func (s *Store) CertificateAsked(ctx context.Context, id prego.CertificateID, version int64, renewAt *time.Time, askAt time.Time, url string) error {
	return s.exec(ctx, "renewal of "+string(id), sqlCertificateAsked, id, version, renewAt, askAt, url)
}

const sqlCertificateCounts = `
SELECT COALESCE((SELECT EXTRACT(EPOCH FROM not_after) FROM certificates WHERE status = 'active' AND renews ORDER BY not_after LIMIT 1), 0)::float8 AS first_end,
    (SELECT count(*) FROM certificates WHERE status = 'active') AS active,
    (SELECT count(*) FROM certificates WHERE status = 'pending') AS pending,
    (SELECT count(*) FROM certificates WHERE status = 'failed') AS failed,
    (SELECT count(*) FROM certificates WHERE status = 'active' AND failures > 0) AS failing`

// CertificateCounts counts certificates.
func (s *Store) CertificateCounts(ctx context.Context) (tenant.CertificateCounts, error) {
	c, err := one[tenant.CertificateCounts](ctx, s.pool, sqlCertificateCounts)
	return c, failed("count certificates", err)
}

const sqlEdgeServerIDs = `SELECT server_id FROM servers WHERE role = 'edge' AND status IN ('active', 'draining') ORDER BY server_id`

// EdgeServers returns the edges of all networks.
func (s *Store) EdgeServers(ctx context.Context) ([]prego.ServerID, error) {
	return collectValues[prego.ServerID](ctx, s, "edges", sqlEdgeServerIDs)
}
