package store

import (
	"context"
	"strconv"
	"strings"

	"github.com/prego/prego"
)

const (
	sqlOrgOfOrg         = `SELECT org_id FROM orgs WHERE org_id = $1`
	sqlOrgOfGroup       = `SELECT org_id FROM process_groups WHERE group_id = $1`
	sqlOrgOfDomain      = `SELECT org_id FROM domains WHERE domain_id = $1`
	sqlOrgOfCertificate = `SELECT COALESCE(org_id, '') FROM certificates WHERE certificate_id = $1`
	sqlOrgOfEntry       = `SELECT org_id FROM audit_entries WHERE entry_id = $1`
	sqlOrgOfDecision    = `
SELECT t.org_id FROM allocation_snapshots d JOIN tenants t ON t.tenant_id = d.tenant_id WHERE d.snapshot_id = $1`

	sqlOrgOfAccount = `SELECT COALESCE(org_id, '') FROM principals WHERE principal_id = $1 AND kind = 'service_account'`
	sqlOrgOfToken   = `
SELECT COALESCE(p.org_id, '') FROM credentials c JOIN principals p ON p.principal_id = c.principal_id WHERE c.credential_id = $1 AND c.kind = 'token'`
	sqlOrgOfGrant = `SELECT COALESCE(org_id, '') FROM access_grants WHERE grant_id = $1`

	sqlOrgOfSnapshot      = `SELECT org_id FROM snapshots WHERE snapshot_id = $1`
	sqlOrgOfRestore       = `SELECT org_id FROM restore_jobs WHERE job_id = $1`
	sqlOrgOfVolumeRestore = `SELECT org_id FROM volume_restores WHERE restore_id = $1`
	sqlOrgOfMove          = `SELECT org_id FROM tenant_moves WHERE move_id = $1`
	sqlOrgOfAddress       = `SELECT org_id FROM ipv4_allocations WHERE allocation_id = $1`
)

// orgOf is how the org of a kind of objects is found, also of deleted ones, and the error for an absent one.
type orgOf struct {
	sql  string
	none func(id string) error
}

var orgsOf = map[string]orgOf{
	"org":         {sqlOrgOfOrg, func(id string) error { return noSuchOrg(prego.OrgID(id)) }},
	"tenant":      {sqlTenantOrg, noSuchTenant},
	"app":         {sqlAppOwner, noSuchApp},
	"env":         {sqlEnvOwner, noSuchEnv},
	"group":       {sqlOrgOfGroup, noSuchGroup},
	"instance":    {sqlInstanceOrg, noSuchInstance},
	"volume":      {sqlVolumeOrg, noSuchVolume},
	"domain":      {sqlOrgOfDomain, func(id string) error { return noSuchDomain(prego.DomainID(id)) }},
	"certificate": {sqlOrgOfCertificate, func(id string) error { return noCertificate(prego.CertificateID(id)) }},
	"decision":    {sqlOrgOfDecision, noSuchDecision},
	"entry":       {sqlOrgOfEntry, noSuchEntry}, // of the audit
	"account":     {sqlOrgOfAccount, noSuchAccount},
	"token":       {sqlOrgOfToken, noSuchToken},
	"grant":       {sqlOrgOfGrant, noSuchGrant},
	"login":       {none: noSuchLogin}, // of a person, who is of no org
	"operation":   {none: noSuchOperation},
	"invitation":  {sqlOrgOfInvitation, noSuchInvitation},

	"limit_request": {sqlOrgOfLimitRequest, noSuchLimitRequest},
}

// orgOfOperation has the operations on objects of orgs, by kind. All others are on the installation's.
var orgOfOperation = map[string]string{
	"tenant-provision": sqlTenantOrg,
	"tenant-change":    sqlTenantOrg,
	"tenant-move":      sqlOrgOfMove,
	"certificate":      sqlOrgOfCertificate,
	"snapshot":         sqlOrgOfSnapshot,
	"snapshot-erase":   sqlOrgOfSnapshot,
	"backup":           sqlOrgOfBackup,
	"backup-delete":    sqlOrgOfBackup,
	"restore":          sqlOrgOfRestore,
	"volume-restore":   sqlOrgOfVolumeRestore,
	"address":          sqlOrgOfAddress,
	"volume":           sqlVolumeOrg,
	"group-reconcile":  sqlOrgOfGroup,
}

// NoSuch is the error for an object that does not exist, as reading it returns it.
func NoSuch(kind, id string) error { return orgsOf[kind].none(id) }

// OrgOf returns the org that an object belongs to, "" for the installation, or NoSuch. It decides who may see the
// object, and therefore reads what is outside of the reach of the request.
func (s *Store) OrgOf(ctx context.Context, kind, id string) (org prego.OrgID, err error) {
	of := orgsOf[kind]
	sql, key := of.sql, any(id)
	switch kind {
	case "operation":
		on, target, _ := strings.Cut(id, "/")
		if sql, key = orgOfOperation[on], target; sql == "" {
			return "", nil
		}
	case "decision", "entry":
		if key, err = strconv.ParseInt(id, 10, 64); err != nil {
			return "", of.none(id)
		}
	}
	org, err = value[prego.OrgID](whole(ctx), s.pool, sql, key)
	return org, failed("org of "+kind+" "+id, ifNoRows(err, of.none(id)))
}
