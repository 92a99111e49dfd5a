package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
)

const domainColumns = `d.domain_id, d.org_id, COALESCE(d.tenant_id, '') AS tenant_id, d.name, d.status, d.reason, d.message, d.token, d.points, d.by_route, d.failures, d.checked_at,
    d.next_check, d.verified_at, d.missing_since, d.elsewhere_since, d.sought_until,
    d.created_by, d.created_at, d.deleted_at,
    COALESCE((SELECT t.slug FROM tenants t WHERE t.tenant_id = d.tenant_id), '') AS slug,
    COALESCE((SELECT e.region FROM routes r JOIN envs e ON e.env_id = r.env_id
        WHERE d.tenant_id IS NULL AND r.org_id = d.org_id AND r.hostname = d.name AND r.deleted_at IS NULL ORDER BY r.route_id LIMIT 1), '') AS region,
    COALESCE((SELECT a.address FROM routes r JOIN ipv4_allocations a ON a.env_id = r.env_id AND a.deleted_at IS NULL AND a.status = 'ready'
        WHERE d.tenant_id IS NULL AND r.org_id = d.org_id AND r.hostname = d.name AND r.deleted_at IS NULL AND r.listener_scope = 'env_v4' ORDER BY r.route_id LIMIT 1), '') AS address`

// maxUnverified bounds how many unverified names an org may have: they take no quota, but each is looked up.
const maxUnverified = 100

// An org's rows for a name, and how many other unverified names it has. A former name keeps its token: the TXT record
// may still be there.
const (
	sqlDomainOf   = `SELECT ` + domainColumns + ` FROM domains d WHERE d.org_id = $1 AND d.name = $2 AND d.deleted_at IS NULL`
	sqlUnverified = `SELECT count(*) FROM domains WHERE org_id = $1 AND deleted_at IS NULL AND status <> 'verified'`
	sqlOldToken   = `SELECT token FROM domains WHERE org_id = $1 AND name = $2 ORDER BY created_at DESC LIMIT 1`
	sqlRouteNamed = `SELECT EXISTS (SELECT FROM routes WHERE org_id = $1 AND hostname = $2 AND deleted_at IS NULL)`

	sqlTenantForDomain = `SELECT org_id, state NOT IN ('terminated', 'data_purged') FROM tenants WHERE tenant_id = $1`
)

const sqlClaimDomain = `
INSERT INTO domains AS d (domain_id, org_id, tenant_id, name, by_route, token, sought_until, created_by)
VALUES ($1, $2, NULLIF($3, ''), $4, $5, $6, now() + make_interval(secs => $7), $8) RETURNING ` + domainColumns

func noSuchDomain(id prego.DomainID) error {
	return prego.Errorf(prego.CodeDomainNotFound, "there is no domain %q", id)
}

// ClaimDomain notes that an org wants a name served, by a tenant or by its routes. Repeating it returns the existing
// claim. Another org's claim is no obstacle: the first org to show the TXT record has the name.
func (s *Store) ClaimDomain(ctx context.Context, d org.Domain, by string) (out org.Domain, err error) {
	err = s.inTx(ctx, "claim domain", func(tx *txn) error {
		if d.TenantID != "" {
			lives := false
			tx.check(ifNoRows(tx.QueryRow(ctx, sqlTenantForDomain, d.TenantID).Scan(&d.OrgID, &lives), noSuchTenant(string(d.TenantID))))
			if !lives {
				return prego.Errorf(prego.CodeInvalidTransition, "the tenant is terminated: it is served under no name")
			}
		}
		tx.check(lockNamedOrg(ctx, tx, d.OrgID))
		if d.TenantID != "" {
			switch named, err := value[bool](ctx, tx, sqlRouteNamed, d.OrgID, d.Name); {
			case err != nil:
				return err
			case named:
				return taken("is served by a route of the org")
			}
		}
		out = got(s.claimDomain(ctx, tx, d, by)).in(tx)
		return nil
	})
	return out, err
}

