package store

import (
	"context"

	"github.com/prego/prego/org"
)

const domainColumns = `d.domain_id, d.org_id, COALESCE(d.tenant_id, '') AS tenant_id, d.name, d.status, d.reason, d.message, d.token, d.points, d.failures, d.checked_at,
    d.next_check, d.verified_at, d.missing_since, d.created_by, d.created_at, d.deleted_at`

const sqlVerifiedDomains = `SELECT ` + domainColumns + ` FROM domains d WHERE d.deleted_at IS NULL AND d.status = 'verified' ORDER BY d.name`

// VerifiedDomains are all names that are served, by name: at most one org has each.
func (s *Store) VerifiedDomains(ctx context.Context) ([]org.Domain, error) {
	return collect[org.Domain](ctx, s, "verified domains", sqlVerifiedDomains)
}
