package api

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

// Operations whose impact states what they cost a month, and operations that order nothing and make no policy or sweep
// order something. Tokens with the caveat monthly_cents are refused all other changes: their cost is unknown, such as
// that of a tenant, which may need another server.
var (
	priced        = strings.Fields("createServer createVolume growVolume undeleteVolume enableIPv4 resizeServer")
	ordersNothing = strings.Fields(`
		freeze createRelease pauseRelease cancelRelease createAgentRelease startAgentRelease pauseAgentRelease cancelAgentRelease
		refreshCatalog deleteImage deleteServer uncordonServer cancelMaintenance rebootServer repairContainers
		putOrg suspendTenant resumeTenant cancelTenant reactivateTenant terminateTenant unmuteTenant setAdminPassword addTenantUser
		putTenantMail deleteTenantMail createDomain deleteDomain checkDomain createTenantDomain deleteTenantDomain
		renewCertificate createRoute deleteRoute disableIPv4 deleteVolume attachVolume detachVolume
		deleteSnapshot deleteBackup deleteVolumeBackup releaseBackup releaseVolumeBackup releaseBackups createRestore createVolumeRestore
		cancelMove cancelRebalance cancelQueue cancelFleetAction deleteFleet deletePolicy
		createApp deleteApp createEnv deleteEnv deleteGroup restartGroup pauseGroup resumeGroup
		rotateRegistries putRegistry deleteRegistry putOrgRegistry deleteOrgRegistry deleteImageDigest
		createLimitRequest withdrawLimitRequest refuseLimitRequest`)
)

// movesLater are the operations that decide when the fleets' policies remove servers, which moves what is on them.
var movesLater = strings.Fields("updateFleet attachPolicy detachPolicy putPolicy")

// aboutAccess are things of which creating, changing and ending orders nothing.
var aboutAccess = strings.Fields("access access_role service_account token login invitation")

func (o *operation) spends() access.Spends {
	thing, _, _ := strings.Cut(string(o.capability), ":")
	switch {
	case slices.Contains(priced, o.OperationID):
		return access.SpendsPrice
	case o.capability == "", slices.Contains(ordersNothing, o.OperationID), slices.Contains(aboutAccess, thing):
		return access.SpendsNothing
	}
	return access.SpendsUnknown
}

// limited refuses what the caveats of a token exclude, as far as that shows without a look at rows, and has the store
// compare the rest with the impact of the change, in its transaction. What no grant includes is refused for that.
func (a *API) limited(c echo.Context, op *operation, p access.Principal) error {
	if len(p.Caveats) == 0 {
		return nil
	}
	l := &access.Limits{
		Act: access.Act{
			Operation: op.OperationID, Capability: op.capability, Tenant: prego.TenantID(pathValue(c, "tenant_id")), Bound: op.changes(),
			Spends: op.spends(), DryRun: dryRun(c),
			MovesLater: slices.Contains(movesLater, op.OperationID),
		},
		CredentialID: p.CredentialID, Caveats: p.Caveats,
	}
	if op.capability != "" && !p.SharesProgress() { // which learns of no org
		granted := p
		granted.Caveats = nil
		wide, narrow := granted.Reach(op.capability), p.Reach(op.capability)
		installation := slices.Contains(op.orgOf, orgOfInstallation)
		switch {
		case wide.None():
			return nil
		case narrow.None(), installation && wide.Everywhere && !narrow.Everywhere:
			return access.OtherOrgs(op.OperationID, p.Caveats)
		}
	}
	if err := l.RefuseAct(); err != nil {
		return err
	}
	inEach(c, func(ctx context.Context) context.Context { return access.WithLimits(ctx, l) })
	return nil
}

// caveats checks and sorts the caveats of a new token: its operations are in the contract, its orgs are seen by its
// caller, who may share the progress of its tenant.
func (a *API) caveats(ctx context.Context, in *access.Caveats, p access.Principal) error {
	reach := p.Reach("org:read")
	if err := in.Normalize(func(id string) bool { return a.contract.named(id) != nil }); err != nil {
		return err
	}
	for _, id := range in.Orgs {
		org, err := a.d.Store.OrgOf(ctx, "org", string(id))
		if err != nil && prego.CodeOf(err) != prego.CodeNotFound {
			return err
		}
		if err != nil || !reach.Includes(org) {
			return prego.Invalid("caveats.orgs", strconv.Quote(string(id))+" is not an org that is known here")
		}
	}
	if in.ProgressOf == "" {
		return nil
	}
	org, err := a.d.Store.OrgOf(ctx, "tenant", string(in.ProgressOf))
	if err != nil && prego.CodeOf(err) != prego.CodeTenantNotFound {
		return err
	}
	if err != nil || !p.Reach("progress:share").Includes(org) {
		return prego.Invalid("caveats.progress_of", strconv.Quote(string(in.ProgressOf))+" is not a tenant whose progress you may share")
	}
	return nil
}