func taken(message string) error {
	return &prego.Error{Code: prego.CodeHostnameTaken, Field: "hostname", Message: message}
}

// claimDomain is ClaimDomain in a transaction that holds the org.
func (s *Store) claimDomain(ctx context.Context, tx *txn, d org.Domain, by string) (org.Domain, error) {
	tx.run(ctx, sqlHoldHostname, d.Name)
	there, err := find[org.Domain](ctx, tx, sqlDomainOf, d.OrgID, d.Name)
	switch {
	case err != nil:
		return d, err
	case there != nil && there.TenantID != d.TenantID:
		return d, taken("is a name of the org already: " + string(there.DomainID))
	case there != nil:
		return *there, nil
	}
	n := valueIn[int](ctx, tx, sqlUnverified, d.OrgID)
	if n >= maxUnverified {
		return d, prego.Errorf(prego.CodeTooManyDomains, "the org has %d unverified names, which is the limit: verify or delete some", n)
	}
	// It counts when it is verified; a name that could not be verified then is refused now.
	tx.check(s.takeQuota(ctx, tx, d.OrgID, quota.Delta{Dimension: quota.MaxHostnames, By: 1}))
	if token, err := value[string](ctx, tx, sqlOldToken, d.OrgID, d.Name); err == nil {
		d.Token = token
	} else if !isNoRows(err) {
		return d, err
	}
	out := oneIn[org.Domain](ctx, tx, sqlClaimDomain, d.DomainID, d.OrgID, d.TenantID, d.Name, d.ByRoute, d.Token, org.SoughtFor.Seconds(), by)
	return out, domainEvent(ctx, tx, "domain.create", out, by)
}

func domainEvent(ctx context.Context, tx *txn, what string, d org.Domain, by string) error {
	return orgEvent(ctx, tx, org.Event{OrgID: d.OrgID, Type: what, Subject: string(d.DomainID), Actor: by, Reason: string(d.Reason)},
		map[string]any{"name": d.Name, "tenant_id": d.TenantID, "status": d.Status, "missing_since": d.MissingSince})
}

const sqlGetDomain = `SELECT ` + domainColumns + ` FROM domains d WHERE d.domain_id = $1 AND d.deleted_at IS NULL`

// GetDomain reads one domain, or CodeDomainNotFound.
func (s *Store) GetDomain(ctx context.Context, id string) (org.Domain, error) {
	return get[org.Domain](ctx, s.pool, noSuchDomain(prego.DomainID(id)), sqlGetDomain, id)
}

// Domains is the list of domains.
var Domains = Listing[org.Domain]{
	what: "domains", from: `SELECT ` + domainColumns + ` FROM domains d`,
	live:    `d.deleted_at IS NULL`,
	filters: map[string]string{"domain_id": "d.domain_id", "org_id": "d.org_id", "tenant_id": "d.tenant_id", "name": "d.name", "status": "d.status"},
	sorts:   map[string]string{"created_at": "d.created_at", "name": "d.name"},
	id:      "d.domain_id",
}

const (
	sqlDeleteDomain = `UPDATE domains d SET deleted_at = now(), next_check = NULL, updated_at = now() WHERE d.domain_id = $1 AND d.deleted_at IS NULL RETURNING ` + domainColumns
	sqlDomainInUse  = `SELECT EXISTS (SELECT FROM domains d JOIN routes r ON r.org_id = d.org_id AND r.hostname = d.name AND r.deleted_at IS NULL
    WHERE d.domain_id = $1 AND d.tenant_id IS NULL AND d.deleted_at IS NULL)`
)

// DeleteDomain gives up a name. A name with routes is refused.
func (s *Store) DeleteDomain(ctx context.Context, id prego.DomainID, by string) error {
	return s.inTx(ctx, "delete domain", func(tx *txn) error {
		d := getIn[org.Domain](ctx, tx, noSuchDomain(id), sqlGetDomain, id)
		// No route for the name can be created in the meantime.
		tx.check(lockOrg(ctx, tx, d.OrgID))
		if valueIn[bool](ctx, tx, sqlDomainInUse, id) {
			return prego.Errorf(prego.CodeDomainInUse, "routes of the org have this name: delete them first")
		}
		tx.demands(ctx, "claim it again: its TXT record stays valid", string(id), sqlOfDomain)
		d = getIn[org.Domain](ctx, tx, noSuchDomain(id), sqlDeleteDomain, id)
		return domainEvent(ctx, tx, "domain.delete", d, by)
	})
}

const sqlCheckDomain = `
UPDATE domains d SET next_check = now(), failures = 0, updated_at = now(),
    status = CASE d.status WHEN 'expired' THEN 'pending' ELSE d.status END,
    sought_until = CASE WHEN d.status <> 'verified' THEN GREATEST(d.sought_until, now() + make_interval(secs => $2)) ELSE d.sought_until END
WHERE d.domain_id = $1 AND d.deleted_at IS NULL RETURNING ` + domainColumns

// CheckDomain schedules an immediate lookup of a name, even if lookups have stopped.
func (s *Store) CheckDomain(ctx context.Context, id prego.DomainID) (org.Domain, error) {
	return get[org.Domain](ctx, s.pool, noSuchDomain(id), sqlCheckDomain, id, org.SoughtFor.Seconds())
}

const sqlDomainsDue = `SELECT EXISTS (SELECT FROM domains WHERE deleted_at IS NULL AND next_check <= now())`

// DomainsDue reports whether a lookup of some name is due.
func (s *Store) DomainsDue(ctx context.Context) (bool, error) {
	due, err := value[bool](ctx, s.pool, sqlDomainsDue)
	return due, failed("domains due", err)
}

// Orgs take turns, so that many names of one org delay no other's.
const sqlTakeDomains = `
UPDATE domains d SET next_check = now() + make_interval(secs => $2)
WHERE d.domain_id IN (
    SELECT domain_id FROM domains WHERE deleted_at IS NULL AND next_check <= now() AND domain_id IN (
        SELECT domain_id FROM (
            SELECT domain_id, next_check, row_number() OVER (PARTITION BY org_id ORDER BY next_check, domain_id) AS turn
            FROM domains WHERE deleted_at IS NULL AND next_check <= now()) w
        ORDER BY turn, next_check, domain_id LIMIT $1)
    FOR UPDATE SKIP LOCKED)
RETURNING ` + domainColumns

// TakeDomains takes names whose lookup is due. No other caller takes them for as long as the lease.
func (s *Store) TakeDomains(ctx context.Context, limit int, lease time.Duration) ([]org.Domain, error) {
	return collect[org.Domain](ctx, s, "domains to look up", sqlTakeDomains, limit, lease.Seconds())
}

const (
	sqlHoldDomain   = `SELECT ` + domainColumns + ` FROM domains d WHERE d.domain_id = $1 AND d.deleted_at IS NULL FOR UPDATE`
	sqlDomainHolder = `SELECT ` + domainColumns + ` FROM domains d WHERE d.name = $1 AND d.domain_id <> $2 AND d.deleted_at IS NULL AND d.status = 'verified' FOR UPDATE`
	sqlSetDomain    = `
UPDATE domains SET status = $2, reason = $3, message = $4, points = $5, failures = $6, checked_at = $7, next_check = $8, verified_at = $9, missing_since = $10,
    sought_until = $11, elsewhere_since = $12, updated_at = now()
WHERE domain_id = $1`
)

// DomainSeen stores the result of a lookup: of several orgs that show their TXT record, the first has the name, and
// only with room in its quota.
func (s *Store) DomainSeen(ctx context.Context, d org.Domain, look org.DomainAnswer, rules org.DomainRules) (out org.Domain, err error) {
	err = s.inTx(ctx, "domain "+string(d.DomainID), func(tx *txn) error {
		tx.check(lockOrg(ctx, tx, d.OrgID))
		tx.run(ctx, sqlHoldHostname, d.Name)
		was, err := find[org.Domain](ctx, tx, sqlHoldDomain, d.DomainID)
		if err != nil || was == nil {
			return err // it was given up meanwhile
		}
		out = rules.Next(*was, look)
		if out.Status == org.DomainVerified && was.Status != org.DomainVerified {
			out = got(s.mayVerify(ctx, tx, *was, out, look.At, rules)).in(tx)
		}
		return setDomain(ctx, tx, *was, out)
	})
	return out, err
}

// mayVerify returns the next state of a name whose TXT record is there: verified, or the reason why not.
func (s *Store) mayVerify(ctx context.Context, tx *txn, was, found org.Domain, now time.Time, rules org.DomainRules) (org.Domain, error) {
	refused := func(reason prego.Reason, message string) org.Domain {
		was.CheckedAt, was.Points, was.Reason, was.Message = &now, found.Points, reason, message
		was.NextCheck = new(now.Add(rules.RetryMax))
		if was.Status == org.DomainExpired {
			was.Status = org.DomainPending
		}
		return was
	}
	err := s.takeQuota(ctx, tx, was.OrgID, quota.Delta{Dimension: quota.MaxHostnames, By: 1})
	if prego.CodeOf(err) == prego.CodeQuotaExceeded {
		return refused(org.ReasonDomainQuota, err.Error()), nil
	}
	if err != nil {
		return was, err
	}
	holder := findIn[org.Domain](ctx, tx, sqlDomainHolder, was.Name, was.DomainID)
	if holder != nil {
		gone := *holder
		gone.NextCheck = &now
		if holder.MissingSince == nil {
			// Its record was there at the last lookup: look again now.
			out := refused(org.ReasonDomainTaken, "another org has verified this name; it is checked again whether it still shows its TXT record")
			out.NextCheck = new(now.Add(rules.Retry))
			return out, setDomain(ctx, tx, *holder, gone)
		}
		// The current owner of the name shows another org's record and no longer this org's.
		gone.Status, gone.Reason, gone.Message = org.DomainLost, org.ReasonDomainTaken, "another org shows its TXT record for this name"
		gone.SoughtUntil = now.Add(org.SoughtFor)
		tx.check(setDomain(ctx, tx, *holder, gone))
	}
	return found, nil
}

// setDomain writes a domain, and an event for its org about what changed.
func setDomain(ctx context.Context, tx *txn, was, d org.Domain) error {
	tx.run(ctx, sqlSetDomain, d.DomainID, d.Status, d.Reason, d.Message, d.Points, d.Failures, d.CheckedAt, d.NextCheck,
		d.VerifiedAt, d.MissingSince, d.SoughtUntil, d.ElsewhereSince)
	switch {
	case d.Status != was.Status:
		return domainEvent(ctx, tx, "domain."+string(d.Status), d, string(prego.ActorSystem))
	case d.MissingSince != nil && was.MissingSince == nil:
		return domainEvent(ctx, tx, "domain.missing", d, string(prego.ActorSystem))
	case d.MissingSince == nil && was.MissingSince != nil:
		return domainEvent(ctx, tx, "domain.found", d, string(prego.ActorSystem))
	}
	return nil
}

const sqlForgetDomains = `
UPDATE domains d SET deleted_at = now(), next_check = NULL, updated_at = now()
FROM tenants t WHERE t.tenant_id = d.tenant_id AND d.deleted_at IS NULL AND t.state = 'data_purged' RETURNING ` + domainColumns

// ForgetDomains gives up the names of tenants whose data is erased.
func (s *Store) ForgetDomains(ctx context.Context) (n int, err error) {
	err = s.inTx(ctx, "names of erased tenants", func(tx *txn) error {
		gone := manyIn[org.Domain](ctx, tx, sqlForgetDomains)
		for _, d := range gone {
			tx.check(domainEvent(ctx, tx, "domain.delete", d, string(prego.ActorSystem)))
		}
		n = len(gone)
		return nil
	})
	return n, err
}
